//! Comparison of two functions without loops as one formula each.

use bpf_facts::{Env, Facts, Liveness};
use bpf_program::{Function, reverse_postorder};

use crate::compare::attempt::attempt;
use crate::compare::judge::{LiveOut, judge};
use crate::compare::verdict::{Verdict, verdict};
use crate::options::{Options, Stats};
use crate::symbolic::access::OldAccesses;
use crate::symbolic::acyclic::execute;
use crate::symbolic::entry::{Entry, register_regions};
use crate::symbolic::symex::Side;

/// Operations above which a function is not put into one formula.
const WHOLE_LIMIT: usize = 600;

/// Whether a function may be compared as one formula, which needs no correspondence of its blocks with the other's.
pub fn fits_one_formula(f: &Function) -> bool {
    f.blocks.iter().map(|b| b.ops.len()).sum::<usize>() <= WHOLE_LIMIT && !has_loop(f)
}

pub(crate) fn has_loop(f: &Function) -> bool {
    reverse_postorder(f).1
}

pub(crate) fn whole(old: &Function, new: &Function, env: &Env, options: &Options) -> (Verdict, Stats) {
    let (fa, fb) = (Facts::of(old, env), Facts::of(new, env));
    let (la, lb) = (Liveness::of(old, env, &fa), Liveness::of(new, env, &fb));
    let Some(before) = fa.entry(old.entry()) else {
        return (Verdict::Unknown("the entry is unreachable".into()), Stats::default());
    };
    let (result, cx) = attempt(options, true, |cx| {
        cx.frame_not_escaped = never_leaks(old, &fa) && never_leaks(new, &fb);
        cx.frame_apart = cx.one_memory && cx.frame_not_escaped;
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

fn never_leaks(f: &Function, facts: &Facts) -> bool {
    // Leaking is monotone along every path, so the ends of the blocks tell.
    f.layout
        .iter()
        .filter(|b| facts.entry(**b).is_some())
        .all(|b| facts.states(f, *b).last().is_none_or(|s| !s.frame_leaked()))
}
