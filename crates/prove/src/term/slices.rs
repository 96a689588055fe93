//! Slices, concatenations and extensions.

use super::{Memo, Meta, Node, TermId, Terms, mask};

impl Terms {
    /// The `bits` bits of `t` that start at bit `lo`.
    pub fn extract(&mut self, t: TermId, lo: u32, bits: u32) -> TermId {
        let w = self.width(t);
        debug_assert!(lo + bits <= w && bits > 0, "slice {lo}+{bits} of {w}");
        if lo == 0 && bits == w {
            return t;
        }
        if let Some(&r) = self.extracts.get(&(t, lo, bits)) {
            return r;
        }
        let r = self.extract_uncached(t, lo, bits);
        self.extracts.insert((t, lo, bits), r);
        r
    }

    fn extract_uncached(&mut self, t: TermId, lo: u32, bits: u32) -> TermId {
        let Meta { kz, ko, .. } = self.meta[t.index()];
        let m = mask(bits);
        if ((kz | ko) >> lo) & m == m {
            return self.constant(bits, ko >> lo);
        }
        match self.node(t).clone() {
            Node::Extract(x, l) => self.extract(x, l + lo, bits),
            Node::Concat(pieces) => {
                let mut at = 0;
                let mut out = Vec::new();
                for p in pieces.iter() {
                    let pw = self.width(*p);
                    let (from, to) = (lo.max(at), (lo + bits).min(at + pw));
                    if from < to {
                        let part = self.extract(*p, from - at, to - from);
                        out.push(part);
                    }
                    at += pw;
                }
                self.concat(&out)
            }
            Node::SExt(x) => {
                let wx = self.width(x);
                if lo + bits <= wx {
                    self.extract(x, lo, bits)
                } else if lo < wx {
                    let low = self.extract(x, lo, wx - lo);
                    self.sext(low, bits)
                } else {
                    let sign = self.extract(x, wx - 1, 1);
                    self.sext(sign, bits)
                }
            }
            Node::Ite(c, a, b) => {
                let a = self.extract(a, lo, bits);
                let b = self.extract(b, lo, bits);
                self.ite(c, a, b)
            }
            Node::And(a, b) => {
                let (a, b) = (self.extract(a, lo, bits), self.extract(b, lo, bits));
                self.and(a, b)
            }
            Node::Or(a, b) => {
                let (a, b) = (self.extract(a, lo, bits), self.extract(b, lo, bits));
                self.or(a, b)
            }
            Node::Xor(a, b) => {
                let (a, b) = (self.extract(a, lo, bits), self.extract(b, lo, bits));
                self.xor(a, b)
            }
            Node::Sum(terms, k) => {
                let top = lo + bits;
                if top < self.width(t) {
                    let narrow: Vec<(TermId, u64)> =
                        terms.iter().map(|(x, c)| (self.extract(*x, 0, top), *c)).collect();
                    let s = self.sum(top, narrow, k);
                    return self.extract(s, lo, bits);
                }
                // All multiples of 2^lo: their quotients add up.
                let low = mask(lo);
                if k & low == 0 && terms.iter().all(|(x, _)| self.meta[x.index()].kz & low == low) {
                    let narrow = terms.iter().map(|(x, c)| (self.extract(*x, lo, bits), *c)).collect();
                    return self.sum(bits, narrow, k >> lo);
                }
                self.slice_node(t, lo, bits, kz, ko)
            }
            Node::Mul(a, b) => {
                let top = lo + bits;
                if top < self.width(t) {
                    let (a, b) = (self.extract(a, 0, top), self.extract(b, 0, top));
                    let p = self.mul(a, b);
                    return self.extract(p, lo, bits);
                }
                self.slice_node(t, lo, bits, kz, ko)
            }
            _ => self.slice_node(t, lo, bits, kz, ko),
        }
    }

    fn slice_node(&mut self, t: TermId, lo: u32, bits: u32, kz: u64, ko: u64) -> TermId {
        self.intern(Node::Extract(t, lo), bits, kz >> lo, ko >> lo)
    }

    /// Pieces put together, least significant first.
    pub fn concat(&mut self, pieces: &[TermId]) -> TermId {
        let mut out: Vec<TermId> = Vec::with_capacity(pieces.len());
        for &p in pieces {
            match self.node(p).clone() {
                Node::Concat(inner) => {
                    for &q in inner.iter() {
                        self.push_piece(&mut out, q);
                    }
                }
                _ => self.push_piece(&mut out, p),
            }
        }
        if out.len() == 1 {
            return out[0];
        }
        let (mut w, mut kz, mut ko) = (0, 0u64, 0u64);
        for p in &out {
            let m = self.meta[p.index()];
            kz |= m.kz << w;
            ko |= m.ko << w;
            w += m.width;
        }
        self.intern(Node::Concat(out.into()), w, kz, ko)
    }

