//! Programs: compiled, read from listings, run by the library and by our own interpreter.

use std::net::Ipv4Addr;

use bpf_pcap_oracle::data::{Accept, Data};
use bpf_pcap_oracle::library::NETMASK_UNKNOWN;
use bpf_pcap_oracle::{Libpcap, Program, interpreter};

/// `DLT_EN10MB`
const ETHERNET: u16 = 1;

fn netmask(record: &Accept) -> u32 {
    let Some(mask) = &record.netmask else { return NETMASK_UNKNOWN };
    u32::from_ne_bytes(mask.parse::<Ipv4Addr>().expect("a netmask").octets())
}

#[test]
fn compiles_and_reports_errors() {
    let Some(pcap) = Libpcap::for_test() else { return };
    let program = pcap.compile("tcp", ETHERNET, 65535, true, NETMASK_UNKNOWN).unwrap();
    assert_eq!(program.instructions.last().unwrap().k, 0);
    assert!(pcap.valid(&program));
    let error = pcap.compile("ip broadcast", ETHERNET, 65535, true, NETMASK_UNKNOWN).unwrap_err();
    assert!(error.contains("netmask not known"), "{error}");
    assert!(pcap.compile("tcp\0", ETHERNET, 65535, true, 0).is_err());
    assert_eq!(pcap.dlt("EN10MB"), Some(ETHERNET));
    assert_eq!(pcap.dlt_name(ETHERNET).as_deref(), Some("EN10MB"));
    assert_eq!(pcap.dlt("NOTHING"), None);
}

#[test]
fn refuses_programs_that_leave_themselves() {
    let Some(pcap) = Libpcap::for_test() else { return };
    let mut program = pcap.compile("tcp", ETHERNET, 65535, false, NETMASK_UNKNOWN).unwrap();
    program.instructions.pop();
    assert!(!pcap.valid(&program));
    assert!(!pcap.valid(&Program::default()));
}

