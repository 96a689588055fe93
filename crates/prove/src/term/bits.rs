//! Bitwise operations and shifts. Where bits do not overlap, they become concatenations.

use super::{Node, TermId, Terms, mask};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bitwise {
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Zero,
    One,
    A,
    B,
    Both,
}

impl Terms {
    /// Bitwise and.
    pub fn and(&mut self, a: TermId, b: TermId) -> TermId {
        if self.width(a) == 1 {
            return self.all(&[a, b]);
        }
        self.bitwise(Bitwise::And, a, b)
    }

    /// Bitwise or.
    pub fn or(&mut self, a: TermId, b: TermId) -> TermId {
        if self.width(a) == 1 {
            return self.any(&[a, b]);
        }
        self.bitwise(Bitwise::Or, a, b)
    }

    /// Bitwise exclusive or.
    pub fn xor(&mut self, a: TermId, b: TermId) -> TermId {
        if self.width(a) == 1 {
            let e = self.eq(a, b);
            return self.not(e);
        }
        self.bitwise(Bitwise::Xor, a, b)
    }

    fn bitwise(&mut self, op: Bitwise, a: TermId, b: TermId) -> TermId {
        let w = self.width(a);
        if a == b {
            return match op {
                Bitwise::Xor => self.constant(w, 0),
                _ => a,
            };
        }
        // Constants on the right, so that operand order never matters.
        let (a, b) = match (self.as_const(a), self.as_const(b)) {
            (Some(_), None) => (b, a),
            (None, Some(_)) => (a, b),
            _ => (a.min(b), a.max(b)),
        };
        let (ma, mb) = (self.meta[a.index()], self.meta[b.index()]);
        let class = |i: u32| -> Class {
            let (za, oa) = (ma.kz >> i & 1 == 1, ma.ko >> i & 1 == 1);
            let (zb, ob) = (mb.kz >> i & 1 == 1, mb.ko >> i & 1 == 1);
            match op {
                Bitwise::And if za || zb => Class::Zero,
                Bitwise::And if ob => Class::A,
                Bitwise::And if oa => Class::B,
                Bitwise::Or if oa || ob => Class::One,
                Bitwise::Or if zb => Class::A,
                Bitwise::Or if za => Class::B,
                Bitwise::Xor if zb => Class::A,
                Bitwise::Xor if za => Class::B,
                _ => Class::Both,
            }
        };
        let cuts = self.boundaries(a) | self.boundaries(b);
        let mut pieces: Vec<(Class, u32, u32)> = Vec::new();
        for i in 0..w {
            let c = class(i);
            match pieces.last_mut() {
                Some((d, _, n)) if *d == c && (c != Class::Both || cuts >> i & 1 == 0) => *n += 1,
                _ => pieces.push((c, i, 1)),
            }
        }
        if let [(Class::Both, 0, _)] = pieces[..] {
            return self.bitwise_node(op, a, b);
        }
        let mut out = Vec::with_capacity(pieces.len());
        for (c, lo, n) in pieces {
            let p = match c {
                Class::Zero => self.constant(n, 0),
                Class::One => self.constant(n, u64::MAX),
                Class::A => self.extract(a, lo, n),
                Class::B => self.extract(b, lo, n),
                Class::Both => {
                    let (x, y) = (self.extract(a, lo, n), self.extract(b, lo, n));
                    match op {
                        Bitwise::And => self.and(x, y),
                        Bitwise::Or => self.or(x, y),
                        Bitwise::Xor => self.xor(x, y),
                    }
                }
            };
            out.push(p);
        }
        self.concat(&out)
    }

