//! How an address of the frame gets out through a helper: copied with the memory it is spilled in, or as a number.
//!
//! In each original a slot is read through an address that got out; the wrong rewrite deletes the store to that slot,
//! because nothing in the program reads it by name. Near twins in which no address gets out, or in which the store is
//! dead all the same, must be proven: they show what the rule costs.

use crate::common::{self, Trap, found, trap};

const OBJECT: &[u8] = include_bytes!("../../../../examples/kinds.o");
const XDP: &str = "on_xdp";
const SKB: &str = "on_skb";

/// The secret that is read through the address.
const SECRET: &str = "*(u64 *)(r10 - 16) = 5";
/// The address of the secret is spilled at -8.
const SPILLED: &str = "r2 = r10; r2 += -16; *(u64 *)(r10 - 8) = r2";
/// Reads eight bytes at the address in r3.
const PROBED: &str = "r1 = r10; r1 += -40; r2 = 8; call 113; r0 = *(u64 *)(r10 - 40); exit";

/// A body that stores the secret, spills its address, lets `copy` bring the address to r3, and reads there. The wrong
/// rewrite has no secret, the right one is the original with a dead store in front.
fn copied(name: &'static str, host: &'static str, copy: &str) -> Trap {
    let body = |secret: &str| format!("r6 = r1; {secret}; {SPILLED}; {copy}; {PROBED}; out: w0 = 2; exit");
    let body = |secret: &str| body(secret).replace("; ; ", "; ");
    trap(name, host, body(SECRET), body("")).right(body(&format!("*(u64 *)(r10 - 16) = 4; {SECRET}")))
}

/// A probed copy of the slot at -8 into the slot at -24, by the helper with this number.
fn probe(helper: u32) -> String {
    format!("r1 = r10; r1 += -24; r2 = 8; r3 = r10; r3 += -8; call {helper}; r3 = *(u64 *)(r10 - 24)")
}

/// `body` with r7 at a map value, from which r3 is loaded at last.
fn by_map(body: &str) -> String {
    let found = "*(u32 *)(r10 - 28) = 1; r2 = r10; r2 += -28; r1 = &counts; call 1; if r0 == 0 goto out; r7 = r0";
    format!("{found}; {body}; r3 = *(u64 *)(r7 + 0)")
}

fn copies() -> Vec<Trap> {
    let update = "*(u32 *)(r10 - 28) = 1; r1 = &counts; r2 = r10; r2 += -28; r3 = r10; r3 += -8; r4 = 0; call 2";
    let lookup = "r2 = r10; r2 += -28; r1 = &counts; call 1; if r0 == 0 goto out; r3 = *(u64 *)(r0 + 0)";
    let load =
        |helper: u32| format!("r1 = r6; r2 = 0; r3 = r10; r3 += -24; r4 = 8; call {helper}; r3 = *(u64 *)(r10 - 24)");
    let store = |helper: u32| format!("r1 = r6; r2 = 0; r3 = r10; r3 += -8; r4 = 8; r5 = 0; call {helper}");
    vec![
        copied("probe_read_kernel", XDP, &probe(113)),
        copied("probe_read", XDP, &probe(4)),
        copied("probe_read_kernel_str", XDP, &probe(115)),
        copied("map_update_elem, read back by a lookup", XDP, &format!("{update}; {lookup}")),
        copied("skb_store_bytes, read back by skb_load_bytes", SKB, &format!("{}; {}", store(9), load(26))),
        copied("xdp_store_bytes, read back by xdp_load_bytes", XDP, &format!("{}; {}", store(190), load(189))),
        copied(
            "ringbuf_output, given back in a map",
            XDP,
            &by_map("r1 = &events; r2 = r10; r2 += -8; r3 = 8; r4 = 0; call 130"),
        ),
        copied(
            "csum_diff tells the number",
            XDP,
            "r1 = 0; r2 = 0; r3 = r10; r3 += -8; r4 = 8; r5 = 0; call 28; r3 = r0",
        ),
        copied(
            "a lookup by the bytes of the address tells them",
            XDP,
            "r1 = &counts; r2 = r10; r2 += -8; call 1; if r0 == 0 goto out; r3 = *(u64 *)(r0 + 0)",
        ),
        copied(
            "trace_printk reads a string through the address",
            XDP,
            &by_map("r1 = r10; r1 += -40; r2 = 3; *(u64 *)(r10 - 40) = 29477; r3 = *(u64 *)(r10 - 8); call 6"),
        ),
    ]
}

