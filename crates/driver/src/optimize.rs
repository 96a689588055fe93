//! Optimizing one object: once, or in several forms that the same search has passed through.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bpf_isa::Goal;
use bpf_object::{Object, WriteOptions};
use bpf_passes::Settings;
use bpf_ssa::passes::Pass;

use crate::builds::Builds;
use crate::candidate::{Candidate, each_candidate, each_candidate_beside};
use crate::error::DriverError;
use crate::gate::{self, Elsewhere, Gate};
use crate::global::{self, Patience};
use crate::lighter::Lighter;
use crate::module::Module;
use crate::opinion::Budget;
use crate::options::{Options, PassSelection};
use crate::parts::Work;
use crate::plan::{self, Plan};
use crate::prepare::{check_names, settings, wanted, watched};
use crate::report::{Observer, PartsReport, Report, SearchReport};
use crate::runcheck::{self, RunJudge};
use crate::shared::Shared;
use crate::synthesis::{self, Search, States};
use crate::twins::Twins;
use crate::written::wrong;

/// How often the passes go on where time has cut them short, before the kernel turned out to need less than it was given.
const TURNS: usize = 4;

/// A result: the object, and how it came about.
pub(crate) type Form = (Vec<u8>, Report);

/// Forms of an object, the one that should be the best first, and the others ([`States`]) as far as there are others and time:
/// `options.forms` at most. What is known of functions of other objects may be `shared`.
pub(crate) fn forms(
    input: &[u8],
    options: &Options,
    shared: Option<&Arc<Shared>>,
    observer: &dyn Observer,
) -> Result<Vec<Form>, DriverError> {
    let (forms, parts_held) = once(input, options, shared, observer)?;
    if parts_held {
        return Ok(forms);
    }
    // Steps would be taken back now, and a part does not tell its own. So they are made here.
    let without = Options { parts: None, ..options.clone() };
    let (mut forms, _) = once(input, &without, shared, observer)?;
    forms.iter_mut().for_each(|(_, report)| report.parts = Some(PartsReport { again: true, ..PartsReport::default() }));
    Ok(forms)
}

