//! What passes do with stores that are stored over, with what ends all ways into a join, and with questions about one number.

use bpf_isa::{Insn, parse_listing};

use crate::common::*;

/// Two ways, each of which stores a part of a word of zeros; `part` is what one of them stores.
fn zeros(part: &str) -> String {
    format!(
        "*(u32 *)(r10 - 4) = 0
        r2 = *(u32 *)(r1 + 12)
        r3 = *(u32 *)(r1 + 16)
        if r2 > 9 goto +3
        {part}
        goto +2
        *(u16 *)(r10 - 4) = r2
        *(u16 *)(r10 - 2) = r3
        r1 = 0 ll
        r2 = r10
        r2 += -4
        call 1
        r0 = 0
        exit"
    )
}

#[test]
fn zeros_beside_what_is_stored_over_them_are_stored_with_it() {
    let part = |n| format!("r3 &= 0xff\n*(u{n} *)(r10 - 4) = r3");
    let got = graphs("ssa-fill", &zeros(&part(8)));
    assert_eq!(got.len(), 1);
    same(&got[0], zeros(&part(32)).strip_prefix("*(u32 *)(r10 - 4) = 0").expect("the store"));
}

#[test]
fn what_has_more_bits_than_are_stored_is_not_stored_wider() {
    assert!(graphs("ssa-fill", &zeros("r3 = r3\n*(u8 *)(r10 - 4) = r3")).is_empty());
    // Not at its beginning: the zeros are on both sides.
    assert!(graphs("ssa-fill", &zeros("r3 &= 0xff\n*(u8 *)(r10 - 3) = r3")).is_empty());
}

#[test]
fn a_constant_takes_in_what_is_known_on_both_sides() {
    let before = "*(u32 *)(r10 - 4) = 0
        r2 = *(u32 *)(r1 + 12)
        r0 = 1
        if r2 > 9 goto +3
        *(u8 *)(r10 - 4) = 6
        *(u16 *)(r10 - 2) = 7
        r0 = *(u32 *)(r10 - 4)
        exit";
    let after = "r2 = *(u32 *)(r1 + 12)
        r0 = 1
        if r2 > 9 goto +2
        *(u32 *)(r10 - 4) = 0x70006
        r0 = *(u32 *)(r10 - 4)
        exit";
    let got = graphs("ssa-fill", before);
    assert_eq!(got.len(), 1);
    same(&got[0], after);
    // Where someone reads the bytes before, they have to be there.
    let read = before.replace("r0 = 1\n", "r0 = *(u8 *)(r10 - 3)\n");
    assert!(graphs("ssa-fill", &read).iter().all(|g| g.contains("*(u32 *)(r10 - 0x4) = 0x0")));
}

/// Two ways to a join, at the ends of which this is done.
fn two_ways(one: &str, other: &str, behind: &str) -> String {
    let length = |text: &str| parse_listing(text).expect("a listing").iter().map(Insn::slots).sum::<usize>();
    format!(
        "r2 = *(u32 *)(r1 + 12)
        if r2 > 9 goto +{}
        {one}
        goto +{}
        {other}
        {behind}",
        length(one) + 1,
        length(other)
    )
}

#[test]
fn what_is_done_at_the_end_of_both_ways_is_done_behind_the_join() {
    let end = |r: &str| format!("{r} = be16 {r}\n*(u16 *)(r10 - 4) = {r}");
    let behind = "r2 = r10\nr2 += -4\nr1 = 0 ll\ncall 1\nr0 = 0\nexit";
    let start = "*(u16 *)(r10 - 2) = 0\n";
    let way = |r: &str, off: u32| format!("{r} = *(u32 *)(r1 + {off})\n");
    let to = |off: u32| format!("r3 = *(u32 *)(r1 + {off})");
    let before = two_ways(&(way("r3", 16) + &end("r3")), &(way("r4", 20) + &end("r4")), behind);
    let got = with(&["ssa-sinking"], &(start.to_owned() + &before));
    let after = two_ways(&to(16), &to(20), &format!("{}\n{behind}", end("r3")));
    same(&got, &(start.to_owned() + &after));
}

