//! A term with all that is not asked about put in as the run had it: what is left of it is the question.

use rustc_hash::{FxHashMap, FxHashSet};

use super::place::Role;
use super::walk::Path;
use crate::solver::blast::children;
use crate::term::{MemId, Node, TermId};

/// Terms as they are for one question.
pub(super) struct Folded {
    /// Parts of the input that are asked about.
    pub free: FxHashSet<TermId>,
    /// Memories that are read at places which hang on these.
    wild: FxHashSet<MemId>,
    /// Bytes of such a memory that are what they were in the run: one that is read elsewhere may be one of them.
    pub pinned: Vec<TermId>,
    memo: FxHashMap<TermId, TermId>,
}

impl Folded {
    pub fn new(free: FxHashSet<TermId>, wild: FxHashSet<MemId>) -> Folded {
        Folded { free, wild, pinned: Vec::new(), memo: FxHashMap::default() }
    }
}

impl Path<'_> {
    /// A term with everything but the free parts of the input put in.
    pub(super) fn fold(&mut self, t: TermId, folded: &mut Folded) -> TermId {
        let mut todo = vec![t];
        while let Some(&t) = todo.last() {
            if folded.memo.contains_key(&t) {
                todo.pop();
                continue;
            }
            let node = self.cx.terms.node(t).clone();
            if let Some(known) = self.known(t, &node, folded) {
                folded.memo.insert(t, known);
                todo.pop();
                continue;
            }
            let before = todo.len();
            let mut need = |c: TermId| {
                if !folded.memo.contains_key(&c) {
                    todo.push(c);
                }
            };
            children(&node, &mut need);
            if let Node::Var(v) = node
                && let Role::Derived(from) = self.observed.role(v)
            {
                need(from);
            }
            if todo.len() > before {
                continue;
            }
            let mut new = self.made(t, &node, &folded.memo);
            if let (Node::Select(m, a), Node::Select(_, at)) = (node, self.cx.terms.node(new).clone())
                && !folded.free.contains(&self.byte_at(m, a, t))
                && self.cx.terms.as_const(at).is_some()
            {
                let value = self.observed.value(&self.cx, self.given, &self.lookups, t);
                let value = self.cx.terms.constant(self.cx.terms.width(t), value);
                folded.pinned.push(self.cx.terms.eq(new, value));
                new = value;
            }
            folded.memo.insert(t, new);
            todo.pop();
        }
        folded.memo[&t]
    }

    /// What needs no other terms.
    fn known(&mut self, t: TermId, node: &Node, folded: &Folded) -> Option<TermId> {
        let constant = |path: &mut Self, v: u64| path.cx.terms.constant(path.cx.terms.width(t), v);
        match node {
            Node::Const(_) => Some(t),
            Node::Var(v) => match self.observed.role(*v) {
                Role::Fixed(k) => Some(constant(self, k)),
                Role::Derived(_) => None,
                Role::Input | Role::Environment(_) if folded.free.contains(&t) => Some(t),
                Role::Input | Role::Environment(_) | Role::Unknown => {
                    let value = self.observed.value(&self.cx, self.given, &self.lookups, t);
                    Some(constant(self, value))
                }
            },
            Node::Select(m, a) if !folded.wild.contains(m) && !folded.free.contains(&self.byte_at(*m, *a, t)) => {
                let value = self.observed.value(&self.cx, self.given, &self.lookups, t);
                Some(constant(self, value))
            }
            _ => None,
        }
    }

    fn byte_at(&mut self, m: MemId, address: TermId, t: TermId) -> TermId {
        self.observed.value(&self.cx, self.given, &self.lookups, address);
        self.observed.byte_at(m, address, t)
    }

    /// A term of which the parts are made.
    fn made(&mut self, t: TermId, node: &Node, memo: &FxHashMap<TermId, TermId>) -> TermId {
        let terms = &mut self.cx.terms;
        let width = terms.width(t);
        let new = |t: &TermId| memo[t];
        match node {
            Node::Const(_) => t,
            Node::Var(v) => match self.observed.role(*v) {
                Role::Derived(from) => memo[&from],
                _ => t,
            },
            Node::Sum(parts, k) => terms.sum(width, parts.iter().map(|(t, n)| (memo[t], *n)).collect(), *k),
            Node::Mul(a, b) => terms.mul(new(a), new(b)),
            Node::Udiv(a, b) => terms.udiv(new(a), new(b)),
            Node::Urem(a, b) => terms.urem(new(a), new(b)),
            Node::And(a, b) => terms.and(new(a), new(b)),
            Node::Or(a, b) => terms.or(new(a), new(b)),
            Node::Xor(a, b) => terms.xor(new(a), new(b)),
            Node::Shl(a, b) => terms.shl(new(a), new(b)),
            Node::Lshr(a, b) => terms.lshr(new(a), new(b)),
            Node::Ashr(a, b) => terms.ashr(new(a), new(b)),
            Node::Concat(parts) => terms.concat(&parts.iter().map(new).collect::<Vec<_>>()),
            Node::Extract(a, low) => terms.extract(new(a), *low, width),
            Node::SExt(a) => terms.sext(new(a), width),
            Node::Ite(c, a, b) => terms.ite(new(c), new(a), new(b)),
            Node::Eq(a, b) => terms.eq(new(a), new(b)),
            Node::Ult(a, b) => terms.ult(new(a), new(b)),
            Node::Slt(a, b) => terms.slt(new(a), new(b)),
            Node::All(parts) => terms.all(&parts.iter().map(new).collect::<Vec<_>>()),
            Node::Not(a) => terms.not(new(a)),
            Node::Select(m, a) => {
                let (base, offset) = terms.split_address(new(a));
                terms.select(*m, base, offset)
            }
        }
    }
}
