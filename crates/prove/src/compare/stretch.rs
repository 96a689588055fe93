//! Comparison of two stretches of whole functions, from one relation of the two sides to the next.

use bpf_facts::{Env, Live};
use bpf_isa::{Insn, Reg, Src};
use bpf_program::{BlockId, Op, ProgKind, Terminator};
use bpf_semantics::branch;

use crate::compare::attempt::attempt;
use crate::compare::exits::SideExits;
use crate::compare::judge::{Judged, LiveOut, judge};
use crate::compare::relation::{Known, Location, Origin, Relation, Relocations, Spill, Twins, is_read};
use crate::function::expression::{Expression, ExpressionId, Pool, assume};
use crate::options::{Options, Stats};
use crate::solver::blast::Model;
use crate::solver::sweep::Sweep;
use crate::superblock::side_exits;
use crate::symbolic::access::OldAccesses;
use crate::symbolic::acyclic::Outcome;
use crate::symbolic::context::{Context, SatResult};
use crate::symbolic::entry::{Entry, register_regions};
use crate::symbolic::state::{SymbolicState, memory_of};
use crate::symbolic::straight::{Help, straight};
use crate::symbolic::symex::packets::is_reach;
use crate::symbolic::symex::{Side, Stop, Sym};
use crate::symbolic::variables::{Meaning, MemoryRegion, VarKey};
use crate::term::TermId;

/// How the two sequences of [`compare`] end.
#[derive(Clone, Copy, Debug)]
pub enum End<'t> {
    /// In the middle of things.
    Open,
    /// At `exit`: all 64 bits of r0 count, of a program, too. One that is tail-called from a subprogram gives them
    /// back to that one's caller.
    Exit,
    /// At these terminators, of which at least one is a conditional jump.
    Branches(&'t Terminator, &'t Terminator),
}

/// Two straight-line sequences to compare, and from where. Those of superblocks have the same side exits
/// ([`crate::superblock`]), at which they must turn alike.
#[derive(Clone, Copy)]
pub struct Stretch<'a> {
    /// Facts of the old side at the start.
    pub before: &'a bpf_facts::State,
    /// What else is known at the start.
    pub known: &'a Known,
    /// The jump that the old side came by, and whether it was taken: its condition holds of the registers at the start.
    pub came: Option<(&'a Terminator, bool)>,
    /// The old side's operations.
    pub old: &'a [Op],
    /// The new side's.
    pub new: &'a [Op],
    /// What is live on the new side at the end.
    pub live: &'a Live,
    /// How the two end.
    pub end: End<'a>,
    /// Expressions that would change nothing at the start of the old side.
    pub available: &'a [ExpressionId],
    /// Expressions of which moved places may hold the result at the end.
    pub carried: &'a [ExpressionId],
    /// Sums of registers that moved places are taken to hold rather than anything else.
    pub sums: &'a [ExpressionId],
    /// Where their names are explained.
    pub pool: &'a Pool,
}

/// Compares two straight-line sequences; says how their conditions relate, and what is then known
/// of the two sides.
///
/// # Errors
/// Why the sequences could not be shown equal.
pub fn compare(
    kind: ProgKind,
    env: &Env,
    stretch: &Stretch,
    swept: bool,
    options: &Options,
) -> (Result<(Relation, Known), String>, Stats) {
    let (result, cx) = attempt(options, false, |cx| compare_in(cx, kind, env, stretch, swept, options));
    (result.unwrap_or_else(|stop| Err(stop.to_string())), cx.stats)
}

