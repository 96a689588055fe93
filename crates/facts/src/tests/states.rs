//! What states say after particular programs.

use bpf_program::{BlockId, ProgKind};

use super::{at_end, function, r, with_core};
use crate::{BaseId, Env, Facts, Kind, Num, Region, State, Tnum, Value, address_of};

fn end(kind: ProgKind, text: &str, block: u32) -> State {
    at_end(&function(kind, text), block)
}

#[test]
fn arguments_of_a_program_and_of_a_subprogram() {
    let s = end(ProgKind::Xdp, "exit", 0);
    assert_eq!(*s.reg(r(1)), Value::pointer(Region::Ctx, BaseId::Fixed, 0));
    assert_eq!(*s.reg(r(10)), Value::pointer(Region::Stack, BaseId::Fixed, 0));
    assert!(end(ProgKind::Subprogram, "exit", 0).reg(r(1)).is_unknown());
}

#[test]
fn a_halfword_on_all_paths_stays_below_65536() {
    let s = end(
        ProgKind::Skb,
        "
        r2 = *(u32 *)(r1 + 76)
        r3 = *(u32 *)(r1 + 80)
        r4 = r2
        r4 += 40
        if r4 > r3 goto out
        r5 = *(u16 *)(r2 + 12)
        if r5 == 8 goto other
        r5 = *(u16 *)(r2 + 16)
        goto join
        other: r5 = *(u16 *)(r2 + 20)
        join: r0 = r5
        exit
        out: r0 = 0
        exit",
        4,
    );
    assert_eq!((s.reg(r(5)).num.umin, s.reg(r(5)).num.umax), (0, 0xffff));
    assert_eq!(s.reg(r(5)).kind, Kind::Scalar);
}

#[test]
fn constants_join_to_their_common_bits() {
    let s = end(ProgKind::Skb, "r0 = *(u32 *)(r1 + 0)\nif r0 == 0 goto a\nr0 = 0x14\ngoto b\na: r0 = 0x16\nb: exit", 3);
    assert_eq!(s.reg(r(0)).num.tnum, Tnum { value: 0x14, mask: 2 });
    assert_eq!((s.reg(r(0)).num.umin, s.reg(r(0)).num.umax), (0x14, 0x16));
}

#[test]
fn a_comparison_tells_on_both_edges() {
    let f = function(ProgKind::Skb, "r0 = *(u32 *)(r1 + 0)\nif r0 > 7 goto a\nexit\na: exit");
    let facts = Facts::of(&f, &Env::empty());
    let range = |taken| {
        let n = facts.edge(&f, BlockId(0), taken).unwrap().reg(r(0)).num;
        (n.umin, n.umax)
    };
    assert_eq!(range(true), (8, 0xffff_ffff));
    assert_eq!(range(false), (0, 7));
}

#[test]
fn a_32_bit_comparison_narrows_the_low_half_only() {
    let f = function(ProgKind::Subprogram, "w2 = w1\nif w1 > 7 goto a\nif w2 == 3 goto a\nexit\na: exit");
    let facts = Facts::of(&f, &Env::empty());
    let n = facts.edge(&f, BlockId(0), false).unwrap().reg(r(1)).num;
    assert_eq!((n.umin, n.tnum), (0, Tnum::unknown(0xffff_ffff_0000_0007)));
    assert_eq!(facts.edge(&f, BlockId(1), true).unwrap().reg(r(2)).as_const(), Some(3));
}

#[test]
fn a_decided_jump_makes_its_other_edge_unreachable() {
    let f = function(ProgKind::Xdp, "r0 = 5\nif r0 s> 4 goto a\nr0 = 1\nexit\na: exit");
    let facts = Facts::of(&f, &Env::empty());
    assert!(facts.edge(&f, BlockId(0), false).is_none());
    assert!(facts.entry(BlockId(1)).is_none());
    assert!(facts.states(&f, BlockId(1)).is_empty());
    assert!(facts.entry(BlockId(2)).is_some());
}

const LOOKUP: &str = "
    *(u64 *)(r10 - 8) = 0
    *(u64 *)(r10 - 16) = 0
    r2 = r10
    r2 += -16
    r1 = map_fd[0] ll
    call 1
    r6 = r0
    *(u64 *)(r10 - 24) = r0
    if r0 == 0 goto null
    r3 = *(u64 *)(r10 - 24)
    r0 = 0
    exit
    null: r3 = *(u64 *)(r10 - 24)
    r0 = 0
    exit";

