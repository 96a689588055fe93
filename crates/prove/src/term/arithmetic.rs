//! Sums, products and quotients. Addresses are sums.

use super::{Node, TermId, Terms, mask};

impl Terms {
    /// `Σ c*t + k` modulo `2^width`.
    pub fn sum(&mut self, width: u32, terms: Vec<(TermId, u64)>, k: u64) -> TermId {
        let m = mask(width);
        let mut k = k;
        let mut acc: Vec<(TermId, u64)> = Vec::with_capacity(terms.len());
        let mut todo = terms;
        todo.reverse();
        while let Some((t, c)) = todo.pop() {
            let c = c & m;
            if c == 0 {
                continue;
            }
            debug_assert_eq!(self.width(t), width);
            match self.node(t).clone() {
                Node::Const(v) => k = k.wrapping_add(v.wrapping_mul(c)),
                Node::Sum(inner, ik) => {
                    k = k.wrapping_add(ik.wrapping_mul(c));
                    for (u, d) in inner.iter() {
                        todo.push((*u, d.wrapping_mul(c)));
                    }
                }
                // x ^ ~0 is -x - 1.
                Node::Xor(x, y) if self.as_const(y) == Some(m) => {
                    k = k.wrapping_sub(c);
                    todo.push((x, c.wrapping_neg()));
                }
                _ if c & 1 == 0 => {
                    let s = c.trailing_zeros();
                    let shifted = self.shl_slices(t, s);
                    if shifted == t {
                        acc.push((t, c));
                    } else {
                        todo.push((shifted, c >> s));
                    }
                }
                _ => acc.push((t, c)),
            }
        }
        acc.sort_unstable();
        let mut out: Vec<(TermId, u64)> = Vec::with_capacity(acc.len());
        let mut again = false;
        for (t, c) in acc {
            match out.last_mut() {
                Some((u, d)) if *u == t => {
                    *d = d.wrapping_add(c) & m;
                    again |= *d & 1 == 0;
                }
                _ => out.push((t, c)),
            }
        }
        out.retain(|(_, c)| *c != 0);
        if again && out.iter().any(|(_, c)| c & 1 == 0) {
            return self.sum(width, out, k);
        }
        let k = k & m;
        if out.is_empty() {
            return self.constant(width, k);
        }
        if out.len() == 1 && out[0].1 == 1 && k == 0 {
            return out[0].0;
        }
        // An addition without carries is a bitwise or, whose canonical form is slices.
        if out.iter().all(|(_, c)| *c == 1) {
            let mut possible = k;
            let mut disjoint = true;
            for (t, _) in &out {
                let can = self.umax(*t);
                disjoint &= possible & can == 0;
                possible |= can;
            }
            if disjoint {
                let mut r = self.constant(width, k);
                for (t, _) in out {
                    r = self.or(r, t);
                }
                return r;
            }
        }
        let (kz, ko) = self.sum_known(width, &out, k);
        // Known leading zeros stay outside: the sum itself is as narrow as it can be.
        let high = (kz | !mask(width)).leading_ones() - (64 - width);
        if high > 0 && high < width {
            let n = width - high;
            let narrow = out.iter().map(|(t, c)| (self.extract(*t, 0, n), *c)).collect();
            let s = self.sum(n, narrow, k);
            return self.zext(s, width);
        }
        self.intern(Node::Sum(out.into(), k), width, kz, ko)
    }

    /// Known bits of a sum, by adding the partial knowledge (as the kernel's `tnum_add`).
    fn sum_known(&self, width: u32, terms: &[(TermId, u64)], k: u64) -> (u64, u64) {
        let m = mask(width);
        let (mut v, mut u) = (k & m, 0u64);
        for (t, c) in terms {
            if *c != 1 {
                return (0, 0);
            }
            let meta = self.meta[t.index()];
            let (tv, tu) = (meta.ko, !(meta.kz | meta.ko) & m);
            let sm = u.wrapping_add(tu);
            let sv = v.wrapping_add(tv);
            let sigma = sm.wrapping_add(sv);
            let chi = sigma ^ sv;
            let mu = (chi | u | tu) & m;
            v = sv & !mu & m;
            u = mu;
        }
        (!v & !u & m, v)
    }

    /// `t << s` as slices.
    fn shl_slices(&mut self, t: TermId, s: u32) -> TermId {
        let w = self.width(t);
        let low = self.extract(t, 0, w - s);
        let zero = self.constant(s, 0);
        self.concat(&[zero, low])
    }

