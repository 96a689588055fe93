//! What helpers write, and when: memory of a reservation and the packet, buffers that a failing helper leaves alone,
//! memory that ends.

use crate::common::{self, Trap, trap};

const KINDS: &[u8] = include_bytes!("../../../../examples/kinds.o");
const HOOKS: &[u8] = include_bytes!("../../../../examples/hooks.o");
const XDP: &str = "on_xdp";
const SKB: &str = "on_skb";
const EVENT: &str = "on_event";

/// `body` with r6 at a fresh reservation of `bytes` that is submitted afterwards, r7 the context, and r8 a length from
/// 1 to 8; the result is in r9.
fn reserved(bytes: u32, body: &str) -> String {
    format!(
        "r7 = r1; r1 = &events; r2 = {bytes}; r3 = 0; call 131; if r0 == 0 goto out; r6 = r0;
         call 7; r8 = r0; r8 &= 7; r8 += 1; {body}; r1 = r6; r2 = 0; call 132; r0 = r9; exit; out: w0 = 2; exit"
    )
}

/// A helper writes what was stored; the wrong rewrite takes the stored value.
fn forwarded(name: &'static str, host: &'static str, bytes: u32, call: &str) -> Trap {
    let body = |then: &str| reserved(bytes, &format!("*(u64 *)(r6 + 0) = 5; {call}; {then}"));
    trap(name, host, body("r9 = *(u64 *)(r6 + 0)"), body("r9 = 5"))
        .right(body("r9 = *(u64 *)(r6 + 0)").replace("*(u64 *)(r6 + 0) = 5", "r1 = 5; *(u64 *)(r6 + 0) = r1"))
}

fn writes_of_unknown_extent() -> Vec<Trap> {
    vec![
        forwarded("probe_read_kernel, variable", XDP, 8, "r1 = r6; r2 = r8; r3 = r7; call 113"),
        forwarded("probe_read_kernel_str, variable", XDP, 8, "r1 = r6; r2 = r8; r3 = r7; call 115"),
        forwarded("probe_read_kernel, long", XDP, 8192, "r1 = r6; r2 = 8192; r3 = r7; call 113"),
        forwarded("get_current_comm, variable", XDP, 8, "r1 = r6; r2 = r8; call 16"),
        forwarded("skb_load_bytes, variable", SKB, 8, "r1 = r7; r2 = 0; r3 = r6; r4 = r8; call 26"),
        forwarded("skb_load_bytes, long", SKB, 8192, "r1 = r7; r2 = 0; r3 = r6; r4 = 8000; call 26"),
        forwarded("copy_from_user, variable", XDP, 8, "r1 = r6; r2 = r8; r3 = 0; call 148"),
        forwarded("xdp_load_bytes, constant", XDP, 8, "r1 = r7; r2 = 0; r3 = r6; r4 = 8; call 189"),
    ]
}

/// `body` with r6 at 8 bytes of the packet, and r8 a length from 1 to 8.
fn in_packet(body: &str) -> String {
    format!(
        "r7 = r1; call 7; r8 = r0; r8 &= 7; r8 += 1; r6 = *(u32 *)(r7 + 0); r3 = *(u32 *)(r7 + 4); r2 = r6; r2 += 8;
         if r2 > r3 goto out; {body}; exit; out: w0 = 2; exit"
    )
}

fn writes_to_the_packet() -> Vec<Trap> {
    let forwarded = |name, call: &str| {
        let body = |then: &str| in_packet(&format!("*(u64 *)(r6 + 0) = 5; {call}; {then}"));
        trap(name, XDP, body("r0 = *(u64 *)(r6 + 0)"), body("r0 = 5"))
    };
    vec![
        forwarded("probe_read_kernel, variable", "r1 = r6; r2 = r8; r3 = r7; call 113"),
        forwarded("probe_read_kernel, constant", "r1 = r6; r2 = 8; r3 = r7; call 113"),
        forwarded("get_current_comm, variable", "r1 = r6; r2 = r8; call 16"),
        forwarded("xdp_store_bytes", "r1 = r7; r2 = 0; r3 = r10; r3 += -8; r4 = 8; *(u64 *)(r10 - 8) = 1; call 190"),
    ]
}

/// Which of two places is written is not known.
fn writes_somewhere() -> Vec<Trap> {
    let somewhere = |size: &str| {
        let choice = "call 7; r1 = r6; if w0 != 0 goto in; r1 = r10; r1 += -16; in: r2 = r2";
        let write = format!("*(u64 *)(r10 - 16) = 5; *(u64 *)(r6 + 0) = 5; {choice}; r2 = {size}; r3 = r7; call 113");
        move |then: &str| reserved(8, &format!("{write}; {then}"))
    };
    let [fixed, variable] = [somewhere("8"), somewhere("r8")];
    vec![
        trap("eight bytes of one of two", XDP, fixed("r9 = *(u64 *)(r6 + 0)"), fixed("r9 = 5")),
        trap("some bytes of one of two", XDP, variable("r9 = *(u64 *)(r6 + 0)"), variable("r9 = 5")),
        trap("eight bytes of one of two, the frame", XDP, fixed("r9 = *(u64 *)(r10 - 16)"), fixed("r9 = 5")),
    ]
}

/// A buffer in the frame that the helper may leave as it was: the store before is not dead.
fn perhaps_written(name: &'static str, call: &str) -> Trap {
    let body = |store: &str| format!("r7 = r1; {store}*(u64 *)(r10 - 24) = 3; {call}; r0 = *(u64 *)(r10 - 16); exit");
    let one = "*(u64 *)(r10 - 16) = 1; ";
    trap(name, EVENT, body(one), body("")).right(body(&format!("*(u64 *)(r10 - 16) = 2; {one}")))
}

