//! A function taken over as a whole: what the global passes (`bpf_ssa`) make of it, each step proven at function size.
//!
//! The passes propose, or another build of the object does; [`Start::find`], [`Start::of_build`], [`Start::of_part`] and [`Start::of_form`]
//! are the only makers of a [`Start`], and take no step that [`bpf_prove::functions`] has not called equal here, whatever the proposer says. A start stands where a [`Derivation`] begins. The derivation that it
//! came from is kept, so that whoever finds fault with it can go back.

use std::time::{Duration, Instant};

use bpf_facts::Env;
use bpf_passes::{Engine, Quiet, Settings};
use bpf_program::{Function, slot_count};
use bpf_prove::{
    Budget, Derivation, Options as ProofOptions, Session, functions, same_graph, spills_around_a_fast_call,
    unreachable_operations,
};
use bpf_ssa::passes::{Pass, late_calls, one_side};
use bpf_ssa::{Judge, Step};
use rustc_hash::FxHashSet;

use crate::options::{Options, PassSelection};
use crate::weight::weight_in_one;

/// Time for the proof of one step: this, or a share of what is left.
const STEP: Duration = Duration::from_secs(1);
/// Work for the proof of one step, in a run that is to end soon ([`Budget`]).
const SHORT_STEP: u64 = 1_000_000;
const STEPS: u32 = 3;
/// Slots of a function up to which each proposal is judged by what the local passes make of it.
const SMALL: usize = 300;
/// Slots of a function beyond which there are no global passes but those for any size ([`Pass::is_for_any_size`]): what others
/// propose takes seconds to make, in which nothing looks at the clock, and its proof rarely goes through.
pub(crate) const LARGE: usize = 1000;
/// Turns of global and local passes, at most.
const TURNS: usize = 3;
/// What the step is called that the local passes make between two turns.
const LOCAL: &str = "local passes";
/// Forms with a call that is made later which are tried at a time, at most.
const LATE_CALLS: usize = 16;
/// And the step that makes a call later.
const LATE_CALL: &str = "late call";
/// Forms with one side of a question that are tried at a time, at most.
const ONE_SIDES: usize = 16;
/// And the step that leaves the other side out.
const ONE_SIDE: &str = "one side";
/// Share of the time that is left which all steps of a function may take from one of the two beginnings.
const SHARE: u32 = 4;
/// The same of a function that no other waits for.
const SHARE_ALONE: u32 = 2;

/// Slots of all functions together up to which, in a run that is to end soon, nobody has to be kept from taking others' time: then only
/// work ends what is done, and one seed gives one result.
const ORDINARY: usize = 1000;

/// How long global passes may work on one function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Work for the proof of one step; `None`: as much as there is time for.
    work: Option<u64>,
    /// All of the steps from one beginning: the time that is left divided by this.
    share: u32,
    /// Proofs cut short after which no more is tried from one beginning.
    cuts: usize,
}

impl Patience {
    /// Where functions of so many slots are to be worked on.
    pub(crate) fn of(options: &Options, slots: impl Iterator<Item = usize>) -> Patience {
        let (functions, slots) = slots.fold((0, 0), |(n, sum), slots| (n + 1, sum + slots));
        let share = if functions <= options.jobs { SHARE_ALONE } else { SHARE };
        match options.is_short() {
            true => {
                let share = if slots <= ORDINARY { 1 } else { share };
                Patience { work: Some(SHORT_STEP), share, cuts: 2 }
            }
            false => Patience { work: None, share, cuts: usize::MAX },
        }
    }
}

/// A function that has been proven, step by step, to do what another does.
#[derive(Clone)]
pub(crate) struct Start {
    /// How the function came about that the steps began with.
    before: Derivation,
    /// The passes of each step, and what made each rewrite of `before` where the steps begin with what that led to.
    steps: Vec<String>,
}

impl Start {
    /// What was there before.
    pub(crate) fn before(&self) -> &Derivation {
        &self.before
    }

    /// The passes of each step.
    pub(crate) fn steps(&self) -> &[String] {
        &self.steps
    }

