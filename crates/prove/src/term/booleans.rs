//! Truth values and if-then-else.

use super::{Node, TermId, Terms, mask};

impl Terms {
    /// Negation of a truth value.
    pub fn not(&mut self, t: TermId) -> TermId {
        match self.node(t).clone() {
            Node::Const(v) => self.constant(1, !v),
            Node::Not(x) => x,
            _ => {
                let m = self.meta[t.index()];
                self.intern(Node::Not(t), 1, m.ko, m.kz)
            }
        }
    }

    /// Conjunction.
    pub fn all(&mut self, ts: &[TermId]) -> TermId {
        let mut out: Vec<TermId> = Vec::new();
        let mut todo: Vec<TermId> = ts.to_vec();
        while let Some(t) = todo.pop() {
            match self.node(t).clone() {
                Node::Const(0) => return self.fls(),
                Node::Const(_) => {}
                Node::All(inner) => todo.extend(inner.iter()),
                _ => out.push(t),
            }
        }
        out.sort_unstable();
        out.dedup();
        // x ∧ ¬x, and x ∧ ¬(x ∧ y) = x ∧ ¬y.
        for i in 0..out.len() {
            if let Node::Not(x) = self.node(out[i]).clone() {
                if out.binary_search(&x).is_ok() {
                    return self.fls();
                }
                if let Node::All(inner) = self.node(x).clone() {
                    let rest: Vec<TermId> = inner.iter().copied().filter(|y| out.binary_search(y).is_err()).collect();
                    if rest.len() < inner.len() {
                        let conj = self.all(&rest);
                        out[i] = self.not(conj);
                        return self.all(&out);
                    }
                }
            }
        }
        match out.len() {
            0 => self.tru(),
            1 => out[0],
            _ => self.intern(Node::All(out.into()), 1, 0, 0),
        }
    }

    /// Disjunction.
    pub fn any(&mut self, ts: &[TermId]) -> TermId {
        // (s ∧ x) ∨ (s ∧ ¬x) = s, for guards that meet again.
        if let [a, b] = *ts
            && let Some(r) = self.resolve(a, b)
        {
            return r;
        }
        let nots: Vec<TermId> = ts.iter().map(|t| self.not(*t)).collect();
        let conj = self.all(&nots);
        self.not(conj)
    }

    fn conjuncts(&self, t: TermId) -> Vec<TermId> {
        match self.node(t) {
            Node::All(v) => v.to_vec(),
            _ => vec![t],
        }
    }

    fn resolve(&mut self, a: TermId, b: TermId) -> Option<TermId> {
        let (ca, cb) = (self.conjuncts(a), self.conjuncts(b));
        if ca.len() != cb.len() {
            return None;
        }
        let only_a: Vec<TermId> = ca.iter().copied().filter(|t| !cb.contains(t)).collect();
        let only_b: Vec<TermId> = cb.iter().copied().filter(|t| !ca.contains(t)).collect();
        if let ([x], [y]) = (&only_a[..], &only_b[..]) {
            let nx = self.not(*x);
            if nx == *y {
                let rest: Vec<TermId> = ca.into_iter().filter(|t| t != x).collect();
                return Some(self.all(&rest));
            }
        }
        None
    }

    /// If-then-else; `c` has width 1.
    pub fn ite(&mut self, c: TermId, a: TermId, b: TermId) -> TermId {
        if a == b {
            return a;
        }
        match self.node(c) {
            Node::Const(0) => return b,
            Node::Const(_) => return a,
            Node::Not(x) => {
                let x = *x;
                return self.ite(x, b, a);
            }
            _ => {}
        }
        if let Some(&r) = self.ites.get(&(c, a, b)) {
            return r;
        }
        let r = self.ite_uncached(c, a, b);
        self.ites.insert((c, a, b), r);
        r
    }

    fn ite_uncached(&mut self, c: TermId, a: TermId, b: TermId) -> TermId {
        let w = self.width(a);
        debug_assert_eq!(w, self.width(b));
        let a = match self.node(a) {
            Node::Ite(d, x, _) if *d == c => *x,
            _ => a,
        };
        let b = match self.node(b) {
            Node::Ite(d, _, y) if *d == c => *y,
            _ => b,
        };
        if a == b {
            return a;
        }
        if w == 1 {
            return self.ite_bool(c, a, b);
        }
        let (ma, mb) = (self.meta[a.index()], self.meta[b.index()]);
        // Common known bits at either end stay outside.
        let same = (ma.kz & mb.kz) | (ma.ko & mb.ko);
        let high = (same | !mask(w)).leading_ones() - (64 - w);
        let low = same.trailing_ones().min(w);
        if high + low < w && high + low > 0 {
            let n = w - high - low;
            let (x, y) = (self.extract(a, low, n), self.extract(b, low, n));
            let mid = self.ite(c, x, y);
            let mut pieces = Vec::with_capacity(3);
            if low > 0 {
                pieces.push(self.constant(low, ma.ko));
            }
            pieces.push(mid);
            if high > 0 {
                pieces.push(self.constant(high, ma.ko >> (w - high)));
            }
            return self.concat(&pieces);
        }
        self.intern(Node::Ite(c, a, b), w, ma.kz & mb.kz, ma.ko & mb.ko)
    }

    fn ite_bool(&mut self, c: TermId, a: TermId, b: TermId) -> TermId {
        match (self.as_const(a), self.as_const(b)) {
            (Some(1), Some(0)) => c,
            (Some(0), Some(1)) => self.not(c),
            (Some(1), _) => self.any(&[c, b]),
            (Some(0), _) => {
                let nc = self.not(c);
                self.all(&[nc, b])
            }
            (_, Some(0)) => self.all(&[c, a]),
            (_, Some(1)) => {
                let nc = self.not(c);
                self.any(&[nc, a])
            }
            _ if a == c => self.any(&[c, b]),
            _ if b == c => self.all(&[c, a]),
            _ => self.intern(Node::Ite(c, a, b), 1, 0, 0),
        }
    }
}
