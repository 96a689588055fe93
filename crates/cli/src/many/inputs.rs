//! Which objects are worked on, and where what is made of each goes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use crate::failure::Failure;
use crate::files;

/// One object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Where it is.
    pub path: PathBuf,
    /// Its path below the folder that was given, or its name if it was given itself.
    pub below: PathBuf,
}

/// All objects of a command line: files, what is in folders and ends in `.o`, and what a list names. `skip`: a folder that is
/// not looked into.
///
/// # Errors
/// If a folder or the list cannot be read, or if there are none.
pub fn gather(paths: &[PathBuf], list: Option<&Path>, skip: Option<&Path>) -> Result<Vec<Item>, Failure> {
    let listed = list.map(listed).transpose()?.unwrap_or_default();
    let mut items = Vec::new();
    for path in paths.iter().chain(&listed) {
        if files::is_dash(path) {
            return Err(Failure::bad_input("standard input (`-`) holds one object, and is not one of many"));
        }
        if path.is_dir() {
            items.extend(inside(path, skip)?);
        } else {
            let below = path.file_name().map_or_else(|| path.clone(), PathBuf::from);
            items.push(Item { path: path.clone(), below });
        }
    }
    if items.is_empty() {
        return Err(
            Failure::bad_input("no objects").with_hint("name files, folders with .o files in them, or --list FILE")
        );
    }
    Ok(items)
}

/// The paths that a file holds, a line each.
fn listed(list: &Path) -> Result<Vec<PathBuf>, Failure> {
    use std::os::unix::ffi::OsStrExt;
    let text = files::read(list)?;
    let lines = text.split(|b| *b == b'\n').map(|line| line.trim_ascii());
    let paths = lines.filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    Ok(paths.map(|line| PathBuf::from(std::ffi::OsStr::from_bytes(line))).collect())
}

/// The objects below a folder, in the order of their names.
fn inside(folder: &Path, skip: Option<&Path>) -> Result<Vec<Item>, Failure> {
    let skip = skip.map(files::whole);
    // What is written is not read the next time.
    let wanted = |entry: &walkdir::DirEntry| {
        entry.depth() == 0
            || !entry.file_type().is_dir()
            || skip.as_ref().is_none_or(|s| files::whole(entry.path()) != *s)
    };
    let mut items = Vec::new();
    for entry in WalkDir::new(folder).sort_by_file_name().into_iter().filter_entry(wanted) {
        let entry =
            entry.map_err(|e| Failure::bad_input(format!("{}: cannot read this folder: {e}", folder.display())))?;
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "o") && path.is_file() {
            let below = path.strip_prefix(folder).unwrap_or(path).to_owned();
            items.push(Item { path: path.to_owned(), below });
        }
    }
    if items.is_empty() {
        return Err(Failure::bad_input(format!("{}: no .o files in this folder", folder.display())));
    }
    Ok(items)
}

/// Where what is made of each object goes, below `folder`.
///
/// # Errors
/// If that is one place for two, or if one would overwrite another input.
pub fn targets(items: &[Item], folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let targets: Vec<PathBuf> = items.iter().map(|item| folder.join(&item.below)).collect();
    let inputs: HashMap<PathBuf, usize> =
        items.iter().enumerate().filter_map(|(i, item)| Some((fs::canonicalize(&item.path).ok()?, i))).collect();
    let mut taken: HashMap<&Path, usize> = HashMap::new();
    for (i, target) in targets.iter().enumerate() {
        match taken.entry(target) {
            Entry::Vacant(free) => {
                free.insert(i);
            }
            Entry::Occupied(first) => {
                let (a, b) = (items[*first.get()].path.display(), items[i].path.display());
                let what = format!("{a} and {b} would both be written to {}", target.display());
                return Err(Failure::bad_input(what)
                    .with_hint("give the folder that holds both, so that they keep their paths below it"));
            }
        }
        let other = fs::canonicalize(target).ok().and_then(|t| inputs.get(&t).copied()).filter(|other| *other != i);
        if let Some(other) = other {
            let (path, other) = (items[i].path.display(), items[other].path.display());
            let what = format!("what is made of {path} would overwrite {other}");
            return Err(Failure::bad_input(what).with_hint("name another folder behind -d"));
        }
    }
    Ok(targets)
}

/// Objects with the same bytes, each group in the order of the items; `raw` input tells more than its bytes do.
pub fn twins(items: &[Item]) -> Vec<Vec<usize>> {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut known: HashMap<(usize, u64), usize> = HashMap::new();
    for (i, item) in items.iter().enumerate() {
        // Only a guess: who relies on it compares the bytes.
        let key = files::read(&item.path).ok().map(|bytes| {
            let mut hasher = DefaultHasher::new();
            bytes.hash(&mut hasher);
            (bytes.len(), hasher.finish())
        });
        match key.map(|key| known.entry(key)) {
            Some(Entry::Occupied(group)) => groups[*group.get()].push(i),
            other => {
                if let Some(Entry::Vacant(free)) = other {
                    free.insert(groups.len());
                }
                groups.push(vec![i]);
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for name in names {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, name.rsplit('/').next().unwrap_or(name)).expect("written");
        }
        folder
    }

    fn below(items: &[Item]) -> Vec<String> {
        items.iter().map(|i| i.below.display().to_string()).collect()
    }

    #[test]
    fn folders_are_all_objects_below_them_but_for_the_results() {
        let folder = folder(&["b.o", "a/x.o", "a/notes.txt", "out/b.o", "c/out/y.o"]);
        let skip = folder.path().join("out");
        let items = gather(&[folder.path().to_owned()], None, Some(&skip)).expect("there are some");
        assert_eq!(below(&items), ["a/x.o", "b.o", "c/out/y.o"]);
        assert!(
            gather(&[folder.path().join("none")], None, None).is_ok(),
            "that it is missing is told where it is read"
        );
        assert!(gather(&[], None, None).is_err() && gather(&[PathBuf::from("-")], None, None).is_err());
    }

    #[test]
    fn two_objects_for_one_place_are_refused() {
        let folder = folder(&["a/x.o", "b/x.o"]);
        let paths = ["a/x.o", "b/x.o"].map(|n| folder.path().join(n));
        let out = folder.path().join("out");
        let items = gather(&paths, None, None).expect("there are some");
        assert!(targets(&items, &out).is_err());
        let items = gather(&[folder.path().to_owned()], None, None).expect("there are some");
        assert_eq!(targets(&items, &out), Ok(vec![out.join("a/x.o"), out.join("b/x.o")]));
        // In place, and over another.
        let items = gather(&paths[..1], None, None).expect("there are some");
        assert!(targets(&items, &folder.path().join("a")).is_ok());
        let items = gather(&[paths[0].clone(), folder.path().join("b")], None, None).expect("there are some");
        assert!(targets(&items[..1], &folder.path().join("b")).is_ok(), "nobody reads that one");
        let swapped = vec![items[0].clone(), Item { below: "y.o".into(), ..items[1].clone() }];
        assert!(targets(&swapped, &folder.path().join("b")).is_err());
    }

    #[test]
    fn objects_of_the_same_bytes_are_twins() {
        let folder = folder(&["a/x.o", "b/y.o", "c/x.o"]);
        let items = gather(&[folder.path().to_owned()], None, None).expect("there are some");
        assert_eq!(twins(&items), [vec![0, 2], vec![1]]);
    }
}
