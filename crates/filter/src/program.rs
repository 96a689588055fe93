//! Programs: blocks of operations over registers, which the interpreter runs and the back ends translate.

use std::ops::Range;
use std::sync::Arc;

use crate::graph::Chain;
use crate::language::Binary;
use crate::tables::Table;
use crate::tuples::MOST_WORDS;
use crate::updatable::SetMap;
use crate::value::Ancillary;

/// A register.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Register(pub(crate) u32);

/// A block: an index of [`Program::blocks`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct BlockId(pub(crate) usize);

/// A number, or what a register holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Operand {
    Constant(u32),
    Register(Register),
}

impl Operand {
    /// The register, if it is one.
    pub(crate) fn register(&self) -> Option<Register> {
        match self {
            Operand::Constant(_) => None,
            Operand::Register(r) => Some(*r),
        }
    }
}

/// An operation. Each counts one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Constant {
        to: Register,
        n: u32,
    },
    Copy {
        to: Register,
        from: Register,
    },
    Length {
        to: Register,
    },
    Ancillary {
        to: Register,
        what: Ancillary,
    },
    /// Rejects the packet if its captured part ends less than `end` bytes behind the base.
    Bound {
        base: Option<Register>,
        end: u64,
    },
    /// Rejects the packet if the register is 0.
    NotZero {
        register: Register,
    },
    /// The way of the packet has come to a predicate of the text. Costs nothing, except at hooks.
    Note {
        predicate: u32,
    },
    /// In network byte order; rejects the packet if it ends before.
    Load {
        to: Register,
        base: Option<Register>,
        offset: u32,
        size: u8,
    },
    /// Four times the lower half of a byte: the length of an IPv4 header.
    HeaderLength {
        to: Register,
        offset: u32,
    },
    Binary {
        op: Binary,
        to: Register,
        a: Operand,
        b: Operand,
    },
    Negate {
        to: Register,
        a: Register,
    },
    IsGreater {
        to: Register,
        a: Operand,
        b: Operand,
    },
}

impl Operation {
    /// Each register that it reads.
    pub(crate) fn reads(&self, f: &mut impl FnMut(Register)) {
        match self {
            Operation::Constant { .. }
            | Operation::Length { .. }
            | Operation::Ancillary { .. }
            | Operation::HeaderLength { .. }
            | Operation::Note { .. } => {}
            Operation::Copy { from: r, .. } | Operation::NotZero { register: r } | Operation::Negate { a: r, .. } => {
                f(*r)
            }
            Operation::Bound { base, .. } | Operation::Load { base, .. } => base.iter().for_each(|r| f(*r)),
            Operation::Binary { a, b, .. } | Operation::IsGreater { a, b, .. } => {
                [a, b].into_iter().filter_map(Operand::register).for_each(f);
            }
        }
    }

    /// The register that it writes.
    pub(crate) fn writes(&self) -> Option<Register> {
        match self {
            Operation::Bound { .. } | Operation::NotZero { .. } | Operation::Note { .. } => None,
            Operation::Constant { to, .. }
            | Operation::Copy { to, .. }
            | Operation::Length { to }
            | Operation::Ancillary { to, .. }
            | Operation::Load { to, .. }
            | Operation::HeaderLength { to, .. }
            | Operation::Binary { to, .. }
            | Operation::Negate { to, .. }
            | Operation::IsGreater { to, .. } => Some(*to),
        }
    }

    /// What it wants of the packet: a base, and how many bytes there are to be from there on.
    pub(crate) fn wants(&self) -> Option<(Option<Register>, u64)> {
        match self {
            Operation::Bound { base, end } => Some((*base, *end)),
            Operation::Load { base, offset, size, .. } => Some((*base, u64::from(*offset) + u64::from(*size))),
            Operation::HeaderLength { offset, .. } => Some((None, u64::from(*offset) + 1)),
            _ => None,
        }
    }

    /// Each register of the operation.
    pub(crate) fn registers(&mut self, f: &mut impl FnMut(&mut Register)) {
        let operand = |o: &mut Operand, f: &mut dyn FnMut(&mut Register)| {
            if let Operand::Register(r) = o {
                f(r);
            }
        };
        match self {
            Operation::Constant { to, .. }
            | Operation::Length { to }
            | Operation::Ancillary { to, .. }
            | Operation::HeaderLength { to, .. } => f(to),
            Operation::Copy { to, from } => {
                f(from);
                f(to);
            }
            Operation::Bound { base, .. } => {
                if let Some(base) = base {
                    f(base);
                }
            }
            Operation::NotZero { register } => f(register),
            Operation::Note { .. } => {}
            Operation::Load { to, base, .. } => {
                if let Some(base) = base {
                    f(base);
                }
                f(to);
            }
            Operation::Negate { to, a } => {
                f(a);
                f(to);
            }
            Operation::Binary { to, a, b, .. } | Operation::IsGreater { to, a, b } => {
                operand(a, f);
                operand(b, f);
                f(to);
            }
        }
    }
}

