//! Lane `clang`: random C programs, compiled by clang, original against optimized in the kernel.
//!
//! Nobody of this project is asked whether a result is right. A unit is one program: generated, compiled at a random
//! level and for a random cpu, optimized (passes, and now and then a short search), and both objects run on the same
//! packets with the same map contents, in a network namespace of its own. What differs is shrunk, statement by
//! statement, and written to a folder: source, both objects, and what to do to see it again.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bpf_driver::difftest::{Difference, Pair, Random as Traffic, Setup};
use bpf_driver::{Options, Silent, optimize};
use bpf_testgen::c::{Clang, Program, Settings};
use bpf_testgen::random::Rng;
use bpf_testgen::shrink;

use crate::{Lane, Tally};

/// Rounds of one program, each with maps filled anew, and packets of each.
const ROUNDS: u64 = 8;
const PACKETS: usize = 64;
/// Time to optimize a program, without and with the search.
const PASSES: Duration = Duration::from_millis(700);
const SEARCH: Duration = Duration::from_millis(1500);
/// One program in so many is also searched: a search costs as much as fifteen programs without.
const SEARCHED: u64 = 16;
/// Time to shrink a find.
const SHRINK: Duration = Duration::from_secs(30);
/// Bytes of stack of the thread that runs a unit: terms and graphs recurse.
const STACK: usize = 128 << 20;

/// What makes a new object of an old one, or says why it cannot.
pub type Optimizer = fn(&[u8], &Options) -> Result<Vec<u8>, String>;

/// The lane.
pub struct ClangLane {
    clang: Clang,
    optimizer: Optimizer,
    /// Where finds are kept.
    keep: PathBuf,
}

/// A program with everything that decides what is made of it.
struct Subject {
    program: Program,
    settings: Settings,
    search: bool,
    /// Seed of the packets.
    traffic: u64,
}

/// What is made of a subject.
struct Objects {
    original: Vec<u8>,
    optimized: Vec<u8>,
}

/// What came of one program.
enum Outcome {
    /// It is not comparable: the counter that says why.
    Not(&'static str, String),
    Same,
    Differs(String),
}

impl ClangLane {
    /// The lane.
    ///
    /// # Errors
    /// Why it cannot run here: no `bpf()`, no clang.
    pub fn new(keep: &Path) -> Result<ClangLane, String> {
        let optimizer: Optimizer =
            |object, options| optimize(object, options, &Silent).map(|(bytes, _)| bytes).map_err(|e| e.to_string());
        ClangLane::of(optimizer, keep)
    }

    /// The lane with another optimizer.
    ///
    /// # Errors
    /// As [`ClangLane::new`].
    pub fn of(optimizer: Optimizer, keep: &Path) -> Result<ClangLane, String> {
        bpf_kernel::permitted().require().map_err(|e| e.to_string())?;
        let clang = Clang::find().ok_or("there is no clang")?;
        Ok(ClangLane { clang, optimizer, keep: keep.to_owned() })
    }

    fn make(&self, subject: &Subject, kept: &[usize]) -> Result<Objects, (&'static str, String)> {
        let original = self
            .clang
            .compile(&subject.program.source(kept), subject.settings)
            .map_err(|e| ("programs that clang refuses", e))?;
        let time_limit = if subject.search { SEARCH } else { PASSES };
        // What the proofs let through is to be seen here, not taken back by a run.
        let options = Options { time_limit, search: subject.search, run_check: false, ..Options::default() };
        let optimized = (self.optimizer)(&original, &options).map_err(|e| ("programs not optimized", e))?;
        Ok(Objects { original, optimized })
    }

    fn compare(&self, subject: &Subject, objects: &Objects, tally: &mut Tally) -> Outcome {
        if objects.original == objects.optimized {
            return Outcome::Not("programs that stay as they are", String::new());
        }
        // The network is this thread's own.
        let setup = Setup { allow_effects: true, ..Setup::default() };
        let mut pair = match Pair::load(&objects.original, &objects.optimized, setup) {
            Ok(pair) => pair,
            Err(e) if e.second => return Outcome::Differs(format!("the kernel refuses the optimized object: {e}")),
            Err(e) => return Outcome::Not("programs that the kernel refuses", e.to_string()),
        };
        let names: Vec<String> = pair.programs().map(str::to_owned).collect();
        for (name, n) in names.iter().flat_map(|name| (0..ROUNDS).map(move |n| (name, n))) {
            let round = pair.round(name, &mut Traffic::of(subject.traffic, n), PACKETS, None);
            tally.count("runs", round.runs);
            tally.count("runs the kernel would not do", round.refused);
            tally.count("unsteady rounds", round.unsteady);
            if let Some(d) = round.difference {
                return Outcome::Differs(words(n, &d));
            }
        }
        Outcome::Same
    }

