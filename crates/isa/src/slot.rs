//! The bit layout of one 8-byte slot (`struct bpf_insn`), and the number tables of the instruction set.
//!
//! One idea: each table pairs an operand with its number ONCE, and the encoder reads it left to
//! right, the decoder right to left; so the two cannot disagree about a number.
//!
//! Slots are for code that must see fields as they are, valid or not: readers and writers of other formats, and relocation.
//! All other code takes instructions as values ([`crate::decode()`]).

use crate::{AluOp, AtomicOp, Cond, Endian, Imm64Kind, Size};

/// The fields of a slot, as `include/uapi/linux/bpf.h` has them (RFC 9669 §3).
///
/// ```
/// use bpf_isa::slot::{EXIT, Slot};
///
/// let bytes = [0x95, 0, 0, 0, 0, 0, 0, 0];
/// assert_eq!(Slot::from(bytes), Slot { code: EXIT, ..Slot::default() });
/// assert_eq!(<[u8; 8]>::from(Slot::from(bytes)), bytes);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slot {
    /// Opcode.
    pub code: u8,
    /// Number of the destination register, below 16.
    pub dst: u8,
    /// Number of the source register, or which kind of operand `imm` is, below 16.
    pub src: u8,
    /// Offset.
    pub off: i16,
    /// Immediate.
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

    /// How many slots the instruction occupies that begins with this one: 2 for `ld_imm64`, else 1.
    pub const fn slots(self) -> usize {
        if self.code == LD_IMM64 { 2 } else { 1 }
    }

    /// How far the instruction jumps, counted from the next slot, if it jumps.
    pub const fn jump(self) -> Option<i64> {
        match (self.code & 7, self.code & 0xf0) {
            (class::JMP | class::JMP32, op::CALL | op::EXIT) => None,
            (class::JMP32, op::JA) => Some(self.imm as i64),
            (class::JMP | class::JMP32, _) => Some(self.off as i64),
            _ => None,
        }
    }
}

impl From<[u8; 8]> for Slot {
    fn from(bytes: [u8; 8]) -> Slot {
        Slot::from_bits(u64::from_le_bytes(bytes))
    }
}

impl From<Slot> for [u8; 8] {
    fn from(slot: Slot) -> [u8; 8] {
        slot.bits().to_le_bytes()
    }
}

/// The first slot of each instruction, with its index.
pub fn starts(slots: &[[u8; 8]]) -> impl Iterator<Item = (usize, Slot)> + '_ {
    let mut next = 0;
    std::iter::from_fn(move || {
        let at = next;
        let slot = Slot::from(*slots.get(at)?);
        next = at + slot.slots();
        Some((at, slot))
    })
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
pub const LD_IMM64: u8 = class::LD | mode::IMM | 0x18;
/// Opcode of calls.
pub const CALL: u8 = class::JMP | op::CALL;
/// Opcode of `exit`.
pub const EXIT: u8 = class::JMP | op::EXIT;

/// `src` of an `ld_imm64` that names a map by descriptor (`BPF_PSEUDO_MAP_FD`).
pub const MAP_FD: u8 = 1;
/// `src` of an `ld_imm64` of the address of a map's value, by descriptor (`BPF_PSEUDO_MAP_VALUE`).
pub const MAP_VALUE: u8 = 2;
/// `src` of an `ld_imm64` of a kernel variable's address (`BPF_PSEUDO_BTF_ID`).
pub const BTF_ID: u8 = 3;
/// `src` of an `ld_imm64` of a function's address (`BPF_PSEUDO_FUNC`).
pub const FUNC: u8 = 4;
/// `src` of an `ld_imm64` that names a map by its index in the loader's list (`BPF_PSEUDO_MAP_IDX`).
pub const MAP_IDX: u8 = 5;
/// `src` of an `ld_imm64` of the address of a map's value, by index (`BPF_PSEUDO_MAP_IDX_VALUE`).
pub const MAP_IDX_VALUE: u8 = 6;

/// `src` of a call of a helper.
pub const HELPER: u8 = 0;
/// `src` of a call of a subprogram (`BPF_PSEUDO_CALL`).
pub const SUBPROGRAM: u8 = 1;
/// `src` of a call of a kernel function (`BPF_PSEUDO_KFUNC_CALL`).
pub const KFUNC: u8 = 2;

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
    (Imm64Kind::MapFd, MAP_FD),
    (Imm64Kind::MapValue, MAP_VALUE),
    (Imm64Kind::BtfId, BTF_ID),
    (Imm64Kind::Func, FUNC),
    (Imm64Kind::MapIdx, MAP_IDX),
    (Imm64Kind::MapIdxValue, MAP_IDX_VALUE),
];

/// The number of operand `key`, if the table has one.
pub(crate) fn number_of<K: PartialEq, N: Copy>(table: &[(K, N)], key: K) -> Option<N> {
    table.iter().find(|(k, _)| *k == key).map(|(_, n)| *n)
}

/// The operand numbered `number`, if the table has one.
pub(crate) fn operand_of<K: Copy, N: PartialEq>(table: &[(K, N)], number: N) -> Option<K> {
    table.iter().find(|(_, n)| *n == number).map(|(k, _)| *k)
}
