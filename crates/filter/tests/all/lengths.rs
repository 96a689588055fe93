//! How long classic programs are, and how much of them is executed, against those of libpcap's optimizer.
//!
//! Its programs may be shorter because they are wrong: on packets that end early they can have other verdicts than libpcap's code before
//! its optimizer, or the kernel, which reads them otherwise, comes to another one. A longer program of ours is excused by such a packet
//! only, and on all packets that are tried ours must have
//! the verdicts of the code before the optimizer.

use std::collections::BTreeMap;

use bpf_filter::{ClassicGoal, Filter, LinkType, compile};
use bpf_pcap_oracle::data::{Data, OwnedPacket};
use bpf_pcap_oracle::expressions::{Expressions, changed};
use bpf_pcap_oracle::{Libpcap, Program, interpreter};
use fastrand::Rng;

use crate::common::{NETMASK, executed, expressions, options, oracle_form};
use crate::fuzz::number;

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

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.filters += other.filters;
        self.shorter += other.shorter;
        self.longer += other.longer;
        self.longer_for_latency += other.longer_for_latency;
        self.unexplained.extend_from_slice(&other.unexplained);
        self.slower.extend_from_slice(&other.slower);
        self.wrong.extend_from_slice(&other.wrong);
    }
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

/// Fields that a program loads: where they stand if a header is as long as most are, how many bytes they have, and what they are
/// compared with.
fn fields(program: &Program) -> BTreeMap<(usize, usize), Vec<u32>> {
    let mut all: BTreeMap<(usize, usize), Vec<u32>> = BTreeMap::new();
    let mut last = None;
    for i in &program.instructions {
        let size = match i.code & 0x18 {
            0x08 => 2,
            0x10 => 1,
            _ => 4,
        };
        match i.code & 0xe7 {
            0x20 => last = Some((i.k as usize, size)),
            0x40 => last = Some((i.k as usize + 20, size)),
            _ if i.code & 7 == 5 && i.code != 5 => {
                if let Some(field) = last.filter(|(at, _)| *at < 2000) {
                    all.entry(field).or_default().push(i.k);
                }
            }
            _ => {}
        }
    }
    all
}

/// A packet that fits a filter: a captured one, a changed one, or one that has what the filter's program compares with.
fn tried(i: usize, fields: &BTreeMap<(usize, usize), Vec<u32>>, packets: &[OwnedPacket], random: &mut Rng) -> Vec<u8> {
    let some = |random: &mut Rng| packets[random.usize(0..packets.len())].captured.clone();
    if i.is_multiple_of(8) && !packets.is_empty() {
        let packet = some(random);
        return if i.is_multiple_of(16) { packet } else { changed(&packet, random) };
    }
    let mut bytes = if !packets.is_empty() && random.bool() { some(random) } else { vec![0; 120] };
    bytes.resize(bytes.len().clamp(80, 300), 0);
    if random.u8(0..4) > 0 {
        // Where IPv4 headers mostly begin.
        for at in [14, 0, 16, 4] {
            bytes[at] = 0x45;
        }
    }
    let few = random.u8(1..8);
    for ((at, size), numbers) in fields {
        let n = match random.u8(0..16) {
            n if n < few => continue,
            15 => random.u32(..),
            14 => random.u32(0..70),
            _ => *random.choice(numbers).unwrap_or(&0),
        };
        let n = if random.u8(0..8) == 0 { n.wrapping_add(random.choice([1, u32::MAX]).unwrap_or(0)) } else { n };
        if let Some(place) = bytes.get_mut(*at..at + size) {
            place.copy_from_slice(&n.to_be_bytes()[4 - size..]);
        }
    }
    bytes
}

