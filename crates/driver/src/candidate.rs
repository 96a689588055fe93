//! One function on its way: what it was, what was done to it, what it is now. All of them are worked on by
//! [`each_candidate`].

use std::sync::Mutex;
use std::time::{Duration, Instant};

use bpf_facts::Env;
use bpf_isa::{Costs, Goal};
use bpf_object::{FuncId, NewInsn, Object};
use bpf_passes::{Engine, Quiet, Settings, shape_mark};
use bpf_program::{Function, lower, slot_count};
use bpf_prove::{Derivation, Limits, Options as ProofOptions, Rewrite, Session, Step, VISITS, presence_differs};
use bpf_ssa::passes::Pass;
use rustc_hash::FxHashSet;

use crate::error::DriverError;
use crate::estimate;
use crate::explain;
use crate::global::{Patience, Start};
use crate::measures::{Reached, Shape};
use crate::module::Module;
use crate::opinion::{Budget, Opinion, listing_of, opinion};
use crate::pool;
use crate::private_stack;
use crate::report::{FunctionReport, Refutation};
use crate::sensitive::is_sensitive;
use crate::shared::{Answer, Mine, Question, Topic};
use crate::weight::weight;

/// What optimizing one function gave.
#[derive(Clone)]
pub(crate) struct Candidate {
    pub(crate) id: usize,
    /// The graph as it was, as it is now, and the proven steps between the two; `None` if there is none.
    pub(crate) derivation: Option<Derivation>,
    /// Where the derivation begins, if not with the graph as it was.
    start: Option<Start>,
    /// Rewrites the kernel has refused.
    pub(crate) banned: FxHashSet<u64>,
    /// A local pass that is left out, because what it made was more work for the verifier.
    left_out: Option<&'static str>,
    /// The new body; `None`: as it was.
    pub(crate) body: Option<Vec<NewInsn>>,
    pub(crate) report: FunctionReport,
    pub(crate) timed_out: bool,
    /// Where the passes have found nothing.
    pub(crate) quiet: Quiet,
    /// Whether what it is now has been proven, or tried to, as a whole.
    judged: bool,
    /// Whether what it is now holds what counts by being there ([`presence_differs`]).
    present: bool,
    /// How long it took to find that out.
    presence_takes: Duration,
}

/// Steps of a function that may be banned for what the function then lacks, before those after the next one are given up,
/// too.
const PATIENCE: usize = 4;
/// Questions that are left out of one function, at most.
const ONE_SIDES: usize = 8;
/// Calls that are made later in one function, at most.
const LATE_CALLS: usize = 8;

