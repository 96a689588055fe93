//! What the pipeline did, as plain data for people and scripts, and how it tells the outside of its progress.

mod runs;
mod search;
mod verify;

use serde::Serialize;

use crate::explain::Change;
use crate::measures::{Reached, Shape};

pub use runs::{HexInput, MapContents, NotRun, ProgramRuns, RunCheck, RunDifference};
pub use search::{Ended, SearchReport};
pub use verify::{FunctionVerdict, Refused, RunsFirst, VerifyReport};

/// The kernel's word on one program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KernelVerdict {
    /// Whether the kernel was asked and gave a verdict.
    pub judged: bool,
    /// Whether the verifier accepted it.
    pub accepted: bool,
    /// Instructions the verifier processed, if it tells.
    pub processed: Option<u64>,
    /// States it created, if it tells.
    pub states: Option<u64>,
    /// States it kept at once, if it tells.
    pub peak_states: Option<u64>,
    /// Stack bytes of each function, the entry first, if it tells.
    pub stack_depths: Vec<u32>,
    /// Why it was not accepted, in one line.
    pub reason: Option<String>,
}

/// What became of one function.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionReport {
    /// Symbol name.
    pub name: String,
    /// Section.
    pub section: String,
    /// Instruction slots before.
    pub slots_before: usize,
    /// Instruction slots after.
    pub slots_after: usize,
    /// Applied rewrites by pass name, in the order of first use.
    pub rewrites: Vec<(String, usize)>,
    /// Proofs that succeeded.
    pub proofs: usize,
    /// Proposals the prover refused or could not decide.
    pub refused: usize,
    /// Proposals that needed the SAT solver.
    pub sat_calls: u64,
    /// What is written against the original, as a whole function: `equal`, or `unknown: …; every step proven`.
    pub whole: String,
    /// Kernel verdict on the original, for programs.
    pub kernel_before: Option<KernelVerdict>,
    /// Kernel verdict on the result, for programs.
    pub kernel_after: Option<KernelVerdict>,
    /// Why the function was left as it was, if it was.
    pub untouched: Option<String>,
    /// Whether time ended before all was done that the rules would do.
    pub cut_short: bool,
    /// The function that it is the same as but for the name: the work was done on that one, and its figures hold for
    /// both.
    pub twin_of: Option<String>,
    /// What was made of it, step by step proven, was wrong as a whole and was not written: an error of this program.
    pub refuted: Option<Refutation>,
    /// What it became change by change, if that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// Wall-clock seconds spent.
    pub seconds: f64,
    /// How many blocks it had; `None` if it has no graph.
    pub shape: Option<Shape>,
    /// Estimated nanoseconds of all its instructions before and after, calls aside; `None` if it has no graph.
    pub estimated_ns: Option<(f64, f64)>,
    /// When it was first as small as it is now.
    pub reached: Reached,
    /// Listing before, a line per instruction: `slot: text`.
    #[serde(skip)]
    pub listing_before: Vec<String>,
    /// Listing after.
    #[serde(skip)]
    pub listing_after: Vec<String>,
}

/// A change that a judge of programs did not take: the kernel, its verifier's amount of work, or `bpf_check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TakenBack {
    /// The function it was made in.
    pub function: String,
    /// The pass or rule that proposed it; `None` for how blocks are cut and ordered, or where several may be to blame.
    pub change: Option<String>,
    /// What the result was found to be with it.
    pub reason: String,
}

/// A program that the kernel refuses because it is too much for the verifier, and accepts now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MadeAcceptable {
    /// The program.
    pub program: String,
    /// Why the original was refused.
    pub refused: String,
    /// What was done to its functions, and how often.
    pub by: Vec<(String, usize)>,
    /// Instructions that the verifier now processes, if it tells.
    pub processed: Option<u64>,
}

impl FunctionReport {
    /// Whether what is written is not proven equal as a whole, but step by step alone.
    pub fn is_proven_by_steps_alone(&self) -> bool {
        self.whole.starts_with("unknown")
    }
}

/// A result that was proven step by step and is wrong as a whole: an error of this program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refutation {
    /// The input and both outcomes, one line each.
    pub explanation: Vec<String>,
    /// The steps that led there: the pass that proposed it, or `shape`.
    pub steps: Vec<String>,
    /// Seed of the run.
    pub seed: u64,
    /// The original, a line per instruction.
    pub listing_original: Vec<String>,
    /// The result that was not written.
    pub listing_refused: Vec<String>,
}

