//! Whole functions, with loops and blocks cut at other places: what must be proven equal, and what
//! must not.

use bpf_facts::{Env, MapInfo};
use bpf_program::ProgKind;
use bpf_prove::{Budget, Options, Verdict, functions};
use bpf_testgen::listing::function;

fn verdict_of(kind: ProgKind, old: &str, new: &str) -> Verdict {
    let maps = [MapInfo {
        name: "map0".into(),
        map_type: Some(2),
        key_size: Some(4),
        value_size: Some(16),
        max_entries: Some(1),
        ..MapInfo::default()
    }];
    let arity = |_: &str| None;
    let env = Env { maps: &maps, callee_args: &arity, ..Env::empty() };
    functions(&function(kind, old), &function(kind, new), &env, &Options::default()).0
}

#[track_caller]
fn equal(old: &str, new: &str) {
    let v = verdict_of(ProgKind::Xdp, old, new);
    assert!(v.is_equal(), "{v:?}\n{old}\n---\n{new}");
}

#[track_caller]
fn not_equal(old: &str, new: &str) {
    let v = verdict_of(ProgKind::Xdp, old, new);
    assert!(!v.is_equal(), "proven equal:\n{old}\n---\n{new}");
}

/// Calls `ktime_get_ns` ten times.
const LOOP: &str = "
    r6 = 0
    r7 = 5
    call 5
    r7 += 1
    r6 += 1
    if r6 < 10 goto -4
    r0 = 1
    exit";

#[test]
fn a_loop_with_a_cheaper_body_is_equal() {
    equal(
        LOOP,
        "
        r6 = 0
        call 5
        r6 += 1
        if w6 != 10 goto -3
        r0 = 1
        exit",
    );
}

#[test]
fn a_rotated_loop_is_equal() {
    equal(
        "
        r6 = r1
        r6 = *(u32 *)(r6 + 12)
        if r6 == 0 goto +3
        call 5
        r6 += -1
        goto -4
        r0 = 1
        exit",
        "
        r6 = *(u32 *)(r1 + 12)
        if r6 == 0 goto +3
        call 5
        r6 += -1
        if r6 != 0 goto -3
        r0 = 1
        exit",
    );
}

#[test]
fn merged_tails_are_equal() {
    equal(
        "
        r6 = *(u32 *)(r1 + 12)
        if r6 == 3 goto +4
        call 5
        r0 = 1
        r0 += 1
        exit
        call 7
        r0 = 2
        exit",
        "
        r6 = *(u32 *)(r1 + 12)
        if r6 == 3 goto +3
        call 5
        r0 = 2
        exit
        call 7
        goto -4",
    );
}

#[test]
fn a_folded_branch_is_equal() {
    equal(
        "
        r6 = *(u32 *)(r1 + 12)
        r6 &= 7
        if r6 > 7 goto +3
        call 5
        r0 = 1
        exit
        call 7
        r0 = 2
        exit",
        "
        call 5
        r0 = 1
        exit",
    );
}

#[test]
fn a_swapped_branch_is_equal() {
    equal(
        "
        r6 = *(u32 *)(r1 + 12)
        if r6 == 3 goto +3
        call 5
        r0 = 1
        exit
        call 7
        r0 = 2
        exit",
        "
        r6 = *(u32 *)(r1 + 12)
        if w6 != 3 goto +3
        call 7
        r0 = 2
        exit
        call 5
        r0 = 1
        exit",
    );
}

/// The new side skips a test that the edge it comes by has decided.
#[test]
fn a_threaded_test_is_equal() {
    equal(
        "
        r6 = *(u32 *)(r1 + 12)
        if r6 > 9 goto +1
        call 5
        if r6 == 12 goto +2
        r0 = 1
        exit
        call 7
        r0 = 2
        exit",
        "
        r6 = *(u32 *)(r1 + 12)
        if r6 == 12 goto +5
        if r6 > 9 goto +1
        call 5
        r0 = 1
        exit
        exit
        call 7
        r0 = 2
        exit",
    );
}

/// Each step is small, the whole is not: `w` instructions for masked 64-bit ones in a mixing chain.
#[test]
fn a_long_hash_in_narrower_instructions_is_equal() {
    let mut old = String::from("r6 = *(u32 *)(r1 + 12)\nr7 = *(u32 *)(r1 + 16)\nr8 = *(u32 *)(r1 + 12)\n");
    let mut new = old.clone();
    for (a, b, c, k) in [(6, 7, 8, 4), (7, 8, 6, 6), (8, 6, 7, 8), (6, 7, 8, 16), (7, 8, 6, 19), (8, 6, 7, 4)] {
        let (high, up) = (32 - k, k);
        // a -= c; a ^= rotate(c, k); c += b
        old += &format!(
            "r{a} -= r{c}\nr0 = r{c}\nr0 <<= 32\nr0 >>= 32\nr0 >>= {high}\nr1 = r{c}\nr1 <<= {up}\nr1 |= r0\nr{a} ^= r1\n\
             r{c} += r{b}\n"
        );
        new += &format!(
            "w{a} -= w{c}\nw0 = w{c}\nw0 >>= {high}\nw1 = w{c}\nw1 <<= {up}\nw0 |= w1\nw{a} ^= w0\nw{c} += w{b}\n"
        );
    }
    old += "r6 <<= 32\nr6 >>= 32\nr9 = r6\ncall 5\nr0 = r9\nexit\n";
    new += "w9 = w6\ncall 5\nr0 = r9\nexit\n";
    equal(&old, &new);
}

