//! What the documents say of files is true: the files are there, hold what is said to be in them, and long ones have a
//! reason.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Files longer than this need a reason.
const LONG: usize = 600;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the project's folder")
}

/// All sources of the workspace, below `crates`.
fn sources() -> BTreeSet<PathBuf> {
    let crates = root().join("crates");
    let mut found = BTreeSet::new();
    let mut folders = vec![crates.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder can be read") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && path.file_name().is_some_and(|n| n != "target" && n != "fixtures") {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.insert(path.strip_prefix(&crates).expect("it is below").to_owned());
            }
        }
    }
    found
}

fn documents() -> Vec<(String, String)> {
    let root = root();
    let mut names: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|n| root.join(n)).into();
    names.extend(fs::read_dir(root.join("docs")).expect("docs").map(|e| e.expect("an entry").path()));
    let read = |p: PathBuf| (p.strip_prefix(&root).expect("below").display().to_string(), fs::read_to_string(p));
    names
        .into_iter()
        .filter(|p| p.extension().is_some_and(|e| e == "md"))
        .map(read)
        .map(|(name, text)| (name, text.expect("a document can be read")))
        .collect()
}

/// What stands between single backticks, with the text behind it.
fn quoted(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let ticks: Vec<usize> = text.match_indices('`').map(|(at, _)| at).collect();
    let pairs: Vec<(usize, usize)> = ticks.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    pairs.into_iter().map(|(open, close)| (&text[open + 1..close], &text[close + 1..]))
}

/// `a/{b,c}.rs` is two files.
fn expanded(name: &str) -> Vec<String> {
    match (name.find('{'), name.find('}')) {
        (Some(open), Some(close)) if open < close => name[open + 1..close]
            .split(',')
            .map(|part| format!("{}{part}{}", &name[..open], &name[close + 1..]))
            .collect(),
        _ => vec![name.to_owned()],
    }
}

/// The sources a document may mean: one by its whole path, with or without `crates/`, or those whose paths end so.
fn meant(sources: &BTreeSet<PathBuf>, name: &str) -> Vec<PathBuf> {
    let name = Path::new(name.strip_prefix("crates/").unwrap_or(name));
    match sources.get(name) {
        Some(whole) => vec![whole.clone()],
        None => sources.iter().filter(|s| s.ends_with(name)).cloned().collect(),
    }
}

#[test]
fn sources_that_documents_name_are_there() {
    let sources = sources();
    let mut missing = Vec::new();
    let mut seen = 0;
    for (document, text) in documents() {
        for (name, _) in quoted(&text).filter(|(name, _)| name.ends_with(".rs") && !name.contains([' ', '*'])) {
            // `NAME.rs` is for the reader to fill in.
            for name in expanded(name).iter().filter(|n| !n.contains("NAME")) {
                seen += 1;
                if meant(&sources, name).is_empty() && !root().join(name).exists() {
                    missing.push(format!("{document}: {name}"));
                }
            }
        }
    }
    assert!(seen > 300, "only {seen}");
    assert!(missing.is_empty(), "no such source:\n{}", missing.join("\n"));
}

/// In a walk and in the tables, names in parentheses behind a file are items of that file.
#[test]
fn items_that_the_map_names_are_in_their_files() {
    let sources = sources();
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the map");
    let (mut missing, mut seen) = (Vec::new(), 0);
    for (name, behind) in quoted(&text).filter(|(name, _)| name.ends_with(".rs") && !name.contains([' ', '*', '{'])) {
        let Some(items) = behind.trim_start().strip_prefix('(').and_then(|b| b.split_once(')')) else { continue };
        let read = |file: PathBuf| fs::read_to_string(root().join("crates").join(file)).expect("a source can be read");
        let codes: Vec<String> = meant(&sources, name).into_iter().map(read).collect();
        for (item, _) in quoted(items.0) {
            let item = item.rsplit("::").next().unwrap_or(item);
            if item.is_empty() || !item.chars().all(|c| c.is_alphanumeric() || c == '_') {
                continue;
            }
            seen += 1;
            let declared = ["fn ", "struct ", "enum ", "trait ", "type ", "const ", "static ", "mod ", "macro_rules! "];
            let field = [format!("{item}:"), format!("{item},"), format!("    {item} ")];
            let holds = |code: &String| {
                declared.iter().any(|d| code.contains(&format!("{d}{item}"))) || field.iter().any(|f| code.contains(f))
            };
            if !codes.is_empty() && !codes.iter().any(holds) {
                missing.push(format!("{name}: {item}"));
            }
        }
    }
    assert!(seen > 50, "only {seen}");
    assert!(missing.is_empty(), "no such item:\n{}", missing.join("\n"));
}

#[test]
fn long_files_have_a_reason() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the map");
    let table = text.split("## Long files").nth(1).and_then(|t| t.split("\n## ").next()).expect("the list");
    let listed: BTreeSet<PathBuf> = table
        .lines()
        .filter_map(|l| l.strip_prefix("| `")?.split_once("` | "))
        .filter(|(_, reason)| reason.len() > 20)
        .map(|(name, _)| PathBuf::from(name))
        .collect();
    let lines = |s: &PathBuf| fs::read_to_string(root().join("crates").join(s)).expect("a source").lines().count();
    let long: BTreeSet<PathBuf> = sources().into_iter().filter(|s| lines(s) > LONG).collect();
    let unlisted: Vec<_> = long.difference(&listed).collect();
    let short: Vec<_> = listed.difference(&long).collect();
    assert!(unlisted.is_empty(), "longer than {LONG} lines, without a reason in ARCHITECTURE.md: {unlisted:?}");
    assert!(short.is_empty(), "not longer than {LONG} lines, or not there: {short:?}");
}
