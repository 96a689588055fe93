//! Each option of `bpf-opt filter` in each mode: it changes what comes out, or it is an error that names it. And what inputs may hold.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use bpf_kernel::testing::{available, in_private_pins, permitted};

use crate::common::{Ran, bpf_opt, command};

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("filter-options");
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn file(name: &str, bytes: &[u8]) -> String {
    let path = folder().join(name);
    std::fs::write(&path, bytes).expect("room for a file");
    path.to_str().expect("plain text").to_owned()
}

/// A capture of Ethernet packets.
fn capture(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes: Vec<u8> = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1].map(u32::to_ne_bytes).concat();
    for packet in packets {
        let length = packet.len() as u32;
        bytes.extend([1u32, 0, length, length].map(u32::to_ne_bytes).concat());
        bytes.extend(packet);
    }
    bytes
}

/// An IPv4 packet of Ethernet with a time to live and a protocol.
fn ip(ttl: u8, protocol: u8) -> Vec<u8> {
    let mut packet = vec![0; 60];
    packet[12..15].copy_from_slice(&[8, 0, 0x45]);
    (packet[22], packet[23]) = (ttl, protocol);
    packet
}

/// What a run gives: what it prints, and the files that it writes. Nothing: it fails, and says that.
fn outcome(args: &[String]) -> Result<Vec<Vec<u8>>, String> {
    let outputs = ["out.o", "out.h", "out.batch", "out.pcap"].map(|name| folder().join(name));
    outputs.iter().for_each(|path| drop(std::fs::remove_file(path)));
    let ran = bpf_opt(["filter"].into_iter().chain(args.iter().map(String::as_str)));
    match ran.code {
        Some(0) => {
            let files = outputs.iter().map(|path| std::fs::read(path).unwrap_or_default());
            Ok(std::iter::once(ran.out.into_bytes()).chain(files).collect())
        }
        code => {
            assert_eq!(code, Some(2), "{args:?}: {}", ran.err);
            assert_eq!(ran.out, "", "{args:?}");
            assert!(outputs.iter().all(|path| !path.exists()), "{args:?}");
            Err(ran.err)
        }
    }
}

/// What is said twice, or of nothing, is told.
#[test]
fn what_has_no_meaning_is_told() {
    let said = bpf_opt(["filter", "--passes", "order,lists,order", "tcp"]).expect(2).err;
    assert!(said.contains("order is named twice"), "{said}");
    let said = bpf_opt(["filter", "--goal", "latency", "--no-optimize", "tcp"]).expect(2).err;
    assert!(said.contains("--goal") && said.contains("as it stands a filter has one form"), "{said}");
    let set = format!("S={}", file("unused.txt", b"10.0.0.1\n"));
    let read = file("unused.pcap", &capture(&[ip(1, 6)]));
    for mode in [&["-d"][..], &["--read", &read, "--count"], &["--emit", "ast"]] {
        let run = |text| bpf_opt(["filter", text, "--set", &set].iter().chain(mode)).expect(0).err;
        assert!(run("tcp").contains("--set S: the filter does not ask for $S"), "{mode:?}");
        assert_eq!(run("tcp or not (udp and host $S)"), "", "{mode:?}");
    }
}

