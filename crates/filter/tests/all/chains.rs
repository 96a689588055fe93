//! `protochain` at hooks, where a chain has at most eight headers, against the chain of any length, and one that the test follows.

use bpf_filter::{Beside, Filter, Form, Hook, LinkType, Options, Packet, compile};
use bpf_kernel::testing::permitted;
use bpf_kernel::{LoadOptions, LoadedObject};
use fastrand::Rng;

use crate::common::{link_type, options, seen};
use crate::kernel::{hooks, returned, wanted};

/// Where IP begins.
const START: usize = 14;
/// More headers than a hook's program goes past.
const MOST_HEADERS: usize = 8;

const AUTHENTICATION: u8 = 51;
const OPTIONS: [u8; 4] = [0, 43, 44, 60];
const UPPER: [u8; 6] = [6, 17, 58, 59, 50, 47];

/// What comes of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Met {
    Found,
    Other,
    /// It leads off the packet, or does not end.
    Off,
}

/// Follows a chain of headers: what is met, and how many headers were gone past.
fn followed(packet: &[u8], is_ip6: bool, protocol: u8) -> (Met, usize) {
    let kind: [u8; 2] = if is_ip6 { [0x86, 0xdd] } else { [0x08, 0x00] };
    let Some(found) = packet.get(12..14) else { return (Met::Off, 0) };
    if found != kind {
        return (Met::Other, 0);
    }
    let byte = |at: usize| packet.get(START + at).copied();
    let (next, mut at) =
        if is_ip6 { (byte(6), 40) } else { (byte(9), byte(0).map_or(0, |first| usize::from(first & 15) * 4)) };
    let Some(mut next) = next else { return (Met::Off, 0) };
    for headers in 0..200 {
        if next == protocol {
            return (Met::Found, headers);
        }
        let is_option = is_ip6 && OPTIONS.contains(&next);
        if !is_option && next != AUTHENTICATION {
            return (Met::Other, headers);
        }
        let (Some(following), Some(length)) = (byte(at), byte(at + 1)) else { return (Met::Off, headers) };
        // Behind an authentication header libpcap goes on at four times its length, from the IP header on.
        at = if is_option { at + (usize::from(length) + 1) * 8 } else { (usize::from(length) + 2) * 4 };
        next = following;
    }
    (Met::Off, 200)
}

/// A packet with up to twelve headers; some of them random, or cut.
fn packet(random: &mut Rng) -> Vec<u8> {
    let is_ip6 = random.u8(0..3) > 0;
    let mut bytes = vec![0; START];
    bytes[12..].copy_from_slice(if is_ip6 { &[0x86, 0xdd] } else { &[0x08, 0x00] });
    let among = |random: &mut Rng, numbers: &[u8]| random.choice(numbers.iter().copied()).unwrap_or_default();
    let headers = random.usize(0..=12);
    let mut kinds: Vec<u8> = (0..headers)
        .map(|_| if !is_ip6 || random.u8(0..6) == 0 { AUTHENTICATION } else { among(random, &OPTIONS) })
        .collect();
    kinds.push(among(random, &UPPER));
    let words = if is_ip6 { 10 } else { random.usize(5..8) };
    let mut header = vec![0; words * 4];
    if is_ip6 {
        (header[0], header[6]) = (0x60, kinds[0]);
    } else {
        (header[0], header[9]) = (0x40 | words as u8, kinds[0]);
    }
    bytes.extend(header);
    for (i, kind) in kinds.iter().take(headers).enumerate() {
        let place = bytes.len() - START;
        // A length that leads libpcap from an authentication header to where the next one begins.
        let length = match *kind {
            AUTHENTICATION => (place / 4 + 1) as u8,
            44 => 0,
            _ => random.u8(0..3),
        };
        let size = if *kind == AUTHENTICATION { 12 } else { (usize::from(length) + 1) * 8 };
        let mut header: Vec<u8> = (0..size).map(|_| random.u8(..)).collect();
        (header[0], header[1]) = (kinds[i + 1], length);
        bytes.extend(header);
    }
    bytes.extend((0..random.usize(0..40)).map(|_| random.u8(..)));
    match random.u8(0..4) {
        // Numbers that lead somewhere, also back.
        0 => {
            for byte in bytes.iter_mut().skip(START + if is_ip6 { 40 } else { 20 }) {
                if random.u8(0..6) == 0 {
                    *byte = among(random, &[0, 1, 2, 3, 6, 8, 43, 44, 51, 60, 255]);
                }
            }
        }
        1 => bytes.truncate(random.usize(34..bytes.len().max(35))),
        _ => {}
    }
    bytes.resize(bytes.len().max(34), 0);
    bytes
}

