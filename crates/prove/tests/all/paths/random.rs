//! Random paths: what is proven must leave at the same jump having done the same, whatever the input.

use bpf_facts::{Env, Kind, Live, StackSet};
use bpf_isa::{Insn, Src};
use bpf_program::{ByteOrder, Op};
use bpf_prove::superblock::{SideExit, is_side_exit};
use bpf_prove::{Limits, Options, Verdict, along};
use bpf_semantics::branch;
use bpf_semantics::interp::{Cpu, Interp};

use crate::common::scenes::{Books, Input, Ran, Scene, difference, input, listing, maps, misbehaviour, r, scene, tame};
use crate::common::{Rng, mix, rounds};
use crate::paths::changes::{change, moved, path};

/// Runs a path; says at which of its jumps it was left, or how many there are.
fn walk<'a>(input: &Input, ops: &[Op], initial: &'a dyn Fn(u64) -> u8) -> Option<(Ran<'a>, usize)> {
    let mut cpu = Cpu::with_frame_pointer(input.regs[10]);
    for (i, v) in input.regs.iter().enumerate() {
        cpu.set(r(i as u8), *v);
    }
    cpu.frame_mut().copy_from_slice(&input.frame);
    let mut m = Interp::with_cpu(cpu, Books::new(initial, input.order));
    let mut jumps = 0;
    for op in ops {
        if let Some(SideExit { cond, width, dst, src, leaves_if }) = SideExit::of(&op.insn) {
            if branch(&mut m, cond, width, dst, src).ok()? == leaves_if {
                break;
            }
            jumps += 1;
        } else {
            m.run_ops(std::slice::from_ref(op)).ok()?;
        }
    }
    Some((Ran { cpu: m.cpu, books: m.host }, jumps))
}

/// An input near the constants of the jumps.
fn near(rng: &mut Rng, scene: &Scene, constants: &[i32], order: ByteOrder) -> Option<Input> {
    let mut start = input(rng, scene, order)?;
    for n in 0..5u8 {
        let v = scene.state.reg(r(n));
        if !matches!(v.kind, Kind::Scalar) || rng.chance(3) {
            continue;
        }
        // As 64 and as 32 bits, with something above; or as another register.
        let k = match constants {
            [] => 0,
            some => i64::from(rng.one_of(some)) as u64,
        };
        let k = k.wrapping_add(rng.one_of(&[0, 0, 1, u64::MAX]));
        let k = match rng.below(5) {
            0 => k & 0xffff_ffff,
            1 => k & 0xffff_ffff | rng.next() << 32,
            2 => start.regs[rng.below(5) as usize],
            _ => k,
        };
        if v.num.contains(k) {
            start.regs[n as usize] = k;
        }
    }
    Some(start)
}

fn some_live(rng: &mut Rng) -> Live {
    let mut live = Live::default();
    let of = 1 + rng.below(4);
    (0..10).filter(|_| rng.below(5) < of).for_each(|n| live.regs.insert(r(n)));
    live.stack = match rng.below(4) {
        0 => StackSet::ALL,
        1 => StackSet::EMPTY,
        _ => StackSet::range(-8 * (1 + rng.below(5) as i64), 1 + rng.below(16) as u32),
    };
    live
}

#[derive(Default, Debug)]
struct Tally {
    equal: u64,
    across: u64,
    jump_changed: u64,
    by_solver: u64,
    different: u64,
    unknown: u64,
    runs: u64,
    left: u64,
    ended: u64,
}

#[test]
fn proven_paths_go_the_same_way_and_do_the_same() {
    proven_paths(ByteOrder::Little);
}

#[test]
fn proven_paths_go_the_same_way_on_a_big_endian_machine() {
    proven_paths(ByteOrder::Big);
}

