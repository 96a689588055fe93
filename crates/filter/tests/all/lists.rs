//! Lists of addresses of several words, and of networks: what becomes a table of keys, against the members one after the other.

use std::collections::HashMap;

use bpf_filter::{Actions, Beside, Filter, Form, Hook, LinkType, Options, Packet, compile};
use bpf_kernel::testing::permitted;
use bpf_kernel::{LoadOptions, LoadedObject};
use bpf_pcap_oracle::{Libpcap, interpreter};
use fastrand::Rng;

use crate::common::{by_libpcap, forms, handed, link_type, machine_code, options, seen};

/// A list, and what the filter asks of it.
struct List {
    question: &'static str,
    members: Vec<String>,
    /// The list spelled out asks for all members in the same order of fields.
    is_spelled_out: bool,
}

/// Addresses share words, so that beginnings have several members, and members several words in common.
fn lists(random: &mut Rng) -> Vec<List> {
    let mac = |random: &mut Rng| {
        let first = random.choice([[0u8, 1], [0xf3, 0xa9], [2, 3]]).unwrap_or_default();
        let mut bytes = [first[0], first[1], 0, 0, 0, 0];
        bytes[2..].iter_mut().for_each(|b| *b = random.u8(0..3));
        bytes.map(|b| format!("{b:02x}")).join(":")
    };
    let ip6 = |random: &mut Rng, near: bool| {
        let mut words = [0x2001u16, 0xdb8, 0, 1, 0, 0, 0, 0];
        let from = if near { 5 } else { 2 };
        words[from..].iter_mut().for_each(|w| *w = random.u16(0..3));
        words.map(|w| format!("{w:x}")).join(":")
    };
    let net6 = |random: &mut Rng| {
        let length = random.choice([0u32, 8, 32, 40, 48, 64, 65, 96, 100, 128]).unwrap_or_default();
        let length = if length == 0 && random.u8(0..20) > 0 { 64 } else { length };
        let address = 0x2000u128 << 112 | random.u128(..) & 0x0103_0301_0101_0001_0003_0000_0101_0003;
        let net = address & u128::MAX.checked_shl(128 - length).unwrap_or(0);
        format!("{}/{length}", std::net::Ipv6Addr::from(net))
    };
    let net4 = |random: &mut Rng| {
        let length = random.choice([12u32, 20, 24, 24, 24, 32]).unwrap_or(24);
        let net = (10 << 24 | random.u32(0..1 << 24) & 0x00f3_31f3) & u32::MAX << (32 - length);
        format!("{}/{length}", std::net::Ipv4Addr::from(net))
    };
    let range = |random: &mut Rng| {
        let (first, length) = (random.u16(0..3000), random.u16(0..30));
        if length < 3 { first.to_string() } else { format!("{first}-{}", first + length - 3) }
    };
    let n = if random.u8(0..3) == 0 { random.usize(2..7) } else { random.usize(16..120) };
    let mut list = |question, is_spelled_out, member: &dyn Fn(&mut Rng) -> String| {
        let mut members: Vec<String> = (0..n).map(|_| member(random)).collect();
        // Some are named again.
        for _ in 0..random.usize(0..3) {
            let again = members[random.usize(0..n)].clone();
            members.insert(random.usize(0..=members.len()), again);
        }
        List { question, is_spelled_out, members }
    };
    vec![
        list("ether host", true, &mac),
        list("ether src", true, &mac),
        list("ether dst", true, &mac),
        list("ip6 src host", true, &|r| ip6(r, false)),
        list("ip6 dst host", true, &|r| ip6(r, true)),
        list("host", false, &|r| ip6(r, true)),
        list("dst net", true, &net6),
        list("net", false, &net6),
        list("net", true, &net4),
        list("src net", true, &net4),
        list("portrange", true, &range),
        list("tcp dst portrange", true, &range),
        list("src portrange", true, &range),
        list("src and dst host", true, &|r| ip6(r, true)),
        list("src and dst net", true, &net6),
        list("src and dst net", true, &net4),
        list("ether src and dst host", true, &mac),
        list("src and dst portrange", true, &range),
    ]
}

