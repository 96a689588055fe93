//! What a user is told: about objects that are unlike most, about interruptions, about differences.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bpf_testgen::assembly::{Role, Surroundings, functions, object};
use tempfile::TempDir;

use crate::common::*;

/// A program that can be made shorter and needs no maps.
const LONG: &str = "
    r6 = 7
    r6 += 5
    r0 = r6
    r0 &= 1
    exit
";

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// An object of this code, without BTF, in a file.
fn assembled(folder: &TempDir, name: &str, code: &str, role: Role) -> PathBuf {
    let around = Surroundings { section: "xdp".into(), untyped: true, ..Surroundings::default() };
    let mut code = functions(code, "xdp").expect("functions");
    code.iter_mut().for_each(|f| f.role = role);
    let path = folder.path().join(name);
    fs::write(&path, object(&around, &code).expect("it assembles")).expect("written");
    path
}

/// Optimizes by rules alone.
fn opt(input: &Path, output: &Path, more: &[&str]) -> Ran {
    let mut command = command();
    command.arg("opt").arg(input).arg("-o").arg(output).args(["--no-search", "--time-limit", "20"]).args(more);
    Ran::of(command.output().expect("the binary runs")).expect(0)
}

#[test]
fn debug_sections_that_are_left_out_are_counted() {
    let folder = folder();
    let ran = opt(&example("xdp_count.o"), &folder.path().join("out.o"), &["--no-kernel"]);
    let notes: Vec<&str> = ran.err.lines().filter(|l| l.contains("DWARF")).collect();
    assert!(notes.len() == 1 && notes[0].starts_with("note: left out"), "{}", ran.err);
    assert!(!ran.err.contains(".debug_"), "{}", ran.err);
}

#[test]
fn a_cpu_below_that_of_the_object_is_told() {
    let folder = folder();
    let said = |cpu| opt(&example("xdp_count.o"), &folder.path().join("out.o"), &["--no-kernel", "--cpu", cpu]).err;
    let text = said("v2");
    assert!(text.contains("note: the object holds instructions of cpu v3 already; none above v2"), "{text}");
    assert!(!said("v3").contains("already"));
}

#[test]
fn an_object_without_code_has_a_reason_for_everything() {
    let folder = folder();
    let input = assembled(&folder, "empty.o", "", Role::Program);
    let output = folder.path().join("out.o");
    for more in [&[][..], &["--no-kernel"]] {
        let ran = opt(&input, &output, more);
        assert!(ran.err.contains("kernel: skipped: "), "{}", ran.err);
        assert!(!ran.err.lines().any(|l| l.trim_end().ends_with([':', '('])), "{}", ran.err);
        assert!(ran.err.contains("total: 0 slots, none saved, 0 proofs"), "{}", ran.err);
    }
    let both = [Path::new("difftest"), &input, &input];
    bpf_opt(both).expect(3);
}

/// The object as `llvm-strip` leaves it: sections with names, and no symbols.
fn stripped(mut bytes: Vec<u8>) -> Vec<u8> {
    const SYMTAB: u32 = 2;
    const PROGBITS: u32 = 1;
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes")) as usize;
    let headers = word(0x28);
    let count = u16::from_le_bytes([bytes[0x3c], bytes[0x3d]]) as usize;
    for section in (0..count).map(|n| headers + 64 * n) {
        if bytes[section + 4..section + 8] == SYMTAB.to_le_bytes() {
            bytes[section + 4..section + 8].copy_from_slice(&PROGBITS.to_le_bytes());
        }
    }
    bytes
}

#[test]
fn an_object_that_nothing_can_load_stays_as_it_is() {
    let folder = folder();
    let input = assembled(&folder, "prog.o", LONG, Role::Program);
    let output = folder.path().join("out.o");
    let whole = fs::read(&input).expect("there");
    assert!(opt(&input, &output, &["--no-kernel"]).err.contains(" -> "), "this code can be made shorter");
    fs::write(&input, stripped(whole)).expect("written");
    for more in [&[][..], &["--no-kernel"], &["--quiet"]] {
        let ran = opt(&input, &output, more);
        assert!(ran.err.contains("warning: ") && ran.err.contains("prog.o: it has no symbol table"), "{}", ran.err);
        assert!(fs::read(&input).expect("there") == fs::read(&output).expect("there"));
    }
}