#[test]
fn a_null_check_settles_every_copy() {
    let site = BaseId::Site(BlockId(0), 5);
    let value = Value::pointer(Region::MapValue { map: 0 }, site, 0);
    let s = end(ProgKind::Xdp, LOOKUP, 1);
    assert_eq!((s.reg(r(3)), s.reg(r(6))), (&value, &value));
    assert_eq!(address_of(&s, r(6), 4), Some((Region::MapValue { map: 0 }, site, Num::constant(64, 4))));
    let s = end(ProgKind::Xdp, LOOKUP, 2);
    assert_eq!((s.reg(r(3)), s.reg(r(6))), (&Value::constant(0), &Value::constant(0)));
    let before = end(ProgKind::Xdp, LOOKUP, 0);
    assert!(matches!(before.reg(r(6)).kind, Kind::Pointer { nullable: true, .. }));
    assert_eq!(address_of(&before, r(6), 4), None);
}

#[test]
fn a_pointer_joined_with_null_does_not_share_its_name() {
    // r7 is the lookup's result or null: that it is null says nothing of r6.
    let s = end(
        ProgKind::Xdp,
        "
        r6 = r1
        *(u64 *)(r10 - 8) = 0
        *(u64 *)(r10 - 16) = 0
        r2 = r10
        r2 += -16
        r1 = map_fd[0] ll
        call 1
        r7 = r0
        r8 = *(u32 *)(r6 + 12)
        if r8 == 0 goto keep
        r7 = 0
        keep: if r7 == 0 goto null
        exit
        null: exit",
        4,
    );
    assert_eq!(*s.reg(r(7)), Value::constant(0));
    assert!(matches!(s.reg(r(0)).kind, Kind::Pointer { nullable: true, .. }));
}

#[test]
fn a_lookup_in_a_loop_renames_what_earlier_rounds_left() {
    let f = function(
        ProgKind::Xdp,
        "
        r6 = 0
        r9 = 4
        loop: r7 = r6
        *(u64 *)(r10 - 8) = r9
        *(u64 *)(r10 - 16) = r9
        r2 = r10
        r2 += -16
        r1 = map_fd[0] ll
        call 1
        r6 = r0
        r9 += -1
        if r9 != 0 goto loop
        r0 = 0
        exit",
    );
    let s = at_end(&f, 1);
    let (new, old) = (s.reg(r(6)), s.reg(r(7)));
    assert!(matches!(new.kind, Kind::Pointer { base: BaseId::Site(..), .. }));
    assert!(matches!(old.kind, Kind::Pointer { base: BaseId::Unknown, .. }), "{old:?}");
    assert!(!new.same_base(old) && !old.same_base(old));
}

#[test]
fn a_lookup_in_a_map_of_maps_is_no_value_of_that_map() {
    let s = end(ProgKind::Xdp, "*(u32 *)(r10 - 4) = 0\nr2 = r10\nr2 += -4\nr1 = map_fd[1] ll\ncall 1\nexit", 0);
    assert_eq!(*s.reg(r(0)).region().unwrap(), Region::Kernel);
    assert!(Region::Kernel.may_overlap(&Region::MapValue { map: 0 }) && !Region::Kernel.may_overlap(&Region::Stack));
}

#[test]
fn packet_pointers_live_until_the_packet_moves() {
    let f = function(
        ProgKind::Xdp,
        "
        r6 = r1
        r7 = *(u32 *)(r1 + 0)
        r8 = *(u32 *)(r6 + 0)
        r8 += 14
        *(u64 *)(r10 - 8) = r7
        r2 = 4
        call 44
        r9 = *(u32 *)(r6 + 0)
        r0 = 0
        exit",
    );
    let facts = Facts::of(&f, &Env::empty());
    let states = facts.states(&f, BlockId(0));
    let before = &states[6];
    assert!(before.reg(r(7)).same_base(before.reg(r(8))));
    assert_eq!(*before.reg(r(8)), Value::pointer(Region::Packet, BaseId::Fixed, 14));
    let after = states.last().unwrap();
    assert!(after.reg(r(7)).is_unknown() && after.reg(r(8)).is_unknown());
    assert!(after.stack_bytes(-8, 8).is_unknown());
    assert_eq!(*after.reg(r(9)), Value::pointer(Region::Packet, BaseId::Site(BlockId(0), 6), 0));
    assert!(!after.frame_leaked());
}

