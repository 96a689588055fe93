//! Instruction selection: from SSA to instructions over virtual registers, still in SSA form.
//!
//! Each instruction of the form becomes one instruction of the machine. Constants become immediates where the
//! instruction has room for them, addresses of the frame become `r10 + offset`; what then still has to be in a register
//! is put there right before it is read ([`Choice`] says when a register that has it already is used instead).
//! Constraints are written down, not resolved: fixed registers at calls, results that replace an operand.

use bpf_facts::Region;
use bpf_isa::{AluOp, AtomicOp, Cond, Insn, Reg, RegSet, Size, Src, Width};
use bpf_program::Link;

use crate::{Block, Edge, Inst, Op, Operand, Ssa, Term, Value, roles};

/// A virtual register.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Virtual(pub(crate) u32);

impl Virtual {
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Register numbers in the instructions made here stand for operands: the result, the first and second register read.
pub(crate) const RESULT: Reg = Reg::R0;
pub(crate) const FIRST: Reg = Reg::R1;
pub(crate) const SECOND: Reg = Reg::R2;

/// A register read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Use {
    pub(crate) of: Virtual,
    pub(crate) fixed: Option<Reg>,
}

/// An instruction over virtual registers.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct MachineInst {
    pub(crate) insn: Insn,
    pub(crate) uses: Vec<Use>,
    pub(crate) def: Option<Virtual>,
    /// Register of the result, where it has no choice.
    pub(crate) def_in: Option<Reg>,
    /// Number of the operand whose register the result takes.
    pub(crate) tied: Option<usize>,
    /// Registers left without a value.
    pub(crate) clobbers: RegSet,
    pub(crate) origin: Option<usize>,
    pub(crate) link: Option<Link>,
}

/// What an edge gives a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    Virtual(Virtual),
    Const(i64),
    Frame(i32),
}

/// An edge, with what each parameter becomes.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct MachineEdge {
    pub(crate) to: Block,
    pub(crate) moves: Vec<(Virtual, Source)>,
}

/// How a block ends.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum MachineTerm {
    Goto(MachineEdge),
    Branch {
        cond: Cond,
        width: Width,
        a: Virtual,
        /// A register, or an immediate.
        b: Result<Virtual, i32>,
        /// `a`, `b` is r10 itself.
        frame: [bool; 2],
        taken: MachineEdge,
        fall: MachineEdge,
        origin: Option<usize>,
    },
    MayGoto {
        taken: MachineEdge,
        fall: MachineEdge,
        origin: Option<usize>,
    },
    Exit {
        value: Option<Virtual>,
        origin: Option<usize>,
    },
}

impl MachineTerm {
    pub(crate) fn edges(&self) -> impl Iterator<Item = &MachineEdge> {
        let (a, b) = match self {
            MachineTerm::Goto(e) => (Some(e), None),
            MachineTerm::Branch { taken, fall, .. } | MachineTerm::MayGoto { taken, fall, .. } => {
                (Some(taken), Some(fall))
            }
            MachineTerm::Exit { .. } => (None, None),
        };
        a.into_iter().chain(b)
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct MachineBlock {
    pub(crate) insts: Vec<MachineInst>,
    pub(crate) term: MachineTerm,
}

/// A function over virtual registers.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Machine {
    pub(crate) blocks: Vec<MachineBlock>,
    pub(crate) layout: Vec<Block>,
    /// Virtual registers that are set at the entry, and in which registers.
    pub(crate) entry: Vec<(Virtual, Reg)>,
    /// For each virtual register where the original had it.
    pub(crate) homes: Vec<Option<Reg>>,
}

/// What selection may choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Choice {
    /// Constants are put anew into the registers of joins, instead of being taken from where they are.
    pub constants_at_joins: bool,
    /// Addresses of the frame are put together anew for every call.
    pub frame_at_calls: bool,
}