#[test]
fn a_map_is_named_once_for_both_ways() {
    let behind = "r2 = r10\nr2 += -4\n*(u32 *)(r10 - 4) = r3\ncall 1\nr0 = 0\nexit";
    let got = with(&["ssa-sinking"], &two_ways("r3 = 1\nr1 = 0 ll", "r3 = 2\nr1 = 0 ll", behind));
    assert_eq!(got.matches(" ll").count(), 1, "{got}");
}

#[test]
fn what_someone_may_see_on_one_of_the_ways_stays_there() {
    let behind = "r0 = r3\nexit";
    let stores = |at: u32, then: &str| format!("r3 = *(u32 *)(r1 + {at})\n*(u32 *)(r10 - 4) = r3\n{then}");
    // The number is read again; or a function is called, which could be given it.
    let read = ["r3 = *(u16 *)(r10 - 4)", "r3 = *(u8 *)(r10 - 1)"];
    let called = ["call 5\nr3 = 7", "call 8\nr3 = 7"];
    for [one, other] in [read, called] {
        let got = with(&["ssa-sinking"], &two_ways(&stores(16, one), &stores(20, other), behind));
        assert_eq!(got.matches("*(u32 *)(r10 - 0x4) = ").count(), 2, "{got}");
    }
}

/// A number that is one of a few, and a question about it.
fn few(question: &str) -> String {
    format!(
        "r2 = *(u32 *)(r1 + 12)
        r3 = 1
        if r2 == 7 goto +3
        r3 = 5
        if r2 == 9 goto +1
        r3 = 10
        r0 = 1
        {question} goto +1
        r0 = 2
        exit"
    )
}

#[test]
fn a_question_about_one_of_a_few_numbers_is_answered_by_all_of_them() {
    const PASSES: &[&str] = &["ssa-predicates", "ssa-dead"];
    for question in ["if r3 != 3", "if w3 != 3", "if r3 < 11", "if r3 s> 0", "if r3 <= 10", "if r3 & 15"] {
        becomes(PASSES, &few(question), "r2 = *(u32 *)(r1 + 12)\nr0 = 1\nexit");
    }
    for question in ["if r3 == 3", "if r3 > 10", "if r3 & 0x10", "if w3 s< 1", "if r3 == -1"] {
        becomes(PASSES, &few(question), "r2 = *(u32 *)(r1 + 12)\nr0 = 2\nexit");
    }
    for question in ["if r3 != 5", "if r3 > 1", "if r3 & 2"] {
        let got = with(PASSES, &few(question));
        assert!(got.contains("r0 = 0x2") && got.contains("r0 = 0x1"), "{question}: {got}");
    }
}

/// The number was asked about on each of the ways, and on none that dominates.
#[test]
fn what_was_asked_on_all_ways_is_known_behind_them() {
    let before = "
        r2 = *(u32 *)(r1 + 12)
        r0 = 0
        if r2 == 8 goto +2
        if r2 != 9 goto +6
        r0 = 4
        r0 += 3
        if r2 == 8 goto +2
        if r2 != 9 goto +1
        r0 += 9
        r0 += 2
        exit";
    let got = with(&["ssa-predicates", "ssa-dead"], before);
    assert!(got.matches("if ").count() < before.matches("if ").count(), "{got}");
}

