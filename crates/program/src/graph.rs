//! Graph queries over a function: orders, predecessors, dominators.

use crate::{BlockId, Function};

/// Successors of `b`, without duplicates.
pub fn successors(f: &Function, b: BlockId) -> Vec<BlockId> {
    let mut v: Vec<BlockId> = f.block(b).term.successors().collect();
    v.dedup();
    v
}

/// Predecessors of every block, reachable or not, without duplicates; indexed by block.
pub fn predecessors(f: &Function) -> Vec<Vec<BlockId>> {
    let mut preds = vec![Vec::new(); f.blocks.len()];
    for &b in &f.layout {
        // Without a list in between: this is asked often, of functions with very many blocks.
        let mut last = None;
        for s in f.block(b).term.successors().filter(|s| last.replace(*s) != Some(*s)) {
            preds[s.index()].push(b);
        }
    }
    preds
}

/// Takes blocks out of the layout that nothing leads to; whether there were any.
pub fn drop_unreachable(f: &mut Function) -> bool {
    let mut reached = vec![false; f.blocks.len()];
    reverse_postorder(f).0.iter().for_each(|b| reached[b.index()] = true);
    let n = f.layout.len();
    f.layout.retain(|b| reached[b.index()]);
    f.layout.len() != n
}

/// Reachable blocks in reverse postorder from the entry. `cyclic` tells whether an edge goes
/// backwards in it, that is, whether the function has a loop.
pub fn reverse_postorder(f: &Function) -> (Vec<BlockId>, bool) {
    let mut state = vec![0u8; f.blocks.len()];
    let mut order = Vec::with_capacity(f.layout.len());
    let mut cyclic = false;
    let mut stack: Vec<(BlockId, Vec<BlockId>)> = Vec::new();
    if f.layout.is_empty() {
        return (order, false);
    }
    let e = f.entry();
    state[e.index()] = 1;
    stack.push((e, successors(f, e)));
    while let Some((b, todo)) = stack.last_mut() {
        match todo.pop() {
            Some(s) => match state[s.index()] {
                0 => {
                    state[s.index()] = 1;
                    let next = successors(f, s);
                    stack.push((s, next));
                }
                1 => cyclic = true,
                _ => {}
            },
            None => {
                state[b.index()] = 2;
                order.push(*b);
                stack.pop();
            }
        }
    }
    order.reverse();
    (order, cyclic)
}

/// Immediate dominators of the reachable blocks (Cooper, Harvey and Kennedy's algorithm).
#[derive(Clone, Debug)]
pub struct Dominators {
    idom: Vec<Option<BlockId>>,
    rank: Vec<usize>,
}

impl Dominators {
    /// Computes them.
    pub fn of(f: &Function) -> Dominators {
        let (order, _) = reverse_postorder(f);
        let preds = predecessors(f);
        let mut rank = vec![usize::MAX; f.blocks.len()];
        for (i, b) in order.iter().enumerate() {
            rank[b.index()] = i;
        }
        let mut idom: Vec<Option<BlockId>> = vec![None; f.blocks.len()];
        if let Some(&e) = order.first() {
            idom[e.index()] = Some(e);
        }
        let mut changed = true;
        while changed {
            changed = false;
            for &b in order.iter().skip(1) {
                let mut new: Option<BlockId> = None;
                for &p in &preds[b.index()] {
                    if idom[p.index()].is_none() {
                        continue;
                    }
                    new = Some(match new {
                        None => p,
                        Some(q) => intersect(&idom, &rank, p, q),
                    });
                }
                if new.is_some() && idom[b.index()] != new {
                    idom[b.index()] = new;
                    changed = true;
                }
            }
        }
        Dominators { idom, rank }
    }

    /// The immediate dominator; `None` for the entry and for unreachable blocks.
    pub fn idom(&self, b: BlockId) -> Option<BlockId> {
        self.idom[b.index()].filter(|d| *d != b)
    }

    /// Whether every path from the entry to `b` passes `a`.
    pub fn dominates(&self, a: BlockId, b: BlockId) -> bool {
        if self.rank[b.index()] == usize::MAX || self.rank[a.index()] == usize::MAX {
            return false;
        }
        let mut x = b;
        while self.rank[x.index()] > self.rank[a.index()] {
            match self.idom[x.index()] {
                Some(d) => x = d,
                None => return false,
            }
        }
        x == a
    }
}

fn intersect(idom: &[Option<BlockId>], rank: &[usize], mut a: BlockId, mut b: BlockId) -> BlockId {
    while a != b {
        while rank[a.index()] > rank[b.index()] {
            a = idom[a.index()].unwrap_or(a);
        }
        while rank[b.index()] > rank[a.index()] {
            b = idom[b.index()].unwrap_or(b);
        }
    }
    a
}
