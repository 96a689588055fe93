//! Damaged objects: an error, or a result that can be read again; never a panic, never a hang.
//!
//! Real objects are damaged in ways that reach deep: not only bytes and lengths, but fields of headers, symbols,
//! relocations and BTF, and operands of instructions, which leave a file whole and its programs strange. Case N of a
//! seed is always the same. A binary of its own: it uses all processors, and `make soak` runs it by name.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `BPF_OPT_MUTATIONS` | how many cases | 1000 |
//! | `BPF_OPT_SEED` | the seed | 1 |
//! | `BPF_OPT_CASE` | only this case | all |
#[path = "all/common/mod.rs"]
mod common;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bpf_driver::{FunctionVerdict, Options, Silent};
use bpf_object::Object;

use common::*;

/// The longest a case may take: many times its time limit. It is counted in looks of the watch, not by the clock, so
/// that a machine that stands still for a while does not fail the test.
const PATIENCE: usize = 400;
/// The time between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// What `optimize` is told to keep to.
const TIME_LIMIT: Duration = Duration::from_millis(60);
/// One case in so many also goes through the binary.
const BINARY_EVERY: usize = 50;
/// One case in so many is also verified.
const VERIFY_EVERY: usize = 4;

#[test]
fn damaged_objects_give_errors_or_readable_results() {
    let seed = number("BPF_OPT_SEED").unwrap_or(1) as u64;
    let cases = match number("BPF_OPT_CASE") {
        Some(case) => case..case + 1,
        None => 0..number("BPF_OPT_MUTATIONS").unwrap_or(1000),
    };
    let objects: Vec<(PathBuf, Vec<u8>)> =
        examples().into_iter().chain(benchmarks()).map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let next = AtomicUsize::new(cases.start);
    let outcomes = [const { AtomicUsize::new(0) }; 3];
    let busy: Vec<Mutex<Option<(usize, usize)>>> = (0..workers).map(|_| Mutex::new(None)).collect();
    let done = AtomicBool::new(false);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| watch(&busy, &done, seed));
        let work: Vec<_> = busy
            .iter()
            .enumerate()
            .map(|(n, slot)| {
                let (next, cases, objects, outcomes, failures) = (&next, &cases, &objects, &outcomes, &failures);
                std::thread::Builder::new()
                    .stack_size(256 << 20)
                    .spawn_scoped(scope, move || {
                        loop {
                            let case = next.fetch_add(1, Ordering::Relaxed);
                            if case >= cases.end {
                                break;
                            }
                            // Should the process die, this tells where.
                            let note = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mutations-{n}"));
                            let _ = fs::write(note, format!("BPF_OPT_SEED={seed} BPF_OPT_CASE={case}\n"));
                            *slot.lock().unwrap() = Some((case, 0));
                            let (path, original) = &objects[case % objects.len()];
                            let bytes = damaged(original, &mut Random::new(seed, case));
                            match catch_unwind(AssertUnwindSafe(|| check(case, &bytes))) {
                                Ok(outcome) => {
                                    outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
                                }
                                Err(_) => {
                                    let kept = keep(case, &bytes);
                                    failures.lock().unwrap().push(format!(
                                        "BPF_OPT_SEED={seed} BPF_OPT_CASE={case} ({}), kept as {}",
                                        path.display(),
                                        kept.display()
                                    ));
                                }
                            }
                            *slot.lock().unwrap() = None;
                        }
                    })
                    .expect("a thread")
            })
            .collect();
        for worker in work {
            worker.join().expect("a worker does not panic");
        }
        done.store(true, Ordering::Relaxed);
        watch.join().expect("the watch does not panic");
    });
    let [refused, same, changed] = outcomes.map(AtomicUsize::into_inner);
    println!("{} cases: {refused} refused, {same} unchanged, {changed} changed", refused + same + changed);
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
}

/// What came of a case.
#[derive(Clone, Copy)]
enum Outcome {
    Refused,
    Same,
    Changed,
}

