//! Hash-consed bit-vector terms with strong normalization.
//!
//! The one idea: two expressions that compute the same value should, as often as possible, *be* the
//! same node, so that most equivalences need no solver. Three canonical shapes do the work:
//! sums (`c1*t1 + c2*t2 + k`) for arithmetic and addresses, concatenations of slices for shifts,
//! masks, byte assembly and byte order, and if-then-else with slices pushed inside. Each node also
//! carries the bits known to be zero and one, which drive the simplifications.
//!
//! A term of width 1 doubles as a truth value. Memory is part of the graph: see [`MemNode`].

use rustc_hash::FxHashMap;
use std::rc::Rc;

/// A term: index into its [`Terms`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TermId(u32);

impl TermId {
    /// The index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A memory: index into its [`Terms`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MemId(u32);

impl MemId {
    /// The index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A free variable: index into the variables of [`Terms`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VarId(u32);

impl VarId {
    /// The index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The shape of a term. Operands have the widths the constructor functions of [`Terms`] describe.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Node {
    /// A number.
    Const(u64),
    /// A free variable.
    Var(VarId),
    /// `Σ coefficient * term + k`; at least one term, none a constant or a sum, coefficients odd.
    Sum(Rc<[(TermId, u64)]>, u64),
    /// Product of two non-constants.
    Mul(TermId, TermId),
    /// Unsigned quotient; all ones for a zero divisor (SMT-LIB).
    Udiv(TermId, TermId),
    /// Unsigned remainder; the dividend for a zero divisor (SMT-LIB).
    Urem(TermId, TermId),
    /// Bitwise and of two terms that overlap in every bit.
    And(TermId, TermId),
    /// Bitwise or, likewise.
    Or(TermId, TermId),
    /// Bitwise exclusive or, likewise; the second may be a constant.
    Xor(TermId, TermId),
    /// Shift by a non-constant amount below the width.
    Shl(TermId, TermId),
    /// Logical right shift, likewise.
    Lshr(TermId, TermId),
    /// Arithmetic right shift, likewise.
    Ashr(TermId, TermId),
    /// Pieces, least significant first.
    Concat(Rc<[TermId]>),
    /// A slice that starts at this bit.
    Extract(TermId, u32),
    /// Sign extension.
    SExt(TermId),
    /// If-then-else.
    Ite(TermId, TermId, TermId),
    /// Equality (width 1).
    Eq(TermId, TermId),
    /// Unsigned less-than (width 1).
    Ult(TermId, TermId),
    /// Signed less-than (width 1).
    Slt(TermId, TermId),
    /// Conjunction of two or more truth values, sorted (width 1).
    All(Rc<[TermId]>),
    /// Negation (width 1).
    Not(TermId),
    /// The initial byte at an address of a base memory (width 8).
    Select(MemId, TermId),
}

/// A memory of one region, as bytes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum MemNode {
    /// Unknown contents: `region` as some moment (`version`) left it.
    Base {
        /// Which region, numbered by the client.
        region: u32,
        /// Which moment: a term that identifies it.
        version: TermId,
    },
    /// `prev` with the bytes at `base + offset` replaced; offsets ascending.
    Chunk {
        /// Memory before.
        prev: MemId,
        /// Symbolic part of the address (no constant).
        base: TermId,
        /// Constant offsets and byte values.
        bytes: Rc<[(i64, TermId)]>,
    },
    /// Joined control flow.
    Ite(TermId, MemId, MemId),
}

#[derive(Clone, Copy, Debug)]
struct Meta {
    width: u32,
    /// Bits known to be zero.
    kz: u64,
    /// Bits known to be one.
    ko: u64,
}

/// The graph. Generic over nothing: what a variable stands for is the client's business, by number.
#[derive(Default)]
pub struct Terms {
    nodes: Vec<Node>,
    meta: Vec<Meta>,
    table: FxHashMap<(Node, u32), TermId>,
    mems: Vec<MemNode>,
    mem_table: FxHashMap<MemNode, MemId>,
    var_count: u32,
    extracts: FxHashMap<(TermId, u32, u32), TermId>,
    selects: FxHashMap<(MemId, TermId, i64), TermId>,
    ites: FxHashMap<(TermId, TermId, TermId), TermId>,
    /// Results of operations that recurse into if-then-else: without these, shared subterms would be
    /// visited once per path.
    memo: FxHashMap<(Memo, TermId, TermId), Option<TermId>>,
    fuel: u64,
    /// Whether addresses are compared by the solver even where their offsets tell.
    pub solver_offsets: bool,
}

/// Operations with memoized results.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Memo {
    SExt(u32),
    Merge,
    Eq,
    Ult,
    Slt,
}

