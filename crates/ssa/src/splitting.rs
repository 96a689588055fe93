//! Register allocation by the crate `regalloc2`: it may move a value from register to register in the middle of its
//! life. Mostly that gives more moves than joining and colouring, now and then fewer, or a result where that has none.
//!
//! It gets the same instructions and constraints. Edges that may need moves lie in blocks of their own. Where it spills,
//! its result is not taken: a function never gets a spill that it did not have.

use bpf_isa::AluOp;
use bpf_isa::{Insn, Reg, RegSet, Src, Width};
use bpf_program::{Block as Basic, BlockId, Function, Op, Terminator};
use regalloc2::{
    Algorithm, Allocation, Block as RBlock, Edit, Inst as RInst, InstOrEdit, InstRange, MachineEnv, Operand, PReg,
    PRegSet, RegClass, RegallocOptions, VReg,
};

use crate::emit::emit_inst;
use crate::select::{Machine, MachineInst, MachineTerm, RESULT, Source, Use, Virtual, constant, is_frame_address};

/// One instruction as the allocator sees it.
struct Node {
    operands: Vec<Operand>,
    clobbers: PRegSet,
    kind: Kind,
}

enum Kind {
    /// Sets what is given at the entry.
    Entry,
    /// An instruction of the machine.
    Inst(MachineInst),
    /// The end of a block, or of an edge.
    End,
}

/// What an edge makes of parameters.
type Moves = Vec<(Virtual, Source)>;

struct Module {
    insts: (usize, usize),
    params: Vec<VReg>,
    succs: Vec<RBlock>,
    preds: Vec<RBlock>,
    /// What the only successor's parameters become.
    args: Vec<VReg>,
}

struct Adapter {
    nodes: Vec<Node>,
    units: Vec<Module>,
    virtuals: usize,
}

fn preg(r: Reg) -> PReg {
    PReg::new(r.index(), RegClass::Int)
}

fn vreg(v: Virtual) -> VReg {
    VReg::new(v.index(), RegClass::Int)
}

fn set(regs: RegSet) -> PRegSet {
    regs.iter().fold(PRegSet::empty(), |s, r| s.with(preg(r)))
}