#[test]
fn a_tree_of_questions_becomes_a_row() {
    let before = "
        r2 = *(u32 *)(r1 + 12)
        r2 &= 0xffff
        if r2 > 300 goto +5
        if r2 == 7 goto +1
        if r2 != 9 goto +1
        goto +4
        r0 = 0
        exit
        if r2 == 400 goto +1
        goto -4
        r0 = 1
        exit";
    let got = with(&["ssa-decisions"], before);
    assert_eq!(got.matches("if ").count(), 3, "{got}");
    assert!(!got.contains('>'), "no question halves: {got}");
    // Signs matter where a number may be negative; and what is done on the way belongs there.
    let negative = before.replace("r2 &= 0xffff", "r2 += 1").replace("if r2 > 300", "if r2 s> 300");
    assert!(with(&["ssa-decisions"], &negative).contains("s> 0x12c"));
    let stores = before
        .replace("goto +5", "goto +6")
        .replace("if r2 == 7 goto +1", "*(u32 *)(r10 - 4) = 1\nr3 = *(u32 *)(r10 - 4)\nif r2 == 7 goto +1")
        .replace("goto +6", "goto +7");
    let got = with(&["ssa-decisions"], &stores);
    assert!(got.contains("0x12c") && got.contains("= 0x1\nif r2 "), "{got}");
}

#[test]
fn a_row_tests_both_ends_of_a_range() {
    let before = "
        r2 = *(u32 *)(r1 + 12)
        r2 &= 0xffff
        if r2 > 300 goto +4
        if r2 > 99 goto +5
        if r2 == 5 goto +4
        r0 = 0
        exit
        if r2 != 400 goto -3
        goto +0
        r0 = 1
        exit";
    // 5, 100 to 300, and 400.
    let got = with(&["ssa-decisions"], before);
    assert_eq!(got.matches("if ").count(), 4, "{got}");
    assert_eq!(got.matches('<').count() + got.matches('>').count(), 2, "{got}");
}

/// Which numbers have a bit is no matter of intervals: such a question ends a tree.
#[test]
fn tests_of_bits_are_no_questions_of_a_tree() {
    let before = "
        r2 = *(u32 *)(r1 + 12)
        r2 &= 0xff
        r0 = 0
        if r2 & 6 goto +3
        if r2 & 2 goto +3
        r0 = 7
        exit
        r0 = 1
        exit
        r0 = 3
        exit";
    let got = with(&["ssa-decisions"], before);
    assert_eq!((got.matches("& 0x6").count(), got.matches('<').count()), (1, 0), "{got}");
}

#[test]
fn a_constant_of_a_join_is_set_before_the_question() {
    let before = "
        r2 = *(u32 *)(r1 + 12)
        if r2 == 7 goto +3
        if r2 != 9 goto +6
        r3 = 4
        goto +1
        r3 = 5
        r0 = r3
        r0 <<= 1
        exit
        r0 = 1
        exit";
    let got = with(&["ssa-presets"], before);
    assert!(got.starts_with("r2 = *(u32 *)(r1 + 0xc)\nr0 = 0x5\nif r2 == 0x7 "), "{got}");
    assert!(got.contains("r0 = 0x4\nif r2 ") && !got.contains("\ngoto"), "{got}");
}

#[test]
fn the_result_that_is_zero_is_returned_as_it_is() {
    let before = "
        *(u32 *)(r10 - 4) = 3
        r2 = r10
        r2 += -4
        r1 = 0 ll
        call 1
        if r0 != 0 goto +2
        r0 = 0
        goto +4
        r1 = *(u64 *)(r0 + 0)
        r1 += 1
        *(u64 *)(r0 + 0) = r1
        r0 = 7
        exit";
    let got = with(&["ssa-equals"], before);
    assert!(!got.contains("r0 = 0x0\n"), "{got}");
    // Another number is no zero.
    assert!(with(&["ssa-equals"], &before.replace("r0 = 0\n", "r0 = 1\n")).contains("r0 = 0x1\n"));
}

