//! Every form of a filter has the verdicts of libpcap's code before its optimizer, on whole packets and on cut ones.

use std::collections::HashMap;

use bpf_capture::link;
use bpf_filter::{Beside, ClassicGoal, Filter, LinkType, Options, Packet, compile};
use bpf_pcap_oracle::data::{Data, OwnedPacket};
use bpf_pcap_oracle::{Libpcap, Program, interpreter};

use crate::common::{NETMASK, by_libpcap, cuts, forms, needs_names, options, oracle_form};

/// Of the packets of a link type every so-manieth is looked at; `BPF_OPT_PACKETS=1` looks at all.
fn step() -> usize {
    std::env::var("BPF_OPT_PACKETS").ok().and_then(|n| n.parse().ok()).unwrap_or(7)
}

/// The filter's forms.
struct Forms {
    optimized: Filter,
    plain: Filter,
    classic: Vec<Program>,
}

impl Forms {
    fn new(expression: &str, options: &Options) -> Result<Forms, bpf_filter::Error> {
        let optimized = compile(expression, options)?;
        for form in forms() {
            assert_eq!(optimized.unproven(form), None, "{form:?} of {expression:?}");
        }
        assert!(optimized.is_optimized(), "{expression:?}");
        let plain = compile(expression, &Options { optimize: false, ..options.clone() })?;
        let goals = [ClassicGoal::Size, ClassicGoal::Time];
        let classic =
            goals.map(|goal| oracle_form(optimized.classic(goal).expect("every filter here has a classic form")));
        Ok(Forms { optimized, plain, classic: classic.into() })
    }

    fn verdicts(&self, packet: &Packet) -> Vec<bool> {
        let classic = self.classic.iter().map(|p| interpreter::run(p, packet.captured, packet.length).verdict != 0);
        [self.optimized.run(packet) != 0, self.plain.run(packet) != 0].into_iter().chain(classic).collect()
    }
}

/// Arithmetic that a comparison with random expressions found wrong: guards of second operands, bounds that no packet
/// meets, and X in use while both operands are brought.
///
/// The last: a comparison whose answer is known leaves only the check that what it reads is there.
const ARITHMETIC: [&str; 5] = [
    "len & udp[21:4] <= 0xe1",
    "not 0xb54b5a8d & igmp[12:2] <= link[31] | len",
    "arp[0x5 >> len] != link[15:1]",
    "icmp[33:2] < link[-255]",
    "udp src portrange (8080-0 or 20000-68 or 53-323 or 1985-65535 or 21-18268)",
];

