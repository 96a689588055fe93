//! What proposes changes may be wrong: changes of shape that are something else, passes that lie.

use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bpf_facts::Env;
use bpf_isa::{AluOp, Cond, Insn, Reg, Size, Src, Width};
use bpf_passes::{Engine, Pass, Proposal, Recorder, Settings, View, cfg, optimize};
use bpf_program::{Block, BlockId, ByteOrder, Function, Link, Op, ProgKind, Symbol, Terminator};
use bpf_prove::shape::same_behaviour;
use bpf_prove::{Derivation, Options, Rewrite, Session, Step, unreachable_operations};
use bpf_testgen::listing;
use rustc_hash::{FxHashSet, FxHasher};

/// A seeded generator.
struct Rng(fastrand::Rng);

impl Rng {
    fn new(seed: u64) -> Rng {
        Rng(fastrand::Rng::with_seed(seed))
    }

    fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// One of few operations, so that blocks are alike by chance.
fn operation(rng: &mut Rng, slot: usize) -> Op {
    if rng.below(12) == 0 {
        let symbol = Symbol::Core { kind: 0, type_id: 7, access: Arc::from("0:1") };
        let insn = Insn::Mov { width: Width::W64, dst: Reg::R3, src: Src::Imm(0) };
        return Op { insn, origin: Some(slot), link: Some(Link { slot, symbol }) };
    }
    Op::new(Insn::Mov { width: Width::W64, dst: Reg::R2, src: Src::Imm(rng.below(2) as i32) })
}

fn terminator(rng: &mut Rng, n: usize, slot: usize) -> Terminator {
    let mut to = || BlockId(rng.below(n) as u32);
    let (taken, fall) = (to(), to());
    match rng.below(10) {
        0..=3 => Terminator::Goto(taken),
        4 => Terminator::Exit { origin: None },
        5 => Terminator::MayGoto { taken, fall, origin: Some(slot) },
        _ => {
            let src = Src::Imm(rng.below(2) as i32);
            Terminator::Branch { cond: Cond::Eq, width: Width::W64, dst: Reg::R1, src, taken, fall, origin: None }
        }
    }
}

/// A graph with empty blocks, copies of blocks, loops, and what cannot be reached.
fn graph(rng: &mut Rng) -> Function {
    let n = 2 + rng.below(8);
    let mut blocks: Vec<Block> = (0..n)
        .map(|i| Block {
            ops: (0..rng.below(3)).map(|k| operation(rng, 10 * i + k)).collect(),
            term: terminator(rng, n, 10 * i + 9),
        })
        .collect();
    for i in 1..n {
        if rng.below(3) == 0 {
            let of = rng.below(i);
            blocks[i] = blocks[of].clone();
        }
    }
    let layout = (0..n as u32).map(BlockId).collect();
    Function { name: "f".into(), kind: ProgKind::Xdp, arguments: None, byte_order: ByteOrder::Little, blocks, layout }
}

/// What a run does, if questions are answered by `seed`: the same question after the same history alike.
fn trace(f: &Function, seed: u64) -> Vec<String> {
    let mut out: Vec<String> = vec![];
    let (mut at, mut quiet) = (f.entry(), 0);
    let answer = |question: String, out: &[String]| {
        let mut h = FxHasher::default();
        (seed, question, out).hash(&mut h);
        (h.finish() >> 17) & 1 == 1
    };
    while out.len() < 40 {
        let b = f.block(at);
        quiet = if b.ops.is_empty() { quiet + 1 } else { 0 };
        if quiet > 100 {
            out.push("forever".into());
            break;
        }
        out.extend(b.ops.iter().map(|o| format!("{} {:?}", o.insn, o.link)));
        at = match &b.term {
            Terminator::Goto(t) => *t,
            Terminator::Exit { .. } => {
                out.push("exit".into());
                break;
            }
            Terminator::MayGoto { taken, fall, origin } => {
                out.push(format!("may_goto {origin:?}"));
                quiet = 0;
                if answer("may_goto".into(), &out) { *taken } else { *fall }
            }
            Terminator::Branch { src, taken, fall, .. } => {
                if answer(format!("{src:?}"), &out) {
                    *taken
                } else {
                    *fall
                }
            }
        };
    }
    out.truncate(40);
    out
}

fn same_traces(f: &Function, g: &Function) -> bool {
    (0..64).all(|seed| trace(f, seed) == trace(g, seed))
}

/// Something wrong, mostly: an edge elsewhere, swapped edges, an operation or a block less, a cycle cut.
fn damage(rng: &mut Rng, f: &Function) -> Function {
    let mut g = f.clone();
    let b = g.layout[rng.below(g.layout.len())];
    let to = g.layout[rng.below(g.layout.len())];
    let term = terminator(rng, g.blocks.len(), 77);
    let block = g.block_mut(b);
    match rng.below(6) {
        0 => block.term.map_successors(|_| to),
        1 => {
            if let Terminator::Branch { taken, fall, .. } | Terminator::MayGoto { taken, fall, .. } = &mut block.term {
                std::mem::swap(taken, fall);
            }
        }
        2 => drop(block.ops.pop()),
        3 => block.term = term,
        4 => {
            let mut first = true;
            block.term.map_successors(|s| if std::mem::take(&mut first) { to } else { s });
        }
        _ => block.ops.reverse(),
    }
    // What nothing leads to any more would be refused for that alone.
    let reached = bpf_program::reverse_postorder(&g).0;
    g.layout.retain(|b| reached.contains(b));
    g
}

#[test]
fn simplifications_are_proven_and_whatever_is_proven_runs_the_same() {
    let mut not_seen = 0;
    let (mut simplified, mut equal, mut different, mut by_chance) = (0, 0, 0, 0);
    for seed in 0..1_500 {
        let mut rng = Rng::new(seed);
        let f = graph(&mut rng);
        let mut g = f.clone();
        if cfg::simplify(&mut g, true) {
            simplified += 1;
            // Questions that are about nothing only all at once, around a loop, the proof does not see.
            not_seen += usize::from(same_behaviour(&f, &g).is_err());
            assert!(same_traces(&f, &g), "seed {seed}\n{f}---\n{g}");
        }
        for _ in 0..6 {
            let wrong = damage(&mut rng, &g);
            let same = same_traces(&f, &wrong);
            match same_behaviour(&f, &wrong) {
                Ok(()) => {
                    equal += 1;
                    assert!(same, "seed {seed}: proven, and not the same\n{f}---\n{wrong}");
                }
                Err(_) => {
                    different += 1;
                    by_chance += usize::from(same);
                }
            }
        }
    }
    println!(
        "{simplified} simplified, {not_seen} unproven; damaged: {equal} equal, {different} not, {by_chance} of these look the same"
    );
    assert!(not_seen * 500 <= simplified, "{not_seen} of {simplified} are not proven");
    assert!(simplified > 1_000 && equal > 500 && different > 3_000, "{simplified} {equal} {different}");
}

/// Proposes what it likes: things left out, things invented, other people's blocks, proposals of long ago.
struct Liar {
    rng: RefCell<Rng>,
    said: RefCell<Vec<Rewrite>>,
}

impl Liar {
    fn lie(&self, v: &View) -> Rewrite {
        let rng = &mut *self.rng.borrow_mut();
        let n = v.ops.len();
        let start = rng.below(n + 1);
        let end = (start + rng.below(4)).min(n);
        let mut with: Vec<Op> = v.ops[start..end].to_vec();
        let registers: Vec<Reg> = Reg::all().collect();
        let any = |rng: &mut Rng| registers[rng.below(11)];
        let number = |rng: &mut Rng| Src::Imm(rng.below(4) as i32);
        for _ in 0..1 + rng.below(2) {
            let at = rng.below(with.len() + 1);
            match rng.below(6) {
                0 | 1 if at < with.len() => drop(with.remove(at)),
                2 if at < with.len() => {
                    let src = number(rng);
                    with[at] = Op::new(Insn::Mov { width: Width::W32, dst: any(rng), src });
                }
                3 if at < with.len() => {
                    let src = Src::Reg(any(rng));
                    with[at] = Op::new(Insn::Mov { width: Width::W64, dst: any(rng), src });
                }
                4 if at < with.len() => {
                    let src = number(rng);
                    with[at] = Op::new(Insn::Alu { op: AluOp::Add, width: Width::W64, dst: any(rng), src });
                }
                5 if at < with.len() => {
                    with[at] = Op::new(Insn::Store { size: Size::DW, base: Reg::R10, off: -8, src: Src::Imm(0) });
                }
                _ => {}
            }
        }
        let mut r = v.replace(start, end, with, "a liar");
        match rng.below(12) {
            0 => r.block = BlockId(rng.below(v.function().blocks.len() + 1) as u32),
            1 => r.end = n + rng.below(3),
            2 => r.path = vec![BlockId(rng.below(v.function().blocks.len()) as u32)],
            3 => {
                r.end = n;
                r.with = r.with.into_iter().chain(v.ops[end..].iter().cloned()).collect();
                r.term = Some(match v.term.successors().next() {
                    Some(s) => Terminator::Goto(s),
                    None => Terminator::Goto(BlockId(0)),
                });
            }
            _ => {}
        }
        r
    }
}

impl Pass for Liar {
    fn name(&self) -> &'static str {
        "a liar"
    }

