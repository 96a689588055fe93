//! Helpers that change the context: fields are read again behind every call that may, whether or not it takes the
//! context; behind those that surely do not, what was read before still stands.

use crate::common::{self, Trap, trap};

const KINDS: &[u8] = include_bytes!("../../../../examples/kinds.o");
const HOOKS: &[u8] = include_bytes!("../../../../examples/hooks.o");
const SKB: &str = "on_skb";
const XDP: &str = "on_xdp";
const EVENT: &str = "on_event";

/// A field (its width and offset) is read before and after a call; the wrong rewrite reads it once.
fn reread(name: &'static str, host: &'static str, field: (u32, u32), call: &str) -> Trap {
    let (bits, off) = field;
    let register = if bits == 64 { "r" } else { "w" };
    let body = |second: &str| {
        format!("r6 = r1; {register}7 = *(u{bits} *)(r6 + {off}); {call}; {second}; {register}0 ^= {register}7; exit")
    };
    trap(
        name,
        host,
        body(&format!("{register}0 = *(u{bits} *)(r6 + {off})")),
        body(&format!("{register}0 = {register}7")),
    )
}

const MARK: (u32, u32) = (32, 8);
const HASH: (u32, u32) = (32, 68);
const TSTAMP: (u32, u32) = (64, 152);
const CB: (u32, u32) = (32, 48);

fn changes() -> Vec<Trap> {
    vec![
        reread("skb_set_tstamp", SKB, TSTAMP, "r1 = r6; r2 = 1; r3 = 1; call 192"),
        reread("get_hash_recalc", SKB, HASH, "r1 = r6; call 34"),
        reread("set_hash_invalid", SKB, HASH, "r1 = r6; call 41"),
        reread("set_hash", SKB, HASH, "r1 = r6; r2 = 1; call 48"),
        reread("skb_change_type", SKB, (32, 4), "r1 = r6; r2 = 1; call 32"),
        reread("a helper that does not take the context", SKB, MARK, "r1 = 9; call 109"),
        reread("a function of the program", SKB, MARK, "r1 = 9; r2 = 1; call blend"),
        reread("a helper without a row", SKB, MARK, "r1 = 9; call 999"),
        reread("a function of the program, bytes of the context", SKB, CB, "r1 = 9; r2 = 1; call blend"),
        reread("a helper that does not take the context, in XDP", XDP, (32, 16), "r1 = 9; call 109"),
    ]
}

fn changes_of_registers() -> Vec<Trap> {
    vec![
        reread("override_return changes pt_regs", EVENT, (64, 80), "r1 = r6; r2 = 3; call 58"),
        reread("send_signal may", EVENT, (64, 80), "r1 = 9; call 109"),
        reread("set_retval may", EVENT, (32, 16), "r1 = 9; call 187"),
    ]
}

/// Calls that surely leave the context alone.
fn no_changes(host: &'static str, field: (u32, u32)) -> Vec<Trap> {
    let key = "*(u32 *)(r10 - 4) = 1; r2 = r10; r2 += -4; r1 = &counts";
    let kept = |name, call: &str| {
        let t = reread(name, host, field, call);
        Trap { right: Some(t.wrong.clone()), ..t }
    };
    vec![
        kept("ktime_get_ns", "call 5"),
        kept("map_lookup_elem", &format!("{key}; call 1")),
        kept(
            "map_update_elem",
            &format!("{key}; *(u64 *)(r10 - 24) = 0; *(u64 *)(r10 - 16) = 0; r3 = r10; r3 += -24; r4 = 0; call 2"),
        ),
        kept("probe_read_kernel", "r1 = r10; r1 += -8; r2 = 8; r3 = 0; call 113"),
        kept("get_current_comm", "r1 = r10; r1 += -16; r2 = 16; call 16"),
    ]
}

#[test]
fn what_a_helper_may_change_in_the_context_is_read_again() {
    let traps = changes();
    assert!(traps.len() >= 5);
    common::none_proven(KINDS, &traps);
    common::none_proven(HOOKS, &changes_of_registers());
}

#[test]
fn the_context_stands_where_a_helper_leaves_it_alone() {
    common::all_proven(KINDS, &no_changes(SKB, MARK));
    common::all_proven(KINDS, &no_changes(XDP, (32, 16)));
    common::all_proven(HOOKS, &no_changes(EVENT, (64, 80)));
}
