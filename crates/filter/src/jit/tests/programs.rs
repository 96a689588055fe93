//! Random safe programs and packets.

use fastrand::Rng;

use crate::graph::Chain;
use crate::intervals::Intervals;
use crate::language::Binary;
use crate::program::{BasicBlock, Beside, BlockId, Comparison, End, Operand, Operation, Program, Register};
use crate::tables::Table;
use crate::tuples::Tuples;
use crate::value::Ancillary;

/// A random program of so many registers. What is written on all ways to a block is known, so that all reads are safe. If it fills
/// its registers first, many values are alive at once.
pub(super) fn program(rng: &mut Rng, registers: u32, fills: bool) -> Program {
    let count = rng.usize(1..12);
    let mut entries: Vec<Option<Vec<bool>>> = vec![None; count + 2];
    entries[0] = Some(vec![false; registers as usize]);
    let tables = tables(rng);
    let mut blocks = Vec::new();
    for i in 0..count {
        let mut written = entries[i].take().unwrap_or_else(|| vec![false; registers as usize]);
        let mut operations = Vec::new();
        if i == 0 && fills {
            operations.extend((0..registers).map(|r| field(rng, Register(r))));
            written.fill(true);
        }
        operations.extend((0..rng.usize(0..8)).map(|_| operation(rng, &mut written)));
        let end = end(rng, &written, i, count, &tables);
        for BlockId(to) in end.successors() {
            match &mut entries[to] {
                Some(all) => all.iter_mut().zip(&written).for_each(|(a, b)| *a &= b),
                None => entries[to] = Some(written.clone()),
            }
        }
        blocks.push(BasicBlock { operations, end });
    }
    blocks.push(BasicBlock { operations: Vec::new(), end: End::Accept });
    blocks.push(BasicBlock { operations: Vec::new(), end: End::Reject });
    Program { blocks, registers, tables, maps: Default::default(), predicates: 0 }
}

fn field(rng: &mut Rng, to: Register) -> Operation {
    Operation::Load { to, base: None, offset: rng.u32(0..40), size: *rng.choice(&[1, 2, 4]).expect("one") }
}

fn tables(rng: &mut Rng) -> Vec<Table> {
    let numbers: Vec<u32> = (0..rng.u32(1..200)).map(|_| number(rng)).collect();
    let mut singles = numbers.clone();
    singles.sort_unstable();
    singles.dedup();
    let first = number(rng) & 0xffff;
    let close = Intervals::of((0..rng.u32(1..50)).map(|_| first + rng.u32(0..3000)).map(|n| (n, n + 3)).collect());
    let tuples = Tuples::of(rng.usize(2..5), singles.iter().map(|n| (0..4).map(|w| n >> w & 0xff).collect()));
    let several = Table::tuples(&tuples);
    Table::hash(&singles).into_iter().chain(Table::bitmap(&close)).chain(several).collect()
}

/// Numbers at the edges are as likely as others.
fn number(rng: &mut Rng) -> u32 {
    match rng.u8(0..8) {
        0 => 0,
        1 => rng.u32(0..40),
        2 => 1 << rng.u32(0..32),
        3 => u32::MAX - rng.u32(0..3),
        4 => u32::from(rng.u16(..)),
        5 => i32::MAX as u32 - 1 + rng.u32(0..4),
        6 => rng.u32(0..256),
        _ => rng.u32(..),
    }
}

fn written_register(rng: &mut Rng, written: &[bool]) -> Option<Register> {
    let all: Vec<u32> = (0..written.len() as u32).filter(|r| written[*r as usize]).collect();
    rng.choice(all).map(Register)
}

fn operand(rng: &mut Rng, written: &[bool]) -> Operand {
    match written_register(rng, written) {
        Some(r) if rng.u8(0..3) > 0 => Operand::Register(r),
        _ => Operand::Constant(number(rng)),
    }
}

