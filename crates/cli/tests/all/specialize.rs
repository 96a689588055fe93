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
    assert!(!said.contains("nothing to guard"), "{said}");
    assert!(listing.contains("bpf_opt_generation") && listing.contains("map_lookup_elem"), "{listing}");
}

#[test]
fn what_is_written_is_proven_as_a_whole_whatever_the_search_finds() {
    let (folder, list) = elements("whole", 1000);
    let (original, output) = (example("allow_list.o"), folder.join("out.o"));
    let map = format!("allowed={}", text(&list));
    for more in [&[][..], &["--guard"]] {
        let args = ["specialize", text(&original), "-o", text(&output), "--no-cache", "--rodata", "strict=1"];
        bpf_opt([&args, &["--frozen-map", &map, "--time-limit", "10"][..], more].concat()).expect(0);
        bpf_opt(["verify", text(&original), text(&output), "--assume"]).expect(0);
    }
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
    // Nothing is assumed then, and there is nothing to be set.
    assert!(said.contains("nothing to guard") && !said.contains("bpf_opt_generation"), "{said}");
    if !permitted() {
        return;
    }
    // With the table and the number there are more maps than a program may have.
    let all: String = (0..64).map(|i| format!("{}if r0 == 0 goto n{i}\nr9 += 1\nn{i}:\n", lookup(i))).collect();
    fs::write(&input, with_maps(64, &all)).expect("written");
    let said = bpf_opt(args).expect(0).err;
    assert!(said.contains("the limit of 64") && said.contains("1 stay: with tables"), "{said}");
}

/// A program whose key holds an address: it may be looked up, and not be read in parts.
fn with_an_address_for_a_key() -> Vec<u8> {
    let map = Map { name: "m0".into(), map_type: 1, key_size: 8, value_size: 8, max_entries: 8, ..Map::default() };
    let around = Surroundings { section: "xdp".into(), maps: vec![map], ..Surroundings::default() };
    let text = "*(u64 *)(r10 - 8) = r1\nr1 = m0 ll\nr2 = r10\nr2 += -8\ncall bpf_map_lookup_elem\nr9 = 0\n\
                if r0 == 0 goto out\nr9 = 1\nout:\nr0 = r9\nexit\n";
    object(&around, &functions(text, "xdp").expect("functions")).expect("an object")
}

/// What counts is what is taken of the object that was given, not of what it is made to be compared with the second.
#[test]
fn what_is_refused_once_it_is_specialized_is_not_equal_to_what_is_taken() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("specialize").join("refused-then");
    fs::create_dir_all(&folder).expect("a folder");
    let (input, refused, output) = (folder.join("in.o"), folder.join("refused.o"), folder.join("out.o"));
    let bytes = with_an_address_for_a_key();
    let element: (Vec<u8>, Vec<u8>) = (vec![1; 8], vec![2; 8]);
    let declared = bpf_specialize::Declared {
        maps: [("m0".to_owned(), vec![element].into())].into(),
        ..bpf_specialize::Declared::default()
    };
    fs::write(&input, &bytes).expect("written");
    let done = bpf_specialize::specialize(&bytes, &declared).expect("it can be specialized");
    fs::write(&refused, done.bytes).expect("written");
    let verify = |more: &[&str]| bpf_opt([&["verify", text(&input), text(&refused), "--assume"], more].concat());
    let said = verify(&["--no-kernel"]).expect(3).out;
    assert!(said.contains("check takes the original, and not the second"), "{said}");
    // Nobody but `check` is asked then, either.
    verify(&["--no-run-check"]).expect(3);
    if permitted() {
        let said = verify(&[]).expect(1).out;
        assert!(said.contains("register fill"), "{said}");
    }
    let elements = folder.join("elements.json");
    fs::write(&elements, r#"[{"key":[1,1,1,1,1,1,1,1],"value":[2,2,2,2,2,2,2,2]}]"#).expect("written");
    let map = format!("m0={}", text(&elements));
    let args = ["specialize", text(&input), "-o", text(&output), "--no-cache", "-O1", "--frozen-map", &map];
    for more in [&[][..], &["--no-kernel"]] {
        let said = bpf_opt([&args[..], more].concat()).expect(0).err;
        assert!(said.contains("1 stay: with tables") && said.contains("all lookups of `main` stay"), "{said}");
        assert!(!said.contains("not safe"), "{said}");
        bpf_opt([&["verify", text(&input), text(&output), "--assume"], more].concat()).expect(0);
    }
    if permitted() {
        bpf_opt(["load", text(&output)]).expect(0);
    }
}

