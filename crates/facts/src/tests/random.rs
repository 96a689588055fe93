//! Random functions run concretely: every state on the way must describe what is there, and what is
//! dead must not matter.

use bpf_isa::{AluOp, AtomicOp, Call, Cond, Endian, Imm64Kind, Insn, Reg, Size, Src, Width};
use bpf_program::{Block, BlockId, ByteOrder, Function, Op, ProgKind, Terminator};
use bpf_testgen::random::Rng;

use super::concrete::{Cpu, R10};
use super::r;
use crate::{Env, Facts, Kind, Liveness, Region, State, Value};

fn describes(v: &Value, bits: u64) -> bool {
    match &v.kind {
        Kind::Unknown | Kind::Scalar => v.num.contains(bits),
        Kind::Pointer { region: Region::Stack, nullable, .. } => {
            v.num.contains(bits.wrapping_sub(R10)) || (*nullable && bits == 0)
        }
        Kind::Pointer { .. } => false,
    }
}

fn check(f: &Function, state: &State, cpu: &Cpu, b: BlockId, i: usize, rng: &mut Rng) {
    for reg in Reg::all() {
        let (v, bits) = (state.reg(reg), cpu.regs[reg.index()]);
        assert!(describes(v, bits), "{reg} = {bits:#x} is not {v:?}\nbefore {b}:{i} of\n{f}");
    }
    for _ in 0..6 {
        let len = rng.one_of(&[1, 2, 4, 8, 8]);
        let off = -(rng.below(48) as i64) - 8;
        let (v, bits) = (state.stack_bytes(off, len), cpu.stack_at(off, len as usize));
        assert!(describes(&v, bits), "stack {off}+{len} = {bits:#x} is not {v:?}\nbefore {b}:{i} of\n{f}");
    }
}

/// Executes until `exit`; `at` sees the machine before each operation and terminator. `None` on a fault
/// or if it runs too long.
fn run(f: &Function, mut cpu: Cpu, mut at: impl FnMut(BlockId, usize, &mut Cpu)) -> Option<u64> {
    let mut b = f.entry();
    for _ in 0..24 {
        let block = f.block(b);
        for (i, op) in block.ops.iter().enumerate() {
            at(b, i, &mut cpu);
            bpf_semantics::exec(&mut cpu, op).ok()?;
        }
        at(b, block.ops.len(), &mut cpu);
        b = match block.term {
            Terminator::Exit { .. } => return Some(cpu.regs[0]),
            Terminator::Goto(t) => t,
            Terminator::MayGoto { fall, .. } => fall,
            Terminator::Branch { cond, width, dst, src, taken, fall, .. } => {
                if bpf_semantics::branch(&mut cpu, cond, width, dst, src).ok()? { taken } else { fall }
            }
        };
    }
    None
}

fn immediate(rng: &mut Rng) -> i32 {
    rng.number(64) as i32
}

fn reg(rng: &mut Rng) -> Reg {
    r(rng.below(10) as u8)
}

fn operand(rng: &mut Rng) -> Src {
    if rng.below(2) == 0 { Src::Reg(r(rng.below(11) as u8)) } else { Src::Imm(immediate(rng)) }
}

fn slot(rng: &mut Rng, size: Size) -> i16 {
    let n = size.bytes() as i16;
    -(rng.below(48 / n as u64) as i16 + 1) * n
}

fn operation(rng: &mut Rng, ops: &mut Vec<Insn>) {
    let width = rng.one_of(&[Width::W32, Width::W64, Width::W64]);
    let (dst, src) = (reg(rng), reg(rng));
    let size = rng.one_of(&Size::ALL);
    let last = match rng.below(16) {
        0..=3 => Insn::Alu { op: rng.one_of(&AluOp::ALL), width, dst, src: operand(rng) },
        4 => Insn::Mov { width, dst, src: operand(rng) },
        5 => Insn::MovSx { width, from: rng.one_of(&[Size::B, Size::H]), dst, src },
        6 => Insn::Neg { width, dst },
        7 => {
            let kind = rng.one_of(&[Endian::Le, Endian::Be, Endian::Swap]);
            Insn::Endian { kind, bits: rng.one_of(&[16, 32, 64]), dst }
        }
        8 => Insn::LoadImm64 { dst, kind: Imm64Kind::Const, imm: rng.number(64) },
        9 | 10 => Insn::Store { size, base: Reg::R10, off: slot(rng, size), src: operand(rng) },
        11 => {
            Insn::Load { size, sext: rng.below(4) == 0 && size != Size::DW, dst, base: Reg::R10, off: slot(rng, size) }
        }
        12 => {
            // A pointer into the frame, at a constant or a varying place.
            if rng.below(2) == 0 {
                ops.push(Insn::Mov { width: Width::W64, dst, src: Src::Reg(Reg::R10) });
                Insn::Alu { op: AluOp::Add, width: Width::W64, dst, src: Src::Imm(-8 * (1 + rng.below(5) as i32)) }
            } else {
                ops.push(Insn::Mov { width: Width::W64, dst, src: Src::Reg(src) });
                ops.push(Insn::Alu { op: AluOp::And, width: Width::W64, dst, src: Src::Imm(0x18) });
                Insn::Alu { op: AluOp::Add, width: Width::W64, dst, src: Src::Reg(Reg::R10) }
            }
        }
        13 => {
            // Through a register that may be such a pointer; faults otherwise.
            let off = -(rng.below(5) as i16) * 8 - 8;
            match rng.below(3) {
                0 => Insn::Load { size, sext: false, dst, base: src, off },
                _ => Insn::Store { size, base: dst, off, src: operand(rng) },
            }
        }
        14 => {
            let op = rng.one_of(&[
                AtomicOp::Add { fetch: false },
                AtomicOp::Xor { fetch: true },
                AtomicOp::Xchg,
                AtomicOp::CmpXchg,
            ]);
            let size = rng.one_of(&[Size::W, Size::DW]);
            Insn::Atomic { op, size, base: Reg::R10, off: slot(rng, size), src }
        }
        _ => Insn::Call(Call::Helper(5)),
    };
    ops.push(last);
}

