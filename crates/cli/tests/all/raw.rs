//! Bare arrays of instructions in place of objects, from outside.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use bpf_kernel::testing::permitted;

use crate::common::{Ran, benchmarks, bpf_opt, command, example};

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("raw").join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// The section of an object's only program, as `raw` tells it at the head of the maps' description.
fn section(maps: &Path) -> String {
    let text = std::fs::read_to_string(maps).expect("it was written");
    let rest = text.split("of section ").nth(1).expect("it is told");
    rest.split(':').next().expect("a name").to_owned()
}

/// The K2 programs: to arrays, optimized, back into objects, which load.
#[test]
fn benchmark_programs_go_to_arrays_and_back() {
    let folder = folder("k2");
    let k2: Vec<PathBuf> = benchmarks().into_iter().filter(|p| p.parent().is_some_and(|f| f.ends_with("k2"))).collect();
    if k2.is_empty() {
        eprintln!("skipped: no benchmark objects here");
        return;
    }
    assert_eq!(k2.len(), 19);
    for object in k2 {
        let name = object.file_stem().expect("a name").to_string_lossy().into_owned();
        let [array, maps, small, back] =
            ["bin", "maps", "small.bin", "o"].map(|e| folder.join(format!("{name}.{e}")).display().to_string());
        let object = object.display().to_string();
        bpf_opt(["raw", &object, "-o", &array, "--write-maps", &maps]).expect(0);
        let kind = section(Path::new(&maps));
        let as_array = ["--raw", "--type", &kind, "--maps", &maps];
        bpf_opt(["opt", &array, "-o", &small, "-O1", "-q"].iter().chain(&as_array)).expect(0);
        let bytes = |path: &str| std::fs::metadata(path).expect("it is there").len();
        assert!(bytes(&small) < bytes(&array), "{name}: nothing was gained");
        bpf_opt(["raw", &small, "-o", &back, "--type", &kind, "--maps", &maps]).expect(0);
        if permitted() {
            bpf_opt(["load", &back]).expect(0);
            bpf_opt(["load", &small].iter().chain(&as_array)).expect(0);
        }
    }
}

#[test]
fn commands_take_arrays() {
    let folder = folder("commands");
    let at = |name: &str| folder.join(name).display().to_string();
    let (hex, small, maps) = (at("p.hex"), at("p.c"), at("p.maps"));
    std::fs::write(&maps, "7 array 4 8 16 name counts\n").expect("a file");
    // r1 = map 7; key 0; deletion; two moves that a rule makes one; exit.
    let listing = "b7 00 00 00 00 00 00 00\n63 0a fc ff 00 00 00 00\n18 11 00 00 07 00 00 00\n00 00 00 00 00 00 00 00\n\
                   bf a2 00 00 00 00 00 00\n07 02 00 00 fc ff ff ff\n85 00 00 00 03 00 00 00\nb7 00 00 00 02 00 00 00\n\
                   95 00 00 00 00 00 00 00\n";
    std::fs::write(&hex, listing).expect("a file");
    let as_array = ["--raw", "--type", "xdp", "--maps", &maps];
    let shown = bpf_opt(["dis", "--raw", &hex]).expect(0);
    assert!(shown.out.contains("call 0x3") && shown.out.contains("map7"), "{}", shown.out);
    bpf_opt(["check", &hex].iter().chain(&as_array)).expect(0);
    bpf_opt(["opt", &hex, "-o", &small, "--no-kernel", "-O1", "-q"].iter().chain(&as_array)).expect(0);
    let text = std::fs::read_to_string(&small).expect("C");
    assert!(text.starts_with("{ .code = 0x") && text.lines().count() < 9, "{text}");
    assert!(text.contains(".code = 0x18, .dst_reg = 1, .src_reg = 1, .off = 0, .imm = 7 }"), "{text}");
    bpf_opt(["verify", &hex, &small, "--no-kernel"].iter().chain(&as_array)).expect(0);
}

