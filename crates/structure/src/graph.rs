//! Strongly connected files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::modules::Import;

/// The sets of two and more files that reach each other over `imports`, each sorted, in the order of their first file.
pub fn circles(imports: &BTreeSet<Import>) -> Vec<BTreeSet<PathBuf>> {
    let mut next: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
    for import in imports {
        next.entry(&import.from).or_default().insert(&import.to);
    }
    let reach: BTreeMap<&Path, BTreeSet<&Path>> = next.keys().map(|&file| (file, reached(&next, file))).collect();
    let mut found: Vec<BTreeSet<PathBuf>> = Vec::new();
    for (&file, reached) in &reach {
        if !reached.contains(file) || found.iter().any(|circle| circle.contains(file)) {
            continue;
        }
        let back = |other: &Path| reach.get(other).is_some_and(|r| r.contains(file));
        found.push(reached.iter().filter(|other| back(other)).map(|other| other.to_path_buf()).collect());
    }
    found
}

/// The files that one reaches in one or more steps.
fn reached<'a>(next: &BTreeMap<&'a Path, BTreeSet<&'a Path>>, from: &'a Path) -> BTreeSet<&'a Path> {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        let steps = next.get(file).into_iter().flatten();
        open.extend(steps.filter(|step| seen.insert(**step)));
    }
    seen
}
