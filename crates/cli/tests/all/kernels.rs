//! `bpf-opt kernels` from outside. Booting needs qemu and an image: tests that boot skip without.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use bpf_testgen::assembly::{Map, Surroundings, functions, object};

use crate::common::{Ran, bpf_opt, command, example};

/// A bzImage's header, of which only the release counts here.
fn image(release: &str) -> Vec<u8> {
    let mut bytes = vec![0; 0x400];
    bytes[0x202..0x206].copy_from_slice(b"HdrS");
    bytes[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
    bytes[0x300..0x300 + release.len()].copy_from_slice(release.as_bytes());
    bytes
}

#[test]
fn images_are_kept_by_name_listed_and_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let kept = folder.path().join("kept").display().to_string();
    let add = |release: &str, more: &[&str], code| {
        let file = folder.path().join("vmlinuz");
        fs::write(&file, image(release)).expect("a file");
        let file = file.display().to_string();
        let args = ["kernels", "--images", &kept, "add", &file];
        bpf_opt(args.iter().chain(more)).expect(code)
    };
    assert_eq!(add("6.1.0-56-amd64", &[], 0).out, "6.1.0-56-amd64: kept\n");
    add("6.1.0-58-amd64", &["--name", "new"], 0);
    assert!(add("6.1.0-58-amd64", &["--name", "../new"], 2).err.contains("make a name"));
    assert!(add("none", &[], 2).err.contains("is not a kernel image"));
    let list = || bpf_opt(["kernels", "list", "--images", &kept]).expect(0).out;
    assert_eq!(list(), "6.1.0-56-amd64\nnew  6.1.0-58-amd64\n");
    bpf_opt(["kernels", "remove", "new", "--images", &kept]).expect(0);
    assert!(bpf_opt(["kernels", "remove", "new", "--images", &kept]).expect(2).err.contains("cannot delete"));
    assert_eq!(list(), "6.1.0-56-amd64\n");
}

#[test]
fn a_kernel_is_meant_by_just_one_beginning_of_a_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let kept = folder.path().display().to_string();
    for release in ["6.1.0-56-amd64", "6.1.0-58-amd64", "6.12.95"] {
        fs::write(folder.path().join(release), image(release)).expect("a file");
    }
    let object = example("xdp_count.o").display().to_string();
    let said =
        |kernels: &str| bpf_opt(["kernels", "load", &object, "--kernels", kernels, "--images", &kept]).expect(2).err;
    assert!(said("6.1").contains("`6.1` may mean 6.1.0-56-amd64 or 6.1.0-58-amd64"));
    assert!(said("6").contains("may mean"));
    // Not the beginning of 6.12.95.
    assert!(said("6.12.9").contains("no kernel image called `6.12.9`"));
    assert!(said("./none").contains("cannot read"));
    assert!(bpf_opt(["kernels", "load", &object, "--images", &kept]).expect(2).err.contains("--kernels"));
}

/// `kernels load` with a cache of its own, and a `qemu-system-x86_64` that counts its starts and gives up.
struct Counted {
    folder: tempfile::TempDir,
}