/// Looks for a packet on which libpcap's optimizer is wrong. On the way all of ours are held against the code before the optimizer.
fn excuse(case: &Case, ours: &[Program], packets: &[OwnedPacket], random: &mut Rng) -> Result<bool, String> {
    /// With one packet found so many are tried, without as many as that.
    const TRIED: [usize; 2] = [20_000, 500];
    /// Cuts of each.
    const CUTS: usize = 10;
    let mut is_excused = false;
    let fields = fields(&case.plain);
    let ends: Vec<usize> = fields.keys().flat_map(|(at, size)| [*at, at + size - 1, at + size]).collect();
    for i in 0..TRIED[0] {
        if is_excused && i >= TRIED[1] {
            break;
        }
        let mut bytes = tried(i, &fields, packets, random);
        let mut ends = ends.clone();
        if !i.is_multiple_of(4) {
            // Most go a way that random packets hardly ever go.
            bytes.resize(300, 0);
            if case.dlt == 117 {
                bytes[0] = 20;
            }
            ends = interpreter::steer(if i % 4 == 1 { &case.optimized } else { &case.plain }, &mut bytes, random);
        }
        let length = bytes.len() as u32;
        for n in 0..CUTS {
            let cut = match n {
                0 => bytes.len(),
                1 => random.usize(0..=bytes.len()),
                _ => random.choice(&ends).map_or(0, |end| (end - random.usize(0..=1).min(*end)).min(bytes.len())),
            };
            let run = |program: &Program| interpreter::run(program, &bytes[..cut], length).verdict != 0;
            let wanted = run(&case.plain);
            if let Some(i) = ours.iter().position(|program| run(program) != wanted) {
                return Err(format!("{}: program {i} is wrong on {:02x?}", case.name(), &bytes[..cut]));
            }
            let in_kernel = interpreter::run_as_kernel(&case.optimized, &bytes[..cut], length).verdict != 0;
            is_excused |= run(&case.optimized) != wanted || in_kernel != wanted;
        }
    }
    Ok(is_excused)
}

