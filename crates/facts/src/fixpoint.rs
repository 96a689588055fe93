//! Facts for a whole function: the least states we can find that describe every execution.
//!
//! A worklist in reverse postorder joins states along edges until nothing changes; at the targets of
//! backward edges growing numbers are widened, first to thresholds, then to anything, so it ends. Then,
//! if there are loops, two descending sweeps recompute every entry state from its predecessors: each
//! sweep is sound by itself, since it replaces a state by what flows in from sound ones. Should the
//! iteration exceed its bound all the same, every state becomes [`State::top`].

use std::collections::BTreeSet;

use bpf_isa::RegSet;
use bpf_program::{BlockId, ByteOrder, Function, Terminator, predecessors, reverse_postorder};

use crate::refine::Test;
use crate::{Env, State, calls};

/// Visits of a loop head after which growing ranges go to thresholds …
const SOFT_WIDENING: u32 = 3;
/// … and after which they are given up.
const HARD_WIDENING: u32 = 12;
/// Visits of one block, on average, at which we give up.
const MAX_VISITS_PER_BLOCK: usize = 200;

/// The facts of one function.
#[derive(Clone, Debug)]
pub struct Facts {
    entry: Vec<Option<State>>,
    /// Edge states, (taken, fall-through), of every block.
    edges: Vec<[Option<State>; 2]>,
    maps: Vec<crate::MapInfo>,
    externs: Vec<crate::ExternInfo>,
    arities: Arities,
    byte_order: ByteOrder,
}

/// What `Env::callee_args` said of every function this one calls, so that replays need no `Env`.
type Arities = std::collections::HashMap<String, usize>;

impl Facts {
    /// Computes them.
    pub fn of(f: &Function, env: &Env<'_>) -> Facts {
        Facts::solved(f, env, false)
    }

    /// The same as if every branch could go both ways: the kernel's verifier knows less than these facts, so it may walk
    /// where no execution gets.
    pub fn of_every_way(f: &Function, env: &Env<'_>) -> Facts {
        Facts::solved(f, env, true)
    }

    fn solved(f: &Function, env: &Env<'_>, every_way: bool) -> Facts {
        assert_eq!(f.byte_order, env.byte_order, "a function is analysed in surroundings of its own byte order");
        let mut solver = Solver::new(f, env);
        solver.every_way = every_way;
        if solver.ascend() {
            if solver.cyclic {
                solver.descend();
            }
        } else {
            solver.give_up();
        }
        let edges = f.blocks.iter().enumerate().map(|(i, _)| solver.edges_of(BlockId(i as u32))).collect();
        Facts {
            entry: solver.entry,
            edges,
            maps: env.maps.to_vec(),
            externs: env.externs.to_vec(),
            arities: arities(f, env),
            byte_order: env.byte_order,
        }
    }

    /// The state at the block's entry; `None` if no execution gets there.
    pub fn entry(&self, b: BlockId) -> Option<&State> {
        self.entry.get(b.index())?.as_ref()
    }

    /// The states before each operation, then before the terminator: one more than there are
    /// operations. Empty if no execution gets there.
    pub fn states(&self, f: &Function, b: BlockId) -> Vec<State> {
        self.entry(b).map_or(Vec::new(), |s| self.with_env(|env| replay(f, b, s, env)))
    }

    /// The state on the edge that the terminator takes when its condition holds, or does not; `None`
    /// if no execution goes there. `goto` has its one edge on both sides, `exit` has none.
    pub fn edge(&self, _f: &Function, b: BlockId, taken: bool) -> Option<State> {
        self.edges.get(b.index())?[usize::from(!taken)].clone()
    }

    /// The surroundings the facts were computed in.
    fn with_env<T>(&self, g: impl FnOnce(&Env<'_>) -> T) -> T {
        let callee_args = |name: &str| self.arities.get(name).copied();
        let byte_order = self.byte_order;
        g(&Env { maps: &self.maps, callee_args: &callee_args, externs: &self.externs, byte_order, ..Env::empty() })
    }
}

fn arities(f: &Function, env: &Env<'_>) -> Arities {
    let mut known = Arities::new();
    for op in f.blocks.iter().flat_map(|b| &b.ops) {
        if let Some(bpf_program::Symbol::Func { name }) = op.link.as_ref().map(|l| &l.symbol)
            && let Some(n) = (env.callee_args)(name)
        {
            known.insert(name.to_string(), n);
        }
    }
    known
}

/// States before each operation and before the terminator.
pub(crate) fn replay(f: &Function, b: BlockId, entry: &State, env: &Env<'_>) -> Vec<State> {
    let ops = &f.block(b).ops;
    let mut states = Vec::with_capacity(ops.len() + 1);
    let mut s = entry.clone();
    for (i, op) in ops.iter().enumerate() {
        states.push(s.clone());
        s.step(op, (b, i), f.kind, env);
    }
    states.push(s);
    states
}

struct Solver<'a> {
    f: &'a Function,
    env: &'a Env<'a>,
    order: Vec<BlockId>,
    /// Position in `order`.
    rank: Vec<usize>,
    cyclic: bool,
    /// Registers that may be read before they are written, at each block's entry.
    live: Vec<RegSet>,
    /// No edge is excluded.
    every_way: bool,
    entry: Vec<Option<State>>,
}

