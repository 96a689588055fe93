//! A proof is about one function at one version, from facts that were found there; nothing else can be done with it.

use bpf_facts::Env;
use bpf_isa::parse_listing;
use bpf_program::{BlockId, Function, Op, ProgKind, Terminator};
use bpf_prove::{Derivation, Options, Points, Rewrite, Session, ShapeDifference, Stale, Switches, Verdict, same_graph};
use bpf_testgen::listing;

fn function(text: &str) -> Function {
    listing::function(ProgKind::Xdp, text)
}

fn ops(text: &str) -> Vec<Op> {
    parse_listing(text).expect("a listing").into_iter().map(Op::new).collect()
}

fn session<'e>(f: &Function, env: &'e Env<'e>) -> Session<'e> {
    let mut s = Session::new(Derivation::new(f.clone()), env);
    s.analyze();
    s
}

/// The block that consists of this operation.
fn block_of(f: &Function, op: &str) -> u32 {
    let insn = ops(op)[0].insn;
    let only = |b: &bpf_program::Block| b.ops.len() == 1 && b.ops[0].insn == insn;
    f.blocks.iter().position(only).expect("it has one") as u32
}

/// Puts `with` in the place of operations of one block.
fn rewrite(block: u32, range: std::ops::Range<usize>, with: &str) -> Rewrite {
    let (block, path, with) = (BlockId(block), vec![], ops(with));
    Rewrite { block, path, start: range.start, end: range.end, with, term: None, by: "a test" }
}

fn prove(s: &Session, points: &Points, r: Rewrite) -> Result<bpf_prove::Proven, String> {
    match s.prove(points, r, &Options::default()) {
        Ok((proven, _)) => Ok(proven),
        Err((Verdict::Unknown(why), _)) => Err(why),
        Err((verdict, _)) => Err(format!("{verdict:?}")),
    }
}

const STRAIGHT: &str = "r0 = 1\nr0 += 1\nr0 += 1\nexit";

/// b0: if r2 == 5 to b1, else b2.
const FORK: &str = "r2 = *(u32 *)(r1 + 12)\nr6 = 7\nif r2 == 5 goto +3\nr0 = r6\nr0 += 0\nexit\nr0 = r2\nr0 += 0\nexit";

#[test]
fn a_proof_is_carried_out_where_it_was_made() {
    let env = Env::empty();
    let f = function(STRAIGHT);
    let mut s = session(&f, &env);
    let points = s.block(BlockId(0)).expect("it is reached");
    let proven = prove(&s, &points, rewrite(0, 0..3, "r0 = 3")).expect("it is equal");
    assert_eq!(s.apply(proven, 42), Ok(()));
    assert!(same_graph(s.function(), &function("r0 = 3\nexit")), "{}", s.function());
    let d = s.finish();
    assert_eq!(d.steps().len(), 1);
    assert_eq!((d.steps()[0].mark(), d.steps()[0].rewrite().map(|r| r.by)), (42, Some("a test")));
    assert!(same_graph(d.original(), &f));
}

#[test]
fn a_proof_of_another_function_is_refused() {
    let env = Env::empty();
    let mut one = session(&function(STRAIGHT), &env);
    // Where `r0 = 3` would be wrong.
    let two = function("r0 = 2\nr0 += 5\nr0 += 1\nexit");
    let mut other = session(&two, &env);
    let proven = prove(&one, &one.block(BlockId(0)).expect("reached"), rewrite(0, 0..3, "r0 = 3")).expect("equal");
    assert_eq!(other.apply(proven, 0), Err(Stale));
    assert!(same_graph(other.function(), &two));
    // Nor of the same function in another session.
    let proven = prove(&one, &one.block(BlockId(0)).expect("reached"), rewrite(0, 0..3, "r0 = 3")).expect("equal");
    assert_eq!(session(&function(STRAIGHT), &env).apply(proven, 0), Err(Stale));
    // Nor in one that goes on from this one.
    let proven = prove(&one, &one.block(BlockId(0)).expect("reached"), rewrite(0, 0..3, "r0 = 3")).expect("equal");
    one.analyze();
    let mut next = Session::new(one.finish(), &env);
    next.analyze();
    assert_eq!(next.apply(proven, 0), Err(Stale));
}

