//! Rewrites of paths that are none: refused, by either door, and without a panic.

use bpf_facts::Env;
use bpf_isa::{Cond, Insn, Reg, Src, Width};
use bpf_program::{BlockId, Function, Op, ProgKind, Terminator};
use bpf_prove::superblock::{SideExit, Superblock, is_side_exit};
use bpf_prove::{Cache, Derivation, Known, Options, Rewrite, Session, Switches, ask};

use crate::paths::functions::{About, function};

/// Three blocks in a row with a side exit each; the first exit is reached from two places.
const STAIRS: &str = "
    r2 = *(u32 *)(r1 + 12)
    r0 = 0
    if r2 == 5 goto +6
    r0 = 1
    if r2 > 9 goto +6
    r0 = 2
    if r2 == 6 goto +2
    r0 = 7
    exit
    r0 += 3
    exit
    r0 += 4
    exit";

fn mov(dst: Reg, imm: i32) -> Op {
    Op::new(Insn::Mov { width: Width::W64, dst, src: Src::Imm(imm) })
}

fn jcc(off: i16) -> Op {
    Op::new(Insn::Jcc { cond: Cond::Eq, width: Width::W64, dst: Reg::R2, src: Src::Imm(5), off })
}

fn built(text: &str) -> Function {
    function(text).unwrap_or_else(|| panic!("no function:\n{text}"))
}

fn fall(f: &Function, b: BlockId) -> BlockId {
    match f.block(b).term {
        Terminator::Branch { fall, .. } => fall,
        ref t => panic!("{t:?} is no branch"),
    }
}

fn taken(f: &Function, b: BlockId) -> BlockId {
    match f.block(b).term {
        Terminator::Branch { taken, .. } => taken,
        ref t => panic!("{t:?} is no branch"),
    }
}

/// Neither door lets it in, with windows or without. What `Switches::windows` leaves to a proof of the whole
/// function is carried out first: if it is let in, then because nothing changes.
fn refused(why: &str, f: &Function, known: &Known, rewrite: &Rewrite) {
    let env = Env::empty();
    let one = ask(f, &env, known, rewrite, &Options::default());
    let other = Cache::new().ask(f, &env, known, rewrite, &Options::default());
    assert!(one.is_err(), "{why}: {rewrite:?}");
    assert!(other.is_err(), "{why}, with memory: {rewrite:?}");
    let whole = Options { switches: Switches { windows: false, ..Switches::default() }, ..Options::default() };
    assert!(ask(f, &env, known, rewrite, &whole).is_err(), "{why}, as a whole: {rewrite:?}");
}

fn rewrite(block: BlockId, path: Vec<BlockId>, range: std::ops::Range<usize>, with: Vec<Op>) -> Rewrite {
    Rewrite { block, path, start: range.start, end: range.end, with, term: None, by: "a liar" }
}

/// Facts and liveness that are enough for anything: those of the first block again and again.
fn plenty(f: &Function) -> About {
    let mut about = About::of(f, &Env::empty(), f.entry(), &[]).expect("reachable");
    let (state, live) = (about.states[0].clone(), about.live[0]);
    about.states.resize(64, state);
    about.live.resize(64, live);
    about.sides.resize(8, live);
    about
}

#[test]
fn blocks_that_are_no_path() {
    let f = built(STAIRS);
    let about = plenty(&f);
    let a = f.entry();
    let b = fall(&f, a);
    let c = fall(&f, b);
    let out = taken(&f, a);
    assert!(Superblock::of(&f, a, &[b, c]).is_some(), "this is one");
    assert!(Superblock::of(&f, a, &[b, taken(&f, b)]).is_some(), "and this");
    let cases: [(&str, BlockId, Vec<BlockId>); 8] = [
        ("reached from two places", a, vec![out]),
        ("reached from two places, at the end", a, vec![b, c, out]),
        ("no successor", a, vec![c]),
        ("a block twice", a, vec![b, b]),
        ("the first block again", b, vec![b]),
        ("backwards", c, vec![b]),
        ("no block at all", a, vec![BlockId(99)]),
        ("the entry", b, vec![a]),
    ];
    for (why, block, path) in cases {
        assert!(Superblock::of(&f, block, &path).is_none(), "{why}");
        let with = Superblock::of(&f, a, &[]).expect("a block").into_ops();
        refused(why, &f, &about.known(), &rewrite(block, path.clone(), 0..0, vec![]));
        refused(why, &f, &about.known(), &rewrite(block, path, 0..1, with));
    }
    refused("no block to start in", &f, &about.known(), &rewrite(BlockId(99), vec![], 0..0, vec![mov(Reg::R0, 1)]));
    refused("no block to start in", &f, &about.known(), &rewrite(BlockId(99), vec![b], 0..0, vec![mov(Reg::R0, 1)]));
}

