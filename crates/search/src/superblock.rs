//! Windows through several blocks: single-entry superblocks.
//!
//! A superblock is a path ([`bpf_prove::superblock`]) that may be left at its jumps. All of it is one list of
//! operations, in which jumps keep their places. Each way out is an [`Exit`]: which operations it runs,
//! which way it takes at each jump, and what is live where it leads. A batch of tests holds inputs of
//! one exit, so that no lane ever goes another way than its neighbours.

use bpf_facts::Live;
use bpf_isa::{Insn, RegSet};
use bpf_program::Op;

/// Whether it is a jump of a superblock, which keeps its place.
#[inline(always)]
pub fn is_jump(i: &Insn) -> bool {
    matches!(i, Insn::Jcc { .. })
}

/// A way out of a superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exit {
    /// How many operations stand on the way: the jump that leaves is the last of them.
    pub len: usize,
    /// The jumps on the way, each with the truth of its condition.
    pub turns: Vec<(usize, bool)>,
    /// What is live where it leads.
    pub live: Live,
}

/// What a window through several blocks is beyond its operations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// What is live where each jump leaves.
    pub sides: Vec<Live>,
    /// What is live at its end.
    pub end: Live,
    /// The ways out: the end, then the jumps in their order.
    pub exits: Vec<Exit>,
}

impl Superblock {
    /// The superblock of these operations. `None` if there are not as many jumps as sides, or none.
    pub fn new(ops: &[Op], sides: Vec<Live>, end: Live) -> Option<Superblock> {
        let jumps: Vec<usize> = (0..ops.len()).filter(|i| is_jump(&ops[*i].insn)).collect();
        if jumps.is_empty() || jumps.len() != sides.len() {
            return None;
        }
        // Displacement 0 leaves where the condition holds.
        let leaves = |at: usize| ops[at].insn.jump_offset() == Some(0);
        let stays = |n: usize| jumps[..n].iter().map(|j| (*j, !leaves(*j))).collect::<Vec<_>>();
        let mut exits = vec![Exit { len: ops.len(), turns: stays(jumps.len()), live: end }];
        for (k, side) in sides.iter().enumerate() {
            let mut turns = stays(k);
            turns.push((jumps[k], leaves(jumps[k])));
            exits.push(Exit { len: jumps[k] + 1, turns, live: *side });
        }
        Some(Superblock { sides, end, exits })
    }

    /// What is live at some exit.
    pub fn live(&self) -> Live {
        self.sides
            .iter()
            .fold(self.end, |all, l| Live { regs: all.regs.union(l.regs), stack: all.stack.union(&l.stack) })
    }

    /// Calls `f` with each operation, last first, and the registers wanted after it, which it may change.
    pub fn backwards(&self, ops: &[Op], mut f: impl FnMut(&Op, &mut RegSet)) {
        let mut sides = self.sides.iter().rev();
        let mut wanted = self.end.regs;
        for op in ops.iter().rev() {
            if is_jump(&op.insn) {
                wanted = sides.next().map_or(wanted, |l| wanted.union(l.regs));
            }
            f(op, &mut wanted);
        }
    }
}
