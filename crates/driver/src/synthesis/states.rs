//! The proven states of a search beside its last one (the top k of the paper on K2, §8).
//!
//! Two kinds are kept: what all functions were after each round, which is the beginning of what was done to them; and
//! the last state with another proven replacement in one window, for the cheapest replacements that the chains have found for
//! it. Each is made from what the gate has left of the last state, and each replacement is proven once more in its place.

use std::cmp::Reverse;

use bpf_passes::{Engine, Settings};
use bpf_program::{BlockId, Op};
use bpf_prove::superblock::Superblock;
use bpf_prove::{Rewrite, Session};

use super::agenda::Agenda;
use super::context::over;
use super::item::{Item, Outcome};
use crate::candidate::Candidate;
use crate::module::Module;
use crate::weight::weight;

/// Replacements that are tried, for each form that is wanted: some no longer fit.
const TRIED: usize = 4;

/// What is known of them.
pub(crate) struct States {
    /// How many are wanted, the last one among them.
    wanted: usize,
    /// Steps of each function before the search, and after each round.
    rounds: Vec<Vec<usize>>,
    others: Vec<Other>,
}

/// Another replacement of a window.
struct Other {
    candidate: usize,
    block: BlockId,
    path: Vec<BlockId>,
    /// What is in the window now.
    stands: Vec<Op>,
    with: Vec<Op>,
    /// What it costs more than that.
    more: (i64, i64),
}

impl States {
    /// Those of a search that begins with these functions.
    pub(super) fn new(candidates: &[Candidate], wanted: usize) -> States {
        let mut states = States { wanted, rounds: Vec::new(), others: Vec::new() };
        states.note(candidates);
        states
    }

    /// Notes what the functions are after a round.
    pub(super) fn note(&mut self, candidates: &[Candidate]) {
        let now: Vec<usize> = candidates.iter().map(|c| c.steps().len()).collect();
        if self.wanted > 1 && self.rounds.last() != Some(&now) {
            self.rounds.push(now);
        }
    }

    /// A function has become what another one is, step by step.
    pub(super) fn share(&mut self, of: usize, twin: usize) {
        self.rounds.iter_mut().for_each(|steps| steps[twin] = steps[of]);
    }

    /// Notes what else may stand in a window.
    pub(super) fn learn(&mut self, item: &Item, agenda: &Agenda, outcome: &Outcome) {
        let at = item.window;
        if self.wanted <= 1 || outcome.others.is_empty() {
            return;
        }
        let Some(all) = agenda.function(item.candidate).and_then(|a| Superblock::of(&a.function, at.block, &at.path))
        else {
            return;
        };
        let old = &all.ops()[at.start..at.end];
        let stands = outcome.found.as_ref().map_or(old, |f| &f.with);
        // Where nothing better was found, what stands there costs as much as they do.
        let cheapest = outcome.found.as_ref().or(outcome.others.first()).map(|f| f.cost).unwrap_or_default();
        for other in outcome.others.iter().filter(|other| other.with != stands) {
            let more = |a: u32, b: u32| i64::from(a) - i64::from(b);
            let more = (more(other.cost.first, cheapest.first), more(other.cost.second, cheapest.second));
            let (block, path) = (at.block, at.path.clone());
            let (stands, with) = (stands.to_vec(), other.with.clone());
            self.others.push(Other { candidate: item.candidate, block, path, stands, with, more });
        }
    }

    /// The functions that are otherwise than in the last state, state by state, the cheapest first.
    pub(crate) fn beside(&self, last: &[Candidate], module: &Module, settings: &Settings) -> Vec<Vec<Candidate>> {
        if self.wanted <= 1 {
            return Vec::new();
        }
        let mut states = self.earlier(last, module, settings);
        states.extend(self.with_another_window(last, module, settings).into_iter().map(|c| vec![c]));
        let cost = |c: &Candidate| {
            let (first, second) = c.function().map_or((0, 0), |f| weight(f, settings, &module.maps));
            (first as i64, second as i64)
        };
        let more = |state: &Vec<Candidate>| {
            state.iter().fold((0, 0), |sum, c| {
                let (old, new) = (cost(&last[c.id]), cost(c));
                (sum.0 + new.0 - old.0, sum.1 + new.1 - old.1)
            })
        };
        states.sort_by_cached_key(more);
        states
    }

    /// What was there after earlier rounds, the latest first.
    fn earlier(&self, last: &[Candidate], module: &Module, settings: &Settings) -> Vec<Vec<Candidate>> {
        let mut states: Vec<Vec<Candidate>> = Vec::new();
        for steps in self.rounds.iter().rev() {
            let state: Vec<Candidate> = last
                .iter()
                .filter(|c| c.body.is_some() && steps[c.id] < c.steps().len())
                .map(|c| {
                    let mut earlier = c.clone();
                    earlier.rewind(module, settings, steps[c.id]);
                    earlier
                })
                .filter(|c| c.function() != last[c.id].function())
                .collect();
            let same = |s: &Vec<Candidate>| {
                s.len() == state.len()
                    && s.iter().zip(&state).all(|(a, b)| a.id == b.id && a.function() == b.function())
            };
            if !state.is_empty() && !states.iter().any(same) {
                states.push(state);
            }
            if states.len() >= self.wanted {
                break;
            }
        }
        states
    }

    /// What is there with another replacement in one window.
    fn with_another_window(&self, last: &[Candidate], module: &Module, settings: &Settings) -> Vec<Candidate> {
        let mut others: Vec<(usize, &Other)> = self.others.iter().enumerate().collect();
        // Of windows that were looked at twice, the later answer is the better one.
        others.sort_by_key(|(i, o)| (o.more, Reverse(*i)));
        let mut states: Vec<Candidate> = Vec::new();
        for (_, other) in others.into_iter().take(TRIED * self.wanted) {
            if over(settings) {
                break;
            }
            let Some(new) = other.put_into(&last[other.candidate], module, settings) else { continue };
            if !states.iter().any(|c| c.id == new.id && c.function() == new.function()) {
                states.push(new);
            }
        }
        states
    }
}

impl Other {
    /// The function with this replacement, if the window is still there and it is proven in its place.
    fn put_into(&self, last: &Candidate, module: &Module, settings: &Settings) -> Option<Candidate> {
        if self.stands.is_empty() || last.body.is_none() {
            return None;
        }
        let mut new = last.clone();
        let derivation = new.derivation.take()?;
        let done = module.with_env(|env| {
            let mut session = Session::new(derivation, env);
            session.analyze();
            let all = Superblock::of(session.function(), self.block, &self.path)?;
            let start = all.ops().windows(self.stands.len()).position(|w| w == self.stands)?;
            let (path, end, with) = (self.path.clone(), start + self.stands.len(), self.with.clone());
            let rewrite = Rewrite { block: self.block, path, start, end, with, term: None, by: "search" };
            let mut engine = Engine::new(settings, &new.banned);
            engine.replace(&mut session, rewrite).then(|| session.finish())
        });
        new.derivation = Some(done?);
        new.lower(module, settings);
        (new.body.is_some() && new.function() != last.function()).then_some(new)
    }
}