impl Counted {
    fn new() -> Counted {
        let folder = tempfile::tempdir().expect("a folder");
        let (tools, counts) = (folder.path().join("tools"), folder.path().join("starts"));
        let qemu = tools.join("qemu-system-x86_64");
        fs::create_dir(&tools).expect("made");
        fs::write(&qemu, format!("#!/bin/sh\necho start >> '{}'\nexit 1\n", counts.display())).expect("written");
        fs::set_permissions(&qemu, fs::Permissions::from_mode(0o755)).expect("executable");
        Counted { folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, objects: &[&Path], image: &Path, more: &[&str]) -> Command {
        let mut command = command();
        command.env("XDG_CACHE_HOME", self.at("cache"));
        command.args(["kernels", "load"]).args(objects).arg("--kernels").arg(image).args(more);
        command
    }

    /// Loads objects in the kernel of this image.
    fn load(&self, objects: &[&Path], image: &Path, more: &[&str]) -> Ran {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = self.command(objects, image, more);
        command.env("PATH", format!("{}:{path}", self.at("tools").display()));
        Ran::of(command.output().expect("the binary runs"))
    }

    /// The same with this machine's qemu, which boots it.
    fn boot_and_load(&self, objects: &[&Path], image: &Path, more: &[&str]) -> Ran {
        Ran::of(self.command(objects, image, more).output().expect("the binary runs"))
    }

    /// How often that qemu was started.
    fn starts(&self) -> usize {
        fs::read_to_string(self.at("starts")).map_or(0, |text| text.lines().count())
    }
}

#[test]
fn an_object_that_cannot_be_read_is_a_row_and_folders_are_looked_into() {
    let counted = Counted::new();
    let image_file = counted.at("vmlinuz");
    fs::write(&image_file, image("6.1.0")).expect("a file");
    for folder in ["build", "build/more", "empty"] {
        fs::create_dir(counted.at(folder)).expect("made");
    }
    fs::write(counted.at("build/notes.txt"), "no object").expect("written");
    fs::write(counted.at("build/text.o"), "no object").expect("written");
    let whole = fs::read(example("xdp_count.o")).expect("a committed object");
    fs::write(counted.at("build/more/half.o"), &whole[..100]).expect("written");
    let report = counted.at("report.json");
    let json = ["--json", report.to_str().expect("plain")];
    let ran = counted.load(&[&counted.at("build")], &image_file, &json).expect(2);
    let rows: Vec<Vec<&str>> = ran.out.lines().map(|line| line.split_whitespace().collect()).collect();
    let (half, text) = (counted.at("build/more/half.o"), counted.at("build/text.o"));
    let [half, text] = [&half, &text].map(|path| path.to_str().expect("plain"));
    assert_eq!(rows[1..3], [[half, "failed"], [text, "failed"]], "{}", ran.out);
    assert!(ran.out.contains(&format!("\n{text}: ")), "and why: {}", ran.out);
    let report: serde_json::Value = serde_json::from_slice(&fs::read(&report).expect("a report")).expect("JSON");
    assert_eq!(report["exit_status"], 2);
    let objects = report["kernels"][0]["objects"].as_array().expect("a list");
    assert_eq!(objects.len(), 2);
    for (object, path) in objects.iter().zip([half, text]) {
        assert_eq!(object["input"], path);
        assert!(object["error"].as_str().is_some_and(|why| why.starts_with(path)), "{object}");
    }
    // What a list names comes behind the others.
    fs::write(counted.at("list"), format!("# one\n{half}\n")).expect("written");
    let list = ["--list", &counted.at("list").display().to_string(), "--json", "-"].map(str::to_owned);
    let ran = counted.load(&[Path::new(text)], &image_file, &list.each_ref().map(String::as_str)).expect(2);
    let report: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
    let objects = report["kernels"][0]["objects"].as_array().expect("a list").iter();
    assert!(objects.map(|o| o["input"].as_str()).eq([Some(text), Some(half)]), "{report}");
    assert!(ran.err.contains(text) && ran.err.contains(half), "{}", ran.err);
    assert_eq!(counted.starts(), 0, "there was nothing to ask");
    assert!(counted.load(&[&counted.at("empty")], &image_file, &[]).expect(2).err.contains("no .o files"));
    // There is something to ask, and no machine.
    counted.load(&[&example("xdp_count.o"), Path::new(text)], &image_file, &[]).expect(3);
    assert!(counted.starts() > 0);
}

#[test]
fn what_a_guest_does_is_done_nowhere_else() {
    assert!(bpf_opt(["guest"]).expect(2).err.contains("switches it off"));
}

/// An image that this machine has.
fn any_image() -> Option<PathBuf> {
    let named = std::env::var_os("BPF_OPT_TEST_KERNEL").map(PathBuf::from);
    named.or_else(|| {
        let installed = fs::read_dir("/boot").into_iter().flatten().flatten().map(|e| e.path());
        installed.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("vmlinuz"))).max()
    })
}

/// An image, if there is a machine to boot it in; else says why the test does nothing.
fn bootable() -> Option<PathBuf> {
    let qemu = Command::new("qemu-system-x86_64").arg("--version").output();
    let image = any_image().filter(|_| qemu.is_ok());
    if image.is_none() {
        eprintln!("skipped: no qemu, or no kernel image in /boot or in BPF_OPT_TEST_KERNEL");
    }
    image
}

