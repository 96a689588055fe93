//! How long classic programs are, and how much of them is executed, against those of libpcap's optimizer.
//!
//! Its programs may be shorter because they are wrong: on packets that end early they can have other verdicts than libpcap's code before
//! its optimizer. A longer program of ours is excused by such a packet only, and on all packets that are tried ours must have
//! the verdicts of the code before the optimizer.

use bpf_filter::{ClassicGoal, Filter, LinkType, compile};
use bpf_pcap_oracle::data::{Data, OwnedPacket};
use bpf_pcap_oracle::expressions::{Expressions, changed};
use bpf_pcap_oracle::{Libpcap, Program, interpreter};
use fastrand::Rng;

use crate::common::{NETMASK, expressions, options, oracle_form};

/// Link types with headers at one place, at varying places, and none.
const LINKS: [u16; 6] = [1, 12, 113, 105, 127, 117];
/// Bytes of a text that is too long for libpcap's optimizer on the stack of a test.
const LONG: usize = 10_000;

/// What is told of filters whose programs are longer.
#[derive(Default, Debug)]
struct Counts {
    filters: u32,
    shorter: u32,
    /// Those for size, all and those without a packet that excuses them.
    longer: u32,
    unexplained: Vec<String>,
    /// Those for latency.
    longer_for_latency: u32,
    slower: Vec<String>,
    /// What is wrong.
    wrong: Vec<String>,
}

/// A filter and libpcap's programs of it.
struct Case<'a> {
    dlt: u16,
    text: &'a str,
    filter: Filter,
    plain: Program,
    optimized: Program,
}

