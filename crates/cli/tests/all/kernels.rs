//! `bpf-opt kernels` from outside. Booting needs qemu and an image: the last test skips without.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

use bpf_testgen::assembly::{Surroundings, functions, object};

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

#[test]
fn another_kernel_says_what_it_takes_and_why_not() {
    let qemu = std::process::Command::new("qemu-system-x86_64").arg("--version").output();
    let Some(image) = any_image().filter(|_| qemu.is_ok()) else {
        return eprintln!("skipped: no qemu, or no kernel image in /boot or in BPF_OPT_TEST_KERNEL");
    };
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
