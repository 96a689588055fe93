//! Proposals: the six rewrite rules of the paper (§3.1), over operands that make sense in the window.
//!
//! What the loader patches may be moved or dropped as a whole, never altered or duplicated. How likely a proposal is, and the way back:
//! `density.rs`.

mod density;

use bpf_facts::State;
use bpf_isa::{AluOp, AtomicOp, Cond, Endian, Imm64Kind, Insn, Reg, RegSet, Size, Src, Width};
use bpf_program::{BlockId, Op};
use bpf_prove::superblock::{SideExit, is_side_exit};

use crate::rng::Rng;
use crate::settings::Rules;
use crate::window::{NOP, Window};

/// What new instructions are made of.
pub struct Pool {
    /// Registers that may be written: set by the original, or dead afterwards.
    targets: Vec<Reg>,
    /// Registers that may be read.
    sources: Vec<Reg>,
    /// Registers that hold addresses.
    places: Vec<(Reg, i16)>,
    constants: Vec<i32>,
    amounts: Vec<i32>,
    wide: Vec<u64>,
    /// Operations the loader patches, in the order of the original.
    linked: Vec<Op>,
    alu: Vec<AluOp>,
    cpu: u8,
    /// Whether the window is a superblock: then operations may change places, and side exits their conditions.
    superblock: bool,
    origin: Option<usize>,
    undo: Vec<(usize, Op)>,
}

/// Registers a window reads before it writes them, and those that only pass through.
pub(crate) fn readable(w: &Window) -> RegSet {
    let mut set = RegSet::EMPTY;
    let mut written = RegSet::EMPTY;
    if let Some(superblock) = w.superblock {
        superblock.backwards(w.old, |op, wanted| {
            *wanted = wanted.minus(op.insn.defs()).union(op.insn.uses());
            set = *wanted;
        });
        return set.with(Reg::R10);
    }
    for op in w.old {
        set = set.union(op.insn.uses().minus(written));
        written = written.union(op.insn.defs());
    }
    set.union(w.live.regs.minus(written)).with(Reg::R10)
}

impl Pool {
    /// The pool of a window.
    pub fn new(w: &Window) -> Pool {
        let written = w.old.iter().fold(RegSet::EMPTY, |s, o| s.union(o.insn.defs()));
        let used = w.old.iter().fold(RegSet::EMPTY, |s, o| s.union(o.insn.uses()));
        let through = w.live.regs.minus(written).with(Reg::R10);
        let dead = RegSet::ALL.minus(through).minus(written).minus(used);
        let mut targets: Vec<Reg> = written.union(used.minus(through)).minus(through).iter().collect();
        // One register more than the original has is enough room.
        targets.extend(dead.iter().take(1));
        let facts = w.before;
        let known = |r: &Reg| facts.reg(*r).as_const().is_some();
        let sources: RegSet = readable(w).intersect(used).union(written);
        let mut sources: Vec<Reg> = sources.iter().collect();
        sources.extend(through.iter().filter(|r| *r != Reg::R10 && !used.contains(*r) && known(r)));
        let mut places: Vec<(Reg, i16)> = Vec::new();
        let offsets: Vec<(Reg, i16, Size)> = w
            .old
            .iter()
            .filter(|o| !o.is_core())
            .filter_map(|o| o.insn.memory_operand())
            .map(|m| (m.base, m.off, m.size))
            .collect();
        for &(base, off, size) in &offsets {
            places.push((base, off));
            for d in [-4i16, -2, -1, 1, 2, 4].into_iter().filter(|d| d.unsigned_abs() < size.bytes() as u16 + 1) {
                let off = off.wrapping_add(d);
                if offsets.iter().any(|(b, o, s)| *b == base && (*o == off || o.wrapping_add(s.bytes() as i16) == off))
                {
                    places.push((base, off));
                }
            }
        }
        places.sort_unstable();
        places.dedup();
        let (constants, amounts, wide) = constants(w);
        let mut alu = vec![AluOp::Add, AluOp::Or, AluOp::And, AluOp::Lsh, AluOp::Rsh, AluOp::Xor, AluOp::Sub];
        alu.push(AluOp::Arsh);
        for o in w.old {
            if let Insn::Alu { op, .. } = o.insn
                && !alu.contains(&op)
            {
                alu.push(op);
            }
        }
        let linked: Vec<Op> = w.old.iter().filter(|o| o.link.is_some()).cloned().collect();
        let origin = w.old.first().and_then(|o| o.origin);
        let (cpu, superblock, undo) = (w.cpu, w.superblock.is_some(), Vec::new());
        Pool { targets, sources, places, constants, amounts, wide, linked, alu, cpu, superblock, origin, undo }
    }

