//! The instructions an enumeration is over: what the window is made of, and what is near to it.
//!
//! Opcodes of the window with their natural relatives (wider and narrower accesses; shifts, masks and
//! extensions for one another; additions, subtractions and moves), registers of the window, and
//! constants that have a reason: numbers of the window, their sums and differences, shift amounts with
//! their masks and complements, and what turns an available value into a wanted one on every test.

use bpf_isa::{AluOp, AtomicOp, Endian, Imm64Kind, Insn, MemoryOperand, Reg, RegSet, Size, Src, Width};
use bpf_program::{ByteOrder, Op};

use crate::propose::readable;
use crate::window::Window;

/// The instructions, without repetition, in a fixed order.
pub struct Pool {
    /// Operations; linked ones are the window's own.
    pub ops: Vec<Op>,
}

/// Most constants of one kind that are tried.
const MOST: usize = 16;

/// Values on the tests, for guessing constants.
pub struct Values<'a> {
    /// Registers at the start, lane by lane.
    pub start: &'a [Vec<u64>],
    /// Registers that are wanted, and their values.
    pub want: &'a [(usize, Vec<u64>)],
}

/// The number that all lanes agree on.
fn agreed(mut v: impl Iterator<Item = u64>) -> Option<u64> {
    let first = v.next()?;
    v.all(|x| x == first).then_some(first)
}

fn imm(k: u64) -> Option<i32> {
    i32::try_from(k as i64).ok()
}

struct Maker<'a, 'w> {
    w: &'a Window<'w>,
    ops: Vec<Op>,
    /// May be read at some time.
    sources: Vec<Reg>,
    /// May be written.
    targets: Vec<Reg>,
}

impl Pool {
    /// The subset for a window.
    pub fn of(w: &Window, values: &Values) -> Pool {
        let written = w.old.iter().fold(RegSet::EMPTY, |s, o| s.union(o.insn.defs()));
        let used = w.old.iter().fold(RegSet::EMPTY, |s, o| s.union(o.insn.uses()));
        let mentioned = used.union(written);
        // A register that passes through is of use if it holds a number or an address that the window deals with.
        let useful = |r: &Reg| {
            mentioned.contains(*r) || {
                let v = w.before.reg(*r);
                v.as_const().is_some() || used.iter().any(|u| w.before.reg(u).same_base(v))
            }
        };
        let sources: Vec<Reg> = readable(w).union(written).iter().filter(useful).collect();
        let free = |r: &Reg| *r != Reg::R10 && (written.contains(*r) || !w.live.regs.contains(*r));
        let targets: Vec<Reg> = mentioned.iter().filter(free).collect();
        let mut m = Maker { w, ops: Vec::new(), sources, targets };
        m.linked();
        m.moves(values);
        m.arithmetic(values);
        m.memory();
        let origin = w.old.iter().find_map(|o| o.origin);
        let mut ops: Vec<Op> = Vec::with_capacity(m.ops.len());
        let mut seen = rustc_hash::FxHashSet::default();
        for mut o in m.ops {
            if (o.insn.cpu() <= w.cpu || o.link.is_some()) && seen.insert((o.insn, o.link.clone())) {
                o.origin = o.origin.or(origin);
                ops.push(o);
            }
        }
        Pool { ops }
    }
}

impl Maker<'_, '_> {
    fn add(&mut self, i: Insn) {
        self.ops.push(Op::new(i));
    }

    /// What the loader patches stays as it is; also atomics and other things that have no relatives.
    fn linked(&mut self) {
        for o in self.w.old {
            let odd = matches!(
                o.insn,
                Insn::AddrSpaceCast { .. } | Insn::LoadAcquire { .. } | Insn::StoreRelease { .. } | Insn::Atomic { .. }
            );
            if o.link.is_some() || odd {
                self.ops.push(o.clone());
            }
        }
    }