/// A packet that has members of the list, or what is one bit from them, where addresses stand.
fn packet(list: &List, random: &mut Rng) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..80).map(|_| random.u8(0..3)).collect();
    if list.question.ends_with("portrange") {
        let (kind, first, protocol_at, ports) =
            if random.bool() { (0x86ddu16, 0x60, 20, 54) } else { (0x0800, 0x45, 23, 34) };
        bytes[12..14].copy_from_slice(&kind.to_be_bytes());
        (bytes[14], bytes[protocol_at]) = (first, random.choice([6, 17, 132, 1]).unwrap_or(6));
        if random.u8(0..8) > 0 {
            (bytes[20], bytes[21]) = (if kind == 0x0800 { 0 } else { bytes[20] }, 0);
        }
        for place in [ports, ports + 2] {
            let member = random.choice(&list.members).map_or("", String::as_str);
            let (low, high) = member.split_once('-').unwrap_or((member, member));
            let end: u16 = if random.bool() { low } else { high }.parse().expect("a number");
            bytes[place..place + 2].copy_from_slice(&end.wrapping_add(random.u16(0..4)).wrapping_sub(2).to_be_bytes());
        }
        return bytes;
    }
    let member = || {
        let (address, _) = list.members[0].split_once('/').unwrap_or((&list.members[0], ""));
        address.to_owned()
    };
    let of = |text: &str| -> Vec<u8> {
        let address = text.split('/').next().unwrap_or_default();
        match address.parse::<std::net::IpAddr>() {
            Ok(std::net::IpAddr::V4(a)) => a.octets().into(),
            Ok(std::net::IpAddr::V6(a)) => a.octets().into(),
            Err(_) => address.split(':').filter_map(|b| u8::from_str_radix(b, 16).ok()).collect(),
        }
    };
    let places: [usize; 2] = match of(&member()).len() {
        4 => [26, 30],
        6 => [6, 0],
        _ => [22, 38],
    };
    let kind: u16 = if places[0] == 22 { 0x86dd } else { 0x0800 };
    bytes[12..14].copy_from_slice(&kind.to_be_bytes());
    bytes[14] = if places[0] == 22 { 0x60 } else { 0x45 };
    for place in places {
        let mut address = of(random.choice(&list.members).map_or("", String::as_str));
        if random.bool() {
            let i = random.usize(0..address.len());
            address[i] ^= 1 << random.u8(0..8);
        }
        bytes[place..place + address.len()].copy_from_slice(&address);
    }
    bytes
}

fn compiled(list: &List, options: &Options) -> Filter {
    let sets = HashMap::from([("S".to_owned(), list.members.clone())]);
    let text = format!("{} $S", list.question);
    compile(&text, &Options { sets, ..options.clone() }).unwrap_or_else(|e| panic!("{}", e.render(&text)))
}

