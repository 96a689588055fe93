//! What decisions cost the packets of a sample, in operations of the program that comes of them.

use rustc_hash::FxHashSet;

use crate::decision::{Decision, DecisionId, Decisions};
use crate::intervals::Intervals;
use crate::sample::Sample;
use crate::value::{Binary, Value, ValueId, Values};

/// What an operation costs.
pub(super) const OPERATION: u64 = 4;

pub(super) struct Costs<'a> {
    pub(super) values: &'a Values,
    pub(super) decisions: &'a Decisions,
    pub(super) sample: &'a Sample,
}

impl Costs<'_> {
    /// What some packets cost from a node on, where some values are computed; and how many nodes they come to.
    pub(super) fn of(&self, id: DecisionId, rows: &[usize], computed: &FxHashSet<ValueId>) -> (u64, usize) {
        let (mut cost, mut steps) = (0, 0);
        let mut new = FxHashSet::default();
        for row in rows.iter().map(|i| &self.sample.rows[*i]) {
            new.clear();
            // What the packet must reach and no load has asked for.
            let mut open: Vec<(Option<ValueId>, u64)> = Vec::new();
            let (mut at, mut own) = (Some(id), 0);
            while let Some(here) = at {
                steps += 1;
                let decision = self.decisions.get(here);
                match decision {
                    Decision::Bound { base, end, .. } => {
                        own += base.map_or(0, |base| self.computing(base, computed, &mut new, &mut open));
                        open.push((*base, *end));
                        at = self.sample.next(row, decision);
                        continue;
                    }
                    Decision::NotZero { .. } => own += OPERATION,
                    Decision::Switch { value, cases, .. } => {
                        own += self.asking(*value, cases, computed, &mut new, &mut open);
                    }
                    // The least that they take.
                    Decision::Among { .. } | Decision::Lookup { .. } | Decision::Chain { .. } => own += 10 * OPERATION,
                    Decision::Reject | Decision::Accept | Decision::Note { .. } => own += OPERATION,
                }
                own += OPERATION * open.len() as u64;
                open.clear();
                at = self.sample.next(row, decision);
            }
            cost += row.weight * own;
        }
        (cost, steps)
    }

    /// What a switch costs.
    fn asking(
        &self,
        value: ValueId,
        cases: &[(Intervals, DecisionId)],
        computed: &FxHashSet<ValueId>,
        new: &mut FxHashSet<ValueId>,
        open: &mut Vec<(Option<ValueId>, u64)>,
    ) -> u64 {
        let is_bit_test = matches!(self.values.get(value), Value::Binary(Binary::And, _, mask)
            if self.values.as_constant(mask).is_some())
            && matches!(cases, [(set, _)] if set.single() == Some(0) || *set == Intervals::range(1, u32::MAX))
            && !computed.contains(&value)
            && !new.contains(&value);
        if is_bit_test {
            let operands = self.values.operands(value).next();
            return OPERATION + operands.map_or(0, |a| self.computing(a, computed, new, open));
        }
        // Frequent numbers are found first, so that it is less than a search of all.
        let intervals: usize = cases.iter().map(|(set, _)| set.as_slice().len()).sum();
        let comparisons = OPERATION + OPERATION * u64::from(intervals.ilog2()) / 2;
        comparisons + self.computing(value, computed, new, open)
    }

    /// What computing a value costs, if it is not computed.
    fn computing(
        &self,
        value: ValueId,
        computed: &FxHashSet<ValueId>,
        new: &mut FxHashSet<ValueId>,
        open: &mut Vec<(Option<ValueId>, u64)>,
    ) -> u64 {
        let value_of = self.values.get(value);
        if matches!(value_of, Value::Constant(_)) || computed.contains(&value) || !new.insert(value) {
            return 0;
        }
        if let Value::Load { base, offset, size } = value_of {
            let end = u64::from(offset) + u64::from(size);
            open.retain(|(b, e)| *b != base || *e > end);
        }
        if let Some((offset, _)) = self.values.header_length(value) {
            open.retain(|(b, e)| b.is_some() || *e > u64::from(offset) + 1);
            return OPERATION;
        }
        OPERATION + self.values.operands(value).map(|v| self.computing(v, computed, new, open)).sum::<u64>()
    }

    /// Adds a value and what it is computed of to those that are computed.
    pub(super) fn note(values: &Values, value: ValueId, computed: &mut FxHashSet<ValueId>) {
        if computed.insert(value) && values.header_length(value).is_none() {
            values.operands(value).for_each(|v| Costs::note(values, v, computed));
        }
    }
}
