//! What the machine's registers hold, and for how long that is wanted.

use rustc_hash::{FxHashMap, FxHashSet};

use super::frame::Numbers;
use crate::program::{Operation, Program, Register};

/// What a machine register holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Key {
    /// A load in the packet's byte order.
    Raw(Register),
    /// A number.
    Number(Register),
    /// The packet's address at an offset: the number that the register of the program holds, not what is loaded into it.
    Pointer(Register),
    /// What a lookup works with, and nobody wants behind it.
    Working(usize),
}

impl Key {
    /// The register of the program that it is about.
    pub(super) fn register(self) -> Option<Register> {
        match self {
            Key::Raw(r) | Key::Number(r) | Key::Pointer(r) => Some(r),
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
    /// The base and distance of the address in [`EDGE`].
    pub(super) edge: Option<(Option<Register>, u64)>,
    /// How far behind a base the packet is known to reach.
    pub(super) reach: FxHashMap<Option<Register>, u64>,
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
        self.reach.retain(|base, end| match other.reach.get(base) {
            Some(theirs) => {
                *end = (*end).min(*theirs);
                true
            }
            None => false,
        });
        let registers = self.registers;
        self.reach.retain(|base, _| base.is_none_or(|b| registers.contains(&Some(Key::Pointer(b)))));
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
