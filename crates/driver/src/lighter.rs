//! Less work for the verifier, found by asking it: `--goal verifier`.
//!
//! How many instructions the verifier processes hangs on the ways it walks and on where it finds two states alike, which no
//! estimate tells. So the functions that passes and search have left are changed here one small step at a time, and the kernel
//! counts. A step that makes less work is taken if the prover calls it equal; everything else is dropped. What is proposed:
//!
//! - [`arithmetic`]: a question whose answers only compute becomes arithmetic, and is no fork;
//! - [`early`]: a constant that many ways set at their ends is set before they part;
//! - [`ends`]: a jump to a short end becomes that end;
//! - [`offsets`]: where ways meet, a pointer's offset into the packet becomes a number in a range;
//! - [`order`]: the verifier walks the other side of a question first.
//!
//! Of a program that the kernel refuses because it is too much ([`accept`]), all questions go that are proven to be arithmetic, and
//! then the kernel is asked.
//!
//! Nothing here is trusted: a step is a [`crate::global::Start`], which only a proof makes, and what comes out goes through the
//! gate like all else.

mod arithmetic;
mod early;
mod edit;
mod ends;
mod offsets;
mod order;
#[cfg(test)]
mod tests;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use bpf_facts::Analysis;
use bpf_object::{FuncId, FuncKind, Object};
use bpf_passes::Settings;
use bpf_program::{Function, lower, slot_count};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::candidate::{Candidate, most_slots};
use crate::error::DriverError;
use crate::gate::{Job, Work};
use crate::pool::on_deep_stack;
use crate::report::{MadeAcceptable, Observer, Report};
use edit::Form;

/// Time for the proof of one step at most.
const PROOF: Duration = Duration::from_secs(1);
/// The same of a program that the kernel refuses: there are few steps, and all of them are needed.
const PATIENT_PROOF: Duration = Duration::from_secs(5);
/// Steps that are proven of a program which the kernel refuses.
const STEPS: usize = 64;
/// What a step has to save, as part of the work: first those steps are taken that save most.
const GAINS: [f64; 3] = [0.05, 0.01, 0.0];

/// What the steps are taken with.
pub(crate) struct Lighter<'a> {
    pub(crate) job: Job<'a>,
    pub(crate) object: &'a mut Object,
    pub(crate) candidates: &'a mut [Candidate],
    pub(crate) report: &'a mut Report,
    /// The functions that the user wants changed.
    pub(crate) wanted: &'a [bool],
    pub(crate) deadline: Option<Instant>,
    pub(crate) observer: &'a dyn Observer,
}

/// What programs with a function are for the verifier: one number for each.
type Counts = Vec<u64>;

/// A step: the candidate that it leads to, what that is for the verifier, and the place of its form among all.
type Taken = (Candidate, Counts, usize);