#[test]
fn lists_accept_what_their_members_accept() {
    let pcap = Libpcap::for_test();
    let mut random = Rng::with_seed(11);
    let (mut compared, mut by_oracle, mut matched) = (0, 0, 0);
    for _ in 0..8 {
        for list in lists(&mut random) {
            let options = options(LinkType::EN10MB);
            let optimized = compiled(&list, &options);
            let plain = compiled(&list, &Options { optimize: false, ..options.clone() });
            for form in forms() {
                assert_eq!(optimized.unproven(form), None, "{form:?} of {} {:?}", list.question, list.members);
            }
            let jit = machine_code(&optimized);
            let text = format!("{} {}", list.question, list.members.join(&format!(" or {} ", list.question)));
            let spelled_out = compile(&text, &options).expect("a filter");
            let oracle = pcap.as_ref().filter(|_| list.is_spelled_out).and_then(|pcap| by_libpcap(pcap, 1, &text).ok());
            for _ in 0..60 {
                let bytes = packet(&list, &mut random);
                for cut in 0..=bytes.len() {
                    let captured = &bytes[..cut];
                    let packet = Packet { captured, length: 80, beside: Beside::default() };
                    let verdict = optimized.run(&packet) != 0;
                    matched += u32::from(verdict);
                    let what = || format!("{} {:?} on {captured:?}", list.question, list.members);
                    assert_eq!(verdict, plain.run(&packet) != 0, "{}", what());
                    if let Some(jit) = &jit {
                        assert_eq!(verdict, jit.run(&packet), "machine code: {}", what());
                    }
                    if let Some(oracle) = &oracle {
                        let by_pcap = interpreter::run(oracle, captured, 80).verdict != 0;
                        assert_eq!(verdict, by_pcap, "libpcap: {}", what());
                        assert_eq!(spelled_out.run(&packet) != 0, by_pcap, "spelled out: {}", what());
                        by_oracle += 1;
                    }
                    compared += 1;
                }
            }
        }
    }
    eprintln!("{compared} verdicts of lists, {by_oracle} of them libpcap's, too; {matched} matched");
    assert!(matched > 10_000);
}

/// Ranges are one set before anything else is done with them: thousands take no seconds.
#[test]
fn thousands_of_ranges_are_one_question() {
    let mut random = Rng::with_seed(3);
    let mut range = || {
        let first = random.u16(0..65_000);
        format!("{first}-{}", first + random.u16(0..60))
    };
    let members: Vec<String> = (0..4000).map(|_| range()).collect();
    for question in ["portrange", "udp dst portrange"] {
        let list = List { question, is_spelled_out: true, members: members.clone() };
        let started = std::time::Instant::now();
        let filter = compiled(&list, &options(LinkType::EN10MB));
        let text = format!("{question} {}", members.join(&format!(" or {question} ")));
        let spelled_out = compile(&text, &options(LinkType::EN10MB)).expect("a filter");
        for form in forms() {
            assert_eq!(filter.unproven(form), None, "{form:?} of {question}");
            assert_eq!(spelled_out.unproven(form), None, "{form:?} of {question}");
        }
        assert!(started.elapsed().as_secs() < 20, "{question}: {:?}", started.elapsed());
    }
}

#[test]
fn lists_of_thousands_are_small_and_load() {
    if !permitted() {
        return;
    }
    let mut random = Rng::with_seed(12);
    let (mut runs, mut matched) = (0, 0);
    for (question, bits) in [("ether host", 48), ("host", 128), ("src net", 40), ("net", 24)] {
        let member = |random: &mut Rng| match bits {
            48 => (0..6).map(|_| format!("{:02x}", random.u8(..))).collect::<Vec<String>>().join(":"),
            128 => std::net::Ipv6Addr::from(random.u128(..)).to_string(),
            40 => format!("{}/40", std::net::Ipv6Addr::from(random.u128(..) >> 88 << 88)),
            _ => format!("{}/24", std::net::Ipv4Addr::from(random.u32(..) >> 8 << 8)),
        };
        let list = List { question, is_spelled_out: false, members: (0..3000).map(|_| member(&mut random)).collect() };
        for hook in [Hook::Xdp, Hook::Tc, Hook::CgroupSkb, Hook::Socket] {
            if hook == Hook::CgroupSkb && bits == 48 {
                continue;
            }
            let options = Options { source: hook.source(), ..options(link_type(hook)) };
            let filter = compiled(&list, &options);
            let actions = Actions::passing(hook);
            let object = filter.object(hook, actions).expect("an object");
            let object = LoadedObject::load(&object, &LoadOptions::default());
            let object = object.unwrap_or_else(|e| panic!("{hook:?} {question}: {e}"));
            for _ in 0..200 {
                let bytes = packet(&list, &mut random);
                let captured = seen(hook, &bytes);
                let packet = Packet { captured, length: captured.len() as u32, beside: Beside::default() };
                let wanted = if filter.run(&packet) != 0 { actions.matched } else { actions.other };
                let run = object.test_run("filter", &handed(hook, &bytes), None, 1).expect("a run");
                assert_eq!(run.retval as i32, wanted, "{hook:?} {question} on {bytes:?}");
                runs += 1;
                matched += u32::from(wanted == actions.matched);
            }
        }
    }
    eprintln!("{runs} runs of lists in the kernel, {matched} matched");
    assert!(matched > 500);
}

