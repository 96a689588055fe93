//! Classic programs for an interface, as `pcap_open_dead` has one, and what words of memory suffice for.

use bpf_filter::{
    Beside, Classic, ClassicGoal, Filter, LinkType, MOST_INSTRUCTIONS, Options, Packet, Source, compile, has_loop,
};
use bpf_kernel::testing::{ClassicProgram, available};
use bpf_pcap_oracle::data::{Data, OwnedPacket};
use bpf_pcap_oracle::{Libpcap, interpreter};

use crate::common::{NETMASK, by_libpcap, cuts, expressions, options, oracle_form};

/// The verdicts of both classic programs of a filter are those of a program of libpcap; how many there were.
fn compare(text: &str, filter: &Filter, theirs: &bpf_pcap_oracle::Program, packets: &[OwnedPacket]) -> usize {
    let mut compared = 0;
    for goal in [ClassicGoal::Size, ClassicGoal::Time] {
        let Ok(program) = filter.classic(goal) else { continue };
        let ours = oracle_form(program);
        for (i, packet) in packets.iter().enumerate() {
            for packet in cuts(packet, i) {
                let wanted = interpreter::run(theirs, packet.captured, packet.length).verdict != 0;
                let found = interpreter::run(&ours, packet.captured, packet.length).verdict != 0;
                assert_eq!(found, wanted, "{text:.300} on {:02x?}", packet.captured);
                compared += 1;
            }
        }
    }
    compared
}

/// Attached to a socket, a program has the interpreter's verdicts.
fn compare_in_kernel(text: &str, filter: &Filter, program: &[Classic], packets: &[OwnedPacket]) {
    if program.len() > MOST_INSTRUCTIONS || has_loop(program) {
        return;
    }
    let all: Vec<(u16, u8, u8, u32)> = program.iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect();
    let attached = ClassicProgram::attach(&all).unwrap_or_else(|e| panic!("{text:.300}: {e}"));
    for OwnedPacket { captured, .. } in packets {
        let packet = Packet { captured, length: captured.len() as u32, beside: Beside::default() };
        let found = attached.run(captured).expect("a packet that fits").is_some();
        assert_eq!(found, filter.run(&packet) != 0, "{text:.300} on {captured:02x?}");
    }
}