    /// The same of a function that is called otherwise ([`Derivation::named`]).
    #[must_use]
    pub(crate) fn named(self, name: &str) -> Start {
        Start { before: self.before.named(name), ..self }
    }

    /// What `by` calls a step behind those of `before`.
    fn behind(before: &Derivation, by: &str) -> Start {
        let rewrites = before.steps().iter().filter_map(|s| s.rewrite()).map(|r| r.by.to_owned());
        Start { before: before.clone(), steps: rewrites.chain([by.to_owned()]).collect() }
    }

    /// What another build has in the place of the function that `before` began with, if it is proven to do the same: at
    /// once, or as what the local passes have made of the one leads to the other, or to what they make of it.
    pub(crate) fn of_build(
        before: &Derivation,
        other: &Function,
        build: &str,
        env: &Env<'_>,
        settings: &Settings,
    ) -> Option<(Start, Derivation)> {
        // What graphs do not tell, and what the kernel refuses, is left as `verify` leaves it.
        let original = before.original();
        if same_graph(original, other)
            || spills_around_a_fast_call(other)
            || unreachable_operations(other) > unreachable_operations(original)
        {
            return None;
        }
        let options = settings.proof_options(settings.deadline);
        let step = format!("build {build}");
        let derivation = with_local(other, env, settings);
        let start =
            |steps: &[&str]| Start { before: before.clone(), steps: steps.iter().map(|s| (*s).into()).collect() };
        if functions(original, other, env, &options).0.is_equal() || before.leads_to(other, env, &options).0.is_equal()
        {
            return Some((start(&[&step]), derivation));
        }
        let shorter = derivation.into_current();
        let leads_there = before.leads_to(&shorter, env, &options).0.is_equal();
        leads_there.then(|| (start(&[&step, LOCAL]), with_local(&shorter, env, settings)))
    }

    /// What a kept result says has become of the function that `before` began with, if it is proven to do the same: at once, or as
    /// what the local passes make of the function leads to it.
    pub(crate) fn of_part(
        before: &Derivation,
        result: &Function,
        by: &[String],
        env: &Env<'_>,
        settings: &Settings,
        deadline: Option<Instant>,
    ) -> Option<Start> {
        let options = settings.proof_options(deadline);
        let original = before.original();
        let is_equal = functions(original, result, env, &options).0.is_equal()
            || with_local(original, env, settings).leads_to(result, env, &options).0.is_equal();
        is_equal.then(|| Start { before: before.clone(), steps: by.to_vec() })
    }

    /// This start, and then one that begins where it led to.
    #[must_use]
    pub(crate) fn then(&self, next: &Start) -> Start {
        Start { before: self.before.clone(), steps: [&self.steps[..], &next.steps].concat() }
    }

    /// A form of what `before` has led to that is proven to do the same, or that is made of such a one by its shape alone, with what
    /// `by` calls the step.
    pub(crate) fn of_form(
        before: &Derivation,
        form: &Function,
        then: Option<&Function>,
        by: &str,
        env: &Env<'_>,
        settings: &Settings,
    ) -> Option<(Start, Derivation)> {
        let mut session = Session::new(Derivation::new(form.clone()), env);
        let is_equal =
            || functions(before.current(), form, env, &settings.proof_options(settings.deadline)).0.is_equal();
        if !is_equal() {
            return None;
        }
        if let Some(then) = then {
            session.reshape(then.clone()).ok()?;
        }
        Some((Start::behind(before, by), session.finish()))
    }

    /// A form of what `before` has led to in which some call is made on the one side of a branch that reads its result, if that is
    /// proven to do the same and weighs no more; less, where slots do not come first.
    pub(crate) fn with_late_call(
        before: &Derivation,
        env: &Env<'_>,
        settings: &Settings,
    ) -> Option<(Start, Derivation)> {
        let allowance = usize::from(settings.goal.puts_slots_first());
        let forms = || late_calls(before.current(), env).take(LATE_CALLS);
        Start::of_first_proven(before, forms, allowance, LATE_CALL, env, settings)
    }

