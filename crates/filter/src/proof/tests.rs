//! Programs that are changed a little: the proof must not call equal what packets tell apart.

use fastrand::Rng;

use super::{Effort, Unproven};
use crate::graph::Graph;
use crate::link::LinkType;
use crate::program::{BlockId, Comparison, End, Operand, Operation, Packet, Program};
use crate::tables::Table;
use crate::{Actions, Beside, ClassicGoal, Filter, Form, Hook, Options, compile};

const ETHERNET: u16 = 1;
const RADIOTAP: u16 = 127;

const FILTERS: [(u16, &str); 25] = [
    (ETHERNET, "((udp[12:1] ^ 31) * 100) <= 32"),
    (ETHERNET, "tcp port 80"),
    (ETHERNET, "host 10.1.2.3 and not port 22"),
    (ETHERNET, "net 10.1.0.0/16 or net 192.168.0.0/24"),
    (ETHERNET, "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0 and not src and dst net 10.0.0.0/8"),
    (ETHERNET, "vlan 7 and ip6 and udp portrange 100-200"),
    (ETHERNET, "tcp port 80 and (((ip[2:2] - ((ip[0]&0xf)<<2)) - ((tcp[12]&0xf0)>>2)) != 0)"),
    (ETHERNET, "ip[6:2] & 0x1fff = 0 and ip[8] * 4 > 100 and ip[9] / 3 = 2"),
    (ETHERNET, "ether[0] & 1 = 0 and ip[16] >= 224 or arp"),
    (ETHERNET, "ip[2:2] > ip[4:2] or ip[0] = ip[1]"),
    (ETHERNET, "len > 100 and len <= 200 and ip"),
    (ETHERNET, "ether[ip[3]] = 5 or ip[ip[2]:2] % ip[1] = 3"),
    (ETHERNET, "ip proto 6 or ip6 proto 6 or ip protochain 51"),
    (ETHERNET, "geneve and udp port 53"),
    (ETHERNET, "mpls 5 and host 10.0.0.1"),
    (ETHERNET, "pppoes and ip6 host fe80::1"),
    (ETHERNET, "ether host 1:2:3:4:5:6 or ether broadcast"),
    (ETHERNET, "ip[0] ^ 5 = 0x40 and -ip[1] < 7 and 300 - ip[8] >= 45"),
    (ETHERNET, "port 1 or port 3 or port 5 or port 7 or port 9 or port 11 or port 13 or port 15 or port 17 or port 19"),
    (ETHERNET, "(host 1.2.3.4 and port 5) or (host 5.6.7.8 and port 9) or (host 9.9.9.9 and port 10)"),
    (ETHERNET, "ip[9] & 0x11 = 0x10 and ip[8] & 0xa5 != 4 and ip[4:4] & 0xff00ff00 = 0x01000200"),
    (ETHERNET, "tcp port 80 or 4*(ip[0]&0xf) > 20"),
    (ETHERNET, "(ip[0]&0xf)*4 >= 24 and (ip[8]&0xf) << 3 >= 9 or ip[2:2] & 0x3ff << 2 < 40"),
    (RADIOTAP, "type mgt subtype beacon or wlan host 1:2:3:4:5:6"),
    (RADIOTAP, "ip host 10.0.0.1 and tcp port 80"),
];

/// Sets that become tables.
fn sets() -> Vec<(String, Vec<String>)> {
    let hosts = |n: u32| (0..n).map(|i| std::net::Ipv4Addr::from(i.wrapping_mul(0x9e37_79b1)).to_string()).collect();
    let ports = (0..60u32).map(|i| (1000 + 37 * i).to_string()).collect();
    vec![("HOSTS".to_owned(), hosts(100)), ("PORTS".to_owned(), ports)]
}

