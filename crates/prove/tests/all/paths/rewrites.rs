//! Rewrites of paths through the front door: with and without memory the same verdict, and what is proven and
//! carried out leaves the function what it was.

use bpf_facts::Env;
use bpf_isa::Insn;
use bpf_program::{Function, Op, Terminator};
use bpf_prove::superblock::{SideExit, Superblock, is_side_exit};
use bpf_prove::{Cache, Derivation, Limits, Options, Rewrite, Session, Switches, ask};
use bpf_semantics::interp::Fault;

use crate::common::{Rng, mix, rounds};
use crate::paths::changes::{change, moved};
use crate::paths::functions::function;
use crate::paths::functions::{About, paths, program, run};

/// What the rewrite would make of the function, proven or not.
fn carried_out(f: &Function, r: &Rewrite) -> Option<Function> {
    let mut g = f.clone();
    let mut ops = Superblock::of(f, r.block, &r.path)?.into_ops();
    ops.splice(r.start..r.end, r.with.iter().cloned());
    let blocks: Vec<_> = std::iter::once(r.block).chain(r.path.iter().copied()).collect();
    let parts: Vec<&[Op]> = ops.split(|o| is_side_exit(&o.insn)).collect();
    if parts.len() != blocks.len() {
        return None;
    }
    for (b, part) in blocks.iter().zip(&parts) {
        g.block_mut(*b).ops = part.to_vec();
    }
    for (b, jump) in blocks.iter().zip(ops.iter().filter(|o| is_side_exit(&o.insn))) {
        let Terminator::Branch { cond: c, width: w, dst: d, src: s, .. } = &mut g.block_mut(*b).term else {
            return None;
        };
        let SideExit { cond, width, dst, src, .. } = SideExit::of(&jump.insn)?;
        (*c, *w, *d, *s) = (cond, width, dst, src);
    }
    if let Some(t) = &r.term {
        g.block_mut(*blocks.last()?).term = t.clone();
    }
    Some(g)
}

/// What is proven of whole functions, which goes through jumps, too, runs the same.
#[test]
fn functions_that_are_proven_equal_across_branches_run_the_same() {
    let env = Env::empty();
    let limits = Limits { conflicts: 300, work: 400_000, ..Limits::default() };
    let options = Options { limits, ..Options::default() };
    let (mut proven, mut across, mut refused, mut runs) = (0, 0, 0, 0);
    for seed in 0..rounds(30) {
        let mut rng = Rng::new(mix(seed ^ 0x0077_686f_6c65));
        let text = program(&mut rng);
        let f = function(&text).unwrap_or_else(|| panic!("seed {seed}: no function:\n{text}"));
        for _ in 0..4 {
            let Some((rewrite, old)) = proposal(&mut rng, &f) else { continue };
            let Some(g) = carried_out(&f, &rewrite) else { continue };
            if !bpf_prove::functions(&f, &g, &env, &options).0.is_equal() {
                refused += 1;
                continue;
            }
            proven += 1;
            let new: Vec<Insn> = rewrite.with.iter().map(|o| o.insn).collect();
            across += u64::from(moved(&old, &new));
            for k in 0..24 {
                let at = mix(seed << 8 ^ k);
                let Ok(x) = run(&f, at) else { continue };
                runs += 1;
                match run(&g, at) {
                    Err(Fault::Uninitialised(_)) => {}
                    y => assert_eq!(Ok(x), y, "seed {seed}: {rewrite:?}\nin\n{text}\nbecame\n{g}"),
                }
            }
        }
    }
    println!("{proven} proven, {across} across a jump, {refused} not, {runs} runs");
    assert!(proven > 40 && across > 2 && refused > 10 && runs > 500, "{proven} {across} {refused} {runs}");
}

#[derive(Default, Debug)]
struct Tally {
    proven: u64,
    across: u64,
    with_term: u64,
    as_whole: u64,
    refused: u64,
    runs: u64,
}

/// The last branch changed, perhaps rightly.
fn another_end(rng: &mut Rng, term: &Terminator) -> Option<Terminator> {
    let Terminator::Branch { cond, width, dst, src, taken, fall, origin } = *term else { return None };
    Some(match rng.below(5) {
        0 => Terminator::Goto(taken),
        1 => Terminator::Goto(fall),
        2 => Terminator::Branch { cond: cond.negate()?, width, dst, src, taken: fall, fall: taken, origin },
        _ => {
            let exit = SideExit { cond, width, dst, src, leaves_if: true };
            let SideExit { cond, width, dst, src, .. } = crate::paths::changes::tweaked(rng, exit);
            Terminator::Branch { cond, width, dst, src, taken, fall, origin }
        }
    })
}

