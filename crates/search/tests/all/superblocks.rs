//! Windows across branches: exits, tests for each of them, and what chains find there.

use bpf_facts::{Env, Live, State};
use bpf_isa::{Goal, Insn, Reg, parse_listing};
use bpf_program::{Op, ProgKind};
use bpf_prove::superblock::is_side_exit;
use bpf_prove::{Options, Verdict, along};
use bpf_search::batch::{Batch, exit_of};
use bpf_search::canonical::canonical;
use bpf_search::inputs::Input;
use bpf_search::rules::{Rule, RuleBody, parse};
use bpf_search::settings::Distance;
use bpf_search::store::Store;
use bpf_search::superblock::Exits;
use bpf_search::{Answer, Budget, Payoff, Portfolio, SETTINGS, Window};

/// Room for an operation.
const ROOM: &str = "goto +0x0";

fn r(n: usize) -> Reg {
    Reg::new(n as u8).expect("a register")
}

fn live(regs: &[usize], stack: &[(i64, u32)]) -> Live {
    let mut l = Live::default();
    regs.iter().for_each(|n| l.regs.insert(r(*n)));
    stack.iter().for_each(|(off, len)| l.stack.insert_range(*off, *len));
    l
}

fn ops(listing: &str) -> Vec<Op> {
    parse_listing(listing).expect("a listing").into_iter().map(Op::new).collect()
}

struct Case {
    env: Env<'static>,
    before: State,
    old: Vec<Op>,
    live: Live,
    superblock: Exits,
}

impl Case {
    /// A superblock of this code, with room on both sides of each jump.
    fn new(listing: &str, sides: &[Live], end: Live) -> Case {
        let roomy: String = listing
            .lines()
            .map(|l| if l.starts_with("if") { format!("{ROOM}\n{l}\n{ROOM}\n") } else { format!("{l}\n") })
            .collect();
        let old = ops(&roomy);
        let superblock = Exits::new(&old, sides.to_vec(), end).expect("a superblock");
        let live = superblock.live();
        Case { env: Env::empty(), before: State::entry(ProgKind::Subprogram), old, live, superblock }
    }

    fn window(&self) -> Window<'_> {
        Window {
            kind: ProgKind::Subprogram,
            env: &self.env,
            before: &self.before,
            old: &self.old,
            live: &self.live,
            superblock: Some(&self.superblock),
            cpu: 4,
            goal: Goal::Size,
            deadline: None,
        }
    }

    fn judge(&self, new: &[Op]) -> Answer {
        let old: Vec<Op> = self.old.iter().filter(|o| !matches!(o.insn, Insn::Ja { .. })).cloned().collect();
        let (kind, options) = (ProgKind::Subprogram, Options::default());
        match along(
            kind,
            &self.env,
            &self.before,
            &old,
            new,
            &self.superblock.sides,
            &self.superblock.end,
            None,
            &options,
        )
        .0
        {
            Verdict::Equal => Answer::Equal,
            Verdict::Different(d) => Answer::Different(Some(d)),
            Verdict::Unknown(_) => Answer::Unknown,
        }
    }

    /// Slots of the best found, its listing, and how many refutations there were, and how many of them showed in
    /// a test.
    fn best(&self, proposals: u64) -> (Option<(u32, String)>, u64, u64) {
        let mut portfolio = Portfolio::new(self.window(), &SETTINGS, 1).expect("a window that can be tested");
        let mut judge = |new: &[Op]| self.judge(new);
        let found = portfolio.run(Budget::proposals(proposals), &mut Payoff::default(), &mut judge);
        let found = found.map(|f| (f.cost.first, f.with.iter().map(|o| format!("{}\n", o.insn)).collect()));
        let p = portfolio.progress();
        (found, p.refuted, p.reproduced)
    }
}

#[test]
fn exits_are_the_end_and_the_jumps() {
    let case = Case::new(
        "r3 = r1\nif r1 > 5 goto +0x0\nr4 = 1\nif w2 == 7 goto +0x1\nr5 = 2",
        &[live(&[3], &[]), live(&[4], &[])],
        live(&[5], &[]),
    );
    let exits = &case.superblock.exits;
    assert_eq!(exits.iter().map(|e| e.len).collect::<Vec<_>>(), [9, 3, 7]);
    // The first jump leaves where its condition holds, the second where it does not.
    assert_eq!(exits[0].turns, [(2, false), (6, true)]);
    assert_eq!(exits[1].turns, [(2, true)]);
    assert_eq!(exits[2].turns, [(2, false), (6, false)]);
    assert_eq!(case.live, live(&[3, 4, 5], &[]));
    assert!(Exits::new(&case.old, vec![live(&[], &[])], live(&[], &[])).is_none(), "a jump without a side");
    assert!(Exits::new(&ops("r1 = 2"), vec![], live(&[], &[])).is_none(), "no jump at all");
}