fn programs() -> Vec<(String, Program, Program)> {
    let mut all: Vec<(u16, &str)> = FILTERS.into();
    all.extend([(ETHERNET, "host $HOSTS"), (ETHERNET, "tcp dst port $PORTS or src host $HOSTS")]);
    let mut programs = Vec::new();
    for (dlt, text) in all {
        let options = Options { link_type: LinkType(dlt), sets: sets().into_iter().collect(), ..Options::default() };
        let filter = compile(text, &options).unwrap_or_else(|e| panic!("{text}: {e}"));
        let forms = filter.forms.expect("all are optimized");
        for form in [forms.fast(), forms.kernel()].into_iter().flatten().chain(forms.without_tables()) {
            programs.push((text.to_owned(), filter.plain.clone(), form));
        }
    }
    programs
}

fn nearby(n: u32, random: &mut Rng) -> u32 {
    match random.u8(0..5) {
        0 => n.wrapping_add(1),
        1 => n.wrapping_sub(1),
        2 => n ^ 1 << random.u32(0..32),
        3 => n << 8,
        _ => random.u32(0..300),
    }
}

/// Changes one thing of a program; `None` if there is none of the kind that chance chose.
fn change(program: &mut Program, random: &mut Rng) -> Option<()> {
    let n = program.blocks.len();
    let at = random.usize(0..n);
    let later = |random: &mut Rng| BlockId(random.usize(at + 1..n.max(at + 2)).min(n - 1));
    let kind = random.u8(0..6);
    if kind == 0 {
        let tables = program.tables.len();
        match &mut program.tables[random.usize(0..tables.max(1)).min(tables.checked_sub(1)?)] {
            Table::Bitmap { words, .. } => {
                let i = random.usize(0..words.len());
                words[i] ^= 1 << random.u32(0..32);
            }
            Table::Hash(hash) => {
                let i = random.usize(0..hash.slots.len());
                if random.bool() {
                    hash.slots[i] = hash.slots[random.usize(0..hash.slots.len())];
                } else {
                    let i = random.usize(0..hash.displacements.len());
                    hash.displacements[i] ^= 1;
                }
            }
            Table::Tuples(tuples) => {
                let word = random.usize(0..tuples.columns.len());
                let slot = random.usize(0..tuples.columns[word].len());
                tuples.columns[word][slot] = nearby(tuples.columns[word][slot], random);
            }
        }
        return Some(());
    }
    let block = &mut program.blocks[at];
    if kind <= 2 {
        let operations = &mut block.operations;
        let i = random.usize(0..operations.len().max(1)).min(operations.len().checked_sub(1)?);
        match &mut operations[i] {
            Operation::Constant { n, .. } => *n = nearby(*n, random),
            Operation::Load { offset, .. } => *offset = nearby(*offset, random) & 0x7f,
            Operation::HeaderLength { offset, .. } => *offset ^= 1,
            Operation::Bound { end, .. } if random.bool() => {
                *end = u64::from(nearby(*end as u32, random) & 0x7f).max(1)
            }
            Operation::Bound { .. } | Operation::NotZero { .. } | Operation::Note { .. } => {
                operations.remove(i);
            }
            Operation::Binary { b: Operand::Constant(n), .. } => *n = nearby(*n, random),
            _ => return None,
        }
        return Some(());
    }
    match &mut block.end {
        End::Branch { comparison, yes, no, .. } => match kind {
            3 => std::mem::swap(yes, no),
            4 if random.bool() => *yes = later(random),
            4 => *no = later(random),
            _ => match comparison {
                Comparison::Equal(Operand::Constant(n))
                | Comparison::Greater(Operand::Constant(n))
                | Comparison::AtLeast(Operand::Constant(n))
                | Comparison::AnyBit(n) => *n = nearby(*n, random),
                _ => return None,
            },
        },
        End::Lookup { yes, no, .. } | End::Chain { yes, no, .. } => std::mem::swap(yes, no),
        end => *end = if random.bool() { End::Accept } else { End::Reject },
    }
    Some(())
}