    /// A form of what `before` has led to without a question whose sides do the same, if that is proven and weighs less.
    pub(crate) fn with_one_side(
        before: &Derivation,
        env: &Env<'_>,
        settings: &Settings,
    ) -> Option<(Start, Derivation)> {
        let forms = || one_side(before.current()).take(ONE_SIDES);
        Start::of_first_proven(before, forms, 0, ONE_SIDE, env, settings)
    }

    /// The first of the forms of what `before` has led to that weighs less than that and an `allowance`, and is proven to do the
    /// same, with what `by` calls the step.
    fn of_first_proven<F: Iterator<Item = Function>>(
        before: &Derivation,
        forms: impl FnOnce() -> F,
        allowance: usize,
        by: &str,
        env: &Env<'_>,
        settings: &Settings,
    ) -> Option<(Start, Derivation)> {
        if slot_count(before.current()) > LARGE {
            return None;
        }
        let weighs = |f: &Function| weight_in_one(f, settings, env.maps);
        let most = weighs(before.current()) + allowance;
        let now = Instant::now();
        let end = settings.deadline.map(|d| now + d.saturating_duration_since(now) / SHARE);
        let is_late = || end.is_some_and(|e| Instant::now() >= e);
        let is_equal = |form: &Function| {
            let step = [Instant::now().checked_add(STEP), end].into_iter().flatten().min();
            functions(before.current(), form, env, &settings.proof_options(step)).0.is_equal()
        };
        let form = forms().take_while(|_| !is_late()).find(|form| weighs(form) < most && is_equal(form))?;
        Some((Start::behind(before, by), with_local(&form, env, settings)))
    }

    /// Looks for a start that leads to fewer slots than `before` has: from what it was, and if that leads nowhere, from what it
    /// has become. What the local passes then make of it comes with it, and whether there was time to look for all of it.
    pub(crate) fn find(
        before: &Derivation,
        env: &Env<'_>,
        passes: &[Box<dyn Pass>],
        patience: Patience,
        settings: &Settings,
    ) -> (Option<(Start, Derivation)>, bool) {
        let mut is_whole = true;
        let large: Vec<Box<dyn Pass>>;
        let mut passes = passes;
        if slot_count(before.original()) > LARGE {
            let is_chosen = |p: &dyn Pass| p.is_for_any_size() && passes.iter().any(|q| q.name() == p.name());
            large = bpf_ssa::all_passes().into_iter().filter(|p| is_chosen(p.as_ref())).collect();
            passes = &large;
        }
        if passes.is_empty() {
            return (None, is_whole);
        }
        let untouched = {
            let mut d = before.clone();
            d.rewind(0);
            d
        };
        let mut costs = vec![];
        let mut local = Local::new(env, settings);
        for from in [&untouched, before] {
            let share = |d: Instant| {
                let left = d.saturating_duration_since(Instant::now());
                left / patience.share
            };
            let end = settings.deadline.map(|d| Instant::now() + share(d));
            if std::ptr::eq(from, before) && before.steps().is_empty() {
                continue;
            }
            let mut judge = Proving { end, patience, proven: vec![], costs: &mut costs, local: &mut local, cuts: 0 };
            let (steps, finished) = improve(from.current(), env, passes, &mut judge);
            is_whole &= !judge.is_late() && judge.cuts == 0;
            // Whatever is proposed: only what has been proven leads from one to the next.
            let chain: Vec<&Function> =
                std::iter::once(from.current()).chain(steps.iter().map(|s| &s.function)).collect();
            let is_step = |w: &[&Function]| judge.proven.iter().any(|(old, new)| old == w[0] && new == w[1]);
            if !chain.windows(2).all(is_step) {
                continue;
            }
            // Of a larger function the steps do not know what the local passes make of what comes last.
            let mut ends = vec![steps.len(), finished];
            ends.dedup();
            let weighs = |d: &Derivation| weight_in_one(d.current(), settings, env.maps);
            let of_end = |n: usize| Some((n, local.of(&steps[..n].last()?.function).clone()));
            let best = ends.into_iter().filter_map(of_end).min_by_key(|(_, derivation)| weighs(derivation));
            if let Some((n, derivation)) = best.filter(|(_, derivation)| weighs(derivation) < weighs(before)) {
                let names = steps[..n].iter().map(|s| if s.by.is_empty() { "ssa".into() } else { s.by.join("+") });
                return (Some((Start { before: before.clone(), steps: names.collect() }, derivation)), is_whole);
            }
        }
        (None, is_whole)
    }
}

