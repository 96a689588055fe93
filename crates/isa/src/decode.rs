//! From bytes to instructions.
//!
//! One idea: the encoder is the judge. The decoder only *guesses* the instruction from the fields
//! that select it, and the guess stands if it encodes back to the very same bits; otherwise the slot
//! is [`Insn::Opaque`]. No list of reserved fields can then be incomplete, and decoding is exactly
//! invertible on every input.

use crate::encode::to_bits;
use crate::slot::{self, Slot, class, mode, op, operand_of};
use crate::{Call, Insn, Reg, Size, Src, Width};

/// The bytes are not a whole number of slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than one slot.
    #[error("an instruction needs 8 bytes, got {0}")]
    Truncated(usize),
    /// The length of the code is not a multiple of 8.
    #[error("the code is {0} bytes long, which is not a multiple of 8")]
    Length(usize),
}

/// The first instruction of `bytes` and the number of slots it occupies (2 for `ld_imm64`).
///
/// What has no exact reading becomes [`Insn::Opaque`] of one slot, so that
/// `encode(decode(bytes)) == bytes` always.
pub fn decode(bytes: &[u8]) -> Result<(Insn, usize), DecodeError> {
    let first = slot_at(bytes, 0).ok_or(DecodeError::Truncated(bytes.len()))?;
    let insn = exact(first, slot_at(bytes, 1)).unwrap_or(Insn::Opaque(first));
    Ok((insn, insn.slots()))
}

/// Every instruction of `bytes` with the slot it starts at.
pub fn decode_all(bytes: &[u8]) -> Result<Vec<(usize, Insn)>, DecodeError> {
    if !bytes.len().is_multiple_of(8) {
        return Err(DecodeError::Length(bytes.len()));
    }
    let mut insns = Vec::with_capacity(bytes.len() / 8);
    let mut slot = 0;
    while let Some(rest) = bytes.get(slot * 8..).filter(|r| !r.is_empty()) {
        let (insn, slots) = decode(rest)?;
        insns.push((slot, insn));
        slot += slots;
    }
    Ok(insns)
}

fn slot_at(bytes: &[u8], index: usize) -> Option<u64> {
    let bytes = bytes.get(index * 8..index * 8 + 8)?;
    bytes.try_into().ok().map(u64::from_le_bytes)
}

/// The instruction that encodes to exactly these bits.
fn exact(first: u64, second: Option<u64>) -> Option<Insn> {
    let s = Slot::from_bits(first);
    let insn = if s.code == slot::LD_IMM64 { load_imm64(s, second?) } else { guess(s) }?;
    let (f, wanted) = to_bits(&insn).ok()?;
    let same = f == first && (wanted.is_none() || wanted == second);
    same.then_some(insn)
}

fn load_imm64(first: Slot, second: u64) -> Option<Insn> {
    Some(Insn::LoadImm64 {
        dst: Reg::new(first.dst)?,
        kind: operand_of(&slot::IMM64_KINDS, first.src)?,
        imm: u64::from(first.imm as u32) | second >> 32 << 32,
    })
}

/// The instruction the selecting fields suggest; fields that must be zero are not looked at.
fn guess(s: Slot) -> Option<Insn> {
    let dst = Reg::new(s.dst)?;
    let src = Reg::new(s.src)?;
    match s.code & 7 {
        class::LD => packet_load(s, src),
        class::LDX => load(s, dst, src),
        class::ST => Some(Insn::Store { size: size(s)?, base: dst, off: s.off, src: Src::Imm(s.imm) }),
        class::STX if s.code & 0xe0 == mode::ATOMIC => atomic(s, dst, src),
        class::STX => Some(Insn::Store { size: size(s)?, base: dst, off: s.off, src: Src::Reg(src) }),
        class::ALU => alu(s, Width::W32, dst, src),
        class::ALU64 => alu(s, Width::W64, dst, src),
        class::JMP => jump(s, Width::W64, dst, src),
        _ => jump(s, Width::W32, dst, src),
    }
}

