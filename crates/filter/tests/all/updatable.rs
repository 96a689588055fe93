//! Sets that user space changes: programs in the kernel answer by what their maps hold at the time.

use std::collections::HashMap;

use bpf_filter::{Actions, Beside, Form, Hook, LinkType, Options, Packet, Updatable, compile};
use bpf_kernel::testing::permitted;
use bpf_kernel::{LoadOptions, LoadedObject};

use crate::common::{handed, link_type, seen};

/// Contents before and after the change, for sets that filters name.
const SETS: [(&str, [&[&str]; 2]); 5] = [
    ("BAD", [&["10.0.0.1", "10.0.0.2"], &["10.0.0.2", "10.0.0.3", "10.0.1.1"]]),
    ("NETS", [&["10.0.0.0/8", "10.0.1.0/24", "10.0.0.2"], &["10.0.0.0/31", "10.0.0.3"]]),
    ("PORTS", [&["53", "80"], &["80", "443"]]),
    ("MACS", [&["2:0:0:0:0:1"], &["2:0:0:0:0:2", "2:0:0:0:0:3"]]),
    ("SIX", [&["fe80::1", "fe80::2"], &["fe80::2", "fe80::3"]]),
];

const FILTERS: [&str; 17] = [
    "host $BAD",
    "src host $BAD and not dst host $BAD",
    "net $NETS and not src net $NETS",
    "tcp port $PORTS or udp dst port $PORTS",
    "ether host $MACS",
    "ip6 host $SIX and len > 50",
    "host $BAD and port $PORTS",
    "(src host $BAD and tcp) or (src host $BAD and udp) or src net $NETS",
    "not (ether src $MACS or src host $BAD) and ip[8] > 10",
    "port $PORTS and not ip6 src host $SIX",
    // One address that is both.
    "src and dst host $BAD or src and dst port $PORTS",
    "ether src and dst $MACS or arp src and dst host $BAD",
    "src and dst host $SIX",
    "not (src and dst host $BAD or src and dst port $PORTS or src and dst host $SIX)",
    // Asked in one place, and perhaps in another one: what the map has said is not left out where much else is.
    "geneve or not port $PORTS or udp dst port $PORTS",
    "geneve and (not ip src and dst host $BAD) and (not tcp port 80) and ip host $BAD",
    "ip net $NETS and (tcp port 80 or not dst net $NETS)",
];

fn options(hook: Hook, step: usize, is_updatable: bool) -> Options {
    let text = |entries: &[&str]| entries.iter().map(|e| (*e).to_owned()).collect::<Vec<String>>();
    let sets: HashMap<String, Vec<String>> = SETS.iter().map(|(n, of)| ((*n).to_owned(), text(of[step]))).collect();
    let updatable = sets.keys().filter(|_| is_updatable).map(|name| (name.clone(), Updatable::default())).collect();
    Options { link_type: link_type(hook), source: hook.source(), sets, updatable, ..Options::default() }
}

/// Packets in which members of the sets stand, and others.
fn packets() -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(5);
    let mut all = Vec::new();
    for _ in 0..400 {
        let mut packet = vec![0u8; 80];
        packet[0] = 2;
        packet[5] = random.u8(1..5);
        packet[6] = 2;
        packet[11] = random.u8(1..5);
        let port = |random: &mut fastrand::Rng| [53u16, 80, 443, 9][random.usize(0..4)].to_be_bytes();
        let behind = match random.u8(0..3) {
            0 => {
                packet[12..14].copy_from_slice(&[0x86, 0xdd]);
                packet[14] = 0x60;
                packet[20] = [6, 17][random.usize(0..2)];
                for at in [22, 38] {
                    packet[at..at + 2].copy_from_slice(&[0xfe, 0x80]);
                    packet[at + 15] = random.u8(1..5);
                }
                54
            }
            kind => {
                packet[12..14].copy_from_slice(&[8, if kind == 1 { 0 } else { random.u8(0..2) * 6 }]);
                packet[14] = 0x45;
                packet[22] = random.u8(0..30);
                packet[23] = [6, 17][random.usize(0..2)];
                for at in [26, 30, 28, 38] {
                    packet[at..at + 4].copy_from_slice(&[10, 0, random.u8(0..2), random.u8(0..5)]);
                }
                34
            }
        };
        packet[behind..behind + 2].copy_from_slice(&port(&mut random));
        packet[behind + 2..behind + 4].copy_from_slice(&port(&mut random));
        all.push(packet);
    }
    all
}

