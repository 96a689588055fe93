//! Functions without rules: numbers of all kinds, and addresses of the function's own frame that are copied, spilled,
//! torn, laundered through arithmetic and used again. The verifier would refuse most; the facts must hold all the
//! same wherever an execution gets.

use bpf_driver::difftest::Random;
use bpf_isa::{AluOp, AtomicOp, Cond, Endian, Imm64Kind, Insn, Reg, Size, Src, Width};
use bpf_program::{Block, BlockId, ByteOrder, Function, Op, ProgKind, Terminator};

use crate::generate::number;

fn reg(n: u64) -> Reg {
    Reg::new(n as u8).unwrap_or(Reg::R0)
}

fn operand(r: &mut Random) -> Src {
    if r.one_in(2) { Src::Reg(reg(r.below(11))) } else { Src::Imm(number(r) as i32) }
}

fn slot(r: &mut Random, size: Size) -> i16 {
    let n = size.bytes() as i16;
    -(r.below(48 / n as u64) as i16 + 1) * n
}

/// Anything, on any register.
fn operation(r: &mut Random, out: &mut Vec<Insn>) {
    let width = r.pick(&[Width::W32, Width::W64, Width::W64]);
    let (dst, src) = (reg(r.below(10)), reg(r.below(10)));
    let size = r.pick(&Size::ALL);
    let wide = |op, src| Insn::Alu { op, width: Width::W64, dst, src };
    let insn = match r.below(15) {
        0..=3 => Insn::Alu { op: r.pick(&AluOp::ALL), width, dst, src: operand(r) },
        4 => Insn::Mov { width, dst, src: operand(r) },
        5 => Insn::MovSx { width, from: r.pick(&[Size::B, Size::H]), dst, src },
        6 => Insn::Neg { width, dst },
        7 => Insn::Endian { kind: r.pick(&[Endian::Le, Endian::Be, Endian::Swap]), bits: r.pick(&[16, 32, 64]), dst },
        8 => Insn::LoadImm64 { dst, kind: Imm64Kind::Const, imm: number(r) },
        9 | 10 => Insn::Store { size, base: Reg::R10, off: slot(r, size), src: operand(r) },
        11 => Insn::Load { size, sext: r.one_in(4) && size != Size::DW, dst, base: Reg::R10, off: slot(r, size) },
        12 => {
            // An address of the frame, at a constant or a varying place.
            if r.one_in(2) {
                out.push(Insn::Mov { width: Width::W64, dst, src: Src::Reg(Reg::R10) });
                wide(AluOp::Add, Src::Imm(-8 * (1 + r.below(5) as i32)))
            } else {
                out.push(Insn::Mov { width: Width::W64, dst, src: Src::Reg(src) });
                out.push(wide(AluOp::And, Src::Imm(0x18)));
                wide(AluOp::Add, Src::Reg(Reg::R10))
            }
        }
        13 => {
            // Through a register that may be such an address; faults otherwise.
            let off = -(r.below(5) as i16) * 8 - 8;
            match r.below(3) {
                0 => Insn::Load { size, sext: false, dst, base: src, off },
                _ => Insn::Store { size, base: dst, off, src: operand(r) },
            }
        }
        _ => {
            let op = r.pick(&[AtomicOp::Add { fetch: false }, AtomicOp::Xor { fetch: true }, AtomicOp::CmpXchg]);
            let size = r.pick(&[Size::W, Size::DW]);
            Insn::Atomic { op, size, base: Reg::R10, off: slot(r, size), src }
        }
    };
    out.push(insn);
}