fn proposal(rng: &mut Rng, f: &Function) -> Option<(Rewrite, Vec<Insn>)> {
    let all = paths(f);
    if all.is_empty() {
        return None;
    }
    let (block, path) = all[rng.below(all.len() as u64) as usize].clone();
    let ops = Superblock::of(f, block, &path)?.into_ops();
    let n = ops.len() as u64;
    let (a, b) = (rng.below(n + 1), rng.below(n + 1));
    let (start, mut end) = (a.min(b) as usize, a.max(b) as usize);
    let mut term = None;
    if rng.chance(4) {
        let last = *path.last()?;
        term = another_end(rng, &f.block(last).term);
        if term.is_some() {
            end = ops.len();
        }
    }
    let old: Vec<Insn> = ops[start..end].iter().map(|o| o.insn).collect();
    let mut new = old.clone();
    for _ in 0..1 + rng.below(2) {
        change(rng, &mut new);
    }
    if new == old && term.is_none() {
        return None;
    }
    let with = new.into_iter().map(Op::new).collect();
    Some((Rewrite { block, path, start, end, with, term, by: "chance" }, old))
}

#[test]
fn proven_rewrites_of_paths_keep_what_functions_do() {
    let env = Env::empty();
    let limits = Limits { conflicts: 300, work: 400_000, ..Limits::default() };
    let options = Options { limits, ..Options::default() };
    let whole = Options { switches: Switches { windows: false, ..Switches::default() }, ..options.clone() };
    let mut cache = Cache::new();
    let mut tally = Tally::default();
    for seed in 0..rounds(400) {
        let mut rng = Rng::new(mix(seed ^ 0x0066_726f_6e74));
        let text = program(&mut rng);
        let f = function(&text).unwrap_or_else(|| panic!("seed {seed}: no function:\n{text}"));
        for _ in 0..12 {
            let Some((rewrite, old)) = proposal(&mut rng, &f) else { continue };
            let Some(about) = About::of(&f, &env, rewrite.block, &rewrite.path) else { continue };
            let as_whole = rng.chance(12);
            let asked = if as_whole { &whole } else { &options };
            let verdict = ask(&f, &env, &about.known(), &rewrite, asked);
            let remembered = cache.ask(&f, &env, &about.known(), &rewrite, asked);
            let told = || format!("seed {seed}: {rewrite:?}\nin\n{text}");
            assert_eq!(verdict.is_ok(), remembered.is_ok(), "{verdict:?}\n{remembered:?}\n{}", told());
            let mut session = Session::new(Derivation::new(f.clone()), &env);
            session.analyze();
            let points = match rewrite.path.is_empty() {
                true => session.block(rewrite.block),
                false => session.path(rewrite.block, &rewrite.path),
            };
            let proven = points.and_then(|points| session.prove(&points, rewrite.clone(), asked).ok());
            assert!(verdict.is_ok() || proven.is_none(), "a session knows as much: {}", told());
            let Some((proven, _)) = proven else {
                tally.refused += 1;
                continue;
            };
            tally.proven += 1;
            tally.as_whole += u64::from(as_whole);
            tally.with_term += u64::from(rewrite.term.is_some());
            let new: Vec<Insn> = rewrite.with.iter().map(|o| o.insn).collect();
            tally.across += u64::from(moved(&old, &new) && old.iter().any(is_side_exit));
            session.apply(proven, 0).expect("nothing has changed");
            let g = session.finish().into_current();
            for k in 0..24 {
                let at = mix(seed << 8 ^ k);
                let Ok(x) = run(&f, at) else { continue };
                tally.runs += 1;
                match run(&g, at) {
                    // Reading what a call clobbered is refused by the verifier, and by the interpreter.
                    Err(Fault::Uninitialised(_)) => {}
                    y => assert_eq!(Ok(x), y, "{}\nbecame\n{g}", told()),
                }
            }
        }
    }
    println!("{tally:?}, {} of {} from memory", cache.hits, cache.hits + cache.misses);
    assert!(tally.proven > 500 && tally.across > 50 && tally.with_term > 20 && tally.as_whole > 20, "{tally:?}");
    assert!(tally.refused > 500 && tally.runs > 5_000 && cache.hits > 20, "{tally:?}");
}