#[test]
fn inputs_are_found_for_every_exit() {
    let case = Case::new(
        "if w1 == 0xa888 goto +0x1\nr4 = r1\nif r2 s> -9 goto +0x0\nr5 = r2",
        &[live(&[], &[]), live(&[4], &[])],
        live(&[5], &[]),
    );
    let w = case.window();
    let mut seen = [0; 3];
    for n in 0..200 {
        if let Some(e) = exit_of(&w, &case.superblock, &Input::new(&w, 3, n)) {
            seen[e] += 1;
        }
    }
    assert!(seen.iter().all(|n| *n > 5), "{seen:?}");
}

#[test]
fn a_batch_has_one_exit_and_tells_what_is_wrong_there() {
    let listing = "r3 = r1\nif r1 > 5 goto +0x0\nr3 += 1";
    let case = Case::new(listing, &[live(&[3], &[])], live(&[3], &[]));
    let w = case.window();
    let with = |x: u64| {
        let mut i = Input::new(&w, 1, 0);
        i.regs[1] = x;
        i
    };
    let [stays, leaves] = [5, 6].map(|x| [with(x), with(x)]);
    assert!(Batch::<2>::new(&w, &[with(5), with(6)]).is_none(), "two ways in one batch");
    let mut through = Batch::<2>::new(&w, &stays).expect("it runs");
    let mut out = Batch::<2>::new(&w, &leaves).expect("it runs");
    assert_eq!([through.exit(), out.exit()], [0, 1]);
    let mut wrong = |listing: &str| {
        let new = Case::new(listing, &[live(&[3], &[])], live(&[3], &[])).old;
        assert_eq!(new.len(), case.old.len());
        let one = |b: &mut Batch<2>| {
            b.run(&new, 0);
            let wrong = !b.score(Distance::Pop).perfect();
            b.reject();
            wrong
        };
        [one(&mut through), one(&mut out)]
    };
    assert_eq!(wrong(listing), [false, false]);
    assert_eq!(wrong("r3 = r1\nif r1 > 6 goto +0x0\nr3 += 1"), [false, true], "a condition that is off by one");
    assert_eq!(wrong("r3 = r1\nif r1 > 4 goto +0x0\nr3 += 1"), [true, false]);
    assert_eq!(wrong("r3 = r1\nif r1 > 5 goto +0x0\nr3 += 2"), [true, false], "beyond the jump");
    assert_eq!(wrong("r3 = r2\nif r1 > 5 goto +0x0\nr3 = r1"), [true, true]);
    assert_eq!(wrong("r3 = r1\nif r1 >= 6 goto +0x0\nr3 += 1"), [false, false], "another way to ask the same");
}

#[test]
fn what_is_done_twice_is_done_once() {
    let case =
        Case::new("r3 = r1\nr3 += 4\nif r3 > r2 goto +0x0\nr4 = r1\nr4 += 4", &[live(&[1], &[])], live(&[4], &[]));
    let (found, ..) = case.best(200_000);
    assert_eq!(found.as_ref().map(|f| f.0), Some(3), "{found:?}");
}

#[test]
fn operations_cross_the_jump() {
    // What is stored before the jump is only wanted behind it: there both stores are one.
    let halves = "*(u8 *)(r10 - 8) = 1\nif r2 == 7 goto +0x0\n*(u8 *)(r10 - 7) = 2";
    let (found, ..) = Case::new(halves, &[live(&[1], &[])], live(&[], &[(-8, 2)])).best(200_000);
    assert_eq!(found.as_ref().map(|f| f.0), Some(2), "{found:?}");
    // Nor may it be stored behind or before it, if the other way wants both bytes as they are.
    assert_eq!(Case::new(halves, &[live(&[1], &[(-8, 2)])], live(&[], &[(-8, 2)])).best(100_000).0, None);
    let store = "*(u64 *)(r10 - 8) = 1\nif r2 == 7 goto +0x0\n*(u64 *)(r10 - 8) = 2";
    assert_eq!(Case::new(store, &[live(&[], &[(-8, 8)])], live(&[], &[(-8, 8)])).best(100_000).0, None);
    // And if it does not, the first store is idle.
    let (found, ..) = Case::new(store, &[live(&[], &[])], live(&[], &[(-8, 8)])).best(100_000);
    assert_eq!(found.as_ref().map(|f| f.0), Some(2), "{found:?}");
}