/// What the global passes make of a function, and of what the local ones then make of that, in turns; and in the end what those
/// do that come last. All of them are steps, and the last one is a global one. With it the number of steps before what comes last.
fn improve(f: &Function, env: &Env<'_>, passes: &[Box<dyn Pass>], judge: &mut Proving<'_, '_>) -> (Vec<Step>, usize) {
    let mut all = bpf_ssa::improve(f, env, passes, judge);
    let mut fresh = !all.is_empty();
    for _ in 1..TURNS {
        let Some(last) = all.last().filter(|_| fresh && !judge.is_late()) else { break };
        let local = judge.local.of(&last.function).current().clone();
        let next = bpf_ssa::improve(&local, env, passes, judge);
        // Proofs that were cut are no reason to let go of what has been proven.
        fresh = !next.is_empty() && !judge.is_over() && judge.proves(&last.function, &local);
        if fresh {
            all.push(Step { by: vec![LOCAL], function: local });
            all.extend(next);
        }
    }
    let before = all.len();
    let last = all.last().map_or(f, |s| &s.function).clone();
    all.extend(bpf_ssa::finish(&last, env, passes, judge));
    (all, before)
}

/// Has each step proven; what counts is what the local passes make of it.
struct Proving<'a, 'e> {
    /// When there is no more time.
    end: Option<Instant>,
    patience: Patience,
    /// What has been proven: the second may stand in the place of the first.
    proven: Vec<(Function, Function)>,
    /// Functions of which it is known what they cost: several ways lead to one.
    costs: &'a mut Vec<(Function, usize)>,
    local: &'a mut Local<'e>,
    /// Proofs that time, or their budget, has ended.
    cuts: usize,
}

impl Proving<'_, '_> {
    /// Whether its time is over.
    fn is_over(&self) -> bool {
        self.end.is_some_and(|e| Instant::now() >= e)
    }

    fn proves(&mut self, old: &Function, new: &Function) -> bool {
        let now = Instant::now();
        let step = || self.end.map_or(STEP, |e| (e.saturating_duration_since(now) / STEPS).max(STEP));
        let budget = self.patience.work.map(Budget::new);
        // What a budget ends is not to be ended by the clock.
        let own = if budget.is_none() { now.checked_add(step()) } else { None };
        let deadline = [own, self.end].into_iter().flatten().min();
        let options = ProofOptions { budget, ..self.local.settings.proof_options(deadline) };
        let is_equal = functions(old, new, self.local.env, &options).0.is_equal();
        if is_equal {
            self.proven.push((old.clone(), new.clone()));
        }
        self.cuts += usize::from(!is_equal && options.is_over());
        is_equal
    }
}

impl Judge for Proving<'_, '_> {
    fn accepts(&mut self, old: &Function, new: &Function) -> bool {
        !self.is_late() && self.proves(old, new)
    }

    fn is_late(&self) -> bool {
        self.cuts >= self.patience.cuts || self.is_over()
    }

    fn cost(&mut self, f: &Function) -> usize {
        let (env, settings) = (self.local.env, self.local.settings);
        if slot_count(f) > SMALL || self.is_late() {
            return weight_in_one(f, settings, env.maps);
        }
        if let Some((_, cost)) = self.costs.iter().find(|(known, _)| known == f) {
            return *cost;
        }
        let cost = weight_in_one(self.local.of(f).current(), settings, env.maps);
        self.costs.push((f.clone(), cost));
        cost
    }
}

/// What the local passes make of a function.
fn with_local(f: &Function, env: &Env<'_>, settings: &Settings) -> Derivation {
    Local::new(env, settings).of(f).clone()
}

