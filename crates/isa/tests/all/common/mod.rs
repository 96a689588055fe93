//! Instructions of every variant, for the tests.

use bpf_isa::*;

pub const WIDTHS: [Width; 2] = [Width::W32, Width::W64];
pub const OFFS: [i16; 7] = [0, 1, -1, 4, -8, i16::MAX, i16::MIN];
pub const IMMS: [i32; 9] = [0, 1, -1, 5, 16, -3, 0x1234_5678, i32::MAX, i32::MIN];
pub const IMM64S: [u64; 6] = [0, 1, u64::MAX, 1 << 63, 0x1_0000_0000, 0x1122_3344_5566_7788];
pub const KINDS: [Imm64Kind; 7] = [
    Imm64Kind::Const,
    Imm64Kind::MapFd,
    Imm64Kind::MapValue,
    Imm64Kind::BtfId,
    Imm64Kind::Func,
    Imm64Kind::MapIdx,
    Imm64Kind::MapIdxValue,
];
pub const ATOMICS: [AtomicOp; 10] = [
    AtomicOp::Add { fetch: false },
    AtomicOp::Add { fetch: true },
    AtomicOp::Or { fetch: false },
    AtomicOp::Or { fetch: true },
    AtomicOp::And { fetch: false },
    AtomicOp::And { fetch: true },
    AtomicOp::Xor { fetch: false },
    AtomicOp::Xor { fetch: true },
    AtomicOp::Xchg,
    AtomicOp::CmpXchg,
];

/// A few register pairs, with the extremes.
pub fn pairs() -> [(Reg, Reg); 4] {
    [(Reg::R0, Reg::R10), (Reg::R1, Reg::R2), (Reg::R7, Reg::R7), (Reg::R9, Reg::R0)]
}

fn sources(reg: Reg) -> impl Iterator<Item = Src> {
    std::iter::once(Src::Reg(reg)).chain(IMMS.into_iter().map(Src::Imm))
}

/// Every encodable instruction over the sample operands above, but no opaque ones.
pub fn variety() -> Vec<Insn> {
    let mut v = vec![Insn::Exit];
    v.extend(Reg::all().map(|reg| Insn::CallX { reg }));
    for (dst, src) in pairs() {
        arithmetic(&mut v, dst, src);
        memory(&mut v, dst, src);
        jumps(&mut v, dst, src);
    }
    for imm in IMMS {
        v.push(Insn::Ja { off: imm, long: true });
        v.extend([Size::B, Size::H, Size::W].map(|size| Insn::LdAbs { size, imm }));
        v.extend([Call::Helper(imm), Call::Local(imm), Call::Kfunc { btf_id: imm, off: 0 }].map(Insn::Call));
    }
    for off in OFFS {
        v.push(Insn::Ja { off: off.into(), long: false });
        v.push(Insn::MayGoto { off });
        v.push(Insn::Call(Call::Kfunc { btf_id: 7, off }));
    }
    v
}

fn arithmetic(v: &mut Vec<Insn>, dst: Reg, src: Reg) {
    for width in WIDTHS {
        for s in sources(src) {
            v.extend(AluOp::ALL.map(|op| Insn::Alu { op, width, dst, src: s }));
            v.push(Insn::Mov { width, dst, src: s });
        }
        v.push(Insn::Neg { width, dst });
        v.extend([Size::B, Size::H].map(|from| Insn::MovSx { width, from, dst, src }));
    }
    v.push(Insn::MovSx { width: Width::W64, from: Size::W, dst, src });
    for kind in [Endian::Le, Endian::Be, Endian::Swap] {
        v.extend([16, 32, 64].map(|bits| Insn::Endian { kind, bits, dst }));
    }
    v.extend([0, 1, 1 << 16, u32::MAX].map(|imm| Insn::AddrSpaceCast { dst, src, imm }));
    for kind in KINDS {
        v.extend(IMM64S.map(|imm| Insn::LoadImm64 { dst, kind, imm }));
    }
}

fn memory(v: &mut Vec<Insn>, dst: Reg, src: Reg) {
    for size in Size::ALL {
        for off in OFFS {
            v.push(Insn::Load { size, sext: false, dst, base: src, off });
            v.extend(sources(src).map(|src| Insn::Store { size, base: dst, off, src }));
            v.push(Insn::LoadAcquire { size, dst, base: src, off });
            v.push(Insn::StoreRelease { size, base: dst, off, src });
            if size != Size::DW {
                v.push(Insn::Load { size, sext: true, dst, base: src, off });
            }
            if size >= Size::W {
                v.extend(ATOMICS.map(|op| Insn::Atomic { op, size, base: dst, off, src }));
            }
        }
        if size != Size::DW {
            v.extend(IMMS.map(|imm| Insn::LdInd { size, src, imm }));
        }
    }
}

fn jumps(v: &mut Vec<Insn>, dst: Reg, src: Reg) {
    for (cond, width) in Cond::ALL.into_iter().flat_map(|c| WIDTHS.map(|w| (c, w))) {
        v.extend(sources(src).map(|src| Insn::Jcc { cond, width, dst, src, off: -8 }));
        v.extend(OFFS.map(|off| Insn::Jcc { cond, width, dst, src: Src::Reg(src), off }));
    }
}

/// A small deterministic source of pseudo-random numbers.
pub struct Random(fastrand::Rng);

impl Random {
    /// A generator; equal seeds give equal numbers.
    pub fn new(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.u64(..)
    }
}
