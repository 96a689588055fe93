//! Optimizing one object.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bpf_object::{Object, WriteOptions};
use bpf_passes::{Settings, names};
use bpf_prove::Limits;

use crate::candidate::Candidate;
use crate::gate::{self, Gate};
use crate::opinion::Budget;
use crate::report::{Goal, Observer, Options, PassSelection, Report};
use crate::runcheck::{self, Job, RunJudge};
use crate::twins::Twins;
use crate::unit::Unit;
use crate::written::wrong;
use crate::{DriverError, pool, synthesis};

pub(crate) fn run(input: &[u8], options: &Options, observer: &dyn Observer) -> Result<(Vec<u8>, Report), DriverError> {
    let started = Instant::now();
    let object = Object::parse(input.to_vec())?;
    check_names(&object, options)?;
    let mut report = Report { warnings: object.warnings().to_vec(), ..Report::default() };
    let unit = Unit::new(object);
    observer.phase("asking the kernel");
    let gate = Gate::new(input, &unit.object, options, started);
    let mut settings = settings(&unit, options, started, gate.took());
    let stop = Arc::new(AtomicBool::new(false));
    settings.stop = Some(stop.clone());
    let mut wanted = wanted(&unit, options);

    let count = wanted.len();
    let mut candidates: Vec<Candidate> = (0..count).map(|id| Candidate::new(&unit, id)).collect();
    // Whatever would be made of these could not be compared.
    for id in gate.not_judged(&unit) {
        if std::mem::replace(&mut wanted[id], false) {
            candidates[id].report.untouched = Some(gate::NOT_JUDGED.to_owned());
        }
    }
    let twins = Twins::of(&candidates, &wanted);
    watched(observer, &stop, || {
        let wanted = |c: &Candidate| wanted[c.id] && twins.leads(c.id);
        each_candidate(&mut candidates, &unit, &settings, options.jobs, wanted, |c| {
            observer.function(c.id, count, &c.report.name, c.report.slots_before);
            if !observer.stop() {
                c.run_passes(&unit, &settings);
            }
            observer.saved(c.report.slots_before.saturating_sub(c.report.slots_after));
        });
    });
    for (twin, of) in twins.pairs() {
        Candidate::share(&mut candidates, &unit, &settings, of, twin);
    }
    let mut object = unit.object.clone();
    for c in &candidates {
        c.place(&mut object)?;
    }
    observer.phase("asking the kernel");
    let write = WriteOptions { keep_debug: options.keep_debug };
    gate::settle(&gate, &unit, &settings, &mut object, &mut candidates, &write, &mut report)?;
    if options.search {
        observer.phase("searching");
        let found = watched(observer, &stop, || {
            synthesis::run(&mut candidates, &unit, &wanted, &settings, options, observer, &mut report.notes)
        });
        if found.improved > 0 {
            for c in &candidates {
                c.place(&mut object)?;
            }
            observer.phase("asking the kernel");
            gate::settle(&gate, &unit, &settings, &mut object, &mut candidates, &write, &mut report)?;
        }
        report.search = Some(found);
    }
    if options.run_check && options.kernel && !observer.stop() {
        observer.phase("running both");
        let judge = RunJudge::new(input, options);
        let job = Job { gate: &gate, unit: &unit, settings: &settings, write: &write };
        report.run_check = Some(runcheck::settle(&judge, job, &mut object, &mut candidates, &mut report)?);
    }
    observer.phase("proving whole functions");
    let budget = Budget::new(options, started);
    let written = loop {
        if !judge(&mut candidates, &unit, &settings, options, &budget) {
            let written = object.write(&write)?;
            let wrong = wrong(&object, &written.bytes, &candidates);
            if wrong.functions.is_empty() && wrong.beside.is_empty() {
                break written;
            }
            for (id, why) in wrong.functions {
                let why = format!("what would be written is not what was proven, please report it: {why}");
                candidates[id].revert(&unit, &settings, &why);
            }
            if !wrong.beside.is_empty() {
                // Nothing of the result can be trusted: the input comes back.
                let whose = match wrong.of_the_original {
                    true => "the object has parts that cannot be compared",
                    false => "what would be written differs from the original beside its functions, please report it",
                };
                let why = format!("{whose}: {}", wrong.beside.join("; "));
                candidates.iter_mut().filter(|c| c.body.is_some()).for_each(|c| c.revert(&unit, &settings, &why));
            }
        }
        // The kernel has not seen these originals beside the other results; it may drop more of those.
        for c in &candidates {
            c.place(&mut object)?;
        }
        gate::settle(&gate, &unit, &settings, &mut object, &mut candidates, &write, &mut report)?;
    };
    let late = if observer.stop() { "not reached: interrupted" } else { "not reached: time" };
    for c in candidates.iter_mut().filter(|c| c.is_not_reached()) {
        c.report.untouched = Some(late.to_owned());
    }
    report.notes.extend(written.notes);
    report.timed_out = candidates.iter().any(|c| c.timed_out);
    for c in &mut candidates {
        c.report.cut_short = c.timed_out;
        if let Some(refutation) = &c.report.refuted {
            report.warnings.push(refutation.text(&c.report.name));
        } else if let Some(why) = &c.report.untouched {
            report.warnings.push(format!("{}: left as it was: {why}", c.report.name));
        }
    }
    report.functions = candidates.into_iter().map(|c| c.report).collect();
    report.seconds = started.elapsed().as_secs_f64();
    Ok((written.bytes, report))
}