#[test]
fn without_a_capture_programs_are_those_for_an_interface() {
    let (Some(data), Some(pcap)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let (mut filters, mut compared) = (0, 0);
    for dlt in [0u16, 1, 9, 12, 105, 108, 109, 113, 276] {
        let packets: Vec<OwnedPacket> = data.packets(dlt).into_iter().step_by(7).collect();
        let more = ["ip6", "tcp", "host 10.0.0.1", "net 10", "ip or ip6 and udp", "vlan 5 and ip", "ip6 protochain 6"];
        let more = more.into_iter().map(str::to_owned);
        for text in expressions(&data, LinkType(dlt), 5).into_iter().chain(more).filter(|text| text.len() < 20_000) {
            let options = Options { source: Source::Interface, ..options(LinkType(dlt)) };
            let (Ok(theirs), Ok(filter)) =
                (pcap.compile(&text, dlt, 262_144, false, NETMASK), compile(&text, &options))
            else {
                continue;
            };
            filters += 1;
            compared += compare(&text, &filter, &theirs, &packets);
        }
    }
    // Families of IPv6 have this system's number, also where no capture of the folder has such packets.
    let some = data.packets(1)[0].clone();
    for dlt in [0, 108, 109] {
        let theirs = pcap.compile("ip6", dlt, 262_144, false, NETMASK).expect("a filter");
        let filter =
            compile("ip6", &Options { source: Source::Interface, ..options(LinkType(dlt)) }).expect("a filter");
        let packets = [2u32, 10, 24, 28, 30].into_iter().flat_map(|n| [n.to_le_bytes(), n.to_be_bytes()]);
        let packets: Vec<OwnedPacket> = packets
            .map(|family| OwnedPacket { captured: [&family[..], &[0x60; 40]].concat(), length: 44, ..some.clone() })
            .collect();
        compared += compare("ip6", &filter, &theirs, &packets);
    }
    eprintln!("{filters} filters, {compared} verdicts");
    assert!(filters > 100 && compared > 10_000, "{filters} filters, {compared} verdicts");
}

/// What the kernel knows besides is asked as libpcap asks it.
#[test]
fn directions_and_interfaces_are_asked_of_the_kernel() {
    let Some(pcap) = Libpcap::for_test() else { return };
    for dlt in [1u16, 12, 105, 113] {
        for text in ["inbound", "outbound", "ifindex 5", "inbound and tcp", "not outbound and ip"] {
            let options = Options { source: Source::Interface, ..options(LinkType(dlt)) };
            let (theirs, ours) = (pcap.compile(text, dlt, 262_144, false, NETMASK), compile(text, &options));
            assert_eq!(theirs.is_ok(), ours.is_ok(), "{dlt} {text}: {theirs:?}");
            let (Ok(theirs), Ok(ours)) = (theirs, ours) else { continue };
            let beside = |all: Vec<(u16, u32)>| -> Vec<(u16, u32)> {
                let mut all: Vec<_> = all.into_iter().filter(|(code, k)| code & 7 == 0 && *k >> 31 == 1).collect();
                all.dedup();
                all
            };
            let theirs = beside(theirs.instructions.iter().map(|i| (i.code, i.k)).collect());
            let program = ours.classic(ClassicGoal::Size).expect("a form");
            assert_eq!(beside(program.iter().map(|i| (i.code, i.k)).collect()), theirs, "{dlt} {text}");
            // The socket's packets are this host's own.
            if let (1, Some(attached)) = (dlt, available(attach(program))) {
                assert_eq!(attached.run(&[0; 60]).expect("it fits").is_some(), text == "inbound", "{text}");
            }
        }
    }
}

fn attach(program: &[Classic]) -> std::io::Result<ClassicProgram> {
    ClassicProgram::attach(&program.iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect::<Vec<_>>())
}

/// Sums and differences of many terms, and headers behind headers.
#[test]
fn sixteen_words_of_memory_suffice() {
    let (Some(data), Some(pcap)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let packets: Vec<OwnedPacket> = data.packets(1).into_iter().step_by(5).collect();
    let attaches = available(attach(&[Classic { code: 6, jt: 0, jf: 0, k: 1 }])).is_some();
    let terms = |of: &str, op: &str, n: usize| {
        let all: Vec<String> = (0..n).map(|i| of.replace('N', &i.to_string())).collect();
        format!("ip[0] < {}", all.join(op))
    };
    let right = |of: &str, op: &str, n: usize| format!("{}{}", terms(of, &format!("{op}("), n), ")".repeat(n - 1));
    let texts = [
        terms("ip[N]", "+", 20),
        terms("ip[N]", "+", 30),
        terms("tcp[N]", "-", 30),
        terms("(ip[N] / (tcp[N] + 1))", "-", 30),
        right("ip[N]", "-", 16),
        right("(ip[N] - tcp[N])", "-", 16),
        right("(tcp[N] << (tcp[N] & 7))", "-", 12),
        "geneve and geneve and geneve and tcp".to_owned(),
    ];
    let mut compared = 0;
    for text in texts {
        // libpcap's compiler has 16 words, too, and gives some of these up.
        let theirs = by_libpcap(&pcap, 1, &text).ok();
        for optimize in [true, false] {
            let filter = compile(&text, &Options { optimize, ..options(LinkType::EN10MB) });
            let filter = filter.unwrap_or_else(|e| panic!("{}", e.render(&text)));
            let program = filter.classic(ClassicGoal::Size).unwrap_or_else(|e| panic!("{text}: {e}"));
            for OwnedPacket { captured, length, .. } in &packets {
                let packet = Packet { captured, length: *length, beside: Beside::default() };
                let found = interpreter::run(&oracle_form(program), captured, *length).verdict != 0;
                assert_eq!(found, filter.run(&packet) != 0, "{text:.300} on {captured:02x?}");
            }
            compared += theirs.as_ref().map_or(0, |theirs| compare(&text, &filter, theirs, &packets));
            if attaches {
                compare_in_kernel(&text, &filter, program, &packets);
            }
        }
    }
    assert!(compared > 10_000, "{compared}");
}

/// Where headers begin at varying places a filter has a classic form also if it is not optimized, and the smaller one of both is taken.
#[test]
fn headers_at_varying_places_have_a_classic_form() {
    let (Some(data), Some(pcap)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let attaches = available(attach(&[Classic { code: 6, jt: 0, jf: 0, k: 1 }])).is_some();
    let mut compared = 0;
    for (dlt, texts) in [
        (1u16, &["geneve and tcp port 80", "geneve and geneve and tcp port 80", "geneve 5 or host 10.0.0.1"][..]),
        (
            127,
            &[
                "tcp port 80",
                "wlan host 00:11:22:33:44:55 and udp",
                "(wlan host 00:11:22:33:44:55 or wlan host 00:11:22:33:44:66) and (tcp port 80 or udp port 53)",
                "not tcp and host 10.0.0.1 or net 10.0.0.0/8 or type data",
            ],
        ),
        (192, &["tcp port 80", "ip6 and udp"]),
        (117, &["tcp port 80 or icmp"]),
    ] {
        let packets: Vec<OwnedPacket> = data.packets(dlt).into_iter().step_by(3).collect();
        for text in texts {
            let Ok(theirs) = by_libpcap(&pcap, dlt, text) else { continue };
            let sizes = [true, false].map(|optimize| {
                let filter = compile(text, &Options { optimize, ..options(LinkType(dlt)) }).expect("a filter");
                let program = filter.classic(ClassicGoal::Size).unwrap_or_else(|e| panic!("{text}: {e}"));
                compared += compare(text, &filter, &theirs, &packets);
                if attaches {
                    compare_in_kernel(text, &filter, program, &packets);
                }
                program.len()
            });
            eprintln!("{dlt} {text}: {sizes:?}, libpcap's {}", theirs.instructions.len());
            assert!(sizes[0] <= sizes[1], "{dlt} {text}: {sizes:?}");
            assert!(sizes[1] * 10 <= theirs.instructions.len() * 14, "{dlt} {text}: {sizes:?}");
        }
    }
    assert!(compared > 1000, "{compared}");
}
