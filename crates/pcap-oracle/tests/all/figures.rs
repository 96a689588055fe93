//! The instructions executed per packet that `figures/libpcap.tsv` states, counted again.

use bpf_pcap_oracle::data::Data;
use bpf_pcap_oracle::library::NETMASK_UNKNOWN;
use bpf_pcap_oracle::{Libpcap, interpreter};

#[test]
fn executed_instructions_are_those_of_the_figures() {
    let (Some(data), Some(pcap)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let packets = data.packets(1);
    eprintln!("{} Ethernet packets", packets.len());
    let figures = data.figures("libpcap.tsv");
    let column = |name: &str| figures[0].iter().position(|n| n == name).expect("a column");
    let columns = [(false, column("exec_unopt")), (true, column("exec_opt"))];
    for filter in data.filters() {
        let Some(row) = figures.iter().find(|row| row[0] == filter.name) else { continue };
        for (optimize, at) in columns {
            let Ok(program) = pcap.compile(&filter.expression, 1, 262_144, optimize, NETMASK_UNKNOWN) else { continue };
            let count = |p: &bpf_pcap_oracle::data::OwnedPacket| interpreter::run(&program, &p.captured, p.length);
            let runs: Vec<_> = packets.iter().map(count).collect();
            let executed = runs.iter().map(|r| r.executed).sum::<u64>() as f64 / runs.len() as f64;
            let matches = runs.iter().filter(|r| r.verdict > 0).count();
            eprintln!("{} {optimize}: {executed:.1} ({}), {matches} ({})", filter.name, row[at], row[column("matches")]);
        }
    }
}