fn check(case: usize, bytes: &[u8]) -> Outcome {
    let options = Options { kernel: false, time_limit: TIME_LIMIT, ..Options::default() };
    if case.is_multiple_of(BINARY_EVERY) {
        through_the_binary(bytes);
    }
    let Ok((written, report)) = bpf_driver::optimize(bytes, &options, &Silent) else { return Outcome::Refused };
    // A function that breaks the optimizer is left alone in the field; here it is a failure.
    for f in &report.functions {
        assert!(
            !f.untouched.as_deref().is_some_and(|w| w.contains("internal error")),
            "{} broke the optimizer",
            f.name
        );
    }
    let before = Object::parse(bytes.to_vec()).expect("what was optimized can be read");
    let after = Object::parse(written.clone()).expect("the result can be read");
    assert_eq!(before.functions().len(), after.functions().len());
    let (slots_before, slots_after) = report.slots();
    assert!(slots_after <= slots_before, "{slots_before} -> {slots_after} slots");
    if written == bytes {
        return Outcome::Same;
    }
    if case.is_multiple_of(VERIFY_EVERY) {
        let verdicts = bpf_driver::verify(bytes, &written, &options).expect("both can be read");
        for (name, verdict) in &verdicts.functions {
            assert!(!matches!(verdict, FunctionVerdict::Different { .. }), "{name}: {verdict:?}");
        }
    }
    Outcome::Changed
}

/// Listings, graphs and the interpreter on the same bytes.
fn through_the_binary(bytes: &[u8]) {
    let file = tempfile::Builder::new().suffix(".o").tempfile().expect("a temporary file");
    fs::write(file.path(), bytes).expect("it is written");
    for args in [&["dis", "--lines"][..], &["dis", "--cfg"], &["run"], &["check"]] {
        let ran = Ran::of(command().args(args).arg(file.path()).output().expect("the binary runs"));
        assert!(matches!(ran.code, Some(0..=3)), "{args:?}: {ran:?}");
    }
}

/// Ends the process when a case takes too long; a thread cannot be stopped otherwise.
fn watch(busy: &[Mutex<Option<(usize, usize)>>], done: &AtomicBool, seed: u64) {
    while !done.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK);
        for slot in busy {
            if let Some((case, looks)) = slot.lock().unwrap().as_mut() {
                *looks += 1;
                if *looks > PATIENCE {
                    eprintln!("BPF_OPT_SEED={seed} BPF_OPT_CASE={case} hangs: {:?} are over", LOOK * PATIENCE as u32);
                    std::process::exit(1);
                }
            }
        }
    }
}

fn keep(case: usize, bytes: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mutation-{case}.o"));
    fs::write(&path, bytes).expect("the case is kept");
    path
}

fn number(variable: &str) -> Option<usize> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

/// What is to be damaged, and how.
struct Random(fastrand::Rng);

impl Random {
    fn new(seed: u64, case: usize) -> Random {
        let part = (case as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Random(fastrand::Rng::with_seed(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ part))
    }

    fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Less than `n`; 0 if `n` is.
    fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.next() % n as u64) as usize }
    }

    /// A number that tends to break things.
    fn odd(&mut self, near: u64) -> u64 {
        match self.below(10) {
            0 => 0,
            1 => 1,
            2 => u64::MAX,
            3 => 0x7fff_ffff,
            4 => 0x8000_0000,
            5 => near.wrapping_add(1),
            6 => near.wrapping_sub(1),
            7 => near ^ 1 << self.below(64),
            8 => self.next() & 0xff,
            _ => self.next(),
        }
    }
}

/// A section's place in the file.
#[derive(Clone, Copy)]
struct Section {
    kind: u32,
    executable: bool,
    start: usize,
    len: usize,
}

fn read(bytes: &[u8], at: usize, width: usize) -> u64 {
    let mut word = [0; 8];
    if let Some(found) = bytes.get(at..at + width) {
        word[..width].copy_from_slice(found);
    }
    u64::from_le_bytes(word)
}

