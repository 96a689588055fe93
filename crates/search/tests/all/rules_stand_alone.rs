//! A remembered rule is proven by what its text says, and by nothing that was only known where it was found.

use bpf_facts::{BaseId, Env, Live, MapInfo, Num, Region, StackSet, State, Tnum, Value};
use bpf_isa::{AluOp, Goal, Insn, Reg, RegSet, Src, Width};
use bpf_program::{BlockId, Op, ProgKind};
use bpf_prove::{Limits, Options, Verdict, window};
use bpf_search::canonical::canonical;
use bpf_search::enumerate::{Effort, enumerate};
use bpf_search::rng::Rng;
use bpf_search::rules::{Entry, RuleBody, parse_all};
use bpf_search::store::Store;
use bpf_search::{Answer, Window};

fn ops(text: &str) -> Vec<Op> {
    bpf_isa::parse_listing(text).expect("a listing").into_iter().map(Op::new).collect()
}

fn r(n: u8) -> Reg {
    Reg::new(n).expect("a register")
}

fn live(regs: &[u8], stack: StackSet) -> Live {
    Live { regs: regs.iter().fold(RegSet::EMPTY, |s, n| s.with(r(*n))), stack }
}

fn place<'a>(env: &'a Env<'a>, before: &'a State, old: &'a [Op], live: &'a Live) -> Window<'a> {
    let (kind, superblock) = (ProgKind::Xdp, None);
    Window { kind, env, before, old, live, cpu: 3, goal: Goal::Size, deadline: None, superblock }
}

fn judged(w: &Window, new: &[Op], options: &Options) -> Verdict {
    window(w.kind, w.env, w.before, w.old, new, w.live, None, options).0
}

/// What `rules verify` says of everything that is remembered, from its text alone.
fn verified(store: &Store) -> Vec<(String, Verdict)> {
    let rules = store.rules().into_iter().map(Entry::Specific);
    let text: Vec<String> =
        rules.chain(store.general_rules().into_iter().map(Entry::General)).map(|e| e.text()).collect();
    let entries = parse_all(&text.join("\n")).expect("what is written can be read");
    assert_eq!(entries.len(), text.len());
    let verdict = |e: &Entry| match e {
        Entry::General(g) => Some(g.prove(&Options::default())),
        Entry::Specific(r) => Some(r.window.prove(r.answer.with.as_ref()?, &Options::default())),
    };
    entries.iter().filter_map(|e| Some((e.text(), verdict(e)?))).collect()
}

#[track_caller]
fn all_stand(store: &Store) -> usize {
    let all = verified(store);
    all.iter().for_each(|(text, verdict)| assert!(verdict.is_equal(), "{verdict:?}\n{text}"));
    all.len()
}

/// Remembers what was proven where it stands; how many rules came of it, all of which stand alone.
#[track_caller]
fn remembered(env: &Env, before: &State, old: &str, new: &str, live: &Live) -> usize {
    let (old, new) = (ops(old), ops(new));
    let w = place(env, before, &old, live);
    assert!(judged(&w, &new, &Options::default()).is_equal(), "not even where it stands");
    let (key, renaming) = canonical(&w).expect("a form");
    let mut store = Store::in_memory();
    if let Some(with) = renaming.to_canonical(&new) {
        store.record(&key, RuleBody { with: Some(with), by: "test".into(), effort: 9, excluded: None });
    }
    all_stand(&store)
}

fn numbers(regs: &[u8]) -> State {
    let mut s = State::entry(ProgKind::Xdp);
    regs.iter().for_each(|n| s.set_reg(r(*n), Value::scalar(Num::top(64))));
    s
}

/// Finding 16: r3 is 2 or 3, which the code does not read and the form does not say.
#[test]
fn a_rule_that_lost_the_fact_it_needs_is_not_remembered() {
    let env = Env::empty();
    let mut s = numbers(&[]);
    s.set_reg(r(3), Value::scalar(Num::with_bits(64, Tnum { value: 2, mask: 1 })));
    assert_eq!(remembered(&env, &s, "w3 = 1", "w3 s>>= 1", &live(&[3], StackSet::EMPTY)), 0);
    // Nor is it remembered that there is nothing: another run is to search again.
    let (old, l) = (ops("w3 = 1"), live(&[3], StackSet::EMPTY));
    let w = place(&env, &s, &old, &l);
    let (key, renaming) = canonical(&w).expect("a form");
    let mut store = Store::in_memory();
    let with = renaming.to_canonical(&ops("w3 s>>= 1"));
    store.record(&key, RuleBody { with, by: "test".into(), effort: 9, excluded: Some(3) });
    let known = store.look_up(&key).expect("that it was looked at");
    assert_eq!((known.with, known.effort, known.excluded), (None, 0, None));
}

