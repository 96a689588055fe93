//! How far into packets a program reads, and how large the numbers are that say where.
//!
//! The verifier follows an address for 64 KiB from where the packet begins (`MAX_PACKET_OFF`): the greatest number that an offset may
//! be, and how far behind it a field ends, must come to no more. So an offset that may be greater is compared first, with what is left
//! by the field. That comparison rejects packets, so that it must stand before no other field that is nearer: fields behind the same
//! base share an address only if its number is small enough for all of them, or if they are close together.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::range::Range;
use crate::language::Binary;
use crate::program::{Operand, Operation, Program, Register};
use crate::value::Ancillary;

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
    /// What numbers registers may hold. Those that may hold any are not there.
    ranges: FxHashMap<Register, Range>,
    /// No number in the register is greater, and each version of the verifier knows that, too.
    followed: FxHashMap<Register, u32>,
    definitions: FxHashMap<Register, Operation>,
    /// By base the ends of the fields that share an address, of each address the furthest, in order.
    ends: FxHashMap<Register, Vec<u64>>,
}

impl Reach {
    pub(super) fn of(program: &Program) -> Reach {
        let mut reach = Reach::default();
        let operations = || program.blocks.iter().flat_map(|b| &b.operations);
        for operation in operations() {
            let Some(to) = operation.writes() else { continue };
            // One that is computed in several blocks is the same everywhere.
            reach.ranges.insert(to, reach.result(operation));
            if let Some(most) = reach.followed_result(operation) {
                reach.followed.insert(to, most);
            }
            reach.definitions.insert(to, operation.clone());
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

    fn operand(&self, operand: Operand) -> Range {
        match operand {
            Operand::Constant(n) => Range::one(n),
            Operand::Register(r) => self.range(r),
        }
    }

    /// What an operation may come to.
    fn result(&self, operation: &Operation) -> Range {
        match operation {
            Operation::Constant { n, .. } => Range::one(*n),
            Operation::HeaderLength { .. } => Range::up_to(60),
            Operation::Load { size: 1, .. } => Range::up_to(0xff),
            Operation::Load { size: 2, .. } | Operation::Ancillary { what: Ancillary::VlanTag, .. } => {
                Range::up_to(0xffff)
            }
            Operation::IsGreater { .. } | Operation::Ancillary { what: Ancillary::VlanPresent, .. } => Range::up_to(1),
            Operation::Copy { from, .. } => self.range(*from),
            Operation::Negate { a, .. } => Range::of(Binary::Sub, Range::one(0), self.range(*a)),
            Operation::Binary { op: Binary::Add, a, b, .. } => {
                let chosen = self.chosen(*a, *b).or_else(|| self.chosen(*b, *a));
                chosen.unwrap_or_else(|| Range::of(Binary::Add, self.operand(*a), self.operand(*b)))
            }
            Operation::Binary { op, a, b, .. } => Range::of(*op, self.operand(*a), self.operand(*b)),
            _ => Range::ANY,
        }
    }

    /// What `other + (then - other) * is` may come to, where `is` is 1 or 0 ([`crate::value::Values::chosen`]).
    fn chosen(&self, other: Operand, product: Operand) -> Option<Range> {
        let definition = |operand: Operand| self.definitions.get(&operand.register()?);
        let Some(Operation::Binary { op: Binary::Mul, a, b, .. }) = definition(product) else { return None };
        let is_choice = |operand: Operand| self.operand(operand).greatest <= 1;
        let difference = if is_choice(*b) {
            *a
        } else if is_choice(*a) {
            *b
        } else {
            return None;
        };
        let then = match (difference, definition(difference)) {
            (_, Some(Operation::Binary { op: Binary::Sub, a: then, b, .. })) if *b == other => self.operand(*then),
            (difference, _) => Range::of(Binary::Add, self.operand(other), self.operand(difference)),
        };
        Some(self.operand(other).hull(then))
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
        match self.definitions.get(&r) {
            Some(Operation::Constant { n, .. }) => Some(*n),
            _ => None,
        }
    }

    /// What numbers a register may hold.
    fn range(&self, r: Register) -> Range {
        self.ranges.get(&r).copied().unwrap_or(Range::ANY)
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