/// What a jump's condition always is, whatever others write and whatever lookups find, if it is always the same.
pub fn constant_condition(
    kind: ProgKind,
    env: &Env,
    before: &bpf_facts::State,
    ops: &[Op],
    term: &Terminator,
    options: &Options,
) -> (Option<bool>, Stats) {
    let Terminator::Branch { taken, .. } = *term else { return (None, Stats::default()) };
    let (nothing, nowhere) = (Live::default(), Terminator::Goto(taken));
    let stretch = Stretch {
        before,
        known: &Known::default(),
        came: None,
        old: ops,
        new: ops,
        live: &nothing,
        end: End::Branches(term, &nowhere),
        available: &[],
        carried: &[],
        sums: &[],
        pool: &Pool::default(),
    };
    // One attempt, in which the old side chooses nothing.
    let mut cx = Context::of(options);
    cx.mend_answers(true);
    cx.concurrent = true;
    let found = match compare_in(&mut cx, kind, env, &stretch, false, options) {
        Ok(Ok((Relation::Constant { old, .. }, _))) => Some(old),
        _ => None,
    };
    (found, cx.stats)
}

/// The facts of the old side as they hold on the new one, as far as they tell where the frame's address is.
fn displaced_facts(kind: ProgKind, env: &Env, stretch: &Stretch) -> bpf_facts::State {
    let before = stretch.before;
    let mut s = before.clone();
    for (place, source) in &stretch.known.moved {
        // A byte that is a number holds no part of an address, whatever the facts think of it.
        if let Location::Reg(r) = *place {
            s.set_reg(
                r,
                match *source {
                    Origin::Const(k) => bpf_facts::Value::constant(k),
                    Origin::Frame(k) => {
                        bpf_facts::Value::pointer(bpf_facts::Region::Stack, bpf_facts::BaseId::Fixed, k)
                    }
                    Origin::Old(q) => before.reg(q).clone(),
                    Origin::Computed(id) => {
                        let c = stretch.pool.get(id);
                        let mut then = before.clone();
                        c.ops().iter().enumerate().for_each(|(i, op)| then.step(op, (BlockId(0), i), kind, env));
                        then.reg(c.dst).clone()
                    }
                },
            );
        }
    }
    s
}

/// The new side's entry state.
fn displaced(
    cx: &mut Context,
    env: &Env,
    kind: ProgKind,
    entry: &SymbolicState,
    stretch: &Stretch,
) -> Result<SymbolicState, Stop> {
    let mut s = entry.clone();
    let frame = cx.var(VarKey::Frame, 64, Meaning::Pointer(MemoryRegion::Stack));
    for (place, source) in &stretch.known.moved {
        let value = match *source {
            Origin::Const(k) => cx.terms.constant(64, k),
            Origin::Frame(k) => cx.terms.add_const(frame, k),
            Origin::Old(q) => entry.regs[q.index()],
            Origin::Computed(id) => {
                let lost = || Stop::Unmodelled("a value that cannot be told any more".into());
                stretch.pool.get(id).value(cx, env, kind, entry).ok_or_else(lost)?
            }
        };
        match *place {
            Location::Reg(r) => s.regs[r.index()] = value,
            Location::Byte(off) => {
                let byte = cx.terms.extract(value, 0, 8);
                let stack = cx.region_id(&MemoryRegion::Stack);
                let m = memory_of(cx, &mut s, stack);
                s.mems[stack as usize] = Some(cx.terms.store_bytes(m, frame, &[(off, byte)]));
            }
        }
    }
    Ok(s)
}

