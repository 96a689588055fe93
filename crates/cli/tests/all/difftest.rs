//! `bpf-opt difftest` from outside.

use std::fs;
use std::path::{Path, PathBuf};

use bpf_kernel::testing::permitted;
use bpf_testgen::assembly::{Surroundings, functions, object};
use tempfile::TempDir;

use crate::common::*;

/// The example with one instruction changed.
fn changed(folder: &TempDir, from: [u8; 8], to: [u8; 8]) -> PathBuf {
    let mut bytes = fs::read(example("xdp_count.o")).expect("it is committed");
    let at = bytes.windows(8).position(|w| w == from).expect("the example has this instruction");
    bytes[at..at + 8].copy_from_slice(&to);
    let path = folder.path().join("changed.o");
    fs::write(&path, bytes).expect("written");
    path
}

fn difftest(a: &Path, b: &Path, more: &[&str]) -> Ran {
    let paths = [a, b].map(|p| p.to_str().expect("plain"));
    bpf_opt([&["difftest"], &paths[..], more].concat())
}

#[test]
fn help_teaches() {
    let help = bpf_opt(["difftest", "--help"]).expect(0).out;
    assert!(help.contains("sudo bpf-opt difftest prog.o prog.opt.o") && help.contains("Exit codes:"), "{help}");
}

#[test]
fn bad_files_and_names_are_exit_code_2() {
    let good = example("xdp_count.o");
    difftest(&good, Path::new("/nonexistent.o"), &[]).expect(2);
    difftest(&good, &good, &["--packets", "0"]).expect(2);
    let folder = tempfile::tempdir().expect("a folder");
    let bad = folder.path().join("bad.o");
    fs::write(&bad, "no object").expect("written");
    let ran = difftest(&good, &bad, &[]).expect(2);
    assert!(ran.err.contains("bad.o"), "{}", ran.err);
    let ran = difftest(&good, &good, &["--program", "nobody"]).expect(2);
    assert!(ran.err.contains("xdp_count"), "{}", ran.err);
    difftest(&good, &good, &["--pcap", bad.to_str().expect("plain")]).expect(2);
}

#[test]
fn an_optimized_object_shows_no_difference() {
    if !permitted() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("out.o");
    let original = example("xdp_count.o");
    bpf_opt([Path::new("opt"), &original, Path::new("-o"), &output]).expect(0);
    let json = folder.path().join("report.json");
    let ran = difftest(&original, &output, &["--packets", "1000", "--json", json.to_str().expect("plain")]).expect(0);
    assert!(ran.out.contains("xdp_count: no difference on 1000 packets"), "{}", ran.out);
    let report: serde_json::Value = serde_json::from_slice(&fs::read(json).expect("the report")).expect("JSON");
    assert_eq!(report["exit_status"], 0);
    assert_eq!(report["programs"][0]["packets"], 1000);
    assert!(report["programs"][0]["difference"].is_null());
}

#[test]
fn what_cannot_be_run_is_told_and_is_no_yes() {
    let folder = tempfile::tempdir().expect("a folder");
    let around = Surroundings { section: "kprobe/do_nothing".into(), ..Surroundings::default() };
    let code = functions("r0 = 0\nexit", &around.section).expect("functions");
    let probe = folder.path().join("probe.o");
    fs::write(&probe, object(&around, &code).expect("it assembles")).expect("written");
    let ran = difftest(&probe, &probe, &[]).expect(3);
    if permitted() {
        assert!(ran.out.contains("main: not run: kprobe programs cannot be run on demand"), "{}", ran.out);
        assert!(ran.out.contains("nothing could be run"), "{}", ran.out);
        let good = example("xdp_count.o");
        assert!(!difftest(&good, &good, &["--packets", "10"]).expect(0).out.contains("nothing could be run"));
    }
}

#[test]
fn a_program_that_does_not_load_is_in_nobodys_way_who_asks_for_another() {
    if !permitted() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let around = Surroundings { section: "xdp".into(), ..Surroundings::default() };
    let code = functions("r0 = 2\nexit\nprogram other xdp:\nr0 = *(u64 *)(r1 + 4096)\nexit", &around.section);
    let path = folder.path().join("two.o");
    fs::write(&path, object(&around, &code.expect("functions")).expect("it assembles")).expect("written");
    let ran = difftest(&path, &path, &[]).expect(2);
    assert!(ran.err.contains("two.o"), "{}", ran.err);
    let ran = difftest(&path, &path, &["--program", "main", "--packets", "10"]).expect(0);
    assert!(ran.out.contains("main: no difference on 10 packets") && !ran.out.contains("other"), "{}", ran.out);
    difftest(&path, &path, &["--program", "other", "--packets", "10"]).expect(2);
}

