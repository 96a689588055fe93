//! How far into packets a program reads, and how large the numbers are that say where.
//!
//! The verifier follows an address for 64 KiB from where the packet begins (`MAX_PACKET_OFF`): the greatest number that an offset may
//! be, and how far behind it a field ends, must come to no more. So an offset that may be greater is compared first, with what is left
//! by the field. That comparison rejects packets, so that it must stand before no other field that is nearer: fields behind the same
//! base share an address only if its number is small enough for all of them, or if they are close together.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use crate::language::Binary;
use crate::program::{Operand, Operation, Program, Register};
use crate::range::Range;
use crate::ranges::Ranges;

/// No field that a program of the kernel reads directly ends further behind the packet's begin (`MAX_PACKET_OFF`).
pub const FURTHEST: u64 = 0xffff;

/// A number that is no greater leads from a header to the next one, as the length of an IP header does.
const SMALL: u32 = 0x400;

/// Fields behind a base that may be too far for them share an address if they end within so many bytes, as those of a header do. The
/// last bytes of the 64 KiB are then not seen: as many as lie between the ends of the first and the last of these fields.
const TOGETHER: u64 = 0x100;

/// The packet's address behind a base, of which it is known that it is no greater than `most`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Address {
    pub(super) base: Register,
    pub(super) most: u32,
}

/// What is known of a program's numbers without running it.
#[derive(Default)]
pub(super) struct Reach {
    ranges: Ranges,
    /// No number in the register is greater, and each version of the verifier knows that, too.
    followed: FxHashMap<Register, u32>,
    /// By base the ends of the fields that share an address, of each address the furthest, in order.
    ends: FxHashMap<Register, Vec<u64>>,
}

impl Reach {
    pub(super) fn of(program: &Program) -> Reach {
        let mut reach = Reach { ranges: Ranges::of(program), ..Reach::default() };
        let operations = || program.blocks.iter().flat_map(|b| &b.operations);
        for operation in operations() {
            let Some(to) = operation.writes() else { continue };
            if let Some(most) = reach.followed_result(operation) {
                reach.followed.insert(to, most);
            }
        }
        let mut ends: FxHashMap<Register, BTreeSet<u64>> = FxHashMap::default();
        for (base, end) in operations().filter_map(Operation::wants) {
            // What ends too far is rejected without an address.
            if let Some(base) = base.filter(|_| !reach.is_too_far(base, end)) {
                ends.entry(base).or_default().insert(end);
            }
        }
        reach.ends = ends.into_iter().map(|(base, ends)| (base, reach.shared(base, &ends))).collect();
        reach
    }

    /// The ends of fields behind a base that share an address, of each address the furthest.
    fn shared(&self, base: Register, ends: &BTreeSet<u64>) -> Vec<u64> {
        let is_near = |end: &u64| end + u64::from(self.range(base).greatest) <= FURTHEST;
        let mut all: Vec<u64> = ends.iter().copied().take_while(is_near).max().into_iter().collect();
        let mut first = None;
        for end in ends.iter().copied().skip_while(is_near) {
            match first {
                Some(from) if end <= from + TOGETHER => {
                    all.pop();
                }
                _ => first = Some(end),
            }
            all.push(end);
        }
        all
    }

    /// The greatest number that an operation may come to, as far as each version of the verifier follows it; `None` if that is any.
    fn followed_result(&self, operation: &Operation) -> Option<u32> {
        let of = |operand: &Operand| match operand {
            Operand::Constant(n) => Some(*n),
            Operand::Register(r) => self.followed.get(r).copied(),
        };
        match operation {
            Operation::Constant { n, .. } => Some(*n),
            Operation::HeaderLength { .. } => Some(60),
            Operation::Load { size: 1, .. } => Some(0xff),
            // Of a shift by what is in a register the verifier knows nothing (`scalar_min_max_lsh` wants a constant).
            Operation::Binary { op: Binary::ShiftLeft, a, b: Operand::Constant(n), .. } if *n < 32 => {
                u32::try_from(u64::from(of(a)?) << n).ok()
            }
            Operation::Binary { op, a, b, .. } => match (op, of(a), of(b)) {
                (Binary::And, a, b) => a.into_iter().chain(b).min(),
                (Binary::Add, Some(a), Some(b)) => a.checked_add(b),
                _ => None,
            },
            _ => None,
        }
    }

    /// The number that a register holds, if it is a constant.
    pub(super) fn constant(&self, r: Register) -> Option<u32> {
        self.ranges.constant(r)
    }

    fn range(&self, r: Register) -> Range {
        self.ranges.range(r)
    }

    /// Whether a field ends further than the verifier follows. Behind a base that is a small number all of that number counts: a
    /// field of which the place says that it may be out of reach is so in each packet.
    pub(super) fn is_too_far(&self, base: Option<Register>, end: u64) -> bool {
        let Range { least, greatest } = base.map_or(Range::one(0), |b| self.range(b));
        end + u64::from(if greatest <= SMALL { greatest } else { least }) > FURTHEST
    }

    /// Whether a field far behind its base, or behind a base that is no small number, may end further than the verifier follows.
    pub(super) fn may_be_too_far(&self, base: Option<Register>, end: u64) -> bool {
        let greatest = base.map_or(0, |b| self.range(b).greatest);
        self.is_too_far(base, end) || end > u64::from(SMALL) && end + u64::from(greatest) > FURTHEST
    }

    /// The address from which a field is read that ends so far behind a base, and is not too far.
    pub(super) fn address(&self, base: Register, end: u64) -> Address {
        let furthest = self.ends.get(&base).and_then(|ends| ends.iter().find(|e| **e >= end));
        let left = FURTHEST.saturating_sub(furthest.copied().unwrap_or(end));
        Address { base, most: u32::try_from(left).unwrap_or(u32::MAX) }
    }

    /// The verifier does not know itself that the number is no greater.
    pub(super) fn is_compared(&self, address: Address) -> bool {
        self.followed.get(&address.base).is_none_or(|most| *most > address.most)
    }

    /// How far into packets the program reads at most; `None` if it reads nothing. What is too far is never read.
    pub(super) fn furthest(&self, program: &Program) -> Option<u64> {
        let wants = program.blocks.iter().flat_map(|b| &b.operations).filter_map(Operation::wants);
        let read = wants.filter(|(base, end)| !self.is_too_far(*base, *end));
        let ends = read.map(|(base, end)| base.map_or(0, |b| u64::from(self.range(b).greatest)) + end);
        ends.max().map(|end| end.min(FURTHEST))
    }
}