#[test]
fn loops_are_no_paths() {
    let f = built(
        "
        r2 = *(u32 *)(r1 + 12)
        r0 = 0
        r0 += 1
        if r0 > 9 goto +2
        r2 += r0
        if r2 != 70 goto -4
        exit",
    );
    let about = plenty(&f);
    let head = f.block(f.entry()).term.successors().next().expect("a loop");
    let body = fall(&f, head);
    assert!(Superblock::of(&f, head, &[body]).is_some(), "a path may end where it goes back");
    refused("round the loop", &f, &about.known(), &rewrite(head, vec![body, head], 0..1, vec![]));
    refused("back to the head", &f, &about.known(), &rewrite(body, vec![head], 0..1, vec![]));
    // A loop whose head is the entry of the function.
    let mut g = f.clone();
    g.layout.retain(|b| *b != f.entry());
    g.layout.sort_by_key(|b| *b != head);
    assert_eq!(g.entry(), head);
    assert!(Superblock::of(&g, body, &[head]).is_none(), "the entry is reached from outside");
}

#[test]
fn a_jump_to_one_place_is_none() {
    let mut f = built(STAIRS);
    let a = f.entry();
    let b = fall(&f, a);
    if let Terminator::Branch { taken, .. } = &mut f.block_mut(a).term {
        *taken = b;
    }
    let about = plenty(&f);
    assert!(Superblock::of(&f, a, &[b]).is_none());
    refused("both ways lead there", &f, &about.known(), &rewrite(a, vec![b], 0..1, vec![]));
}

#[test]
fn jumps_stay_as_many_and_leave_the_same_way() {
    let f = built(STAIRS);
    let a = f.entry();
    let p = vec![fall(&f, a), fall(&f, fall(&f, a))];
    let about = About::of(&f, &Env::empty(), a, &p).expect("a path");
    let ops = Superblock::of(&f, a, &p).expect("a path").into_ops();
    let n = ops.len();
    let at: Vec<usize> = (0..n).filter(|i| is_side_exit(&ops[*i].insn)).collect();
    let whole = |with: Vec<Op>| rewrite(a, p.clone(), 0..n, with);
    let env = Env::empty();
    let mut session = Session::new(Derivation::new(f.clone()), &env);
    session.analyze();
    let points = session.path(a, &p).expect("a path");
    let (ok, _) = session.prove(&points, whole(ops.clone()), &Options::default()).expect("itself");
    session.apply(ok, 0).expect("nothing has changed");
    let same = session.function();
    assert!(bpf_prove::same_graph(&f, same), "{f}\nbecame\n{same}");
    let edited = |edit: &dyn Fn(&mut Vec<Op>)| {
        let mut with = ops.clone();
        edit(&mut with);
        whole(with)
    };
    let off = |k: i32| move |o: &mut Op| o.insn = o.insn.with_jump_offset(k).expect("a jump");
    let cases = [
        ("a jump less", edited(&|w| drop(w.remove(at[0])))),
        ("no jumps", edited(&|w| w.retain(|o| !is_side_exit(&o.insn)))),
        ("a jump more", edited(&|w| w.push(jcc(0)))),
        ("a jump twice", edited(&|w| w.insert(at[0], ops[at[0]].clone()))),
        ("jumps in another order", edited(&|w| w.swap(at[0], at[1]))),
        ("an exit inside", edited(&|w| w.insert(1, Op::new(Insn::Exit)))),
        ("a goto inside", edited(&|w| w.insert(1, Op::new(Insn::Ja { off: 0, long: false })))),
        ("a may_goto inside", edited(&|w| w.insert(1, Op::new(Insn::MayGoto { off: 0 })))),
        ("what nobody knows inside", edited(&|w| w.insert(1, Op::new(Insn::Opaque(0xff))))),
        ("nothing", edited(&Vec::clear)),
    ];
    for (why, rewrite) in cases {
        refused(why, &f, &about.known(), &rewrite);
    }
    // Where a jump leads is the graph's business; that it says something else is still not to be had.
    for k in [1, 2, -1, 30_000] {
        let other = edited(&|w| off(k)(&mut w[at[0]]));
        assert!(ask(&f, &Env::empty(), &about.known(), &other, &Options::default()).is_err());
        refused("a jump that leaves another way", &f, &about.known(), &other);
    }
    let negated = edited(&|w| {
        let exit = SideExit::of(&w[at[0]].insn).expect("it is one");
        let cond = exit.cond.negate().expect("it has one");
        w[at[0]].insn = SideExit { cond, leaves_if: !exit.leaves_if, ..exit }.insn();
    });
    refused("turned round", &f, &about.known(), &negated);
}

