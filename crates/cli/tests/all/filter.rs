//! `bpf-opt filter` from outside: arguments that do not go together are errors, and no file is lost.

use std::path::{Path, PathBuf};

use crate::common::bpf_opt;

/// A capture of three Ethernet packets of 60 bytes, the second with IPv4's type.
fn capture(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("filter");
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut bytes: Vec<u8> = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1].map(u32::to_ne_bytes).concat();
    for kind in [0x0806u16, 0x0800, 0x86dd] {
        bytes.extend([1u32, 0, 60, 60].map(u32::to_ne_bytes).concat());
        let mut packet = [0u8; 60];
        packet[12..14].copy_from_slice(&kind.to_be_bytes());
        bytes.extend(packet);
    }
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("room for a file");
    path
}

#[test]
fn a_capture_is_not_written_over_while_it_is_read() {
    let path = capture("same.pcap");
    let before = std::fs::read(&path).expect("it was written");
    let name = path.to_str().expect("plain text");
    let ran = bpf_opt(["filter", "--read", name, "-w", name, "ip"]);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.contains("would overwrite"), "{}", ran.err);
    assert_eq!(std::fs::read(&path).expect("it is there"), before);
    let other = path.with_extension("out");
    bpf_opt(["filter", "--read", name, "-w", other.to_str().expect("plain text"), "ip"]).expect(0);
    assert_eq!(bpf_opt(["filter", "--read", other.to_str().expect("plain text"), "--count"]).out, "1\n");
}

#[test]
fn arguments_that_do_not_go_together_are_errors() {
    let path = capture("read.pcap");
    let read = path.to_str().expect("plain text");
    let out = path.with_file_name("never.o");
    let object = out.to_str().expect("plain text");
    let wrong: [&[&str]; 25] = [
        &["--read", read, "--hook", "xdp", "-o", object],
        &["--read", read, "-d"],
        &["--read", read, "--emit", "ir"],
        &["--engine", "kernel"],
        &["--hook", "xdp"],
        &["-o", object],
        &["--hook", "cgroup-skb", "--match", "7", "-o", object],
        &["--hook", "cgroup-skb", "-y", "EN10MB", "-o", object],
        &["--hook", "xdp", "--match", "4294967296", "-o", object],
        &["--count"],
        &["--count", "-d"],
        &["--count", "--hook", "xdp"],
        &["--function", "data"],
        &["--function", "ctx", "-o", object],
        &["--function", "data", "--hook", "socket", "-o", object],
        &["--function", "data", "--match", "drop", "-o", object],
        &["--function", "data", "--snaplen", "96", "-o", object],
        &["--function", "data", "--count", "-o", object],
        &["--function", "data", "--name", "a-b", "-o", object],
        &["--function", "data", "--header", object, "-o", object],
        &["--function", "data", "--read", read],
        &["--name", "f", "--hook", "xdp", "-o", object],
        &["--header", object, "--hook", "xdp", "-o", object],
        &["--header", "/nowhere/f.h", "--function", "data", "-o", object],
        &["--set", "A=/dev/null", "--set", "A=/dev/null"],
    ];
    for args in wrong {
        let ran = bpf_opt(["filter"].iter().chain(args).chain(&["tcp"]));
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.err);
        assert!(!ran.err.is_empty() && !out.exists(), "{args:?}");
    }
}

#[test]
fn programs_count_if_they_are_asked_to() {
    let path = capture("count.pcap").with_file_name("count.o");
    for hook in ["xdp", "tc", "cgroup-skb", "socket"] {
        bpf_opt(["filter", "--hook", hook, "--count", "ip", "-o", path.to_str().expect("plain text")]).expect(0);
        let listed = bpf_opt(["dis".as_ref(), path.as_os_str()]).expect(0).out;
        assert!(listed.contains("counters"), "{hook}: {listed}");
    }
    let said = bpf_opt(["filter", "--count", "ip"]).err;
    assert!(said.contains("--read IN.pcap") && said.contains("--hook HOOK"), "{said}");
}