/// Few registers, few slots, and hardly anything but addresses of the frame: copied, spilled, torn,
/// laundered through arithmetic, used again.
fn juggling(rng: &mut Rng, ops: &mut Vec<Insn>) {
    let few = |rng: &mut Rng| r(rng.below(4) as u8);
    let slot = |rng: &mut Rng| -8 * (1 + rng.below(3) as i16);
    let (dst, src) = (few(rng), few(rng));
    let width = Width::W64;
    let insn = match rng.below(13) {
        0 | 1 => {
            ops.push(Insn::Mov { width, dst, src: Src::Reg(Reg::R10) });
            Insn::Alu { op: AluOp::Add, width, dst, src: Src::Imm(slot(rng).into()) }
        }
        2 => Insn::Store { size: Size::DW, base: Reg::R10, off: slot(rng), src: Src::Reg(src) },
        3 => Insn::Load { size: Size::DW, sext: false, dst, base: Reg::R10, off: slot(rng) },
        4 | 5 => Insn::Store { size: Size::DW, base: dst, off: 0, src: Src::Reg(src) },
        6 => Insn::Store { size: rng.one_of(&Size::ALL), base: dst, off: 0, src: Src::Imm(rng.below(3) as i32) },
        7 | 8 => Insn::Load { size: Size::DW, sext: false, dst, base: src, off: 0 },
        9 => Insn::Mov { width, dst, src: Src::Reg(src) },
        10 => {
            let op = rng.one_of(&[AtomicOp::Xchg, AtomicOp::CmpXchg, AtomicOp::Or { fetch: true }]);
            Insn::Atomic { op, size: Size::DW, base: rng.one_of(&[Reg::R10, dst]), off: slot(rng), src }
        }
        11 => {
            // Halves of a spilled address, put together again; or its bytes, through two swaps.
            if rng.below(2) == 0 {
                let off = slot(rng);
                ops.push(Insn::Load { size: Size::W, sext: false, dst, base: Reg::R10, off });
                ops.push(Insn::Load { size: Size::W, sext: false, dst: r(4), base: Reg::R10, off: off + 4 });
                ops.push(Insn::Alu { op: AluOp::Lsh, width, dst: r(4), src: Src::Imm(32) });
                Insn::Alu { op: AluOp::Or, width, dst, src: Src::Reg(r(4)) }
            } else {
                ops.push(Insn::Endian { kind: Endian::Swap, bits: 64, dst });
                Insn::Endian { kind: Endian::Swap, bits: 64, dst }
            }
        }
        _ => {
            // A varying slot, stored to and loaded from.
            ops.push(Insn::Alu { op: AluOp::And, width, dst, src: Src::Imm(8) });
            ops.push(Insn::Alu { op: AluOp::Add, width, dst, src: Src::Reg(Reg::R10) });
            let off = -16 - 8 * rng.below(2) as i16;
            if rng.below(2) == 0 {
                Insn::Store { size: Size::DW, base: dst, off, src: Src::Reg(src) }
            } else {
                Insn::Load { size: Size::DW, sext: false, dst, base: dst, off }
            }
        }
    };
    ops.push(insn);
}

/// Registers and slots to begin with: addresses of slots, so that few accesses fault.
fn addresses_everywhere(rng: &mut Rng, ops: &mut Vec<Insn>) {
    for n in (0..4).filter(|_| rng.below(3) != 0).collect::<Vec<_>>() {
        let slot = -8 * (1 + rng.below(3) as i32);
        ops.push(Insn::Mov { width: Width::W64, dst: r(n), src: Src::Reg(Reg::R10) });
        ops.push(Insn::Alu { op: AluOp::Add, width: Width::W64, dst: r(n), src: Src::Imm(slot) });
        if n < 3 && rng.below(2) == 0 {
            let off = -8 * (i16::from(n) + 1);
            ops.push(Insn::Store { size: Size::DW, base: Reg::R10, off, src: Src::Reg(r(n)) });
        }
    }
}

