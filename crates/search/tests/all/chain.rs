//! The chain and its tests: lanes against the interpreter, known improvements, and who is believed.

use bpf_facts::{Env, Live, StackSet, State};
use bpf_isa::{AluOp, AtomicOp, Endian, Goal, Insn, Reg, RegSet, Size, Src, Width, parse_listing};
use bpf_program::{Op, ProgKind};
use bpf_prove::{Options, Verdict, window};
use bpf_search::batch::Batch;
use bpf_search::inputs::Input;
use bpf_search::rng::Rng;
use bpf_search::settings::Distance;
use bpf_search::{Answer, Budget, Chain, Payoff, Portfolio, SETTINGS, Window};
use bpf_semantics::interp::{Cpu, Interp, Oracle};

fn ops(listing: &str) -> Vec<Op> {
    parse_listing(listing).expect("a listing").into_iter().map(Op::new).collect()
}

fn r(n: usize) -> Reg {
    Reg::new(n as u8).expect("a register")
}

fn live(regs: &[usize], stack: &[(i64, u32)]) -> Live {
    let mut l = Live::default();
    regs.iter().for_each(|n| l.regs.insert(r(*n)));
    stack.iter().for_each(|(off, len)| l.stack.insert_range(*off, *len));
    l
}

struct Case {
    env: Env<'static>,
    before: State,
    old: Vec<Op>,
    live: Live,
}

impl Case {
    fn new(listing: &str, live: Live) -> Case {
        Case { env: Env::empty(), before: State::entry(ProgKind::Subprogram), old: ops(listing), live }
    }

    fn window(&self) -> Window<'_> {
        Window {
            kind: ProgKind::Subprogram,
            env: &self.env,
            before: &self.before,
            old: &self.old,
            live: &self.live,
            cpu: 4,
            goal: Goal::Size,
            deadline: None,
            superblock: None,
        }
    }

    /// The prover's answer.
    fn judge(&self, new: &[Op]) -> Answer {
        let kind = ProgKind::Subprogram;
        let options = Options::default();
        match window(kind, &self.env, &self.before, &self.old, new, &self.live, None, &options).0 {
            Verdict::Equal => Answer::Equal,
            Verdict::Different(d) => Answer::Different(Some(d)),
            Verdict::Unknown(_) => Answer::Unknown,
        }
    }

    /// Slots of the best within so many proposals of the whole portfolio, and its listing.
    fn best(&self, seed: u64, proposals: u64) -> Option<(u32, String)> {
        let mut portfolio = Portfolio::new(self.window(), &SETTINGS, seed).expect("a window that can be tested");
        let mut judge = |new: &[Op]| self.judge(new);
        let found = portfolio.run(Budget::proposals(proposals), &mut Payoff::default(), &mut judge)?;
        Some((found.cost.first, found.with.iter().map(|o| format!("{}\n", o.insn)).collect()))
    }
}

/// A random instruction of every kind that computes, and accesses to the frame.
fn any(rng: &mut Rng) -> Insn {
    let reg = |rng: &mut Rng| r(rng.below(10));
    let src = |rng: &mut Rng| {
        if rng.one_in(2) { Src::Reg(r(rng.below(10))) } else { Src::Imm(rng.bits() as i32 >> rng.below(32)) }
    };
    let width = if rng.one_in(2) { Width::W32 } else { Width::W64 };
    let size = Size::ALL[rng.below(4)];
    let off = -8 * (1 + rng.below(6) as i16);
    match rng.below(12) {
        0..=3 => Insn::Alu { op: AluOp::ALL[rng.below(13)], width, dst: reg(rng), src: src(rng) },
        4 => Insn::Mov { width, dst: reg(rng), src: src(rng) },
        5 => {
            let from = [Size::B, Size::H, Size::W][rng.below(3)];
            let width = if from == Size::W { Width::W64 } else { width };
            Insn::MovSx { width, from, dst: reg(rng), src: reg(rng) }
        }
        6 => Insn::Neg { width, dst: reg(rng) },
        7 => {
            let kind = [Endian::Le, Endian::Be, Endian::Swap][rng.below(3)];
            Insn::Endian { kind, bits: [16, 32, 64][rng.below(3)], dst: reg(rng) }
        }
        8 => Insn::Store { size, base: Reg::R10, off, src: src(rng) },
        9 => Insn::Load { size, sext: size != Size::DW && rng.one_in(2), dst: reg(rng), base: Reg::R10, off },
        10 => {
            let fetch = rng.one_in(2);
            let all = [
                AtomicOp::Add { fetch },
                AtomicOp::Or { fetch },
                AtomicOp::And { fetch },
                AtomicOp::Xor { fetch },
                AtomicOp::Xchg,
                AtomicOp::CmpXchg,
            ];
            let size = if width == Width::W64 { Size::DW } else { Size::W };
            Insn::Atomic { op: all[rng.below(6)], size, base: Reg::R10, off, src: reg(rng) }
        }
        _ if rng.one_in(2) => Insn::LoadAcquire { size, dst: reg(rng), base: Reg::R10, off },
        _ => Insn::StoreRelease { size, base: Reg::R10, off, src: reg(rng) },
    }
}