fn packet(captured: &[u8]) -> Packet<'_> {
    Packet { captured, length: captured.len() as u32, beside: Beside::default() }
}

/// With the contents of the file a map is asked as the list is compared.
#[test]
fn maps_with_the_files_contents_say_what_lists_say() {
    let mut matched = 0;
    for text in FILTERS {
        for step in 0..2 {
            let list = compile(text, &options(Hook::Xdp, step, false)).expect("a filter");
            let maps = compile(text, &options(Hook::Xdp, step, true)).expect("a filter");
            assert!(list.maps().is_empty() && !maps.maps().is_empty() && maps.jit().is_err());
            for form in [Form::Here, Form::Kernel] {
                assert_eq!(maps.unproven(form), None, "{text}");
            }
            for bytes in packets() {
                let verdict = list.run(&packet(&bytes));
                assert_eq!(maps.run(&packet(&bytes)), verdict, "{text} on {bytes:02x?}");
                matched += u32::from(verdict != 0);
            }
        }
    }
    assert!(matched > 1000, "{matched}");
}

#[test]
fn programs_in_the_kernel_answer_by_what_their_maps_hold() {
    if !permitted() {
        return;
    }
    for hook in [Hook::Xdp, Hook::Tc, Hook::CgroupSkb, Hook::Socket] {
        let (mut runs, mut changed) = (0, 0);
        for text in FILTERS {
            let [first, second] = [0, 1].map(|step| compile(text, &options(hook, step, true)));
            // A control group sees no Ethernet addresses.
            let (Ok(first), Ok(second)) = (first, second) else { continue };
            let actions = Actions::passing(hook);
            let object = first.object(hook, actions).unwrap_or_else(|e| panic!("{hook:?} {text}: {e}"));
            let object = LoadedObject::load(&object, &LoadOptions::default());
            let object = object.unwrap_or_else(|e| panic!("{hook:?} {text}: {e}"));
            let mut before: Vec<i32> = Vec::new();
            for filter in [&first, &second] {
                for of in filter.maps() {
                    let map = object.map(of.name()).expect("the map is there");
                    for key in map.keys().expect("keys") {
                        map.delete(&key).expect("it goes");
                    }
                    of.keys().for_each(|key| map.update(&key, &[1]).expect("there is room"));
                }
                let mut verdicts = Vec::new();
                for bytes in packets() {
                    let accepts = filter.run(&packet(seen(hook, &bytes))) != 0;
                    let wanted = if accepts { actions.matched } else { actions.other };
                    let run = object.test_run("filter", &handed(hook, &bytes), None, 1).expect("a run");
                    assert_eq!(run.retval as i32, wanted, "{hook:?} {text} on {bytes:02x?}");
                    verdicts.push(wanted);
                    runs += 1;
                }
                changed += before.iter().zip(&verdicts).filter(|(a, b)| a != b).count();
                before = verdicts;
            }
        }
        eprintln!("{hook:?}: {runs} runs, {changed} verdicts changed with the contents");
        assert!(runs > 4000 && changed > 100, "{hook:?}: {runs} runs, {changed} changed");
    }
}

#[test]
fn sets_that_cannot_be_maps_are_errors() {
    let error = |text: &str, name: &str, entries: &[&str]| {
        let entries = entries.iter().map(|e| (*e).to_owned()).collect();
        let options = Options {
            link_type: LinkType::EN10MB,
            sets: [(name.to_owned(), entries)].into(),
            updatable: [(name.to_owned(), Updatable::default())].into(),
            ..Options::default()
        };
        compile(text, &options).expect_err(text).message
    };
    assert!(error("host $A", "A", &[]).contains("empty"));
    assert!(error("host $A", "A", &["80"]).contains("has ports, which are not asked for"));
    assert!(error("port $A", "A", &["http"]).contains("its entries are"));
    for taken in
        ["counters", "report", "filter", "license", "slots_0", "bitmap_2", "displacements_1", "word0_0", "word13_2"]
    {
        let said = error(&format!("host ${taken}"), taken, &["1.2.3.4"]);
        assert!(said.contains("is called so"), "{taken}: {said}");
    }
    assert!(error("host $much-too-long-a-name", "much-too-long-a-name", &["1.2.3.4"]).contains("longer"));
    assert!(error("ip proto $A", "A", &["6"]).contains("may stand for"));
    // In the text this is one network that both are in, which a map does not tell.
    for text in ["src and dst net $A", "net $A or src and dst host $A", "src and dst host $A or src net $A"] {
        assert!(error(text, "A", &["10.0.0.1"]).contains("of one network"), "{text}");
    }
}

