//! The document holds what was measured, and its plots are there.

use bpf_figures::document::{Report, write};
use bpf_figures::filters::{chains, tcp_with_hosts};
use bpf_figures::points::{Extent, Runner, measure};
use bpf_pcap_oracle::Libpcap;

#[test]
fn a_small_measurement_becomes_a_document_with_plots() {
    let extent = Extent { packets: 16, rounds: 1, kernel_packets: 1, repetitions: 1, seed: 1 };
    let libpcap = Libpcap::load();
    let mut points = Vec::new();
    for subject in chains().into_iter().take(2).chain(tcp_with_hosts(&[1, 4], 1)) {
        points.extend(measure(&subject, libpcap.as_ref(), None, false, extent).expect("measured"));
    }
    assert_eq!(points.len(), 12);
    assert!(points.iter().all(|p| p.nanoseconds.contains_key(&Runner::Jit) && !p.nanoseconds.contains_key(&Runner::C)));
    let folder = tempfile::tempdir().expect("a folder");
    let missing = vec!["the kernel".to_owned()];
    let report = Report { machine: "Here.".into(), missing, extent, points, hosts: Vec::new(), against: Vec::new() };
    write(&report, folder.path()).expect("written");
    let text = std::fs::read_to_string(folder.path().join("filter-figures.md")).expect("the document");
    assert!(text.contains("Left out: the kernel.") && text.contains("| hosts, 4 | half |"), "{text}");
    for figure in 6..=9 {
        let plot = std::fs::read_to_string(folder.path().join(format!("figures/filter-{figure}.svg"))).expect("a plot");
        assert!(plot.starts_with("<svg") && plot.trim_end().ends_with("</svg>"));
    }
}