#[test]
fn ranges_and_ends() {
    let f = built(STAIRS);
    let a = f.entry();
    let p = vec![fall(&f, a)];
    let about = About::of(&f, &Env::empty(), a, &p).expect("a path");
    let ops = Superblock::of(&f, a, &p).expect("a path").into_ops();
    let n = ops.len();
    let known = about.known();
    #[allow(clippy::reversed_empty_ranges, reason = "that is what is tried")]
    for range in [2..1, 0..n + 1, n + 1..n + 2, 0..usize::MAX, usize::MAX..usize::MAX] {
        refused("operations that are not there", &f, &known, &rewrite(a, p.clone(), range, ops.clone()));
    }
    let term = f.block(p[0]).term.clone();
    let ended = |end: usize, term: Terminator| Rewrite {
        term: Some(term),
        ..rewrite(a, p.clone(), 0..end, ops[..end].to_vec())
    };
    assert!(ask(&f, &Env::empty(), &known, &ended(n, term.clone()), &Options::default()).is_ok(), "itself");
    refused("an end in the middle", &f, &known, &ended(n - 1, term.clone()));
    refused("the end of another block", &f, &known, &ended(n, f.block(a).term.clone()));
    refused("an exit", &f, &known, &ended(n, Terminator::Exit { origin: None }));
    refused("a goto to one of the places", &f, &known, &ended(n, Terminator::Goto(taken(&f, p[0]))));
    refused("a goto back", &f, &known, &ended(n, Terminator::Goto(a)));
    refused("a goto to nowhere", &f, &known, &ended(n, Terminator::Goto(BlockId(99))));
    let mut other = term.clone();
    if let Terminator::Branch { src, .. } = &mut other {
        *src = Src::Imm(10);
    }
    refused("another condition", &f, &known, &ended(n, other));
}

#[test]
fn nothing_known_nothing_proven() {
    let f = built(STAIRS);
    let a = f.entry();
    let p = vec![fall(&f, a), fall(&f, fall(&f, a))];
    let about = About::of(&f, &Env::empty(), a, &p).expect("a path");
    let ops = Superblock::of(&f, a, &p).expect("a path").into_ops();
    let same = rewrite(a, p, 0..ops.len(), ops);
    let full = about.known();
    let env = Env::empty();
    assert!(ask(&f, &env, &full, &same, &Options::default()).is_ok());
    for poor in [
        Known { sides: &[], ..full },
        Known { sides: &about.sides[..1], ..full },
        Known { states: &[], ..full },
        Known { live: &about.live[..2], ..full },
    ] {
        assert!(ask(&f, &env, &poor, &same, &Options::default()).is_err());
        assert!(Cache::new().ask(&f, &env, &poor, &same, &Options::default()).is_err());
    }
}