/// Selects instructions.
pub(crate) fn select(f: &Ssa, choice: Choice) -> Machine {
    let mut s = Selector {
        f,
        choice,
        known: vec![None; f.values.len()],
        homes: f.values.iter().map(|v| v.home).collect(),
        code: vec![],
    };
    for b in &f.layout {
        for i in &f.block(*b).insts {
            if let Some(v) = i.result {
                s.known[v.index()] = match i.op {
                    Op::Const(c) => Some(Operand::Const(c)),
                    Op::Frame(n) => Some(Operand::Frame(n)),
                    _ => None,
                };
            }
        }
    }
    let empty = MachineBlock { insts: vec![], term: MachineTerm::Exit { value: None, origin: None } };
    let mut blocks = vec![empty; f.blocks.len()];
    for b in &f.layout {
        let block = f.block(*b);
        block.insts.iter().for_each(|i| s.inst(i));
        let term = s.term(&block.term);
        blocks[b.index()] = MachineBlock { insts: std::mem::take(&mut s.code), term };
    }
    let entry = f.block(f.entry()).params.iter().zip(&f.entry_regs).map(|(v, r)| (Virtual(v.0), *r)).collect();
    let mut m = Machine { blocks, layout: f.layout.clone(), entry, homes: s.homes };
    drop_unread(&mut m);
    m
}

/// Registers filled for nobody: constants that became immediates everywhere.
fn drop_unread(m: &mut Machine) {
    let mut read = vec![false; m.homes.len()];
    for b in &m.layout {
        let block = &m.blocks[b.index()];
        block.insts.iter().flat_map(|i| &i.uses).for_each(|u| read[u.of.index()] = true);
        for e in block.term.edges() {
            e.moves.iter().for_each(|(_, s)| {
                if let Source::Virtual(v) = s {
                    read[v.index()] = true;
                }
            });
        }
        match &block.term {
            MachineTerm::Branch { a, b, frame, .. } => {
                read[a.index()] |= !frame[0];
                if let Ok(b) = b {
                    read[b.index()] |= !frame[1];
                }
            }
            MachineTerm::Exit { value: Some(v), .. } => read[v.index()] = true,
            _ => {}
        }
    }
    for b in m.layout.clone() {
        m.blocks[b.index()].insts.retain(|i| {
            let filler = matches!(i.insn, Insn::Mov { src: Src::Imm(_), .. } | Insn::LoadImm64 { .. })
                && i.link.is_none()
                || is_frame_address(i);
            !(filler && i.def.is_some_and(|d| !read[d.index()]))
        });
    }
}

/// `result = r10 + n` is written as one instruction here, and made two when it is emitted.
pub(crate) fn is_frame_address(i: &MachineInst) -> bool {
    matches!(i.insn, Insn::Alu { op: AluOp::Add, width: Width::W64, dst: Reg::R10, src: Src::Imm(_) })
}

struct Selector<'a> {
    f: &'a Ssa,
    choice: Choice,
    /// Values that are constants or addresses of the frame.
    known: Vec<Option<Operand>>,
    homes: Vec<Option<Reg>>,
    code: Vec<MachineInst>,
}

/// The number as the immediate of an operation of this width.
fn immediate(c: i64, width: Width) -> Option<i32> {
    match width {
        Width::W64 => i32::try_from(c).ok(),
        Width::W32 => Some(c as i32),
    }
}

