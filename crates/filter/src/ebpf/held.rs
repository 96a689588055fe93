//! What the machine's registers hold, and for how long that is wanted.

use rustc_hash::{FxHashMap, FxHashSet};

use super::frame::Numbers;
use super::reach::Address;
use crate::program::{Operand, Operation, Program, Register};

/// What a machine register holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Key {
    /// A load in the packet's byte order.
    Raw(Register),
    /// A number.
    Number(Register),
    /// The packet's address at an offset: the number that the register of the program holds, not what is loaded into it.
    Pointer(Address),
    /// What a lookup works with, and nobody wants behind it.
    Working(usize),
}

impl Key {
    /// The register of the program that it is about.
    pub(super) fn register(self) -> Option<Register> {
        match self {
            Key::Raw(r) | Key::Number(r) | Key::Pointer(Address { base: r, .. }) => Some(r),
            Key::Working(_) => None,
        }
    }
}

/// The machine registers that hold values.
pub(super) const POOL: [u8; 6] = [0, 4, 6, 7, 8, 9];
/// The register of the address that was compared last.
pub(super) const EDGE: u8 = 5;
/// What the machine holds at a place.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Held {
    pub(super) registers: [Option<Key>; POOL.len()],
    /// Behind which address that in [`EDGE`] is, `None` being where the packet begins, and how far.
    pub(super) edge: Option<(Option<Address>, u64)>,
    /// How far behind an address the packet is known to reach.
    pub(super) reach: FxHashMap<Option<Address>, u64>,
    /// Numbers that stand on the stack, too.
    pub(super) stored: FxHashSet<Register>,
}

impl Held {
    pub(super) fn place(&self, key: Key) -> Option<usize> {
        self.registers.iter().position(|k| *k == Some(key))
    }

    pub(super) fn join(&mut self, other: &Held) {
        for (mine, theirs) in self.registers.iter_mut().zip(&other.registers) {
            if *mine != *theirs {
                *mine = None;
            }
        }
        self.stored.retain(|r| other.stored.contains(r));
        if self.edge != other.edge {
            self.edge = None;
        }
        self.reach.retain(|address, end| match other.reach.get(address) {
            Some(theirs) => {
                *end = (*end).min(*theirs);
                true
            }
            None => false,
        });
        let registers = self.registers;
        self.reach.retain(|address, _| address.is_none_or(|a| registers.contains(&Some(Key::Pointer(a)))));
    }
}

/// Numbers that several others are computed of and that a header's place goes into that was itself computed of a header: made anew
/// each time, they would cost twice as much with each header. Each with its place below the frame pointer.
pub(super) fn stored(
    definitions: &FxHashMap<Register, Operation>,
    reads: &FxHashMap<Register, usize>,
    places: Numbers,
) -> FxHashMap<Register, u32> {
    let mut depths: FxHashMap<Register, usize> = FxHashMap::default();
    let mut numbers: Vec<Register> = definitions.keys().copied().collect();
    numbers.sort_unstable();
    numbers.iter().for_each(|r| {
        depth(*r, definitions, &mut depths);
    });
    let is_shared = |r: &Register| reads.get(r).is_some_and(|n| *n > 1);
    numbers.retain(|r| matches!(definitions[r], Operation::Binary { .. }) && is_shared(r) && depths[r] > 1);
    (0..places.count()).zip(numbers).map(|(i, r)| (r, places.place(i))).collect()
}

/// How many headers a number is behind, each at a place that is computed of the one before.
fn depth(r: Register, definitions: &FxHashMap<Register, Operation>, known: &mut FxHashMap<Register, usize>) -> usize {
    if let Some(depth) = known.get(&r) {
        return *depth;
    }
    let Some(definition) = definitions.get(&r) else { return 0 };
    let mut most = 0;
    definition.reads(&mut |of| most = most.max(depth(of, definitions, known)));
    let own = most + usize::from(matches!(definition, Operation::Load { .. } | Operation::HeaderLength { .. }));
    known.insert(r, own);
    own
}

/// How many machine registers each number takes while it is computed (R. Sethi, J. D. Ullman, 1970): of two operands the one that takes
/// more comes first, from [`MANY`] on, so that a sum of any length takes few.
pub(super) fn needed(definitions: &FxHashMap<Register, Operation>) -> FxHashMap<Register, usize> {
    let mut all = FxHashMap::default();
    definitions.keys().for_each(|r| {
        needed_by(*r, definitions, &mut all);
    });
    all
}

/// A number that takes as many registers is computed before the operand beside it.
pub(super) const MANY: usize = 3;

fn needed_by(
    r: Register,
    definitions: &FxHashMap<Register, Operation>,
    known: &mut FxHashMap<Register, usize>,
) -> usize {
    if let Some(needed) = known.get(&r) {
        return *needed;
    }
    let mut of = |operand: &Operand| operand.register().map_or(0, |r| needed_by(r, definitions, known));
    let needed = match definitions.get(&r) {
        Some(Operation::Binary { a, b, .. } | Operation::IsGreater { a, b, .. }) => {
            let (a, b) = (of(a), of(b));
            if a > b && a >= MANY { a.max(b + 1) } else { b.max(a + 1) }
        }
        // The address is held while the field is read.
        Some(Operation::Load { base: Some(base), .. }) => of(&Operand::Register(*base)).max(2),
        Some(Operation::Negate { a, .. }) => of(&Operand::Register(*a)),
        _ => 1,
    };
    known.insert(r, needed);
    needed
}

/// Registers that are read in a block or behind it, their operands among them.
pub(super) fn liveness(program: &Program, definitions: &FxHashMap<Register, Operation>) -> Vec<FxHashSet<Register>> {
    let mut live: Vec<FxHashSet<Register>> = vec![FxHashSet::default(); program.blocks.len()];
    for (i, block) in program.blocks.iter().enumerate().rev() {
        let mut here: FxHashSet<Register> = FxHashSet::default();
        for next in block.end.successors() {
            here.extend(live[next.0].iter().copied());
        }
        let mut open: Vec<Register> = Vec::new();
        block.operations.iter().for_each(|o| o.reads(&mut |r| open.push(r)));
        block.end.reads(&mut |r| open.push(r));
        while let Some(r) = open.pop() {
            if here.insert(r)
                && let Some(definition) = definitions.get(&r)
            {
                definition.reads(&mut |r| open.push(r));
            }
        }
        live[i] = here;
    }
    live
}