    fn push_piece(&mut self, out: &mut Vec<TermId>, p: TermId) {
        let mut p = p;
        while let Some(&last) = out.last() {
            let Some(merged) = self.merge_pieces(last, p) else { break };
            out.pop();
            match self.node(merged).clone() {
                // A merge may itself be a concatenation (an if-then-else of zero-extended values).
                Node::Concat(inner) => {
                    let (first, rest) = inner.split_first().expect("a concatenation has pieces");
                    self.push_piece(out, *first);
                    for q in rest {
                        out.push(*q);
                    }
                    return;
                }
                _ => p = merged,
            }
        }
        out.push(p);
    }

    /// `high` directly above `low`, if together they are one simpler term.
    fn merge_pieces(&mut self, low: TermId, high: TermId) -> Option<TermId> {
        if let Some(&r) = self.memo.get(&(Memo::Merge, low, high)) {
            return r;
        }
        let r = self.merge_pieces_uncached(low, high);
        self.memo.insert((Memo::Merge, low, high), r);
        r
    }

    fn merge_pieces_uncached(&mut self, low: TermId, high: TermId) -> Option<TermId> {
        let (wl, wh) = (self.width(low), self.width(high));
        if let (Some(a), Some(b)) = (self.as_const(low), self.as_const(high)) {
            return Some(self.constant(wl + wh, a | b << wl));
        }
        match (self.node(low).clone(), self.node(high).clone()) {
            (_, Node::Extract(x, lo)) if lo >= wl => {
                if self.extract(x, lo - wl, wl) == low {
                    return Some(self.extract(x, lo - wl, wl + wh));
                }
                None
            }
            (Node::Ite(c, a, b), Node::Ite(d, e, f)) if c == d => {
                let t = self.concat(&[a, e]);
                let u = self.concat(&[b, f]);
                Some(self.ite(c, t, u))
            }
            (Node::SExt(x), Node::SExt(y)) => {
                let wx = self.width(x);
                let sign = self.extract(x, wx - 1, 1);
                (sign == y).then(|| self.sext(x, wl + wh))
            }
            (_, Node::SExt(y)) if self.width(y) == 1 => {
                let sign = self.extract(low, wl - 1, 1);
                (sign == y).then(|| self.sext(low, wl + wh))
            }
            (Node::And(a, b), Node::And(c, d)) => {
                let (x, y) = self.merge_pairs(a, b, c, d)?;
                Some(self.and(x, y))
            }
            (Node::Or(a, b), Node::Or(c, d)) => {
                let (x, y) = self.merge_pairs(a, b, c, d)?;
                Some(self.or(x, y))
            }
            (Node::Xor(a, b), Node::Xor(c, d)) => {
                let (x, y) = self.merge_pairs(a, b, c, d)?;
                Some(self.xor(x, y))
            }
            (l, Node::Not(h)) if wh == 1 => {
                // Single bits of a complemented value.
                match l {
                    Node::Xor(a, k) if self.as_const(k) == Some(mask(wl)) => {
                        let x = self.merge_pieces(a, h)?;
                        let ones = self.constant(wl + 1, u64::MAX);
                        Some(self.xor(x, ones))
                    }
                    Node::Not(a) => {
                        let x = self.merge_pieces(a, h)?;
                        let ones = self.constant(2, 3);
                        Some(self.xor(x, ones))
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn merge_pairs(&mut self, a: TermId, b: TermId, c: TermId, d: TermId) -> Option<(TermId, TermId)> {
        if let (Some(x), Some(y)) = (self.merge_pieces(a, c), self.merge_pieces(b, d)) {
            return Some((x, y));
        }
        if let (Some(x), Some(y)) = (self.merge_pieces(a, d), self.merge_pieces(b, c)) {
            return Some((x, y));
        }
        None
    }

    /// Zero extension.
    pub fn zext(&mut self, t: TermId, width: u32) -> TermId {
        let w = self.width(t);
        if w == width {
            return t;
        }
        let z = self.constant(width - w, 0);
        self.concat(&[t, z])
    }

    /// Sign extension.
    pub fn sext(&mut self, t: TermId, width: u32) -> TermId {
        if let Some(&Some(r)) = self.memo.get(&(Memo::SExt(width), t, t)) {
            return r;
        }
        let r = self.sext_uncached(t, width);
        self.memo.insert((Memo::SExt(width), t, t), Some(r));
        r
    }

    fn sext_uncached(&mut self, t: TermId, width: u32) -> TermId {
        let w = self.width(t);
        if w == width {
            return t;
        }
        let Meta { kz, ko, .. } = self.meta[t.index()];
        let sign = 1u64 << (w - 1);
        if kz & sign != 0 {
            return self.zext(t, width);
        }
        if ko & sign != 0 {
            let ones = self.constant(width - w, u64::MAX);
            return self.concat(&[t, ones]);
        }
        match self.node(t).clone() {
            Node::SExt(x) => self.sext(x, width),
            Node::Ite(c, a, b) => {
                let (a, b) = (self.sext(a, width), self.sext(b, width));
                self.ite(c, a, b)
            }
            _ => self.intern(Node::SExt(t), width, kz, ko),
        }
    }
}