    fn propose(&self, v: &View) -> Vec<Rewrite> {
        let mut all: Vec<Rewrite> = (0..24).map(|_| self.lie(v)).collect();
        let mut said = self.said.borrow_mut();
        all.extend(said.iter().rev().take(8).cloned());
        said.extend(all.iter().take(4).cloned());
        all
    }
}

/// Branches, a loop, the frame, the context, a call; dead code for the liar to be right about now and then.
const FUNCTIONS: [&str; 4] = [
    "r6 = r1\nr2 = *(u32 *)(r6 + 12)\nr3 = 7\nr4 = r3\nif r2 == 5 goto +4\nr0 = r2\nr0 &= 3\nr5 = 1\nexit\n\
     r0 = 2\nr0 += 0\nexit",
    "r7 = 0\nr8 = 3\nr0 = 0\nr0 += 2\nr7 += 1\nr9 = r7\nif r7 < 10 goto -4\nr0 = r7\nexit",
    "*(u64 *)(r10 - 8) = 1\nr2 = *(u64 *)(r10 - 8)\nr3 = r2\nif r3 != 1 goto +2\nr0 = 1\nexit\nr0 = 0\nexit",
    "call 5\nr6 = r0\nr7 = r0\nr7 &= 1\nif r7 == 0 goto +3\ncall 5\nr0 = r6\nexit\nr0 = 1\nr0 = 2\nexit",
];

