//! Bad filters: an error that points at the place, and never a crash.

use std::time::{Duration, Instant};

use bpf_filter::{LinkType, Options, compile};

use crate::common::options;

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
        ("host @", "@", "there is no meaning to '@' in a filter"),
    ] {
        let e = error(text);
        assert_eq!(e.message, message, "{text}");
        let place = &text[e.span.clone()];
        assert!(at.ends_with(place), "{text}: {place:?}");
    }
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
