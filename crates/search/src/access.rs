//! The parts of a memory access: base, offset, width, other operands.
//!
//! An instruction that accesses no memory has no base and is 0 bytes wide.

use bpf_isa::{Insn, Reg, RegSet, Src};

/// Base and offset of an access.
pub(crate) fn memory(i: &Insn) -> Option<(Reg, i16)> {
    match *i {
        Insn::Load { base, off, .. }
        | Insn::Store { base, off, .. }
        | Insn::Atomic { base, off, .. }
        | Insn::LoadAcquire { base, off, .. }
        | Insn::StoreRelease { base, off, .. } => Some((base, off)),
        _ => None,
    }
}

/// Registers of an access other than its base as base.
pub(crate) fn other_operands(i: &Insn) -> RegSet {
    let source = match *i {
        Insn::Store { src: Src::Reg(r), .. } => RegSet::of(r),
        Insn::Atomic { src, .. } | Insn::StoreRelease { src, .. } => RegSet::of(src),
        _ => RegSet::EMPTY,
    };
    source.union(i.defs())
}

/// The access with another offset.
pub(crate) fn with_offset(i: &Insn, to: i16) -> Insn {
    let mut i = *i;
    match &mut i {
        Insn::Load { off, .. }
        | Insn::Store { off, .. }
        | Insn::Atomic { off, .. }
        | Insn::LoadAcquire { off, .. }
        | Insn::StoreRelease { off, .. } => *off = to,
        _ => {}
    }
    i
}

/// Width of an access in bytes.
pub(crate) fn access_size(i: &Insn) -> u32 {
    match *i {
        Insn::Load { size, .. }
        | Insn::Store { size, .. }
        | Insn::Atomic { size, .. }
        | Insn::LoadAcquire { size, .. }
        | Insn::StoreRelease { size, .. } => size.bytes(),
        _ => 0,
    }
}
