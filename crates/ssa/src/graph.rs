//! Orders, predecessors, dominators and loops of an SSA function.

use crate::{Block, Ssa};

/// What the edges of a function tell, at the moment it is made.
#[derive(Clone, Debug)]
pub struct Graph {
    /// Edges into each block: where from, and which of that block's edges (0: taken, 1: fall-through).
    pub preds: Vec<Vec<(Block, usize)>>,
    /// Blocks that can be reached, in reverse postorder.
    pub order: Vec<Block>,
    rank: Vec<usize>,
    idom: Vec<Option<Block>>,
    /// For each block how many loops it is in.
    depth: Vec<u32>,
}

impl Graph {
    /// Of `f`.
    pub fn of(f: &Ssa) -> Graph {
        let n = f.blocks.len();
        let mut order = Vec::with_capacity(f.layout.len());
        let mut seen = vec![false; n];
        let succs = |b: Block| f.block(b).term.edges().map(|e| e.to).collect::<Vec<_>>();
        let mut stack = vec![(f.entry(), succs(f.entry()))];
        seen[f.entry().index()] = true;
        while let Some((b, todo)) = stack.last_mut() {
            match todo.pop() {
                Some(s) if !seen[s.index()] => {
                    seen[s.index()] = true;
                    stack.push((s, succs(s)));
                }
                Some(_) => {}
                None => {
                    order.push(*b);
                    stack.pop();
                }
            }
        }
        order.reverse();
        let mut rank = vec![usize::MAX; n];
        order.iter().enumerate().for_each(|(i, b)| rank[b.index()] = i);
        let mut preds = vec![Vec::new(); n];
        for &b in &order {
            for (i, e) in f.block(b).term.edges().enumerate() {
                preds[e.to.index()].push((b, i));
            }
        }
        let mut g = Graph { preds, order, rank, idom: vec![None; n], depth: vec![0; n] };
        g.dominators();
        g.loops();
        g
    }

    fn dominators(&mut self) {
        let Some(&entry) = self.order.first() else { return };
        self.idom[entry.index()] = Some(entry);
        let mut changed = true;
        while changed {
            changed = false;
            for &b in &self.order[1..] {
                let known = self.preds[b.index()].iter().map(|p| p.0).filter(|p| self.idom[p.index()].is_some());
                let new = known.reduce(|a, b| self.meet(a, b));
                if new.is_some() && new != self.idom[b.index()] {
                    self.idom[b.index()] = new;
                    changed = true;
                }
            }
        }
    }

    /// The nearest block that dominates both.
    pub fn meet(&self, mut a: Block, mut b: Block) -> Block {
        while a != b {
            let (lower, upper) = if self.rank[a.index()] > self.rank[b.index()] { (a, b) } else { (b, a) };
            match self.idom[lower.index()] {
                Some(d) if d != lower => (a, b) = (d, upper),
                _ => return upper,
            }
        }
        a
    }

    fn loops(&mut self) {
        for &b in &self.order.clone() {
            for (from, _) in self.preds[b.index()].clone() {
                if !self.dominates(b, from) {
                    continue;
                }
                // The natural loop of the edge from → b.
                let mut body = vec![b];
                let mut todo = vec![from];
                while let Some(x) = todo.pop() {
                    if !body.contains(&x) {
                        body.push(x);
                        todo.extend(self.preds[x.index()].iter().map(|p| p.0));
                    }
                }
                body.iter().for_each(|x| self.depth[x.index()] += 1);
            }
        }
    }

    /// Position in reverse postorder; `usize::MAX` if nothing leads there.
    pub fn rank(&self, b: Block) -> usize {
        self.rank[b.index()]
    }

    /// Whether control can get there.
    pub fn is_reachable(&self, b: Block) -> bool {
        self.rank[b.index()] != usize::MAX
    }

    /// The immediate dominator; `None` for the entry and for what is unreachable.
    pub fn idom(&self, b: Block) -> Option<Block> {
        self.idom[b.index()].filter(|d| *d != b)
    }

    /// Whether every way to `b` leads through `a`.
    pub fn dominates(&self, a: Block, b: Block) -> bool {
        if !self.is_reachable(a) || !self.is_reachable(b) {
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

    /// How many loops the block is in.
    pub fn loop_depth(&self, b: Block) -> u32 {
        self.depth[b.index()]
    }

    /// Whether an edge leads backwards.
    pub fn is_cyclic(&self) -> bool {
        self.order.iter().any(|b| self.preds[b.index()].iter().any(|p| self.rank(p.0) >= self.rank(*b)))
    }

    /// The edge that is the only way into `b`, if there is one.
    pub fn only_way_in(&self, b: Block) -> Option<(Block, usize)> {
        match self.preds[b.index()].as_slice() {
            [one] => Some(*one),
            _ => None,
        }
    }

    /// The blocks that control may get to from the end of `b`; `b` itself if it is in a loop.
    pub fn reached_from(&self, f: &Ssa, b: Block) -> Vec<bool> {
        let mut seen = vec![false; f.blocks.len()];
        let mut todo: Vec<Block> = f.block(b).term.edges().map(|e| e.to).collect();
        while let Some(x) = todo.pop() {
            if !std::mem::replace(&mut seen[x.index()], true) {
                todo.extend(f.block(x).term.edges().map(|e| e.to));
            }
        }
        seen
    }

    /// The edges that every way to the end of edge (`from`, `side`) has passed, nearest first: itself, and each edge
    /// that alone leads into a block that dominates it.
    pub fn dominating_edges(&self, from: Block, side: usize) -> Vec<(Block, usize)> {
        let mut edges = vec![(from, side)];
        edges.extend(self.edges_above(from));
        edges
    }

    /// The edges that every way to the start of `b` has passed, nearest first.
    pub fn edges_above(&self, b: Block) -> Vec<(Block, usize)> {
        let mut edges = Vec::new();
        let mut at = Some(b);
        while let Some(x) = at {
            edges.extend(self.only_way_in(x));
            at = self.idom(x);
        }
        edges
    }
}

impl Ssa {
    /// Takes blocks out of the layout that nothing leads to.
    pub fn drop_unreachable(&mut self) {
        let graph = Graph::of(self);
        self.layout.retain(|b| graph.is_reachable(*b));
    }
}

/// For each block the values that are read behind it, in other blocks; arguments of its own edges not counted.
pub(crate) fn live_out(f: &Ssa, graph: &Graph) -> Vec<Vec<bool>> {
    let n = f.values.len();
    let mut live_in = vec![vec![false; n]; f.blocks.len()];
    let mut out = vec![vec![false; n]; f.blocks.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for &b in graph.order.iter().rev() {
            let block = f.block(b);
            let mut now = vec![false; n];
            for e in block.term.edges() {
                now.iter_mut().zip(&live_in[e.to.index()]).for_each(|(x, y)| *x |= *y);
            }
            out[b.index()].clone_from(&now);
            let read = |o: crate::Operand, now: &mut Vec<bool>| {
                if let Some(v) = o.value() {
                    now[v.index()] = true;
                }
            };
            block.term.operands().into_iter().for_each(|o| read(o, &mut now));
            for i in block.insts.iter().rev() {
                i.result.iter().for_each(|v| now[v.index()] = false);
                i.args.iter().for_each(|o| read(*o, &mut now));
            }
            block.params.iter().for_each(|v| now[v.index()] = false);
            if now != live_in[b.index()] {
                live_in[b.index()] = now;
                changed = true;
            }
        }
    }
    out
}
