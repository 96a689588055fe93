//! Search after the passes: which windows, in which order, for how long.
//!
//! The work goes in rounds. A round takes a batch of open windows of all functions ([`agenda`]), those first that are
//! expected to give most for their cost; looks at them ([`look`]); and applies at once what was found, each change proven
//! again in its place ([`apply`]). Then the passes run over it, and the functions that changed are looked through anew.
//! A window that gave nothing may come again with more effort.
//!
//! Within a round nothing is applied and nothing learnt, so a result does not depend on how many threads work on it.
//! Which windows a round takes depends on what was found before, never on the clock. So `--rounds` makes runs repeatable,
//! and with one thread a run with less time does the first part of what one with more time does. When time ends within a
//! round, what it has found by then is applied.
//!
//! Beside its last state, the search knows other proven ones ([`states`]), for whoever wants several forms.

mod agenda;
mod apply;
mod context;
mod item;
mod look;
mod memory;
mod states;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bpf_passes::Settings;
use bpf_search::store::Store;

use crate::candidate::Candidate;
use crate::options::Options;
use crate::report::{Ended, SearchReport};
use crate::twins::Twins;
use agenda::Agenda;
pub(crate) use context::Search;
use item::Item;
use memory::Memory;
pub(crate) use states::States;

/// How often what was learnt is written to its file, at most.
const FLUSH: Duration = Duration::from_secs(1);

/// Improves the candidates until nothing is open, the rounds or the time are over, or the user wants to stop.
pub(crate) fn run(
    candidates: &mut Vec<Candidate>,
    wanted: &[bool],
    search: Search,
    notes: &mut Vec<String>,
) -> (SearchReport, States) {
    let Search { module, settings, options, observer, begun, .. } = search;
    let mut report = SearchReport::default();
    let mut states = States::new(candidates, options.forms);
    let mut memory = Memory::new(store(options), options.strict_shared_memory);
    let twins = Twins::of(candidates, wanted, settings);
    let mut agenda = Agenda::new(candidates.len());
    let is_open = |c: &&Candidate| wanted[c.id] && c.report.untouched.is_none() && twins.leads(c.id);
    let mut changed: Vec<usize> = candidates.iter().filter(is_open).map(|c| c.id).collect();
    let mut flushed = Instant::now();
    let mut in_vain = 0;
    report.ended = loop {
        if let Some(why) = end(&report, in_vain, settings, options) {
            break why;
        }
        agenda.open(&changed, candidates, module, settings, options.jobs);
        let Some(applied) = round(&search, candidates, &agenda, &mut memory, &mut states, &mut report) else {
            break Ended::Done;
        };
        report.rounds += 1;
        report.improved += applied.improved;
        in_vain = if applied.improved > 0 { 0 } else { in_vain + 1 };
        if applied.improved > 0 {
            observer.saved(candidates.iter().map(|c| c.report.slots_before.saturating_sub(c.report.slots_after)).sum());
        }
        candidates.iter_mut().for_each(|c| c.note_size(begun, report.proposals));
        states.note(candidates);
        changed = applied.changed;
        if flushed.elapsed() >= FLUSH {
            memory.store.flush();
            flushed = Instant::now();
        }
    };
    for (twin, of) in twins.pairs() {
        Candidate::share(candidates, module, settings, of, twin);
        states.share(of, twin);
    }
    memory.store.flush();
    notes.append(&mut memory.store.notes);
    report.seconds = search.started.elapsed().as_secs_f64();
    (report, states)
}

/// What is remembered at the start.
fn store(options: &Options) -> Store {
    let store = options.cache.as_deref().map_or_else(Store::in_memory, Store::open);
    if options.shipped_rules { store.with_shipped() } else { store }
}

/// Looks at the next batch and applies what it gives; `None` if nothing is open.
fn round<'a>(
    search: &Search,
    candidates: &mut Vec<Candidate>,
    agenda: &'a Agenda,
    memory: &mut Memory,
    states: &mut States,
    report: &mut SearchReport,
) -> Option<apply::Applied> {
    let batch = agenda.next(memory, search.options)?;
    let mut found = Vec::new();
    let [leaders, mut followers] = [batch.leaders, batch.followers];
    let mut look_at = |items: &[Item<'a>], memory: &mut Memory| {
        let outcomes = look::look(search, items, agenda, memory);
        let base = memory.payoff.clone();
        for (i, outcome) in outcomes.into_iter().enumerate() {
            let Some(outcome) = outcome else { continue };
            memory.note(&items[i], &outcome, &base, report);
            states.learn(&items[i], agenda, &outcome);
            found.extend(outcome.found.map(|f| (items[i].clone(), f)));
        }
    };
    look_at(&leaders, memory);
    // They take what was just found for their form, as in a later run.
    for item in &mut followers {
        item.rule = memory.look_up(item);
    }
    look_at(&followers, memory);
    let found: Vec<_> = found.iter().map(|(item, f)| (item, f.clone())).collect();
    Some(apply::apply(search, candidates, agenda, &found))
}

/// Why there is to be no further round, if there is a reason.
fn end(report: &SearchReport, in_vain: u64, settings: &Settings, options: &Options) -> Option<Ended> {
    if settings.stop.as_ref().is_some_and(|s| s.load(Ordering::Relaxed)) {
        return Some(Ended::Interrupted);
    }
    // A round that time has cut short is none that can be repeated.
    if settings.deadline.is_some_and(|d| Instant::now() >= d) {
        return Some(Ended::Time);
    }
    if options.rounds.is_some_and(|most| report.rounds >= most) {
        return Some(Ended::Rounds);
    }
    options.patience.is_some_and(|most| in_vain >= most).then_some(Ended::Stalled)
}

#[cfg(test)]
mod tests;