/// Sets that user space changes are asked for what they are, as lists are; and errors have words for it.
#[test]
fn sets_that_user_space_changes_are_asked_for_what_they_are() {
    let object = folder().join("asked.o");
    let object = object.to_str().expect("plain text");
    let lines = [
        ("nets.txt", "10.0.0.0/8\n", "host $S", Some("has networks, and hosts are asked for here")),
        ("nets.txt", "10.0.0.0/8\n", "src $S", Some("'net $S' asks")),
        ("nets.txt", "10.0.0.0 mask 255.0.0.0\n", "host $S", Some("'net $S' asks")),
        ("nets.txt", "2001:db8::/32\n", "net $S or host $S", Some("'net $S' asks")),
        ("nets.txt", "10.0.0.0/8\n", "net $S", None),
        ("hosts.txt", "10.0.0.1\n10.1\n::1/128\n", "host $S", None),
        ("macs.txt", "02:00:00:00:00:01\n", "host $S", Some("has Ethernet addresses, which are not asked for here")),
        ("ports.txt", "80\n", "host $S", Some("has ports, which")),
        ("hosts.txt", "10.0.0.1\n", "port $S", Some("has IPv4 addresses, which")),
    ];
    for (name, entries, text, said) in lines {
        let set = format!("S={}", file(name, entries.as_bytes()));
        let updatable = bpf_opt(["filter", text, "--set", &set, "--updatable", "S", "--hook", "xdp", "-o", object]);
        let list = bpf_opt(["filter", text, "--set", &set, "--hook", "xdp", "-o", object]);
        // A list of ports may be one of hosts, as 'host 80' is.
        let is_refused = said.is_some() && !said.is_some_and(|said| said.starts_with("has ports"));
        assert_eq!(list.code, Some(if is_refused { 2 } else { 0 }), "{text} {entries}: {}", list.err);
        let updatable = updatable.expect(if said.is_some() { 2 } else { 0 }).err;
        assert!(updatable.contains(said.unwrap_or_default()), "{text} {entries}: {updatable}");
    }
}

/// Classic BPF of very long lists is told to be too long, and what has no such limit: in seconds.
#[test]
fn lists_too_long_for_classic_bpf_are_told_so() {
    let hosts: Vec<String> =
        (0..40_000u32).map(|i| std::net::Ipv4Addr::from(i.wrapping_mul(2_654_435_761)).to_string()).collect();
    let set = format!("S={}", file("long.txt", hosts.join("\n").as_bytes()));
    let began = std::time::Instant::now();
    for form in ["-d", "-ddd"] {
        let said = bpf_opt(["filter", "host $S", "--set", &set, form]).expect(2).err;
        assert!(said.contains("the kernel takes 4096 instructions") && said.contains("-o OUT.o --hook HOOK"), "{said}");
        let said = bpf_opt(["filter", "src host $S", "--set", &set, form]).expect(0).err;
        assert!(said.contains("the kernel takes 4096 at most: an object"), "{said}");
    }
    let took = began.elapsed();
    assert!(took.as_secs() < 60, "{took:?}");
}

