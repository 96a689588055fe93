//! Classic programs: the kernel takes each of them, and there, too, they have the interpreter's verdicts.

use bpf_filter::{
    Beside, Classic, ClassicGoal, Filter, LinkType, MOST_INSTRUCTIONS, Options, Packet, Pass, Passes, compile, has_loop,
};
use bpf_kernel::testing::{ClassicProgram, available};
use bpf_pcap_oracle::data::{Data, OwnedPacket};
use bpf_pcap_oracle::expressions::{Expressions, changed};
use bpf_pcap_oracle::{Libpcap, interpreter};
use fastrand::Rng;

use crate::common::{by_libpcap, expressions, options, oracle_form};

/// Offsets that are negative to the kernel, where it reads what is beside the packet, or headers.
const FAR: [&str; 18] = [
    "ether[0xfffff004] = 0",
    "ether[0xfffff004:1] >= 0 or ip",
    "ip[0xffffeff6] = 0",
    "ether[0xffffffff:4] = 0",
    "ether[0xfffffffe:2] = 0 or len > 0",
    "ether[0xfff00000] = 0x45",
    "ether[0xffe00000:2] >= 0",
    "ether[0xffeffff0:4] >= 0 or tcp",
    "link[-255] >= 0",
    "ether[0x80000000:2] >= 0 or udp",
    "ether[0x7fffffff] >= 0",
    "ether[0x7ffffffe:2] >= 0",
    // Sums that are negative, or wrap.
    "ether[0 - ether[0]] >= 0",
    "ether[0xfff00000 + ether[1]] >= 0",
    "ether[0xffe00000 + ether[12:2]] >= 0 or len >= 0",
    "ether[(ether[0:4] | 0xfff00000) & 0xfff000ff : 2] >= 0",
    "ip[0 - ip[8] : 4] >= 0",
    "ether[(ether[0:4] & 3) - 2 : 2] >= 0 and ether[(ether[0:4] & 3) - 2] >= 0",
];

/// Divisors that are known to be 0 once something is known.
const DIVISIONS: [&str; 7] = [
    "1 / (33 & 80) = 1",
    "1 / (33 & 80) = 1 or ip",
    "ip or ip[8] % (33 & 80) = 1",
    "not (len / (0x10 & 0xf) > 3) or tcp",
    "tcp and ip[2] / (ip[3] & (12 & 3)) = 0",
    // A return stands among the instructions that read memory.
    "64 * ip[14:4] % (len >> (igrp[len] / icmp[9:4]) | 54) > icmp[8] / igrp[24:4] / (sctp[22] | tcp[7])",
    "ip[0] << (len | 64) = 0 and ip[0] >> ip[1] = 0 or ip[9] >> ip[8] >= len << ip[12]",
];

fn in_kernel(instructions: &[Classic]) -> std::io::Result<ClassicProgram> {
    let all: Vec<(u16, u8, u8, u32)> = instructions.iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect();
    ClassicProgram::attach(&all)
}

/// Whether a filter can be attached to a socket here.
fn can_attach() -> bool {
    available(in_kernel(&[Classic { code: 6, jt: 0, jf: 0, k: 1 }])).is_some()
}

/// Loads from places that are negative numbers, of the program's text.
fn negative_loads(instructions: &[Classic]) -> Vec<String> {
    let is_load = |code: u16| matches!(code & 0xe7, 0x20 | 0x40 | 0xa1);
    let all = instructions.iter().enumerate().filter(|(_, i)| is_load(i.code) && i.k >> 31 == 1);
    all.map(|(at, i)| i.listing(at)).collect()
}

/// A packet as a socket of the test sees it: all of it is there.
fn whole(captured: &[u8]) -> Packet<'_> {
    Packet { captured, length: captured.len() as u32, beside: Beside::default() }
}

/// Both classic programs of a filter.
fn programs(filter: &Filter) -> impl Iterator<Item = &[Classic]> {
    [ClassicGoal::Size, ClassicGoal::Time].into_iter().filter_map(|goal| filter.classic(goal).ok())
}

/// Attaches what is not too long, and runs it; how many verdicts there were.
fn compare(expression: &str, filter: &Filter, packets: &[Vec<u8>]) -> usize {
    let mut compared = 0;
    for program in programs(filter).filter(|program| program.len() <= MOST_INSTRUCTIONS) {
        if has_loop(program) {
            assert!(in_kernel(program).is_err(), "{expression}");
            continue;
        }
        assert_eq!(negative_loads(program), Vec::<String>::new(), "{expression:.300}");
        let attached = match in_kernel(program) {
            // As its own code, which is several times as long, it is more memory than a socket's options may take
            // (`sk_filter_charge`, `net.core.optmem_max`).
            Err(e) if e.kind() == std::io::ErrorKind::OutOfMemory && program.len() > MOST_INSTRUCTIONS / 4 => continue,
            attached => attached.unwrap_or_else(|e| panic!("{expression:.300}: {e}")),
        };
        for captured in packets {
            let wanted = filter.run(&whole(captured)) != 0;
            let found = attached.run(captured).expect("a packet that fits").is_some();
            assert_eq!(found, wanted, "{expression:.300} on {captured:02x?}");
            compared += 1;
        }
    }
    compared
}

fn some(packets: &[OwnedPacket], random: &mut Rng, count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|_| changed(&packets[random.usize(0..packets.len())].captured, random)).collect()
}