fn proven_paths(byte_order: ByteOrder) {
    let maps = maps();
    let env = Env { maps: &maps, callee_args: &|_| None, byte_order, ..Env::empty() };
    let (mut tally, mut failures) = (Tally::default(), vec![]);
    let first = std::env::var("BPF_OPT_FUZZ_SEED").ok().and_then(|s| s.parse().ok());
    let seeds = first.map_or(0..rounds(2_500), |s: u64| s..s + 1);
    for seed in seeds {
        one_path(seed, &mut Rng::new(mix(seed ^ 0x7061_7468)), &env, &mut tally, &mut failures);
    }
    println!("{tally:?}");
    assert!(failures.is_empty(), "{} failures, the first:\n{}", failures.len(), failures[0]);
    if first.is_none() {
        assert!(tally.equal > 2_000 && tally.across > 500 && tally.jump_changed > 200, "{tally:?}");
        assert!(tally.left > 5_000 && tally.ended > 5_000 && tally.different > 1_000, "{tally:?}");
    }
}

fn one_path(seed: u64, rng: &mut Rng, env: &Env, tally: &mut Tally, failures: &mut Vec<String>) {
    let scene = scene(rng, env);
    let insns = path(rng);
    let initial_seed = rng.next();
    let plain = rng.chance(2);
    for _ in 0..5 {
        let mut changed = insns.clone();
        for _ in 0..1 + rng.below(2) {
            change(rng, &mut changed);
        }
        if changed == insns {
            continue;
        }
        // Either may be the original.
        let (a, b) = if rng.chance(3) { (&changed, &insns) } else { (&insns, &changed) };
        let of = |ops: &[Insn]| ops.iter().map(|i| Op::new(*i)).collect::<Vec<Op>>();
        let (old, new) = (of(a), of(b));
        let jumps: Vec<Insn> = a.iter().chain(b).copied().filter(is_side_exit).collect();
        let n = a.iter().filter(|i| is_side_exit(i)).count();
        let sides: Vec<Live> = (0..n).map(|_| some_live(rng)).collect();
        let limits = Limits { conflicts: 300, work: 400_000, ..Limits::default() };
        let strict = rng.chance(4);
        let options = Options { limits, strict_shared_memory: strict, ..Options::default() };
        let (verdict, stats) = along(scene.kind, env, &scene.state, &old, &new, &sides, &scene.live, None, &options);
        match verdict {
            Verdict::Equal => {}
            Verdict::Different(_) => {
                tally.different += 1;
                continue;
            }
            Verdict::Unknown(_) => {
                tally.unknown += 1;
                continue;
            }
        }
        tally.equal += 1;
        tally.by_solver += u64::from(stats.sat_calls > 0);
        tally.across += u64::from(moved(a, b));
        let only = |ops: &[Insn]| ops.iter().copied().filter(is_side_exit).collect::<Vec<_>>();
        tally.jump_changed += u64::from(only(a) != only(b));
        let constants: Vec<i32> = jumps
            .iter()
            .filter_map(|j| match *j {
                Insn::Jcc { src: Src::Imm(k), .. } => Some(k),
                _ => None,
            })
            .collect();
        for _ in 0..24 {
            let Some(i) = near(rng, &scene, &constants, env.byte_order) else { continue };
            let initial = |a: u64| mix(a ^ initial_seed ^ i.seed) as u8 & if plain { 0xff } else { 0x81 };
            let Some((x, ends)) = walk(&i, &old, &initial).filter(|(x, _)| tame(&x.books)) else { continue };
            tally.runs += 1;
            *(if ends == n { &mut tally.ended } else { &mut tally.left }) += 1;
            let what = match walk(&i, &new, &initial) {
                None => Some("the new side faults".to_string()),
                Some((_, e)) if e != ends => Some(format!("left at jump {ends} and at jump {e}")),
                Some((y, _)) => {
                    let live = if ends == n { scene.live } else { sides[ends] };
                    difference(&x, &y, &live).or_else(|| misbehaviour(&x.books, &y.books))
                }
            };
            if let Some(what) = what {
                let facts: Vec<_> = (0..10).map(|n| scene.state.reg(r(n)).clone()).collect();
                failures.push(format!(
                    "seed {seed}: {what}\nold\n{}new\n{}sides {sides:?}\nlive {:?}\n{:x?}\nregisters {facts:?}",
                    listing(&old),
                    listing(&new),
                    scene.live,
                    i.regs
                ));
                break;
            }
        }
    }
}