/// What a branch tests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Comparison {
    Equal(Operand),
    Greater(Operand),
    AtLeast(Operand),
    /// One of these bits is set.
    AnyBit(u32),
}

/// The end of a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Accept,
    Reject,
    Goto(BlockId),
    Branch {
        a: Register,
        comparison: Comparison,
        yes: BlockId,
        no: BlockId,
    },
    /// Whether a key is a member of a table: a register for each word of the table's keys.
    Lookup {
        keys: Vec<Register>,
        table: usize,
        yes: BlockId,
        no: BlockId,
    },
    /// Whether a key, word by word, is in a map that user space changes.
    Member {
        map: usize,
        key: Vec<Register>,
        yes: BlockId,
        no: BlockId,
    },
    Chain {
        chain: Chain,
        yes: BlockId,
        no: BlockId,
    },
}

impl End {
    /// Each register that it reads.
    pub(crate) fn reads(&self, f: &mut impl FnMut(Register)) {
        match self {
            End::Accept | End::Reject | End::Goto(_) | End::Chain { .. } => {}
            End::Lookup { keys, .. } => keys.iter().copied().for_each(f),
            End::Member { key, .. } => key.iter().copied().for_each(f),
            End::Branch { a, comparison, .. } => {
                f(*a);
                if let Comparison::Equal(b) | Comparison::Greater(b) | Comparison::AtLeast(b) = comparison {
                    b.register().into_iter().for_each(f);
                }
            }
        }
    }

    /// Where it may go on.
    pub(crate) fn successors(&self) -> Vec<BlockId> {
        match self {
            End::Accept | End::Reject => Vec::new(),
            End::Goto(next) => vec![*next],
            End::Branch { yes, no, .. }
            | End::Lookup { yes, no, .. }
            | End::Member { yes, no, .. }
            | End::Chain { yes, no, .. } => vec![*yes, *no],
        }
    }

    /// The end with other successors.
    pub(crate) fn map(&mut self, f: impl Fn(BlockId) -> BlockId) {
        match self {
            End::Accept | End::Reject => {}
            End::Goto(next) => *next = f(*next),
            End::Branch { yes, no, .. }
            | End::Lookup { yes, no, .. }
            | End::Member { yes, no, .. }
            | End::Chain { yes, no, .. } => {
                (*yes, *no) = (f(*yes), f(*no));
            }
        }
    }
}

/// A block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BasicBlock {
    pub(crate) operations: Vec<Operation>,
    pub(crate) end: End,
}

/// A program: it begins with its first block, and a block stands before those that it goes to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Program {
    pub(crate) blocks: Vec<BasicBlock>,
    pub(crate) registers: u32,
    pub(crate) tables: Vec<Table>,
    /// Sets that user space changes, with what they hold to begin with.
    pub(crate) maps: Arc<[SetMap]>,
    /// How many predicates there are to note ([`Operation::Note`]); 0: none is noted.
    pub(crate) predicates: u32,
}

/// A packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// What of it was captured.
    pub captured: &'a [u8],
    /// Its length on the wire.
    pub length: u32,
    /// What the kernel knows of it besides.
    pub beside: Beside,
}

/// What the kernel knows of a packet that is not in its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Beside {
    /// The number of its interface.
    pub interface: u32,
    /// `PACKET_HOST` and its siblings.
    pub packet_type: u32,
    /// The VLAN tag that was taken out of it.
    pub vlan: Option<u16>,
}

impl Packet<'_> {
    pub(crate) fn ancillary(&self, what: Ancillary) -> u32 {
        match what {
            Ancillary::InterfaceIndex => self.beside.interface,
            Ancillary::PacketType => self.beside.packet_type,
            Ancillary::VlanPresent => u32::from(self.beside.vlan.is_some()),
            Ancillary::VlanTag => self.beside.vlan.map_or(0, u32::from),
        }
    }

    pub(crate) fn load(&self, base: u32, offset: u32, size: u8) -> Option<u32> {
        let start = u64::from(base) + u64::from(offset);
        let bytes = self.captured.get(usize::try_from(start).ok()?..)?.get(..usize::from(size))?;
        Some(bytes.iter().fold(0, |n, b| n << 8 | u32::from(*b)))
    }
}