/// The local passes over many forms of a function, which are alike in most of their blocks: what has been proven of one is known of
/// the next, and where nothing was found, nothing is looked for again.
struct Local<'a> {
    env: &'a Env<'a>,
    settings: &'a Settings,
    /// The one for the form before, and what the passes have seen.
    last: Option<(Session<'a>, Quiet)>,
}

impl<'a> Local<'a> {
    fn new(env: &'a Env<'a>, settings: &'a Settings) -> Local<'a> {
        Local { env, settings, last: None }
    }

    /// What they make of this form.
    fn of(&mut self, f: &Function) -> &Derivation {
        let form = Derivation::new(f.clone());
        let (mut session, quiet) = match self.last.take() {
            Some((last, quiet)) => (last.then(form), quiet),
            None => (Session::new(form, self.env), Quiet::default()),
        };
        let banned = FxHashSet::default();
        let mut engine = Engine::new(self.settings, &banned).knowing(quiet);
        engine.run(&mut session);
        let quiet = engine.into_quiet();
        self.last.insert((session, quiet)).0.derivation()
    }
}

/// The global passes that these options choose.
pub(crate) fn chosen(options: &Options) -> Vec<Box<dyn Pass>> {
    let mut passes = bpf_ssa::all_passes();
    match &options.passes {
        PassSelection::Only(names) => passes.retain(|p| names.iter().any(|n| n == p.name())),
        PassSelection::All if options.ssa => {}
        _ => passes.clear(),
    }
    passes.retain(|p| p.min_kernel().is_none_or(|least| least <= options.min_kernel));
    passes
}

/// The names of all global passes.
pub(crate) fn names() -> Vec<&'static str> {
    bpf_ssa::all_passes().iter().map(|p| p.name()).collect()
}

#[cfg(test)]
mod tests {
    use bpf_object::Object;
    use bpf_ssa::{Op, Ssa, Term};

    use super::*;
    use crate::candidate::Candidate;
    use crate::module::Module;

    /// Drops whatever has an effect, and returns 0.
    struct Liar;

