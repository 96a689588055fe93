//! Sets of packets are what they are called, by libpcap's word.

use bpf_figures::filters::{chains, tcp_with_hosts};
use bpf_figures::packets::{Matching, packet_sets};
use bpf_pcap_oracle::Libpcap;
use bpf_pcap_oracle::library::NETMASK_UNKNOWN;

#[test]
fn all_half_or_none_of_a_set_are_accepted_by_libpcap() {
    let Some(libpcap) = Libpcap::for_test() else { return };
    for subject in chains().into_iter().chain(tcp_with_hosts(&[1, 16], 3)) {
        let program = libpcap.compile(&subject.expression, 1, 262_144, true, NETMASK_UNKNOWN).expect("a filter");
        for set in packet_sets(&subject.expression, 60, 3).expect("packets") {
            let accepted = set.packets.iter().filter(|p| libpcap.run(&program, p, p.len() as u32) != 0).count();
            let wanted = match set.matching {
                Matching::All => 60,
                Matching::Half => 30,
                Matching::None => 0,
            };
            assert_eq!(
                (accepted, set.packets.len()),
                (wanted, 60),
                "{} of {}",
                set.matching.name(),
                subject.expression
            );
        }
    }
}

#[test]
fn a_seed_gives_the_same_packets() {
    let sets = |seed| packet_sets("tcp port 80", 40, seed).expect("packets");
    assert_eq!(sets(1), sets(1));
    assert_ne!(sets(1), sets(2));
}

#[test]
fn what_no_packet_matches_is_an_error() {
    assert!(packet_sets("ip src host 1.2.3.4 and ip src host 1.2.3.5", 1, 1).is_err());
}
