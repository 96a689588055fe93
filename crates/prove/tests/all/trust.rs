//! The judge must not trust who proposes: changes that are no rewrites at all must not be proven.

use bpf_facts::{Env, Live, Num, Region, StackSet, State, Tnum, Value};
use bpf_isa::{AluOp, Cond, Insn, Reg, RegSet, Size, Src, Width};
use bpf_program::{Block, BlockId, Function, Op, ProgKind, Terminator};
use bpf_prove::{Known, Options, Rewrite, Verdict, ask, window};

fn mov(dst: Reg, imm: i32) -> Op {
    Op::new(Insn::Mov { width: Width::W64, dst, src: Src::Imm(imm) })
}

fn verdict(before: &State, old: &[Op], new: &[Op], live: &Live) -> Verdict {
    window(ProgKind::Xdp, &Env::empty(), before, old, new, live, None, &Options::default()).0
}

fn live(regs: RegSet, stack: StackSet) -> Live {
    Live { regs, stack }
}

fn entry() -> State {
    State::entry(ProgKind::Xdp)
}

#[test]
fn a_jump_or_an_exit_inside_a_block_is_no_replacement() {
    let live = live(RegSet::of(Reg::R0), StackSet::EMPTY);
    let old = [mov(Reg::R0, 1), mov(Reg::R2, 2)];
    let jump = Insn::Jcc { cond: Cond::Eq, width: Width::W64, dst: Reg::R0, src: Src::Imm(1), off: 5 };
    for insn in [Insn::Exit, Insn::Ja { off: 3, long: false }, jump, Insn::MayGoto { off: 1 }, Insn::Opaque(0xff)] {
        let new = [mov(Reg::R0, 1), Op::new(insn)];
        let v = verdict(&entry(), &old, &new, &live);
        assert!(!v.is_equal(), "`{insn}` is nothing");
    }
}

#[test]
fn an_instruction_nobody_knows_is_not_nothing() {
    let live = live(RegSet::of(Reg::R0), StackSet::EMPTY);
    let old = [mov(Reg::R0, 1), Op::new(Insn::Opaque(0xff))];
    let v = verdict(&entry(), &old, &old[..1], &live);
    assert!(!v.is_equal(), "{v:?}");
}

#[test]
fn the_frame_pointer_is_not_written() {
    let live = live(RegSet::of(Reg::R0), StackSet::EMPTY);
    let new = [mov(Reg::R0, 1), mov(Reg::R10, 0)];
    let v = verdict(&entry(), &new[..1], &new, &live);
    assert!(!v.is_equal(), "{v:?}");
}

#[test]
fn no_new_access_to_the_frame_at_a_varying_offset() {
    let mut before = entry();
    before.set_reg(Reg::R2, Value::scalar(Num::top(64)));
    let live = live(RegSet::of(Reg::R0), StackSet::EMPTY);
    let old = [mov(Reg::R0, 1)];
    let new = [
        Op::new(Insn::Mov { width: Width::W64, dst: Reg::R3, src: Src::Reg(Reg::R10) }),
        Op::new(Insn::Alu { op: AluOp::Add, width: Width::W64, dst: Reg::R3, src: Src::Reg(Reg::R2) }),
        Op::new(Insn::Load { size: Size::DW, sext: false, dst: Reg::R4, base: Reg::R3, off: 0 }),
        mov(Reg::R0, 1),
    ];
    let v = verdict(&before, &old, &new, &live);
    assert!(!v.is_equal(), "it may be anywhere");
    // The same through a pointer the facts know: r3 = r10 - 8 + {0, 4, 8}.
    let index = Num::with_bits(64, Tnum { value: 0, mask: 12 });
    let at = Num::constant(64, -8i64 as u64).add(&index);
    let kind = Value::pointer(Region::Stack, bpf_facts::BaseId::Fixed, 0).kind;
    before.set_reg(Reg::R3, Value { kind, num: at });
    let v = verdict(&before, &old, &[new[2].clone(), old[0].clone()], &live);
    assert!(!v.is_equal(), "it may be beyond the frame");
}

