//! Optimizing one object.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bpf_object::{FuncId, FuncKind, NewInsn, Object, WriteOptions};
use bpf_passes::{Engine, Settings, names};
use bpf_program::{Function, lower, slot_count};
use bpf_prove::{Limits, Options as ProofOptions, Verdict};
use rustc_hash::FxHashSet;

use crate::DriverError;
use crate::gate::{self, Gate};
use crate::report::{FunctionReport, Goal, Observer, Options, PassSelection, Report};
use crate::unit::Unit;

/// What optimizing one function gave.
pub(crate) struct Candidate {
    pub(crate) id: usize,
    /// The new body; `None`: as it was.
    pub(crate) body: Option<Vec<NewInsn>>,
    pub(crate) applied: Vec<bpf_passes::Applied>,
    pub(crate) banned: FxHashSet<u64>,
    pub(crate) report: FunctionReport,
    pub(crate) timed_out: bool,
}

pub(crate) fn run(input: &[u8], options: &Options, observer: &dyn Observer) -> Result<(Vec<u8>, Report), DriverError> {
    let started = Instant::now();
    let object = Object::parse(input.to_vec())?;
    check_names(&object, options)?;
    let mut report = Report { warnings: object.warnings().to_vec(), ..Report::default() };
    let unit = Unit::new(object);
    let mut settings = settings(&unit, options, started);
    let stop = Arc::new(AtomicBool::new(false));
    settings.stop = Some(stop.clone());
    let wanted = wanted(&unit, options);

    let mut candidates = work(&unit, &wanted, &settings, options, observer, &stop);
    let gate = Gate::new(input, options);
    let mut object = unit.object.clone();
    for c in &candidates {
        place(&mut object, c)?;
    }
    observer.phase("asking the kernel");
    let write = WriteOptions { keep_debug: options.keep_debug };
    gate::settle(&gate, &unit, &settings, &mut object, &mut candidates, &write, &mut report)?;

    let written = object.write(&write)?;
    report.notes.extend(written.notes);
    report.timed_out = candidates.iter().any(|c| c.timed_out);
    for c in &candidates {
        if let Some(why) = &c.report.untouched {
            report.warnings.push(format!("{}: left as it was: {why}", c.report.name));
        }
    }
    report.functions = candidates.into_iter().map(|c| c.report).collect();
    report.seconds = started.elapsed().as_secs_f64();
    Ok((written.bytes, report))
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

fn settings(unit: &Unit, options: &Options, started: Instant) -> Settings {
    let only = match &options.passes {
        PassSelection::All => None,
        PassSelection::None => Some(vec![]),
        PassSelection::Only(v) => Some(v.clone()),
    };
    // A tenth of the time is kept for the kernel and for writing.
    let share = options.time_limit.mul_f64(0.9).max(Duration::from_millis(1));
    Settings {
        cpu: options.cpu.unwrap_or(unit.cpu.max(3)),
        size: options.goal != Goal::Latency,
        strict_shared_memory: options.strict_shared_memory,
        only,
        deadline: started.checked_add(share),
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

/// Optimizes the wanted functions on `jobs` threads. The result does not depend on their number.
fn work(
    unit: &Unit,
    wanted: &[bool],
    settings: &Settings,
    options: &Options,
    observer: &dyn Observer,
    stop: &AtomicBool,
) -> Vec<Candidate> {
    let count = wanted.len();
    // The largest first, so that no thread is left with a long one at the end.
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|i| std::cmp::Reverse(unit.object.functions()[*i].slots));
    let queue: Mutex<VecDeque<usize>> = Mutex::new(order.into());
    let done: Mutex<Vec<Candidate>> = Mutex::new(Vec::new());
    let finished = AtomicBool::new(false);
    std::thread::scope(|s| {
        // The user's wish to stop reaches the engines through a flag.
        s.spawn(|| {
            while !finished.load(Ordering::Relaxed) {
                if observer.stop() {
                    stop.store(true, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let mut workers = Vec::new();
        for _ in 0..options.jobs.clamp(1, count.max(1)) {
            let body = || {
                while let Some(id) = queue.lock().ok().and_then(|mut q| q.pop_front()) {
                    let f = &unit.object.functions()[id];
                    observer.function(id, count, &f.name, f.slots);
                    let c = guarded(unit, id, wanted[id] && !observer.stop(), settings);
                    observer.saved(c.report.slots_before.saturating_sub(c.report.slots_after));
                    if let Ok(mut d) = done.lock() {
                        d.push(c);
                    }
                }
            };
            // Deep graphs recurse in the term normalizer.
            match std::thread::Builder::new().stack_size(STACK).spawn_scoped(s, body) {
                Ok(worker) => workers.push(worker),
                Err(_) => break,
            }
        }
        for worker in workers {
            // A worker catches what its functions do; nothing is lost if it ended early all the same.
            let _ = worker.join();
        }
        finished.store(true, Ordering::Relaxed);
    });
    let mut v = done.into_inner().unwrap_or_default();
    v.sort_by_key(|c| c.id);
    v
}

/// Optimizes a function; should that break, the function stays as it was and the user is told.
fn guarded(unit: &Unit, id: usize, go: bool, settings: &Settings) -> Candidate {
    let none = FxHashSet::default();
    let run = std::panic::AssertUnwindSafe(|| function(unit, id, go, settings, &none, usize::MAX));
    std::panic::catch_unwind(run).unwrap_or_else(|_| {
        let mut c = function(unit, id, false, settings, &none, 0);
        c.report.untouched = Some("an internal error, please report it".into());
        c
    })
}

/// Bytes of stack of a worker thread.
const STACK: usize = 256 << 20;

/// Runs `f` on a thread with a stack deep enough for the term normalizer.
pub(crate) fn on_deep_stack<T: Send>(f: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|s| {
        std::thread::Builder::new().stack_size(STACK).spawn_scoped(s, f).ok().and_then(|h| h.join().ok())
    })
}

/// Optimizes one function with at most `budget` rewrites, none of them `banned`.
pub(crate) fn function(
    unit: &Unit,
    id: usize,
    wanted: bool,
    settings: &Settings,
    banned: &FxHashSet<u64>,
    budget: usize,
) -> Candidate {
    let started = Instant::now();
    let symbol = &unit.object.functions()[id];
    let mut report = FunctionReport {
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
        seconds: 0.0,
        listing_before: listing(unit.object.code(FuncId(id))),
        listing_after: Vec::new(),
    };
    report.listing_after.clone_from(&report.listing_before);
    let mut c = Candidate { id, body: None, applied: vec![], banned: banned.clone(), report, timed_out: false };
    if !wanted {
        return c;
    }
    let original = match &unit.graphs[id] {
        Ok(f) => f,
        Err(why) => {
            c.report.untouched = Some(why.clone());
            return c;
        }
    };
    unit.with_env(|env| {
        let mut f = original.clone();
        let mut engine = Engine::new(env, settings, banned, budget);
        engine.run(&mut f);
        c.report.proofs = engine.tally.proofs;
        c.report.refused = engine.tally.refused;
        c.report.sat_calls = engine.tally.sat_calls;
        c.timed_out = engine.tally.timed_out;
        c.applied = engine.applied;
        finish(&mut c, original, &f, env, settings);
    });
    c.report.seconds = started.elapsed().as_secs_f64();
    c
}

/// Lowers the result, and has the whole function proven once more, independently of the facts the
/// single rewrites relied on.
fn finish(c: &mut Candidate, original: &Function, f: &Function, env: &bpf_facts::Env, settings: &Settings) {
    let before = c.report.slots_before;
    if slot_count(f) >= before && c.applied.is_empty() {
        return;
    }
    let level = |l: &bpf_program::Lowered| l.listing.iter().map(|(_, i)| i.cpu()).max().unwrap_or(1);
    let allowed = lower(original).map_or(settings.cpu, |l| level(&l).max(settings.cpu));
    let lowered = match lower(f) {
        Ok(l) if l.slots() <= before && level(&l) <= allowed => l,
        Ok(_) => return,
        Err(e) => {
            c.report.untouched = Some(e.to_string());
            return;
        }
    };
    // Every rewrite is proven already: the second opinion may not cost more than the work itself did.
    let second = Duration::from_secs(1);
    let limits = Limits { deadline: Instant::now().checked_add(second), ..Limits::default() };
    let options =
        ProofOptions { strict_shared_memory: settings.strict_shared_memory, limits, ..ProofOptions::default() };
    c.report.whole = match bpf_prove::functions(original, f, env, &options).0 {
        Verdict::Equal => "equal".into(),
        Verdict::Unknown(why) => format!("unknown: {why}"),
        Verdict::Different(_) => "unknown: the whole-function formula has a candidate difference".into(),
    };
    c.report.slots_after = lowered.slots();
    c.report.listing_after = lowered.listing.iter().map(|(s, i)| format!("{s:4}: {i}")).collect();
    for a in &c.applied {
        match c.report.rewrites.iter_mut().find(|(n, _)| n == a.by) {
            Some((_, n)) => *n += 1,
            None => c.report.rewrites.push((a.by.to_string(), 1)),
        }
    }
    c.body = Some(lowered.insns);
}

fn listing(code: &[u8]) -> Vec<String> {
    match bpf_isa::decode_all(code) {
        Ok(v) => v.iter().map(|(s, i)| format!("{s:4}: {i}")).collect(),
        Err(_) => vec![],
    }
}

/// Puts a candidate's body (or the original) into the object.
pub(crate) fn place(object: &mut Object, c: &Candidate) -> Result<(), DriverError> {
    match &c.body {
        Some(body) => object.set_body(FuncId(c.id), body.clone())?,
        None => object.reset_body(FuncId(c.id)),
    }
    Ok(())
}

/// Whether a function is an entry point the loader loads by itself.
pub(crate) fn is_program(object: &Object, id: usize) -> bool {
    object.functions()[id].kind == FuncKind::Program
}
