//! How far into packets a program reads, and how large the numbers are that say where.
//!
//! The verifier follows an address for 64 KiB from where the packet begins (`MAX_PACKET_OFF`): the greatest number that an offset may
//! be, and how far behind it a field ends, must come to no more. So an offset that may be greater is compared first, with what is left
//! by the furthest field behind it.

use rustc_hash::FxHashMap;

use crate::language::Binary;
use crate::program::{Operand, Operation, Program, Register};

/// No field that a program of the kernel reads directly ends further behind the packet's begin (`MAX_PACKET_OFF`).
pub const FURTHEST: u64 = 0xffff;

/// A number that is no greater leads from a header to the next one, as the length of an IP header does.
const SMALL: u32 = 0x400;

/// What is known of a program's numbers without running it.
pub(super) struct Reach {
    /// No number in the register is greater, and the verifier knows that, too. Those that may be any number are not there.
    greatest: FxHashMap<Register, u32>,
    /// How far behind a base fields end.
    ends: FxHashMap<Register, u64>,
}

impl Reach {
    pub(super) fn of(program: &Program) -> Reach {
        let mut reach = Reach { greatest: FxHashMap::default(), ends: FxHashMap::default() };
        let operations = || program.blocks.iter().flat_map(|b| &b.operations);
        for operation in operations() {
            if let Some((to, most)) = operation.writes().zip(reach.result(operation)) {
                // One that is computed in several blocks is the same everywhere.
                reach.greatest.insert(to, most);
            }
        }
        for (base, end) in operations().filter_map(Operation::wants) {
            // What ends too far is rejected without an address.
            if let Some(base) = base.filter(|_| !reach.is_too_far(base, end)) {
                let furthest = reach.ends.entry(base).or_default();
                *furthest = end.max(*furthest);
            }
        }
        reach
    }

    /// The greatest number that an operation may come to; `None` if that is any.
    fn result(&self, operation: &Operation) -> Option<u32> {
        let of = |operand: &Operand| match operand {
            Operand::Constant(n) => Some(*n),
            Operand::Register(r) => self.greatest.get(r).copied(),
        };
        match operation {
            Operation::Constant { n, .. } => Some(*n),
            Operation::HeaderLength { .. } => Some(60),
            Operation::Load { size: 1, .. } => Some(0xff),
            Operation::Binary { op, a, b, .. } => match (op, of(a), of(b)) {
                (Binary::And, a, b) => a.into_iter().chain(b).min(),
                (Binary::Add, Some(a), Some(b)) => a.checked_add(b),
                (Binary::ShiftLeft, Some(a), Some(n)) if n < 32 => u32::try_from(u64::from(a) << n).ok(),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether a field ends further than the verifier follows. Behind a base that is a small number all of that number counts: to
    /// compare it first, as greater ones are, would reject packets that are asked for other fields behind the same base.
    pub(super) fn is_too_far(&self, base: Option<Register>, end: u64) -> bool {
        let most = base.map_or(0, |b| self.greatest(b));
        end + u64::from(if most <= SMALL { most } else { 0 }) > FURTHEST
    }

    /// The greatest number that a register may hold.
    pub(super) fn greatest(&self, r: Register) -> u32 {
        self.greatest.get(&r).copied().unwrap_or(u32::MAX)
    }

    /// No greater number may be used as this base.
    pub(super) fn most(&self, base: Register) -> u32 {
        let left = FURTHEST.saturating_sub(self.ends.get(&base).copied().unwrap_or_default());
        u32::try_from(left).unwrap_or(u32::MAX)
    }

    /// How far into packets the program reads at most; `None` if it reads nothing.
    pub(super) fn furthest(&self, program: &Program) -> Option<u64> {
        let wants = program.blocks.iter().flat_map(|b| &b.operations).filter_map(Operation::wants);
        let ends = wants.map(|(base, end)| base.map_or(0, |b| u64::from(self.greatest(b))) + end);
        ends.max().map(|end| end.min(FURTHEST))
    }
}
