//! What lifting and lowering leave alone, and what each pass does, as listings. Everything that comes out is proven.

use bpf_facts::Env;
use bpf_isa::{Insn, parse_listing};
use bpf_program::Function;
use bpf_prove::{Options, functions};
use bpf_ssa::passes::detours;
use bpf_ssa::{Judge, Refusal, all_passes, improve, lift, verify};

use crate::common::*;

#[test]
fn a_function_without_anything_to_save_stays() {
    let loops = "
        r0 = 0
        r2 = 0
        if r2 > 9 goto +3
        r0 += r2
        r2 += 1
        goto -4
        exit";
    becomes(&[], loops, loops);
    let calls = "
        r6 = r1
        *(u32 *)(r10 - 4) = 0
        r2 = r10
        r2 += -4
        r1 = 0 ll
        call 1
        if r0 == 0 goto +2
        r1 = *(u64 *)(r0 + 0)
        *(u64 *)(r0 + 0) = r6
        r0 = 2
        exit";
    // But for the load that nobody reads.
    becomes(&["ssa-dead"], calls, &calls.replace("r1 = *(u64 *)(r0 + 0)\n", "").replace("goto +2", "goto +1"));
}

#[test]
fn private_spill_slots_become_registers() {
    becomes(
        &[],
        "*(u64 *)(r10 - 8) = r1
         call 7
         r1 = *(u64 *)(r10 - 8)
         r1 = *(u32 *)(r1 + 12)
         r0 += r1
         exit",
        "r6 = r1
         call 7
         r1 = *(u32 *)(r6 + 12)
         r0 += r1
         exit",
    );
}

#[test]
fn what_is_computed_already_is_not_computed_again() {
    becomes(
        &["ssa-numbering", "ssa-dead"],
        "r2 = *(u32 *)(r1 + 12)
         r3 = *(u32 *)(r1 + 16)
         r4 = r2
         r4 *= r3
         r0 = r4
         if r4 > 5 goto +3
         r2 *= r3
         r2 <<= 1
         r0 = r2
         exit",
        "r0 = *(u32 *)(r1 + 12)
         r3 = *(u32 *)(r1 + 16)
         r0 *= r3
         if r0 > 5 goto +1
         r0 <<= 1
         exit",
    );
}

#[test]
fn an_edge_goes_past_a_question_it_has_answered() {
    becomes(
        &["ssa-predicates", "ssa-dead"],
        "r2 = *(u32 *)(r1 + 12)
         r6 = 1
         if r2 != 3 goto +1
         r6 = *(u32 *)(r1 + 16)
         r0 = r6
         if r2 == 3 goto +1
         r0 += 7
         exit",
        "r2 = *(u32 *)(r1 + 12)
         r0 = 1
         if r2 != 3 goto +2
         r0 = *(u32 *)(r1 + 16)
         goto +1
         r0 += 7
         exit",
    );
}

#[test]
fn a_constant_result_gets_an_exit_of_its_own() {
    becomes(
        &["ssa-exits", "ssa-dead"],
        "r6 = 1
         r7 = *(u32 *)(r1 + 12)
         call 7
         if r7 == 3 goto +3
         r6 = 2
         if r0 == 9 goto +1
         r6 = r0
         r0 = r6
         exit",
        "r7 = *(u32 *)(r1 + 12)
         call 7
         if r7 == 3 goto +2
         if r0 == 9 goto +3
         exit
         r0 = 1
         exit
         r0 = 2
         exit",
    );
}

#[test]
fn what_is_done_to_a_join_of_constants_is_done_on_the_ways_into_it() {
    becomes(
        &["ssa-ways"],
        "r0 = *(u32 *)(r1 + 12)
         r2 = *(u32 *)(r1 + 16)
         r3 = 1
         if r2 > 9 goto +1
         r3 = 0
         r0 += r3
         exit",
        "r0 = *(u32 *)(r1 + 12)
         r2 = *(u32 *)(r1 + 16)
         if r2 <= 9 goto +1
         r0 += 1
         exit",
    );
    becomes(
        &["ssa-ways"],
        "r2 = *(u32 *)(r1 + 12)
         r1 = 1
         if r2 != 0 goto +1
         r1 = 0
         *(u32 *)(r10 - 4) = r1
         r2 = r10
         r2 += -4
         r1 = 0 ll
         call 1
         if r0 == 0 goto +1
         r0 = 2
         exit",
        "r2 = *(u32 *)(r1 + 12)
         *(u32 *)(r10 - 4) = 1
         if r2 != 0 goto +1
         *(u32 *)(r10 - 4) = 0
         r2 = r10
         r2 += -4
         r1 = 0 ll
         call 1
         if r0 == 0 goto +1
         r0 = 2
         exit",
    );
    // The address is used in between.
    let read_before = "r2 = *(u32 *)(r1 + 12)
         *(u32 *)(r10 - 4) = r2
         r6 = 1
         if r2 != 0 goto +1
         r6 = 0
         r2 = r10
         r2 += -4
         r1 = 0 ll
         call 1
         *(u32 *)(r10 - 4) = r6
         r2 = r10
         r2 += -4
         r1 = 0 ll
         call 1
         if r0 == 0 goto +1
         r0 = 2
         exit";
    assert_eq!(with(&["ssa-ways"], read_before), with(&[], read_before));
}

