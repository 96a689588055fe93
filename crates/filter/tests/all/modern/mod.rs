//! The modern dialect against a dissector of the test's own, in every form.

mod dissect;
mod packets;

use std::cell::Cell;
use std::time::Instant;

use bpf_filter::{Beside, ClassicGoal, Dialect, EbpfForm, Filter, Form, Hook, LinkType, Options, Packet, compile};
use bpf_kernel::testing::permitted;
use bpf_kernel::{LoadOptions, LoadedObject};
use bpf_pcap_oracle::data::Data;
use bpf_pcap_oracle::interpreter;
use fastrand::Rng;

use crate::common::{link_type, machine_code, options, oracle_form, seen};
use crate::kernel::{hooks, returned, wanted};
use dissect::{Truth, View};

const IP: u32 = 0x0800;
const IP6: u32 = 0x86dd;
const ANY: [u32; 3] = [132, 6, 17];
const BOTH: [bool; 2] = [true, false];

/// An expression, and what it means.
type Meaning = (&'static str, fn(&View) -> Truth);

/// Expressions without parentheses behind tunnels.
const PLAIN: &[Meaning] = &[
    ("tcp", |v| v.proto(6, None)),
    ("udp", |v| v.proto(17, None)),
    ("sctp", |v| v.proto(132, None)),
    ("icmp6", |v| v.proto(58, Some(IP6))),
    ("icmp", |v| v.proto(1, Some(IP))),
    ("igmp", |v| v.proto(2, Some(IP))),
    ("pim", |v| v.proto(103, None)),
    ("ah", |v| v.proto(51, None)),
    ("esp", |v| v.proto(50, None)),
    ("ip", |v| v.is_kind(IP)),
    ("ip6", |v| v.is_kind(IP6)),
    ("arp", |v| v.is_kind(0x0806)),
    ("proto 59", |v| v.proto(59, None)),
    ("ip6 proto 44", |v| v.proto(44, Some(IP6))),
    ("ip6 proto 60", |v| v.proto(60, Some(IP6))),
    ("protochain 6", |v| v.proto(6, None)),
    ("protochain 51", |v| v.proto(51, None)),
    ("not tcp", |v| v.proto(6, None).not()),
    ("port 80", |v| v.port(&ANY, &[0, 2], |n| n == 80)),
    ("tcp dst port 443", |v| v.port(&[6], &[2], |n| n == 443)),
    ("udp src port 53", |v| v.port(&[17], &[0], |n| n == 53)),
    ("sctp port 22", |v| v.port(&[132], &[0, 2], |n| n == 22)),
    ("portrange 1000-2000", |v| v.port(&ANY, &[0, 2], |n| (1000..=2000).contains(&n))),
    ("port 22 or 53 or 80 or 443 or 8080", |v| v.port(&ANY, &[0, 2], |n| [22, 53, 80, 443, 8080].contains(&n))),
    ("not port 53", |v| v.port(&ANY, &[0, 2], |n| n == 53).not()),
    ("tcp[13] & 2 != 0", |v| v.transport_field(6, 13, 1, |n| n & 2 != 0)),
    ("udp[4:2] > 20000", |v| v.transport_field(17, 4, 2, |n| n > 20_000)),
    ("sctp[4:4] & 1 = 1", |v| v.transport_field(132, 4, 4, |n| n & 1 == 1)),
    ("icmp6[0] = 135", |v| v.is_kind(IP6).and(|| v.transport_field(58, 0, 1, |n| n == 135))),
    ("tcp[0] + udp[0] < 600", |v| v.proto(6, None).and(|| v.proto(17, None))),
    ("ip[8] < 5", |v| v.of_kind(IP, 8, 1, |n| n < 5)),
    ("ip6[6] = 0", |v| v.of_kind(IP6, 6, 1, |n| n == 0)),
    ("host 10.0.0.1", |v| v.host(&BOTH, |n| n == 0x0a00_0001)),
    ("src net 10.0.0.0/24", |v| v.host(&[true], |n| n >> 8 == 0x0a_0000)),
    ("ip6 dst host 2001:db8::1", |v| v.host6(&[false], [0x2001_0db8, 0, 0, 1])),
    ("host 2001:db8::2 and tcp", |v| v.host6(&BOTH, [0x2001_0db8, 0, 0, 2]).and(|| v.proto(6, None))),
    ("ip6 multicast", |v| v.of_kind(IP6, 24, 1, |n| n == 255)),
    ("vlan", |v| v.tag(|_| true, None)),
    ("vlan 5", |v| v.tag(|_| true, Some(5))),
    ("vlan 5 and tcp", |v| v.tag(|_| true, Some(5)).and(|| v.proto(6, None))),
    ("vlan 5 and vlan 6", |v| v.tag(|_| true, Some(5)).and(|| v.tag(|_| true, Some(6)))),
    ("not vlan and ip6", |v| v.tag(|_| true, None).not().and(|| v.is_kind(IP6))),
    ("ether proto 0x88a8", |v| v.tag(|n| n == 0x88a8, None).or(v.is_kind(0x88a8))),
    ("ether src 02:00:00:00:00:01", |v| v.mac(&[6], [0x0200, 1])),
    ("vxlan", |v| v.vxlan(None, &|_| Truth::Yes)),
    ("vxlan 5", |v| v.vxlan(Some(5), &|_| Truth::Yes)),
    ("geneve 5", |v| v.geneve(Some(5), &|_| Truth::Yes)),
    ("gre", |v| v.proto(47, None)),
];

/// What is in tunnels.
const SCOPED: &[Meaning] = &[
    ("vxlan (tcp)", |v| v.vxlan(None, &|v| v.proto(6, None))),
    ("vxlan 5 (host 10.0.0.1)", |v| v.vxlan(Some(5), &|v| v.host(&BOTH, |n| n == 0x0a00_0001))),
    ("vxlan (ip) and ip", |v| v.vxlan(None, &|v| v.is_kind(IP)).and(|| v.is_kind(IP))),
    ("geneve (ip6)", |v| v.geneve(None, &|v| v.is_kind(IP6))),
    ("geneve 4 (tcp dst port 80)", |v| v.geneve(Some(4), &|v| v.port(&[6], &[2], |n| n == 80))),
    ("gre (udp)", |v| v.gre(&|v| v.proto(17, None))),
    ("gre (ip6) and not tcp", |v| v.gre(&|v| v.is_kind(IP6)).and(|| v.proto(6, None).not())),
    ("gre (vlan 5)", |v| v.gre(&|v| v.tag(|_| true, Some(5)))),
    ("vxlan (ether src 02:00:00:00:00:01)", |v| v.vxlan(None, &|v| v.mac(&[6], [0x0200, 1]))),
    ("gre (gre (ip))", |v| v.gre(&|v| v.gre(&|v| v.is_kind(IP)))),
];

#[derive(Default)]
struct Counts {
    compared: u64,
    matched: u64,
    /// Accepted by what is there, but rejected for a field that is not.
    cut: u64,
    runs: u64,
}

/// What is to be accepted of a packet; `None`: accepted if the field that the packet does not have is not read before.
fn meant(bytes: &[u8], is_ethernet: bool, meaning: fn(&View) -> Truth) -> Option<bool> {
    let missing = Cell::new(false);
    let truth = meaning(&View::of(bytes, is_ethernet, &missing));
    match truth {
        Truth::Yes if missing.get() => None,
        truth => Some(truth == Truth::Yes),
    }
}

fn modern(link: LinkType) -> Options {
    Options { dialect: Dialect::Modern, ..options(link) }
}

/// Interpreter, machine code and classic BPF against the dissector.
fn here(link: LinkType, packets: &[Vec<u8>], counts: &mut Counts) {
    let is_ethernet = link == LinkType::EN10MB;
    for (expression, meaning) in PLAIN.iter().chain(SCOPED) {
        let begin = Instant::now();
        let filter = match compile(expression, &modern(link)) {
            Ok(filter) => filter,
            Err(e) if !is_ethernet => {
                eprintln!("{link} {expression}: {e}");
                continue;
            }
            Err(e) => panic!("{expression}: {e}"),
        };
        let plain = compile(expression, &Options { optimize: false, ..modern(link) }).expect("a filter");
        for form in [Form::Here, Form::Kernel, Form::Classic(ClassicGoal::Size)] {
            assert_eq!(filter.unproven(form), None, "{form:?} of {link} {expression}");
        }
        let seconds = begin.elapsed().as_secs_f32();
        let jit = machine_code(&filter);
        let before = counts.matched;
        let classic = filter.classic(ClassicGoal::Size).map(oracle_form);
        let of_classic = match &classic {
            Ok(program) => format!("{} classic instructions", program.instructions.len()),
            Err(e) => e.to_string(),
        };
        eprintln!("{link} {expression}: {seconds:.2} s, {} operations, {of_classic}", filter.size());
        for bytes in packets {
            let packet = Packet { captured: bytes, length: bytes.len() as u32, beside: Beside::default() };
            let verdict = filter.run(&packet) != 0;
            let what = || format!("{link} {expression} on {bytes:?}");
            match meant(bytes, is_ethernet, *meaning) {
                Some(meant) => assert_eq!(verdict, meant, "{}", what()),
                None => counts.cut += u64::from(!verdict),
            }
            assert_eq!(plain.run(&packet) != 0, verdict, "not optimized: {}", what());
            if let Some(jit) = &jit {
                assert_eq!(jit.run(&packet), verdict, "machine code: {}", what());
            }
            if let Ok(program) = &classic {
                assert_eq!(
                    interpreter::run(program, bytes, packet.length).verdict != 0,
                    verdict,
                    "classic: {}",
                    what()
                );
            }
            counts.compared += 1;
            counts.matched += u64::from(verdict);
        }
        let matched = counts.matched - before;
        eprintln!("{link} {expression}: {matched} matched");
        // No packet is of both protocols.
        assert!(!is_ethernet || *expression == "tcp[0] + udp[0] < 600" || matched > 2, "{expression}: {matched}");
    }
}

#[test]
fn words_mean_what_a_dissector_finds() {
    let mut random = Rng::with_seed(4);
    let mut ethernet: Vec<Vec<u8>> = (0..9000).map(|_| packets::any(&mut random)).collect();
    let mut raw: Vec<Vec<u8>> = (0..2000).map(|_| packets::network(&mut random, 2).1).collect();
    if let Some(data) = Data::for_test() {
        let captured = |link: LinkType| data.packets(link.0).into_iter().map(|p| p.captured);
        let step = if std::env::var_os("BPF_OPT_PACKETS").is_some() { 1 } else { 7 };
        ethernet.extend(captured(LinkType::EN10MB).step_by(step));
        raw.extend(captured(LinkType::RAW));
    }
    let mut counts = Counts::default();
    here(LinkType::EN10MB, &ethernet, &mut counts);
    here(LinkType::RAW, &raw, &mut counts);
    let Counts { compared, matched, cut, .. } = counts;
    eprintln!("modern: {compared} packets and expressions compared, {matched} matched, {cut} rejected for what is cut");
    assert!(matched > 20_000 && cut * 50 < matched);
}

/// The object of a filter for a hook, loaded; or why there is none.
fn object(filter: &Filter, form: &EbpfForm) -> Result<LoadedObject, String> {
    let object = filter.object_of(form).map_err(|e| e.to_string())?;
    LoadedObject::load(&object, &LoadOptions::default()).map_err(|e| e.to_string())
}

#[test]
fn words_mean_the_same_in_the_kernel() {
    if !permitted() {
        return;
    }
    let mut random = Rng::with_seed(5);
    let frames: Vec<Vec<u8>> = (0..1500).map(|_| packets::any(&mut random)).filter(|p| p.len() >= 54).collect();
    let mut counts = Counts::default();
    for (hook, actions) in hooks() {
        let link = link_type(hook);
        let (mut loaded, mut plain) = (0, 0);
        for (i, (expression, meaning)) in PLAIN.iter().chain(SCOPED).enumerate() {
            let Ok(filter) = compile(expression, &Options { source: hook.source(), ..modern(link) }) else { continue };
            assert_eq!(filter.unproven(Form::Kernel), None, "{hook:?} {expression}");
            let form = EbpfForm::Program { hook, actions, counts: i % 2 == 0 };
            let object = match object(&filter, &form) {
                Ok(object) => object,
                Err(e) => {
                    let e = e.lines().last().unwrap_or_default();
                    eprintln!("{hook:?} {} {expression}: {e:.150}", actions.other);
                    continue;
                }
            };
            let slots = filter.assembly_of(&form).map_or(0, |text| text.lines().filter(|l| l.starts_with(' ')).count());
            eprintln!("{hook:?} {} {expression}: {slots} lines", actions.other);
            loaded += 1;
            plain += u32::from(i < PLAIN.len());
            for bytes in &frames {
                let captured = seen(hook, bytes);
                let wanted = wanted(&filter, captured, actions);
                let what = || format!("{hook:?} {expression} on {bytes:?}");
                if let Some(meant) = meant(captured, link == LinkType::EN10MB, *meaning) {
                    assert_eq!(wanted == actions.matched, meant, "{}", what());
                }
                let Some(returned) = returned(&object, hook, bytes) else {
                    assert!(hook != Hook::Xdp, "{}", what());
                    continue;
                };
                assert_eq!(returned, wanted, "in the kernel: {}", what());
                counts.runs += 1;
                counts.matched += u64::from(wanted == actions.matched);
            }
        }
        eprintln!("{hook:?}: {loaded} loaded, {plain} of them without tunnels");
        // No VLAN tags, and no addresses of Ethernet, are known to a control group.
        let least = PLAIN.len() as u32 - if hook == Hook::CgroupSkb { 6 } else { 0 };
        assert!(plain == least, "{hook:?}: {plain} of {least}");
    }
    eprintln!("modern in the kernel: {} runs, {} matched", counts.runs, counts.matched);
    assert!(counts.matched > 10_000);
}

/// What headers behind headers share is gone through once, wherever the first one begins.
#[test]
fn chains_of_headers_behind_headers_of_varying_length_are_optimized() {
    for dlt in [117, 127, 192] {
        for text in ["port 80", "host 10.0.0.1 and tcp port 80", "tcp[13] & 2 != 0"] {
            let options = Options { dialect: Dialect::Modern, ..options(LinkType(dlt)) };
            let filter = compile(text, &options).expect("a filter");
            assert!(filter.is_optimized(), "{} {text}", LinkType(dlt));
            assert_eq!(filter.unproven(Form::Kernel), None, "{} {text}", LinkType(dlt));
        }
    }
}

/// What both dialects mean by a word they find in the same packets, wherever the network's header begins.
#[test]
fn words_of_ipv4_mean_what_they_mean_in_the_other_dialect() {
    let Some(data) = Data::for_test() else { return };
    let texts = [
        "ip",
        "ip and tcp",
        "ip host 10.0.0.1",
        "ip and tcp port 80",
        "ip and udp",
        "arp",
        "ip[8] > 60",
        "ip and not icmp",
    ];
    let (mut compared, mut accepted) = (0, 0);
    let mut random = Rng::with_seed(9);
    for dlt in [105, 117, 119, 127, 163, 192] {
        let mut packets: Vec<Vec<u8>> = data.packets(dlt).into_iter().map(|p| p.captured).take(200).collect();
        packets.extend((0..200).map(|_| packets::behind_a_varying_header(dlt, &mut random)));
        for text in texts {
            let [theirs, ours] = [Dialect::Libpcap, Dialect::Modern].map(|dialect| {
                compile(text, &Options { dialect, ..options(LinkType(dlt)) })
                    .unwrap_or_else(|e| panic!("{}", e.render(text)))
            });
            let of_this = accepted;
            for bytes in &packets {
                let packet = Packet { captured: bytes, length: bytes.len() as u32, beside: Beside::default() };
                let verdict = theirs.run(&packet) != 0;
                assert_eq!(ours.run(&packet) != 0, verdict, "{} {text} on {bytes:02x?}", LinkType(dlt));
                compared += 1;
                accepted += u32::from(verdict);
            }
            assert!(accepted > of_this || text == "arp", "{} {text}: none is accepted", LinkType(dlt));
        }
    }
    eprintln!("both dialects: {compared} verdicts, {accepted} accepted");
}

/// What is over IPv4 alone has no form over IPv6, and asks for no byte of its header.
#[test]
fn words_over_ipv4_alone_read_nothing_of_ipv6() {
    let mut cut = vec![0; 12];
    cut.extend([0x86, 0xdd, 0x60, 0]);
    let packet = Packet { captured: &cut, length: cut.len() as u32, beside: Beside::default() };
    for text in ["less 120 or icmp[0] = 8", "ip6 or icmp[0] = 8", "less 120 or igmp[0] = 1", "ip6 or not icmp[0] = 8"] {
        let filter = compile(text, &Options { dialect: Dialect::Modern, ..options(LinkType::EN10MB) }).expect(text);
        assert!(filter.run(&packet) != 0, "{text}");
    }
    for text in ["icmp[0] = 8", "icmp[0] != 8", "ip or igmp[0] < 9"] {
        let filter = compile(text, &Options { dialect: Dialect::Modern, ..options(LinkType::EN10MB) }).expect(text);
        assert!(filter.run(&packet) == 0, "{text}");
    }
}

/// IPv6 has another number on each system that writes captures of its packet filter.
#[test]
fn ipv6_behind_pflog_is_that_of_any_system() {
    for (family, is_ip6) in [(10, true), (24, true), (28, true), (30, true), (2, false), (23, false)] {
        let mut bytes = vec![61, family];
        bytes.resize(64, 0);
        bytes.extend([0x60, 0, 0, 0, 0, 20, 6, 64]);
        bytes.resize(64 + 40 + 20, 0);
        (bytes[64 + 40 + 3], bytes[64 + 40 + 12]) = (80, 0x50);
        let packet = Packet { captured: &bytes, length: bytes.len() as u32, beside: Beside::default() };
        for text in ["ip6", "tcp", "port 80", "ip6 and tcp dst port 80"] {
            let modern = compile(text, &Options { dialect: Dialect::Modern, ..options(LinkType::PFLOG) }).expect(text);
            assert_eq!(modern.run(&packet) != 0, is_ip6, "{text}, family {family}");
            let other = compile(text, &options(LinkType::PFLOG)).expect(text);
            assert_eq!(other.run(&packet) != 0, family == 10, "{text}, family {family}");
        }
    }
}