#[test]
fn a_proof_of_an_earlier_version_is_refused() {
    let env = Env::empty();
    let mut s = session(&function(STRAIGHT), &env);
    let points = s.block(BlockId(0)).expect("reached");
    let first = prove(&s, &points, rewrite(0, 0..2, "r0 = 2")).expect("equal");
    let second = prove(&s, &points, rewrite(0, 1..3, "r0 += 2")).expect("equal");
    let shape = prove(&s, &points, rewrite(0, 0..3, "r0 = 3")).expect("equal");
    assert_eq!(s.apply(first, 0), Ok(()));
    let now = s.function().clone();
    // Each was right; after the other it would write past the block or add twice.
    assert_eq!(s.apply(second, 0), Err(Stale));
    assert!(same_graph(s.function(), &now));
    assert_eq!(s.derivation().steps().len(), 1);
    // A change of shape is a version, too.
    let points = s.block(BlockId(0)).expect("reached");
    let third = prove(&s, &points, rewrite(0, 0..2, "r0 = 3")).expect("equal");
    let mut cut = s.function().clone();
    let tail = cut.blocks[0].ops.split_off(1);
    cut.blocks.push(bpf_program::Block { ops: tail, term: cut.blocks[0].term.clone() });
    let last = BlockId(cut.blocks.len() as u32 - 1);
    cut.blocks[0].term = Terminator::Goto(last);
    cut.layout.push(last);
    assert_eq!(s.reshape(cut), Ok(()));
    assert_eq!(s.apply(third, 0), Err(Stale));
    assert_eq!(s.apply(shape, 0), Err(Stale));
}

#[test]
fn facts_of_elsewhere_prove_nothing() {
    let env = Env::empty();
    // In the first r2 is 5 where it is added, in the second it is anything.
    let f = function("r2 = 5\nif r1 == 0 goto +2\nr0 = r2\nexit\nr0 = 1\nexit");
    let g = function("r2 = *(u32 *)(r1 + 12)\nif r1 == 0 goto +2\nr0 = r2\nexit\nr0 = 1\nexit");
    let (s, t) = (session(&f, &env), session(&g, &env));
    let at = block_of(&f, "r0 = r2");
    let good = s.block(BlockId(at)).expect("reached");
    let change = || rewrite(at, 0..1, "r0 = 5");
    assert!(prove(&s, &good, change()).is_ok());
    assert_eq!(
        prove(&t, &good, change()).unwrap_err(),
        "facts of another function, or of this one before it was changed"
    );
    assert!(prove(&t, &t.block(BlockId(at)).expect("reached"), change()).is_err(), "by its own facts neither");
    // Those that belong to no session.
    let analysis = bpf_facts::Analysis::of(&f, &env);
    let free = Points::of_block(&f, BlockId(at), &analysis, &env).expect("reached");
    assert!(prove(&s, &free, change()).is_err());
    // Those of another block of the same function.
    let entry = s.block(BlockId(0)).expect("reached");
    assert_eq!(prove(&s, &entry, change()).unwrap_err(), "facts of another place");
    let onto_path = Rewrite { path: vec![BlockId(at)], ..change() };
    assert_eq!(prove(&s, &good, onto_path).unwrap_err(), "facts of another place");
}

