//! Slices of the two lanes that have Z3 as the other judge, and what it takes for them to see a mistake.

use std::path::Path;
use std::time::{Duration, Instant};

use bpf_facts::{Env, Live, StackSet, State, Value};
use bpf_isa::{AluOp, Insn, Reg, Size, Src, Width};
use bpf_program::{ByteOrder, Op, ProgKind};
use bpf_prove::reference::{Window, encode};
use bpf_prove::smt::Status;
use bpf_soak::concrete::{Both, Random, both};
use bpf_soak::corpus::Corpus;
use bpf_soak::mutants::Mutants;
use bpf_soak::queries::Queries;
use bpf_soak::z3::Z3;
use bpf_soak::{Lane, Tally};
use bpf_testgen::random::Rng;

/// `None`, with a message, where there is no Z3.
fn with_z3<T>(made: std::io::Result<T>) -> Option<T> {
    match made {
        Ok(t) => Some(t),
        Err(e) => {
            assert!(std::env::var_os("BPF_OPT_REQUIRE_Z3").is_none(), "z3 is required and does not start: {e}");
            eprintln!("skipped: no z3 here ({e})");
            None
        }
    }
}

fn examples() -> Corpus {
    Corpus::of(&[Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")])
}

/// Units of a lane until they have shown enough, for a minute at most: the machine may be busy.
fn slice(lane: &mut dyn Lane, enough: impl Fn(&Tally) -> bool) -> Tally {
    let (started, mut tally) = (Instant::now(), Tally::default());
    for index in 0.. {
        if index > 5 && enough(&tally) || started.elapsed() > Duration::from_secs(60) {
            break;
        }
        lane.unit(7, index, &mut tally);
    }
    println!("{}: {:?}", lane.name(), tally.counts);
    let first = tally.disagreements.first().map_or("", |d| &d.what);
    assert!(tally.disagreements.is_empty(), "{} disagreements, the first: {first}", tally.disagreements.len());
    tally
}

fn counted(tally: &Tally, what: &str) -> u64 {
    tally.counts.get(what).copied().unwrap_or(0)
}

#[test]
fn z3_agrees_with_every_verdict_on_a_slice_of_queries() {
    let Some(mut lane) = with_z3(Queries::over(examples())) else { return };
    let enough = |t: &Tally| counted(t, "unsat") > 30 && counted(t, "sat") > 30;
    let tally = slice(&mut lane, enough);
    assert!(enough(&tally), "{tally:?}");
}

#[test]
fn mutants_are_refuted_or_equal_for_z3_too() {
    let Some(mut lane) = with_z3(Mutants::over(examples())) else { return };
    let enough = |t: &Tally| counted(t, "refuted") > 20 && counted(t, "equal_by_z3") > 20;
    let tally = slice(&mut lane, enough);
    assert!(enough(&tally), "{tally:?}");
}

fn r(n: u8) -> Reg {
    Reg::new(n).expect("a register")
}

fn window(old: &[Insn], new: &[Insn]) -> Window {
    let ops = |v: &[Insn]| v.iter().map(|i| Op::new(*i)).collect();
    let mut before = State::entry(ProgKind::Xdp);
    for n in [0, 2, 3] {
        before.set_reg(r(n), Value::scalar(bpf_facts::Num::top(64)));
    }
    let mut live = Live { stack: StackSet::range(-16, 8), ..Live::default() };
    live.regs.insert(r(0));
    Window { kind: ProgKind::Xdp, before, old: ops(old), new: ops(new), live, sides: vec![], tail: None }
}

const fn alu(op: AluOp, width: Width, dst: u8, src: Src) -> Insn {
    let (Some(dst), true) = (Reg::new(dst), true) else { panic!("a register") };
    Insn::Alu { op, width, dst, src }
}

/// Windows of which one knows the answer: Z3 on the plain encoding, and runs, must find it.
#[test]
fn the_plain_encoding_says_what_is_true() {
    let Some(mut z3) = with_z3(Z3::new(Duration::from_secs(5))) else { return };
    let store = |size, off, src| Insn::Store { size, base: Reg::R10, off, src };
    let load = |size, off| Insn::Load { size, sext: false, dst: r(0), base: Reg::R10, off };
    let ctx = |off| Insn::Load { size: Size::W, sext: false, dst: r(0), base: r(1), off };
    let w64 = Width::W64;
    let cases: [(&str, Window, Status); 8] = [
        (
            "twice is a shift",
            window(&[alu(AluOp::Mul, w64, 0, Src::Imm(2))], &[alu(AluOp::Lsh, w64, 0, Src::Imm(1))]),
            Status::Unsat,
        ),
        (
            "signed division by 2 is no shift",
            window(&[alu(AluOp::SDiv, w64, 0, Src::Imm(2))], &[alu(AluOp::Arsh, w64, 0, Src::Imm(1))]),
            Status::Sat,
        ),
        (
            "a remainder by zero is the dividend",
            window(
                &[Insn::Mov { width: w64, dst: r(2), src: Src::Imm(0) }, alu(AluOp::Mod, w64, 0, Src::Reg(r(2)))],
                &[],
            ),
            Status::Unsat,
        ),
        (
            "a 32-bit operation zeroes the upper half",
            window(&[alu(AluOp::Add, Width::W32, 0, Src::Imm(0))], &[]),
            Status::Sat,
        ),
        (
            "what was stored is loaded",
            window(
                &[store(Size::DW, -8, Src::Reg(r(2))), load(Size::W, -4)],
                &[Insn::Mov { width: w64, dst: r(0), src: Src::Reg(r(2)) }, alu(AluOp::Rsh, w64, 0, Src::Imm(32))],
            ),
            Status::Unsat,
        ),
        (
            "a live byte of the frame counts",
            window(&[store(Size::B, -9, Src::Imm(1))], &[store(Size::B, -9, Src::Imm(2))]),
            Status::Sat,
        ),
        ("a dead one does not", window(&[store(Size::B, -17, Src::Imm(1))], &[]), Status::Unsat),
        ("context fields are not each other", window(&[ctx(12)], &[ctx(16)]), Status::Sat),
    ];
    let env = Env { maps: &[], callee_args: &|_| None, ..Env::empty() };
    for (what, w, expected) in cases {
        let formula = encode(&w, &env).expect("it can be encoded").formula();
        assert_eq!(z3.ask(&formula), Ok(expected), "{what}\n{formula}");
        let mut rng = Rng::new(3);
        let differs = (0..200).any(|_| {
            let mut world = Random::new(&env, w.kind, rng.next());
            world.entry(&w, &mut rng).is_some_and(|e| matches!(both(&w, &e, &mut world), Both::Differ(_)))
        });
        assert_eq!(differs, expected == Status::Sat, "{what}, in runs");
    }
}

#[test]
fn assumptions_are_not_contradictory() {
    let Some(mut z3) = with_z3(Z3::new(Duration::from_secs(5))) else { return };
    let load = Insn::Load { size: Size::W, sext: false, dst: r(0), base: r(1), off: 0 };
    let packet = Insn::Load { size: Size::B, sext: false, dst: r(3), base: r(0), off: 3 };
    let store = Insn::Store { size: Size::B, base: Reg::R10, off: -9, src: Src::Reg(r(3)) };
    let w = window(&[load, packet, store], &[load, packet, store]);
    let e = encode(&w, &Env { maps: &[], callee_args: &|_| None, ..Env::empty() }).expect("it can be encoded");
    assert_eq!(z3.ask(&e.assumptions), Ok(Status::Sat));
    assert_eq!(z3.ask(&e.formula()), Ok(Status::Unsat));
}

#[test]
fn z3_survives_nonsense_and_answers_again() {
    let Some(mut z3) = with_z3(Z3::new(Duration::from_secs(1))) else { return };
    assert!(z3.ask("(assert (= nobody #b1))").is_err());
    assert_eq!(z3.ask("(declare-fun x () (_ BitVec 8))\n(assert (= x #x2a))"), Ok(Status::Sat));
    assert_eq!(z3.number("x"), Ok(42));
    assert_eq!(z3.ask("(assert false)"), Ok(Status::Unsat));
}

/// Found by the campaign: the packet's end comes from the context, the new side reads the packet. Where the
/// assignment put both at one address, the run read the same from both and the difference did not show.
#[test]
fn no_access_of_the_plain_encoding_is_to_the_context() {
    let Some(mut z3) = with_z3(Z3::new(Duration::from_secs(5))) else { return };
    let load = |base| Op::new(Insn::Load { size: Size::W, sext: false, dst: Reg::R8, base, off: 4 });
    let mut before = State::entry(ProgKind::Xdp);
    let packet = bpf_facts::Value::pointer(bpf_facts::Region::Packet, bpf_facts::BaseId::Fixed, 0);
    before.set_reg(Reg::R6, before.reg(Reg::R1).clone());
    before.set_reg(Reg::R1, packet);
    let live = Live { regs: bpf_isa::RegSet::of(Reg::R8), stack: StackSet::EMPTY };
    let w = Window {
        kind: ProgKind::Xdp,
        before,
        old: vec![load(Reg::R6)],
        new: vec![load(Reg::R1)],
        live,
        sides: vec![],
        tail: None,
    };
    let e = encode(&w, &Env::empty()).expect("modelled");
    assert_eq!(z3.ask(&e.formula()), Ok(Status::Sat), "they are two different things");
    let (r1, r6) = (&e.registers[1], &e.registers[6]);
    let one = format!("{}(assert (= {r1} {r6}))\n", e.assumptions);
    assert_eq!(z3.ask(&one), Ok(Status::Unsat), "no packet is where the context is");
}

#[test]
fn the_plain_encoding_knows_the_byte_order() {
    let Some(mut z3) = with_z3(Z3::new(Duration::from_secs(5))) else { return };
    let upper = [
        Insn::Mov { width: Width::W64, dst: r(0), src: Src::Reg(r(2)) },
        Insn::Alu { op: AluOp::Rsh, width: Width::W64, dst: r(0), src: Src::Imm(32) },
    ];
    let stored = Insn::Store { size: Size::DW, base: Reg::R10, off: -8, src: Src::Reg(r(2)) };
    for (byte_order, off, expected) in [
        (ByteOrder::Little, -4, Status::Unsat),
        (ByteOrder::Little, -8, Status::Sat),
        (ByteOrder::Big, -4, Status::Sat),
        (ByteOrder::Big, -8, Status::Unsat),
    ] {
        let part = Insn::Load { size: Size::W, sext: false, dst: r(0), base: Reg::R10, off };
        let w = window(&[stored, part], &[&[stored][..], &upper].concat());
        let env = Env { byte_order, ..Env::empty() };
        let formula = encode(&w, &env).expect("it can be encoded").formula();
        assert_eq!(z3.ask(&formula), Ok(expected), "{byte_order:?}, at {off}\n{formula}");
    }
}