impl<'a> Solver<'a> {
    fn new(f: &'a Function, env: &'a Env<'a>) -> Solver<'a> {
        let (order, cyclic) = reverse_postorder(f);
        let mut rank = vec![usize::MAX; f.blocks.len()];
        for (i, b) in order.iter().enumerate() {
            rank[b.index()] = i;
        }
        let live = live_registers(f, env, &order);
        Solver { f, env, order, rank, cyclic, live, every_way: false, entry: vec![None; f.blocks.len()] }
    }

    /// Iterates to a fixpoint; `false` if that takes too long.
    fn ascend(&mut self) -> bool {
        let Some(&first) = self.order.first() else { return true };
        self.entry[first.index()] = Some(State::entry_of(self.f));
        let mut visits = vec![0u32; self.f.blocks.len()];
        let mut budget = self.order.len() * MAX_VISITS_PER_BLOCK;
        let mut todo = BTreeSet::from([0usize]);
        while let Some(at) = todo.pop_first() {
            if budget == 0 {
                return false;
            }
            budget -= 1;
            let b = self.order[at];
            for (to, state) in self.out(b) {
                let target = self.rank[to.index()];
                let backward = target <= at;
                if self.flow(to, state, backward, &mut visits[to.index()]) {
                    todo.insert(target);
                }
            }
        }
        true
    }

    /// Joins `state` into the entry of `to`; whether that changed it.
    fn flow(&mut self, to: BlockId, state: State, backward: bool, visits: &mut u32) -> bool {
        let slot = to.index();
        let Some(old) = &self.entry[slot] else {
            self.entry[slot] = Some(state);
            return true;
        };
        let mut new = old.join(&state, to, self.live[slot]);
        if new == *old {
            return false;
        }
        if backward {
            *visits += 1;
            if *visits > SOFT_WIDENING {
                new = old.widen(&new, *visits > HARD_WIDENING);
            }
        }
        self.entry[slot] = Some(new);
        true
    }

    /// Recomputes entry states from their predecessors, twice.
    fn descend(&mut self) {
        let preds = predecessors(self.f);
        let mut edges: Vec<[Option<State>; 2]> =
            (0..self.f.blocks.len()).map(|i| self.edges_of(BlockId(i as u32))).collect();
        for _ in 0..2 {
            for i in 0..self.order.len() {
                let b = self.order[i];
                let mut state = (i == 0).then(|| State::entry_of(self.f));
                for &p in &preds[b.index()] {
                    for (side, to) in self.targets(p) {
                        let Some(s) = edges[p.index()][side].as_ref().filter(|_| to == b) else { continue };
                        state = Some(match state {
                            None => s.clone(),
                            Some(old) => old.join(s, b, self.live[b.index()]),
                        });
                    }
                }
                self.entry[b.index()] = state;
                edges[b.index()] = self.edges_of(b);
            }
        }
    }

    fn give_up(&mut self) {
        for &b in &self.order {
            self.entry[b.index()] = Some(State::top());
        }
    }

    /// Successors of `b` with the side of the terminator they are on, each edge once.
    fn targets(&self, b: BlockId) -> Vec<(usize, BlockId)> {
        self.f.block(b).term.successors().enumerate().collect()
    }

    fn out(&self, b: BlockId) -> Vec<(BlockId, State)> {
        let mut edges = self.edges_of(b);
        self.targets(b).into_iter().filter_map(|(side, to)| edges[side].take().map(|s| (to, s))).collect()
    }

    fn edges_of(&self, b: BlockId) -> [Option<State>; 2] {
        let Some(mut s) = self.entry[b.index()].clone() else { return [None, None] };
        let block = self.f.block(b);
        for (i, op) in block.ops.iter().enumerate() {
            s.step(op, (b, i), self.f.kind, self.env);
        }
        match &block.term {
            Terminator::Exit { .. } => [None, None],
            Terminator::Goto(_) | Terminator::MayGoto { .. } => [Some(s.clone()), Some(s)],
            term @ Terminator::Branch { .. } => {
                let Some(test) = Test::of(term) else { return [Some(s.clone()), Some(s)] };
                let at = (b, block.ops.len());
                let side = |taken| {
                    let known = s.clone().assume(test, taken, at, self.f.kind, self.env);
                    known.or_else(|| self.every_way.then(|| s.clone()))
                };
                [side(true), side(false)]
            }
        }
    }
}

/// Registers that may be read before they are written, at each block's entry.
fn live_registers(f: &Function, env: &Env<'_>, order: &[BlockId]) -> Vec<RegSet> {
    let mut live = vec![RegSet::EMPTY; f.blocks.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for &b in order.iter().rev() {
            let block = f.block(b);
            let out = block.term.successors().fold(RegSet::EMPTY, |s, t| s.union(live[t.index()]));
            let mut s = out.union(block.term.uses());
            for op in block.ops.iter().rev() {
                s = s.minus(op.insn.defs()).union(registers_read(op, env));
            }
            if s != live[b.index()] {
                live[b.index()] = s;
                changed = true;
            }
        }
    }
    live
}

/// Registers an operation reads: of a call, its arguments only.
pub fn registers_read(op: &bpf_program::Op, env: &Env<'_>) -> RegSet {
    match op.insn {
        bpf_isa::Insn::Call(_) | bpf_isa::Insn::CallX { .. } => calls::arguments(op, env),
        _ => op.insn.uses(),
    }
}