#[test]
fn what_cannot_be_taken_is_explained() {
    let folder = folder("refused");
    let refused = |name: &str, text: &str, words: &[&str]| {
        let path = folder.join(name).display().to_string();
        std::fs::write(&path, text).expect("a file");
        let ran = bpf_opt(["check", "--raw", "--type", "xdp", &path]).expect(2);
        for word in words {
            assert!(ran.err.contains(word), "{name}: {}", ran.err);
        }
    };
    refused("classic", "{ 0x28, 0, 0, 0x0000000c },\n{ 0x6, 0, 0, 0x00040000 },\n", &["classic BPF", "clang"]);
    refused("xlated", "   0: (79) r2 = *(u64 *)(r1 +8)\n   1: (95) exit\n", &["bpftool prog dump xlated", "strace"]);
    refused(
        "map",
        "18 11 00 00 07 00 00 00 00 00 00 00 00 00 00 00 95 00 00 00 00 00 00 00",
        &["not described: 7", "--maps"],
    );
    refused("text", "exit", &["line 1", "`exit`"]);
    let path = folder.join("text").display().to_string();
    let ran = bpf_opt(["load", "--raw", &path]).expect(2);
    assert!(ran.err.contains("exit"), "{}", ran.err);
    let ran = bpf_opt(["check", &path]).expect(2);
    assert!(ran.err.contains("--raw"), "{}", ran.err);
}

#[test]
fn an_array_without_a_type_is_only_shown() {
    let path = folder("untyped").join("p.hex").display().to_string();
    std::fs::write(&path, "b7 00 00 00 01 00 00 00 95 00 00 00 00 00 00 00").expect("a file");
    bpf_opt(["dis", "--raw", &path]).expect(0);
    let ran = bpf_opt(["check", "--raw", &path]).expect(2);
    assert!(ran.err.contains("--type"), "{}", ran.err);
}

#[test]
fn objects_say_why_they_are_no_arrays() {
    let out = folder("objects").join("x.bin").display().to_string();
    let refused = |name: &str, program: &str, word: &str| {
        let object = example(name).display().to_string();
        let ran = bpf_opt(["raw", &object, "-o", &out, "--program", program]).expect(2);
        assert!(ran.err.contains(word), "{}", ran.err);
    };
    refused("globals.o", "count_globals", "no program named");
    let ran = bpf_opt(["raw", &example("hooks.o").display().to_string(), "-o", &out]).expect(2);
    assert!(ran.err.contains("which program"), "{}", ran.err);
}

#[test]
fn the_input_may_be_a_pipe() {
    let out = folder("pipe").join("p.hex").display().to_string();
    let mut child = command();
    child.args(["raw", "/dev/stdin", "-o", &out]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().expect("the binary runs");
    let mut pipe = child.stdin.take().expect("a pipe");
    pipe.write_all(b"b7 00 00 00 01 00 00 00 95 00 00 00 00 00 00 00").expect("it is read");
    drop(pipe);
    Ran::of(child.wait_with_output().expect("it ends")).expect(0);
    let written = std::fs::read_to_string(&out).expect("it was written");
    assert_eq!(written, "b7 00 00 00 01 00 00 00\n95 00 00 00 00 00 00 00\n");
}

/// An array names maps that somebody else has made: what the kernel manages in their values nobody says.
#[test]
fn no_more_is_read_of_a_map_that_somebody_else_has_made() {
    let folder = folder("others");
    let at = |name: &str| folder.join(name).display().to_string();
    let (old, new, maps) = (at("old.hex"), at("new.hex"), at("p.maps"));
    std::fs::write(&maps, "1 array 4 16 1 name shared\n").expect("a file");
    let lookup = "b701000000000000 631afcff00000000 bfa2000000000000 07020000fcffffff 1811000001000000 0000000000000000 \
                  8500000001000000";
    let end = "bf10000000000000 9500000000000000 b700000000000000 9500000000000000";
    // The second word by itself, and as the upper half of both.
    std::fs::write(&old, format!("{lookup} 1500030000000000 6101040000000000 {end}")).expect("a file");
    std::fs::write(&new, format!("{lookup} 1500040000000000 7901000000000000 7701000020000000 {end}")).expect("a file");
    let ran = bpf_opt(["verify", &old, &new, "--raw", "--maps", &maps, "--type", "xdp", "--no-kernel"]).expect(3);
    assert!(ran.out.contains("unknown"), "{}", ran.out);
    bpf_opt(["verify", &old, &old, "--raw", "--maps", &maps, "--type", "xdp", "--no-kernel"]).expect(0);
}
