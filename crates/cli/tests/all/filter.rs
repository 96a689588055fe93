//! `bpf-opt filter` from outside: arguments that do not go together are errors, and no file is lost.

use std::path::{Path, PathBuf};
use std::process::Command;

use bpf_kernel::testing::{available, in_private_pins, permitted};

use crate::common::{Ran, bpf_opt, command};

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
fn the_kernel_runs_packets_without_a_link_header() {
    if !bpf_kernel::testing::permitted() {
        return;
    }
    let mut bytes: Vec<u8> = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 101].map(u32::to_ne_bytes).concat();
    for (first, protocol_at, protocol) in [(0x45, 9, 6), (0x60, 6, 6), (0x60, 6, 17), (0x45, 9, 17)] {
        bytes.extend([1u32, 0, 60, 60].map(u32::to_ne_bytes).concat());
        let mut packet = [0u8; 60];
        (packet[0], packet[protocol_at]) = (first, protocol);
        bytes.extend(packet);
    }
    let path = capture("raw.pcap");
    std::fs::write(&path, bytes).expect("room for a file");
    let name = path.to_str().expect("plain text");
    for (expression, count) in
        [("ip6", "2\n"), ("ip", "2\n"), ("ip6 and tcp", "1\n"), ("udp", "2\n"), ("greater 61", "0\n")]
    {
        for engine in ["interpreter", "jit", "kernel"] {
            for dialect in ["libpcap", "modern"] {
                let ran = bpf_opt([
                    "filter",
                    "--read",
                    name,
                    "--engine",
                    engine,
                    "--dialect",
                    dialect,
                    "--count",
                    expression,
                ]);
                assert_eq!(ran.out, count, "{engine} {dialect} {expression}: {}", ran.err);
            }
        }
    }
}

/// A capture is what it is, whatever host runs the filter: families have the numbers of the host that wrote it, in its byte order.
#[test]
fn the_kernel_runs_packets_of_other_hosts() {
    if !bpf_kernel::testing::permitted() {
        return;
    }
    let path = capture("other.pcap");
    let name = path.to_str().expect("plain text");
    for (link, is_swapped) in [(0u32, false), (0, true), (108, false), (108, true), (109, false), (109, true)] {
        let word = |n: u32| if is_swapped { n.to_be_bytes() } else { n.to_le_bytes() };
        let mut bytes: Vec<u8> = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, link].map(word).concat();
        if is_swapped {
            // Two halves: major and minor version.
            bytes[4..8].copy_from_slice(&[0, 2, 0, 4]);
        }
        for family in [2u32, 24, 28, 30, 10, 7] {
            bytes.extend([1u32, 0, 60, 60].map(word).concat());
            let mut packet = [0u8; 60];
            packet[..4].copy_from_slice(&if link == 108 { family.to_be_bytes() } else { word(family) });
            let network = if link == 109 { 12 } else { 4 };
            packet[network] = if family == 2 { 0x45 } else { 0x60 };
            (packet[network + 6], packet[network + 9]) = if family == 2 { (0, 17) } else { (17, 0) };
            bytes.extend(packet);
        }
        std::fs::write(&path, bytes).expect("room for a file");
        for (expression, count) in [("ip", "1\n"), ("ip6", "3\n"), ("ip or ip6", "4\n"), ("udp", "4\n")] {
            for engine in ["interpreter", "jit", "kernel"] {
                let ran = bpf_opt(["filter", "--read", name, "--engine", engine, "--count", expression]);
                assert_eq!(ran.out, count, "{engine} {link} {is_swapped} {expression}: {}", ran.err);
            }
        }
    }
}