/// The graph with the registers that `regalloc2` has chosen; `None` if it had to spill.
pub(crate) fn lower(original: &Function, m: &Machine) -> Option<Function> {
    let mut a = Adapter { nodes: vec![], units: vec![], virtuals: m.homes.len() };
    // Blocks in the order of the layout, then edges.
    let mut number = vec![usize::MAX; m.blocks.len()];
    m.layout.iter().enumerate().for_each(|(i, b)| number[b.index()] = i);
    let mut edges: Vec<(usize, usize, Moves)> = vec![];
    let mut params: Vec<Vec<Virtual>> = vec![vec![]; m.layout.len()];
    for b in &m.layout {
        for e in m.blocks[b.index()].term.edges() {
            params[number[e.to.index()]] = e.moves.iter().map(|(p, _)| *p).collect();
        }
    }
    for (i, b) in m.layout.iter().enumerate() {
        let block = &m.blocks[b.index()];
        let from = a.nodes.len();
        if i == 0 {
            let operands = m.entry.iter().map(|(v, r)| Operand::reg_fixed_def(vreg(*v), preg(*r))).collect();
            a.nodes.push(Node { operands, clobbers: PRegSet::empty(), kind: Kind::Entry });
        }
        for inst in &block.insts {
            a.push(inst.clone());
        }
        let mut succs = vec![];
        for e in block.term.edges() {
            let edge = m.layout.len() + edges.len();
            edges.push((i, number[e.to.index()], e.moves.clone()));
            succs.push(RBlock::new(edge));
        }
        let operands = match &block.term {
            MachineTerm::Branch { a, b, frame, .. } => {
                let left = (!frame[0]).then(|| Operand::reg_use(vreg(*a)));
                let right = b.ok().filter(|_| !frame[1]).map(|b| Operand::reg_use(vreg(b)));
                left.into_iter().chain(right).collect()
            }
            MachineTerm::Exit { value: Some(v), .. } => vec![Operand::reg_fixed_use(vreg(*v), preg(Reg::R0))],
            _ => vec![],
        };
        a.nodes.push(Node { operands, clobbers: PRegSet::empty(), kind: Kind::End });
        let params = params[i].iter().map(|v| vreg(*v)).collect();
        a.units.push(Module { insts: (from, a.nodes.len()), params, succs, preds: vec![], args: vec![] });
    }
    for (_, to, moves) in &edges {
        let from = a.nodes.len();
        let mut args = vec![];
        for (_, source) in moves {
            args.push(match source {
                Source::Virtual(v) => vreg(*v),
                other => {
                    let v = Virtual(a.virtuals as u32);
                    a.virtuals += 1;
                    a.push(filler(v, *other));
                    vreg(v)
                }
            });
        }
        a.nodes.push(Node { operands: vec![], clobbers: PRegSet::empty(), kind: Kind::End });
        let (insts, succs) = ((from, a.nodes.len()), vec![RBlock::new(*to)]);
        a.units.push(Module { insts, params: vec![], succs, preds: vec![], args });
    }
    for u in 0..a.units.len() {
        for s in a.units[u].succs.clone() {
            a.units[s.index()].preds.push(RBlock::new(u));
        }
    }
    let all = RegSet::ALL.without(Reg::R10);
    let env = MachineEnv {
        preferred_regs_by_class: [set(all), PRegSet::empty(), PRegSet::empty()],
        non_preferred_regs_by_class: [PRegSet::empty(); 3],
        scratch_by_class: [None; 3],
        fixed_stack_slots: vec![],
    };
    let options = RegallocOptions { verbose_log: false, validate_ssa: true, algorithm: Algorithm::Ion };
    let out = regalloc2::run(&a, &env, &options).ok()?;
    if out.num_spillslots > 0 {
        return None;
    }
    let reg = |a: Allocation| a.as_reg().and_then(|p| Reg::new(p.hw_enc() as u8));
    let mut blocks = vec![];
    for u in 0..a.units.len() {
        let mut ops: Vec<Op> = vec![];
        let mut ends = vec![];
        let mut origin = None;
        for x in out.block_insts_and_edits(&a, RBlock::new(u)) {
            match x {
                InstOrEdit::Edit(Edit::Move { from, to }) => {
                    let (src, dst) = (reg(*from)?, reg(*to)?);
                    if src != dst {
                        ops.push(Op::with_origin(Insn::Mov { width: Width::W64, dst, src: Src::Reg(src) }, origin));
                    }
                }
                InstOrEdit::Inst(i) => {
                    let regs: Vec<Reg> = out.inst_allocs(i).iter().map(|x| reg(*x)).collect::<Option<_>>()?;
                    match &a.nodes[i.index()].kind {
                        Kind::Entry => {}
                        Kind::End => ends = regs,
                        Kind::Inst(inst) => {
                            origin = inst.origin;
                            let result = inst.def.and_then(|_| regs.last().copied());
                            emit_inst(inst, &regs, result.unwrap_or(Reg::R0), &mut ops);
                        }
                    }
                }
            }
        }
        let to = |n: usize| a.units[u].succs.get(n).map_or(BlockId(0), |s| BlockId(s.index() as u32));
        let term = match m.layout.get(u).map(|b| &m.blocks[b.index()].term) {
            Some(MachineTerm::Branch { cond, width, b, frame, origin, .. }) => {
                let mut regs = ends.into_iter();
                let dst = if frame[0] { Reg::R10 } else { regs.next()? };
                let src = match b {
                    Err(n) => Src::Imm(*n),
                    Ok(_) if frame[1] => Src::Reg(Reg::R10),
                    Ok(_) => Src::Reg(regs.next()?),
                };
                let (cond, width, origin) = (*cond, *width, *origin);
                Terminator::Branch { cond, width, dst, src, taken: to(0), fall: to(1), origin }
            }
            Some(MachineTerm::MayGoto { origin, .. }) => {
                Terminator::MayGoto { taken: to(0), fall: to(1), origin: *origin }
            }
            Some(MachineTerm::Exit { origin, .. }) => Terminator::Exit { origin: *origin },
            Some(MachineTerm::Goto(_)) | None => Terminator::Goto(to(0)),
        };
        blocks.push(Basic { ops, term });
    }
    let mut layout = vec![];
    for i in 0..m.layout.len() {
        layout.push(BlockId(i as u32));
        let mine =
            edges.iter().enumerate().filter(|(_, e)| e.0 == i).map(|(n, _)| BlockId((m.layout.len() + n) as u32));
        layout.extend(mine.collect::<Vec<_>>().into_iter().rev());
    }
    Some(Function {
        name: original.name.clone(),
        kind: original.kind,
        arguments: original.arguments.clone(),
        byte_order: original.byte_order,
        blocks,
        layout,
    })
}