/// What a filter asks of one chain: whether it is negated, over IPv4 (`false`) or IPv6, and the number.
type Chain = (bool, &'static [bool], u8);

/// Expressions; and of those that a chain alone decides about, what it is.
const EXPRESSIONS: [(&str, Option<Chain>); 13] = [
    ("ip6 protochain 6", Some((false, &[true], 6))),
    ("ip6 protochain 51", Some((false, &[true], 51))),
    ("ip6 protochain 59", Some((false, &[true], 59))),
    ("ip6 protochain 0", Some((false, &[true], 0))),
    ("ip6 protochain 44", Some((false, &[true], 44))),
    ("ip protochain 17", Some((false, &[false], 17))),
    ("ip protochain 51", Some((false, &[false], 51))),
    ("protochain 6", Some((false, &[false, true], 6))),
    ("not ip6 protochain 17", Some((true, &[true], 17))),
    ("not protochain 58", Some((true, &[false, true], 58))),
    ("ip6 protochain 6 and ip6[40] & 1 = 0", None),
    ("protochain 17 or ip6 protochain 60", None),
    ("ip6 protochain 60 and not ip6 protochain 6 and ip6[6] != 43", None),
];

/// The verdict that a chain alone gives.
fn by_chain(packet: &[u8], (negated, kinds, protocol): Chain) -> (bool, usize) {
    let mut most = 0;
    for is_ip6 in kinds {
        let (met, headers) = followed(packet, *is_ip6, protocol);
        most = most.max(headers);
        match met {
            Met::Off => return (false, most),
            Met::Found => return (!negated, most),
            Met::Other => {}
        }
    }
    (negated, most)
}

fn accepts(filter: &Filter, captured: &[u8]) -> bool {
    filter.run(&Packet { captured, length: captured.len() as u32, beside: Beside::default() }) != 0
}

/// How many headers the packet has of which a filter could ask for any.
fn chain_length(packet: &[u8]) -> usize {
    // No chain has a header of a number that none has.
    [false, true].map(|is_ip6| followed(packet, is_ip6, 255).1).into_iter().max().unwrap_or_default()
}

#[test]
fn chains_at_hooks_mean_what_they_mean_to_the_interpreter() {
    let mut random = Rng::with_seed(8);
    let packets: Vec<Vec<u8>> = (0..1500).map(|_| packet(&mut random)).collect();
    let is_permitted = permitted();
    let (mut short, mut long, mut cut_off, mut runs, mut matched) = (0, 0, 0, 0, 0);
    for (hook, actions) in hooks() {
        let link = link_type(hook);
        for (expression, chain) in EXPRESSIONS {
            let at_hook = Options { source: hook.source(), ..options(link) };
            let filter = compile(expression, &at_hook).unwrap_or_else(|e| panic!("{hook:?} {expression}: {e}"));
            let plain = compile(expression, &Options { optimize: false, ..at_hook }).expect("a filter");
            let unbounded = compile(expression, &options(link)).expect("a filter");
            assert_eq!(filter.unproven(Form::Kernel), None, "{hook:?} {expression}");
            assert_eq!(filter.unproven(Form::Here), None, "{hook:?} {expression}");
            let of_ethernet = compile(expression, &options(LinkType::EN10MB)).expect("a filter");
            let object = filter.object(hook, actions).unwrap_or_else(|e| panic!("{hook:?} {expression}: {e}"));
            let object = match LoadedObject::load(&object, &LoadOptions::default()) {
                _ if !is_permitted => None,
                Ok(object) => Some(object),
                // Two chains behind each other are too many ways for the verifier where each field is a call.
                Err(e) if hook == Hook::Socket && expression.matches("protochain").count() > 1 => {
                    eprintln!("{hook:?} {expression}: {e}");
                    assert!(e.to_string().contains("E2BIG"));
                    None
                }
                Err(e) => panic!("{hook:?} {expression}: {e}"),
            };
            for bytes in &packets {
                let captured = seen(hook, bytes);
                let verdict = accepts(&filter, captured);
                let what = || format!("{hook:?} {expression} on {bytes:?}");
                assert_eq!(verdict, accepts(&plain, captured), "not optimized: {}", what());
                assert_eq!(accepts(&unbounded, captured), accepts(&of_ethernet, bytes), "{}", what());
                if let Some(chain) = chain {
                    let (met, headers) = by_chain(bytes, chain);
                    assert_eq!(accepts(&unbounded, captured), met, "followed: {}", what());
                    if headers <= MOST_HEADERS {
                        assert_eq!(verdict, met, "{headers} headers: {}", what());
                    } else {
                        assert!(!verdict, "{headers} headers: {}", what());
                        cut_off += u32::from(met);
                    }
                }
                if chain_length(bytes) <= MOST_HEADERS {
                    assert_eq!(verdict, accepts(&unbounded, captured), "of any length: {}", what());
                    short += 1;
                } else {
                    long += 1;
                }
                if let Some(object) = &object {
                    let Some(returned) = returned(object, hook, bytes) else {
                        // Where a socket buffer is made of it, an IPv6 header has to be there.
                        assert!(matches!(hook, Hook::Tc | Hook::CgroupSkb) && bytes.len() < START + 40, "{}", what());
                        continue;
                    };
                    assert_eq!(returned, wanted(&filter, captured, actions), "in the kernel: {}", what());
                    runs += 1;
                    matched += u32::from(verdict);
                }
            }
        }
    }
    eprintln!(
        "chains: {short} of up to eight headers, {long} longer ({cut_off} would match), {runs} runs, {matched} matched"
    );
    assert!(short > 50_000 && long > 5_000 && cut_off > 100 && (!is_permitted || matched > 10_000));
}
