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
    /// The random ones, then what has answered a question, as it came.
    all: Vec<Sample>,
    /// Whether earlier answers are tried, and mended. The solver's own are plainer, mostly zeros: where an answer is to be
    /// shown by a run, they more often are.
    pub(crate) mends: bool,
    /// Terms that those which are not kept have evaluated.
    elsewhere: u64,
}

impl Assignments {
    /// The random ones.
    pub(crate) fn random() -> Assignments {
        Assignments { all: (0..RANDOM as u64).map(Sample::new).collect(), mends: false, elsewhere: 0 }
    }

    /// One in which all of `demands` hold, if that is soon found.
    pub(crate) fn meet(&mut self, terms: &Terms, demands: &[TermId]) -> Option<Model> {
        let meets = |sample: &mut Sample| demands.iter().all(|t| sample.value(terms, *t) != 0);
        let (random, answers) = self.all.split_at_mut(RANDOM);
        let mut in_order = answers.iter_mut().rev().chain(random);
        if let Some(sample) = in_order.find_map(|sample| meets(sample).then_some(sample)) {
            return Some(sample.model.clone());
        }
        let mut last = self.all.last().filter(|_| self.mends)?.copied();
        if !last.meet(terms, demands) {
            self.elsewhere += last.evaluated;
            return None;
        }
        let model = last.model.clone();
        self.push(last);
        Some(model)
    }

    /// How many terms have been evaluated since this was asked last.
    pub(crate) fn evaluated(&mut self) -> u64 {
        let here: u64 = self.all.iter_mut().map(|s| std::mem::take(&mut s.evaluated)).sum();
        here + std::mem::take(&mut self.elsewhere)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_answers_again_and_is_mended_where_that_is_allowed() {
        let mut t = Terms::new();
        let x = t.fresh(64).1;
        let is = |t: &mut Terms, x: TermId, k: u64| {
            let k = t.constant(64, k);
            t.eq(x, k)
        };
        let (seven, eight) = (is(&mut t, x, 7), is(&mut t, x, 8));
        let mut plain = Assignments::random();
        assert!(plain.meet(&t, &[seven]).is_none());
        let mut mending = Assignments { mends: true, ..Assignments::random() };
        for (demand, number) in [(seven, 7), (eight, 8), (seven, 7)] {
            let model = mending.meet(&t, &[demand]).expect("found");
            assert_eq!(model.eval(&t, x), number);
            plain.keep(&model);
        }
        // The third was there.
        assert_eq!((mending.all.len(), plain.all.len()), (RANDOM + 2, RANDOM));
        for k in 100..200 {
            let demand = is(&mut t, x, k);
            assert!(mending.meet(&t, &[demand]).is_some());
        }
        assert_eq!(mending.all.len(), ALL);
    }
}