    fn moves(&mut self, values: &Values) {
        let mut numbers: Vec<u64> = self.w.old.iter().filter_map(|o| constant(&o.insn)).collect();
        numbers.extend(values.want.iter().filter_map(|(_, v)| agreed(v.iter().copied())));
        numbers.sort_unstable();
        numbers.dedup();
        numbers.truncate(2 * MOST);
        for dst in self.targets.clone() {
            for src in self.sources.clone().into_iter().filter(|s| *s != dst) {
                self.add(Insn::Mov { width: Width::W64, dst, src: Src::Reg(src) });
                self.add(Insn::Mov { width: Width::W32, dst, src: Src::Reg(src) });
            }
            self.add(Insn::Mov { width: Width::W32, dst, src: Src::Reg(dst) });
            for &k in &numbers {
                if let Some(i) = imm(k) {
                    self.add(Insn::Mov { width: Width::W64, dst, src: Src::Imm(i) });
                } else if let Ok(k) = u32::try_from(k) {
                    self.add(Insn::Mov { width: Width::W32, dst, src: Src::Imm(k as i32) });
                } else {
                    self.add(Insn::LoadImm64 { dst, kind: Imm64Kind::Const, imm: k });
                }
            }
        }
    }

    fn arithmetic(&mut self, values: &Values) {
        let (ops, swaps) = self.relatives();
        let both = [Width::W64, Width::W32];
        for dst in self.targets.clone() {
            for &op in &ops {
                let wide = !matches!(op, AluOp::SDiv | AluOp::SMod);
                for width in both.into_iter().filter(|_| wide || self.w.cpu >= 4) {
                    for src in self.sources.clone() {
                        self.add(Insn::Alu { op, width, dst, src: Src::Reg(src) });
                    }
                    for k in self.constants(op, dst, values) {
                        self.add(Insn::Alu { op, width, dst, src: Src::Imm(k) });
                    }
                }
            }
            let has = |f: fn(&Insn) -> bool| self.w.old.iter().any(|o| f(&o.insn));
            if has(|i| matches!(i, Insn::Neg { .. } | Insn::Alu { op: AluOp::Sub | AluOp::Xor, .. })) {
                both.into_iter().for_each(|width| self.add(Insn::Neg { width, dst }));
            }
            for kind in &swaps {
                for bits in [16, 32, 64] {
                    self.add(Insn::Endian { kind: *kind, bits, dst });
                }
            }
            let shifts = ops.iter().any(|o| matches!(o, AluOp::Arsh))
                || self.w.old.iter().any(|o| matches!(o.insn, Insn::MovSx { .. }));
            if shifts && self.w.cpu >= 4 {
                for src in self.sources.clone() {
                    for (width, from) in [
                        (Width::W64, Size::B),
                        (Width::W64, Size::H),
                        (Width::W64, Size::W),
                        (Width::W32, Size::B),
                        (Width::W32, Size::H),
                    ] {
                        self.add(Insn::MovSx { width, from, dst, src });
                    }
                }
            }
        }
    }

    /// Operations of the window with those that may stand for them.
    fn relatives(&self) -> (Vec<AluOp>, Vec<Endian>) {
        let mut ops = Vec::new();
        let mut swaps = Vec::new();
        for o in self.w.old {
            match o.insn {
                Insn::Alu { op, .. } => {
                    ops.push(op);
                    ops.extend_from_slice(match op {
                        AluOp::Add | AluOp::Sub => &[AluOp::Add, AluOp::Sub],
                        AluOp::Mul => &[AluOp::Lsh, AluOp::Add],
                        AluOp::Div => &[AluOp::Rsh],
                        AluOp::Mod => &[AluOp::And],
                        AluOp::Or | AluOp::Xor => &[AluOp::Or, AluOp::Xor, AluOp::And, AluOp::Add],
                        AluOp::And => &[AluOp::And, AluOp::Rsh, AluOp::Lsh],
                        AluOp::Lsh | AluOp::Rsh => &[AluOp::Lsh, AluOp::Rsh, AluOp::And],
                        AluOp::Arsh => &[AluOp::Lsh, AluOp::Rsh, AluOp::Arsh, AluOp::And],
                        _ => &[],
                    });
                    if matches!(op, AluOp::Or | AluOp::Lsh) {
                        swaps.push(Endian::Be);
                    }
                }
                Insn::Endian { kind, .. } => {
                    swaps.push(kind);
                    ops.extend([AluOp::Rsh, AluOp::Lsh, AluOp::And]);
                }
                Insn::Neg { .. } => ops.push(AluOp::Sub),
                _ => {}
            }
        }
        ops.sort_unstable();
        ops.dedup();
        swaps.sort_unstable();
        swaps.dedup();
        (ops, swaps)
    }