#[test]
fn lanes_agree_with_the_interpreter() {
    let mut rng = Rng::new(7);
    for round in 0..3_000 {
        let mut code: Vec<Op> = (0..1 + rng.below(12)).map(|_| Op::new(any(&mut rng))).collect();
        // Half of the time, look at what is in the frame afterwards.
        if round % 2 == 0 {
            for i in 1..=6 {
                code.push(Op::new(Insn::Load {
                    size: Size::DW,
                    sext: false,
                    dst: r(i),
                    base: Reg::R10,
                    off: -8 * i as i16,
                }));
            }
        }
        let case = Case {
            env: Env::empty(),
            before: State::entry(ProgKind::Subprogram),
            old: code,
            live: Live { regs: RegSet::ALL, stack: StackSet::ALL },
        };
        let w = case.window();
        let inputs: [Input; 8] = std::array::from_fn(|l| Input::new(&w, round, l as u64));
        let batch = Batch::<8>::new(&w, &inputs).expect("code that stays in the frame");
        for (l, input) in inputs.iter().enumerate() {
            let mut cpu = Cpu::with_frame_pointer(input.frame);
            for i in 0..10 {
                cpu.set(r(i), input.regs[i]);
            }
            for (i, b) in cpu.frame_mut().iter_mut().enumerate() {
                *b = input.byte(input.frame - 512 + i as u64);
            }
            let mut interp = Interp::with_cpu(cpu, Oracle::new(|_| 0));
            assert!(interp.run_ops(&case.old).is_ok());
            for i in 0..10 {
                let want = interp.cpu.register(r(i)).expect("a register that is set");
                let got = batch.current(r(i))[l];
                let listing: String = case.old.iter().map(|o| format!("{}\n", o.insn)).collect();
                assert_eq!(got, want, "r{i} in lane {l} of round {round}:\n{listing}");
            }
        }
    }
}

#[test]
fn a_proposal_taken_back_leaves_no_trace() {
    let mut rng = Rng::new(11);
    for round in 0..500 {
        let code: Vec<Op> = (0..8).map(|_| Op::new(any(&mut rng))).collect();
        let case = Case {
            env: Env::empty(),
            before: State::entry(ProgKind::Subprogram),
            old: code,
            live: Live { regs: RegSet::ALL, stack: StackSet::ALL },
        };
        let w = case.window();
        let inputs: [Input; 8] = std::array::from_fn(|l| Input::new(&w, round, l as u64));
        let mut batch = Batch::<8>::new(&w, &inputs).expect("code that stays in the frame");
        let mut now = case.old.clone();
        for _ in 0..40 {
            let at = rng.below(8);
            let mut other = now.clone();
            other[at] = Op::new(any(&mut rng));
            batch.run(&other, at);
            if rng.one_in(3) {
                batch.accept();
                now = other;
            } else {
                batch.reject();
            }
            let incremental = batch.score_current(Distance::Pop);
            let mut anew = Batch::<8>::new(&w, &inputs).expect("it was possible before");
            anew.reset(&now);
            assert_eq!(incremental, anew.score_current(Distance::Pop), "round {round}");
        }
        batch.reset(&case.old);
        assert!(batch.score_current(Distance::Abs).perfect());
    }
}

#[track_caller]
fn improves(name: &str, case: &Case, slots: u32) {
    for seed in [1, 2] {
        let (got, listing) = case.best(seed, 1_000_000).unwrap_or_default();
        assert!(got > 0 && got <= slots, "{name}, seed {seed}: {got} slots\n{listing}");
    }
}

