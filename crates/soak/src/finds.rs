//! What the lanes over generated programs share: optimize, run original and optimized object on the same inputs in the
//! kernel, and if they differ, make the program smaller and keep it.
//!
//! One idea: a generated program is a list of parts, any of which may be left out ([`Subject`]). So whatever generates
//! it, a find is shrunk by delta debugging over the numbers of its parts: while what is left can still be made, loads
//! and differs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bpf_driver::difftest::{Difference, Pair, Random as Traffic, Setup};
use bpf_driver::{Options, Silent, optimize};
use bpf_kernel::{KernelError, LoadOptions, LoadVerdict, LoadedObject};
use bpf_testgen::shrink;

use crate::Tally;

/// Time to optimize a program, without and with the search.
pub const PASSES: Duration = Duration::from_millis(700);
/// See [`PASSES`].
pub const SEARCH: Duration = Duration::from_millis(800);
/// One program in so many is also searched: a search costs as much as fifteen programs without.
pub const SEARCHED: u64 = 16;
/// Time to shrink a find.
const SHRINK: Duration = Duration::from_secs(30);
/// Bytes of stack of the thread that runs a unit: terms and graphs recurse.
const STACK: usize = 128 << 20;

/// What makes a new object of an old one, or says why it cannot.
pub type Optimizer = fn(&[u8], &Options) -> Result<Vec<u8>, String>;

/// The optimizer of this project.
pub const REAL: Optimizer =
    |object, options| optimize(object, options, &Silent).map(|(bytes, _)| bytes).map_err(|e| e.to_string());

const REFUSED: &str = "programs that the kernel refuses";

