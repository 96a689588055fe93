//! What is installed with the binary: completions, manual, a Debian package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::common::*;
use crate::recipes::{are_clients_wanted, are_here, do_without};

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

const BINARY: &str = env!("CARGO_BIN_EXE_bpf-opt");

fn run(command: &mut Command) -> Ran {
    Ran::of(command.stdin(Stdio::null()).output().expect("the command runs"))
}

#[test]
fn completions_are_scripts_of_their_shells() {
    let folder = folder();
    for (shell, check) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let script = folder.path().join(shell);
        fs::write(&script, bpf_opt(["completions", shell]).expect(0).out).expect("written");
        if are_here(&[shell]) {
            let ran = run(Command::new(shell).arg(check).arg(&script)).expect(0);
            assert_eq!(ran.err, "", "{shell}");
        }
    }
    let wrong = bpf_opt(["completions", "csh"]).expect(2);
    assert!(wrong.err.contains("possible values: bash"), "{}", wrong.err);
}

/// What bash offers behind these words, the last of them half written.
fn offered(words: &[&str]) -> Vec<String> {
    let ask = format!(
        "source <({BINARY} completions bash); COMP_WORDS=({}); COMP_CWORD={}; f=$(complete -p bpf-opt | sed 's/.* -F \\([^ ]*\\).*/\\1/'); $f bpf-opt '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.join(" "),
        words.len() - 1,
        words[words.len() - 1],
        words[words.len() - 2],
    );
    let ran = run(Command::new("bash").args(["-c", &ask])).expect(0);
    ran.out.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_options() {
    if !are_here(&["bash"]) {
        return;
    }
    assert_eq!(offered(&["bpf-opt", "spec"]), ["specialize"]);
    assert_eq!(offered(&["bpf-opt", "load", "--fail"]), ["--fail-if-more"]);
    assert_eq!(offered(&["bpf-opt", "opt", "--goal", "lat"]), ["latency"]);
    assert!(!offered(&["bpf-opt", "g"]).contains(&"guest".to_owned()), "that one is not for users");
}

/// The manual in a folder, page by page.
fn manual(folder: &Path) -> Vec<PathBuf> {
    bpf_opt(["man".as_ref(), "--dir".as_ref(), folder.as_os_str()]).expect(0);
    let mut pages: Vec<PathBuf> = fs::read_dir(folder).expect("pages").map(|e| e.expect("an entry").path()).collect();
    pages.sort();
    pages
}

#[test]
fn every_command_has_a_page() {
    let folder = folder();
    let pages = manual(&folder.path().join("share/man1"));
    let names: Vec<String> =
        pages.iter().map(|p| p.file_name().expect("a name").to_string_lossy().into_owned()).collect();
    let help = bpf_opt(["--help"]).expect(0).out;
    let commands = help.split("Commands:\n").nth(1).and_then(|t| t.split("\n\n").next()).expect("the commands");
    let commands: Vec<&str> =
        commands.lines().filter_map(|l| l.strip_prefix("  ")?.split(' ').next()).filter(|c| !c.is_empty()).collect();
    assert!(commands.len() > 15, "{commands:?}");
    for command in commands.iter().filter(|c| **c != "help") {
        assert!(names.contains(&format!("bpf-opt-{command}.1")), "{command} of {names:?}");
    }
    assert!(names.contains(&"bpf-opt.1".to_owned()) && names.contains(&"bpf-opt-kernels-load.1".to_owned()));
    for page in &pages {
        let text = fs::read_to_string(page).expect("a page");
        for section in [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION"] {
            assert!(text.contains(section), "{}: no {section}", page.display());
        }
    }
    let page = bpf_opt(["man", "opt"]).expect(0).out;
    assert_eq!(
        page,
        fs::read_to_string(&pages[names.iter().position(|n| n == "bpf-opt-opt.1").expect("there")]).expect("a page")
    );
    assert!(page.contains(".SH EXAMPLES") && page.contains(".SH \"EXIT STATUS\""), "{page}");
    let wrong = bpf_opt(["man", "nothing"]).expect(2);
    assert!(wrong.err.contains("no command `nothing` of bpf-opt; there is: opt, "), "{}", wrong.err);
}

#[test]
fn pages_are_set_without_warnings() {
    let folder = folder();
    let pages = manual(folder.path());
    if are_here(&["groff"]) {
        for page in &pages {
            let ran = run(Command::new("groff").args(["-man", "-ww", "-Tutf8", "-Kutf8"]).arg(page)).expect(0);
            assert_eq!(ran.err, "", "{}", page.display());
            assert!(ran.out.contains("bpf-opt"), "{}", page.display());
        }
    }
    if are_here(&["man"]) {
        let mut command = Command::new("man");
        command.env("MANWIDTH", "100").args(["--warnings", "-P", "cat", "-l"]).arg(&pages[0]);
        let ran = run(&mut command).expect(0);
        assert!(ran.out.contains("SYNOPSIS"), "{}", ran.out);
        assert_eq!(ran.err, "");
        assert!(ran.out.contains("bpf-opt manual"), "{}", ran.out);
    }
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<String> {
    let found = walkdir::WalkDir::new(folder).sort_by_file_name().into_iter().map(|e| e.expect("an entry"));
    let files = found.filter(|e| e.file_type().is_file());
    files.map(|e| e.path().strip_prefix(folder).expect("below").display().to_string()).collect()
}

/// Optimizes an example with a binary.
fn tries(binary: &Path) {
    let out = folder();
    let to = out.path().join("out.o");
    let mut command = Command::new(binary);
    command.arg("opt").arg(example("xdp_count.o")).arg("-o").arg(&to).args(["-O1", "--no-kernel", "--no-cache"]);
    run(&mut command).expect(0);
    assert!(to.exists());
}

#[test]
fn make_installs_and_takes_away() {
    if !are_here(&["make"]) {
        return;
    }
    let folder = folder();
    let make = |target: &str| {
        let mut command = Command::new("make");
        command.current_dir(root()).args(["-s", target, "PREFIX=/opt/here"]).arg(format!("BINARY={BINARY}"));
        run(command.arg(format!("DESTDIR={}", folder.path().display()))).expect(0)
    };
    make("install");
    let installed = files(folder.path());
    for file in ["bin/bpf-opt", "share/bash-completion/completions/bpf-opt", "share/man/man1/bpf-opt-opt.1"] {
        assert!(installed.contains(&format!("opt/here/{file}")), "{file} of {installed:?}");
    }
    tries(&folder.path().join("opt/here/bin/bpf-opt"));
    make("uninstall");
    assert_eq!(files(folder.path()), [""; 0]);

    let mut missing = Command::new("scripts/install");
    let ran = run(missing.current_dir(root()).args(["target/nothing", "/usr"])).expect(2);
    assert!(ran.err.contains("target/nothing: no such program"), "{}", ran.err);
}

#[test]
fn a_debian_package_unpacks_and_runs() {
    if !are_here(&["dpkg-deb", "python3"]) {
        return;
    }
    let folder = folder();
    let mut command = Command::new("make");
    command.current_dir(root()).args(["-s", "deb"]).arg(format!("BINARY={BINARY}"));
    let ran = run(command.arg(format!("DEBS={}", folder.path().display()))).expect(0);
    let package = PathBuf::from(ran.out.trim());
    let unpacked = folder.path().join("unpacked");
    run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&unpacked)).expect(0);
    let about = run(Command::new("dpkg-deb").arg("-f").arg(&package)).expect(0).out;
    for line in [&format!("Version: {}", env!("CARGO_PKG_VERSION")), "Package: bpf-opt", "Depends: libc6", "libelf1"] {
        assert!(about.contains(line), "{line} in {about}");
    }
    tries(&unpacked.join("usr/bin/bpf-opt"));
    let docs = unpacked.join("usr/share/doc/bpf-opt");
    let copyright = fs::read_to_string(docs.join("copyright")).expect("the licences");
    for part in ["Permission is hereby granted", "\nlibbpf-sys ", "\nclap 4", "rustsat-cadical 0", "regalloc2 "] {
        assert!(copyright.contains(part), "{part}");
    }
    assert!(!copyright.contains("elfutils/"), "libelf is that of the system");
    let installed = files(&unpacked);
    for file in [
        "usr/share/bash-completion/completions/bpf-opt",
        "usr/share/zsh/vendor-completions/_bpf-opt",
        "usr/share/fish/vendor_completions.d/bpf-opt.fish",
        "usr/share/man/man1/bpf-opt.1.gz",
        "usr/share/doc/bpf-opt/changelog.gz",
        "usr/share/doc/bpf-opt/examples/xdp_count.o",
    ] {
        assert!(installed.contains(&file.to_owned()), "{file} of {installed:?}");
    }
}