/// Networks of many lengths, for whose beginnings there was no table.
const NETWORKS: &str = "100::1/128 1::/96 2000::/8 2000:db8:1::/48 2001:db8:5:6:7:1::/96 2001:db8:5:6:7:8:9:a/128 \
    2001:db8:5:6::/65 2001:db8:5::/48 2001:db8::/48 2001:db8::/64 2001:db8::1/128 2001:dff::/127 3000::1/128 6b80::/48 ::/0 ::/1 \
    ::/33 ::/65 ::9f00:0:1/128 a900::/64 fe80::/65 fe80::ff00/127 fe80:ff::ff:1/128 feff::/65 ff00::/8 ff02::1/128 ff02:ff00::/48";

/// Lists whose entries differ in few bits, and those the upper ones: beginnings of addresses and networks. Each has a table, soon.
#[test]
fn lists_that_differ_in_their_upper_bits_have_tables() {
    let mut random = fastrand::Rng::with_seed(7);
    for n in [16usize, 20, 24, 32, 48, 65, 128, 257, 1000] {
        let prefixes = [53, 54, 69, 109, 114];
        let lists: [(&str, Vec<String>); 8] = [
            ("src net", (0..n).map(|i| format!("{:x}::/{}", (i * 0x100) & 0xffff, prefixes[i % 5])).collect()),
            ("src net", NETWORKS.split_whitespace().map(str::to_owned).collect()),
            ("ether host", (0..n).map(|i| format!("{:02x}:{:02x}:00:00:00:00", i >> 6, (i & 63) * 4)).collect()),
            (
                "ether host",
                (0..n).map(|_| format!("{:02x}:00:00:00:00:{:02x}", random.u8(..), random.u8(..))).collect(),
            ),
            ("src host", (0..n).map(|i| format!("{:x}::", 0x2000 + i * 8)).collect()),
            ("src host", (0..n).map(|i| format!("2001:db8:{:x}::{}", i * 16, random.u8(1..))).collect()),
            ("src net", (0..n).map(|i| format!("fc{:02x}:{:x}00::/32", i >> 6, i & 63)).collect()),
            ("net", (0..n).map(|i| format!("{}.{}.0.0/14", 10 + (i >> 6), (i & 63) * 4)).collect()),
        ];
        for (question, mut entries) in lists {
            entries.sort_unstable();
            entries.dedup();
            let sets = [("L".to_owned(), entries.clone())].into();
            let began = std::time::Instant::now();
            let filter = compile(&format!("{question} $L"), &Options { sets, ..options(LinkType::EN10MB) });
            let filter = filter.unwrap_or_else(|e| panic!("{}", e.render(question)));
            let actions = Actions::passing(Hook::Xdp);
            let text = filter.assembly(Hook::Xdp, actions).expect("a program");
            let (lines, took) = (text.lines().count(), began.elapsed());
            eprintln!("{n} of {question}, such as {}: {lines} lines, {took:?}", entries[0]);
            assert!(took < std::time::Duration::from_millis(1000), "{n} of {question}, {}: {took:?}", entries[0]);
            // Neighbours are one interval, and few of a length are compared: they need no table.
            let is_table = text.contains(" ll") || lines < 300;
            assert!(is_table && lines < 600, "{n} of {question}, such as {}: {lines} lines", entries[0]);
        }
    }
}