/// Constant offsets and byte values, offsets ascending.
type Bytes = Rc<[(i64, TermId)]>;

/// The low `w` bits set.
pub const fn mask(w: u32) -> u64 {
    if w >= 64 { u64::MAX } else { (1u64 << w) - 1 }
}

fn sign_extend(v: u64, w: u32) -> i64 {
    ((v << (64 - w)) as i64) >> (64 - w)
}

impl Terms {
    /// An empty graph.
    pub fn new() -> Terms {
        Terms::default()
    }

    /// Terms made so far: a measure of the work done.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The term made as number `index`, from 0.
    pub fn nth(&self, index: usize) -> Option<TermId> {
        (index < self.nodes.len()).then_some(TermId(index as u32))
    }

    /// Whether nothing has been made.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Elementary steps done, to bound runaway normalization.
    pub fn work(&self) -> u64 {
        self.fuel
    }

    /// The node of a term.
    pub fn node(&self, t: TermId) -> &Node {
        &self.nodes[t.index()]
    }

    /// The node of a memory.
    pub fn mem(&self, m: MemId) -> &MemNode {
        &self.mems[m.index()]
    }

    /// Width in bits.
    pub fn width(&self, t: TermId) -> u32 {
        self.meta[t.index()].width
    }

    /// Bits known to be zero, and bits known to be one.
    pub fn known(&self, t: TermId) -> (u64, u64) {
        let m = self.meta[t.index()];
        (m.kz, m.ko)
    }

    /// The number, if it is a constant.
    pub fn as_const(&self, t: TermId) -> Option<u64> {
        match self.node(t) {
            Node::Const(v) => Some(*v),
            _ => None,
        }
    }

    fn umax(&self, t: TermId) -> u64 {
        !self.meta[t.index()].kz & mask(self.width(t))
    }

    fn umin(&self, t: TermId) -> u64 {
        self.meta[t.index()].ko
    }

    fn intern(&mut self, node: Node, width: u32, kz: u64, ko: u64) -> TermId {
        debug_assert!((1..=64).contains(&width), "width {width}");
        self.fuel += 1;
        if let Some(&t) = self.table.get(&(node.clone(), width)) {
            return t;
        }
        let m = mask(width);
        let (kz, ko) = (kz & m, ko & m);
        if kz | ko == m && !matches!(node, Node::Const(_)) && kz & ko == 0 {
            return self.constant(width, ko);
        }
        let id = TermId(self.nodes.len() as u32);
        self.nodes.push(node.clone());
        self.meta.push(Meta { width, kz, ko });
        self.table.insert((node, width), id);
        id
    }

    /// The number `v` truncated to `width` bits.
    pub fn constant(&mut self, width: u32, v: u64) -> TermId {
        let v = v & mask(width);
        self.intern(Node::Const(v), width, !v, v)
    }

    /// True, as a term of width 1.
    pub fn tru(&mut self) -> TermId {
        self.constant(1, 1)
    }

    /// False, as a term of width 1.
    pub fn fls(&mut self) -> TermId {
        self.constant(1, 0)
    }

    /// A new free variable.
    pub fn fresh(&mut self, width: u32) -> (VarId, TermId) {
        let v = VarId(self.var_count);
        self.var_count += 1;
        (v, self.intern(Node::Var(v), width, 0, 0))
    }

    // ---- slices -------------------------------------------------------------------------------

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

    // ---- arithmetic ---------------------------------------------------------------------------

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

