//! One function on its way: what it was, what was done to it, what it is now.

use std::time::Instant;

use bpf_object::{FuncId, NewInsn, Object};
use bpf_passes::{Engine, Quiet, Settings};
use bpf_program::{Function, lower, slot_count};
use bpf_prove::{Derivation, Limits, Options as ProofOptions, Session, Step, VISITS, presence_differs};
use rustc_hash::FxHashSet;

use crate::DriverError;
use crate::opinion::{Budget, Opinion, Refutation, listing_of, opinion};
use crate::report::FunctionReport;
use crate::sensitive::is_sensitive;
use crate::unit::Unit;

/// What optimizing one function gave.
#[derive(Clone)]
pub(crate) struct Candidate {
    pub(crate) id: usize,
    /// The graph as it was, as it is now, and the proven steps between the two; `None` if there is none.
    pub(crate) derivation: Option<Derivation>,
    /// Rewrites the kernel has refused.
    pub(crate) banned: FxHashSet<u64>,
    /// The new body; `None`: as it was.
    pub(crate) body: Option<Vec<NewInsn>>,
    pub(crate) report: FunctionReport,
    pub(crate) timed_out: bool,
    /// Where the passes have found nothing.
    pub(crate) quiet: Quiet,
    /// Whether what it is now has been proven, or tried to, as a whole.
    judged: bool,
}

impl Candidate {
    /// Function number `id`, as it is in the object.
    pub(crate) fn new(unit: &Unit, id: usize) -> Candidate {
        let symbol = &unit.object.functions()[id];
        let listing = listing(unit.object.code(FuncId(id)));
        let report = FunctionReport {
            name: symbol.name.clone(),
            section: symbol.section.clone(),
            slots_before: symbol.slots,
            slots_after: symbol.slots,
            rewrites: Vec::new(),
            proofs: 0,
            refused: 0,
            sat_calls: 0,
            whole: "equal".into(),
            kernel_before: None,
            kernel_after: None,
            untouched: None,
            twin_of: None,
            cut_short: false,
            refuted: None,
            seconds: 0.0,
            listing_before: listing.clone(),
            listing_after: listing,
        };
        let banned = FxHashSet::default();
        let graph = unit.graphs[id].as_ref().ok().filter(|_| !is_sensitive(unit, FuncId(id)));
        let derivation = graph.cloned().map(Derivation::new);
        Candidate {
            id,
            derivation,
            banned,
            body: None,
            report,
            timed_out: false,
            quiet: Quiet::default(),
            judged: false,
        }
    }

    /// The graph as it was.
    pub(crate) fn original(&self) -> Option<&Function> {
        self.derivation.as_ref().map(Derivation::original)
    }

    /// The graph as it is now.
    pub(crate) fn function(&self) -> Option<&Function> {
        self.derivation.as_ref().map(Derivation::current)
    }

    /// What was done to it, in order.
    pub(crate) fn steps(&self) -> &[Step] {
        self.derivation.as_ref().map_or(&[], Derivation::steps)
    }

    /// Runs the passes on it, from what it is now.
    pub(crate) fn run_passes(&mut self, unit: &Unit, settings: &Settings) {
        let started = Instant::now();
        let Some(derivation) = self.derivation.take() else {
            self.report.untouched = unit.graphs[self.id].as_ref().err().cloned().or(Some(VISITS.into()));
            return;
        };
        unit.with_env(|env| {
            let mut session = Session::new(derivation, env);
            let mut engine = Engine::new(settings, &self.banned).knowing(std::mem::take(&mut self.quiet));
            engine.run(&mut session);
            self.report.proofs += engine.tally.proofs;
            self.report.refused += engine.tally.refused + engine.tally.shapes_refused;
            self.report.sat_calls += engine.tally.sat_calls;
            self.timed_out |= engine.tally.timed_out;
            self.quiet = engine.into_quiet();
            self.derivation = Some(session.finish());
        });
        self.lower(unit, settings);
        self.report.seconds += started.elapsed().as_secs_f64();
    }

    /// Hands what was made of the candidate `of` to `twin`, which is the same function with another name.
    pub(crate) fn share(candidates: &mut [Candidate], unit: &Unit, settings: &Settings, of: usize, twin: usize) {
        let Candidate { derivation, quiet, timed_out, report, .. } = candidates[of].clone();
        let c = &mut candidates[twin];
        (c.derivation, c.quiet, c.timed_out) = (derivation, quiet, timed_out);
        c.report.untouched = report.untouched;
        c.report.twin_of = Some(report.name);
        c.lower(unit, settings);
    }

    /// Whether there was no time for it at all.
    pub(crate) fn is_not_reached(&self) -> bool {
        self.timed_out && self.steps().is_empty() && self.report.untouched.is_none()
    }