#[test]
fn that_libbpf_loads_no_static_programs_is_told() {
    let folder = folder();
    let output = folder.path().join("out.o");
    let [local, global] = [Role::Static, Role::Program].map(|role| {
        let input = assembled(&folder, "prog.o", LONG, role);
        opt(&input, &output, &["--no-kernel"]).err
    });
    assert!(
        local.contains("note: libbpf loads no object with static programs") && local.contains(": main\n"),
        "{local}"
    );
    assert!(!global.contains("static"), "{global}");
    // Subprograms are another matter.
    let subprograms = opt(&example("subprogs.o"), &output, &["--no-kernel"]).err;
    assert!(!subprograms.contains("static programs"), "{subprograms}");
}

#[test]
fn an_interruption_is_told_at_once_and_is_not_called_a_time_limit() {
    let folder = folder();
    let [pipe, output, json] = ["in.o", "out.o", "report.json"].map(|name| folder.path().join(name));
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let mut child = command();
    child.arg("opt").arg(&pipe).arg("-o").arg(&output).arg("--json").arg(&json).args(["--no-kernel", "--no-cache"]);
    let mut child = child.stderr(Stdio::piped()).spawn().expect("it starts");
    // It is open on the other side, too, when this returns: it listens for signals and waits for its input.
    let mut input = fs::File::options().write(true).open(&pipe).expect("the pipe");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill").success());
    let mut said = BufReader::new(child.stderr.take().expect("piped"));
    let mut first = String::new();
    said.read_line(&mut first).expect("text");
    assert_eq!(first, "interrupted: writing what there is\n");
    let bytes = fs::read(example("xdp_count.o")).expect("the example");
    input.write_all(&bytes).expect("written");
    drop(input);
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("text");
    assert_eq!(child.wait().expect("it ends").code(), Some(130), "{rest}");
    assert!(rest.contains("interrupted, best result so far written to"), "{rest}");
    assert!(!rest.contains("time limit") && !rest.contains("not reached: time"), "{rest}");
    assert!(!rest.contains("interrupted: writing"), "it is told once: {rest}");
    assert!(fs::read(&output).expect("the result") == bytes);
    let report: serde_json::Value = serde_json::from_slice(&fs::read(&json).expect("the report")).expect("JSON");
    assert_eq!((&report["interrupted"], &report["exit_status"]), (&true.into(), &130.into()));
}

#[test]
fn the_total_is_of_all_forms_and_of_measuring_them() {
    let folder = folder();
    let [output, json] = ["out.o", "report.json"].map(|name| folder.path().join(name));
    let keep = ["--goal", "latency", "--keep", "3", "--json", json.to_str().expect("plain")];
    opt(&example("xdp_count.o"), &output, &keep);
    let report: serde_json::Value = serde_json::from_slice(&fs::read(&json).expect("the report")).expect("JSON");
    let forms = report["variants"].as_array().expect("forms").iter();
    let of_forms: f64 = forms.map(|form| form["seconds"].as_f64().expect("a number")).sum();
    assert!(report["seconds"].as_f64().expect("a number") > of_forms, "{report:#}");
}

#[test]
fn a_counterexample_begins_with_the_difference_and_names_only_what_is_read() {
    let folder = folder();
    let code = |result: &str| {
        format!(
            "r2 = *(u32 *)(r1 + 16)
             r0 = 1
             if r2 == 77 goto L
             r0 = {result}
             L:
             exit"
        )
    };
    let a = assembled(&folder, "a.o", &code("2"), Role::Program);
    let b = assembled(&folder, "b.o", &code("3"), Role::Program);
    let ran = bpf_opt([Path::new("verify"), &a, &b, Path::new("--no-run-check")]).expect(1);
    let lines: Vec<&str> = ran.out.lines().map(str::trim).collect();
    assert_eq!(lines[0], "main: different", "{}", ran.out);
    assert_eq!(lines[1], "first difference: the result is 0x2, and 0x3 in the new one", "{}", ran.out);
    let inputs: Vec<&&str> = lines.iter().filter(|l| l.starts_with("input: ")).collect();
    assert!(inputs.len() == 1 && inputs[0].contains("context field of 4 bytes at 16"), "{}", ran.out);
}
