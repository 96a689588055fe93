//! `bpf-opt filter --profile` from outside.

use std::path::{Path, PathBuf};

use crate::common::bpf_opt;

/// A capture of packets of a link type.
fn capture(name: &str, link_type: u32, packets: &[Vec<u8>]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("filter-profile");
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut bytes: Vec<u8> = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, link_type].map(u32::to_ne_bytes).concat();
    for packet in packets {
        let length = packet.len() as u32;
        bytes.extend([1u32, 0, length, length].map(u32::to_ne_bytes).concat());
        bytes.extend(packet);
    }
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("room for a file");
    path
}

/// An IPv4 packet of Ethernet with a time to live and a protocol.
fn ip(ttl: u8, protocol: u8) -> Vec<u8> {
    let mut packet = vec![0; 60];
    packet[12..15].copy_from_slice(&[8, 0, 0x45]);
    (packet[22], packet[23]) = (ttl, protocol);
    packet
}

const EXPRESSION: &str = "ip[8] = 1 and ip[9] = 6";

fn text(path: &Path) -> &str {
    path.to_str().expect("plain text")
}

#[test]
fn statistics_show_what_a_profile_brings() {
    let path = capture("typical.pcap", 1, &vec![ip(1, 17); 5]);
    let with = |more: &[&str]| bpf_opt(["filter", "--profile", text(&path), EXPRESSION].iter().chain(more)).expect(0);
    let stats = with(&["--emit", "stats"]);
    assert_eq!(stats.err, "");
    assert!(stats.out.contains("3.00 operations per packet of the profile, 7.00 without it\n"), "{}", stats.out);
    let plain = bpf_opt(["filter", EXPRESSION, "--emit", "stats"]).expect(0).out;
    assert!(!plain.contains("profile"), "{plain}");
    // The last byte is asked for first where that is for speed.
    let first = |text: &str| text.find("[23]").is_some() && text.find("[23]") < text.find("[22]");
    let said = bpf_opt(["filter", "--profile", text(&path), EXPRESSION, "-d"]).expect(2).err;
    assert!(said.contains("--profile: it has no effect") && said.contains("--goal latency"), "{said}");
    let size = bpf_opt(["filter", EXPRESSION, "-d"]).expect(0).out;
    let latency = with(&["-d", "--goal", "latency"]).out;
    assert!(!first(&size) && first(&latency), "{size}{latency}");
    let object = path.with_extension("o");
    with(&["-o", text(&object), "--hook", "xdp"]);
    assert!(object.exists());
}

#[test]
fn what_matches_does_not_depend_on_the_profile() {
    let read = capture("read.pcap", 1, &[ip(1, 6), ip(1, 17), ip(2, 6), vec![0; 22]]);
    for (i, typical) in [vec![ip(1, 17)], vec![ip(2, 6)], vec![vec![0; 60]]].iter().enumerate() {
        let typical = capture(&format!("typical-{i}.pcap"), 1, typical);
        for engine in ["jit", "interpreter"] {
            let args = ["filter", "--read", text(&read), "--profile", text(&typical), "--engine", engine, "--verdicts"];
            let ran = bpf_opt(args.iter().chain(&[EXPRESSION])).expect(0);
            assert_eq!((&ran.out[..], &ran.err[..]), ("65535\n0\n0\n0\n", ""), "{engine}");
        }
    }
}

#[test]
fn wrong_profiles_are_errors_and_empty_ones_a_warning() {
    let ethernet = capture("ethernet.pcap", 1, &[ip(1, 6), ip(1, 17)]);
    let raw = capture("raw.pcap", 101, &[ip(1, 6)[14..].to_vec()]);
    let empty = capture("empty.pcap", 1, &[]);
    let with = |path: &Path, more: &[&str]| bpf_opt(["filter", "tcp", "--profile", text(path)].iter().chain(more));
    for more in [&["-d", "--goal", "latency"][..], &["--read", text(&ethernet)]] {
        let said = with(&raw, more).expect(2).err;
        assert!(said.contains("raw.pcap") && said.contains("RAW") && said.contains("EN10MB"), "{said}");
        let said = with(&empty, more).expect(0).err;
        assert!(said.contains("warning") && said.contains("empty.pcap"), "{said}");
    }
    with(&raw, &["-y", "RAW", "--emit", "ir"]).expect(0);
    let cut = ethernet.with_file_name("cut.pcap");
    let bytes = std::fs::read(&ethernet).expect("it was written");
    std::fs::write(&cut, &bytes[..bytes.len() - 10]).expect("room for a file");
    let said = with(&cut, &["--emit", "ir"]).expect(2).err;
    assert!(said.contains("cut.pcap: truncated in packet 2"), "{said}");
    let said = with(Path::new("/nowhere/typical.pcap"), &["--emit", "ir"]).expect(2).err;
    assert!(said.contains("/nowhere/typical.pcap"), "{said}");
    let said = with(&ethernet, &["--no-optimize"]).expect(2).err;
    assert!(said.contains("--no-optimize"), "{said}");
    // The capture is not written over.
    for more in [&["-o", text(&ethernet), "--hook", "xdp"][..], &["--read", text(&raw), "-w", text(&ethernet)]] {
        let said = with(&ethernet, more).expect(2).err;
        assert!(said.contains("would overwrite"), "{said}");
    }
    assert_eq!(std::fs::read(&ethernet).expect("it is there"), bytes);
}