#[test]
fn packet_bases_agree_where_paths_meet() {
    let s = end(
        ProgKind::Xdp,
        "
        r6 = r1
        r7 = *(u32 *)(r6 + 12)
        if r7 == 0 goto stay
        r1 = r6
        r2 = 4
        call 44
        stay: r7 = *(u32 *)(r6 + 0)
        r8 = *(u32 *)(r6 + 0)
        r0 = 0
        exit",
        2,
    );
    assert!(s.reg(r(7)).same_base(s.reg(r(8))));
    assert_eq!(s.packet_base(), BaseId::Join(BlockId(2)));
}

#[test]
fn bounds_checks_tell_how_much_packet_there_is() {
    for (check, in_edge, bytes) in [
        ("if r4 > r3 goto out", false, 14),
        ("if r4 >= r3 goto out", false, 15),
        ("if r3 < r4 goto out", false, 14),
        ("if r4 <= r3 goto out", true, 14),
        ("if r3 > r4 goto out", true, 15),
    ] {
        let text = format!("r2 = *(u32 *)(r1 + 0)\nr3 = *(u32 *)(r1 + 4)\nr4 = r2\nr4 += 14\n{check}\nexit\nout: exit");
        let f = function(ProgKind::Xdp, &text);
        let facts = Facts::of(&f, &Env::empty());
        let range = |taken| facts.edge(&f, BlockId(0), taken).unwrap().packet_range(BaseId::Fixed);
        assert_eq!((range(in_edge), range(!in_edge)), (bytes, 0), "{check}");
    }
}

#[test]
fn four_byte_loads_through_an_unknown_pointer_may_be_pointers() {
    // r1 may be the context: then this is the packet's 64-bit address.
    let s = end(ProgKind::Subprogram, "r2 = *(u32 *)(r1 + 0)\nr3 = *(u16 *)(r1 + 0)\nexit", 0);
    assert!(s.reg(r(2)).is_unknown());
    assert_eq!(s.reg(r(3)).num.umax, 0xffff);
    let s = end(ProgKind::Other, "r2 = *(u32 *)(r1 + 0)\nexit", 0);
    assert!(s.reg(r(2)).is_unknown());
    let s = end(ProgKind::Tracing, "r2 = *(u32 *)(r1 + 0)\nr3 = *(u64 *)(r1 + 8)\nexit", 0);
    assert_eq!(s.reg(r(2)).num.umax, 0xffff_ffff);
    assert!(s.reg(r(3)).is_unknown());
}

#[test]
fn eight_bytes_of_a_map_value_may_be_a_pointer_but_four_are_a_number() {
    let text = LOOKUP.replace("r3 = *(u64 *)(r10 - 24)", "r3 = *(u32 *)(r6 + 4)\nr4 = *(u64 *)(r6 + 0)");
    let s = end(ProgKind::Xdp, &text, 1);
    assert_eq!(s.reg(r(3)), &Value::scalar(Num::unsigned(64, 0, 0xffff_ffff)));
    assert!(s.reg(r(4)).is_unknown());
}

#[test]
fn spills_keep_values_and_parts_of_them() {
    let s = end(
        ProgKind::Skb,
        "
        r2 = 0x11223344
        *(u64 *)(r10 - 8) = r2
        *(u64 *)(r10 - 16) = r1
        r3 = *(u16 *)(r1 + 0)
        *(u32 *)(r10 - 20) = r3
        *(u8 *)(r10 - 8) = 0x55
        r4 = *(u64 *)(r10 - 8)
        r5 = *(u64 *)(r10 - 16)
        r6 = *(u16 *)(r10 - 6)
        r7 = *(u32 *)(r10 - 20)
        *(u16 *)(r10 - 16) = 0
        r8 = *(u64 *)(r10 - 16)
        exit",
        0,
    );
    assert_eq!(s.reg(r(4)).as_const(), Some(0x11223355));
    assert_eq!(*s.reg(r(5)), Value::pointer(Region::Ctx, BaseId::Fixed, 0));
    assert_eq!(s.reg(r(6)).as_const(), Some(0x1122));
    assert_eq!(s.reg(r(7)).num.umax, 0xffff);
    assert_eq!(s.reg(r(8)).kind, Kind::Scalar);
    assert_eq!(s.reg(r(8)).num.tnum.mask & 0xffff, 0);
    assert_eq!(s.stack_bytes(-8, 4).as_const(), Some(0x11223355));
}