fn put(bytes: &mut [u8], at: usize, width: usize, v: u64) {
    if let Some(place) = bytes.get_mut(at..at + width) {
        place.copy_from_slice(&v.to_le_bytes()[..width]);
    }
}

fn sections(bytes: &[u8]) -> Vec<Section> {
    let (table, count) = (read(bytes, 0x28, 8) as usize, read(bytes, 0x3c, 2) as usize);
    (0..count)
        .map(|i| table + i * 64)
        .map(|at| Section {
            kind: read(bytes, at + 4, 4) as u32,
            executable: read(bytes, at + 8, 8) & 4 != 0,
            start: read(bytes, at + 0x18, 8) as usize,
            len: read(bytes, at + 0x20, 8) as usize,
        })
        .filter(|s| s.kind != 8 && s.start.saturating_add(s.len) <= bytes.len())
        .collect()
}

/// The object with one to three pieces of damage.
fn damaged(original: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = original.to_vec();
    let all = sections(original);
    for _ in 0..1 + random.below(3) {
        match random.below(16) {
            0 => flip_bytes(&mut bytes, random),
            1 => bytes.truncate(random.below(original.len())),
            2 => field(&mut bytes, 0, 64, random),
            3 | 4 => {
                let table = read(original, 0x28, 8) as usize;
                field(&mut bytes, table, read(original, 0x3c, 2) as usize * 64, random);
            }
            5 => {
                let (at, len) = (random.below(bytes.len()), random.below(64));
                bytes.drain(at..(at + len).min(original.len()).max(at).min(bytes.len().max(at)));
            }
            6 | 7 => damage_section(&mut bytes, &all, random, |s| s.kind == 2 || s.kind == 9 || s.kind == 4),
            8 | 9 => damage_section(&mut bytes, &all, random, |s| !s.executable && s.kind == 1),
            _ => instruction(&mut bytes, &all, random),
        }
    }
    bytes
}

fn flip_bytes(bytes: &mut [u8], random: &mut Random) {
    for _ in 0..1 + random.below(16) {
        let at = random.below(bytes.len());
        if let Some(b) = bytes.get_mut(at) {
            *b ^= 1 << random.below(8);
        }
    }
}

/// Gives a field of 1 to 8 bytes in a range another value.
fn field(bytes: &mut [u8], start: usize, len: usize, random: &mut Random) {
    let width = [1, 2, 4, 4, 8, 8][random.below(6)];
    let at = start + random.below(len) / width * width;
    let v = random.odd(read(bytes, at, width));
    put(bytes, at, width, v);
}

fn damage_section(bytes: &mut [u8], all: &[Section], random: &mut Random, wanted: impl Fn(&Section) -> bool) {
    let some: Vec<&Section> = all.iter().filter(|s| s.len > 0 && wanted(s)).collect();
    if let Some(s) = some.get(random.below(some.len())) {
        field(bytes, s.start, s.len, random);
    }
}

/// Changes the operation, a register, the offset or the immediate of an instruction; or copies another over it.
fn instruction(bytes: &mut [u8], all: &[Section], random: &mut Random) {
    let code: Vec<&Section> = all.iter().filter(|s| s.executable && s.len >= 8).collect();
    let Some(s) = code.get(random.below(code.len())) else { return };
    let at = s.start + random.below(s.len / 8) * 8;
    let mut near = |width: usize, of: usize, random: &mut Random| {
        let v = random.odd(read(bytes, at + of, width));
        put(bytes, at + of, width, v);
    };
    match random.below(7) {
        0 => near(1, 0, random),
        1 => near(1, 1, random),
        2 => near(2, 2, random),
        3 | 4 => near(4, 4, random),
        5 => {
            // Another register: most of these still load.
            let registers = random.below(11) | random.below(11) << 4;
            put(bytes, at + 1, 1, registers as u64);
        }
        _ => {
            let from = s.start + random.below(s.len / 8) * 8;
            let other = read(bytes, from, 8);
            put(bytes, at, 8, other);
        }
    }
}