/// No packet is longer. From here on offsets are negative numbers to the kernel, with which it reads elsewhere: headers behind
/// `SKF_NET_OFF` and `SKF_LL_OFF`, and what is beside the packet behind `SKF_AD_OFF` (`linux/filter.h`).
pub(crate) const LONGEST: u64 = i32::MAX as u64;

/// IPv4's type is in most packets, whatever a filter asks for first.
pub(crate) const LIKELY: u32 = 0x0800;

/// What a run came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// Whether the packet is accepted.
    pub accepted: bool,
    /// Operations executed.
    pub operations: u64,
    /// The predicate in which the packet's way ended: an index of [`crate::Filter::predicates`]. `None`: before the first one, or
    /// the filter does not report it.
    pub decided: Option<usize>,
}

impl Program {
    /// Runs the program on a packet. `registers` is working space, which may be reused.
    pub(crate) fn run(&self, packet: &Packet, registers: &mut Vec<u32>) -> Run {
        registers.clear();
        registers.resize(self.registers as usize, 0);
        let mut operations = 0;
        let mut decided = None;
        let mut at = 0;
        loop {
            let block = &self.blocks[at];
            operations += block.operations.len() as u64 + 1;
            for operation in &block.operations {
                if let Operation::Note { predicate } = operation {
                    decided = Some(*predicate as usize);
                    operations -= 1;
                }
                if execute(operation, packet, registers).is_none() {
                    return Run { accepted: false, operations, decided };
                }
            }
            let BlockId(next) = match &block.end {
                End::Accept => return Run { accepted: true, operations, decided },
                End::Reject => return Run { accepted: false, operations, decided },
                End::Goto(next) => {
                    // The next block follows, so that nothing is executed.
                    operations -= u64::from(next.0 == at + 1);
                    *next
                }
                End::Branch { a, comparison, yes, no } => {
                    let a = registers[a.0 as usize];
                    let of = |o: &Operand| value(o, registers);
                    let holds = match comparison {
                        Comparison::Equal(b) => a == of(b),
                        Comparison::Greater(b) => a > of(b),
                        Comparison::AtLeast(b) => a >= of(b),
                        Comparison::AnyBit(mask) => a & mask != 0,
                    };
                    if holds { *yes } else { *no }
                }
                End::Lookup { keys, table, yes, no } => {
                    let table = &self.tables[*table];
                    operations += table.operations() - 1;
                    let mut key = [0; MOST_WORDS];
                    key.iter_mut().zip(keys).for_each(|(word, r)| *word = registers[r.0 as usize]);
                    if table.contains(&key[..keys.len()]) { *yes } else { *no }
                }
                End::Member { map, key, yes, no } => {
                    let key = key.iter().map(|r| registers[r.0 as usize]);
                    if self.maps[*map].contains(key) { *yes } else { *no }
                }
                End::Chain { chain, yes, no } => match run_chain(chain, packet, &mut operations) {
                    None => return Run { accepted: false, operations, decided },
                    Some(true) => *yes,
                    Some(false) => *no,
                },
            };
            at = next;
        }
    }

    /// No way leads to acceptance.
    pub(crate) fn rejects_all(&self) -> bool {
        self.blocks.iter().all(|b| b.end != End::Accept)
    }

    /// How many operations the program has, the ends of blocks among them.
    pub(crate) fn size(&self) -> usize {
        let gotos = |i: usize, end: &End| usize::from(*end != End::Goto(BlockId(i + 1)));
        self.blocks.iter().enumerate().map(|(i, b)| b.operations.len() + gotos(i, &b.end)).sum()
    }