impl Candidate {
    /// Function number `id`, as it is in the object.
    pub(crate) fn new(module: &Module, id: usize) -> Candidate {
        let symbol = &module.object.functions()[id];
        let listing = listing(module.object.code(FuncId(id)));
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
            changes: Vec::new(),
            seconds: 0.0,
            shape: module.graphs[id].as_ref().ok().map(Shape::of),
            estimated_ns: None,
            reached: Reached { slots: symbol.slots, ..Reached::default() },
            listing_before: listing.clone(),
            listing_after: listing,
        };
        let banned = FxHashSet::default();
        let graph = module.graphs[id].as_ref().ok().filter(|_| !is_sensitive(module, FuncId(id)));
        let derivation = graph.cloned().map(Derivation::new);
        Candidate {
            id,
            derivation,
            start: None,
            banned,
            left_out: None,
            body: None,
            report,
            timed_out: false,
            quiet: Quiet::default(),
            judged: false,
            present: false,
            presence_takes: Duration::ZERO,
        }
    }

    /// The graph as it was.
    pub(crate) fn original(&self) -> Option<&Function> {
        match &self.start {
            Some(start) => Some(start.before().original()),
            None => self.derivation.as_ref().map(Derivation::original),
        }
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
    pub(crate) fn run_passes(&mut self, module: &Module, settings: &Settings) {
        let started = Instant::now();
        let Some(derivation) = self.derivation.take() else {
            self.report.untouched = module.graphs[self.id].as_ref().err().cloned().or(Some(VISITS.into()));
            return;
        };
        // What is left out and forbidden is not in the question.
        let fresh = self.start.is_none() && self.banned.is_empty() && self.left_out.is_none();
        let plain = fresh && derivation.steps().is_empty();
        let about = [derivation.original(), derivation.current()];
        let asked = plain.then(|| ask(module, Topic::Local, about, settings, settings.deadline)).flatten();
        let mine = match asked {
            Some(Ok(Answer::Local { derivation: found, tally })) => {
                self.derivation = Some(found.named(&derivation.original().name));
                self.count(tally);
                self.lower(module, settings);
                self.report.seconds += started.elapsed().as_secs_f64();
                return;
            }
            Some(Err(mine)) => Some(mine),
            _ => None,
        };
        let only = self.left_out.map(|out| {
            let chosen = |n: &&str| *n != out && settings.only.as_ref().is_none_or(|only| only.iter().any(|o| o == n));
            bpf_passes::names().into_iter().filter(chosen).map(str::to_owned).collect()
        });
        let settings = &Settings { only: only.or_else(|| settings.only.clone()), ..settings.clone() };
        let mut tally = [0; 3];
        module.with_env(|env| {
            let mut session = Session::new(derivation, env);
            let mut engine = Engine::new(settings, &self.banned).knowing(std::mem::take(&mut self.quiet));
            engine.run(&mut session);
            tally = [
                engine.tally.proofs as u64,
                (engine.tally.refused + engine.tally.shapes_refused) as u64,
                engine.tally.sat_calls,
            ];
            self.timed_out |= engine.tally.timed_out;
            self.quiet = engine.into_quiet();
            self.derivation = Some(session.finish());
        });
        self.count(tally);
        if let (Some(mine), Some(derivation), false) = (mine, &self.derivation, self.timed_out || is_over(settings)) {
            mine.answer(Answer::Local { derivation: Box::new(derivation.clone()), tally });
        }
        self.lower(module, settings);
        self.report.seconds += started.elapsed().as_secs_f64();
    }

    fn count(&mut self, [proofs, refused, sat_calls]: [u64; 3]) {
        self.report.proofs += proofs as usize;
        self.report.refused += refused as usize;
        self.report.sat_calls += sat_calls;
    }

    /// Begins with what another build has in its place, if that leads to less.
    pub(crate) fn run_builds(&mut self, module: &Module, settings: &Settings, others: &[(String, Function)]) {
        let started = Instant::now();
        for (name, other) in others {
            let Some(before) = self.derivation.as_ref().filter(|_| !is_over(settings)) else { break };
            let begun_with = self.start.as_ref().map_or(before, Start::before);
            let least = weight(before.current(), settings, &module.maps);
            let found = module.with_env(|env| Start::of_build(begun_with, other, name, env, settings));
            let Some((start, derivation)) = found.filter(|(_, d)| weight(d.current(), settings, &module.maps) < least)
            else {
                continue;
            };
            (self.start, self.derivation) = (Some(start), Some(derivation));
            self.quiet = Quiet::default();
            self.lower(module, settings);
        }
        self.report.seconds += started.elapsed().as_secs_f64();
    }

    /// Has the global passes work on it, and the local ones after them, if that gives fewer slots.
    pub(crate) fn run_global(
        &mut self,
        module: &Module,
        settings: &Settings,
        passes: &[Box<dyn Pass>],
        patience: Patience,
    ) {
        let started = Instant::now();
        let Some(before) = self.derivation.as_ref().filter(|_| !passes.is_empty()) else { return };
        let fresh = self.start.is_none() && self.banned.is_empty();
        let about = [before.original(), before.current()];
        let asked = fresh.then(|| ask(module, Topic::Global, about, settings, settings.deadline)).flatten();
        let found = match asked {
            Some(Ok(Answer::Global(found))) => {
                let name = &before.original().name;
                found.map(|found| Box::new((found.0.named(name), found.1.named(name))))
            }
            asked => {
                let (found, is_whole) = module.with_env(|env| Start::find(before, env, passes, patience, settings));
                let found = found.map(Box::new);
                if let (Some(Err(mine)), true) = (asked, is_whole) {
                    mine.answer(Answer::Global(found.clone()));
                }
                found
            }
        };
        if let Some((start, derivation)) = found.map(|found| *found) {
            self.go_on_from(start, derivation, module, settings);
        }
        if self.banned.is_empty() {
            self.leave_sides_out(module, settings);
            self.make_calls_late(module, settings);
        }
        self.report.seconds += started.elapsed().as_secs_f64();
    }

    /// Goes on from where this start, behind the one it has, leads to.
    fn go_on_from(&mut self, start: Start, derivation: Derivation, module: &Module, settings: &Settings) {
        let start = match &self.start {
            Some(first) => first.then(&start),
            None => start,
        };
        (self.start, self.derivation) = (Some(start), Some(derivation));
        self.quiet = Quiet::default();
        self.lower(module, settings);
    }

    /// Is what this start leads to, with that body.
    pub(crate) fn go_on_as(&mut self, start: Start, f: Function, body: Vec<NewInsn>) {
        let slots = |insns: &[NewInsn]| insns.iter().map(|insn| insn.bytes.len() / 8).sum();
        let bytes: Vec<u8> = body.iter().flat_map(|insn| &insn.bytes).copied().collect();
        self.report.slots_after = slots(&body);
        self.report.listing_after = listing(&bytes);
        self.report.rewrites = start.steps().iter().map(|by| (by.clone(), 1)).collect();
        (self.start, self.derivation) = (Some(start), Some(Derivation::new(f)));
        (self.quiet, self.body) = (Quiet::default(), Some(body));
        (self.judged, self.present) = (false, false);
    }

    /// Leaves out questions whose sides do the same, where time is what counts: wrong predictions of them are dear.
    fn leave_sides_out(&mut self, module: &Module, settings: &Settings) {
        for _ in 0..ONE_SIDES {
            let goes_on = !settings.goal.puts_slots_first() && !is_over(settings);
            let Some(before) = self.derivation.as_ref().filter(|_| goes_on) else { return };
            let found = module.with_env(|env| Start::with_one_side(before, env, settings));
            let Some((start, derivation)) = found else { return };
            self.go_on_from(start, derivation, module, settings);
        }
    }

    /// Makes calls on the side of a branch that reads their results.
    fn make_calls_late(&mut self, module: &Module, settings: &Settings) {
        for _ in 0..LATE_CALLS {
            let Some(before) = self.derivation.as_ref().filter(|_| !is_over(settings)) else { return };
            let found = module.with_env(|env| Start::with_late_call(before, env, settings));
            let Some((start, derivation)) = found else { return };
            self.go_on_from(start, derivation, module, settings);
        }
    }

    /// Goes on with another form of what it is, if that is proven to do the same; whether it is ([`Start::of_form`]).
    pub(crate) fn go_on_with(
        &mut self,
        module: &Module,
        settings: &Settings,
        form: &Function,
        then: Option<&Function>,
        by: &str,
    ) -> bool {
        let started = Instant::now();
        let Some(before) = self.derivation.as_ref() else { return false };
        let found = module.with_env(|env| Start::of_form(before, form, then, by, env, settings));
        self.report.seconds += started.elapsed().as_secs_f64();
        let Some((start, derivation)) = found else { return false };
        self.go_on_from(start, derivation, module, settings);
        true
    }

    /// Goes on with one change of a block, which need not be cheaper and may read what was dead, if that is proven where it stands;
    /// whether it is.
    pub(crate) fn go_on_by(&mut self, module: &Module, settings: &Settings, rewrite: Rewrite) -> bool {
        let started = Instant::now();
        let Some(derivation) = self.derivation.take() else { return false };
        let (derivation, tally, done) = module.with_env(|env| {
            let mut session = Session::new(derivation, env);
            session.analyze();
            let mut engine = Engine::new(settings, &self.banned);
            let done = engine.replace_with_dead(&mut session, rewrite);
            (session.finish(), engine.tally, done)
        });
        self.derivation = Some(derivation);
        self.count([tally.proofs as u64, tally.refused as u64, tally.sat_calls]);
        if done {
            self.quiet = Quiet::default();
            self.lower(module, settings);
        }
        self.report.seconds += started.elapsed().as_secs_f64();
        done
    }

    /// The same without what the global passes, or another build, have made of it; `None` if they have made nothing.
    pub(crate) fn without_global(&self, module: &Module, settings: &Settings) -> Option<Candidate> {
        let mut c = self.clone();
        c.derivation = Some(c.start.take()?.before().clone());
        c.quiet = Quiet::default();
        c.lower(module, settings);
        Some(c)
    }

    /// Hands what was made of the candidate `of` to `twin`, which is the same function with another name.
    pub(crate) fn share(candidates: &mut [Candidate], module: &Module, settings: &Settings, of: usize, twin: usize) {
        let Candidate { derivation, start, quiet, timed_out, report, .. } = candidates[of].clone();
        let c = &mut candidates[twin];
        let name = c.original().map_or_else(String::new, |f| f.name.clone());
        (c.derivation, c.start) = (derivation.map(|d| d.named(&name)), start.map(|s| s.named(&name)));
        (c.quiet, c.timed_out) = (quiet, timed_out);
        c.report.untouched = report.untouched;
        c.report.twin_of = Some(report.name);
        c.lower(module, settings);
    }

    /// Whether there was no time for it at all.
    pub(crate) fn is_not_reached(&self) -> bool {
        self.timed_out && self.steps().is_empty() && self.report.untouched.is_none()
    }

    /// Makes the body from what it is now. One that is no gain, or needs a newer kernel, is not taken.
    pub(crate) fn lower(&mut self, module: &Module, settings: &Settings) {
        self.unchanged();
        (self.judged, self.present) = (false, false);
        self.report.rewrites.clear();
        let (Some(f), Ok(original)) = (self.function(), &module.graphs[self.id]) else { return };
        let before = self.report.slots_before;
        let rewritten = self.start.is_some() || self.steps().iter().any(|s| s.rewrite().is_some());
        let most = most_slots(before, settings.goal);
        if slot_count(f) >= before && !rewritten {
            return;
        }
        let level = |l: &bpf_program::Lowered| l.listing.iter().map(|(_, i)| i.cpu()).max().unwrap_or(1);
        let allowed = lower(original).map_or(settings.cpu, |l| level(&l).max(settings.cpu));
        let lowered = match lower(f) {
            Ok(l) if l.slots() <= most && level(&l) <= allowed => l,
            Ok(_) => return,
            Err(e) => {
                self.report.untouched = Some(e.to_string());
                return;
            }
        };
        self.report.slots_after = lowered.slots();
        self.report.listing_after = lowered.listing.iter().map(|(s, i)| format!("{s:4}: {i}")).collect();
        let starts = self.start.iter().flat_map(|s| s.steps()).map(String::as_str);
        let steps = self.derivation.iter().flat_map(Derivation::steps);
        for by in starts.chain(steps.filter_map(|s| s.rewrite().map(|r| r.by))) {
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

    /// Forbids the change that led to the state after `n` steps.
    pub(crate) fn ban(&mut self, n: usize) {
        let Some(step) = n.checked_sub(1).and_then(|at| self.steps().get(at)) else { return };
        let mark = match step.rewrite() {
            Some(_) => step.mark(),
            None => {
                let Some(derivation) = &self.derivation else { return };
                let mut after = derivation.clone();
                after.rewind(n);
                let mut before = after.clone();
                before.rewind(n - 1);
                shape_mark(before.current(), after.current())
            }
        };
        self.banned.insert(mark);
        self.quiet = Quiet::default();
    }

    /// Goes back to the first `n` changes.
    pub(crate) fn rewind(&mut self, module: &Module, settings: &Settings, n: usize) {
        let Some(derivation) = &mut self.derivation else { return };
        derivation.rewind(n);
        self.lower(module, settings);
    }

    /// The function as it was in the beginning, to go on from.
    pub(crate) fn rewound(&self, module: &Module, settings: &Settings) -> Candidate {
        let mut c = self.clone();
        if let Some(start) = c.start.take() {
            c.derivation = Some(start.before().clone());
        }
        c.quiet = Quiet::default();
        c.rewind(module, settings, 0);
        c
    }

    /// What the local passes but one make of it from the beginning.
    pub(crate) fn without_pass(
        &self,
        module: &Module,
        settings: &Settings,
        pass: &'static str,
        banned: &FxHashSet<u64>,
    ) -> Candidate {
        let mut c = self.clone();
        if let Some(start) = c.start.take() {
            c.derivation = Some(start.before().clone());
        }
        (c.left_out, c.quiet) = (Some(pass), Quiet::default());
        c.banned.clone_from(banned);
        c.rewind(module, settings, 0);
        c.run_passes(module, settings);
        c
    }

    /// Tells in the report what it became change by change.
    pub(crate) fn explain(&mut self, module: &Module) {
        let (Some(derivation), Ok(original), true) = (&self.derivation, &module.graphs[self.id], self.body.is_some())
        else {
            return;
        };
        let steps = self.start.as_ref().map_or(&[][..], Start::steps);
        self.report.changes = explain::changes(&module.object, FuncId(self.id), original, steps, derivation);
    }

    /// Notes in the report how large it is now, and since when.
    pub(crate) fn note_size(&mut self, started: Instant, proposals: u64) {
        self.report.reached.note(self.report.slots_after, started.elapsed().as_secs_f64(), proposals);
    }

    /// Notes in the report what it takes, as estimated, before and now.
    pub(crate) fn note_time(&mut self, module: &Module, settings: &Settings, costs: &Costs) {
        let Ok(original) = &module.graphs[self.id] else { return };
        let now = self.function().filter(|_| self.body.is_some()).unwrap_or(original);
        let of_map = |i: usize| module.maps.get(i).and_then(|m| m.map_type);
        let time = |f: &Function| match settings.goal {
            Goal::Latency(costs) => estimate::expected(f, &settings.frequencies(f), costs, &of_map),
            Goal::Size | Goal::Verifier => estimate::of_function(f, costs, &of_map),
        };
        self.report.estimated_ns = Some((time(original), time(now)));
    }

    /// Gives everything up.
    pub(crate) fn revert(&mut self, module: &Module, settings: &Settings, why: &str) {
        if let Some(start) = self.start.take() {
            self.derivation = Some(start.before().clone());
        }
        self.rewind(module, settings, 0);
        self.unchanged();
        self.report.untouched = Some(why.into());
    }

    /// Why the function after `n` steps lacks what counts by being there, or has too much of it.
    fn lacks_presence(&self, module: &Module, n: usize) -> Option<&'static str> {
        let (Some(derivation), Ok(original)) = (&self.derivation, &module.graphs[self.id]) else { return None };
        let in_struct_ops = private_stack::is_in_struct_ops(module, FuncId(self.id));
        let differs = |now: &Function, env: &Env| {
            let other_stack = || in_struct_ops && private_stack::differs(original, now, env);
            presence_differs(original, now, env).or_else(|| other_stack().then_some(private_stack::OWN_STACK))
        };
        if n == derivation.steps().len() {
            return module.with_env(|env| differs(derivation.current(), env));
        }
        let mut earlier = derivation.clone();
        earlier.rewind(n);
        module.with_env(|env| differs(earlier.current(), env))
    }

    /// Takes back steps until the function holds what counts by being there, which no proof of a step sees. The first
    /// step that is found to change that is banned, and the passes go on without it while there is time.
    pub(crate) fn keep_present(&mut self, module: &Module, settings: &Settings) {
        for patience in (0..=PATIENCE).rev() {
            if self.present || self.body.is_none() {
                return;
            }
            let started = Instant::now();
            let why = self.lacks_presence(module, self.steps().len());
            self.presence_takes = started.elapsed();
            let Some(why) = why else {
                self.present = true;
                return;
            };
            self.report.refused += 1;
            // What the global passes have made goes first, if it is not good by itself.
            if self.start.is_some()
                && self.lacks_presence(module, 0).is_some()
                && let Some(plain) = self.without_global(module, settings)
            {
                *self = plain;
                continue;
            }
            let (mut good, mut bad) = (0, self.steps().len());
            while bad - good > 1 && !is_over(settings) {
                let middle = good + (bad - good) / 2;
                match self.lacks_presence(module, middle) {
                    None => good = middle,
                    Some(_) => bad = middle,
                }
            }
            self.ban(bad);
            self.rewind(module, settings, good);
            // The original is as the original; other states were asked about.
            self.present = true;
            // Where the first step is to blame each time, every other would be.
            let go_on = patience > 0 && (good > 0 || patience == PATIENCE) && !is_over(settings);
            if !go_on {
                if self.body.is_none() {
                    self.revert(module, settings, why);
                    self.present = true;
                }
                return;
            }
            self.run_passes(module, settings);
        }
    }

    /// Has what is to be written proven as a whole function, independently of the facts the single rewrites relied on.
    /// If it is wrong, the function is what it was. Not asked again until something changes.
    pub(crate) fn second_opinion(&mut self, module: &Module, settings: &Settings, budget: &Budget, seed: u64) {
        if self.judged {
            return;
        }
        // What is written must hold that, whatever time it takes; it was asked about when there was time.
        let soon = Settings { deadline: Some(Instant::now()), ..settings.clone() };
        self.keep_present(module, &soon);
        self.judged = true;
        let (Some(f), Ok(original), true) = (self.function(), &module.graphs[self.id], self.body.is_some()) else {
            self.report.whole = "equal".into();
            return;
        };
        let Some(deadline) = budget.deadline(self.presence_takes) else {
            self.report.whole = "unknown: no time; every step proven".into();
            return;
        };
        let limits = Limits { deadline: Some(deadline), ..Limits::default() };
        let strict_shared_memory = settings.strict_shared_memory;
        let recorder = settings.queries.clone();
        let options = ProofOptions { strict_shared_memory, limits, recorder, ..ProofOptions::default() };
        let said = match ask(module, Topic::Whole, [original, f], settings, Some(deadline)) {
            Some(Ok(Answer::Equal)) => Opinion::Equal,
            asked => {
                let said = module.with_env(|env| opinion(original, f, env, &options));
                if let (Opinion::Equal, Some(Err(mine))) = (&said, asked) {
                    mine.answer(Answer::Equal);
                }
                said
            }
        };
        match said {
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
                self.refuse(module, settings, refutation);
            }
        }
    }

    /// The function stays as it was: what was made of it is wrong.
    fn refuse(&mut self, module: &Module, settings: &Settings, refutation: Refutation) {
        self.revert(module, settings, "what was made of it is wrong, please report it");
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

/// What came of this question in another object; `None` if nothing is shared.
fn ask<'m>(
    module: &'m Module,
    topic: Topic,
    [original, now]: [&Function; 2],
    settings: &Settings,
    deadline: Option<Instant>,
) -> Option<Result<Answer, Mine<'m>>> {
    // What was counted is of one object.
    let is_of_one = settings.profiles.is_some() || settings.importance.is_some();
    let shared = module.shared.as_deref().filter(|_| !is_of_one)?;
    Some(shared.ask(module.with_env(|env| Question::new(topic, original, now, env, settings)), deadline))
}