#[test]
fn two_stores_of_zero_become_one() {
    let case = Case::new("r1 = 0\n*(u32 *)(r10 - 4) = r1\n*(u32 *)(r10 - 8) = r1", live(&[], &[(-8, 8)]));
    improves("stores", &case, 1);
}

#[test]
fn a_pair_of_shifts_becomes_a_move() {
    let case = Case::new("r2 = r1\nr2 <<= 32\nr2 >>= 32", live(&[2], &[]));
    improves("shifts", &case, 1);
}

#[test]
fn a_mask_after_a_narrow_load_goes() {
    let case = Case::new("r1 = *(u16 *)(r10 - 8)\nr1 &= 65535\nr1 += 1\nr1 += 2", live(&[1], &[]));
    improves("mask", &case, 2);
}

#[test]
fn a_copy_by_bytes_becomes_wide() {
    let case = Case::new(
        "r1 = *(u16 *)(r10 - 8)\n*(u16 *)(r10 - 16) = r1\nr1 = *(u16 *)(r10 - 6)\n*(u16 *)(r10 - 14) = r1",
        live(&[], &[(-16, 4)]),
    );
    improves("copy", &case, 2);
}

#[test]
fn the_same_seed_gives_the_same_result() {
    let case =
        Case::new("r2 = r1\nr2 <<= 32\nr2 >>= 32\nr3 = r2\nr3 &= 255\nr2 += 4\nr2 += r3\nr2 -= 2", live(&[2], &[]));
    let run = |seed| {
        let mut chain = Chain::new(case.window(), SETTINGS[5], seed).expect("a window");
        let mut judge = |new: &[Op]| case.judge(new);
        let found = chain.run(Budget::proposals(100_000), &mut judge).map(|f| f.with.clone());
        (found, chain.progress)
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3).1, run(4).1);
}

#[test]
fn the_cheapest_states_that_are_proven_are_kept() {
    let case =
        Case::new("r2 = r1\nr2 <<= 32\nr2 >>= 32\nr3 = r2\nr3 &= 255\nr2 += 4\nr2 += r3\nr2 -= 2", live(&[2], &[]));
    let mut judge = |new: &[Op]| case.judge(new);
    let portfolio = Portfolio::new(case.window(), &SETTINGS[..5], 3).expect("a window");
    let mut portfolio = portfolio.keeping(4);
    let best = portfolio.run(Budget::proposals(200_000), &mut Payoff::default(), &mut judge).cloned();
    let kept = portfolio.kept();
    assert_eq!(kept.len(), 4);
    assert_eq!(kept[0].cost, best.expect("it gets shorter").cost);
    assert!(kept.is_sorted_by_key(|f| f.cost));
    for (i, found) in kept.iter().enumerate() {
        assert!(matches!(case.judge(&found.with), Answer::Equal));
        let same = |f: &bpf_search::Found| f.with.iter().map(|o| o.insn).eq(found.with.iter().map(|o| o.insn));
        assert!(!same(&bpf_search::Found { with: case.old.clone(), ..found.clone() }), "it is the original");
        assert!(!kept[..i].iter().any(same), "it is there twice");
    }
    // Who keeps one keeps the best, and asks no more than for that.
    let mut one = Portfolio::new(case.window(), &SETTINGS[..5], 3).expect("a window");
    one.run(Budget::proposals(200_000), &mut Payoff::default(), &mut judge);
    assert!(one.kept().is_empty() && one.progress().judged < portfolio.progress().judged);
}

