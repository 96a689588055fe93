//! The judge: are two pieces of code the same under the contract?
//!
//! Three questions, one answer. [`window`] compares two straight-line sequences from the facts at
//! their start to what is live after them; [`functions`] compares two whole functions without loops.
//! The verdict "equal" on a rewrite's question is what [`crate::rewrite`] makes a proven rewrite of.

use bpf_facts::{Env, Facts, Live, Liveness};
use bpf_isa::{Insn, Reg, RegSet};
use bpf_program::{BlockId, Function, Op, ProgKind, Terminator, reverse_postorder};
use bpf_semantics::{branch, exec};

use crate::access::{self, OldAccesses};
use crate::blast::Model;
use crate::context::{Context, Limits, Meaning, Possible, Region, Stats, Switches, VarKey};
use crate::entry::{Entry, register_regions};
use crate::guide::Guide;
use crate::path::{Turns, is_jump};
use crate::presence::{PACKET_STORE, may_lose_a_spill, presence_differs};
use crate::region::{Outcome, execute};
use crate::same::{same_graph, same_text};
use crate::standing::{Computation, ComputationId, Pool, assume};
use crate::symex::{Side, State, Stop, Sym, memory_of};
use crate::term::TermId;

/// Result of a comparison.
#[derive(Debug)]
pub enum Verdict {
    /// Proven the same.
    Equal,
    /// There is an input on which they differ, according to the formula.
    Different(Box<Difference>),
    /// Neither shown, with the reason.
    Unknown(String),
}

impl Verdict {
    /// Whether it is [`Verdict::Equal`].
    pub fn is_equal(&self) -> bool {
        matches!(self, Verdict::Equal)
    }
}

/// A refutation: the formula's assignment, still to be replayed.
pub struct Difference {
    /// The assignment.
    pub model: Model,
    /// The graph it speaks about.
    pub context: Context,
    /// The old side's outcome.
    pub old: Outcome,
    /// The new side's outcome.
    pub new: Outcome,
}

impl std::fmt::Debug for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Difference").finish_non_exhaustive()
    }
}

/// How strictly and how hard to prove.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Limits of one proof.
    pub limits: Limits,
    /// Forbid merging accesses to shared memory.
    pub strict_shared_memory: bool,
    /// What makes it fast.
    pub switches: Switches,
}

/// Compares two straight-line sequences that both start in a state described by `before` and after
/// which only `live` matters. `tail` adds each side's conditional jump, whose truth must agree.
#[allow(clippy::too_many_arguments)]
pub fn window(
    kind: ProgKind,
    env: &Env,
    before: &bpf_facts::State,
    old: &[Op],
    new: &[Op],
    live: &Live,
    tail: Option<(&Terminator, &Terminator)>,
    options: &Options,
) -> (Verdict, Stats) {
    along(kind, env, before, old, new, &[], live, tail, options)
}

/// The same for two sequences with conditional jumps ([`Insn::Jcc`], see [`crate::path`]) in them: a path through
/// several blocks, which may be left at each of them. `sides` says what is live there, jump by jump.
#[allow(clippy::too_many_arguments)]
pub fn along(
    kind: ProgKind,
    env: &Env,
    before: &bpf_facts::State,
    old: &[Op],
    new: &[Op],
    sides: &[Live],
    live: &Live,
    tail: Option<(&Terminator, &Terminator)>,
    options: &Options,
) -> (Verdict, Stats) {
    if let Err(why) = jumps_fit(old, new, sides.len()) {
        return (Verdict::Unknown(why.into()), Stats::default());
    }
    let (result, cx) = attempt(options, true, |cx| {
        cx.frame_private = cx.one_memory && [old, new].iter().all(|ops| frame_stays_private(before, ops, kind, env));
        register_regions(cx, env, old.iter().chain(new));
        let entry = Entry::new(env.maps, kind).state(cx, before);
        let turns = (!sides.is_empty()).then(Turns::default);
        let mut help = Help { before, learn: false, guide: None, turns };
        let (a, ca) = straight(cx, env, kind, Side::Old, entry.clone(), old, tail.map(|t| t.0), &mut help)?;
        cx.old_accesses = Some(OldAccesses::new(&a.log));
        let (b, cb) = straight(cx, env, kind, Side::New, entry, new, tail.map(|t| t.1), &mut help)?;
        let mut extra = Vec::new();
        if let (Some(x), Some(y)) = (ca, cb) {
            let e = cx.terms.eq(x, y);
            extra.push(cx.terms.not(e));
        }
        let mut end = cx.terms.tru();
        if let Some(turns) = &help.turns {
            if let Some(found) = turns.compare(cx, sides, options) {
                return Ok(found);
            }
            end = turns.end().unwrap_or(end);
        }
        let judged = judge(cx, end, &a, &b, &LiveOut::Window(live), &vec![], extra, options);
        Ok((judged, a, b))
    });
    verdict(result, cx)
}

