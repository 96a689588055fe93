//! Passes that change the shape of a function. What each pass does to a block stands as cases in
//! `tests/equivalence/passes`. The engine proves every step, so what no longer comes out means that a pass lost something
//! (or the prover did); it can never mean wrong code.

use bpf_facts::{Env, MapInfo};
use bpf_isa::{Insn, parse_listing};
use bpf_passes::{Engine, Settings, optimize as optimize_all, shape_mark};
use bpf_program::{Function, ProgKind, Symbol, lower};
use bpf_prove::{Derivation, Session};
use bpf_testgen::listing;
use rustc_hash::FxHashSet;

/// The graph of a listing. `counter` names a map with 4-byte keys and 8-byte values: any
/// `r1 = 0 ll` refers to it.
fn function(text: &str, kind: ProgKind) -> Function {
    let counter = || Symbol::Map { name: "counter".into(), index: 0 };
    let symbol = |insn: &Insn| matches!(insn, Insn::LoadImm64 { imm: 0, .. }).then(counter);
    listing::linked(kind, text, symbol).expect("a function")
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
fn a_common_end_of_two_blocks_is_kept_once() {
    becomes(
        &Settings::default(),
        "r6 = r1
         call 7
         if r0 s> 5 goto +6
         *(u32 *)(r6 + 16) = r0
         call 5
         *(u32 *)(r6 + 8) = r0
         call 7
         *(u32 *)(r6 + 4) = r0
         goto +5
         *(u32 *)(r6 + 12) = r0
         call 5
         *(u32 *)(r6 + 8) = r0
         call 7
         *(u32 *)(r6 + 4) = r0
         r0 = 2
         exit",
        "r6 = r1
         call 7
         if r0 s> 5 goto +2
         *(u32 *)(r6 + 16) = r0
         goto +1
         *(u32 *)(r6 + 12) = r0
         call 5
         *(u32 *)(r6 + 8) = r0
         call 7
         *(u32 *)(r6 + 4) = r0
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