/// The listings were made by libpcap 1.11; most of the code that the installed version makes is the same.
#[test]
fn listings_are_what_the_library_compiles() {
    let (Some(data), Some(pcap)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let (mut same, mut other, mut refused) = (0, 0, 0);
    let plain = |r: &Accept| !r.linux_extensions() && r.generate_offline_filter.is_none() && r.skip.is_none();
    for record in data.accept().iter().filter(|r| plain(r)) {
        let Some(dlt) = pcap.dlt(&record.dlt) else { continue };
        let expected = [(record.unoptimized(), false), (record.optimized(), true)];
        for (program, optimize) in expected.into_iter().filter_map(|(p, optimize)| Some((p?, optimize))) {
            assert!(pcap.valid(&program), "{}", record.name);
            for expression in &record.aliases {
                match pcap.compile(expression, dlt, record.snapshot(), optimize, netmask(record)) {
                    Ok(compiled) if compiled == program => same += 1,
                    Ok(_) => other += 1,
                    Err(_) => refused += 1,
                }
            }
        }
    }
    eprintln!("{same} alike, {other} other, {refused} refused by {}", pcap.version());
    // libpcap 1.11 compiles some headers (802.11, PFLOG, MTP2) otherwise than older versions.
    assert!(same > 1_000 && other < same / 2, "{same} alike, {other} other, {refused} refused");
}

#[test]
fn verdicts_are_those_of_the_data() {
    let (Some(data), Some(pcap)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let (mut alike, mut refused, mut other) = (0, Vec::new(), Vec::new());
    for record in data.apply() {
        let path = data.savefile(&record.savefile);
        let program = match pcap.compile_offline(&path, &record.expr, false, NETMASK_UNKNOWN) {
            Ok(program) => program,
            Err(why) => {
                refused.push(format!("{}: {why}", record.expr));
                continue;
            }
        };
        let (packets, end) = bpf_pcap_oracle::data::read(&path).expect("a savefile");
        assert!(end.is_none(), "{end:?}");
        let verdicts = packets.iter().map(|p| pcap.run(&program, &p.captured, p.length));
        // The library's number for all of a packet is its greatest snapshot length.
        let limited = |(verdict, expected): (u32, &u32)| if verdict > 0 { *expected > 0 } else { *expected == 0 };
        assert_eq!(packets.len(), record.results.len(), "{}", record.name);
        let wrong = verdicts.zip(&record.results).filter(|pair| !limited(*pair)).count();
        if wrong > 0 {
            other.push(record.name);
        }
        alike += packets.len() - wrong;
    }
    eprintln!("{alike} verdicts; other verdicts: {other:?}; not compiled by {}: {refused:#?}", pcap.version());
    assert!(alike > 500, "only {alike}");
}

#[test]
fn refused_expressions_are_refused() {
    let (Some(data), Some(pcap)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let (mut taken, mut refused) = (Vec::new(), 0);
    for record in data.reject().into_iter().filter(|r| r.skip.is_none()) {
        let Some(dlt) = pcap.dlt(&record.dlt) else { continue };
        if pcap.compile(&record.expr, dlt, 262_144, false, NETMASK_UNKNOWN).is_ok() {
            taken.push(record.name);
        } else {
            refused += 1;
        }
    }
    eprintln!("taken by {}, but not by 1.11: {taken:?}", pcap.version());
    assert!(refused > 50, "only {refused} refused");
}

/// The interpreter against the library's, with compiled programs over the captures of their link types.
#[test]
fn our_interpreter_means_what_the_library_does() {
    let (Some(data), Some(pcap)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let mut by_dlt = std::collections::BTreeMap::<u16, Vec<Program>>::new();
    for record in data.accept() {
        let Some(dlt) = pcap.dlt(&record.dlt) else { continue };
        by_dlt.entry(dlt).or_default().extend([record.unoptimized(), record.optimized()].into_iter().flatten());
    }
    let mut compared = 0u64;
    for (dlt, programs) in by_dlt {
        let packets = data.packets(dlt);
        let step = packets.len() / 500 + 1;
        for program in &programs {
            for packet in packets.iter().step_by(step) {
                let theirs = pcap.run(program, &packet.captured, packet.length);
                assert_eq!(interpreter::run(program, &packet.captured, packet.length).verdict, theirs, "{program}");
                compared += 1;
            }
        }
    }
    eprintln!("{compared} verdicts alike");
    assert!(compared > 100_000, "only {compared}");
}

/// Random valid programs over random packets: arithmetic, memory, loads around the end of the packet.
#[test]
fn random_programs_mean_the_same() {
    use bpf_pcap_oracle::Instruction;
    let Some(pcap) = Libpcap::for_test() else { return };
    let random = &mut fastrand::Rng::with_seed(14);
    let codes: [u16; 37] = [
        0x00, 0x01, 0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x60, 0x61, 0x80, 0x81, 0xb1, 0x02, 0x03, 0x04, 0x0c, 0x14,
        0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c, 0x64, 0x6c, 0x74, 0x7c, 0x84, 0x94, 0x9c, 0xa4, 0xac,
        0x07,
    ];
    let jumps: [u16; 9] = [0x05, 0x15, 0x1d, 0x25, 0x2d, 0x35, 0x3d, 0x45, 0x4d];
    let mut accepted = 0;
    for _ in 0..20_000 {
        let length = random.usize(4..20);
        // What the words of memory hold at the beginning is not defined.
        let zeroed = (0..16).map(|k| Instruction { code: 0x02, jt: 0, jf: 0, k });
        let mut instructions: Vec<Instruction> = zeroed.collect();
        instructions.extend((0..length).map(|at| {
            let left = (length - at - 1) as u8;
            if left > 0 && random.u8(..4) == 0 {
                let code = random.choice(jumps).unwrap();
                let (jt, jf) = (random.u8(..=left - 1), random.u8(..=left - 1));
                let k = if code == 0x05 { u32::from(jt) } else { random.u32(..4) };
                return Instruction { code, jt, jf, k };
            }
            let code = random.choice(codes).unwrap();
            let k = if [0x34, 0x94].contains(&code) { random.u32(1..9) } else { random.u32(..16) };
            Instruction { code, jt: 0, jf: 0, k }
        }));
        instructions.push(Instruction { code: 0x16, jt: 0, jf: 0, k: 0 });
        let program = Program { instructions };
        assert!(pcap.valid(&program), "{program}");
        let packet: Vec<u8> = (0..random.usize(..24)).map(|_| random.u8(..)).collect();
        let theirs = pcap.run(&program, &packet, 100);
        assert_eq!(interpreter::run(&program, &packet, 100).verdict, theirs, "{program}\n{packet:x?}");
        accepted += usize::from(theirs > 0);
    }
    assert!(accepted > 1_000, "only {accepted}");
}
