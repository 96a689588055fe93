//! The order of independent questions, by what a sample of packets answers (BPF+'s section 6 has the same by static guesses).
//!
//! A question that is asked later is asked first where that makes the ways of the packets that come there shorter: `host A and port
//! B` asks for the port first if few packets have that port. What is left of a decision, given the answer, is a decision again, so
//! that any question of any depth may be moved, through questions of other values and past where ways meet.
//!
//! A question may be moved to where its fields are known to be there. They are also if every way from there to acceptance looks for
//! them: a packet that ends before is rejected in any case, and may be at once. Nothing here is trusted: forms are proven.

mod cost;

use std::cmp::Reverse;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::decision::{Decision, DecisionId, Decisions};
use crate::intervals::Intervals;
use crate::need::{Need, needs};
use crate::optimize::known::Known;
use crate::sample::Sample;
use crate::value::{ValueId, Values};

use cost::Costs;

/// Larger graphs are left as they are: they would take seconds.
const MOST_NODES: usize = 2_000;

/// Decisions whose questions are in an order that suits the sample. They come to the same for all packets. `None`: they are so
/// already, or are too many.
pub(crate) fn reorder(
    values: &Values,
    decisions: &mut Decisions,
    root: DecisionId,
    sample: &Sample,
) -> Option<DecisionId> {
    let order = decisions.reached(root);
    if order.len() > MOST_NODES {
        return None;
    }
    let visits = sample.visits(decisions, root);
    let states = states(values, decisions, &order);
    let mut pass = Pass { values, decisions, sample, wanted: FxHashMap::default(), work: 0 };
    let mut done: FxHashMap<DecisionId, DecisionId> = FxHashMap::default();
    for id in order.into_iter().rev() {
        let mut new = pass.decisions.with_successors(id, &done);
        if let (Some(rows), Some(state)) = (visits.get(&id), states.get(&id)) {
            new = pass.best(new, rows, state);
        }
        done.insert(id, new);
    }
    done.get(&root).copied().filter(|new| *new != root)
}

/// What holds wherever a node is come to.
#[derive(Clone, Debug, Default)]
struct State {
    /// What is there of the packet.
    there: Known,
    /// The values that are computed.
    computed: FxHashSet<ValueId>,
}

/// By node what holds on all ways to it. Nodes come before those that they go to.
fn states(values: &Values, decisions: &Decisions, order: &[DecisionId]) -> FxHashMap<DecisionId, State> {
    let mut all: FxHashMap<DecisionId, State> = FxHashMap::default();
    for id in order {
        let mut state = all.entry(*id).or_default().clone();
        let decision = decisions.get(*id);
        match decision {
            Decision::Bound { base, end, .. } => state.there.note(Need::Bound(*base, *end)),
            Decision::NotZero { value, .. } => state.there.note(Need::NotZero(*value)),
            Decision::Switch { value, .. } => Costs::note(values, *value, &mut state.computed),
            _ => {}
        }
        for next in decision.successors() {
            match all.get_mut(&next) {
                Some(there) => {
                    there.there.join(&state.there);
                    there.computed.retain(|v| state.computed.contains(v));
                }
                None => {
                    all.insert(next, state.clone());
                }
            }
        }
    }
    all
}

struct Pass<'a> {
    values: &'a Values,
    decisions: &'a mut Decisions,
    sample: &'a Sample,
    /// By node what every way from there to acceptance looks for; `None`: no way leads there.
    wanted: FxHashMap<DecisionId, Option<Known>>,
    /// What has been done, in steps of packets and copies of nodes.
    work: usize,
}