#[test]
fn facts_of_an_earlier_version_prove_nothing() {
    let env = Env::empty();
    let mut s = session(&function(STRAIGHT), &env);
    let before = s.block(BlockId(0)).expect("reached");
    let proven = prove(&s, &before, rewrite(0, 0..2, "r0 = 2")).expect("equal");
    s.apply(proven, 0).expect("nothing has changed");
    // Before operation 2 r0 was 2; now it is 3 there, and operation 1 is what was 2.
    assert!(prove(&s, &before, rewrite(0, 0..2, "r0 = 3")).is_err());
    let now = s.block(BlockId(0)).expect("reached");
    assert!(prove(&s, &now, rewrite(0, 0..2, "r0 = 3")).is_ok());
    // Without an analysis nothing is known.
    let fresh = Session::new(Derivation::new(function(STRAIGHT)), &env);
    assert!(fresh.block(BlockId(0)).is_none() && fresh.block_with_dead(BlockId(0)).is_none());
    assert!(fresh.path(BlockId(0), &[]).is_none());
    assert!(s.block(BlockId(99)).is_none() && s.path(BlockId(0), &[BlockId(99)]).is_none());
}

#[test]
fn what_was_dead_is_read_only_right_after_an_analysis() {
    let env = Env::empty();
    // r7 still holds 7 at the end of b0, where nobody reads it.
    let f = function("r7 = 7\nr2 = r7\nif r1 == 0 goto +2\nr0 = 7\nexit\nr0 = r2\nexit");
    let at = block_of(&f, "r0 = 7");
    let revive = || rewrite(at, 0..1, "r0 = r7");
    let mut s = session(&f, &env);
    // By what is live into the block it is not there to be read; even where it does not matter.
    let points = s.block(BlockId(at)).expect("reached");
    assert_eq!(prove(&s, &points, revive()).unwrap_err(), "it reads what was dead");
    assert!(prove(&s, &points, rewrite(at, 0..1, "r3 = r7\nr0 = 7")).is_err());
    let dead = s.block_with_dead(BlockId(at)).expect("reached");
    let proven = prove(&s, &dead, revive()).expect("it holds 7");
    s.apply(proven, 0).expect("nothing has changed");
    // Now r7 is live out of b0, which the analysis does not know: everything is forgotten.
    assert!(s.block(BlockId(0)).is_none() && s.block(BlockId(at)).is_none());
    s.analyze();
    let points = s.block(BlockId(0)).expect("reached");
    assert!(prove(&s, &points, rewrite(0, 0..2, "r2 = 7")).is_err(), "r7 is read");
    // After any other change it is too late.
    let mut s = session(&f, &env);
    let points = s.block(BlockId(0)).expect("reached");
    let proven = prove(&s, &points, rewrite(0, 0..2, "r2 = 7")).expect("r7 is dead");
    let dead = s.block_with_dead(BlockId(at)).expect("reached");
    s.apply(proven, 0).expect("nothing has changed");
    assert!(s.block_with_dead(BlockId(at)).is_none());
    assert!(prove(&s, &dead, revive()).is_err());
}

#[test]
fn of_the_blocks_of_a_rewritten_path_nothing_is_known() {
    let env = Env::empty();
    let f = function(FORK);
    let Terminator::Branch { fall, taken, .. } = f.blocks[0].term else { panic!("it branches") };
    let mut s = session(&f, &env);
    let path = [fall];
    let points = s.path(BlockId(0), &path).expect("a path");
    let all = points.ops(s.function()).to_vec();
    let jump = all.iter().position(|o| bpf_prove::superblock::is_side_exit(&o.insn)).expect("one");
    // The constant goes over the jump into the block that reads it.
    let mut with = all.clone();
    let constant = with.remove(1);
    with.insert(jump, constant);
    let (block, end) = (BlockId(0), all.len());
    let moved = Rewrite { block, path: path.to_vec(), start: 0, end, with, term: None, by: "a test" };
    let proven = prove(&s, &points, moved.clone()).expect("r6 is not read on the other way");
    s.apply(proven, 0).expect("nothing has changed");
    assert!(s.block(BlockId(0)).is_none(), "r6 is no longer set there");
    assert!(s.block(fall).is_none(), "and not known here");
    assert!(s.block(taken).is_some());
    assert!(s.path(BlockId(0), &path).is_some(), "the path as a whole is known");
    assert!(s.path(BlockId(0), &[taken]).is_none(), "another over its blocks is not");
    assert!(prove(&s, &points, moved).is_err());
    s.analyze();
    assert!(s.block(BlockId(0)).is_some() && s.block(fall).is_some());
}

