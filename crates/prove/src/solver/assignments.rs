//! What is tried before the solver is asked: random assignments, those that have answered a question before, and the last of
//! these with changes.

use crate::solver::blast::Model;
use crate::solver::sample::Sample;
use crate::term::{TermId, Terms};

/// Random ones.
const RANDOM: usize = 3;
/// All that are kept.
const ALL: usize = 12;

/// Assignments to try.
pub(crate) struct Assignments {
    /// The random ones, then those that have answered a question, the last one last.
    all: Vec<Sample>,
    /// Whether earlier answers are tried, and mended. The solver's own are plainer, mostly zeros: where an answer is to be
    /// shown by a run, they more often are.
    pub(crate) mends: bool,
}

impl Assignments {
    /// The random ones.
    pub(crate) fn random() -> Assignments {
        Assignments { all: (0..RANDOM as u64).map(Sample::new).collect(), mends: false }
    }

    /// One in which all of `demands` hold, if that is soon found.
    pub(crate) fn meet(&mut self, terms: &Terms, demands: &[TermId]) -> Option<Model> {
        let meets = |sample: &mut Sample| demands.iter().all(|t| sample.value(terms, *t) != 0);
        if let Some(sample) = self.all.iter_mut().rev().find_map(|sample| meets(sample).then_some(sample)) {
            return Some(sample.model.clone());
        }
        let mut last = self.all.last().filter(|_| self.mends)?.copied();
        let model = last.meet(terms, demands).then(|| last.model.clone())?;
        self.push(last);
        Some(model)
    }

    /// Keeps the solver's answer for the next questions.
    pub(crate) fn keep(&mut self, model: &Model) {
        if self.mends {
            self.push(Sample::of(model.clone()));
        }
    }

    fn push(&mut self, sample: Sample) {
        if self.all.len() == ALL {
            self.all.remove(RANDOM);
        }
        self.all.push(sample);
    }
}