impl Pass<'_> {
    /// The node, or one that comes to the same and costs these packets less.
    fn best(&mut self, id: DecisionId, rows: &[usize], state: &State) -> DecisionId {
        /// More is not looked at: half a second.
        const MOST_WORK: usize = 20_000_000;
        /// Of what an operation for each packet costs, this part must be saved: copies are not free.
        const LEAST: u64 = 500;
        let mut best = (self.cost(id, rows, state), id);
        let least = cost::OPERATION * rows.iter().map(|i| self.sample.rows[*i].weight).sum::<u64>() / LEAST;
        for (value, sets) in self.questions(id, rows) {
            if self.work > MOST_WORK {
                break;
            }
            if let Some(new) = self.asked_first(id, value, &sets, state) {
                let cost = self.cost(new, rows, state);
                if cost + least < best.0 {
                    best = (cost, new);
                }
            }
        }
        best.1
    }

    fn cost(&mut self, id: DecisionId, rows: &[usize], state: &State) -> u64 {
        let costs = Costs { values: self.values, decisions: self.decisions, sample: self.sample };
        let (cost, steps) = costs.of(id, rows, &state.computed);
        self.work += steps;
        cost
    }

    /// Questions that could be asked first: those that most packets come to soon.
    fn questions(&mut self, id: DecisionId, rows: &[usize]) -> Vec<(ValueId, Vec<Intervals>)> {
        /// Farther ones are not looked at.
        const DEPTH: usize = 16;
        const MOST: usize = 8;
        let mut weights: FxHashMap<DecisionId, u64> = FxHashMap::default();
        for row in rows.iter().map(|i| &self.sample.rows[*i]) {
            let mut at = Some(id);
            for _ in 0..DEPTH {
                let Some(here) = at else { break };
                *weights.entry(here).or_default() += row.weight;
                at = self.sample.next(row, self.decisions.get(here));
                self.work += 1;
            }
        }
        let mut all: Vec<(DecisionId, u64)> = weights.into_iter().filter(|(here, _)| *here != id).collect();
        all.sort_unstable_by_key(|(here, weight)| (Reverse(*weight), Reverse(*here)));
        let mut questions: Vec<(ValueId, Vec<Intervals>)> = Vec::new();
        for (here, _) in all {
            let Decision::Switch { value, cases, .. } = self.decisions.get(here) else { continue };
            let sets: Vec<Intervals> = cases.iter().map(|(set, _)| set.clone()).collect();
            let each = sets.iter().map(|set| vec![set.clone()]).take(if sets.len() > 1 { 3 } else { 0 });
            for question in std::iter::once(sets.clone()).chain(each).map(|sets| (*value, sets)) {
                if questions.len() < MOST && !questions.contains(&question) {
                    questions.push(question);
                }
            }
        }
        questions
    }

    /// The node with a question asked first, if its fields are there or may be looked for first.
    fn asked_first(&mut self, id: DecisionId, value: ValueId, sets: &[Intervals], state: &State) -> Option<DecisionId> {
        /// What is left of larger ones would be too many copies.
        const MOST: usize = 256;
        let mut missing = Vec::new();
        needs(self.values, value, &mut missing);
        missing.retain(|need| !state.there.has(*need));
        if !missing.is_empty() {
            let wanted = self.wanted(id)?;
            if !missing.iter().all(|need| wanted.has(*need)) {
                return None;
            }
        }
        let rest = missing.iter().try_fold(id, |id, need| self.decisions.without_need(id, *need, MOST))?;
        let mut others = Intervals::none().complement();
        let mut cases = Vec::with_capacity(sets.len());
        for set in sets {
            others = others.without(set);
            let to = self.decisions.restricted(rest, value, set, MOST)?;
            cases.push((set.clone(), self.asked_once(to)));
        }
        let default = self.decisions.restricted(rest, value, &others, MOST)?;
        let default = self.asked_once(default);
        self.work += MOST * (sets.len() + 2);
        let first = self.decisions.switch_of(value, cases, default);
        Some(missing.into_iter().rev().fold(first, |next, need| match need {
            Need::Bound(base, end) => self.decisions.bound(base, end, next),
            Need::NotZero(value) => self.decisions.not_zero(value, next),
        }))
    }

    /// The node, asking for its value at once all that is asked of it later, if fewer questions are left so.
    fn asked_once(&mut self, id: DecisionId) -> DecisionId {
        /// Of so many nodes at most.
        const MOST: usize = 48;
        /// Sets of numbers that are told apart.
        const CELLS: usize = 6;
        let Decision::Switch { value, .. } = self.decisions.get(id) else { return id };
        let value = *value;
        let Some(reached) = self.decisions.reached_few(id, MOST) else { return id };
        let mut cells = vec![Intervals::none().complement()];
        let mut asking = 0;
        for decision in reached.iter().map(|id| self.decisions.get(*id)) {
            let Decision::Switch { value: v, cases, .. } = decision else { continue };
            if *v != value {
                continue;
            }
            asking += 1;
            for (set, _) in cases {
                cells = cells.iter().flat_map(|cell| [cell.intersection(set), cell.without(set)]).collect();
                cells.retain(|cell| !cell.is_empty());
            }
            if cells.len() > CELLS {
                return id;
            }
        }
        if asking < 2 {
            return id;
        }
        self.work += reached.len() * cells.len();
        let rest = cells.remove(0);
        let mut parts = Vec::new();
        for cell in cells {
            let Some(to) = self.decisions.restricted(id, value, &cell, MOST) else { return id };
            parts.push((cell, to));
        }
        let Some(default) = self.decisions.restricted(id, value, &rest, MOST) else { return id };
        let merged = self.decisions.switch_of(value, parts, default);
        let is_smaller = self.decisions.reached_few(merged, reached.len() - 1).is_some();
        if is_smaller { merged } else { id }
    }

    /// What every way from a node to acceptance looks for; `None`: there is no such way.
    fn wanted(&mut self, root: DecisionId) -> Option<Known> {
        for id in self.decisions.reached_few(root, MOST_NODES)? {
            if self.wanted.contains_key(&id) {
                continue;
            }
            let of = |next: DecisionId| match next {
                DecisionId::REJECT => None,
                DecisionId::ACCEPT => Some(Known::default()),
                _ => self.wanted.get(&next).cloned().flatten(),
            };
            let decision = self.decisions.get(id);
            let mut all = decision.successors().into_iter().filter_map(of);
            let mut wanted = all.next();
            for other in all {
                wanted.iter_mut().for_each(|wanted| wanted.join(&other));
            }
            if let Some(wanted) = &mut wanted {
                match decision {
                    Decision::Bound { base, end, .. } => wanted.note(Need::Bound(*base, *end)),
                    Decision::NotZero { value, .. } => wanted.note(Need::NotZero(*value)),
                    _ => {}
                }
            }
            self.wanted.insert(id, wanted);
        }
        self.wanted.get(&root).cloned().flatten()
    }
}