fn filler(v: Virtual, source: Source) -> MachineInst {
    let insn = match source {
        Source::Const(c) => constant(c, RESULT),
        Source::Frame(0) | Source::Virtual(_) => Insn::Mov { width: Width::W64, dst: RESULT, src: Src::Reg(Reg::R10) },
        Source::Frame(n) => Insn::Alu { op: AluOp::Add, width: Width::W64, dst: Reg::R10, src: Src::Imm(n) },
    };
    MachineInst {
        insn,
        uses: vec![],
        def: Some(v),
        def_in: None,
        tied: None,
        clobbers: RegSet::EMPTY,
        origin: None,
        link: None,
    }
}

impl Adapter {
    fn push(&mut self, inst: MachineInst) {
        debug_assert!(!is_frame_address(&inst) || inst.uses.is_empty());
        let mut operands: Vec<Operand> = inst
            .uses
            .iter()
            .map(|Use { of, fixed }| match fixed {
                Some(r) => Operand::reg_fixed_use(vreg(*of), preg(*r)),
                None => Operand::reg_use(vreg(*of)),
            })
            .collect();
        let mut clobbers = inst.clobbers;
        match (inst.def, inst.def_in, inst.tied) {
            (Some(d), Some(r), _) => operands.push(Operand::reg_fixed_def(vreg(d), preg(r))),
            (Some(d), None, Some(t)) => operands.push(Operand::reg_reuse_def(vreg(d), t)),
            (Some(d), None, None) => operands.push(Operand::reg_def(vreg(d))),
            (None, Some(r), _) => clobbers.insert(r),
            (None, None, _) => {}
        }
        self.nodes.push(Node { operands, clobbers: set(clobbers), kind: Kind::Inst(inst) });
    }
}

impl regalloc2::Function for Adapter {
    fn num_insts(&self) -> usize {
        self.nodes.len()
    }
    fn num_blocks(&self) -> usize {
        self.units.len()
    }
    fn entry_block(&self) -> RBlock {
        RBlock::new(0)
    }
    fn block_insns(&self, b: RBlock) -> InstRange {
        let (from, to) = self.units[b.index()].insts;
        InstRange::new(RInst::new(from), RInst::new(to))
    }
    fn block_succs(&self, b: RBlock) -> &[RBlock] {
        &self.units[b.index()].succs
    }
    fn block_preds(&self, b: RBlock) -> &[RBlock] {
        &self.units[b.index()].preds
    }
    fn block_params(&self, b: RBlock) -> &[VReg] {
        &self.units[b.index()].params
    }
    fn is_ret(&self, i: RInst) -> bool {
        self.ends(i) && self.unit_of(i).succs.is_empty()
    }
    fn is_branch(&self, i: RInst) -> bool {
        self.ends(i) && !self.unit_of(i).succs.is_empty()
    }
    fn branch_blockparams(&self, b: RBlock, _: RInst, _: usize) -> &[VReg] {
        &self.units[b.index()].args
    }
    fn inst_operands(&self, i: RInst) -> &[Operand] {
        &self.nodes[i.index()].operands
    }
    fn inst_clobbers(&self, i: RInst) -> PRegSet {
        self.nodes[i.index()].clobbers
    }
    fn num_vregs(&self) -> usize {
        self.virtuals
    }
    fn spillslot_size(&self, _: RegClass) -> usize {
        1
    }
}

impl Adapter {
    fn ends(&self, i: RInst) -> bool {
        matches!(self.nodes[i.index()].kind, Kind::End)
    }

    fn unit_of(&self, i: RInst) -> &Module {
        let at = self.units.partition_point(|u| u.insts.1 <= i.index());
        &self.units[at]
    }
}