/// The same; and whether nobody has found fault with what was made of parts ([`crate::parts`]).
fn once(
    input: &[u8],
    options: &Options,
    shared: Option<&Arc<Shared>>,
    observer: &dyn Observer,
) -> Result<(Vec<Form>, bool), DriverError> {
    let started = Instant::now();
    let object = Object::parse(input.to_vec())?;
    let asked = options.kernel;
    let options = &*options.for_object(&object)?;
    check_names(&object, options)?;
    let mut report = Report { warnings: object.warnings().to_vec(), ..Report::default() };
    if asked && !options.kernel {
        let order = object.byte_order().name();
        report.notes.push(format!("the object is {order}, so this kernel cannot judge it; `check` does in its place"));
    }
    let mut module = Module::new(object);
    module.shared = shared.cloned();
    let builds = Builds::read(&module, &options.also)?;
    let reading = started.elapsed();
    if let Some(cpu) = options.cpu.filter(|cpu| *cpu < module.cpu) {
        report.notes.push(format!(
            "the object holds instructions of cpu v{} already; none above v{cpu} is added, those there may stay",
            module.cpu
        ));
    }
    let mut wanted = wanted(&module, options);
    let count = wanted.len();
    let mut candidates: Vec<Candidate> = (0..count).map(|id| Candidate::new(&module, id)).collect();
    let stop = Arc::new(AtomicBool::new(false));
    // Until it is known how long the kernel takes, it is taken to take as long as it may.
    let longest = options.time_limit.mul_f64(gate::ORIGINALS);
    let beginning = Plan::new(started, options.time_limit, longest, reading, options.run_check);
    let mut settings = settings(&module, options, beginning.passes());
    settings.stop = Some(stop.clone());
    let global = global::chosen(options);
    let passes =
        Passes { module: &module, options, builds: &builds, observer, started, saved: Mutex::new(vec![0; count]) };
    let judge_original = || {
        observer.phase("asking the kernel");
        let gate = Gate::new(input, &module, options, started);
        let for_runs = options.time_limit.mul_f64(plan::RUNS);
        let runs =
            options.run_check && options.kernel && gate.not_for_runs(for_runs).is_none() && runcheck::any_runs(&gate);
        let plan = Plan::new(started, options.time_limit, forms_take(&gate, options), reading, runs);
        let not_judged = gate.not_judged(&module).into_iter().collect();
        ((gate, plan), plan.passes(), not_judged)
    };
    let mut begun = Instant::now();
    let mut twins = Twins::of(&candidates, &wanted, &settings);
    let is_first = |c: &Candidate| !options.by_function && wanted[c.id] && twins.leads(c.id);
    let ((gate, plan), not_judged) =
        watched(observer, &stop, || passes.beside(&mut candidates, &twins, &settings, is_first, judge_original));
    settings.deadline = plan.passes();
    let mut object = module.object.clone();
    let write = WriteOptions { keep_debug: options.keep_debug };
    let mut bodies = vec![None; count];
    let taken = match options.by_function {
        true => {
            passes.set_aside(&not_judged, &mut candidates, &mut wanted);
            let work = Work { module: &module, settings: &settings, options, observer, started, stop: &stop };
            let taken = work.take(&mut candidates, &wanted);
            let open: Vec<bool> = wanted.iter().zip(&taken).map(|(wanted, taken)| *wanted && !taken).collect();
            let mut found = SearchReport::default();
            let made = work.on_each(&mut candidates, &open, &mut found, &mut report.notes);
            let count = taken.iter().filter(|taken| **taken).count();
            report.search = options.search.then_some(found);
            report.parts = options.parts.is_some().then_some(PartsReport { taken: count, made, again: false });
            bodies = candidates.iter().map(|c| c.body.clone()).collect();
            for c in &candidates {
                c.place(&mut object)?;
            }
            observer.phase("asking the kernel");
            let mending = mending(&settings, &plan);
            gate::settle(gate.job(&module, &mending, &write), &mut object, &mut candidates, &mut report)?;
            taken
        }
        false => vec![false; count],
    };
    for turn in 0..if options.by_function { 0 } else { TURNS } {
        if turn == 0 {
            if !global.is_empty() {
                observer.phase("global passes");
                // All functions have had the local ones. Half of what is left is for the search.
                let half = |d: Instant| Instant::now() + d.saturating_duration_since(Instant::now()) / 2;
                let settings = Settings { deadline: settings.deadline.map(half), ..settings.clone() };
                let is_idle = |c: &Candidate| twins.all_of(c.id, |id| not_judged.contains_key(&id));
                let wanted = |c: &Candidate| wanted[c.id] && twins.leads(c.id) && !c.timed_out && !is_idle(c);
                let slots = candidates.iter().filter(|c| wanted(c)).map(|c| c.report.slots_before);
                let patience = Patience::of(options, slots);
                watched(observer, &stop, || {
                    each_candidate(&mut candidates, &module, &settings, options.jobs, wanted, |c| {
                        passes.global(c, &settings, &global, patience);
                    });
                });
            }
        } else {
            // The kernel may have refused of one what it takes of the other.
            twins = Twins::of(&candidates, &wanted, &settings);
            watched(observer, &stop, || {
                let wanted = |c: &Candidate| wanted[c.id] && twins.leads(c.id) && may_go_on(c, options);
                each_candidate(&mut candidates, &module, &settings, options.jobs, wanted, |c| {
                    passes.local(c, &settings, false);
                });
            });
        }
        for (twin, of) in twins.pairs() {
            Candidate::share(&mut candidates, &module, &settings, of, twin);
        }
        if turn == 0 {
            passes.set_aside(&not_judged, &mut candidates, &mut wanted);
        }
        for c in &candidates {
            c.place(&mut object)?;
        }
        observer.phase("asking the kernel");
        let asked = Instant::now();
        let mending = mending(&settings, &plan);
        gate::settle(gate.job(&module, &mending, &write), &mut object, &mut candidates, &mut report)?;
        // What the kernel did not need goes to those that were cut short.
        let cut_short = |c: &Candidate| wanted[c.id] && twins.leads(c.id) && may_go_on(c, options);
        let more = plan.more(begun, asked).filter(|_| candidates.iter().any(cut_short) && !observer.stop());
        let Some(more) = more else { break };
        begun = Instant::now();
        settings.deadline = Some(more);
    }
    settings.deadline = match options.goal {
        Goal::Verifier => plan.search_before_steps(),
        _ => plan.search(),
    };
    let mut searched = wanted.clone();
    if asks_for_less(options) && !observer.stop() {
        let mending = mending(&settings, &plan);
        let job = gate.job(&module, &mending, &write);
        let (deadline, wanted) = (plan.search(), &wanted[..]);
        let (object, candidates, report) = (&mut object, &mut candidates[..], &mut report);
        // The kernel is not asked again about what has become acceptable, so it stays as it is.
        for i in (Lighter { job, object, candidates, report, wanted, deadline, observer }).accept()? {
            searched[i] = false;
        }
    }
    let mut states = None;
    if options.looks_at_windows() && !options.by_function {
        observer.phase(if options.search { "searching" } else { "applying rules" });
        let (found, others) = watched(observer, &stop, || {
            let search = Search::new(&module, &settings, options, observer, started);
            synthesis::run(&mut candidates, &searched, search, &mut report.notes)
        });
        if found.improved > 0 {
            each_candidate(
                &mut candidates,
                &module,
                &settings,
                options.jobs,
                |_| true,
                |c| c.keep_present(&module, &settings),
            );
            for c in &candidates {
                c.place(&mut object)?;
            }
            observer.phase("asking the kernel");
            let mending = mending(&settings, &plan);
            gate::settle(gate.job(&module, &mending, &write), &mut object, &mut candidates, &mut report)?;
        }
        report.search = Some(found);
        states = Some(others);
    }
    if asks_for_less(options) && !observer.stop() {
        observer.phase("asking the verifier for less");
        let mending = mending(&settings, &plan);
        let job = gate.job(&module, &mending, &write);
        let (deadline, wanted) = (plan.search(), &wanted[..]);
        let (object, candidates, report) = (&mut object, &mut candidates[..], &mut report);
        Lighter { job, object, candidates, report, wanted, deadline, observer }.run()?;
        gate::settle(job, object, candidates, report)?;
    }
    let elsewhere = &Elsewhere::new(input, options);
    let (gate, settings) = (&gate, &settings);
    let finish = Finish { input, module: &module, gate, elsewhere, settings, options, plan: &plan, observer, started };
    let mut last = candidates;
    let mut forms = vec![finish.form(&mut last, &mut object, report.clone())?];
    let is_held = |c: &Candidate| !taken[c.id] || c.body == bodies[c.id];
    let uses_parts = last.iter().any(|c| taken[c.id] && bodies[c.id].is_some());
    if uses_parts && (forms.iter().any(|(_, report)| report.has_taken_back()) || !last.iter().all(is_held)) {
        return Ok((forms, false));
    }
    let mending = mending(settings, &plan);
    let others = states.map_or_else(Vec::new, |states: States| states.beside(&last, &module, &mending));
    for other in others {
        if forms.len() >= options.forms || observer.stop() || plan.proofs().is_some_and(|end| Instant::now() >= end) {
            break;
        }
        let begun = Instant::now();
        let mut candidates = last.clone();
        other.into_iter().for_each(|c| {
            let id = c.id;
            candidates[id] = c;
        });
        each_candidate(
            &mut candidates,
            &module,
            &mending,
            options.jobs,
            |_| true,
            |c| c.keep_present(&module, &mending),
        );
        for c in &candidates {
            c.place(&mut object)?;
        }
        observer.phase("asking the kernel");
        let mut report = report.clone();
        gate::settle(gate.job(&module, &mending, &write), &mut object, &mut candidates, &mut report)?;
        let mut form = finish.form(&mut candidates, &mut object, report)?;
        form.1.seconds = begun.elapsed().as_secs_f64();
        // The kernel may have taken back what made it another one.
        if form.0 != input && forms.iter().all(|f| f.0 != form.0) {
            forms.push(form);
        }
    }
    Ok((forms, true))
}

