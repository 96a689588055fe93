//! Filters compiled for a profile of packets: they accept what they accept without it, and execute less.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bpf_filter::{
    Actions, Beside, ClassicGoal, Filter, Form, Hook, LinkType, Options, Packet, Pass, Passes, Profile, compile,
};
use bpf_kernel::{LoadOptions, LoadedObject};
use bpf_pcap_oracle::data::{Data, OwnedPacket};
use bpf_pcap_oracle::interpreter;

use crate::common::{cuts, expressions, forms, machine_code, options, oracle_form};

fn whole(packet: &OwnedPacket) -> Packet<'_> {
    Packet { captured: &packet.captured, length: packet.length, beside: Beside::default() }
}

fn profile<'a>(link_type: LinkType, packets: impl IntoIterator<Item = &'a OwnedPacket>) -> Arc<Profile> {
    let mut profile = Profile::new(link_type);
    packets.into_iter().for_each(|packet| profile.add(&whole(packet)));
    Arc::new(profile)
}

/// The options with a profile.
fn with(profile: &Arc<Profile>, options: &Options) -> Options {
    Options { profile: Some(profile.clone()), ..options.clone() }
}

/// No form executes more over the profile than without it, and none that would execute less is refused by the proof.
fn assert_gains(expression: &str, filter: &Filter, profile: &Profile) {
    for form in forms() {
        assert_eq!(filter.unproven(form), None, "{form:?} of {expression:?}");
        let gain = filter.gain(form);
        if let Some(gain) = gain {
            assert!(gain.after <= gain.before && gain.refused == 0, "{form:?} of {expression:?}: {gain:?}");
        }
        // Where many decisions are to be made, the profile is not looked at.
        let is_used = form != Form::Classic(ClassicGoal::Size);
        assert!(gain.is_some() == is_used || expression.len() > 2_000, "{form:?} of {expression:?}");
    }
    let executed: u64 = profile.packets().map(|packet| filter.count(&packet).operations).sum();
    let said = filter.gain(Form::Here).map_or(executed as f64, |gain| gain.after * profile.len() as f64);
    assert!((executed as f64 - said).abs() < 0.5, "{expression:?}: {executed} operations, and {said} are said");
}

/// The verdicts of the forms that run here are those of the filter without a profile.
fn assert_same(expression: &str, filters: [&Filter; 2], packets: &[&OwnedPacket]) -> usize {
    let [suited, other] = filters;
    let jit = machine_code(suited);
    let classic = [ClassicGoal::Size, ClassicGoal::Time].map(|goal| suited.classic(goal).map(oracle_form));
    let mut compared = 0;
    for (i, packet) in packets.iter().enumerate() {
        for packet in cuts(packet, i) {
            let wanted = other.run(&packet) != 0;
            let of_classic = classic
                .iter()
                .flatten()
                .map(|program| interpreter::run(program, packet.captured, packet.length).verdict != 0);
            let of_jit = jit.as_ref().map(|jit| jit.run(&packet));
            for verdict in [suited.run(&packet) != 0].into_iter().chain(of_jit).chain(of_classic) {
                assert_eq!(verdict, wanted, "{expression:?} of {packet:?}");
                compared += 1;
            }
        }
    }
    compared
}

/// Of all captures every second packet is in the profile, and the others, whole and cut, are judged.
#[test]
fn what_is_accepted_does_not_depend_on_the_profile() {
    let Some(data) = Data::for_test() else { return };
    let links: BTreeSet<LinkType> = data.accept().iter().filter_map(|r| LinkType::of_name(&r.dlt)).collect();
    let mut compared = 0;
    for link_type in links {
        let packets = data.packets(link_type.0);
        if packets.is_empty() {
            continue;
        }
        let profile = profile(link_type, packets.iter().step_by(2));
        let others: Vec<&OwnedPacket> = packets.iter().skip(1).step_by((packets.len() / 200).max(1) * 2).collect();
        for expression in expressions(&data, link_type, 15).into_iter().filter(|e| e.len() < 2_000) {
            let options = options(link_type);
            let Ok(other) = compile(&expression, &options) else { continue };
            let suited = compile(&expression, &with(&profile, &options)).expect("a filter");
            assert_gains(&expression, &suited, &profile);
            compared += assert_same(&expression, [&suited, &other], &others);
        }
    }
    assert!(compared > 40_000, "{compared} verdicts");
    eprintln!("{compared} verdicts");
}

/// An IPv4 packet of Ethernet whose bytes from the IP header on are zeros but for some.
fn ip(bytes: &[(usize, u8)]) -> Vec<u8> {
    let mut packet = vec![0; 60];
    packet[12..15].copy_from_slice(&[8, 0, 0x45]);
    bytes.iter().for_each(|(at, byte)| packet[14 + at] = *byte);
    packet
}

