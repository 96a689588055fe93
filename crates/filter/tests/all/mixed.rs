//! Lists of different kinds in one filter, inside a tunnel: more values than registers.

use std::collections::HashMap;

use bpf_filter::{Actions, Beside, Dialect, Form, Hook, LinkType, Options, Packet, compile};
use bpf_kernel::testing::permitted;
use fastrand::Rng;

use crate::common::{link_type, machine_code, options, seen};
use crate::kernel::{loaded, returned, wanted};

/// Addresses that share their beginnings.
fn ip6(random: &mut Rng) -> std::net::Ipv6Addr {
    let mut words = [0x2001u16, 0xdb8, 0, 1, 0, 0, 0, 0];
    let from = random.usize(2..7);
    words[from..].iter_mut().for_each(|w| *w = random.u16(0..3));
    words.into()
}

fn net6(random: &mut Rng) -> String {
    let length = random.choice([16u32, 32, 40, 48, 64, 65, 96, 100, 128]).unwrap_or_default();
    let address = 0x2000u128 << 112 | random.u128(..) & 0x0103_0301_0101_0001_0003_0000_0101_0003;
    format!("{}/{length}", std::net::Ipv6Addr::from(address & u128::MAX << (128 - length)))
}

fn mac(random: &mut Rng) -> String {
    let first = random.choice([[0u8, 1], [0xf3, 0xa9], [2, 3]]).unwrap_or_default();
    let mut bytes = [first[0], first[1], 0, 0, 0, 0];
    bytes[2..].iter_mut().for_each(|b| *b = random.u8(0..3));
    bytes.map(|b| format!("{b:02x}")).join(":")
}

/// A packet of Geneve, with addresses of the filter's kinds in the inner packet.
fn packet(random: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0; 12];
    bytes.extend([8, 0, 0x45, 0, 0, 200, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0x30, 0x39, 0x17, 0xc1, 0, 180, 0, 0]);
    let options = random.u8(0..3);
    bytes.extend([options, 0, 0x65, 0x58, 0, 0, 1, 0]);
    bytes.extend((0..options * 4).map(|_| 0));
    bytes.extend(mac(random).split(':').map(|b| u8::from_str_radix(b, 16).unwrap_or(0)));
    bytes.extend(mac(random).split(':').map(|b| u8::from_str_radix(b, 16).unwrap_or(0)));
    let kind = random.choice([0x0800u16, 0x86dd, 0x0806]).unwrap_or(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend([if kind == 0x86dd { 0x60 } else { 0x45 }, 0, 0, 0, 0, 20, 6, 64]);
    bytes.extend(ip6(random).octets());
    bytes.extend(ip6(random).octets());
    bytes.extend([0; 40]);
    if random.u8(0..8) == 0 {
        bytes.truncate(random.usize(0..bytes.len()));
    }
    bytes
}

/// A comparison of two values, one in the stack frame and one in the scratch register, was once of the first with itself.
#[test]
fn lists_of_different_kinds_in_a_tunnel() {
    let mut wrong = 0;
    for seed in 0..1 {
        let mut random = Rng::with_seed(seed);
        let spelled: Vec<String> = (0..50).map(|_| format!("ip6 host {}", ip6(&mut random))).collect();
        let nets = (0..40).map(|_| net6(&mut random)).collect();
        let macs = (0..55).map(|_| mac(&mut random)).collect();
        let sets = HashMap::from([("S0".to_owned(), nets), ("S1".to_owned(), macs)]);
        let text = format!("geneve and (({}) or (dst net $S0) or (ether src $S1))", spelled.join(" or "));
        let options = Options { sets, ..options(LinkType::EN10MB) };
        let filter = compile(&text, &options).unwrap_or_else(|e| panic!("{}", e.render(&text)));
        let Some(jit) = machine_code(&filter) else {
            return println!("skipped: machine code is written for x86-64 only");
        };
        let (mut accepted, mut differ) = (0, 0);
        for _ in 0..2000 {
            let captured = packet(&mut random);
            let packet = Packet { captured: &captured, length: captured.len() as u32, beside: Beside::default() };
            let expected = filter.run(&packet) != 0;
            accepted += usize::from(expected);
            differ += usize::from(jit.run(&packet) != expected);
        }
        println!("seed {seed}: {accepted} accepted, {differ} differ, {} bytes", jit.code().len());
        wrong += differ;
    }
    assert_eq!(wrong, 0);
}

