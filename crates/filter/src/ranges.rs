//! What numbers the registers of a program may hold, whatever the packet, known without running it.

use rustc_hash::FxHashMap;

use crate::language::Binary;
use crate::program::{Operand, Operation, Program, Register};
use crate::range::Range;
use crate::value::Ancillary;

/// What numbers registers may hold.
#[derive(Default, Debug)]
pub(crate) struct Ranges {
    /// Those that may hold any are not there.
    ranges: FxHashMap<Register, Range>,
    definitions: FxHashMap<Register, Operation>,
}

impl Ranges {
    pub(crate) fn of(program: &Program) -> Ranges {
        let mut all = Ranges::default();
        for operation in program.blocks.iter().flat_map(|b| &b.operations) {
            let Some(to) = operation.writes() else { continue };
            // One that is computed in several blocks is the same everywhere, but for what is computed of a variable: blocks are in
            // an order, so that what was written before is known.
            let range = all.result(operation);
            all.ranges.entry(to).and_modify(|known| *known = known.hull(range)).or_insert(range);
            all.definitions.insert(to, operation.clone());
        }
        all
    }

    /// What numbers a register may hold.
    pub(crate) fn range(&self, r: Register) -> Range {
        self.ranges.get(&r).copied().unwrap_or(Range::ANY)
    }

    /// The number that a register holds, if it is a constant.
    pub(crate) fn constant(&self, r: Register) -> Option<u32> {
        match self.definitions.get(&r) {
            Some(Operation::Constant { n, .. }) => Some(*n),
            _ => None,
        }
    }

    /// What numbers an operand may be.
    pub(crate) fn operand(&self, operand: Operand) -> Range {
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
}