/// The passes over functions.
struct Passes<'a> {
    module: &'a Module,
    options: &'a Options,
    builds: &'a Builds,
    observer: &'a dyn Observer,
    started: Instant,
    /// By function, as several are worked on at once.
    saved: Mutex<Vec<usize>>,
}

/// Functions that stay as they are because the kernel did not judge a program with them, and why. Whatever would be made of these
/// could not be compared.
type NotJudged = BTreeMap<usize, String>;

impl Passes<'_> {
    /// The passes that look at blocks, over one function.
    fn local(&self, c: &mut Candidate, settings: &Settings, is_first: bool) {
        self.observer.function(c.id, self.module.graphs.len(), &c.report.name, c.report.slots_before);
        c.timed_out = false;
        if self.observer.stop() {
            c.timed_out = true;
        } else {
            c.run_passes(self.module, settings);
            if is_first {
                c.run_builds(self.module, settings, self.builds.of(c.id));
            }
            c.keep_present(self.module, settings);
        }
        self.note(c);
    }

    /// The passes that look at all of a function.
    fn global(&self, c: &mut Candidate, settings: &Settings, passes: &[Box<dyn Pass>], patience: Patience) {
        if self.observer.stop() {
            return;
        }
        c.run_global(self.module, settings, passes, patience);
        c.keep_present(self.module, settings);
        self.note(c);
    }

    fn note(&self, c: &mut Candidate) {
        c.note_size(self.started, 0);
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        saved[c.id] = c.report.slots_before.saturating_sub(c.report.slots_after);
        self.observer.saved(saved.iter().sum());
    }

    /// The first local passes over these functions, and beside them what the kernel says of the original: that, until when passes may
    /// go on, and what was not judged. A function that is begun when this is known has the time until then, and none if no
    /// program with it was judged.
    fn beside<T>(
        &self,
        candidates: &mut Vec<Candidate>,
        twins: &Twins,
        settings: &Settings,
        which: impl Fn(&Candidate) -> bool,
        judge_original: impl FnOnce() -> (T, Option<Instant>, NotJudged),
    ) -> (T, NotJudged) {
        let known: OnceLock<(Settings, NotJudged)> = OnceLock::new();
        let judge_original = || {
            let (said, deadline, not_judged) = judge_original();
            // Nobody else sets it.
            let _ = known.set((Settings { deadline, ..settings.clone() }, not_judged.clone()));
            (said, not_judged)
        };
        let work = |c: &mut Candidate| match known.get() {
            Some((_, not_judged)) if twins.all_of(c.id, |id| not_judged.contains_key(&id)) => {}
            Some((settings, _)) => self.local(c, settings, true),
            None => self.local(c, settings, true),
        };
        each_candidate_beside(candidates, self.module, settings, self.options.jobs, which, work, judge_original)
    }

    /// Leaves these functions as they are.
    fn set_aside(&self, which: &NotJudged, candidates: &mut [Candidate], wanted: &mut [bool]) {
        for (&id, why) in which.iter().filter(|(id, _)| std::mem::take(&mut wanted[**id])) {
            candidates[id] = Candidate::new(self.module, id);
            candidates[id].report.untouched = Some(why.clone());
            self.note(&mut candidates[id]);
        }
    }
}