    impl Pass for Liar {
        fn name(&self) -> &'static str {
            "liar"
        }
        fn run(&self, f: &mut Ssa, _: &Env<'_>) -> bool {
            for b in f.layout.clone() {
                let block = f.block_mut(b);
                block.insts.retain(|i| !matches!(i.op, Op::Store { .. } | Op::Atomic { .. }));
                if let Term::Exit { value, .. } = &mut block.term {
                    *value = Some(bpf_ssa::Operand::Const(0));
                }
            }
            true
        }
    }

    fn module(bytes: &[u8]) -> Module {
        Module::new(Object::parse(bytes.to_vec()).expect("a committed object"))
    }

    #[test]
    fn in_a_short_run_of_an_ordinary_object_work_ends_proofs_and_no_clock() {
        let patience = |level, slots: &[usize]| {
            let p = Patience::of(&Options::default().at_level(level), slots.iter().copied());
            (p.work.is_some(), p.share)
        };
        assert_eq!(patience(2, &[400, ORDINARY - 400]), (true, 1));
        assert_eq!(patience(2, &[400, ORDINARY]), (true, SHARE));
        assert_eq!(patience(2, &[2 * ORDINARY]), (true, SHARE_ALONE));
        assert_eq!(patience(4, &[400]), (false, SHARE_ALONE));
    }

    #[test]
    fn what_is_not_proven_is_no_start() {
        let module = module(include_bytes!("../../../examples/globals.o"));
        let settings = Settings::default();
        let mut shorter = 0;
        for f in module.graphs.iter().flatten() {
            module.with_env(|env| {
                let passes: [Box<dyn Pass>; 1] = [Box::new(Liar)];
                let lie = bpf_ssa::candidate(f, env, &[&Liar]).expect("a candidate");
                shorter += usize::from(slot_count(&lie.function) < slot_count(f));
                if let Some((start, derivation)) = Start::find(
                    &Derivation::new(f.clone()),
                    env,
                    &passes,
                    Patience::of(&Options::default(), std::iter::once(1)),
                    &settings,
                )
                .0
                {
                    assert!(start.steps().iter().all(|s| !s.contains("liar")), "{:?}", start.steps());
                    assert!(functions(f, derivation.current(), env, &ProofOptions::default()).0.is_equal());
                }
            });
        }
        assert!(shorter > 0, "lies are tempting");
    }

    /// A program of so many branches, each with code of its own, and what follows.
    fn branches(count: usize, then: &str) -> Module {
        let branch = |n| format!("    if r7 > {n} goto l{n}\n    r0 += {n}\n    r0 += 1\nl{n}:\n");
        let code: String = (1..=count).map(branch).collect();
        let text = format!(
            "; A.\n; section: tc\n; map: counts array 4 8 16\n; expect: equal\nbefore:\n    r6 = r1\n    \
             r7 = *(u32 *)(r1 + 0)\n    r0 = 0\n{code}{then}    exit\nafter:\n    exit\n"
        );
        module(&bpf_testgen::case::Case::parse(&text).expect("a case").old_object().expect("it assembles"))
    }

    /// What the global passes make of it.
    fn start_of(module: &Module) -> Option<Start> {
        let soon = Some(Instant::now() + Duration::from_secs(60));
        let settings = Settings { deadline: soon, ..Settings::default() };
        let f = module.graphs[0].as_ref().expect("a graph");
        let patience = Patience::of(&Options::default(), std::iter::once(1));
        let find =
            |env: &Env<'_>| Start::find(&Derivation::new(f.clone()), env, &bpf_ssa::all_passes(), patience, &settings);
        module.with_env(find).0.map(|(start, _)| start)
    }

    /// Nothing looks at the clock while passes make a proposal, which takes a minute of some thousands of branches.
    #[test]
    fn long_functions_have_only_the_global_passes_for_any_size() {
        for (count, is_tried) in [(4, true), (LARGE / 3 + 1, false)] {
            assert_eq!(start_of(&branches(count, "")).is_some(), is_tried, "{count} branches");
        }
        let part = |label: &str, field: u32| {
            format!(
                "{label}:\n    r2 = *(u32 *)(r6 + {field})\n    *(u32 *)(r10 - 4) = r2\n    r2 = r10\n    r2 += -4\n    \
                 r1 = counts ll\n    call bpf_map_lookup_elem\n    if r0 == 0 goto none\n    r1 = *(u64 *)(r0 + 0)\n    \
                 r1 *= 3\n    r1 += 5\n    *(u64 *)(r0 + 0) = r1\n    r0 = 0\n    exit\n"
            )
        };
        let parts = [part("first", 8), part("second", 8)].concat();
        let two = format!("    if r7 > 7000 goto second\n{parts}none:\n    r0 = 1\n");
        let start = start_of(&branches(LARGE / 3 + 1, &two)).expect("two parts that are one");
        assert_eq!(start.steps(), ["ssa-melding"]);
    }

    #[test]
    fn what_a_start_has_led_to_can_be_taken_back() {
        let module = module(include_bytes!("../../../examples/xdp_count.o"));
        let settings = Settings::default();
        let mut starts = 0;
        for id in 0..module.graphs.len() {
            let mut c = Candidate::new(&module, id);
            c.run_global(
                &module,
                &settings,
                &bpf_ssa::all_passes(),
                Patience::of(&Options::default(), std::iter::once(1)),
            );
            let Some(plain) = c.without_global(&module, &settings) else { continue };
            starts += 1;
            assert!(c.report.slots_after < plain.report.slots_after);
            assert!(c.report.rewrites.iter().any(|(by, _)| by.starts_with("ssa")), "{:?}", c.report.rewrites);
            assert_eq!(c.original(), plain.original());
            c.revert(&module, &settings, "for the test");
            assert_eq!(c.report.slots_after, c.report.slots_before);
            assert_eq!(c.function(), plain.original());
        }
        assert!(starts > 0, "the example no longer gains");
    }
}