/// A packet in which numbers of the programs stand where these read.
fn packet(programs: &[&Program], random: &mut Rng) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..160).map(|_| if random.bool() { random.u8(..) } else { 0 }).collect();
    let mut numbers = vec![0x0800, 0x86dd, 0x8100, 6, 17, 0x45];
    let mut places = Vec::new();
    for block in programs.iter().flat_map(|p| &p.blocks) {
        for operation in &block.operations {
            match operation {
                Operation::Load { base, offset, size, .. } => places.push((base.is_some(), *offset as usize, *size)),
                Operation::Constant { n, .. } => numbers.push(*n),
                _ => {}
            }
        }
        if let End::Branch { comparison, .. } = &block.end
            && let Comparison::Equal(Operand::Constant(n))
            | Comparison::Greater(Operand::Constant(n))
            | Comparison::AtLeast(Operand::Constant(n))
            | Comparison::AnyBit(n) = comparison
        {
            numbers.push(*n);
        }
    }
    numbers.extend(programs.iter().flat_map(|p| &p.tables).flat_map(|t| match t {
        Table::Bitmap { first, .. } => vec![*first, first + 37, first + 74],
        Table::Hash(hash) => hash.slots.clone(),
        Table::Tuples(tuples) => tuples.columns.concat(),
    }));
    for (is_behind, offset, size) in places {
        if random.u8(0..8) == 0 {
            continue;
        }
        let n = numbers[random.usize(0..numbers.len())].wrapping_add(random.u32(0..9).saturating_sub(7));
        let at = offset + if is_behind { 20 } else { 0 };
        let size = usize::from(size);
        if let Some(place) = bytes.get_mut(at..at + size) {
            place.copy_from_slice(&n.to_be_bytes()[4 - size..]);
        }
    }
    // Headers as they mostly are, so that what stands behind them is come to.
    if random.u8(0..4) > 0 {
        bytes[14] = 0x45;
        bytes[20] = 0;
        bytes[21] = 0;
    }
    if random.u8(0..3) > 0 {
        bytes[12..14].copy_from_slice(&[0x08, 0x00]);
        bytes[23] = [6, 17, 51, 1][random.usize(0..4)];
    }
    if random.u8(0..3) == 0 {
        bytes.truncate(random.usize(0..80));
    }
    bytes
}

#[test]
fn what_packets_tell_apart_is_not_proven() {
    const PACKETS: usize = 400;
    let mut random = Rng::with_seed(14);
    let (mut told_apart, mut proven, mut changed) = (0, 0, 0);
    for (text, plain, form) in programs() {
        assert_eq!(prove_equal(&plain, &form), Ok(()), "{text}");
        assert_eq!(prove_equal(&plain, &form.with_checked_loads()), Ok(()), "{text}");
        for _ in 0..12 {
            let mut other = form.clone();
            if change(&mut other, &mut random).is_none() || other == form {
                continue;
            }
            changed += 1;
            let is_proven = prove_equal(&plain, &other).is_ok();
            proven += usize::from(is_proven);
            let mut registers = Vec::new();
            let differ = (0..PACKETS).find_map(|_| {
                let bytes = packet(&[&form, &other], &mut random);
                let packet = Packet { captured: &bytes, length: bytes.len() as u32, beside: Beside::default() };
                let verdicts = [plain.run(&packet, &mut registers), other.run(&packet, &mut registers)];
                (verdicts[0].accepted != verdicts[1].accepted).then_some(bytes)
            });
            told_apart += usize::from(differ.is_some());
            if let Some(bytes) = differ {
                assert!(!is_proven, "{text}: {bytes:02x?} tells this apart:\n{other}");
            }
        }
    }
    println!("{changed} changed programs, of which packets tell apart {told_apart}; {proven} are proven equal");
    assert!(told_apart * 2 > changed, "{told_apart} of {changed}");
}

/// With all effort.
fn prove_equal(first: &Program, second: &Program) -> Result<(), Unproven> {
    super::prove_equal(first, second, Effort::All)
}

