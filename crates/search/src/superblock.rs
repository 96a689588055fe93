//! Windows through several blocks: single-entry superblocks.
//!
//! The code of a superblock ([`bpf_prove::superblock`]) is one list of operations, in which the side exits keep their
//! places. Each way out is an [`Exit`]: which operations it runs, which way it takes at each side exit, and what is live
//! where it leads. A batch of tests holds inputs of one exit, so that no lane ever goes another way than its neighbours.

use bpf_facts::Live;
use bpf_isa::RegSet;
use bpf_program::Op;
use bpf_prove::superblock::{is_side_exit, ways};

/// A way out of a superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exit {
    /// How many operations stand on the way: the side exit that leaves is the last of them.
    pub len: usize,
    /// The side exits on the way, each with the truth of its condition.
    pub turns: Vec<(usize, bool)>,
    /// What is live where it leads.
    pub live: Live,
}

/// How a superblock is left: what a window through several blocks is beyond its operations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exits {
    /// What is live where each side exit leads.
    pub sides: Vec<Live>,
    /// What is live at its end.
    pub end: Live,
    /// The ways out: the end, then the side exits in their order.
    pub exits: Vec<Exit>,
}

impl Exits {
    /// Those of a superblock with this code. `None` if it has not as many side exits as `sides`, or none.
    pub fn new(ops: &[Op], sides: Vec<Live>, end: Live) -> Option<Exits> {
        let ways = ways(ops)?;
        let places = (0..ops.len()).filter(|i| is_side_exit(&ops[*i].insn));
        let leaves: Vec<(usize, bool)> = places.zip(ways).collect();
        if leaves.is_empty() || leaves.len() != sides.len() {
            return None;
        }
        let stays = |n: usize| leaves[..n].iter().map(|(at, truth)| (*at, !truth)).collect::<Vec<_>>();
        let mut exits = vec![Exit { len: ops.len(), turns: stays(leaves.len()), live: end }];
        for (k, (side, leaves)) in sides.iter().zip(&leaves).enumerate() {
            let mut turns = stays(k);
            turns.push(*leaves);
            exits.push(Exit { len: leaves.0 + 1, turns, live: *side });
        }
        Some(Exits { sides, end, exits })
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
            if is_side_exit(&op.insn) {
                wanted = sides.next().map_or(wanted, |l| wanted.union(l.regs));
            }
            f(op, &mut wanted);
        }
    }
}