fn failures_that_write_nothing() -> Vec<Trap> {
    let into = "r2 = r10; r2 += -16";
    vec![
        perhaps_written("get_stack", &format!("r1 = r7; {into}; r3 = 8; r4 = 0; call 67")),
        perhaps_written("get_task_stack", &format!("call 158; r1 = r0; {into}; r3 = 8; r4 = 0; call 141")),
        perhaps_written("probe_read_kernel_str", "r1 = r10; r1 += -16; r2 = 8; r3 = r7; call 115"),
        perhaps_written("probe_read_user_str", "r1 = r10; r1 += -16; r2 = 8; r3 = r7; call 114"),
        perhaps_written("get_func_arg", "r1 = r7; r2 = 0; r3 = r10; r3 += -16; call 183"),
        perhaps_written("get_func_ret", &format!("r1 = r7; {into}; call 184")),
        perhaps_written("read_branch_records", &format!("r1 = r7; {into}; r3 = 8; r4 = 0; call 119")),
        perhaps_written("strtol", "r1 = r10; r1 += -24; r2 = 8; r3 = 0; r4 = r10; r4 += -16; call 105"),
        perhaps_written(
            "probe_read_kernel of a variable length",
            "call 7; r0 &= 7; r2 = r0; r2 += 1; r1 = r10; r1 += -16; r3 = r7; call 113",
        ),
    ]
}

/// Buffers that are overwritten even where the helper fails: the store before is dead.
fn always_written() -> Vec<Trap> {
    let dead = |name, host, call: &str| {
        let body = |store: &str| format!("r7 = r1; {store}{call}; r0 = *(u64 *)(r10 - 16); exit");
        trap(name, host, body("*(u64 *)(r10 - 16) = 1; "), body("")).right(body(""))
    };
    vec![
        dead("probe_read_kernel", EVENT, "r1 = r10; r1 += -16; r2 = 8; r3 = r7; call 113"),
        dead("probe_read_user", EVENT, "r1 = r10; r1 += -16; r2 = 8; r3 = 0; call 112"),
        dead("get_ns_current_pid_tgid", EVENT, "r1 = 1; r2 = 1; r3 = r10; r3 += -16; r4 = 8; call 120"),
    ]
}

/// A reservation ends with its submission or discard: nothing of it is used afterwards, not even in vain.
fn uses_after_the_end() -> Vec<Trap> {
    let used = |name, end: u32, with: &str, after: &str| {
        let body = |after: &str| {
            format!(
                "r1 = &events; r2 = 8; r3 = 0; call 131; if r0 == 0 goto out; r6 = r0; {with}; r1 = r6; r2 = 0;
                 call {end}; {after}w0 = 1; exit; out: w0 = 2; exit"
            )
        };
        trap(name, XDP, body(""), body(&format!("{after}; ")))
    };
    let both = "*(u64 *)(r6 + 0) = 5; r7 = *(u64 *)(r6 + 0)";
    vec![
        used("read after its submission", 132, both, "r7 = *(u64 *)(r6 + 0)"),
        used("read after its discard", 133, both, "r7 = *(u64 *)(r6 + 0)"),
        used("written after its submission", 132, both, "*(u64 *)(r6 + 0) = 5"),
        used("written after its discard", 133, both, "*(u64 *)(r6 + 0) = 5"),
        used("read through a copy", 132, &format!("{both}; r8 = r6"), "r7 = *(u64 *)(r8 + 0)"),
        used("read through a pointer into it", 132, &format!("{both}; r8 = r6; r8 += 4"), "w7 = *(u32 *)(r8 + 0)"),
    ]
}

/// A value that is printed keeps its place among the arguments.
fn places_of_arguments() -> Vec<Trap> {
    let printed = |args: &str| {
        format!("*(u64 *)(r10 - 8) = 6583333; call 5; r1 = r10; r1 += -8; r2 = 4; {args}; call 6; w0 = 1; exit")
    };
    vec![
        trap("the first or the second", XDP, printed("r3 = 7"), printed("r4 = 7")).right(printed("w3 = 7")),
        trap("the second or the third", XDP, printed("r4 = 7"), printed("r5 = 7")).right(printed("w4 = 7")),
        trap("one or two", XDP, printed("r3 = 7"), printed("r3 = 7; r4 = 7")),
        trap("two, one of them elsewhere", XDP, printed("r3 = 1; r5 = 2"), printed("r3 = 1; r4 = 2")),
        trap("exchanged", XDP, printed("r3 = 1; r4 = 2"), printed("r3 = 2; r4 = 1")),
    ]
}

#[test]
fn a_write_of_unknown_length_changes_a_reservation() {
    common::none_proven(KINDS, &writes_of_unknown_extent());
    common::all_proven(KINDS, &writes_of_unknown_extent());
}

#[test]
fn a_write_changes_the_packet() {
    common::none_proven(KINDS, &writes_to_the_packet());
}

#[test]
fn a_write_to_one_of_two_places_changes_both() {
    common::none_proven(KINDS, &writes_somewhere());
}

#[test]
fn a_helper_that_may_fail_without_writing_leaves_what_was_there() {
    let traps = failures_that_write_nothing();
    assert!(traps.len() >= 5);
    common::none_proven(HOOKS, &traps);
    common::all_proven(HOOKS, &traps);
}

#[test]
fn a_store_to_a_buffer_that_is_surely_overwritten_is_dead() {
    common::all_proven(HOOKS, &always_written());
}

#[test]
fn a_reservation_is_not_used_after_its_end() {
    common::none_proven(KINDS, &uses_after_the_end());
}

#[test]
fn a_printed_value_keeps_its_place() {
    common::none_proven(KINDS, &places_of_arguments());
    common::all_proven(KINDS, &places_of_arguments());
}
