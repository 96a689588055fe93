//! Files that tests go through.

use std::path::{Path, PathBuf};

/// The files with this extension in a folder and below, in the order of their names; none where there is no such folder.
pub fn below(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    entries.sort();
    let mut found = vec![];
    for path in entries {
        if path.is_dir() {
            found.extend(below(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found
}