#[test]
fn each_option_has_an_effect_or_is_an_error() {
    let out = |name: &str| folder().join(name).to_str().expect("plain text").to_owned();
    let read = file("in.pcap", &capture(&[ip(1, 6), ip(1, 17), ip(2, 6), vec![0; 22]]));
    let profile = file("typical.pcap", &capture(&vec![ip(1, 17); 5]));
    let set = format!("S={}", file("set.txt", b"10.0.0.1\n"));
    let [object, header, batch, written] = ["out.o", "out.h", "out.batch", "out.pcap"].map(out);
    let modes: [(&str, &[&str]); 21] = [
        ("read", &["--read", &read]),
        ("read-verdicts", &["--read", &read, "--verdicts"]),
        ("classic", &[]),
        ("d", &["-d"]),
        ("dd", &["-dd"]),
        ("ddd", &["-ddd"]),
        ("d-socket", &["-d", "--hook", "socket"]),
        ("latency", &["-d", "--goal", "latency"]),
        ("ast", &["--emit", "ast"]),
        ("cfg", &["--emit", "cfg"]),
        ("ir", &["--emit", "ir"]),
        ("asm", &["--emit", "asm"]),
        ("stats", &["--emit", "stats"]),
        ("xdp", &["--hook", "xdp", "-o", &object]),
        ("tc", &["--hook", "tc", "-o", &object]),
        ("socket", &["--hook", "socket", "-o", &object]),
        ("xdp-asm", &["--hook", "xdp", "--emit", "asm"]),
        ("data", &["--function", "data", "-o", &object]),
        ("ctx", &["--function", "ctx", "--hook", "tc", "-o", &object]),
        ("header-alone", &["--function", "data", "--header", &header]),
        ("data-asm", &["--function", "data", "--emit", "asm"]),
    ];
    const CLASSIC: [&str; 6] = ["classic", "d", "dd", "ddd", "d-socket", "latency"];
    const PROGRAMS: [&str; 5] = ["asm", "xdp", "tc", "socket", "xdp-asm"];
    const READ: [&str; 2] = ["read", "read-verdicts"];
    let all_but = |those: &[&str]| modes.iter().map(|(name, _)| *name).filter(|name| !those.contains(name)).collect();
    let of = |those: &[&[&'static str]]| -> Vec<&'static str> { those.concat() };
    // What is said of sets is asked of a filter that has one.
    let sets: &[&str] = &["--set", &set];
    let updatable: &[&str] = &["--set", &set, "--updatable", "S"];
    // An option, what stands in both runs beside it, and the modes in which what comes out is another thing with it.
    let (typical, header, written, batch) =
        (["--profile", &profile], ["--header", &header], ["-w", &written], ["--map-contents", &batch]);
    let options: Vec<(&[&str], &[&str], Vec<&str>)> = vec![
        (&["--goal", "latency"], &typical, of(&[&["classic", "d", "dd", "ddd", "d-socket"]])),
        (&["--snaplen", "96"], &[], of(&[&CLASSIC, &["socket", "read-verdicts"]])),
        (&["--match", "drop"], &[], of(&[&PROGRAMS])),
        (&["--count"], &[], of(&[&["read", "xdp", "tc", "socket", "xdp-asm"]])),
        (&["--report"], &[], of(&[&["read", "xdp", "tc", "socket", "xdp-asm"]])),
        (&["--name", "is_it"], &[], of(&[&["data", "ctx", "header-alone"]])),
        (&header, &[], of(&[&["data", "ctx", "data-asm"]])),
        (&written, &[], of(&[&READ])),
        (&["--verdicts"], &[], of(&[&["read"]])),
        (&["--updatable", "S"], sets, all_but(&of(&[&CLASSIC, &READ, &["ast", "header-alone"]]))),
        (&["--max-entries", "77"], updatable, of(&[&["xdp", "tc", "socket", "data", "ctx"]])),
        (&batch, updatable, all_but(&of(&[&CLASSIC, &READ, &["asm", "ast", "cfg", "ir", "stats"]]))),
        (&batch, &[], vec![]),
        (&["--no-optimize"], &[], all_but(&of(&[&READ, &["ast", "header-alone", "latency"]]))),
        (&["--passes", "none"], &[], all_but(&of(&[&READ, &["ast", "header-alone"]]))),
        (&["--engine", "jit", "--report"], &[], vec![]),
        (&["-d"], &["--emit", "ir"], vec![]),
        (&["--emit", "ir"], &["-d"], vec![]),
    ];
    // Options that change how something is made, and not what comes out of it.
    let silent = |option: &str, mode: &str| {
        let is_read = mode.starts_with("read");
        match option {
            "--no-optimize" | "--passes" => is_read || mode == "header-alone",
            "--updatable" => ["header-alone"].contains(&mode),
            // The program is longer for a profile, or as long.
            "--goal" => ["latency", "stats"].contains(&mode),
            "--match" => mode == "stats",
            "--name" => mode == "data-asm",
            // Whether the set's elements fit is looked at; assembly does not show the number.
            "--max-entries" => ["asm", "xdp-asm", "data-asm", "header-alone"].contains(&mode),
            _ => false,
        }
    };
    let (mut compared, mut wrong) = ((0, 0), Vec::new());
    for (option, beside, works_in) in &options {
        for (mode, args) in &modes {
            let text = if option[0] == "--updatable" || beside.contains(&"--set") {
                "host $S"
            } else {
                "ip[8] = 1 and ip[9] = 6"
            };
            // What is no option of the mode itself is asked alone.
            if args.contains(&option[0]) || beside.iter().any(|arg| arg.starts_with('-') && args.contains(arg)) {
                continue;
            }
            let args = || args.iter().chain(*beside).map(|arg| (*arg).to_owned());
            let with = outcome(
                &args().chain(option.iter().map(|arg| (*arg).to_owned())).chain([text.to_owned()]).collect::<Vec<_>>(),
            );
            if works_in.contains(mode) {
                let without = outcome(&args().chain([text.to_owned()]).collect::<Vec<_>>());
                if with.is_err() || with == without {
                    let said = with.err().unwrap_or_else(|| "nothing is changed by it".to_owned());
                    wrong.push(format!("{option:?} in {mode}: {said}"));
                }
                compared.0 += 1;
            } else if silent(option[0], mode) {
                wrong.extend(with.err().map(|said| format!("{option:?} in {mode}: {said}")));
            } else {
                // Several may be without effect then.
                let words = [option[0], "--write", "--updatable", "--profile", "-d", "--report", "--count"];
                match with {
                    Err(said) if words.iter().any(|word| said.contains(word)) => {}
                    Err(said) => wrong.push(format!("{option:?} in {mode}: {said}")),
                    Ok(_) => wrong.push(format!("{option:?} in {mode}: no error")),
                }
                compared.1 += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared.0 > 70 && compared.1 > 150, "{compared:?}");
}

/// What no kernel takes, and what files may hold besides.
#[test]
fn inputs_are_told_apart() {
    let said = |args: &[&str]| bpf_opt(["filter"].iter().chain(args)).expect(2).err;
    let set = format!("S={}", file("bom.txt", b"\xef\xbb\xbf10.0.0.1\n10.0.0.2 # \xe4\n"));
    let args = ["--set", &set, "--updatable", "S", "--hook", "xdp", "--emit", "asm", "host $S"];
    bpf_opt(["filter"].iter().chain(&args)).expect(0);
    for number in ["0", "1073741824", "4294967295"] {
        assert!(said(&[&["--max-entries", number], &args[..]].concat()).contains("--max-entries"));
    }
    let nested = format!("S={}", file("nested.txt", b"$A\n"));
    assert!(said(&["--set", &nested, "host $S"]).contains("a set holds no other set"));
    let filter = file("latin.filter", b"\xef\xbb\xbftcp # f\xfcr alle\nor udp");
    assert_eq!(bpf_opt(["filter", "-F", &filter]).expect(0).out, bpf_opt(["filter", "tcp or udp"]).expect(0).out);
    assert!(said(&["-F", &file("binary.filter", b"tcp\nor \xfc")]).contains("line 2 is not UTF-8"));
    assert!(said(&["--services", "/nowhere/services", "tcp"]).contains("/nowhere/services"));
    assert!(said(&["--read", "-", "--profile", "-", "tcp"]).contains("standard input is taken by --read -"));
}

/// gzip ignores zeros that fill a block of a tape; what else stands behind a member is an error.
#[test]
fn zeros_behind_a_compressed_capture_are_ignored() {
    let bytes = capture(&[ip(1, 6), ip(1, 17)]);
    let gzip = |bytes: &[u8]| {
        let gzip = std::process::Command::new("gzip").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut gzip = gzip.ok()?;
        gzip.stdin.take()?.write_all(bytes).ok()?;
        Some(gzip.wait_with_output().ok()?.stdout)
    };
    let (Some(first), Some(second)) = (gzip(&bytes[..50]), gzip(&bytes[50..])) else { return };
    let zeros = vec![0; 70_000];
    for (parts, is_whole) in [
        (vec![&first, &second], true),
        (vec![&first, &second, &zeros], true),
        (vec![&first, &zeros, &second], true),
        (vec![&first, &second, &zeros, &bytes], false),
    ] {
        let all: Vec<u8> = parts.into_iter().flatten().copied().collect();
        let ran = bpf_opt(["filter", "--read", &file("padded.pcap.gz", &all), "--count", "ip"]);
        assert_eq!((ran.code, ran.out.trim()), (Some(if is_whole { 0 } else { 2 }), "2"), "{}", ran.err);
    }
}

/// A packet that the kernel does not run is named, and what came before is kept.
#[test]
fn packets_before_one_that_the_kernel_does_not_run_are_kept() {
    if !permitted() {
        return;
    }
    let read = file("short.pcap", &capture(&[ip(1, 6), ip(1, 17), vec![0; 5], ip(1, 6)]));
    let written = folder().join("kept.pcap");
    let args =
        ["filter", "--read", &read, "--engine", "kernel", "-w", written.to_str().expect("plain text"), "--count", "ip"];
    let ran = bpf_opt(args);
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), "2\n"), "{}", ran.err);
    assert!(ran.err.contains("packet 3: ") && ran.err.contains("Invalid argument"), "{}", ran.err);
    assert_eq!(std::fs::read(&written).expect("it was written").len(), 24 + 2 * (16 + 60));
}

/// libbpf has nothing to say of an object.
#[test]
fn libbpf_does_not_complain_of_objects() {
    let version = std::process::Command::new("bpftool").arg("version").output().map_err(|e| format!("bpftool: {e}"));
    if !permitted() || available(version).is_none() {
        return;
    }
    let object = file("lines.o", b"");
    let ran = in_private_pins(|| {
        for hook in ["xdp", "tc", "cgroup-skb", "socket"] {
            let args = ["filter", "--hook", hook, "-o", &object, "tcp port 80"];
            Ran::of(command().args(args).output().expect("the binary runs")).expect(0);
            let pin = format!("/sys/fs/bpf/{hook}");
            let out = std::process::Command::new("bpftool").args(["prog", "load", &object, &pin]).output();
            let out = out.expect("bpftool runs");
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(out.status.success() && !said.contains("line info"), "{hook}: {said}");
        }
    });
    available(ran);
}

/// Without --read a filter is for an interface.
#[test]
fn classic_programs_are_those_of_tcpdump_for_an_interface() {
    let listing = |args: &[&str]| bpf_opt(["filter"].iter().chain(args)).expect(0).out;
    assert_eq!(
        listing(&["-d", "outbound"]),
        "(000) ldh      [type]\n(001) jeq      #0x4             jt 2\tjf 3\n(002) ret      #262144\n(003) ret      #0\n"
    );
    assert!(listing(&["-d", "ifindex 5"]).starts_with("(000) ld       [ifidx]\n(001) jeq      #0x5 "));
    assert!(listing(&["-y", "LOOP", "-d", "ip6"]).starts_with("(000) ld       [0]\n(001) jeq      #0xa "));
    // A tag is in the packet, or, at a socket, may be beside it.
    assert!(!listing(&["-d", "vlan 5"]).contains("vlanp"));
    let socket = listing(&["-d", "--hook", "socket", "vlan 5 and tcp"]);
    assert!(socket.contains("[vlanp]") && socket.contains("[vlan_tci]"), "{socket}");
    // The kernel takes no loops.
    let out = command().args(["filter", "-d", "--hook", "socket", "ip6 protochain 6"]).output().expect("it runs");
    assert!(out.status.success() && !String::from_utf8_lossy(&out.stderr).contains("loop"));
    let said = bpf_opt(["filter", "-d", "--hook", "xdp", "ip"]).expect(2).err;
    assert!(said.contains("--hook socket"), "{said}");
    let read = file("live.pcap", &capture(&[ip(1, 6)]));
    let said = bpf_opt(["filter", "--read", &read, "inbound"]).expect(2).err;
    assert!(said.contains("when reading savefiles"), "{said}");
}
