//! Machine code against the interpreter, over filters as people write them.

use std::path::{Path, PathBuf};

use bpf_filter::{Beside, LinkType, Options, Packet, compile};
use fastrand::Rng;

/// The data of issue 14, where it is.
fn shared() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/filter");
    if !folder.exists() {
        println!("skipped: no folder ../shared/filter beside the repository");
        return None;
    }
    Some(folder)
}

/// Link types and expressions of libpcap's own tests.
fn accepted(folder: &Path) -> Vec<(LinkType, String)> {
    let text = std::fs::read_to_string(folder.join("accept.jsonl")).expect("accept.jsonl can be read");
    let mut all = Vec::new();
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let link = LinkType::of_name(line["DLT"].as_str().unwrap_or_default());
        let texts = line["aliases"].as_array().into_iter().flatten().filter_map(|a| a.as_str());
        all.extend(link.into_iter().flat_map(|l| texts.clone().map(move |t| (l, t.to_owned()))));
    }
    all
}

fn filters(folder: &Path) -> Vec<(LinkType, String)> {
    let text = std::fs::read_to_string(folder.join("filters.tsv")).expect("filters.tsv can be read");
    let expressions = text.lines().filter_map(|l| l.split_once('\t'));
    expressions.map(|(_, e)| (LinkType::EN10MB, e.to_owned())).collect()
}

/// The beginnings of packets that filters know, for random ones to be like.
const HEADERS: [&[u8]; 6] = [
    &[
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 80, 0, 1, 0, 0, 64, 6, 0, 0, 10, 1, 2, 3, 10, 4, 5, 6, 0,
        80, 0, 22,
    ],
    &[
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x46, 0, 0, 80, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        0, 53, 0, 53,
    ],
    &[1, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64],
    &[255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 2, 8, 6, 0, 1, 8, 0],
    &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0, 100, 8, 0, 0x45, 0, 0, 80, 0, 1, 0, 0, 64, 6],
    &[0x45, 0, 0, 80, 0, 1, 0, 0, 64, 6, 0, 0, 10, 1, 2, 3, 10, 4, 5, 6, 0, 80, 0, 22],
];

fn packet(rng: &mut Rng) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..rng.usize(60..160)).map(|_| if rng.bool() { 0 } else { rng.u8(..) }).collect();
    if rng.u8(0..8) > 0 {
        let header = rng.choice(HEADERS).expect("one");
        bytes[..header.len()].copy_from_slice(header);
        for _ in 0..rng.usize(0..3) {
            let at = rng.usize(0..header.len());
            bytes[at] = rng.u8(..);
        }
    }
    if rng.u8(0..3) == 0 {
        bytes.truncate(rng.usize(0..=bytes.len()));
    }
    bytes
}

/// Compares both over random packets; `None` if the text is no filter.
fn compare(text: &str, options: &Options, rng: &mut Rng, packets: usize) -> Option<usize> {
    let filter = compile(text, options).ok()?;
    let jit = filter.jit().unwrap_or_else(|e| panic!("{text}: {e}"));
    for _ in 0..packets {
        let captured = packet(rng);
        let vlan = rng.bool().then(|| rng.u16(0..200));
        let beside = Beside { interface: rng.u32(0..3), packet_type: rng.u32(0..5), vlan };
        let packet = Packet { captured: &captured, length: captured.len() as u32 + rng.u32(0..100), beside };
        let expected = filter.run(&packet) != 0;
        assert_eq!(jit.run(&packet), expected, "{text:.300} for {packet:?}\n{}", filter.listing());
    }
    Some(packets)
}

#[test]
fn filters_accept_what_the_interpreter_accepts() {
    if !cfg!(target_arch = "x86_64") {
        return println!("skipped: machine code is written for x86-64 only");
    }
    let Some(folder) = shared() else { return };
    let mut rng = Rng::with_seed(1);
    let (mut compared, mut compiled) = (0, 0);
    for optimize in [true, false] {
        for (link_type, text) in accepted(&folder).into_iter().chain(filters(&folder)) {
            for source in [bpf_filter::Source::File, bpf_filter::Source::Socket] {
                let mut options = Options::default();
                (options.link_type, options.optimize, options.source) = (link_type, optimize, source);
                options.netmask = Some(0xffff_ff00);
                if let Some(n) = compare(&text, &options, &mut rng, 200) {
                    compiled += 1;
                    compared += n;
                }
            }
        }
    }
    println!("{compared} verdicts of {compiled} filters agree");
    assert!(compiled > 2000 && compared > 400_000, "{compiled}, {compared}");
}

/// Arithmetic with all operators, nested loads, and lengths.
fn arithmetic(rng: &mut Rng, depth: u32) -> String {
    let sub = |rng: &mut Rng| arithmetic(rng, depth - 1);
    match rng.u8(0..if depth == 0 { 3 } else { 10 }) {
        0 => rng.u32(0..300).to_string(),
        1 => "len".to_owned(),
        2 => format!("ether[{}:{}]", rng.u32(0..80), [1, 2, 4][rng.usize(0..3)]),
        3 => format!("ip[{}:{}]", sub(rng), [1, 2, 4][rng.usize(0..3)]),
        4 => format!("tcp[{} & 15]", sub(rng)),
        5 => format!("({} / ({} & 7))", sub(rng), sub(rng)),
        6 => format!("({} % ({} & 3))", sub(rng), sub(rng)),
        7 => format!("({} {} ({} & 63))", sub(rng), ["<<", ">>"][rng.usize(0..2)], sub(rng)),
        _ => format!("({} {} {})", sub(rng), ["+", "-", "*", "&", "|", "^"][rng.usize(0..6)], sub(rng)),
    }
}

fn expression(rng: &mut Rng, depth: u32) -> String {
    const SIMPLE: [&str; 12] = [
        "ip",
        "tcp",
        "udp port 53",
        "host 10.1.2.3",
        "net 10.0.0.0/8",
        "port 22 or 80 or 443",
        "vlan",
        "ip6",
        "ip protochain 6",
        "ip6 protochain 58",
        "portrange 20-90",
        "ether multicast",
    ];
    match rng.u8(0..if depth == 0 { 5 } else { 9 }) {
        0 | 1 => format!("({})", SIMPLE[rng.usize(0..SIMPLE.len())]),
        2..=4 => {
            let relation = ["=", "!=", "<", ">", "<=", ">="][rng.usize(0..6)];
            format!("({} {relation} {})", arithmetic(rng, 2), arithmetic(rng, 2))
        }
        5 => format!("(not {})", expression(rng, depth - 1)),
        _ => {
            let operator = ["and", "or"][rng.usize(0..2)];
            format!("({} {operator} {})", expression(rng, depth - 1), expression(rng, depth - 1))
        }
    }
}

#[test]
fn random_filters_accept_what_the_interpreter_accepts() {
    if !cfg!(target_arch = "x86_64") {
        return println!("skipped: machine code is written for x86-64 only");
    }
    let mut rng = Rng::with_seed(2);
    let (mut compared, mut refused) = (0, 0);
    for i in 0..1500 {
        let text = expression(&mut rng, 3);
        let options = Options { optimize: i % 3 > 0, ..Options::default() };
        match compare(&text, &options, &mut rng, 100) {
            Some(n) => compared += n,
            None => refused += 1,
        }
    }
    println!("{compared} verdicts agree; {refused} texts are no filters");
    assert!(compared > 100_000, "{compared}, {refused}");
}
