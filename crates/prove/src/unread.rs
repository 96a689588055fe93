//! Calls that do nothing but give a result, where the new side makes fewer of them.
//!
//! The contract lets the new program leave out such a call if nobody reads its result, or make it where it is needed (rule 1). Where
//! both sides have as many calls of a helper, all of them are events, which both sides make in the same order. Where the new one has
//! fewer ([`Fewer`]):
//!
//! - those whose results nobody reads are taken out of *both* sides before anything is compared;
//! - those of which all in a run give one number are no events, but that number ([`bpf_platform::Effects::is_constant`]).
//!
//! And in whole functions, what stands at the end of a block from such a call on may stand behind its branch instead, once on each
//! side, if it sets no register that the branch asks for: the branch reads nothing but registers ([`with_late_calls`]). On a side
//! that does not read the result the call goes.
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
use bpf_isa::{Call, Insn, RegSet};
use bpf_platform::Effects;
use bpf_platform::helpers::Helper;
use bpf_program::{Block, BlockId, Function, Op, ProgKind, Terminator, reverse_postorder};
use rustc_hash::FxHashMap;

use crate::options::Options;
use crate::superblock::is_side_exit;

/// Rounds in which calls are moved behind branches.
const ROUNDS: usize = 4;

/// What a call leaves in registers.
const LEFT: RegSet = RegSet::CALLER_SAVED;

/// The helpers without effect, by number, of which the new side has fewer calls than the old one.
pub(crate) struct Fewer(Vec<i32>);

impl Fewer {
    pub(crate) fn of<'o>(old: impl IntoIterator<Item = &'o Op>, new: impl IntoIterator<Item = &'o Op>) -> Fewer {
        let mut more: FxHashMap<i32, i64> = FxHashMap::default();
        old.into_iter().filter_map(helper).for_each(|id| *more.entry(id).or_default() += 1);
        if more.is_empty() {
            return Fewer(vec![]);
        }
        new.into_iter().filter_map(helper).for_each(|id| *more.entry(id).or_default() -= 1);
        Fewer(more.into_iter().filter(|(_, n)| *n > 0).map(|(id, _)| id).collect())
    }

    pub(crate) fn of_functions(old: &Function, new: &Function) -> Fewer {
        Fewer::of(operations(old), operations(new))
    }

    /// Those of which `current` has another number of calls than `new`, and `original`, which is proven to do the same as `current`,
    /// no fewer.
    pub(crate) fn by_way_of(current: &Function, original: &Function, new: &Function) -> Fewer {
        let mut either = Fewer::of_functions(current, new);
        let more = Fewer::of_functions(new, original);
        either.0.extend(Fewer::of_functions(new, current).0);
        either.0.retain(|id| !more.0.contains(id));
        either
    }

    /// The same options, with those that give one number all through a run of such a program as no events.
    pub(crate) fn options(&self, kind: ProgKind, options: &Options) -> Options {
        let constant_calls = self.0.iter().copied().filter(|id| is_constant(kind, *id)).collect();
        Options { constant_calls, ..options.clone() }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the helper of this name is one of them.
    pub(crate) fn has_named(&self, name: &str) -> bool {
        Helper::named(name).is_some_and(|h| self.0.contains(&h.id))
    }

    fn has(&self, op: &Op) -> bool {
        helper(op).is_some_and(|id| self.0.contains(&id))
    }

    /// A sequence, or the code of a superblock, without these calls where nobody reads their results. It begins in a state of which
    /// the facts are `before`; `live` is read after it (what a jump at its end asks included), and `sides[i]` where it is left at
    /// side exit `i`.
    pub(crate) fn without<'o>(
        &self,
        kind: ProgKind,
        env: &Env,
        before: &State,
        ops: &'o [Op],
        sides: &[Live],
        live: RegSet,
    ) -> Cow<'o, [Op]> {
        if !ops.iter().any(|op| self.has(op)) {
            return Cow::Borrowed(ops);
        }
        let mut state = before.clone();
        let droppable: Vec<bool> = ops
            .iter()
            .enumerate()
            .map(|(i, op)| {
                let is = self.has(op) && has_no_effect(&state, op, env);
                state.step(op, (BlockId(0), i), kind, env);
                is
            })
            .collect();
        let mut exits: Vec<RegSet> = sides.iter().map(|l| l.regs).collect();
        let (kept, _) = backwards(env, ops, &droppable, live, || exits.pop());
        keep(ops, &kept)
    }

    /// A function without these calls where nobody reads their results.
    pub(crate) fn without_of<'f>(&self, f: &'f Function, env: &Env) -> Cow<'f, Function> {
        if !operations(f).any(|op| self.has(op)) {
            return Cow::Borrowed(f);
        }
        without_unread(f, env, &f.layout, |op| self.has(op))
    }
}

