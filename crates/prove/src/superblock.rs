//! Superblocks: sequences of blocks with a single entry and side exits.
//!
//! A [`Superblock`] starts in some block and goes on, along a path, into blocks that can only be reached along it. A rewrite
//! has to keep what is live at each [`SideExit`], and at the end.
//!
//! Passes and searchers know lists of operations, so a superblock is written as one, with an operation for the side exit
//! between one block and the next. How a side exit is written is known in this file alone: as a conditional jump
//! ([`Insn::Jcc`]) of which the displacement is 0 if it leaves where the condition holds, and 1 if it leaves where it does
//! not. So it has a text, a hash and an order, too. Blocks hold no jumps, and any other jump in such a list has no
//! meaning to anybody: it is refused.

use std::ops::Range;

use bpf_isa::{Cond, Insn, Reg, Src, Width};
use bpf_program::{BlockId, Function, Op, Terminator};

/// A conditional jump that leaves a superblock or goes on to its next block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SideExit {
    /// The condition.
    pub cond: Cond,
    /// In which width it compares.
    pub width: Width,
    /// What is compared.
    pub dst: Reg,
    /// With what.
    pub src: Src,
    /// What the condition is where control leaves.
    pub leaves_if: bool,
}

impl SideExit {
    /// The side exit that an instruction in the code of a superblock stands for.
    pub const fn of(insn: &Insn) -> Option<SideExit> {
        match *insn {
            Insn::Jcc { cond, width, dst, src, off: off @ (0 | 1) } => {
                Some(SideExit { cond, width, dst, src, leaves_if: off == 0 })
            }
            _ => None,
        }
    }

    /// The instruction that stands for it.
    pub const fn insn(self) -> Insn {
        let SideExit { cond, width, dst, src, leaves_if } = self;
        Insn::Jcc { cond, width, dst, src, off: if leaves_if { 0 } else { 1 } }
    }

    /// That of a block which ends with `term` and goes on to `next`.
    pub fn between(term: &Terminator, next: BlockId) -> Option<SideExit> {
        let Terminator::Branch { cond, width, dst, src, taken, fall, .. } = *term else { return None };
        let leaves_if = match () {
            () if taken == fall => return None,
            () if next == fall => true,
            () if next == taken => false,
            () => return None,
        };
        Some(SideExit { cond, width, dst, src, leaves_if })
    }
}

/// Whether an instruction in the code of a superblock is no operation of a block, but a side exit.
#[inline(always)]
pub const fn is_side_exit(insn: &Insn) -> bool {
    matches!(insn, Insn::Jcc { .. })
}

/// How many side exits there are in this code.
pub fn side_exits(ops: &[Op]) -> usize {
    ops.iter().filter(|o| is_side_exit(&o.insn)).count()
}

/// On which truth of its condition each side exit leaves. `None` if one of the jumps is no side exit.
pub fn ways<'o>(ops: impl IntoIterator<Item = &'o Op>) -> Option<Vec<bool>> {
    let exits = ops.into_iter().filter(|o| is_side_exit(&o.insn));
    exits.map(|o| SideExit::of(&o.insn).map(|exit| exit.leaves_if)).collect()
}

/// A branch as the operation that stands for its side exit, if it goes on to `next`.
pub(crate) fn side_exit(term: &Terminator, next: BlockId) -> Option<Op> {
    let exit = SideExit::between(term, next)?;
    Some(Op::with_origin(exit.insn(), term.origin()))
}

/// The block to which a superblock is left where `term` may go on to `next`.
pub fn side(term: &Terminator, next: BlockId) -> Option<BlockId> {
    let Terminator::Branch { taken, fall, .. } = *term else { return None };
    SideExit::between(term, next).map(|exit| if exit.leaves_if { taken } else { fall })
}

/// A superblock of a function. Between its blocks, and nowhere else, there are side exits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    block: BlockId,
    path: Vec<BlockId>,
    ops: Vec<Op>,
}

impl Superblock {
    /// That of `block` and the blocks of `path` after it. `None` if that is none: each block must be one of two successors
    /// of the one before, and reached from nowhere else.
    pub fn of(f: &Function, block: BlockId, path: &[BlockId]) -> Option<Superblock> {
        if path.iter().chain([&block]).any(|b| b.index() >= f.blocks.len()) {
            return None;
        }
        if !path.is_empty() && !is_reached_only_along(f, block, path) {
            return None;
        }
        let mut ops = operations(f, block)?.to_vec();
        let mut at = block;
        for (i, &next) in path.iter().enumerate() {
            if next == f.entry() || next == block || path[..i].contains(&next) {
                return None;
            }
            ops.push(side_exit(&f.block(at).term, next)?);
            ops.extend_from_slice(operations(f, next)?);
            at = next;
        }
        Some(Superblock { block, path: path.to_vec(), ops })
    }

    /// Its code: the operations of its blocks, with what stands for a side exit between one block and the next.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The same, by itself.
    pub fn into_ops(self) -> Vec<Op> {
        self.ops
    }

    /// Replaces a part of its code by another with the same side exits. `None` if that has others.
    pub(crate) fn replace(mut self, part: Range<usize>, with: &[Op]) -> Option<Superblock> {
        if ways(self.ops.get(part.clone())?)? != ways(with)? {
            return None;
        }
        self.ops.splice(part, with.iter().cloned());
        Some(self)
    }

    /// Puts its operations and conditions back into the blocks of the function.
    pub(crate) fn put_back(self, f: &mut Function) {
        let mut blocks = std::iter::once(self.block).chain(self.path);
        let mut mine = Vec::new();
        let Some(mut at) = blocks.next() else { return };
        for op in self.ops {
            let Some(SideExit { cond, width, dst, src, .. }) = SideExit::of(&op.insn) else {
                mine.push(op);
                continue;
            };
            let b = f.block_mut(at);
            b.ops = std::mem::take(&mut mine);
            if let Terminator::Branch { cond: c, width: w, dst: d, src: s, .. } = &mut b.term {
                (*c, *w, *d, *s) = (cond, width, dst, src);
            }
            let Some(next) = blocks.next() else { return };
            at = next;
        }
        f.block_mut(at).ops = mine;
    }
}

/// Whether each block of `path` is reached once, from the one before.
fn is_reached_only_along(f: &Function, block: BlockId, path: &[BlockId]) -> bool {
    // Without a list of all predecessors: this is asked often, of functions with very many blocks.
    let before = |next: BlockId| path.iter().position(|&b| b == next).map(|i| if i == 0 { block } else { path[i - 1] });
    let mut edges = 0;
    for &b in &f.layout {
        for at in f.block(b).term.successors().filter_map(before) {
            if at != b {
                return false;
            }
            edges += 1;
        }
    }
    edges == path.len()
}

/// The operations of a block. `None` if there is a jump among them, which no block has.
fn operations(f: &Function, block: BlockId) -> Option<&[Op]> {
    let ops = &f.block(block).ops;
    (!ops.iter().any(|o| is_side_exit(&o.insn))).then_some(ops)
}