fn compare(case: &Case, packets: &[OwnedPacket], random: &mut Rng, counts: &mut Counts) {
    let [Some(size), Some(time)] = [ClassicGoal::Size, ClassicGoal::Time].map(|goal| case.ours(goal)) else { return };
    counts.filters += 1;
    let [short, fast, theirs] = [&size, &time, &case.optimized].map(|program| program.instructions.len());
    counts.shorter += u32::from(short < theirs);
    let what = || format!("{}: {short} and {fast}, libpcap {theirs}", case.name());
    if fast > theirs {
        counts.longer_for_latency += 1;
        let [of_size, of_time, of_theirs] = [&size, &time, &case.optimized].map(|program| executed(program, packets));
        // Where the program for size is longer, too, libpcap's is wrong: see below.
        let least = if short > theirs { of_size.max(of_theirs) } else { of_theirs };
        let is_allowed = fast == short || fast * 10 <= short.max(theirs) * 13 && of_time < least;
        if !is_allowed && !packets.is_empty() {
            counts.slower.push(format!("{}, executed {of_size}, {of_time}, libpcap {of_theirs}", what()));
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

/// Of the random filters so many are longer without a packet that says why, of the listed ones none: see `docs/filter.md`.
const LEFT: usize = 2;

/// Packets of a link type, at most about so many.
const PACKETS: usize = 300;

/// Filters whose verdicts are known to be others than those of libpcap 1.10: see "Known limits" in `docs/filter.md`.
fn is_known_to_differ(dlt: u16, text: &str) -> bool {
    // A header at a varying place and arithmetic, which it keeps in one word of memory.
    let has_arithmetic = text.contains('[') || text.contains("len");
    let is_mixed = has_arithmetic && (text.contains("geneve") || [117, 127].contains(&dlt));
    let osi = ["l1", "l2", "iih", "lsp", "snp", "csnp", "psnp", "isis"];
    is_mixed || text.split(|c: char| !c.is_alphanumeric()).any(|word| osi.contains(&word))
}

/// All that is listed, or random filters.
fn counted(dlt: u16, texts: &[String], packets: &[OwnedPacket]) -> Counts {
    let Some(pcap) = Libpcap::for_test() else { return Counts::default() };
    let mut counts = Counts::default();
    for text in texts.iter().filter(|text| !is_known_to_differ(dlt, text)) {
        if let Some(case) = Case::of(&pcap, dlt, text) {
            compare(&case, packets, &mut Rng::with_seed(1), &mut counts);
        }
    }
    counts
}

#[test]
fn programs_are_no_longer_than_those_of_libpcaps_optimizer_where_these_are_right() {
    let (Some(data), Some(_)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let mut random = Rng::with_seed(number("BPF_OPT_FUZZ_SEED").unwrap_or(5));
    let mut all: Vec<(&str, Counts)> = Vec::new();
    for dlt in LINKS {
        let packets = data.packets(dlt);
        let step = packets.len().div_ceil(PACKETS).max(1);
        let packets: Vec<OwnedPacket> = packets.into_iter().step_by(step).collect();
        let listed = expressions(&data, LinkType(dlt), 7);
        let of_random: Vec<String> = (0..100).map(|_| Expressions { random: &mut random }.filter(2)).collect();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| counted(dlt, &of_random, &packets));
            all.push(("listed", counted(dlt, &listed, &packets)));
            all.push(("random", other.join().expect("a thread that ends")));
        });
    }
    let mut are_right = true;
    for name in ["listed", "random"] {
        let mut sum = Counts::default();
        all.iter().filter(|(n, _)| *n == name).for_each(|(_, counts)| sum.add(counts));
        let Counts { filters, shorter, longer, unexplained, longer_for_latency, slower, wrong } = sum;
        eprintln!(
            "{name}: {filters} filters, {shorter} shorter, {longer} longer, {} of these unexplained; {longer_for_latency} \
             longer for latency, {} of these wrongly; {} wrong",
            unexplained.len(),
            slower.len(),
            wrong.len()
        );
        for (what, lines) in [("unexplained", &unexplained), ("slower", &slower), ("wrong", &wrong)] {
            lines.iter().for_each(|line| eprintln!("  {what}: {line}"));
        }
        // What is likely in a packet is a guess, which random filters do not care for.
        let most_slower = if name == "random" { longer_for_latency as usize / 10 } else { 0 };
        let left = if name == "random" { LEFT } else { 0 };
        are_right &= unexplained.len() <= left && slower.len() <= most_slower && wrong.is_empty() && filters > 250;
    }
    assert!(are_right);
}

/// What is said twice, or of itself, makes no program longer than libpcap's optimizer has it, nor than it is without that.
#[test]
fn what_is_said_twice_costs_nothing() {
    let Some(pcap) = Libpcap::for_test() else { return };
    let cases = [
        (1, "src and dst net (10.0.0.0/8 or 10.0.0.0/8 or 10.0.0.0/8 or 10.0.0.0/8)", "src and dst net 10.0.0.0/8"),
        (
            1,
            "src and dst net (10.0.0.0/8 or 10.0.0.0/8 or 192.168.1.0/24 or 192.168.1.0/24)",
            "src and dst net (10.0.0.0/8 or 192.168.1.0/24)",
        ),
        (1, "src and dst port (53 or 53 or 80 or 80)", "src and dst port (53 or 80)"),
        (
            12,
            "src and dst net (172.16.0.0/12 or 172.16.0.0/12 or 192.168.0.0/16 or 10.0.0.0/8 or 10.1)",
            "src and dst net (172.16.0.0/12 or 192.168.0.0/16 or 10.0.0.0/8)",
        ),
        (1, "net 10.0.0.0/8 or net 10.1.0.0/16 or net 10.1.2.0/24 or net 10.1.2.4/32", "net 10.0.0.0/8"),
        (1, "ether host 2:0:0:0:0:1 or ether host 2:0:0:0:0:1", "ether host 2:0:0:0:0:1"),
        (
            1,
            "src host 2001:db8::1 or src host 2001:db8::2 or src host 2001:db8::1",
            "src host 2001:db8::1 or src host 2001:db8::2",
        ),
        (
            276,
            "not ((ip[ip[9]:2] = ip[ip[9]:2]) or ((tcp[2:2] & 1 = ip[ip[9]:2]) and (udp[5:2] & 80 > 15)))",
            "not (ip[ip[9]:2] >= 0)",
        ),
    ];
    for (dlt, text, once) in cases {
        let [twice, once] = [text, once].map(|text| Case::of(&pcap, dlt, text).expect("a filter"));
        let [ours, of_once] =
            [&twice, &once].map(|case| case.ours(ClassicGoal::Size).expect("a program").instructions.len());
        assert!(ours <= of_once, "{text}: {ours} instructions, said once {of_once}");
        let theirs = twice.optimized.instructions.len();
        assert!(ours <= theirs, "{text}: {ours} instructions, of libpcap {theirs}");
    }
}

/// Behind headers of varying length what is known is merged as it is behind Ethernet's: a list costs so many times what it costs there,
/// once for each way to the network's header.
#[test]
fn lists_behind_headers_of_varying_length_are_optimized_as_others_are() {
    const WAYS: [(u16, usize); 4] = [(117, 1), (105, 2), (192, 3), (127, 6)];
    let pair = |i: u32| format!("(host 10.{}.{}.{i} and port {})", i * 7 % 256, i * 13 % 256, 1000 + i * 37);
    let text = format!("not ({})", (1..=20).map(pair).collect::<Vec<String>>().join(" or "));
    let length = |dlt| {
        let filter = compile(&text, &options(LinkType(dlt))).expect("a filter");
        filter.classic(ClassicGoal::Size).map(<[_]>::len).expect("a program")
    };
    let ethernet = length(1);
    for (dlt, ways) in WAYS {
        let length = length(dlt);
        let most = ethernet * ways * 3 / 2;
        assert!(length <= most, "{}: {length} instructions, {ethernet} behind Ethernet's", LinkType(dlt));
    }
}
