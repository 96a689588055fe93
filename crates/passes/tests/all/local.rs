//! What each pass does, as listings. The engine proves every step, so a case that no longer comes out
//! means a pass lost something (or the prover did); it can never mean wrong code.

use std::collections::HashMap;

use bpf_facts::{Env, MapInfo};
use bpf_isa::{Goal, Insn, parse_listing};
use bpf_passes::{Engine, Settings, optimize as optimize_all, shape_mark};
use bpf_program::{Function, Link, ProgKind, Symbol, build_from_insns, lower};
use bpf_prove::{Derivation, Session};
use rustc_hash::FxHashSet;

/// The graph of a listing. `counter` names a map with 4-byte keys and 8-byte values: any
/// `r1 = 0 ll` refers to it.
fn function(listing: &str, kind: ProgKind) -> Function {
    let mut slot = 0;
    let mut decoded = Vec::new();
    let mut links = HashMap::new();
    for insn in parse_listing(listing).expect("a listing") {
        if matches!(insn, Insn::LoadImm64 { imm: 0, .. }) {
            links.insert(slot, Link { slot, symbol: Symbol::Map { name: "counter".into(), index: 0 } });
        }
        decoded.push((slot, insn));
        slot += insn.slots();
    }
    build_from_insns("test", kind, &decoded, links).expect("a graph")
}

fn optimize(listing: &str, settings: &Settings) -> String {
    let maps = [MapInfo {
        name: "counter".into(),
        map_type: Some(2),
        key_size: Some(4),
        value_size: Some(8),
        max_entries: Some(16),
        ..MapInfo::default()
    }];
    let env = Env { maps: &maps, callee_args: &|_| None, ..Env::empty() };
    let f = optimize_all(function(listing, ProgKind::Xdp), &env, settings);
    let lowered = lower(f.current()).expect("it lowers");
    lowered.listing.iter().map(|(_, i)| format!("{i}\n")).collect()
}

/// Only these passes, at this cpu level.
fn with(passes: &[&str], cpu: u8) -> Settings {
    Settings { cpu, only: Some(passes.iter().map(|p| p.to_string()).collect()), ..Settings::default() }
}

fn normal(listing: &str) -> String {
    parse_listing(listing).expect("a listing").iter().map(|i| format!("{i}\n")).collect()
}

#[track_caller]
fn becomes(settings: &Settings, before: &str, after: &str) {
    let (got, want) = (optimize(before, settings), normal(after));
    if got != want {
        let diff = similar::TextDiff::from_lines(&want, &got).unified_diff().header("wanted", "got").to_string();
        panic!("\n{diff}");
    }
}

#[test]
fn a_constant_goes_into_the_store_and_its_register_dies() {
    becomes(
        &with(&["constants", "delete"], 3),
        "r1 = 0
         *(u32 *)(r10 - 4) = r1
         r0 = *(u32 *)(r10 - 4)
         exit",
        "r0 = 0
         exit",
    );
}

#[test]
fn an_immediate_is_never_stored_to_the_context() {
    let listing = "r2 = 7
         *(u32 *)(r1 + 16) = r2
         r0 = 2
         exit";
    becomes(&with(&["constants", "delete"], 3), listing, listing);
}

#[test]
fn a_wide_constant_that_fits_takes_one_slot() {
    becomes(&with(&["constants"], 3), "r0 = 5 ll\nexit", "r0 = 5\nexit");
}

#[test]
fn a_mask_of_known_zero_bits_goes() {
    becomes(
        &with(&["delete"], 3),
        "r2 = *(u32 *)(r1 + 0)
         r3 = *(u32 *)(r1 + 4)
         r4 = r2
         r4 += 2
         if r4 > r3 goto out
         r0 = *(u16 *)(r2 + 0)
         r0 &= 0xffff
         exit
         out:
         r0 = 2
         exit",
        "r2 = *(u32 *)(r1 + 0)
         r3 = *(u32 *)(r1 + 4)
         r4 = r2
         r4 += 2
         if r4 > r3 goto out
         r0 = *(u16 *)(r2 + 0)
         exit
         out:
         r0 = 2
         exit",
    );
}