/// `r10 + i64::MAX` and an absolute address of that size: neither in the frame, nor a reason to panic.
#[test]
fn offsets_may_be_as_large_as_they_get() {
    let live = live(RegSet::of(Reg::R0), StackSet::EMPTY);
    let ll = |imm: u64| Op::new(Insn::LoadImm64 { dst: Reg::R3, kind: bpf_isa::Imm64Kind::Const, imm });
    let add = Op::new(Insn::Alu { op: AluOp::Add, width: Width::W64, dst: Reg::R3, src: Src::Reg(Reg::R10) });
    let load = Op::new(Insn::Load { size: Size::DW, sext: false, dst: Reg::R4, base: Reg::R3, off: 0 });
    for imm in [i64::MAX as u64, i64::MAX as u64 - 7, 1 << 63] {
        let old = [mov(Reg::R0, 1)];
        let far = [ll(imm), add.clone(), load.clone(), mov(Reg::R0, 1)];
        let v = verdict(&entry(), &old, &far, &live);
        assert!(!v.is_equal(), "{imm:#x} beyond the frame");
        let absolute = [ll(imm), load.clone(), mov(Reg::R0, 1)];
        let v = verdict(&entry(), &old, &absolute, &live);
        assert!(!v.is_equal(), "{imm:#x} is nowhere");
    }
}

#[test]
fn no_deeper_stack_than_before() {
    let live = live(RegSet::of(Reg::R0), StackSet::EMPTY);
    let old = [mov(Reg::R0, 1)];
    let new = [
        Op::new(Insn::Store { size: Size::DW, base: Reg::R10, off: -512, src: Src::Imm(1) }),
        Op::new(Insn::Load { size: Size::DW, sext: false, dst: Reg::R0, base: Reg::R10, off: -512 }),
    ];
    let v = verdict(&entry(), &old, &new, &live);
    assert!(!v.is_equal(), "a window may not use stack that the function does not");
}

#[test]
fn a_new_terminator_goes_with_the_whole_rest_of_the_block() {
    let branch = |dst: Reg, imm: i32| Terminator::Branch {
        cond: Cond::Eq,
        width: Width::W64,
        dst,
        src: Src::Imm(imm),
        taken: BlockId(1),
        fall: BlockId(2),
        origin: None,
    };
    let block = |ops: Vec<Op>, term: Terminator| Block { ops, term };
    let exit = || block(vec![], Terminator::Exit { origin: None });
    // At the rewritten place r0 == 0 and r1 == 0 say the same; at the block's end they do not.
    let ops = vec![mov(Reg::R0, 0), mov(Reg::R1, 0), mov(Reg::R1, 7)];
    let f = Function {
        name: "f".into(),
        kind: ProgKind::Xdp,
        arguments: None,
        byte_order: bpf_program::ByteOrder::Little,
        blocks: vec![block(ops, branch(Reg::R0, 0)), exit(), exit()],
        layout: vec![BlockId(0), BlockId(1), BlockId(2)],
    };
    let env = Env::empty();
    let mut states = vec![entry()];
    for (i, op) in f.blocks[0].ops.iter().enumerate() {
        let mut s = states[i].clone();
        s.step(op, (BlockId(0), i), f.kind, &env);
        states.push(s);
    }
    let end = live(RegSet::of(Reg::R0), StackSet::EMPTY);
    let points = vec![end; f.blocks[0].ops.len() + 2];
    let known = Known { states: &states, live: &points, sides: &[] };
    let rewrite = Rewrite {
        block: BlockId(0),
        path: vec![],
        start: 0,
        end: 2,
        with: vec![mov(Reg::R0, 0), mov(Reg::R1, 0)],
        term: Some(branch(Reg::R1, 0)),
        by: "a liar",
    };
    assert!(ask(&f, &env, &known, &rewrite, &Options::default()).is_err());
}

/// By the book `w0 = w0` after a 32-bit compare-and-exchange does nothing; on real kernels it may.
#[test]
fn a_zero_extension_after_a_32_bit_exchange_stays() {
    let exchange =
        |size| Op::new(Insn::Atomic { op: bpf_isa::AtomicOp::CmpXchg, size, base: Reg::R10, off: -8, src: Reg::R3 });
    let extend = Op::new(Insn::Mov { width: Width::W32, dst: Reg::R0, src: Src::Reg(Reg::R0) });
    let live = live(RegSet::of(Reg::R0), StackSet::EMPTY);
    let mut before = entry();
    [Reg::R0, Reg::R3].into_iter().for_each(|r| before.set_reg(r, Value::scalar(Num::top(64))));
    let old = [exchange(Size::W), extend.clone()];
    assert!(!verdict(&before, &old, &old[..1], &live).is_equal(), "the kernel may not extend");
    assert!(verdict(&before, &old, &old, &live).is_equal());
    assert!(verdict(&before, &old[..1], &old[..1], &live).is_equal());
    // That it is there twice never matters.
    assert!(verdict(&before, &[old[0].clone(), extend.clone(), extend], &old, &live).is_equal());
}