/// Of keys that are compared one after the other the verifier goes on with each: five lookups, and it has too much.
#[test]
fn tables_that_are_too_much_for_the_verifier_get_another_form_and_figures_are_those_of_the_original() {
    let (folder, list) = elements("too-much", 8);
    let (input, output) = (folder.join("in.o"), folder.join("out.o"));
    // Each key is another one, and the sum of what was found is a place in the frame, so that the verifier tells all ways apart.
    let one = |i: usize| {
        let key = "r1 = *(u32 *)(r6 + 12)\n*(u32 *)(r10 - 4) = r1\n";
        format!("{key}{}if r0 == 0 goto n{i}\nr1 = *(u32 *)(r0 + 4)\nr9 *= 3\nr9 += r1\nn{i}:\n", lookup(0))
    };
    let map = Map { name: "m0".into(), map_type: 1, key_size: 4, value_size: 8, max_entries: 8, ..Map::default() };
    let around = Surroundings { section: "xdp".into(), maps: vec![map], ..Surroundings::default() };
    let all: String = (0..7).map(one).collect();
    let code = format!(
        "r6 = r1\nr9 = 0\n{all}r1 = 0\n*(u64 *)(r10 - 16) = r1\nr9 &= 7\nr1 = r10\nr1 += -16\nr1 += r9\n\
         r0 = *(u8 *)(r1 + 0)\nexit\n"
    );
    let bytes = object(&around, &functions(&code, "xdp").expect("functions")).expect("an object");
    fs::write(&input, bytes).expect("written");
    let map = format!("m0={}", text(&list));
    let work = |more: &[&str]| -> Value {
        let args = ["specialize", text(&input), "-o", text(&output), "--no-cache", "-O1", "--json", "-"];
        let ran = bpf_opt([&args[..], &["--frozen-map", &map], more].concat()).expect(0);
        serde_json::from_str(&ran.out).expect("JSON")
    };
    let notes = |report: &Value| report["specialized"]["notes"].to_string();
    let report = work(&["--no-kernel"]);
    assert!(notes(&report).contains("no keys are compared"), "{report:#}");
    assert_eq!(report["specialized"]["maps"][0]["lookups"], 7);
    bpf_opt(["verify", text(&input), text(&output), "--assume"]).expect(0);
    // What the object was specialized for is the same in each form.
    bpf_opt(["verify", text(&input), text(&output), "--assume", "--frozen-map", &map]).expect(0);
    if !permitted() {
        return;
    }
    let report = work(&[]);
    assert_eq!(report["specialized"]["maps"][0]["lookups"], 7);
    let plain = folder.join("plain.o");
    let args = ["opt", text(&input), "-o", text(&plain), "--no-cache", "-O1", "--json", "-"];
    let plain: Value = serde_json::from_str(&bpf_opt(args).expect(0).out).expect("JSON");
    let processed = |report: &Value, when: &str| report["functions"][0][when]["processed"].clone();
    assert!(processed(&plain, "kernel_before").is_u64(), "{plain:#}");
    assert_eq!(processed(&report, "kernel_before"), processed(&plain, "kernel_before"));
    // So is what it may grow by.
    let report = work(&["--max-verifier-growth", "0"]);
    assert_eq!(report["specialized"]["maps"][0]["lookups_left"], 7, "{report:#}");
    assert!(notes(&report).contains("grows from"), "{report:#}");
    assert!(processed(&report, "kernel_after").as_u64() <= processed(&report, "kernel_before").as_u64());
}

