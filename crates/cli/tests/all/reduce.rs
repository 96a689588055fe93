//! `bpf-opt reduce` from outside: what is left, what is refused, what is never written.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use bpf_object::Object;

use crate::common::*;

/// `bpf-opt reduce` on an example.
fn reduce(example_name: &str, output: &Path, test: &str, more: &[&str]) -> Ran {
    let mut command = command();
    command.arg("reduce").arg(example(example_name)).arg("-o").arg(output).args(["--test", test]).args(more);
    Ran::of(command.output().expect("the binary runs"))
}

/// A shell command that succeeds if the listing has a line like this.
fn listing_has(pattern: &str) -> String {
    format!("'{}' dis {{}} | grep -q -- '{pattern}'", env!("CARGO_BIN_EXE_bpf-opt"))
}

fn slots(object: &Object) -> usize {
    object.functions().iter().map(|f| f.slots).sum()
}

#[test]
fn only_what_the_command_looks_for_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("small.o");
    let before = slots(&Object::parse(fs::read(example("subprogs.o")).unwrap()).unwrap());
    let ran = reduce("subprogs.o", &output, &listing_has("lock \\*(u64 \\*)"), &[]).expect(0);
    let object = Object::parse(fs::read(&output).unwrap()).expect("it can be read");
    let functions = object.functions().len();
    // `exit` is what is left of a function; one holds the atomic as well.
    assert_eq!(slots(&object), functions + 1, "from {before}:\n{}", ran.err);
    assert!(ran.err.contains(&format!("{before} slots -> {}", functions + 1)), "{}", ran.err);
}

#[test]
fn what_needs_two_instructions_keeps_two() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("small.o");
    let test = format!("{} && {}", listing_has("call .*map_lookup_elem"), listing_has("goto"));
    reduce("xdp_count.o", &output, &test, &[]).expect(0);
    let object = Object::parse(fs::read(&output).unwrap()).expect("it can be read");
    assert!(slots(&object) <= 6, "{} slots", slots(&object));
    let yes = command().args(["dis"]).arg(&output).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&yes.stdout).into_owned();
    assert!(text.contains("map_lookup_elem") && text.contains("goto"), "{text}");
}

#[test]
fn a_command_that_fails_on_the_input_is_exit_code_2_and_nothing_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("small.o");
    let ran = reduce("xdp_count.o", &output, "false", &[]).expect(2);
    assert!(ran.err.contains("does not succeed") && !output.exists(), "{}", ran.err);
}

#[test]
fn a_command_that_hangs_is_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let started = Instant::now();
    reduce("xdp_count.o", &folder.path().join("small.o"), "sleep 60; true", &["--test-limit", "0.2"]).expect(2);
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn without_time_the_object_stays_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("same.o");
    let ran = reduce("hooks.o", &output, "true", &["--time-limit", "0"]).expect(0);
    assert_eq!(fs::read(&output).unwrap(), fs::read(example("hooks.o")).unwrap());
    assert!(ran.err.contains("time limit"), "{}", ran.err);
}

#[test]
fn ctrl_c_writes_the_smallest_so_far() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("small.o");
    let mut command = command();
    // Slow enough to be interrupted, and each step is one that succeeds.
    command.arg("reduce").arg(example("hooks.o")).arg("-o").arg(&output).args(["--test", "sleep 0.2; test -s {}"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    std::thread::sleep(Duration::from_millis(900));
    let pid = child.id().to_string();
    std::process::Command::new("kill").args(["-INT", &pid]).status().expect("kill runs");
    Ran::of(child.wait_with_output().expect("it ends")).expect(130);
    Object::parse(fs::read(&output).expect("it is written")).expect("it can be read");
}