/// Where a word of a key is read, the packet's end may be looked for anew: that must not take a register of the lookup.
#[test]
fn lists_in_tunnels_load_and_run() {
    if !permitted() {
        return;
    }
    let mut random = Rng::with_seed(7);
    for hook in [Hook::Xdp, Hook::Tc, Hook::CgroupSkb] {
        let (mut loads, mut runs, mut matched) = (0, 0, 0);
        for (dialect, text) in [
            (Dialect::Libpcap, "geneve and net $NETS"),
            (Dialect::Libpcap, "geneve and not src or dst net $NETS"),
            (Dialect::Libpcap, "geneve and ether host $MACS"),
            (Dialect::Modern, "geneve (ether host $MACS)"),
            (Dialect::Modern, "geneve (ip6 and src net $NETS)"),
        ] {
            for count in [12, 20, 60] {
                let nets = (0..count).map(|_| net6(&mut random)).collect();
                let macs = (0..count).map(|_| mac(&mut random)).collect();
                let sets = HashMap::from([("NETS".to_owned(), nets), ("MACS".to_owned(), macs)]);
                let options = Options { dialect, source: hook.source(), sets, ..options(link_type(hook)) };
                let filter = compile(text, &options).unwrap_or_else(|e| panic!("{}", e.render(text)));
                let actions = Actions::passing(hook);
                // More registers than there are: an error that says so.
                let Ok(object) = filter.object(hook, actions) else { continue };
                let object = loaded(hook, text, &object);
                loads += 1;
                for _ in 0..100 {
                    let captured = packet(&mut random);
                    let Some(found) = returned(&object, hook, &captured) else { continue };
                    let wanted = wanted(&filter, seen(hook, &captured), actions);
                    assert_eq!(found, wanted, "{hook:?} {text} of {count} on {captured:02x?}");
                    runs += 1;
                    matched += u32::from(wanted == actions.matched);
                }
            }
        }
        eprintln!("{hook:?}: {loads} programs, {runs} runs, {matched} matched");
        assert!(loads >= 6 && runs > 500 && matched > 50, "{hook:?}: {loads} programs, {runs} runs, {matched} matched");
    }
}

/// Where the tag may stand beside the packet, what is behind it begins at one of two places. What was known of the tags before was
/// once kept, of each which of three kinds it is: three times as many ways with each tag.
#[test]
fn tags_one_behind_the_other_are_few_ways() {
    const TAGS: usize = 60;
    let text = vec!["vlan"; TAGS].join(" and ");
    for hook in [Hook::Tc, Hook::Socket] {
        let filter = compile(&text, &Options { source: hook.source(), ..options(LinkType::EN10MB) }).expect("a filter");
        assert!(
            filter.is_optimized() && filter.unproven(Form::Here).is_none() && filter.unproven(Form::Kernel).is_none()
        );
        assert!(filter.size() < 10 * TAGS, "{}", filter.size());
        let actions = Actions::passing(hook);
        let object = filter.object(hook, actions).expect("an object");
        let object = permitted().then(|| loaded(hook, &text, &object));
        for tags in [0, 1, TAGS - 1, TAGS, TAGS + 1] {
            let mut bytes = vec![0; 12];
            for i in 0..tags {
                bytes.extend([[0x81, 0, 0, 1], [0x88, 0xa8, 0, 2], [0x91, 0, 0, 3]][i % 3]);
            }
            bytes.extend([8, 0, 0x45]);
            bytes.extend([0; 60]);
            for vlan in [None, Some(5)] {
                let beside = Beside { vlan, ..Beside::default() };
                let packet = Packet { captured: &bytes, length: bytes.len() as u32, beside };
                assert_eq!(
                    filter.run(&packet) != 0,
                    tags + usize::from(vlan.is_some()) >= TAGS,
                    "{tags} tags, and {vlan:?}"
                );
            }
            if let Some(found) = object.as_ref().and_then(|object| returned(object, hook, &bytes)) {
                assert_eq!(found, wanted(&filter, &bytes, actions), "{tags} tags");
            }
        }
    }
}

/// Headers in each other, each at a place that only the packet says: what is known before stays wanted only where it is asked for.
#[test]
fn lists_behind_headers_at_varying_places_are_few_ways() {
    let host = |i: usize| if i.is_multiple_of(2) { format!("host 10.0.{i}.1") } else { format!("host fe80::{i}") };
    let text = (0..60).map(host).collect::<Vec<_>>().join(" or ");
    for (link_type, text) in [
        (LinkType::of_name("IEEE802_11_RADIO").expect("a link type"), text.clone()),
        (LinkType::EN10MB, format!("geneve and ({text})")),
    ] {
        let filter = compile(&text, &options(link_type)).expect("a filter");
        assert!(filter.is_optimized() && filter.unproven(Form::Here).is_none(), "{link_type}");
        assert!(filter.size() < 1000, "{link_type}: {}", filter.size());
    }
}
