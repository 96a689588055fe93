//! No two files of a crate import each other, directly or around a circle.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use bpf_structure::{Crate, Import, circles};

/// The roots of all crates of the workspace: `lib.rs`, `main.rs` and what stands in `src/bin`.
fn roots() -> Vec<PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crates' folder");
    let mut roots = Vec::new();
    for entry in fs::read_dir(crates).expect("the crates' folder can be read") {
        let source = entry.expect("an entry").path().join("src");
        roots.extend([source.join("lib.rs"), source.join("main.rs")].into_iter().filter(|root| root.exists()));
        if let Ok(binaries) = fs::read_dir(source.join("bin")) {
            roots.extend(
                binaries.map(|b| b.expect("an entry").path()).filter(|b| b.extension().is_some_and(|e| e == "rs")),
            );
        }
    }
    roots.sort();
    roots
}

/// The imports that tie a circle, one per line.
fn ties(imports: &BTreeSet<Import>, circle: &BTreeSet<PathBuf>) -> String {
    let inside = imports.iter().filter(|i| circle.contains(&i.from) && circle.contains(&i.to));
    inside.map(|i| format!("\n  {} -> {}: {}", i.from.display(), i.to.display(), i.path)).collect()
}

#[test]
fn no_files_of_this_workspace_import_each_other_around_a_circle() {
    let roots = roots();
    assert!(roots.len() > 20, "{roots:?}");
    let mut found = String::new();
    for root in roots {
        let read = Crate::read(&root).unwrap_or_else(|e| panic!("{e}"));
        let imports = read.imports();
        assert!(read.files() < 5 || imports.len() > 4, "{}: {} files, {imports:?}", root.display(), read.files());
        for circle in circles(&imports) {
            found += &format!("\ncircle of {} files:{}", circle.len(), ties(&imports, &circle));
        }
    }
    assert!(found.is_empty(), "{found}");
}

/// The circles of a crate made of these files, by file name.
fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let file = folder.path().join(name);
        fs::create_dir_all(file.parent().expect("a folder")).expect("made");
        fs::write(file, text).expect("written");
    }
    let read = Crate::read(&folder.path().join("lib.rs")).unwrap_or_else(|e| panic!("{e}"));
    let name = |file: &PathBuf| file.strip_prefix(folder.path()).expect("inside").display().to_string();
    let names = |circle: &BTreeSet<PathBuf>| circle.iter().map(name).collect::<BTreeSet<_>>().into_iter().collect();
    circles(&read.imports()).iter().map(names).collect()
}

#[test]
fn two_files_that_use_each_other_are_a_circle() {
    let found = circles_of(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::B; pub struct A(B);"),
        ("b.rs", "pub struct B; fn f() { let _: super::a::A; }"),
    ]);
    assert_eq!(found, [["a.rs", "b.rs"]]);
}

#[test]
fn a_path_through_a_re_export_leads_to_where_the_thing_stands() {
    let lib = "mod a; mod b; mod c; pub use b::B; pub use a::A;";
    let a = "use crate::B; pub struct A(B);";
    let straight = [("lib.rs", lib), ("a.rs", a), ("b.rs", "pub struct B;"), ("c.rs", "")];
    assert_eq!(circles_of(&straight), Vec::<Vec<String>>::new());
    let around =
        [("lib.rs", lib), ("a.rs", a), ("b.rs", "pub struct B(crate::c::C);"), ("c.rs", "pub struct C(crate::A);")];
    assert_eq!(circles_of(&around), [["a.rs", "b.rs", "c.rs"]]);
}

#[test]
fn a_child_that_takes_from_the_file_that_calls_it_is_a_circle() {
    let found = circles_of(&[
        ("lib.rs", "mod a;"),
        ("a.rs", "mod inner; pub struct A; fn f() { inner::g() }"),
        ("a/inner.rs", "use super::A; pub fn g() { let _: A; }"),
    ]);
    assert_eq!(found, [["a.rs", "a/inner.rs"]]);
}

#[test]
fn what_a_macro_is_given_counts() {
    let found = circles_of(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "pub fn f() { assert!(crate::b::g(1, 2)); }"),
        ("b.rs", "pub fn g(_: i32, _: i32) -> bool { crate::a::f(); true }"),
    ]);
    assert_eq!(found, [["a.rs", "b.rs"]]);
}

#[test]
fn tests_and_modules_items_do_not_count() {
    let found = circles_of(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::B; pub struct A(B);"),
        ("b.rs", "pub struct B; #[cfg(test)] mod tests { use crate::a::A; #[test] fn f() { let _: crate::a::A; } }"),
    ]);
    assert_eq!(found, Vec::<Vec<String>>::new());
}
