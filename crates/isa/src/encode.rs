//! From instruction to bytes.
//!
//! One idea: every instruction is one [`Slot`] built from its operands and the number tables (plus,
//! for `ld_imm64`, a second slot holding the upper half). [`Insn`] can spell a few combinations no
//! opcode exists for, such as a sign-extending 8-byte load; those are the only errors.

use crate::slot::{self, Slot, class, mode, number_of, op};
use crate::{Call, Endian, Imm64Kind, Insn, Reg, Size, Src, Width};

/// The instruction has no encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no encoding for {insn:?}: {reason}")]
pub struct EncodeError {
    /// The instruction that cannot be encoded.
    pub insn: Insn,
    /// Which operand has no encoding.
    pub reason: &'static str,
}

/// Appends the 8 or 16 little-endian bytes of `insn` to `out`; on error `out` is unchanged.
pub fn encode(insn: &Insn, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let (first, second) = to_bits(insn).map_err(|reason| EncodeError { insn: *insn, reason })?;
    out.extend_from_slice(&first.to_le_bytes());
    if let Some(second) = second {
        out.extend_from_slice(&second.to_le_bytes());
    }
    Ok(())
}

/// The bytes of a sequence of instructions.
pub fn encode_all(insns: &[Insn]) -> Result<Vec<u8>, EncodeError> {
    let mut out = Vec::with_capacity(insns.len() * 8);
    for insn in insns {
        encode(insn, &mut out)?;
    }
    Ok(out)
}

/// The slots of an instruction, or why there are none.
pub(crate) fn to_bits(insn: &Insn) -> Result<(u64, Option<u64>), &'static str> {
    match *insn {
        Insn::Opaque(bits) => Ok((bits, None)),
        Insn::LoadImm64 { dst, kind, imm } => Ok(load_imm64(dst, kind, imm)),
        _ => to_slot(insn).map(|s| (s.bits(), None)),
    }
}

fn load_imm64(dst: Reg, kind: Imm64Kind, imm: u64) -> (u64, Option<u64>) {
    let first = Slot {
        code: slot::LD_IMM64,
        dst: num(dst),
        // The table is complete: 0 is never taken for a missing kind.
        src: number_of(&slot::IMM64_KINDS, kind).unwrap_or(0),
        imm: imm as i32,
        off: 0,
    };
    let second = Slot { imm: (imm >> 32) as i32, ..Slot::default() };
    (first.bits(), Some(second.bits()))
}

