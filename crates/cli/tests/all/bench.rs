//! `bpf-opt bench` from outside. No time is asserted but that four hundred operations in a chain take longer than twenty: what is
//! checked is what is measured, and what is said of it.

use std::fs;
use std::path::{Path, PathBuf};

use bpf_assembly::{Map, Surroundings, functions, object};
use bpf_kernel::testing::permitted;
use serde_json::{Value, json};

use crate::common::*;

/// Quick: two loads, two rounds.
fn bench(objects: &[&Path], more: &[&str]) -> Ran {
    let paths: Vec<&str> = objects.iter().map(|p| p.to_str().expect("plain")).collect();
    bpf_opt([&["bench"], &paths[..], &["--loads", "2", "--rounds", "2"], more].concat())
}

/// An object of one program.
fn made(folder: &Path, name: &str, section: &str, maps: Vec<Map>, text: &str) -> PathBuf {
    let around = Surroundings { section: section.into(), maps, ..Surroundings::default() };
    let bytes = object(&around, &functions(text, section).expect("assembles")).expect("an object");
    let path = folder.join(name);
    fs::write(&path, bytes).expect("written");
    path
}

/// What it tells with `--json -`, with this exit code.
fn report(ran: Ran, code: i32) -> Value {
    serde_json::from_str(&ran.expect(code).out).expect("JSON")
}

/// What the inputs return, class by class behind the one of all inputs, and how many there are; all of them first.
fn classes(report: &Value) -> Vec<(Option<u64>, Option<u64>)> {
    let classes = report["programs"][0]["classes"].as_array().unwrap_or_else(|| panic!("{report:#}")).iter();
    classes.map(|class| (class["returns"].as_u64(), class["inputs"].as_u64())).collect()
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
        let cycles = &timed["cycles"];
        assert!(cycles.is_null() || cycles["middle"].is_number(), "{timed}");
        assert!(["faster", "slower", "noise"].iter().any(|call| timed["call"] == *call), "{timed}");
    }
    let facts = &program["facts"];
    assert!(facts[0] == facts[1] || facts[0]["slots"] == facts[1]["slots"], "{facts}");
    assert!(facts[0]["verified"].as_u64() > Some(0), "{facts}");

    let ran = bench(&[&object, &object], &["--csv", "-"]).expect(0);
    let rows: Vec<&str> = ran.out.lines().collect();
    assert!(rows[0].starts_with("program,class,inputs,object,ns,") && rows.len() >= 4, "{}", ran.out);
    assert!(rows.iter().all(|row| row.split(',').count() == 15), "{}", ran.out);
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
        let path = made(folder.path(), name, "socket", Vec::new(), &format!("{body}\nexit\n"));
        let ran = bench(&[&path], &["--packet", &"00".repeat(400), "--json", "-"]);
        report(ran, 0)["programs"][0]["serialized"].clone()
    };
    assert_eq!(serialized("inside.o", "r6 = r1\nr0 = *(u32 *)skb[12]\nr0 = 0"), true);
    assert_eq!(serialized("behind.o", "r6 = r1\nr0 = *(u32 *)skb[4000]\nr0 = 1"), false);
    // It goes through the packet from run to run (in `cb`): each run is one of its own.
    let moving =
        "r6 = r1\nr7 = *(u32 *)(r6 + 48)\nr2 = r7\nr2 += 4\n*(u32 *)(r6 + 48) = r2\nr0 = *(u8 *)skb[r7]\nr0 = 0";
    assert_eq!(serialized("moving.o", moving), true);
}

#[test]
fn programs_of_whose_runs_the_kernel_tells_no_time_are_not_timed() {
    if !permitted() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (name, section) in [("raw.o", "raw_tp/sys_enter"), ("syscall.o", "syscall")] {
        let path = made(folder.path(), name, section, Vec::new(), "r0 = 0\nexit\n");
        let report = report(bench(&[&path], &["--json", "-"]), 3);
        let program = &report["programs"][0];
        assert!(program["skipped"].as_str().is_some_and(|why| why.contains("tells no time")), "{report:#}");
        assert_eq!(program["classes"], json!([]), "{report:#}");
        let text = bench(&[&path], &[]).expect(3).out;
        assert!(text.contains("not timed: the kernel tells no time"), "{text}");
    }
}