impl Selector<'_> {
    fn known(&self, o: Operand) -> Operand {
        match o {
            Operand::Value(v) => self.known[v.index()].unwrap_or(o),
            o => o,
        }
    }

    fn fresh(&mut self) -> Virtual {
        self.homes.push(None);
        Virtual(self.homes.len() as u32 - 1)
    }

    fn push(&mut self, insn: Insn, uses: Vec<Virtual>, def: Option<Virtual>, tied: Option<usize>, like: &Inst) {
        let uses = uses.into_iter().map(|of| Use { of, fixed: None }).collect();
        let (origin, link) = (like.origin, like.link.clone());
        let clobbers = RegSet::EMPTY;
        self.code.push(MachineInst { insn, uses, def, def_in: None, tied, clobbers, origin, link });
    }

    fn fill(&mut self, def: Virtual, with: Operand, origin: Option<usize>) {
        let insn = match with {
            Operand::Const(c) => constant(c, RESULT),
            Operand::Frame(0) => Insn::Mov { width: Width::W64, dst: RESULT, src: Src::Reg(Reg::R10) },
            Operand::Frame(n) => Insn::Alu { op: AluOp::Add, width: Width::W64, dst: Reg::R10, src: Src::Imm(n) },
            Operand::Value(_) => return,
        };
        let like = Inst::new(Op::Copy, vec![], None, origin);
        self.push(insn, vec![], Some(def), None, &like);
    }

    /// The operand in a register. A constant that has one is taken from there.
    fn register(&mut self, o: Operand, origin: Option<usize>) -> Virtual {
        match o {
            Operand::Value(v) => Virtual(v.0),
            o => {
                let v = self.fresh();
                self.fill(v, o, origin);
                v
            }
        }
    }

    /// The operand for a call, or for whatever wants it in one register.
    fn argument(&mut self, o: Operand, origin: Option<usize>) -> Virtual {
        match self.known(o) {
            Operand::Const(c) if i32::try_from(c).is_ok() || u32::try_from(c).is_ok() => {
                self.register(Operand::Const(c), origin)
            }
            Operand::Frame(n) if self.choice.frame_at_calls || n == 0 => self.register(Operand::Frame(n), origin),
            _ => self.register(o, origin),
        }
    }

    /// Base register and offset of an access.
    fn address(&mut self, o: Operand, off: i16, origin: Option<usize>) -> (Option<Virtual>, i16) {
        if let Operand::Frame(n) = self.known(o)
            && let Ok(off) = i16::try_from(n + i32::from(off))
        {
            return (None, off);
        }
        (Some(self.register(o, origin)), off)
    }

    fn inst(&mut self, i: &Inst) {
        let def = i.result.map(|v| Virtual(v.0));
        let origin = i.origin;
        let arg = |n: usize| i.args.get(n).copied().unwrap_or(Operand::Const(0));
        match &i.op {
            Op::Const(c) => {
                if let Some(d) = def {
                    self.fill(d, Operand::Const(*c), origin);
                }
            }
            Op::Frame(n) => {
                if let Some(d) = def {
                    self.fill(d, Operand::Frame(*n), origin);
                }
            }
            Op::Keep => {
                if let Operand::Value(v) = arg(0) {
                    let insn = Insn::Mov { width: Width::W64, dst: FIRST, src: Src::Reg(FIRST) };
                    self.push(insn, vec![Virtual(v.0)], None, None, i);
                }
            }
            Op::Copy => match (arg(0), def) {
                (Operand::Value(v), d) => {
                    let insn = Insn::Mov { width: Width::W64, dst: RESULT, src: Src::Reg(FIRST) };
                    self.push(insn, vec![Virtual(v.0)], d, None, i);
                }
                (o, Some(d)) => self.fill(d, o, origin),
                _ => {}
            },
            Op::Alu(op, width) => self.alu(*op, *width, arg(0), arg(1), i),
            Op::Low32 => {
                let x = self.register(arg(0), origin);
                let insn = Insn::Mov { width: Width::W32, dst: RESULT, src: Src::Reg(FIRST) };
                self.push(insn, vec![x], def, None, i);
            }
            Op::SignExtend(width, from) => {
                let x = self.register(arg(0), origin);
                let insn = Insn::MovSx { width: *width, from: *from, dst: RESULT, src: FIRST };
                self.push(insn, vec![x], def, None, i);
            }
            Op::Neg(width) => {
                let x = self.register(arg(0), origin);
                self.push(Insn::Neg { width: *width, dst: RESULT }, vec![x], def, Some(0), i);
            }
            Op::Endian(kind, bits) => {
                let x = self.register(arg(0), origin);
                self.push(Insn::Endian { kind: *kind, bits: *bits, dst: RESULT }, vec![x], def, Some(0), i);
            }
            Op::Load { size, sext, off } => {
                let (base, off) = self.address(arg(0), *off, origin);
                let (base, uses) = based(base);
                self.push(Insn::Load { size: *size, sext: *sext, dst: RESULT, base, off }, uses, def, None, i);
            }
            Op::Store { size, off } => {
                let (base, off) = self.address(arg(0), *off, origin);
                let (base, mut uses) = based(base);
                let src = match self.store_immediate(*size, i) {
                    Some(n) => Src::Imm(n),
                    None if arg(1) == Operand::Frame(0) => Src::Reg(Reg::R10),
                    None => {
                        let v = self.register(arg(1), origin);
                        uses.push(v);
                        Src::Reg(if base == Reg::R10 { FIRST } else { SECOND })
                    }
                };
                self.push(Insn::Store { size: *size, base, off, src }, uses, None, None, i);
            }
            Op::Atomic { op, size, off } => {
                let (base, off) = self.address(arg(0), *off, origin);
                let (base, mut uses) = based(base);
                let src = if base == Reg::R10 { FIRST } else { SECOND };
                let v = self.register(arg(1), origin);
                uses.push(v);
                let at = uses.len() - 1;
                let insn = Insn::Atomic { op: *op, size: *size, base, off, src };
                if *op == AtomicOp::CmpXchg {
                    let expected = self.argument(arg(2), origin);
                    self.push(insn, uses, def, None, i);
                    if let Some(last) = self.code.last_mut() {
                        last.uses.push(Use { of: expected, fixed: Some(Reg::R0) });
                        last.def_in = Some(Reg::R0);
                    }
                } else {
                    let tied = def.map(|_| at);
                    self.push(insn, uses, def, tied, i);
                }
            }
            Op::LdAbs(size, imm) => {
                let skb = self.argument(arg(0), origin);
                self.push(Insn::LdAbs { size: *size, imm: *imm }, vec![], def, None, i);
                self.legacy(skb);
            }
            Op::LdInd(size, imm) => {
                let skb = self.argument(arg(0), origin);
                let index = self.register(arg(1), origin);
                self.push(Insn::LdInd { size: *size, src: FIRST, imm: *imm }, vec![index], def, None, i);
                self.legacy(skb);
            }
            Op::Call(call) => {
                let args: Vec<Virtual> = i.args.iter().map(|o| self.argument(*o, origin)).collect();
                self.push(Insn::Call(*call), vec![], def, None, i);
                self.call(&args);
            }
            Op::CallIndirect => {
                let callee = self.register(arg(0), origin);
                let args: Vec<Virtual> = i.args.iter().skip(1).map(|o| self.argument(*o, origin)).collect();
                self.push(Insn::CallX { reg: FIRST }, vec![callee], def, None, i);
                self.call(&args);
            }
            Op::Address(insn) => {
                let insn = insn.map_regs(|_| RESULT);
                self.push(insn, vec![], def, None, i);
            }
            Op::Opaque(insn) => {
                let r = roles(insn);
                let mut named = vec![];
                let mut uses = vec![];
                for (n, reg) in r.uses.iter().enumerate() {
                    if *reg == Reg::R10 {
                        continue;
                    }
                    uses.push(self.register(arg(n), origin));
                    named.push(*reg);
                }
                let template = opaque(insn, &named);
                let tied = r.tied.then_some(0);
                self.push(template, uses, def, tied, i);
            }
        }
    }

    fn legacy(&mut self, skb: Virtual) {
        if let Some(last) = self.code.last_mut() {
            last.uses.push(Use { of: skb, fixed: Some(Reg::R6) });
            last.def_in = Some(Reg::R0);
            last.clobbers = RegSet::ARGS;
        }
    }

    fn call(&mut self, args: &[Virtual]) {
        let Some(last) = self.code.last_mut() else { return };
        last.uses.extend(args.iter().zip(RegSet::ARGS.iter()).map(|(v, r)| Use { of: *v, fixed: Some(r) }));
        last.def_in = Some(Reg::R0);
        last.clobbers = RegSet::ARGS;
    }

    fn store_immediate(&self, size: Size, i: &Inst) -> Option<i32> {
        let c = self.known(i.args[1]).constant()?;
        let elsewhere = i.region.as_ref().is_some_and(|r| *r != Region::Ctx) || self.known(i.args[0]) != i.args[0];
        let as_before = matches!(i.args[1], Operand::Const(_));
        if !as_before && !elsewhere {
            return None;
        }
        match size {
            Size::DW => i32::try_from(c).ok(),
            Size::W => Some(c as i32),
            Size::H => Some(i32::from(c as i16)),
            Size::B => Some(i32::from(c as i8)),
        }
    }

    fn alu(&mut self, op: AluOp, width: Width, a: Operand, b: Operand, i: &Inst) {
        let commutes = matches!(op, AluOp::Add | AluOp::Mul | AluOp::And | AluOp::Or | AluOp::Xor);
        let (mut a, mut b) = (a, b);
        if commutes && self.known(a).constant().is_some() && self.known(b).constant().is_none() {
            (a, b) = (b, a);
        }
        let def = i.result.map(|v| Virtual(v.0));
        if b == Operand::Frame(0) {
            let left = self.register(a, i.origin);
            let insn = Insn::Alu { op, width, dst: RESULT, src: Src::Reg(Reg::R10) };
            return self.push(insn, vec![left], def, Some(0), i);
        }
        let imm = self.known(b).constant().and_then(|c| immediate(c, width));
        let left = self.register(a, i.origin);
        match imm {
            Some(n) => {
                let insn = Insn::Alu { op, width, dst: RESULT, src: Src::Imm(n) };
                self.push(insn, vec![left], def, Some(0), i);
            }
            None => {
                let right = self.register(b, i.origin);
                let insn = Insn::Alu { op, width, dst: RESULT, src: Src::Reg(SECOND) };
                self.push(insn, vec![left, right], def, Some(0), i);
            }
        }
    }

    fn edge(&mut self, e: &Edge) -> MachineEdge {
        let params: Vec<Value> = self.f.block(e.to).params.clone();
        let source = |o: Operand| match o {
            Operand::Const(c) => Source::Const(c),
            Operand::Frame(n) => Source::Frame(n),
            Operand::Value(v) => match self.known[v.index()] {
                Some(Operand::Const(c)) if self.choice.constants_at_joins => Source::Const(c),
                _ => Source::Virtual(Virtual(v.0)),
            },
        };
        let moves = params.iter().zip(&e.args).map(|(p, o)| (Virtual(p.0), source(*o))).collect();
        MachineEdge { to: e.to, moves }
    }

    fn term(&mut self, t: &Term) -> MachineTerm {
        match t {
            Term::Goto(e) => MachineTerm::Goto(self.edge(e)),
            Term::Branch { cond, width, a, b, taken, fall, origin } => {
                let (mut cond, mut a, mut b) = (*cond, *a, *b);
                if self.known(a).constant().is_some() && self.known(b).constant().is_none() {
                    (cond, a, b) = (cond.swap(), b, a);
                }
                let frame = [a == Operand::Frame(0), b == Operand::Frame(0)];
                let left = if frame[0] { Virtual(0) } else { self.register(a, *origin) };
                let right = match self.known(b).constant().and_then(|c| immediate(c, *width)) {
                    Some(n) => Err(n),
                    None if frame[1] => Ok(Virtual(0)),
                    None => Ok(self.register(b, *origin)),
                };
                let (taken, fall) = (self.edge(taken), self.edge(fall));
                let (width, origin) = (*width, *origin);
                MachineTerm::Branch { cond, width, a: left, b: right, frame, taken, fall, origin }
            }
            Term::MayGoto { taken, fall, origin } => {
                MachineTerm::MayGoto { taken: self.edge(taken), fall: self.edge(fall), origin: *origin }
            }
            Term::Exit { value, origin } => {
                let value = value.map(|v| self.argument(v, *origin));
                MachineTerm::Exit { value, origin: *origin }
            }
        }
    }
}

