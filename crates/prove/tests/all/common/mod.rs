//! Random expression graphs, built twice: as terms and as plain numbers, one per *lane* (assignment).

pub mod scenes;

use std::rc::Rc;

use bpf_prove::blast::Model;
use bpf_prove::term::{MemId, TermId, Terms, mask};

pub use bpf_testgen::random::{Rng, mix};

/// Scale of the campaign: `BPF_OPT_FUZZ_ROUNDS` multiplies the number of rounds.
pub fn rounds(usual: u64) -> u64 {
    usual * std::env::var("BPF_OPT_FUZZ_ROUNDS").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}

pub fn signed(v: u64, w: u32) -> i64 {
    ((v << (64 - w)) as i64) >> (64 - w)
}

/// A term with what it must be in every lane.
pub struct Both {
    pub term: TermId,
    pub width: u32,
    pub lanes: Vec<u64>,
    /// How it was made, for the report of a failure.
    made: (&'static str, [usize; 3], u64),
}

#[derive(Clone)]
struct MemLane {
    base: usize,
    /// Address and byte, the latest last.
    over: Rc<Vec<(u64, u8)>>,
}

pub struct BothMem {
    pub mem: MemId,
    lanes: Vec<MemLane>,
}

/// Index of a node.
pub type N = usize;

/// A graph under construction.
pub struct Dag {
    pub terms: Terms,
    pub nodes: Vec<Both>,
    pub mems: Vec<BothMem>,
    bases: Vec<MemId>,
    /// What the variables and initial bytes are in each lane.
    pub models: Vec<Model>,
    pub seed: u64,
    pub rng: Rng,
    /// Values checked so far.
    pub checked: u64,
    work_limit: u64,
}

impl Dag {
    pub fn new(seed: u64, lanes: usize) -> Dag {
        Dag {
            terms: Terms::new(),
            nodes: vec![],
            mems: vec![],
            bases: vec![],
            models: vec![Model::default(); lanes],
            seed,
            rng: Rng::new(seed),
            checked: 0,
            work_limit: 60_000,
        }
    }

    pub fn width(&self, n: N) -> u32 {
        self.nodes[n].width
    }

    pub fn history(&self) -> String {
        let mut s = format!("seed {:#x}\n", self.seed);
        for (i, n) in self.nodes.iter().enumerate() {
            let (op, args, extra) = n.made;
            s += &format!("n{i}:{} = {op} {args:?} {extra:#x} -> {:?}\n", n.width, self.terms.node(n.term));
        }
        s
    }