#[test]
fn what_takes_longer_is_slower_and_fails_if_it_is_to() {
    if !permitted() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // Each multiplication waits for the one before, and the verdict for the last: whether the length is odd, which they leave alone.
    let chain = |name: &str, steps: usize| {
        let text = format!("r0 = *(u32 *)(r1 + 0)\n{}r0 &= 1\nexit\n", "r0 *= 3\n".repeat(steps));
        made(folder.path(), name, "socket", Vec::new(), &text)
    };
    let [short, long] = [chain("short.o", 20), chain("long.o", 400)];
    let packet = "00".repeat(64);
    let beside = |objects: [&Path; 2], code: i32| {
        let paths = objects.map(|p| p.to_str().expect("plain"));
        // Of two loads nothing can be said for sure.
        let settings = ["--loads", "8", "--rounds", "4", "--packet", &packet, "--fail-if-slower", "10", "--json", "-"];
        let report = report(bpf_opt([&["bench"][..], &paths[..], &settings[..]].concat()), code);
        let class = &report["programs"][0]["classes"][0];
        assert_eq!(report["exit_status"], code, "{report:#}");
        assert_eq!(class["inputs"], 1, "{report:#}");
        class["objects"][1].clone()
    };
    let slower = beside([&short, &long], 1);
    assert_eq!(slower["call"], "slower", "{slower:#}");
    assert!(slower["difference_ns"]["low"].as_f64() > Some(0.0), "{slower:#}");
    let faster = beside([&long, &short], 0);
    assert_eq!(faster["call"], "faster", "{faster:#}");
}

/// Drops frames with a number in them.
const NUMBER: u32 = 0x1234_5678;

/// A program that does, and frames with and without.
fn by_number(folder: &Path) -> (PathBuf, [Vec<u8>; 2]) {
    let text = format!(
        "r2 = *(u32 *)(r1 + 0)\nr3 = *(u32 *)(r1 + 4)\nr0 = 2\nr4 = r2\nr4 += 18\nif r4 > r3 goto out\n\
         r5 = *(u32 *)(r2 + 14)\nif r5 != {NUMBER} goto out\nr0 = 1\nout:\nexit\n"
    );
    let frame = |number: u32| [&[2; 14][..], &number.to_le_bytes(), &[0; 46]].concat();
    (made(folder, "number.o", "xdp", Vec::new(), &text), [frame(NUMBER), frame(0)])
}

#[test]
fn packets_of_a_capture_are_taken() {
    if !permitted() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (object, [with, without]) = by_number(folder.path());
    let pcap = folder.path().join("traffic.pcap");
    fs::write(&pcap, capture_of(&[with.clone(), without, with])).expect("written");
    let report = report(bench(&[&object], &["--pcap", pcap.to_str().expect("plain"), "--json", "-"]), 0);
    assert_eq!(classes(&report), [(None, Some(3)), (Some(1), Some(2)), (Some(2), Some(1))], "{report:#}");
}

#[test]
fn inputs_that_were_found_are_taken() {
    if !permitted() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (object, _) = by_number(folder.path());
    let found = folder.path().join("inputs.json");
    let found = found.to_str().expect("plain");
    let path = object.to_str().expect("plain");
    let ran = bpf_opt(["inputs", path, "--no-kernel", "--time-limit", "10", "--json", found]);
    assert!(matches!(ran.code, Some(0 | 3)), "{ran:?}");
    let mut report: Value = serde_json::from_slice(&fs::read(found).expect("a report")).expect("JSON");
    let digits = hex::encode(NUMBER.to_le_bytes());
    let inputs = report["programs"][0]["inputs"].as_array().expect("inputs");
    let has_number = |input: &&Value| {
        input["made_up"] == false && input["packet"].as_str().is_some_and(|p| p.get(28..36) == Some(digits.as_str()))
    };
    let one = inputs.iter().find(has_number).unwrap_or_else(|| panic!("{report:#}")).clone();
    // More of one class than are made.
    report["programs"][0]["inputs"] = json!(vec![one; 5]);
    fs::write(found, report.to_string()).expect("written");
    let report = self::report(bench(&[&object], &["--inputs-from", found, "--json", "-"]), 0);
    assert_eq!(classes(&report), [(None, Some(5))], "{report:#}");
}

#[test]
fn maps_hold_what_a_file_says() {
    const ARRAY: u32 = 2;
    if !permitted() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let map = Map { name: "m".into(), map_type: ARRAY, key_size: 4, value_size: 8, max_entries: 1, ..Map::default() };
    // Of an even length it returns what the element holds, of an odd one 1 more.
    let text = "r6 = r1\n*(u32 *)(r10 - 4) = 0\nr1 = m ll\nr2 = r10\nr2 += -4\ncall bpf_map_lookup_elem\nif r0 == 0 goto out\n\
                r1 = *(u32 *)(r0 + 0)\nr0 = *(u32 *)(r6 + 0)\nr0 &= 1\nr0 += r1\nout:\nexit\n";
    let object = made(folder.path(), "map.o", "socket", vec![map], text);
    let [pcap, maps] = ["traffic.pcap", "maps.json"].map(|name| folder.path().join(name));
    fs::write(&pcap, capture_of(&[vec![0; 64], vec![0; 65]])).expect("written");
    let element = json!({ "key": [0, 0, 0, 0], "value": ["0x4d", 0, 0, 0, 0, 0, 0, 0] });
    fs::write(&maps, json!({ "m": [element] }).to_string()).expect("written");
    let files = [&pcap, &maps].map(|path| path.to_str().expect("plain"));
    let report = report(bench(&[&object], &["--pcap", files[0], "--maps", files[1], "--json", "-"]), 0);
    assert_eq!(classes(&report), [(None, Some(2)), (Some(77), Some(1)), (Some(78), Some(1))], "{report:#}");
}
