//! The eBPF forms load, and their verdicts in this kernel are the interpreter's.

use bpf_filter::{Actions, Beside, EbpfForm, Hook, LinkType, Options, Packet, Source, compile};
use bpf_kernel::testing::permitted;
use bpf_kernel::{LoadOptions, LoadedObject};
use bpf_pcap_oracle::data::Data;

use crate::common::{handed, needs_names, options};

/// What the hook's programs return here, where packets come from, and which link type they have.
fn hooks() -> [(Hook, Source, Actions, LinkType); 5] {
    let xdp = Actions { matched: 2, other: 1 };
    [
        (Hook::Xdp, Source::Xdp, xdp, LinkType::EN10MB),
        (Hook::Tc, Source::Tc, Actions { matched: 0, other: 2 }, LinkType::EN10MB),
        (Hook::CgroupSkb, Source::CgroupSkb, Actions { matched: 1, other: 0 }, LinkType::RAW),
        (Hook::Socket, Source::Socket, Actions { matched: 96, other: 0 }, LinkType::EN10MB),
        (Hook::Socket, Source::Socket, Actions { matched: 0, other: 262_144 }, LinkType::EN10MB),
    ]
}

/// Every so-manieth packet is run.
const STEP: usize = 97;

#[test]
fn verdicts_in_the_kernel_are_those_of_the_interpreter() {
    if !permitted() {
        return;
    }
    let Some(data) = Data::for_test() else { return };
    for (hook, source, actions, link_type) in hooks() {
        let packets = data.packets(1);
        let mut expressions: Vec<String> = data.filters().into_iter().map(|f| f.expression).collect();
        let of_link = |dlt: &str| LinkType::of_name(dlt) == Some(link_type);
        expressions.extend(data.accept().into_iter().filter(|r| of_link(&r.dlt)).flat_map(|r| r.aliases));
        expressions.retain(|e| !needs_names(e) && !e.starts_with("_enumerate"));
        let (mut loaded, mut runs) = (0, 0);
        for expression in &expressions {
            let options = Options { source, ..options(link_type) };
            // What a hook does not have is an error: direction at XDP, Ethernet's fields at a control group.
            let Ok(filter) = compile(expression, &options) else { continue };
            let Ok(object) = filter.object(hook, actions) else { continue };
            let object = LoadedObject::load(&object, &LoadOptions::default())
                .unwrap_or_else(|e| panic!("{hook:?} {expression:.200}: {e}"));
            loaded += 1;
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
                    let seen = if hook == Hook::CgroupSkb { &captured[14..] } else { captured };
                    let ours = Packet { captured: seen, length: seen.len() as u32, beside: Beside::default() };
                    let wanted = if filter.run(&ours) != 0 { actions.matched } else { actions.other };
                    // Packets that a socket buffer cannot be made of are refused.
                    let Ok(run) = object.test_run("filter", &handed(hook, captured), None, 1) else {
                        continue;
                    };
                    assert_eq!(run.retval as i32, wanted, "{hook:?} {expression:.200} on {captured:?}");
                    runs += 1;
                }
            }
        }
        eprintln!("{hook:?}: {loaded} filters loaded, {runs} runs");
        assert!(loaded > 60 && runs > 1000, "{hook:?}: {loaded} filters, {runs} runs");
    }
}

/// Packets and bytes that the program has counted for a verdict, on all processors.
fn counted(object: &LoadedObject, verdict: u32) -> (u64, u64) {
    let map = object.map("counters").expect("the map is there");
    let values = map.lookup(&verdict.to_ne_bytes()).expect("it can be read").expect("an array has all its elements");
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
    for (hook, source, actions, link_type) in hooks() {
        let (mut loaded, mut runs, mut matched) = (0, 0, 0);
        for expression in &expressions {
            let Ok(filter) = compile(expression, &Options { source, ..options(link_type) }) else { continue };
            let Ok(object) = filter.object_of(&EbpfForm::Program { hook, actions, counts: true }) else { continue };
            let object = LoadedObject::load(&object, &LoadOptions::default())
                .unwrap_or_else(|e| panic!("{hook:?} {expression:.200}: {e}"));
            loaded += 1;
            let mut wanted = [(0, 0); 2];
            for captured in packets.iter().step_by(STEP).map(|p| &p.captured[..p.captured.len().min(61)]) {
                let seen = if hook == Hook::CgroupSkb { captured.get(14..).unwrap_or_default() } else { captured };
                let Ok(run) = object.test_run("filter", &handed(hook, captured), None, 1) else { continue };
                let ours = Packet { captured: seen, length: seen.len() as u32, beside: Beside::default() };
                let is_match = filter.run(&ours) != 0;
                assert_eq!(run.retval as i32, if is_match { actions.matched } else { actions.other });
                wanted[usize::from(is_match)].0 += 1;
                wanted[usize::from(is_match)].1 += seen.len() as u64;
                runs += 1;
            }
            assert_eq!([counted(&object, 0), counted(&object, 1)], wanted, "{hook:?} {expression:.200}");
            matched += wanted[1].0;
        }
        eprintln!("{hook:?}: {loaded} filters that count, {runs} runs, {matched} packets matched");
        assert!(loaded > 30 && matched > 100, "{hook:?}: {loaded} filters, {matched} matched");
    }
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
                let ours = Packet { captured, length: captured.len() as u32, beside: Beside::default() };
                let wanted = if filter.run(&ours) != 0 { actions.matched } else { actions.other };
                let run = object.test_run("filter", &handed(hook, captured), None, 1).expect("a run");
                assert_eq!(run.retval as i32, wanted, "{hook:?} {expression:.200} on {captured:?}");
                runs += 1;
                matched += u32::from(wanted == actions.matched);
            }
        }
        eprintln!("{hook:?}: {loaded} programs loaded, {runs} runs, {matched} packets matched");
        assert!(loaded >= 50 && matched > 100);
    }
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
            let object = LoadedObject::load(&object, &LoadOptions::default())
                .unwrap_or_else(|e| panic!("{hook:?} {expression}: {e}"));
            for (kind, protocol) in [(0x0800u16, 2), (0x0800, 17), (0x0806, 0)] {
                let mut packet = vec![0u8; 60];
                packet[12..14].copy_from_slice(&kind.to_be_bytes());
                (packet[14], packet[23]) = (0x45, protocol);
                let ours = Packet { captured: &packet, length: 60, beside: Beside::default() };
                let wanted = if filter.run(&ours) != 0 { actions.matched } else { actions.other };
                let run = object.test_run("filter", &handed(hook, &packet), None, 1).expect("a run");
                assert_eq!(run.retval as i32, wanted, "{hook:?} {expression} on {packet:?}");
            }
        }
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
        let object = LoadedObject::load(&object, &LoadOptions::default()).expect("the kernel takes it");
        let mut packet = vec![0u8; 60];
        packet[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        for (i, host) in hosts.iter().enumerate().step_by(501) {
            packet[26..30].copy_from_slice(&host.octets());
            for change in [0, 1] {
                packet[29] ^= change;
                let is_member = hosts.iter().any(|h| h.octets() == packet[26..30]);
                let run = object.test_run("filter", &handed(hook, &packet), None, 1).expect("a run");
                let wanted = if is_member { actions.matched } else { actions.other };
                assert_eq!(run.retval as i32, wanted, "{hook:?}, host {i}");
                assert!(is_member || change == 1);
                packet[29] ^= change;
            }
        }
    }
}
