//! The eBPF forms load, and their verdicts in this kernel are the interpreter's.

use bpf_filter::{
    Actions, Beside, EbpfForm, Filter, FunctionName, Hook, LinkType, Options, Packet, Pass, Passes, Takes, compile,
};
use bpf_kernel::testing::permitted;
use bpf_kernel::{LoadOptions, LoadedObject};
use bpf_pcap_oracle::data::Data;

use crate::common::{expressions, handed, link_type, options, seen};

/// What the hook's programs return here.
pub fn hooks() -> [(Hook, Actions); 5] {
    [
        (Hook::Xdp, Actions { matched: 2, other: 1 }),
        (Hook::Tc, Actions { matched: 0, other: 2 }),
        (Hook::CgroupSkb, Actions { matched: 1, other: 0 }),
        (Hook::Socket, Actions { matched: 96, other: 0 }),
        (Hook::Socket, Actions { matched: 0, other: 262_144 }),
    ]
}

/// The object, in the kernel.
pub fn loaded(hook: Hook, expression: &str, object: &[u8]) -> LoadedObject {
    let object = LoadedObject::load(object, &LoadOptions::default());
    object.unwrap_or_else(|e| panic!("{hook:?} {expression:.200}: {e}"))
}

/// What a program returns for a packet; `None` for one that a socket buffer cannot be made of.
pub fn returned(object: &LoadedObject, hook: Hook, captured: &[u8]) -> Option<i32> {
    object.test_run("filter", &handed(hook, captured), None, 1).ok().map(|run| run.retval as i32)
}

/// What it is to return.
pub fn wanted(filter: &Filter, captured: &[u8], actions: Actions) -> i32 {
    let packet = Packet { captured, length: captured.len() as u32, beside: Beside::default() };
    if filter.run(&packet) != 0 { actions.matched } else { actions.other }
}

/// Every so-manieth packet is run.
pub const STEP: usize = 97;

#[test]
fn verdicts_in_the_kernel_are_those_of_the_interpreter() {
    if !permitted() {
        return;
    }
    let Some(data) = Data::for_test() else { return };
    for (hook, actions) in hooks() {
        let packets = data.packets(1);
        let (mut programs, mut runs) = (0, 0);
        for expression in &expressions(&data, link_type(hook), 1) {
            let options = Options { source: hook.source(), ..options(link_type(hook)) };
            // What a hook does not have is an error: direction at XDP, Ethernet's fields at a control group.
            let Ok(filter) = compile(expression, &options) else { continue };
            let Ok(object) = filter.object(hook, actions) else { continue };
            let object = loaded(hook, expression, &object);
            programs += 1;
            for packet in packets.iter().step_by(STEP) {
                let whole = packet.captured.len();
                for cut in [whole, whole / 2, whole.min(60), whole.min(33), whole.min(13)] {
                    // Larger packets than a page do not fit a test run; tc wants a network header.
                    let least = match hook {
                        Hook::Xdp => 14,
                        Hook::Tc | Hook::CgroupSkb => 34,
                        Hook::Socket => 0,
                    };
                    if !(least..=3000).contains(&cut) {
                        continue;
                    }
                    let captured = &packet.captured[..cut];
                    let wanted = wanted(&filter, seen(hook, captured), actions);
                    let Some(returned) = returned(&object, hook, captured) else { continue };
                    assert_eq!(returned, wanted, "{hook:?} {expression:.200} on {captured:?}");
                    runs += 1;
                }
            }
        }
        eprintln!("{hook:?}: {programs} filters loaded, {runs} runs");
        assert!(programs > 60 && runs > 1000, "{hook:?}: {programs} filters, {runs} runs");
    }
}

/// Packets and bytes that the program has counted in an element of a map, on all processors.
pub fn counted(object: &LoadedObject, map: &str, key: u32) -> (u64, u64) {
    let map = object.map(map).expect("the map is there");
    let values = map.lookup(&key.to_ne_bytes()).expect("it can be read").expect("an array has all its elements");
    let words: Vec<u64> = values.chunks_exact(8).map(|w| u64::from_ne_bytes(w.try_into().expect("8 bytes"))).collect();
    (words.iter().step_by(2).sum(), words.iter().skip(1).step_by(2).sum())
}