/// How long the kernel takes for all forms that are wanted, if each takes what the original took.
fn forms_take(gate: &Gate, options: &Options) -> Duration {
    gate.took().saturating_mul(u32::try_from(options.forms).unwrap_or(u32::MAX))
}

/// The end of a run, from functions that are settled to the bytes.
struct Finish<'a> {
    input: &'a [u8],
    module: &'a Module,
    gate: &'a Gate,
    elsewhere: &'a Elsewhere<'a>,
    settings: &'a Settings,
    options: &'a Options,
    plan: &'a Plan,
    observer: &'a dyn Observer,
    started: Instant,
}

impl Finish<'_> {
    /// Runs the result beside the original, proves its functions as wholes, writes it and reads it again; changes
    /// `candidates` until nothing is found fault with.
    fn form(
        &self,
        candidates: &mut Vec<Candidate>,
        object: &mut Object,
        mut report: Report,
    ) -> Result<Form, DriverError> {
        let Finish { input, module, gate, elsewhere, settings, options, plan, observer, started } = *self;
        let write = WriteOptions { keep_debug: options.keep_debug };
        if options.run_check && options.kernel && !observer.stop() {
            observer.phase("running both");
            let judge = RunJudge::new(input, options, plan.runs());
            report.run_check =
                Some(runcheck::settle(&judge, gate.job(module, settings, &write), object, candidates, &mut report)?);
        }
        observer.phase("proving whole functions");
        let mut budget = Budget::until(plan.proofs(), options.whole);
        let mut settings = settings.clone();
        let mut elsewhere_for = Duration::ZERO;
        let written = loop {
            let settings = &mut settings;
            if !judge(candidates, module, settings, options, &budget) {
                let written = object.write(&write)?;
                let wrong = wrong(object, &written.bytes, candidates);
                if wrong.functions.is_empty() && wrong.beside.is_empty() {
                    let job = gate.job(module, settings, &write);
                    if !options.other_kernels.is_empty() {
                        observer.phase("asking other kernels");
                    }
                    if !gate::settle_whole(job, input, &written.bytes, object, candidates, &mut report)? {
                        let Some(took) = elsewhere.settle(job, object, candidates, &mut report)? else { break written };
                        // What follows has the time that it would have had.
                        settings.deadline = settings.deadline.map(|end| end + took);
                        elsewhere_for += took;
                        budget = Budget::until(plan.proofs().map(|end| end + elsewhere_for), options.whole);
                    }
                }
                for (id, why) in wrong.functions {
                    let why = format!("what would be written is not what was proven, please report it: {why}");
                    candidates[id].revert(module, settings, &why);
                }
                if !wrong.beside.is_empty() {
                    // Nothing of the result can be trusted: the input comes back.
                    let whose = match wrong.of_the_original {
                        true => "the object has parts that cannot be compared",
                        false => {
                            "what would be written differs from the original beside its functions, please report it"
                        }
                    };
                    let why = format!("{whose}: {}", wrong.beside.join("; "));
                    candidates.iter_mut().filter(|c| c.body.is_some()).for_each(|c| c.revert(module, settings, &why));
                }
            }
            // The kernel has not seen these originals beside the other results; it may drop more of those.
            for c in candidates.iter() {
                c.place(object)?;
            }
            gate::settle(gate.job(module, settings, &write), object, candidates, &mut report)?;
        };
        let late = if observer.stop() { "not reached: interrupted" } else { "not reached: time" };
        for c in candidates.iter_mut().filter(|c| c.is_not_reached()) {
            c.report.untouched = Some(late.to_owned());
        }
        report.notes.extend(written.notes);
        report.timed_out = candidates.iter().any(|c| c.timed_out);
        for c in candidates.iter_mut() {
            c.report.cut_short = c.timed_out;
            c.note_time(module, &settings, options.costs);
            c.note_size(started, report.search.map_or(0, |s| s.proposals));
            if options.explain {
                c.explain(module);
            }
            if let Some(refutation) = &c.report.refuted {
                report.warnings.push(refutation.text(&c.report.name));
            } else if let Some(why) = &c.report.untouched {
                report.warnings.push(format!("{}: left as it was: {why}", c.report.name));
            }
        }
        report.functions = candidates.iter().map(|c| c.report.clone()).collect();
        report.seconds = started.elapsed().as_secs_f64();
        Ok((written.bytes, report))
    }
}

