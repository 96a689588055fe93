//! Bad filters: an error that points at the place, and never a crash.

use std::time::{Duration, Instant};

use bpf_filter::{LinkType, Options, compile};
use bpf_pcap_oracle::Libpcap;

use crate::common::{by_libpcap, options};

fn error(text: &str) -> bpf_filter::Error {
    match compile(text, &options(LinkType::EN10MB)) {
        Ok(_) => panic!("{text:?} was taken"),
        Err(e) => e,
    }
}

#[test]
fn errors_point_at_the_place() {
    for (text, at, message) in [
        ("tcp port foo-bar-baz", "foo-bar-baz", "unknown port 'foo-bar-baz'"),
        ("host 1.2.3.256", "host 1.2.3.256", "invalid IPv4 address '1.2.3.256'"),
        ("tcp and (udp", "", "the filter ends where ')' should stand"),
        ("ip[0:3] = 1", "3", "data size must be 1, 2, or 4"),
        ("net 10.0.0.1/8", "net 10.0.0.1/8", "non-network bits set in \"10.0.0.1/8\""),
        ("vlan 4096", "vlan 4096", "VLAN tag 4096 greater than maximum 4095"),
        ("tcp or 80", "80", "syntax error: nothing says what kind of id this is"),
        ("len / 0 = 1", "len / 0", "division by zero"),
        ("portrange ssh", "portrange ssh", "unknown port in range 'ssh'"),
        ("protochain Tcp", "protochain Tcp", "unknown 'protochain' value 'Tcp'"),
        ("host @", "@", "there is no meaning to '@' in a filter"),
    ] {
        let e = error(text);
        assert_eq!(e.message, message, "{text}");
        let place = &text[e.span.clone()];
        assert!(at.ends_with(place), "{text}: {place:?}");
    }
}

/// Odd spellings: what libpcap takes is taken, and what it refuses is refused.
#[test]
fn spellings_are_taken_as_libpcap_takes_them() {
    let Some(pcap) = Libpcap::for_test() else { return };
    let (mut taken, mut refused) = (0, 0);
    for text in [
        r"host \10.0.0.1",
        r"host \10.1",
        r"src \80",
        r"dst host \0x0a000001 or \010.1",
        r"ip6 host \::1",
        r"ip host \::1",
        r"host \1.2.3.4.5",
        r"host \08",
        r"net \10",
        r"port \80",
        r"portrange \80-90",
        r"proto \6",
        r"proto \Tcp",
        r"proto \TCP",
        r"protochain Tcp",
        r"ether proto \IP",
        "portrange ssh",
        "portrange ssh-http",
        "portrange 22-http",
        "portrange 90-80",
        "portrange 80-",
        "portrange 0x50-90",
        "portrange 65535-65536",
        "port 80foo",
        "net 10.0.0.0/010",
        "net 10/8",
        "net 10.1/16",
        "net 1.2 mask 255.255",
        "net 10 mask 255.0.0.0",
        "net 10.0.0.0 mask 0.0.0.255",
        "host 10.0.0.1/32",
        "host ::1/128",
        "host 0x0a.1.1.1",
        "host 1.2.08.4",
        "ether host 01.02.03.04.05.06",
        "ether host 1-2-3-4-5-6",
        "ether host 0102.0304.0506",
        "ether host 010203040506",
        "ether host 1:2:3:4:5:6:7",
        "ether host 1:2-3:4:5:6",
        "ether host $12",
        "byte 0 ^ 1 = 1",
        "vlan 4096",
        "mpls 1048576",
        "pppoes 65536",
        "geneve 16777216",
        "vlan (5)",
        "less (5)",
        "ifindex -1",
        "tcp[tcpflags] & (tcp-syn|tcp-ack) == 0x12",
        "tcp[0:3] = 1",
        "tcp[0:(2)] = 1",
        "icmp[icmptype] = icmp-foo",
        "1 / 0 = 1",
        "1 << 32 = 1",
        "len =! 5",
        "tcp and and udp",
        "gateway 10.0.0.1",
    ] {
        let (ours, theirs) = (compile(text, &options(LinkType::EN10MB)), by_libpcap(&pcap, 1, text));
        assert_eq!(ours.is_ok(), theirs.is_ok(), "{text}: we say {:?}, libpcap {:?}", ours.err(), theirs.err());
        *if theirs.is_ok() { &mut taken } else { &mut refused } += 1;
    }
    assert!(taken > 20 && refused > 20, "{taken} {refused}");
}

#[test]
fn rendered_errors_show_the_line_and_the_place() {
    let text = "tcp and\n  port xyzzy";
    let rendered = error(text).render(text);
    assert!(rendered.contains("line 2, column 8: unknown port 'xyzzy'"), "{rendered}");
    assert!(rendered.ends_with("    port xyzzy\n         ^^^^^"), "{rendered}");
    // Long lines are cut.
    let long = format!("{} or port xyzzy", vec!["tcp"; 1000].join(" or "));
    assert!(error(&long).render(&long).lines().all(|l| l.chars().count() < 120));
}

#[test]
fn deep_and_long_filters_end_soon() {
    let began = Instant::now();
    let deep = |n: usize| format!("{}tcp{}", "(".repeat(n), ")".repeat(n));
    assert!(compile(&deep(400), &options(LinkType::EN10MB)).is_ok());
    for text in [
        deep(10_000),
        format!("{}tcp", "not ".repeat(10_000)),
        format!("{}1{} = 1", "(".repeat(10_000), ")".repeat(10_000)),
        format!("{}1 = 1", "-".repeat(10_000)),
        "(".repeat(10_000),
    ] {
        assert!(compile(&text, &options(LinkType::EN10MB)).is_err());
    }
    // A megabyte of primitives: a result, or an error that says why not.
    let long = vec!["ip[2] = 1"; 80_000].join(" and ");
    let _ = compile(&long, &options(LinkType::EN10MB));
    let mixed: Vec<String> = (0..40_000).map(|i| format!("host 10.{}.{}.1 and port {i}", i >> 8, i & 255)).collect();
    let _ = compile(&mixed.join(" or "), &options(LinkType::EN10MB));
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

#[test]
fn sets_of_a_million_entries_are_taken() {
    let entries: Vec<String> =
        (0..1_000_000u32).map(|i| std::net::Ipv4Addr::from(i.wrapping_mul(2_654_435_761)).to_string()).collect();
    let sets = [("BIG".to_owned(), entries)].into();
    let filter = compile("src host $BIG", &Options { sets, ..options(LinkType::EN10MB) }).expect("a filter");
    assert!(filter.size() < 100, "{}", filter.size());
}

#[test]
fn sets_name_their_bad_entries() {
    let sets = [("S".to_owned(), vec!["10.0.0.1".to_owned(), "10.0.0.1 or 10.0.0.2".to_owned()])].into();
    let Err(e) = compile("host $S", &Options { sets, ..options(LinkType::EN10MB) }) else { panic!("taken") };
    assert!(e.message.contains("in the set \"S\""), "{e}");
    assert!(error("host $NOSUCH").message.contains("there is no set called"));
}