#[test]
fn facts_about_what_the_code_overwrites_are_not_needed_by_a_rule() {
    let env = Env::empty();
    let range = |lo, hi| Value::scalar(Num::unsigned(64, lo, hi));
    // A number is made of what the register holds.
    let mut s = numbers(&[1]);
    s.set_reg(r(2), range(0, 7));
    assert_eq!(remembered(&env, &s, "r2 = 0", "r2 >>= 3", &live(&[2], StackSet::EMPTY)), 0);
    let mut s = numbers(&[1]);
    s.set_reg(r(2), range(16, 31));
    assert_eq!(remembered(&env, &s, "r2 = 16", "r2 &= -16", &live(&[2], StackSet::EMPTY)), 0);
    // Of what another one holds, in part.
    let mut s = numbers(&[1]);
    s.set_reg(r(2), range(0, 255));
    s.set_reg(r(4), Value::scalar(Num::with_bits(64, Tnum { value: 0xf00, mask: 0xff })));
    let l = live(&[2, 4], StackSet::EMPTY);
    assert_eq!(remembered(&env, &s, "r4 = 0\nr2 = 0xf", "r2 = r4\nr2 >>= 8\nr4 = 0", &l), 0);
    // Signed.
    let mut s = numbers(&[1]);
    s.set_reg(r(2), Value::scalar(Num::signed(64, -9, -1)));
    assert_eq!(remembered(&env, &s, "r2 = -1", "r2 s>>= 63", &live(&[2], StackSet::EMPTY)), 0);
    // A constant that the code does not name.
    let mut s = numbers(&[1]);
    s.set_reg(r(2), Value::constant(5));
    assert_eq!(remembered(&env, &s, "r2 = 6", "r2 += 1", &live(&[2], StackSet::EMPTY)), 0);
}

#[test]
fn what_is_said_of_a_map_or_the_packet_is_not_needed_by_a_rule() {
    let maps = [MapInfo {
        name: "values".into(),
        map_type: Some(2),
        key_size: Some(4),
        value_size: Some(8),
        max_entries: Some(4),
        ..MapInfo::default()
    }];
    let env = Env { maps: &maps, callee_args: &|_| None, ..Env::empty() };
    let mut s = numbers(&[]);
    s.set_reg(r(1), Value::pointer(Region::MapValue { map: 0 }, BaseId::Site(BlockId(0), 0), 0));
    let l = live(&[2], StackSet::EMPTY);
    let old = "r2 = *(u8 *)(r1 + 0)\nr3 = *(u8 *)(r1 + 1)\nr3 <<= 8\nr2 |= r3";
    assert!(remembered(&env, &s, old, "r2 = *(u16 *)(r1 + 0)", &l) > 0);
}

#[test]
fn rules_that_need_what_the_form_says_are_remembered() {
    let env = Env::empty();
    let mut s = numbers(&[]);
    s.set_reg(r(3), Value::scalar(Num::unsigned(64, 0, 255)));
    assert!(remembered(&env, &s, "r3 &= 0xff\nr3 += 1", "r3 += 1", &live(&[3], StackSet::EMPTY)) > 0);
    let mut s = numbers(&[]);
    s.set_reg(r(7), Value::constant(9));
    assert!(remembered(&env, &s, "r0 = 9", "r0 = r7", &live(&[0, 7], StackSet::EMPTY)) > 0);
    let s = numbers(&[1]);
    assert!(remembered(&env, &s, "r1 <<= 32\nr1 >>= 32", "w1 = w1", &live(&[1], StackSet::EMPTY)) > 0);
    let l = live(&[], StackSet::range(-8, 8));
    let old = "*(u32 *)(r10 - 8) = 0\n*(u32 *)(r10 - 4) = 0";
    assert!(remembered(&env, &s, old, "*(u64 *)(r10 - 8) = 0", &l) > 0);
}