#[test]
fn a_wrong_result_is_shown_with_its_packet() {
    if !permitted() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // `w0 = 2` becomes `w0 = 1`.
    let broken = changed(&folder, [0xb4, 0, 0, 0, 2, 0, 0, 0], [0xb4, 0, 0, 0, 1, 0, 0, 0]);
    let ran = difftest(&example("xdp_count.o"), &broken, &["--json", "-"]).expect(1);
    let report: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
    let difference = &report["programs"][0]["difference"];
    assert!(difference["what"][0].as_str().is_some_and(|w| w.starts_with("the return value: 2")), "{difference}");
    // The packet alone shows it again.
    let packet = difference["packet"].as_str().expect("digits");
    let values = [example("xdp_count.o"), broken]
        .map(|object| bpf_opt([Path::new("run"), &object, Path::new("--packet"), Path::new(packet)]).expect(0).out);
    assert!(values[0].starts_with("r0 = 0x2 ") && values[1].starts_with("r0 = 0x1 "), "{values:?}");
}

#[test]
fn a_wrong_map_value_is_shown_with_its_key() {
    if !permitted() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let broken = changed(&folder, [0xb7, 1, 0, 0, 1, 0, 0, 0], [0xb7, 1, 0, 0, 3, 0, 0, 0]);
    let ran = difftest(&example("xdp_count.o"), &broken, &[]).expect(1);
    assert!(ran.out.contains("map counters, key") && ran.out.contains("    packet "), "{}", ran.out);
}

#[test]
fn packets_come_from_a_capture() {
    if !permitted() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let pcap = folder.path().join("one.pcap");
    // A header, and one record of 20 bytes: an IPv4 header cut short.
    let mut bytes = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0];
    bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0, 20, 0, 0, 0]);
    bytes.extend([2; 12]);
    bytes.extend([8, 0]);
    bytes.extend([0x45; 6]);
    fs::write(&pcap, bytes).expect("written");
    let broken = changed(&folder, [0xb4, 0, 0, 0, 2, 0, 0, 0], [0xb4, 0, 0, 0, 1, 0, 0, 0]);
    let ran = difftest(&example("xdp_count.o"), &broken, &["--pcap", pcap.to_str().expect("plain")]).expect(1);
    assert!(ran.out.contains("packet 0202"), "{}", ran.out);
}

/// A program that returns `rare` for packets of which a word, changed a little, is a certain number, and 1 for all others.
fn rare(folder: &TempDir, name: &str, rare: i32) -> PathBuf {
    let code = format!(
        "r2 = *(u32 *)(r1 + 0)
        r3 = *(u32 *)(r1 + 4)
        r0 = 1
        r4 = r2
        r4 += 20
        if r4 > r3 goto end
        r4 = *(u32 *)(r2 + 14)
        r4 += 0x01010101
        r4 ^= 0x3c3c3c3c
        if r4 != 0x12345678 goto end
        r0 = {rare}
        end: exit"
    );
    let around = Surroundings { section: "xdp".into(), ..Surroundings::default() };
    let path = folder.path().join(name);
    fs::write(&path, object(&around, &functions(&code, "xdp").expect("code")).expect("an object")).expect("written");
    path
}

#[test]
fn inputs_that_were_found_show_what_made_packets_do_not_reach() {
    if !permitted() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (old, new) = (rare(&folder, "old.o", 2), rare(&folder, "new.o", 3));
    difftest(&old, &new, &[]).expect(0);
    let found = folder.path().join("inputs.json").display().to_string();
    bpf_opt(["inputs", &old.display().to_string(), "--json", &found]);
    let ran = difftest(&old, &new, &["--inputs-from", &found]).expect(1);
    assert!(ran.out.contains("different"), "{}", ran.out);
    difftest(&old, &old, &["--inputs-from", &found]).expect(0);
    difftest(&old, &new, &["--inputs-from", &found, "--packets", "5"]).expect(2);
    difftest(&old, &new, &["--inputs-from", &old.display().to_string()]).expect(2);
}

#[test]
fn the_run_check_takes_inputs_under_every_goal() {
    if !permitted() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let example = example("xdp_count.o").display().to_string();
    let [found, out, report] =
        ["inputs.json", "out.o", "report.json"].map(|n| folder.path().join(n).display().to_string());
    bpf_opt(["inputs", &example, "--json", &found]);
    let ran = |more: &[&str]| {
        bpf_opt([&["opt", &example, "-o", &out, "--no-cache", "--json", &report], more].concat()).expect(0);
        let text = fs::read_to_string(&report).expect("the report");
        let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        report["run_check"]["programs"][0]["inputs"].as_u64().expect("a number")
    };
    let inputs: serde_json::Value = serde_json::from_str(&fs::read_to_string(&found).expect("inputs")).expect("JSON");
    let possible = inputs["programs"][0]["inputs"].as_array().expect("inputs").iter().filter(|i| i["made_up"] == false);
    let (with, without) = (ran(&["--inputs-from", &found]), ran(&[]));
    assert_eq!(with, without + possible.count() as u64);
    bpf_opt(["opt", &example, "-o", &out, "--inputs-from", &found, "--write-counts", &report]).expect(2);
}