/// The single slot of any instruction but `ld_imm64` and opaque ones.
fn to_slot(insn: &Insn) -> Result<Slot, &'static str> {
    Ok(match *insn {
        Insn::Alu { op, width, dst, src } => {
            let (bits, off) = number_of(&slot::ALU_OPS, op).ok_or("unknown operation")?;
            Slot { off, ..operands(alu_class(width) | bits, dst, src) }
        }
        Insn::Mov { width, dst, src } => operands(alu_class(width) | op::MOV, dst, src),
        Insn::MovSx { width, from, dst, src } => {
            let off = movsx_off(width, from).ok_or("a sign-extending move needs a source narrower than its width")?;
            Slot { off, ..operands(alu_class(width) | op::MOV, dst, Src::Reg(src)) }
        }
        Insn::Neg { width, dst } => Slot { code: alu_class(width) | op::NEG, dst: num(dst), ..Slot::default() },
        Insn::Endian { kind, bits, dst } => endian(kind, bits, dst)?,
        Insn::AddrSpaceCast { dst, src, imm } => Slot {
            off: slot::OFF_ADDR_SPACE_CAST,
            imm: imm as i32,
            ..operands(class::ALU64 | op::MOV, dst, Src::Reg(src))
        },
        Insn::Load { sext: true, size: Size::DW, .. } => return Err("an 8-byte load cannot sign-extend"),
        Insn::Load { size, sext, dst, base, off } => {
            let mode = if sext { mode::MEMSX } else { mode::MEM };
            Slot { off, ..memory(class::LDX | mode, size, dst, base) }
        }
        Insn::Store { size, base, off, src: Src::Reg(src) } => {
            Slot { off, ..memory(class::STX | mode::MEM, size, base, src) }
        }
        Insn::Store { size, base, off, src: Src::Imm(imm) } => {
            Slot { off, imm, ..memory(class::ST | mode::MEM, size, base, Reg::R0) }
        }
        Insn::Atomic { size: Size::B | Size::H, .. } => return Err("atomics exist for 4 and 8 bytes only"),
        Insn::Atomic { op, size, base, off, src } => {
            let imm = number_of(&slot::ATOMICS, op).ok_or("unknown atomic operation")?;
            Slot { off, imm, ..memory(class::STX | mode::ATOMIC, size, base, src) }
        }
        Insn::LoadAcquire { size, dst, base, off } => {
            Slot { off, imm: slot::LOAD_ACQUIRE, ..memory(class::STX | mode::ATOMIC, size, dst, base) }
        }
        Insn::StoreRelease { size, base, off, src } => {
            Slot { off, imm: slot::STORE_RELEASE, ..memory(class::STX | mode::ATOMIC, size, base, src) }
        }
        Insn::LdAbs { size: Size::DW, .. } | Insn::LdInd { size: Size::DW, .. } => {
            return Err("packet loads exist up to 4 bytes only");
        }
        Insn::LdAbs { size, imm } => Slot { imm, ..memory(class::LD | mode::ABS, size, Reg::R0, Reg::R0) },
        Insn::LdInd { size, src, imm } => Slot { imm, ..memory(class::LD | mode::IND, size, Reg::R0, src) },
        Insn::Ja { off, long: true } => Slot { code: class::JMP32 | op::JA, imm: off, ..Slot::default() },
        Insn::Ja { off, long: false } => {
            let off = i16::try_from(off).map_err(|_| "the offset of goto has 16 bits (gotol has 32)")?;
            Slot { code: class::JMP | op::JA, off, ..Slot::default() }
        }
        Insn::Jcc { cond, width, dst, src, off } => {
            let bits = number_of(&slot::CONDS, cond).ok_or("unknown condition")?;
            Slot { off, ..operands(jmp_class(width) | bits, dst, src) }
        }
        Insn::MayGoto { off } => Slot { code: class::JMP | op::JCOND, off, ..Slot::default() },
        Insn::Call(call) => self::call(call),
        Insn::CallX { reg } => Slot { code: slot::CALL | slot::X, dst: num(reg), ..Slot::default() },
        Insn::Exit => Slot { code: slot::EXIT, ..Slot::default() },
        Insn::LoadImm64 { .. } | Insn::Opaque(_) => return Err("not a single slot with fields"),
    })
}

/// Register number as it stands in a slot.
fn num(r: Reg) -> u8 {
    r.index() as u8
}

fn alu_class(width: Width) -> u8 {
    match width {
        Width::W32 => class::ALU,
        Width::W64 => class::ALU64,
    }
}

fn jmp_class(width: Width) -> u8 {
    match width {
        Width::W32 => class::JMP32,
        Width::W64 => class::JMP,
    }
}

/// `off` of a sign-extending move: the bits extended from.
fn movsx_off(width: Width, from: Size) -> Option<i16> {
    (from.bits() < width.bits()).then_some(from.bits() as i16)
}

/// An ALU or jump slot: the second operand sets the source bit and fills `src` or `imm`.
fn operands(code: u8, dst: Reg, src: Src) -> Slot {
    let dst = num(dst);
    match src {
        Src::Reg(r) => Slot { code: code | slot::X, dst, src: num(r), ..Slot::default() },
        Src::Imm(imm) => Slot { code, dst, imm, ..Slot::default() },
    }
}

/// A load or store slot.
fn memory(code: u8, size: Size, dst: Reg, src: Reg) -> Slot {
    // The table is complete: 0 is never taken for a missing size.
    let size = number_of(&slot::SIZES, size).unwrap_or(0);
    Slot { code: code | size, dst: num(dst), src: num(src), ..Slot::default() }
}

fn endian(kind: Endian, bits: u8, dst: Reg) -> Result<Slot, &'static str> {
    let class = number_of(&slot::ENDIANS, kind).ok_or("unknown byte-order operation")?;
    if !matches!(bits, 16 | 32 | 64) {
        return Err("byte-order operations exist for 16, 32 and 64 bits only");
    }
    Ok(Slot { code: class | op::END, dst: num(dst), imm: i32::from(bits), ..Slot::default() })
}

fn call(call: Call) -> Slot {
    let (src, off, imm) = match call {
        Call::Helper(id) => (slot::HELPER, 0, id),
        Call::Local(rel) => (slot::SUBPROGRAM, 0, rel),
        Call::Kfunc { btf_id, off } => (slot::KFUNC, off, btf_id),
    };
    Slot { code: slot::CALL, src, off, imm, dst: 0 }
}
