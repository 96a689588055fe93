//! The header is what the functions are, and a program in C uses it.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_header_is_that_of_the_functions() {
    let config = cbindgen::Config::from_file(root().join("cbindgen.toml")).expect("it is TOML");
    let bindings = cbindgen::Builder::new().with_src(root().join("src/lib.rs")).with_config(config).generate();
    let mut text = Vec::new();
    bindings.expect("it is C").write(&mut text);
    let path = root().join("include/bpf_opt.h");
    if std::env::var_os("BPF_OPT_BLESS").is_some() {
        std::fs::write(&path, &text).expect("written");
    }
    let there = std::fs::read(&path).unwrap_or_default();
    assert!(there == text, "include/bpf_opt.h is not what src/lib.rs says: BPF_OPT_BLESS=1 writes it anew");
}

#[test]
fn a_program_in_c_optimizes_and_verifies() {
    // Beside this test's binary is the library that it was built with.
    let deps = std::env::current_exe().expect("a path").parent().expect("a folder").to_path_buf();
    let folder = tempfile::tempdir().expect("a folder");
    let (binary, output) = (folder.path().join("optimize"), folder.path().join("out.o"));
    let built = [&deps, deps.parent().unwrap_or(&deps)].into_iter().find(|d| d.join("libbpf_opt_c.so").exists());
    let built = built.expect("cargo builds the library before its tests");
    let source = root().join("examples/optimize.c");
    let include = root().join("include");
    let cc = Command::new("cc")
        .args([Path::new("-Wall"), Path::new("-Wextra"), Path::new("-Werror"), Path::new("-I"), &include, &source])
        .args([Path::new("-o"), &binary, Path::new("-L"), built])
        .args(["-lbpf_opt_c", &format!("-Wl,-rpath,{}", built.display())])
        .status();
    assert!(cc.expect("a C compiler, which the solver needs, too").success());
    let run = |input: &Path| {
        let ran = Command::new(&binary).arg(input).arg(&output).output().expect("it runs");
        (
            ran.status.code(),
            String::from_utf8_lossy(&ran.stdout).into_owned(),
            String::from_utf8_lossy(&ran.stderr).into_owned(),
        )
    };
    let (code, out, err) = run(&root().join("../../examples/xdp_count.o"));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("xdp_count: Equal") && out.contains("proven equal: yes"), "{out}");
    assert!(std::fs::metadata(&output).expect("written").len() > 0);
    let (code, _, err) = run(&source);
    assert_eq!(code, Some(2));
    assert!(err.contains("not an ELF object file"), "{err}");
}
