//! The answer to a comparison.

use crate::compare::judge::Judged;
use crate::options::Stats;
use crate::solver::blast::Model;
use crate::symbolic::acyclic::Outcome;
use crate::symbolic::context::Context;
use crate::symbolic::symex::Stop;

/// Result of a comparison.
#[derive(Debug)]
pub enum Verdict {
    /// Proven the same.
    Equal,
    /// There is an input on which they differ, according to the formula.
    Different(Box<Difference>),
    /// Neither shown, with the reason.
    Unknown(String),
}

impl Verdict {
    /// Whether it is [`Verdict::Equal`].
    pub fn is_equal(&self) -> bool {
        matches!(self, Verdict::Equal)
    }
}

/// A refutation: the formula's assignment, still to be replayed.
pub struct Difference {
    /// The assignment.
    pub model: Model,
    /// The graph it speaks about.
    pub context: Context,
    /// The old side's outcome.
    pub old: Outcome,
    /// The new side's outcome.
    pub new: Outcome,
}

impl std::fmt::Debug for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Difference").finish_non_exhaustive()
    }
}

/// What the judge said, as the answer to the caller.
pub(crate) fn verdict(result: Result<(Judged, Outcome, Outcome), Stop>, cx: Context) -> (Verdict, Stats) {
    let stats = cx.stats;
    let verdict = match result {
        Err(stop) => Verdict::Unknown(stop.to_string()),
        Ok((Judged::Equal, ..)) => Verdict::Equal,
        Ok((Judged::Unknown(why), ..)) => Verdict::Unknown(why),
        Ok((Judged::Different(model), old, new)) => {
            Verdict::Different(Box::new(Difference { model, context: cx, old, new }))
        }
    };
    (verdict, stats)
}
