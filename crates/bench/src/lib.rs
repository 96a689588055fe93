//! Queries harvested from real optimizer runs, to measure the prover with.

pub mod windows;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use bpf_driver::Module;
pub use bpf_driver::on_deep_stack as deep;
use bpf_facts::{Live, State};
use bpf_object::Object;
use bpf_passes::{Recorder, Settings, optimize};
use bpf_program::Function;
use bpf_prove::{Known, Options, Rewrite};

/// A proposal that the optimizer took to the prover, kept to be asked again.
pub struct Query {
    /// The function as it stood.
    pub function: Arc<Function>,
    /// States before each operation of the block and before its terminator.
    pub states: Vec<State>,
    /// What was live before each operation, before the terminator, and at the end.
    pub live: Vec<Live>,
    /// What was live where the jumps of a path leave it.
    pub sides: Vec<Live>,
    /// The change.
    pub rewrite: Rewrite,
    /// How it was to be proven; no deadline.
    pub options: Options,
}

impl Query {
    /// What was known about the block.
    pub fn known(&self) -> Known<'_> {
        Known { states: &self.states, live: &self.live, sides: &self.sides }
    }
}

/// One object's functions, before and after, and what was asked on the way.
pub struct Harvest {
    /// The object's file name without `.o`.
    pub name: String,
    /// The object.
    pub module: Module,
    /// For each function that has a graph: before, after, the queries in order.
    pub functions: Vec<(Function, Function, Vec<Query>)>,
}

/// Optimizes every function of the object at `path` and keeps all queries.
///
/// # Errors
/// In words: the file cannot be read or is no BPF object.
pub fn harvest(path: &Path) -> Result<Harvest, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let object = Object::parse(bytes).map_err(|e| format!("{}: {e}", path.display()))?;
    let module = Module::new(object);
    let mut functions = Vec::new();
    for before in module.graphs.iter().flatten() {
        let seen: Arc<Mutex<Vec<Query>>> = Arc::default();
        let keep = seen.clone();
        let recorder = Recorder::new(move |p| {
            let Ok(mut v) = keep.lock() else { return };
            let function = match v.last() {
                Some(q) if *q.function == *p.function => q.function.clone(),
                _ => Arc::new(p.function.clone()),
            };
            let mut options = p.options.clone();
            options.limits.deadline = None;
            let (states, live) = (p.known.states.to_vec(), p.known.live.to_vec());
            let sides = p.known.sides.to_vec();
            v.push(Query { function, states, live, sides, rewrite: p.rewrite.clone(), options });
        });
        let settings = Settings { cpu: module.cpu.max(3), recorder: Some(recorder), ..Settings::default() };
        let after = module.with_env(|env| optimize(before.clone(), env, &settings).into_current());
        let queries = seen.lock().map(|mut v| std::mem::take(&mut *v)).unwrap_or_default();
        functions.push((before.clone(), after, queries));
    }
    let name = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(Harvest { name, module, functions })
}

/// The objects in a directory, by name; none if it is not there.
pub fn objects(dir: &Path) -> Vec<PathBuf> {
    let mut v: Vec<PathBuf> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "o"))
        .collect();
    v.sort();
    v
}

/// The value below which the fraction `q` of the sorted `times` lies; 0 for none.
pub fn quantile(times: &[f64], q: f64) -> f64 {
    let last = times.len().saturating_sub(1);
    times.get(((last as f64) * q).round() as usize).copied().unwrap_or(0.0)
}

/// Runs a program's work on a deep stack, and says how it ended: bad input is 2.
pub fn finish(work: impl FnOnce() -> Result<(), String> + Send) -> ExitCode {
    match deep(work) {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(e)) => {
            eprintln!("{e}");
            ExitCode::from(2)
        }
        None => ExitCode::from(70),
    }
}
