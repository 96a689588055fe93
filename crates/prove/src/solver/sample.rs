//! Made-up assignments, on which terms are evaluated before the solver is asked.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::solver::blast::Model;
use crate::term::{Node, TermId, Terms, VarId};

/// A made-up assignment: variables and bytes get values that look random when somebody asks.
pub struct Sample {
    seed: u64,
    pub(crate) model: Model,
    /// Whether bytes that the model says nothing of are zero.
    zero: bool,
    memo: FxHashMap<TermId, u64>,
    /// How many terms have been evaluated.
    pub(crate) evaluated: u64,
}

impl Sample {
    /// The assignment with this number; every third has small numbers only.
    pub fn new(seed: u64) -> Sample {
        Sample { seed, model: Model::default(), zero: false, memo: FxHashMap::default(), evaluated: 0 }
    }

    /// The same with these variables, or all memory, as in `model`: zero where that says nothing.
    pub(crate) fn with(seed: u64, model: &Model, vars: &FxHashSet<VarId>, bytes: bool) -> Sample {
        let mut sample = Sample::new(seed);
        sample.model.vars = vars.iter().map(|v| (*v, model.vars.get(v).copied().unwrap_or(0))).collect();
        if bytes {
            sample.model.bytes.clone_from(&model.bytes);
            sample.zero = true;
        }
        sample
    }

    /// This model, with zeros for the bytes that it says nothing of.
    pub(crate) fn of(model: Model) -> Sample {
        Sample { seed: 0, model, zero: true, memo: FxHashMap::default(), evaluated: 0 }
    }

    /// This assignment, to be changed.
    pub(crate) fn copied(&self) -> Sample {
        Sample { model: self.model.clone(), memo: FxHashMap::default(), evaluated: 0, ..*self }
    }

    /// Forgets the values of terms, since variables or bytes have changed.
    pub(crate) fn forget(&mut self) {
        self.memo.clear();
    }

    /// The value of a term.
    pub fn value(&mut self, terms: &Terms, t: TermId) -> u64 {
        let mut todo = vec![t];
        while let Some(&t) = todo.last() {
            if self.memo.contains_key(&t) {
                todo.pop();
                continue;
            }
            let before = todo.len();
            crate::solver::blast::children(terms.node(t), &mut |c| {
                if !self.memo.contains_key(&c) {
                    todo.push(c);
                }
            });
            if todo.len() > before {
                continue;
            }
            match *terms.node(t) {
                Node::Var(v) => {
                    let noise = self.noise(v.index() as u64);
                    self.model.vars.entry(v).or_insert(noise);
                }
                Node::Select(m, a) => {
                    let a = self.memo[&a];
                    let noise = self.noise(a.rotate_left(32) ^ m.index() as u64) as u8;
                    let byte = if self.zero { 0 } else { noise };
                    self.model.bytes.entry((m, a)).or_insert(byte);
                }
                _ => {}
            }
            self.model.eval_memo(terms, t, &mut self.memo);
            self.evaluated += 1;
            todo.pop();
        }
        self.memo[&t]
    }

    fn noise(&self, i: u64) -> u64 {
        let z = noise(self.seed << 48 ^ i);
        if self.seed % 3 == 2 { z & 0xff } else { z }
    }
}

/// A number that looks random, for each number one (SplitMix64: G. L. Steele, D. Lea, C. H. Flood, OOPSLA 2014).
pub(super) fn noise(i: u64) -> u64 {
    let z = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
