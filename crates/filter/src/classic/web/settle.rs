//! Questions whose answer is known on the way to them are left out, and equal nodes become one.

use rustc_hash::FxHashMap;

use super::facts::Facts;
use super::{ACCEPT, Ask, Node, NodeId, REJECT, Web};

impl Web {
    /// Leaves out questions whose answer is known on the way. Carefully: only where what they want of the packet is known, too.
    pub(super) fn settle(&mut self, is_careful: bool) {
        let mut before: Vec<Option<Facts>> = vec![None; self.nodes.len()];
        before[self.entry] = Some(self.known.clone());
        // Ways on lead to what comes later in this order, also where questions are left out.
        for at in self.order() {
            let Some(mut facts) = before[at].take() else { continue };
            let node = self.nodes[at].clone();
            for want in self.all_wants(&node) {
                facts.note(want);
            }
            let mut ask = node.ask;
            // Only the first question is still there if its answer is known, or one that wants what others do not.
            if let Ask::If { question, yes, no } = ask
                && let Some(answer) = facts.answer(&question)
            {
                if is_careful {
                    self.nodes[at].wants = self.all_wants(&node);
                }
                ask = Ask::Then(if answer { yes } else { no });
            }
            match &mut ask {
                Ask::Reject | Ask::Accept => {}
                Ask::Then(next) => {
                    *next = self.followed(&facts, *next, is_careful);
                    join(&mut before[*next], facts);
                }
                Ask::If { question, yes, no } => {
                    for (to, answer) in [(yes, true), (no, false)] {
                        let facts = facts.with(question, answer);
                        *to = self.followed(&facts, *to, is_careful);
                        join(&mut before[*to], facts);
                    }
                }
            }
            self.nodes[at].ask = ask;
        }
    }

    /// Where a way leads on which something is known.
    fn followed(&self, facts: &Facts, mut to: NodeId, is_careful: bool) -> NodeId {
        loop {
            let node = &self.nodes[to];
            let next = match &node.ask {
                Ask::Then(next) => *next,
                Ask::If { question, yes, no } => match facts.answer(question) {
                    Some(answer) => {
                        if answer {
                            *yes
                        } else {
                            *no
                        }
                    }
                    None => return to,
                },
                Ask::Reject | Ask::Accept => return to,
            };
            let wants = if is_careful { self.all_wants(node) } else { node.wants.clone() };
            if !wants.into_iter().all(|want| facts.has(want)) {
                return to;
            }
            to = next;
        }
    }

    /// Equal nodes become one; a question whose answers lead to the same is none.
    pub(super) fn unite(&mut self, is_careful: bool) {
        let mut known: FxHashMap<Node, NodeId> = FxHashMap::default();
        let mut place: Vec<NodeId> = (0..self.nodes.len()).collect();
        for at in self.order().into_iter().rev() {
            if at <= ACCEPT {
                continue;
            }
            let mut node = self.nodes[at].clone();
            node.ask.map(|to| place[to]);
            if let Ask::If { yes, no, .. } = node.ask
                && yes == no
            {
                if is_careful {
                    node.wants = self.all_wants(&self.nodes[at]);
                }
                node.ask = Ask::Then(yes);
            }
            place[at] = match node.ask {
                Ask::Then(REJECT) => REJECT,
                Ask::Then(next) if node.wants.is_empty() && node.sets.is_empty() => next,
                _ => *known.entry(node.clone()).or_insert(at),
            };
            self.nodes[at] = node;
        }
        self.entry = place[self.entry];
    }
}

fn join(place: &mut Option<Facts>, facts: Facts) {
    match place {
        Some(known) => known.join(&facts),
        none => *none = Some(facts),
    }
}