/// What only a live packet has, and what of a packet was not captured, the kernel does not know either.
#[test]
fn the_kernel_makes_nothing_up_about_packets_of_a_capture() {
    if !bpf_kernel::testing::permitted() {
        return;
    }
    let path = capture("cut.pcap");
    let name = path.to_str().expect("plain text");
    let write = |link: u32, length: u32| {
        let mut bytes: Vec<u8> = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 60, link].map(u32::to_le_bytes).concat();
        bytes.extend([1u32, 0, 60, length].map(u32::to_le_bytes).concat());
        let mut packet = [0u8; 60];
        packet[if link == 1 { 14 } else { 0 }] = 0x45;
        (packet[12], packet[13]) = (0x08, 0);
        bytes.extend(packet);
        std::fs::write(&path, bytes).expect("room for a file");
    };
    for link in [1, 101] {
        write(link, 60);
        for expression in ["inbound", "outbound", "ifindex 1", "ip or inbound"] {
            for engine in ["interpreter", "jit", "kernel"] {
                let ran = bpf_opt(["filter", "--read", name, "--engine", engine, "--count", expression]);
                assert_eq!((ran.code, &ran.out[..]), (Some(2), ""), "{link} {engine} {expression}: {}", ran.err);
                assert!(ran.err.contains("when reading savefiles"), "{}", ran.err);
            }
        }
    }
    for link in [1, 101] {
        write(link, 1500);
        for (expression, is_asked) in [("greater 100", true), ("ip and len = 1500", true), ("ip", false)] {
            let run = |engine| bpf_opt(["filter", "--read", name, "--engine", engine, "--count", expression]);
            assert_eq!(run("interpreter").out, "1\n");
            let ran = run("kernel");
            if is_asked {
                assert_eq!((ran.code, &ran.out[..]), (Some(2), "0\n"), "{expression}: {}", ran.err);
                assert!(ran.err.contains("packet 1: a packet of 1500 bytes, of which 60"), "{}", ran.err);
            } else {
                assert_eq!(ran.out, "1\n", "{expression}: {}", ran.err);
            }
        }
    }
}

