//! Comparison of two whole functions: by bisimulation first, then as one formula.

use std::borrow::Cow;

use bpf_facts::{Env, deepest_frame_use};
use bpf_program::Function;

use crate::arena::{ARENA, may_use_arena};
use crate::compare::verdict::Verdict;
use crate::function::same::{same_graph, same_text};
use crate::function::whole::{fits_one_formula, has_loop, whole};
use crate::options::{Options, Stats};
use crate::presence::{presence_differs, spills_around_a_fast_call};
use crate::symbolic::symex::has_meaning;
use crate::unread::{Fewer, with_late_calls};

/// Compares two whole functions: first block against block, which copes with any size and with loops;
/// then, without loops, both as one formula each, which copes with changes across blocks.
pub fn functions(old: &Function, new: &Function, env: &Env, options: &Options) -> (Verdict, Stats) {
    if [old, new].iter().any(|f| f.byte_order != env.byte_order) {
        return (Verdict::Unknown(OTHER_ORDER.into()), Stats::default());
    }
    let same = is_same(old, new);
    if !same && deepest_frame_use(new, env) < deepest_frame_use(old, env) {
        return (Verdict::Unknown(MORE_STACK.into()), Stats::default());
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
    match [old, new].into_iter().find_map(|f| not_comparable(f, env)) {
        Some(why) => (Verdict::Unknown(why.into()), Stats::default()),
        None => functions_in(old, new, &Fewer::of_functions(old, new), env, options),
    }
}

/// Compares `original` with `new`, where `current` has been proven to do what `original` does: only the rest of the way is
/// left. What tells that rest apart is not said of where it began: never [`Verdict::Different`].
pub(crate) fn by_way_of(
    current: &Function,
    original: &Function,
    new: &Function,
    env: &Env,
    options: &Options,
) -> (Verdict, Stats) {
    let unknown = |why: &str, stats: Stats| (Verdict::Unknown(why.into()), stats);
    if let Some(why) = [original, current, new].into_iter().find_map(|f| not_comparable(f, env)) {
        return unknown(why, Stats::default());
    }
    let depth = deepest_frame_use(new, env);
    if [original, current].into_iter().any(|f| depth < deepest_frame_use(f, env)) {
        return unknown(MORE_STACK, Stats::default());
    }
    match functions_in(current, new, &Fewer::by_way_of(current, original, new), env, options) {
        (Verdict::Equal, stats) => match [original, current].into_iter().find_map(|f| presence_differs(f, new, env)) {
            Some(why) => unknown(why, stats),
            None => (Verdict::Equal, stats),
        },
        (Verdict::Different(_), stats) => unknown("the rest of the way differs", stats),
        other => other,
    }
}

/// Why nothing can be said of a function, if nothing can.
fn not_comparable(f: &Function, env: &Env) -> Option<&'static str> {
    if f.byte_order != env.byte_order {
        return Some(OTHER_ORDER);
    }
    // A jump inside a block would be taken for one between the blocks of a path.
    if !f.layout.iter().flat_map(|b| &f.block(*b).ops).all(has_meaning) {
        return Some("a jump, or what nobody knows, inside a block");
    }
    may_use_arena(f, env).then_some(ARENA)
}

/// Why nothing is said of a function beside one of another byte order.
const OTHER_ORDER: &str = "a function for a machine of another byte order";

/// Why nothing is said of a function that goes deeper into its frame than before.
const MORE_STACK: &str = "more stack than before";

fn is_same(old: &Function, new: &Function) -> bool {
    let spills = || spills_around_a_fast_call(old) || spills_around_a_fast_call(new);
    same_graph(old, new) && (!spills() || same_text(old, new))
}

/// Compares functions with the same calls as they are. Where the new one has fewer calls of some helper without effect, those
/// of which nobody reads the result are no part of either; and where that does not do, the old one makes some of them later.
fn functions_in(old: &Function, new: &Function, fewer: &Fewer, env: &Env, options: &Options) -> (Verdict, Stats) {
    let (a, b) = (fewer.without_of(old, env), fewer.without_of(new, env));
    let relaxed = fewer.options(old.kind, options);
    let is_whole = matches!((&a, &b), (Cow::Borrowed(_), Cow::Borrowed(_))) && relaxed.constant_calls.is_empty();
    let (verdict, mut stats) = one_pair(&a, &b, env, &relaxed);
    if verdict.is_equal() {
        return (verdict, stats);
    }
    let mut more: Vec<(Cow<Function>, &Function, &Options)> = Vec::new();
    if !is_whole {
        more.push((Cow::Borrowed(old), new, options));
    }
    if !options.is_over() {
        more.extend(with_late_calls(&a, env).map(|late| (Cow::Owned(late), &*b, &relaxed)));
    }
    for (old, new, options) in more {
        let (other, effort) = one_pair(&old, new, env, options);
        stats.add(effort);
        if other.is_equal() {
            return (other, stats);
        }
    }
    (verdict, stats)
}

fn one_pair(old: &Function, new: &Function, env: &Env, options: &Options) -> (Verdict, Stats) {
    if same_graph(old, new) {
        return (Verdict::Equal, Stats { trivial: 1, ..Stats::default() });
    }
    let (reason, mut stats) = match crate::function::bisimulation::prove(old, new, env, options) {
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
