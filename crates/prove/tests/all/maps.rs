//! What is known about maps: when two lookups may be taken for one, and when not.

use bpf_facts::{Env, MapInfo};
use bpf_isa::{Imm64Kind, Insn};
use bpf_program::{Function, ProgKind, Symbol};
use bpf_prove::{Options, functions};
use bpf_testgen::listing::linked;

fn map(name: &str, map_type: u32) -> MapInfo {
    MapInfo {
        name: name.into(),
        map_type: Some(map_type),
        key_size: Some(4),
        value_size: Some(16),
        max_entries: Some(4),
        ..MapInfo::default()
    }
}

const HASH: u32 = 1;
const ARRAY: u32 = 2;
const LRU_HASH: u32 = 9;

/// A function over two maps: `r1 = 1 ll` stands for the first, `r1 = 2 ll` for the other.
fn function(text: &str) -> Function {
    let symbol = |insn: &Insn| match insn {
        Insn::LoadImm64 { kind: Imm64Kind::Const, imm: 1, .. } => Some(Symbol::Map { name: "m".into(), index: 0 }),
        Insn::LoadImm64 { kind: Imm64Kind::Const, .. } => Some(Symbol::Map { name: "n".into(), index: 1 }),
        _ => None,
    };
    linked(ProgKind::Xdp, text, symbol).expect("a function")
}

fn equal(map_type: u32, old: &str, new: &str) -> bool {
    let maps = [map("m", map_type), map("n", map_type)];
    let env = Env { maps: &maps, callee_args: &|_| None, ..Env::empty() };
    functions(&function(old), &function(new), &env, &Options::default()).0.is_equal()
}

/// Looks the key up that is at r10 - 4; the element goes to `to`, without one the program ends.
fn lookup(to: &str) -> String {
    format!("r2 = r10\nr2 += -4\nr1 = 1 ll\ncall 1\nif r0 != 0x0 goto +0x2\nr0 = 0\nexit\n{to} = r0\n")
}

const KEY: &str = "r6 = *(u32 *)(r1 + 12)\n*(u32 *)(r10 - 4) = r6\n";
const USE_TWO: &str = "r1 = *(u64 *)(r7 + 0)\nr2 = *(u64 *)(r8 + 8)\nr1 += r2\nr0 = r1\nexit\n";
const USE_ONE: &str = "r1 = *(u64 *)(r7 + 0)\nr2 = *(u64 *)(r7 + 8)\nr1 += r2\nr0 = r1\nexit\n";

#[test]
fn a_repeated_lookup_may_be_the_first_one() {
    let old = format!("{KEY}{}{}{USE_TWO}", lookup("r7"), lookup("r8"));
    let new = format!("{KEY}{}{USE_ONE}", lookup("r7"));
    for map_type in [HASH, ARRAY] {
        assert!(equal(map_type, &old, &new), "type {map_type}");
        // The other direction would assume what the kernel does not promise.
        assert!(!equal(map_type, &new, &old), "type {map_type}");
    }
    // A lookup in an LRU map keeps its element alive.
    assert!(!equal(LRU_HASH, &old, &new));
}

#[test]
fn not_with_another_key() {
    let old = format!("{KEY}{}*(u32 *)(r10 - 4) = 7\n{}{USE_TWO}", lookup("r7"), lookup("r8"));
    let new = format!("{KEY}{}*(u32 *)(r10 - 4) = 7\n{USE_ONE}", lookup("r7"));
    assert!(!equal(HASH, &old, &new));
    // Written again, but the same: then it is the same key.
    let again = "*(u32 *)(r10 - 4) = r6\n";
    let old = format!("{KEY}{}{again}{}{USE_TWO}", lookup("r7"), lookup("r8"));
    let new = format!("{KEY}{}{USE_ONE}", lookup("r7"));
    assert!(equal(HASH, &old, &new));
}

#[test]
fn not_across_what_changes_the_map() {
    // bpf_map_delete_elem with the same key.
    let delete = "r2 = r10\nr2 += -4\nr1 = 1 ll\ncall 3\n";
    let old = format!("{KEY}{}{delete}{}{USE_TWO}", lookup("r7"), lookup("r8"));
    let new = format!("{KEY}{}{delete}{USE_ONE}", lookup("r7"));
    assert!(!equal(HASH, &old, &new));
    // bpf_ktime_get_ns changes none, but elements of hashes may go in the meantime: still one that may be.
    let time = "call 5\n";
    let old = format!("{KEY}{}{time}{}{USE_TWO}", lookup("r7"), lookup("r8"));
    let new = format!("{KEY}{}{time}{USE_ONE}", lookup("r7"));
    assert!(equal(ARRAY, &old, &new));
}

#[test]
fn the_new_program_knows_nothing_about_its_own_lookups() {
    // Two lookups on both sides; the new one checks the first for null and uses the second.
    let second = "r2 = r10\nr2 += -4\nr1 = 1 ll\ncall 1\nr8 = r0\n";
    let old = format!("{KEY}{}{second}r0 = *(u64 *)(r7 + 0)\nexit\n", lookup("r7"));
    let new = format!("{KEY}{}{second}r0 = *(u64 *)(r8 + 0)\nexit\n", lookup("r7"));
    assert!(!equal(HASH, &old, &new));
}

#[test]
fn an_array_has_an_element_zero() {
    let old = format!("*(u32 *)(r10 - 4) = 0\n{}r0 = *(u64 *)(r7 + 0)\nexit\n", lookup("r7"));
    let new = "*(u32 *)(r10 - 4) = 0\nr2 = r10\nr2 += -4\nr1 = 1 ll\ncall 1\nr0 = *(u64 *)(r0 + 0)\nexit\n";
    assert!(equal(ARRAY, &old, new));
    assert!(!equal(HASH, &old, new));
    // The loader may make the array smaller than the object says.
    assert!(!equal(
        ARRAY,
        &old.replace("(r10 - 4) = 0", "(r10 - 4) = 1"),
        &new.replace("(r10 - 4) = 0", "(r10 - 4) = 1")
    ));
}

/// r7: a value of one map or the other, r8: one of the first map, r9: the packet, 4 bytes of it readable.
fn joined(rest: &str) -> String {
    format!(
        "
        r6 = *(u32 *)(r1 + 12)
        r9 = *(u32 *)(r1 + 0)
        r2 = *(u32 *)(r1 + 4)
        r1 = r9
        r1 += 4
        if r1 > r2 goto out
        *(u32 *)(r10 - 4) = r6
        r2 = r10
        r2 += -4
        r1 = 1 ll
        call 1
        r7 = r0
        r8 = r0
        if r0 == 0x0 goto out
        r6 &= 1
        if r6 != 0x0 goto join
        r2 = r10
        r2 += -4
        r1 = 2 ll
        call 1
        r7 = r0
        if r0 == 0x0 goto out
        join: {rest}
        exit
        out: r0 = 0
        exit"
    )
}

#[test]
fn a_value_of_one_map_or_another_is_no_packet_but_may_be_any_of_theirs() {
    let order = |first: &str, second: &str| joined(&format!("{first}\n{second}"));
    let (load, map, packet) = ("r0 = *(u32 *)(r7 + 0)", "*(u32 *)(r8 + 0) = 5", "*(u16 *)(r9 + 0) = 5");
    assert!(equal(HASH, &order(load, packet), &order(packet, load)), "a packet is no map value");
    assert!(!equal(HASH, &order(load, map), &order(map, load)), "it may be the same element");
}
