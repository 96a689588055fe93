//! What comparing two objects gave, as plain data: the verdicts of the proofs, what running both showed, and what the
//! kernel refuses.

use serde::Serialize;

use super::runs::NotRun;

/// A program that this kernel takes from the first object, and refuses from the second; or takes for something else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Its name.
    pub name: String,
    /// The verifier's last words.
    pub reason: String,
}

/// What trying runs gave.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RunsFirst {
    /// Inputs that both ran on in this kernel.
    pub kernel_inputs: u64,
    /// Inputs that both ran on in the interpreter.
    pub interpreted_inputs: u64,
    /// Programs that were not run in the kernel, and why.
    pub not_in_kernel: Vec<NotRun>,
    /// Programs that a run shows to differ, with the input and what both do, in words.
    #[serde(skip)]
    pub different: Vec<(String, Vec<String>)>,
    /// Programs that differed once, of which it could not be seen whether they always do, and why. They are not called equal.
    #[serde(skip)]
    pub open: Vec<NotRun>,
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
    pub refused: Vec<Refused>,
    /// What running both gave, before anything was proven.
    pub runs: RunsFirst,
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