fn compare_in(
    cx: &mut Context,
    kind: ProgKind,
    env: &Env,
    stretch: &Stretch,
    swept: bool,
    options: &Options,
) -> Result<Result<(Relation, Known), String>, Stop> {
    let Stretch { before, old, new, live, end, .. } = *stretch;
    let (ta, tb) = match end {
        End::Branches(a, b) => (Some(a), Some(b)),
        _ => (None, None),
    };
    let before_new = displaced_facts(kind, env, stretch);
    let named = |ids: &'_ [ExpressionId]| ids.iter().flat_map(|id| stretch.pool.get(*id).ops()).collect::<Vec<_>>();
    let named = [stretch.available, stretch.carried, stretch.sums].into_iter().flat_map(named);
    register_regions(cx, env, old.iter().chain(new).chain(named));
    let mut entry = Entry::new(env.maps, kind).state(cx, before);
    let available: Vec<&Expression> = stretch.available.iter().map(|id| stretch.pool.get(*id)).collect();
    assume(cx, env, kind, before, &mut entry, &available);
    unify(&mut entry, before, &stretch.known.twins);
    fill(cx, &mut entry, before, &stretch.known.spills);
    // One name for what is the same, or the two sides use different ones.
    entry.regs = entry.regs.map(|t| cx.better(t));
    if let Some((jump, taken)) = stretch.came {
        let holds = held(cx, env, kind, &entry, jump, taken)?;
        cx.assumptions.extend(holds);
    }
    let mut entry_new = displaced(cx, env, kind, &entry, stretch)?;
    if let Some((r, k)) = stretch.known.ahead {
        let start = r.map_or_else(|| cx.terms.constant(64, 0), |r| entry.regs[r.index()]);
        entry_new.reach = cx.terms.add_const(start, k);
        let is_reach = is_reach(cx, entry_new.reach);
        cx.assumptions.push(is_reach);
    }
    let exits = (side_exits(old) > 0).then(SideExits::default);
    let mut help = Help { before, learn: true, sweep: swept.then(Sweep::default), exits };
    // Bytes of the packet that the old side has accessed on its way here.
    let mut touched = Vec::new();
    for c in &available {
        touched.extend(c.packet_bytes(cx, env, kind, &entry));
    }
    cx.touched_before = touched;
    let (a, ca) = straight(cx, env, kind, Side::Old, entry, old, ta, &mut help)?;
    cx.old_accesses = Some(OldAccesses::new(&a.log));
    let mut help = Help { before: &before_new, ..help };
    let (mut b, cb) = straight(cx, env, kind, Side::New, entry_new, new, tb, &mut help)?;
    // On a path: where both go its way. That they turn alike may have been shown before, but then by another attempt, in
    // which the old side's reads and lookups found something else.
    if help.exits.as_ref().is_some_and(|exits| !exits.agree(cx)) {
        return Ok(Err("the conditions differ along a path".into()));
    }
    let along = help.exits.as_ref().and_then(SideExits::end);
    let guard = along.unwrap_or_else(|| cx.terms.tru());
    let mut moved = Relocations::new();
    let live_out = match end {
        End::Exit => LiveOut::Exit,
        _ => LiveOut::Block(live),
    };
    let ahead = match live_out {
        LiveOut::Block(_) => is_ahead(cx, guard, &a.exit, &b.exit),
        _ => None,
    };
    if ahead.is_some() {
        b.exit.reach = a.exit.reach;
    }
    let judged = loop {
        let judged = judge(cx, guard, &a, &b, &live_out, &moved, vec![], options);
        // Where a live place holds something else, it may be something that can be told.
        let Judged::Different(model) = &judged else { break judged };
        let more = match live_out {
            LiveOut::Block(l) => differing(cx, env, kind, guard, &a, &b, l, model, &moved, stretch),
            _ => vec![],
        };
        if more.is_empty() {
            break judged;
        }
        moved.extend(more);
    };
    moved.sort_unstable();
    match judged {
        Judged::Equal => {}
        Judged::Different(model) => {
            let place = differing_place(cx, &a, &b, &live_out, &moved, &model);
            return Ok(Err(format!("{place} differs at a block's end")));
        }
        Judged::Unknown(why) => return Ok(Err(why)),
    }
    let known = match live_out {
        LiveOut::Block(l) => Known { moved, twins: twins(cx, &a, l), spills: spills(cx, &a, l, stretch), ahead },
        _ => Known { moved, ..Known::default() },
    };
    let tru = cx.terms.tru();
    let (x, y) = (ca.unwrap_or(tru), cb.unwrap_or(tru));
    if ca.is_none() && cb.is_none() {
        return Ok(Ok((Relation::Same, known)));
    }
    let e = cx.terms.eq(x, y);
    let ne = cx.terms.not(e);
    if ca.is_some() && cb.is_some() {
        if matches!(cx.check_sat(guard, &[ne]), SatResult::Unsat) {
            // That an element is there no facts tell: the test for it stays for the verifier.
            let decided = if cx.found_element { constant(cx, guard, x) } else { None };
            let relation = decided.map_or(Relation::Same, |c| Relation::Constant { old: c, new: c });
            return Ok(Ok((relation, known)));
        }
        if matches!(cx.check_sat(guard, &[e]), SatResult::Unsat) {
            return Ok(Ok((Relation::Negated, known)));
        }
    }
    let relation = match (constant(cx, guard, x), constant(cx, guard, y)) {
        (Some(old), Some(new)) => Relation::Constant { old, new },
        _ => Relation::Unrelated,
    };
    Ok(Ok((relation, known)))
}

