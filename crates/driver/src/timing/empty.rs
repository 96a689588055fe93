//! Programs that do nothing, whose time is taken off.

use bpf_isa::{Insn, Reg, Src, Width, encode_all};
use bpf_kernel::{ProgramType, RawOptions, RawProgram};

/// A program of a type that does nothing; `None` if the kernel takes no such.
pub(super) fn empty(kind: ProgramType) -> Option<RawProgram> {
    raw(kind, &[verdict(kind), Insn::Exit])
}

/// What an empty program of a type returns.
pub(super) fn verdict(kind: ProgramType) -> Insn {
    /// `XDP_PASS`: 0 would be an error of the program.
    const PASS: i32 = 2;
    let returned = if kind == ProgramType::XDP { PASS } else { 0 };
    Insn::Mov { width: Width::W64, dst: Reg::R0, src: Src::Imm(returned) }
}

/// A program of these instructions; `None` if the kernel does not take it.
pub(super) fn raw(kind: ProgramType, insns: &[Insn]) -> Option<RawProgram> {
    RawProgram::load(kind, &encode_all(insns).ok()?, &RawOptions::default()).ok()
}