/// Whether steps are taken that the verifier itself finds good ([`crate::lighter`]).
fn asks_for_less(options: &Options) -> bool {
    options.goal == Goal::Verifier && options.kernel && options.passes == PassSelection::All
}

/// Whether passes may go on with a function that time has cut short. They take another way from there than they would
/// have taken; so with one thread, where a shorter run is to do the beginning of a longer one, only functions of which
/// nothing was done yet are begun.
fn may_go_on(c: &Candidate, options: &Options) -> bool {
    c.timed_out && (options.jobs > 1 || c.steps().is_empty())
}

/// Has all functions proven as wholes; whether any was changed, because what was made of it was wrong.
pub(crate) fn judge(
    candidates: &mut Vec<Candidate>,
    module: &Module,
    settings: &Settings,
    options: &Options,
    budget: &Budget,
) -> bool {
    let changed = AtomicBool::new(false);
    each_candidate(
        candidates,
        module,
        settings,
        options.jobs,
        |_| true,
        |c| {
            let form = |c: &Candidate| (c.steps().len(), c.body.is_some());
            let before = form(c);
            c.second_opinion(module, settings, budget, options.seed);
            if form(c) != before {
                changed.store(true, Ordering::Relaxed);
            }
        },
    );
    changed.into_inner()
}