fn profile_of(packets: &[Vec<u8>]) -> Arc<Profile> {
    let mut profile = Profile::new(LinkType::EN10MB);
    for captured in packets {
        profile.add(&Packet { captured, length: captured.len() as u32, beside: Beside::default() });
    }
    Arc::new(profile)
}

#[test]
fn the_question_that_decides_most_is_asked_first() {
    let packets = vec![ip(&[(8, 1), (9, 17)]); 4];
    let profile = profile_of(&packets);
    for (text, before, after) in [
        // Type, two bytes, reject: three loads and comparisons. With the profile the last byte decides alone.
        ("ip[8] = 1 and ip[9] = 6", 7.0, 3.0),
        // No packet may be rejected because it ends before the second byte: the first one stays first.
        ("ip[8] = 1 or ip[9] = 6", 5.0, 5.0),
        // It may be here: type, whether both bytes are there, the second byte.
        ("ip[9] = 6 or ip[8] = 1", 7.0, 6.0),
        // One of many numbers is found with one comparison: type, one byte, accept.
        ("ip[9] = 1 or ip[9] = 2 or ip[9] = 4 or ip[9] = 8 or ip[9] = 17", 8.0, 5.0),
    ] {
        let filter = compile(text, &with(&profile, &Options::default())).expect("a filter");
        assert_gains(text, &filter, &profile);
        let gain = filter.gain(Form::Here).expect("a profile");
        assert_eq!((gain.before, gain.after), (before, after), "{text}: {}", filter.listing());
        let plain = compile(text, &Options::default()).expect("a filter");
        for cut in 0..=60 {
            let packet = Packet { captured: &packets[0][..cut], length: 60, beside: Beside::default() };
            assert_eq!(filter.run(&packet), plain.run(&packet), "{text} at {cut}");
        }
    }
}

/// What is asked for is what the profile's packets have: another profile gives another order.
#[test]
fn the_order_is_that_of_the_profile() {
    let text = "ip[8] = 1 and ip[9] = 6";
    let listing = |bytes: &[(usize, u8)]| {
        let profile = profile_of(&[ip(bytes)]);
        compile(text, &with(&profile, &Options::default())).expect("a filter").listing()
    };
    let (first, second) = (listing(&[(8, 2), (9, 6)]), listing(&[(8, 1), (9, 7)]));
    assert!(first.find("packet[22:1]") < first.find("packet[23:1]"), "{first}");
    assert!(second.find("packet[23:1]") < second.find("packet[22:1]"), "{second}");
}

#[test]
fn the_same_profile_gives_the_same_forms() {
    let Some(data) = Data::for_test() else { return };
    let profile = profile(LinkType::EN10MB, &data.packets(1));
    let options = with(&profile, &options(LinkType::EN10MB));
    for text in expressions(&data, LinkType::EN10MB, 40).into_iter().filter(|text| text.len() < 2_000) {
        let all = [(); 2].map(|()| {
            let filter = compile(&text, &options).expect("a filter");
            let classic = filter.classic(ClassicGoal::Time).expect("a classic form").to_vec();
            (filter.listing(), filter.dot(), filter.assembly(Hook::Xdp, Actions::passing(Hook::Xdp)).ok(), classic)
        });
        assert_eq!(all[0], all[1], "{text}");
    }
}

/// Sets, chains of headers, both dialects: what is no plain comparison.
#[test]
fn all_kinds_of_questions_have_profiles() {
    let Some(data) = Data::for_test() else { return };
    let packets = data.packets(1);
    let profile = profile(LinkType::EN10MB, packets.iter().step_by(2));
    let others: Vec<&OwnedPacket> = packets.iter().skip(1).step_by(20).collect();
    let addresses: Vec<String> = (1..60).map(|n| format!("fe80::{n}")).chain(["192.168.1.1".to_owned()]).collect();
    for text in [
        "host $A",
        "ether host 00:00:5e:00:01:02 or src host $A and not port 53",
        "ip protochain 6 and dst port 80",
        "vlan 5 and tcp port 80 or mpls",
        "geneve and udp port 53",
        "len % ip[0] = 3 and udp",
        "ip[2:2] > ip[4:2] and src net 10",
    ] {
        let sets = HashMap::from([("A".to_owned(), addresses.clone())]);
        let options = Options { sets, ..options(LinkType::EN10MB) };
        let other = compile(text, &options).expect("a filter");
        let suited = compile(text, &with(&profile, &options)).expect("a filter");
        assert_gains(text, &suited, &profile);
        assert_same(text, [&suited, &other], &others);
    }
}