    fn source(&self, rng: &mut Rng) -> Option<Reg> {
        rng.pick(&self.sources)
    }

    fn target(&self, rng: &mut Rng) -> Option<Reg> {
        rng.pick(&self.targets)
    }

    fn operand(&self, rng: &mut Rng) -> Option<Src> {
        if rng.one_in(2) { self.source(rng).map(Src::Reg) } else { rng.pick(&self.constants).map(Src::Imm) }
    }

    fn width(&self, rng: &mut Rng) -> Width {
        if self.cpu >= 3 && rng.one_in(2) { Width::W32 } else { Width::W64 }
    }

    fn size(rng: &mut Rng) -> Size {
        Size::ALL[rng.below(4)]
    }

    /// The second operand of an arithmetic operation; divisors are not zero, shift amounts in range.
    fn alu_operand(&self, op: AluOp, width: Width, rng: &mut Rng) -> Option<Src> {
        match op {
            AluOp::Lsh | AluOp::Rsh | AluOp::Arsh if !rng.one_in(6) => {
                let k = rng.pick(&self.amounts)?;
                ((k as u32) < width.bits()).then_some(Src::Imm(k))
            }
            AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod => self.operand(rng).filter(|s| *s != Src::Imm(0)),
            AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => self.source(rng).map(Src::Reg),
            _ => self.operand(rng),
        }
    }

    /// A new instruction.
    fn instruction(&self, rng: &mut Rng) -> Option<Insn> {
        let memory = !self.places.is_empty();
        let insn = match rng.below(20) {
            0..=6 => {
                let (op, width) = (rng.pick(&self.alu)?, self.width(rng));
                Insn::Alu { op, width, dst: self.target(rng)?, src: self.alu_operand(op, width, rng)? }
            }
            7..=9 => Insn::Mov { width: self.width(rng), dst: self.target(rng)?, src: self.operand(rng)? },
            10 => match rng.below(3) {
                0 => Insn::Neg { width: self.width(rng), dst: self.target(rng)? },
                1 => {
                    let from = [Size::B, Size::H, Size::W][rng.below(3)];
                    let width = if from == Size::W { Width::W64 } else { self.width(rng) };
                    Insn::MovSx { width, from, dst: self.target(rng)?, src: self.source(rng)? }
                }
                _ => {
                    let kind = [Endian::Be, Endian::Le, Endian::Swap][rng.below(3)];
                    Insn::Endian { kind, bits: [16, 32, 64][rng.below(3)], dst: self.target(rng)? }
                }
            },
            11 if !self.wide.is_empty() => {
                Insn::LoadImm64 { dst: self.target(rng)?, kind: Imm64Kind::Const, imm: rng.pick(&self.wide)? }
            }
            12..=15 if memory => {
                let (base, off) = rng.pick(&self.places)?;
                let size = Self::size(rng);
                let sext = self.cpu >= 4 && size != Size::DW && rng.one_in(4);
                Insn::Load { size, sext, dst: self.target(rng)?, base, off }
            }
            16..=18 if memory => {
                let (base, off) = rng.pick(&self.places)?;
                Insn::Store { size: Self::size(rng), base, off, src: self.operand(rng)? }
            }
            19 if memory => {
                let (base, off) = rng.pick(&self.places)?;
                let size = [Size::W, Size::DW][rng.below(2)];
                Insn::Atomic { op: AtomicOp::Add { fetch: false }, size, base, off, src: self.source(rng)? }
            }
            _ => {
                let (op, width) = (rng.pick(&self.alu)?, self.width(rng));
                Insn::Alu { op, width, dst: self.target(rng)?, src: self.alu_operand(op, width, rng)? }
            }
        };
        Some(insn)
    }