    fn bitwise_node(&mut self, op: Bitwise, a: TermId, b: TermId) -> TermId {
        let w = self.width(a);
        let (ma, mb) = (self.meta[a.index()], self.meta[b.index()]);
        match op {
            Bitwise::And => {
                if let Some(r) = self.absorb(op, a, b) {
                    return r;
                }
                self.intern(Node::And(a, b), w, ma.kz | mb.kz, ma.ko & mb.ko)
            }
            Bitwise::Or => {
                if let Some(r) = self.absorb(op, a, b) {
                    return r;
                }
                self.intern(Node::Or(a, b), w, ma.kz & mb.kz, ma.ko | mb.ko)
            }
            Bitwise::Xor => {
                // x ^ c ^ d
                if let (Some(k), Node::Xor(x, c)) = (self.as_const(b), self.node(a).clone())
                    && let Some(j) = self.as_const(c)
                {
                    let both = self.constant(w, k ^ j);
                    return self.xor(x, both);
                }
                if self.as_const(b) == Some(mask(w))
                    && let Node::Sum(terms, k) = self.node(a).clone()
                {
                    // ~(s + k) = -s - k - 1
                    let neg = terms.iter().map(|(t, c)| (*t, c.wrapping_neg())).collect();
                    return self.sum(w, neg, k.wrapping_neg().wrapping_sub(1));
                }
                let kz = (ma.kz & mb.kz) | (ma.ko & mb.ko);
                let ko = (ma.kz & mb.ko) | (ma.ko & mb.kz);
                self.intern(Node::Xor(a, b), w, kz, ko)
            }
        }
    }

    /// `x & (x & y) = x & y`, `x & (x | y) = x`, and the same for or.
    fn absorb(&self, op: Bitwise, a: TermId, b: TermId) -> Option<TermId> {
        for (x, y) in [(a, b), (b, a)] {
            match *self.node(y) {
                Node::And(p, q) if p == x || q == x => return Some(if op == Bitwise::And { y } else { x }),
                Node::Or(p, q) if p == x || q == x => return Some(if op == Bitwise::Or { y } else { x }),
                _ => {}
            }
        }
        None
    }

    /// Bits at which a new piece of a concatenation begins.
    pub(super) fn boundaries(&self, t: TermId) -> u64 {
        match self.node(t) {
            Node::Concat(pieces) => {
                let mut at = 0;
                let mut set = 0u64;
                for p in pieces.iter() {
                    set |= 1 << at;
                    at += self.width(*p);
                }
                set
            }
            _ => 1,
        }
    }

    /// `a << b`, with `b` below the width.
    pub fn shl(&mut self, a: TermId, b: TermId) -> TermId {
        let w = self.width(a);
        match self.as_const(b) {
            Some(0) => a,
            Some(s) if s >= u64::from(w) => self.constant(w, 0),
            Some(s) => self.sum(w, vec![(a, 1u64 << s)], 0),
            None if self.as_const(a) == Some(0) => a,
            None => self.intern(Node::Shl(a, b), w, 0, 0),
        }
    }

    pub(super) fn lshr_const(&mut self, a: TermId, s: u32) -> TermId {
        let w = self.width(a);
        if s == 0 {
            return a;
        }
        if s >= w {
            return self.constant(w, 0);
        }
        let high = self.extract(a, s, w - s);
        self.zext(high, w)
    }

    /// `a >> b`, logical.
    pub fn lshr(&mut self, a: TermId, b: TermId) -> TermId {
        let w = self.width(a);
        match self.as_const(b) {
            Some(s) => self.lshr_const(a, s.min(64) as u32),
            None if self.as_const(a) == Some(0) => a,
            None => self.intern(Node::Lshr(a, b), w, 0, 0),
        }
    }

    /// `a >> b`, arithmetic.
    pub fn ashr(&mut self, a: TermId, b: TermId) -> TermId {
        let w = self.width(a);
        if self.meta[a.index()].kz >> (w - 1) & 1 == 1 {
            return self.lshr(a, b);
        }
        match self.as_const(b) {
            Some(0) => a,
            Some(s) => {
                let s = s.min(u64::from(w) - 1) as u32;
                let high = self.extract(a, s, w - s);
                self.sext(high, w)
            }
            None => self.intern(Node::Ashr(a, b), w, 0, 0),
        }
    }
}