/// A filter that reports tells the same of a packet, and passes that do not run leave the order as it is.
#[test]
fn reports_and_passes_are_what_they_are_without_a_profile() {
    let Some(data) = Data::for_test() else { return };
    let packets = data.packets(1);
    let profile = profile(LinkType::EN10MB, packets.iter().step_by(2));
    for text in ["tcp and src host 10.0.0.1", "udp port 53 or tcp port 80 or 443", "ip[8] = 1 and ip[9] = 6"] {
        let options = Options { report: true, ..options(LinkType::EN10MB) };
        let other = compile(text, &options).expect("a filter");
        let suited = compile(text, &with(&profile, &options)).expect("a filter");
        for (i, packet) in packets.iter().enumerate().step_by(7) {
            for packet in cuts(packet, i) {
                assert_eq!(suited.count(&packet).decided, other.count(&packet).decided, "{text:?} of {packet:?}");
            }
        }
        let passes = Passes::of(Pass::ALL.into_iter().filter(|pass| *pass != Pass::Order));
        let options = Options { passes, ..self::options(LinkType::EN10MB) };
        let listing = |options: &Options| compile(text, options).expect("a filter").listing();
        assert_eq!(listing(&options), listing(&with(&profile, &options)), "{text:?}");
    }
}

#[test]
fn a_profile_of_another_link_type_is_an_error() {
    let profile = Arc::new(Profile::new(LinkType::RAW));
    let error = compile("tcp", &with(&profile, &Options::default())).expect_err("another link type");
    assert!(error.message.contains("RAW") && error.message.contains("EN10MB"), "{error}");
    let empty = Arc::new(Profile::new(LinkType::EN10MB));
    let filter = compile("tcp", &with(&empty, &Options::default())).expect("a filter");
    assert_eq!(filter.gain(Form::Here), None);
}

/// The kernel's verifier takes the eBPF, and its verdicts are the interpreter's.
#[test]
fn the_kernel_runs_forms_for_a_profile() {
    let Some(data) = Data::for_test() else { return };
    if !bpf_kernel::testing::permitted() {
        return;
    }
    let packets = data.packets(1);
    let profile = profile(LinkType::EN10MB, packets.iter().step_by(2));
    let hook = Hook::Xdp;
    for filter in data.filters() {
        let options = with(&profile, &Options { source: hook.source(), ..options(LinkType::EN10MB) });
        let compiled = compile(&filter.expression, &options).expect("a filter");
        let object = compiled.object(hook, Actions::passing(hook)).expect("a form for XDP");
        let loaded = LoadedObject::load(&object, &LoadOptions::default());
        let loaded = loaded.unwrap_or_else(|e| panic!("{}: {e}", filter.name));
        for packet in packets.iter().filter(|p| (60..2_000).contains(&p.captured.len())).skip(1).step_by(40) {
            // There is no length on the wire at a hook.
            let seen = Packet { length: packet.captured.len() as u32, ..whole(packet) };
            let run = loaded.test_run("filter", &packet.captured, None, 1).expect("a test run");
            let wanted = if compiled.run(&seen) != 0 { 2 } else { 1 };
            assert_eq!(run.retval, wanted, "{}: {packet:?}", filter.name);
        }
    }
}

/// What profiles bring the measured filters: run with `--nocapture` it is the table of `docs/filter.md`.
#[test]
fn operations_are_a_fifth_fewer() {
    let Some(data) = Data::for_test() else { return };
    let packets = data.packets(1);
    let profile = profile(LinkType::EN10MB, &packets);
    let operations = |filter: &Filter| -> f64 {
        let all: u64 = packets.iter().map(|packet| filter.count(&whole(packet)).operations).sum();
        all as f64 / packets.len() as f64
    };
    let (mut logs, mut count) = ([0.0; 5], 0);
    for filter in data.filters().into_iter().filter(|filter| filter.expression.len() < 50_000) {
        let compiled = compile(&filter.expression, &with(&profile, &options(LinkType::EN10MB))).expect("a filter");
        assert_gains(&filter.name, &compiled, &profile);
        let gains = forms().map(|form| compiled.gain(form).map_or([0.0; 2], |gain| [gain.before, gain.after]));
        gains.iter().zip(&mut logs).filter(|([before, _], _)| *before > 0.0).for_each(|([before, after], log)| {
            *log += (after / before).ln();
        });
        count += 1;
        let plain = compile(&filter.expression, &options(LinkType::EN10MB)).expect("a filter");
        // Of the packets that are judged some are in the profile, and the others are like those.
        let (before, after) = (operations(&plain), operations(&compiled));
        assert!(after <= before * 1.01, "{}: {after} operations, {before} without the profile", filter.name);
        let gains = gains.map(|[before, after]| format!("{before:7.2} {after:7.2}")).join(" ");
        eprintln!("{:<18} {before:7.2} {after:7.2} {gains}", filter.name);
    }
    let means = logs.map(|log| (log / f64::from(count)).exp());
    eprintln!("geometric means over {count} filters: {means:.3?}");
    assert!(means[0] < 0.85, "{means:?}");
}
