//! Which context accesses this kernel's verifier takes, found out by loading programs of a few instructions.

use bpf_kernel::{RawOptions, RawProgram};

use crate::kinds::Kind;

/// An access that the verifier allows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Field {
    /// Offset into the context.
    pub offset: u32,
    /// Bytes of the access.
    pub width: u32,
    /// The load gives a pointer.
    pub pointer: bool,
}

/// Contexts end before this.
pub const LONGEST: u32 = 256;

/// Loads these slots as a program of this kind.
pub fn accepts(kind: &Kind, slots: &[u64]) -> bool {
    let code: Vec<u8> = slots.iter().flat_map(|s| s.to_le_bytes()).collect();
    RawProgram::load(kind.program, &code, &options(kind)).is_ok()
}

/// How programs of this kind are loaded.
pub fn options(kind: &Kind) -> RawOptions {
    RawOptions { expected_attach_type: kind.attach, flags: kind.flags, ..RawOptions::default() }
}

/// `r0 = 0`
pub const ZERO: u64 = 0xb7;
/// `exit`
pub const EXIT: u64 = 0x95;

/// `r2 = *(width *)(r1 + offset)`
pub fn load(offset: u32, width: u32) -> u64 {
    let opcode = match width {
        1 => 0x71,
        2 => 0x69,
        4 => 0x61,
        _ => 0x79,
    };
    opcode | 2 << 8 | 1 << 12 | u64::from(offset) << 16
}

/// `*(width *)(r1 + offset) = r2`
pub fn store(offset: u32, width: u32) -> u64 {
    let opcode = match width {
        1 => 0x73,
        2 => 0x6b,
        4 => 0x63,
        _ => 0x7b,
    };
    opcode | 1 << 8 | 2 << 12 | u64::from(offset) << 16
}

/// `r2 *= 3`: refused for every pointer.
const TRIPLE: u64 = 0x27 | 2 << 8 | 3 << 32;

/// What a load of this width there gives, if the verifier allows it.
pub fn loads(kind: &Kind, offset: u32, width: u32) -> Option<Field> {
    if !accepts(kind, &[load(offset, width), ZERO, EXIT]) {
        return None;
    }
    let pointer = width >= 4 && !accepts(kind, &[load(offset, width), TRIPLE, ZERO, EXIT]);
    Some(Field { offset, width, pointer })
}

/// Does the verifier allow the sign-extending form (`BPF_MEMSX`) of a load that it allows?
pub fn loads_signed(kind: &Kind, f: Field) -> bool {
    // BPF_MEM is 0x60, BPF_MEMSX 0x80.
    f.width < 8 && accepts(kind, &[load(f.offset, f.width) + 0x20, ZERO, EXIT])
}

/// Does the verifier allow a store of an arbitrary number there?
pub fn stores(kind: &Kind, offset: u32, width: u32) -> bool {
    // r2 = 0; *(r1 + offset) = r2
    accepts(kind, &[0xb7 | 2 << 8, store(offset, width), ZERO, EXIT])
}

/// The context in as few loads as possible: four bytes where that is allowed, else eight; eight for plain memory.
pub fn whole(kind: &Kind) -> Vec<Field> {
    let plain = kind.context_bytes as u32;
    let end = if plain > 0 { plain } else { LONGEST };
    let mut found = Vec::new();
    let mut at = 0;
    while at < end {
        let word = loads(kind, at, 4).filter(|_| kind.is_skb() || plain == 0 || kind.name == "sk_lookup");
        let field = word.or_else(|| if at % 8 == 0 { loads(kind, at, 8) } else { None });
        found.extend(field);
        at += field.map_or(4, |f| f.width);
    }
    found
}