/// Whether one of these licences will do: `A OR B`, `A/B`, `(A OR B) AND C`.
fn is_allowed(licence: &str, allowed: &[&str]) -> bool {
    let all = licence.split(" AND ").map(|part| part.trim_matches(['(', ')']));
    all.into_iter().all(|part| part.split(" OR ").flat_map(|or| or.split('/')).any(|one| allowed.contains(&one.trim())))
}

/// `cargo deny` says it, too, of more; this needs no other tool.
#[test]
fn licences_of_what_is_linked_are_allowed() {
    if !are_here(&["python3"]) {
        return;
    }
    let deny = fs::read_to_string(root().join("deny.toml")).expect("the rules");
    let allowed = deny.split("\nallow = [\n").nth(1).and_then(|t| t.split("\n]").next()).expect("the list");
    let allowed: Vec<&str> = allowed.lines().filter_map(|line| line.split('"').nth(1)).collect();
    assert!(allowed.contains(&"MIT") && allowed.len() > 5, "{allowed:?}");
    let mut command = Command::new("scripts/licences");
    let crates = run(command.current_dir(root()).arg("--summary")).expect(0).out;
    let named: Vec<(&str, &str)> = crates.lines().filter_map(|line| line.split_once(": ")).collect();
    assert!(named.len() > 80, "{crates}");
    let others: Vec<_> = named.iter().filter(|(_, licence)| !is_allowed(licence, &allowed)).collect();
    assert!(others.is_empty(), "not allowed by deny.toml: {others:?}");
}

/// With the profile of the tests, so that little is built anew; only `make clients` does it all the same.
#[test]
fn cargo_installs_it() {
    if !are_clients_wanted() || !are_here(&["cargo"]) {
        return;
    }
    let folder = folder();
    let mut command = Command::new("cargo");
    command.current_dir(root()).args(["install", "--locked", "--path", "crates/cli", "--profile", "checks", "--root"]);
    run(command.arg(folder.path())).expect(0);
    tries(&folder.path().join("bin/bpf-opt"));
}

/// A whole release build in an image, so only `make clients` does it.
#[test]
fn a_container_says_its_version() {
    if !are_clients_wanted() {
        return;
    }
    let answers = ["podman", "docker"].iter().any(|tool| {
        let asked = Command::new(tool).arg("info").stdout(Stdio::null()).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    });
    if !answers {
        do_without(&["podman", "docker"]);
        return;
    }
    let ran = run(Command::new("make").current_dir(root()).args(["-s", "container"])).expect(0);
    assert!(ran.out.contains(concat!("bpf-opt ", env!("CARGO_PKG_VERSION"))), "{}", ran.out);
}
