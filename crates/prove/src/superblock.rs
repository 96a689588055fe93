//! Superblocks: sequences of blocks with a single entry and side exits.
//!
//! A superblock starts in some block and goes on, along a path, into blocks that can only be reached along it. Written as
//! one list of operations it has a conditional jump ([`Insn::Jcc`]) between one block and the next; its displacement says
//! which way leaves the path: 0, if the condition holds; 1, if it does not. A rewrite has to keep what is live at each side
//! exit, and at the end.

use bpf_isa::Insn;
use bpf_program::{BlockId, Function, Op, Terminator};

/// Whether an operation of a path is a jump to its next block.
pub fn is_jump(op: &Op) -> bool {
    matches!(op.insn, Insn::Jcc { .. })
}

/// How many jumps there are among these operations.
pub fn jumps(ops: &[Op]) -> usize {
    ops.iter().filter(|o| is_jump(o)).count()
}

/// The operations of `block` and of the blocks of `path` after it, with the jumps between. `None` if
/// that is no path: each block must be one of two successors of the one before, and reached from
/// nowhere else.
pub fn operations(f: &Function, block: BlockId, path: &[BlockId]) -> Option<Vec<Op>> {
    if path.iter().chain([&block]).any(|b| b.index() >= f.blocks.len()) {
        return None;
    }
    let mut ops = f.block(block).ops.clone();
    if path.is_empty() {
        return Some(ops);
    }
    // Without a list of all predecessors: this is asked often, of functions with very many blocks.
    let before = |next: BlockId| path.iter().position(|&b| b == next).map(|i| if i == 0 { block } else { path[i - 1] });
    let mut edges = 0;
    for &b in &f.layout {
        for at in f.block(b).term.successors().filter_map(before) {
            if at != b {
                return None;
            }
            edges += 1;
        }
    }
    if edges != path.len() {
        return None;
    }
    let mut at = block;
    for (i, &next) in path.iter().enumerate() {
        if next == f.entry() || next == block || path[..i].contains(&next) {
            return None;
        }
        ops.push(jump(&f.block(at).term, next)?);
        ops.extend(f.block(next).ops.iter().cloned());
        at = next;
    }
    Some(ops)
}

/// A branch as the jump of a path that goes on to `next`.
pub(crate) fn jump(term: &Terminator, next: BlockId) -> Option<Op> {
    let Terminator::Branch { cond, width, dst, src, taken, fall, origin } = *term else { return None };
    let off = match () {
        () if taken == fall => return None,
        () if next == fall => 0,
        () if next == taken => 1,
        () => return None,
    };
    Some(Op::with_origin(Insn::Jcc { cond, width, dst, src, off }, origin))
}

/// The block at which `term` leaves a path that goes on to `next`.
pub fn side(term: &Terminator, next: BlockId) -> Option<BlockId> {
    match *term {
        Terminator::Branch { taken, fall, .. } if taken != fall && next == fall => Some(taken),
        Terminator::Branch { taken, fall, .. } if taken != fall && next == taken => Some(fall),
        _ => None,
    }
}

/// Puts a path's operations back into its blocks.
pub(crate) fn put_back(f: &mut Function, block: BlockId, path: &[BlockId], ops: Vec<Op>) {
    let mut at = block;
    let mut rest = path.iter();
    let mut mine = Vec::new();
    for op in ops {
        let Insn::Jcc { cond, width, dst, src, .. } = op.insn else {
            mine.push(op);
            continue;
        };
        let b = f.block_mut(at);
        b.ops = std::mem::take(&mut mine);
        if let Terminator::Branch { cond: c, width: w, dst: d, src: s, .. } = &mut b.term {
            (*c, *w, *d, *s) = (cond, width, dst, src);
        }
        // As many jumps as before: the proof has seen to that.
        let Some(next) = rest.next() else { return };
        at = *next;
    }
    f.block_mut(at).ops = mine;
}
