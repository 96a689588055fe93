//! Programs that are run to see what they do, from outside: what is run and what is not, where, and what comes of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bpf_kernel::testing::{available, in_private_pins, permitted};
use tempfile::TempDir;

use crate::common::*;

/// Whether programs may be loaded and run in a network of their own; says so if not.
fn kernel() -> bool {
    permitted() && available(bpf_kernel::in_private_network(|| ())).is_some()
}

/// An object made for these tests; its source is beside it.
fn object(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/objects").join(name)
}

fn path(p: &Path) -> &str {
    p.to_str().expect("plain")
}

/// The object with one instruction changed.
fn changed(folder: &TempDir, original: &Path, from: [u8; 8], to: [u8; 8]) -> PathBuf {
    let mut bytes = fs::read(original).expect("it is committed");
    let at = bytes.windows(8).position(|w| w == from).expect("the object has this instruction");
    bytes[at..at + 8].copy_from_slice(&to);
    let path = folder.path().join("changed.o");
    fs::write(&path, bytes).expect("written");
    path
}

/// Optimizes; what was printed, and the report.
fn opt(input: &Path, more: &[&str]) -> (Ran, serde_json::Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let (output, json) = (folder.path().join("out.o"), folder.path().join("report.json"));
    let first = ["opt", path(input), "-o", path(&output), "--no-search", "--json", path(&json)];
    let ran = bpf_opt([&first, more].concat()).expect(0);
    let report = serde_json::from_slice(&fs::read(json).expect("the report")).expect("JSON");
    (ran, report)
}

#[test]
fn opt_runs_original_and_result_unless_told_not_to() {
    if !kernel() {
        return;
    }
    let input = example("xdp_count.o");
    let (ran, report) = opt(&input, &[]);
    let check = &report["run_check"];
    assert_eq!((&check["status"], &check["inputs"]), (&"no difference".into(), &400.into()), "{check}");
    assert!(ran.err.contains("runs: no difference; 1 program(s), 400 inputs"), "{}", ran.err);
    for flag in ["--no-run-check", "--no-kernel"] {
        assert!(opt(&input, &[flag]).1["run_check"].is_null(), "{flag}");
    }
}

#[test]
fn running_changes_no_byte_of_a_right_result() {
    if !kernel() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let outputs = ["--seed=1", "--seed=2", "--no-run-check"].map(|flag| {
        let output = folder.path().join("out.o");
        bpf_opt(["opt", path(&example("subprogs.o")), "-o", path(&output), "--no-search", flag]).expect(0);
        fs::read(output).expect("written")
    });
    assert!(outputs[0] == outputs[1] && outputs[0] == outputs[2]);
}

#[test]
fn programs_that_do_not_load_together_are_run_one_by_one() {
    if !kernel() {
        return;
    }
    let (_, report) = opt(&example("hooks.o"), &[]);
    let names: Vec<_> =
        report["run_check"]["programs"].as_array().expect("programs").iter().map(|p| &p["name"]).collect();
    assert_eq!(names, ["on_xdp", "on_skb"], "{}", report["run_check"]);
}

#[test]
fn a_program_that_may_send_packets_is_not_run() {
    if !kernel() {
        return;
    }
    let (ran, report) = opt(&object("cloner.o"), &[]);
    let check = &report["run_check"];
    assert_eq!(check["inputs"], 0, "{check}");
    assert!(check["skipped"][0]["reason"].as_str().is_some_and(|r| r.contains("bpf_clone_redirect")), "{check}");
    assert!(ran.err.contains("bpf_clone_redirect"), "{}", ran.err);
    let cloner = object("cloner.o");
    let ran = bpf_opt(["difftest", path(&cloner), path(&cloner), "--packets", "100"]).expect(3);
    assert!(ran.out.contains("cloner: not run: it may call bpf_clone_redirect"), "{}", ran.out);
}

/// Packets that the loopback device of this thread's network has received.
fn received() -> u64 {
    let devices = fs::read_to_string("/proc/thread-self/net/dev").expect("it is readable");
    let line = devices.lines().find(|l| l.trim_start().starts_with("lo:")).expect("there is a loopback device");
    line.split_whitespace().nth(2).and_then(|n| n.parse().ok()).expect("a number")
}

#[test]
fn what_runs_cannot_reach_the_network_of_its_caller() {
    if !kernel() {
        return;
    }
    // Stands for the machine's network: one where nobody else sends anything, and the loopback device is up.
    bpf_kernel::in_private_network(|| {
        let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
        if !up.is_ok_and(|status| status.success()) {
            eprintln!("skipped: `ip link set lo up` does not work here");
            return;
        }
        let before = received();
        let cloner = object("cloner.o");
        let ran = bpf_opt(["difftest", path(&cloner), path(&cloner), "--packets", "100", "--allow-effects"]).expect(0);
        assert!(!ran.out.contains("no difference on 0 packets"), "{}", ran.out);
        assert_eq!(received(), before, "the programs sent packets here");
        // It could have been seen: the same program, run from here, sends.
        let loaded =
            bpf_kernel::LoadedObject::load_file(&cloner, &bpf_kernel::LoadOptions::default()).expect("it loads");
        loaded.test_run("cloner", &[0; 64], None, 1).expect("it runs");
        assert!(received() > before);
    })
    .expect("a network of its own");
}

