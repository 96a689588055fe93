//! Memories: bytes at constant offsets from symbolic bases.

use super::{Bytes, MemId, MemNode, Node, TermId, Terms, mask};

impl Terms {
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

    /// A number of 64 bits as another one plus a constant, also where the sum is known to need fewer bits and has been made of
    /// those: `zext(x + 6)` is `zext(x) + 6` unless `x + 6` may overflow.
    pub(crate) fn split_offset(&mut self, offset: TermId) -> (TermId, i64) {
        let (base, k) = self.split_address(offset);
        let Node::Concat(pieces) = self.node(base).clone() else { return (base, k) };
        let mut pieces = pieces.to_vec();
        let low = self.as_const(pieces[0]).map(|c| (pieces.remove(0), c));
        let (shift, mut more) = low.map_or((0, 0), |(t, c)| (self.width(t), c));
        let is_narrow = match pieces[..] {
            [_] => true,
            [_, upper] => self.as_const(upper) == Some(0),
            _ => false,
        };
        if !is_narrow {
            return (base, k);
        }
        if let Node::Sum(terms, n) = self.node(pieces[0]).clone() {
            let width = self.width(pieces[0]);
            let inner = self.sum(width, terms.to_vec(), 0);
            let most = self.constant(width, mask(width) - n);
            let overflows = self.ult(most, inner);
            if self.as_const(overflows) != Some(0) {
                return (base, k);
            }
            pieces[0] = inner;
            more += n << shift;
        }
        if shift > 0 {
            pieces.insert(0, self.constant(shift, 0));
        }
        (self.concat(&pieces), k.wrapping_add(more as i64))
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
