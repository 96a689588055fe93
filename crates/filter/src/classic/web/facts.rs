//! What is known on a way: the numbers that values can be, answers, and what the packet is known to have.

use rustc_hash::FxHashMap;

use super::question::{Question, Want};
use crate::intervals::Intervals;
use crate::program::{Comparison, Operand, Register};

#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct Facts {
    numbers: FxHashMap<Register, Intervals>,
    answers: FxHashMap<Question, bool>,
    /// How far the packet reaches behind a place.
    reach: FxHashMap<Option<Register>, u64>,
    not_zero: Vec<Register>,
}

impl Facts {
    /// A value is one of some numbers.
    pub(super) fn is_among(&mut self, value: Register, set: Intervals) {
        let known = self.numbers.entry(value).or_insert_with(|| Intervals::range(0, u32::MAX));
        *known = known.intersection(&set);
    }

    /// What is known on both ways.
    pub(super) fn join(&mut self, other: &Facts) {
        self.numbers.retain(|r, _| other.numbers.contains_key(r));
        for (r, set) in &mut self.numbers {
            if *set != other.numbers[r] {
                *set = set.union(&other.numbers[r]);
            }
        }
        self.answers.retain(|question, answer| other.answers.get(question) == Some(answer));
        self.reach.retain(|base, _| other.reach.contains_key(base));
        self.reach.iter_mut().for_each(|(base, end)| *end = (*end).min(other.reach[base]));
        self.not_zero.retain(|r| other.not_zero.contains(r));
    }

    /// Whether the packet is known to have something.
    pub(super) fn has(&self, want: Want) -> bool {
        match want {
            Want::Bound(base, end) => self.reach.get(&base).is_some_and(|reached| *reached >= end),
            Want::NotZero(r) => self.not_zero.contains(&r) || self.numbers.get(&r).is_some_and(|set| !set.contains(0)),
        }
    }

    /// The packet has something.
    pub(super) fn note(&mut self, want: Want) {
        match want {
            Want::Bound(base, end) => {
                let reached = self.reach.entry(base).or_default();
                *reached = end.max(*reached);
            }
            Want::NotZero(r) if self.not_zero.contains(&r) => {}
            Want::NotZero(r) => self.not_zero.push(r),
        }
    }

    /// The answer to a question, if it is known.
    pub(super) fn answer(&self, question: &Question) -> Option<bool> {
        if let Some(answer) = self.answers.get(question) {
            return Some(*answer);
        }
        let known = self.numbers.get(&question.a)?;
        if let Comparison::AnyBit(mask) = question.comparison {
            return known.single().map(|n| n & mask != 0);
        }
        let set = numbers(question)?;
        if known.is_disjoint(&set) {
            Some(false)
        } else if known.is_subset(&set) {
            Some(true)
        } else {
            None
        }
    }

    /// What is known behind an answer.
    pub(super) fn with(&self, question: &Question, answer: bool) -> Facts {
        let mut facts = self.clone();
        match numbers(question) {
            Some(set) => {
                let set = if answer { set } else { set.complement() };
                facts.is_among(question.a, set);
            }
            None => {
                facts.answers.insert(*question, answer);
            }
        }
        facts
    }
}

/// The numbers for which the answer is yes, if that is about one value.
fn numbers(question: &Question) -> Option<Intervals> {
    match question.comparison {
        Comparison::Equal(Operand::Constant(n)) => Some(Intervals::one(n)),
        Comparison::Greater(Operand::Constant(n)) => {
            Some(n.checked_add(1).map_or(Intervals::none(), |low| Intervals::range(low, u32::MAX)))
        }
        Comparison::AtLeast(Operand::Constant(n)) => Some(Intervals::range(n, u32::MAX)),
        _ => None,
    }
}
