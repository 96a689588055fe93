//! The prover as generalization asks it: a bounded number of times, with small limits.

use bpf_program::Op;
use bpf_prove::{Limits, Options, Verdict};

use super::General;
use crate::canonical::WindowKey;

/// Proofs for one rule, at most.
const PROOFS: usize = 40;
/// Cases that these proofs may go through.
const CASES: i64 = 3_000;

/// Asks the prover a bounded number of times.
pub(super) struct Prover {
    /// How many proofs are left.
    pub(super) left: usize,
    cases: i64,
    options: Options,
}

impl Prover {
    /// One that has done nothing yet, with small limits for each proof.
    pub(super) fn new() -> Prover {
        let limits = Limits { conflicts: 300, work: 30_000, ..Limits::default() };
        Prover { left: PROOFS, cases: CASES, options: Options { limits, ..Options::default() } }
    }

    /// Whether the rule is proven.
    pub(super) fn holds(&mut self, g: &General) -> bool {
        let cases = g.cases().1;
        if self.left == 0 || self.cases < cases {
            return false;
        }
        self.left -= 1;
        self.cases -= cases;
        matches!(g.prove(&self.options), Verdict::Equal)
    }

    /// Takes the other rule for this one if it is proven.
    pub(super) fn keep(&mut self, g: &mut General, other: General) -> bool {
        let holds = self.holds(&other);
        if holds {
            *g = other;
        }
        holds
    }

    /// Whether a replacement of one window is proven.
    pub(super) fn specific(&mut self, p: &WindowKey, new: &[Op]) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        matches!(p.prove(new, &self.options), Verdict::Equal)
    }
}