fn size(s: Slot) -> Option<Size> {
    operand_of(&slot::SIZES, s.code & 0x18)
}

/// Second operand of an ALU or jump slot.
fn second(s: Slot, src: Reg) -> Src {
    if s.code & slot::X != 0 { Src::Reg(src) } else { Src::Imm(s.imm) }
}

fn packet_load(s: Slot, src: Reg) -> Option<Insn> {
    let (size, imm) = (size(s)?, s.imm);
    match s.code & 0xe0 {
        mode::ABS => Some(Insn::LdAbs { size, imm }),
        mode::IND => Some(Insn::LdInd { size, src, imm }),
        _ => None,
    }
}

fn load(s: Slot, dst: Reg, base: Reg) -> Option<Insn> {
    let sext = s.code & 0xe0 == mode::MEMSX;
    Some(Insn::Load { size: size(s)?, sext, dst, base, off: s.off })
}

fn atomic(s: Slot, dst: Reg, src: Reg) -> Option<Insn> {
    let (size, off) = (size(s)?, s.off);
    Some(match s.imm {
        slot::LOAD_ACQUIRE => Insn::LoadAcquire { size, dst, base: src, off },
        slot::STORE_RELEASE => Insn::StoreRelease { size, base: dst, off, src },
        imm => Insn::Atomic { op: operand_of(&slot::ATOMICS, imm)?, size, base: dst, off, src },
    })
}

fn alu(s: Slot, width: Width, dst: Reg, src: Reg) -> Option<Insn> {
    match s.code & 0xf0 {
        op::MOV => mov(s, width, dst, src),
        op::NEG => Some(Insn::Neg { width, dst }),
        op::END => {
            let kind = operand_of(&slot::ENDIANS, s.code & 0x0f)?;
            Some(Insn::Endian { kind, bits: u8::try_from(s.imm).ok()?, dst })
        }
        bits => {
            let op = operand_of(&slot::ALU_OPS, (bits, s.off))?;
            Some(Insn::Alu { op, width, dst, src: second(s, src) })
        }
    }
}

fn mov(s: Slot, width: Width, dst: Reg, src: Reg) -> Option<Insn> {
    match s.off {
        0 => Some(Insn::Mov { width, dst, src: second(s, src) }),
        slot::OFF_ADDR_SPACE_CAST => Some(Insn::AddrSpaceCast { dst, src, imm: s.imm as u32 }),
        8 | 16 | 32 => Some(Insn::MovSx { width, from: Size::from_bytes(s.off as u32 / 8)?, dst, src }),
        _ => None,
    }
}

fn jump(s: Slot, width: Width, dst: Reg, src: Reg) -> Option<Insn> {
    match (s.code & 0xf0, width) {
        (op::JA, Width::W32) => Some(Insn::Ja { off: s.imm, long: true }),
        (op::JA, Width::W64) => Some(Insn::Ja { off: i32::from(s.off), long: false }),
        (op::CALL, _) if s.code & slot::X != 0 => Some(Insn::CallX { reg: dst }),
        (op::CALL, _) => call(s).map(Insn::Call),
        (op::EXIT, _) => Some(Insn::Exit),
        (op::JCOND, _) => Some(Insn::MayGoto { off: s.off }),
        (bits, _) => {
            let cond = operand_of(&slot::CONDS, bits)?;
            Some(Insn::Jcc { cond, width, dst, src: second(s, src), off: s.off })
        }
    }
}

fn call(s: Slot) -> Option<Call> {
    match s.src {
        slot::HELPER => Some(Call::Helper(s.imm)),
        slot::SUBPROGRAM => Some(Call::Local(s.imm)),
        slot::KFUNC => Some(Call::Kfunc { btf_id: s.imm, off: s.off }),
        _ => None,
    }
}
