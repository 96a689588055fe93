//! What lifting and lowering leave alone, and what each pass does, as listings. Everything that comes out is proven.

use std::collections::HashMap;

use bpf_facts::{Env, MapInfo};
use bpf_isa::{Insn, parse_listing};
use bpf_program::{Function, Link, ProgKind, Symbol, build_from_insns, lower};
use bpf_prove::{Options, functions};
use bpf_ssa::passes::{Pass, detours};
use bpf_ssa::{Judge, Refusal, all_passes, candidate, improve, lift, verify};

/// The graph of a listing. Any `rN = 0 ll` refers to a map with 4-byte keys and 8-byte values.
fn function(listing: &str) -> Function {
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
    build_from_insns("test", ProgKind::Xdp, &decoded, links).expect("a graph")
}

fn with_env<T>(f: impl FnOnce(&Env<'_>) -> T) -> T {
    let maps = [MapInfo {
        name: "counter".into(),
        map_type: Some(2),
        key_size: Some(4),
        value_size: Some(8),
        max_entries: Some(16),
        ..MapInfo::default()
    }];
    f(&Env { maps: &maps, callee_args: &|_| None, ..Env::empty() })
}

fn listing(f: &Function) -> String {
    lower(f).expect("it lowers").listing.iter().map(|(_, i)| format!("{i}\n")).collect()
}

#[track_caller]
fn same(got: &str, want: &str) {
    let want: String = parse_listing(want).expect("a listing").iter().map(|i| format!("{i}\n")).collect();
    if got != want {
        panic!("\n{}", similar::TextDiff::from_lines(want.as_str(), got).unified_diff().header("wanted", "got"));
    }
}

/// What these passes make of a function; proven.
#[track_caller]
fn with(passes: &[&str], before: &str) -> String {
    let f = function(before);
    with_env(|env| {
        let mut chosen = all_passes();
        chosen.retain(|p| passes.contains(&p.name()));
        assert_eq!(chosen.len(), passes.len(), "no such pass");
        let chosen: Vec<&dyn Pass> = chosen.iter().map(AsRef::as_ref).collect();
        let c = candidate(&f, env, &chosen).expect("a candidate");
        assert_eq!(verify(&c.ssa), Ok(()));
        let verdict = functions(&f, &c.function, env, &Options::default()).0;
        assert!(verdict.is_equal(), "{verdict:?}\n{}", listing(&c.function));
        listing(&c.function)
    })
}

#[track_caller]
fn becomes(passes: &[&str], before: &str, after: &str) {
    same(&with(passes, before), after);
}

#[test]
fn a_function_without_anything_to_save_stays() {
    let loops = "
        r0 = 0
        r2 = 0
        if r2 > 9 goto +3
        r0 += r2
        r2 += 1
        goto -4
        exit";
    becomes(&[], loops, loops);
    let calls = "
        r6 = r1
        *(u32 *)(r10 - 4) = 0
        r2 = r10
        r2 += -4
        r1 = 0 ll
        call 1
        if r0 == 0 goto +2
        r1 = *(u64 *)(r0 + 0)
        *(u64 *)(r0 + 0) = r6
        r0 = 2
        exit";
    // But for the load that nobody reads.
    becomes(&["ssa-dead"], calls, &calls.replace("r1 = *(u64 *)(r0 + 0)\n", "").replace("goto +2", "goto +1"));
}

#[test]
fn private_spill_slots_become_registers() {
    becomes(
        &[],
        "*(u64 *)(r10 - 8) = r1
         call 7
         r1 = *(u64 *)(r10 - 8)
         r1 = *(u32 *)(r1 + 12)
         r0 += r1
         exit",
        "r6 = r1
         call 7
         r1 = *(u32 *)(r6 + 12)
         r0 += r1
         exit",
    );
}

#[test]
fn what_is_computed_already_is_not_computed_again() {
    becomes(
        &["ssa-numbering", "ssa-dead"],
        "r2 = *(u32 *)(r1 + 12)
         r3 = *(u32 *)(r1 + 16)
         r4 = r2
         r4 *= r3
         r0 = r4
         if r4 > 5 goto +3
         r2 *= r3
         r2 <<= 1
         r0 = r2
         exit",
        "r0 = *(u32 *)(r1 + 12)
         r3 = *(u32 *)(r1 + 16)
         r0 *= r3
         if r0 > 5 goto +1
         r0 <<= 1
         exit",
    );
}

#[test]
fn an_edge_goes_past_a_question_it_has_answered() {
    becomes(
        &["ssa-predicates", "ssa-dead"],
        "r2 = *(u32 *)(r1 + 12)
         r6 = 1
         if r2 != 3 goto +1
         r6 = *(u32 *)(r1 + 16)
         r0 = r6
         if r2 == 3 goto +1
         r0 += 7
         exit",
        "r2 = *(u32 *)(r1 + 12)
         r0 = 1
         if r2 != 3 goto +2
         r0 = *(u32 *)(r1 + 16)
         goto +1
         r0 += 7
         exit",
    );
}

#[test]
fn a_constant_result_gets_an_exit_of_its_own() {
    becomes(
        &["ssa-exits", "ssa-dead"],
        "r6 = 1
         r7 = *(u32 *)(r1 + 12)
         call 7
         if r7 == 3 goto +3
         r6 = 2
         if r0 == 9 goto +1
         r6 = r0
         r0 = r6
         exit",
        "r7 = *(u32 *)(r1 + 12)
         call 7
         if r7 == 3 goto +2
         if r0 == 9 goto +3
         exit
         r0 = 1
         exit
         r0 = 2
         exit",
    );
}

#[test]
fn what_is_done_to_a_join_of_constants_is_done_on_the_ways_into_it() {
    becomes(
        &["ssa-ways"],
        "r0 = *(u32 *)(r1 + 12)
         r2 = *(u32 *)(r1 + 16)
         r3 = 1
         if r2 > 9 goto +1
         r3 = 0
         r0 += r3
         exit",
        "r0 = *(u32 *)(r1 + 12)
         r2 = *(u32 *)(r1 + 16)
         if r2 <= 9 goto +1
         r0 += 1
         exit",
    );
    becomes(
        &["ssa-ways"],
        "r2 = *(u32 *)(r1 + 12)
         r1 = 1
         if r2 != 0 goto +1
         r1 = 0
         *(u32 *)(r10 - 4) = r1
         r2 = r10
         r2 += -4
         r1 = 0 ll
         call 1
         if r0 == 0 goto +1
         r0 = 2
         exit",
        "r2 = *(u32 *)(r1 + 12)
         *(u32 *)(r10 - 4) = 1
         if r2 != 0 goto +1
         *(u32 *)(r10 - 4) = 0
         r2 = r10
         r2 += -4
         r1 = 0 ll
         call 1
         if r0 == 0 goto +1
         r0 = 2
         exit",
    );
    // The address is used in between.
    let read_before = "r2 = *(u32 *)(r1 + 12)
         *(u32 *)(r10 - 4) = r2
         r6 = 1
         if r2 != 0 goto +1
         r6 = 0
         r2 = r10
         r2 += -4
         r1 = 0 ll
         call 1
         *(u32 *)(r10 - 4) = r6
         r2 = r10
         r2 += -4
         r1 = 0 ll
         call 1
         if r0 == 0 goto +1
         r0 = 2
         exit";
    assert_eq!(with(&["ssa-ways"], read_before), with(&[], read_before));
}

/// Proves everything.
struct Prover<'a>(&'a Env<'a>);

impl Judge for Prover<'_> {
    fn accepts(&mut self, old: &Function, new: &Function) -> bool {
        let verdict = functions(old, new, self.0, &Options::default()).0;
        println!("{}{}{verdict:?}", listing(old), listing(new));
        verdict.is_equal()
    }
}

