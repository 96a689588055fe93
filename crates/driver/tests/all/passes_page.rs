//! `docs/passes.md` says of each pass what the header of its file says. `BLESS=1` writes the page.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bpf_driver::{DriverError, Options, PassSelection, Silent, optimize};

/// The page's beginning.
const ABOUT: &str = "\
# The passes

What `--passes` names, with before and after. Written from the headers of the files by `BLESS=1 cargo test -p bpf-driver
--test all passes_page`: change them there. How they are driven is in [optimizers.md](optimizers.md); each of their proposals
is proven or dropped.
";

fn folder(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// What the header of a file says, if it holds a pass, with the pass's name.
fn page_of(text: &str) -> Option<(String, String)> {
    let after = |key: &str| {
        let at = text.find(key)? + key.len();
        let quoted = text[at..].split('"').nth(1)?;
        Some(quoted.to_owned())
    };
    let name = after("const NAME: &str =").or_else(|| after("fn name(&self) -> &'static str {"))?;
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    let header: Vec<&str> = lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    Some((name, header.join("\n")))
}

/// The passes of a folder, in the order of their names.
fn passes(folder_name: &str) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(folder(folder_name)).expect("sources").flatten();
    let files = entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "rs"));
    let mut found: Vec<_> = files.filter_map(|p| page_of(&std::fs::read_to_string(p).expect("a source"))).collect();
    found.sort();
    found
}

/// The names that `--passes` knows.
fn known() -> BTreeSet<String> {
    let example = folder("examples/xdp_count.o");
    let options = Options { passes: PassSelection::Only(vec!["no such pass".into()]), ..Options::default() };
    match optimize(&std::fs::read(example).expect("an example"), &options, &Silent) {
        Err(DriverError::NoSuchPass { known, .. }) => known.split(", ").map(str::to_owned).collect(),
        other => panic!("such a name is no pass: {:?}", other.map(|(_, report)| report)),
    }
}

#[test]
fn the_page_on_passes_says_what_their_headers_say() {
    let parts = [
        ("Of the graph", "crates/passes/src"),
        ("Local passes", "crates/passes/src/local"),
        ("Global passes", "crates/ssa/src/passes"),
    ];
    let (mut page, mut told) = (ABOUT.to_owned(), BTreeSet::new());
    for (title, source) in parts {
        page += &format!("\n## {title}\n");
        for (name, header) in passes(source) {
            page += &format!("\n### `{name}`\n\n{}\n", header.trim_end());
            told.insert(name);
        }
    }
    assert_eq!(told, known(), "each pass has a file with its name");
    let path = folder("docs/passes.md");
    if std::env::var_os("BLESS").is_some_and(|v| v == "1") {
        std::fs::write(&path, &page).expect("it is written");
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(there == page, "docs/passes.md is not what the headers say; BLESS=1 writes it");
}