/// How many slots what is made of a function of so many slots may have: where the verifier's work is the goal, it may be longer.
pub(crate) fn most_slots(before: usize, goal: Goal) -> usize {
    match goal {
        Goal::Verifier => before + before / 2 + 32,
        Goal::Size | Goal::Latency(_) => before,
    }
}

fn is_over(settings: &Settings) -> bool {
    settings.deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

fn listing(code: &[u8]) -> Vec<String> {
    match bpf_isa::decode_all(code) {
        Ok(v) => v.iter().map(|(s, i)| format!("{s:4}: {i}")).collect(),
        Err(_) => vec![],
    }
}

/// Calls `f` with each candidate that `which` names, on `jobs` threads, the smallest first: they gain most in a second.
/// The result does not depend on the number of threads. Should `f` break, the function is what it was before, and the
/// user is told.
pub(crate) fn each_candidate(
    candidates: &mut Vec<Candidate>,
    module: &Module,
    settings: &Settings,
    jobs: usize,
    which: impl Fn(&Candidate) -> bool,
    f: impl Fn(&mut Candidate) + Sync,
) {
    each_candidate_beside(candidates, module, settings, jobs, which, f, || ());
}

/// The same, while the calling thread does something `beside`, in the place of one of the others until that is done; what that gives.
pub(crate) fn each_candidate_beside<R>(
    candidates: &mut Vec<Candidate>,
    module: &Module,
    settings: &Settings,
    jobs: usize,
    which: impl Fn(&Candidate) -> bool,
    f: impl Fn(&mut Candidate) + Sync,
    beside: impl FnOnce() -> R,
) -> R {
    let (mut waiting, others): (Vec<_>, Vec<_>) = std::mem::take(candidates).into_iter().partition(which);
    waiting.sort_by_key(|c| (c.report.slots_before, c.id));
    let done: Mutex<Vec<Candidate>> = Mutex::new(others);
    let work = |mut c: Candidate| {
        // It is large, and nobody needs it twice.
        let quiet = std::mem::take(&mut c.quiet);
        let mut before = c.clone();
        c.quiet = quiet;
        let run = std::panic::AssertUnwindSafe(|| f(&mut c));
        if std::panic::catch_unwind(run).is_err() {
            before.revert(module, settings, "an internal error, please report it");
            c = before;
        }
        if let Ok(mut d) = done.lock() {
            d.push(c);
        }
    };
    let result = pool::each_from_both_ends(jobs, waiting, work, beside);
    *candidates = done.into_inner().unwrap_or_default();
    candidates.sort_by_key(|c| c.id);
    result
}

/// All functions of an object after the passes, and the object with what came of them.
#[cfg(test)]
pub(crate) fn after_passes(module: &Module, settings: &Settings) -> (Vec<Candidate>, Object) {
    let mut candidates: Vec<Candidate> = (0..module.graphs.len()).map(|i| Candidate::new(module, i)).collect();
    candidates.iter_mut().for_each(|c| c.run_passes(module, settings));
    let mut object = module.object.clone();
    candidates.iter().for_each(|c| c.place(&mut object).expect("it fits"));
    (candidates, object)
}
