//! SAT sweeping: which values of two sides are equal is guessed by running samples, and then proven.

use rustc_hash::FxHashMap;

use crate::solver::sample::Sample;
use crate::symbolic::context::{Context, SatResult};
use crate::term::TermId;

/// Assignments that are run to guess which values of the two sides are equal.
const SAMPLES: usize = 6;

/// Guesses that may go to the solver in one comparison.
const GUESSES: u32 = 400;

/// Makes long expressions comparable step by step (SAT sweeping): a value of the new side that
/// equals one of the old side in all samples is proven equal to it, at once, and then *is* that one
/// in all that follows. So the solver sees one rewritten expression at a time, not the whole chain.
#[derive(Default)]
pub(crate) struct Sweep {
    samples: Vec<Sample>,
    /// Values of the old side.
    olds: Vec<TermId>,
    /// The first of them with these values in the samples: all 64 bits, or the low 32.
    whole: FxHashMap<Vec<u64>, TermId>,
    low: FxHashMap<Vec<u64>, TermId>,
    asked: u32,
    ready: bool,
}

impl Sweep {
    /// Remembers a value of the old side.
    pub(crate) fn note(&mut self, t: TermId) {
        self.olds.push(t);
    }

    /// The old side's value that `t`, of the new side, is proven to equal, or `t`. If that is so of
    /// its low 32 bits only, those are replaced.
    pub(crate) fn canonical(&mut self, cx: &mut Context, t: TermId) -> TermId {
        if !self.ready {
            self.ready = true;
            self.prepare(cx);
        }
        if self.samples.is_empty() || cx.terms.as_const(t).is_some() || cx.terms.width(t) != 64 {
            return t;
        }
        let values = self.values(cx, t);
        let low = values.iter().map(|v| v & 0xffff_ffff).collect::<Vec<_>>();
        let better = match (self.whole.get(&values).copied(), self.low.get(&low).copied()) {
            (Some(u), _) if u == t || self.equal(cx, u, t) => u,
            (_, Some(u)) => {
                let (x, y) = (cx.terms.extract(u, 0, 32), cx.terms.extract(t, 0, 32));
                if x == y || !self.equal(cx, x, y) {
                    return t;
                }
                let high = cx.terms.extract(t, 32, 32);
                cx.terms.concat(&[x, high])
            }
            _ => return t,
        };
        cx.replace(t, better);
        better
    }

    fn equal(&mut self, cx: &mut Context, x: TermId, y: TermId) -> bool {
        if self.asked >= GUESSES {
            return false;
        }
        self.asked += 1;
        let e = cx.terms.eq(x, y);
        let ne = cx.terms.not(e);
        let tru = cx.terms.tru();
        match cx.check_sat(tru, &[ne]) {
            SatResult::Unsat => true,
            // One more sample tells them apart; the others are not worth another look.
            SatResult::Sat(_) | SatResult::Unknown => false,
        }
    }

    /// Chooses samples that satisfy what is assumed, and runs the old side's values on them.
    fn prepare(&mut self, cx: &mut Context) {
        self.samples = cx.samples(SAMPLES);
        for t in std::mem::take(&mut self.olds) {
            if cx.terms.width(t) == 64 && cx.terms.as_const(t).is_none() {
                let values = self.values(cx, t);
                let low = values.iter().map(|v| v & 0xffff_ffff).collect();
                self.whole.entry(values).or_insert(t);
                self.low.entry(low).or_insert(t);
            }
        }
    }

    fn values(&mut self, cx: &Context, t: TermId) -> Vec<u64> {
        self.samples.iter_mut().map(|s| s.value(&cx.terms, t)).collect()
    }
}