/// Few registers, few slots, and hardly anything but addresses of the frame.
fn escaping(r: &mut Random, out: &mut Vec<Insn>) {
    let (dst, src) = (reg(r.below(4)), reg(r.below(4)));
    let slot = |r: &mut Random| -8 * (1 + r.below(3) as i16);
    let width = Width::W64;
    let size = Size::DW;
    let insn = match r.below(13) {
        0 | 1 => {
            out.push(Insn::Mov { width, dst, src: Src::Reg(Reg::R10) });
            Insn::Alu { op: AluOp::Add, width, dst, src: Src::Imm(slot(r).into()) }
        }
        2 => Insn::Store { size, base: Reg::R10, off: slot(r), src: Src::Reg(src) },
        3 => Insn::Load { size, sext: false, dst, base: Reg::R10, off: slot(r) },
        4 | 5 => Insn::Store { size, base: dst, off: 0, src: Src::Reg(src) },
        6 => Insn::Store { size: r.pick(&Size::ALL), base: dst, off: 0, src: Src::Imm(r.below(3) as i32) },
        7 | 8 => Insn::Load { size, sext: false, dst, base: src, off: 0 },
        9 => Insn::Mov { width, dst, src: Src::Reg(src) },
        10 => {
            let op = r.pick(&[AtomicOp::Xchg, AtomicOp::CmpXchg, AtomicOp::Or { fetch: true }]);
            Insn::Atomic { op, size, base: r.pick(&[Reg::R10, dst]), off: slot(r), src }
        }
        11 if r.one_in(2) => {
            // Halves of a spilled address, put together again.
            let (off, high) = (slot(r), Reg::R4);
            out.push(Insn::Load { size: Size::W, sext: false, dst, base: Reg::R10, off });
            out.push(Insn::Load { size: Size::W, sext: false, dst: high, base: Reg::R10, off: off + 4 });
            out.push(Insn::Alu { op: AluOp::Lsh, width, dst: high, src: Src::Imm(32) });
            Insn::Alu { op: AluOp::Or, width, dst, src: Src::Reg(high) }
        }
        11 => {
            out.push(Insn::Endian { kind: Endian::Swap, bits: 64, dst });
            Insn::Endian { kind: Endian::Swap, bits: 64, dst }
        }
        _ => {
            // A varying slot, stored to or loaded from.
            out.push(Insn::Alu { op: AluOp::And, width, dst, src: Src::Imm(8) });
            out.push(Insn::Alu { op: AluOp::Add, width, dst, src: Src::Reg(Reg::R10) });
            let off = -16 - 8 * r.below(2) as i16;
            if r.one_in(2) {
                Insn::Store { size, base: dst, off, src: Src::Reg(src) }
            } else {
                Insn::Load { size, sext: false, dst, base: dst, off }
            }
        }
    };
    out.push(insn);
}

/// Addresses of slots in registers and slots to begin with, so that few accesses fault.
fn addresses_everywhere(r: &mut Random, out: &mut Vec<Insn>) {
    for n in 0..4 {
        if r.one_in(3) {
            continue;
        }
        let slot = -8 * (1 + r.below(3) as i32);
        out.push(Insn::Mov { width: Width::W64, dst: reg(n), src: Src::Reg(Reg::R10) });
        out.push(Insn::Alu { op: AluOp::Add, width: Width::W64, dst: reg(n), src: Src::Imm(slot) });
        if n < 3 && r.one_in(2) {
            let off = -8 * (n as i16 + 1);
            out.push(Insn::Store { size: Size::DW, base: Reg::R10, off, src: Src::Reg(reg(n)) });
        }
    }
}

/// A random function; it may loop for ever.
pub(super) fn function(r: &mut Random) -> Function {
    let escapes = !r.one_in(3);
    // One leak hides all later ones: keep the jugglers short.
    let (n, longest) = if escapes { (2 + r.below(3), 4) } else { (2 + r.below(6), 8) };
    let registers = if r.one_in(2) { 11 } else { 4 };
    let blocks: Vec<Block> = (0..n)
        .map(|i| {
            let mut insns = Vec::new();
            if escapes && i == 0 {
                addresses_everywhere(r, &mut insns);
            }
            for _ in 0..=r.below(longest) {
                if escapes { escaping(r, &mut insns) } else { operation(r, &mut insns) }
            }
            let term = match r.below(6) {
                _ if i + 1 == n => Terminator::Exit { origin: None },
                0 => Terminator::Goto(BlockId(r.below(n) as u32)),
                1 => Terminator::Exit { origin: None },
                _ => Terminator::Branch {
                    cond: r.pick(&Cond::ALL),
                    width: r.pick(&[Width::W32, Width::W64]),
                    dst: reg(r.below(registers)),
                    src: operand(r),
                    taken: BlockId(r.below(n) as u32),
                    fall: BlockId(i as u32 + 1),
                    origin: None,
                },
            };
            Block { ops: insns.into_iter().map(Op::new).collect(), term }
        })
        .collect();
    let layout = (0..blocks.len() as u32).map(BlockId).collect();
    Function {
        name: "frame_escape".into(),
        kind: ProgKind::Subprogram,
        arguments: None,
        byte_order: ByteOrder::Little,
        blocks,
        layout,
    }
}
