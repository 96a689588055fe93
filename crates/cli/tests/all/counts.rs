//! Counts from outside: `opt --pcap`, `--inputs-from`, `--counts`, and `bpf-opt instrument`. No time is asserted.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::*;

/// A capture of some frames.
fn capture(folder: &Path) -> String {
    let frames = [[8, 0], [8, 0], [8, 0], [0x86, 0xdd]].map(|kind| [&[2; 12][..], &kind, &[0x45; 50]].concat());
    let path = folder.join("traffic.pcap");
    fs::write(&path, capture_of(&frames)).expect("written");
    text(&path)
}

fn text(path: &Path) -> String {
    path.to_str().expect("plain").to_owned()
}

fn folder() -> (tempfile::TempDir, impl Fn(&str) -> String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path: PathBuf = folder.path().to_owned();
    (folder, move |name: &str| text(&path.join(name)))
}

/// `opt --goal latency` on an example, quick and the same each time.
fn opt(object: &str, output: &str, more: &[&str]) -> Ran {
    let object = text(&example(object));
    let first = ["opt", &object, "-o", output, "--goal", "latency", "--no-kernel", "--no-search", "-q"];
    bpf_opt([&first[..], more].concat())
}

#[test]
fn counts_of_packets_are_written_and_taken() {
    let (dir, path) = folder();
    let traffic = capture(dir.path());
    let maps = path("maps.json");
    fs::write(&maps, r#"{"counters": []}"#).expect("written");
    opt("xdp_count.o", &path("a.o"), &["--pcap", &traffic, "--write-counts", &path("counts.json")]).expect(0);
    let counts: Value = serde_json::from_slice(&fs::read(path("counts.json")).expect("counts")).expect("JSON");
    assert_eq!((&counts["format"], &counts["source"]), (&json!(1), &json!("interpreter")));
    assert_eq!(counts["functions"][0]["blocks"][0]["runs"], 4, "{counts:#}");
    opt("xdp_count.o", &path("b.o"), &["--counts", &path("counts.json")]).expect(0);
    assert_eq!(fs::read(path("a.o")).expect("a result"), fs::read(path("b.o")).expect("a result"));
    // A map that is not there is told of.
    fs::write(&maps, r#"{"nobodys": []}"#).expect("written");
    let said = opt("xdp_count.o", &path("c.o"), &["--pcap", &traffic, "--maps", &maps]).expect(2).err;
    assert!(said.contains("nobodys"), "{said}");
}

#[test]
fn inputs_count_with_their_own_maps() {
    let (_dir, path) = folder();
    let object = text(&example("xdp_count.o"));
    bpf_opt(["inputs", &object, "--no-kernel", "--json", &path("inputs.json")]);
    opt("xdp_count.o", &path("a.o"), &["--inputs-from", &path("inputs.json"), "--write-counts", &path("counts.json")])
        .expect(0);
    let counts: Value = serde_json::from_slice(&fs::read(path("counts.json")).expect("counts")).expect("JSON");
    let blocks = counts["functions"][0]["blocks"].as_array().expect("blocks");
    let reached = blocks.iter().filter(|b| b["runs"].as_u64() > Some(0)).count();
    assert!(2 * reached > blocks.len(), "{counts:#}");
    fs::write(path("none.json"), "{}").expect("written");
    let said = opt("xdp_count.o", &path("a.o"), &["--inputs-from", &path("none.json")]).expect(2).err;
    assert!(said.contains("no report of inputs") && said.contains("bpf-opt inputs --json"), "{said}");
}

#[test]
fn counts_that_do_not_fit_are_refused_with_what_does_not() {
    let (dir, path) = folder();
    let traffic = capture(dir.path());
    opt("xdp_count.o", &path("a.o"), &["--pcap", &traffic, "--write-counts", &path("counts.json")]).expect(0);
    let said = opt("globals.o", &path("b.o"), &["--counts", &path("counts.json")]).expect(2).err;
    assert!(said.contains("of another object") && said.contains("globals.o"), "{said}");
    let whole = fs::read_to_string(path("counts.json")).expect("counts");
    let mut counts: Value = serde_json::from_str(&whole).expect("JSON");
    counts["functions"][0]["blocks"][1]["slot"] = json!(999);
    fs::write(path("moved.json"), counts.to_string()).expect("written");
    let said = opt("xdp_count.o", &path("b.o"), &["--counts", &path("moved.json")]).expect(2).err;
    assert!(said.contains("block b1"), "{said}");
    fs::write(path("half.json"), &whole[..whole.len() / 2]).expect("written");
    let said = opt("xdp_count.o", &path("b.o"), &["--counts", &path("half.json")]).expect(2).err;
    assert!(said.contains("no file of counts"), "{said}");
    assert!(!Path::new(&path("b.o")).exists(), "nothing is written");
}

#[test]
fn options_that_do_not_go_with_counts_say_so() {
    let (dir, path) = folder();
    let traffic = capture(dir.path());
    let object = text(&example("xdp_count.o"));
    let base = ["opt", &object, "--no-kernel", "-q"];
    let refused = |more: &[&str], words: &str| {
        let said = bpf_opt([&base[..], more].concat()).expect(2).err;
        assert!(said.contains(words), "{words}: {said}");
    };
    let out = path("out.o");
    refused(&["-o", &out, "--pcap", &traffic], "--goal latency");
    let latency = ["--goal", "latency"];
    refused(
        &[&["-o", &out, "--pcap", &traffic, "--rounds", "1", "--by-function"], &latency[..]].concat(),
        "--by-function",
    );
    refused(&[&["-o", &out, "--pcap", &traffic, "--counts", "x.json"], &latency[..]].concat(), "cannot be used with");
    refused(&[&["-o", &out, "--write-counts", "x.json"], &latency[..]].concat(), "needs --pcap");
    refused(&[&["-d", &path("out"), "--counts", "x.json"], &latency[..]].concat(), "one object");
    refused(&["-o", &out, "--maps", &traffic], "--raw");
}

#[test]
fn a_copy_counts_and_is_read_again() {
    let (_dir, path) = folder();
    let object = text(&example("subprogs.o"));
    let ran = bpf_opt(["instrument", &object, "-o", &path("counting.o"), "--no-kernel"]).expect(0);
    assert!(ran.err.contains(".data.counts"), "{}", ran.err);
    // What the map holds before anything has run.
    let copy = bpf_object::Object::parse(fs::read(path("counting.o")).expect("a copy")).expect("an object");
    let (_, counters) = copy.section(".data.counts").expect("a section");
    let digits = |bytes: &[u8]| bytes.iter().map(|b| format!("0x{b:02x}")).collect::<Vec<_>>();
    let dump = |bytes: &[u8]| {
        let element = json!([{"key": digits(&[0; 4]), "value": digits(bytes)}]);
        fs::write(path("dump.json"), element.to_string()).expect("written");
    };
    let read = |object: &str, code: i32| {
        bpf_opt(["instrument", object, "--read", "--dump", &path("dump.json"), "-o", &path("counts.json")])
            .expect(code)
            .err
    };
    dump(counters);
    read(&object, 0);
    let counts: Value = serde_json::from_slice(&fs::read(path("counts.json")).expect("counts")).expect("JSON");
    assert_eq!((&counts["source"], &counts["functions"][0]["blocks"][0]["runs"]), (&json!("kernel"), &json!(0)));
    opt("subprogs.o", &path("out.o"), &["--counts", &path("counts.json")]).expect(0);
    let mut other = counters.to_vec();
    other[0] ^= 1;
    dump(&other);
    assert!(read(&object, 2).contains("another object"));
    dump(&counters[8..]);
    assert!(read(&object, 2).contains("bytes of counters"));
    let said = bpf_opt(["instrument", &path("counting.o"), "-o", &path("twice.o"), "--no-kernel"]).expect(2).err;
    assert!(said.contains("counts by itself"), "{said}");
    bpf_opt(["instrument", &object, "--read", "-o", &path("counts.json")]).expect(2);
}

#[test]
fn programs_that_run_more_are_weighed_by_their_names() {
    let (_dir, path) = folder();
    let runs = |name: &str| fs::write(path("runs.json"), json!({"runs": [{"name": name, "runs": 7}]}).to_string());
    let copy = bpf_object::Object::parse(fs::read(example("kinds.o")).expect("an object")).expect("an object");
    let program = copy.functions().iter().find(|f| f.kind == bpf_object::FuncKind::Program).expect("a program");
    runs(&program.name[..program.name.len().min(15)]).expect("written");
    opt("kinds.o", &path("out.o"), &["--program-runs", &path("runs.json")]).expect(0);
    runs("nobody").expect("written");
    let said = opt("kinds.o", &path("out.o"), &["--program-runs", &path("runs.json")]).expect(2).err;
    assert!(said.contains("nobody"), "{said}");
}