/// A list that is not all of an array is no list of its elements; its length is told.
#[test]
fn an_array_is_declared_as_a_whole() {
    let (folder, _) = elements("array", 1);
    let (input, list, output) = (folder.join("in.o"), folder.join("list.json"), folder.join("out.o"));
    let map = Map { name: "m0".into(), map_type: 2, key_size: 4, value_size: 8, max_entries: 8, ..Map::default() };
    let around = Surroundings { section: "xdp".into(), maps: vec![map], ..Surroundings::default() };
    let code = format!(
        "r9 = 0\nr1 = *(u32 *)(r1 + 12)\n*(u32 *)(r10 - 4) = r1\n{}if r0 == 0 goto out\nr9 = *(u32 *)(r0 + 0)\n\
         out:\nr0 = r9\nexit\n",
        lookup(0)
    );
    fs::write(&input, object(&around, &functions(&code, "xdp").expect("functions")).expect("an object"))
        .expect("written");
    let element = |n: u32| format!("{{\"key\":[{n},0,0,0],\"value\":[{n},1,2,3,4,5,6,7]}}");
    let all = |count: u32| format!("[{}]", (0..count).map(element).collect::<Vec<_>>().join(","));
    let map = format!("m0={}", text(&list));
    let run = |more: &[&str]| {
        let args = ["specialize", text(&input), "-o", text(&output), "--no-cache", "-O1", "--frozen-map", &map];
        bpf_opt([&args[..], more].concat())
    };
    fs::write(&list, all(5)).expect("written");
    let said = run(&[]).expect(2).err;
    assert!(said.contains("5 elements are given, and the array has 8") && said.contains("--zero-others"), "{said}");
    for (more, line) in [
        (&["--zero-others", "m0"][..], "map m0 has 8 elements: 5 given elements, and the others are 0"),
        (&["--array-length", "m0=5"], "map m0 has 5 elements, all as given"),
    ] {
        let said = run(more).expect(0).err;
        assert!(said.contains(line), "{said}");
        let verify = ["verify", text(&input), text(&output), "--assume"];
        assert!(bpf_opt(verify).expect(0).out.contains(line));
        bpf_opt([&verify[..], &["--frozen-map", &map], more].concat()).expect(0);
        // Another length is something else.
        bpf_opt([&verify[..], &["--frozen-map", &map, "--array-length", "m0=7", "--zero-others", "m0"]].concat())
            .expect(1);
    }
    fs::write(&list, all(12)).expect("written");
    assert!(run(&[]).expect(2).err.contains("--array-length"));
    run(&["--array-length", "m0=12"]).expect(0);
    for more in [
        &["--array-length", "m0"][..],
        &["--array-length", "m0=0"],
        &["--array-length", "m1=4"],
        &["--zero-others", "x"],
    ] {
        run(more).expect(2);
    }
}

#[test]
fn what_is_assumed_of_many_objects_is_told_of_each() {
    let (folder, list) = elements("many", 12);
    let (objects, results) = (folder.join("objects"), folder.join("results"));
    fs::create_dir_all(&objects).expect("a folder");
    fs::create_dir_all(&results).expect("a folder");
    let input = objects.join("allow_list.o");
    fs::copy(example("allow_list.o"), &input).expect("copied");
    let map = format!("allowed={}", text(&list));
    let output = results.join("allow_list.o");
    bpf_opt(["specialize", text(&input), "-o", text(&output), "--no-cache", "-O1", "--frozen-map", &map]).expect(0);
    let said = bpf_opt(["verify", text(&objects), "-d", text(&results), "--assume"]).expect(0).out;
    assert!(said.contains("allow_list.o: assumed: map allowed holds 12 given elements and no other"), "{said}");
    let several = ["specialize", text(&input), text(&output), "-o", text(&output), "--frozen-map", &map];
    assert!(bpf_opt(several).expect(2).err.contains("one object is specialized"));
}