#[test]
fn the_ratio_of_a_proposal_and_its_way_back_is_what_counting_finds() {
    use bpf_search::settings::Rules;
    use std::collections::HashMap;
    const DRAWN: usize = 400_000;
    let case = Case::new(
        "r1 = *(u16 *)(r10 - 8)\n*(u16 *)(r10 - 16) = r1\nr2 = r1\nr2 <<= 8\nw2 += 4\n*(u8 *)(r10 - 14) = 0",
        live(&[2], &[(-16, 4)]),
    );
    let w = case.window();
    let mut pool = bpf_search::propose::Pool::new(&w);
    let mut rng = bpf_search::rng::Rng::new(7);
    // Two neighbours that are drawn at once, of which one stays, are not counted.
    let rules = Rules { contiguous: 0.0, exchange2: 0.1, ..SETTINGS[0].rules };
    let mut drawn = |from: &[Op]| {
        let mut seen: HashMap<Vec<Insn>, (usize, f64)> = HashMap::new();
        for _ in 0..DRAWN {
            let mut ops = from.to_vec();
            if pool.propose(&mut ops, &rules, &mut rng).is_some() {
                let ratio = pool.log_ratio(&ops, &rules);
                seen.entry(ops.iter().map(|o| o.insn).collect()).or_insert((0, ratio)).0 += 1;
            }
        }
        seen
    };
    let forwards = drawn(&case.old);
    let here: Vec<Insn> = case.old.iter().map(|o| o.insn).collect();
    let mut often: Vec<_> = forwards.iter().filter(|(_, (n, _))| *n > 1_000).collect();
    often.sort_by_key(|(to, _)| format!("{to:?}"));
    assert!(often.len() > 20, "{}", often.len());
    let mut compared = 0;
    for (to, (there, ratio)) in often {
        let ops: Vec<Op> = to.iter().copied().map(Op::new).collect();
        let back = drawn(&ops).get(&here).map_or(0, |b| b.0);
        if back > 200 {
            let counted = (back as f64 / *there as f64).ln();
            assert!((counted - ratio).abs() < 0.3, "counted {counted}, told {ratio}: {to:?}");
            compared += 1;
        } else {
            assert!(*ratio < -1.0, "{back} ways back of {there}: {ratio}");
        }
    }
    assert!(compared > 5, "{compared}");
}

#[test]
fn what_the_judge_refuses_is_never_returned() {
    let case = Case::new("r2 = r1\nr2 <<= 32\nr2 >>= 32", live(&[2], &[]));
    for setting in SETTINGS {
        let mut asked = 0;
        let mut chain = Chain::new(case.window(), setting, 5).expect("a window");
        let mut judge = |_: &[Op]| {
            asked += 1;
            Answer::Unknown
        };
        assert!(chain.run(Budget::proposals(50_000), &mut judge).is_none());
        // Each refused candidate costs one question only.
        assert_eq!(chain.progress.judged, asked);
        assert!(asked < 2_000, "setting {}: {asked} questions", setting.id);
    }
}

#[test]
fn a_counterexample_kills_its_candidate() {
    // Equal but for one value of r1 in four billion: random tests do not find it.
    let case = Case::new("r2 = r1\nw2 ^= 305419896\nr3 = r2\nr3 += -1\nr3 >>= 63\nr4 = r3", live(&[4], &[]));
    let zero = ops("r4 = 0");
    let Answer::Different(Some(d)) = case.judge(&zero) else { panic!("they differ for r1 = 0x12345678") };
    let w = case.window();
    let plain: [Input; 8] = std::array::from_fn(|l| Input::new(&w, 1, l as u64));
    let mut batch = Batch::<8>::new(&w, &plain).expect("a batch");
    let mut padded = zero.clone();
    padded.resize(case.old.len(), Op::new(bpf_search::batch::NOP));
    batch.run(&padded, 0);
    assert!(batch.score(Distance::Pop).perfect(), "these tests do not know");
    let inputs = bpf_search::counterexample::inputs(&w, &d, 1);
    let killed = inputs.iter().any(|i| {
        let mut b = Batch::<8>::new(&w, &std::array::from_fn(|_| i.clone())).expect("a batch");
        b.run(&padded, 0);
        !b.score(Distance::Pop).perfect()
    });
    assert!(killed, "none of {} inputs shows it", inputs.len());
}

#[test]
fn the_search_for_that_value_learns() {
    let case = Case::new("r2 = r1\nw2 ^= 305419896\nr3 = r2\nr3 += -1\nr3 >>= 63\nr4 = r3", live(&[4], &[]));
    let mut chain = Chain::new(case.window(), SETTINGS[1], 1).expect("a window");
    let mut judge = |new: &[Op]| case.judge(new);
    let found = chain.run(Budget::proposals(300_000), &mut judge).cloned();
    let p = chain.progress;
    assert!(p.refuted > 0 && p.reproduced > 0, "{p:?}");
    assert!(found.is_none_or(|f| matches!(case.judge(&f.with), Answer::Equal)));
}
