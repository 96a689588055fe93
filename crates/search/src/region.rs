//! Windows through several blocks: single-entry regions.
//!
//! A region is a path ([`bpf_prove::path`]) that is left at some of its jumps, and may fork at the last:
//! then a second arm stands behind the first, separated by [`SEPARATOR`]. All of it is one list of
//! operations, in which jumps and the separator keep their places. Each way out is an [`Exit`]: which
//! operations it runs, which way it takes at each jump, and what is live where it leads. A batch of
//! tests holds inputs of one exit, so that no lane ever goes another way than its neighbours.

use bpf_facts::Live;
use bpf_isa::{Insn, RegSet};
use bpf_program::Op;

/// Stands between the arms of a fork.
pub const SEPARATOR: Insn = Insn::Exit;

/// Whether it keeps its place: a jump or the separator.
#[inline(always)]
pub fn is_marker(i: &Insn) -> bool {
    matches!(i, Insn::Jcc { .. } | Insn::Exit)
}

/// A way out of a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exit {
    /// For each operation, whether it is on the way.
    pub on: Vec<bool>,
    /// The jumps on the way, each with the truth of its condition.
    pub turns: Vec<(usize, bool)>,
    /// What is live where it leads.
    pub live: Live,
}

/// What a window through several blocks is beyond its operations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// What is live where each jump leaves; `None`: it leads to the second arm.
    pub sides: Vec<Option<Live>>,
    /// What is live at the end of each arm: one or two.
    pub ends: Vec<Live>,
    /// The ways out.
    pub exits: Vec<Exit>,
}

impl Region {
    /// The region of these operations. `None` if they do not fit what is said of them: as many jumps as
    /// sides, one separator for a second arm, which the last jump before the first arm's end leads to.
    pub fn new(ops: &[Op], sides: Vec<Option<Live>>, ends: Vec<Live>) -> Option<Region> {
        let places = |what: fn(&Insn) -> bool| -> Vec<usize> {
            ops.iter().enumerate().filter(|(_, o)| what(&o.insn)).map(|(i, _)| i).collect()
        };
        let jumps = places(|i| matches!(i, Insn::Jcc { .. }));
        let separators = places(|i| *i == SEPARATOR);
        let fork = sides.iter().position(Option::is_none);
        let fits = match (ends.len(), fork) {
            (1, None) => separators.is_empty(),
            (2, Some(k)) => separators.len() == 1 && k + 1 == sides.len() && jumps.last() < separators.first(),
            _ => false,
        };
        if !fits || jumps.is_empty() || jumps.len() != sides.len() {
            return None;
        }
        let arm = separators.first().copied().unwrap_or(ops.len());
        let leaves = |at: usize| ops[at].insn.jump_offset() == Some(0);
        let stays = |n: usize| jumps[..n].iter().map(|j| (*j, !leaves(*j))).collect::<Vec<_>>();
        let left = |n: usize| {
            let mut turns = stays(n);
            turns.push((jumps[n], leaves(jumps[n])));
            turns
        };
        let upto = |n: usize| (0..ops.len()).map(|i| i < n).collect::<Vec<_>>();
        let mut exits = vec![Exit { on: upto(arm), turns: stays(jumps.len()), live: ends[0] }];
        for (k, side) in sides.iter().enumerate() {
            match side {
                Some(live) => exits.push(Exit { on: upto(jumps[k] + 1), turns: left(k), live: *live }),
                None => {
                    let on = (0..ops.len()).map(|i| i <= jumps[k] || i > arm).collect();
                    exits.push(Exit { on, turns: left(k), live: ends[1] });
                }
            }
        }
        Some(Region { sides, ends, exits })
    }

    /// What is live at some exit.
    pub fn live(&self) -> Live {
        let mut all = Live::default();
        for e in &self.exits {
            all.regs = all.regs.union(e.live.regs);
            all.stack = all.stack.union(&e.live.stack);
        }
        all
    }

    /// Calls `f` with each operation, last first, and the registers wanted after it, which it may change.
    pub fn backwards(&self, ops: &[Op], mut f: impl FnMut(&Op, &mut RegSet)) {
        let mut ends = self.ends.iter().rev();
        let mut sides = self.sides.iter().rev();
        let mut wanted = ends.next().map_or(RegSet::EMPTY, |l| l.regs);
        let mut second = RegSet::EMPTY;
        for op in ops.iter().rev() {
            match op.insn {
                SEPARATOR => {
                    second = wanted;
                    wanted = ends.next().map_or(RegSet::EMPTY, |l| l.regs);
                }
                Insn::Jcc { .. } => {
                    wanted = wanted.union(match sides.next() {
                        Some(Some(live)) => live.regs,
                        _ => second,
                    });
                }
                _ => {}
            }
            f(op, &mut wanted);
        }
    }
}