    /// What a machine with checked loads runs: a bound goes where a load in its block asks for as much behind the same base, which
    /// nothing between the two writes.
    pub(crate) fn with_checked_loads(&self) -> Program {
        let mut program = self.clone();
        for (block, BasicBlock { operations: all, .. }) in program.blocks.iter_mut().zip(&self.blocks) {
            let is_written = |base: Register, between: Range<usize>| {
                all[between].iter().any(|operation| operation.writes() == Some(base))
            };
            // Where a packet is rejected says which predicate did it.
            let is_noted = |mut between: Range<usize>| between.any(|i| matches!(all[i], Operation::Note { .. }));
            let is_covered = |i: usize, base: Option<Register>, end: u64| {
                all.iter().enumerate().any(|(j, load)| {
                    !matches!(load, Operation::Bound { .. })
                        && load.wants().is_some_and(|(b, e)| b == base && e >= end)
                        && base.is_none_or(|base| !is_written(base, i.min(j)..i.max(j)))
                        && !is_noted(i.min(j)..i.max(j))
                })
            };
            let mut next = 0..;
            block.operations.retain(|operation| match (operation, next.next()) {
                (Operation::Bound { base, end }, Some(i)) => !is_covered(i, *base, *end),
                _ => true,
            });
        }
        program
    }
}

fn value(operand: &Operand, registers: &[u32]) -> u32 {
    match operand {
        Operand::Constant(n) => *n,
        Operand::Register(r) => registers[r.0 as usize],
    }
}

/// Executes an operation; `None` rejects the packet.
fn execute(operation: &Operation, packet: &Packet, registers: &mut [u32]) -> Option<()> {
    let base = |b: &Option<Register>, registers: &[u32]| b.map_or(0, |r| registers[r.0 as usize]);
    let (to, n) = match operation {
        Operation::Constant { to, n } => (to, *n),
        Operation::Copy { to, from } => (to, registers[from.0 as usize]),
        Operation::Length { to } => (to, packet.length),
        Operation::Ancillary { to, what } => (to, packet.ancillary(*what)),
        Operation::Bound { base: b, end } => {
            let reached = u64::from(base(b, registers)) + end;
            return (reached <= packet.captured.len() as u64).then_some(());
        }
        Operation::NotZero { register } => return (registers[register.0 as usize] != 0).then_some(()),
        Operation::Note { .. } => return Some(()),
        Operation::Load { to, base: b, offset, size } => (to, packet.load(base(b, registers), *offset, *size)?),
        Operation::HeaderLength { to, offset } => (to, (packet.load(0, *offset, 1)? & 0xf) << 2),
        Operation::Binary { op, to, a, b } => (to, crate::value::apply(*op, value(a, registers), value(b, registers))?),
        Operation::Negate { to, a } => (to, registers[a.0 as usize].wrapping_neg()),
        Operation::IsGreater { to, a, b } => (to, u32::from(value(a, registers) > value(b, registers))),
    };
    registers[to.0 as usize] = n;
    Some(())
}

/// Follows a chain of headers as libpcap's code for `protochain` does. `None`: it leads off the packet.
pub(crate) fn run_chain(chain: &Chain, packet: &Packet, operations: &mut u64) -> Option<bool> {
    const NONE: u32 = 59;
    const AUTHENTICATION: u32 = 51;
    /// Hop-by-hop and destination options, routing, fragment.
    const EXTENSIONS: [u32; 4] = [0, 60, 43, 44];
    // Where a payload stands is not set for some link types: the sum of −1 and −1 with a constant is a place in the packet, with what
    // is known of the packet it is behind all.
    let (mut next, mut at) = if chain.is_ip6 {
        (packet.load(0, chain.start.wrapping_add(6), 1)?, 40)
    } else {
        let next = packet.load(0, chain.start.wrapping_add(9), 1)?;
        (next, (packet.load(0, chain.start, 1)? & 0xf) << 2)
    };
    *operations += 2;
    // Authentication headers can lead back, where libpcap's code never ends.
    for _ in 0..MOST_HEADERS {
        *operations += 4;
        if next == chain.protocol || next == NONE {
            return Some(next == chain.protocol);
        }
        let is_extension = chain.is_ip6 && EXTENSIONS.contains(&next);
        if !is_extension && next != AUTHENTICATION {
            return Some(false);
        }
        *operations += 8;
        next = packet.load(at, chain.start, 1)?;
        let length = packet.load(at, chain.start.wrapping_add(1), 1)?;
        // libpcap's code for authentication headers goes to where a length would be, and takes four times that as the place.
        at = if is_extension { at.wrapping_add((length + 1) * 8) } else { authentication_end(chain, packet, at)? };
    }
    None
}

/// More headers than any packet has that does not lead back.
const MOST_HEADERS: usize = 1 << 16;

/// Where libpcap's code goes on behind an authentication header.
fn authentication_end(chain: &Chain, packet: &Packet, at: u32) -> Option<u32> {
    let length = packet.load(at.wrapping_add(1), chain.start, 1)?;
    Some((length + 2) * 4)
}