impl Lighter<'_> {
    /// Takes steps until none makes less work, or time is up; the smallest functions first, as these gain most in a second.
    pub(crate) fn run(&mut self) -> Result<(), DriverError> {
        let mut order: Vec<usize> = (0..self.candidates.len()).filter(|i| self.may_change(*i)).collect();
        order.sort_by_key(|i| (self.candidates[*i].report.slots_after, *i));
        let all = order.len();
        for (n, i) in order.into_iter().enumerate() {
            let now = Instant::now();
            // An equal share of what is left.
            let left = |end: Instant| now + end.saturating_duration_since(now).div_f64((all - n) as f64);
            let end = self.deadline.map(left);
            self.lighten(i, end)?;
        }
        Ok(())
    }

    fn may_change(&self, i: usize) -> bool {
        let c = &self.candidates[i];
        let f = &self.job.module.object.functions()[i];
        // Callers in objects that are linked to this one later are not there to be judged.
        let is_hidden = f.kind == FuncKind::Static && !f.local;
        !is_hidden && self.wanted[i] && c.derivation.is_some() && (c.report.untouched.is_none() || c.body.is_some())
    }

    fn is_over(&self, end: Option<Instant>) -> bool {
        self.observer.stop() || end.is_some_and(|end| Instant::now() >= end)
    }

    /// Settings for a proof that may take so long.
    fn settings(&self, end: Option<Instant>, longest: Duration) -> Settings {
        let soon = Instant::now() + longest;
        let deadline = end.map_or(soon, |end| end.min(soon));
        Settings { deadline: Some(deadline), ..self.job.settings.clone() }
    }

    /// Makes one function lighter.
    fn lighten(&mut self, i: usize, end: Option<Instant>) -> Result<(), DriverError> {
        let programs = self.job.gate.accepted_with(self.job.module, i);
        if programs.is_empty() {
            return Ok(());
        }
        let Some(mut now) = self.counts(&programs, &self.candidates[i])? else { return Ok(()) };
        // What was there before the last steps may have been less work.
        let settings = self.settings(end, PROOF);
        if let Some(plain) = self.candidates[i].without_global(self.job.module, &settings)
            && let Some(counts) = self.counts(&programs, &plain)?
            && saves(&counts, &now) > 0.0
            && self.are_good(&programs, &plain)?
        {
            now = counts;
            self.take(plain)?;
        }
        let mut known: FxHashMap<u64, Option<Counts>> = FxHashMap::default();
        for gain in GAINS {
            let mut from = 0;
            while !self.is_over(end) {
                let Some(function) = self.candidates[i].function().cloned() else { return Ok(()) };
                let analysis = self.job.module.with_env(|env| Analysis::of(&function, env));
                // On from where the last step was found, then from the beginning.
                let later = all_forms(&function, &analysis).enumerate().skip(from);
                let forms = later.chain(all_forms(&function, &analysis).enumerate().take(from));
                let Some((c, counts, at)) = self.step(i, forms, (&programs, &now), gain, &mut known, end)? else {
                    break;
                };
                (now, from) = (counts, at);
                self.take(c)?;
            }
        }
        Ok(())
    }

    /// The first step that saves enough and is proven.
    fn step(
        &mut self,
        i: usize,
        forms: impl Iterator<Item = (usize, Form)>,
        (programs, now): (&[(usize, u64)], &Counts),
        gain: f64,
        known: &mut FxHashMap<u64, Option<Counts>>,
        end: Option<Instant>,
    ) -> Result<Option<Taken>, DriverError> {
        let most = most_slots(self.candidates[i].report.slots_before, self.job.settings.goal);
        let is_enough = |counts: &Counts| {
            let saved = saves(counts, now);
            saved > 0.0 && saved >= gain
        };
        for (at, form) in forms {
            if self.is_over(end) {
                break;
            }
            let number = number(form.last());
            if slot_count(form.last()) > most || known.get(&number).is_some_and(|c| !c.as_ref().is_some_and(is_enough))
            {
                continue;
            }
            let counts = self.counts_of(programs, i, form.last())?;
            known.insert(number, counts.clone());
            let Some(counts) = counts.filter(is_enough) else { continue };
            let mut c = self.candidates[i].clone();
            if self.go_on(&mut c, &form, &self.settings(end, PROOF)) && self.are_good(programs, &c)? {
                return Ok(Some((c, counts, at)));
            }
            known.insert(number, None);
        }
        Ok(None)
    }

    /// Has a step proven; whether it is.
    fn go_on(&self, c: &mut Candidate, form: &Form, settings: &Settings) -> bool {
        let module = self.job.module;
        on_deep_stack(|| {
            let is_proven = match &form.rewrite {
                Some(rewrite) => c.go_on_by(module, settings, rewrite.clone()),
                None => c.go_on_with(module, settings, &form.function, form.then.as_ref(), form.by),
            };
            is_proven && c.body.is_some()
        })
        .unwrap_or(false)
    }

    /// Puts a candidate into its place.
    fn take(&mut self, c: Candidate) -> Result<(), DriverError> {
        let i = c.id;
        c.place(self.object)?;
        self.candidates[i] = c;
        Ok(())
    }

    /// What programs are with this candidate in its place; `None` if one is refused or more than its original, or there is no time.
    fn counts(&self, programs: &[(usize, u64)], c: &Candidate) -> Result<Option<Counts>, DriverError> {
        let mut trial = self.object.clone();
        c.place(&mut trial)?;
        self.count(programs, &trial)
    }

    /// The same with a form of a function, of which nothing is proven yet.
    fn counts_of(&self, programs: &[(usize, u64)], i: usize, f: &Function) -> Result<Option<Counts>, DriverError> {
        let Ok(lowered) = lower(f) else { return Ok(None) };
        let mut trial = self.object.clone();
        trial.set_body(FuncId(i), lowered.insns)?;
        self.count(programs, &trial)
    }

    fn count(&self, programs: &[(usize, u64)], object: &Object) -> Result<Option<Counts>, DriverError> {
        let bytes = object.write(self.job.write)?.bytes;
        let counts = self.job.gate.counts(&bytes, programs.iter().map(|(program, _)| *program));
        let is_more = |counts: &Counts| counts.iter().zip(programs).any(|(now, (_, before))| now > before);
        Ok(counts.filter(|counts| !is_more(counts)))
    }

    /// Whether programs can take the originals' places with this candidate in its place.
    fn are_good(&self, programs: &[(usize, u64)], c: &Candidate) -> Result<bool, DriverError> {
        let Job { gate, module, write, .. } = self.job;
        let mut trial = self.object.clone();
        c.place(&mut trial)?;
        let bytes = trial.write(write)?.bytes;
        Ok(programs.iter().all(|(program, _)| gate.work(module, &trial, &bytes, *program).is_some_and(|w| w.good)))
    }
}

/// Everything that is proposed, in the order in which it is asked about.
fn all_forms<'a>(f: &'a Function, analysis: &'a Analysis) -> impl Iterator<Item = Form> + 'a {
    let offsets = std::iter::once_with(move || offsets::forms(f, analysis)).flatten();
    let early = std::iter::once_with(move || early::forms(f, analysis)).flatten();
    let ends = std::iter::once_with(move || ends::forms(f)).flatten();
    let order = std::iter::once_with(move || order::forms(f)).flatten();
    offsets.chain(early).chain(ends).chain(arithmetic::forms(f, analysis)).chain(order)
}

