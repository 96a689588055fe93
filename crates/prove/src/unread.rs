//! Calls that do nothing but give a result which nobody reads.
//!
//! The contract lets the new program leave out such a call (rule 1), and lets it make one that the old one does not make:
//! nobody can tell. So before anything is compared they are taken out of both sides. *When* such a call is made does not
//! matter, either, as long as it is made between the same events; this is used for one thing only: what stands at the end of a block may stand
//! behind its branch instead, once on each side, if it sets no register that the branch asks for. On a side that does not read the
//! result the call goes.
//!
//! ```text
//! r0 = lookup(m, key)                   if r7 > 3 goto out
//! r6 = r0                      =        r0 = lookup(m, key)
//! if r7 > 3 goto out                    r6 = r0
//! ```
//! (where `out` reads neither r0 nor r6)
//!
//! Which calls these are [`bpf_facts::has_no_effect`] says. All of this is trusted.

use std::borrow::Cow;

use bpf_facts::{Env, Facts, Live, State, has_no_effect, registers_read};
use bpf_isa::{Insn, RegSet};
use bpf_program::{Block, BlockId, Function, Op, ProgKind, Terminator, reverse_postorder};

use crate::superblock::is_side_exit;

/// Calls moved behind branches in one function, at most.
const MOVES: usize = 32;

/// What a call leaves in registers.
const LEFT: RegSet = RegSet::CALLER_SAVED;

/// A sequence, or the code of a superblock, without its calls of this kind. It begins in a state of which the facts are `before`;
/// `live` is read after it (what a jump at its end asks included), and `sides[i]` where it is left at side exit `i`.
pub(crate) fn without_unread_calls<'o>(
    kind: ProgKind,
    env: &Env,
    before: &State,
    ops: &'o [Op],
    sides: &[Live],
    live: RegSet,
) -> Cow<'o, [Op]> {
    if !ops.iter().any(may_go) {
        return Cow::Borrowed(ops);
    }
    let mut state = before.clone();
    let droppable: Vec<bool> = ops
        .iter()
        .enumerate()
        .map(|(i, op)| {
            let is = may_go(op) && has_no_effect(&state, op, env);
            state.step(op, (BlockId(0), i), kind, env);
            is
        })
        .collect();
    let mut exits: Vec<RegSet> = sides.iter().map(|l| l.regs).collect();
    let (kept, _) = backwards(env, ops, &droppable, live, || exits.pop());
    keep(ops, &kept)
}

/// A function without its calls of this kind, those behind branches included.
pub(crate) fn without_unread_calls_of<'f>(f: &'f Function, env: &Env) -> Cow<'f, Function> {
    let is_one = |b: &BlockId| f.block(*b).ops.iter().any(may_go);
    if !f.layout.iter().any(is_one) {
        return Cow::Borrowed(f);
    }
    let mut now = Cow::Borrowed(f);
    for _ in 0..MOVES {
        let droppable = droppable(&now, env);
        let entries = live_at_entries(&now, env, &droppable);
        for b in now.layout.clone() {
            let block = now.block(b);
            let live = live_at_end(&block.term, &entries);
            let (kept, _) = backwards(env, &block.ops, &droppable[b.index()], live, || None);
            if let Cow::Owned(ops) = keep(&block.ops, &kept) {
                now.to_mut().block_mut(b).ops = ops;
            }
        }
        // What went moved the others, so all is asked anew.
        let droppable = self::droppable(&now, env);
        let entries = live_at_entries(&now, env, &droppable);
        let found = now.layout.iter().find_map(|b| Some((*b, behind_branch(&now, env, *b, &droppable, &entries)?)));
        let Some((b, from)) = found else { break };
        move_behind(now.to_mut(), b, from);
    }
    now
}

/// Whether an operation is one of which the facts are worth asking.
fn may_go(op: &Op) -> bool {
    let row = bpf_platform::Effects::of(&op.insn, op.link.is_some());
    row.may_be_left_out() || row.is_lookup_by_key()
}

/// Which operations are calls that go if nobody reads their results. Where no execution comes, none is.
fn droppable(f: &Function, env: &Env) -> Vec<Vec<bool>> {
    let facts = Facts::of(f, env);
    let of_block = |i: u32| {
        let ops = &f.block(BlockId(i)).ops;
        let states = facts.states(f, BlockId(i));
        let is = |(at, op): (usize, &Op)| states.get(at).is_some_and(|s| may_go(op) && has_no_effect(s, op, env));
        ops.iter().enumerate().map(is).collect()
    };
    (0..f.blocks.len() as u32).map(of_block).collect()
}