/// Proves everything.
struct Prover<'a>(&'a Env<'a>);

impl Judge for Prover<'_> {
    fn accepts(&mut self, old: &Function, new: &Function) -> bool {
        let verdict = functions(old, new, self.0, &Options::default()).0;
        println!("{}{}{verdict:?}", listing(old), listing(new));
        verdict.is_equal()
    }
}

const HEADER: &str = "
    r2 = *(u32 *)(r1 + 4)
    r1 = *(u32 *)(r1 + 0)
    r0 = 1
    r3 = r1
    r3 += 14
    if r3 > r2 goto +14
    r4 = *(u16 *)(r1 + 12)
    r3 = 14
    if r4 != 129 goto +4
    r3 = r1
    r3 += 18
    if r3 > r2 goto +8
    r3 = 18
    r1 += r3
    r4 = r1
    r4 += 20
    if r4 > r2 goto +3
    r0 = *(u8 *)(r1 + 9)
    if r0 != 6 goto +1
    r0 = 2
    exit";

#[test]
fn an_offset_becomes_a_moving_pointer_and_is_proven() {
    let f = function(HEADER);
    let (steps, slots) = with_env(|env| {
        let steps = improve(&f, env, &all_passes(), &mut Prover(env));
        let slots = steps.last().map(|s| bpf_program::slot_count(&s.function));
        (steps, slots)
    });
    assert_eq!(detours().len(), 1);
    assert!(steps.iter().any(|s| s.by == [detours()[0].name()]), "{steps:?}");
    assert!(
        slots.is_some_and(|n| n + 3 <= bpf_program::slot_count(&f)),
        "{slots:?} of {}",
        bpf_program::slot_count(&f)
    );
}

#[test]
fn what_has_no_form_is_refused() {
    let refused = |text: &str| with_env(|env| lift(&function(text), env, true)).expect_err("refused");
    assert!(matches!(refused("r0 = load_acquire((u64 *)(r1 + 0))\nexit"), Refusal::NoForm { .. }));
    assert!(matches!(refused("r0 = r6\nexit"), Refusal::Unset { .. }));
}

#[test]
fn broken_forms_are_found() {
    let f = function(HEADER);
    let ssa = with_env(|env| lift(&f, env, true)).expect("lifted");
    assert_eq!(verify(&ssa), Ok(()));
    let mut early = ssa.clone();
    let last = early.layout.len() - 1;
    let read = bpf_ssa::Operand::Value(bpf_ssa::Value(early.values.len() as u32 - 1));
    let entry = early.entry();
    if let Some(i) = early.block_mut(entry).insts.first_mut() {
        i.args = vec![read];
    }
    assert!(verify(&early).is_err());
    let mut gone = ssa.clone();
    gone.layout.remove(last);
    assert!(verify(&gone).is_err());
    let mut twice = ssa;
    let first = twice.block(entry).insts[0].clone();
    twice.block_mut(entry).insts.push(first);
    assert!(verify(&twice).is_err());
}

/// What `ssa-elements` makes of the graph.
#[track_caller]
fn without_elements_missing(before: &str) -> Vec<String> {
    graphs("ssa-elements", before)
}

/// Looks up an element, of which `key` stores the number, and does what `none` says where it is not there.
fn looks_up(key: &str, none: &str) -> String {
    let length = parse_listing(none).expect("a listing").iter().map(Insn::slots).sum::<usize>();
    format!(
        "{key}
        r2 = r10
        r2 += -4
        r1 = 0 ll
        call 1
        if r0 == 0 goto +4
        r1 = *(u64 *)(r0 + 0)
        r1 += 1
        *(u64 *)(r0 + 0) = r1
        goto +{length}
        {none}
        r0 = 2
        exit"
    )
}