/// A form that is not proven does not come out.
#[test]
fn the_filter_as_it_stands_takes_the_place_of_what_is_not_proven() {
    let filter = compile("tcp port 80", &Options::default()).expect("a filter");
    // The optimizer made forms of a filter that stood otherwise.
    let mut changed = filter.plain;
    for operation in changed.blocks.iter_mut().flat_map(|b| &mut b.operations) {
        if let Operation::Constant { n, .. } = operation
            && *n == 80
        {
            *n = 81;
        }
    }
    let graph = Graph::constant(true);
    let damaged = Filter::new(graph.clone(), changed.clone(), Some(filter.forms.expect("it is optimized")), 1);
    let plain = Filter::new(graph, changed, None, 1);
    for form in [Form::Here, Form::Machine, Form::Kernel] {
        assert!(matches!(damaged.unproven(form), Some(Unproven::Differ { .. })), "{form:?}");
        assert_eq!(plain.unproven(form), None);
    }
    assert_eq!(damaged.listing(), plain.listing());
    assert_eq!(damaged.dot(), plain.dot());
    // Classic forms are made of the filter as it stands, too: what comes out asks for its port.
    let listing = |filter: &Filter| {
        let code = filter.classic(ClassicGoal::Size).expect("it has a classic form");
        code.iter().enumerate().map(|(at, i)| i.listing(at)).collect::<Vec<_>>().join("\n")
    };
    let asks = |listing: &str, port: &str| listing.lines().any(|l| l.contains(&format!("#{port} ")));
    for filter in [&damaged, &plain] {
        let listing = listing(filter);
        assert!(asks(&listing, "0x51") && !asks(&listing, "0x50"), "{listing}");
    }
    let xdp = Actions::passing(Hook::Xdp);
    assert_eq!(damaged.assembly(Hook::Xdp, xdp).ok(), plain.assembly(Hook::Xdp, xdp).ok());
}

/// What a red team found: programs that no emitter makes, which the proof has to judge all the same.
mod found {
    use super::*;
    use crate::program::{BasicBlock, Register};
    use crate::value::Binary;

    const V0: Register = Register(0);

    fn program(blocks: Vec<(Vec<Operation>, End)>, tables: Vec<Table>) -> Program {
        let blocks = blocks.into_iter().map(|(operations, end)| BasicBlock { operations, end }).collect();
        Program { blocks, registers: 2, tables, maps: Default::default(), predicates: 0 }
    }

    fn load(size: u8) -> Operation {
        Operation::Load { to: V0, base: None, offset: 0, size }
    }

    fn test(comparison: Comparison, yes: usize, no: usize) -> End {
        End::Branch { a: V0, comparison, yes: BlockId(yes), no: BlockId(no) }
    }

    fn at_least(n: u32, yes: usize, no: usize) -> End {
        test(Comparison::AtLeast(Operand::Constant(n)), yes, no)
    }

    fn greater(n: u32, yes: usize, no: usize) -> End {
        test(Comparison::Greater(Operand::Constant(n)), yes, no)
    }

    /// They give other verdicts on a packet, and are not proven.
    fn told_apart(first: &Program, second: &Program, bytes: &[u8]) {
        let packet = Packet { captured: bytes, length: bytes.len() as u32, beside: Beside::default() };
        let of = |p: &Program| p.run(&packet, &mut Vec::new()).accepted;
        assert_ne!(of(first), of(second));
        assert!(prove_equal(first, second).is_err());
    }

    #[test]
    fn a_range_that_ends_before_it_begins_is_empty() {
        let one = Operand::Constant(1);
        let sum = Operation::Binary { op: Binary::Add, to: V0, a: Operand::Register(V0), b: one };
        let ends = || [(vec![], End::Accept), (vec![], End::Reject)];
        let mut first = vec![(vec![load(1), sum], at_least(10, 1, 3)), (vec![], greater(5, 3, 2))];
        first.extend(ends());
        let mut second = vec![(vec![load(1)], at_least(5, 1, 2)), (vec![], greater(8, 2, 3))];
        second.extend(ends());
        told_apart(&program(first, vec![]), &program(second, vec![]), &[0]);
    }

