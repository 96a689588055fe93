//! What is to be improved, and who says whether something is an improvement.

use std::time::Instant;

use bpf_facts::{Env, Live, State};
use bpf_isa::{Goal, Insn, RegSet};
use bpf_program::{Op, ProgKind, Symbol};
use bpf_prove::superblock::is_side_exit;

use crate::superblock::Exits;

/// A straight stretch of one block with what is known around it, or a superblock of several. It has no
/// calls, and no jumps but the side exits of its superblock.
#[derive(Clone, Copy)]
pub struct Window<'a> {
    /// Kind of the function: it decides what context fields are.
    pub kind: ProgKind,
    /// Maps and callees.
    pub env: &'a Env<'a>,
    /// Facts before its first operation.
    pub before: &'a State,
    /// What stands there.
    pub old: &'a [Op],
    /// What is read afterwards: registers, and bytes of the frame. All other memory counts always. Of
    /// a superblock: what is read after some exit.
    pub live: &'a Live,
    /// How it is left, if it runs through several blocks.
    pub superblock: Option<&'a Exits>,
    /// Highest cpu level of new instructions, 1 … 4.
    pub cpu: u8,
    /// What code is to have less of.
    pub goal: Goal,
    /// When to give up.
    pub deadline: Option<Instant>,
}

impl Window<'_> {
    /// Whether it holds nothing but what windows may hold.
    pub fn is_plain(&self) -> bool {
        let of_region = |i: &Insn| self.superblock.is_some() && (is_side_exit(i) || *i == NOP);
        self.old.iter().all(|o| plain(&o.insn) || of_region(&o.insn))
    }

    /// Whether it accesses memory and may have the address of a value in which the kernel manages fields.
    pub(crate) fn knows_managed_fields(&self) -> bool {
        let managed = |region: &bpf_facts::Region| match region {
            bpf_facts::Region::MapValue { map } => self.env.map(*map).is_some_and(|m| !m.managed.is_empty()),
            bpf_facts::Region::AnyMapValue => self.env.maps.iter().any(|m| !m.managed.is_empty()),
            bpf_facts::Region::Data { section } => self.has_managed_fields(section),
            _ => false,
        };
        let accesses = self.old.iter().any(|o| o.insn.memory_operand().is_some());
        let read = self.old.iter().fold(RegSet::EMPTY, |read, o| read.union(o.insn.uses()));
        let in_registers = || read.iter().any(|r| self.before.reg(r).region().is_some_and(managed));
        let in_frame = || self.before.stack_values().any(|(_, v)| v.region().is_some_and(managed));
        let named = || {
            self.old.iter().any(|o| match o.link.as_ref().map(|l| &l.symbol) {
                Some(Symbol::Data { section, .. }) => self.has_managed_fields(section),
                _ => false,
            })
        };
        accesses && (in_registers() || in_frame() || named())
    }

    fn has_managed_fields(&self, section: &str) -> bool {
        self.env.sections.iter().any(|s| s.name == section && !s.managed.is_empty())
    }
}

/// No operation at all: programs of the chain have a fixed length.
pub const NOP: Insn = Insn::Ja { off: 0, long: false };

/// Whether windows may hold it: it is no call, no jump, and nothing unknown.
pub fn plain(i: &Insn) -> bool {
    !matches!(
        i,
        Insn::Call(_)
            | Insn::CallX { .. }
            | Insn::LdAbs { .. }
            | Insn::LdInd { .. }
            | Insn::Opaque(_)
            | Insn::Ja { .. }
            | Insn::Jcc { .. }
            | Insn::MayGoto { .. }
            | Insn::Exit
    )
}

/// What a window costs; less is better, compared field by field in the order of the goal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Cost {
    /// Slots for the size goal, estimated picoseconds for the latency goal.
    pub first: u32,
    /// The other one.
    pub second: u32,
}

/// What the judge says of a replacement.
pub enum Answer {
    /// Proven the same. The judge has taken note; the searcher need not prove anything.
    Equal,
    /// Not the same; where the prover gave an input that shows it, the formula with its assignment.
    Different(Option<Box<bpf_prove::Difference>>),
    /// Not decided in time, or something without a model.
    Unknown,
}

/// Says whether `new` may take the place of a window.
pub trait Judge {
    /// Asks the prover (or its memory).
    fn judge(&mut self, new: &[Op]) -> Answer;
}

impl<F: FnMut(&[Op]) -> Answer> Judge for F {
    fn judge(&mut self, new: &[Op]) -> Answer {
        self(new)
    }
}

/// A replacement that was called equal, and costs less.
#[derive(Clone, Debug)]
pub struct Found {
    /// The code.
    pub with: Vec<Op>,
    /// Its cost.
    pub cost: Cost,
    /// Which searcher found it.
    pub by: &'static str,
}
