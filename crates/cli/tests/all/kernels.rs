//! `bpf-opt kernels` from outside. Booting needs qemu and an image: the last test skips without.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

use bpf_testgen::assembly::{Map, Surroundings, functions, object};

use crate::common::{bpf_opt, example};

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
    let qemu = std::process::Command::new("qemu-system-x86_64").arg("--version").output();
    let image = any_image().filter(|_| qemu.is_ok());
    if image.is_none() {
        eprintln!("skipped: no qemu, or no kernel image in /boot or in BPF_OPT_TEST_KERNEL");
    }
    image
}

#[test]
fn another_kernel_says_what_it_takes_and_why_not() {
    let Some(image) = bootable() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report.json");
    let text = report.display().to_string();
    let (good, bad) = (example("xdp_count.o"), folder.path().join("bad.o"));
    let code = functions("r0 = *(u32 *)(r1 + 4096)\nexit\n", "xdp").expect("functions");
    let around = Surroundings { section: "xdp".into(), untyped: true, ..Surroundings::default() };
    fs::write(&bad, object(&around, &code).expect("it assembles")).expect("written");
    let args: [&OsStr; 8] = [
        "kernels".as_ref(),
        "load".as_ref(),
        good.as_ref(),
        bad.as_ref(),
        "--kernels".as_ref(),
        image.as_ref(),
        "--json".as_ref(),
        text.as_ref(),
    ];
    let ran = bpf_opt(args).expect(1);
    assert!(ran.out.contains("1 of 1") && ran.out.contains("0 of 1") && ran.out.contains("rejected"), "{}", ran.out);
    let report: serde_json::Value = serde_json::from_slice(&fs::read(report).expect("a report")).expect("JSON");
    let objects = &report["kernels"][0]["objects"];
    assert_eq!(objects[0]["programs"][0]["verdict"], "accepted");
    assert_eq!(objects[1]["programs"][0]["verdict"], "rejected");
    assert!(objects[0]["programs"][0]["processed"].as_u64().is_some_and(|n| n > 0));
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
