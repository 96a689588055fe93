//! What a satisfied query says: values of variables and of bytes in memory, and of terms by these.

use rustc_hash::FxHashMap;

use crate::term::{MemId, MemNode, Node, TermId, Terms, VarId, mask};

/// Values of variables and initial memory bytes under which a query is satisfied.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Values of the variables the query mentions; others are free (0).
    pub vars: FxHashMap<VarId, u64>,
    /// Initial bytes: (memory, address) → byte; others are free (0).
    pub bytes: FxHashMap<(MemId, u64), u8>,
}

impl Model {
    /// The value of `t` under this model.
    pub fn eval(&self, terms: &Terms, t: TermId) -> u64 {
        self.eval_memo(terms, t, &mut FxHashMap::default())
    }

    /// The value of `t`, sharing `memo` among calls.
    pub fn eval_memo(&self, terms: &Terms, t: TermId, memo: &mut FxHashMap<TermId, u64>) -> u64 {
        let mut stack = vec![t];
        while let Some(&t) = stack.last() {
            if memo.contains_key(&t) {
                stack.pop();
                continue;
            }
            let before = stack.len();
            children(terms.node(t), &mut |c| {
                if !memo.contains_key(&c) {
                    stack.push(c);
                }
            });
            if stack.len() == before {
                let v = self.eval_node(terms, t, memo);
                memo.insert(t, v);
                stack.pop();
            }
        }
        memo[&t]
    }

    fn eval_node(&self, terms: &Terms, t: TermId, memo: &FxHashMap<TermId, u64>) -> u64 {
        let w = terms.width(t);
        let v = |x: &TermId| memo[x];
        let signed = |x: &TermId| {
            let s = 64 - terms.width(*x);
            ((memo[x] << s) as i64) >> s
        };
        let r = match terms.node(t) {
            Node::Const(k) => *k,
            Node::Var(x) => self.vars.get(x).copied().unwrap_or(0),
            Node::Sum(ts, k) => ts.iter().fold(*k, |a, (x, c)| a.wrapping_add(v(x).wrapping_mul(*c))),
            Node::Mul(a, b) => v(a).wrapping_mul(v(b)),
            Node::Udiv(a, b) => v(a).checked_div(v(b)).unwrap_or(u64::MAX),
            Node::Urem(a, b) => v(a).checked_rem(v(b)).unwrap_or(v(a)),
            Node::And(a, b) => v(a) & v(b),
            Node::Or(a, b) => v(a) | v(b),
            Node::Xor(a, b) => v(a) ^ v(b),
            Node::Shl(a, b) => v(a).checked_shl(v(b) as u32).unwrap_or(0),
            Node::Lshr(a, b) => v(a).checked_shr(v(b) as u32).unwrap_or(0),
            Node::Ashr(a, b) => (signed(a) >> v(b).min(63)) as u64,
            Node::Concat(ps) => {
                let (mut r, mut at) = (0u64, 0);
                for p in ps.iter() {
                    r |= v(p) << at;
                    at += terms.width(*p);
                }
                r
            }
            Node::Extract(a, lo) => v(a) >> lo,
            Node::SExt(a) => signed(a) as u64,
            Node::Ite(c, a, b) => {
                if v(c) != 0 {
                    v(a)
                } else {
                    v(b)
                }
            }
            Node::Eq(a, b) => u64::from(v(a) == v(b)),
            Node::Ult(a, b) => u64::from(v(a) < v(b)),
            Node::Slt(a, b) => u64::from(signed(a) < signed(b)),
            Node::All(ts) => u64::from(ts.iter().all(|x| v(x) != 0)),
            Node::Not(a) => 1 ^ v(a),
            Node::Select(m, a) => u64::from(self.bytes.get(&(*m, v(a))).copied().unwrap_or(0)),
        };
        r & mask(w)
    }

    /// The byte of `mem` at a concrete address.
    pub fn eval_byte(&self, terms: &Terms, mem: MemId, addr: u64, memo: &mut FxHashMap<TermId, u64>) -> u8 {
        let mut m = mem;
        loop {
            match terms.mem(m) {
                MemNode::Base { .. } => return self.bytes.get(&(m, addr)).copied().unwrap_or(0),
                MemNode::Ite(c, a, b) => m = if self.eval_memo(terms, *c, memo) != 0 { *a } else { *b },
                MemNode::Chunk { prev, base, bytes } => {
                    let b = self.eval_memo(terms, *base, memo);
                    match bytes.iter().find(|(o, _)| b.wrapping_add(*o as u64) == addr) {
                        Some((_, v)) => return self.eval_memo(terms, *v, memo) as u8,
                        None => m = *prev,
                    }
                }
            }
        }
    }
}

/// Calls `f` with every term `n` depends on directly.
pub fn children(n: &Node, f: &mut impl FnMut(TermId)) {
    match n {
        Node::Const(_) | Node::Var(_) => {}
        Node::Sum(ts, _) => ts.iter().for_each(|(t, _)| f(*t)),
        Node::Mul(a, b)
        | Node::Udiv(a, b)
        | Node::Urem(a, b)
        | Node::And(a, b)
        | Node::Or(a, b)
        | Node::Xor(a, b)
        | Node::Shl(a, b)
        | Node::Lshr(a, b)
        | Node::Ashr(a, b)
        | Node::Eq(a, b)
        | Node::Ult(a, b)
        | Node::Slt(a, b) => {
            f(*a);
            f(*b);
        }
        Node::Concat(ts) | Node::All(ts) => ts.iter().for_each(|t| f(*t)),
        Node::Extract(a, _) | Node::SExt(a) | Node::Not(a) | Node::Select(_, a) => f(*a),
        Node::Ite(c, a, b) => {
            f(*c);
            f(*a);
            f(*b);
        }
    }
}
