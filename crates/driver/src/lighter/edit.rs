//! What all proposals of [`super`] are made with: forms, and small changes of a graph.

use bpf_isa::{AluOp, Insn, Reg, RegSet, Src, Width};
use bpf_program::{Block, BlockId, Function, Op, Terminator, drop_unreachable, predecessors, successors};
use bpf_prove::Rewrite;

/// A form of a function that may be less work for the verifier: a proposal.
pub(super) struct Form {
    /// What made it.
    pub(super) by: &'static str,
    /// What has to be proven equal to the function as it is.
    pub(super) function: Function,
    /// What that is in another shape, if it is to be changed once more: blocks that do the same are one.
    pub(super) then: Option<Function>,
    /// The one change that it is, if that is proven where it stands and not of the whole function.
    pub(super) rewrite: Option<Rewrite>,
}

impl Form {
    /// A form that is what is to be proven.
    pub(super) fn new(by: &'static str, function: Function) -> Form {
        Form { by, function, then: None, rewrite: None }
    }

    /// The same with operations put before those of block `b`, to be proven there.
    pub(super) fn of_block(by: &'static str, f: &Function, b: BlockId, with: Vec<Op>) -> Form {
        let mut function = f.clone();
        function.block_mut(b).ops.splice(0..0, with.iter().cloned());
        let rewrite = Rewrite { block: b, path: Vec::new(), start: 0, end: 0, with, term: None, by };
        Form { rewrite: Some(rewrite), ..Form::new(by, function) }
    }

    /// What it leads to.
    pub(super) fn last(&self) -> &Function {
        self.then.as_ref().unwrap_or(&self.function)
    }
}

/// An operation on all 64 bits.
pub(super) fn alu(op: AluOp, dst: Reg, src: Src) -> Insn {
    Insn::Alu { op, width: Width::W64, dst, src }
}

/// Adds a block that stands behind `after` in memory.
pub(super) fn add_block(f: &mut Function, after: BlockId, ops: Vec<Op>, term: Terminator) -> BlockId {
    let new = BlockId(f.blocks.len() as u32);
    f.blocks.push(Block { ops, term });
    let at = f.layout.iter().position(|b| *b == after).map_or(f.layout.len(), |at| at + 1);
    f.layout.insert(at, new);
    new
}

/// Blocks that are the only way into their only successor take it in; those that nothing leads to go.
pub(super) fn merge(f: &mut Function) {
    drop_unreachable(f);
    let mut preds = predecessors(f);
    let mut gone = vec![false; f.blocks.len()];
    for b in f.layout.clone() {
        if gone[b.index()] {
            continue;
        }
        while let Terminator::Goto(to) = f.block(b).term {
            if to == b || to == f.entry() || preds[to.index()] != [b] {
                break;
            }
            let Block { ops, term } = f.block(to).clone();
            let block = f.block_mut(b);
            block.ops.extend(ops);
            block.term = term;
            gone[to.index()] = true;
            for s in successors(f, b) {
                preds[s.index()].iter_mut().filter(|p| **p == to).for_each(|p| *p = b);
            }
        }
    }
    f.layout.retain(|b| !gone[b.index()]);
}

/// Whether an operation computes a number out of registers and constants, and does nothing else.
pub(super) fn is_arithmetic(op: &Op) -> bool {
    op.link.is_none()
        && match op.insn {
            Insn::Alu { .. } | Insn::Mov { .. } | Insn::MovSx { .. } | Insn::Neg { .. } | Insn::Endian { .. } => true,
            Insn::LoadImm64 { kind, .. } => kind == bpf_isa::Imm64Kind::Const,
            _ => false,
        }
}

/// An operation of [`is_arithmetic`] with its registers replaced.
pub(super) fn renamed(insn: Insn, to: impl Fn(Reg) -> Reg) -> Insn {
    let source = |s: Src| s.reg().map_or(s, |r| Src::Reg(to(r)));
    match insn {
        Insn::Alu { op, width, dst, src } => Insn::Alu { op, width, dst: to(dst), src: source(src) },
        Insn::Mov { width, dst, src } => Insn::Mov { width, dst: to(dst), src: source(src) },
        Insn::MovSx { width, from, dst, src } => Insn::MovSx { width, from, dst: to(dst), src: to(src) },
        Insn::Neg { width, dst } => Insn::Neg { width, dst: to(dst) },
        Insn::Endian { kind, bits, dst } => Insn::Endian { kind, bits, dst: to(dst) },
        Insn::LoadImm64 { dst, kind, imm } => Insn::LoadImm64 { dst: to(dst), kind, imm },
        other => other,
    }
}

/// The registers that operations write.
pub(super) fn defined(ops: &[Op]) -> RegSet {
    ops.iter().fold(RegSet::EMPTY, |all, op| all.union(op.insn.defs()))
}

/// The registers that operations read.
pub(super) fn used(ops: &[Op]) -> RegSet {
    ops.iter().fold(RegSet::EMPTY, |all, op| all.union(op.insn.uses()))
}
