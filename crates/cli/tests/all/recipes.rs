//! The recipes of `examples/` and the action for hosted pipelines, each with its tools: what they make loads, and runs on a
//! packet. Those whose tools fetch and build for a while wait for `make clients`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bpf_kernel::testing::permitted;
use tempfile::TempDir;

use crate::common::*;

const BINARY: &str = env!("CARGO_BIN_EXE_bpf-opt");

/// What a client exits with where it may not load programs.
const DENIED: i32 = 77;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Whether all these programs are here; says so if a test has to do without.
#[track_caller]
pub fn are_here(tools: &[&str]) -> bool {
    match tools.iter().find(|tool| !is_on_path(tool)) {
        Some(&tool) => {
            do_without(&[tool]);
            false
        }
        None => true,
    }
}

/// The first that is here of programs that do the same; says so if a test has to do without.
#[track_caller]
pub fn first_here<'a>(tools: &[&'a str]) -> Option<&'a str> {
    let found = tools.iter().copied().find(|tool| is_on_path(tool));
    if found.is_none() {
        do_without(tools);
    }
    found
}

fn is_on_path(tool: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {tool} >/dev/null")]).status();
    found.is_ok_and(|status| status.success())
}

/// Says that none of these tools is here, and fails if the environment asks for one of them.
#[track_caller]
pub fn do_without(tools: &[&str]) {
    let what = tools.join(" or ");
    let required = std::env::var("BPF_OPT_REQUIRE_CLIENTS").unwrap_or_default();
    let is_required = required.split([',', ' ']).any(|name| name == "1" || tools.contains(&name));
    assert!(!is_required, "BPF_OPT_REQUIRE_CLIENTS is {required}, but {what} is not here");
    eprintln!("skipped: {what} is not here");
}

#[track_caller]
pub fn is_libbpf_here() -> bool {
    let found = Command::new("pkg-config").args(["--exists", "libbpf"]).status().is_ok_and(|status| status.success());
    if !found {
        do_without(&["libbpf"]);
    }
    found
}

pub fn are_clients_wanted() -> bool {
    let wanted = std::env::var_os("BPF_OPT_CLIENTS").is_some();
    if !wanted {
        eprintln!("skipped: `make clients` runs it");
    }
    wanted
}

/// A copy of the examples, in which `recipe` can work.
struct Recipe {
    copy: TempDir,
    recipe: &'static str,
}

impl Recipe {
    fn of(recipe: &'static str) -> Recipe {
        let copy = tempfile::tempdir().expect("a folder");
        let made = ["build", "target", "bpf.json", "counter_bpfel.o", "counter_bpfel.go"];
        let all = walkdir::WalkDir::new(root().join("examples")).into_iter();
        for entry in all.filter_entry(|e| !made.iter().any(|name| e.file_name() == *name)) {
            let entry = entry.expect("an entry");
            let to = copy.path().join(entry.path().strip_prefix(root().join("examples")).expect("below"));
            if entry.file_type().is_dir() {
                fs::create_dir_all(to).expect("made");
            } else {
                fs::copy(entry.path(), to).expect("copied");
            }
        }
        Recipe { copy, recipe }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.copy.path().join(self.recipe).join(name)
    }

    /// Runs a command there, which finds our binary as `bpf-opt`.
    fn run(&self, command: &str, args: &[&str]) -> Ran {
        let here = Path::new(BINARY).parent().expect("a folder").display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(command);
        command.current_dir(self.at("")).args(args).stdin(Stdio::null());
        command.env("PATH", format!("{here}:{path}")).env_remove("MAKEFLAGS").env_remove("CARGO_TARGET_DIR");
        Ran::of(command.output().expect("the command runs"))
    }

    /// Makes the source of the object longer.
    fn lengthen(&self) {
        let path = self.copy.path().join("xdp_count.c");
        let text = fs::read_to_string(&path).expect("the source");
        let longer = text.replace("key = ip[9];", "key = ip[9] * 3 + ip[8] * 5 + ip[7] * 7;");
        assert_ne!(text, longer);
        fs::write(&path, longer).expect("written");
    }
}