    /// The instruction with one operand replaced by another of its type.
    fn other_operand(&self, insn: Insn, rng: &mut Rng) -> Option<Insn> {
        let first = rng.one_in(2);
        let same_type = |src: Src, rng: &mut Rng| match src {
            Src::Reg(_) => self.source(rng).map(Src::Reg),
            Src::Imm(_) => rng.pick(&self.constants).map(Src::Imm),
        };
        Some(match insn {
            Insn::Alu { op, width, src, .. } if first => Insn::Alu { op, width, dst: self.target(rng)?, src },
            Insn::Alu { op, width, dst, src: Src::Imm(_) } if matches!(op, AluOp::Lsh | AluOp::Rsh | AluOp::Arsh) => {
                let k = rng.pick(&self.amounts).filter(|k| (*k as u32) < width.bits())?;
                Insn::Alu { op, width, dst, src: Src::Imm(k) }
            }
            Insn::Alu { op, width, dst, src } => {
                let src = same_type(src, rng)?;
                let divides = matches!(op, AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod);
                if divides && src == Src::Imm(0) {
                    return None;
                }
                Insn::Alu { op, width, dst, src }
            }
            Insn::Mov { width, src, .. } if first => Insn::Mov { width, dst: self.target(rng)?, src },
            Insn::Mov { width, dst, src } => Insn::Mov { width, dst, src: same_type(src, rng)? },
            Insn::MovSx { width, from, src, .. } if first => Insn::MovSx { width, from, dst: self.target(rng)?, src },
            Insn::MovSx { width, from, dst, .. } => Insn::MovSx { width, from, dst, src: self.source(rng)? },
            Insn::Neg { width, .. } => Insn::Neg { width, dst: self.target(rng)? },
            Insn::Endian { kind, bits, .. } => Insn::Endian { kind, bits, dst: self.target(rng)? },
            Insn::LoadImm64 { kind, imm, .. } if first => Insn::LoadImm64 { dst: self.target(rng)?, kind, imm },
            Insn::LoadImm64 { dst, kind, .. } => Insn::LoadImm64 { dst, kind, imm: rng.pick(&self.wide)? },
            Insn::Load { size, sext, base, off, .. } if first => {
                Insn::Load { size, sext, dst: self.target(rng)?, base, off }
            }
            Insn::Load { size, sext, dst, .. } => {
                let (base, off) = rng.pick(&self.places)?;
                Insn::Load { size, sext, dst, base, off }
            }
            Insn::Store { size, base, off, src } if first => Insn::Store { size, base, off, src: same_type(src, rng)? },
            Insn::Store { size, src, .. } => {
                let (base, off) = rng.pick(&self.places)?;
                Insn::Store { size, base, off, src }
            }
            Insn::Atomic { op, size, base, off, .. } if op == (AtomicOp::Add { fetch: false }) && first => {
                Insn::Atomic { op, size, base, off, src: self.source(rng)? }
            }
            _ => self.other_condition(insn, rng)?,
        })
    }

    /// A side exit that asks something else. Which way leaves stays.
    fn other_condition(&self, insn: Insn, rng: &mut Rng) -> Option<Insn> {
        let exit = SideExit::of(&insn)?;
        let other = match rng.below(5) {
            0 => SideExit { dst: self.source(rng)?, ..exit },
            1 | 2 => {
                let src = match exit.src {
                    Src::Imm(k) if rng.one_in(4) => Src::Imm(k.wrapping_add([-1, 1][rng.below(2)])),
                    Src::Imm(_) if rng.one_in(2) => Src::Imm(rng.pick(&self.constants)?),
                    Src::Reg(_) if rng.one_in(4) => Src::Imm(rng.pick(&self.constants)?),
                    _ => Src::Reg(self.source(rng)?),
                };
                SideExit { src, ..exit }
            }
            3 => SideExit { width: self.width(rng), ..exit },
            _ => SideExit { cond: Cond::ALL[rng.below(Cond::ALL.len())], ..exit },
        };
        Some(other.insn())
    }

