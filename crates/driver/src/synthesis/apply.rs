//! Applying what was found, each proven anew, and letting the passes run over it.
//!
//! What was found is not lost when time ends: it is proven and applied a little past the deadline ([`GRACE`]).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bpf_facts::Env;
use bpf_passes::{Engine, Settings};
use bpf_program::BlockId;
use bpf_prove::superblock::Superblock;
use bpf_prove::{Rewrite, Session};
use bpf_search::Found;
use rustc_hash::FxHashSet;

use super::agenda::{Agenda, Analysed};
use super::context::Search;
use super::item::Item;
use super::look::rewrite;
use crate::candidate::{Candidate, each_candidate};

/// How long after the deadline what was found may still be applied: a share of the time limit, and at most so long.
const GRACE: (u32, Duration) = (50, Duration::from_millis(500));

/// What a round changed.
#[derive(Default)]
pub(super) struct Applied {
    /// Windows improved.
    pub(super) improved: usize,
    /// The functions in which.
    pub(super) changed: Vec<usize>,
}

/// Applies what was found, in its order.
pub(super) fn apply(
    search: &Search,
    candidates: &mut Vec<Candidate>,
    agenda: &Agenda,
    found: &[(&Item, Found)],
) -> Applied {
    let Search { module, settings, options, .. } = *search;
    let (share, most) = GRACE;
    let grace = (options.time_limit / share).min(most);
    let late = Settings { deadline: settings.deadline.and_then(|d| d.checked_add(grace)), ..settings.clone() };
    let improved: Vec<AtomicUsize> = candidates.iter().map(|_| AtomicUsize::new(0)).collect();
    let concerned = |c: &Candidate| found.iter().any(|(item, _)| item.candidate == c.id);
    each_candidate(candidates, module, settings, options.jobs, concerned, |c| {
        let Some(a) = agenda.function(c.id) else { return };
        let id = c.id;
        let mine = found.iter().filter(|(item, _)| item.candidate == id);
        let done = module.with_env(|env| adopt(c, a, mine, env, &late));
        if done > 0 {
            improved[c.id].store(done, Ordering::Relaxed);
            c.run_passes(module, settings);
        }
    });
    let improved: Vec<usize> = improved.into_iter().map(AtomicUsize::into_inner).collect();
    let changed = (0..improved.len()).filter(|i| improved[*i] > 0).collect();
    Applied { improved: improved.iter().sum(), changed }
}

/// Makes the changes of one function; how many of them there were.
fn adopt<'f>(
    c: &mut Candidate,
    a: &Analysed,
    found: impl Iterator<Item = &'f (&'f Item<'f>, Found)>,
    env: &Env,
    settings: &Settings,
) -> usize {
    let Some(derivation) = c.derivation.take() else { return 0 };
    let mut taken: Vec<(BlockId, usize, usize)> = Vec::new();
    // Blocks of superblocks that were changed: what is known about them is no longer true.
    let mut stale: FxHashSet<BlockId> = FxHashSet::default();
    let mut done = 0;
    let mut session = Session::new(derivation, env);
    session.analyze();
    let mut engine = Engine::new(settings, &c.banned);
    for (item, best) in found {
        let at = item.window;
        if std::iter::once(&at.block).chain(&at.path).any(|b| stale.contains(b)) {
            continue;
        }
        // Overlapping windows: the first that was found counts; the others are looked at again.
        let straight = at.path.is_empty();
        if straight && taken.iter().any(|(b, s, e)| *b == at.block && at.start < *e && *s < at.end) {
            continue;
        }
        let all = Superblock::of(&a.function, at.block, &at.path);
        let now = Superblock::of(session.function(), at.block, &at.path);
        let (Some(all), Some(now)) = (all, now) else { continue };
        let old = &all.ops()[at.start..at.end];
        // Earlier changes in this block have moved it.
        let Some(start) = now.ops().windows(old.len()).position(|w| w == old) else { continue };
        let moved = Rewrite { start, end: start + old.len(), ..rewrite(item, best.with.clone()) };
        if engine.adopt(&mut session, moved) {
            if straight {
                taken.push((at.block, at.start, at.end));
            } else {
                stale.insert(at.block);
                stale.extend(&at.path);
            }
            done += 1;
        }
    }
    c.report.proofs += engine.tally.proofs;
    c.report.sat_calls += engine.tally.sat_calls;
    c.derivation = Some(session.finish());
    done
}
