//! What is known on a way through the graph.

use std::rc::Rc;

use crate::graph::Lookup;
use crate::intervals::Intervals;
use crate::need::Need;
use crate::value::ValueId;

/// What is known on a way.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Known {
    /// The sets that values are in, by value.
    pub(crate) facts: Vec<(ValueId, Rc<Intervals>)>,
    /// How far behind a base the packet reaches at least.
    pub(crate) bounds: Vec<(Option<ValueId>, u64)>,
    /// Divisors that are not 0.
    pub(crate) not_zero: Vec<ValueId>,
    /// What maps have answered. To ask again may give another answer, so that not to ask is one of the ways it may go.
    pub(crate) lookups: Vec<(Lookup, bool)>,
}

impl Known {
    pub(crate) fn fact(&self, value: ValueId) -> Option<&Rc<Intervals>> {
        self.facts.binary_search_by_key(&value, |(v, _)| *v).ok().map(|i| &self.facts[i].1)
    }

    pub(crate) fn with_fact(&self, value: ValueId, set: Intervals) -> Known {
        /// Sets of more intervals say little and cost much.
        const MOST: usize = 256;
        let mut known = self.clone();
        if set.as_slice().len() > MOST {
            return known;
        }
        let set = Rc::new(set);
        match known.facts.binary_search_by_key(&value, |(v, _)| *v) {
            Ok(i) => known.facts[i].1 = set,
            Err(i) => known.facts.insert(i, (value, set)),
        }
        known
    }

    pub(crate) fn with_answer(&self, lookup: &Lookup, answer: bool) -> Known {
        let mut known = self.clone();
        if known.lookups.iter().all(|(l, _)| l != lookup) {
            known.lookups.push((lookup.clone(), answer));
        }
        known
    }

    pub(crate) fn has(&self, need: Need) -> bool {
        match need {
            Need::Bound(base, end) => self.bounds.iter().any(|(b, e)| *b == base && *e >= end),
            Need::NotZero(value) => self.not_zero.contains(&value),
        }
    }

    pub(crate) fn note(&mut self, need: Need) {
        match need {
            Need::Bound(base, end) => match self.bounds.binary_search_by_key(&base, |(b, _)| *b) {
                Ok(i) => self.bounds[i].1 = self.bounds[i].1.max(end),
                Err(i) => self.bounds.insert(i, (base, end)),
            },
            Need::NotZero(value) => {
                if let Err(i) = self.not_zero.binary_search(&value) {
                    self.not_zero.insert(i, value);
                }
            }
        }
    }

    /// What both know.
    pub(crate) fn join(&mut self, other: &Known) {
        self.facts.retain_mut(|(value, set)| match other.fact(*value) {
            Some(theirs) => {
                if set != theirs {
                    *set = Rc::new(set.union(theirs));
                }
                true
            }
            None => false,
        });
        self.bounds.retain_mut(|(base, end)| match other.bounds.iter().find(|(b, _)| b == base) {
            Some((_, theirs)) => {
                *end = (*end).min(*theirs);
                true
            }
            None => false,
        });
        self.not_zero.retain(|v| other.not_zero.contains(v));
        self.lookups.retain(|l| other.lookups.contains(l));
    }
}