    /// Constants that `dst op= k` may have a use for.
    fn constants(&self, op: AluOp, dst: Reg, values: &Values) -> Vec<i32> {
        let immediates: Vec<i64> = self
            .w
            .old
            .iter()
            .filter_map(|o| match o.insn {
                Insn::Alu { src: Src::Imm(k), .. } | Insn::Mov { src: Src::Imm(k), .. } => Some(i64::from(k)),
                _ => None,
            })
            .collect();
        let amounts: Vec<i64> = self
            .w
            .old
            .iter()
            .filter_map(|o| match o.insn {
                Insn::Alu { op: AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, src: Src::Imm(k), .. } => Some(i64::from(k)),
                _ => None,
            })
            .collect();
        let mut v: Vec<i64> = Vec::new();
        match op {
            AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => {
                v.extend(&amounts);
                for a in &amounts {
                    v.extend(amounts.iter().flat_map(|b| [a + b, a - b]));
                    v.extend([64 - a, 32 - a]);
                }
                for k in immediates.iter().filter(|k| k.count_ones() == 1) {
                    v.push(i64::from(k.trailing_zeros()));
                }
                // A mask of high or low bits is a pair of shifts.
                v.extend(immediates.iter().filter(|k| **k > 0).map(|k| i64::from(k.trailing_zeros())));
                v.retain(|k| (1..64).contains(k));
            }
            AluOp::And => {
                v.extend(&immediates);
                for a in &amounts {
                    let low = 1i64.checked_shl(*a as u32).unwrap_or(0).wrapping_sub(1);
                    v.extend([low, !low]);
                    for width in [32, 64] {
                        let n = width - a;
                        if (1..32).contains(&n) {
                            v.push((1i64 << n) - 1);
                        }
                    }
                }
                v.extend(immediates.iter().filter(|k| k.count_ones() == 1).map(|k| k - 1));
                v.extend([0xff, 0xffff]);
                immediates.iter().for_each(|a| v.extend(immediates.iter().map(|b| a & b)));
            }
            AluOp::Or | AluOp::Xor => {
                v.extend(&immediates);
                immediates.iter().for_each(|a| v.extend(immediates.iter().flat_map(|b| [a | b, a ^ b])));
            }
            AluOp::Add | AluOp::Sub => {
                // What is between an available value and a wanted one.
                for (_, want) in values.want.iter().filter(|(r, _)| *r == dst.index()) {
                    for have in values.start.iter().take(11) {
                        let d = agreed(want.iter().zip(have).map(|(w, h)| w.wrapping_sub(*h)));
                        v.extend(d.map(|d| if op == AluOp::Add { d as i64 } else { (d as i64).wrapping_neg() }));
                    }
                }
                v.extend(&immediates);
                v.push(immediates.iter().sum());
                v.extend(immediates.iter().flat_map(|a| immediates.iter().flat_map(move |b| [a + b, a - b])));
            }
            AluOp::Mul => {
                v.extend(&immediates);
                immediates.iter().for_each(|a| v.extend(immediates.iter().map(|b| a.wrapping_mul(*b))));
            }
            _ => v.extend(&immediates),
        }
        let mut seen = Vec::new();
        for k in v {
            if let Ok(k) = i32::try_from(k)
                && k != 0
                && !seen.contains(&k)
            {
                seen.push(k);
            }
        }
        seen.truncate(MOST);
        seen
    }