#[test]
fn a_mask_that_the_store_cuts_off_anyway_goes() {
    becomes(
        &with(&["delete"], 3),
        "call 7
         r0 &= 0xffff
         *(u16 *)(r10 - 2) = r0
         r0 = *(u16 *)(r10 - 2)
         exit",
        "call 7
         *(u16 *)(r10 - 2) = r0
         r0 = *(u16 *)(r10 - 2)
         exit",
    );
}

#[test]
fn stack_bytes_that_are_overwritten_before_any_reader_are_not_stored() {
    // Of the two zero stores only the padding byte range of the key survives a later full store.
    becomes(
        &with(&["delete"], 3),
        "*(u32 *)(r10 - 4) = 1
         *(u32 *)(r10 - 4) = 2
         r2 = r10
         r2 += -4
         r1 = 0 ll
         call 1
         r0 = 0
         exit",
        "*(u32 *)(r10 - 4) = 2
         r2 = r10
         r2 += -4
         r1 = 0 ll
         call 1
         r0 = 0
         exit",
    );
}

#[test]
fn a_store_that_a_helper_reads_stays() {
    let listing = "*(u32 *)(r10 - 4) = 2
         r2 = r10
         r2 += -4
         r1 = 0 ll
         call 1
         r0 = 0
         exit";
    becomes(&with(&["delete"], 3), listing, listing);
}

#[test]
fn a_copy_with_one_reader_goes() {
    becomes(
        &with(&["copies"], 3),
        "call 7
         r6 = r0
         r0 = 1
         r0 += r6
         exit",
        "call 7
         r6 = r0
         r0 = 1
         r0 += r6
         exit",
    );
    becomes(
        &with(&["copies"], 3),
        "r2 = r1
         r0 = *(u32 *)(r2 + 12)
         exit",
        "r0 = *(u32 *)(r1 + 12)
         exit",
    );
}

#[test]
fn a_value_is_computed_where_it_is_wanted() {
    becomes(
        &with(&["coalesce"], 3),
        "r2 = *(u32 *)(r1 + 12)
         r2 += 1
         r0 = r2
         exit",
        "r0 = *(u32 *)(r1 + 12)
         r0 += 1
         exit",
    );
}

#[test]
fn an_address_is_not_computed_when_a_pointer_is_there() {
    becomes(
        &with(&["addresses"], 3),
        "r3 = r10
         r3 += -8
         *(u64 *)(r3 + 0) = 1
         r0 = *(u64 *)(r10 - 8)
         exit",
        "*(u64 *)(r10 - 8) = 1
         r0 = *(u64 *)(r10 - 8)
         exit",
    );
}

#[test]
fn shift_pairs_become_moves_and_masks() {
    becomes(&with(&["shifts"], 3), "call 7\nr0 <<= 32\nr0 >>= 32\nexit", "call 7\nw0 = w0\nexit");
    becomes(&with(&["shifts"], 3), "call 7\nr0 <<= 56\nr0 >>= 56\nexit", "call 7\nr0 &= 0xff\nexit");
}

#[test]
fn a_sign_extending_shift_pair_needs_cpu_v4() {
    let pair = "call 5\nr0 <<= 48\nr0 s>>= 48\nif r0 s> 3 goto +1\nr0 = 1\nexit";
    becomes(&with(&["shifts"], 4), pair, "call 5\nr0 = (s16)r0\nif r0 s> 3 goto +1\nr0 = 1\nexit");
    becomes(&with(&["shifts"], 3), pair, pair);
}