/// How long the new side has found the packet to be, if the old side has not found as much yet and the length can be told.
/// What the old side has found counts for nothing from here on: where the two are found to have asked for the same in the
/// end, that is at least what the new side has asked for here, and so more than the old side has.
fn is_ahead(cx: &mut Context, guard: TermId, old: &SymbolicState, new: &SymbolicState) -> Option<(Option<Reg>, i64)> {
    if old.reach == new.reach {
        return None;
    }
    let less = cx.terms.ult(old.reach, new.reach);
    let more = cx.terms.ult(new.reach, old.reach);
    // The same after all, or less.
    if matches!(cx.check_sat(guard, &[less]), SatResult::Unsat)
        || !matches!(cx.check_sat(guard, &[more]), SatResult::Unsat)
    {
        return None;
    }
    let case = cx.case(guard)?;
    let zero = cx.terms.constant(64, 0);
    let places = Reg::all().filter(|r| *r != Reg::R10).map(|r| (Some(r), old.regs[r.index()]));
    let mut starts = std::iter::once((None, zero)).chain(places);
    starts.find_map(|(r, start)| cx.distance(guard, &case, start, new.reach).map(|k| (r, k)))
}

/// What a condition always is, if it is always the same.
fn constant(cx: &mut Context, guard: TermId, t: TermId) -> Option<bool> {
    let nt = cx.terms.not(t);
    if matches!(cx.check_sat(guard, &[nt]), SatResult::Unsat) {
        Some(true)
    } else if matches!(cx.check_sat(guard, &[t]), SatResult::Unsat) {
        Some(false)
    } else {
        None
    }
}

/// What a jump that was passed says of the registers behind it.
fn held(
    cx: &mut Context,
    env: &Env,
    kind: ProgKind,
    state: &SymbolicState,
    jump: &Terminator,
    taken: bool,
) -> Result<Option<TermId>, Stop> {
    let Terminator::Branch { cond, width, dst, src, .. } = *jump else { return Ok(None) };
    let mut sym = Sym::new(cx, env, kind, Side::Old, state.clone());
    let condition = branch(&mut sym, cond, width, dst, src)?;
    let holds = if taken { condition } else { cx.terms.not(condition) };
    // That cannot be, so no execution gets here; nothing is to be concluded from it.
    Ok((cx.terms.as_const(holds) != Some(0)).then_some(holds))
}

/// Registers that hold the same are given one value, that of the one of which most is known.
fn unify(entry: &mut SymbolicState, before: &bpf_facts::State, twins: &Twins) {
    let pointer = |r: Reg| match &before.reg(r).kind {
        bpf_facts::Kind::Pointer { nullable, .. } => 1 + u8::from(!nullable),
        _ => 0,
    };
    let mut values = entry.regs;
    for r in Reg::all() {
        let paired = |&(p, q): &(Reg, Reg)| if p == r { Some(q) } else { (q == r).then_some(p) };
        let best = twins.iter().filter_map(paired).max_by_key(|q| (pointer(*q), *q));
        if let Some(best) = best.filter(|q| (pointer(*q), *q) > (pointer(r), r)) {
            values[r.index()] = entry.regs[best.index()];
        }
    }
    entry.regs = values;
}