#[test]
fn counters_hold_what_the_interpreter_counts() {
    if !permitted() {
        return;
    }
    let Some(data) = Data::for_test() else { return };
    let packets = data.packets(1);
    let expressions = data.filters().into_iter().map(|f| f.expression).filter(|e| e.len() < 3000);
    let mut expressions: Vec<String> = expressions.collect();
    // What accepts or rejects all, and what ends by a load behind the packet's end.
    expressions.extend(["", "less 0", "ether[50] & 1 = 0", "ip[2] > ip[40]"].map(str::to_owned));
    for (hook, actions) in hooks() {
        let (mut programs, mut runs, mut matched) = (0, 0, 0);
        for expression in &expressions {
            let options = Options { source: hook.source(), ..options(link_type(hook)) };
            let Ok(filter) = compile(expression, &options) else { continue };
            let Ok(object) = filter.object_of(&EbpfForm::Program { hook, actions, counts: true }) else { continue };
            let object = loaded(hook, expression, &object);
            programs += 1;
            let mut counts = [(0, 0); 2];
            for captured in packets.iter().step_by(STEP).map(|p| &p.captured[..p.captured.len().min(61)]) {
                let seen = seen(hook, captured);
                let wanted = wanted(&filter, seen, actions);
                let Some(returned) = returned(&object, hook, captured) else { continue };
                assert_eq!(returned, wanted);
                let is_match = wanted == actions.matched;
                counts[usize::from(is_match)].0 += 1;
                counts[usize::from(is_match)].1 += seen.len() as u64;
                runs += 1;
            }
            assert_eq!(
                [0, 1].map(|verdict| counted(&object, "counters", verdict)),
                counts,
                "{hook:?} {expression:.200}"
            );
            matched += counts[1].0;
        }
        eprintln!("{hook:?}: {programs} filters that count, {runs} runs, {matched} packets matched");
        assert!(programs > 30 && matched > 100, "{hook:?}: {programs} filters, {matched} matched");
    }
}

/// A base is bounded in one block and read from in another: the number is wanted behind the copy that bounds it.
#[test]
fn sockets_read_from_bases_that_other_blocks_have_bounded() {
    if !permitted() {
        return;
    }
    let Some(data) = Data::for_test() else { return };
    let packets = data.packets(1);
    let (mut runs, mut matched) = (0, 0);
    for expression in [
        "udp[24:2] & 2 == 46 or ip src host 224.0.0.1 and udp port 80",
        "udp[100:2] & 2 == 46 or src host 1.2.3.4 and udp src port 80",
        "(udp[24:2] & 2 == 46 or ip[14] = 3) and (geneve 100)",
        "(ip[14] = 3 or tcp[30:2] = 3 or ip[8] = 1 or port 53) and (port 53)",
        "udp[8:2] & 2 == 46 or udp port 53 or tcp[12] & 0xf0 = 0x50",
    ] {
        for (hook, actions) in hooks().into_iter().filter(|(hook, _)| *hook == Hook::Socket) {
            let options = Options { source: hook.source(), ..options(link_type(hook)) };
            let filter = compile(expression, &options).expect("a filter");
            let object = loaded(hook, expression, &filter.object(hook, actions).expect("an object"));
            for captured in packets.iter().step_by(31).map(|p| &p.captured[..]) {
                let Some(found) = returned(&object, hook, captured) else { continue };
                let wanted = wanted(&filter, captured, actions);
                assert_eq!(found, wanted, "{expression} on {captured:02x?}");
                runs += 1;
                matched += u32::from(wanted == actions.matched);
            }
        }
    }
    eprintln!("{runs} runs, {matched} matched");
    assert!(runs > 2000 && matched > 20, "{runs} runs, {matched} matched");
}