    #[test]
    fn a_bitmap_goes_on_at_0() {
        let ends = || [(vec![], End::Accept), (vec![], End::Reject)];
        let bitmap = Table::Bitmap { first: 0xffff_fff0, words: vec![u32::MAX] };
        let lookup = End::Lookup { keys: vec![V0], table: 0, yes: BlockId(1), no: BlockId(2) };
        let mut first = vec![(vec![load(4)], lookup)];
        first.extend(ends());
        let mut second = vec![(vec![load(4)], at_least(0xffff_fff0, 1, 2))];
        second.extend(ends());
        told_apart(&program(first, vec![bitmap]), &program(second, vec![]), &[0, 0, 0, 5]);
    }

    #[test]
    fn blocks_out_of_order_and_what_is_not_there_are_refused() {
        let equal = Comparison::Equal(Operand::Constant(0));
        let backward = program(
            vec![
                (vec![load(1)], End::Goto(BlockId(2))),
                (vec![], test(equal, 3, 4)),
                (vec![], End::Goto(BlockId(1))),
                (vec![], End::Accept),
                (vec![], End::Reject),
            ],
            vec![],
        );
        let all = program(vec![(vec![load(1)], End::Accept)], vec![]);
        told_apart(&backward, &all, &[7]);
        let none = Program { registers: 0, ..all.clone() };
        let lookup = End::Lookup { keys: vec![V0], table: 7, yes: BlockId(1), no: BlockId(2) };
        let no_table = program(vec![(vec![load(1)], lookup), (vec![], End::Accept), (vec![], End::Reject)], vec![]);
        for damaged in [program(vec![], vec![]), none, no_table] {
            assert!(matches!(prove_equal(&damaged, &all), Err(Unproven::Unsafe(_))));
        }
    }

    #[test]
    fn a_bound_stays_whose_base_is_written() {
        let bound = Operation::Bound { base: Some(V0), end: 2 };
        let zero = Operation::Constant { to: V0, n: 0 };
        let second = Operation::Load { to: Register(1), base: Some(V0), offset: 0, size: 2 };
        let whole = program(vec![(vec![load(1), bound, zero, second], End::Accept)], vec![]);
        assert_eq!(whole.with_checked_loads(), whole);
    }

    /// Whether the answer of a map is taken for what it is: a function of map and key that nobody knows, and that may change.
    #[test]
    fn maps_are_told_apart_and_asked_once() {
        let sets = ["A", "B"].map(|name| (name.to_owned(), vec!["1.2.3.4".to_owned()]));
        let updatable = sets.iter().map(|(name, _)| (name.clone(), crate::Updatable::default())).collect();
        let options = Options { sets: sets.into(), updatable, optimize: false, ..Options::default() };
        let of = |text: &str| compile(text, &options).unwrap_or_else(|e| panic!("{text}: {e}")).plain;
        let whole = of("ip src host $A and not ip dst host $B");
        assert_eq!(prove_equal(&whole, &whole), Ok(()));
        let other_key = of("ip dst host $A and not ip src host $B");
        let other_way = of("not ip src host $A and not ip dst host $B");
        let mut other_map = whole.clone();
        for block in &mut other_map.blocks {
            if let End::Member { map, .. } = &mut block.end {
                *map = 1 - *map;
            }
        }
        for other in [other_key, other_way, other_map] {
            assert!(matches!(prove_equal(&whole, &other), Err(Unproven::Differ { .. })), "{other}");
        }
        // Asked twice it may answer otherwise; asked once in the place of twice it may answer so.
        let (once, twice) = (of("ip src host $A"), of("ip src host $A and ip src host $A"));
        assert_eq!(prove_equal(&twice, &once), Ok(()));
        assert!(matches!(prove_equal(&once, &twice), Err(Unproven::Unknown(_))));
    }
}
