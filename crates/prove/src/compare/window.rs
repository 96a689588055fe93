//! Comparison of two windows: straight sequences, or superblocks, from the facts at their start to what is live after them.

use std::borrow::Cow;

use bpf_facts::{Env, Live};
use bpf_program::{BlockId, Op, ProgKind, Terminator};

use crate::compare::attempt::attempt;
use crate::compare::exits::SideExits;
use crate::compare::judge::{LiveOut, judge};
use crate::compare::verdict::{Verdict, verdict};
use crate::options::{Options, Stats};
use crate::superblock::ways;
use crate::symbolic::access::OldAccesses;
use crate::symbolic::entry::{Entry, register_regions};
use crate::symbolic::straight::{Help, straight};
use crate::symbolic::symex::Side;
use crate::unread::Fewer;

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

/// The same for the code of two superblocks ([`crate::superblock`]), which may be left at each of their side exits. `sides`
/// says what is live there, exit by exit.
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
    if let Err(why) = exits_fit(old, new, sides.len()) {
        return (Verdict::Unknown(why.into()), Stats::default());
    }
    let whole = (old, new);
    let fewer = Fewer::of(old, new);
    if fewer.is_empty() {
        return compare(kind, env, before, whole, sides, live, tail, options);
    }
    let without = |ops, tail: Option<&Terminator>| {
        let live = tail.map_or(live.regs, |t| live.regs.union(t.uses()));
        fewer.without(kind, env, before, ops, sides, live)
    };
    let (old, new) = (without(old, tail.map(|t| t.0)), without(new, tail.map(|t| t.1)));
    let relaxed = fewer.options(kind, options);
    let is_whole = matches!((&old, &new), (Cow::Borrowed(_), Cow::Borrowed(_))) && relaxed.constant_calls.is_empty();
    let found = compare(kind, env, before, (&old, &new), sides, live, tail, &relaxed);
    if is_whole || found.0.is_equal() {
        return found;
    }
    let (verdict, mut stats) = compare(kind, env, before, whole, sides, live, tail, options);
    stats.add(found.1);
    if verdict.is_equal() { (verdict, stats) } else { (found.0, stats) }
}

#[allow(clippy::too_many_arguments)]
fn compare(
    kind: ProgKind,
    env: &Env,
    before: &bpf_facts::State,
    (old, new): (&[Op], &[Op]),
    sides: &[Live],
    live: &Live,
    tail: Option<(&Terminator, &Terminator)>,
    options: &Options,
) -> (Verdict, Stats) {
    let (result, cx) = attempt(options, true, |cx| {
        cx.frame_apart = cx.one_memory && [old, new].iter().all(|ops| frame_stays_private(before, ops, kind, env));
        cx.data_read_before = before.has_packet_data();
        register_regions(cx, env, old.iter().chain(new));
        let entry = Entry::new(env.maps, kind).state(cx, before);
        let exits = (!sides.is_empty()).then(SideExits::default);
        let mut help = Help { before, learn: false, sweep: None, exits };
        let (mut a, ca) = straight(cx, env, kind, Side::Old, entry.clone(), old, tail.map(|t| t.0), &mut help)?;
        // What is known of the frame was written there: it is that deep already.
        let known = before.stack_values().map(|(off, _)| off);
        a.stack_low = known.fold(a.stack_low, i64::min);
        cx.old_accesses = Some(OldAccesses::new(&a.log));
        let (b, cb) = straight(cx, env, kind, Side::New, entry, new, tail.map(|t| t.1), &mut help)?;
        let mut extra = Vec::new();
        if let (Some(x), Some(y)) = (ca, cb) {
            let e = cx.terms.eq(x, y);
            extra.push(cx.terms.not(e));
        }
        let mut end = cx.terms.tru();
        if let Some(exits) = &help.exits {
            if let Some(found) = exits.compare(cx, sides, options) {
                return Ok(found);
            }
            end = exits.end().unwrap_or(end);
        }
        let judged = judge(cx, end, &a, &b, &LiveOut::Window(live), &vec![], extra, options);
        Ok((judged, a, b))
    });
    verdict(result, cx)
}

/// Both sequences have so many side exits, which leave the same ways, and no other jumps.
pub(crate) fn exits_fit(old: &[Op], new: &[Op], n: usize) -> Result<(), &'static str> {
    match (ways(old), ways(new)) {
        (Some(a), Some(b)) if a == b && a.len() == n => Ok(()),
        _ => Err("other jumps than the original's"),
    }
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