#[test]
fn a_pointer_goes_on_with_the_sum_of_each_way() {
    let before = "
        r2 = *(u32 *)(r1 + 4)
        r1 = *(u32 *)(r1 + 0)
        r1 += 14
        r0 = 1
        if r1 > r2 goto +11
        r3 = *(u16 *)(r1 - 2)
        if r3 == 8 goto +5
        r4 = r1
        r4 += 40
        if r4 > r2 goto +6
        r0 = *(u8 *)(r1 + 6)
        exit
        r4 = r1
        r4 += 20
        if r4 > r2 goto +1
        r0 = *(u8 *)(r1 + 9)
        exit";
    let got = with(&["ssa-rebase"], before);
    assert!(got.contains("- 0xb)") && got.contains("- 0x22)"), "{got}");
}

/// A join that stores a constant or a number of its own, behind a question that a store of a constant stands before.
fn default_store(first: &str, between: &str, default: &str) -> String {
    format!(
        "r3 = {default}
        *(u32 *)(r10 - 16) = {first}
        r2 = *(u32 *)(r1 + 12)
        r0 = 7
        {between}
        if r2 > 9 goto +3
        r4 = *(u32 *)(r1 + 16)
        *(u32 *)(r10 - 16) = r4
        r3 = *(u32 *)(r1 + 20)
        *(u32 *)(r10 - 12) = r3
        r1 = 0 ll
        r2 = r10
        r2 += -12
        call 1
        r0 = *(u32 *)(r10 - 16)
        exit"
    )
}

#[test]
fn what_a_join_stores_by_default_is_stored_with_the_constant_beside_it() {
    let got = with(&["ssa-default-stores"], &default_store("5", "", "0"));
    assert!(got.starts_with("*(u64 *)(r10 - 0x10) = 0x5\n"), "{got}");
    assert_eq!(got.matches("*(u32 *)(r10 - 0xc) = r").count(), 1, "{got}");
    assert_eq!(got.lines().count(), 13, "{got}");
    // The default is the lower half, and then the number has to be one that a store of eight bytes takes.
    let lower = default_store("-1", "", "-7").replace("- 12", "- 99").replace("- 16", "- 12").replace("- 99", "- 16");
    let got = with(&["ssa-default-stores"], &lower.replace("r2 += -12", "r2 += -16"));
    assert!(got.starts_with("*(u64 *)(r10 - 0x10) = -0x7\n"), "{got}");
}

#[test]
fn a_default_stays_where_it_is_seen_or_does_not_fit() {
    let stays = |before: &str| {
        let got = with(&["ssa-default-stores"], before);
        assert!(!got.contains("*(u64 *)"), "{got}");
    };
    // Two numbers that are no immediate of eight bytes; somebody reads what was there before; or it is not a neighbour.
    stays(&default_store("5", "", "1"));
    stays(&default_store("-5", "", "0"));
    stays(&default_store("5", "*(u32 *)(r10 - 12) = 3\nr0 = *(u32 *)(r10 - 12)", "0"));
    stays(&default_store("5", "", "0").replace("- 16", "- 8"));
    stays(&default_store("5", "", "0").replace("- 16", "- 20"));
    let read = default_store("5", "*(u32 *)(r10 - 12) = 3", "0");
    stays(&read.replace("r4 = *(u32 *)(r1 + 16)", "r4 = *(u32 *)(r10 - 12)"));
}

/// Copies out of a value into the packet, behind which this is done.
fn copies(behind: &str) -> String {
    let found = "r6 = *(u32 *)(r1 + 0)
        r2 = *(u32 *)(r1 + 4)
        r3 = r6
        r3 += 16
        if r3 > r2 goto out
        *(u32 *)(r10 - 4) = 3
        r2 = r10
        r2 += -4
        r1 = 0 ll
        call 1
        if r0 == 0 goto out";
    let rest = behind.lines().count();
    let text = format!("{found}\n{behind}\nr0 = 2\nexit").replacen("goto out", &format!("goto +{}", rest + 7), 1);
    text.replace("goto out", &format!("goto +{rest}"))
}