/// A body that stores the secret and hands its address to a helper as a number; user space gives it back in `tstamp`.
fn as_number(name: &'static str, call: &str) -> Trap {
    let body = |secret: &str| format!("r6 = r1; {secret}{call}; r3 = *(u64 *)(r6 + 152); {PROBED}");
    let secret = |n: u32| format!("*(u64 *)(r10 - 16) = {n}; ");
    trap(name, SKB, body(&secret(5)), body("")).right(body(&format!("{}{}", secret(4), secret(5))))
}

fn numbers() -> Vec<Trap> {
    vec![
        as_number("skb_set_tstamp keeps it in the context", "r2 = r10; r2 += -16; r3 = 1; call 192"),
        as_number("set_hash keeps half of it in the context", "r2 = r10; r2 += -16; call 48"),
        as_number("csum_update adds it up", "r2 = r10; r2 += -16; call 40"),
        as_number("skb_change_type", "r2 = r10; r2 += -16; call 32"),
        as_number("redirect", "r1 = r10; r1 += -16; r2 = 0; call 23"),
        as_number("the flags of skb_under_cgroup", "r2 = r10; r2 += -16; r3 = r2; call 33"),
        as_number("the parts of a number that is printed", "r1 = r10; r1 += -40; r2 = 3; r3 = r10; r3 += -16; call 6"),
    ]
}

/// Originals in which no address gets out: the store is dead, and a rewrite without it is right.
fn nothing_gets_out() -> Vec<Trap> {
    let dead = |name, host, call: &str| {
        let body = |secret: &str| format!("r6 = r1; {secret}{call}; w0 = 1; exit; out: w0 = 2; exit");
        let body = |secret: &str| {
            if call.contains("goto out") { body(secret) } else { body(secret).replace("; out: w0 = 2; exit", "") }
        };
        trap(name, host, body(&format!("{SECRET}; ")), body("")).right(body(""))
    };
    let beside = "r2 = r10; r2 += -16; *(u64 *)(r10 - 8) = r2";
    vec![
        dead("a probe of other bytes", XDP, "r1 = r10; r1 += -24; r2 = 8; r3 = r6; call 113"),
        dead(
            "bytes beside a spilled address are copied",
            XDP,
            &format!("{beside}; r1 = r10; r1 += -24; r2 = 8; r3 = r10; r3 += -32; call 113"),
        ),
        dead(
            "a key beside a spilled address",
            XDP,
            &format!("{beside}; *(u32 *)(r10 - 28) = 1; r2 = r10; r2 += -28; r1 = &counts; call 1"),
        ),
        dead("a buffer that is filled", SKB, "r2 = 0; r3 = r10; r3 += -24; r4 = 8; call 26"),
        dead("a number that is no address", SKB, "r2 = 16; r3 = 1; call 192"),
    ]
}

#[test]
fn a_helper_that_copies_memory_copies_spilled_frame_addresses() {
    let traps = copies();
    assert!(traps.len() >= 5);
    common::none_proven(OBJECT, &traps);
}

#[test]
fn a_frame_address_that_leaves_as_a_number_can_come_back() {
    let traps = numbers();
    assert!(traps.len() >= 5);
    common::none_proven(OBJECT, &traps);
}

#[test]
fn a_store_that_is_overwritten_is_dead_even_where_the_address_got_out() {
    common::all_proven(OBJECT, &copies());
    common::all_proven(OBJECT, &numbers());
}

#[test]
fn a_store_is_dead_where_no_address_gets_out() {
    common::all_proven(OBJECT, &nothing_gets_out());
}

/// The address of a slot is handed to a callback, which reads it.
#[test]
fn a_callback_reads_what_its_context_leads_to() {
    let body = |secret: &str| {
        format!("{secret}r1 = 3; r2 = &count_up; r3 = r10; r3 += -16; r4 = 0; call 181; r0 = *(u64 *)(r10 - 16); exit")
    };
    let t = trap("loop", XDP, body("*(u64 *)(r10 - 16) = 5; "), body("")).right(body("*(u64 *)(r10 - 16) = 5; "));
    common::none_proven(OBJECT, &[t]);
}

/// An element of a map may hold the address: what is found there may lead to the frame.
#[test]
fn what_is_found_in_a_map_may_be_the_address() {
    let body = |secret: &str| {
        found("counts", &format!("{secret}r2 = r10; r2 += -16; *(u64 *)(r6 + 0) = r2; r3 = *(u64 *)(r6 + 0); {PROBED}"))
    };
    let t = trap("a store to a map value", XDP, body("*(u64 *)(r10 - 16) = 5; "), body(""));
    common::none_proven(OBJECT, &[t]);
}