/// What a client did: it counted its packet, or could not where programs may not be loaded.
#[track_caller]
pub fn counted(ran: &Ran) {
    if permitted() {
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.out.contains("counted 1 packets of 64 bytes"), "{ran:?}");
    } else {
        assert_eq!(ran.code, Some(DENIED), "{ran:?}");
    }
}

#[test]
fn make() {
    if !are_here(&["make", "clang"]) {
        return;
    }
    let recipe = Recipe::of("make");
    recipe.run("make", &["verify", "update", "ci"]).expect(0);
    assert!(fs::read_to_string(recipe.at("bpf.json")).expect("figures").contains("\"xdp_count\": {\"slots\": "));
    if are_here(&["cc"]) && is_libbpf_here() {
        recipe.run("make", &["build/client"]).expect(0);
        counted(&recipe.run("build/client", &["build/optimized/xdp_count.o"]));
        if are_here(&["bpftool"]) {
            recipe.run("make", &["build/skeleton"]).expect(0);
            counted(&recipe.run("build/skeleton", &[]));
        }
    }
    recipe.lengthen();
    let ran = recipe.run("make", &["ci"]);
    assert!(ran.code == Some(2) && ran.err.contains("xdp_count.o: xdp_count: slots "), "{ran:?}");
    // Findings are at lines of the source, as a host knows it that has the whole folder.
    let ci =
        ["bpf-opt", "ci", "--baseline", "make/bpf.json", "make/build/optimized", "--no-kernel", "--sarif", "s.sarif"];
    recipe.run("env", &[&["-C", ".."][..], &ci].concat()).expect(1);
    let sarif = fs::read_to_string(recipe.at("../s.sarif")).expect("the report");
    let sarif: serde_json::Value = serde_json::from_str(&sarif).expect("JSON");
    let place = &sarif["runs"][0]["results"][0]["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "xdp_count.c", "{sarif}");
    assert!(place["region"]["startLine"].as_u64() > Some(20), "{sarif}");
    recipe.run("make", &["clean"]).expect(0);
    assert!(!recipe.at("build").exists());
}

#[test]
fn cmake() {
    if !are_here(&["cmake", "ctest", "make", "cc", "clang"]) {
        return;
    }
    let recipe = Recipe::of("cmake");
    recipe.run("cmake", &["-B", "build", "-G", "Unix Makefiles"]).expect(0);
    recipe.run("cmake", &["--build", "build"]).expect(0);
    let ran = recipe.run("ctest", &["--test-dir", "build", "--output-on-failure"]).expect(0);
    assert!(ran.out.contains("xdp_count-equal"), "{}", ran.out);
    if is_libbpf_here() {
        counted(&recipe.run("build/client", &["build/optimized/xdp_count.o"]));
    }
    recipe.run("cmake", &["--build", "build", "--target", "bpf-update"]).expect(0);
    recipe.run("cmake", &["--build", "build", "--target", "bpf-ci"]).expect(0);
    recipe.lengthen();
    let ran = recipe.run("cmake", &["--build", "build", "--target", "bpf-ci"]);
    assert!(ran.code != Some(0) && ran.err.contains("xdp_count.o: xdp_count: slots "), "{ran:?}");
}

#[test]
fn build_rs_with_aya() {
    if !are_clients_wanted() || !are_here(&["cargo", "clang"]) {
        return;
    }
    let recipe = Recipe::of("build-rs");
    recipe.run("cargo", &["build", "--locked"]).expect(0);
    counted(&recipe.run("target/debug/bpf-opt-example", &[]));
}

#[test]
fn go_generate_with_bpf2go() {
    if !are_clients_wanted() || !are_here(&["go", "clang", "llvm-strip"]) {
        return;
    }
    let recipe = Recipe::of("go-generate");
    recipe.run("go", &["generate"]).expect(0);
    recipe.run("go", &["build", "-o", "client", "."]).expect(0);
    counted(&recipe.run("./client", &[]));
}

/// Runs what the action runs, with these inputs.
fn action(folder: &Path, inputs: &[(&str, &str)]) -> Ran {
    let here = Path::new(BINARY).parent().expect("a folder").display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(root().join("scripts/ci-action").canonicalize().expect("it is there"));
    command.current_dir(folder).stdin(Stdio::null()).env("PATH", format!("{here}:{path}"));
    let none = ["ALLOW", "JUNIT", "SARIF", "ARGUMENTS"].map(|name| (name, ""));
    let usual = [("BASELINE", "bpf.json"), ("OBJECTS", "build"), ("KERNEL", "false")];
    for (name, value) in none.iter().chain(&usual).chain(inputs) {
        command.env(format!("BPF_OPT_{name}"), value);
    }
    Ran::of(command.output().expect("the script runs"))
}

#[test]
fn the_action_says_what_its_inputs_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let build = folder.path().join("build");
    fs::create_dir(&build).expect("made");
    fs::copy(example("xdp_count.o"), build.join("a b.o")).expect("copied");
    action(folder.path(), &[("ARGUMENTS", "--update\n")]).expect(0);
    action(folder.path(), &[]).expect(0);
    let text = fs::read_to_string(folder.path().join("bpf.json")).expect("the baseline");
    let fewer = text.replace("\"slots\": 69", "\"slots\": 66");
    assert_ne!(text, fewer);
    fs::write(folder.path().join("bpf.json"), fewer).expect("written");
    let reports = [("JUNIT", "it's $(touch oops).xml"), ("SARIF", "report.sarif")];
    action(folder.path(), &reports).expect(1);
    assert!(folder.path().join(reports[0].1).exists() && folder.path().join("report.sarif").exists());
    assert!(!folder.path().join("oops").exists());
    action(folder.path(), &[("ALLOW", "  5%\n\n  slots=4%  \n")]).expect(1);
    action(folder.path(), &[("ALLOW", "5%"), ("OBJECTS", "build/a b.o\n")]).expect(0);
    action(folder.path(), &[("KERNEL", "maybe")]).expect(2);
    if permitted() {
        action(folder.path(), &[("KERNEL", "true"), ("ALLOW", "5%")]).expect(0);
    }
}