    fn check(&self, subject: &Subject, kept: &[usize], tally: &mut Tally) -> Outcome {
        match self.make(subject, kept) {
            Ok(objects) => self.compare(subject, &objects, tally),
            Err((counter, why)) => Outcome::Not(counter, why),
        }
    }

    /// One program.
    fn program(&self, seed: u64, index: u64, tally: &mut Tally) {
        let mut r = Rng::of(seed ^ 0xc1a9, index);
        let program = Program::random(&mut r);
        let settings = Settings::random(&mut r);
        let subject = Subject { program, settings, search: r.chance(SEARCHED), traffic: r.next() };
        let all: Vec<usize> = (0..subject.program.statements()).collect();
        match self.check(&subject, &all, tally) {
            Outcome::Same => tally.count("programs", 1),
            Outcome::Not(counter, why) => {
                tally.count(counter, 1);
                if std::env::var_os("BPF_OPT_REFUSALS").is_some() && !why.is_empty() {
                    eprintln!("{index}: {counter}: {why}");
                }
            }
            Outcome::Differs(first) => {
                tally.count("programs", 1);
                let until = Instant::now() + SHRINK;
                let (kept, what) = self.smallest(&subject, all, first, until);
                let text = format!("{what}\n{}", self.keep(&subject, &kept, &what, seed, index));
                tally.disagree(seed, index, text);
            }
        }
    }

    /// Leaves out statements while what is left still compiles, loads and differs.
    fn smallest(&self, subject: &Subject, all: Vec<usize>, first: String, until: Instant) -> (Vec<usize>, String) {
        let mut what = first;
        let kept = shrink(all, |kept| {
            if Instant::now() >= until {
                return false;
            }
            match self.check(subject, kept, &mut Tally::default()) {
                Outcome::Differs(still) => {
                    what = still;
                    true
                }
                _ => false,
            }
        });
        (kept, what)
    }

    /// Writes a find to its folder; says where.
    fn keep(&self, subject: &Subject, kept: &[usize], what: &str, seed: u64, index: u64) -> String {
        let folder = self.keep.join(format!("clang-{seed}-{index}"));
        let source = subject.program.source(kept);
        let note = format!(
            "{what}\n\nclang -target bpf -g {} -mcpu={} -c find.c -o before.o; bpf-opt opt{}\n\
             bpf-opt difftest before.o after.o\nbpf-soak --seed {seed} --unit clang:{index}\n",
            subject.settings.level,
            subject.settings.cpu,
            if subject.search { ", with the search" } else { ", passes only" },
        );
        let mut files = vec![("find.c", source.clone().into_bytes()), ("README", note.into_bytes())];
        if let Ok(objects) = self.make(subject, kept) {
            files.extend([("before.o", objects.original), ("after.o", objects.optimized)]);
        }
        let written = std::fs::create_dir_all(&folder)
            .and_then(|()| files.iter().try_for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes)));
        let mut text = String::new();
        let _ = match written {
            Ok(()) => writeln!(text, "kept in {}", folder.display()),
            Err(e) => writeln!(text, "could not be kept in {}: {e}", folder.display()),
        };
        text + &source
    }
}

/// A difference in words.
fn words(round: u64, d: &Difference) -> String {
    let context = d.context.as_ref().map_or(String::new(), |c| format!("\ncontext {c}"));
    format!("{}: {}\nround {round}, run {}, packet {}{context}", d.program, d.what.join("; "), d.number, d.packet)
}

impl Lane for ClangLane {
    fn name(&self) -> &'static str {
        "clang"
    }

    fn unit(&mut self, seed: u64, index: u64, tally: &mut Tally) {
        let unit = |tally: &mut Tally| -> Result<(), String> {
            bpf_kernel::own_network().map_err(|e| e.to_string())?;
            self.program(seed, index, tally);
            Ok(())
        };
        let done = std::thread::scope(|s| {
            let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(s, || unit(tally));
            thread.map_err(|e| e.to_string())?.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        if let Err(why) = done {
            tally.count("units not run", 1);
            if std::env::var_os("BPF_OPT_REFUSALS").is_some() {
                eprintln!("{why}");
            }
        }
    }
}