#[test]
fn no_jump_where_there_is_no_path() {
    let f = built(STAIRS);
    let a = f.entry();
    let about = plenty(&f);
    let ops = f.block(a).ops.clone();
    for off in [0, 1, 5] {
        let mut with = ops.clone();
        with.push(jcc(off));
        refused("a jump at the end", &f, &about.known(), &rewrite(a, vec![], 0..ops.len(), with));
        refused("nothing but a jump", &f, &about.known(), &rewrite(a, vec![], 0..0, vec![jcc(off)]));
    }
    for insn in [Insn::Exit, Insn::Ja { off: 0, long: false }, Insn::MayGoto { off: 1 }] {
        refused("an end inside", &f, &about.known(), &rewrite(a, vec![], 0..0, vec![Op::new(insn)]));
    }
}

/// What has no meaning inside a block is not nothing for whole functions either.
#[test]
fn functions_with_something_meaningless_inside() {
    let f = built(STAIRS);
    let env = Env::empty();
    for insn in [Insn::Opaque(0xff), Insn::Exit, Insn::Ja { off: 0, long: false }, jcc(0).insn, mov(Reg::R10, 0).insn] {
        for b in [f.entry(), fall(&f, f.entry())] {
            let mut g = f.clone();
            g.block_mut(b).ops.insert(0, Op::new(insn));
            let one = bpf_prove::functions(&f, &g, &env, &Options::default()).0;
            let other = bpf_prove::functions(&g, &f, &env, &Options::default()).0;
            assert!(!one.is_equal() && !other.is_equal(), "`{insn}`: {one:?} {other:?}");
        }
    }
}

/// `--strict-shared-memory` forbids to make an atomic of a load and a store, with a branch between them or not.
#[test]
fn strictness_leaves_load_and_store_alone() {
    use bpf_facts::{BaseId, Live, Region, State, Value};
    use bpf_isa::{AluOp, AtomicOp, Size};
    let at = (Size::DW, Reg::R7, 0);
    let load = Op::new(Insn::Load { size: at.0, sext: false, dst: Reg::R2, base: at.1, off: at.2 });
    let add = Op::new(Insn::Alu { op: AluOp::Add, width: Width::W64, dst: Reg::R2, src: Src::Reg(Reg::R3) });
    let store = Op::new(Insn::Store { size: at.0, base: at.1, off: at.2, src: Src::Reg(Reg::R2) });
    let op = AtomicOp::Add { fetch: false };
    let atomic = Op::new(Insn::Atomic { op, size: at.0, base: at.1, off: at.2, src: Reg::R3 });
    let exit = SideExit { cond: Cond::Eq, width: Width::W64, dst: Reg::R4, src: Src::Imm(5), leaves_if: true };
    let out = Op::new(exit.insn());
    let mut before = State::entry(ProgKind::Xdp);
    before.set_reg(Reg::R7, Value::pointer(Region::MapValue { map: 0 }, BaseId::Site(BlockId(0), 0), 0));
    for r in [Reg::R3, Reg::R4] {
        before.set_reg(r, Value::scalar(bpf_facts::Num::top(64)));
    }
    let maps = crate::common::scenes::maps();
    let env = Env { maps: &maps, callee_args: &|_| None, ..Env::empty() };
    let ask = |old: &[Op], new: &[Op], sides: &[Live], strict: bool| {
        let options = Options { strict_shared_memory: strict, ..Options::default() };
        let live = Live::default();
        bpf_prove::along(ProgKind::Xdp, &env, &before, old, new, sides, &live, None, &options).0.is_equal()
    };
    let straight = [load.clone(), add.clone(), store.clone()];
    let path = [load, add, out.clone(), store];
    let none = [Live::default()];
    let one = std::slice::from_ref(&atomic);
    for strict in [false, true] {
        assert_eq!(ask(&straight, one, &[], strict), !strict);
        assert_eq!(ask(&path, &[out.clone(), atomic.clone()], &none, strict), !strict);
        assert!(!ask(&path, &[atomic.clone(), out.clone()], &none, strict));
        // An atomic that was one stays one.
        assert!(ask(one, one, &[], strict));
    }
}