/// Both sequences have so many jumps, which leave the same ways.
pub(crate) fn jumps_fit(old: &[Op], new: &[Op], n: usize) -> Result<(), &'static str> {
    let ways =
        |ops: &[Op]| -> Vec<Option<i32>> { ops.iter().filter(|o| is_jump(o)).map(|o| o.insn.jump_offset()).collect() };
    let (a, b) = (ways(old), ways(new));
    if a.len() != n || a != b || a.iter().any(|off| !matches!(off, Some(0 | 1))) {
        return Err("other jumps than the original's");
    }
    Ok(())
}

/// Tries a proof. Others write shared memory while it is made; if that does not show the two equal, once more with
/// repeated lookups of the old side taken for one. Only then, and only where `refute` asks for it, is a difference looked
/// for that shows where a program runs alone, as in the interpreter: with a memory per region first; with one memory if
/// provenance is unknown somewhere.
fn attempt<T: Settled>(
    options: &Options,
    refute: bool,
    mut f: impl FnMut(&mut Context) -> Result<T, Stop>,
) -> (Result<T, Stop>, Context) {
    let mut ask = |concurrent: bool, one_memory: bool, merge_lookups: bool, forward: bool| {
        let mut cx = Context::new(options.limits).with(options.switches);
        cx.concurrent = concurrent;
        cx.one_memory |= one_memory;
        cx.merge_lookups = merge_lookups;
        cx.forward = forward;
        (f(&mut cx), cx)
    };
    let equal = |result: &Result<T, Stop>| result.as_ref().is_ok_and(T::equal);
    let (result, cx) = ask(true, false, false, false);
    if equal(&result) {
        return (result, cx);
    }
    let (merge, forward) = (cx.lookups_repeated, cx.may_forward);
    let others = [(true, false), (false, true), (true, true)];
    for (merge, forward) in others.into_iter().filter(|(m, f)| (merge || !m) && (forward || !f)) {
        let (other, cx) = ask(true, false, merge, forward);
        if equal(&other) {
            return (other, cx);
        }
    }
    if !refute || !cx.touched_shared || cx.exhausted() {
        return (result, cx);
    }
    let (mut alone, mut context) = ask(false, false, false, false);
    if matches!(alone, Err(Stop::Provenance)) {
        (alone, context) = ask(false, true, false, false);
    }
    context.stats.add(cx.stats);
    match &alone {
        Ok(found) if found.different() => (alone, context),
        _ => {
            // Equal to one that runs alone is not enough.
            let why = match result {
                Err(stop) => stop,
                Ok(found) => Stop::Unmodelled(found.reason()),
            };
            (Err(why), context)
        }
    }
}

/// Results that may say "equal" or "different".
trait Settled {
    fn equal(&self) -> bool;
    fn different(&self) -> bool;
    /// Why it is not "equal", where that is not for a difference.
    fn reason(&self) -> String;
}

/// Why a difference that needs others to write is none that a run would show.
const OTHERS_WRITE: &str = "what others may write meanwhile makes a difference";

impl Settled for (Judged, Outcome, Outcome) {
    fn equal(&self) -> bool {
        matches!(self.0, Judged::Equal)
    }

    fn different(&self) -> bool {
        matches!(self.0, Judged::Different(_))
    }

    fn reason(&self) -> String {
        match &self.0 {
            Judged::Unknown(why) => why.clone(),
            _ => OTHERS_WRITE.into(),
        }
    }
}

impl Settled for Result<(Relation, Known), String> {
    fn equal(&self) -> bool {
        self.is_ok()
    }

    fn different(&self) -> bool {
        false
    }

    fn reason(&self) -> String {
        self.as_ref().err().cloned().unwrap_or_else(|| OTHERS_WRITE.into())
    }
}

/// What the judge said, as the answer to the caller.
fn verdict(result: Result<(Judged, Outcome, Outcome), Stop>, cx: Context) -> (Verdict, Stats) {
    let stats = cx.stats;
    let verdict = match result {
        Err(stop) => Verdict::Unknown(stop.to_string()),
        Ok((Judged::Equal, ..)) => Verdict::Equal,
        Ok((Judged::Unknown(why), ..)) => Verdict::Unknown(why),
        Ok((Judged::Different(model), old, new)) => {
            Verdict::Different(Box::new(Difference { model, context: cx, old, new }))
        }
    };
    (verdict, stats)
}

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