/// Has all functions proven as wholes; whether any turned out to be wrong and was put back.
pub(crate) fn judge(
    candidates: &mut Vec<Candidate>,
    unit: &Unit,
    settings: &Settings,
    options: &Options,
    budget: &Budget,
) -> bool {
    let refuted =
        |cs: &[Candidate]| cs.iter().filter(|c| c.report.refuted.is_some() || c.report.untouched.is_some()).count();
    let before = refuted(candidates);
    each_candidate(
        candidates,
        unit,
        settings,
        options.jobs,
        |_| true,
        |c| {
            c.second_opinion(unit, settings, budget, options.seed);
        },
    );
    refuted(candidates) > before
}

fn check_names(object: &Object, options: &Options) -> Result<(), DriverError> {
    check_programs(object, options)?;
    if let PassSelection::Only(only) = &options.passes
        && let Some(name) = only.iter().find(|n| !names().contains(&n.as_str()))
    {
        return Err(DriverError::NoSuchPass { name: name.clone(), known: names().join(", ") });
    }
    Ok(())
}

/// Whether every program the user named is there.
pub(crate) fn check_programs(object: &Object, options: &Options) -> Result<(), DriverError> {
    for name in &options.programs {
        if object.function_named(name).is_none() {
            let known: Vec<&str> = object.functions().iter().map(|f| f.name.as_str()).collect();
            return Err(DriverError::NoSuchProgram { name: name.clone(), known: known.join(", ") });
        }
    }
    Ok(())
}

/// The settings of a run in which the kernel took `load` for the original.
fn settings(unit: &Unit, options: &Options, started: Instant, load: Duration) -> Settings {
    let only = match &options.passes {
        PassSelection::All => None,
        PassSelection::None => Some(vec![]),
        PassSelection::Only(v) => Some(v.clone()),
    };
    // A tenth of the time is kept for the kernel and for writing, and more where one load of the result, or of each of
    // two, takes longer.
    let loads = load * if options.search { 2 } else { 1 };
    let kept = loads.mul_f64(1.2).clamp(options.time_limit / 10, options.time_limit.mul_f64(0.45));
    let share = options.time_limit.saturating_sub(kept).max(Duration::from_millis(1));
    Settings {
        cpu: options.cpu.unwrap_or(unit.cpu.max(3)),
        size: options.goal != Goal::Latency,
        strict_shared_memory: options.strict_shared_memory,
        only,
        deadline: started.checked_add(share),
        limits: Limits { recorder: options.queries, ..Settings::default().limits },
        ..Settings::default()
    }
}

fn wanted(unit: &Unit, options: &Options) -> Vec<bool> {
    unit.object
        .functions()
        .iter()
        .map(|f| {
            options.passes != PassSelection::None && (options.programs.is_empty() || options.programs.contains(&f.name))
        })
        .collect()
}

/// Calls `f` with each candidate that `which` names, on `jobs` threads, the smallest first: they gain most in a second.
/// The result does not depend on the number of threads. Should `f` break, the function is what it was before, and the
/// user is told.
pub(crate) fn each_candidate(
    candidates: &mut Vec<Candidate>,
    unit: &Unit,
    settings: &Settings,
    jobs: usize,
    which: impl Fn(&Candidate) -> bool,
    f: impl Fn(&mut Candidate) + Sync,
) {
    let (mut waiting, others): (Vec<_>, Vec<_>) = std::mem::take(candidates).into_iter().partition(which);
    waiting.sort_by_key(|c| (c.report.slots_before, c.id));
    let done: Mutex<Vec<Candidate>> = Mutex::new(others);
    pool::each_from_both_ends(jobs, waiting, |mut c| {
        // It is large, and nobody needs it twice.
        let quiet = std::mem::take(&mut c.quiet);
        let mut before = c.clone();
        c.quiet = quiet;
        let run = std::panic::AssertUnwindSafe(|| f(&mut c));
        if std::panic::catch_unwind(run).is_err() {
            before.revert(unit, settings, "an internal error, please report it");
            c = before;
        }
        if let Ok(mut d) = done.lock() {
            d.push(c);
        }
    });
    *candidates = done.into_inner().unwrap_or_default();
    candidates.sort_by_key(|c| c.id);
}

/// Runs `f` while another thread watches whether the user wants to stop.
fn watched<T>(observer: &dyn Observer, stop: &AtomicBool, f: impl FnOnce() -> T) -> T {
    let finished = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !finished.load(Ordering::Relaxed) {
                if observer.stop() {
                    stop.store(true, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let r = f();
        finished.store(true, Ordering::Relaxed);
        r
    })
}
