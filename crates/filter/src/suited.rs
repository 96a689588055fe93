//! Forms for the packets of a profile: of those that decisions may become, the one that executes the fewest operations.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::decision::{DecisionId, Decisions};
use crate::emit::{Seen, SetPolicy, emit};
use crate::profile::Profile;
use crate::program::Program;
use crate::reorder::reorder;
use crate::sample::{Frequencies, Sample};
use crate::updatable::SetMap;
use crate::value::Values;

/// What decisions are about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given<'a> {
    pub(crate) values: &'a Values,
    pub(crate) maps: &'a Arc<[SetMap]>,
    /// How many predicates there are to note.
    pub(crate) predicates: u32,
}

impl Given<'_> {
    fn emit(self, (decisions, root): (&Decisions, DecisionId), policy: SetPolicy, seen: Option<Seen>) -> Program {
        emit(self.values, (self.maps.clone(), self.predicates), (decisions, root), policy, seen)
    }
}

/// Where decisions begin.
type Way = (Decisions, DecisionId);

/// Decisions in several orders, with what a sample of packets asks them.
#[derive(Clone, Debug)]
pub(crate) struct Suited {
    sample: Sample,
    ways: Vec<(Way, FxHashMap<DecisionId, Frequencies>)>,
}

/// What a profile brings a form.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Gain {
    /// Operations per packet of the profile that the form would execute without it.
    pub before: f64,
    /// Those that it executes.
    pub after: f64,
    /// How many forms would have executed fewer, but are not proven.
    pub refused: usize,
}

/// A form that executes fewer operations over the sample than another.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(crate) program: Program,
    pub(crate) operations: u64,
    /// The decisions that it is made of: for [`Suited::way`].
    pub(crate) way: usize,
}

/// What a form is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) policy: SetPolicy,
    /// Loads find out themselves whether they are in the packet.
    pub(crate) checks_loads: bool,
    /// How large it may become, in hundredths.
    pub(crate) most: usize,
}

impl Suited {
    /// Decisions for a profile. `None`: it has no packets, or there are too many decisions.
    pub(crate) fn of(profile: &Arc<Profile>, given: Given, ways: &[Way]) -> Option<Suited> {
        let sample = Sample::of(profile, given.values, given.maps, ways)?;
        let mut suited = Suited { sample, ways: Vec::new() };
        let mut forms: Vec<Program> = Vec::new();
        for way in ways {
            // Ways are often the same.
            let form = given.emit((&way.0, way.1), SetPolicy::FAST, None);
            if forms.contains(&form) {
                continue;
            }
            forms.push(form);
            let reordered = suited.reordered(way, given);
            suited.ways.extend([Some(way.clone()), reordered].into_iter().flatten().map(|(decisions, root)| {
                let frequencies = suited.sample.frequencies(&decisions, root);
                ((decisions, root), frequencies)
            }));
        }
        Some(suited)
    }

    /// Decisions in another order, if that executes fewer operations.
    fn reordered(&self, (decisions, root): &Way, given: Given) -> Option<Way> {
        /// What one question has moved may let another one move.
        const PASSES: usize = 6;
        // Each predicate that is noted stays where the text has it.
        if given.predicates > 0 {
            return None;
        }
        let measured = |decisions: &Decisions, root| {
            let switches = self.sample.frequencies(decisions, root);
            let seen = Some(Seen { switches: &switches, keeps_rows: false });
            let form = given.emit((decisions, root), SetPolicy::FAST, seen);
            self.sample.operations(&form.with_checked_loads())
        };
        let mut decisions = decisions.clone();
        let mut best = (measured(&decisions, *root), None);
        let mut at = *root;
        for _ in 0..PASSES {
            let Some(next) = reorder(given.values, &mut decisions, at, &self.sample) else { break };
            at = next;
            let operations = measured(&decisions, at);
            if operations < best.0 {
                best = (operations, Some(at));
            }
        }
        best.1.map(|root| (decisions, root))
    }

    /// Forms of at most a size that execute fewer operations than one, the fewest first.
    pub(crate) fn better(&self, given: Given, base: &Program, target: Target) -> Vec<Choice> {
        let least = self.operations(base, target.checks_loads);
        let most = base.size() * target.most / 100;
        let measured = |(way, program): (usize, Program)| {
            let operations = self.operations(&program, target.checks_loads);
            Choice { program, operations, way }
        };
        let mut all: Vec<Choice> = self.forms(given, target.policy).map(measured).collect();
        all.retain(|choice| choice.operations < least && choice.program.size() <= most);
        all.sort_by_key(|choice| (choice.operations, choice.program.size()));
        all.dedup_by(|a, b| a.program == b.program);
        all
    }

    /// All forms for a policy, with the decisions that each is made of.
    pub(crate) fn forms(&self, given: Given, policy: SetPolicy) -> impl Iterator<Item = (usize, Program)> {
        self.ways.iter().enumerate().flat_map(move |(i, ((decisions, root), switches))| {
            [true, false].map(|keeps_rows| {
                let seen = Some(Seen { switches, keeps_rows });
                (i, given.emit((decisions, *root), policy, seen))
            })
        })
    }

    /// What a form's operations over the sample say of the profile.
    pub(crate) fn gain(&self, before: u64, after: u64, refused: usize) -> Gain {
        let per_packet = |operations: u64| operations as f64 / self.sample.packets() as f64;
        Gain { before: per_packet(before), after: per_packet(after), refused }
    }

    /// The operations that a form executes over the sample.
    pub(crate) fn operations(&self, program: &Program, checks_loads: bool) -> u64 {
        if checks_loads {
            self.sample.operations(&program.with_checked_loads())
        } else {
            self.sample.operations(program)
        }
    }

    /// The decisions of a form.
    pub(crate) fn way(&self, i: usize) -> &Way {
        &self.ways[i].0
    }
}