    fn push(&mut self, made: (&'static str, [usize; 3], u64), term: TermId, lanes: Vec<u64>, width: u32) -> N {
        let lanes: Vec<u64> = lanes.into_iter().map(|v| v & mask(width)).collect();
        self.nodes.push(Both { term, width, lanes, made });
        let i = self.nodes.len() - 1;
        assert_eq!(self.terms.width(term), width, "width of n{i}\n{}", self.history());
        let (zeros, ones) = self.terms.known(term);
        let constant = self.terms.as_const(term);
        for (k, v) in self.nodes[i].lanes.iter().enumerate() {
            let fits = v & zeros == 0 && !v & ones == 0 && constant.is_none_or(|c| c == *v);
            assert!(
                fits,
                "n{i} is {v:#x} in lane {k} {:?}, but zeros {zeros:#x} ones {ones:#x} constant {constant:?}\n{}",
                self.models[k].vars,
                self.history()
            );
        }
        i
    }

    /// Every node must evaluate to its number in every lane.
    pub fn check(&mut self) {
        for (k, model) in self.models.iter().enumerate() {
            let mut memo = Default::default();
            for (i, n) in self.nodes.iter().enumerate() {
                let got = model.eval_memo(&self.terms, n.term, &mut memo);
                let want = n.lanes[k];
                assert_eq!(got, want, "n{i} in lane {k} {:x?}\n{}", model.vars, self.history());
                self.checked += 1;
            }
        }
    }

    // ---- constructors -------------------------------------------------------------------------

    pub fn var(&mut self, width: u32, lanes: Vec<u64>) -> N {
        let (v, t) = self.terms.fresh(width);
        for (m, x) in self.models.iter_mut().zip(&lanes) {
            m.vars.insert(v, *x & mask(width));
        }
        self.push(("var", [0; 3], 0), t, lanes, width)
    }
    pub fn random_var(&mut self, width: u32) -> N {
        let lanes = (0..self.models.len()).map(|_| self.rng.number(width)).collect();
        self.var(width, lanes)
    }
    pub fn constant(&mut self, width: u32, v: u64) -> N {
        let t = self.terms.constant(width, v);
        self.push(("const", [0; 3], v), t, vec![v; self.models.len()], width)
    }
    fn unary(&mut self, name: &'static str, a: N, x: u64, t: TermId, w: u32, f: impl Fn(u64) -> u64) -> N {
        let lanes = self.nodes[a].lanes.iter().map(|v| f(*v)).collect();
        self.push((name, [a, 0, 0], x), t, lanes, w)
    }
    fn binary(&mut self, name: &'static str, a: N, b: N, t: TermId, w: u32, f: impl Fn(u64, u64) -> u64) -> N {
        let lanes = self.nodes[a].lanes.iter().zip(&self.nodes[b].lanes).map(|(x, y)| f(*x, *y)).collect();
        self.push((name, [a, b, 0], 0), t, lanes, w)
    }
    pub fn extract(&mut self, a: N, lo: u32, bits: u32) -> N {
        let t = self.terms.extract(self.nodes[a].term, lo, bits);
        self.unary("extract", a, lo.into(), t, bits, |v| v >> lo)
    }
    pub fn concat(&mut self, pieces: &[N]) -> N {
        let ts: Vec<TermId> = pieces.iter().map(|p| self.nodes[*p].term).collect();
        let t = self.terms.concat(&ts);
        let mut lanes = vec![0u64; self.models.len()];
        let mut at = 0;
        for p in pieces {
            for (l, v) in lanes.iter_mut().zip(&self.nodes[*p].lanes) {
                *l |= v << at;
            }
            at += self.nodes[*p].width;
        }
        let of = |i: usize| pieces.get(i).copied().unwrap_or(usize::MAX);
        self.push(("concat", [of(0), of(1), of(2)], pieces.len() as u64), t, lanes, at)
    }
    pub fn zext(&mut self, a: N, w: u32) -> N {
        let t = self.terms.zext(self.nodes[a].term, w);
        self.unary("zext", a, w.into(), t, w, |v| v)
    }
    pub fn sext(&mut self, a: N, w: u32) -> N {
        let from = self.width(a);
        let t = self.terms.sext(self.nodes[a].term, w);
        self.unary("sext", a, w.into(), t, w, |v| signed(v, from) as u64)
    }
    pub fn add_const(&mut self, a: N, k: i64) -> N {
        let (t, w) = (self.terms.add_const(self.nodes[a].term, k), self.width(a));
        self.unary("add_const", a, k as u64, t, w, |v| v.wrapping_add(k as u64))
    }
    pub fn not(&mut self, a: N) -> N {
        let t = self.terms.not(self.nodes[a].term);
        self.unary("not", a, 0, t, 1, |v| 1 ^ v)
    }
    /// Any two-operand operation; the amount of a shift is reduced below the width first.
    pub fn op(&mut self, op: Op, a: N, b: N) -> N {
        let w = self.width(a);
        let b = if matches!(op, Op::Shl | Op::Lshr | Op::Ashr) { self.amount(b) } else { b };
        let (x, y) = (self.nodes[a].term, self.nodes[b].term);
        let t = &mut self.terms;
        let (t, wr) = match op {
            Op::Add => (t.add(x, y), w),
            Op::Sub => (t.sub(x, y), w),
            Op::Mul => (t.mul(x, y), w),
            Op::Udiv => (t.udiv(x, y), w),
            Op::Urem => (t.urem(x, y), w),
            Op::Sdiv => (t.sdiv(x, y), w),
            Op::Srem => (t.srem(x, y), w),
            Op::And => (t.and(x, y), w),
            Op::Or => (t.or(x, y), w),
            Op::Xor => (t.xor(x, y), w),
            Op::Shl => (t.shl(x, y), w),
            Op::Lshr => (t.lshr(x, y), w),
            Op::Ashr => (t.ashr(x, y), w),
            Op::Eq => (t.eq(x, y), 1),
            Op::Ult => (t.ult(x, y), 1),
            Op::Slt => (t.slt(x, y), 1),
        };
        self.binary(op.name(), a, b, t, wr, |x, y| op.eval(w, x, y))
    }
    /// A value below its own width.
    fn amount(&mut self, b: N) -> N {
        let w = self.width(b);
        if self.nodes[b].lanes.iter().all(|v| *v < w.into()) && self.terms.as_const(self.nodes[b].term).is_some() {
            return b;
        }
        let m = self.constant(w, (w.next_power_of_two() / if w.is_power_of_two() { 1 } else { 2 } - 1).into());
        self.op(Op::And, b, m)
    }
    pub fn ite(&mut self, c: N, a: N, b: N) -> N {
        let t = self.terms.ite(self.nodes[c].term, self.nodes[a].term, self.nodes[b].term);
        let w = self.width(a);
        let lanes = (0..self.models.len())
            .map(|k| if self.nodes[c].lanes[k] != 0 { self.nodes[a].lanes[k] } else { self.nodes[b].lanes[k] })
            .collect();
        self.push(("ite", [c, a, b], 0), t, lanes, w)
    }
    pub fn all(&mut self, of: &[N], any: bool) -> N {
        let ts: Vec<TermId> = of.iter().map(|n| self.nodes[*n].term).collect();
        let t = if any { self.terms.any(&ts) } else { self.terms.all(&ts) };
        let lanes = (0..self.models.len())
            .map(|k| {
                let mut v = of.iter().map(|n| self.nodes[*n].lanes[k] != 0);
                u64::from(if any { v.any(|b| b) } else { v.all(|b| b) })
            })
            .collect();
        let at = |i: usize| of.get(i).copied().unwrap_or(usize::MAX);
        self.push((if any { "any" } else { "all" }, [at(0), at(1), at(2)], of.len() as u64), t, lanes, 1)
    }

    // ---- memory -------------------------------------------------------------------------------

    pub fn mem_base(&mut self, region: u32, version: u64) -> usize {
        let v = self.terms.constant(32, version);
        let mem = self.terms.mem_base(region, v);
        let base = self.bases.len();
        self.bases.push(mem);
        let lane = MemLane { base, over: Rc::default() };
        self.mems.push(BothMem { mem, lanes: vec![lane; self.models.len()] });
        self.mems.len() - 1
    }
    fn byte(&mut self, m: usize, k: usize, addr: u64) -> u8 {
        let lane = &self.mems[m].lanes[k];
        if let Some((_, b)) = lane.over.iter().rev().find(|(a, _)| *a == addr) {
            return *b;
        }
        let init = mix(self.seed ^ addr ^ ((k as u64) << 32) ^ ((lane.base as u64) << 50)) as u8;
        self.models[k].bytes.insert((self.bases[lane.base], addr), init);
        init
    }
    /// Symbolic part and offset of `addr + off`, split as a client might.
    fn address(&mut self, addr: N, off: i64) -> (TermId, i64) {
        let t = self.nodes[addr].term;
        if self.rng.chance(4) {
            return (t, off);
        }
        let t = self.terms.add_const(t, off);
        self.terms.split_address(t)
    }
    pub fn select(&mut self, m: usize, addr: N, off: i64) -> N {
        let (b, o) = self.address(addr, off);
        let t = self.terms.select(self.mems[m].mem, b, o);
        let lanes = (0..self.models.len())
            .map(|k| self.byte(m, k, self.nodes[addr].lanes[k].wrapping_add(off as u64)).into())
            .collect();
        self.push(("select", [m, addr, 0], off as u64), t, lanes, 8)
    }
    pub fn store(&mut self, m: usize, addr: N, off: i64, bytes: &[N]) -> usize {
        let (b, o) = self.address(addr, off);
        let list: Vec<(i64, TermId)> =
            bytes.iter().enumerate().map(|(i, n)| (o.wrapping_add(i as i64), self.nodes[*n].term)).collect();
        let mem = self.terms.store_bytes(self.mems[m].mem, b, &list);
        let lanes = (0..self.models.len())
            .map(|k| {
                let mut lane = self.mems[m].lanes[k].clone();
                let at = self.nodes[addr].lanes[k].wrapping_add(off as u64);
                let over = Rc::make_mut(&mut lane.over);
                over.extend(
                    bytes.iter().enumerate().map(|(i, n)| (at.wrapping_add(i as u64), self.nodes[*n].lanes[k] as u8)),
                );
                lane
            })
            .collect();
        self.mems.push(BothMem { mem, lanes });
        self.mems.len() - 1
    }
    pub fn mem_ite(&mut self, c: N, a: usize, b: usize) -> usize {
        let mem = self.terms.mem_ite(self.nodes[c].term, self.mems[a].mem, self.mems[b].mem);
        let lanes = (0..self.models.len())
            .map(|k| self.mems[if self.nodes[c].lanes[k] != 0 { a } else { b }].lanes[k].clone())
            .collect();
        self.mems.push(BothMem { mem, lanes });
        self.mems.len() - 1
    }
    /// `Model::eval_byte` at an address near everything interesting.
    pub fn check_bytes(&mut self, m: usize) {
        for k in 0..self.models.len() {
            let n = self.any_of(64);
            let addr = self.nodes[n].lanes[k].wrapping_add(self.rng.below(8)).wrapping_sub(4);
            let want = self.byte(m, k, addr);
            let got = self.models[k].eval_byte(&self.terms, self.mems[m].mem, addr, &mut Default::default());
            assert_eq!(got, want, "byte {addr:#x} of memory {m} in lane {k}\n{}", self.history());
            self.checked += 1;
        }
    }

    // ---- random choices -----------------------------------------------------------------------

    pub fn any(&mut self) -> N {
        // Recent ones more often: depth.
        let n = self.nodes.len() as u64;
        let back = if self.rng.chance(2) { self.rng.below(n.min(6)) } else { self.rng.below(n) };
        (n - 1 - back) as usize
    }
    /// Some node, brought to width `w`.
    pub fn any_of(&mut self, w: u32) -> N {
        let candidates: Vec<N> = (0..self.nodes.len()).filter(|i| self.nodes[*i].width == w).collect();
        if !candidates.is_empty() && !self.rng.chance(4) {
            return self.rng.one_of(&candidates);
        }
        let n = self.any();
        self.coerce(n, w)
    }
    pub fn coerce(&mut self, n: N, w: u32) -> N {
        let have = self.width(n);
        if have == w {
            n
        } else if have > w {
            let lo = self.rng.below(u64::from(have - w) + 1) as u32;
            self.extract(n, lo, w)
        } else {
            match self.rng.below(3) {
                0 => self.sext(n, w),
                1 => {
                    let k = self.rng.number(w - have);
                    let k = self.constant(w - have, k);
                    if self.rng.chance(2) { self.concat(&[n, k]) } else { self.concat(&[k, n]) }
                }
                _ => self.zext(n, w),
            }
        }
    }
    pub fn some_constant(&mut self, w: u32) -> N {
        let v = self.rng.number(w);
        self.constant(w, v)
    }
    pub fn operand(&mut self, w: u32) -> N {
        if self.rng.chance(3) { self.some_constant(w) } else { self.any_of(w) }
    }
    pub fn truth(&mut self) -> N {
        if self.rng.chance(2) {
            return self.any_of(1);
        }
        let a = self.any();
        let b = self.operand(self.width(a));
        let op = self.rng.one_of(&[Op::Eq, Op::Ult, Op::Slt]);
        if self.rng.chance(2) { self.op(op, a, b) } else { self.op(op, b, a) }
    }
    pub fn too_large(&self) -> bool {
        self.terms.work() > self.work_limit
    }

    /// One more random piece of graph.
    pub fn grow(&mut self, heavy: bool) {
        let a = self.any();
        let w = self.width(a);
        match self.rng.below(22) {
            0..=4 => {
                let b = self.operand(w);
                let light = [Op::Add, Op::Sub, Op::And, Op::Or, Op::Xor, Op::Shl, Op::Lshr, Op::Ashr];
                let all = [Op::Mul, Op::Udiv, Op::Urem, Op::Sdiv, Op::Srem];
                let op = if heavy && self.rng.chance(3) { self.rng.one_of(&all) } else { self.rng.one_of(&light) };
                if self.rng.chance(4) {
                    self.op(op, b, a)
                } else {
                    self.op(op, a, b)
                };
            }
            5 => {
                // Masks: and, or, xor with runs of ones.
                let k = self.some_constant(w);
                let op = self.rng.one_of(&[Op::And, Op::Or, Op::Xor]);
                let x = self.op(op, a, k);
                let k = self.some_constant(w);
                let op = self.rng.one_of(&[Op::And, Op::Or, Op::Xor]);
                self.op(op, x, k);
            }
            6 => {
                // Pairs of shifts by constants.
                let mut x = a;
                for _ in 0..2 {
                    let s = self.rng.below(w.into());
                    let s = self.constant(w, s);
                    let op = self.rng.one_of(&[Op::Shl, Op::Lshr, Op::Ashr]);
                    x = self.op(op, x, s);
                }
            }
            7 => {
                // Pieces taken out and put together, in order, out of order, or swapped.
                let n = 1 + self.rng.below(w.min(8).into()) as u32;
                let size = w / n;
                let mut pieces: Vec<N> = (0..n).map(|i| self.extract(a, i * size, size)).collect();
                match self.rng.below(4) {
                    0 => pieces.reverse(),
                    1 => {
                        let (i, j) = (self.rng.below(n.into()) as usize, self.rng.below(n.into()) as usize);
                        pieces.swap(i, j);
                    }
                    2 => {
                        let i = self.rng.below(n.into()) as usize;
                        pieces[i] = self.any_of(size);
                    }
                    _ => {}
                }
                self.concat(&pieces);
            }
            8 => {
                // The same with shifts and an or or an add.
                let lo = self.rng.below(w.into()) as u32;
                let k = self.constant(w, lo.into());
                let high = self.op(Op::Lshr, a, k);
                let high = self.op(Op::Shl, high, k);
                let m = self.constant(w, mask(lo.max(1)));
                let low = self.op(Op::And, a, m);
                let op = self.rng.one_of(&[Op::Or, Op::Add, Op::Xor]);
                self.op(op, low, high);
            }
            9 | 10 => {
                // Sums whose terms cancel.
                let b = self.any_of(w);
                let (c, d) = (self.some_constant(w), self.some_constant(w));
                let (x, y) = (self.op(Op::Mul, a, c), self.op(Op::Mul, b, d));
                let s = self.op(Op::Add, x, y);
                let s = if self.rng.chance(2) {
                    let k = self.some_constant(w);
                    self.op(Op::Add, s, k)
                } else {
                    s
                };
                let t = match self.rng.below(5) {
                    0 => self.op(Op::Sub, s, x),
                    1 => self.op(Op::Sub, y, s),
                    2 => {
                        let ones = self.constant(w, u64::MAX);
                        self.op(Op::Xor, s, ones)
                    }
                    3 => {
                        let z = self.op(Op::Sub, a, b);
                        self.op(Op::Add, s, z)
                    }
                    _ => self.op(Op::Add, s, s),
                };
                if self.rng.chance(2) {
                    let k = self.operand(w);
                    self.op(Op::Eq, t, k);
                }
            }
            11 | 12 => {
                // If-then-else whose sides share bits.
                let c = self.truth();
                let b = self.operand(w);
                let (x, y) = if w < 60 && self.rng.chance(2) {
                    let wide = w + 1 + self.rng.below(u64::from(64 - w)) as u32;
                    if self.rng.chance(3) {
                        (self.sext(a, wide), self.sext(b, wide))
                    } else {
                        let k = self.some_constant(wide - w);
                        let j = if self.rng.chance(2) { k } else { self.some_constant(wide - w) };
                        if self.rng.chance(2) {
                            (self.concat(&[a, k]), self.concat(&[b, j]))
                        } else {
                            (self.concat(&[k, a]), self.concat(&[j, b]))
                        }
                    }
                } else {
                    (a, b)
                };
                let r = self.ite(c, x, y);
                if self.rng.chance(3) {
                    let d = self.not(c);
                    let other = self.operand(self.width(r));
                    let again = self.rng.one_of(&[c, d]);
                    let second = self.ite(again, r, other);
                    self.op(Op::Eq, second, r);
                }
            }
            13 => {
                // Sign bits above, and sign extensions in a row.
                if w < 64 {
                    let wide = w + 1 + self.rng.below(u64::from(64 - w)) as u32;
                    let x = if self.rng.chance(2) {
                        let s = self.extract(a, w - 1, 1);
                        let s = self.sext(s, wide - w);
                        self.concat(&[a, s])
                    } else {
                        self.sext(a, wide)
                    };
                    let k = match self.rng.below(3) {
                        0 => {
                            let b = self.any();
                            let bits = self.width(b).min(1 + self.rng.below(wide.into()) as u32);
                            let b = self.extract(b, 0, bits);
                            self.sext(b, wide)
                        }
                        _ => self.operand(wide),
                    };
                    let op = self.rng.one_of(&[Op::Eq, Op::Eq, Op::Ult, Op::Slt, Op::Sub]);
                    self.op(op, x, k);
                } else {
                    let x = self.extract(a, 0, 32);
                    let x = self.sext(x, 64);
                    self.op(Op::Sub, x, a);
                }
            }
            14 | 15 => {
                // Comparisons at the boundaries of what is known.
                let (zeros, ones) = self.terms.known(self.nodes[a].term);
                let k = match self.rng.below(8) {
                    0 => !zeros,
                    1 => ones,
                    2 => (!zeros).wrapping_add(1),
                    3 => ones.wrapping_sub(1),
                    4 => self.nodes[a].lanes[0],
                    5 => self.nodes[a].lanes[0].wrapping_add(1),
                    6 => 1 << (w - 1),
                    _ => self.rng.number(w),
                };
                let k = self.constant(w, k);
                let op = self.rng.one_of(&[Op::Eq, Op::Ult, Op::Slt]);
                let (x, y) = if self.rng.chance(2) { (a, k) } else { (k, a) };
                let r = self.op(op, x, y);
                if self.rng.chance(3) {
                    self.not(r);
                }
            }
            16 | 17 => {
                // Truth values that meet again.
                let (x, y) = (self.truth(), self.truth());
                let either = self.rng.chance(2);
                let both = self.all(&[x, y], either);
                let n = if self.rng.chance(2) { self.not(both) } else { both };
                let z = self.rng.one_of(&[x, y, both]);
                let nz = self.not(z);
                let any = self.rng.chance(2);
                let r = self.all(&[n, nz, x], any);
                let s = self.all(&[z, n], !any);
                match self.rng.below(3) {
                    0 => self.all(&[r, s], any),
                    1 => self.ite(r, s, z),
                    _ => self.op(Op::Xor, r, s),
                };
            }
            18 => {
                // Absorption and bitwise complements.
                let b = self.any_of(w);
                let (p, q) = (self.rng.one_of(&[Op::And, Op::Or, Op::Xor]), self.rng.one_of(&[Op::And, Op::Or]));
                let x = self.op(p, a, b);
                let y = self.op(q, a, x);
                if w > 1 {
                    let at = 1 + self.rng.below(u64::from(w) - 1) as u32;
                    let (low, high) = (self.extract(x, 0, at), self.extract(y, at, w - at));
                    self.concat(&[low, high]);
                    let (low, high) = (self.extract(x, 0, at), self.extract(x, at, w - at));
                    self.concat(&[low, high]);
                }
            }
            19 => {
                // Complemented single bits side by side.
                let bits: Vec<N> = (0..w.min(3))
                    .map(|i| {
                        let b = self.extract(a, i, 1);
                        self.not(b)
                    })
                    .collect();
                self.concat(&bits);
            }
            20 if heavy => {
                let k = self.some_constant(w);
                let op = self.rng.one_of(&[Op::Udiv, Op::Urem, Op::Sdiv, Op::Srem, Op::Mul]);
                let x = self.op(op, a, k);
                let lo = self.rng.below(w.into()) as u32;
                self.extract(x, lo, w - lo);
            }
            _ => {
                let lo = self.rng.below(w.into()) as u32;
                let n = 1 + self.rng.below(u64::from(w - lo)) as u32;
                self.extract(a, lo, n);
            }
        }
    }

    /// One more store, select or join of memories. Needs nodes of 64 bits to be addresses.
    pub fn grow_memory(&mut self, pointers: &[N]) {
        let m = {
            let n = self.mems.len() as u64;
            (n - 1 - self.rng.below(n.min(5))) as usize
        };
        let p = self.rng.one_of(pointers);
        let addr = match self.rng.below(6) {
            0 => {
                let i = self.any();
                let bits = self.width(i).min(1 + self.rng.below(4) as u32);
                let i = self.extract(i, 0, bits);
                let i = self.zext(i, 64);
                self.op(Op::Add, p, i)
            }
            1 => {
                let (c, q) = (self.truth(), self.rng.one_of(pointers));
                self.ite(c, p, q)
            }
            2 => self.constant(64, 0x1000),
            _ => p,
        };
        let off = self.rng.one_of(&[-8i64, -4, -1, 0, 0, 0, 1, 2, 4, 7, 8]);
        match self.rng.below(8) {
            0..=3 => {
                let n = self.rng.one_of(&[1usize, 2, 4, 8]);
                let bytes: Vec<N> = match self.rng.below(3) {
                    0 => {
                        let x = self.any_of(n as u32 * 8);
                        (0..n as u32).map(|i| self.extract(x, i * 8, 8)).collect()
                    }
                    // What may be there already.
                    1 => (0..n as i64).map(|i| self.select(m, addr, off + i)).collect(),
                    _ => (0..n).map(|_| self.any_of(8)).collect(),
                };
                self.store(m, addr, off, &bytes);
            }
            4 => {
                let (c, o) = (self.truth(), self.rng.below(self.mems.len() as u64) as usize);
                self.mem_ite(c, m, o);
            }
            _ => {
                let n = self.rng.one_of(&[1i64, 2, 4, 8]);
                let bytes: Vec<N> = (0..n).map(|i| self.select(m, addr, off + i)).collect();
                self.concat(&bytes);
            }
        }
    }

    /// Address variables that are equal, near each other or far apart, depending on the lane.
    pub fn pointers(&mut self) -> Vec<N> {
        let lanes = self.models.len();
        let mut p: Vec<N> = (0..3)
            .map(|i| {
                let v = (0..lanes)
                    .map(|_| match self.rng.below(4) {
                        0 => 0x1000,
                        1 => 0x1000 + self.rng.below(9),
                        2 => 0x1000 * (i + 1),
                        _ => self.rng.number(64),
                    })
                    .collect();
                self.var(64, v)
            })
            .collect();
        if self.rng.chance(2) {
            let q = self.add_const(p[0], 4);
            p.push(q);
        }
        p
    }
}

/// Operations of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Add,
    Sub,
    Mul,
    Udiv,
    Urem,
    Sdiv,
    Srem,
    And,
    Or,
    Xor,
    Shl,
    Lshr,
    Ashr,
    Eq,
    Ult,
    Slt,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Op::Add => "add",
            Op::Sub => "sub",
            Op::Mul => "mul",
            Op::Udiv => "udiv",
            Op::Urem => "urem",
            Op::Sdiv => "sdiv",
            Op::Srem => "srem",
            Op::And => "and",
            Op::Or => "or",
            Op::Xor => "xor",
            Op::Shl => "shl",
            Op::Lshr => "lshr",
            Op::Ashr => "ashr",
            Op::Eq => "eq",
            Op::Ult => "ult",
            Op::Slt => "slt",
        }
    }

    /// By definition: SMT-LIB's fixed-size bit vectors.
    fn eval(self, w: u32, a: u64, b: u64) -> u64 {
        let (sa, sb) = (i128::from(signed(a, w)), i128::from(signed(b, w)));
        let (ua, ub) = (u128::from(a), u128::from(b));
        let r: u128 = match self {
            Op::Add => ua + ub,
            Op::Sub => ua.wrapping_sub(ub),
            Op::Mul => ua * ub,
            Op::Udiv => ua.checked_div(ub).unwrap_or(u128::MAX),
            Op::Urem => ua.checked_rem(ub).unwrap_or(ua),
            Op::Sdiv if sb == 0 => {
                if sa < 0 {
                    1
                } else {
                    u128::MAX
                }
            }
            Op::Sdiv => (sa / sb) as u128,
            Op::Srem if sb == 0 => ua,
            Op::Srem => (sa % sb) as u128,
            Op::And => ua & ub,
            Op::Or => ua | ub,
            Op::Xor => ua ^ ub,
            Op::Shl => ua << ub,
            Op::Lshr => ua >> ub,
            Op::Ashr => (sa >> ub) as u128,
            Op::Eq => u128::from(a == b),
            Op::Ult => u128::from(a < b),
            Op::Slt => u128::from(sa < sb),
        };
        r as u64 & mask(w)
    }
}