#[test]
fn one_iteration_more_is_not_equal() {
    not_equal(LOOP, &LOOP.replace("< 10", "< 11"));
}

#[test]
fn a_missing_store_before_exit_is_not_equal() {
    let old = "
        *(u32 *)(r10 - 4) = 0
        r2 = r10
        r2 += -4
        r1 = map_fd[0] ll
        call 1
        if r0 == 0 goto +1
        *(u64 *)(r0 + 8) = 1
        r0 = 1
        exit";
    equal(old, old);
    not_equal(old, &old.replace("*(u64 *)(r0 + 8) = 1", "r1 = 1"));
    not_equal(old, &old.replace("r0 + 8", "r0 + 0"));
}

#[test]
fn swapped_successors_are_not_equal() {
    let old = "
        r6 = *(u32 *)(r1 + 12)
        if r6 == 3 goto +2
        r0 = 1
        exit
        r0 = 2
        exit";
    not_equal(old, &old.replace("r6 == 3", "r6 != 3"));
}

#[test]
fn a_loop_only_one_side_has_is_not_equal() {
    let endless = "
        r6 = *(u32 *)(r1 + 12)
        if r6 == 3 goto -1
        r0 = 1
        exit";
    let straight = "
        r0 = 1
        exit";
    not_equal(endless, straight);
    not_equal(straight, endless);
    let waiting = "
        r6 = 0
        r6 += 0
        if r6 != 10 goto -2
        r0 = 1
        exit";
    not_equal(straight, waiting);
}

#[test]
fn a_call_without_effect_that_nobody_reads_may_go() {
    equal(LOOP, &LOOP.replace("call 5", "r0 = 0"));
}

#[test]
fn a_dropped_call_is_not_equal() {
    not_equal(
        "
        r6 = *(u32 *)(r1 + 12)
        r0 = 1
        if r6 == 3 goto +3
        r1 = 1
        r2 = 0
        call 23
        exit",
        "
        r0 = 1
        exit",
    );
}

#[test]
fn a_call_with_another_argument_is_not_equal() {
    let old = "
        r1 = 1
        r2 = 0
        call 23
        exit";
    not_equal(old, &old.replace("r1 = 1", "r1 = 2"));
}

#[test]
fn more_stack_than_before_is_not_equal() {
    let old = "
        *(u64 *)(r10 - 8) = 1
        r0 = *(u64 *)(r10 - 8)
        exit";
    equal(old, "r0 = 1\nexit");
    not_equal(old, &old.replace("- 8", "- 16"));
    not_equal("r0 = 1\nexit", old);
}

/// A subprogram may be given an address of its caller's frame, never of its own.
#[test]
fn a_private_slot_of_a_subprogram_is_not_what_its_callees_see() {
    let old = "
        *(u64 *)(r10 - 8) = r1
        *(u32 *)(r10 - 12) = 13
        call 5
        r1 = *(u64 *)(r10 - 8)
        r2 = 0
        r3 = 0
        r4 = 0
        r5 = 0
        call 12345
        exit";
    let v = verdict_of(ProgKind::Subprogram, old, &old.replace("*(u32 *)(r10 - 12) = 13", "r2 = 13"));
    assert!(v.is_equal(), "{v:?}");
}

#[test]
fn a_slot_that_a_callee_sees_is_not_dropped() {
    let old = "
        *(u64 *)(r10 - 8) = 1
        r1 = r10
        r1 += -16
        *(u64 *)(r10 - 16) = 2
        r2 = 0
        r3 = 0
        r4 = 0
        r5 = 0
        call 12345
        r0 = 0
        exit";
    not_equal(old, &old.replace("*(u64 *)(r10 - 8) = 1", "r2 = 0"));
    // Nor one seen later, by way of an address that leaked.
    let old = old.replace(
        "call 12345\n        r0 = 0",
        "call 12345\n*(u64 *)(r10 - 8) = 7\nr1 = 0\nr2 = 0\nr3 = 0\nr4 = 0\nr5 = 0\ncall 12345\nr0 = 0",
    );
    not_equal(&old, &old.replace("*(u64 *)(r10 - 8) = 7", "r2 = 0"));
}

