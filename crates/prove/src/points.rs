//! What is known at each point of a block, or of a path through several: the facts before each operation, and what is
//! live around it.
//!
//! The analysis of the whole function gives what holds where control comes in and what is live where it goes out; in
//! between, both are stepped over the operations as they are now. So points may be those of a block that was rewritten
//! since the analysis, provided that the rewrites kept what was live out of it.
//!
//! Nobody else fills [`Points`]; those that a [`crate::Session`] gives out can have rewrites of its function proven.

use bpf_facts::{Analysis, Effect, Env, Live, State};
use bpf_program::{BlockId, Function, Op, Terminator};

use crate::rewrite::Known;
use crate::superblock::{Superblock, is_side_exit, side};

/// Facts and liveness along a block or a path.
#[derive(Clone, Debug)]
pub struct Points {
    block: BlockId,
    path: Vec<BlockId>,
    /// Of a path.
    superblock: Option<Superblock>,
    states: Vec<State>,
    live: Vec<Live>,
    sides: Vec<Live>,
    /// Whether facts about values that nobody reads are among them.
    dead: bool,
    /// Of which session, at which version.
    pub(crate) stamp: Option<Stamp>,
}

/// The state of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    pub session: u64,
    pub version: u64,
}

impl Points {
    /// Those of a block of `f`. What was live into it when it was analysed has kept its values; nothing else is used.
    /// `None` if the analysis shows that it is never reached.
    pub fn of_block(f: &Function, block: BlockId, analysis: &Analysis, env: &Env) -> Option<Points> {
        let mut entry = analysis.facts().entry(block)?.clone();
        entry.retain(analysis.live().entry(block));
        Some(Points::from_entry(f, block, entry, false, analysis, env))
    }

    /// The same with what is known of values that nobody reads. Only where `f` is as it was when it was analysed.
    pub fn of_block_with_dead(f: &Function, block: BlockId, analysis: &Analysis, env: &Env) -> Option<Points> {
        let entry = analysis.facts().entry(block)?.clone();
        Some(Points::from_entry(f, block, entry, true, analysis, env))
    }

    fn from_entry(f: &Function, block: BlockId, entry: State, dead: bool, analysis: &Analysis, env: &Env) -> Points {
        let b = f.block(block);
        let mut states = Vec::with_capacity(b.ops.len() + 1);
        let mut state = entry;
        for (i, op) in b.ops.iter().enumerate() {
            states.push(state.clone());
            state.step(op, (block, i), f.kind, env);
        }
        states.push(state);
        let live = backwards(&b.ops, &states, &[], &b.term, analysis.live().end(block), env);
        Points { block, path: vec![], superblock: None, states, live, sides: vec![], dead, stamp: None }
    }

    /// Those of a path ([`crate::superblock`]) through blocks that are as they were when they were analysed, or in which
    /// rewrites have kept what was live into and out of each. `None` if it is no path, or never gone.
    pub fn of_path(f: &Function, block: BlockId, path: &[BlockId], analysis: &Analysis, env: &Env) -> Option<Points> {
        Points::along(f, block, path, Inside::Analysed, analysis, env)
    }

    /// Those of a path that has been rewritten as a whole since the analysis: only what held at its start, and what
    /// was live where it is left, is used.
    pub fn of_rewritten_path(
        f: &Function,
        block: BlockId,
        path: &[BlockId],
        analysis: &Analysis,
        env: &Env,
    ) -> Option<Points> {
        Points::along(f, block, path, Inside::Rewritten, analysis, env)
    }

    fn along(
        f: &Function,
        block: BlockId,
        path: &[BlockId],
        inside: Inside,
        analysis: &Analysis,
        env: &Env,
    ) -> Option<Points> {
        let superblock = Superblock::of(f, block, path)?;
        let (facts, live) = (analysis.facts(), analysis.live());
        let entry = |b: BlockId| -> Option<State> {
            let mut state = facts.entry(b)?.clone();
            state.retain(live.entry(b));
            Some(state)
        };
        let mut states = Vec::with_capacity(superblock.ops().len() + 1);
        let mut sides = Vec::with_capacity(path.len());
        let mut state = entry(block)?;
        let (mut at, mut i) = (block, 0);
        let mut rest = path.iter();
        for op in superblock.ops() {
            states.push(state.clone());
            state.step(op, (at, i), f.kind, env);
            if !is_side_exit(&op.insn) {
                i += 1;
                continue;
            }
            let next = *rest.next()?;
            sides.push(*live.entry(side(&f.block(at).term, next)?));
            if inside == Inside::Analysed {
                state = entry(next)?;
            }
            (at, i) = (next, 0);
        }
        states.push(state);
        let points = backwards(superblock.ops(), &states, &sides, &f.block(at).term, live.end(at), env);
        let (path, superblock) = (path.to_vec(), Some(superblock));
        Some(Points { block, path, superblock, states, live: points, sides, dead: false, stamp: None })
    }

    /// The block, or the first one of the path.
    pub fn block(&self) -> BlockId {
        self.block
    }

    /// The other blocks of the path.
    pub fn path(&self) -> &[BlockId] {
        &self.path
    }

    /// The operations: of `f`, the function that it is about, the block's; on a path those of the superblock.
    pub fn ops<'a>(&'a self, f: &'a Function) -> &'a [Op] {
        self.superblock.as_ref().map_or_else(|| &f.block(self.block).ops[..], Superblock::ops)
    }

    /// Facts before each operation, and before the terminator.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// What is live before each operation, before the terminator, and at the end.
    pub fn live(&self) -> &[Live] {
        &self.live
    }

    /// On a path: what is live where each side exit leaves it.
    pub fn sides(&self) -> &[Live] {
        &self.sides
    }

    /// Whether facts about values that nobody reads are among them.
    pub fn with_dead(&self) -> bool {
        self.dead
    }

    /// What the judge may assume.
    pub fn known(&self) -> Known<'_> {
        Known { states: &self.states, live: &self.live, sides: &self.sides }
    }
}

/// What the analysis says about where a path's inner blocks begin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    /// Holds.
    Analysed,
    /// No longer holds.
    Rewritten,
}

/// Liveness before each operation, before the terminator, and at the end.
fn backwards(ops: &[Op], states: &[State], sides: &[Live], term: &Terminator, end: &Live, env: &Env) -> Vec<Live> {
    let mut point = Live { regs: end.regs.union(term.uses()), ..*end };
    let mut points = vec![*end, point];
    let mut sides = sides.iter().rev().peekable();
    for (op, s) in ops.iter().zip(states).rev() {
        let side = sides.next_if(|_| is_side_exit(&op.insn)).copied().unwrap_or_default();
        point = Effect::of(s, op, env).before(&point);
        point = Live { regs: point.regs.union(side.regs), stack: point.stack.union(&side.stack) };
        points.push(point);
    }
    points.reverse();
    points
}
