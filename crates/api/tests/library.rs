//! The library as others use it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use bpf_opt::{
    Declared, Error, Given, Hook, Observer, Options, Verdict, check, filter, optimize, optimize_with, specialize,
    verify,
};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

fn example(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).expect("the examples are there")
}

fn quick() -> Options {
    Options { kernel: false, run_check: false, ..Options::default() }.at_level(1)
}

#[test]
fn an_object_is_optimized_and_proven_equal() {
    let object = example("xdp_count.o");
    let done = optimize(&object, &quick()).expect("it is an object");
    assert!(done.slots().1 < done.slots().0, "{:?}", done.slots());
    assert!(done.report_json().contains("\"slots_after\""));
    assert!(verify(&object, &done.object, &quick()).expect("both are objects").is_equal());
    let other = verify(&object, &example("subprogs.o"), &quick()).expect("both are objects");
    assert!(!other.is_equal());
}

#[test]
fn an_observer_sees_functions_and_may_stop() {
    struct Seen(AtomicUsize);
    impl Observer for Seen {
        fn function(&self, _index: usize, _count: usize, _name: &str, _slots: usize) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn stop(&self) -> bool {
            self.0.load(Ordering::Relaxed) > 0
        }
    }
    let seen = Seen(AtomicUsize::new(0));
    let done = optimize_with(&example("subprogs.o"), &quick(), &seen).expect("it is an object");
    assert!(seen.0.load(Ordering::Relaxed) > 0 && done.slots().0 > 0);
}

#[test]
fn programs_are_judged_filters_compiled_and_constants_declared() {
    let object = filter("tcp port 80", Hook::Xdp).expect("a filter");
    let judged = check(&object, None).expect("an object");
    assert!(judged.iter().all(|c| c.verdict == Verdict::Safe) && !judged.is_empty(), "{judged:?}");
    let mistake = filter("tcp prot 80", Hook::Xdp);
    assert!(matches!(&mistake, Err(Error::Filter(text)) if text.contains('^')), "{mistake:?}");
    let mut declared = Declared::default();
    declared.variables.insert("strict".into(), Given::Number(1));
    assert_eq!(specialize(&example("allow_list.o"), &declared).expect("declared").constants, 1);
    declared.variables.insert("nobody".into(), Given::AsIs);
    assert!(matches!(specialize(&example("allow_list.o"), &declared), Err(Error::Specialize(_))));
}

#[test]
fn what_is_no_object_is_an_error() {
    assert!(optimize(b"no object", &quick()).is_err());
    assert!(verify(b"no object", b"nor this", &quick()).is_err());
    assert!(check(b"", None).is_err());
    assert!(matches!(check(&example("hooks.o"), Some("nothing")), Err(Error::ProgramType(_))));
}

/// Runs `examples/optimize.rs` as it was built with this test: exit code, standard output, standard error.
fn run_example(input: &Path, output: &Path) -> (Option<i32>, String, String) {
    let own = std::env::current_exe().expect("a path");
    // `target/PROFILE/deps/library-…`, and the example is `target/PROFILE/examples/optimize`.
    let built = own.ancestors().nth(2).expect("a folder of the profile").join("examples");
    let binary = built.join("optimize").with_extension(std::env::consts::EXE_EXTENSION);
    assert!(
        binary.exists(),
        "{}: no such file; `cargo test -p bpf-opt-api` builds it, and so does `cargo build -p bpf-opt-api --example optimize`",
        binary.display()
    );
    let ran = Command::new(&binary).arg(input).arg(output).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (ran.status.code(), text(&ran.stdout), text(&ran.stderr))
}

#[test]
fn the_example_writes_an_object_that_is_smaller_and_equal() {
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("written-by-the-example.o");
    // What an earlier run has left proves nothing.
    let _ = std::fs::remove_file(&output);
    let (code, said, complaints) = run_example(&path("xdp_count.c"), &output);
    assert!(code == Some(1) && said.is_empty() && complaints.starts_with("Error: "), "{said}{complaints}");
    assert!(!output.exists());
    let (code, said, complaints) = run_example(&path("xdp_count.o"), &output);
    assert_eq!(code, Some(0), "{complaints}");
    let slots = said.strip_suffix(" slots, proven equal: true\n").and_then(|text| text.split_once(" -> "));
    let slots = slots.and_then(|(before, after)| Some((before.parse().ok()?, after.parse().ok()?)));
    let (before, after): (usize, usize) = slots.unwrap_or_else(|| panic!("{said}"));
    let (original, written) = (example("xdp_count.o"), std::fs::read(&output).expect("it was written"));
    assert!(after < before, "{said}");
    let count = |object: &[u8]| optimize(object, &quick()).expect("an object").slots().0;
    assert_eq!((count(&original), count(&written)), (before, after));
    assert!(verify(&original, &written, &quick()).expect("both are objects").is_equal());
}
