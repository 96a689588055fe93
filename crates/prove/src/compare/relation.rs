//! How the two sides of a proof may be related at a point: what the new one holds in other places, or knows besides.

use bpf_facts::StackSet;
use bpf_isa::Reg;

use crate::function::expression::ExpressionId;

/// How the conditions of two terminators relate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// No condition, or always the same truth.
    Same,
    /// Always the opposite.
    Negated,
    /// Each is constant here; a `goto` counts as true.
    Constant {
        /// Truth on the old side.
        old: bool,
        /// Truth on the new side.
        new: bool,
    },
    /// None of these, as far as could be shown.
    Unrelated,
}

/// A place of the new side that need not hold what the old side has in the same place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Location {
    /// A register.
    Reg(Reg),
    /// A byte of the frame.
    Byte(i64),
}

/// What such a place holds instead.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Origin {
    /// A number.
    Const(u64),
    /// The frame pointer plus this.
    Frame(i64),
    /// What the old side has in this register.
    Old(Reg),
    /// What this expression would give, were the old side to carry it out.
    Computed(ExpressionId),
}

/// The places in which the two sides differ, and how.
pub type Relocations = Vec<(Location, Origin)>;

/// Pairs of registers that hold the same on the old side. A new side that knows may use one for the other.
pub type Twins = Vec<(Reg, Reg)>;

/// A register and a place in the frame, by its offset and its bytes, that hold the same on the old side: the lower bytes of
/// the register.
pub type Spill = (Reg, i64, u32);

/// Whether any of the bytes from an offset on is among these.
pub fn is_read(off: i64, n: u32, bytes: &StackSet) -> bool {
    (off..off + i64::from(n)).any(|at| bytes.contains(at))
}

/// What is known at a point besides that both sides hold the same in the places that the new one may still use.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Known {
    /// Where the new side holds something else than the old one, and what.
    pub moved: Relocations,
    /// What the old side holds twice in registers.
    pub twins: Twins,
    /// What it holds in a register and in its frame.
    pub spills: Vec<Spill>,
    /// How long the new side has found the packet to be, where the old side has yet to ask for as much: what the old side
    /// holds in a register, or nothing, and so many bytes more.
    pub ahead: Option<(Option<Reg>, i64)>,
}

impl Known {
    /// Without what the old side holds twice.
    pub fn plain(&self) -> Known {
        Known { moved: self.moved.clone(), ahead: self.ahead, ..Known::default() }
    }

    /// Whether the old side holds nothing twice, as far as is known.
    pub fn is_plain(&self) -> bool {
        self.twins.is_empty() && self.spills.is_empty()
    }
}
