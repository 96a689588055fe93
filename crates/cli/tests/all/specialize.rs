//! `bpf-opt specialize` and `bpf-opt verify --assume` from outside.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use bpf_assembly::{Map, Surroundings, functions, object};
use bpf_kernel::testing::permitted;
use serde_json::Value;

use crate::common::*;

/// A folder of this test's own, and in it the elements of the example's list.
fn elements(name: &str, count: u32) -> (PathBuf, PathBuf) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("specialize").join(name);
    fs::create_dir_all(&folder).expect("a folder");
    let bytes = |n: &[u8]| n.iter().map(|b| format!("\"0x{b:02x}\"")).collect::<Vec<_>>().join(",");
    let mut list = String::from("[");
    for n in 0..count {
        let comma = if n > 0 { "," } else { "" };
        let key = bytes(&n.wrapping_mul(2_654_435_761).to_le_bytes());
        let value = bytes(&[(1 + n % 2).to_le_bytes(), n.to_le_bytes()].concat());
        let _ = write!(list, "{comma}{{\"key\":[{key}],\"value\":[{value}]}}");
    }
    let file = folder.join("allowed.json");
    fs::write(&file, list + "]").expect("written");
    (folder, file)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain")
}

#[test]
fn help_teaches() {
    let help = bpf_opt(["specialize", "--help"]).expect(0).out;
    assert!(help.contains("bpftool -j map dump") && help.contains("--guard") && help.contains("Exit codes:"), "{help}");
}

#[test]
fn a_firewall_is_specialized_and_proven_under_what_it_is_for_alone() {
    let (folder, list) = elements("firewall", 1000);
    let (original, output) = (example("allow_list.o"), folder.join("out.o"));
    let map = format!("allowed={}", text(&list));
    let declared = ["--rodata", "strict", "--rodata", "shortest=24", "--frozen-map", &map];
    let args = ["specialize", text(&original), "-o", text(&output), "--no-cache", "-O1", "--json", "-"];
    let ran = bpf_opt(args.iter().chain(&declared)).expect(0);
    let report: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(report["command"], "specialize");
    let told = &report["specialized"];
    assert_eq!((&told["constants"], &told["maps"][0]["lookups"]), (&2.into(), &1.into()), "{told}");
    assert_eq!(report["functions"][0]["slots_before"], 36, "{report:#}");

    let verify = |more: &[&str]| bpf_opt([&["verify", text(&original), text(&output)], more].concat());
    let said = verify(&["--assume"]).expect(0).out;
    assert!(said.contains("assumed: variable shortest is 24") && said.contains("1000 given elements"), "{said}");
    assert!(said.contains("allow_list: equal"), "{said}");
    verify(&[&["--assume"][..], &declared].concat()).expect(0);
    verify(&[]).expect(1);
    // A dump comes in whatever order.
    let mut all: Vec<Value> = serde_json::from_slice(&fs::read(&list).expect("it is there")).expect("JSON");
    all.reverse();
    let reversed = folder.join("reversed.json");
    fs::write(&reversed, serde_json::to_vec(&all).expect("JSON")).expect("written");
    let same = format!("allowed={}", text(&reversed));
    verify(&["--assume", "--rodata", "strict", "--rodata", "shortest=24", "--frozen-map", &same]).expect(0);
    // Of other elements it says no.
    let (_, fewer) = elements("fewer", 999);
    let other = format!("allowed={}", text(&fewer));
    verify(&["--assume", "--rodata", "strict", "--rodata", "shortest=24", "--frozen-map", &other]).expect(1);
    assert!(verify(&declared).expect(2).err.contains("--assume"));
    // So is what somebody else has changed.
    let mut bytes = fs::read(&output).expect("it is there");
    let table = bytes.windows(4).position(|w| w == 2_654_435_761u32.to_le_bytes()).expect("the key of an element");
    bytes[table] ^= 1;
    let damaged = folder.join("damaged.o");
    fs::write(&damaged, &bytes).expect("written");
    let said = bpf_opt(["verify", text(&original), text(&damaged), "--assume"]).expect(1).out;
    assert!(said.contains(".rodata.bpf_opt"), "{said}");
    if permitted() {
        bpf_opt(["load", text(&output)]).expect(0);
    }
}

