//! What the pipeline did, as plain data for people and scripts, and how it tells the outside of its progress.

use serde::Serialize;

use crate::opinion::Refutation;

/// The kernel's word on one program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelVerdict {
    /// Whether the verifier accepted it.
    pub accepted: bool,
    /// Instructions the verifier processed, if it tells.
    pub processed: Option<u64>,
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
    /// Wall-clock seconds spent.
    pub seconds: f64,
    /// Listing before, a line per instruction: `slot: text`.
    #[serde(skip)]
    pub listing_before: Vec<String>,
    /// Listing after.
    #[serde(skip)]
    pub listing_after: Vec<String>,
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
    /// Rewrites the gate took back because the kernel refused them.
    pub dropped: usize,
    /// Changes taken back because they made more work for the kernel's verifier.
    pub heavier: usize,
    /// How it went with the programs that the kernel did not judge, of which `bpf_check` was asked; `None` if there are
    /// none.
    pub check: Option<String>,
    /// Changes taken back because `bpf_check` refused such a program.
    pub unsafe_changes: usize,
    /// Whether the time limit cut the work short.
    pub timed_out: bool,
    /// How running original and result in this kernel went.
    pub run_check: Option<crate::runcheck::RunCheck>,
    /// What the search did, if it ran.
    pub search: Option<crate::synthesis::SearchReport>,
    /// Wall-clock seconds in all.
    pub seconds: f64,
}

impl Report {
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

/// Verdict of `verify` on one function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "lowercase")]
pub enum FunctionVerdict {
    /// Proven equal.
    Equal,
    /// Differs on this input, confirmed by running both.
    Different {
        /// The input and both outcomes, in words; one line each.
        explanation: Vec<String>,
    },
    /// Neither proven nor refuted.
    Unknown {
        /// Why.
        reason: String,
    },
}

/// Comparison of two objects.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VerifyReport {
    /// Functions by name, in the first object's order.
    pub functions: Vec<(String, FunctionVerdict)>,
    /// Differences outside the code: functions or maps that only one object has, contents, types, symbols.
    pub differences: Vec<String>,
    /// What could not be compared outside the code.
    pub unknowns: Vec<String>,
    /// What differs and was ignored, because no loader sees it.
    pub notes: Vec<String>,
    /// Where all is equal: programs that this kernel takes from the first object and refuses from the second.
    pub refused: Vec<crate::acceptance::Refused>,
    /// What running both gave, before anything was proven.
    pub runs: crate::runs_first::RunsFirst,
    /// Wall-clock seconds.
    pub seconds: f64,
}

impl VerifyReport {
    /// Whether everything is equal, and the kernel takes the second object where it takes the first.
    pub fn is_equal(&self) -> bool {
        let proven = self.functions.iter().all(|(_, v)| *v == FunctionVerdict::Equal);
        proven && self.differences.is_empty() && self.unknowns.is_empty() && self.refused.is_empty()
    }

    /// Whether something is known to differ, be it in what the kernel says to it.
    pub fn is_different(&self) -> bool {
        let different = |v: &FunctionVerdict| matches!(v, FunctionVerdict::Different { .. });
        let outside = !self.differences.is_empty() || !self.refused.is_empty();
        outside || self.functions.iter().any(|(_, v)| different(v))
    }

    /// Takes differences back to unknowns: they hold for one way to pair functions of one name, and others, of which
    /// `tried` were looked at, may do better.
    pub(crate) fn doubt(&mut self, tried: usize) {
        let why = format!("of {tried} ways to pair static functions of one name, none was proven right or all wrong");
        self.unknowns.push(why);
        self.unknowns.append(&mut self.differences);
        for (_, verdict) in &mut self.functions {
            if let FunctionVerdict::Different { explanation } = verdict {
                let reason = format!("differs if paired like this: {}", explanation.join("; "));
                *verdict = FunctionVerdict::Unknown { reason };
            }
        }
    }
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