#[test]
fn shifts_before_a_comparison_go_with_a_32_bit_comparison() {
    becomes(
        &with(&["branches"], 3),
        "call 7
         r1 = r0
         r1 <<= 32
         r1 s>>= 32
         r0 = 1
         if r1 s> 5 goto +1
         r0 = 2
         exit",
        "call 7
         r1 = r0
         r0 = 1
         if w1 s> 5 goto +1
         r0 = 2
         exit",
    );
}

#[test]
fn a_branch_on_a_known_condition_is_decided() {
    becomes(
        &with(&["branches", "jumps"], 3),
        "r2 = 3
         r0 = 1
         if r2 > 2 goto +1
         r0 = 2
         exit",
        "r2 = 3
         r0 = 1
         exit",
    );
}

#[test]
fn bytes_assembled_by_shifts_are_one_load() {
    let head = "r2 = *(u32 *)(r1 + 0)
         r3 = *(u32 *)(r1 + 4)
         r4 = r2
         r4 += 14
         if r4 > r3 goto out\n";
    let tail = "\nexit
         out:
         r0 = 2
         exit";
    becomes(
        &with(&["loads"], 3),
        &format!("{head}r4 = *(u8 *)(r2 + 12)\nr0 = *(u8 *)(r2 + 13)\nr0 <<= 8\nr0 |= r4{tail}"),
        &format!("{head}r0 = *(u16 *)(r2 + 12){tail}"),
    );
    becomes(
        &with(&["loads"], 3),
        &format!("{head}r4 = *(u8 *)(r2 + 13)\nr0 = *(u8 *)(r2 + 12)\nr0 <<= 8\nr0 |= r4{tail}"),
        &format!("{head}r0 = *(u16 *)(r2 + 12)\nr0 = be16 r0{tail}"),
    );
}

#[test]
fn neighbouring_constants_are_one_store() {
    becomes(
        &with(&["stores"], 3),
        "*(u32 *)(r10 - 4) = 0
         *(u32 *)(r10 - 8) = 1
         r0 = *(u64 *)(r10 - 8)
         exit",
        "*(u64 *)(r10 - 8) = 1
         r0 = *(u64 *)(r10 - 8)
         exit",
    );
}

#[test]
fn zeros_above_a_short_value_are_part_of_its_register() {
    becomes(
        &with(&["stores"], 3),
        "r2 = *(u32 *)(r1 + 12)
         r2 &= 0xff
         *(u16 *)(r10 - 8) = r2
         *(u16 *)(r10 - 6) = 0
         *(u32 *)(r10 - 4) = 0
         r0 = *(u64 *)(r10 - 8)
         exit",
        "r2 = *(u32 *)(r1 + 12)
         r2 &= 0xff
         *(u64 *)(r10 - 8) = r2
         r0 = *(u64 *)(r10 - 8)
         exit",
    );
}

#[test]
fn a_misaligned_pair_on_the_stack_is_left_alone() {
    let listing = "*(u16 *)(r10 - 6) = 0
         *(u16 *)(r10 - 4) = 1
         r0 = *(u16 *)(r10 - 6)
         r1 = *(u16 *)(r10 - 4)
         r0 += r1
         exit";
    becomes(&with(&["stores"], 3), listing, listing);
}

const COUNT: &str = "*(u32 *)(r10 - 4) = 0
     r2 = r10
     r2 += -4
     r1 = 0 ll
     call 1
     if r0 == 0 goto +3\n";

#[test]
fn load_add_store_is_one_atomic_when_size_counts() {
    let before = format!("{COUNT}r1 = *(u64 *)(r0 + 0)\nr1 += 1\n*(u64 *)(r0 + 0) = r1\nr0 = 1\nexit");
    let after = format!("{}r1 = 1\nlock *(u64 *)(r0 + 0) += r1\nr0 = 1\nexit", COUNT.replace("goto +3", "goto +2"));
    becomes(&with(&["atomics"], 3), &before, &after);
    becomes(&Settings { goal: Goal::Latency, ..with(&["atomics"], 3) }, &before, &before);
    becomes(&Settings { strict_shared_memory: true, ..with(&["atomics"], 3) }, &before, &before);
}

