//! `figures/libpcap.tsv`: which of its numbers can be had here.
//!
//! Its 8,236 Ethernet packets are not those of the folder: 2,173 of them match the filter `net24`, and of the folder's
//! 10,300 only 390 do. So counts of executed instructions are compared for what does not depend on the packets.

use bpf_pcap_oracle::data::{Data, OwnedPacket};
use bpf_pcap_oracle::library::NETMASK_UNKNOWN;
use bpf_pcap_oracle::{Libpcap, Program, interpreter};

/// `DLT_EN10MB`
const ETHERNET: u16 = 1;
/// A filter whose answer is found at once where hardly any packet has a VLAN tag, as in the figures and here.
const SAME_WAY: &str = "vlan-host";

/// Longer expressions, in bytes, take libpcap's optimizer most of a minute.
const LONGEST: usize = 10_000;

/// The greatest and the mean number of instructions that a program executes; long programs get fewer packets.
fn executed(program: &Program, packets: &[OwnedPacket]) -> (u64, f64) {
    let counts: Vec<u64> = packets
        .iter()
        .step_by(1 + program.instructions.len() / 100)
        .map(|p| interpreter::run(program, &p.captured, p.length).executed)
        .collect();
    (counts.iter().copied().max().unwrap_or(0), counts.iter().sum::<u64>() as f64 / counts.len() as f64)
}

#[test]
fn programs_are_as_long_and_run_as_far_as_the_figures_say() {
    let (Some(data), Some(pcap)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let packets = data.packets(ETHERNET);
    let figures = data.figures("libpcap.tsv");
    let column = |name: &str| figures[0].iter().position(|n| n == name).expect("a column");
    let (mut same, mut other) = (0, Vec::new());
    for filter in data.filters() {
        let Some(row) = figures.iter().find(|row| row[0] == filter.name) else { continue };
        if filter.expression.len() > LONGEST {
            continue;
        }
        for (optimize, length, runs) in [(false, "unopt_insns", "exec_unopt"), (true, "opt_insns", "exec_opt")] {
            let Ok(program) = pcap.compile(&filter.expression, ETHERNET, 262_144, optimize, NETMASK_UNKNOWN) else {
                other.push(format!("{} is not compiled", filter.name));
                continue;
            };
            let stated: usize = row[column(length)].parse().expect("a number");
            match program.instructions.len() {
                here if here == stated => same += 1,
                here => other.push(format!("{} {length}: {here} instead of {stated}", filter.name)),
            }
            let (most, mean) = executed(&program, &packets);
            assert!(mean >= 1.0 && most <= program.instructions.len() as u64, "{}", filter.name);
            if filter.name == SAME_WAY {
                assert_eq!(format!("{mean:.1}"), row[column(runs)]);
            }
        }
    }
    eprintln!("{} packets; {same} programs as long as stated; others: {other:#?}", packets.len());
    assert!(same > 60, "{same} alike, others: {other:#?}");
}
