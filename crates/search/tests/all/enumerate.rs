//! What the enumerator finds, and what it shows not to exist.

use bpf_facts::{BaseId, Env, Live, Num, Region, StackSet, State, Value};
use bpf_isa::{Goal, Reg, RegSet};
use bpf_program::{ByteOrder, Op, ProgKind};
use bpf_prove::{Options, Verdict};
use bpf_search::enumerate::{Effort, Outcome, enumerate};
use bpf_search::{Answer, Window};

fn ops(text: &str) -> Vec<Op> {
    bpf_isa::parse_listing(text).expect("a listing").into_iter().map(Op::new).collect()
}

fn text(ops: &[Op]) -> String {
    ops.iter().map(|o| o.insn.to_string()).collect::<Vec<_>>().join("; ")
}

fn live(regs: &[u8], stack: StackSet) -> Live {
    Live { regs: regs.iter().fold(RegSet::EMPTY, |s, r| s.with(Reg::new(*r).expect("a register"))), stack }
}

/// Registers that are numbers.
fn numbers(regs: &[u8]) -> State {
    let mut s = State::entry(ProgKind::Other);
    for r in regs {
        s.set_reg(Reg::new(*r).expect("a register"), Value::scalar(Num::top(64)));
    }
    s
}

fn search(before: &State, old: &str, live: Live, cpu: u8, slots: usize) -> Outcome {
    search_in(ByteOrder::Little, before, old, live, cpu, slots)
}

fn search_in(byte_order: ByteOrder, before: &State, old: &str, live: Live, cpu: u8, slots: usize) -> Outcome {
    let old = ops(old);
    let env = Env { byte_order, ..Env::empty() };
    let w = Window {
        kind: ProgKind::Other,
        env: &env,
        before,
        old: &old,
        live: &live,
        cpu,
        goal: Goal::Size,
        deadline: None,
        superblock: None,
    };
    let options = Options::default();
    let mut judge = |new: &[Op]| match bpf_prove::window(w.kind, &env, before, &old, new, &live, None, &options).0 {
        Verdict::Equal => Answer::Equal,
        Verdict::Different(d) => Answer::Different(Some(d)),
        Verdict::Unknown(_) => Answer::Unknown,
    };
    enumerate(&w, &mut judge, Effort { slots, ..Effort::default() })
}

#[track_caller]
fn finds(outcome: &Outcome, slots: usize) -> String {
    let found = outcome.found.as_ref().unwrap_or_else(|| panic!("nothing found: {outcome:?}"));
    assert_eq!(found.with.iter().map(|o| o.insn.slots()).sum::<usize>(), slots, "{}", text(&found.with));
    assert_eq!(outcome.exhausted_to, slots.checked_sub(1), "{outcome:?}");
    text(&found.with)
}

#[track_caller]
fn is_optimal(outcome: &Outcome, slots: usize) {
    assert!(outcome.found.is_none(), "{outcome:?}");
    assert_eq!(outcome.exhausted_to, Some(slots), "{outcome:?}");
}

#[test]
fn stores_and_parts_of_them_are_found_in_the_machines_byte_order() {
    let all = StackSet::range(-8, 8);
    let o =
        search_in(ByteOrder::Big, &numbers(&[]), "*(u32 *)(r10 - 8) = 0\n*(u32 *)(r10 - 4) = 1", live(&[], all), 3, 4);
    assert_eq!(finds(&o, 1), "*(u64 *)(r10 - 0x8) = 0x1");
    let part = "*(u64 *)(r10 - 8) = r1\nr0 = *(u32 *)(r10 - 4)";
    let part = |order| search_in(order, &numbers(&[1]), part, live(&[0], StackSet::EMPTY), 3, 2);
    is_optimal(&part(ByteOrder::Little), 1);
    assert_eq!(finds(&part(ByteOrder::Big), 1), "w0 = w1");
}

#[test]
fn two_stores_of_numbers_become_one() {
    let all = StackSet::range(-8, 8);
    let o = search(&numbers(&[]), "*(u32 *)(r10 - 8) = 1\n*(u32 *)(r10 - 4) = 0", live(&[], all), 3, 4);
    assert_eq!(finds(&o, 1), "*(u64 *)(r10 - 0x8) = 0x1");
}

#[test]
fn a_pair_of_shifts_becomes_a_narrow_move() {
    let o = search(&numbers(&[1]), "r1 <<= 32\nr1 >>= 32", live(&[1], StackSet::EMPTY), 3, 4);
    assert_eq!(finds(&o, 1), "w1 = w1");
}

#[test]
fn a_pair_of_signed_shifts_becomes_a_sign_extension() {
    let o = search(&numbers(&[1]), "r1 <<= 48\nr1 s>>= 48", live(&[1], StackSet::EMPTY), 4, 4);
    assert_eq!(finds(&o, 1), "r1 = (s16)r1");
    let o = search(&numbers(&[1]), "r1 <<= 48\nr1 s>>= 48", live(&[1], StackSet::EMPTY), 3, 4);
    is_optimal(&o, 1);
}

#[test]
fn a_mask_that_changes_nothing_goes() {
    let mut s = numbers(&[]);
    s.set_reg(Reg::R1, Value::scalar(Num::unsigned(64, 0, 255)));
    let o = search(&s, "r1 &= 255", live(&[1], StackSet::EMPTY), 3, 4);
    assert_eq!(finds(&o, 0), "");
    let mut s = numbers(&[]);
    s.set_reg(Reg::R2, Value::pointer(Region::Packet, BaseId::Fixed, 0));
    let o = search(&s, "r1 = *(u8 *)(r2 + 3)\nr1 &= 255", live(&[1, 2], StackSet::EMPTY), 3, 4);
    assert_eq!(finds(&o, 1), "r1 = *(u8 *)(r2 + 0x3)");
}