fn place(rng: &mut Rng, written: &[bool]) -> (Option<Register>, u32) {
    let base = if rng.u8(0..3) == 0 { written_register(rng, written) } else { None };
    let offset = if rng.u8(0..30) == 0 { number(rng) } else { rng.u32(0..40) };
    (base, offset)
}

fn binary(rng: &mut Rng) -> Binary {
    use Binary::{Add, And, Div, Mod, Mul, Or, ShiftLeft, ShiftRight, Sub, Xor};
    // Divisions reject packets: not too often.
    *rng.choice(&[Add, Sub, Mul, And, And, Or, Xor, ShiftLeft, ShiftRight, ShiftRight, Div, Mod]).expect("one")
}

fn operation(rng: &mut Rng, written: &mut [bool]) -> Operation {
    let to = Register(rng.u32(0..written.len() as u32));
    let register = written_register(rng, written);
    let what = [Ancillary::InterfaceIndex, Ancillary::PacketType, Ancillary::VlanPresent, Ancillary::VlanTag];
    let (base, offset) = place(rng, written);
    let operation = match (rng.u8(0..16), register) {
        (0, _) => Operation::Constant { to, n: number(rng) },
        (1, Some(from)) => Operation::Copy { to, from },
        (2, _) => Operation::Length { to },
        (3, _) => Operation::Ancillary { to, what: *rng.choice(&what).expect("one") },
        (4, _) => Operation::Bound { base, end: u64::from(offset) },
        (5, Some(register)) if rng.bool() => Operation::NotZero { register },
        (6, _) => Operation::HeaderLength { to, offset: rng.u32(0..40) },
        (7..=10, _) => {
            let (a, b) = (operand(rng, written), operand(rng, written));
            Operation::Binary { op: binary(rng), to, a, b }
        }
        (11, Some(a)) => Operation::Negate { to, a },
        (12, _) => Operation::IsGreater { to, a: operand(rng, written), b: operand(rng, written) },
        _ => Operation::Load { to, base, offset, size: *rng.choice(&[1, 2, 4]).expect("one") },
    };
    if let Some(to) = operation.writes() {
        written[to.0 as usize] = true;
    }
    operation
}

fn end(rng: &mut Rng, written: &[bool], block: usize, count: usize, tables: &[Table]) -> End {
    let (yes, no) = (BlockId(rng.usize(block + 1..count + 2)), BlockId(rng.usize(block + 1..count + 2)));
    match (rng.u8(0..12), written_register(rng, written)) {
        (0, _) => End::Accept,
        (1, _) => End::Goto(yes),
        (2, _) => {
            let chain = Chain { is_ip6: rng.bool(), start: rng.u32(0..16), protocol: rng.u32(0..64) };
            End::Chain { chain, yes, no }
        }
        (3 | 4, Some(a)) if !tables.is_empty() => {
            let table = rng.usize(0..tables.len());
            let another = |_| written_register(rng, written).unwrap_or(a);
            End::Lookup { keys: (0..tables[table].width()).map(another).collect(), table, yes, no }
        }
        (_, Some(a)) => {
            let b = operand(rng, written);
            let comparison = match rng.u8(0..6) {
                0..=2 => Comparison::Equal(b),
                3 => Comparison::Greater(b),
                4 => Comparison::AtLeast(b),
                _ => Comparison::AnyBit(number(rng)),
            };
            End::Branch { a, comparison, yes, no }
        }
        (_, None) => End::Goto(yes),
    }
}

/// Bytes of a packet, most of them small.
pub(super) fn bytes(rng: &mut Rng) -> Vec<u8> {
    let length = if rng.bool() { rng.usize(0..100) } else { rng.usize(40..300) };
    (0..length).map(|_| if rng.bool() { rng.u8(0..45) } else { rng.u8(..) }).collect()
}

pub(super) fn beside(rng: &mut Rng) -> Beside {
    let vlan = rng.bool().then(|| rng.u16(..));
    Beside { interface: rng.u32(0..5), packet_type: rng.u32(0..6), vlan }
}