/// Which of these operations stay, and what is live before them.
fn backwards(
    env: &Env,
    ops: &[Op],
    droppable: &[bool],
    live: RegSet,
    mut side: impl FnMut() -> Option<RegSet>,
) -> (Vec<bool>, RegSet) {
    let mut live = live;
    let mut kept = vec![true; ops.len()];
    for (i, op) in ops.iter().enumerate().rev() {
        let defs = op.insn.defs();
        let is_read = defs.iter().any(|r| live.contains(r));
        if droppable.get(i) == Some(&true) && !LEFT.iter().any(|r| live.contains(r)) {
            kept[i] = false;
            continue;
        }
        // What only computes a number that nobody reads, reads nothing that counts.
        let computes = matches!(
            op.insn,
            Insn::Alu { .. } | Insn::Mov { .. } | Insn::MovSx { .. } | Insn::Neg { .. } | Insn::Endian { .. }
        );
        if computes && op.link.is_none() && !is_read {
            continue;
        }
        if is_side_exit(&op.insn) {
            // One that is not known may lead to whoever reads all.
            live = live.union(side().unwrap_or(RegSet::ALL));
        }
        live = live.minus(defs).union(registers_read(op, env));
    }
    (kept, live)
}

fn keep<'o>(ops: &'o [Op], kept: &[bool]) -> Cow<'o, [Op]> {
    if kept.iter().all(|k| *k) {
        return Cow::Borrowed(ops);
    }
    Cow::Owned(ops.iter().zip(kept).filter(|(_, k)| **k).map(|(op, _)| op.clone()).collect())
}

fn live_at_end(term: &Terminator, entries: &[RegSet]) -> RegSet {
    term.successors().fold(term.uses(), |live, s| live.union(entries[s.index()]))
}

/// What is live where each block begins: the least sets that fit.
fn live_at_entries(f: &Function, env: &Env, droppable: &[Vec<bool>]) -> Vec<RegSet> {
    let mut entries = vec![RegSet::EMPTY; f.blocks.len()];
    let mut order = reverse_postorder(f).0;
    order.reverse();
    order.extend(f.layout.iter().copied().filter(|b| !order.contains(b)).collect::<Vec<_>>());
    let mut changed = true;
    while changed {
        changed = false;
        for &b in &order {
            let block = f.block(b);
            let live = live_at_end(&block.term, &entries);
            let (_, live) = backwards(env, &block.ops, &droppable[b.index()], live, || None);
            changed |= live != entries[b.index()];
            entries[b.index()] = live;
        }
    }
    entries
}

/// From which operation on the end of a block may stand behind its branch, so that a call goes on one side.
fn behind_branch(f: &Function, env: &Env, b: BlockId, droppable: &[Vec<bool>], entries: &[RegSet]) -> Option<usize> {
    let Block { ops, term } = f.block(b);
    let Terminator::Branch { taken, fall, .. } = *term else { return None };
    let droppable = &droppable[b.index()];
    let last = (0..ops.len()).rev().find(|i| droppable[*i])?;
    let sets = ops[last..].iter().fold(RegSet::EMPTY, |s, op| s.union(op.insn.defs()));
    // Records that the loader follows stay in one place.
    let fits = !ops[last..].iter().any(|op| op.is_core() || matches!(op.insn, Insn::Opaque(_)));
    if taken == fall || !fits || term.uses().iter().any(|r| sets.contains(r)) {
        return None;
    }
    let goes = |to: BlockId| !backwards(env, &ops[last..], &droppable[last..], entries[to.index()], || None).0[0];
    (goes(taken) || goes(fall)).then_some(last)
}

/// Lets the operations of a block from this one on stand behind its branch, on both sides.
fn move_behind(f: &mut Function, b: BlockId, from: usize) {
    let moved = f.block_mut(b).ops.split_off(from);
    let mut term = f.block(b).term.clone();
    term.map_successors(|to| {
        let new = BlockId(f.blocks.len() as u32);
        f.blocks.push(Block { ops: moved.clone(), term: Terminator::Goto(to) });
        f.layout.push(new);
        new
    });
    f.block_mut(b).term = term;
}