/// A function that makes calls without effect behind branches, where one side does not read the result and so does not make them;
/// `None` if there are none.
pub(crate) fn with_late_calls(f: &Function, env: &Env) -> Option<Function> {
    let mut late: Option<Function> = None;
    for _ in 0..ROUNDS {
        let now = late.as_ref().unwrap_or(f);
        if !operations(now).any(|op| helper(op).is_some()) {
            break;
        }
        let droppable = droppable(now, env, |op| helper(op).is_some());
        let entries = live_at_entries(now, env, &droppable);
        let found: Vec<(BlockId, usize)> =
            now.layout.iter().filter_map(|b| Some((*b, behind_branch(now, env, *b, &droppable, &entries)?))).collect();
        if found.is_empty() {
            break;
        }
        let mut next = now.clone();
        let moved = found.into_iter().flat_map(|(b, from)| next.move_behind_branch(b, from));
        let made: Vec<BlockId> = moved.map(|(new, _)| new).collect();
        late = Some(without_unread(&next, env, &made, |op| helper(op).is_some()).into_owned());
    }
    late
}

fn operations(f: &Function) -> impl Iterator<Item = &Op> {
    f.layout.iter().flat_map(|b| &f.block(*b).ops)
}

/// The number of the helper that a call calls, if it is one that may have no effect.
fn helper(op: &Op) -> Option<i32> {
    let Insn::Call(Call::Helper(id)) = op.insn else { return None };
    let row = Effects::of(&op.insn, op.link.is_some());
    row.may_have_no_effect().then_some(id)
}

fn is_constant(kind: ProgKind, id: i32) -> bool {
    kind.stays_on_its_processor() && Effects::of(&Insn::Call(Call::Helper(id)), false).is_constant()
}

/// A function without the calls without effect in these blocks, of those that `may` go, where nobody reads their results.
fn without_unread<'f>(f: &'f Function, env: &Env, blocks: &[BlockId], may: impl Fn(&Op) -> bool) -> Cow<'f, Function> {
    let mut droppable = droppable(f, env, may);
    let mut others = vec![true; f.blocks.len()];
    blocks.iter().for_each(|b| others[b.index()] = false);
    droppable.iter_mut().zip(others).filter(|(_, other)| *other).for_each(|(calls, _)| calls.fill(false));
    let entries = live_at_entries(f, env, &droppable);
    let mut now = Cow::Borrowed(f);
    for b in blocks {
        let block = f.block(*b);
        let live = live_at_end(&block.term, &entries);
        let (kept, _) = backwards(env, &block.ops, &droppable[b.index()], live, || None);
        if let Cow::Owned(ops) = keep(&block.ops, &kept) {
            now.to_mut().block_mut(*b).ops = ops;
        }
    }
    now
}

/// Which operations are calls that go if nobody reads their results. Where no execution comes, none is.
fn droppable(f: &Function, env: &Env, may: impl Fn(&Op) -> bool) -> Vec<Vec<bool>> {
    let facts = Facts::of(f, env);
    let of_block = |i: u32| {
        let ops = &f.block(BlockId(i)).ops;
        if !ops.iter().any(&may) {
            return vec![false; ops.len()];
        }
        let states = facts.states(f, BlockId(i));
        let is = |(at, op): (usize, &Op)| may(op) && states.get(at).is_some_and(|s| has_no_effect(s, op, env));
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
        if droppable.get(i) == Some(&true) && LEFT.intersect(live).is_empty() {
            kept[i] = false;
            continue;
        }
        // What only computes a number that nobody reads, reads nothing that counts.
        let computes = matches!(
            op.insn,
            Insn::Alu { .. } | Insn::Mov { .. } | Insn::MovSx { .. } | Insn::Neg { .. } | Insn::Endian { .. }
        );
        if computes && op.link.is_none() && defs.intersect(live).is_empty() {
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
    // A question with one answer asks for nothing.
    let asks = !matches!(term, Terminator::Branch { taken, fall, .. } if taken == fall);
    let uses = if asks { term.uses() } else { RegSet::EMPTY };
    term.successors().fold(uses, |live, s| live.union(entries[s.index()]))
}

/// What is live where each block begins: the least sets that fit.
fn live_at_entries(f: &Function, env: &Env, droppable: &[Vec<bool>]) -> Vec<RegSet> {
    let mut entries = vec![RegSet::EMPTY; f.blocks.len()];
    let mut order = reverse_postorder(f).0;
    order.reverse();
    let mut reached = vec![false; f.blocks.len()];
    order.iter().for_each(|b| reached[b.index()] = true);
    order.extend(f.layout.iter().copied().filter(|b| !reached[b.index()]));
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
    if taken == fall || !fits || !term.uses().intersect(sets).is_empty() {
        return None;
    }
    let goes = |to: BlockId| !backwards(env, &ops[last..], &droppable[last..], entries[to.index()], || None).0[0];
    (goes(taken) || goes(fall)).then_some(last)
}
