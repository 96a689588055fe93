//! How long instructions take, as an estimate: the one table that everything which weighs code against code goes by.

use crate::{AluOp, Insn};

impl Insn {
    /// Estimated time in tenths of a nanosecond on a current x86-64 core, with loads that hit the first cache. What a JIT
    /// makes of the instruction counts: a byte swap of 16 bits is a rotation and an extension, a division saves two
    /// registers. What a call does is not counted.
    pub const fn latency(&self) -> u32 {
        match self {
            Insn::Alu { op: AluOp::Mul, .. } => 10,
            Insn::Alu { op: AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod, .. } => 80,
            Insn::Load { .. } | Insn::LoadAcquire { .. } => 13,
            Insn::Store { .. } | Insn::StoreRelease { .. } => 6,
            Insn::Atomic { .. } => 55,
            Insn::Endian { bits: 16, .. } => 6,
            Insn::Call(_) | Insn::CallX { .. } | Insn::LdAbs { .. } | Insn::LdInd { .. } => 60,
            _ => 3,
        }
    }
}