/// The registers that hold the same at the end of the old side, one of each pair live on the new one. Of numbers and
/// the frame's addresses the facts tell.
fn twins(cx: &mut Context, a: &Outcome, live: &Live) -> Twins {
    let frame = cx.lookup(&VarKey::Frame);
    let mut told = |t: TermId| cx.terms.as_const(t).is_some() || Some(cx.terms.split_address(t).0) == frame;
    let regs: Vec<Reg> = Reg::all().filter(|r| *r != Reg::R10).collect();
    let mut out = Twins::new();
    for (i, p) in regs.iter().enumerate() {
        let value = a.exit.regs[p.index()];
        if told(value) {
            continue;
        }
        let same = regs[i + 1..].iter().filter(|q| a.exit.regs[q.index()] == value);
        out.extend(same.filter(|q| live.regs.contains(*p) || live.regs.contains(**q)).map(|q| (*p, *q)));
    }
    out
}

/// Places of the frame that hold what a register does are given its value.
fn fill(cx: &mut Context, entry: &mut SymbolicState, before: &bpf_facts::State, spills: &[Spill]) {
    if spills.is_empty() {
        return;
    }
    let frame = cx.var(VarKey::Frame, 64, Meaning::Pointer(MemoryRegion::Stack));
    let stack = cx.region_id(&MemoryRegion::Stack);
    // Of several registers, the one of which most is known comes last.
    let mut spills = spills.to_vec();
    spills.sort_unstable_by_key(|(r, off, n)| (*off, *n, before.reg(*r).kind != bpf_facts::Kind::Scalar, *r));
    for (r, off, n) in spills {
        let value = entry.regs[r.index()];
        let bytes: Vec<(i64, TermId)> = (off..).zip(cx.bytes_of(value, n)).collect();
        let memory = memory_of(cx, entry, stack);
        entry.mems[stack as usize] = Some(cx.terms.store_bytes(memory, frame, &bytes));
    }
}

/// Places in the frame that hold the same as a register at the end of the old side: of those that it stores registers to, and
/// of which that was known, those that the new side may read.
fn spills(cx: &mut Context, a: &Outcome, live: &Live, stretch: &Stretch) -> Vec<Spill> {
    let Some(frame) = cx.lookup(&VarKey::Frame) else { return vec![] };
    let stored = stretch.old.iter().filter_map(|op| match op.insn {
        Insn::Store { size, base: Reg::R10, off, src: Src::Reg(_) } => Some((i64::from(off), size.bytes())),
        _ => None,
    });
    let mut places: Vec<(i64, u32)> = stored.chain(stretch.known.spills.iter().map(|(_, off, n)| (*off, *n))).collect();
    places.sort_unstable();
    places.dedup();
    places.retain(|(off, n)| is_read(*off, *n, &live.stack));
    if places.is_empty() {
        return vec![];
    }
    let stack = cx.region_id(&MemoryRegion::Stack);
    if *cx.region(stack) != MemoryRegion::Stack {
        return vec![];
    }
    let mut exit = a.exit.clone();
    let memory = memory_of(cx, &mut exit, stack);
    let mut out = Vec::new();
    for (off, n) in places {
        let bytes: Vec<TermId> = (0..n).map(|i| cx.terms.select(memory, frame, off + i64::from(i))).collect();
        // Of numbers the facts tell.
        if bytes.iter().all(|b| cx.terms.as_const(*b).is_some()) {
            continue;
        }
        for r in Reg::all().filter(|r| *r != Reg::R10) {
            let value = exit.regs[r.index()];
            if cx.bytes_of(value, n) == bytes {
                out.push((r, off, n));
            }
        }
    }
    out
}