const HEADER: &str = "
    r2 = *(u32 *)(r1 + 4)
    r1 = *(u32 *)(r1 + 0)
    r0 = 1
    r3 = r1
    r3 += 14
    if r3 > r2 goto +14
    r4 = *(u16 *)(r1 + 12)
    r3 = 14
    if r4 != 129 goto +4
    r3 = r1
    r3 += 18
    if r3 > r2 goto +8
    r3 = 18
    r1 += r3
    r4 = r1
    r4 += 20
    if r4 > r2 goto +3
    r0 = *(u8 *)(r1 + 9)
    if r0 != 6 goto +1
    r0 = 2
    exit";

#[test]
fn an_offset_becomes_a_moving_pointer_and_is_proven() {
    let f = function(HEADER);
    let (steps, slots) = with_env(|env| {
        let steps = improve(&f, env, &all_passes(), &mut Prover(env));
        let slots = steps.last().map(|s| bpf_program::slot_count(&s.function));
        (steps, slots)
    });
    assert_eq!(detours().len(), 1);
    assert!(steps.iter().any(|s| s.by == [detours()[0].name()]), "{steps:?}");
    assert!(
        slots.is_some_and(|n| n + 3 <= bpf_program::slot_count(&f)),
        "{slots:?} of {}",
        bpf_program::slot_count(&f)
    );
}

#[test]
fn what_has_no_form_is_refused() {
    let refused = |text: &str| with_env(|env| lift(&function(text), env, true)).expect_err("refused");
    assert!(matches!(refused("r0 = load_acquire((u64 *)(r1 + 0))\nexit"), Refusal::NoForm { .. }));
    assert!(matches!(refused("r0 = r6\nexit"), Refusal::Unset { .. }));
}