    /// Makes the body from what it is now. One that is no gain, or needs a newer kernel, is not taken.
    pub(crate) fn lower(&mut self, unit: &Unit, settings: &Settings) {
        self.unchanged();
        self.judged = false;
        self.report.rewrites.clear();
        let (Some(f), Ok(original)) = (self.function(), &unit.graphs[self.id]) else { return };
        let before = self.report.slots_before;
        let rewritten = self.steps().iter().any(|s| s.rewrite().is_some());
        if slot_count(f) >= before && !rewritten {
            return;
        }
        let level = |l: &bpf_program::Lowered| l.listing.iter().map(|(_, i)| i.cpu()).max().unwrap_or(1);
        let allowed = lower(original).map_or(settings.cpu, |l| level(&l).max(settings.cpu));
        let lowered = match lower(f) {
            Ok(l) if l.slots() <= before && level(&l) <= allowed => l,
            Ok(_) => return,
            Err(e) => {
                self.report.untouched = Some(e.to_string());
                return;
            }
        };
        self.report.slots_after = lowered.slots();
        self.report.listing_after = lowered.listing.iter().map(|(s, i)| format!("{s:4}: {i}")).collect();
        for by in self.derivation.iter().flat_map(Derivation::steps).filter_map(|s| s.rewrite().map(|r| r.by)) {
            match self.report.rewrites.iter_mut().find(|(n, _)| n == by) {
                Some((_, n)) => *n += 1,
                None => self.report.rewrites.push((by.to_string(), 1)),
            }
        }
        self.body = Some(lowered.insns);
    }

    /// The body is what it was.
    fn unchanged(&mut self) {
        self.body = None;
        self.report.slots_after = self.report.slots_before;
        self.report.listing_after.clone_from(&self.report.listing_before);
    }

    /// Goes back to the first `n` changes.
    pub(crate) fn rewind(&mut self, unit: &Unit, settings: &Settings, n: usize) {
        let Some(derivation) = &mut self.derivation else { return };
        derivation.rewind(n);
        self.lower(unit, settings);
    }

    /// Gives everything up.
    pub(crate) fn revert(&mut self, unit: &Unit, settings: &Settings, why: &str) {
        self.rewind(unit, settings, 0);
        self.unchanged();
        self.report.untouched = Some(why.into());
    }

    /// Has what is to be written proven as a whole function, independently of the facts the single rewrites relied on.
    /// If it is wrong, the function is what it was. Not asked again until something changes.
    pub(crate) fn second_opinion(&mut self, unit: &Unit, settings: &Settings, budget: &Budget, seed: u64) {
        if std::mem::replace(&mut self.judged, true) {
            return;
        }
        let (Some(f), Ok(original), true) = (self.function(), &unit.graphs[self.id], self.body.is_some()) else {
            self.report.whole = "equal".into();
            return;
        };
        // No proof of a step sees what an access changes by being there.
        if let Some(why) = unit.with_env(|env| presence_differs(original, f, env)) {
            self.revert(unit, settings, why);
            self.judged = true;
            self.report.whole = "equal".into();
            return;
        }
        let limits =
            Limits { deadline: Some(budget.deadline()), recorder: settings.limits.recorder, ..Limits::default() };
        let strict_shared_memory = settings.strict_shared_memory;
        let options = ProofOptions { strict_shared_memory, limits, ..ProofOptions::default() };
        match unit.with_env(|env| opinion(original, f, env, &options)) {
            Opinion::Equal => self.report.whole = "equal".into(),
            // The steps lead from the original to this: a derivation has no others.
            Opinion::Unknown(why) => self.report.whole = format!("unknown: {why}; every step proven"),
            Opinion::Different(explanation) => {
                let refutation = Refutation {
                    explanation,
                    steps: self.steps().iter().map(|s| s.rewrite().map_or("shape", |r| r.by).to_owned()).collect(),
                    seed,
                    listing_original: self.report.listing_before.clone(),
                    listing_refused: listing_of(f),
                };
                self.refuse(unit, settings, refutation);
            }
        }
    }

    /// The function stays as it was: what was made of it is wrong.
    fn refuse(&mut self, unit: &Unit, settings: &Settings, refutation: Refutation) {
        self.revert(unit, settings, "what was made of it is wrong, please report it");
        self.judged = true;
        self.report.whole = "equal".into();
        self.report.refuted = Some(refutation);
    }

    /// Puts the body (or the original) into the object.
    pub(crate) fn place(&self, object: &mut Object) -> Result<(), DriverError> {
        match &self.body {
            Some(body) => object.set_body(FuncId(self.id), body.clone())?,
            None => object.reset_body(FuncId(self.id)),
        }
        Ok(())
    }
}

fn listing(code: &[u8]) -> Vec<String> {
    match bpf_isa::decode_all(code) {
        Ok(v) => v.iter().map(|(s, i)| format!("{s:4}: {i}")).collect(),
        Err(_) => vec![],
    }
}

/// All functions of an object after the passes, and the object with what came of them.
#[cfg(test)]
pub(crate) fn after_passes(unit: &Unit, settings: &Settings) -> (Vec<Candidate>, Object) {
    let mut candidates: Vec<Candidate> = (0..unit.graphs.len()).map(|i| Candidate::new(unit, i)).collect();
    candidates.iter_mut().for_each(|c| c.run_passes(unit, settings));
    let mut object = unit.object.clone();
    candidates.iter().for_each(|c| c.place(&mut object).expect("it fits"));
    (candidates, object)
}