/// Selections of passes: all, none, and each alone left out.
fn selections() -> Vec<Passes> {
    let without = |pass: &Pass| Passes::of(Pass::ALL.into_iter().filter(|other| other != pass));
    [Passes::default(), Passes::of([])].into_iter().chain(Pass::ALL.iter().map(without)).collect()
}

#[test]
fn what_is_behind_every_packet_rejects() {
    let (Some(data), Some(pcap)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let packets = data.packets(1);
    let mut random = Rng::with_seed(11);
    let mut packets = some(&packets, &mut random, 60);
    // Numbers that make places wrap.
    packets.extend((0..40u8).map(|n| (0..60).map(|i| if i < 4 { n.wrapping_sub(20) } else { i }).collect()));
    let attaches = can_attach();
    let mut compared = 0;
    for expression in FAR.into_iter().chain(DIVISIONS) {
        let theirs = by_libpcap(&pcap, 1, expression).ok();
        let plain = Options { optimize: false, ..options(LinkType::EN10MB) };
        let passes = selections().into_iter().map(|passes| Options { passes, ..options(LinkType::EN10MB) });
        for options in passes.chain([plain]) {
            let filter = compile(expression, &options).unwrap_or_else(|e| panic!("{}", e.render(expression)));
            let jit = filter.jit().ok();
            for captured in &packets {
                let packet = whole(captured);
                let wanted = match &theirs {
                    Some(program) => interpreter::run(program, captured, packet.length).verdict != 0,
                    None => filter.run(&packet) != 0,
                };
                assert_eq!(filter.run(&packet) != 0, wanted, "{expression} on {captured:02x?}");
                assert!(jit.as_ref().is_none_or(|jit| jit.run(&packet) == wanted), "{expression} on {captured:02x?}");
                for program in programs(&filter) {
                    let verdict = interpreter::run(&oracle_form(program), captured, packet.length).verdict != 0;
                    assert_eq!(verdict, wanted, "{expression} on {captured:02x?}");
                }
            }
            assert_eq!(programs(&filter).flat_map(negative_loads).next(), None, "{expression}");
            if attaches {
                compared += compare(expression, &filter, &packets);
            }
        }
    }
    eprintln!("{compared} verdicts in the kernel");
    assert!(!attaches || compared > 20_000);
}

#[test]
fn the_kernel_takes_every_classic_program() {
    if !can_attach() {
        return;
    }
    let Some(data) = Data::for_test() else { return };
    let mut random = Rng::with_seed(5);
    let (mut attached, mut compared) = (0, 0);
    for dlt in [1u16, 12, 113, 105] {
        let packets = data.packets(dlt);
        for expression in expressions(&data, LinkType(dlt), 3) {
            let Ok(filter) = compile(&expression, &options(LinkType(dlt))) else { continue };
            attached += 1;
            compared += compare(&expression, &filter, &some(&packets, &mut random, 6));
        }
    }
    eprintln!("{attached} filters, {compared} verdicts");
    assert!(attached > 100 && compared > 1000, "{attached} filters, {compared} verdicts");
}

#[test]
fn the_kernel_takes_the_classic_programs_of_random_filters() {
    if !can_attach() {
        return;
    }
    let Some(data) = Data::for_test() else { return };
    let packets = data.packets(1);
    let (mut attached, mut compared) = (0, 0);
    for seed in 0..400 {
        let mut random = Rng::with_seed(seed);
        let text = Expressions { random: &mut random }.filter(2);
        let optimize = random.u32(0..4) > 0;
        let Ok(filter) = compile(&text, &Options { optimize, ..options(LinkType::EN10MB) }) else { continue };
        attached += 1;
        compared += compare(&text, &filter, &some(&packets, &mut random, 8));
    }
    eprintln!("{attached} filters, {compared} verdicts");
    assert!(attached > 250 && compared > 4000, "{attached} filters, {compared} verdicts");
}

/// For size no form is longer than that of libpcap's optimizer where it shares what rows of comparisons have in common.
#[test]
fn lists_of_few_are_no_longer_than_those_of_libpcap() {
    let Some(pcap) = bpf_pcap_oracle::Libpcap::for_test() else { return };
    let macs: Vec<String> =
        (1..=12).map(|i| format!("ether host {i:02x}:{:02x}:44:55:66:{:02x}", 7 * i, 9 * i)).collect();
    let mut filters: Vec<String> = (2..=12).map(|n| macs[..n].join(" or ")).collect();
    filters.extend([3, 8].map(|n| format!("({}) and port 80", macs[..n].join(" or "))));
    filters.extend(["! proto (255 or 6 || 132 || 50)", r"ip6 proto (\udp or \icmp)"].map(str::to_owned));
    for text in filters {
        let theirs =
            pcap.compile(&text, 1, 262_144, true, crate::common::NETMASK).expect("a filter").instructions.len();
        let filter = compile(&text, &crate::common::options(LinkType(1))).expect("a filter");
        let ours = [ClassicGoal::Size, ClassicGoal::Time].map(|goal| filter.classic(goal).expect("a form").len());
        eprintln!("{text}: {theirs}, we {ours:?}");
        assert!(ours[0] <= theirs && ours[1] * 10 <= theirs * 13, "{text}: {theirs}, we {ours:?}");
    }
}