#[test]
fn no_output_takes_the_place_of_an_input() {
    let (folder, list) = elements("kept", 12);
    let (input, other) = (example("allow_list.o"), folder.join("out.o"));
    let (list, other) = (text(&list), text(&other));
    let map = format!("allowed={list}");
    let before = fs::read(list).expect("it is there");
    let specialize = ["specialize", text(&input), "--no-cache", "-O1", "--frozen-map", &map];
    for more in [&["-o", list][..], &["-o", other, "--json", list], &["-o", other, "--report", list]] {
        let said = bpf_opt([&specialize[..], more].concat()).expect(2).err;
        assert!(said.contains("would overwrite"), "{said}");
    }
    bpf_opt([&specialize[..], &["-o", other]].concat()).expect(0);
    let verify = ["verify", text(&input), other, "--assume", "--frozen-map", &map, "--json", list];
    assert!(bpf_opt(verify).expect(2).err.contains("would overwrite"));
    assert_eq!(fs::read(list).expect("it is there"), before);
    // Nor does `opt` write over another build, or over the list of its objects.
    let build = folder.join("build.o");
    fs::copy(&input, &build).expect("copied");
    let also = ["opt", text(&input), "--also", text(&build), "-o", text(&build), "--no-cache", "-O1"];
    assert!(bpf_opt(also).expect(2).err.contains("would overwrite"));
    let names = folder.join("names");
    fs::write(&names, text(&input)).expect("written");
    let results = folder.join("results");
    let many = ["opt", "--list", text(&names), "-d", text(&results), "--json", text(&names), "--no-cache", "-O1"];
    assert!(bpf_opt(many).expect(2).err.contains("would overwrite"));
}

#[test]
fn numbers_and_lists_are_read_strictly() {
    let (folder, list) = elements("strict", 1);
    let output = folder.join("out.o");
    let run = |object: &str, more: &[&str]| {
        let args = ["specialize", text(&example(object)), "-o", text(&output), "--no-cache", "-O1", "--no-kernel"]
            .map(str::to_owned);
        bpf_opt(args.into_iter().chain(more.iter().map(|s| (*s).to_owned())))
    };
    // `int CONFIG_HZ`
    run("kinds.o", &["--kconfig", "CONFIG_HZ=-1"]).expect(0);
    run("kinds.o", &["--kconfig", "CONFIG_HZ=0x7fffffff"]).expect(0);
    for bad in ["CONFIG_HZ=0x80000000", "CONFIG_HZ=--1", "CONFIG_HZ=0x+1", "CONFIG_HZ=-2147483649"] {
        run("kinds.o", &["--kconfig", bad]).expect(2);
    }
    let map = format!("allowed={}", text(&list));
    let value = "\"value\":[1,0,0,0,0,0,0,0]";
    for (elements, good) in [
        (format!("[{{\"key\":[1,2,3,4],{value},\"formatted\":{{\"key\":5}}}}]"), true),
        (format!("{{\"allowed\":[{{\"key\":[1,2,3,\"0x0F\"],{value}}}]}}"), true),
        (format!("[{{\"key\":[1,2,3,4],\"key\":[1,2,3,5],{value}}}]"), false),
        (format!("{{\"allowed\":[],\"allowed\":[{{\"key\":[1,2,3,4],{value}}}]}}"), false),
        (format!("[{{\"key\":[1,2,3,\"0x+4\"],{value}}}]"), false),
        (format!("[{{\"key\":[1,2,3,256],{value}}}]"), false),
        // Of a map with a value for each processor.
        (
            "[{\"key\":[1,2,3,4],\"values\":[{\"cpu\":0,\"value\":[1,0,0,0]},{\"cpu\":1,\"value\":[0,0,0,0]}]}]"
                .to_owned(),
            false,
        ),
    ] {
        fs::write(&list, &elements).expect("written");
        run("allow_list.o", &["--frozen-map", &map]).expect(if good { 0 } else { 2 });
    }
}