#[test]
fn a_live_register_that_holds_the_number_is_what_is_added() {
    let before = format!("r6 = 1\n{COUNT}r1 = *(u64 *)(r0 + 0)\nr1 += 1\n*(u64 *)(r0 + 0) = r1\nr0 = r6\nexit");
    let after = format!("r6 = 1\n{}lock *(u64 *)(r0 + 0) += r6\nr0 = r6\nexit", COUNT.replace("goto +3", "goto +1"));
    becomes(&with(&["atomics"], 3), &before, &after);
}

#[test]
fn jumps_to_jumps_and_identical_ends_are_folded() {
    becomes(
        &with(&["jumps"], 3),
        "if r1 == 0 goto a
         goto b
         a:
         r0 = 1
         exit
         b:
         goto c
         c:
         r0 = 1
         exit",
        "r0 = 1
         exit",
    );
}

#[test]
fn a_store_outside_the_frame_is_not_taken_for_a_dead_one() {
    // No verifier accepts it; but what is out of the frame is not known to be nobody's.
    let listing = "*(u64 *)(r10 - 520) = 1
         r0 = 0
         exit";
    becomes(&with(&["delete"], 3), listing, listing);
}

#[test]
fn a_wide_constant_on_the_stack_is_stored_in_halves() {
    becomes(
        &with(&["halves"], 3),
        "r1 = 0x203a492d73250041 ll
         *(u64 *)(r10 - 8) = r1
         r0 = *(u32 *)(r10 - 6)
         exit",
        "*(u64 *)(r10 - 8) = 0x73250041
         *(u32 *)(r10 - 4) = 0x203a492d
         r0 = *(u32 *)(r10 - 6)
         exit",
    );
}

#[test]
fn a_wide_constant_that_others_see_or_that_is_used_again_is_stored_whole() {
    for listing in [
        "r0 = 0x203a492d73250041 ll
         *(u64 *)(r10 - 8) = r0
         exit",
        "r6 = *(u32 *)(r1 + 0)
         *(u32 *)(r10 - 4) = 0
         r2 = r10
         r2 += -4
         r1 = 0 ll
         call 1
         if r0 == 0 goto +3
         r1 = 0x203a492d73250041 ll
         *(u64 *)(r0 + 0) = r1
         r0 = 0
         exit",
    ] {
        becomes(&with(&["halves"], 3), listing, listing);
    }
}

#[test]
fn a_store_of_what_is_there_goes() {
    becomes(
        &with(&["delete"], 3),
        "*(u64 *)(r10 - 8) = 5
         r1 = r10
         r1 += -8
         r2 = 8
         call 6
         *(u32 *)(r10 - 8) = 5
         *(u32 *)(r10 - 4) = 1
         r1 = r10
         r1 += -8
         r2 = 8
         call 6
         r0 = 0
         exit",
        "*(u64 *)(r10 - 8) = 5
         r1 = r10
         r1 += -8
         r2 = 8
         call 6
         *(u32 *)(r10 - 4) = 1
         r1 = r10
         r1 += -8
         r2 = 8
         call 6
         r0 = 0
         exit",
    );
}

#[test]
fn a_mask_that_is_only_compared_with_zero_goes_into_the_jump() {
    becomes(
        &with(&["masks", "delete"], 3),
        "r6 = *(u32 *)(r1 + 16)
         w6 &= 8
         r0 = 2
         if w6 != 0 goto +1
         r0 = 1
         exit",
        "r6 = *(u32 *)(r1 + 16)
         r0 = 2
         if w6 & 8 goto +1
         r0 = 1
         exit",
    );
    // For older kernels with a 64-bit jump, which tests the same bits.
    becomes(
        &with(&["masks", "delete"], 2),
        "r6 = *(u32 *)(r1 + 16)
         r6 &= 8
         r0 = 2
         if r6 != 0 goto +1
         r0 = 1
         exit",
        "r6 = *(u32 *)(r1 + 16)
         r0 = 2
         if r6 & 8 goto +1
         r0 = 1
         exit",
    );
}