#[test]
fn wrong_rewrites_come_to_nothing() {
    let env = Env::empty();
    let f = function(FORK);
    let s = session(&f, &env);
    let points = s.block(BlockId(0)).expect("reached");
    let wrong = [
        rewrite(0, 0..2, "r2 = *(u32 *)(r1 + 12)"),
        rewrite(0, 0..1, "r2 = *(u32 *)(r1 + 16)"),
        rewrite(0, 1..2, "r6 = 8"),
        rewrite(0, 0..99, ""),
        rewrite(99, 0..1, ""),
        Rewrite { term: Some(Terminator::Exit { origin: None }), ..rewrite(0, 2..2, "") },
        Rewrite { term: Some(Terminator::Goto(BlockId(1))), ..rewrite(0, 2..2, "") },
        Rewrite { path: vec![BlockId(0)], ..rewrite(0, 0..1, "") },
        #[allow(clippy::reversed_empty_ranges, reason = "that is what is tried")]
        rewrite(0, 2..1, ""),
    ];
    for r in wrong {
        assert!(prove(&s, &points, r.clone()).is_err(), "{r:?}");
    }
}

#[test]
fn a_shape_that_is_another_function_is_refused_and_changes_nothing() {
    let env = Env::empty();
    let f = function(FORK);
    let mut s = session(&f, &env);
    let mut turned = f.clone();
    if let Terminator::Branch { taken, fall, .. } = &mut turned.blocks[0].term {
        std::mem::swap(taken, fall);
    }
    assert_eq!(s.reshape(turned), Err(ShapeDifference::Behaviour));
    let mut less = f.clone();
    less.blocks[0].ops.pop();
    assert_eq!(s.reshape(less), Err(ShapeDifference::Behaviour));
    assert!(same_graph(s.function(), &f) && s.derivation().steps().is_empty());
    assert!(s.block(BlockId(0)).is_some(), "what was known still is");
    let mut ordered = f.clone();
    ordered.layout[1..].reverse();
    ordered.name = "another".into();
    assert_eq!(s.reshape(ordered.clone()), Ok(()));
    assert_eq!((&s.function().layout, s.function().name.as_str()), (&ordered.layout, f.name.as_str()));
    assert!(s.block(BlockId(0)).is_none(), "nothing is known any more");
    assert!(s.derivation().steps()[0].rewrite().is_none());
}

#[test]
fn a_derivation_goes_back_to_any_of_its_steps() {
    let env = Env::empty();
    let f = function("r0 = 1\nr0 += 1\nr0 += 1\nr0 += 1\nif r1 == 0 goto +0\nexit");
    let mut s = session(&f, &env);
    let mut versions = vec![s.function().clone()];
    for n in 2..4 {
        s.analyze();
        let points = s.block(BlockId(0)).expect("reached");
        let proven = prove(&s, &points, rewrite(0, 0..2, &format!("r0 = {n}"))).expect("equal");
        s.apply(proven, n).expect("nothing has changed");
        versions.push(s.function().clone());
    }
    let mut shaped = s.function().clone();
    let Terminator::Branch { fall, .. } = shaped.blocks[0].term else { panic!("it branches") };
    shaped.blocks[0].term = Terminator::Goto(fall);
    s.reshape(shaped).expect("the branch asks about nothing");
    versions.push(s.function().clone());
    s.analyze();
    let points = s.block(BlockId(0)).expect("reached");
    let proven = prove(&s, &points, rewrite(0, 0..2, "r0 = 4")).expect("equal");
    s.apply(proven, 4).expect("nothing has changed");
    versions.push(s.function().clone());
    let whole = s.finish();
    for n in (0..versions.len()).rev() {
        let mut d = whole.clone();
        d.rewind(n);
        assert_eq!((d.current(), d.steps().len()), (&versions[n], n));
        // And on from there.
        let mut s = Session::new(d, &env);
        s.analyze();
        assert!(s.block(BlockId(0)).is_some());
    }
    let mut d = whole.clone();
    d.rewind(99);
    assert_eq!(d.current(), whole.current());
    // Step by step as in one go.
    (0..versions.len()).rev().for_each(|n| d.rewind(n));
    assert_eq!(d.current(), &f);
}

