//! What liveness says of particular programs.

use bpf_isa::{Reg, RegSet};
use bpf_program::{BlockId, Function, ProgKind};

use super::{function, maps, no_arity, r};
use crate::{Env, Facts, Live, Liveness, StackSet};

fn liveness(f: &Function) -> Liveness {
    let maps = maps();
    let env = Env { maps: &maps, callee_args: &no_arity, ..Env::empty() };
    Liveness::of(f, &env, &Facts::of(f, &env))
}

fn before(text: &str, i: usize) -> Live {
    *liveness(&function(ProgKind::Skb, text)).before(BlockId(0), i)
}

fn runs(l: &Live) -> Vec<(i64, u32)> {
    l.stack.runs()
}

#[test]
fn zeroes_that_the_key_overwrites_are_dead() {
    // The classic: a 16-byte key, zeroed by two stores, then filled in.
    let f = function(
        ProgKind::Skb,
        "
        *(u64 *)(r10 - 8) = 0
        *(u64 *)(r10 - 16) = 0
        *(u64 *)(r10 - 24) = 5
        r3 = *(u32 *)(r1 + 0)
        *(u32 *)(r10 - 16) = r3
        *(u64 *)(r10 - 8) = r3
        r2 = r10
        r2 += -16
        r1 = map_fd[0] ll
        call 1
        r0 = 0
        exit",
    );
    let live = liveness(&f);
    let b = BlockId(0);
    assert_eq!(runs(live.after(b, 0)), [], "overwritten whole");
    assert_eq!(runs(live.after(b, 1)), [(-12, 4)], "the lower half is overwritten");
    assert_eq!(runs(live.after(b, 2)), [(-12, 4)], "nobody reads the last slot");
    assert_eq!(runs(live.before(b, 9)), [(-16, 16)]);
    assert_eq!(runs(live.after(b, 9)), []);
    assert_eq!(live.before(b, 9).regs, RegSet::first_args(2).with(Reg::R10).without(Reg::R10));
    assert_eq!(live.before(b, 0).regs, RegSet::of(Reg::R1).with(Reg::R10));
}

#[test]
fn an_unknown_map_may_read_a_key_of_any_size() {
    let text = "r1 = *(u64 *)(r1 + 0)\nr2 = r10\nr2 += -16\ncall 1\nexit";
    assert_eq!(runs(&before(text, 3)), [(-16, 16)]);
    let text = "r1 = map_fd[9] ll\nr2 = r10\nr2 += -32\ncall 1\nexit";
    assert_eq!(runs(&before(text, 3)), [(-32, 32)]);
}

#[test]
fn an_update_reads_key_and_value() {
    let text = "
        r1 = map_fd[0] ll
        r2 = r10
        r2 += -16
        r3 = r10
        r3 += -32
        r4 = 0
        call 2
        exit";
    assert_eq!(runs(&before(text, 6)), [(-32, 8), (-16, 16)]);
    assert_eq!(before(text, 6).regs, RegSet::first_args(4));
}

#[test]
fn a_buffer_that_is_surely_overwritten_is_dead_before() {
    let text = |helper: u32, len: &str| {
        format!(
            "
            r2 = 0
            r3 = r10
            r3 += -16
            r4 = {len}
            call {helper}
            r0 = *(u64 *)(r10 - 16)
            r1 = *(u64 *)(r10 - 8)
            exit"
        )
    };
    assert_eq!(runs(&before(&text(26, "12"), 4)), [(-4, 4)], "skb_load_bytes writes 12 of the 16");
    assert_eq!(runs(&before(&text(26, "r1"), 4)), [(-16, 16)], "as many as r1 says");
}

#[test]
fn a_helper_that_may_write_less_kills_nothing() {
    // probe_read_str stops at the end of the string.
    let text = "r1 = r10\nr1 += -16\nr2 = 16\nr3 = 0\ncall 45\nr0 = *(u64 *)(r10 - 16)\nexit";
    assert_eq!(runs(&before(text, 4)), [(-16, 8)]);
}

#[test]
fn a_load_at_a_varying_offset_reads_its_whole_range() {
    let text = "r2 = *(u32 *)(r1 + 0)\nr2 &= 7\nr2 += r10\nr0 = *(u8 *)(r2 - 16)\nexit";
    assert_eq!(runs(&before(text, 3)), [(-16, 8)]);
    assert_eq!(runs(&before(text, 0)), [(-16, 8)]);
}

#[test]
fn a_store_at_a_varying_offset_kills_nothing() {
    let text = "r2 = *(u32 *)(r1 + 0)\nr2 &= 7\nr2 += r10\n*(u8 *)(r2 - 16) = 0\nr0 = *(u64 *)(r10 - 16)\nexit";
    assert_eq!(runs(&before(text, 0)), [(-16, 8)]);
}

#[test]
fn atomics_read_what_they_change() {
    let text = "r2 = 1\nlock *(u64 *)(r10 - 8) += r2\nr0 = 0\nexit";
    assert_eq!(runs(&before(text, 1)), [(-8, 8)]);
}

#[test]
fn loads_through_unknown_pointers_read_the_frame_only_if_it_has_leaked() {
    let f = function(ProgKind::Subprogram, "*(u64 *)(r10 - 8) = 0\nr0 = *(u64 *)(r1 + 0)\nexit");
    assert!(liveness(&f).before(BlockId(0), 1).stack.is_empty());
    let f = function(ProgKind::Subprogram, "*(u64 *)(r2 + 0) = r10\nr0 = *(u64 *)(r1 + 0)\nexit");
    assert_eq!(liveness(&f).before(BlockId(0), 1).stack, StackSet::ALL);
}