    /// A memory instruction with another width and, if `value`, another value operand.
    fn exchanged(&self, insn: Insn, value: bool, rng: &mut Rng) -> Option<Insn> {
        let new = Self::size(rng);
        Some(match insn {
            Insn::Load { sext, dst, base, off, .. } => {
                let dst = if value { self.target(rng)? } else { dst };
                Insn::Load { size: new, sext: sext && new != Size::DW, dst, base, off }
            }
            Insn::Store { base, off, src, .. } => {
                let src = if value { self.operand(rng)? } else { src };
                Insn::Store { size: new, base, off, src }
            }
            Insn::Atomic { op: op @ AtomicOp::Add { fetch: false }, base, off, src, .. } => {
                let size = if new == Size::DW { Size::DW } else { Size::W };
                let src = if value { self.source(rng)? } else { src };
                Insn::Atomic { op, size, base, off, src }
            }
            _ => return None,
        })
    }

    fn set(&mut self, ops: &mut [Op], at: usize, insn: Insn) -> bool {
        if ops[at].insn == insn || ops[at].link.is_some() || (insn != NOP && insn.cpu() > self.cpu) {
            return false;
        }
        if self.superblock && is_side_exit(&ops[at].insn) && !is_side_exit(&insn) {
            return false;
        }
        self.undo.push((at, ops[at].clone()));
        ops[at].insn = insn;
        true
    }

    /// Another instruction at `at`. What the loader patches changes its place instead, or comes back.
    fn replace(&mut self, ops: &mut [Op], at: usize, rng: &mut Rng) -> bool {
        if self.superblock && is_side_exit(&ops[at].insn) {
            return self.other_condition(ops[at].insn, rng).is_some_and(|i| self.set(ops, at, i));
        }
        // Across a side exit an operation gets nowhere by steps.
        if ops[at].link.is_some() || (self.superblock && rng.one_in(4)) {
            let to = rng.below(ops.len());
            if to == at || (self.superblock && is_side_exit(&ops[to].insn)) {
                return false;
            }
            self.undo.push((at, ops[at].clone()));
            self.undo.push((to, ops[to].clone()));
            ops.swap(at, to);
            return true;
        }
        if !self.linked.is_empty() && rng.one_in(8) {
            let i = rng.below(self.linked.len());
            let slot = self.linked[i].link.as_ref().map(|l| l.slot);
            if ops.iter().any(|o| o.link.as_ref().map(|l| l.slot) == slot) {
                return false;
            }
            self.undo.push((at, ops[at].clone()));
            ops[at] = self.linked[i].clone();
            return true;
        }
        match self.instruction(rng) {
            Some(insn) => self.set(ops, at, insn),
            None => false,
        }
    }

    /// Changes `ops` by one rule. The first changed operation; `None` if nothing changed.
    pub fn propose(&mut self, ops: &mut [Op], rules: &Rules, rng: &mut Rng) -> Option<usize> {
        self.undo.clear();
        let at = rng.below(ops.len());
        let total =
            rules.instruction + rules.operand + rules.nop + rules.exchange1 + rules.exchange2 + rules.contiguous;
        let mut x = rng.unit() * total;
        let mut chosen = |p: f64| {
            x -= p;
            x < 0.0
        };
        let changed = if chosen(rules.instruction) {
            self.replace(ops, at, rng)
        } else if chosen(rules.operand) {
            match ops[at].link {
                None => self.other_operand(ops[at].insn, rng).is_some_and(|i| self.set(ops, at, i)),
                Some(_) => false,
            }
        } else if chosen(rules.nop) {
            self.drop(ops, at)
        } else if chosen(rules.exchange1) {
            self.exchanged(ops[at].insn, true, rng).is_some_and(|i| self.set(ops, at, i))
        } else if chosen(rules.exchange2) {
            self.exchanged(ops[at].insn, false, rng).is_some_and(|i| self.set(ops, at, i))
        } else {
            let first = self.replace(ops, at, rng);
            let second = at + 1 < ops.len() && self.replace(ops, at + 1, rng);
            first | second
        };
        if changed { self.undo.iter().map(|(i, _)| *i).min() } else { None }
    }

    fn drop(&mut self, ops: &mut [Op], at: usize) -> bool {
        if ops[at].insn == NOP || (self.superblock && is_side_exit(&ops[at].insn)) {
            return false;
        }
        let nop = Op::with_origin(NOP, self.origin);
        self.undo.push((at, std::mem::replace(&mut ops[at], nop)));
        true
    }