#[test]
fn arguments_that_do_not_go_together_are_errors() {
    let path = capture("read.pcap");
    let read = path.to_str().expect("plain text");
    let out = path.with_file_name("never.o");
    let object = out.to_str().expect("plain text");
    let wrong: [&[&str]; 33] = [
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
        &["--updatable", "A", "--hook", "xdp", "-o", object],
        &["--set", "A=/dev/null", "--updatable", "A:ipv4"],
        &["--set", "A=/dev/null", "--updatable", "A:ipv4", "-d"],
        &["--set", "A=/dev/null", "--updatable", "A:ipv4", "--read", read],
        &["--set", "A=/dev/null", "--updatable", "A:ipv5", "--hook", "xdp", "-o", object],
        &["--set", "A=/dev/null", "--updatable", "A:ipv4,ipv4-net", "--hook", "xdp", "-o", object],
        &["--max-entries", "5", "--hook", "xdp", "-o", object],
        &["--set", "A=/dev/null", "--updatable", "A", "--map-contents", object, "--hook", "xdp", "-o", object],
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
fn what_decided_is_reported() {
    let path = capture("report.pcap");
    let read = path.to_str().expect("plain text");
    let engines: &[&str] = if permitted() { &["interpreter", "kernel"] } else { &["interpreter"] };
    for engine in engines {
        let ran = bpf_opt(["filter", "--read", read, "--engine", engine, "--report", "arp or not (ip or vlan)"]);
        let out = ran.expect(0).out;
        let rows: Vec<Vec<&str>> = out.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        let wanted = [vec!["1", "0", "arp"], vec!["0", "1", "ip"], vec!["1", "0", "vlan"]];
        assert!(out.starts_with("2 of 3 packets match\n") && rows == wanted, "{engine}: {out}");
    }
    let object = path.with_extension("o");
    let object = object.to_str().expect("plain text");
    let legend = bpf_opt(["filter", "--hook", "tc", "--report", "-o", object, "arp or ip"]).expect(0).out;
    assert!(legend.contains("3       2  ip\n"), "{legend}");
    assert!(bpf_opt(["dis", object]).expect(0).out.contains("report"));
    let said = bpf_opt(["filter", "--report", "ip"]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("--read IN.pcap"), "{}", said.err);
}

#[test]
fn no_file_that_is_read_is_written_over() {
    let profile = capture("kept.pcap");
    let set = profile.with_file_name("kept.txt");
    std::fs::write(&set, "10.0.0.1\n").expect("room for a file");
    let object = profile.with_file_name("kept.o");
    let [profile, set, object] = [&profile, &set, &object].map(|path| path.to_str().expect("plain text"));
    let named = format!("S={set}");
    let to_hook = ["filter", "host $S", "--set", &named, "--updatable", "S", "--hook", "xdp"];
    let function = ["filter", "tcp", "--function", "data", "--name", "f"];
    let read = ["filter", "host $S", "--set", &named, "--read", profile];
    for (args, more) in [
        (&to_hook[..], vec!["-o", object, "--map-contents", set]),
        (&to_hook, vec!["-o", object, "--map-contents", profile, "--profile", profile]),
        (&to_hook, vec!["-o", set]),
        (&function, vec!["--header", profile, "--profile", profile]),
        (&function, vec!["-o", object, "--header", profile, "--profile", profile]),
        (&read, vec!["-w", set]),
    ] {
        let before = [profile, set].map(|path| std::fs::read(path).expect("it is there"));
        let ran = bpf_opt([args, &more[..]].concat());
        assert_eq!(ran.code, Some(2), "{more:?}: {}", ran.err);
        assert!(ran.err.contains("would overwrite"), "{more:?}: {}", ran.err);
        assert_eq!([profile, set].map(|path| std::fs::read(path).expect("it is there")), before, "{more:?}");
    }
}

#[test]
fn passes_have_names() {
    let listing = |passes: &str| bpf_opt(["filter", "--passes", passes, "--emit", "ir", "port 80 or 81 or 90"]);
    let all = listing("all").expect(0).out;
    assert_ne!(all, listing("checks,trees").expect(0).out);
    assert_eq!(
        bpf_opt(["filter", "--no-optimize", "--emit", "ir", "port 80 or 81 or 90"]).expect(0).out,
        listing("none").expect(0).out
    );
    let said = listing("checks,speed");
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("no pass is called \"speed\"") && said.err.contains("predicates"), "{}", said.err);
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

/// Files of sets, and the arguments that make maps of them: a hash map, and a trie that is empty.
fn updatable(folder: &Path, bad: &str) -> Vec<String> {
    std::fs::create_dir_all(folder).expect("a folder");
    let path = |name: &str| folder.join(name).to_str().expect("plain text").to_owned();
    std::fs::write(path("bad.txt"), "192.0.2.1\n192.0.2.2\n").expect("room for a file");
    let text = format!("src host ${bad} or dst net $NETS");
    let sets = [format!("{bad}={}", path("bad.txt")), "NETS=/dev/null".to_owned()];
    let args =
        ["filter", &text, "--set", &sets[0], "--set", &sets[1], "--updatable", bad, "--updatable", "NETS:ipv4-net"];
    args.into_iter().map(str::to_owned).collect()
}

#[test]
fn sets_become_maps_and_their_contents_a_file() {
    let folder = capture("updatable.pcap").with_file_name("updatable");
    let args = updatable(&folder, "BAD");
    let run = |more: &[&str]| bpf_opt(args.iter().map(String::as_str).chain(more.iter().copied()));
    let lines = "map update name BAD key 192 0 2 1 value 1\nmap update name BAD key 192 0 2 2 value 1\n";
    assert_eq!(run(&["--hook", "xdp", "--map-contents", "-"]).expect(0).out, lines);
    let asm = run(&["--emit", "asm"]).expect(0).out;
    assert!(asm.contains("r1 = BAD ll\n") && asm.contains("r1 = NETS ll\n"), "{asm}");
    assert!(run(&["--emit", "cfg"]).expect(0).out.contains(" in map 0"));
    let stats = run(&["--emit", "stats"]).expect(0).out;
    assert!(stats.contains("classic BPF has no maps") && stats.matches(": proven").count() == 2, "{stats}");
    let said = run(&["--hook", "tc", "--max-entries", "1", "--emit", "asm"]).expect(2).err;
    assert!(said.contains("2 entries, and its map room for 1"), "{said}");
    let object = folder.join("f.o");
    let object = object.to_str().expect("plain text");
    let said = run(&["--hook", "xdp", "-o", object]).expect(0).err;
    assert!(said.contains("--updatable BAD: an object holds no elements") && !said.contains("NETS"), "{said}");
    let contents = folder.join("contents");
    let said =
        run(&["--hook", "xdp", "-o", object, "--map-contents", contents.to_str().expect("plain text")]).expect(0);
    assert_eq!(said.err, "");
    let set = ["--set", "A=/dev/null", "--updatable", "A:port"];
    let said = bpf_opt(["filter", "tcp", "--hook", "xdp", "-o", object].iter().chain(&set)).expect(0).err;
    assert!(said.contains("the filter does not ask for $A"), "{said}");
}

/// What an administrator does: load the object, fill its maps, change one, and read the counters.
#[test]
fn bpftool_fills_and_changes_the_maps_of_a_program_that_counts() {
    let version = Command::new("bpftool").arg("version").output().map_err(|e| format!("bpftool: {e}"));
    if !permitted() || available(version).is_none() {
        return;
    }
    let ran = in_private_pins(|| ["xdp", "tc", "cgroup-skb", "socket"].iter().for_each(|hook| fill_and_change(hook)));
    available(ran);
}

fn fill_and_change(hook: &str) {
    let folder = capture("updated.pcap").with_file_name("updated");
    // bpftool finds maps by their names, which other maps of this machine may have.
    let bad = format!("B{}_{}", std::process::id(), &hook[..1]);
    let path = |name: &str| folder.join(name).to_str().expect("plain text").to_owned();
    let (object, batch, packet) = (path("f.o"), path("f.batch"), path("packet"));
    let more = ["--hook", hook, "--count", "--match", "drop", "-o", &object, "--map-contents", &batch];
    let args = updatable(&folder, &bad);
    Ran::of(command().args(&args).args(more).output().expect("the binary runs")).expect(0);
    let tool = |args: &[&str]| {
        let out = Command::new("bpftool").args(args).output().expect("bpftool runs");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{hook}: bpftool {args:?}: {said}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let pins = format!("/sys/fs/bpf/{hook}");
    std::fs::create_dir(&pins).expect("a folder of pins");
    let (program, maps) = (format!("{pins}/program"), format!("{pins}/maps"));
    let nets = format!("{maps}/NETS");
    tool(&["prog", "load", &object, &program, "pinmaps", &maps]);
    tool(&["batch", "file", &batch]);
    let mut bytes = vec![0u8; 64];
    bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
    let mut is_dropped = |src: u8, dst: u8| {
        bytes[26..30].copy_from_slice(&[192, 0, 2, src]);
        bytes[30..34].copy_from_slice(&[10, 0, 0, dst]);
        // The kernel takes a link header away before a socket's program sees the packet.
        let taken: &[u8] = if hook == "socket" { &[0; 14] } else { &[] };
        std::fs::write(&packet, [taken, &bytes].concat()).expect("room for a file");
        let ran = tool(&["prog", "run", "pinned", &program, "data_in", &packet]);
        let (drop, pass) = match hook {
            "xdp" => ("1", "2"),
            "tc" => ("2", "0"),
            "cgroup-skb" => ("0", "1"),
            _ => ("0", "262144"),
        };
        let verdict = ran.trim_start_matches("Return value: ").split(',').next().unwrap_or_default();
        assert!(verdict == drop || verdict == pass, "{hook}: {ran}");
        verdict == drop
    };
    assert_eq!([1, 2, 7].map(|src| is_dropped(src, 1)), [true, true, false], "{hook}");
    tool(&["map", "update", "name", &bad, "key", "192", "0", "2", "7", "value", "1"]);
    tool(&["map", "delete", "name", &bad, "key", "192", "0", "2", "1"]);
    assert_eq!([1, 2, 7].map(|src| is_dropped(src, 1)), [false, true, true], "{hook}");
    let key = "31 0 0 0 10 0 0 0".split(' ');
    tool(&["map", "update", "pinned", &nets, "key"].into_iter().chain(key).chain(["value", "1"]).collect::<Vec<_>>());
    assert_eq!([1, 2].map(|dst| is_dropped(9, dst)), [true, false], "{hook}");
    let dumped = tool(&["-j", "map", "dump", "pinned", &nets]);
    assert!(dumped.contains("prefixlen"), "{dumped}");
    // By processor, of packets that match.
    let counters = format!("{maps}/counters");
    let counted = |key: &str| -> u64 {
        let shown = tool(&["map", "lookup", "pinned", &counters, "key", key, "0", "0", "0"]);
        let packets = shown.lines().filter_map(|line| line.trim().strip_prefix("\"packets\": "));
        packets.map(|n| n.trim_end_matches(',').parse::<u64>().expect("a number")).sum()
    };
    assert_eq!((counted("0"), counted("1")), (3, 5), "{hook}");
    std::fs::remove_dir_all(&pins).expect("what is pinned goes");
}

/// Fields at both sides of what an instruction reaches from its address (32 KiB) and near what the verifier follows (64 KiB), at places
/// that stand in the packet themselves: programs for hooks answer as the interpreter does, and the kernel takes them.
#[test]
fn fields_far_into_packets_are_found() {
    const FAR: [&str; 14] = [
        "ether[40001] = 1",
        "ether[40000] > 2",
        "ether[ip[0]] = 2",
        "ether[ether[40000]] = 3",
        "ether[ether[40001]] = 1",
        "ether[32767] = 1",
        "ether[32768:2] > 0x100",
        "ether[65534] = 1",
        "tcp[4097] = 1",
        "tcp[5000] = tcp[4097]",
        "tcp[40000] + ether[40001] > 3",
        "ether[ip[2:2]] = 1",
        "ether[4 * (ether[40001] & 15) : 2] < 0x200",
        "tcp[tcp[5000:2] & 0xf] = 1",
    ];
    let path = capture("far.pcap");
    let mut random = fastrand::Rng::with_seed(9);
    let packets: Vec<Vec<u8>> = (0..6)
        .map(|i| {
            let mut packet: Vec<u8> = (0..65_535).map(|_| random.u8(0..5)).collect();
            packet[12..14].copy_from_slice(&[8, 0]);
            // A header of 20 bytes, and where `ether[ip[2:2]]` is.
            (packet[14], packet[20], packet[21], packet[23]) = (0x45, 0, 0, 6);
            let far = [60u16, 61_440, 65_500, 65_534, 65_535, 40_000][i];
            packet[16..18].copy_from_slice(&far.to_be_bytes());
            packet.truncate([65_535, 65_535, 65_535, 65_535, 65_535, 40_001][i]);
            packet
        })
        .collect();
    let mut bytes: Vec<u8> = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 262_144, 1].map(u32::to_ne_bytes).concat();
    for (i, packet) in packets.iter().enumerate() {
        let length = packet.len() as u32;
        bytes.extend([1u32, 0, length, length].map(u32::to_ne_bytes).concat());
        bytes.extend(packet);
        std::fs::write(path.with_file_name(format!("far{i}.bin")), packet).expect("room");
    }
    std::fs::write(&path, bytes).expect("room for a file");
    let (read, out) = (path.to_str().expect("plain text"), path.with_file_name("far.o"));
    let object = out.to_str().expect("plain text");
    let (mut matched, mut all) = (0, 0);
    for round in 0..12 {
        let text: Vec<&str> = (0..3).map(|_| FAR[random.usize(0..FAR.len())]).collect();
        let text = match round {
            // What each byte is stands where the last one is read.
            0 => "ether[40001] = 1 and ether[ip[0]] = 2 and ether[40000] > 2 and ether[ether[40000]] = 3".to_owned(),
            _ => text.join(if round % 3 == 0 { " and " } else { " or " }),
        };
        let wanted = bpf_opt(["filter", "--read", read, "--verdicts", "--engine", "interpreter", &text]).out;
        for (hook, optimized) in [("xdp", true), ("xdp", false), ("tc", true), ("tc", false)] {
            let plainly: &[&str] = if optimized { &[] } else { &["--no-optimize"] };
            bpf_opt(["filter", "--hook", hook, "-o", object].iter().chain(plainly).chain(&["--", &text])).expect(0);
            if permitted() {
                let loaded = bpf_kernel::LoadedObject::load_file(&out, &bpf_kernel::LoadOptions::default());
                loaded.unwrap_or_else(|e| panic!("{hook} {plainly:?} {text}: {e}"));
            }
            // XDP_PASS, TC_ACT_OK
            let passes = if hook == "xdp" { "r0 = 0x2" } else { "r0 = 0x0" };
            for (i, wanted) in wanted.lines().enumerate() {
                let packet = path.with_file_name(format!("far{i}.bin"));
                let ran = bpf_opt(["run", object, "--packet-file", packet.to_str().expect("plain text")]).expect(0).out;
                let ran = ran.lines().next().unwrap_or_default();
                assert_eq!(ran.starts_with(passes), wanted != "0", "{hook} {plainly:?} {text}: packet {i}: {ran}");
                matched += u32::from(wanted != "0");
                all += 1;
            }
        }
    }
    assert!(all > 200 && matched > 50 && all - matched > 50, "{matched} of {all} match");
}

#[test]
fn fields_that_the_verifier_does_not_follow_are_warned_of() {
    let out = capture("beyond.pcap").with_file_name("beyond.o");
    let object = out.to_str().expect("plain text");
    let warned = |args: &[&str], text| {
        let ran = bpf_opt(["filter", "-o", object].iter().chain(args).chain(&["--", text])).expect(0);
        ran.err.contains("follows a program for 65535 bytes")
    };
    for args in [&["--hook", "xdp"][..], &["--hook", "tc", "--no-optimize"], &["--function", "data"]] {
        assert!(warned(args, "ether[65535] = 1 or ip"), "{args:?}");
        assert!(warned(args, "ip6 or tcp[65530] = 1"), "{args:?}");
        assert!(!warned(args, "ether[65534] = 1 or tcp[65000] = 1 or ip"), "{args:?}");
    }
    assert!(!warned(&["--hook", "socket"], "ether[65535] = 1 or ip"));
}

/// XDP programs see of a larger packet what is in its first piece.
#[test]
fn the_kernel_is_not_asked_about_packets_in_pieces() {
    if !permitted() {
        return;
    }
    let path = capture("pieces.pcap");
    let (read, out) = (path.to_str().expect("plain text"), path.with_extension("out"));
    let write = |length: usize| {
        let mut bytes: Vec<u8> = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 262_144, 1].map(u32::to_ne_bytes).concat();
        bytes.extend([1u32, 0, length as u32, length as u32].map(u32::to_ne_bytes).concat());
        let mut packet = vec![0; length];
        packet[length - 1] = 7;
        bytes.extend(packet);
        std::fs::write(&path, bytes).expect("room for a file");
    };
    for length in [3000, 3519, 3520, 3521, 9000] {
        write(length);
        let text = format!("ether[{}] = 7 and len = {length}", length - 1);
        for more in [&["--count"][..], &["--verdicts"], &["--report"], &["-w", out.to_str().expect("plain text")]] {
            let args = ["filter", "--read", read, "--engine", "kernel"];
            let ran = bpf_opt(args.iter().chain(more).chain(&["--", &text]));
            if length <= 3520 {
                let said = ["1\n", "262144\n", "1 of 1 packets match"];
                assert!(ran.code == Some(0) && said.iter().any(|s| ran.out.starts_with(s)), "{more:?}: {ran:?}");
            } else {
                assert_eq!(ran.code, Some(2), "{more:?}: {}", ran.err);
                assert!((ran.out.is_empty() || ran.out.starts_with('0')) && ran.err.contains("packet 1: "), "{ran:?}");
                assert!(ran.err.contains("in one piece"), "{}", ran.err);
            }
        }
    }
}

#[test]
fn an_object_is_there_only_if_all_that_goes_with_it_is() {
    let folder = capture("outputs.pcap").with_file_name("outputs");
    std::fs::create_dir_all(&folder).expect("a folder");
    let bad = folder.join("bad.txt");
    std::fs::write(&bad, "10.0.0.1\n").expect("room");
    let path = |name: &str| folder.join(name).to_str().expect("plain text").to_owned();
    let (object, header, contents) = (path("y.o"), path("y.h"), path("y.batch"));
    let set = format!("BAD={}", bad.display());
    for [o, h, c] in
        [[&object[..], &header, "/dev/full"], [&object, "/dev/full", &contents], ["/dev/full", &header, &contents]]
    {
        let args = ["filter", "--function", "data", "--set", &set, "--updatable", "BAD", "host $BAD"];
        let ran = bpf_opt(args.iter().chain(&["-o", o, "--header", h, "--map-contents", c]));
        assert_eq!(ran.code, Some(2), "{}", ran.err);
        for file in [&object, &header, &contents] {
            assert!(!Path::new(file).exists(), "{file} with {o}, {h}, {c}");
        }
    }
}

/// A capture that is written is complete, or what was there before stays.
#[test]
fn a_capture_is_written_whole_or_not_at_all() {
    let path = capture("whole.pcap");
    let (read, out) = (path.to_str().expect("plain text"), path.with_file_name("whole.out.pcap"));
    let write = out.to_str().expect("plain text");
    // The second packet has another link type, which a pcap file cannot hold.
    let block = |kind: u32, body: &[u8]| {
        let length = (body.len() as u32 + 12).to_le_bytes();
        [&kind.to_le_bytes()[..], &length, body, &length].concat()
    };
    let interface = |link: u32| block(1, &[link, 0].map(u32::to_le_bytes).concat());
    let packet = |interface: u32| {
        block(6, &[&[interface, 0, 0, 60, 60].map(u32::to_le_bytes).concat()[..], &[0x45; 60]].concat())
    };
    let header = block(0x0a0d_0d0a, &[0x1a2b_3c4du32, 1, u32::MAX, u32::MAX].map(u32::to_le_bytes).concat());
    let bytes = [header, interface(1), interface(101), packet(0), packet(1)].concat();
    std::fs::write(&path, bytes).expect("room for a file");
    std::fs::write(&out, "as it was").expect("room for a file");
    let ran = bpf_opt(["filter", "--read", read, "-w", write, ""]);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.contains("another link type"), "{}", ran.err);
    assert_eq!(std::fs::read(&out).expect("the file"), b"as it was");
    let folder = std::fs::read_dir(path.parent().expect("a folder")).expect("a folder");
    let left = folder.filter_map(Result::ok).filter(|e| e.file_name().to_string_lossy().starts_with(".bpf-opt-"));
    assert_eq!(left.count(), 0);
    let ran = bpf_opt(["filter", "--read", read, "-w", write, "ether[0] = 0x45 and ip6"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(std::fs::read(&out).expect("the file").len(), 24);
    // As a profile it speaks for the packets of the filter's link type.
    let ran = bpf_opt(["filter", "--read", read, "--profile", read, "--verdicts", "ip and ip[0] = 0x45"]).expect(0);
    assert!(ran.err.contains("1 packets of other link types than EN10MB are not looked at"), "{}", ran.err);
    assert_eq!(ran.out, "0\n262144\n");
}

/// What is wrong is named, and why.
#[test]
fn sets_and_their_names_are_told_apart() {
    let path = capture("sets.pcap");
    let (list, out) = (path.with_extension("txt"), path.with_extension("o"));
    std::fs::write(&list, "10.0.0.1\n10.0.0.300\nlocalhost\n").expect("room for a file");
    let file = list.to_str().expect("plain text");
    let run = |name: &str, entries: &str, more: &[&str]| {
        std::fs::write(&list, entries).expect("room for a file");
        let (set, text) = (format!("{name}={file}"), format!("host ${name}"));
        let args = ["filter", "--hook", "xdp", "-o", out.to_str().expect("plain text"), "--set", &set];
        bpf_opt(args.iter().copied().chain(more.iter().copied()).chain([&text[..]]))
    };
    for (name, entries, updatable, said) in [
        ("BAD", "10.0.0.1\n10.0.0.300\n", "BAD", "\"10.0.0.300\" in the set \"BAD\""),
        ("BAD", "10.0.0.1\nlocalhost\n", "BAD", "\"localhost\" in the set \"BAD\""),
        ("BAD", "10.0.0.1\n10.0.0.0/8\n", "BAD:ipv4", "\"10.0.0.0/8\" in the set \"BAD\": a network among addresses"),
        ("BAD", "10.0.0.1\n::1\n", "BAD:ipv4", "\"::1\" in the set \"BAD\": a kind that was not named"),
        ("r10", "10.0.0.1\n", "r10", "registers"),
        ("9a", "10.0.0.1\n", "9a", "a letter, then"),
    ] {
        let ran = run(name, entries, &["--updatable", updatable]);
        assert_eq!(ran.code, Some(2), "{name}: {}", ran.err);
        assert!(ran.err.contains(said), "{said}: {}", ran.err);
    }
    for name in ["_x", "a b", "a_", ""] {
        let ran = run(name, "10.0.0.1\n", &[]);
        assert_eq!(ran.code, Some(2), "{name}: {}", ran.err);
        assert!(ran.err.contains("no filter can write"), "{}", ran.err);
    }
    let ran = bpf_opt(["filter", "-d", "host $_x"]);
    assert!(ran.err.contains("begins with a letter or a digit"), "{}", ran.err);
}

/// tcpdump takes comments in the file of a filter, too.
#[test]
fn files_of_filters_have_comments() {
    let path = capture("comments.pcap");
    let file = path.with_extension("filter");
    std::fs::write(&file, "# what is wanted\ntcp port 80 # or not\n  or udp#\n# and arp").expect("room for a file");
    let ran = bpf_opt(["filter", "-d", "-F", file.to_str().expect("plain text")]);
    assert_eq!((ran.code, ran.out), (Some(0), bpf_opt(["filter", "-d", "tcp port 80 or udp"]).out), "{}", ran.err);
}

#[test]
fn functions_are_not_called_as_something_else_is() {
    let out = capture("names.pcap").with_file_name("names.o");
    let object = out.to_str().expect("plain text");
    for name in ["bitmap_0", "displacements_0", "word0_0", "slots_1", "license", "_x", "_Bool", "thread_local", "main"]
    {
        let ran = bpf_opt(["filter", "--function", "data", "--name", name, "-o", object, "ip"]);
        assert_eq!(ran.code, Some(2), "{name}: {}", ran.err);
        assert!(ran.err.contains(name) && !out.exists(), "{name}: {}", ran.err);
    }
}

/// What prints to a device that takes nothing fails; that nobody reads on is no error.
#[test]
fn what_cannot_be_printed_is_an_error() {
    let path = capture("full.pcap");
    let name = path.to_str().expect("plain text");
    let object = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/allow_list.o");
    let commands: &[&[&str]] = &[
        &["filter", "-ddd", "ip"],
        &["filter", "-d", "ip"],
        &["filter", "--emit", "ast", "ip"],
        &["filter", "--emit", "cfg", "ip"],
        &["filter", "--emit", "stats", "ip"],
        &["filter", "--emit", "asm", "ip"],
        &["filter", "--read", name, "ip"],
        &["filter", "--read", name, "--verdicts", "ip"],
        &["filter", "--read", name, "--count", "ip"],
        &["filter", "--read", name, "--report", "ip"],
        &["filter", "--read", name, "-w", "-", "ip"],
        &["filter", "ip", "--hook", "xdp", "-o", "-"],
        &["filter", "ip", "--function", "data", "--header", "-"],
        &["dis", object],
        &["dis", "--cfg", object],
        &["dis", "--ssa", object],
        &["verify", object, object],
        &["inputs", object],
        &["verify", object, object, "--json", "-"],
        &["--help"],
        &["filter", "--help"],
    ];
    for arguments in commands {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("it is there");
        let out = command().args(*arguments).stdout(full).output().expect("it runs");
        let told = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{arguments:?}: {told}");
        assert!(told.contains("No space left"), "{arguments:?}: {told}");
    }
    for arguments in commands.iter().filter(|all| !all.ends_with(&["-w", "-", "ip"]) && !all.ends_with(&["-o", "-"])) {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let out = command().args(*arguments).stdout(writer).output().expect("it runs");
        let told = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() != Some(2) && !told.contains("standard output"), "{arguments:?}: {told}");
    }
}

/// Packets, or an object, are all that standard output has then.
#[test]
fn standard_output_holds_one_thing() {
    let path = capture("mixed.pcap");
    let name = path.to_str().expect("plain text");
    for arguments in [
        &["filter", "--read", name, "-w", "-", "--verdicts", "ip"][..],
        &["filter", "--read", name, "-w", "-", "--count", "ip"],
        &["filter", "ip", "--hook", "xdp", "-o", "-", "--emit", "asm"],
        &["filter", "ip", "--hook", "xdp", "-o", "-", "-d"],
        &["filter", "ip", "--function", "data", "-o", "-", "--header", "-"],
    ] {
        let ran = bpf_opt(arguments);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains("standard output"), "{arguments:?}: {}", ran.err);
    }
    // The report stands elsewhere then.
    let out = command().args(["filter", "--read", name, "-w", "-", "--report", "ip"]).output().expect("it runs");
    assert!(out.status.success() && out.stdout.len() == 24 + 16 + 60);
    let out = command().args(["filter", "ip", "--hook", "xdp", "--report", "-o", "-"]).output().expect("it runs");
    assert!(out.status.success() && out.stdout.starts_with(b"\x7fELF"));
    assert!(String::from_utf8_lossy(&out.stderr).contains("map report"));
}

#[test]
fn what_the_kernel_does_not_take_is_warned_of() {
    let ran = bpf_opt(["filter", "ip protochain 6"]).expect(0);
    assert!(ran.err.contains("it has a loop"), "{}", ran.err);
    assert!(!bpf_opt(["filter", "ip proto 6"]).err.contains("loop"));
}

#[test]
fn long_words_are_shortened_in_messages() {
    let word = "9".repeat(100_000);
    let path = capture("long.pcap").with_extension("txt");
    for form in [
        "port W",
        "host Wx",
        "ip[W] = 1",
        "net W",
        "tcp W@",
        "vlan W",
        "port xW",
        "portrange W-1",
        "proto xW",
        "host $W",
    ] {
        let text = form.replace('W', &word);
        std::fs::write(&path, &text).expect("room for a file");
        let ran = bpf_opt(["filter", "-F", path.to_str().expect("plain text")]);
        assert_eq!(ran.code, Some(2), "{}", form);
        assert!(ran.err.len() < 2000, "{form}: {} bytes", ran.err.len());
    }
}