fn number(rng: &mut Rng) -> Value {
    let small = rng.below(40) as u64;
    Value::scalar(match rng.below(6) {
        0 => Num::constant(64, small),
        1 => Num::unsigned(64, small, small + rng.below(9) as u64),
        2 => Num::signed(64, -(small as i64), rng.below(3) as i64),
        3 => Num::with_bits(64, Tnum { value: 2 << rng.below(5), mask: 1 }),
        4 => Num::unsigned(64, 0, (1 << rng.below(34)) - 1),
        _ => Num::top(64),
    })
}

fn operation(rng: &mut Rng) -> Op {
    let (dst, src) = (r(rng.below(4) as u8), r(rng.below(4) as u8));
    let width = if rng.below(2) == 0 { Width::W64 } else { Width::W32 };
    let imm = Src::Imm(rng.below(9) as i32 - 2);
    let src = if rng.below(2) == 0 { Src::Reg(src) } else { imm };
    let alu = [AluOp::Add, AluOp::Sub, AluOp::And, AluOp::Or, AluOp::Xor];
    let shifts = [AluOp::Lsh, AluOp::Rsh, AluOp::Arsh];
    let off = -8 * (1 + rng.below(2) as i16);
    Op::new(match rng.below(8) {
        0..=2 => Insn::Mov { width, dst, src },
        3 | 4 => Insn::Alu { op: alu[rng.below(5)], width, dst, src },
        5 => Insn::Alu { op: shifts[rng.below(3)], width, dst, src: Src::Imm(rng.below(32) as i32) },
        6 => Insn::Store { size: bpf_isa::Size::DW, base: Reg::R10, off, src },
        _ => Insn::Load { size: bpf_isa::Size::DW, sext: false, dst, base: Reg::R10, off },
    })
}

/// Random windows with facts: what the enumerator finds there, and what chance does, is remembered, written, read
/// again and proven from its text.
#[test]
fn whatever_is_remembered_is_proven_from_its_text() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("rules.redb");
    let env = Env::empty();
    let limits = Limits { conflicts: 300, work: 200_000, ..Limits::default() };
    let options = Options { limits, ..Options::default() };
    let (mut found, mut lost) = (0, 0);
    let mut store = Store::open(&path);
    for seed in 0..600u64 {
        let mut rng = Rng::new(seed);
        let mut before = numbers(&[]);
        (0..5).for_each(|n| before.set_reg(r(n), number(&mut rng)));
        let old: Vec<Op> = (0..1 + rng.below(4)).map(|_| operation(&mut rng)).collect();
        let l = live(&[rng.below(4) as u8, rng.below(4) as u8], StackSet::range(-16, 8 * rng.below(3) as u32));
        let w = place(&env, &before, &old, &l);
        let Some((key, renaming)) = canonical(&w) else { continue };
        let mut judge = |new: &[Op]| match judged(&w, new, &options) {
            Verdict::Equal => Answer::Equal,
            Verdict::Different(d) => Answer::Different(Some(d)),
            Verdict::Unknown(_) => Answer::Unknown,
        };
        let best = enumerate(&w, &mut judge, Effort { slots: 2, steps: 20_000 }).found;
        // The enumerator looks for what is shorter; chance also finds what is as long and needs other facts.
        let chance = (0..20).map(|_| vec![operation(&mut rng)]).find(|new| judged(&w, new, &options).is_equal());
        for new in best.map(|f| f.with).into_iter().chain(chance) {
            let Some(with) = renaming.to_canonical(&new) else { continue };
            found += 1;
            lost += usize::from(!key.prove(&with, &Options::default()).is_equal());
            store.record(&key, RuleBody { with: Some(with), by: "test".into(), effort: seed, excluded: None });
        }
    }
    assert!(store.flush(), "{:?}", store.notes);
    let again = Store::open(&path);
    let stand = all_stand(&again);
    println!("{found} found, {lost} of them by facts that the form leaves out; {stand} rules remembered");
    assert!(found > 100 && lost > 0 && stand > 50, "{found} {lost} {stand}");
}
