//! The bit layout of one 8-byte slot, and the number tables of the instruction set.
//!
//! One idea: each table pairs an operand with its number ONCE, and the encoder reads it left to
//! right, the decoder right to left; so the two cannot disagree about a number.

use crate::{AluOp, AtomicOp, Cond, Endian, Imm64Kind, Size};

/// The fields of a slot, as RFC 9669 §3 names them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Slot {
    pub code: u8,
    pub dst: u8,
    pub src: u8,
    pub off: i16,
    pub imm: i32,
}

impl Slot {
    /// Splits a little-endian slot.
    pub const fn from_bits(bits: u64) -> Slot {
        Slot {
            code: bits as u8,
            dst: (bits >> 8) as u8 & 0xf,
            src: (bits >> 12) as u8 & 0xf,
            off: (bits >> 16) as i16,
            imm: (bits >> 32) as i32,
        }
    }

    /// The inverse of [`Slot::from_bits`]; `dst` and `src` must be below 16.
    pub const fn bits(self) -> u64 {
        self.code as u64
            | (self.dst as u64 & 0xf) << 8
            | (self.src as u64 & 0xf) << 12
            | (self.off as u16 as u64) << 16
            | (self.imm as u32 as u64) << 32
    }
}

/// Instruction classes: the low three bits of the opcode.
pub(crate) mod class {
    pub const LD: u8 = 0;
    pub const LDX: u8 = 1;
    pub const ST: u8 = 2;
    pub const STX: u8 = 3;
    pub const ALU: u8 = 4;
    pub const JMP: u8 = 5;
    pub const JMP32: u8 = 6;
    pub const ALU64: u8 = 7;
}

/// Modes of the load and store classes: the high three bits of the opcode.
pub(crate) mod mode {
    pub const IMM: u8 = 0x00;
    pub const ABS: u8 = 0x20;
    pub const IND: u8 = 0x40;
    pub const MEM: u8 = 0x60;
    pub const MEMSX: u8 = 0x80;
    pub const ATOMIC: u8 = 0xc0;
}

/// Operations outside the tables: the high four bits of an ALU or jump opcode.
pub(crate) mod op {
    pub const NEG: u8 = 0x80;
    pub const MOV: u8 = 0xb0;
    pub const END: u8 = 0xd0;
    pub const JA: u8 = 0x00;
    pub const CALL: u8 = 0x80;
    pub const EXIT: u8 = 0x90;
    pub const JCOND: u8 = 0xe0;
}

/// The bit of ALU and jump opcodes that chooses a register as second operand.
pub(crate) const X: u8 = 0x08;
/// Opcode of the first slot of `ld_imm64`.
pub(crate) const LD_IMM64: u8 = class::LD | mode::IMM | 0x18;
/// `off` of the ALU64 register move that is `addr_space_cast`.
pub(crate) const OFF_ADDR_SPACE_CAST: i16 = 1;
/// `imm` of the atomic that is a load-acquire.
pub(crate) const LOAD_ACQUIRE: i32 = 0x100;
/// `imm` of the atomic that is a store-release.
pub(crate) const STORE_RELEASE: i32 = 0x110;

/// Operation bits and `off` of each ALU operation.
pub(crate) const ALU_OPS: [(AluOp, (u8, i16)); 13] = [
    (AluOp::Add, (0x00, 0)),
    (AluOp::Sub, (0x10, 0)),
    (AluOp::Mul, (0x20, 0)),
    (AluOp::Div, (0x30, 0)),
    (AluOp::SDiv, (0x30, 1)),
    (AluOp::Or, (0x40, 0)),
    (AluOp::And, (0x50, 0)),
    (AluOp::Lsh, (0x60, 0)),
    (AluOp::Rsh, (0x70, 0)),
    (AluOp::Mod, (0x90, 0)),
    (AluOp::SMod, (0x90, 1)),
    (AluOp::Xor, (0xa0, 0)),
    (AluOp::Arsh, (0xc0, 0)),
];

/// Operation bits of each condition.
pub(crate) const CONDS: [(Cond, u8); 11] = [
    (Cond::Eq, 0x10),
    (Cond::Gt, 0x20),
    (Cond::Ge, 0x30),
    (Cond::Set, 0x40),
    (Cond::Ne, 0x50),
    (Cond::Sgt, 0x60),
    (Cond::Sge, 0x70),
    (Cond::Lt, 0xa0),
    (Cond::Le, 0xb0),
    (Cond::Slt, 0xc0),
    (Cond::Sle, 0xd0),
];

/// Size bits of a load or store opcode.
pub(crate) const SIZES: [(Size, u8); 4] = [(Size::W, 0x00), (Size::H, 0x08), (Size::B, 0x10), (Size::DW, 0x18)];

/// Class and source bit of each byte-order operation.
pub(crate) const ENDIANS: [(Endian, u8); 3] =
    [(Endian::Le, class::ALU), (Endian::Be, class::ALU | X), (Endian::Swap, class::ALU64)];

/// `imm` of each atomic read-modify-write.
pub(crate) const ATOMICS: [(AtomicOp, i32); 10] = [
    (AtomicOp::Add { fetch: false }, 0x00),
    (AtomicOp::Add { fetch: true }, 0x01),
    (AtomicOp::Or { fetch: false }, 0x40),
    (AtomicOp::Or { fetch: true }, 0x41),
    (AtomicOp::And { fetch: false }, 0x50),
    (AtomicOp::And { fetch: true }, 0x51),
    (AtomicOp::Xor { fetch: false }, 0xa0),
    (AtomicOp::Xor { fetch: true }, 0xa1),
    (AtomicOp::Xchg, 0xe1),
    (AtomicOp::CmpXchg, 0xf1),
];

/// `src` of each kind of `ld_imm64`.
pub(crate) const IMM64_KINDS: [(Imm64Kind, u8); 7] = [
    (Imm64Kind::Const, 0),
    (Imm64Kind::MapFd, 1),
    (Imm64Kind::MapValue, 2),
    (Imm64Kind::BtfId, 3),
    (Imm64Kind::Func, 4),
    (Imm64Kind::MapIdx, 5),
    (Imm64Kind::MapIdxValue, 6),
];

/// The number of operand `key`, if the table has one.
pub(crate) fn number_of<K: PartialEq, N: Copy>(table: &[(K, N)], key: K) -> Option<N> {
    table.iter().find(|(k, _)| *k == key).map(|(_, n)| *n)
}

/// The operand numbered `number`, if the table has one.
pub(crate) fn operand_of<K: Copy, N: PartialEq>(table: &[(K, N)], number: N) -> Option<K> {
    table.iter().find(|(_, n)| *n == number).map(|(k, _)| *k)
}
