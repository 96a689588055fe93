//! Clients beside the recipes of `examples/`, each with its real tools: what compilers, linkers and loaders of others write and take.
//! All skip where a tool is not here; `make clients` installs them. Sources are in `tests/clients`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bpf_kernel::testing::permitted;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Ran, bpf_opt, example};
use crate::recipes::{are_clients_wanted, are_here, counted, first_here, is_libbpf_here};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn source(name: &str) -> String {
    root().join("tests/clients").join(name).canonicalize().expect("it is there").display().to_string()
}

/// A folder and names in it.
struct Work(TempDir);

impl Work {
    fn new() -> Work {
        Work(tempfile::tempdir().expect("a folder"))
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Runs a command there.
    fn run(&self, command: &str, args: &[&str]) -> Ran {
        Ran::of(Command::new(command).current_dir(self.0.path()).args(args).output().expect("the command runs"))
    }

    fn compile(&self, name: &str, out: &str) {
        self.run("clang", &["--target=bpf", "-O2", "-g", "-c", &source(name), "-o", out]).expect(0);
    }

    /// Optimizes, has the result proven equal, and counts the slots of all programs in both.
    #[track_caller]
    fn optimize(&self, input: &str, out: &str, more: &[&str]) -> (u64, u64) {
        let report = self.at("report.json");
        let args = ["opt", &self.at(input), "-o", &self.at(out), "-O1", "--no-cache", "--json", &report];
        bpf_opt(args.iter().chain(more)).expect(0);
        bpf_opt(["verify", &self.at(input), &self.at(out)]).expect(0);
        let report: Value = serde_json::from_slice(&fs::read(report).expect("a report")).expect("JSON");
        let slots = |name: &str| report["totals"][name].as_u64().expect("a number");
        (slots("slots_before"), slots("slots_after"))
    }
}

/// GCC's objects: BTF and relocations of its own, no BTF.ext to speak of.
#[test]
fn what_gcc_compiles() {
    let Some(gcc) = first_here(&["bpf-unknown-none-gcc", "bpf-gcc"]) else { return };
    let work = Work::new();
    work.run(gcc, &["-O2", "-g", "-gbtf", "-c", &source("gcc.c"), "-o", "gcc.o"]).expect(0);
    let (before, after) = work.optimize("gcc.o", "gcc.opt.o", &[]);
    assert!(after < before, "{before} -> {after}");
    if are_here(&["cc"]) && is_libbpf_here() {
        let client = example("client.c").display().to_string();
        work.run("cc", &["-O2", &client, "-o", "client", "-lbpf"]).expect(0);
        for object in ["gcc.o", "gcc.opt.o"] {
            counted(&work.run("./client", &[object]));
        }
    }
}

/// Objects that `bpftool gen object` links of two, optimized after it, or before.
#[test]
fn what_bpftool_links() {
    if !are_here(&["clang", "bpftool"]) {
        return;
    }
    let work = Work::new();
    work.compile("weigh.c", "weigh.o");
    work.compile("weighed.c", "weighed.o");
    work.run("bpftool", &["gen", "object", "linked.o", "weigh.o", "weighed.o"]).expect(0);
    let (before, after) = work.optimize("linked.o", "optimized.o", &[]);
    assert!(after < before, "{before} -> {after}");
    for part in ["weigh", "weighed"] {
        let (from, to) = (work.at(&format!("{part}.o")), work.at(&format!("{part}.opt.o")));
        bpf_opt(["opt", &from, "-o", &to, "-O1", "--no-cache"]).expect(0);
    }
    work.run("bpftool", &["gen", "object", "parts.o", "weigh.opt.o", "weighed.opt.o"]).expect(0);
    bpf_opt(["verify", &work.at("linked.o"), &work.at("parts.o")]).expect(0);
    if permitted() {
        for object in ["linked.o", "optimized.o", "parts.o"] {
            bpf_opt(["load", &work.at(object)]).expect(0);
        }
        for object in ["optimized.o", "parts.o"] {
            bpf_opt(["difftest", &work.at("linked.o"), &work.at(object)]).expect(0);
        }
    }
}

/// Datagrams that are sent.
const SENT: u64 = 5;

/// What `xdp-loader` loads onto a device counts what arrives there.
#[test]
fn what_xdp_tools_load_sees_traffic() {
    if !are_here(&["xdp-loader", "ip", "unshare", "bpftool", "bash"]) || !permitted() {
        return;
    }
    let work = Work::new();
    fs::copy(example("xdp_count.o"), work.at("original.o")).expect("copied");
    let (before, after) = work.optimize("original.o", "optimized.o", &[]);
    assert!(after < before, "{before} -> {after}");
    for object in ["original.o", "optimized.o"] {
        let script = source("traffic.sh");
        let ran = work.run("unshare", &["--net", "--mount", "bash", &script, object, &SENT.to_string()]).expect(0);
        let maps: Vec<Value> = ran.out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let elements = maps.iter().filter_map(Value::as_array).flatten().map(|e| &e["formatted"]);
        let udp = elements.clone().find(|e| e["key"] == 17).map(|e| &e["value"]["packets"]);
        assert_eq!(udp.and_then(Value::as_u64), Some(SENT), "{object}: {ran:?}");
    }
}

/// Maps in the old form, through a loader that still takes them: cilium/ebpf.
#[test]
fn legacy_maps_in_go() {
    if !are_clients_wanted() || !are_here(&["go"]) {
        return;
    }
    let work = Work::new();
    for name in ["main.go", "go.mod", "go.sum"] {
        fs::copy(source(&format!("legacy/{name}")), work.at(name)).expect("copied");
    }
    work.run("go", &["build", "-o", "legacy", "."]).expect(0);
    fs::copy(example("legacy_maps.o"), work.at("original.o")).expect("copied");
    let (before, after) = work.optimize("original.o", "optimized.o", &["--type", "xdp"]);
    assert!(after < before, "{before} -> {after}");
    let said = ["original.o", "optimized.o"].map(|object| work.run("./legacy", &[object]));
    if permitted() {
        assert!(said[0].out.contains("returned 1\n") && said[0].out.contains("drops 1 3\n"), "{:?}", said[0]);
        assert_eq!(said[0].out, said[1].out);
    } else {
        assert_eq!(said.map(|ran| ran.code), [Some(77); 2]);
    }
}