#[test]
fn the_first_element_of_an_array_is_there() {
    let got = without_elements_missing(&looks_up("*(u32 *)(r10 - 4) = 0", "r1 = 7\n*(u64 *)(r10 - 16) = r1"));
    let want = "
        *(u32 *)(r10 - 4) = 0
        r2 = r10
        r2 += -4
        r1 = 0 ll
        call 1
        if r0 == 0 goto +3
        r1 = *(u64 *)(r0 + 0)
        r1 += 1
        *(u64 *)(r0 + 0) = r1
        r0 = 2
        exit";
    assert_eq!(got.len(), 1);
    same(&got[0], want);
}

#[test]
fn other_elements_may_be_missing() {
    let none = "r1 = 7\n*(u64 *)(r10 - 16) = r1";
    assert!(without_elements_missing(&looks_up("*(u32 *)(r10 - 4) = 1", none)).is_empty());
    assert!(without_elements_missing(&looks_up("r1 = *(u32 *)(r1 + 12)\n*(u32 *)(r10 - 4) = r1", none)).is_empty());
}

/// Kernels before 6.14 take the way on which it is missing for one: what is held has to be given back there.
#[test]
fn who_may_hold_something_goes_where_it_went() {
    let none = "r1 = 7\n*(u64 *)(r10 - 16) = r1";
    let key = "r6 = r1\n*(u32 *)(r10 - 4) = 0";
    assert_eq!(without_elements_missing(&looks_up(key, none)).len(), 1);
    // bpf_sk_release, of a socket that came from bpf_skc_lookup_tcp.
    assert!(without_elements_missing(&looks_up(&format!("{key}\ncall 99"), none)).is_empty());
}

/// The end that it goes to is one that it came to: whether a verifier ever comes to another, and takes it, is not known.
#[test]
fn the_way_on_which_it_is_missing_ends_where_it_ended() {
    let two_ends = "if r6 > 3 goto +2\nr0 = 1\nexit\nr1 = 7\n*(u64 *)(r10 - 16) = r1\nr0 = 3\nexit";
    let key = "r6 = *(u32 *)(r1 + 12)\n*(u32 *)(r10 - 4) = 0";
    assert!(without_elements_missing(&looks_up(key, two_ends)).is_empty());
    let one_end = "if r6 > 3 goto +1\nr6 = 1\nr1 = 7\n*(u64 *)(r10 - 16) = r6";
    assert_eq!(without_elements_missing(&looks_up(key, one_end)).len(), 1);
}

/// Looks an element up by what stands at `at` in the context, and counts `by` on it; goes on to `out` if it is there, else to `none`.
fn counts(at: i32, by: i32, none: &str, out: &str) -> String {
    format!(
        "r2 = *(u32 *)(r6 + {at})
        *(u32 *)(r10 - 4) = r2
        r2 = r10
        r2 += -4
        r1 = 0 ll
        call 1
        if r0 == 0 goto {none}
        r1 = *(u64 *)(r0 + 0)
        r1 += {by}
        r1 *= 3
        r1 ^= 77
        *(u64 *)(r0 + 0) = r1
        goto {out}\n"
    )
}

/// Two such parts, one for small numbers and one for others, in a frame with room for one more word.
fn two_parts(by: [i32; 2]) -> String {
    format!(
        "r6 = r1
        r1 = *(u32 *)(r6 + 12)
        *(u64 *)(r10 - 16) = 0
        r7 = *(u64 *)(r10 - 16)
        if r1 > 9 goto B
        {}B: {}C: r0 = 1
        exit
        D: r0 = 2
        exit
        E: r0 = 3
        exit\n",
        counts(16, by[0], "C", "E"),
        counts(12, by[1], "D", "E"),
    )
}

#[test]
fn parts_that_do_the_same_are_kept_once() {
    let got = graphs("ssa-melding", &two_parts([5, 5]));
    let one = got.last().expect("a form");
    let count = |what: &str| one.matches(what).count();
    assert_eq!((count("call 0x1"), count("^= 0x4d")), (1, 1), "{one}");
    assert_eq!(count("*(u64 *)(r10 - 0x10) = r"), 2, "set where either part is entered: {one}");
    assert_eq!(count("r0 = *(u64 *)(r10 - 0x10)"), 1, "asked where they part: {one}");
}

#[test]
fn what_differs_in_two_parts_stays_twice() {
    let got = graphs("ssa-melding", &two_parts([5, 6]));
    let one = got.last().expect("a form");
    assert_eq!(["+= 0x5", "+= 0x6", "^= 0x4d"].map(|what| one.matches(what).count()), [1, 1, 1], "{one}");
}

#[test]
fn parts_that_lead_to_one_place_need_no_question() {
    let text = two_parts([5, 5]).replace("goto D", "goto C");
    let got = graphs("ssa-melding", &text);
    let one = got.last().expect("a form");
    assert_eq!((one.matches("call 0x1").count(), one.matches("(r10 - 0x10) = r").count()), (1, 0), "{one}");
}
