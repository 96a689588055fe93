//! What a filter is shown as: its tree, and graphs that Graphviz reads.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use bpf_filter::{LinkType, Options, compile, tree};
use bpf_pcap_oracle::data::Data;

use crate::common::{expressions, options};

/// Reads a graph line by line: each node once, each edge from and to a node that is there. What leaves each node, by label.
fn edges(dot: &str) -> BTreeMap<String, Vec<(String, String)>> {
    let mut lines = dot.lines();
    assert_eq!(lines.next(), Some("digraph filter {"));
    let mut nodes: BTreeSet<&str> = BTreeSet::from(["accept", "reject", "entry"]);
    let mut edges: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let mut named: BTreeSet<&str> = BTreeSet::new();
    let mut closed = false;
    for line in lines {
        assert!(!closed, "{line:?} stands behind the end of {dot}");
        let line = line.trim_start();
        let is_string = |s: &str| {
            let inner = s.strip_prefix("[label=\"").and_then(|s| s.strip_suffix("\"];"));
            inner.is_some_and(|s| !s.replace("\\\\", "").replace("\\\"", "").contains('"'))
        };
        match line.split_once(" -> ") {
            _ if line == "}" => closed = true,
            _ if line.starts_with("node [") || line.starts_with("entry [") || line.starts_with("{ rank=sink;") => {}
            Some(("entry", to)) => named.extend(to.strip_suffix(';')),
            Some((from, to)) => {
                let (to, label) = to.split_once(' ').expect("a label");
                assert!(is_string(label), "{line}");
                named.extend([from, to]);
                let label = label.trim_start_matches("[label=\"").trim_end_matches("\"];");
                edges.entry(from.to_owned()).or_default().push((label.to_owned(), to.to_owned()));
            }
            None => {
                let (name, label) = line.split_once(' ').expect("a name and a label");
                assert!(is_string(label) && nodes.insert(name), "{line}");
            }
        }
    }
    assert!(closed && named.is_subset(&nodes), "{dot}");
    edges
}

/// Whether Graphviz draws it, where that is.
fn drawn(dot: &str) -> Option<bool> {
    let (piped, null) = (Stdio::piped(), Stdio::null());
    let mut child = Command::new("dot").arg("-Tsvg").stdin(piped).stdout(null).spawn().ok()?;
    child.stdin.take()?.write_all(dot.as_bytes()).ok()?;
    child.wait().ok().map(|status| status.success())
}

#[test]
fn graphs_are_graphs() {
    let plainly = Options { optimize: false, ..options(LinkType::EN10MB) };
    let all = Data::for_test().map_or_else(Vec::new, |data| expressions(&data, LinkType::EN10MB, 5));
    let own = ["tcp port 80", "geneve and udp port 53", "ip protochain 51", "", "len % ip[0] = 3", "ip[2:2] > ip[4:2]"];
    for text in all.into_iter().filter(|text| text.len() < 5_000).chain(own.map(str::to_owned)) {
        for options in [&options(LinkType::EN10MB), &plainly] {
            let dot = compile(&text, options).expect("a filter").dot();
            for (node, leaving) in edges(&dot) {
                let labels: Vec<&str> = leaving.iter().map(|(label, _)| &label[..]).collect();
                let ends = [vec!["yes", "no"], [&labels[..labels.len() - 1], &["else"]].concat()];
                assert!(ends.contains(&labels), "{text}: {node} {labels:?}");
            }
            // Large graphs take Graphviz minutes.
            if dot.len() < 2_000 {
                assert_ne!(drawn(&dot), Some(false), "{dot}");
            }
        }
    }
}

#[test]
fn the_graph_as_it_stands_asks_in_the_order_of_the_text() {
    let of = |optimize| {
        compile("tcp[0:2] = 80 or not ip", &Options { optimize, ..Options::default() }).expect("a filter").dot()
    };
    let (plain, optimized) = (of(false), of(true));
    assert!(plain.matches("packet[12:2] = 0x800").count() > 1, "{plain}");
    assert_eq!(optimized.matches("packet[12:2] in {0x800}").count(), 1, "{optimized}");
    assert!(optimized.contains("packet[((packet[14:1] & 0xf) << 0x2) + 14:2] in {0x50}"), "{optimized}");
}

#[test]
fn the_tree_is_that_of_the_text() {
    let options = Options::default();
    assert_eq!(tree("tcp or not udp", &options).expect("a filter"), "or\n  tcp\n  not\n    udp\n");
    let error = tree("tcp or (", &options).expect_err("no filter");
    assert_eq!(error.message, compile("tcp or (", &options).expect_err("no filter").message);
}
