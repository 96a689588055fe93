//! Random filters over packets that fit them: every form has the verdict of libpcap's code before its optimizer, each form is
//! proven, and what is refused libpcap refuses, too.
//!
//! `BPF_OPT_FUZZ_SECONDS=600 BPF_OPT_FUZZ_SEED=7 cargo test -p bpf-filter fuzz` goes on for so long (`make fuzz-filters`).

use std::time::{Duration, Instant};

use bpf_filter::{Beside, ClassicGoal, LinkType, Options, Packet, compile};
use bpf_pcap_oracle::data::{Data, OwnedPacket};
use bpf_pcap_oracle::expressions::{Expressions, changed};
use bpf_pcap_oracle::{Libpcap, Program, interpreter};
use fastrand::Rng;

use crate::common::{NETMASK, by_libpcap, forms, options, oracle_form};

const ETHERNET: u16 = 1;
/// Ethernet, IP without a link header, Linux's cooked captures.
const LINKS: [u16; 4] = [ETHERNET, ETHERNET, 12, 113];

#[derive(Default, Debug)]
struct Counts {
    filters: u64,
    refused_by_both: u64,
    /// Known to differ, see "Known limits" in `docs/filter.md`.
    refused_by_one: u64,
    unproven: u64,
    verdicts: u64,
    accepted: u64,
}

pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Where one of the two takes what the other refuses, and that is known: the words of our or of libpcap's error.
fn is_known(error: &str) -> bool {
    const KNOWN: [&str; 3] = [
        // Constants, which libpcap computes from left to right, before it knows that nothing reads them.
        "division by zero",
        "modulus by zero",
        "shift by more than",
    ];
    KNOWN.iter().any(|known| error.contains(known))
}

/// Whether libpcap's answer is known to be wrong: a header at a varying place and arithmetic, which it keeps in one word of memory.
pub fn is_mixed(text: &str) -> bool {
    text.contains("geneve") && (text.contains('[') || text.contains("len"))
}

/// One filter over some packets; what is wrong, in words.
fn compare(
    text: &str,
    dlt: u16,
    theirs: &Result<Program, String>,
    packets: &[OwnedPacket],
    random: &mut Rng,
    counts: &mut Counts,
) -> Result<(), String> {
    const PACKETS: usize = 12;
    let options = options(LinkType(dlt));
    let (ours, theirs) = match (compile(text, &options), theirs) {
        (Ok(ours), Ok(theirs)) => (ours, theirs),
        (Err(_), Err(_)) => {
            counts.refused_by_both += 1;
            return Ok(());
        }
        (Err(e), Ok(_)) if is_known(&e.message) => {
            counts.refused_by_one += 1;
            return Ok(());
        }
        (Ok(_), Err(e)) if is_known(e) => {
            counts.refused_by_one += 1;
            return Ok(());
        }
        (Err(e), Ok(_)) => return Err(format!("only we refuse it: {}", e.message)),
        (Ok(_), Err(e)) => return Err(format!("only libpcap refuses it: {e}")),
    };
    counts.filters += 1;
    let plain = compile(text, &Options { optimize: false, ..options }).map_err(|e| e.message)?;
    let goals = [ClassicGoal::Size, ClassicGoal::Time];
    counts.unproven += forms().into_iter().filter(|form| ours.unproven(*form).is_some()).count() as u64;
    let jit = ours.jit().map_err(|e| e.to_string())?;
    let classic = goals.map(|goal| ours.classic(goal).map(oracle_form));
    for _ in 0..PACKETS {
        let packet = &packets[random.usize(0..packets.len())];
        let captured = changed(&packet.captured, random);
        let length = packet.length.max(captured.len() as u32);
        let packet = Packet { captured: &captured, length, beside: Beside::default() };
        let run = |program: &Program| interpreter::run(program, &captured, length).verdict != 0;
        let expected = run(theirs);
        let mut verdicts = vec![ours.run(&packet) != 0, plain.run(&packet) != 0, jit.run(&packet)];
        verdicts.extend(classic.iter().flatten().map(run));
        counts.verdicts += verdicts.len() as u64;
        counts.accepted += u64::from(expected);
        let is_wrong = |verdict: &bool| *verdict != if is_mixed(text) { verdicts[1] } else { expected };
        if verdicts.iter().any(is_wrong) {
            return Err(format!("libpcap says {expected}, we say {verdicts:?} of {captured:02x?} ({length} bytes)"));
        }
    }
    Ok(())
}

#[test]
fn random_filters_have_the_verdicts_of_libpcap() {
    /// Filters of a run that no time limits.
    const FILTERS: u64 = 1_200;
    let (Some(data), Some(pcap)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let packets: Vec<(u16, Vec<OwnedPacket>)> = [1, 12, 113].map(|dlt| (dlt, data.packets(dlt))).into();
    let seconds = number("BPF_OPT_FUZZ_SECONDS");
    let seed = number("BPF_OPT_FUZZ_SEED").unwrap_or(1);
    let (started, mut counts, mut wrong) = (Instant::now(), Counts::default(), Vec::new());
    for i in 0.. {
        let is_over = match seconds {
            Some(seconds) => started.elapsed() > Duration::from_secs(seconds),
            None => i == FILTERS,
        };
        if is_over {
            break;
        }
        let mut random = Rng::with_seed(seed << 32 | i);
        let dlt = LINKS[random.usize(0..LINKS.len())];
        let of_link = &packets.iter().find(|(d, _)| *d == dlt).expect("all are there").1;
        let text = Expressions { random: &mut random }.filter(2);
        let theirs = by_libpcap(&pcap, dlt, &text);
        if let Err(why) = compare(&text, dlt, &theirs, of_link, &mut random, &mut counts) {
            wrong.push(format!("{} {text:?}: {why}", LinkType(dlt)));
        }
    }
    eprintln!("{counts:?} in {:.1} s, mask {NETMASK:#x}", started.elapsed().as_secs_f64());
    assert!(wrong.is_empty(), "{} of {counts:?}:\n{}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
    assert!(counts.filters > counts.refused_by_both && counts.accepted * 20 > counts.verdicts, "{counts:?}");
    // Long products of arithmetic and encapsulations may be too much for the proof; the filter as it stands is right, too.
    assert!(counts.unproven * 100 <= counts.filters, "{counts:?}");
}
