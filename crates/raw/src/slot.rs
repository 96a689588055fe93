//! One `struct bpf_insn`.

/// Opcode of the first slot of `ld_imm64`.
pub(crate) const LD_IMM64: u8 = 0x18;
/// Opcode of calls.
pub(crate) const CALL: u8 = 0x85;
/// Opcode of `exit`.
pub(crate) const EXIT: u8 = 0x95;

/// `src` of an `ld_imm64` that names a map by descriptor (`BPF_PSEUDO_MAP_FD`).
pub(crate) const MAP_FD: u8 = 1;
/// The same by the index in the loader's list (`BPF_PSEUDO_MAP_IDX`).
pub(crate) const MAP_IDX: u8 = 5;
/// `src` of an `ld_imm64` of a function's address (`BPF_PSEUDO_FUNC`).
pub(crate) const FUNC: u8 = 4;
/// `src` of a call of a subprogram (`BPF_PSEUDO_CALL`).
pub(crate) const SUBPROGRAM: u8 = 1;

/// The fields of an instruction, as `include/uapi/linux/bpf.h` has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Slot {
    pub code: u8,
    pub dst: u8,
    pub src: u8,
    pub off: i16,
    pub imm: i32,
}

impl Slot {
    pub fn parse(bytes: [u8; 8]) -> Slot {
        let [code, regs, o0, o1, imm @ ..] = bytes;
        let (off, imm) = (i16::from_le_bytes([o0, o1]), i32::from_le_bytes(imm));
        Slot { code, dst: regs & 0xf, src: regs >> 4, off, imm }
    }

    pub fn bytes(self) -> [u8; 8] {
        let [o0, o1] = self.off.to_le_bytes();
        let [i0, i1, i2, i3] = self.imm.to_le_bytes();
        [self.code, self.dst & 0xf | self.src << 4, o0, o1, i0, i1, i2, i3]
    }

    /// Slots that it takes.
    pub fn width(self) -> usize {
        if self.code == LD_IMM64 { 2 } else { 1 }
    }

    /// How far it jumps, counted from the next slot, if it jumps.
    pub fn jump(self) -> Option<i64> {
        match (self.code & 7, self.code & 0xf0) {
            (5 | 6, 0x80 | 0x90) => None,
            (6, 0x00) => Some(self.imm.into()),
            (5 | 6, _) => Some(self.off.into()),
            _ => None,
        }
    }
}

/// The first slot of each instruction.
pub(crate) fn starts(slots: &[[u8; 8]]) -> impl Iterator<Item = (usize, Slot)> + '_ {
    let mut next = 0;
    std::iter::from_fn(move || {
        let at = next;
        let slot = Slot::parse(*slots.get(at)?);
        next = at + slot.width();
        Some((at, slot))
    })
}