impl<'a> Case<'a> {
    fn of(pcap: &Libpcap, dlt: u16, text: &'a str) -> Option<Case<'a>> {
        if text.len() >= LONG || text.contains("protochain") {
            return None;
        }
        let filter = compile(text, &options(LinkType(dlt))).ok()?;
        let [plain, optimized] = [false, true].map(|optimize| pcap.compile(text, dlt, 262_144, optimize, NETMASK).ok());
        Some(Case { dlt, text, filter, plain: plain?, optimized: optimized? })
    }

    fn ours(&self, goal: ClassicGoal) -> Option<Program> {
        self.filter.classic(goal).ok().map(oracle_form)
    }

    fn name(&self) -> String {
        format!("{} {:.300?}", LinkType(self.dlt), self.text)
    }
}

/// A load of a program from the packet: where, of how many bytes, and whether that is behind an IPv4 header.
fn fields(program: &Program) -> Vec<(usize, usize, Vec<u32>)> {
    let mut all: Vec<(usize, usize, Vec<u32>)> = Vec::new();
    for i in &program.instructions {
        let size = match i.code & 0x18 {
            0x08 => 2,
            0x10 => 1,
            _ => 4,
        };
        match i.code & 0xe7 {
            0x20 => all.push((i.k as usize, size, Vec::new())),
            0x40 => all.push((i.k as usize + 20, size, Vec::new())),
            _ if i.code & 0x0f == 5 && i.code != 5 => {
                if let Some((_, _, numbers)) = all.last_mut() {
                    numbers.push(i.k);
                }
            }
            _ => {}
        }
    }
    all.retain(|(at, _, _)| *at < 2000);
    all
}

/// Packets that fit a filter: captured ones and changed ones, and such as have what the filter's program compares with.
fn tried(case: &Case, packets: &[OwnedPacket], random: &mut Rng) -> Vec<Vec<u8>> {
    const CHANGED: usize = 400;
    const MADE: usize = 3000;
    let mut all: Vec<Vec<u8>> = packets.iter().map(|p| p.captured[..p.captured.len().min(300)].to_vec()).collect();
    if !packets.is_empty() {
        all.extend((0..CHANGED).map(|_| changed(&packets[random.usize(0..packets.len())].captured, random)));
    }
    let fields = fields(&case.plain);
    for _ in 0..MADE {
        let mut bytes = match packets {
            [_, ..] if random.bool() => packets[random.usize(0..packets.len())].captured.clone(),
            _ => vec![0; 120],
        };
        bytes.resize(bytes.len().clamp(80, 300), 0);
        if random.bool()
            && let Some(byte) = bytes.get_mut(if case.dlt == 1 { 14 } else { 0 })
        {
            *byte = 0x45;
        }
        for (at, size, numbers) in &fields {
            let n = match random.u8(0..8) {
                0 => continue,
                1 => random.u32(..),
                2 => random.u32(0..70),
                _ => *random.choice(numbers).unwrap_or(&0),
            };
            let n = if random.u8(0..6) == 0 { n.wrapping_add(random.choice([1, u32::MAX]).unwrap_or(0)) } else { n };
            if let Some(place) = bytes.get_mut(*at..at + size) {
                place.copy_from_slice(&n.to_be_bytes()[4 - size..]);
            }
        }
        all.push(bytes);
    }
    all
}

/// Looks for a packet on which libpcap's optimizer is wrong. On the way all of ours are held against the code before the optimizer.
fn excuse(case: &Case, ours: &[Program], packets: &[OwnedPacket], random: &mut Rng) -> Result<bool, String> {
    let mut is_excused = false;
    for bytes in tried(case, packets, random) {
        let length = bytes.len() as u32;
        for cut in (0..=bytes.len()).rev() {
            let run = |program: &Program| interpreter::run(program, &bytes[..cut], length).verdict != 0;
            let wanted = run(&case.plain);
            if let Some(i) = ours.iter().position(|program| run(program) != wanted) {
                return Err(format!("{}: program {i} is wrong on {:02x?}", case.name(), &bytes[..cut]));
            }
            is_excused |= run(&case.optimized) != wanted;
        }
    }
    Ok(is_excused)
}

fn executed(program: &Program, packets: &[OwnedPacket]) -> u64 {
    packets.iter().map(|p| interpreter::run(program, &p.captured, p.length).executed).sum()
}

fn compare(case: &Case, packets: &[OwnedPacket], random: &mut Rng, counts: &mut Counts) {
    let [Some(size), Some(time)] = [ClassicGoal::Size, ClassicGoal::Time].map(|goal| case.ours(goal)) else { return };
    counts.filters += 1;
    let [short, fast, theirs] = [&size, &time, &case.optimized].map(|program| program.instructions.len());
    counts.shorter += u32::from(short < theirs);
    let what = || format!("{}: {short} and {fast}, libpcap {theirs}", case.name());
    if fast > theirs {
        counts.longer_for_latency += 1;
        let is_allowed = fast * 10 <= theirs * 13 && executed(&time, packets) < executed(&case.optimized, packets);
        // Where the program for size is as long, it is owed as little as that one.
        if fast > short && !is_allowed {
            let [ours, theirs] = [&time, &case.optimized].map(|program| executed(program, packets));
            counts.slower.push(format!("{}, executed {ours}, libpcap {theirs}", what()));
        }
    }
    if short > theirs {
        counts.longer += 1;
        match excuse(case, &[size, time], packets, random) {
            Err(why) => counts.wrong.push(why),
            Ok(true) => {}
            Ok(false) => counts.unexplained.push(what()),
        }
    }
}

/// Packets of a link type, at most about so many.
const PACKETS: usize = 300;

#[test]
fn programs_are_no_longer_than_those_of_libpcaps_optimizer_where_these_are_right() {
    let (Some(data), Some(pcap)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let mut random = Rng::with_seed(5);
    let (mut listed, mut of_random) = (Counts::default(), Counts::default());
    for dlt in LINKS {
        let packets = data.packets(dlt);
        let step = packets.len().div_ceil(PACKETS).max(1);
        let packets: Vec<OwnedPacket> = packets.into_iter().step_by(step).collect();
        for text in expressions(&data, LinkType(dlt), 7) {
            let Some(case) = Case::of(&pcap, dlt, &text) else { continue };
            compare(&case, &packets, &mut Rng::with_seed(1), &mut listed);
        }
        for _ in 0..100 {
            let text = Expressions { random: &mut random }.filter(2);
            let Some(case) = Case::of(&pcap, dlt, &text) else { continue };
            compare(&case, &packets, &mut Rng::with_seed(1), &mut of_random);
        }
    }
    for (name, counts) in [("listed", &listed), ("random", &of_random)] {
        let Counts { filters, shorter, longer, unexplained, longer_for_latency, slower, wrong } = counts;
        eprintln!(
            "{name}: {filters} filters, {shorter} shorter, {longer} longer, {} of these unexplained; {longer_for_latency} \
             longer for latency, {} of these wrongly; {} wrong",
            unexplained.len(),
            slower.len(),
            wrong.len()
        );
        unexplained.iter().chain(slower).chain(wrong).for_each(|line| eprintln!("  {line}"));
    }
    for Counts { unexplained, slower, wrong, .. } in [&listed, &of_random] {
        assert!(unexplained.is_empty() && slower.is_empty() && wrong.is_empty());
    }
}
