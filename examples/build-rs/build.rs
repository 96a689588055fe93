//! Compiles a BPF program, optimizes it, and leaves the object where `src/main.rs` embeds it.
//!
//! `BPF_OPT` and `CLANG` say which programs do that. If `BPF_OPT_BASELINE` names a file, the build fails where the object is
//! worse than there (`bpf-opt ci`).

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    object(Path::new("../xdp_count.c"), &out.join("xdp_count.o"));
    println!("cargo::rerun-if-changed=../bpf_small.h");
}

/// From a source to an optimized object.
fn object(source: &Path, object: &Path) {
    let compiled = object.with_extension("compiled.o");
    println!("cargo::rerun-if-changed={}", source.display());
    let mut clang = tool("CLANG", "clang");
    clang.args(["--target=bpf", "-mcpu=v3", "-O2", "-g", "-c"]).arg(source).arg("-o").arg(&compiled);
    run(&mut clang);
    // The same bytes on every machine, quickly; `-O2` finds more.
    let mut opt = tool("BPF_OPT", "bpf-opt");
    opt.args(["opt", "-O1", "--no-cache", "--no-kernel", "--min-kernel", "6.1", "-q"]);
    run(opt.arg(&compiled).arg("-o").arg(object));
    println!("cargo::rerun-if-env-changed=BPF_OPT_BASELINE");
    if let Some(baseline) = env::var_os("BPF_OPT_BASELINE").map(PathBuf::from) {
        println!("cargo::rerun-if-changed={}", baseline.display());
        run(tool("BPF_OPT", "bpf-opt").args(["ci", "--no-kernel", "--baseline"]).arg(baseline).arg(object));
    }
}

fn tool(variable: &str, usual: &str) -> Command {
    println!("cargo::rerun-if-env-changed={variable}");
    Command::new(env::var_os(variable).unwrap_or_else(|| usual.into()))
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
}
