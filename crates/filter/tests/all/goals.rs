//! What the goals of classic BPF promise: the size, against libpcap's optimizer, and what is executed.

use bpf_filter::{ClassicGoal, LinkType, MOST_INSTRUCTIONS, compile};
use bpf_pcap_oracle::Libpcap;
use bpf_pcap_oracle::data::{Data, OwnedPacket};
use bpf_pcap_oracle::expressions::Expressions;
use fastrand::Rng;

use crate::common::{NETMASK, executed, expressions, options, oracle_form};

/// Link types with headers at one place, at varying places, and none.
const LINKS: [u16; 6] = [1, 12, 113, 105, 127, 117];

#[derive(Default, Debug)]
struct Counts {
    filters: u32,
    /// Longer than libpcap's for size, which forgets to look for fields.
    longer: u32,
    /// Other forms for latency than for size.
    other: u32,
    /// Of random filters those of which more is executed for latency: what is likely in a packet is a guess.
    slower: u32,
    /// Instructions executed for size, and for latency.
    executed: [u64; 2],
}

/// Packets of a link type, at most about so many.
const PACKETS: usize = 300;
/// Bytes of a text that is too long for libpcap's optimizer on the stack of a test.
const LONG: usize = 10_000;

/// What is wrong with a filter's classic forms, in words.
fn wrong(pcap: &Libpcap, dlt: u16, text: &str, packets: &[OwnedPacket], counts: &mut Counts) -> Option<String> {
    let filter = compile(text, &options(LinkType(dlt))).ok()?;
    let [size, time] = [ClassicGoal::Size, ClassicGoal::Time].map(|goal| filter.classic(goal).ok().map(oracle_form));
    let (size, time) = (size?, time?);
    counts.filters += 1;
    let (short, fast) = (size.instructions.len(), time.instructions.len());
    // libpcap's optimizer goes along by recursion.
    let theirs = (text.len() < LONG).then(|| pcap.compile(text, dlt, 262_144, true, NETMASK));
    if let Some(Ok(theirs)) = theirs {
        counts.longer += u32::from(short > theirs.instructions.len());
    }
    if fast * 10 > short * 13 || fast > MOST_INSTRUCTIONS.max(short) {
        return Some(format!("{fast} instructions for latency, {short} for size"));
    }
    if size == time || text.contains("protochain") {
        return None;
    }
    let [of_size, of_time] = [&size, &time].map(|program| executed(program, packets));
    counts.other += 1;
    counts.executed[0] += of_size;
    counts.executed[1] += of_time;
    (of_time > of_size).then(|| {
        counts.slower += 1;
        format!("{of_time} executed for latency, {of_size} for size, of {fast} and {short} instructions")
    })
}

#[test]
fn latency_is_bought_with_a_third_more_instructions_at_most_and_only_where_fewer_are_executed() {
    let (Some(data), Some(pcap)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let mut random = Rng::with_seed(5);
    let (mut counts, mut of_random, mut all) = (Counts::default(), Counts::default(), Vec::new());
    for dlt in LINKS {
        let packets = data.packets(dlt);
        let step = packets.len().div_ceil(PACKETS).max(1);
        let packets: Vec<OwnedPacket> = packets.into_iter().step_by(step).collect();
        for text in expressions(&data, LinkType(dlt), 7) {
            let why = wrong(&pcap, dlt, &text, &packets, &mut counts);
            all.extend(why.map(|why| format!("{} {text:.300?}: {why}", LinkType(dlt))));
        }
        for _ in 0..100 {
            let text = Expressions { random: &mut random }.filter(2);
            let slower = of_random.slower;
            let why = wrong(&pcap, dlt, &text, &packets, &mut of_random).filter(|_| slower == of_random.slower);
            all.extend(why.map(|why| format!("{} {text:.300?}: {why}", LinkType(dlt))));
        }
    }
    eprintln!("{counts:?}, random ones: {of_random:?}");
    assert!(all.is_empty(), "{} of {counts:?}:\n{}", all.len(), all.join("\n"));
    assert!(counts.other > 10 && of_random.other > 10, "{counts:?}, {of_random:?}");
    for Counts { executed: [of_size, of_time], .. } in [&counts, &of_random] {
        assert!(of_time < of_size, "{counts:?}, {of_random:?}");
    }
    assert!(of_random.slower * 20 <= of_random.other, "{of_random:?}");
}