#[test]
fn a_store_at_a_varying_offset_spoils_what_it_may_hit() {
    let s = end(
        ProgKind::Skb,
        "
        *(u64 *)(r10 - 8) = 1
        *(u64 *)(r10 - 16) = 2
        *(u64 *)(r10 - 24) = 3
        *(u64 *)(r10 - 32) = 4
        r2 = *(u32 *)(r1 + 0)
        r2 &= 8
        r2 += r10
        *(u8 *)(r2 - 24) = 0
        exit",
        0,
    );
    let held = [-8, -16, -24, -32].map(|off| s.stack_bytes(off, 8).as_const());
    assert_eq!(held, [Some(1), None, None, Some(4)]);
    // Of the spoilt slots one byte each may be hit, and the byte between them.
    assert_eq!(s.stack_bytes(-15, 4).as_const(), Some(0));
}

#[test]
fn a_store_through_an_unknown_pointer_spares_a_private_frame() {
    let private = "*(u64 *)(r10 - 8) = 1\n*(u64 *)(r1 + 0) = 0\nexit";
    let s = end(ProgKind::Subprogram, private, 0);
    assert_eq!(s.stack_bytes(-8, 8).as_const(), Some(1));
    let leaked = "*(u64 *)(r10 - 8) = 1\nr2 = r10\n*(u64 *)(r3 + 0) = r2\n*(u64 *)(r1 + 0) = 0\nexit";
    let s = end(ProgKind::Subprogram, leaked, 0);
    assert!(s.frame_leaked() && s.stack_bytes(-8, 8).is_unknown());
}

#[test]
fn a_stack_pointer_lost_at_a_join_has_leaked_only_if_it_is_live() {
    let text = |last| format!("if r1 == 0 goto a\nr6 = r10\ngoto b\na: r6 = r2\nb: r0 = {last}\nexit");
    assert!(!end(ProgKind::Subprogram, &text("0"), 3).frame_leaked());
    assert!(end(ProgKind::Subprogram, &text("*(u32 *)(r6 - 4)"), 3).frame_leaked());
}

#[test]
fn arithmetic_on_pointers() {
    let s = end(
        ProgKind::Skb,
        "
        r2 = *(u32 *)(r1 + 76)
        r3 = *(u8 *)(r2 + 0)
        r4 = r2
        r4 += r3
        r5 = r4
        r5 -= r2
        w6 = w2
        r7 = r2
        r7 &= -8
        r8 = r10
        r8 += -16
        r9 = r10
        r9 -= r8
        exit",
        0,
    );
    assert!(s.reg(r(4)).same_base(s.reg(r(2))));
    assert_eq!((s.reg(r(4)).num.umin, s.reg(r(4)).num.umax), (0, 255));
    assert_eq!((s.reg(r(5)).kind.clone(), s.reg(r(5)).num.umax), (Kind::Scalar, 255));
    assert_eq!((s.reg(r(6)).kind.clone(), s.reg(r(6)).num.umax), (Kind::Scalar, 0xffff_ffff));
    assert_eq!(s.reg(r(7)).kind, Kind::Unknown);
    assert_eq!(s.reg(r(9)).as_const(), Some(16));
    assert!(!s.frame_leaked());
}

#[test]
fn loops_end_and_keep_their_bounds() {
    let f = function(
        ProgKind::Xdp,
        "
        r6 = 0
        r7 = 0
        loop: r7 += r6
        *(u64 *)(r10 - 8) = r7
        r6 += 1
        if r6 < 100 goto loop
        r0 = r6
        exit",
    );
    let facts = Facts::of(&f, &Env::empty());
    let head = facts.entry(BlockId(1)).unwrap().reg(r(6)).num;
    assert_eq!((head.umin, head.umax), (0, 99));
    assert_eq!(facts.entry(BlockId(2)).unwrap().reg(r(6)).as_const(), Some(100));
}

#[test]
fn nested_and_irreducible_loops_end() {
    let f = function(
        ProgKind::Xdp,
        "
        r6 = 0
        r7 = 0
        outer: r6 += 3
        r8 = 0
        inner: r8 += r6
        r7 += r8
        *(u32 *)(r10 - 4) = r7
        if r8 s< 1000 goto inner
        if r6 < 50 goto outer
        if r7 == 3 goto x
        y: r6 += -1
        if r6 == 0 goto out
        x: r7 ^= r6
        if r7 != 9 goto y
        out: r0 = 0
        exit",
    );
    let facts = Facts::of(&f, &Env::empty());
    assert!((0..f.blocks.len()).all(|b| facts.entry(BlockId(b as u32)).is_some()));
}

