//! Equality and order.

use super::{Memo, Node, TermId, Terms, mask, sign_extend};

impl Terms {
    /// Equality.
    pub fn eq(&mut self, a: TermId, b: TermId) -> TermId {
        if let Some(&Some(r)) = self.memo.get(&(Memo::Eq, a, b)) {
            return r;
        }
        let r = self.eq_uncached(a, b);
        self.memo.insert((Memo::Eq, a, b), Some(r));
        r
    }

    fn eq_uncached(&mut self, a: TermId, b: TermId) -> TermId {
        if a == b {
            return self.tru();
        }
        let w = self.width(a);
        debug_assert_eq!(w, self.width(b));
        let (ma, mb) = (self.meta[a.index()], self.meta[b.index()]);
        if (ma.kz & mb.ko) | (ma.ko & mb.kz) != 0 {
            return self.fls();
        }
        let (a, b) = match (self.as_const(a), self.as_const(b)) {
            (Some(_), None) => (b, a),
            (None, Some(_)) => (a, b),
            _ => (a.min(b), a.max(b)),
        };
        if w == 1 {
            return match self.as_const(b) {
                Some(1) => a,
                Some(_) => self.not(a),
                None => self.eq_bool(a, b),
            };
        }
        let k = self.as_const(b);
        match (self.node(a).clone(), self.node(b).clone()) {
            (Node::Concat(_), Node::Const(_)) | (Node::Concat(_), Node::Concat(_)) => {
                let cuts = self.boundaries(a) | self.boundaries(b);
                self.eq_pieces(a, b, cuts)
            }
            (Node::Ite(c, x, y), Node::Const(_)) => {
                let (ex, ey) = (self.eq(x, b), self.eq(y, b));
                if self.as_const(ex).is_some() || self.as_const(ey).is_some() {
                    return self.ite(c, ex, ey);
                }
                self.intern(Node::Eq(a, b), 1, 0, 0)
            }
            (Node::Ite(c, x, y), Node::Ite(d, z, v)) if c == d => {
                let (e, f) = (self.eq(x, z), self.eq(y, v));
                self.ite(c, e, f)
            }
            (Node::SExt(x), _) if k.is_some() => {
                let wx = self.width(x);
                let kv = k.unwrap_or(0);
                let low = self.constant(wx, kv);
                if sign_extend(kv & mask(wx), wx) as u64 & mask(w) == kv { self.eq(x, low) } else { self.fls() }
            }
            (Node::SExt(x), Node::SExt(y)) if self.width(x) == self.width(y) => self.eq(x, y),
            (Node::Xor(x, c), _) if k.is_some() && self.as_const(c).is_some() => {
                let v = self.as_const(c).unwrap_or(0) ^ k.unwrap_or(0);
                let v = self.constant(w, v);
                self.eq(x, v)
            }
            (Node::Sum(..), _) | (_, Node::Sum(..)) => {
                let d = self.sub(a, b);
                let (terms, k) = match self.node(d).clone() {
                    Node::Sum(terms, k) => (terms, k),
                    _ => {
                        let zero = self.constant(w, 0);
                        return self.eq(d, zero);
                    }
                };
                if terms.len() == 1 && terms[0].1 == 1 {
                    let v = self.constant(w, k.wrapping_neg());
                    return self.eq(terms[0].0, v);
                }
                let negative = terms[0].1 >> (w - 1) & 1 == 1;
                let s = if negative { u64::MAX } else { 1 };
                let lhs: Vec<(TermId, u64)> = terms.iter().map(|(t, c)| (*t, c.wrapping_mul(s))).collect();
                let rhs = self.constant(w, k.wrapping_neg().wrapping_mul(s));
                if let [(t, c), (u, d)] = lhs[..]
                    && (c & mask(w), d & mask(w)) == (1, mask(w))
                    && self.as_const(rhs) == Some(0)
                {
                    return self.intern(Node::Eq(t.min(u), t.max(u)), 1, 0, 0);
                }
                let lhs = self.sum(w, lhs, 0);
                if lhs == a && rhs == b {
                    return self.intern(Node::Eq(a, b), 1, 0, 0);
                }
                if matches!(self.node(lhs), Node::Sum(..)) {
                    return self.intern(Node::Eq(lhs, rhs), 1, 0, 0);
                }
                self.eq(lhs, rhs)
            }
            _ => self.intern(Node::Eq(a, b), 1, 0, 0),
        }
    }

    fn eq_bool(&mut self, a: TermId, b: TermId) -> TermId {
        // Canonical under negation: strip a not from either side.
        let (na, nb) = (matches!(self.node(a), Node::Not(_)), matches!(self.node(b), Node::Not(_)));
        let (x, y) = (if na { self.not(a) } else { a }, if nb { self.not(b) } else { b });
        if x == y {
            return if na == nb { self.tru() } else { self.fls() };
        }
        let e = self.intern(Node::Eq(x.min(y), x.max(y)), 1, 0, 0);
        if na == nb { e } else { self.not(e) }
    }

