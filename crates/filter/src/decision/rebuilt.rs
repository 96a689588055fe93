//! Decisions made of others: what is left of them where something is known.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Decision, DecisionId, Decisions};
use crate::intervals::Intervals;
use crate::need::Need;
use crate::value::ValueId;

/// What nodes became; those that are not there stay.
type Done = FxHashMap<DecisionId, DecisionId>;

fn of(done: &Done, id: DecisionId) -> DecisionId {
    done.get(&id).copied().unwrap_or(id)
}

impl Decisions {
    /// The node, going on to what its successors became.
    pub(crate) fn with_successors(&mut self, id: DecisionId, done: &Done) -> DecisionId {
        match self.get(id).clone() {
            Decision::Reject | Decision::Accept => id,
            Decision::Bound { base, end, next } => self.bound(base, end, of(done, next)),
            Decision::NotZero { value, next } => self.not_zero(value, of(done, next)),
            Decision::Note { predicate, next } => self.note(predicate, of(done, next)),
            Decision::Chain { chain, yes, no } => self.chain(chain, of(done, yes), of(done, no)),
            Decision::Among { words, members, yes, no } => self.among(words, members, of(done, yes), of(done, no)),
            Decision::Lookup { lookup, yes, no } => self.lookup(lookup, of(done, yes), of(done, no)),
            Decision::Switch { value, cases, default } => {
                let cases = cases.into_iter().map(|(set, to)| (set, of(done, to))).collect();
                self.switch_of(value, cases, of(done, default))
            }
        }
    }

    /// A switch over disjoint sets, as it stands: those that lead to one place are one.
    pub(crate) fn switch_of(
        &mut self,
        value: ValueId,
        cases: Vec<(Intervals, DecisionId)>,
        default: DecisionId,
    ) -> DecisionId {
        let mut left: Vec<(Intervals, DecisionId)> = Vec::new();
        for (set, to) in cases.into_iter().filter(|(_, to)| *to != default) {
            match left.iter_mut().find(|(_, t)| *t == to) {
                Some((all, _)) => *all = all.union(&set),
                None => left.push((set, to)),
            }
        }
        if left.is_empty() { default } else { self.intern(Decision::Switch { value, cases: left, default }) }
    }

    /// What is left of a node where a value is in a set; `None`: it has more nodes.
    pub(crate) fn restricted(
        &mut self,
        id: DecisionId,
        value: ValueId,
        set: &Intervals,
        most: usize,
    ) -> Option<DecisionId> {
        self.rebuilt(id, most, |all, id, done| match all.get(id).clone() {
            Decision::Switch { value: v, mut cases, mut default } if v == value => {
                let covered = cases.iter().fold(Intervals::none(), |all, (s, _)| all.union(s));
                cases.retain(|(s, _)| !s.is_disjoint(set));
                if set.without(&covered).is_empty() {
                    default = cases.pop().map_or(default, |(_, to)| to);
                }
                let cases = cases.into_iter().map(|(s, to)| (s, of(done, to))).collect();
                all.switch_of(v, cases, of(done, default))
            }
            _ => all.with_successors(id, done),
        })
    }

    /// What is left of a node where something is known to be there; `None`: it has more nodes.
    pub(crate) fn without_need(&mut self, id: DecisionId, known: Need, most: usize) -> Option<DecisionId> {
        self.rebuilt(id, most, |all, id, done| match (all.get(id), known) {
            (Decision::Bound { base, end, next }, Need::Bound(b, e)) if *base == b && *end <= e => of(done, *next),
            (Decision::NotZero { value, next }, Need::NotZero(v)) if *value == v => of(done, *next),
            _ => all.with_successors(id, done),
        })
    }

    /// The nodes that are reached from one, each behind those that it goes on to; `None`: they are more. Ends are not among them.
    pub(crate) fn reached_few(&self, root: DecisionId, most: usize) -> Option<Vec<DecisionId>> {
        let is_end = |id: DecisionId| id <= DecisionId::ACCEPT;
        let mut seen = FxHashSet::default();
        let mut open = vec![root];
        while let Some(id) = open.pop() {
            if !is_end(id) && seen.insert(id) {
                if seen.len() > most {
                    return None;
                }
                open.extend(self.get(id).successors());
            }
        }
        let mut all: Vec<DecisionId> = seen.into_iter().collect();
        // What a node goes on to stands before it.
        all.sort_unstable();
        Some(all)
    }

    /// A node made anew from its ends on.
    fn rebuilt(
        &mut self,
        id: DecisionId,
        most: usize,
        f: impl Fn(&mut Decisions, DecisionId, &Done) -> DecisionId,
    ) -> Option<DecisionId> {
        let mut done = Done::default();
        for id in self.reached_few(id, most)? {
            let new = f(self, id, &done);
            done.insert(id, new);
        }
        Some(of(&done, id))
    }
}