    /// `a + b`
    pub fn add(&mut self, a: TermId, b: TermId) -> TermId {
        let w = self.width(a);
        if w == 1 {
            return self.xor(a, b);
        }
        // Without a carry a sum is an assembly of bits.
        let apart = !(self.known(a).0 | self.known(b).0) & mask(w) == 0;
        if apart && self.as_const(a).is_none() && self.as_const(b).is_none() {
            return self.or(a, b);
        }
        self.sum(w, vec![(a, 1), (b, 1)], 0)
    }

    /// `a - b`
    pub fn sub(&mut self, a: TermId, b: TermId) -> TermId {
        let w = self.width(a);
        if w == 1 {
            return self.xor(a, b);
        }
        self.sum(w, vec![(a, 1), (b, u64::MAX)], 0)
    }

    /// `t + k`
    pub fn add_const(&mut self, t: TermId, k: i64) -> TermId {
        let w = self.width(t);
        self.sum(w, vec![(t, 1)], k as u64)
    }

    /// `a * b`
    pub fn mul(&mut self, a: TermId, b: TermId) -> TermId {
        let w = self.width(a);
        if w == 1 {
            return self.and(a, b);
        }
        match (self.as_const(a), self.as_const(b)) {
            (_, Some(k)) => self.sum(w, vec![(a, k)], 0),
            (Some(k), _) => self.sum(w, vec![(b, k)], 0),
            _ => {
                let (a, b) = (a.min(b), a.max(b));
                let tz = |s: &Self, t: TermId| s.meta[t.index()].kz.trailing_ones();
                let zeros = (tz(self, a) + tz(self, b)).min(w);
                self.intern(Node::Mul(a, b), w, mask(zeros), 0)
            }
        }
    }

    /// Unsigned quotient, all ones for a zero divisor.
    pub fn udiv(&mut self, a: TermId, b: TermId) -> TermId {
        let w = self.width(a);
        match (self.as_const(a), self.as_const(b)) {
            (_, Some(0)) => self.constant(w, u64::MAX),
            (Some(x), Some(y)) => self.constant(w, x / y),
            (_, Some(y)) if y.is_power_of_two() => self.lshr_const(a, y.trailing_zeros()),
            (_, Some(y)) if self.umax(a) < y => self.constant(w, 0),
            _ => {
                let high = self.meta[a.index()].kz | !mask(w);
                let lead = if self.umin(b) > 0 { high.leading_ones() - (64 - w) } else { 0 };
                let kz = mask(w) & !mask(w - lead);
                self.intern(Node::Udiv(a, b), w, kz, 0)
            }
        }
    }

    /// Unsigned remainder, the dividend for a zero divisor.
    pub fn urem(&mut self, a: TermId, b: TermId) -> TermId {
        let w = self.width(a);
        match (self.as_const(a), self.as_const(b)) {
            (_, Some(0)) => a,
            (Some(x), Some(y)) => self.constant(w, x % y),
            (_, Some(y)) if y.is_power_of_two() => {
                let m = self.constant(w, y - 1);
                self.and(a, m)
            }
            (_, Some(y)) if self.umax(a) < y => a,
            (_, kb) => {
                let kz = match kb {
                    Some(y) => mask(w) & !mask(64 - y.leading_zeros()),
                    None => 0,
                };
                self.intern(Node::Urem(a, b), w, kz, 0)
            }
        }
    }

    /// Signed quotient, from the unsigned one of the magnitudes.
    pub fn sdiv(&mut self, a: TermId, b: TermId) -> TermId {
        let (na, ua) = self.magnitude(a);
        let (nb, ub) = self.magnitude(b);
        let q = self.udiv(ua, ub);
        let neg = self.neg(q);
        let differ = self.xor(na, nb);
        self.ite(differ, neg, q)
    }

    /// Signed remainder with the sign of the dividend.
    pub fn srem(&mut self, a: TermId, b: TermId) -> TermId {
        let (na, ua) = self.magnitude(a);
        let (_, ub) = self.magnitude(b);
        let r = self.urem(ua, ub);
        let neg = self.neg(r);
        self.ite(na, neg, r)
    }

    fn neg(&mut self, t: TermId) -> TermId {
        let w = self.width(t);
        self.sum(w, vec![(t, u64::MAX)], 0)
    }

    fn magnitude(&mut self, t: TermId) -> (TermId, TermId) {
        let w = self.width(t);
        let sign = self.extract(t, w - 1, 1);
        let neg = self.neg(t);
        let m = self.ite(sign, neg, t);
        (sign, m)
    }
}
