//! Decoding and encoding are inverse to each other, on everything.

use bpf_isa::*;

use crate::common::{Random, variety};

/// Bits of a slot from its fields.
fn slot(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> u64 {
    u64::from_le_bytes([
        code,
        dst | src << 4,
        off.to_le_bytes()[0],
        off.to_le_bytes()[1],
        imm.to_le_bytes()[0],
        imm.to_le_bytes()[1],
        imm.to_le_bytes()[2],
        imm.to_le_bytes()[3],
    ])
}

fn decode_one(slots: &[u64]) -> (Insn, usize) {
    let bytes: Vec<u8> = slots.iter().flat_map(|s| s.to_le_bytes()).collect();
    decode(&bytes).unwrap()
}

/// Decodes, checks that encoding gives the same bytes, and returns the instruction.
fn round_trip(bytes: &[u8], scratch: &mut Vec<u8>) -> Insn {
    let (insn, slots) = decode(bytes).unwrap();
    scratch.clear();
    encode(&insn, scratch).unwrap();
    assert_eq!(scratch[..], bytes[..slots * 8], "{insn:?}");
    assert_eq!(slots, insn.slots());
    insn
}

#[test]
fn every_opcode_with_many_operands_round_trips() {
    let regs = [(0, 0), (1, 2), (10, 10), (3, 0), (0, 6), (0, 1), (11, 0), (0, 11), (15, 15), (10, 7)];
    let offs = [0, 1, -1, 7, 8, 16, 32, 64, i16::MIN, i16::MAX];
    let imms = [
        0,
        1,
        -1,
        8,
        16,
        32,
        64,
        0x40,
        0x41,
        0x50,
        0x51,
        0xa0,
        0xa1,
        0xe0,
        0xe1,
        0xf0,
        0xf1,
        0x100,
        0x101,
        0x110,
        272 + 256,
        256 + 16,
        i32::MIN,
        i32::MAX,
    ];
    let seconds = [0, 0xffff_ffff_0000_0000, 1, 0x100, 0x1000, 0x10000];
    let mut out = Vec::new();
    for code in 0..=255 {
        for (dst, src) in regs {
            for (off, imm) in offs.iter().flat_map(|o| imms.iter().map(move |i| (*o, *i))) {
                let first = slot(code, dst, src, off, imm);
                for second in &seconds[..if code == 0x18 { 6 } else { 1 }] {
                    let bytes = [first.to_le_bytes(), u64::to_le_bytes(*second)].concat();
                    round_trip(&bytes, &mut out);
                    round_trip(&bytes[..8], &mut out);
                }
            }
        }
    }
}

#[test]
fn random_bits_round_trip() {
    let mut random = Random::new(1);
    let mut out = Vec::new();
    for i in 0..1_000_000u64 {
        // Half of the samples are sparse, to be legal more often.
        let mask = if i % 2 == 0 { u64::MAX } else { random.next() & random.next() | 0xff };
        let bytes = [(random.next() & mask).to_le_bytes(), random.next().to_le_bytes()].concat();
        round_trip(&bytes, &mut out);
    }
}

#[test]
fn random_code_round_trips_whole() {
    let mut random = Random::new(2);
    for length in 0..200 {
        let slots: Vec<u64> = (0..length)
            .map(|_| match random.next() % 4 {
                0 => slot(0x18, 1, (random.next() % 8) as u8, 0, random.next() as i32),
                1 => slot(0, 0, 0, 0, random.next() as i32),
                2 => slot(0x95, 0, 0, 0, 0),
                _ => random.next(),
            })
            .collect();
        let bytes: Vec<u8> = slots.iter().flat_map(|s| s.to_le_bytes()).collect();
        let insns = decode_all(&bytes).unwrap();
        let mut expected = 0;
        for (at, insn) in &insns {
            assert_eq!(*at, expected);
            expected += insn.slots();
        }
        let insns: Vec<Insn> = insns.into_iter().map(|(_, i)| i).collect();
        assert_eq!(encode_all(&insns).unwrap(), bytes);
    }
}

#[test]
fn every_variant_survives_encoding() {
    for insn in variety() {
        let mut bytes = Vec::new();
        encode(&insn, &mut bytes).unwrap();
        assert_eq!(bytes.len(), insn.slots() * 8);
        assert_eq!(decode(&bytes).unwrap(), (insn, insn.slots()));
    }
}

/// The opcodes that some choice of the other fields makes legal, against RFC 9669 and Linux.
#[test]
fn exactly_the_known_opcodes_are_understood() {
    let mut known: Vec<u8> = vec![0x05, 0x06, 0x18, 0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x85, 0x8d, 0x95, 0xe5];
    known.extend([0x84, 0x87, 0xd4, 0xdc, 0xd7]);
    known.extend([0x61, 0x69, 0x71, 0x79, 0x81, 0x89, 0x91, 0x62, 0x6a, 0x72, 0x7a, 0x63, 0x6b, 0x73, 0x7b]);
    known.extend([0xc3, 0xcb, 0xd3, 0xdb]);
    for op in [0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x90, 0xa0, 0xb0, 0xc0] {
        known.extend([4, 7, 0xc, 0xf].map(|class| op | class));
    }
    for op in [0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xa0, 0xb0, 0xc0, 0xd0] {
        known.extend([5, 6, 0xd, 0xe].map(|class| op | class));
    }
    known.sort_unstable();
    let legal = |code: u8| {
        [0, 1, 16, 0x100]
            .into_iter()
            .any(|imm| !matches!(decode_one(&[slot(code, 0, 0, 0, imm), 0]).0, Insn::Opaque(_)))
    };
    let found: Vec<u8> = (0..=255).filter(|code| legal(*code)).collect();
    assert_eq!(found, known);
}

#[test]
fn reserved_fields_make_a_slot_opaque() {
    let opaque = [
        ("register above 10", slot(0xbf, 11, 0, 0, 0)),
        ("source above 10", slot(0xbf, 0, 11, 0, 0)),
        ("imm of a register operation", slot(0x0f, 1, 2, 0, 1)),
        ("source of an immediate operation", slot(0x07, 1, 2, 0, 1)),
        ("off of an addition", slot(0x07, 1, 0, 1, 1)),
        ("off 2 of a division", slot(0x37, 1, 0, 2, 1)),
        ("32-bit move from 32 bits", slot(0xbc, 1, 2, 32, 0)),
        ("32-bit address space cast", slot(0xbc, 1, 2, 1, 0)),
        ("sign extension of an immediate", slot(0xb7, 1, 0, 8, 0)),
        ("byte order of 8 bits", slot(0xd4, 1, 0, 0, 8)),
        ("swap with source bit", slot(0xdf, 1, 0, 0, 16)),
        ("negation with source bit", slot(0x8f, 1, 0, 0, 0)),
        ("imm of a load", slot(0x61, 1, 2, 0, 1)),
        ("imm of a store", slot(0x63, 1, 2, 0, 1)),
        ("sign-extending 8-byte load", slot(0x99, 1, 2, 0, 0)),
        ("2-byte atomic", slot(0xcb, 1, 2, 0, 0)),
        ("exchange without fetch", slot(0xdb, 1, 2, 0, 0xe0)),
        ("destination of a packet load", slot(0x30, 1, 0, 0, 0)),
        ("8-byte packet load", slot(0x38, 0, 0, 0, 0)),
        ("call of kind 3", slot(0x85, 0, 3, 0, 0)),
        ("off of a helper call", slot(0x85, 0, 0, 1, 0)),
        ("imm of callx", slot(0x8d, 1, 0, 0, 1)),
        ("32-bit exit", slot(0x96, 0, 0, 0, 0)),
        ("off of gotol", slot(0x06, 0, 0, 1, 1)),
        ("imm of goto", slot(0x05, 0, 0, 1, 1)),
        ("may_goto of kind 1", slot(0xe5, 0, 0, 1, 1)),
        ("lone half of an ld_imm64", slot(0x18, 1, 0, 0, 1)),
    ];
    for (what, bits) in opaque {
        assert_eq!(decode_one(&[bits]), (Insn::Opaque(bits), 1), "{what}");
    }
    let first = slot(0x18, 1, 0, 0, 1);
    for second in [1, 0x100, 0x1000, 0x10000, slot(0x95, 0, 0, 0, 0)] {
        assert_eq!(decode_one(&[first, second]), (Insn::Opaque(first), 1));
    }
    let unknown_kind = slot(0x18, 1, 7, 0, 1);
    assert_eq!(decode_one(&[unknown_kind, 0]), (Insn::Opaque(unknown_kind), 1));
}

#[test]
fn lengths_are_checked() {
    assert_eq!(decode(&[0x95; 7]), Err(DecodeError::Truncated(7)));
    assert_eq!(decode_all(&[0; 12]), Err(DecodeError::Length(12)));
    assert_eq!(decode_all(&[]), Ok(vec![]));
}

#[test]
fn what_has_no_encoding_is_refused() {
    let (dst, src, base, off) = (Reg::R1, Reg::R2, Reg::R3, 0);
    let refused = [
        Insn::MovSx { width: Width::W32, from: Size::W, dst, src },
        Insn::MovSx { width: Width::W64, from: Size::DW, dst, src },
        Insn::Load { size: Size::DW, sext: true, dst, base, off },
        Insn::Atomic { op: AtomicOp::Xchg, size: Size::B, base, off, src },
        Insn::Atomic { op: AtomicOp::Add { fetch: false }, size: Size::H, base, off, src },
        Insn::Endian { kind: Endian::Le, bits: 12, dst },
        Insn::Endian { kind: Endian::Be, bits: 8, dst },
        Insn::LdAbs { size: Size::DW, imm: 0 },
        Insn::LdInd { size: Size::DW, src, imm: 0 },
        Insn::Ja { off: 0x8000, long: false },
    ];
    for insn in refused {
        let mut out = vec![42];
        let error = encode(&insn, &mut out).unwrap_err();
        assert_eq!((error.insn, &out[..]), (insn, &[42][..]));
        assert!(encode_all(&[Insn::Exit, insn]).is_err());
    }
}
