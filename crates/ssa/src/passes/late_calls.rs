//! A call that does nothing but give a result is made on the side of a branch that reads it.
//!
//! ```text
//! before: r2 = r10 - 4                     after: if r7 > 3 goto out
//!         r1 = m ll                               r2 = r10 - 4
//!         r0 = call map_lookup_elem               r1 = m ll
//!         if r7 > 3 goto out                      r0 = call map_lookup_elem
//!         r3 = *(u32 *)(r0 + 0)                   r3 = *(u32 *)(r0 + 0)
//! ```
//! With it go what makes its arguments just in front of it, and what stands behind it. Nothing is saved but time, so this is no pass
//! of those that are judged by slots.

use bpf_facts::{BaseId, Effect, Env, Facts, Liveness, Region, has_no_effect, registers_read};
use bpf_isa::{Insn, RegSet};
use bpf_platform::Effects;
use bpf_program::{Block, BlockId, Function, Op, Terminator, predecessors};

/// What moves behind a branch: the operations of a block from one on.
struct Move {
    block: BlockId,
    from: usize,
    /// The call, counted from there.
    call: usize,
}

/// Forms of `f` in which one call is made later, each no longer than `f`; made as they are asked for, since each takes as long as
/// all facts about a function.
pub fn late_calls<'a>(f: &'a Function, env: &'a Env<'_>) -> impl Iterator<Item = Function> + 'a {
    let looks = |op: &Op| Effects::of(&op.insn, op.link.is_some()).may_have_no_effect();
    let has_some = f.layout.iter().flat_map(|b| &f.block(*b).ops).any(looks);
    let facts = has_some.then(|| Facts::of(f, env));
    let blocks = f.layout.iter().filter(move |_| has_some);
    blocks.filter_map(move |b| later(f, env, &find(f, env, facts.as_ref()?, *b)?))
}

/// What may stand behind the branch at the end of a block.
fn find(f: &Function, env: &Env<'_>, facts: &Facts, block: BlockId) -> Option<Move> {
    let Block { ops, term } = f.block(block);
    let Terminator::Branch { taken, fall, .. } = term else { return None };
    let states = facts.states(f, block);
    let call = (0..ops.len()).rev().find(|i| states.get(*i).is_some_and(|s| has_no_effect(s, &ops[*i], env)))?;
    let sets = |op: &Op| !op.insn.defs().intersect(term.uses()).is_empty();
    let stays = |op: &Op| op.is_core() || matches!(op.insn, Insn::Opaque(_)) || sets(op);
    if taken == fall || ops[call..].iter().any(stays) {
        return None;
    }
    let mut needed = registers_read(&ops[call], env);
    let key = Effect::of(&states[call], &ops[call], env).uses.stack;
    let mut from = call;
    while from > 0 && !stays(&ops[from - 1]) {
        let (op, state) = (&ops[from - 1], &states[from - 1]);
        let (makes, kills) = (op.insn.defs(), Effect::of(state, op, env).kills.stack);
        let computes = matches!(
            op.insn,
            Insn::Alu { .. }
                | Insn::Mov { .. }
                | Insn::MovSx { .. }
                | Insn::LoadImm64 { .. }
                | Insn::Neg { .. }
                | Insn::Endian { .. }
        );
        let feeds = match op.insn {
            Insn::Store { .. } => !kills.is_empty() && kills.minus(&key).is_empty(),
            _ => computes && !makes.intersect(needed).is_empty(),
        };
        if !feeds {
            break;
        }
        needed = needed.minus(makes).union(op.insn.uses());
        from -= 1;
    }
    Some(Move { block, from, call: call - from })
}

/// The function after that, if the call goes on one side and nothing is doubled.
fn later(f: &Function, env: &Env<'_>, m: &Move) -> Option<Function> {
    let mut g = f.clone();
    let moved = &f.block(m.block).ops[m.from..];
    let sides = g.move_behind_branch(m.block, m.from);
    let facts = Facts::of(&g, env);
    let live = Liveness::of(&g, env, &facts);
    let kept: Vec<Vec<usize>> = sides.iter().map(|(new, _)| needed(&g, env, &facts, &live, *new)).collect();
    let calls = kept.iter().filter(|k| k.contains(&m.call)).count();
    if calls > 1 || kept.iter().map(Vec::len).sum::<usize>() > moved.len() {
        return None;
    }
    let preds = predecessors(f);
    for ((new, to), kept) in sides.iter().zip(&kept) {
        g.layout.retain(|b| b != new);
        let ops: Vec<Op> = kept.iter().map(|i| moved[*i].clone()).collect();
        let is_fall = matches!(f.block(m.block).term, Terminator::Branch { fall, .. } if fall == *to);
        if ops.is_empty() || preds[to.index()].len() == 1 {
            g.block_mut(*to).ops.splice(0..0, ops);
            g.block_mut(m.block).term.map_successors(|s| if s == *new { *to } else { s });
        } else if is_fall {
            g.block_mut(*new).ops = ops;
            let at = g.layout.iter().position(|b| *b == m.block)?;
            g.layout.insert(at + 1, *new);
        } else {
            return None;
        }
    }
    Some(g)
}

/// Which operations of a block somebody needs.
fn needed(g: &Function, env: &Env<'_>, facts: &Facts, live: &Liveness, b: BlockId) -> Vec<usize> {
    let ops = &g.block(b).ops;
    let states = facts.states(g, b);
    let mut after = *live.before(b, ops.len());
    let mut kept = vec![];
    for (i, op) in ops.iter().enumerate().rev() {
        let Some(state) = states.get(i) else { return (0..ops.len()).collect() };
        let effect = Effect::of(state, op, env);
        let sets_nothing_read = op.insn.defs().intersect(after.regs).is_empty();
        let goes = match op.insn {
            Insn::Call(_) => has_no_effect(state, op, env) && RegSet::CALLER_SAVED.intersect(after.regs).is_empty(),
            Insn::Store { base, off, .. } => {
                let place = state.reg(base).pointer_at();
                let in_frame = matches!(place, Some((Region::Stack, BaseId::Fixed, at)) if at + i64::from(off) < 0);
                in_frame && op.link.is_none() && effect.kills.stack.minus(&after.stack) == effect.kills.stack
            }
            Insn::Alu { .. } | Insn::Mov { .. } | Insn::MovSx { .. } | Insn::LoadImm64 { .. } | Insn::Load { .. } => {
                sets_nothing_read
            }
            _ => false,
        };
        if !goes {
            after = effect.before(&after);
            kept.push(i);
        }
    }
    kept.reverse();
    kept
}