fn random_function(rng: &mut Rng) -> Function {
    let juggles = rng.below(3) != 0;
    // One leak hides all later ones: keep the jugglers short.
    let (n, longest) = if juggles { (2 + rng.below(3), 4) } else { (2 + rng.below(6), 8) };
    let generate = if juggles { juggling } else { operation };
    let registers = if rng.below(2) == 0 { 11 } else { 4 };
    let target = |rng: &mut Rng| BlockId(rng.below(n) as u32);
    let blocks: Vec<Block> = (0..n)
        .map(|i| {
            let mut insns = Vec::new();
            if juggles && i == 0 {
                addresses_everywhere(rng, &mut insns);
            }
            for _ in 0..=rng.below(longest) {
                generate(rng, &mut insns);
            }
            let term = match rng.below(6) {
                _ if i + 1 == n => Terminator::Exit { origin: None },
                0 => Terminator::Goto(target(rng)),
                1 => Terminator::Exit { origin: None },
                _ => Terminator::Branch {
                    cond: rng.one_of(&Cond::ALL),
                    width: rng.one_of(&[Width::W32, Width::W64]),
                    dst: r(rng.below(registers) as u8),
                    src: operand(rng),
                    taken: target(rng),
                    fall: BlockId(i as u32 + 1),
                    origin: None,
                },
            };
            Block { ops: insns.into_iter().map(Op::new).collect(), term }
        })
        .collect();
    let layout = (0..blocks.len() as u32).map(BlockId).collect();
    Function {
        name: "random".into(),
        kind: ProgKind::Subprogram,
        arguments: None,
        byte_order: ByteOrder::Little,
        blocks,
        layout,
    }
}

fn env_of(f: &Function) -> Env<'static> {
    Env { byte_order: f.byte_order, ..Env::empty() }
}

/// The function for a machine of each byte order.
fn in_both_orders(f: Function) -> [Function; 2] {
    [ByteOrder::Little, ByteOrder::Big].map(|byte_order| Function { byte_order, ..f.clone() })
}

fn facts_of(f: &Function) -> (Facts, Vec<Vec<State>>) {
    let facts = Facts::of(f, &env_of(f));
    let states = (0..f.blocks.len()).map(|i| facts.states(f, BlockId(i as u32))).collect();
    (facts, states)
}

#[test]
fn states_describe_every_run() {
    let mut rng = Rng::new(11);
    let mut points = 0u64;
    for f in (0..20_000).flat_map(|_| in_both_orders(random_function(&mut rng))).collect::<Vec<_>>() {
        let (_, states) = facts_of(&f);
        for _ in 0..6 {
            let mut sampler = Rng::new(rng.next() | 1);
            run(&f, Cpu::new(&mut rng).in_order(f.byte_order), |b, i, cpu| {
                let state = states[b.index()].get(i).unwrap_or_else(|| panic!("{b} is not unreachable in\n{f}"));
                check(&f, state, cpu, b, i, &mut sampler);
                points += 1;
            });
        }
    }
    assert!(points > 200_000, "only {points} points were reached");
}

#[test]
fn what_is_dead_does_not_matter() {
    let mut rng = Rng::new(13);
    let (mut finished, mut bytes) = (0, 0u64);
    for f in (0..40_000).flat_map(|_| in_both_orders(random_function(&mut rng))).collect::<Vec<_>>() {
        let (facts, _) = facts_of(&f);
        let live = Liveness::of(&f, &env_of(&f), &facts);
        let cpu = Cpu::new(&mut rng).in_order(f.byte_order);
        let mut points = 0;
        let Some(expected) = run(&f, cpu.clone(), |_, _, _| points += 1) else { continue };
        for _ in 0..4 {
            let when = rng.below(points);
            let mut now = 0;
            let mut noise = Rng::new(rng.next() | 1);
            let got = run(&f, cpu.clone(), |b, i, cpu| {
                if now == when {
                    let live = live.before(b, i);
                    for reg in Reg::all().filter(|r| !live.regs.contains(*r) && *r != Reg::R10) {
                        cpu.regs[reg.index()] = noise.number(64);
                    }
                    for off in -512..0 {
                        if !live.stack.contains(off) {
                            cpu.stack[(off + 512) as usize] = noise.next() as u8;
                        } else {
                            bytes += 1;
                        }
                    }
                }
                now += 1;
            });
            assert_eq!(got, Some(expected), "dead before the {when}th step of\n{f}");
            finished += 1;
        }
    }
    assert!(finished > 2000 && bytes > 1000, "{finished} runs, {bytes} live bytes");
}
