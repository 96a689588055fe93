//! The prover's switches and its memory change how long it takes, never what it says.

use std::path::{Path, PathBuf};

use bpf_bench::{Harvest, Query, deep, harvest, objects};
use bpf_facts::Env;
use bpf_isa::{Reg, RegSet};
use bpf_program::{Op, Terminator};
use bpf_prove::{Cache, Known, Options, Rewrite, Switches, ask};

fn paths() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let small = |p: &PathBuf| std::fs::metadata(p).is_ok_and(|m| m.len() < 20_000);
    ["examples", "../shared/bench/k2"].iter().flat_map(|d| objects(&root.join(d))).filter(small).collect()
}

/// Calls `f` with each query of each object.
fn each(mut f: impl FnMut(&Harvest, &Env, &Query) + Send) {
    deep(|| {
        for path in paths() {
            let h = harvest(&path).expect("the fixtures can be read");
            h.module.with_env(|env| h.functions.iter().flat_map(|(_, _, q)| q).for_each(|q| f(&h, env, q)));
        }
    })
    .expect("no panic");
}

fn equal(env: &Env, q: &Query, options: &Options) -> bool {
    ask(&q.function, env, &q.known(), &q.rewrite, options).is_ok()
}

#[test]
fn memory_answers_as_the_prover_does() {
    let mut cache = Cache::new();
    let (mut name, mut hits, mut asked) = (String::new(), 0, 0);
    each(|h, env, q| {
        if name != h.name {
            hits += cache.hits;
            (cache, name) = (Cache::new(), h.name.clone());
        }
        let remembered = cache.ask(&q.function, env, &q.known(), &q.rewrite, &q.options).is_ok();
        assert_eq!(remembered, equal(env, q, &q.options), "{}: {:?}", h.name, q.rewrite);
        asked += 1;
    });
    assert!(asked > 100 && hits > asked / 10, "{hits} of {asked} questions were asked twice");
}

#[test]
fn registers_have_no_names_in_memory() {
    let (mut renamed, mut hits) = (0, 0);
    each(|_, env, q| {
        let Some(other) = turned(q) else { return };
        let mut cache = Cache::new();
        let first = cache.ask(&q.function, env, &q.known(), &q.rewrite, &q.options).is_ok();
        let second = cache.ask(&other.function, env, &other.known(), &other.rewrite, &other.options).is_ok();
        assert_eq!(first, second);
        assert_eq!(second, equal(env, &other, &other.options), "{:?}", other.rewrite);
        renamed += 1;
        hits += cache.hits;
    });
    // Calls and compare-and-exchange tie registers down.
    assert!(hits * 2 > renamed, "{hits} of {renamed} renamed questions were recognized");
}

/// The query with r6 … r9 turned around, as another compiler might have allocated them.
fn turned(q: &Query) -> Option<Query> {
    let turn = |r: Reg| match r.index() {
        i @ 6..=9 => Reg::new(15 - i as u8).expect("a register"),
        _ => r,
    };
    let op = |o: &Op| Op { insn: o.insn.map_regs(turn), ..o.clone() };
    let set = |s: RegSet| s.iter().fold(RegSet::EMPTY, |a, r| a.with(turn(r)));
    let term = |t: &Terminator| {
        let mut t = t.clone();
        if let Terminator::Branch { dst, src, .. } = &mut t {
            *dst = turn(*dst);
            if let bpf_isa::Src::Reg(r) = src {
                *r = turn(*r);
            }
        }
        t
    };
    let mut function = (*q.function).clone();
    for block in q.rewrite.path.iter().chain([&q.rewrite.block]) {
        let b = function.block_mut(*block);
        b.ops = b.ops.iter().map(op).collect();
        b.term = term(&b.term);
    }
    let states = q.states.iter().map(|s| {
        let mut t = s.clone();
        Reg::all().for_each(|r| t.set_reg(turn(r), s.reg(r).clone()));
        t
    });
    let renamed = |l: &bpf_facts::Live| bpf_facts::Live { regs: set(l.regs), ..*l };
    let live = q.live.iter().map(renamed).collect();
    let with: Vec<Op> = q.rewrite.with.iter().map(op).collect();
    (with != q.rewrite.with).then(|| Query {
        function: function.into(),
        states: states.collect(),
        live,
        sides: q.sides.iter().map(renamed).collect(),
        rewrite: Rewrite { with, term: q.rewrite.term.as_ref().map(term), ..q.rewrite.clone() },
        options: q.options.clone(),
    })
}

#[test]
fn what_is_live_is_part_of_the_question() {
    let (mut with, mut checked) = (0, 0);
    each(|h, env, q| {
        // Everything live afterwards: often another answer.
        let all = bpf_facts::Live { regs: RegSet::ALL, stack: bpf_facts::StackSet::ALL };
        let (live, sides) = (vec![all; q.live.len()], vec![all; q.sides.len()]);
        let known = Known { states: &q.states, live: &live, sides: &sides };
        let mut cache = Cache::new();
        let narrow = cache.ask(&q.function, env, &q.known(), &q.rewrite, &q.options).is_ok();
        let wide = cache.ask(&q.function, env, &known, &q.rewrite, &q.options).is_ok();
        let fresh = ask(&q.function, env, &known, &q.rewrite, &q.options).is_ok();
        assert_eq!(wide, fresh, "{}: {:?}", h.name, q.rewrite);
        checked += 1;
        with += usize::from(narrow != wide);
    });
    assert!(with > 0, "of {checked} questions none depends on what is live");
}

#[test]
fn without_an_optimization_nothing_more_is_proven() {
    let all = Switches { cache: false, ..Switches::default() };
    let off = [
        Switches { regions: false, ..all },
        Switches { maps: false, ..all },
        Switches { offsets: false, ..all },
        Switches { windows: false, ..all },
    ];
    let (mut proven, mut kept) = (0, [0; 4]);
    each(|h, env, q| {
        if h.functions.iter().map(|(f, ..)| f.blocks.len()).sum::<usize>() > 12 {
            return;
        }
        let base = equal(env, q, &Options { switches: all, ..q.options.clone() });
        proven += usize::from(base);
        for (switches, kept) in off.iter().zip(&mut kept) {
            let v = equal(env, q, &Options { switches: *switches, ..q.options.clone() });
            // As a whole function more is known than at a window.
            assert!(base || !v || !switches.windows, "{}: {:?} is equal only with {switches:?}", h.name, q.rewrite);
            *kept += usize::from(v);
        }
    });
    assert!(proven > 0 && kept.iter().all(|k| *k * 2 > proven), "of {proven} proofs remain {kept:?}");
}