/// Programs that are not optimized compute deep expressions anew in each block, which is hard on registers.
#[test]
fn programs_that_are_not_optimized_agree_too() {
    if !permitted() {
        return;
    }
    let Some(data) = Data::for_test() else { return };
    let packets = data.packets(1);
    let own = [
        "tcp[((tcp[12:1] & 0xf0) >> 2):4] = 0x47455420",
        "ip[ip[0] & 0xf + ip[1] % 7] << (ip[2] & 63) >> ip[3] != tcp[tcp[12] >> 2]",
        "udp[ip[8] / (udp[4:2] + 1)] = ip[9] - ip[10] * 3 + -ip[11]",
        "len - ip[2:2] > 13 and ip[6:2] & 0x1fff = 0 and 4 * (ip[0] & 0xf) + 14 <= len",
        "ip[0] / ip[1] < 80",
        // Offsets that are negative numbers to the kernel.
        "ether[ip[8] << 24 : 4] >= 0 or ether[0 - ip[9] : 1] >= 0 or ether[0xfffff000 : 2] >= 0 or ip[11] & 7 = 3",
    ];
    let mut expressions: Vec<String> = own.map(str::to_owned).into();
    // More numbers at a time than there are registers.
    let deep = (0..20).rev().fold("ip[20]".to_owned(), |rest, i| format!("ip[{i}] - ({rest})"));
    expressions.push(format!("({deep}) & 1 = 0"));
    expressions.extend(data.filters().into_iter().map(|f| f.expression).filter(|e| e.len() < 3000));
    for (hook, actions) in
        [(Hook::Xdp, Actions { matched: 2, other: 1 }), (Hook::Socket, Actions { matched: 2, other: 0 })]
    {
        let (mut loaded, mut runs, mut matched) = (0, 0, 0);
        for expression in &expressions {
            let options = Options { source: hook.source(), optimize: false, ..options(LinkType::EN10MB) };
            let filter = compile(expression, &options).unwrap_or_else(|e| panic!("{}", e.render(expression)));
            let Ok(object) = filter.object(hook, actions) else { continue };
            let Ok(object) = LoadedObject::load(&object, &LoadOptions::default()) else { continue };
            loaded += 1;
            for packet in packets.iter().step_by(31).filter(|p| (14..3000).contains(&p.captured.len())) {
                let captured = &packet.captured[..];
                let wanted = wanted(&filter, captured, actions);
                let returned = returned(&object, hook, captured).expect("a run");
                assert_eq!(returned, wanted, "{hook:?} {expression:.200} on {captured:?}");
                runs += 1;
                matched += u32::from(wanted == actions.matched);
            }
        }
        eprintln!("{hook:?}: {loaded} programs loaded, {runs} runs, {matched} packets matched");
        assert!(loaded >= 50 && matched > 100);
    }
}

/// A packet at tc may be in pieces: a program brings together as much as it reads, whichever form of the filter it is made of.
#[test]
fn whatever_reads_at_tc_pulls() {
    let Some(data) = Data::for_test() else { return };
    let pulled = |listing: &str| {
        let (before, _) = listing.split_once("call bpf_skb_pull_data")?;
        let limit = before.lines().find_map(|line| line.trim().strip_prefix("w4 = "));
        Some(limit.expect("no more than is read").parse::<u64>().expect("a number"))
    };
    let mut compared = 0;
    for expression in expressions(&data, LinkType::EN10MB, 3) {
        let listing = |optimize, form: &EbpfForm| {
            let options = Options { source: Hook::Tc.source(), optimize, ..options(LinkType::EN10MB) };
            compile(&expression, &options).ok()?.assembly_of(form).ok()
        };
        let name = FunctionName::new("f").expect("a name");
        let forms = [
            EbpfForm::program(Hook::Tc, Actions::passing(Hook::Tc)),
            EbpfForm::Function { name, takes: Takes::Context(Hook::Tc) },
        ];
        for form in forms {
            let Some((optimized, plain)) = listing(true, &form).zip(listing(false, &form)) else { continue };
            let reads = |listing: &str| listing.lines().any(|line| line.contains("> r3 goto"));
            assert_eq!(reads(&plain), pulled(&plain).is_some(), "{expression:.200}:\n{plain}");
            assert_eq!(reads(&optimized), pulled(&optimized).is_some(), "{expression:.200}:\n{optimized}");
            assert!(pulled(&plain) >= pulled(&optimized), "{expression:.200}:\n{plain}\n{optimized}");
            // Not more of the packet than there is to read: an IPv4 header has at most 60 bytes.
            if expression == "tcp port 80" {
                assert_eq!(pulled(&plain), Some(14 + 60 + 4), "{plain}");
            }
            compared += 1;
        }
    }
    assert!(compared > 100, "{compared}");
}

