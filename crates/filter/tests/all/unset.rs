//! Link types of which libpcap does not know where their payload stands: it computes with −1, and what comes of that may be a place
//! in the packet. Every primitive over every link type that it compiles for, over packets that hold what its code compares.

use bpf_filter::{Beside, ClassicGoal, LinkType, Options, Packet, compile};
use bpf_pcap_oracle::{Libpcap, Program, interpreter};
use fastrand::Rng;

use crate::common::{by_libpcap, machine_code, options, oracle_form};

const EXPRESSIONS: [&str; 26] = [
    "ip6 protochain 6",
    "ip protochain 6",
    "protochain 17",
    "not ip6 protochain 17",
    "ip6 protochain 6 or ip6 proto 17",
    "ip6 proto 6",
    "ip proto 17",
    "tcp port 80",
    "ip6 and udp src port 53",
    "src portrange 1-3",
    "ip host 1.2.3.4",
    "ip6 net 100::/8",
    "ip6[6] = 17",
    "ip[9] = 6",
    "tcp[0] = 1",
    "udp[ip6[1]] = 1",
    "ip6[ip6[0] & 3] = 1",
    "icmp6[0] = 1",
    "ip multicast",
    "ip6 multicast",
    "vxlan 1 and ip",
    "geneve and ip6",
    "mpls and ip6 protochain 6",
    "pppoes and ip6 protochain 6",
    "arp or iso proto 131",
    "decnet src 1.2",
];

/// libpcap never ends where such a header leads back.
const AUTHENTICATION: u32 = 51;

/// A packet of small numbers, and what a program compares where it reads.
fn packet(program: &Program, random: &mut Rng) -> Vec<u8> {
    const AND: u16 = 0x54;
    const JEQ: u16 = 0x15;
    const SMALL: [u8; 10] = [0, 1, 2, 3, 4, 6, 17, 0x45, 0x60, 80];
    let mut bytes: Vec<u8> = (0..120).map(|_| random.choice(SMALL).unwrap_or_default()).collect();
    // Of `ld`, `ldh` or `ldb` of a place, a mask or none, and `jeq` with a number.
    for (i, load) in program.instructions.iter().enumerate() {
        let behind = program.instructions[i + 1..].iter().find(|next| next.code != AND).filter(|next| next.code == JEQ);
        let (Some(jump), Some(size)) = (behind, [(0x20, 4), (0x28, 2), (0x30, 1)].iter().find(|s| s.0 == load.code))
        else {
            continue;
        };
        let at = load.k as usize;
        if jump.k != AUTHENTICATION && at < 100 && random.u8(0..3) > 0 {
            bytes[at..at + size.1].copy_from_slice(&jump.k.to_be_bytes()[4 - size.1..]);
        }
    }
    bytes.truncate(if random.u8(0..4) == 0 { random.usize(0..120) } else { 120 });
    bytes
}

#[test]
fn places_that_are_not_set_are_those_of_libpcap() {
    let Some(pcap) = Libpcap::for_test() else { return };
    let mut random = Rng::with_seed(4);
    let (mut compared, mut accepted, mut wrong) = (0, 0, Vec::new());
    // ARCNET's old types are not followed.
    for dlt in (0..300).filter(|dlt| ![7, 129].contains(dlt)) {
        for text in EXPRESSIONS {
            // The chain is followed in the packet as it is in a file.
            let options = options(LinkType(dlt));
            let (Ok(theirs), Ok(ours)) = (by_libpcap(&pcap, dlt, text), compile(text, &options)) else { continue };
            let plain = compile(text, &Options { optimize: false, ..options }).expect("a filter");
            let jit = machine_code(&ours);
            let goals = [ClassicGoal::Size, ClassicGoal::Time];
            let classic: Vec<Program> = goals
                .iter()
                .filter_map(|g| ours.classic(*g).ok())
                .chain(plain.classic(goals[0]).ok())
                .map(oracle_form)
                .collect();
            for _ in 0..40 {
                let captured = packet(&theirs, &mut random);
                let run = |program: &Program| interpreter::run(program, &captured, 120).verdict != 0;
                let packet = Packet { captured: &captured, length: 120, beside: Beside::default() };
                let expected = run(&theirs);
                let mut verdicts = vec![ours.run(&packet) != 0, plain.run(&packet) != 0];
                verdicts.extend(jit.as_ref().map(|jit| jit.run(&packet)));
                verdicts.extend(classic.iter().map(run));
                compared += verdicts.len();
                accepted += u32::from(expected);
                if verdicts.iter().any(|verdict| *verdict != expected) {
                    wrong.push(format!("{} {text}: {expected}, we {verdicts:?} of {captured:02x?}", LinkType(dlt)));
                    break;
                }
            }
        }
    }
    eprintln!("{compared} verdicts, {accepted} packets accepted");
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
    assert!(accepted > 4_000, "{accepted} of {compared}");
}