    /// What the last proposal changed: places, and what stood there.
    pub fn changes(&self) -> &[(usize, Op)] {
        &self.undo
    }

    /// Takes the last proposal back.
    pub fn take_back(&mut self, ops: &mut [Op]) {
        while let Some((at, op)) = self.undo.pop() {
            ops[at] = op;
        }
    }
}

/// Constants worth trying: small immediates, shift amounts, 64-bit ones.
fn constants(w: &Window) -> (Vec<i32>, Vec<i32>, Vec<u64>) {
    let mut seen: Vec<i64> = Vec::new();
    let mut amounts = vec![8, 16, 24, 32, 48, 56];
    let mut wide = Vec::new();
    let mut state: State = w.before.clone();
    let mut stores: Vec<(Reg, i64, Size, u64)> = Vec::new();
    for (i, op) in w.old.iter().enumerate() {
        let constant = |s: Src| match s {
            Src::Imm(k) => Some(i64::from(k) as u64),
            Src::Reg(r) => state.reg(r).as_const(),
        };
        if op.link.is_none() {
            match op.insn {
                Insn::Alu { op: AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, src: Src::Imm(k), .. } => {
                    amounts.extend([k, 32 - k, 64 - k]);
                }
                Insn::Alu { src: Src::Imm(k), .. } | Insn::Mov { src: Src::Imm(k), .. } => seen.push(k.into()),
                Insn::Store { size, base, off, src } => {
                    if let Some(k) = constant(src) {
                        seen.extend(i32::try_from(k as i64).map(i64::from));
                        stores.push((base, off.into(), size, k));
                    }
                }
                Insn::LoadImm64 { imm, kind: Imm64Kind::Const, .. } => wide.push(imm),
                Insn::Jcc { src: Src::Imm(k), .. } => seen.push(k.into()),
                _ => {}
            }
        }
        state.step(op, (BlockId(0), i), w.kind, w.env);
        if let Some(k) = op.insn.def().and_then(|r| state.reg(r).as_const()) {
            seen.push(k as i64);
        }
    }
    for r in readable(w).iter() {
        seen.extend(w.before.reg(r).as_const().map(|k| k as i64));
    }
    // What adjacent stores write together.
    let mut joined: Vec<u64> = Vec::new();
    let mut parts = stores.clone();
    for _ in 0..3 {
        let mut more = Vec::new();
        for &(b, o, s, k) in &parts {
            for &(c, p, t, l) in &parts {
                if b == c && s == t && p == o + i64::from(s.bytes()) && s != Size::DW {
                    let low = k & (u64::MAX >> (64 - s.bits()));
                    let v = low | l << s.bits();
                    if let Some(size) = Size::from_bytes(s.bytes() * 2) {
                        more.push((b, o, size, v));
                        joined.push(if size == Size::DW { v } else { v << (64 - size.bits()) >> (64 - size.bits()) });
                    }
                }
            }
        }
        parts = more;
        parts.truncate(16);
    }
    for v in joined {
        seen.push(v as i64);
        seen.push(i64::from(v as u32 as i32));
        if i32::try_from(v as i64).is_err() {
            wide.push(v);
        }
    }
    seen.sort_unstable();
    seen.dedup();
    let mut all: Vec<i64> = vec![0, 1, -1, 0xff, 0xffff];
    for (i, &k) in seen.iter().enumerate() {
        all.extend([k, k.wrapping_neg(), !k]);
        for &l in seen.iter().skip(i + 1).take(6) {
            all.extend([k.wrapping_add(l), k.wrapping_sub(l), l.wrapping_sub(k), k | l, k & l]);
        }
        if k > 1 && (k as u64).is_power_of_two() {
            amounts.push(k.trailing_zeros() as i32);
            all.push(k - 1);
        }
    }
    let mut constants: Vec<i32> = all.into_iter().filter_map(|k| i32::try_from(k).ok()).collect();
    constants.sort_unstable();
    constants.dedup();
    amounts.retain(|k| (0..64).contains(k));
    amounts.sort_unstable();
    amounts.dedup();
    wide.sort_unstable();
    wide.dedup();
    (constants, amounts, wide)
}