#[test]
fn what_the_jump_tells_is_used() {
    let case = Case::new("if r1 != 0 goto +0x0\nr3 = r1\nr3 += r2", &[live(&[2], &[])], live(&[3], &[]));
    let (found, ..) = case.best(200_000);
    let (slots, text) = found.expect("r1 is zero there");
    assert_eq!(slots, 2, "{text}");
}

#[test]
fn a_rare_way_is_tested_once_the_prover_has_shown_it() {
    // No drawn input has these bytes in memory; without a test of that way every candidate would go to the prover.
    let case = Case::new(
        "r3 = *(u32 *)(r10 - 8)\nif w3 != 0x12345678 goto +0x0\nr4 = r1\nr4 ^= r2\nr4 += r5\nr4 *= r2",
        &[live(&[1], &[])],
        live(&[4], &[]),
    );
    let w = case.window();
    let drawn = (0..48).filter(|n| exit_of(&w, &case.superblock, &Input::new(&w, 1, *n)) == Some(0)).count();
    assert_eq!(drawn, 0, "not so rare");
    let (found, refuted, reproduced) = case.best(50_000);
    assert_eq!(found, None);
    assert!(refuted > 0 && reproduced * 10 >= refuted * 5 && refuted < 200, "{reproduced} of {refuted}");
}

#[test]
fn the_same_seed_finds_the_same() {
    let listing = "r3 = r1\nr3 += 4\nif r3 > r2 goto +0x0\nr4 = r1\nr4 += 4";
    let find = || Case::new(listing, &[live(&[1], &[])], live(&[4], &[])).best(100_000);
    assert_eq!(find(), find());
    assert!(ops(listing).iter().filter(|o| is_side_exit(&o.insn)).count() == 1);
}

#[test]
fn a_region_is_remembered_like_any_window() {
    let code = "r3 = r1\nr3 += 4\nif r3 > r2 goto +0x0\nr4 = r1\nr4 += 4";
    let case = Case::new(code, &[live(&[1, 9], &[])], live(&[4, 8], &[]));
    let renamed = "r6 = r8\nr6 += 4\nif r6 > r7 goto +0x0\nr5 = r8\nr5 += 4";
    let other = Case::new(renamed, &[live(&[8, 2], &[])], live(&[5], &[]));
    let (key, back) = canonical(&case.window()).expect("a form");
    let (same, there) = canonical(&other.window()).expect("a form");
    assert_eq!(key, same, "names of registers are accidents, and so is what the superblock does not touch");
    assert!(key.old.iter().all(|o| !matches!(o.insn, Insn::Ja { .. })), "room is no part of it");
    // What is live at the side is part of it.
    let wanted = Case::new(renamed, &[live(&[8, 6], &[])], live(&[5], &[]));
    assert_ne!(canonical(&wanted.window()).expect("a form").0, key);
    let found = ops("r4 = r1\nr4 += 4\nif r4 > r2 goto +0x0");
    let with = back.to_canonical(&found).expect("it fits the form");
    let answer = RuleBody { with: Some(with.clone()), by: "chain".into(), effort: 1, excluded: None };
    let rule = Rule { window: key.clone(), answer: answer.clone() };
    let read = parse(&rule.text()).unwrap_or_else(|e| panic!("{e}\n{}", rule.text()));
    assert!(matches!(&read[..], [r] if *r == rule));
    assert!(key.prove(&with, &Options::default()).is_equal());
    let mut store = Store::in_memory();
    assert!(store.record(&key, answer));
    let instance = store.instance(&same, &there).expect("remembered");
    let listing: Vec<String> = instance.iter().map(|o| o.insn.to_string()).collect();
    assert_eq!(listing, ["r5 = r8", "r5 += 0x4", "if r5 > r7 goto +0x0"]);
    // Text with other jumps than the superblock's is no rule.
    let text = rule.text();
    for broken in [
        text.replacen("    if r0 > r2 goto +0x0\n", "", 1),
        text.replace("  leaving", "  leaving r0\n  leaving"),
        text.replace("goto +0x0", "goto +0x2"),
        text.replacen("goto +0x0", "goto +0x1", 1),
    ] {
        assert!(broken != text && parse(&broken).is_err(), "{broken}");
    }
}