#[test]
fn a_map_that_asks_to_be_pinned_is_not() {
    if !kernel() {
        return;
    }
    let pins = || std::fs::read_dir("/sys/fs/bpf").expect("readable").count();
    let seen = in_private_pins(|| {
        // The kernel's own.
        let before = pins();
        let (_, report) = opt(&object("pinned.o"), &[]);
        assert_eq!(report["run_check"]["status"], "no difference");
        let pinned = object("pinned.o");
        bpf_opt(["difftest", path(&pinned), path(&pinned), "--packets", "100"]).expect(0);
        bpf_opt(["verify", path(&pinned), path(&pinned)]).expect(0);
        (before, pins())
    });
    if let Some((before, after)) = available(seen) {
        assert_eq!(before, after);
    }
}

#[test]
fn a_program_of_unknown_type_is_not_loaded_as_another() {
    if !kernel() {
        return;
    }
    let (ran, report) = opt(&object("custom.o"), &[]);
    assert!(report["functions"][0]["kernel_before"].is_null(), "{report}");
    assert_eq!(report["gate"], "skipped: no program type goes with the section name");
    assert!(ran.err.contains("the kernel could not be asked about custom: no program type"), "{}", ran.err);
    // With a name the kernel is asked: reading `ctx->data` as a number is nothing an XDP program may do.
    let (_, report) = opt(&object("custom.o"), &["--type", "xdp"]);
    assert_eq!(report["functions"][0]["kernel_before"]["accepted"], false, "{report}");
    let (_, report) = opt(&object("custom.o"), &["--type", "classifier"]);
    assert_eq!(report["functions"][0]["kernel_before"]["accepted"], true, "{report}");
}

/// `verify` of an object and a wrong form of it: exit code 1, soon, with the input.
fn shown_at_once(a: &Path, b: &Path, more: &[&str], by: &str) {
    let started = Instant::now();
    let ran = bpf_opt([&["verify", path(a), path(b)], more].concat()).expect(1);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert!(ran.out.contains(by) && ran.out.contains("packet "), "{}", ran.out);
}

/// Two plain wrong programs: another return value, another number counted.
fn wrong_forms() -> [([u8; 8], [u8; 8]); 2] {
    [
        ([0xb4, 0, 0, 0, 2, 0, 0, 0], [0xb4, 0, 0, 0, 1, 0, 0, 0]),
        ([0xb7, 1, 0, 0, 1, 0, 0, 0], [0xb7, 1, 0, 0, 3, 0, 0, 0]),
    ]
}

#[test]
fn verify_shows_plain_differences_by_running_in_the_kernel() {
    if !kernel() {
        return;
    }
    for (from, to) in wrong_forms() {
        let folder = tempfile::tempdir().expect("a folder");
        let original = example("xdp_count.o");
        shown_at_once(&original, &changed(&folder, &original, from, to), &[], "run in this kernel");
    }
}

#[test]
fn verify_shows_plain_differences_without_a_kernel() {
    for (from, to) in wrong_forms() {
        let folder = tempfile::tempdir().expect("a folder");
        let original = example("xdp_count.o");
        shown_at_once(&original, &changed(&folder, &original, from, to), &["--no-kernel"], "interpreted");
    }
}

#[test]
fn verify_without_runs_only_proves() {
    let (from, to) = wrong_forms()[0];
    let folder = tempfile::tempdir().expect("a folder");
    let original = example("xdp_count.o");
    let broken = changed(&folder, &original, from, to);
    let ran = bpf_opt(["verify", path(&original), path(&broken), "--no-run-check", "--time-limit", "5"]);
    assert!(ran.code == Some(1) || ran.code == Some(3), "{ran:?}");
    assert!(!ran.out.contains("run in this kernel") && !ran.out.contains("interpreted"), "{}", ran.out);
}

#[test]
fn runs_call_no_equal_objects_different() {
    for input in examples() {
        let folder = tempfile::tempdir().expect("a folder");
        let output = folder.path().join("out.o");
        bpf_opt(["opt", path(&input), "-o", path(&output), "--no-search", "--no-run-check"]).expect(0);
        for flag in ["--no-kernel", "--time-limit=10"] {
            let ran = bpf_opt(["verify", path(&input), path(&output), flag, "--json", "-"]);
            let report: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
            let functions = report["functions"].as_array().expect("functions");
            let different: Vec<_> = functions.iter().filter(|f| f["verdict"] == "different").collect();
            assert!(different.is_empty(), "{}: {different:?}", input.display());
        }
    }
}

#[test]
fn what_the_stack_happens_to_hold_is_no_difference() {
    if !kernel() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let original = object("unwritten.o");
    // `r0 = *(u64 *)(r10 - 16)` reads other bytes that nobody wrote, 8 bytes below.
    let elsewhere =
        changed(&folder, &original, [0x79, 0xa0, 0xf0, 0xff, 0, 0, 0, 0], [0x79, 0xa0, 0xe8, 0xff, 0, 0, 0, 0]);
    let ran = bpf_opt(["difftest", path(&original), path(&elsewhere), "--packets", "300"]).expect(0);
    assert!(!ran.out.contains("different,") && ran.out.contains("padded: no difference"), "{}", ran.out);
    // A difference that has nothing to do with it is one.
    let wrong = changed(&folder, &original, [0xb7, 0, 0, 0, 2, 0, 0, 0], [0xb7, 0, 0, 0, 1, 0, 0, 0]);
    let ran = bpf_opt(["difftest", path(&original), path(&wrong), "--packets", "300"]).expect(1);
    assert!(ran.out.contains("padded: different") && !ran.out.contains("unwritten: different"), "{}", ran.out);
}