#[test]
fn another_kernel_says_what_it_takes_and_why_not() {
    let Some(image) = bootable() else { return };
    let counted = Counted::new();
    let report = counted.at("report.json");
    let json = ["--json", report.to_str().expect("plain")];
    let (good, bad, text) = (example("xdp_count.o"), counted.at("bad.o"), counted.at("text.o"));
    let code = functions("r0 = *(u32 *)(r1 + 4096)\nexit\n", "xdp").expect("functions");
    let around = Surroundings { section: "xdp".into(), untyped: true, ..Surroundings::default() };
    fs::write(&bad, object(&around, &code).expect("it assembles")).expect("written");
    fs::write(&text, "no object").expect("written");
    let ran = counted.boot_and_load(&[&good, &bad], &image, &json).expect(1);
    assert!(ran.out.contains("1 of 1") && ran.out.contains("0 of 1") && ran.out.contains("rejected"), "{}", ran.out);
    let report: serde_json::Value = serde_json::from_slice(&fs::read(&report).expect("a report")).expect("JSON");
    let objects = &report["kernels"][0]["objects"];
    assert_eq!(objects[0]["programs"][0]["verdict"], "accepted");
    assert_eq!(objects[1]["programs"][0]["verdict"], "rejected");
    assert!(objects[0]["programs"][0]["processed"].as_u64().is_some_and(|n| n > 0));

    // What was asked before needs no machine, and what was not needs one.
    assert_eq!(counted.load(&[&good, &bad], &image, &json).expect(1).out, ran.out);
    let beside = counted.load(&[&good, &text], &image, &json).expect(2);
    assert!(beside.out.contains("1 of 1") && beside.out.contains("failed"), "{}", beside.out);
    assert_eq!(counted.starts(), 0);
    let mut changed = fs::read(&good).expect("a committed object");
    changed.push(0);
    fs::write(counted.at("changed.o"), changed).expect("written");
    counted.load(&[&counted.at("changed.o")], &image, &json).expect(3);
    let starts = counted.starts();
    assert!(starts > 0);
    counted.load(&[&good], &image, &["--no-cache"]).expect(3);
    assert!(counted.starts() > starts);
}

/// The original tests whether an element is there that always is. Kernels before 6.14 do not see that it is.
const TESTED: &str = "    *(u32 *)(r10 - 4) = 0
    r2 = r10
    r2 += -4
    r1 = m ll
    call bpf_map_lookup_elem
    if r0 == 0 goto none
    r1 = *(u64 *)(r0 + 0)
    r1 += 1
    *(u64 *)(r0 + 0) = r1
none:
    r0 = 2
    exit
";

#[test]
fn what_another_kernel_refuses_is_taken_back() {
    let Some(image) = bootable() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let map = Map { name: "m".into(), map_type: 2, key_size: 4, value_size: 8, max_entries: 1, ..Map::default() };
    let around = Surroundings { section: "xdp".into(), maps: vec![map], ..Surroundings::default() };
    let code = functions(TESTED, "xdp").expect("functions");
    fs::write(path("in.o"), object(&around, &code).expect("it assembles")).expect("written");
    let kernel = image.display().to_string();
    let opt = |out: &str, more: &[&str]| {
        let (input, out, json) = (path("in.o"), path(out), path("report.json"));
        let args = ["opt", &input, "-o", &out, "--no-cache", "--min-kernel", "6.14", "--json", &json];
        let ran = bpf_opt(args.iter().chain(more)).expect(0);
        let report: serde_json::Value = serde_json::from_slice(&fs::read(json).expect("a report")).expect("JSON");
        (ran.err, report)
    };
    let (_, alone) = opt("alone.o", &[]);
    let (said, both) = opt("both.o", &["--kernels", &kernel]);
    let of = &both["other_kernels"][0];
    let release = of["kernel"].as_str().expect("a release");
    let program = &of["programs"][0];
    assert!(program["before"]["accepted"] == true && program["after"]["accepted"] == true, "{of}");
    assert!(said.contains(&format!("{release}: accepted")), "{said}");
    let slots = |report: &serde_json::Value| report["totals"]["slots_after"].as_u64().expect("a number");
    // A newer kernel than 6.14 has nothing to take back.
    let taken_back = of["taken_back"].as_u64().expect("a number");
    assert_eq!(taken_back > 0, slots(&both) > slots(&alone), "{both}");
    let refused = bpf_opt(["kernels", "load", &path("alone.o"), "--no-cache", "--kernels", &kernel]);
    refused.expect(i32::from(taken_back > 0));
    bpf_opt(["kernels", "load", &path("both.o"), "--no-cache", "--kernels", &kernel]).expect(0);
}

#[test]
fn a_kernel_that_does_not_come_up_is_no_verdict() {
    let folder = tempfile::tempdir().expect("a folder");
    let (out, kernel) = (folder.path().join("out.o"), folder.path().join("vmlinuz"));
    fs::write(&kernel, image("6.1.0")).expect("a file");
    let object = example("xdp_count.o").display().to_string();
    let (result, kernel) = (out.display().to_string(), kernel.display().to_string());
    let ran = bpf_opt(["opt", &object, "-o", &result, "--no-cache", "--kernels", &kernel]).expect(3);
    assert!(ran.err.contains("6.1.0: no answer: "), "{}", ran.err);
    assert!(!out.exists());
    let said = bpf_opt(["opt", &object, "-o", &result, "--kernels", "5.4", "--images", &result]).expect(2).err;
    assert!(said.contains("no kernel image called `5.4`"), "{said}");
}