/// Filters that keep numbers on the stack while a map is asked, whose key stands there, too.
const DEEP: [&str; 6] = [
    "ether[ether[ether[14]] * 2] = 1 and ip6 src host $SIX and ether[ether[ether[14]] * 2 + 1] = 2",
    "ether[ether[ether[14]] * 2] < 200 and ip6 src host $SIX and ether[ether[ether[14]] * 2 + 1] < 200",
    "ether[ether[ether[14]] * 2] < 200 and not ip6 src host $SIX and ether[ether[ether[14]] * 2 + 1] < 200",
    "geneve and host $BAD",
    "geneve and port $PORTS",
    "geneve and (src host $BAD or src net $NETS)",
];

/// IPv6 packets with numbers that are places of others, and Geneve around packets of the sets.
fn deep_packets() -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(6);
    let mut all = Vec::new();
    for inner in packets() {
        let mut numbers = vec![0u8; 100];
        numbers[12..14].copy_from_slice(&[0x86, 0xdd]);
        numbers[22..24].copy_from_slice(&[0xfe, 0x80]);
        numbers[37] = random.u8(1..4);
        let place = random.u8(40..54);
        numbers[14] = place;
        numbers[54..].iter_mut().for_each(|n| *n = random.choice([1, 2, 250]).unwrap_or(0));
        numbers[usize::from(place)] = random.u8(27..49);
        all.push(numbers);
        let mut tunnel = vec![0u8; 12];
        tunnel.extend([8, 0, 0x45, 0, 0, 200, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 9, 10, 0, 0, 9]);
        tunnel.extend([0x30, 0x39, 0x17, 0xc1, 0, 180, 0, 0]);
        let options = random.u8(0..3);
        tunnel.extend([options, 0, 0x65, 0x58, 0, 0, 1, 0]);
        tunnel.extend(std::iter::repeat_n(0, usize::from(options) * 4));
        tunnel.extend(inner);
        all.push(tunnel);
    }
    all
}

#[test]
fn keys_and_numbers_have_places_of_their_own() {
    if !permitted() {
        return;
    }
    for hook in [Hook::Xdp, Hook::Tc, Hook::CgroupSkb, Hook::Socket] {
        let (mut runs, mut matched) = (0, 0);
        for text in DEEP {
            let Ok(filter) = compile(text, &options(hook, 0, true)) else { continue };
            let actions = Actions::passing(hook);
            let object = filter.object(hook, actions).unwrap_or_else(|e| panic!("{hook:?} {text}: {e}"));
            let object = LoadedObject::load(&object, &LoadOptions::default());
            let object = object.unwrap_or_else(|e| panic!("{hook:?} {text}: {e}"));
            for of in filter.maps() {
                let map = object.map(of.name()).expect("the map is there");
                of.keys().for_each(|key| map.update(&key, &[1]).expect("there is room"));
            }
            for bytes in deep_packets() {
                let accepts = filter.run(&packet(seen(hook, &bytes))) != 0;
                let wanted = if accepts { actions.matched } else { actions.other };
                let run = object.test_run("filter", &handed(hook, &bytes), None, 1).expect("a run");
                assert_eq!(run.retval as i32, wanted, "{hook:?} {text} on {bytes:02x?}");
                runs += 1;
                matched += u32::from(accepts);
            }
        }
        eprintln!("{hook:?}: {runs} runs, {matched} matched");
        assert!(runs > 1500 && matched > 150, "{hook:?}: {runs} runs, {matched} matched");
    }
}
