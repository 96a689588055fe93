//! What the search has learnt in this run: what was spent on which window, what pays, and the rules.

use std::sync::Arc;

use bpf_search::rules::RuleBody;
use bpf_search::store::Store;
use bpf_search::{Found, Payoff};
use rustc_hash::FxHashMap;

use super::item::{BY_ENUMERATOR, BY_RULE, Effort, Item, Outcome};
use crate::report::SearchReport;

/// Candidates for a window, time after time. Windows that change start over.
const EFFORT: [u64; 4] = [16_384, 65_536, 262_144, 524_288];
/// Slots up to which the enumerator tries, at each of these.
const SHORT: [usize; EFFORT.len()] = [2, 3, 3, 4];
/// Slots that a window saves on the average at each of these, before there is experience.
const EXPECTED: [f64; EFFORT.len()] = [0.05, 0.02, 0.02, 0.02];
/// So many windows' worth of experience the expectation counts for; that of all classes, for a class.
const BELIEF: (f64, f64) = (100.0, 4.0);
/// Steps of the enumerator for each candidate of the chain's budget, at most.
pub(super) const STEPS: u64 = 8;
/// Effort of a window that is known to be as short as can be.
const SETTLED: u64 = u64::MAX;

/// Slots saved and candidates tried.
#[derive(Clone, Copy, Default)]
struct Experience {
    saved: f64,
    cost: f64,
}

impl Experience {
    fn add(&mut self, saved: f64, cost: f64) {
        self.saved += saved;
        self.cost += cost;
    }

    /// Slots per candidate, where `rate` is expected, as firmly as after `cost` candidates.
    fn rate(&self, rate: f64, cost: f64) -> f64 {
        (self.saved + rate * cost) / (self.cost + cost)
    }
}

/// What is known from earlier rounds.
pub(super) struct Memory {
    /// Candidates tried on a window, by its key.
    spent: FxHashMap<u64, u64>,
    /// With windows of a class at a level, and of all classes.
    classes: FxHashMap<(u64, usize), Experience>,
    levels: [Experience; EFFORT.len()],
    /// Improvements and cost of the enumerator and of the chains.
    searchers: [(f64, f64); 2],
    /// Which settings paid.
    pub(super) payoff: Payoff,
    /// Rules from this run and earlier ones.
    pub(super) store: Store,
    /// What the store said of a form when it held so many general rules.
    answers: FxHashMap<Arc<str>, (usize, Option<RuleBody>)>,
    /// Proofs are under `strict_shared_memory`, which a form does not say: that nothing was found holds for such runs alone.
    is_strict: bool,
}

impl Memory {
    pub(super) fn new(store: Store, is_strict: bool) -> Memory {
        let (spent, classes, levels, payoff, answers) = Default::default();
        Memory { spent, classes, levels, searchers: [(0.0, 0.0); 2], payoff, store, answers, is_strict }
    }

    /// What the window with this key is given next; `None` if it has had all.
    pub(super) fn next_effort(&self, key: u64) -> Option<Effort> {
        let spent = self.spent.get(&key).copied().unwrap_or(0);
        let mut total = 0;
        EFFORT.iter().enumerate().find_map(|(level, &candidates)| {
            total += candidates;
            (total > spent).then_some(Effort { level, candidates, total, short: SHORT[level] })
        })
    }

    /// Slots that a window of this class is expected to save per candidate.
    pub(super) fn rate(&self, class: u64, effort: Effort) -> f64 {
        let each = effort.candidates as f64;
        let all = self.levels[effort.level].rate(EXPECTED[effort.level] / each, BELIEF.0 * each);
        let class = self.classes.get(&(class, effort.level)).copied().unwrap_or_default();
        class.rate(all, BELIEF.1 * each)
    }

    /// Steps of the enumerator for a budget of candidates: more where it has paid, and never nothing.
    pub(super) fn steps(&self, candidates: u64) -> u64 {
        let rate = |i: usize| (self.searchers[i].0 + 1.0) / (self.searchers[i].1 + 1e6);
        let share = rate(0) / (rate(0) + rate(1));
        (candidates as f64 * STEPS as f64 * share.clamp(0.1, 1.0)) as u64
    }

    /// What is remembered of a window.
    pub(super) fn look_up(&mut self, item: &Item) -> Option<RuleBody> {
        let (window_key, _, text) = item.window.form.as_ref()?;
        let rules = self.store.general_count();
        match self.answers.get(text) {
            Some((then, answer)) if *then == rules || answer.is_some() => answer.clone(),
            _ => {
                let answer = self.store.look_up(window_key);
                self.answers.insert(text.clone(), (rules, answer.clone()));
                answer
            }
        }
    }

    /// Learns from what came of a window.
    pub(super) fn note(&mut self, item: &Item, outcome: &Outcome, base: &Payoff, report: &mut SearchReport) {
        let found = outcome.found.as_ref();
        self.spent.insert(item.window.key, if outcome.settled { SETTLED } else { item.effort.total });
        report.count(item, outcome);
        if outcome.remembered {
            return;
        }
        let saved = outcome.saved;
        let cost = (outcome.progress.proposals + outcome.steps / STEPS + outcome.questions) as f64;
        self.classes.entry((item.window.class, item.effort.level)).or_default().add(saved, cost);
        self.levels[item.effort.level].add(saved, cost);
        self.payoff.learn(&outcome.payoff, base);
        let by_enumerator = found.is_some_and(|f| f.by == BY_ENUMERATOR);
        let gained = f64::from(u8::from(found.is_some()));
        self.searchers[0].0 += gained * f64::from(u8::from(by_enumerator));
        self.searchers[0].1 += outcome.steps as f64 / STEPS as f64;
        self.searchers[1].0 += gained * f64::from(u8::from(!by_enumerator));
        self.searchers[1].1 += outcome.progress.proposals as f64;
        if outcome.complete {
            self.record(item, outcome);
        }
    }

    fn record(&mut self, item: &Item, outcome: &Outcome) {
        let Some((window_key, renaming, text)) = &item.window.form else { return };
        self.answers.remove(text);
        let with = outcome.found.as_ref().map(|f| renaming.to_canonical(&f.with));
        // What does not fit the form cannot be remembered, and that nothing was found would be wrong. A later run is to
        // search again, as this one did.
        if matches!(with, Some(None)) || with.is_none() && self.is_strict {
            self.store.record_only(window_key, RuleBody::default());
            return;
        }
        let by = outcome.found.as_ref().map_or("", |f| f.by).to_owned();
        let effort = item.effort.total;
        let excluded = outcome.exhausted.and_then(|n| u32::try_from(n).ok());
        self.store.record(window_key, RuleBody { with: with.flatten(), by, effort, excluded });
    }
}

impl SearchReport {
    fn count(&mut self, item: &Item, outcome: &Outcome) {
        self.windows += 1;
        *(if item.rule.is_some() { &mut self.rule_hits } else { &mut self.rule_misses }) += 1;
        self.settled += usize::from(outcome.settled && !outcome.remembered);
        match outcome.found.as_ref().map(|f: &Found| f.by) {
            Some(BY_RULE) => self.by_rule += 1,
            Some(BY_ENUMERATOR) => self.by_enumerator += 1,
            Some(_) => self.by_chain += 1,
            None => {}
        }
        self.proposals += outcome.progress.proposals;
        self.steps += outcome.steps;
        self.judged += outcome.progress.judged;
        self.remembered += outcome.progress.remembered;
    }
}