/// What comes behind a field that no packet has is not there, and what rejects may be among it.
#[test]
fn fields_behind_every_packet_leave_programs_that_load() {
    if !permitted() {
        return;
    }
    for expression in
        ["1 = ether[0x1a1f82c6]", "not igmp[0xc8ae:4] = ether[17]", "not (ip[0x163bcd05] < 5 & len) or not udp"]
    {
        for (hook, optimize) in [(Hook::Xdp, true), (Hook::Xdp, false), (Hook::Tc, true), (Hook::Socket, true)] {
            let options = Options { source: hook.source(), optimize, ..options(LinkType::EN10MB) };
            let filter = compile(expression, &options).unwrap_or_else(|e| panic!("{}", e.render(expression)));
            let actions = Actions::passing(hook);
            let object = filter.object(hook, actions).unwrap_or_else(|e| panic!("{hook:?} {expression}: {e}"));
            let object = loaded(hook, expression, &object);
            for (kind, protocol) in [(0x0800u16, 2), (0x0800, 17), (0x0806, 0)] {
                let mut packet = vec![0u8; 60];
                packet[12..14].copy_from_slice(&kind.to_be_bytes());
                (packet[14], packet[23]) = (0x45, protocol);
                let returned = returned(&object, hook, &packet).expect("a run");
                assert_eq!(returned, wanted(&filter, &packet, actions), "{hook:?} {expression} on {packet:?}");
            }
        }
    }
}

/// A field so far behind a short header that the verifier may not follow costs those packets alone that are asked for it.
#[test]
fn a_field_out_of_reach_rejects_no_packet_that_is_not_asked_for_it() {
    if !permitted() {
        return;
    }
    let mut matched = 0;
    for expression in [
        "tcp port 80 or udp[65517] = 7",
        "port 80 or udp[65461:2] = 7",
        "(port 80 and tcp[65499:4] != 0) or tcp[13] & 2 != 0",
    ] {
        for (hook, optimize) in [(Hook::Xdp, true), (Hook::Xdp, false), (Hook::Tc, true), (Hook::Tc, false)] {
            let options = Options { source: hook.source(), optimize, ..options(LinkType::EN10MB) };
            let filter = compile(expression, &options).unwrap_or_else(|e| panic!("{}", e.render(expression)));
            let actions = Actions::passing(hook);
            let object = filter.object(hook, actions).unwrap_or_else(|e| panic!("{hook:?} {expression}: {e}"));
            let object = loaded(hook, expression, &object);
            for (protocol, words) in [(6, 5), (6, 10), (6, 15), (17, 5), (17, 15)] {
                let mut packet = vec![0u8; 120];
                packet[12..14].copy_from_slice(&0x0800u16.to_be_bytes());
                (packet[14], packet[23]) = (0x40 | words, protocol);
                let transport = 14 + 4 * usize::from(words);
                packet[transport + 2..transport + 4].copy_from_slice(&80u16.to_be_bytes());
                packet[transport + 13] = 2;
                let returned = returned(&object, hook, &packet).expect("a run");
                let wanted = wanted(&filter, &packet, actions);
                assert_eq!(returned, wanted, "{hook:?} {optimize} {expression}: protocol {protocol}, {words} words");
                matched += usize::from(wanted == actions.matched);
            }
        }
    }
    assert!(matched > 30, "{matched} matched");
}

