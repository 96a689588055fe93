//! `bpf-opt profile` from outside. No time is asserted: what is checked is what is measured, and what is said of it.

use std::fs;

use bpf_kernel::testing::permitted;
use serde_json::Value;

use crate::common::*;

/// Quick: one round of a microsecond.
fn profile(more: &[&str]) -> Ran {
    bpf_opt([&["profile", "--rounds", "1", "--turn", "1"], more].concat())
}

#[test]
fn help_teaches() {
    let help = bpf_opt(["profile", "--help"]).expect(0).out;
    assert!(help.contains("sudo bpf-opt profile -o here.toml") && help.contains("Exit codes:"), "{help}");
}

#[test]
fn a_table_is_measured_and_taken_by_opt() {
    if !permitted() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("plain").to_owned();
    let ran = profile(&["-o", &path("here.toml"), "--json", &path("here.json")]).expect(0);
    for class in ["alu.64", "forward.wider", "branch.mispredicted", "call.lookup.hash", "call.tail"] {
        assert!(ran.out.lines().any(|l| l.starts_with(class)), "{class}: {}", ran.out);
    }
    let report: Value = serde_json::from_slice(&fs::read(path("here.json")).expect("a report")).expect("JSON");
    assert_eq!((&report["command"], &report["check"]), (&"profile".into(), &Value::Null));
    for class in report["costs"].as_array().expect("classes") {
        let number = &class["independent"];
        let of = |name: &str| number[name].as_f64();
        assert!(of("lower_quartile") <= of("median") && of("median") <= of("upper_quartile"), "{class}");
    }
    let text = fs::read_to_string(path("here.toml")).expect("a table");
    assert!(text.contains("format = 1") && text.contains("\"alu.64\" = ["), "{text}");
    let opt = ["opt", &example("xdp_count.o").display().to_string(), "-o", &path("out.o"), "--goal", "latency"];
    let rest = ["--costs", &path("here.toml"), "--no-search", "--no-kernel", "-q"];
    bpf_opt([&opt[..], &rest[..]].concat()).expect(0);
}

#[test]
fn a_bad_table_is_refused_with_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = folder.path().join("bad.toml");
    fs::write(&table, "format = 1\n[costs]\n\"alu.65\" = [1, 1]\n").expect("written");
    let input = example("xdp_count.o").display().to_string();
    let opt =
        |costs: &str| bpf_opt(["opt", &input, "-o", "/dev/null", "--goal", "latency", "--costs", costs]).expect(2).err;
    let said = opt(table.to_str().expect("plain"));
    assert!(said.contains("line 3: no class `alu.65`"), "{said}");
    let said = opt("vax");
    assert!(said.contains("x86-64, arm64"), "{said}");
}

#[test]
fn options_of_the_check_need_it() {
    profile(&["--pairs"]).expect(2);
    profile(&["--costs", "x86-64"]).expect(2);
    profile(&["some.o"]).expect(2);
}

#[test]
fn a_table_is_held_against_programs() {
    if !permitted() {
        return;
    }
    let ran = profile(&["--check", "--costs", "x86-64", "--json", "-"]).expect(0);
    let report: Value = serde_json::from_str(&ran.out).expect("JSON");
    let check = &report["check"];
    assert_eq!(report["costs"].as_array().map(Vec::len), Some(0), "a table was given");
    let pairs = check["pairs"].as_array().expect("pairs");
    // On any machine: three calls of the clock take longer than one.
    let clocks = pairs.iter().filter(|p| p["object"] == "clocks").count();
    assert!(clocks > 0 && check["rank_correlation"].is_number(), "{report:#}");
    assert!(check["right"].as_u64() <= Some(pairs.len() as u64));
}

#[test]
fn times_in_reports_are_by_the_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out.o").display().to_string();
    let estimated = |costs: &str| {
        let input = example("xdp_count.o").display().to_string();
        let args =
            ["opt", &input, "-o", &out, "--passes", "none", "--no-kernel", "-q", "--json", "-", "--costs", costs];
        let report: Value = serde_json::from_str(&bpf_opt(args).expect(0).out).expect("JSON");
        report["functions"][0]["estimated_ns"][0].as_f64().expect("a time")
    };
    assert!(estimated("x86-64") > 0.0);
    assert!((estimated("x86-64") - estimated("arm64")).abs() > 0.1);
}