    /// Accesses of every width at the places the window goes to.
    fn memory(&mut self) {
        // Ranges of offsets that belong together, by base register.
        let mut places: Vec<(Reg, i64, i64, bool, bool)> = Vec::new();
        for o in self.w.old.iter().filter(|o| o.link.is_none()) {
            let Some(MemoryOperand { base, off, size, reads: load, writes: store }) = o.insn.memory_operand() else {
                continue;
            };
            let (lo, hi) = (i64::from(off), i64::from(off) + i64::from(size.bytes()));
            places.push((base, lo, hi, load, store));
        }
        let window: Vec<Op> = self.w.old.to_vec();
        for i in 0..places.len() {
            let (base, lo, hi, load, store) = places[i];
            for size in Size::ALL {
                let n = i64::from(size.bytes());
                for off in (lo - 7).max(hi - 8)..hi {
                    // Every byte of it is one that the window touches through this register.
                    let touched = |b: i64, store: bool| {
                        places.iter().any(|(r, l, h, ld, st)| {
                            *r == base && (*l..*h).contains(&b) && if store { *st } else { *ld || *st }
                        })
                    };
                    let inside = |store: bool| (off..off + n).all(|b| touched(b, store));
                    let Ok(off) = i16::try_from(off) else { continue };
                    if (load || store) && inside(false) {
                        for dst in self.targets.clone() {
                            self.add(Insn::Load { size, sext: false, dst, base, off });
                            if self.w.cpu >= 4 && size != Size::DW {
                                self.add(Insn::Load { size, sext: true, dst, base, off });
                            }
                        }
                    }
                    if store && inside(true) {
                        for src in self.sources.clone() {
                            self.add(Insn::Store { size, base, off, src: Src::Reg(src) });
                        }
                        for k in stored(&window, self.w.env.byte_order, base, off, size) {
                            self.add(Insn::Store { size, base, off, src: Src::Imm(k) });
                        }
                        let adds = window.iter().any(|o| matches!(o.insn, Insn::Alu { op: AluOp::Add, .. }));
                        if adds && matches!(size, Size::W | Size::DW) {
                            for src in self.sources.clone() {
                                let op = AtomicOp::Add { fetch: false };
                                self.add(Insn::Atomic { op, size, base, off, src });
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The number an instruction holds, as a register would.
fn constant(i: &Insn) -> Option<u64> {
    match *i {
        Insn::Alu { src: Src::Imm(k), .. } => Some(i64::from(k) as u64),
        Insn::Mov { src: Src::Imm(k), width: Width::W32, .. } => Some(u64::from(k as u32)),
        Insn::Mov { src: Src::Imm(k), .. } | Insn::Store { src: Src::Imm(k), .. } => Some(i64::from(k) as u64),
        Insn::LoadImm64 { kind: Imm64Kind::Const, imm, .. } => Some(imm),
        _ => None,
    }
}

/// Immediates that a store may have: what the window's stores of numbers leave there.
fn stored(window: &[Op], order: ByteOrder, base: Reg, off: i16, size: Size) -> Vec<i32> {
    let mut bytes = [None::<u8>; 8];
    let mut known: Vec<(Reg, u64)> = Vec::new();
    for o in window {
        if let Insn::Store { size: s, base: b, off: at, src } = o.insn
            && b == base
        {
            let v = match src {
                Src::Imm(k) => Some(i64::from(k) as u64),
                Src::Reg(r) => known.iter().find(|(q, _)| *q == r).map(|(_, k)| *k),
            };
            for i in 0..s.bytes() {
                let place = i64::from(at) + i64::from(i) - i64::from(off);
                if let Ok(p) = usize::try_from(place)
                    && p < 8
                {
                    bytes[p] = v.map(|v| (v >> order.bit(i, 1, s.bytes())) as u8);
                }
            }
        }
        if let Some(d) = o.insn.def() {
            known.retain(|(q, _)| *q != d);
            if let (Insn::Mov { .. } | Insn::LoadImm64 { .. }, Some(k)) = (o.insn, constant(&o.insn)) {
                known.push((d, k));
            }
        }
    }
    let n = size.bytes() as usize;
    let Some(known) = bytes[..n].iter().copied().collect::<Option<Vec<u8>>>() else { return Vec::new() };
    let whole = order.number(&known);
    let spare = 64 - 8 * n as u32;
    i32::try_from(((whole << spare) as i64) >> spare).into_iter().collect()
}
