//! What stands before the work: are the names of the options good, what do they choose, and who listens.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bpf_object::{FuncId, Object};
use bpf_passes::{Settings, names};
use bpf_program::{Function, Profile};

use crate::error::DriverError;
use crate::global;
use crate::module::Module;
use crate::options::{Options, PassSelection};
use crate::report::Observer;

pub(crate) fn check_names(object: &Object, options: &Options) -> Result<(), DriverError> {
    check_programs(object, options)?;
    let known: Vec<&str> = names().into_iter().chain(global::names()).collect();
    if let PassSelection::Only(only) = &options.passes
        && let Some(name) = only.iter().find(|n| !known.contains(&n.as_str()))
    {
        return Err(DriverError::NoSuchPass { name: name.clone(), known: known.join(", ") });
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

/// The settings of a run, with the time that the passes have (`deadline`).
pub(crate) fn settings(module: &Module, options: &Options, deadline: Option<Instant>) -> Settings {
    let only = match &options.passes {
        PassSelection::All => None,
        PassSelection::None => Some(vec![]),
        PassSelection::Only(v) => Some(v.clone()),
    };
    Settings {
        cpu: options.cpu.unwrap_or(module.cpu.max(options.min_kernel.cpu().min(3))),
        goal: options.goal,
        profiles: options.counts.as_deref().map(|counts| Arc::new(counts.profiles(module))),
        guesses: guesses(module, options),
        importance: importance(module, options),
        strict_shared_memory: options.strict_shared_memory,
        only,
        deadline,
        queries: options.queries.clone(),
        ..Settings::default()
    }
}

/// How often blocks are guessed to run, by the name of the graph; nothing where slots come first.
fn guesses(module: &Module, options: &Options) -> Option<Arc<BTreeMap<String, Profile>>> {
    let graphs = module.graphs.iter().filter_map(|g| g.as_ref().ok());
    let guess = |f: &Function| (f.name.clone(), Profile::guessed(f));
    (!options.goal.puts_slots_first()).then(|| Arc::new(graphs.map(guess).collect()))
}

/// The share of each function in the runs of the object's programs, by the name of its graph; the most important one has 1.
fn importance(module: &Module, options: &Options) -> Option<Arc<BTreeMap<String, f64>>> {
    const LEAST: f64 = 0.01;
    let name = |i: usize| Some((module.graphs[i].as_ref().ok()?.name.clone(), i));
    let graphs = || (0..module.graphs.len()).filter_map(name);
    let mut runs: BTreeMap<String, u64> = BTreeMap::new();
    if !options.program_runs.is_empty() {
        let functions = module.object.functions();
        for (program, n) in
            functions.iter().enumerate().filter_map(|(i, f)| Some((i, options.program_runs.get(&f.name)?)))
        {
            for FuncId(f) in module.object.loaded_with([FuncId(program)]) {
                if let Ok(graph) = &module.graphs[f] {
                    *runs.entry(graph.name.clone()).or_default() += n;
                }
            }
        }
    } else {
        let profiles = options.counts.as_deref()?.profiles(module);
        runs.extend(profiles.into_iter().map(|(name, profile)| (name, profile.entries())));
    }
    let most = runs.values().copied().max().filter(|most| *most > 0)? as f64;
    let share = |name: &String| (runs.get(name).copied().unwrap_or(0) as f64 / most).max(LEAST);
    Some(Arc::new(graphs().map(|(name, _)| (name.clone(), share(&name))).collect()))
}

pub(crate) fn wanted(module: &Module, options: &Options) -> Vec<bool> {
    module
        .object
        .functions()
        .iter()
        .map(|f| {
            options.passes != PassSelection::None && (options.programs.is_empty() || options.programs.contains(&f.name))
        })
        .collect()
}

/// Runs `f` while another thread watches whether the user wants to stop.
pub(crate) fn watched<T>(observer: &dyn Observer, stop: &AtomicBool, f: impl FnOnce() -> T) -> T {
    let finished = AtomicBool::new(false);
    // The other thread may have its first turn only when all is done.
    stop.fetch_or(observer.stop(), Ordering::Relaxed);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !finished.load(Ordering::Relaxed) {
                if observer.stop() {
                    stop.store(true, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let _finished = Finishes(&finished);
        f()
    })
}

/// Says that something is finished, however it ends.
struct Finishes<'a>(&'a AtomicBool);

impl Drop for Finishes<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Silent;

    #[test]
    fn what_breaks_while_it_is_watched_does_not_wait_for_ever() {
        let breaks = || watched(&Silent, &AtomicBool::new(false), || panic!("for the test"));
        assert!(std::panic::catch_unwind(breaks).is_err());
    }
}