/// Lists whose entries differ in one word alone, which is not always the last: as MAC addresses of one vendor, and networks that are
/// numbered. What is asked for behind that word is the same for thousands.
#[test]
fn lists_that_differ_in_one_word_are_proven() {
    for n in [257usize, 10_000] {
        let lists: [(&str, bool, Vec<String>); 7] = [
            ("ether host", true, (0..n).map(|i| format!("02:00:00:00:{:02x}:{:02x}", i >> 8, i & 0xff)).collect()),
            ("ether src", true, (0..n).map(|i| format!("02:00:00:{:02x}:{:02x}:00", i >> 8, i & 0xff)).collect()),
            ("host", false, (0..n).map(|i| format!("2001:db8:{:x}::1", 3 * i)).collect()),
            ("src host", true, (0..n).map(|i| format!("2001:db8:{:x}::1", 3 * i)).collect()),
            ("dst host", true, (0..n).map(|i| format!("2001:db8:0:1:{i:x}::{:x}", i % 3 + 1)).collect()),
            ("net", false, (0..n).map(|i| format!("2001:db8:{i:x}::/80")).collect()),
            ("src net", true, (0..n).map(|i| format!("2001:{:x}:{:x}:1::/80", i % 7, i)).collect()),
        ];
        for (question, is_spelled_out, members) in lists {
            let began = std::time::Instant::now();
            let list = List { question, is_spelled_out, members };
            let named = compiled(&list, &options(LinkType::EN10MB));
            let text = format!("{question} {}", list.members.join(" or "));
            let spelled_out = is_spelled_out.then(|| compile(&text, &options(LinkType::EN10MB)).expect("a filter"));
            for filter in spelled_out.iter().chain([&named]) {
                for form in [Form::Here, Form::Machine, Form::Kernel] {
                    assert_eq!(filter.unproven(form), None, "{form:?} of {n} of {question}");
                }
                let lines = filter.assembly(Hook::Xdp, Actions::passing(Hook::Xdp)).expect("a program").lines().count();
                assert!(lines < 600, "{n} of {question}: {lines} lines");
            }
            let took = began.elapsed();
            eprintln!("{n} of {question}, such as {}: {took:?}", list.members[1]);
            assert!(took.as_secs() < 10, "{n} of {question}: {took:?}");
        }
    }
}

/// Whether one element is both source and destination is one question, however many there are.
#[test]
fn one_of_thousands_that_is_both_is_one_question() {
    let lists: [(&str, Vec<String>); 6] = [
        ("src and dst host", (0..4000u32).map(|i| std::net::Ipv4Addr::from(i * 0x9e37_79b1).to_string()).collect()),
        ("src and dst net", (0..4000).map(|i| format!("{}.{}.{}.0/24", 10 + (i >> 8), i & 0xff, i % 7)).collect()),
        ("src and dst port", (0..4000).map(|i| (3 * i + 1).to_string()).collect()),
        ("src and dst host", (0..4000).map(|i| format!("2001:db8:{i:x}::{:x}", i % 9)).collect()),
        ("ether src and dst", (0..4000).map(|i| format!("02:00:{:02x}:{:02x}:00:01", i >> 8, i & 0xff)).collect()),
        // Each range that has a source has destinations of its own.
        ("src and dst portrange", (0..500).map(|i| format!("{}-{}", 130 * i, 130 * i + 80)).collect()),
    ];
    for (question, members) in lists {
        let began = std::time::Instant::now();
        let list = List { question, is_spelled_out: true, members };
        let filter = compiled(&list, &options(LinkType::EN10MB));
        for form in [Form::Here, Form::Machine, Form::Kernel] {
            assert_eq!(filter.unproven(form), None, "{form:?} of {question}");
        }
        let lines = filter.assembly(Hook::Xdp, Actions::passing(Hook::Xdp)).expect("a program").lines().count();
        let took = began.elapsed();
        eprintln!("{question} of {}: {lines} lines, {took:?}", list.members[1]);
        let most = 600 + if question.ends_with("portrange") { 21 * list.members.len() } else { 0 };
        assert!(lines < most && took.as_secs() < 5, "{question}: {lines} lines, {took:?}");
    }
}
