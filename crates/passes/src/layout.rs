//! The order of blocks in memory with the fewest jumps.
//!
//! The one idea: a jump is saved for each block that stands right before one that it leads to. Each block may have one behind it
//! and one before it, so the most that can be saved is a maximum matching of blocks with successors; in a graph without loops
//! every matching is a set of paths, which are then put one behind the other.

use std::collections::BTreeSet;

use bpf_program::{BlockId, Function, Terminator};

/// An order of a function without loops with the fewest jumps, as near to the present one as that allows; `None` if the present
/// one is such. The entry stays the first.
pub(crate) fn fewest_jumps(f: &Function) -> Option<Vec<BlockId>> {
    let n = f.blocks.len();
    let mut matching = Matching { behind: vec![None; n], before: vec![None; n] };
    // What is saved now is saved on, if not by the same pairs.
    for pair in f.layout.windows(2) {
        if next(f, pair[0]).any(|s| s == pair[1]) {
            matching.pair(pair[0], pair[1]);
        }
    }
    let mut better = false;
    // What a search has seen in vain another one need not look at, until there is another matching.
    let mut seen = vec![false; n];
    for &b in &f.layout {
        if matching.behind[b.index()].is_none() && matching.augment(f, b, &mut seen) {
            better = true;
            seen.fill(false);
        }
    }
    better.then(|| matching.in_order(f))
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
        let heads: Vec<BlockId> = f.layout.iter().copied().filter(|b| self.before[b.index()].is_none()).collect();
        let path = |head: BlockId| std::iter::successors(Some(head), |b| self.behind[b.index()]);
        // Of each block the number of its path; of each path how many edges from others lead there.
        let mut number = vec![usize::MAX; f.blocks.len()];
        for (n, head) in heads.iter().enumerate() {
            path(*head).for_each(|b| number[b.index()] = n);
        }
        let others = |b: BlockId| {
            let own = number[b.index()];
            f.block(b).term.successors().map(|s| number[s.index()]).filter(move |n| *n != own && *n != usize::MAX)
        };
        let mut waits = vec![0usize; heads.len()];
        f.layout.iter().flat_map(|b| others(*b)).for_each(|n| waits[n] += 1);
        let mut open: BTreeSet<usize> = (0..heads.len()).collect();
        let mut ready: BTreeSet<usize> = open.iter().copied().filter(|n| waits[*n] == 0).collect();
        let mut order: Vec<BlockId> = Vec::with_capacity(f.layout.len());
        // The entry stands first in the layout, and nothing leads there.
        while let Some(n) = ready.pop_first().or_else(|| open.first().copied()) {
            if !open.remove(&n) {
                continue;
            }
            for b in path(heads[n]) {
                order.push(b);
                for other in others(b) {
                    waits[other] -= 1;
                    if waits[other] == 0 {
                        ready.insert(other);
                    }
                }
            }
        }
        order
    }
}
