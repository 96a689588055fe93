//! `--dump-queries`: what the solver was asked, as files for other solvers.

use std::process::{Command, Stdio};

use crate::common::*;

#[test]
fn queries_become_numbered_files_with_our_verdict_and_z3_agrees() {
    let folder = tempfile::tempdir().expect("a folder");
    let (out, dump) = (folder.path().join("out.o"), folder.path().join("new").join("queries"));
    let input = example("xdp_count.o");
    let dumped = dump.to_string_lossy().into_owned();
    let run = |more: &[&str]| {
        let ran =
            bpf_opt([&["opt", &*input.to_string_lossy(), "-o", &*out.to_string_lossy(), "--no-kernel"], more].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
    };
    run(&["--dump-queries", &dumped]);
    let mut names: Vec<String> = std::fs::read_dir(&dump)
        .expect("the folder is there")
        .map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert!(!names.is_empty(), "no query");
    for (i, name) in names.iter().enumerate() {
        assert_eq!(*name, format!("{:06}.smt2", i + 1));
    }
    let texts: Vec<String> = names.iter().map(|n| std::fs::read_to_string(dump.join(n)).expect("a text")).collect();
    let bodies: std::collections::HashSet<&str> =
        texts.iter().map(|t| &t[t.find("(set-info").expect("a status")..]).collect();
    assert_eq!(bodies.len(), texts.len(), "a query twice");
    for (name, text) in names.iter().zip(&texts) {
        let said = text.lines().find_map(|l| l.strip_prefix("(set-info :status ")).expect("a status");
        let asked =
            Command::new("z3").arg("-T:5").arg(dump.join(name)).stdout(Stdio::piped()).stderr(Stdio::null()).output();
        let Ok(answer) = asked else {
            assert!(std::env::var_os("BPF_OPT_REQUIRE_Z3").is_none(), "z3 is required");
            eprintln!("skipped: no z3 here");
            return;
        };
        let answer = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
        if said != "unknown)" && answer != "timeout" && answer != "unknown" {
            assert_eq!(format!("{answer})"), said, "{name}");
        }
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_named_and_nothing_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "not a folder").expect("written");
    let out = folder.path().join("out.o");
    let input = example("xdp_count.o");
    let inside = file.join("queries");
    let ran = bpf_opt([
        "opt",
        &*input.to_string_lossy(),
        "-o",
        &*out.to_string_lossy(),
        "--no-kernel",
        "--dump-queries",
        &*inside.to_string_lossy(),
    ]);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.contains(&*inside.to_string_lossy()), "{}", ran.err);
    assert!(!out.exists());
}