    // ---- bitwise ------------------------------------------------------------------------------

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
    fn boundaries(&self, t: TermId) -> u64 {
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

    // ---- shifts -------------------------------------------------------------------------------

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

    fn lshr_const(&mut self, a: TermId, s: u32) -> TermId {
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

    // ---- truth values -------------------------------------------------------------------------

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

    // ---- memory -------------------------------------------------------------------------------

    fn intern_mem(&mut self, node: MemNode) -> MemId {
        self.fuel += 1;
        if let Some(&m) = self.mem_table.get(&node) {
            return m;
        }
        let id = MemId(self.mems.len() as u32);
        self.mems.push(node.clone());
        self.mem_table.insert(node, id);
        id
    }

    /// Unknown contents of `region` as `version` left them.
    pub fn mem_base(&mut self, region: u32, version: TermId) -> MemId {
        self.intern_mem(MemNode::Base { region, version })
    }

    /// Joined memories.
    pub fn mem_ite(&mut self, c: TermId, a: MemId, b: MemId) -> MemId {
        if a == b {
            return a;
        }
        match self.node(c) {
            Node::Const(0) => return b,
            Node::Const(_) => return a,
            Node::Not(x) => {
                let x = *x;
                return self.mem_ite(x, b, a);
            }
            _ => {}
        }
        let a = match self.mem(a) {
            MemNode::Ite(d, x, _) if *d == c => *x,
            _ => a,
        };
        let b = match self.mem(b) {
            MemNode::Ite(d, _, y) if *d == c => *y,
            _ => b,
        };
        if a == b {
            return a;
        }
        self.intern_mem(MemNode::Ite(c, a, b))
    }

    /// An address as symbolic part and constant offset.
    pub fn split_address(&mut self, addr: TermId) -> (TermId, i64) {
        match self.node(addr).clone() {
            Node::Sum(terms, k) if k != 0 => {
                let w = self.width(addr);
                (self.sum(w, terms.to_vec(), 0), k as i64)
            }
            Node::Const(k) => (self.constant(64, 0), k as i64),
            _ => (addr, 0),
        }
    }

    /// The term `base + off` (64 bits).
    pub fn address(&mut self, base: TermId, off: i64) -> TermId {
        self.sum(64, vec![(base, 1)], off as u64)
    }

    /// Whether the bytes at two addresses are certainly different ones.
    fn distinct(&mut self, b1: TermId, o1: i64, b2: TermId, o2: i64) -> bool {
        if self.solver_offsets {
            return false;
        }
        if b1 == b2 {
            return o1 != o2;
        }
        let (x, y) = (self.address(b1, o1), self.address(b2, o2));
        let e = self.eq(x, y);
        if self.as_const(e) == Some(0) {
            return true;
        }
        // A difference that is a small non-negative term plus a constant.
        let d = self.sub(x, y);
        let z = self.constant(64, 0);
        let (dz, zd) = (self.eq(d, z), self.sub(y, x));
        self.as_const(dz) == Some(0) || self.never_zero(d) || self.never_zero(zd)
    }

    /// Whether two addresses are the same; left to the solver where offsets are not to be compared here.
    pub fn same_address(&mut self, a: TermId, b: TermId) -> TermId {
        if !self.solver_offsets {
            return self.eq(a, b);
        }
        if a == b { self.tru() } else { self.intern(Node::Eq(a.min(b), a.max(b)), 1, 0, 0) }
    }

    fn never_zero(&self, d: TermId) -> bool {
        // t + k with t <= umax: zero only if t = -k.
        match self.node(d) {
            Node::Sum(terms, k) if terms.len() == 1 && terms[0].1 == 1 => k.wrapping_neg() > self.umax(terms[0].0),
            _ => false,
        }
    }

    /// `mem` with one byte replaced.
    pub fn store(&mut self, mem: MemId, base: TermId, off: i64, byte: TermId) -> MemId {
        self.store_bytes(mem, base, &[(off, byte)])
    }

    /// `mem` with the bytes at `base + offset` replaced, in one step.
    pub fn store_bytes(&mut self, mem: MemId, base: TermId, new: &[(i64, TermId)]) -> MemId {
        debug_assert!(new.iter().all(|(_, b)| self.width(*b) == 8));
        // Find a chunk with the same base below chunks that are certainly elsewhere.
        let mut above: Vec<(TermId, Bytes)> = Vec::new();
        let mut at = mem;
        let mut found = None;
        while let MemNode::Chunk { prev, base: b, bytes } = self.mem(at).clone() {
            if b == base && !self.solver_offsets {
                found = Some((prev, bytes));
                break;
            }
            let apart = bytes.iter().all(|(o, _)| new.iter().all(|(n, _)| self.distinct(b, *o, base, *n)));
            if !apart || above.len() > 8 {
                break;
            }
            above.push((b, bytes));
            at = prev;
        }
        let Some((below, old)) = found else {
            return self.place_chunk(mem, base, new);
        };
        let mut all: Vec<(i64, TermId)> =
            old.iter().copied().filter(|(o, _)| !new.iter().any(|(n, _)| n == o)).collect();
        all.extend_from_slice(new);
        let mut m = self.place_chunk(below, base, &all);
        for (b, bytes) in above.into_iter().rev() {
            m = self.intern_mem(MemNode::Chunk { prev: m, base: b, bytes });
        }
        m
    }

    /// A chunk on top of `prev`. Writing back what is already there is dropped; independent chunks
    /// are ordered by their base.
    fn place_chunk(&mut self, prev: MemId, base: TermId, bytes: &[(i64, TermId)]) -> MemId {
        let mut kept: Vec<(i64, TermId)> = Vec::with_capacity(bytes.len());
        for (o, v) in bytes {
            if self.select(prev, base, *o) != *v {
                kept.push((*o, *v));
            }
        }
        if kept.is_empty() {
            return prev;
        }
        kept.sort_unstable();
        if let MemNode::Chunk { prev: below, base: b, bytes: over } = self.mem(prev).clone()
            && b > base
            && over.iter().all(|(o, _)| kept.iter().all(|(n, _)| self.distinct(b, *o, base, *n)))
        {
            let m = self.place_chunk(below, base, &kept);
            return self.intern_mem(MemNode::Chunk { prev: m, base: b, bytes: over });
        }
        self.intern_mem(MemNode::Chunk { prev, base, bytes: kept.into() })
    }

    /// The byte at `base + off`.
    pub fn select(&mut self, mem: MemId, base: TermId, off: i64) -> TermId {
        if let Some(&r) = self.selects.get(&(mem, base, off)) {
            return r;
        }
        let r = match self.mem(mem).clone() {
            MemNode::Base { .. } => {
                let addr = self.address(base, off);
                self.intern(Node::Select(mem, addr), 8, 0, 0)
            }
            MemNode::Ite(c, a, b) => {
                let (x, y) = (self.select(a, base, off), self.select(b, base, off));
                self.ite(c, x, y)
            }
            MemNode::Chunk { prev, base: b, bytes } if b == base && !self.solver_offsets => {
                match bytes.binary_search_by_key(&off, |(o, _)| *o) {
                    Ok(i) => bytes[i].1,
                    Err(_) => self.select(prev, base, off),
                }
            }
            MemNode::Chunk { prev, base: b, bytes } => {
                let mut r = self.select(prev, base, off);
                let here = self.address(base, off);
                for (o, v) in bytes.iter() {
                    if self.distinct(b, *o, base, off) {
                        continue;
                    }
                    let there = self.address(b, *o);
                    let e = self.same_address(here, there);
                    r = self.ite(e, *v, r);
                }
                r
            }
        };
        self.selects.insert((mem, base, off), r);
        r
    }

    /// Every (base, offset) written above the base memories of `m`.
    pub fn written(&self, m: MemId, out: &mut Vec<(TermId, i64)>, seen: &mut rustc_hash::FxHashSet<MemId>) {
        let mut todo = vec![m];
        while let Some(m) = todo.pop() {
            if !seen.insert(m) {
                continue;
            }
            match self.mem(m) {
                MemNode::Base { .. } => {}
                MemNode::Chunk { prev, base, bytes } => {
                    out.extend(bytes.iter().map(|(o, _)| (*base, *o)));
                    todo.push(*prev);
                }
                MemNode::Ite(_, a, b) => todo.extend([*a, *b]),
            }
        }
    }
}

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

/// A term as text, to this depth, for debugging.
pub fn show(terms: &Terms, t: TermId, depth: u32) -> String {
    let w = terms.width(t);
    if depth == 0 {
        return format!("t{}", t.index());
    }
    let s = |x: &TermId| show(terms, *x, depth - 1);
    match terms.node(t) {
        Node::Const(k) => format!("{k:#x}:{w}"),
        Node::Var(v) => format!("v{}:{w}", v.index()),
        Node::Sum(ts, k) => {
            let terms: Vec<String> = ts.iter().map(|(x, c)| format!("{c}*{}", s(x))).collect();
            format!("({} + {k:#x})", terms.join(" + "))
        }
        Node::Concat(ps) => format!("[{}]", ps.iter().rev().map(s).collect::<Vec<_>>().join(" . ")),
        Node::Extract(x, lo) => format!("{}[{lo}+{w}]", s(x)),
        Node::Ite(c, a, b) => format!("({} ? {} : {})", s(c), s(a), s(b)),
        Node::All(ts) => format!("and({})", ts.iter().map(s).collect::<Vec<_>>().join(", ")),
        Node::Not(x) => format!("!{}", s(x)),
        Node::Eq(a, b) => format!("({} == {})", s(a), s(b)),
        Node::Ult(a, b) => format!("({} < {})", s(a), s(b)),
        Node::Select(m, a) => format!("m{}[{}]", m.index(), s(a)),
        n => format!("{n:?}:{w}"),
    }
}