/// What `trace_printk("%s")` prints may be a stack buffer.
#[test]
fn a_string_that_is_printed_from_the_stack_is_not_dropped() {
    let old = "
        *(u64 *)(r10 - 8) = 29477
        *(u64 *)(r10 - 16) = 97
        r1 = r10
        r1 += -8
        r2 = 3
        r3 = r10
        r3 += -16
        r4 = 0
        r5 = 0
        call 6
        r0 = 0
        exit";
    not_equal(old, &old.replace("*(u64 *)(r10 - 16) = 97", "r0 = 0"));
}

/// Stores the length of the packet in each turn of a loop, `again` and in front of it; what it stores is read behind the loop.
fn stores_in_a_loop(first: &str, again: &str) -> String {
    format!(
        "
        r6 = *(u32 *)(r1 + 12)
        {first}
        *(u64 *)(r10 - 8) = r6
        r7 = 0
        call 5
        {again}
        r7 += 1
        if r7 < 10 goto -{}
        r0 = *(u64 *)(r10 - 8)
        exit",
        again.lines().filter(|l| !l.trim().is_empty()).count() + 3
    )
}

/// What the frame holds already, a register tells.
#[test]
fn a_slot_that_holds_what_is_stored_again_is_not_stored() {
    equal(&stores_in_a_loop("", "r1 = r6\n*(u64 *)(r10 - 8) = r1"), &stores_in_a_loop("", ""));
    equal(&stores_in_a_loop("", "w1 = w6\n*(u64 *)(r10 - 8) = r1"), &stores_in_a_loop("", ""));
    equal(&stores_in_a_loop("", "*(u16 *)(r10 - 8) = r6"), &stores_in_a_loop("", ""));
    equal(&stores_in_a_loop("r8 = r6", "*(u64 *)(r10 - 8) = r8"), &stores_in_a_loop("r8 = r6", ""));
}

#[test]
fn a_slot_that_holds_something_else_is_stored() {
    // The register has changed since, or is another one.
    not_equal(&stores_in_a_loop("", "r6 += 1\n*(u64 *)(r10 - 8) = r6"), &stores_in_a_loop("", "r6 += 1"));
    not_equal(&stores_in_a_loop("r8 = *(u32 *)(r1 + 16)", "*(u64 *)(r10 - 8) = r8"), &stores_in_a_loop("", ""));
    // It does so behind the store: in the next turn it is another one.
    not_equal(&stores_in_a_loop("", "*(u64 *)(r10 - 8) = r6\nr6 += 1"), &stores_in_a_loop("", "r6 += 1"));
    // The slot has, in part.
    let torn = "*(u8 *)(r10 - 5) = r7\n";
    not_equal(&stores_in_a_loop("", &format!("{torn}*(u64 *)(r10 - 8) = r6")), &stores_in_a_loop("", torn));
    let half = "*(u32 *)(r10 - 8) = r7\n";
    not_equal(&stores_in_a_loop("", &format!("{half}*(u64 *)(r10 - 8) = r6")), &stores_in_a_loop("", half));
    // It has more bits than the slot, or another place.
    let wide = "r6 <<= 40\n*(u32 *)(r10 - 16) = r6\nr6 >>= 8";
    not_equal(&stores_in_a_loop(wide, "*(u64 *)(r10 - 8) = r6"), &stores_in_a_loop(&format!("{wide}\nr6 >>= 8"), ""));
    not_equal(&stores_in_a_loop("", "*(u16 *)(r10 - 6) = r6"), &stores_in_a_loop("", ""));
    // A helper writes there (`probe_read`).
    let written = "r1 = r10\nr1 += -8\nr2 = 8\nr3 = 0\ncall 4\n";
    not_equal(&stores_in_a_loop("", &format!("{written}*(u64 *)(r10 - 8) = r6")), &stores_in_a_loop("", written));
}

/// A product in two orders of its parts, which the solver has to settle, and a call before and behind it.
#[test]
fn a_proof_ends_where_its_budget_does_the_same_each_time() {
    let with = |sum: &str| format!("r6 = *(u32 *)(r1 + 12)\ncall 5\nr7 = r0\n{sum}\ncall 5\nr0 = r8\nexit");
    let old = function(ProgKind::Xdp, &with("r8 = r6\nr8 &= r7\nr9 = r6\nr9 |= r7\nr8 += r9"));
    let new = function(ProgKind::Xdp, &with("r8 = r6\nr8 += r7"));
    let with_budget = |units: u64| {
        let budget = Budget::new(units);
        let options = Options { budget: Some(budget.clone()), ..Options::default() };
        let (verdict, _) = functions(&old, &new, &Env::empty(), &options);
        assert_eq!(options.is_over(), budget.left() == 0);
        (verdict.is_equal(), units - budget.left())
    };
    let most = 1 << 40;
    let (is_equal, needed) = with_budget(most);
    assert!(is_equal && needed > 100, "{needed}");
    assert_eq!(with_budget(most), (true, needed));
    assert_eq!(with_budget(needed + 1), (true, needed));
    for units in [0, needed / 10, needed / 2] {
        assert_eq!(with_budget(units), (false, units), "of {needed}");
    }
}