#[test]
fn facts_of_an_earlier_analysis_prove_nothing() {
    let env = Env::empty();
    let mut s = session(&function(STRAIGHT), &env);
    let points = s.block(BlockId(0)).expect("reached");
    s.analyze();
    assert!(prove(&s, &points, rewrite(0, 0..3, "r0 = 3")).is_err());
    assert!(prove(&s, &s.block(BlockId(0)).expect("reached"), rewrite(0, 0..3, "r0 = 3")).is_ok());
}

/// What one session has proven of one function is known in the next of another, but not what was asked otherwise.
#[test]
fn a_verdict_is_remembered_with_its_options() {
    let env = Env::empty();
    let cached = |s: &Session, options: &Options| {
        let points = s.block(BlockId(0)).expect("reached");
        s.prove(&points, rewrite(0, 0..3, "r0 = 3"), options).expect("equal").1.cached
    };
    let usual = Options::default();
    let others = [
        Options { constant_calls: vec![7], ..Options::default() },
        Options { strict_shared_memory: true, ..Options::default() },
        Options { switches: Switches { maps: false, ..Switches::default() }, ..Options::default() },
    ];
    let mut s = session(&function(STRAIGHT), &env);
    assert_eq!((cached(&s, &usual), cached(&s, &usual)), (0, 1));
    // Of another function, too.
    s = s.then(Derivation::new(function("r0 = 1\nr0 += 1\nr0 += 1\nr1 = 0\nexit")));
    s.analyze();
    assert_eq!(cached(&s, &usual), 1);
    for other in others {
        assert_eq!((cached(&s, &other), cached(&s, &other)), (0, 1), "{other:?}");
    }
}

/// A pointer into the packet, at 14 or 18, where two ways meet.
const VARYING: &str = "
r6 = *(u32 *)(r1 + 0)
r7 = *(u32 *)(r1 + 4)
r8 = r6
r8 += 14
r0 = 0
if r8 > r7 goto +9
r5 = *(u16 *)(r6 + 12)
if r5 != 129 goto +1
r8 += 4
r6 = 1
r8 += 20
if r8 > r7 goto +3
r0 = *(u8 *)(r8 - 20)
r5 = *(u32 *)(r1 + 12)
r0 += r5
exit
";

/// Whether operations may stand before those of the block in which r6 becomes 1.
fn may_stand_at_the_join(f: &Function, env: &Env, with: &str) -> bool {
    let s = session(f, env);
    let sets = |o: &Op| o.insn == ops("r6 = 1")[0].insn;
    let join = f.blocks.iter().position(|b| b.ops.first().is_some_and(sets)).expect("there is one") as u32;
    let points = s.block(BlockId(join)).expect("it is reached");
    prove(&s, &points, rewrite(join, 0..0, with)).is_ok()
}

