//! Questions about one value come together, so that it is loaded once.
//!
//! ```text
//! if a == 1 → yes          if a == 1 → yes
//! if b == 2 → yes     →    if a == 3 → yes
//! if a == 3 → yes          if b == 2 → yes
//! ```

use super::facts::Facts;
use super::{ACCEPT, Ask, Node, NodeId, Question, REJECT, Web};
use crate::program::Register;

/// A question of a row, and which answer leads out of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    question: Question,
    leaves: bool,
}

impl Web {
    /// Questions of a row, each of which leads to one place or on, change places: those about what was asked for before come first, and
    /// those about one value together. Carefully: only where that is the same for packets that end there.
    pub(super) fn gather(&mut self, is_careful: bool) {
        let mut predecessors = self.predecessors();
        for at in self.order() {
            let Ask::If { yes, no, .. } = self.nodes[at].ask else { continue };
            for to in [yes, no] {
                if self.gather_row(at, to, is_careful, &predecessors) {
                    predecessors = self.predecessors();
                    break;
                }
            }
        }
    }

    /// The same for the row that begins at a node and leads to a place.
    fn gather_row(&mut self, first: NodeId, to: NodeId, is_careful: bool, predecessors: &[Vec<NodeId>]) -> bool {
        let (mut places, mut parts) = (Vec::new(), Vec::new());
        let mut at = first;
        while let Node { wants, ask: Ask::If { question, yes, no }, .. } = &self.nodes[at] {
            let is_inside = at == first || predecessors[at].len() == 1 && wants.is_empty();
            if !is_inside || (*yes == to) == (*no == to) {
                break;
            }
            let leaves = *yes == to;
            places.push(at);
            parts.push(Part { question: *question, leaves });
            at = if leaves { *no } else { *yes };
        }
        let end = at;
        if places.len() < 2 || is_careful && to != REJECT && !self.are_there(&places) {
            return false;
        }
        // Packets that lack what the first one wants besides are rejected before all others.
        let held = self.asked_before(&predecessors[first]).filter(|_| first != self.entry);
        let new = gathered(&parts, held);
        if new == parts {
            return false;
        }
        for (i, part) in new.into_iter().enumerate() {
            let next = places.get(i + 1).copied().unwrap_or(end);
            let (yes, no) = if part.leaves { (to, next) } else { (next, to) };
            self.nodes[places[i]].ask = Ask::If { question: part.question, yes, no };
        }
        true
    }

    /// The value that all nodes before ask for.
    fn asked_before(&self, predecessors: &[NodeId]) -> Option<Register> {
        let asked = |at: &NodeId| match &self.nodes[*at].ask {
            Ask::If { question, .. } => Some(question.a),
            _ => None,
        };
        let first = asked(predecessors.first()?)?;
        predecessors.iter().all(|at| asked(at) == Some(first)).then_some(first)
    }

    /// Whether what the first of some nodes wants is all that the others want.
    fn are_there(&self, places: &[NodeId]) -> bool {
        let mut facts = Facts::default();
        self.all_wants(&self.nodes[places[0]]).into_iter().for_each(|want| facts.note(want));
        debug_assert!(places.iter().all(|at| *at > ACCEPT));
        places[1..].iter().all(|at| self.all_wants(&self.nodes[*at]).into_iter().all(|want| facts.has(want)))
    }
}

/// Parts by what they ask for, those about a value first.
fn gathered(parts: &[Part], first: Option<Register>) -> Vec<Part> {
    let mut values: Vec<Register> = first.into_iter().collect();
    for part in parts {
        if !values.contains(&part.question.a) {
            values.push(part.question.a);
        }
    }
    values.iter().flat_map(|a| parts.iter().filter(move |part| part.question.a == *a).copied()).collect()
}