/// Six bytes, the last ones first.
const SIX: &str = "r1 = *(u16 *)(r0 + 4)\n*(u16 *)(r6 + 4) = r1\nr1 = *(u32 *)(r0 + 0)\n*(u32 *)(r6 + 0) = r1\n";

#[test]
fn what_is_copied_in_parts_is_copied_with_what_is_beside() {
    let got = with(&["ssa-wide-copies"], &copies(&format!("{SIX}*(u32 *)(r6 + 6) = 7")));
    assert!(got.contains("*(u64 *)(r0 + 0x0)\n*(u64 *)(r6 + 0x0) = "), "{got}");
    assert!(!got.contains("u16"), "{got}");
    // The two bytes behind, each by a store of its own; and three of four.
    let got = with(&["ssa-wide-copies"], &copies(&format!("{SIX}*(u8 *)(r6 + 7) = 7\n*(u8 *)(r6 + 6) = 7")));
    assert!(got.contains("*(u64 *)(r6 + 0x0) = "), "{got}");
    let three = "r1 = *(u16 *)(r0 + 4)\n*(u16 *)(r6 + 8) = r1\nr1 = *(u8 *)(r0 + 6)\n*(u8 *)(r6 + 10) = r1\n";
    let got = with(&["ssa-wide-copies"], &copies(&format!("{three}*(u8 *)(r6 + 11) = 7")));
    assert!(got.contains("*(u32 *)(r0 + 0x4)\n*(u32 *)(r6 + 0x8) = "), "{got}");
}

#[test]
fn what_is_beside_a_copy_and_stays_is_not_copied() {
    let stays = |behind: &str| {
        let got = with(&["ssa-wide-copies"], &copies(behind));
        assert!(!got.contains("u64"), "{got}");
    };
    stays(SIX.trim());
    stays(&format!("{SIX}*(u8 *)(r6 + 6) = 7"));
    stays(&format!("{SIX}r2 = *(u8 *)(r6 + 7)\n*(u16 *)(r6 + 6) = r2"));
    stays(&format!("*(u16 *)(r6 + 6) = 7\n{}", SIX.trim()));
    // Not aligned, and beyond the end of the value; of another distance; read again.
    stays(&format!("{}*(u16 *)(r6 + 6) = 7", SIX.replace("(r0 + 4)", "(r0 + 6)").replace("(r0 + 0)", "(r0 + 2)")));
    stays(&format!("{}*(u16 *)(r6 + 6) = 7", SIX.replace("(r0 + 4)", "(r0 + 6)")));
    stays(&format!("{}*(u16 *)(r6 + 6) = r1", SIX));
}

#[test]
fn neighbouring_legacy_loads_become_one() {
    let asks = |loads: &str| format!("r7 = *(u32 *)(r1 + 12)\nr7 &= 15\nr6 = r1\n{loads}\nexit");
    becomes(
        &["ssa-packet-loads", "ssa-dead"],
        &asks("r0 = *(u16 *)skb[r7 + 6]\nr8 = r0\nr0 = *(u8 *)skb[r7 + 9]\nr0 += r8"),
        &asks("r0 = *(u32 *)skb[r7 + 6]\nr1 = r0\nr1 >>= 16\nr0 &= 255\nr0 += r1"),
    );
    // Five bytes, another index, and a call between that may change the packet.
    for two in [
        "r0 = *(u16 *)skb[r7 + 6]\nr8 = r0\nr0 = *(u8 *)skb[r7 + 10]\nr0 += r8",
        "r0 = *(u16 *)skb[6]\nr8 = r0\nr0 = *(u8 *)skb[r7 + 8]\nr0 += r8",
        "r0 = *(u16 *)skb[r7 + 6]\nr8 = r0\ncall 7\nr0 = *(u8 *)skb[r7 + 9]\nr0 += r8",
    ] {
        assert_eq!(with(&["ssa-packet-loads"], &asks(two)).matches("skb[").count(), 2, "{two}");
    }
}