#[test]
fn a_guard_keeps_the_map() {
    let (folder, list) = elements("guard", 30);
    let (original, output) = (example("allow_list.o"), folder.join("out.o"));
    let map = format!("allowed={}", text(&list));
    let args =
        ["specialize", text(&original), "-o", text(&output), "--no-cache", "-O1", "--frozen-map", &map, "--guard"];
    let said = bpf_opt(args).expect(0).err;
    assert!(said.contains("while bpf_opt_generation is 0"), "{said}");
    bpf_opt(["verify", text(&original), text(&output), "--assume"]).expect(0);
    let listing = bpf_opt(["dis", text(&output)]).expect(0).out;
    assert!(listing.contains("bpf_opt_generation") && listing.contains("map_lookup_elem"), "{listing}");
}

#[test]
fn declarations_that_cannot_be_are_exit_code_2_and_nothing_is_written() {
    let (folder, list) = elements("refused", 3);
    let output = folder.join("out.o");
    let said = |object: &str, declared: &[&str]| {
        let args = ["specialize", text(&example(object)), "-o", text(&output)].map(str::to_owned);
        let ran = bpf_opt(args.into_iter().chain(declared.iter().map(|s| (*s).to_owned()))).expect(2);
        assert!(!output.exists());
        ran.err
    };
    assert!(said("allow_list.o", &[]).contains("nothing is declared"));
    assert!(said("allow_list.o", &["--rodata", "strict=x"]).contains("no number"));
    assert!(said("allow_list.o", &["--rodata", "shortest=65536"]).contains("does not fit"));
    assert!(said("allow_list.o", &["--rodata", "nobody=1"]).contains("strict"));
    assert!(said("allow_list.o", &["--frozen-map", "allowed"]).contains("file"));
    assert!(said("allow_list.o", &["--frozen-map", "allowed=/nonexistent"]).contains("/nonexistent"));
    let counted = format!("counters={}", text(&list));
    // It counts in its values.
    let text = said("xdp_count.o", &["--frozen-map", &counted]);
    assert!(text.contains("counters"), "{text}");
}

#[test]
fn an_object_that_was_not_specialized_assumes_nothing() {
    let object = example("allow_list.o");
    let said = bpf_opt(["verify", text(&object), text(&object), "--assume"]).expect(2).err;
    assert!(said.contains("note"), "{said}");
}

/// An XDP program that looks up what `lookups` says of so many maps `m0`, `m1` …, each of eight elements of eight bytes.
fn with_maps(count: usize, lookups: &str) -> Vec<u8> {
    const HASH: u32 = 1;
    let map =
        |i| Map { name: format!("m{i}"), map_type: HASH, key_size: 4, value_size: 8, max_entries: 8, ..Map::default() };
    let around = Surroundings { section: "xdp".into(), maps: (0..count).map(map).collect(), ..Surroundings::default() };
    let text = format!("r9 = 0\nr1 = *(u32 *)(r1 + 12)\n*(u32 *)(r10 - 4) = r1\n{lookups}out:\nr0 = r9\nexit\n");
    object(&around, &functions(&text, "xdp").expect("functions")).expect("an object")
}

fn lookup(map: usize) -> String {
    format!("r1 = m{map} ll\nr2 = r10\nr2 += -4\ncall bpf_map_lookup_elem\n")
}

#[test]
fn what_stays_and_what_is_refused_has_its_own_reason() {
    let (folder, list) = elements("reasons", 5);
    let (input, output) = (folder.join("in.o"), folder.join("out.o"));
    let map = format!("m0={}", text(&list));
    let args = ["specialize", text(&input), "-o", text(&output), "--no-cache", "-O1", "--frozen-map", &map, "--guard"];
    let compared = format!("{}r8 = r0\n{}if r8 == 0 goto out\nif r0 != r8 goto out\nr9 = 1\n", lookup(0), lookup(0));
    fs::write(&input, with_maps(1, &compared)).expect("written");
    let said = bpf_opt(args).expect(0).err;
    assert!(said.contains("2 stay: addresses of values are compared") && !said.contains("warning: nothing"), "{said}");
    if !permitted() {
        return;
    }
    // With the table and the number there are more maps than a program may have.
    let all: String = (0..64).map(|i| format!("{}if r0 == 0 goto n{i}\nr9 += 1\nn{i}:\n", lookup(i))).collect();
    fs::write(&input, with_maps(64, &all)).expect("written");
    let said = bpf_opt(args).expect(1).err;
    assert!(said.contains("the limit of 64") && !said.contains("may hold an address"), "{said}");
}