/// How the conditions of two terminators relate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// No condition, or always the same truth.
    Same,
    /// Always the opposite.
    Negated,
    /// Each is constant here; a `goto` counts as true.
    Constant {
        /// Truth on the old side.
        old: bool,
        /// Truth on the new side.
        new: bool,
    },
    /// None of these, as far as could be shown.
    Unrelated,
}

/// A place of the new side that need not hold what the old side has in the same place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// A register.
    Reg(Reg),
    /// A byte of the frame.
    Byte(i64),
}

/// What such a place holds instead.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Source {
    /// A number.
    Const(u64),
    /// The frame pointer plus this.
    Frame(i64),
    /// What the old side has in this register.
    Old(Reg),
    /// What this computation would give, were the old side to carry it out.
    Computed(ComputationId),
}

/// The places in which the two sides differ, and how.
pub type Moved = Vec<(Place, Source)>;

/// Pairs of registers that hold the same on the old side. A new side that knows may use one for the other.
pub type Twins = Vec<(Reg, Reg)>;

/// What is known at a point besides that both sides hold the same in the places that the new one may still use.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Known {
    /// Where the new side holds something else than the old one, and what.
    pub moved: Moved,
    /// What the old side holds twice.
    pub twins: Twins,
}

/// Two straight-line sequences to compare, and from where. On a path both have the same jumps
/// ([`crate::path`]), at which they must turn alike.
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
    /// Computations that would change nothing at the start of the old side.
    pub standing: &'a [ComputationId],
    /// Computations of which moved places may hold the result at the end.
    pub carried: &'a [ComputationId],
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
    guided: bool,
    options: &Options,
) -> (Result<(Relation, Known), String>, Stats) {
    let (result, cx) = attempt(options, false, |cx| compare_in(cx, kind, env, stretch, guided, options));
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
        standing: &[],
        carried: &[],
        pool: &Pool::default(),
    };
    // One attempt, in which the old side chooses nothing.
    let mut cx = Context::new(options.limits).with(options.switches);
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
        if let Place::Reg(r) = *place {
            s.set_reg(
                r,
                match *source {
                    Source::Const(k) => bpf_facts::Value::constant(k),
                    Source::Frame(k) => {
                        bpf_facts::Value::pointer(bpf_facts::Region::Stack, bpf_facts::BaseId::Fixed, k)
                    }
                    Source::Old(q) => before.reg(q).clone(),
                    Source::Computed(id) => {
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
fn displaced(cx: &mut Context, env: &Env, kind: ProgKind, entry: &State, stretch: &Stretch) -> Result<State, Stop> {
    let mut s = entry.clone();
    let frame = cx.var(VarKey::Frame, 64, Meaning::Pointer(Region::Stack));
    for (place, source) in &stretch.known.moved {
        let value = match *source {
            Source::Const(k) => cx.terms.constant(64, k),
            Source::Frame(k) => cx.terms.add_const(frame, k),
            Source::Old(q) => entry.regs[q.index()],
            Source::Computed(id) => {
                let lost = || Stop::Unmodelled("a value that cannot be told any more".into());
                stretch.pool.get(id).value(cx, env, kind, entry).ok_or_else(lost)?
            }
        };
        match *place {
            Place::Reg(r) => s.regs[r.index()] = value,
            Place::Byte(off) => {
                let byte = cx.terms.extract(value, 0, 8);
                let stack = cx.region_id(&Region::Stack);
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
    guided: bool,
    options: &Options,
) -> Result<Result<(Relation, Known), String>, Stop> {
    let Stretch { before, old, new, live, end, .. } = *stretch;
    let (ta, tb) = match end {
        End::Branches(a, b) => (Some(a), Some(b)),
        _ => (None, None),
    };
    let before_new = displaced_facts(kind, env, stretch);
    let named = |ids: &'_ [ComputationId]| ids.iter().flat_map(|id| stretch.pool.get(*id).ops()).collect::<Vec<_>>();
    let named = named(stretch.standing).into_iter().chain(named(stretch.carried));
    register_regions(cx, env, old.iter().chain(new).chain(named));
    let mut entry = Entry::new(env.maps, kind).state(cx, before);
    let standing: Vec<&Computation> = stretch.standing.iter().map(|id| stretch.pool.get(*id)).collect();
    assume(cx, env, kind, before, &mut entry, &standing);
    unify(&mut entry, before, &stretch.known.twins);
    // One name for what is the same, or the two sides use different ones.
    entry.regs = entry.regs.map(|t| cx.better(t));
    if let Some((jump, taken)) = stretch.came {
        let holds = held(cx, env, kind, &entry, jump, taken)?;
        cx.assumptions.extend(holds);
    }
    let entry_new = displaced(cx, env, kind, &entry, stretch)?;
    let turns = old.iter().any(is_jump).then(Turns::default);
    let mut help = Help { before, learn: true, guide: guided.then(Guide::default), turns };
    let (a, ca) = straight(cx, env, kind, Side::Old, entry, old, ta, &mut help)?;
    cx.old_accesses = Some(OldAccesses::new(&a.log));
    let mut help = Help { before: &before_new, ..help };
    let (b, cb) = straight(cx, env, kind, Side::New, entry_new, new, tb, &mut help)?;
    // On a path: where both go its way. That they turn alike may have been shown before, but then by another attempt, in
    // which the old side's reads and lookups found something else.
    if help.turns.as_ref().is_some_and(|turns| !turns.agree(cx)) {
        return Ok(Err("the conditions differ along a path".into()));
    }
    let along = help.turns.as_ref().and_then(Turns::end);
    let guard = along.unwrap_or_else(|| cx.terms.tru());
    let mut moved = Moved::new();
    let live_out = match end {
        End::Exit => LiveOut::Exit,
        _ => LiveOut::Block(live),
    };
    let judged = loop {
        let judged = judge(cx, guard, &a, &b, &live_out, &moved, vec![], options);
        // Where a live place holds something else, it may be something that can be told.
        let Judged::Different(model) = &judged else { break judged };
        let more = match live_out {
            LiveOut::Block(l) => differing(cx, env, kind, &a, &b, l, model, &moved, stretch),
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
        Judged::Different(_) => return Ok(Err("a value differs at a block's end".into())),
        Judged::Unknown(why) => return Ok(Err(why)),
    }
    let twins = match live_out {
        LiveOut::Block(l) => twins(cx, &a, l),
        _ => Twins::new(),
    };
    let known = Known { moved, twins };
    let tru = cx.terms.tru();
    let (x, y) = (ca.unwrap_or(tru), cb.unwrap_or(tru));
    if ca.is_none() && cb.is_none() {
        return Ok(Ok((Relation::Same, known)));
    }
    let e = cx.terms.eq(x, y);
    let ne = cx.terms.not(e);
    if ca.is_some() && cb.is_some() {
        if matches!(cx.possible(guard, &[ne]), Possible::Never) {
            return Ok(Ok((Relation::Same, known)));
        }
        if matches!(cx.possible(guard, &[e]), Possible::Never) {
            return Ok(Ok((Relation::Negated, known)));
        }
    }
    let mut constant = |t: TermId| {
        let nt = cx.terms.not(t);
        if matches!(cx.possible(guard, &[nt]), Possible::Never) {
            Some(true)
        } else if matches!(cx.possible(guard, &[t]), Possible::Never) {
            Some(false)
        } else {
            None
        }
    };
    let relation = match (constant(x), constant(y)) {
        (Some(old), Some(new)) => Relation::Constant { old, new },
        _ => Relation::Unrelated,
    };
    Ok(Ok((relation, known)))
}

/// What a jump that was passed says of the registers behind it.
fn held(
    cx: &mut Context,
    env: &Env,
    kind: ProgKind,
    state: &State,
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
fn unify(entry: &mut State, before: &bpf_facts::State, twins: &Twins) {
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

/// The live places of the new side that differ under `model` and hold something that can be told.
#[allow(clippy::too_many_arguments)]
fn differing(
    cx: &mut Context,
    env: &Env,
    kind: ProgKind,
    a: &Outcome,
    b: &Outcome,
    live: &Live,
    model: &Model,
    moved: &Moved,
    stretch: &Stretch,
) -> Moved {
    let frame = cx.lookup(&VarKey::Frame);
    let mut out = Moved::new();
    let known = |p: Place| moved.iter().any(|(q, _)| *q == p);
    for r in live.regs.iter().filter(|r| !known(Place::Reg(*r)) && *r != Reg::R10) {
        let (x, y) = (a.exit.regs[r.index()], b.exit.regs[r.index()]);
        if x == y || model.eval(&cx.terms, x) == model.eval(&cx.terms, y) {
            continue;
        }
        let (base, off) = cx.terms.split_address(y);
        let source = if let Some(k) = cx.terms.as_const(y) {
            Some(Source::Const(k))
        } else if Some(base) == frame {
            Some(Source::Frame(off))
        } else {
            let mut computed = || {
                let mut here = stretch.carried.iter().filter(|id| stretch.pool.get(**id).dst == r);
                here.find(|id| stretch.pool.get(**id).value(cx, env, kind, &a.exit) == Some(y)).copied()
            };
            let same = Reg::all().find(|q| a.exit.regs[q.index()] == y).map(Source::Old);
            same.or_else(|| computed().map(Source::Computed))
        };
        out.extend(source.map(|s| (Place::Reg(r), s)));
    }
    let Some(frame) = frame else { return out };
    let (mut sa, mut sb) = (a.exit.clone(), b.exit.clone());
    let stack = cx.region_id(&Region::Stack);
    let (x, y) = (memory_of(cx, &mut sa, stack), memory_of(cx, &mut sb, stack));
    if x != y && *cx.region(stack) == Region::Stack {
        for off in live.stack.iter().filter(|o| !known(Place::Byte(*o))) {
            let (p, q) = (cx.terms.select(x, frame, off), cx.terms.select(y, frame, off));
            if let Some(k) = cx.terms.as_const(q)
                && p != q
                && model.eval(&cx.terms, p) != k
            {
                out.push((Place::Byte(off), Source::Const(k)));
            }
        }
    }
    out
}

pub(crate) enum Judged {
    Equal,
    Different(Model),
    Unknown(String),
}

/// What helps to see that values are equal, beyond their terms.
struct Help<'a> {
    /// Facts where both sides start.
    before: &'a bpf_facts::State,
    /// Whether the old side's terms are to show what its facts know.
    learn: bool,
    /// Equal values found by running samples.
    guide: Option<Guide>,
    /// Jumps inside the sequences, if those are paths.
    turns: Option<Turns>,
}

/// Whether an operation may stand inside a block: jumps may not, and what nobody knows has no meaning.
pub(crate) fn has_meaning(op: &Op) -> bool {
    let jump =
        matches!(op.insn, Insn::Jcc { .. } | Insn::Ja { .. } | Insn::MayGoto { .. } | Insn::Exit | Insn::Opaque(_));
    !jump && !op.insn.defs().contains(Reg::R10)
}

fn is_call(op: &Op) -> bool {
    matches!(op.insn, Insn::Call(_) | Insn::CallX { .. })
}

#[allow(clippy::too_many_arguments)]
fn straight(
    cx: &mut Context,
    env: &Env,
    kind: ProgKind,
    side: Side,
    entry: State,
    ops: &[Op],
    tail: Option<&Terminator>,
    help: &mut Help,
) -> Result<(Outcome, Option<TermId>), Stop> {
    let learn = help.learn && side == Side::Old;
    // Calls and pointers of unknown origin need to know whether the frame's address is still a secret.
    let mut facts = Tracked { state: help.before.clone(), at: 0, ops, kind, env };
    let mut sym = Sym::new(cx, env, kind, side, entry);
    for (i, op) in ops.iter().enumerate() {
        if let (Some(turns), true) = (&mut help.turns, is_jump(op)) {
            turns.take(&mut sym, op)?;
            continue;
        }
        if !has_meaning(op) {
            return Err(Stop::Unmodelled(format!("`{}` inside a block", op.insn)));
        }
        let may_see_frame = match op.insn.memory_operand() {
            Some(m) => {
                let base = sym.state.regs[m.base.index()];
                matches!(sym.cx.region_of(base), None | Some(Region::Kernel))
            }
            None => is_call(op),
        };
        if may_see_frame {
            let before = facts.before(i);
            sym.cx.frame_secret = !before.frame_leaked();
            sym.cx.frame_spilled = before.frame_pointer_spilled();
        }
        exec(&mut sym, op)?;
        let facts = learn.then(|| facts.before(i + 1));
        for r in op.insn.defs().iter() {
            let t = &mut sym.state.regs[r.index()];
            *t = match facts {
                Some(facts) => sym.cx.learn(*t, &facts.reg(r).bits()),
                _ => sym.cx.better(*t),
            };
            match (&mut help.guide, side) {
                (Some(guide), Side::Old) => guide.note(*t),
                (Some(guide), Side::New) => *t = guide.canonical(sym.cx, *t),
                _ => {}
            }
        }
    }
    let cond = match tail {
        Some(Terminator::Branch { cond, width, dst, src, .. }) => Some(branch(&mut sym, *cond, *width, *dst, *src)?),
        _ => None,
    };
    let outcome = Outcome {
        exit: sym.state,
        log: sym.log,
        stack_low: sym.stack_low,
        misaligned: sym.misaligned,
        out_of_frame: sym.out_of_frame,
    };
    Ok((outcome, cond))
}

/// The facts along a sequence, stepped as far as somebody asks.
struct Tracked<'a, 'e> {
    state: bpf_facts::State,
    at: usize,
    ops: &'a [Op],
    kind: ProgKind,
    env: &'a Env<'e>,
}

impl Tracked<'_, '_> {
    /// Those before operation `i`, which is none that has been passed.
    fn before(&mut self, i: usize) -> &bpf_facts::State {
        while self.at < i {
            self.state.step(&self.ops[self.at], (BlockId(0), self.at), self.kind, self.env);
            self.at += 1;
        }
        &self.state
    }
}

/// The state behind `ops`, from `entry`, where the facts are `before`.
pub(crate) fn run(
    cx: &mut Context,
    env: &Env,
    kind: ProgKind,
    entry: State,
    ops: &[Op],
    before: &bpf_facts::State,
) -> Result<State, Stop> {
    let mut help = Help { before, learn: true, guide: None, turns: None };
    straight(cx, env, kind, Side::Old, entry, ops, None, &mut help).map(|(outcome, _)| outcome.exit)
}

pub(crate) enum LiveOut<'a> {
    /// Registers and stack bytes that are live after a window of some function.
    Window(&'a Live),
    /// The same after a part of two functions that are compared as wholes.
    Block(&'a Live),
    /// A function's exit: r0.
    Exit,
}

/// Compares what the two sides did where they come under the condition `guard`.
#[allow(clippy::too_many_arguments)]
pub(crate) fn judge(
    cx: &mut Context,
    guard: TermId,
    a: &Outcome,
    b: &Outcome,
    live: &LiveOut,
    moved: &Moved,
    extra: Vec<TermId>,
    options: &Options,
) -> Judged {
    if b.misaligned && !a.misaligned {
        return Judged::Unknown("a stack access that is not aligned to its width".into());
    }
    if a.out_of_frame || b.out_of_frame {
        return Judged::Unknown("a stack access outside the frame".into());
    }
    // Whole functions have been compared as such.
    if b.stack_low < a.stack_low && matches!(live, LiveOut::Window(_)) {
        return Judged::Unknown("more stack than before".into());
    }
    let has_moved = |p: Place| moved.iter().any(|(q, _)| *q == p);
    let mut differ = extra;
    match live {
        LiveOut::Window(l) | LiveOut::Block(l) => {
            for r in l.regs.iter().filter(|r| !has_moved(Place::Reg(*r))) {
                push_difference(cx, a.exit.regs[r.index()], b.exit.regs[r.index()], &mut differ);
            }
        }
        LiveOut::Exit => push_difference(cx, a.exit.regs[0], b.exit.regs[0], &mut differ),
    }
    push_difference(cx, a.exit.world, b.exit.world, &mut differ);
    push_difference(cx, a.exit.ctx_version, b.exit.ctx_version, &mut differ);
    let frame = cx.lookup(&VarKey::Frame);
    let (mut sa, mut sb) = (a.exit.clone(), b.exit.clone());
    for r in 0..cx.region_count() {
        let (x, y) = (memory_of(cx, &mut sa, r), memory_of(cx, &mut sb, r));
        let private = matches!(cx.region(r), Region::Stack | Region::Anything);
        let relevant = |_: &mut Context, base: TermId, off: i64| -> bool {
            if !private || Some(base) != frame {
                return true;
            }
            match live {
                LiveOut::Window(l) | LiveOut::Block(l) => l.stack.contains(off) && !has_moved(Place::Byte(off)),
                LiveOut::Exit => false,
            }
        };
        // Dead stack bytes behind variable offsets are compared all the same: that is only stricter.
        if *cx.region(r) == Region::Stack && matches!(live, LiveOut::Exit) {
            continue;
        }
        // What was done to shared memory while others write shows in the accesses, not in its contents.
        if cx.concurrent && cx.is_shared(r) {
            continue;
        }
        cx.memory_differences(x, y, &relevant, &mut differ);
    }
    match cx.possible(guard, &differ) {
        Possible::Never => {}
        Possible::Sometimes(m) => {
            if std::env::var_os("BPF_OPT_TRACE").is_some() {
                for d in &differ {
                    if m.eval(&cx.terms, *d) != 0 {
                        eprintln!("differs: {}", crate::term::show(&cx.terms, *d, 6));
                    }
                }
                for (i, e) in cx.events.iter().enumerate() {
                    eprintln!(
                        "event {}: before {} {:?} args {} mems {:?}",
                        i + 1,
                        crate::term::show(&cx.terms, e.before, 3),
                        e.what,
                        e.args.iter().map(|a| crate::term::show(&cx.terms, *a, 3)).collect::<Vec<_>>().join("; "),
                        e.mems
                    );
                }
                for i in 0..11 {
                    if a.exit.regs[i] != b.exit.regs[i] {
                        eprintln!(
                            "r{i}: {} / {}",
                            crate::term::show(&cx.terms, a.exit.regs[i], 4),
                            crate::term::show(&cx.terms, b.exit.regs[i], 4)
                        );
                    }
                }
            }
            let some = cx.terms.any(&differ);
            cx.difference = Some(cx.terms.all(&[guard, some]));
            return Judged::Different(m);
        }
        Possible::Unknown => return Judged::Unknown("the solver's limit was reached".into()),
    }
    if !cx.concurrent {
        return Judged::Equal;
    }
    if a.exit.packet_stored != b.exit.packet_stored {
        let mut stored = Vec::new();
        push_difference(cx, a.exit.packet_stored, b.exit.packet_stored, &mut stored);
        if !matches!(cx.possible(guard, &stored), Possible::Never) {
            return Judged::Unknown(PACKET_STORE.into());
        }
    }
    match access::check(cx, &a.log, &b.log, options.strict_shared_memory) {
        Ok(()) => Judged::Equal,
        Err(why) => Judged::Unknown(why),
    }
}

fn push_difference(cx: &mut Context, x: TermId, y: TermId, out: &mut Vec<TermId>) {
    if x == y {
        cx.stats.trivial += 1;
        return;
    }
    let e = cx.terms.eq(x, y);
    out.push(cx.terms.not(e));
}

/// Compares two whole functions: first block against block, which copes with any size and with loops;
/// then, without loops, both as one formula each, which copes with changes across blocks.
pub fn functions(old: &Function, new: &Function, env: &Env, options: &Options) -> (Verdict, Stats) {
    let same = is_same(old, new);
    if !same && deepest_frame_use(new, env) < deepest_frame_use(old, env) {
        return (Verdict::Unknown("more stack than before".into()), Stats::default());
    }
    match functions_that_run(old, new, env, options) {
        (Verdict::Equal, stats) if !same => match presence_differs(old, new, env) {
            Some(why) => (Verdict::Unknown(why.into()), stats),
            None => (Verdict::Equal, stats),
        },
        other => other,
    }
}

/// The same, of functions that are verified already: what counts by being there, for the verifier alone, does not count.
pub fn functions_that_run(old: &Function, new: &Function, env: &Env, options: &Options) -> (Verdict, Stats) {
    if is_same(old, new) {
        return (Verdict::Equal, Stats { trivial: 1, ..Stats::default() });
    }
    // A jump inside a block would be taken for one between the blocks of a path.
    let all = |f: &Function| f.layout.iter().flat_map(|b| &f.block(*b).ops).all(has_meaning);
    if !all(old) || !all(new) {
        return (Verdict::Unknown("a jump, or what nobody knows, inside a block".into()), Stats::default());
    }
    if may_use_arena(old, env) || may_use_arena(new, env) {
        return (Verdict::Unknown(ARENA.into()), Stats::default());
    }
    functions_in(old, new, env, options)
}

fn is_same(old: &Function, new: &Function) -> bool {
    let loses = || may_lose_a_spill(old) || may_lose_a_spill(new);
    same_graph(old, new) && (!loses() || same_text(old, new))
}

fn functions_in(old: &Function, new: &Function, env: &Env, options: &Options) -> (Verdict, Stats) {
    let (reason, mut stats) = match crate::lockstep::prove(old, new, env, options) {
        Ok(stats) => return (Verdict::Equal, stats),
        Err(e) => e,
    };
    if has_loop(old) || has_loop(new) {
        return (Verdict::Unknown(format!("{reason}, and there is a loop")), stats);
    }
    if !fits_one_formula(old) {
        return (Verdict::Unknown(format!("{reason}, and the function is too large for one formula")), stats);
    }
    let (verdict, more) = whole(old, new, env, options);
    stats.add(more);
    (verdict, stats)
}

/// Why nothing is said of what may work on an arena.
pub(crate) const ARENA: &str = "pointers may be to an arena";

/// Whether pointers of `f` may be to an arena: arithmetic on them has 32 bits, and what is accessed may not be there.
/// The program must use an arena map; a pointer then comes from an address-space cast, from that map, a kernel function,
/// a subprogram, or as an argument (`PTR_TO_ARENA` in kernel/bpf/verifier.c).
pub(crate) fn may_use_arena(f: &Function, env: &Env) -> bool {
    let arena = Some(bpf_platform::maps::ARENA);
    // By name: the map table may be the other object's.
    let is_arena = |name: &str| env.maps.iter().any(|m| m.map_type == arena && m.name == name);
    let any_map = env.maps.iter().any(|m| m.map_type == arena);
    // What looks like a number may have been made of one, and a caller's frame may hold one.
    let handed_in = || {
        let live = Liveness::of(f, env, &Facts::of(f, env)).entry(f.entry()).regs;
        let subprogram = f.kind == ProgKind::Subprogram || f.arguments.is_some();
        subprogram && !live.intersect(RegSet::ARGS).is_empty()
    };
    let brings = |op: &Op| match (&op.insn, op.link.as_ref().map(|l| &l.symbol)) {
        (Insn::AddrSpaceCast { .. }, _) => true,
        (_, Some(bpf_program::Symbol::Map { name, .. })) => is_arena(name),
        // Where LLVM puts variables of that address space.
        (_, Some(bpf_program::Symbol::Data { section, .. })) => section.starts_with(".addr_space"),
        (Insn::Call(bpf_isa::Call::Helper(_)), None) => false,
        (Insn::Call(_) | Insn::CallX { .. }, _) => any_map,
        _ => false,
    };
    (any_map && handed_in()) || f.layout.iter().flat_map(|b| &f.block(*b).ops).any(brings)
}

/// The lowest frame offset that the function may access itself, hand to a callee, or make the address of.
fn deepest_frame_use(f: &Function, env: &Env) -> i64 {
    // The kernel counts code that no execution reaches.
    let facts = Facts::of_every_way(f, env);
    let mut low = 0;
    for &b in &f.layout {
        // The last state is the one behind the block's last operation.
        let operands = f.block(b).ops.iter().map(|op| op.insn.memory_operand().map(|m| (m.base, m.off)));
        for (operand, s) in operands.chain([None]).zip(facts.states(f, b)) {
            // Addresses that are made count, too: where paths meet, it may not show where an access goes.
            let places = Reg::all().filter(|r| *r != Reg::R10).map(|r| (r, 0)).chain(operand);
            for (r, off) in places {
                let v = s.reg(r);
                if v.is_stack() {
                    low = low.min(v.num.smin.saturating_add(i64::from(off)));
                }
            }
        }
    }
    low.max(-bpf_facts::FRAME)
}

/// Operations above which a function is not put into one formula.
const WHOLE_LIMIT: usize = 600;

/// Whether a function may be compared as one formula, which needs no correspondence of its blocks with the other's.
pub fn fits_one_formula(f: &Function) -> bool {
    f.blocks.iter().map(|b| b.ops.len()).sum::<usize>() <= WHOLE_LIMIT && !has_loop(f)
}

fn has_loop(f: &Function) -> bool {
    reverse_postorder(f).1
}

pub(crate) fn whole(old: &Function, new: &Function, env: &Env, options: &Options) -> (Verdict, Stats) {
    let (fa, fb) = (Facts::of(old, env), Facts::of(new, env));
    let (la, lb) = (Liveness::of(old, env, &fa), Liveness::of(new, env, &fb));
    let Some(before) = fa.entry(old.entry()) else {
        return (Verdict::Unknown("the entry is unreachable".into()), Stats::default());
    };
    let (result, cx) = attempt(options, true, |cx| {
        cx.frame_secret = never_leaks(old, &fa) && never_leaks(new, &fb);
        cx.frame_private = cx.one_memory && cx.frame_secret;
        register_regions(cx, env, [old, new].into_iter().flat_map(|f| &f.blocks).flat_map(|b| &b.ops));
        let entry = Entry::new(env.maps, old.kind).state(cx, before);
        let a = execute(cx, env, old, Side::Old, entry.clone(), &|b| la.before(b, 0).regs)?;
        cx.old_accesses = Some(OldAccesses::new(&a.log));
        let b = execute(cx, env, new, Side::New, entry, &|b| lb.before(b, 0).regs)?;
        let tru = cx.terms.tru();
        let judged = judge(cx, tru, &a, &b, &LiveOut::Exit, &vec![], vec![], options);
        Ok((judged, a, b))
    });
    verdict(result, cx)
}

/// Whether no state along a sequence lets the frame's address out.
pub(crate) fn frame_stays_private(before: &bpf_facts::State, ops: &[Op], kind: ProgKind, env: &Env) -> bool {
    let mut s = before.clone();
    !s.frame_leaked()
        && ops.iter().enumerate().all(|(i, op)| {
            s.step(op, (BlockId(0), i), kind, env);
            !s.frame_leaked()
        })
}

fn never_leaks(f: &Function, facts: &Facts) -> bool {
    // Leaking is monotone along every path, so the ends of the blocks tell.
    f.layout
        .iter()
        .filter(|b| facts.entry(**b).is_some())
        .all(|b| facts.states(f, *b).last().is_none_or(|s| !s.frame_leaked()))
}