/// Which part of the work is saved, if it is more for no program.
fn saves(counts: &Counts, now: &Counts) -> f64 {
    if counts.iter().zip(now).any(|(a, b)| a > b) {
        return 0.0;
    }
    let [less, all] = [counts, now].map(|all| all.iter().sum::<u64>());
    all.saturating_sub(less) as f64 / all.max(1) as f64
}

/// A number for what a function is when it is lowered.
fn number(f: &Function) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&f.layout, &f.blocks).hash(&mut hasher);
    hasher.finish()
}

impl Lighter<'_> {
    /// Tries to make programs acceptable that the kernel refuses because they are too much; the functions of those that are now.
    pub(crate) fn accept(&mut self) -> Result<Vec<usize>, DriverError> {
        let Job { gate, module, .. } = self.job;
        let mut accepted = Vec::new();
        for (program, refused) in gate.too_much() {
            let functions = gate.functions_of(module, program);
            if functions.iter().any(|i| accepted.contains(i)) {
                continue;
            }
            let before: Vec<Candidate> = functions.iter().map(|i| self.candidates[*i].clone()).collect();
            for way in WAYS {
                let mut changed = false;
                for c in &before {
                    if self.may_change(c.id) {
                        changed |= self.go(c, way)?;
                    }
                }
                let work = match changed {
                    true => self.work(program)?,
                    false => None,
                };
                if let Some(Work { good: true, accepted: true, processed }) = work {
                    let by = merged(functions.iter().flat_map(|i| self.candidates[*i].report.rewrites.clone()));
                    let program = gate.name(program).to_owned();
                    self.report.made_acceptable.push(MadeAcceptable { program, refused, by, processed });
                    accepted.extend(&functions);
                    break;
                }
                if self.is_over(self.deadline) {
                    break;
                }
            }
            if !functions.iter().any(|i| accepted.contains(i)) {
                for c in before {
                    self.take(c)?;
                }
            }
        }
        Ok(accepted)
    }

    fn work(&self, program: usize) -> Result<Option<Work>, DriverError> {
        let Job { gate, module, write, .. } = self.job;
        let bytes = self.object.write(write)?.bytes;
        Ok(gate.work(module, self.object, &bytes, program))
    }

    /// Goes one way with a function; whether that led anywhere.
    fn go(&mut self, c: &Candidate, way: Way) -> Result<bool, DriverError> {
        let Job { module, settings, .. } = self.job;
        let mut c = match way.from_the_beginning {
            true => c.rewound(module, settings),
            false => c.clone(),
        };
        let mut changed = way.arithmetic && self.without_forks(&mut c);
        if !way.from_the_beginning && changed {
            on_deep_stack(|| c.run_passes(module, settings));
        }
        if way.reversed
            && let Some(form) = c.function().map(order::reversed)
        {
            changed |= self.go_on(&mut c, &form, &self.settings(self.deadline, PATIENT_PROOF));
        }
        changed &= c.body.is_some();
        if changed {
            self.take(c)?;
        }
        Ok(changed)
    }

    /// Makes arithmetic of every question that is proven to be none; whether there was one.
    fn without_forks(&self, c: &mut Candidate) -> bool {
        let mut seen: FxHashSet<u64> = FxHashSet::default();
        let mut steps = 0;
        if let Some(form) = c.function().and_then(arithmetic::spread) {
            self.go_on(c, &form, &self.settings(self.deadline, PATIENT_PROOF));
        }
        'steps: while steps < STEPS {
            let Some(function) = c.function().cloned() else { break };
            let analysis = self.job.module.with_env(|env| Analysis::of(&function, env));
            for form in arithmetic::forms(&function, &analysis) {
                if self.is_over(self.deadline) {
                    break 'steps;
                }
                if !seen.insert(number(form.last())) {
                    continue;
                }
                let mut next = c.clone();
                if self.go_on(&mut next, &form, &self.settings(self.deadline, PATIENT_PROOF)) {
                    *c = next;
                    steps += 1;
                    continue 'steps;
                }
            }
            break;
        }
        steps > 0
    }
}

/// How a program is tried to be made acceptable.
#[derive(Clone, Copy)]
struct Way {
    /// From the original, without the passes: the verifier walks in the compiler's order.
    from_the_beginning: bool,
    /// With arithmetic in the place of questions.
    arithmetic: bool,
    /// With the other side of every question first.
    reversed: bool,
}

/// The ways that are tried, in order.
const WAYS: [Way; 4] = [
    Way { from_the_beginning: true, arithmetic: true, reversed: false },
    Way { from_the_beginning: false, arithmetic: true, reversed: false },
    Way { from_the_beginning: true, arithmetic: true, reversed: true },
    Way { from_the_beginning: true, arithmetic: false, reversed: true },
];

/// Names once each, with how often they are there.
fn merged(all: impl Iterator<Item = (String, usize)>) -> Vec<(String, usize)> {
    let mut merged: Vec<(String, usize)> = Vec::new();
    for (name, times) in all {
        match merged.iter_mut().find(|(n, _)| *n == name) {
            Some((_, n)) => *n += times,
            None => merged.push((name, times)),
        }
    }
    merged
}