#[test]
fn may_goto_goes_both_ways() {
    let f = function(ProgKind::Xdp, "r6 = 0\nloop: may_goto out\nr6 += 1\ngoto loop\nout: r0 = 0\nexit");
    let facts = Facts::of(&f, &Env::empty());
    assert!(facts.edge(&f, BlockId(1), true).is_some() && facts.edge(&f, BlockId(1), false).is_some());
    assert!(facts.edge(&f, BlockId(3), true).is_none(), "exit has no edge");
}

#[test]
fn patched_instructions_are_not_trusted() {
    let f = function(ProgKind::Tracing, "r2 = 8\nr3 = *(u32 *)(r1 + 8)\nr4 = r1\nr4 += 16\nexit");
    let f = with_core(with_core(with_core(f, 0, 0), 0, 1), 0, 3);
    let s = at_end(&f, 0);
    assert_eq!(s.reg(r(2)).as_const(), None);
    assert!(s.reg(r(3)).is_unknown());
    assert_eq!(s.reg(r(4)).num.as_const(), None);
}

#[test]
fn a_patched_store_to_the_stack_spoils_all_of_it() {
    let f = function(ProgKind::Tracing, "*(u64 *)(r10 - 8) = 1\n*(u32 *)(r10 - 16) = 1\nexit");
    assert_eq!(at_end(&f, 0).stack_bytes(-8, 8).as_const(), Some(1));
    assert!(at_end(&with_core(f, 0, 1), 0).stack_bytes(-8, 8).is_unknown());
}

#[test]
fn a_spilled_stack_pointer_that_is_lost_has_leaked() {
    let spill = "r2 = r10\n*(u64 *)(r10 - 8) = r2\n";
    for (text, block, leaks) in [
        (format!("{spill}r3 = *(u64 *)(r10 - 8)\nexit"), 0, false),
        (format!("{spill}*(u64 *)(r10 - 8) = 0\nexit"), 0, false),
        // Some slot, maybe that one.
        (format!("{spill}r3 = *(u32 *)(r1 + 0)\nr3 &= 8\nr3 += r10\nr3 = *(u64 *)(r3 - 16)\nexit"), 0, true),
        (format!("{spill}r3 = *(u32 *)(r1 + 0)\nr3 &= 8\nr3 += r10\n*(u64 *)(r3 - 16) = 0\nexit"), 0, true),
        // Half of it.
        (format!("{spill}r3 = *(u32 *)(r10 - 8)\nexit"), 0, true),
        (format!("{spill}*(u32 *)(r10 - 8) = 0\nexit"), 0, true),
        // On one path only.
        (format!("r3 = *(u32 *)(r1 + 0)\nif r3 == 0 goto a\n{spill}a: exit"), 2, true),
        // Exchanged into memory, and into a register.
        ("*(u64 *)(r10 - 8) = 0\nr2 = r10\nr2 = xchg_64(r10 - 8, r2)\nexit".into(), 0, true),
        (format!("{spill}r3 = 0\nr3 = xchg_64(r10 - 8, r3)\nexit"), 0, true),
    ] {
        assert_eq!(end(ProgKind::Skb, &text, block).frame_leaked(), leaks, "{text}");
    }
}

#[test]
fn values_of_two_maps_meet_as_a_value_of_some_map() {
    let value = |map, off| Value::pointer(Region::MapValue { map }, BaseId::Site(BlockId(1), 2), off);
    let joined = value(0, 8).join(&value(1, 24));
    assert_eq!(joined.region(), Some(&Region::AnyMapValue));
    assert!(joined.num.contains(8) && joined.num.contains(24), "{joined:?}");
    assert!(!joined.same_base(&joined.clone()), "nobody knows which one it is");
    assert_eq!(joined.join(&value(2, 8)).region(), Some(&Region::AnyMapValue));
    let overlaps = |r: Region| Region::AnyMapValue.may_overlap(&r) && r.may_overlap(&Region::AnyMapValue);
    assert!(overlaps(Region::MapValue { map: 7 }) && overlaps(Region::AnyMapValue) && overlaps(Region::Kernel));
    assert!(!overlaps(Region::Packet) && !overlaps(Region::Stack) && !overlaps(Region::Ctx));
    // Not with what is no map value.
    let packet = Value::pointer(Region::Packet, BaseId::Fixed, 8);
    assert!(value(0, 8).join(&packet).is_unknown() && joined.join(&packet).is_unknown());
}