impl Refutation {
    /// What the user is told, line by line.
    pub fn text(&self, function: &str) -> String {
        let head = format!(
            "{function}: THE OPTIMIZED FUNCTION IS WRONG and was not written; it stays as it was. This is an error of \
             bpf-opt: please report it with the input file and the following."
        );
        let listing = |name: &str, lines: &[String]| -> Vec<String> {
            std::iter::once(format!("  {name}:")).chain(lines.iter().map(|l| format!("    {l}"))).collect()
        };
        let mut lines = vec![head];
        lines.extend(self.explanation.iter().map(|l| format!("  {l}")));
        lines.push(format!("  seed {}, steps: {}", self.seed, self.steps.join(", ")));
        lines.extend(listing("original", &self.listing_original));
        lines.extend(listing("result", &self.listing_refused));
        lines.join("\n")
    }
}

/// What became of an object.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Functions in the object's order.
    pub functions: Vec<FunctionReport>,
    /// Things the user should know.
    pub warnings: Vec<String>,
    /// Remarks, such as dropped debug sections.
    pub notes: Vec<String>,
    /// How the gate went: `accepted`, `skipped: …`, or what was dropped to get there.
    pub gate: String,
    /// Whether libbpf loads all programs of the result at once; `None` where some do not load by themselves, or nobody was
    /// asked.
    pub loads_whole: Option<KernelVerdict>,
    /// What other kernels say ([`Options::other_kernels`](crate::Options)).
    pub other_kernels: Vec<OtherVerdicts>,
    /// Rewrites the gate took back because the kernel refused them, or made of them what is not proven to run as before.
    pub dropped: usize,
    /// Changes taken back because they made more work for the kernel's verifier.
    pub heavier: usize,
    /// How it went with the programs that the kernel did not judge, of which `bpf_check` was asked; `None` if there are
    /// none.
    pub check: Option<String>,
    /// Changes taken back because `bpf_check` refused such a program.
    pub unsafe_changes: usize,
    /// The changes of which `dropped`, `heavier` and `unsafe_changes` are the numbers, in the order in which they were found,
    /// but for those of programs that went back as wholes.
    pub taken_back: Vec<TakenBack>,
    /// Programs that the kernel refused for their complexity, and accepts as they are now (goal `verifier`).
    pub made_acceptable: Vec<MadeAcceptable>,
    /// Whether the time limit cut the work short.
    pub timed_out: bool,
    /// How running original and result in this kernel went.
    pub run_check: Option<RunCheck>,
    /// What the search did, if it ran.
    pub search: Option<SearchReport>,
    /// How it went with kept results of functions ([`crate::Options::parts`]), if there are to be any.
    pub parts: Option<PartsReport>,
    /// Wall-clock seconds in all.
    pub seconds: f64,
}

/// Kept results of functions: what came of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PartsReport {
    /// Functions of which the result was there and is proven, or is that nothing changes.
    pub taken: usize,
    /// Functions that were worked on, and whose result is kept now.
    pub made: usize,
    /// Kernel or `check` found fault with an object made of such results, so it was made again without any.
    pub again: bool,
}

impl Report {
    /// Whether some change was taken back, whoever found fault with it.
    pub(crate) fn has_taken_back(&self) -> bool {
        self.dropped + self.heavier + self.unsafe_changes > 0 || !self.taken_back.is_empty()
    }

    /// Adds a warning, unless it is there already.
    pub(crate) fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Slots of all functions before and after.
    pub fn slots(&self) -> (usize, usize) {
        self.functions.iter().fold((0, 0), |(a, b), f| (a + f.slots_before, b + f.slots_after))
    }
}

/// What another kernel than the running one says of the programs that it knows.
#[derive(Clone, Debug, Serialize)]
pub struct OtherVerdicts {
    /// Its release.
    pub kernel: String,
    /// Its programs.
    pub programs: Vec<OtherProgram>,
    /// Rewrites taken back because it refused them.
    pub taken_back: usize,
    /// Changes taken back because they made more work for its verifier.
    pub heavier: usize,
}

/// What another kernel says of one program.
#[derive(Clone, Debug, Serialize)]
pub struct OtherProgram {
    /// The function's name.
    pub name: String,
    /// The verdict on the original.
    pub before: KernelVerdict,
    /// The verdict on the result.
    pub after: KernelVerdict,
}

/// Tells the outside how far the work is; called often, must be quick.
pub trait Observer: Send + Sync {
    /// A function is about to be optimized: number, of how many, name, slots.
    fn function(&self, _index: usize, _count: usize, _name: &str, _slots: usize) {}
    /// So many slots are saved so far.
    fn saved(&self, _slots: usize) {}
    /// The search goes on: windows still open, proposals a second.
    fn searching(&self, _open: usize, _rate: f64) {}
    /// What is happening now, for long steps.
    fn phase(&self, _what: &str) {}
    /// Whether the user asked to stop: the best result so far is then written.
    fn stop(&self) -> bool {
        false
    }
}

/// An observer that shows nothing.
pub struct Silent;

impl Observer for Silent {}
