//! `bpf-opt bench` from outside. No time is asserted: what is checked is what is measured, and what is said of it.

use std::fs;
use std::path::Path;

use bpf_assembly::{Surroundings, functions, object};
use bpf_kernel::testing::permitted;
use serde_json::Value;

use crate::common::*;

/// Quick: two loads, two rounds.
fn bench(objects: &[&Path], more: &[&str]) -> Ran {
    let paths: Vec<&str> = objects.iter().map(|p| p.to_str().expect("plain")).collect();
    bpf_opt([&["bench"], &paths[..], &["--loads", "2", "--rounds", "2"], more].concat())
}

#[test]
fn help_teaches() {
    let help = bpf_opt(["bench", "--help"]).expect(0).out;
    assert!(help.contains("sudo bpf-opt bench prog.o prog.opt.o") && help.contains("Exit codes:"), "{help}");
}

#[test]
fn bad_files_and_names_are_exit_code_2() {
    let good = example("xdp_count.o");
    bench(&[&good, Path::new("/nonexistent.o")], &[]).expect(2);
    bench(&[&good], &["--packet", "0xzz"]).expect(2);
    bench(&[&good], &["--fail-if-slower", "-1"]).expect(2);
    let folder = tempfile::tempdir().expect("a folder");
    let bad = folder.path().join("bad.o");
    fs::write(&bad, "no object").expect("written");
    assert!(bench(&[&good, &bad], &[]).expect(2).err.contains("bad.o"));
    let maps = folder.path().join("maps.json");
    fs::write(&maps, r#"{"counts": [{"key": ["0x00"], "value": "many"}]}"#).expect("written");
    let said = bench(&[&good], &["--maps", maps.to_str().expect("plain")]).expect(2).err;
    assert!(said.contains("map counts") && said.contains("bpftool"), "{said}");
    if permitted() {
        assert!(bench(&[&good], &["--program", "nobody"]).expect(2).err.contains("nobody"));
        fs::write(&maps, r#"{"nowhere": []}"#).expect("written");
        let said = bench(&[&good], &["--maps", maps.to_str().expect("plain")]).expect(2).err;
        assert!(said.contains("map nowhere"), "{said}");
    }
}

#[test]
fn programs_are_timed_beside_each_other() {
    if !permitted() {
        return;
    }
    let object = example("xdp_count.o");
    let ran = bench(&[&object, &object], &["--json", "-"]).expect(0);
    let report: Value = serde_json::from_str(&ran.out).expect("JSON");
    let program = &report["programs"][0];
    assert_eq!((&report["command"], &program["skipped"]), (&"bench".into(), &Value::Null), "{report:#}");
    assert_eq!(program["serialized"], true, "{report:#}");
    let class = &program["classes"][0];
    assert!(class["inputs"].as_u64() > Some(0) && class["returns"].is_null(), "{report:#}");
    assert_eq!(class["objects"].as_array().map(Vec::len), Some(2));
    for timed in class["objects"].as_array().into_iter().flatten().chain([&class["again"]]) {
        let of = |name: &str| timed["difference_ns"][name].as_f64();
        assert!(of("low") <= of("value") && of("value") <= of("high"), "{timed}");
        assert!(timed["ns"]["lower_quartile"].as_f64() <= timed["ns"]["upper_quartile"].as_f64(), "{timed}");
        assert!(["faster", "slower", "noise"].iter().any(|call| timed["call"] == *call), "{timed}");
    }
    let facts = &program["facts"];
    assert!(facts[0] == facts[1] || facts[0]["slots"] == facts[1]["slots"], "{facts}");
    assert!(facts[0]["verified"].as_u64() > Some(0), "{facts}");

    let ran = bench(&[&object, &object], &["--csv", "-"]).expect(0);
    let rows: Vec<&str> = ran.out.lines().collect();
    assert!(rows[0].starts_with("program,class,inputs,object,ns,") && rows.len() >= 4, "{}", ran.out);
    assert!(rows.iter().all(|row| row.split(',').count() == 14), "{}", ran.out);
    let text = bench(&[&object, &object], &["--packet", &"00".repeat(64), "--back-to-back"]).expect(0).out;
    assert!(text.contains("overlapping runs"), "{text}");
    let text = bench(&[&object, &object], &["--packet", &"00".repeat(64)]).expect(0).out;
    assert!(
        text.contains("each run after the end of the one before")
            && text.contains("an empty program takes")
            && text.contains("the first again"),
        "{text}"
    );
}

#[test]
fn an_object_that_does_not_load_is_named() {
    if !permitted() {
        return;
    }
    let [good, bad] = ["xdp_count.o", "hooks.o"].map(example);
    let said = bench(&[&good, &bad], &[]).expect(2).err;
    assert!(said.contains("hooks.o") && !said.contains("xdp_count.o"), "{said}");
}

#[test]
fn a_legacy_load_that_ends_runs_is_told() {
    if !permitted() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let serialized = |name: &str, body: &str| -> Value {
        let text = format!("prog:\n{body}\nexit\n");
        let object =
            object(&Surroundings::default(), &functions(&text, "socket").expect("assembles")).expect("an object");
        let path = folder.path().join(name);
        fs::write(&path, object).expect("written");
        let ran = bench(&[&path], &["--packet", &"00".repeat(400), "--json", "-"]).expect(0);
        let report: Value = serde_json::from_str(&ran.out).expect("JSON");
        report["programs"][0]["serialized"].clone()
    };
    assert_eq!(serialized("inside.o", "r6 = r1\nr0 = *(u32 *)skb[12]\nr0 = 0"), true);
    assert_eq!(serialized("behind.o", "r6 = r1\nr0 = *(u32 *)skb[4000]\nr0 = 1"), false);
    // It goes through the packet from run to run (in `cb`): each run is one of its own.
    let moving =
        "r6 = r1\nr7 = *(u32 *)(r6 + 48)\nr2 = r7\nr2 += 4\n*(u32 *)(r6 + 48) = r2\nr0 = *(u8 *)skb[r7]\nr0 = 0";
    assert_eq!(serialized("moving.o", moving), true);
}