#[test]
fn the_action_hands_on_each_input() {
    let text = fs::read_to_string(root().join("action.yml")).expect("the action");
    let script = fs::read_to_string(root().join("scripts/ci-action")).expect("the script");
    let inputs = text.split("inputs:\n").nth(1).and_then(|t| t.split("runs:\n").next()).expect("the inputs");
    let names = inputs.lines().filter_map(|l| l.strip_prefix("  ")?.strip_suffix(':')).filter(|n| !n.starts_with(' '));
    let mut seen = 0;
    for name in names {
        let variable = format!("BPF_OPT_{}", name.to_uppercase());
        assert!(text.contains(&format!("{variable}: ${{{{ inputs.{name} }}}}\n")), "{name}");
        assert!(script.contains(&variable), "{variable}");
        seen += 1;
    }
    assert_eq!(seen, 7);
    // Expressions in a script would be run as part of it.
    let scripts = text.split("run: |\n").skip(1).map(|t| t.split("\n    - ").next().unwrap_or(t));
    scripts.for_each(|script| assert!(!script.contains("${{"), "{script}"));
    let parse = "import sys, yaml; yaml.safe_load(open(sys.argv[1]))";
    let parsed = Command::new("python3").args(["-c", "import yaml"]).stderr(Stdio::null()).status();
    if parsed.is_ok_and(|status| status.success()) {
        let status = Command::new("python3").args(["-c", parse]).arg(root().join("action.yml")).status();
        assert!(status.is_ok_and(|status| status.success()));
    }
}