    fn eq_pieces(&mut self, a: TermId, b: TermId, cuts: u64) -> TermId {
        let w = self.width(a);
        let mut eqs = Vec::new();
        let mut lo = 0;
        while lo < w {
            let mut hi = lo + 1;
            while hi < w && cuts >> hi & 1 == 0 {
                hi += 1;
            }
            let (x, y) = (self.extract(a, lo, hi - lo), self.extract(b, lo, hi - lo));
            let e = self.eq(x, y);
            if self.as_const(e) == Some(0) {
                return e;
            }
            eqs.push(e);
            lo = hi;
        }
        self.all(&eqs)
    }

    /// `a < b`, unsigned.
    pub fn ult(&mut self, a: TermId, b: TermId) -> TermId {
        if let Some(&Some(r)) = self.memo.get(&(Memo::Ult, a, b)) {
            return r;
        }
        let r = self.ult_uncached(a, b);
        self.memo.insert((Memo::Ult, a, b), Some(r));
        r
    }

    fn ult_uncached(&mut self, a: TermId, b: TermId) -> TermId {
        let w = self.width(a);
        if a == b || self.umin(a) >= self.umax(b) {
            return self.fls();
        }
        if self.umax(a) < self.umin(b) {
            return self.tru();
        }
        if w == 1 {
            let na = self.not(a);
            return self.all(&[na, b]);
        }
        // Leading zeros common to both do not matter.
        let high = ((self.meta[a.index()].kz & self.meta[b.index()].kz) | !mask(w)).leading_ones() - (64 - w);
        if high > 0 {
            let n = w - high;
            let (x, y) = (self.extract(a, 0, n), self.extract(b, 0, n));
            return self.ult(x, y);
        }
        if let Some(k) = self.as_const(b) {
            if k == 1 {
                let zero = self.constant(w, 0);
                return self.eq(a, zero);
            }
            if k.is_power_of_two() {
                let s = k.trailing_zeros();
                let top = self.extract(a, s, w - s);
                let zero = self.constant(w - s, 0);
                return self.eq(top, zero);
            }
            if k == mask(w) {
                let e = self.eq(a, b);
                return self.not(e);
            }
            if let Some(r) = self.compare_branches(a, b, Terms::ult) {
                return r;
            }
        }
        if let Some(k) = self.as_const(a) {
            // k < b  ⇔  ¬(b < k + 1); k is not the maximum, since umin(a) < umax(b).
            let next = self.constant(w, k + 1);
            let l = self.ult(b, next);
            return self.not(l);
        }
        self.intern(Node::Ult(a, b), 1, 0, 0)
    }

    /// A comparison of an if-then-else with a constant that is decided on one side.
    fn compare_branches(
        &mut self,
        a: TermId,
        b: TermId,
        f: fn(&mut Terms, TermId, TermId) -> TermId,
    ) -> Option<TermId> {
        let Node::Ite(c, x, y) = self.node(a).clone() else { return None };
        self.as_const(x).or(self.as_const(y))?;
        let (p, q) = (f(self, x, b), f(self, y, b));
        if self.as_const(p).is_some() || self.as_const(q).is_some() { Some(self.ite(c, p, q)) } else { None }
    }

    /// `a < b`, signed.
    pub fn slt(&mut self, a: TermId, b: TermId) -> TermId {
        if let Some(&Some(r)) = self.memo.get(&(Memo::Slt, a, b)) {
            return r;
        }
        let r = self.slt_uncached(a, b);
        self.memo.insert((Memo::Slt, a, b), Some(r));
        r
    }

    fn slt_uncached(&mut self, a: TermId, b: TermId) -> TermId {
        let w = self.width(a);
        if a == b {
            return self.fls();
        }
        if w == 1 {
            let nb = self.not(b);
            return self.all(&[a, nb]);
        }
        let sign = 1u64 << (w - 1);
        let (ma, mb) = (self.meta[a.index()], self.meta[b.index()]);
        if (ma.kz & mb.kz | ma.ko & mb.ko) & sign != 0 {
            return self.ult(a, b);
        }
        if ma.ko & mb.kz & sign != 0 {
            return self.tru();
        }
        if ma.kz & mb.ko & sign != 0 {
            return self.fls();
        }
        if self.as_const(b) == Some(0) {
            return self.extract(a, w - 1, 1);
        }
        if let (Node::SExt(x), Node::SExt(y)) = (self.node(a).clone(), self.node(b).clone())
            && self.width(x) == self.width(y)
        {
            return self.slt(x, y);
        }
        if let (Node::SExt(x), Some(k)) = (self.node(a).clone(), self.as_const(b)) {
            let wx = self.width(x);
            if sign_extend(k & mask(wx), wx) as u64 & mask(w) == k {
                let y = self.constant(wx, k);
                return self.slt(x, y);
            }
        }
        if self.as_const(b).is_some()
            && let Some(r) = self.compare_branches(a, b, Terms::slt)
        {
            return r;
        }
        if let Some(k) = self.as_const(a) {
            if k == mask(w - 1) {
                return self.fls();
            }
            let next = self.constant(w, k.wrapping_add(1));
            let l = self.slt(b, next);
            return self.not(l);
        }
        self.intern(Node::Slt(a, b), 1, 0, 0)
    }
}