#[test]
fn bytes_put_together_become_a_wide_load() {
    let mut s = numbers(&[]);
    s.set_reg(Reg::R1, Value::pointer(Region::Packet, BaseId::Fixed, 14));
    let old = "r2 = *(u8 *)(r1 + 0)\nr3 = *(u8 *)(r1 + 1)\nr3 <<= 8\nr3 |= r2";
    let o = search(&s, old, live(&[1, 3], StackSet::EMPTY), 3, 4);
    assert_eq!(finds(&o, 1), "r3 = *(u16 *)(r1 + 0x0)");
    let old = "r2 = *(u8 *)(r1 + 1)\nr3 = *(u8 *)(r1 + 0)\nr3 <<= 8\nr3 |= r2";
    let o = search(&s, old, live(&[1, 3], StackSet::EMPTY), 3, 4);
    assert_eq!(finds(&o, 2), "r3 = *(u16 *)(r1 + 0x0); r3 = be16 r3");
}

#[test]
fn moves_in_a_chain_are_one() {
    let o = search(&numbers(&[1]), "r2 = r1\nr3 = r2\nr4 = r3", live(&[4], StackSet::EMPTY), 3, 4);
    assert_eq!(finds(&o, 1), "r4 = r1");
}

#[test]
fn additions_of_constants_are_one() {
    let o = search(&numbers(&[1]), "r2 = r1\nr2 += 14\nr2 += 20\nr2 += -4", live(&[1, 2], StackSet::EMPTY), 3, 4);
    assert_eq!(finds(&o, 2), "r2 = r1; r2 += 0x1e");
}

#[test]
fn a_number_that_a_register_holds_is_taken_from_there() {
    let mut s = numbers(&[]);
    s.set_reg(Reg::R6, Value::constant(0x1_2345_6789));
    let old = "r1 = 0x123456789 ll\n*(u64 *)(r10 - 8) = r1";
    let o = search(&s, old, live(&[6], StackSet::range(-8, 8)), 3, 4);
    assert_eq!(finds(&o, 1), "*(u64 *)(r10 - 0x8) = r6");
}

#[test]
fn what_is_optimal_is_shown_to_be() {
    is_optimal(&search(&numbers(&[1, 2]), "r1 += r2\nr1 >>= 3", live(&[1, 2], StackSet::EMPTY), 3, 4), 1);
    is_optimal(&search(&numbers(&[1, 2, 3]), "r1 &= r2\nr1 |= r3\nr1 <<= 7", live(&[1], StackSet::EMPTY), 3, 4), 2);
    // Two stores that others see in between could not be merged: different places.
    let all = StackSet::range(-16, 16);
    let old = "*(u64 *)(r10 - 8) = r1\n*(u64 *)(r10 - 16) = r2";
    is_optimal(&search(&numbers(&[1, 2]), old, live(&[], all), 3, 4), 1);
}

#[test]
fn wrong_constants_die_by_refutation() {
    // Only for values below 2^31 would one instruction do; edges of the tests and the judge know better.
    let o = search(&numbers(&[1]), "w1 = w1\nr1 += 1", live(&[1], StackSet::EMPTY), 3, 4);
    is_optimal(&o, 1);
}

#[test]
fn nothing_is_excluded_beyond_a_candidate_that_was_not_decided() {
    let old = ops("r2 = r1\nr3 = r2\nr4 = r3\nr4 += 0");
    let (env, before, out) = (Env::empty(), numbers(&[1]), live(&[4], StackSet::EMPTY));
    let deadline = None;
    let w = Window {
        kind: ProgKind::Other,
        env: &env,
        before: &before,
        old: &old,
        live: &out,
        cpu: 3,
        goal: Goal::Size,
        deadline,
        superblock: None,
    };
    let mut judge = |_: &[Op]| Answer::Unknown;
    let o = enumerate(&w, &mut judge, Effort::default());
    assert!(o.judged > 0 && o.found.is_none());
    assert_eq!(o.exhausted_to, Some(0), "one move was not decided, so nothing is known of one slot or more");
}

#[test]
fn a_deadline_is_respected() {
    let old = ops("r1 *= r2\nr1 ^= r3\nr1 += r4\nr1 >>= 5\nr1 |= r2\nr1 -= r3");
    let (env, before, out) = (Env::empty(), numbers(&[1, 2, 3, 4]), live(&[1], StackSet::EMPTY));
    let started = std::time::Instant::now();
    let deadline = Some(started + std::time::Duration::from_millis(50));
    let w = Window {
        kind: ProgKind::Other,
        env: &env,
        before: &before,
        old: &old,
        live: &out,
        cpu: 3,
        goal: Goal::Size,
        deadline,
        superblock: None,
    };
    let mut judge = |_: &[Op]| Answer::Unknown;
    let o = enumerate(&w, &mut judge, Effort { slots: 5, steps: u64::MAX });
    assert!(started.elapsed().as_millis() < 2_000 && o.found.is_none());
    assert!(o.exhausted_to.is_none_or(|n| n < 5), "{o:?}");
}

#[test]
fn the_same_question_gets_the_same_answer() {
    let run = || {
        let o = search(&numbers(&[1, 2]), "r3 = r1\nr3 += r2\nr3 += r1\nr3 -= r1", live(&[3], StackSet::EMPTY), 3, 3);
        (o.found.map(|f| text(&f.with)), o.steps, o.judged)
    };
    assert_eq!(run(), run());
}
