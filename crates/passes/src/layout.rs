//! The order of blocks in memory with the fewest jumps.
//!
//! The one idea: a jump is saved for each block that stands right before one that it leads to. Each block may have one behind it
//! and one before it, so the most that can be saved is a maximum matching of blocks with successors; in a graph without loops
//! every matching is a set of paths, which are then put one behind the other.

use bpf_program::{BlockId, Function, Terminator, predecessors, reverse_postorder};

/// Blocks of a function, at most: beyond, looking takes longer than it is worth.
const LARGEST: usize = 2000;

/// An order with the fewest jumps, as near to the present one as that allows; `None` for functions with loops, or too large.
/// The entry stays the first.
pub(crate) fn fewest_jumps(f: &Function) -> Option<Vec<BlockId>> {
    let (_, cyclic) = reverse_postorder(f);
    if cyclic || f.layout.len() > LARGEST {
        return None;
    }
    let mut matching = Matching { behind: vec![None; f.blocks.len()], before: vec![None; f.blocks.len()] };
    // What is saved now is saved on, if not by the same pairs.
    for pair in f.layout.windows(2) {
        if next(f, pair[0]).any(|s| s == pair[1]) {
            matching.pair(pair[0], pair[1]);
        }
    }
    for &b in &f.layout {
        if matching.behind[b.index()].is_none() {
            matching.augment(f, b, &mut vec![false; f.blocks.len()]);
        }
    }
    Some(matching.in_order(f))
}

/// The blocks that may stand behind one, so that it needs a jump less. A jump on bits has no opposite.
fn next(f: &Function, b: BlockId) -> impl Iterator<Item = BlockId> {
    let (first, second) = match f.block(b).term {
        Terminator::Goto(to) => (Some(to), None),
        Terminator::Branch { cond, taken, fall, .. } => (Some(fall), Some(taken).filter(|_| cond.negate().is_some())),
        Terminator::MayGoto { fall, .. } => (Some(fall), None),
        Terminator::Exit { .. } => (None, None),
    };
    let entry = f.layout.first().copied();
    first.into_iter().chain(second).filter(move |to| Some(*to) != entry && *to != b)
}

/// Which block stands right behind which.
struct Matching {
    behind: Vec<Option<BlockId>>,
    before: Vec<Option<BlockId>>,
}

impl Matching {
    fn pair(&mut self, b: BlockId, behind: BlockId) {
        self.behind[b.index()] = Some(behind);
        self.before[behind.index()] = Some(b);
    }

    /// Finds something to stand behind `b`; another block may have to take its other successor for that.
    fn augment(&mut self, f: &Function, b: BlockId, seen: &mut [bool]) -> bool {
        // A stack of its own: paths may be as long as the function.
        let mut path: Vec<(BlockId, Vec<BlockId>)> = vec![(b, next(f, b).collect())];
        while let Some((_, open)) = path.last_mut() {
            let Some(to) = (!open.is_empty()).then(|| open.remove(0)) else {
                path.pop();
                continue;
            };
            if std::mem::replace(&mut seen[to.index()], true) {
                continue;
            }
            if let Some(other) = self.before[to.index()] {
                path.push((other, next(f, other).collect()));
                continue;
            }
            // From the end back, each takes what the one behind it had.
            let mut to = to;
            while let Some((at, _)) = path.pop() {
                let had = self.behind[at.index()];
                self.pair(at, to);
                match had {
                    Some(had) => to = had,
                    None => break,
                }
            }
            return true;
        }
        false
    }

    /// The paths one behind the other: those first that all others lead away from, as far as there are such.
    fn in_order(&self, f: &Function) -> Vec<BlockId> {
        let preds = predecessors(f);
        let mut heads: Vec<BlockId> = f.layout.iter().copied().filter(|b| self.before[b.index()].is_none()).collect();
        let mut placed = vec![false; f.blocks.len()];
        let mut order: Vec<BlockId> = Vec::with_capacity(f.layout.len());
        while !heads.is_empty() {
            let is_ready = |head: &BlockId| {
                let path: Vec<BlockId> = std::iter::successors(Some(*head), |b| self.behind[b.index()]).collect();
                path.iter().all(|b| preds[b.index()].iter().all(|p| placed[p.index()] || path.contains(p)))
            };
            // The entry stands first in the layout, and is ready.
            let at = heads.iter().position(is_ready).unwrap_or(0);
            let head = heads.remove(at);
            for b in std::iter::successors(Some(head), |b| self.behind[b.index()]) {
                placed[b.index()] = true;
                order.push(b);
            }
        }
        order
    }
}