#[test]
fn broken_forms_are_found() {
    let f = function(HEADER);
    let ssa = with_env(|env| lift(&f, env, true)).expect("lifted");
    assert_eq!(verify(&ssa), Ok(()));
    let mut early = ssa.clone();
    let last = early.layout.len() - 1;
    let read = bpf_ssa::Operand::Value(bpf_ssa::Value(early.values.len() as u32 - 1));
    let entry = early.entry();
    if let Some(i) = early.block_mut(entry).insts.first_mut() {
        i.args = vec![read];
    }
    assert!(verify(&early).is_err());
    let mut gone = ssa.clone();
    gone.layout.remove(last);
    assert!(verify(&gone).is_err());
    let mut twice = ssa;
    let first = twice.block(entry).insts[0].clone();
    twice.block_mut(entry).insts.push(first);
    assert!(verify(&twice).is_err());
}

/// What `ssa-elements` makes of the graph.
#[track_caller]
fn without_elements_missing(before: &str) -> Vec<String> {
    graphs("ssa-elements", before)
}

/// What a pass of graphs makes of one; proven.
#[track_caller]
fn graphs(pass: &str, before: &str) -> Vec<String> {
    let f = function(before);
    with_env(|env| {
        let passes = all_passes();
        let pass = passes.iter().find(|p| p.name() == pass).expect("the pass");
        let graphs = pass.graphs(&f, env);
        for g in &graphs {
            let verdict = functions(&f, g, env, &Options::default()).0;
            assert!(verdict.is_equal(), "{verdict:?}\n{}", listing(g));
        }
        graphs.iter().map(listing).collect()
    })
}

/// Looks up an element, of which `key` stores the number, and does what `none` says where it is not there.
fn looks_up(key: &str, none: &str) -> String {
    let length = parse_listing(none).expect("a listing").iter().map(Insn::slots).sum::<usize>();
    format!(
        "{key}
        r2 = r10
        r2 += -4
        r1 = 0 ll
        call 1
        if r0 == 0 goto +4
        r1 = *(u64 *)(r0 + 0)
        r1 += 1
        *(u64 *)(r0 + 0) = r1
        goto +{length}
        {none}
        r0 = 2
        exit"
    )
}

#[test]
fn the_first_element_of_an_array_is_there() {
    let got = without_elements_missing(&looks_up("*(u32 *)(r10 - 4) = 0", "r1 = 7\n*(u64 *)(r10 - 16) = r1"));
    let want = "
        *(u32 *)(r10 - 4) = 0
        r2 = r10
        r2 += -4
        r1 = 0 ll
        call 1
        if r0 == 0 goto +3
        r1 = *(u64 *)(r0 + 0)
        r1 += 1
        *(u64 *)(r0 + 0) = r1
        r0 = 2
        exit";
    assert_eq!(got.len(), 1);
    same(&got[0], want);
}

#[test]
fn other_elements_may_be_missing() {
    let none = "r1 = 7\n*(u64 *)(r10 - 16) = r1";
    assert!(without_elements_missing(&looks_up("*(u32 *)(r10 - 4) = 1", none)).is_empty());
    assert!(without_elements_missing(&looks_up("r1 = *(u32 *)(r1 + 12)\n*(u32 *)(r10 - 4) = r1", none)).is_empty());
}

/// Kernels before 6.14 take the way on which it is missing for one: what is held has to be given back there.
#[test]
fn who_may_hold_something_goes_where_it_went() {
    let none = "r1 = 7\n*(u64 *)(r10 - 16) = r1";
    let key = "r6 = r1\n*(u32 *)(r10 - 4) = 0";
    assert_eq!(without_elements_missing(&looks_up(key, none)).len(), 1);
    // bpf_sk_release, of a socket that came from bpf_skc_lookup_tcp.
    assert!(without_elements_missing(&looks_up(&format!("{key}\ncall 99"), none)).is_empty());
}

/// The end that it goes to is one that it came to: whether a verifier ever comes to another, and takes it, is not known.
#[test]
fn the_way_on_which_it_is_missing_ends_where_it_ended() {
    let two_ends = "if r6 > 3 goto +2\nr0 = 1\nexit\nr1 = 7\n*(u64 *)(r10 - 16) = r1\nr0 = 3\nexit";
    let key = "r6 = *(u32 *)(r1 + 12)\n*(u32 *)(r10 - 4) = 0";
    assert!(without_elements_missing(&looks_up(key, two_ends)).is_empty());
    let one_end = "if r6 > 3 goto +1\nr6 = 1\nr1 = 7\n*(u64 *)(r10 - 16) = r6";
    assert_eq!(without_elements_missing(&looks_up(key, one_end)).len(), 1);
}

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
