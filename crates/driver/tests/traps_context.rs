//! Parts of context fields that are short in the kernel: rewrites that would be right if a narrow load gave its bytes.
//!
//! `__sk_buff` gives every field four bytes, but some have one or two in the kernel. A load of their upper half gives the
//! lower half (see `SKB_SHORT` in `bpf-platform`; `bpf-modeltest` shows it in the running kernel). So such a load is
//! neither zero nor part of the whole field.

mod common;

use common::{Trap, none_proven, trap};

const OBJECT: &[u8] = include_bytes!("../../../examples/hooks.o");
const SKB: &str = "on_skb";

/// Two halves of the field at `offset`, put together, against the whole of it.
fn halves(name: &'static str, offset: u32) -> Trap {
    let upper = offset + 2;
    trap(
        name,
        SKB,
        format!("r0 = *(u16 *)(r1 + {offset}); r2 = *(u16 *)(r1 + {upper}); r2 <<= 16; r0 |= r2; exit"),
        format!("r0 = *(u32 *)(r1 + {offset}); exit"),
    )
}

#[test]
fn halves_of_short_fields_do_not_make_the_whole() {
    let traps = [
        halves("protocol", 16),
        halves("vlan_tci", 24),
        halves("vlan_proto", 28),
        halves("queue_mapping", 12),
        halves("tc_index", 44),
        halves("tc_classid", 72),
        halves("gso_segs", 164),
        halves("gso_size", 176),
    ];
    none_proven(OBJECT, &traps);
}

#[test]
fn the_upper_part_of_a_short_field_is_not_that_of_the_whole() {
    let traps = [
        trap(
            "pkt_type has one byte, which all its bytes give",
            SKB,
            "r0 = *(u32 *)(r1 + 4); r0 >>= 8; r0 &= 255; exit",
            "r0 = *(u8 *)(r1 + 5); exit",
        ),
        trap(
            "the upper half of protocol",
            SKB,
            "r0 = *(u32 *)(r1 + 16); r0 >>= 16; exit",
            "r0 = *(u16 *)(r1 + 18); exit",
        ),
    ];
    none_proven(OBJECT, &traps);
}

#[test]
fn halves_of_a_whole_field_make_the_whole() {
    let mark = halves("mark", 8);
    let right = Trap { right: Some(mark.wrong.clone()), ..mark };
    common::all_proven(OBJECT, &[right]);
}