#[test]
fn verdicts_are_those_of_libpcap() {
    let (Some(data), Some(pcap)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let mut packets: HashMap<u16, Vec<OwnedPacket>> = HashMap::new();
    let (mut compared, mut mended, mut failed) = (0u64, 0u64, Vec::new());
    // Expressions by link type, with what libpcap 1.11 makes of them where that is known.
    let mut all: Vec<(u16, String, Option<Program>)> = Vec::new();
    for record in data.accept() {
        let Some(link_type) = LinkType::of_name(&record.dlt) else { continue };
        // Words that only other systems' libpcap has.
        let is_elsewhere = record.skip.as_deref().is_some_and(|s| s.contains("skip_os_not") && !s.contains("linux"));
        if is_elsewhere || record.linux_extensions() || record.generate_offline_filter.is_some() {
            continue;
        }
        for alias in &record.aliases {
            all.push((link_type.0, alias.clone(), record.unoptimized()));
        }
    }
    all.extend(data.filters().into_iter().map(|f| (1, f.expression, None)));
    all.extend(ARITHMETIC.map(|expression| (1, expression.to_owned(), None)));
    all.retain(|(_, expression, _)| {
        !needs_names(expression) && !expression.starts_with("_enumerate") && expression.len() < 20_000
    });
    for (dlt, expression, newer) in &all {
        let forms = match Forms::new(expression, &options(LinkType(*dlt))) {
            Ok(forms) => forms,
            Err(e) => panic!("{}: {}", LinkType(*dlt), e.render(expression)),
        };
        let older = by_libpcap(&pcap, *dlt, expression).ok();
        let of_link = packets.entry(*dlt).or_insert_with(|| data.packets(*dlt));
        for (i, packet) in of_link.iter().enumerate().step_by(step()) {
            for packet in cuts(packet, i) {
                let ours = forms.verdicts(&packet);
                assert!(ours.iter().all(|v| *v == ours[0]), "forms of {expression:?} disagree: {ours:?} on {packet:?}");
                let run = |p: &Program| interpreter::run(p, packet.captured, packet.length).verdict != 0;
                let Some(theirs) = older.as_ref().or(newer.as_ref()).map(run) else { continue };
                compared += ours.len() as u64;
                if theirs != ours[0] {
                    // What 1.10 has wrong and 1.11 has mended.
                    match newer.as_ref().map(run) {
                        Some(theirs) if theirs == ours[0] => mended += 1,
                        _ => failed.push(format!("{} {expression:?}: {packet:?}", LinkType(*dlt))),
                    }
                }
            }
        }
    }
    eprintln!(
        "{} filters, {compared} verdicts compared with libpcap {}, {mended} as in 1.11 only",
        all.len(),
        pcap.version()
    );
    // `ip multicast` of 1.11 leaves out addresses from 240 on: here 1.10 is followed.
    assert!(failed.is_empty(), "{} differ, the first: {}", failed.len(), failed[0]);
    assert!(compared > 100_000 && mended * 1000 < compared);
}

#[test]
fn results_of_libpcaps_own_tests_hold() {
    let Some(data) = Data::for_test() else { return };
    let (mut held, mut failed) = (0, Vec::new());
    for record in data.apply() {
        if needs_names(&record.expr) {
            continue;
        }
        let path = data.savefile(&record.savefile);
        let mut capture = bpf_capture::Capture::open(&path).expect("a capture");
        let link_type = LinkType(link::dlt(capture.link_type()));
        let filter = compile(&record.expr, &Options { accepted_length: capture.snapshot(), ..options(link_type) });
        let filter = filter.unwrap_or_else(|e| panic!("{}", e.render(&record.expr)));
        for (i, wanted) in record.results.iter().enumerate() {
            let Ok(Some(packet)) = capture.next_packet() else { panic!("{}: {} packets", record.savefile, i) };
            let packet = Packet { captured: packet.captured, length: packet.length, beside: Beside::default() };
            if filter.run(&packet) == *wanted {
                held += 1;
            } else {
                failed.push(format!("{}: packet {} of {} is {wanted}", record.name, i + 1, record.savefile));
            }
        }
    }
    assert!(failed.is_empty(), "{held} held, these not: {failed:#?}");
    eprintln!("{held} results hold");
}

#[test]
fn what_libpcap_rejects_is_rejected() {
    let Some(data) = Data::for_test() else { return };
    for record in data.reject() {
        let Some(link_type) = LinkType::of_name(&record.dlt) else { continue };
        let compiled = compile(&record.expr, &Options { netmask: None, ..options(link_type) });
        match (record.errstr.as_str(), compiled) {
            // A warning here, as the filter may be one that a program has made.
            ("errstr_rejects_all", Ok(filter)) => assert!(filter.rejects_all(), "{}", record.expr),
            // libpcap can be built without.
            ("protochain not supported", Ok(_)) => {}
            (_, compiled) => assert!(compiled.is_err(), "{} {:?} was taken", record.dlt, record.expr),
        }
    }
}

#[test]
fn operations_are_at_most_those_of_libpcaps_optimizer() {
    let (Some(data), Some(pcap)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let packets = data.packets(1);
    for filter in data.filters() {
        // libpcap takes minutes for the largest.
        if filter.expression.len() > 15_000 {
            continue;
        }
        let ours = compile(&filter.expression, &options(LinkType::EN10MB)).expect("a filter");
        let theirs = pcap.compile(&filter.expression, 1, 262_144, true, NETMASK).expect("a filter");
        let (mut mine, mut libpcaps) = (0, 0);
        for packet in packets.iter().step_by(step()) {
            let packet = Packet { captured: &packet.captured, length: packet.length, beside: Beside::default() };
            mine += ours.count(&packet).operations;
            libpcaps += interpreter::run(&theirs, packet.captured, packet.length).executed;
        }
        // Fields that libpcap's optimizer forgets to look for are looked for here: one operation in a thousand.
        assert!(mine as f64 <= libpcaps as f64 * 1.002, "{}: {mine} operations, {libpcaps} by libpcap", filter.name);
    }
}

/// 802.11 frames behind a receiver's header: radiotap, AVS, Prism.
fn received_frame(dlt: u16, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = match dlt {
        127 => vec![0, 0, random.choice([8, 12, 24]).unwrap_or(8), 0],
        163 => vec![0x80, 0x21, 0x10, 1, 0, 0, 0, 16],
        _ => vec![0, 0, 0, 0x44, 0, 0, 0, 144],
    };
    let length = if dlt == 127 { usize::from(bytes[2]) } else { usize::from(bytes[7]) };
    bytes.resize_with(length, || if random.bool() { 0 } else { random.u8(0..9) });
    bytes.push(random.choice([0x08, 0x88, 0x80, 0x40, 0xb4, 0xc4, 0x48, 0, 0xd4]).unwrap_or(8));
    bytes.resize_with(length + random.usize(20..32), || random.u8(0..3));
    bytes.extend([0xaa, 0xaa, 3, 0, 0, 0, 0x88, 0x64, 0x11, 0, 0, 1, 0, 60, 0, 0x21, 0x45]);
    bytes.resize_with(bytes.len() + 40, || random.u8(0..3));
    bytes
}

/// `pppoes` makes the frame's header begin where its payload does, which are one variable then.
#[test]
fn encapsulations_behind_receivers_headers() {
    let Some(pcap) = Libpcap::for_test() else { return };
    let mut random = fastrand::Rng::with_seed(3);
    let (mut compared, mut accepted) = (0, 0);
    for dlt in [127u16, 163, 119] {
        for text in ["! pppoes", "not pppoes 7", "! (pppoes and ip)", "pppoes and ip", "not vlan 3", "! (mpls and ip)"]
        {
            let Ok(theirs) = by_libpcap(&pcap, dlt, text) else { continue };
            let ours = Forms::new(text, &options(LinkType(dlt))).unwrap_or_else(|e| panic!("{}", e.render(text)));
            for _ in 0..300 {
                let mut bytes = received_frame(dlt, &mut random);
                if random.bool() {
                    bytes.truncate(random.usize(0..=bytes.len()));
                }
                let length = bytes.len() as u32;
                let expected = interpreter::run(&theirs, &bytes, length).verdict != 0;
                let packet = Packet { captured: &bytes, length, beside: Beside::default() };
                assert_eq!(ours.verdicts(&packet), vec![expected; 4], "{dlt} {text} on {bytes:02x?}");
                compared += 1;
                accepted += u32::from(expected);
            }
        }
    }
    eprintln!("{compared} verdicts, {accepted} accepted");
    assert!(compared > 3000 && accepted > 500);
}