/// Names a live place that differs under `model`.
fn differing_place(
    cx: &mut Context,
    a: &Outcome,
    b: &Outcome,
    live: &LiveOut,
    moved: &Relocations,
    model: &Model,
) -> String {
    let known = |p: Location| moved.iter().any(|(q, _)| *q == p);
    let LiveOut::Block(live) = live else { return "r0".into() };
    let value = |cx: &Context, t: TermId| model.eval(&cx.terms, t);
    let mut regs = live.regs.iter().filter(|r| !known(Location::Reg(*r)));
    if let Some(r) = regs.find(|r| value(cx, a.exit.regs[r.index()]) != value(cx, b.exit.regs[r.index()])) {
        return r.to_string();
    }
    if let Some(frame) = cx.lookup(&VarKey::Frame) {
        let (mut sa, mut sb) = (a.exit.clone(), b.exit.clone());
        let stack = cx.region_id(&MemoryRegion::Stack);
        let (x, y) = (memory_of(cx, &mut sa, stack), memory_of(cx, &mut sb, stack));
        for off in live.stack.iter().filter(|o| !known(Location::Byte(*o))) {
            let (p, q) = (cx.terms.select(x, frame, off), cx.terms.select(y, frame, off));
            if value(cx, p) != value(cx, q) {
                return format!("the stack's byte at {off}");
            }
        }
    }
    "memory or a call".into()
}

/// The live places of the new side that differ under `model` and hold something that can be told.
#[allow(clippy::too_many_arguments)]
fn differing(
    cx: &mut Context,
    env: &Env,
    kind: ProgKind,
    guard: TermId,
    a: &Outcome,
    b: &Outcome,
    live: &Live,
    model: &Model,
    moved: &Relocations,
    stretch: &Stretch,
) -> Relocations {
    let frame = cx.lookup(&VarKey::Frame);
    let mut out = Relocations::new();
    let known = |p: Location| moved.iter().any(|(q, _)| *q == p);
    for r in live.regs.iter().filter(|r| !known(Location::Reg(*r)) && *r != Reg::R10) {
        let (x, y) = (a.exit.regs[r.index()], b.exit.regs[r.index()]);
        if x == y || model.eval(&cx.terms, x) == model.eval(&cx.terms, y) {
            continue;
        }
        let (base, off) = cx.terms.split_address(y);
        let source = if let Some(k) = cx.terms.as_const(y) {
            Some(Origin::Const(k))
        } else if Some(base) == frame {
            Some(Origin::Frame(off))
        } else {
            let is_it = |cx: &mut Context, x: TermId, proven: bool| {
                if x == y || !proven || model.eval(&cx.terms, x) != model.eval(&cx.terms, y) {
                    return x == y;
                }
                // Known bits may have given one of them another form.
                let same = cx.terms.eq(x, y);
                let differ = cx.terms.not(same);
                matches!(cx.check_sat(guard, &[differ]), SatResult::Unsat)
            };
            let mut computed = |ids: &[ExpressionId], proven: bool| {
                let mut here = ids.iter().filter(|id| stretch.pool.get(**id).dst == r);
                let is_here = |id: &&ExpressionId| {
                    let value = stretch.pool.get(**id).value(cx, env, kind, &a.exit);
                    value.is_some_and(|x| is_it(cx, x, proven))
                };
                here.find(is_here).copied()
            };
            let sum = computed(stretch.sums, true).map(Origin::Computed);
            let same = || Reg::all().find(|q| a.exit.regs[q.index()] == y).map(Origin::Old);
            sum.or_else(same).or_else(|| computed(stretch.carried, false).map(Origin::Computed))
        };
        out.extend(source.map(|s| (Location::Reg(r), s)));
    }
    let Some(frame) = frame else { return out };
    let (mut sa, mut sb) = (a.exit.clone(), b.exit.clone());
    let stack = cx.region_id(&MemoryRegion::Stack);
    let (x, y) = (memory_of(cx, &mut sa, stack), memory_of(cx, &mut sb, stack));
    if x != y && *cx.region(stack) == MemoryRegion::Stack {
        for off in live.stack.iter().filter(|o| !known(Location::Byte(*o))) {
            let (p, q) = (cx.terms.select(x, frame, off), cx.terms.select(y, frame, off));
            if let Some(k) = cx.terms.as_const(q)
                && p != q
                && model.eval(&cx.terms, p) != k
            {
                out.push((Location::Byte(off), Origin::Const(k)));
            }
        }
    }
    out
}