#[test]
fn a_laundered_address_may_be_probed() {
    // The address goes through a map value as a number; probe_read finds the frame all the same.
    let f = function(
        ProgKind::Tracing,
        "
        *(u64 *)(r10 - 8) = 7
        r1 = r10
        w6 = w1
        r1 >>= 32
        r1 <<= 32
        r6 |= r1
        r3 = r6
        r3 += -8
        r1 = r10
        r1 += -16
        r2 = 8
        call 4
        r0 = 0
        exit",
    );
    assert!(liveness(&f).after(BlockId(0), 0).stack.contains(-8));
    let f = function(ProgKind::Tracing, "r3 = *(u64 *)(r1 + 0)\nr1 = r10\nr1 += -16\nr2 = 8\ncall 4\nexit");
    assert!(liveness(&f).before(BlockId(0), 4).stack.is_empty());
}

#[test]
fn strings_printed_through_spilled_addresses_are_live() {
    // snprintf(str, 8, fmt, data, 8) with data[0] the address of a string on the stack.
    let text = |first: &str| {
        format!(
            "
            *(u64 *)(r10 - 8) = 7
            r6 = r10
            r6 += -8
            {first}
            *(u64 *)(r10 - 16) = r6
            r1 = r10
            r1 += -32
            r2 = 8
            r3 = 0 ll
            r4 = r10
            r4 += -16
            r5 = 8
            call 165
            r0 = 0
            exit"
        )
    };
    assert!(before(&text("r7 = 0"), 1).stack.contains(-8));
    assert!(!before(&text("r6 = 0"), 1).stack.contains(-8));
}

#[test]
fn callees_that_get_a_stack_pointer_may_read_all() {
    let f = function(ProgKind::Skb, "r1 = r10\ncall pc+0\nexit");
    assert_eq!(liveness(&f).before(BlockId(0), 1).stack, StackSet::ALL);
    let f = function(ProgKind::Skb, "r1 = r10\ncall kfunc 3\nexit");
    assert_eq!(liveness(&f).before(BlockId(0), 1).stack, StackSet::ALL);
    let f = function(ProgKind::Subprogram, "r1 = 0\ncall pc+0\nexit");
    assert!(liveness(&f).before(BlockId(0), 1).stack.is_empty());
}

#[test]
fn a_tail_call_reads_three_registers_and_no_stack() {
    let text = "r2 = map_fd[0] ll\nr3 = r10\ncall 12\nr0 = 0\nexit";
    let l = before(text, 2);
    assert_eq!((l.regs, l.stack), (RegSet::first_args(3), StackSet::EMPTY));
}

#[test]
fn a_loop_keeps_alive_what_its_next_round_reads() {
    let f = function(
        ProgKind::Skb,
        "
        r6 = 10
        *(u64 *)(r10 - 8) = 0
        loop: r2 = *(u64 *)(r10 - 8)
        r2 += r6
        *(u64 *)(r10 - 8) = r2
        *(u64 *)(r10 - 16) = r2
        r6 += -1
        if r6 != 0 goto loop
        r0 = *(u64 *)(r10 - 16)
        exit",
    );
    let live = liveness(&f);
    assert_eq!(runs(live.entry(BlockId(1))), [(-8, 8)]);
    assert_eq!(runs(live.before(BlockId(1), 5)), [(-16, 16)]);
    assert_eq!(live.after(BlockId(1), 5).regs, RegSet::of(r(6)).with(Reg::R10));
    assert_eq!(runs(live.entry(BlockId(2))), [(-16, 8)]);
}

#[test]
fn only_r0_matters_at_exit() {
    let f = function(ProgKind::Skb, "r6 = 1\nr0 = 2\nexit");
    let live = liveness(&f);
    assert_eq!(live.before(BlockId(0), 2).regs, RegSet::of(Reg::R0));
    assert_eq!(*live.after(BlockId(0), 2), Live::default());
    assert!(live.before(BlockId(0), 1).regs.is_empty());
}

#[test]
fn sets_of_stack_bytes() {
    let mut s = StackSet::range(-8, 4);
    s.insert_range(-600, 100);
    s.insert_range(-2, 10);
    assert_eq!(s.runs(), [(-512, 12), (-8, 4), (-2, 2)]);
    assert!(s.contains(-1) && !s.contains(0) && !s.contains(-513) && !s.contains(-3));
    assert_eq!(s.minus(&StackSet::range(-512, 511)).iter().collect::<Vec<_>>(), [-1]);
    assert_eq!((StackSet::ALL.len(), s.len()), (512, 18));
    assert_eq!(StackSet::ALL.minus(&s).union(&s), StackSet::ALL);
}

#[test]
fn what_is_kept_of_a_state_is_what_is_live() {
    let f = function(ProgKind::Skb, "r6 = 7\nr7 = r10\n*(u64 *)(r10 - 8) = r7\n*(u64 *)(r10 - 16) = 5\nr0 = 0\nexit");
    let kept = |regs, stack| {
        let mut s = Facts::of(&f, &Env::empty()).states(&f, BlockId(0)).pop().unwrap();
        s.retain(&Live { regs, stack });
        s
    };
    let s = kept(RegSet::of(r(6)), StackSet::range(-16, 8));
    assert_eq!((s.reg(r(6)).as_const(), s.stack_bytes(-16, 8).as_const()), (Some(7), Some(5)));
    assert!(s.reg(r(7)).is_unknown() && s.stack_bytes(-8, 8).is_unknown() && !s.frame_leaked());
    assert!(kept(RegSet::EMPTY, StackSet::range(-8, 4)).frame_leaked(), "half an address is a number");
}