/// The context's field that gives the packet's data is read again wherever a pointer to these is at hand, and what it gives is the place
/// that offsets count from.
#[test]
fn where_a_packet_pointer_is_at_hand_the_packets_data_are_read_again() {
    let env = Env::empty();
    let f = function(VARYING);
    let may = |with: &str| may_stand_at_the_join(&f, &env, with);
    assert!(may("r2 = *(u32 *)(r1 + 0)\nr8 -= r2\nr8 &= 31\nr8 += r2"));
    assert!(may("r2 = *(u32 *)(r1 + 0)\nr8 -= r2\nr8 &= 30\nr8 += r2"));
    // The offset 18 does not fit; 14 does not; another start; what is left of the other one.
    assert!(!may("r2 = *(u32 *)(r1 + 0)\nr8 -= r2\nr8 &= 15\nr8 += r2"));
    assert!(!may("r2 = *(u32 *)(r1 + 0)\nr8 -= r2\nr8 &= 18\nr8 += r2"));
    assert!(!may("r2 = *(u32 *)(r1 + 4)\nr8 -= r2\nr8 &= 31\nr8 += r2"));
    assert!(!may("r2 = *(u32 *)(r1 + 0)\nr8 -= r2\nr8 &= 31\nr8 += r7"));
    assert!(!may("r2 = *(u32 *)(r1 + 0)\nr8 = r2"));
}

/// Of no other field, and of no part of it: whether the verifier would have come there is not known.
#[test]
fn no_other_field_of_the_context_is_read_anew() {
    let env = Env::empty();
    let f = function(VARYING);
    let may = |what: &str| may_stand_at_the_join(&f, &env, &format!("r8 += 4\nr2 = *({what}\nr8 -= 4"));
    assert!(may("u32 *)(r1 + 0)"));
    for what in
        ["u32 *)(r1 + 4)", "u32 *)(r1 + 8)", "u32 *)(r1 + 12)", "u8 *)(r1 + 0)", "u16 *)(r1 + 2)", "u64 *)(r1 + 0)"]
    {
        assert!(!may(what), "{what}");
    }
    // Nothing at hand, or only the end.
    let none = "r0 = 0\nr5 = r1\nif r5 == 0 goto +1\nr0 = 1\nr6 = 1\nr0 = *(u32 *)(r1 + 12)\nexit";
    assert!(!may_stand_at_the_join(&function(none), &env, "r2 = *(u32 *)(r1 + 0)"));
    let end = "r0 = 0\nr5 = r1\nr7 = *(u32 *)(r1 + 4)\nif r5 == 0 goto +1\nr0 = 1\nr6 = 1\nr0 = *(u32 *)(r1 + 12)\nr0 += r7\nexit";
    assert!(!may_stand_at_the_join(&function(end), &env, "r2 = *(u32 *)(r1 + 0)"));
}

/// Before a call that moves the packet the field gives what it is no more behind it.
#[test]
fn behind_a_call_that_moves_the_packet_its_data_are_elsewhere() {
    let env = Env::empty();
    let text = "r8 = *(u32 *)(r1 + 0)\nr5 = *(u32 *)(r1 + 12)\nif r5 != 129 goto +1\nr8 += 4\nr6 = 1\nr6 = r1\nr2 = 4\n\
                call 44\nr9 = *(u32 *)(r6 + 0)\nr0 = r9\nexit";
    let f = function(text);
    let s = session(&f, &env);
    let join = f.blocks.iter().position(|b| b.ops.len() > 4).expect("there is one") as u32;
    let points = s.block(BlockId(join)).expect("it is reached");
    let with = |text: &str| prove(&s, &points, rewrite(join, 1..6, text));
    assert!(with("r6 = r1\nr2 = 4\ncall 44\nr0 = *(u32 *)(r6 + 0)\nr9 = r0\nr0 = r9").is_ok());
    assert!(with("r6 = r1\nr5 = *(u32 *)(r6 + 0)\nr2 = 4\ncall 44\nr9 = *(u32 *)(r6 + 0)\nr0 = r9").is_ok());
    assert!(with("r6 = r1\nr9 = *(u32 *)(r6 + 0)\nr2 = 4\ncall 44\nr0 = r9").is_err());
}