/// What comes of a place that the packet says, by whatever arithmetic, costs no packet that is asked for a nearer field alone.
#[test]
fn a_field_that_may_be_out_of_reach_rejects_no_packet_that_is_not_asked_for_it() {
    if !permitted() {
        return;
    }
    let places = [
        "ip[0]*4",
        "ip[8]/2",
        "ip[8]%100",
        "ip[8]>>1",
        "ip[8]|1",
        "ip[8]^1",
        "ip[0]-60",
        "ip[2:2]",
        "ip[2:2]*2",
        "ip[4:4]",
        "(ip[8]&15)<<ip[1]",
        "ip[2:2]/(ip[1]+1)",
        "(200)-ip[8]",
    ];
    let mut expressions: Vec<String> = Vec::new();
    for place in places {
        for far in [64000, 65000, 65270, 65390, 65500, 65532] {
            expressions.push(format!("ether[{place}]=3 or (udp and ether[{place}+{far}]=1)"));
            expressions.push(format!("(tcp and ether[{place}+{far}:2]=1) or ether[{place}+7]=3"));
        }
    }
    for far in [1500, 65000, 65400, 65500] {
        expressions.push(format!("geneve and (tcp port 80 or ip[{far}] = 1)"));
        expressions.push(format!("geneve and (tcp port 80 or ether[{far}] = 1)"));
    }
    let mut packets: Vec<Vec<u8>> = Vec::new();
    for (length, protocol, at, total) in
        [(120, 17, 60, 60), (120, 6, 100, 1000), (1400, 17, 20, 1000), (1400, 6, 200, 700), (3400, 17, 4, 3000)]
    {
        let mut packet = vec![3u8; length];
        packet[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        packet[16..18].copy_from_slice(&u16::to_be_bytes(total));
        packet[18..22].copy_from_slice(&[0, 0, 0, 40]);
        (packet[22], packet[23]) = (at, protocol);
        packets.push(packet);
    }
    // Of UDP to Geneve's port, a header without options and one with eight bytes of them, TCP to port 80 inside.
    for words in [0u8, 2] {
        let mut packet = packets[0][..34].to_vec();
        packet.extend([0, 7, 0x17, 0xc1, 0, 90, 0, 0, words, 0, 0x65, 0x58, 0, 0, 1, 0]);
        packet.extend(vec![0; 4 * usize::from(words)]);
        packet.extend([2; 12]);
        packet.extend([8, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 9, 0, 80]);
        packet.extend([0; 16]);
        packets.push(packet);
    }
    let mut matched = 0;
    for expression in &expressions {
        for (hook, optimize) in [(Hook::Xdp, true), (Hook::Xdp, false), (Hook::Tc, true), (Hook::Tc, false)] {
            let options = Options { source: hook.source(), optimize, ..options(LinkType::EN10MB) };
            let filter = compile(expression, &options).unwrap_or_else(|e| panic!("{}", e.render(expression)));
            let actions = Actions::passing(hook);
            // Where headers begin varies, and what is not optimized has no eBPF.
            let Ok(object) = filter.object(hook, actions) else { continue };
            let object = loaded(hook, expression, &object);
            for packet in &packets {
                let returned = returned(&object, hook, packet).expect("a run");
                let wanted = wanted(&filter, packet, actions);
                assert_eq!(returned, wanted, "{hook:?} {optimize} {expression}: {:02x?}", &packet[..60]);
                matched += usize::from(wanted == actions.matched);
            }
        }
    }
    assert!(matched > 1000, "{matched} matched");
}

/// A sum of any length takes few registers, and a field that is not there rejects the packet.
#[test]
fn sums_of_many_fields_load() {
    if !permitted() {
        return;
    }
    let sum = |n: usize| (0..n).map(|i| format!("ip[{i}]")).collect::<Vec<_>>().join("+");
    let mut expressions: Vec<String> = [2, 3, 4, 5, 7, 12, 30].map(|n| format!("{} = 5", sum(n))).into();
    expressions.push(format!("tcp or {} > ip[40]", sum(9)));
    expressions.push(format!("{} = tcp[2:2]*3-(tcp[0]+(tcp[1]+(tcp[3]^udp[7])))", sum(7)));
    expressions.push(format!("ip[{}] = 5", sum(7)));
    expressions.push("(ip[0]+ip[1])*(ip[2]+ip[3])-((ip[4]+ip[5])*(ip[6]+ip[7])-ip[8]/(ip[9]-ip[10])) < 9".to_owned());
    let mut random = fastrand::Rng::with_seed(9);
    let mut matched = 0;
    for expression in &expressions {
        for (hook, optimize) in [(Hook::Xdp, true), (Hook::Xdp, false), (Hook::Tc, true), (Hook::Socket, true)] {
            let options = Options { source: hook.source(), optimize, ..options(LinkType::EN10MB) };
            let filter = compile(expression, &options).unwrap_or_else(|e| panic!("{}", e.render(expression)));
            let actions = Actions::passing(hook);
            let object = filter.object(hook, actions).unwrap_or_else(|e| panic!("{hook:?} {expression}: {e}"));
            let object = loaded(hook, expression, &object);
            for _ in 0..40 {
                let mut packet: Vec<u8> = (0..20 + random.usize(0..80)).map(|_| random.u8(0..2)).collect();
                packet[12..14].copy_from_slice(&[8, 0]);
                let Some(returned) = returned(&object, hook, &packet) else { continue };
                let wanted = wanted(&filter, &packet, actions);
                assert_eq!(returned, wanted, "{hook:?} {optimize} {expression}: {packet:02x?}");
                matched += usize::from(wanted == actions.matched);
            }
        }
    }
    assert!(matched > 50, "{matched} matched");
}

/// A field that is never read is not brought together.
#[test]
fn what_is_out_of_reach_is_not_pulled() {
    for (expression, limit) in
        [("tcp port 80 or udp[65517] = 7", 14 + 60 + 4), ("ip[6] = 1 or ether[ip[8]/2 + 65500] = 1", 14 + 9)]
    {
        let options = Options { source: Hook::Tc.source(), ..options(LinkType::EN10MB) };
        let filter = compile(expression, &options).expect("a filter");
        let listing = filter.assembly(Hook::Tc, Actions::passing(Hook::Tc)).expect("a program");
        assert!(listing.contains(&format!("w4 = {limit}\n")), "{expression}:\n{listing}");
    }
}

/// The warning names a field that may be out of reach, and nothing that no packet has.
#[test]
fn what_may_be_out_of_reach_is_known() {
    let beyond = |expression: &str, hook: Hook| {
        let filter = compile(expression, &Options { source: hook.source(), ..options(link_type(hook)) });
        let filter = filter.unwrap_or_else(|e| panic!("{}", e.render(expression)));
        filter.beyond_reach(&EbpfForm::program(hook, Actions::passing(hook)))
    };
    for (expression, end) in [
        ("udp[65517] = 7", Some(14 + 65518)),
        ("ether[70000] = 7", Some(70001)),
        ("ether[ip[8]/2+65500] = 1", Some(65501)),
        ("ether[ip[2:2]+65000] = 1", Some(65001)),
        ("ether[ip[2:2]-1] = 1", None),
        ("tcp port 80", None),
        ("geneve and tcp port 80", None),
        ("ip6 protochain 6", None),
        ("protochain 51", None),
    ] {
        assert_eq!(beyond(expression, Hook::Xdp), end, "{expression}");
        assert_eq!(beyond(expression, Hook::Socket), None, "{expression}");
    }
}

#[test]
fn programs_for_thousands_of_hosts_are_small() {
    if !permitted() {
        return;
    }
    let hosts: Vec<std::net::Ipv4Addr> =
        (0..10_000u32).map(|i| std::net::Ipv4Addr::from(i.wrapping_mul(2_654_435_761))).collect();
    let text = hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
    let filter = compile(&format!("src host {text}"), &options(LinkType::EN10MB)).expect("a filter");
    for hook in [Hook::Xdp, Hook::Socket] {
        let actions = Actions::passing(hook);
        let object = filter.object(hook, actions).expect("an object");
        let object = loaded(hook, "10,000 hosts", &object);
        let mut packet = vec![0u8; 60];
        packet[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        for (i, host) in hosts.iter().enumerate().step_by(501) {
            packet[26..30].copy_from_slice(&host.octets());
            for change in [0, 1] {
                packet[29] ^= change;
                let is_member = hosts.iter().any(|h| h.octets() == packet[26..30]);
                let wanted = if is_member { actions.matched } else { actions.other };
                assert_eq!(returned(&object, hook, &packet), Some(wanted), "{hook:?}, host {i}");
                assert!(is_member || change == 1);
                packet[29] ^= change;
            }
        }
    }
}

/// The verifier writes several instructions for a load by call, and takes no jump that gets too long by that: what is too large is
/// told by us, and what is not is loaded.
#[test]
fn what_is_too_large_for_the_verifier_is_an_error() {
    if !permitted() {
        return;
    }
    let mut random = fastrand::Rng::with_seed(17);
    let (mut loads, mut refused) = (0, 0);
    for passes in [Passes::of([]), Passes::of([Pass::Lists]), Passes::of([Pass::Predicates, Pass::Checks])] {
        for count in [100, 180, 257, 300, 350, 700, 1500, 3000] {
            let ports: Vec<String> = (0..count).map(|_| random.u16(..).to_string()).collect();
            let text = format!("port {}", ports.join(" or "));
            let hook = Hook::Socket;
            let options = Options { passes, source: hook.source(), ..options(LinkType::EN10MB) };
            let filter = compile(&text, &options).expect("a filter");
            for actions in [Actions { matched: 96, other: 0 }, Actions { matched: 0, other: 96 }] {
                match filter.object(hook, actions) {
                    Err(e) => {
                        assert!(e.to_string().contains("too large for eBPF"), "{e}");
                        refused += 1;
                    }
                    Ok(object) => {
                        // A program may take too long to verify, but no instruction is in the way of a jump.
                        if let Err(e) = LoadedObject::load(&object, &LoadOptions::default()) {
                            assert!(!e.to_string().contains("16-bit"), "{count} ports: {e}");
                        } else {
                            loads += 1;
                        }
                    }
                }
            }
        }
    }
    eprintln!("{loads} loaded, {refused} refused");
    assert!(loads > 10 && refused > 4, "{loads} loaded, {refused} refused");
}
