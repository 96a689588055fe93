//! The objects that campaigns work on: those in the repository, and the benchmarks where they are there.

use std::path::{Path, PathBuf};

use bpf_driver::Module;
use bpf_object::Object;
use bpf_program::Function;

/// Objects with the graphs of their functions.
pub struct Corpus {
    modules: Vec<(String, Module)>,
    functions: Vec<(usize, usize)>,
}

impl Corpus {
    /// All objects that can be read below the usual folders.
    pub fn usual() -> Corpus {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        Corpus::of(&["examples", "../shared/bench/k2", "../shared/bench/public"].map(|d| root.join(d)))
    }

    /// All objects that can be read in these folders, in the order of their names.
    pub fn of(folders: &[PathBuf]) -> Corpus {
        let mut paths: Vec<PathBuf> = folders
            .iter()
            .filter_map(|d| std::fs::read_dir(d).ok())
            .flatten()
            .filter_map(|e| e.ok().map(|e| e.path()))
            .filter(|p| p.extension().is_some_and(|e| e == "o"))
            .collect();
        paths.sort();
        let read = |p: PathBuf| {
            let object = Object::parse(std::fs::read(&p).ok()?).ok()?;
            Some((p.file_name()?.to_string_lossy().into_owned(), Module::new(object)))
        };
        let modules: Vec<(String, Module)> = paths.into_iter().filter_map(read).collect();
        let functions = modules
            .iter()
            .enumerate()
            .flat_map(|(u, (_, unit))| {
                unit.graphs.iter().enumerate().filter(|(_, g)| g.is_ok()).map(move |(f, _)| (u, f))
            })
            .collect();
        Corpus { modules, functions }
    }

    /// Number of functions.
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// Whether there is no function.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Function `i` with what it is part of.
    pub fn function(&self, i: usize) -> Option<(&Module, &Function)> {
        let (u, f) = *self.functions.get(i)?;
        let unit = &self.modules.get(u)?.1;
        Some((unit, unit.graphs.get(f)?.as_ref().ok()?))
    }

    /// Object and function by name.
    pub fn name(&self, i: usize) -> String {
        let Some((u, _)) = self.functions.get(i) else { return "nothing".into() };
        let function = self.function(i).map_or("", |(_, f)| &f.name);
        format!("{} of {}", function, self.modules[*u].0)
    }
}
