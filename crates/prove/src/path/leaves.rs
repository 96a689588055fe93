//! What a condition hangs on: parts of the input, by which conditions that have nothing in common are left out of a question.

use rustc_hash::FxHashSet;

use super::observe::Observed;
use super::place::Role;
use crate::symbolic::context::Context;
use crate::term::{MemId, MemNode, Node, TermId};

/// Parts of the input that a term hangs on.
#[derive(Clone, Default, Debug)]
pub(super) struct Leaves {
    /// Variables and bytes at fixed places.
    pub terms: FxHashSet<TermId>,
    /// Memories with such bytes.
    memories: FxHashSet<MemId>,
    /// Memories read at places that hang on the input themselves.
    pub wild: FxHashSet<MemId>,
    /// Something is in it of which nothing is known.
    pub unknown: bool,
}

impl Leaves {
    /// Of a term.
    pub fn of(cx: &Context, observed: &Observed, t: TermId) -> Leaves {
        let mut leaves = Leaves::default();
        let mut seen = FxHashSet::default();
        let mut todo = vec![t];
        while let Some(t) = todo.pop() {
            if !seen.insert(t) {
                continue;
            }
            match cx.terms.node(t) {
                Node::Var(v) => match observed.role(*v) {
                    Role::Fixed(_) => {}
                    Role::Derived(from) => todo.push(from),
                    Role::Input | Role::Environment(_) => drop(leaves.terms.insert(t)),
                    Role::Unknown => leaves.unknown = true,
                },
                Node::Select(m, address) => {
                    let (m, address) = (*m, *address);
                    leaves.memory(cx, observed, m, &mut todo);
                    leaves.terms.insert(observed.byte_at(m, address, t));
                    leaves.memories.insert(m);
                    if !is_fixed(cx, observed, address) {
                        leaves.wild.insert(m);
                        todo.push(address);
                    }
                }
                node => crate::solver::blast::children(node, &mut |c| todo.push(c)),
            }
        }
        leaves
    }

    fn memory(&mut self, cx: &Context, observed: &Observed, m: MemId, todo: &mut Vec<TermId>) {
        match cx.terms.mem(m) {
            MemNode::Base { region, version } => {
                self.unknown |= cx.terms.as_const(*version) != Some(0) || !observed.knows(cx.region(*region));
            }
            MemNode::Chunk { prev, base, bytes } => {
                todo.push(*base);
                todo.extend(bytes.iter().map(|(_, t)| *t));
                self.memory(cx, observed, *prev, todo);
            }
            MemNode::Ite(c, a, b) => {
                todo.push(*c);
                self.memory(cx, observed, *a, todo);
                self.memory(cx, observed, *b, todo);
            }
        }
    }

    /// Whether they have anything in common.
    pub fn meet(&self, other: &Leaves) -> bool {
        let common = |a: &FxHashSet<MemId>, b: &FxHashSet<MemId>| a.iter().any(|m| b.contains(m));
        let (few, many) = if self.terms.len() < other.terms.len() { (self, other) } else { (other, self) };
        few.terms.iter().any(|t| many.terms.contains(t))
            || common(&self.wild, &other.memories)
            || common(&self.memories, &other.wild)
    }

    /// Takes in what another hangs on.
    pub fn add(&mut self, other: &Leaves) {
        self.terms.extend(&other.terms);
        self.memories.extend(&other.memories);
        self.wild.extend(&other.wild);
        self.unknown |= other.unknown;
    }
}

/// Whether an address does not hang on the input, save for which element of a map it is.
fn is_fixed(cx: &Context, observed: &Observed, address: TermId) -> bool {
    let fixed = |t: &TermId| match cx.terms.node(*t) {
        Node::Var(v) => matches!(observed.role(*v), Role::Fixed(_)) || observed.is_element(*t),
        _ => false,
    };
    match cx.terms.node(address) {
        Node::Const(_) => true,
        Node::Sum(parts, _) => parts.iter().all(|(t, n)| *n == 1 && fixed(t)),
        _ => fixed(&address),
    }
}