/// The same where the kernel finds fault with what was made: the time of the passes may be over.
fn mending(settings: &Settings, plan: &Plan) -> Settings {
    Settings { deadline: plan.runs(), ..settings.clone() }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const OBJECT: &[u8] = include_bytes!("../../../examples/globals.o");

    /// Tells which functions are begun.
    struct Tells(Mutex<mpsc::Sender<usize>>);

    impl Observer for Tells {
        fn function(&self, id: usize, _: usize, _: &str, _: usize) {
            let _ = self.0.lock().map(|tell| tell.send(id));
        }
    }

    /// The passes beside a kernel that judges no program with one function, and gives the others until `deadline`, when it has seen
    /// that function begun, if that is to be waited for: which functions were begun, and what came of them.
    fn beside(jobs: usize, waits: bool, deadline: Option<Instant>) -> (Vec<usize>, Vec<Candidate>) {
        let module = Module::new(Object::parse(OBJECT.to_vec()).expect("a committed object"));
        let options = Options { jobs, ..Options::default() };
        let (tell, told) = mpsc::channel();
        let observer = Tells(Mutex::new(tell));
        let count = module.graphs.len();
        let (builds, saved) = (Builds::read(&module, &[]).expect("none"), Mutex::new(vec![0; count]));
        let started = Instant::now();
        let passes =
            Passes { module: &module, options: &options, builds: &builds, observer: &observer, started, saved };
        let mut candidates: Vec<Candidate> = (0..count).map(|id| Candidate::new(&module, id)).collect();
        // Threads that begin at once take the smallest first.
        let smallest = (0..count).min_by_key(|id| (candidates[*id].report.slots_before, *id)).expect("a function");
        let (settings, mut wanted) = (Settings::default(), vec![true; count]);
        let twins = Twins::of(&candidates, &wanted, &settings);
        let mut begun = Vec::new();
        let judge = || {
            while waits && !begun.contains(&smallest) {
                begun.push(told.recv_timeout(Duration::from_secs(60)).expect("another thread begins"));
            }
            ((), deadline, NotJudged::from([(smallest, "for the test".to_owned())]))
        };
        let ((), not_judged) = passes.beside(&mut candidates, &twins, &settings, |_| true, judge);
        passes.set_aside(&not_judged, &mut candidates, &mut wanted);
        assert!(!wanted[smallest] && candidates[smallest].body.is_none());
        assert_eq!(candidates[smallest].report.untouched.as_deref(), Some("for the test"));
        candidates.remove(smallest);
        begun.extend(told.try_iter());
        (begun, candidates)
    }

    #[test]
    fn what_was_begun_before_the_kernel_has_not_judged_it_stays_as_it_was() {
        let (alone, one) = beside(1, false, None);
        let (both, two) = beside(2, true, None);
        assert_eq!(both.len(), alone.len() + 1, "alone it is not begun");
        let slots = |all: &[Candidate]| all.iter().map(|c| c.report.slots_after).collect::<Vec<_>>();
        assert_eq!(slots(&one), slots(&two));
        assert!(one.iter().any(|c| c.report.slots_after < c.report.slots_before));
    }

    #[test]
    fn what_is_begun_when_the_kernel_has_spoken_has_the_time_that_is_left() {
        let (_, none) = beside(1, false, Some(Instant::now()));
        assert!(!none.is_empty() && none.iter().all(|c| c.timed_out && c.body.is_none()));
    }
}