#[test]
fn functions_have_a_name_and_a_header() {
    let folder = capture("function.pcap").with_file_name("function");
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = |name: &str| folder.join(name).to_str().expect("plain text").to_owned();
    let (object, header) = (path("f.o"), path("f.h"));
    let args = ["filter", "--function", "data", "--name", "is_dns", "udp port 53", "-o", &object, "--header", &header];
    let ran = bpf_opt(args).expect(0);
    assert!(ran.out.is_empty() && std::path::Path::new(&object).exists());
    let text = std::fs::read_to_string(&header).expect("it was written");
    assert!(text.contains("extern int is_dns(void *data, void *data_end)") && text.contains("udp port 53"), "{text}");
    // A header needs no object, and may be printed.
    let args = ["filter", "--function", "ctx", "--hook", "tc", "udp", "--header", "-"];
    let text = bpf_opt(args).expect(0).out;
    assert!(text.contains("extern int filter(struct __sk_buff *ctx);"), "{text}");
    let asm = bpf_opt(["filter", "--function", "data", "--emit", "asm", "udp"]).expect(0).out;
    assert!(asm.starts_with("    r3 = r2\n") && asm.contains(" = r1\n") && asm.contains("w0 = 1\n"), "{asm}");
    let said = bpf_opt(["filter", "--function", "data", "--emit", "asm", "inbound"]).expect(2).err;
    assert!(said.contains("inbound"), "{said}");
}

#[test]
fn sockets_get_as_much_of_a_packet_as_is_asked_for() {
    let asm = |more: &[&str]| {
        let args = ["filter", "--hook", "socket", "--emit", "asm"];
        bpf_opt(args.iter().chain(more).chain(&["ip"])).expect(0).out
    };
    assert!(asm(&[]).contains("w0 = 262144\n"));
    assert!(asm(&["--snaplen", "96"]).contains("w0 = 96\n"));
    assert!(asm(&["-y", "RAW"]).contains("skb[0]"));
    // The old load ends the program with 0, which is no answer if that is what matching packets get.
    assert!(asm(&[]).contains("skb[12]") && !asm(&["--match", "drop"]).contains("skb["));
}

#[test]
fn numbers_that_programs_return_have_a_sign_or_none() {
    for (number, shown) in [("-1", "w0 = -1"), ("4294967295", "w0 = -1"), ("2147483648", "w0 = -2147483648")] {
        let ran = bpf_opt(["filter", "--hook", "tc", "--match", number, "--emit", "asm", "tcp"]).expect(0);
        assert!(ran.out.contains(shown), "{number}: {}", ran.out);
    }
}

#[test]
fn forms_are_proven_and_that_is_shown() {
    let stats = |more: &[&str]| {
        let ran = bpf_opt(["filter", "tcp port 80", "--emit", "stats"].iter().chain(more));
        assert_eq!((ran.code, &ran.err[..]), (Some(0), ""));
        ran.out
    };
    assert_eq!(stats(&[]).matches(": proven").count(), 4);
    let plain = stats(&["--no-optimize"]);
    assert!(!plain.contains("proven") && plain.contains("as the filter stands"), "{plain}");
}

#[test]
fn each_phase_can_be_looked_at() {
    let tree = bpf_opt(["filter", "tcp dst port 80 or 81", "--emit", "ast"]).expect(0).out;
    assert_eq!(tree, "or\n  tcp dst port 80\n  tcp dst port 81\n");
    let graph = bpf_opt(["filter", "tcp", "--emit", "cfg"]).expect(0).out;
    let plain = bpf_opt(["filter", "tcp", "--emit", "cfg", "--no-optimize"]).expect(0).out;
    assert!(graph.starts_with("digraph filter {") && plain.starts_with("digraph filter {") && graph != plain);
    let said = bpf_opt(["filter", "tcp port", "--emit", "ast"]).expect(2).err;
    assert!(said.contains("the filter ends where"), "{said}");
}