#[test]
fn a_copy_made_to_be_masked_goes_with_the_mask() {
    becomes(
        &with(&["masks", "delete"], 3),
        "r6 = *(u32 *)(r1 + 16)
         w2 = w6
         w2 &= 8
         if w2 != 0 goto +2
         r0 = r6
         exit
         r0 = r6
         r0 += 1
         exit",
        "r6 = *(u32 *)(r1 + 16)
         if w6 & 8 goto +2
         r0 = r6
         exit
         r0 = r6
         r0 += 1
         exit",
    );
}

#[test]
fn a_masked_value_that_is_read_later_stays() {
    let listing = "r0 = *(u32 *)(r1 + 16)
         w0 &= 8
         if w0 != 0 goto +1
         r0 = 1
         exit";
    becomes(&with(&["masks", "delete"], 3), listing, listing);
}

#[test]
fn a_common_end_of_two_blocks_is_kept_once() {
    becomes(
        &Settings::default(),
        "r6 = r1
         call 7
         if r0 s> 5 goto +5
         *(u32 *)(r6 + 16) = r0
         call 5
         call 7
         call 8
         goto +4
         *(u32 *)(r6 + 12) = r0
         call 5
         call 7
         call 8
         r0 = 2
         exit",
        "r6 = r1
         call 7
         if r0 s> 5 goto +2
         *(u32 *)(r6 + 16) = r0
         goto +1
         *(u32 *)(r6 + 12) = r0
         call 5
         call 7
         call 8
         r0 = 2
         exit",
    );
}

#[test]
fn an_end_that_would_use_pointers_of_different_types_is_not_shared() {
    // One way r6 is the context, the other way it points into the frame.
    let listing = "*(u64 *)(r10 - 8) = 0
         r6 = r1
         call 7
         if r0 s> 5 goto +5
         call 5
         r1 = *(u32 *)(r6 + 4)
         r0 += r1
         r0 += 1
         exit
         r6 = r10
         r6 += -8
         call 8
         r1 = *(u32 *)(r6 + 4)
         r0 += r1
         r0 += 1
         exit";
    becomes(&with(&["jumps"], 3), listing, listing);
    // With the same number of instructions, and the context on both ways, it is.
    let same = listing.replace("r6 = r10", "r7 = 1").replace("r6 += -8", "r7 += 1");
    let shared = optimize(&same, &with(&["jumps"], 3));
    assert_eq!(shared.matches("(r6 + 0x4)").count(), 1, "{shared}");
}

#[test]
fn a_change_of_shape_that_is_banned_is_not_made_again() {
    let env = Env::empty();
    let settings = Settings::default();
    let made = |banned: &FxHashSet<u64>| {
        let listing = "if r1 == 0 goto +2; r0 = 1; goto +1; goto -3; exit".replace("; ", "\n");
        let mut session = Session::new(Derivation::new(function(&listing, ProgKind::Xdp)), &env);
        Engine::new(&settings, banned).run(&mut session);
        session.finish()
    };
    let free = made(&FxHashSet::default());
    let first = free.steps().iter().position(|s| s.rewrite().is_none()).expect("the shape is changed");
    let mut after = free.clone();
    after.rewind(first + 1);
    let mut before = after.clone();
    before.rewind(first);
    let mark = shape_mark(before.current(), after.current());
    let without = made(&[mark].into_iter().collect());
    assert!(without.steps().iter().all(|s| s.rewrite().is_some()) || without.steps().len() > first);
    let mut d = without.clone();
    for n in (1..=without.steps().len()).rev() {
        d.rewind(n);
        let after = d.current().clone();
        d.rewind(n - 1);
        assert_ne!(shape_mark(d.current(), &after), mark, "step {n} was banned");
    }
}