fn function(text: &str) -> Function {
    listing::function(ProgKind::Xdp, text)
}

#[test]
fn an_engine_of_liars_makes_nothing_wrong() {
    let env = Env::empty();
    let settings = Settings::default();
    let banned = FxHashSet::default();
    let (mut applied, mut refused) = (0, 0);
    for seed in 0..24 {
        for text in FUNCTIONS {
            let f = function(text);
            let liar = Liar { rng: RefCell::new(Rng::new(seed)), said: RefCell::default() };
            let mut engine = Engine::with_passes(vec![Box::new(liar)], &settings, &banned);
            let mut session = Session::new(Derivation::new(f.clone()), &env);
            engine.run(&mut session);
            let d = session.finish();
            applied += d.steps().iter().filter(|s| s.rewrite().is_some()).count();
            refused += engine.tally.refused;
            let verdict = bpf_prove::functions(&f, d.current(), &env, &Options::default()).0;
            assert!(verdict.is_equal(), "seed {seed}: {verdict:?}\n{f}\nbecame\n{}", d.current());
            let mut back = d.clone();
            back.rewind(0);
            assert_eq!(back.current(), &f);
        }
    }
    println!("{applied} lies were true, {refused} were not");
    assert!(applied > 100 && refused > 1_000, "{applied} {refused}");
}

/// A branch that was decided leaves code behind it to which nothing leads; the kernel takes no program with such code.
#[test]
fn a_run_that_is_stopped_leaves_no_code_that_cannot_be_reached() {
    let env = Env::empty();
    let text = "
        r1 = 5
        r0 = 0
        if r1 > 3 goto +2
        r0 = 1
        r0 <<= 3
        exit";
    let mut stopped_in_between = 0;
    for proposals in 1..12 {
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, stopping) = (AtomicUsize::new(0), stop.clone());
        let count = move |_: &Proposal| {
            if seen.fetch_add(1, Ordering::Relaxed) + 1 == proposals {
                stopping.store(true, Ordering::Relaxed);
            }
        };
        let settings = Settings { stop: Some(stop), recorder: Some(Recorder::new(count)), ..Settings::default() };
        let d = optimize(function(text), &env, &settings);
        assert_eq!(unreachable_operations(d.current()), 0, "stopped after {proposals} proposals:\n{}", d.current());
        let decided = |s: &Step| s.rewrite().is_some_and(|r| matches!(r.term, Some(Terminator::Goto(_))));
        stopped_in_between += usize::from(d.steps().iter().any(decided));
    }
    assert!(stopped_in_between > 0, "no run was stopped right behind the branch");
}

#[test]
fn what_all_passes_make_can_be_made_again_step_by_step() {
    let env = Env::empty();
    for text in FUNCTIONS {
        let d = optimize(function(text), &env, &Settings::default());
        assert!(!d.steps().is_empty(), "{text}");
        for n in 0..=d.steps().len() {
            let mut part = d.clone();
            part.rewind(n);
            let verdict = bpf_prove::functions(d.original(), part.current(), &env, &Options::default()).0;
            assert!(verdict.is_equal(), "after {n} steps: {verdict:?}\n{}", part.current());
        }
    }
}