/// Why a program is not compared: the counter that says so, and details.
pub type NotCompared = (&'static str, String);

/// A generated program with everything that decides what is made of it.
pub trait Subject {
    /// How many parts it has.
    fn parts(&self) -> usize;
    /// The object of these parts.
    ///
    /// # Errors
    /// Why there is none.
    fn object(&self, kept: &[usize]) -> Result<Vec<u8>, NotCompared>;
    /// The source of these parts, and what its file is called.
    fn source(&self, kept: &[usize]) -> (&'static str, String);
    /// A line that says how the object was made of the source.
    fn made_by(&self) -> String;
    /// Whether it is also searched.
    fn search(&self) -> bool;
    /// Seed of the inputs.
    fn traffic(&self) -> u64;
    /// Packets for round `n`; `None` for random ones.
    fn packets(&self, n: u64) -> Option<Vec<Vec<u8>>> {
        let _ = n;
        None
    }
}

/// A lane's way to look for finds.
#[derive(Clone, Debug)]
pub struct Finder {
    /// The lane.
    pub lane: &'static str,
    /// What is tested.
    pub optimizer: Optimizer,
    /// Where finds are kept.
    pub folder: PathBuf,
    /// Rounds of one program, each with maps filled anew.
    pub rounds: u64,
    /// Inputs of a round.
    pub inputs: usize,
}

/// What is made of a subject.
struct Objects {
    original: Vec<u8>,
    optimized: Vec<u8>,
}

/// What came of one program.
enum Outcome {
    Not(NotCompared),
    Same,
    Differs(String),
}

impl Finder {
    /// With the usual number of rounds and inputs.
    pub fn new(lane: &'static str, optimizer: Optimizer, folder: &Path) -> Finder {
        Finder { lane, optimizer, folder: folder.to_owned(), rounds: 8, inputs: 64 }
    }

    fn make(&self, subject: &dyn Subject, kept: &[usize]) -> Result<Objects, NotCompared> {
        let original = subject.object(kept)?;
        LoadedObject::load(&original, &LoadOptions::default()).map_err(|e| (REFUSED, why_refused(&original, &e)))?;
        let time_limit = if subject.search() { SEARCH } else { PASSES };
        // What the proofs let through is to be seen here, not taken back by a run.
        let options = Options { time_limit, search: subject.search(), run_check: false, ..Options::default() };
        let optimized = (self.optimizer)(&original, &options).map_err(|e| ("programs not optimized", e))?;
        Ok(Objects { original, optimized })
    }

    fn compare(&self, subject: &dyn Subject, objects: &Objects, setup: &Setup, tally: &mut Tally) -> Outcome {
        if objects.original == objects.optimized {
            return Outcome::Not(("programs that stay as they are", String::new()));
        }
        let mut pair = match Pair::load(&objects.original, &objects.optimized, setup.clone()) {
            Ok(pair) => pair,
            Err(e) if e.second => return Outcome::Differs(format!("the kernel refuses the optimized object: {e}")),
            Err(e) => return Outcome::Not((REFUSED, e.to_string())),
        };
        let names: Vec<String> = pair.programs().map(str::to_owned).collect();
        for (name, n) in names.iter().flat_map(|name| (0..self.rounds).map(move |n| (name, n))) {
            let mut traffic = Traffic::of(subject.traffic(), n);
            let round = pair.round(name, &mut traffic, self.inputs, subject.packets(n).as_deref());
            tally.count("runs", round.runs);
            tally.count("runs the kernel would not do", round.refused);
            tally.count("unsteady rounds", round.unsteady);
            tally.count("rounds that differ, perhaps not always", round.open.is_some().into());
            if let Some(d) = round.difference {
                return Outcome::Differs(words(n, &d));
            }
        }
        Outcome::Same
    }

    fn check(&self, subject: &dyn Subject, kept: &[usize], setup: &Setup, tally: &mut Tally) -> Outcome {
        match self.make(subject, kept) {
            Ok(objects) => self.compare(subject, &objects, setup, tally),
            Err(why) => Outcome::Not(why),
        }
    }

    /// One program: counted, and kept if it differs. Says whether it was compared.
    pub fn program(&self, subject: &dyn Subject, setup: &Setup, unit: (u64, u64), tally: &mut Tally) -> bool {
        let (seed, index) = unit;
        // The network is this thread's own.
        let setup = Setup { allow_effects: true, ..setup.clone() };
        let all: Vec<usize> = (0..subject.parts()).collect();
        match self.check(subject, &all, &setup, tally) {
            Outcome::Same => tally.count("programs", 1),
            Outcome::Not((counter, why)) => {
                tally.count(counter, 1);
                if std::env::var_os("BPF_OPT_REFUSALS").is_some() && !why.is_empty() {
                    eprintln!("{index}: {counter}: {why}");
                }
                return false;
            }
            Outcome::Differs(first) => {
                tally.count("programs", 1);
                let until = Instant::now() + SHRINK;
                let (kept, what) = self.smallest(subject, all, &setup, first, until);
                let text = format!("{what}\n{}", self.keep(subject, &kept, &what, unit));
                tally.disagree(seed, index, text);
            }
        }
        true
    }

    /// Leaves out parts while what is left can still be made, loads and differs.
    fn smallest(
        &self,
        subject: &dyn Subject,
        all: Vec<usize>,
        setup: &Setup,
        first: String,
        until: Instant,
    ) -> (Vec<usize>, String) {
        let mut what = first;
        let kept = shrink(all, |kept| {
            if Instant::now() >= until {
                return false;
            }
            match self.check(subject, kept, setup, &mut Tally::default()) {
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
    fn keep(&self, subject: &dyn Subject, kept: &[usize], what: &str, (seed, index): (u64, u64)) -> String {
        let folder = self.folder.join(format!("{}-{seed}-{index}", self.lane));
        let (name, source) = subject.source(kept);
        let note = format!(
            "{what}\n\n{}; bpf-opt opt{}\nbpf-opt difftest before.o after.o\nbpf-soak --seed {seed} --unit {}:{index}\n",
            subject.made_by(),
            if subject.search() { ", with the search" } else { ", passes only" },
            self.lane,
        );
        let mut files = vec![(name, source.clone().into_bytes()), ("README", note.into_bytes())];
        if let Ok(objects) = self.make(subject, kept) {
            files.extend([("before.o", objects.original), ("after.o", objects.optimized)]);
        }
        keep(&folder, &files) + &source
    }
}

/// Writes the files of a find to a folder; a line that says where, or why not.
pub fn keep(folder: &Path, files: &[(&str, Vec<u8>)]) -> String {
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| files.iter().try_for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes)));
    match written {
        Ok(()) => format!("kept in {}\n", folder.display()),
        Err(e) => format!("could not be kept in {}: {e}\n", folder.display()),
    }
}

/// The end of the verifier's log, for who improves a generator.
fn why_refused(object: &[u8], error: &KernelError) -> String {
    let verdict = bpf_kernel::load_object(object, &LoadOptions::default());
    let programs = verdict.map(|v| v.programs).unwrap_or_default();
    let log = programs.iter().find_map(|p| match &p.verdict {
        LoadVerdict::Rejected { log, .. } => Some(log.lines().rev().take(12).collect::<Vec<_>>()),
        _ => None,
    });
    match log {
        Some(lines) => lines.into_iter().rev().collect::<Vec<_>>().join("\n"),
        None => error.to_string(),
    }
}

/// A difference in words.
fn words(round: u64, d: &Difference) -> String {
    let context = d.context.as_ref().map_or(String::new(), |c| format!("\ncontext {c}"));
    format!("{}: {}\nround {round}, run {}, packet {}{context}", d.program, d.what.join("; "), d.number, d.packet)
}

/// Does a unit in a thread of its own, which may move to another network namespace and has room to recurse.
pub fn in_own_thread(tally: &mut Tally, unit: impl FnOnce(&mut Tally) -> Result<(), String> + Send) {
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