fn based(base: Option<Virtual>) -> (Reg, Vec<Virtual>) {
    base.map_or((Reg::R10, vec![]), |v| (FIRST, vec![v]))
}

/// The instruction with its registers named by their parts in it.
fn opaque(insn: &Insn, named: &[Reg]) -> Insn {
    let part = |n: usize| if n == 0 { FIRST } else { SECOND };
    let read = |reg: Reg| match named.iter().position(|x| *x == reg) {
        Some(n) => part(n),
        None => reg,
    };
    let last = named.len().saturating_sub(1);
    match *insn {
        Insn::Alu { op, width, src, .. } => {
            let src = match src {
                Src::Reg(Reg::R10) => src,
                Src::Reg(_) => Src::Reg(part(last)),
                imm => imm,
            };
            Insn::Alu { op, width, dst: RESULT, src }
        }
        Insn::Neg { width, .. } => Insn::Neg { width, dst: RESULT },
        Insn::Endian { kind, bits, .. } => Insn::Endian { kind, bits, dst: RESULT },
        Insn::Mov { width, src, .. } => {
            let src = match src {
                Src::Reg(s) => Src::Reg(read(s)),
                imm => imm,
            };
            Insn::Mov { width, dst: RESULT, src }
        }
        Insn::MovSx { width, from, src, .. } => Insn::MovSx { width, from, dst: RESULT, src: read(src) },
        Insn::Load { size, sext, base, off, .. } => Insn::Load { size, sext, dst: RESULT, base: read(base), off },
        Insn::Store { size, base, off, src } => {
            let src = match src {
                Src::Reg(Reg::R10) => src,
                Src::Reg(_) => Src::Reg(part(last)),
                imm => imm,
            };
            Insn::Store { size, base: if base == Reg::R10 { base } else { FIRST }, off, src }
        }
        other => other.map_regs(|_| RESULT),
    }
}

/// The shortest instruction that sets a register to a number.
pub(crate) fn constant(c: i64, dst: Reg) -> Insn {
    if let Ok(n) = i32::try_from(c) {
        Insn::Mov { width: Width::W64, dst, src: Src::Imm(n) }
    } else if let Ok(n) = u32::try_from(c) {
        Insn::Mov { width: Width::W32, dst, src: Src::Imm(n as i32) }
    } else {
        Insn::LoadImm64 { dst, kind: bpf_isa::Imm64Kind::Const, imm: c as u64 }
    }
}
