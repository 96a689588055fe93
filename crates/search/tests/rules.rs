//! Canonical forms, their text, and the store that keeps them.
//!
//! A binary of its own: one test changes the panic hook, another starts this binary again and kills it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bpf_facts::{BaseId, Env, Live, Num, Region, StackSet, State, Tnum, Value};
use bpf_isa::{Cost, Costs, Goal, Origin, Reg, RegSet};
use bpf_program::{BlockId, Op, ProgKind};
use bpf_prove::Options;
use bpf_search::Window;
use bpf_search::canonical::{Renaming, WindowKey, canonical};
use bpf_search::rules::{Rule, RuleBody, parse};
use bpf_search::store::Store;

fn ops(text: &str) -> Vec<Op> {
    bpf_isa::parse_listing(text).expect("a listing").into_iter().map(Op::new).collect()
}

fn r(n: u8) -> Reg {
    Reg::new(n).expect("a register")
}

fn form(before: &State, old: &str, live: &[u8], stack: StackSet) -> (WindowKey, Renaming) {
    let old = ops(old);
    let env = Env::empty();
    let live = Live { regs: live.iter().fold(RegSet::EMPTY, |s, n| s.with(r(*n))), stack };
    canonical(&Window {
        kind: ProgKind::Xdp,
        env: &env,
        before,
        old: &old,
        live: &live,
        cpu: 3,
        goal: Goal::Size,
        deadline: None,
        superblock: None,
    })
    .expect("a form")
}

fn numbers(regs: &[u8]) -> State {
    let mut s = State::entry(ProgKind::Xdp);
    regs.iter().for_each(|n| s.set_reg(r(*n), Value::scalar(Num::top(64))));
    s
}

fn rule(p: WindowKey, with: Option<&str>) -> Rule {
    Rule { window: p, answer: RuleBody { with: with.map(ops), by: "test".into(), effort: 7, excluded: Some(0) } }
}

#[test]
fn names_of_registers_do_not_show() {
    let (a, _) = form(&numbers(&[1, 2]), "r1 <<= 32\nr1 >>= 32\nr2 += r1", &[1, 2, 6], StackSet::EMPTY);
    let (b, back) = form(&numbers(&[7, 3, 5]), "r7 <<= 32\nr7 >>= 32\nr3 += r7", &[7, 3], StackSet::EMPTY);
    assert_eq!(a, b);
    let instance = back.to_window(&ops("w0 = w0\nr1 += r0")).expect("an instance");
    assert_eq!(instance.iter().map(|o| o.insn.to_string()).collect::<Vec<_>>(), ["w7 = w7", "r3 += r7"]);
    assert_eq!(back.to_canonical(&instance).expect("a form"), ops("w0 = w0\nr1 += r0"));
}

#[test]
fn a_rule_learnt_by_one_table_of_costs_is_none_for_another() {
    let (size, _) = form(&numbers(&[1]), "r1 *= 2", &[1], StackSet::EMPTY);
    let other = Costs::new(Origin::default(), |_| Cost { dependent: 2, independent: 1 }).keep();
    let by = |costs: &'static Costs| WindowKey { goal: Goal::Latency(costs), ..size.clone() };
    let mut store = Store::in_memory();
    let learnt = rule(by(Costs::of_host()), Some("r1 += r1"));
    assert!(store.record_only(&learnt.window, learnt.answer.clone()));
    assert!(store.look_up(&by(Costs::of_host())).is_some());
    assert!(store.look_up(&by(other)).is_none() && store.look_up(&size).is_none());
    // Its text says by which, also where nobody knows that table.
    assert_eq!(parse(&learnt.text()).expect("a rule"), std::slice::from_ref(&learnt));
    let unknown = learnt.text().replace(&format!("{:08x}", Costs::of_host().mark()), "0badcafe");
    let [read] = &parse(&unknown).expect("a rule")[..] else { panic!("one rule") };
    assert_ne!(read.window, learnt.window);
    assert_eq!(read.text(), unknown);
    assert!(parse(&learnt.text().replace("latency:", "latency")).is_err());
}

#[test]
fn what_is_live_matters_only_where_it_is_named() {
    let (a, _) = form(&numbers(&[1]), "r1 += 1", &[1, 8, 9], StackSet::range(-64, 8));
    let (b, _) = form(&numbers(&[2]), "r2 += 1", &[2], StackSet::EMPTY);
    let (dead, _) = form(&numbers(&[2]), "r2 += 1", &[], StackSet::EMPTY);
    assert_eq!(a, b);
    assert_ne!(a, dead);
}

#[test]
fn places_in_the_frame_do_not_show_but_their_alignment_does() {
    let at = |o: i64| {
        let text = format!("*(u32 *)(r10 - {}) = 1\n*(u32 *)(r10 - {}) = 0", -o, -o - 4);
        form(&numbers(&[]), &text, &[], StackSet::range(o, 8))
    };
    let ((a, _), (b, back), (c, _)) = (at(-8), at(-40), at(-36));
    assert_eq!(a, b);
    assert_ne!(a, c);
    let instance = back.to_window(&ops("*(u64 *)(r10 - 8) = 1")).expect("an instance");
    assert_eq!(instance[0].insn.to_string(), "*(u64 *)(r10 - 0x28) = 0x1");
}

#[test]
fn a_frame_address_in_a_register_keeps_its_place() {
    let (p, back) = form(&numbers(&[]), "r2 = r10\nr2 += -16\n*(u64 *)(r2 + 0) = 5", &[2], StackSet::range(-16, 8));
    assert_eq!(p.old, ops("r0 = r10\nr0 += -16\n*(u64 *)(r0 + 0) = 5"));
    assert_eq!(back.to_window(&p.old).expect("back")[1].insn.to_string(), "r2 += -0x10");
}

#[test]
fn offsets_from_a_base_count_from_the_lowest() {
    let packet = |reg: u8, site: u32, at: i64| {
        let mut s = numbers(&[]);
        s.set_reg(r(reg), Value::pointer(Region::MapValue { map: 3 }, BaseId::Site(BlockId(9), site), at));
        s
    };
    let (a, _) = form(&packet(1, 1, 0), "r2 = *(u8 *)(r1 + 0)\nr3 = *(u8 *)(r1 + 1)", &[1, 2, 3], StackSet::EMPTY);
    let (b, back) = form(&packet(6, 5, 8), "r2 = *(u8 *)(r6 + 24)\nr3 = *(u8 *)(r6 + 25)", &[6, 2, 3], StackSet::EMPTY);
    assert_eq!(a, b);
    let instance = back.to_window(&ops("r0 = *(u16 *)(r1 + 0)")).expect("an instance");
    assert_eq!(instance[0].insn.to_string(), "r2 = *(u16 *)(r6 + 0x18)");
    // What uses the register for more than an access has no instance.
    assert!(back.to_window(&ops("r0 = r1")).is_none());
}

/// A problem with something of everything.
fn rich() -> WindowKey {
    let mut s = numbers(&[]);
    s.set_reg(r(1), Value::pointer(Region::Ctx, BaseId::Fixed, 0));
    s.set_reg(r(2), Value::scalar(Num::unsigned(64, 3, 900)));
    s.set_reg(r(3), Value::scalar(Num::signed(64, -5, 17)));
    s.set_reg(r(4), Value::scalar(Num::with_bits(64, Tnum { value: 0x10, mask: 0xf0f })));
    s.set_reg(r(6), Value::nullable(Region::MapValue { map: 7 }, BaseId::Site(BlockId(3), 4)));
    s.set_reg(r(7), Value::pointer(Region::Data { section: ".bss".into() }, BaseId::Fixed, 16));
    s.set_reg(r(8), Value { num: Num::unsigned(64, 0, 60), ..Value::pointer(Region::Packet, BaseId::Fixed, 0) });
    let old = "r1 = *(u32 *)(r1 + 12)\nr2 += r3\nr4 &= r6\n*(u64 *)(r7 + 0) = r2\nr8 = *(u8 *)(r8 + 1)\n\
               r9 = map_fd[0x500000000] ll\nlock *(u32 *)(r10 - 12) += r2\nr0 = atomic_fetch_add((u64 *)(r7 + 8), r0)\n\
               r5 = -0x123456789abc ll\nr5 = be16 r5\nw5 s>>= 3\nr5 = -r5\n*(u8 *)(r10 - 16) = -1";
    form(&s, old, &[1, 2, 4, 5], StackSet::range(-16, 8)).0
}

#[test]
fn text_and_back_is_the_same() {
    let with = "r0 = *(u32 *)(r0 + 12)\nr9 = 0x123456789abcdef ll";
    let rules = vec![rule(rich(), Some(with)), rule(rich(), None), rule(rich(), Some(""))];
    let text: String = rules.iter().map(Rule::text).collect();
    assert_eq!(parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}")), rules);
    let commented = format!("# rules\n\n{text}");
    assert_eq!(parse(&commented).expect("comments do not count"), rules);
}

#[test]
fn broken_text_is_an_error_with_a_line_and_never_a_panic() {
    let text = rule(rich(), Some("r0 = 1")).text();
    for (i, _) in text.char_indices() {
        let _ = parse(&text[..i]);
        let mut other = text.clone();
        other.remove(i);
        let _ = parse(&other);
        let mut other = text.clone();
        other.insert(i, '9');
        let _ = parse(&other);
    }
    assert_eq!(parse("rule cpu v3 goal size\n  code\n    r0 = 99999999999\n").expect_err("too large").line, 3);
    assert!(parse("rule cpu v3 goal size\ncode\ncall 1\nlive\nunsolved\nby x, effort 1\nend\n").is_err());
}

#[test]
fn the_store_keeps_the_better_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("deep/rules.redb");
    let p = rich();
    let answer =
        |with: Option<&str>, effort| RuleBody { with: with.map(ops), by: "test".into(), effort, excluded: None };
    let mut a = Store::open(&path);
    let mut b = Store::open(&path);
    assert!(
        a.record_only(&p, answer(None, 5)) && !a.record_only(&p, answer(None, 4)) && a.record_only(&p, answer(None, 9))
    );
    assert!(b.record_only(&p, answer(Some("r0 = 1"), 1)));
    assert!(b.flush() && a.flush());
    let mut c = Store::open(&path);
    assert_eq!((c.len(), c.notes.len()), (1, 0));
    assert_eq!(c.look_up(&p), Some(answer(Some("r0 = 1"), 1)));
    assert!(!c.record_only(&p, answer(Some("r0 = 1\nr1 = 2"), 100)));
    assert_eq!((c.hits, c.misses), (1, 0));
}

#[test]
fn a_file_that_is_something_else_stays_where_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("prog.o");
    for text in
        [b"\x7fELF and so on".repeat(300), b"dear diary, today I was not a database".repeat(300), b"re".to_vec()]
    {
        std::fs::write(&path, &text).expect("a file");
        let mut s = Store::open(&path);
        assert!(s.is_empty() && s.notes.len() == 1, "{:?}", s.notes);
        assert!(s.record(&rich(), RuleBody::default()), "it goes on without");
        s.flush();
        assert_eq!(std::fs::read(&path).expect("it is still there"), text);
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 1);
    }
}

#[test]
fn who_only_looks_moves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rules.redb");
    std::fs::write(&path, b"redb but broken".repeat(300)).expect("a file");
    let s = Store::read_only(&path);
    assert!(s.is_empty() && s.notes.len() == 1, "{:?}", s.notes);
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 1);
}

#[test]
fn who_only_looks_changes_no_byte() {
    let folder = tempfile::tempdir().expect("a folder");
    let (empty, full) = (folder.path().join("empty"), folder.path().join("rules.redb"));
    std::fs::write(&empty, b"").expect("a file");
    let mut s = Store::open(&full);
    assert!(s.record(&rich(), RuleBody::default()) && s.flush(), "{:?}", s.notes);
    for (path, entries) in [(&empty, 0), (&full, 1)] {
        let before = std::fs::read(path).expect("the file");
        for _ in 0..2 {
            let s = Store::read_only(path);
            assert_eq!((s.len(), s.notes.len()), (entries, 0), "{:?}", s.notes);
        }
        drop(Store::open(path));
        assert!(std::fs::read(path).expect("the file") == before, "{}", path.display());
    }
}

#[test]
fn what_is_no_file_is_left_alone_at_once() {
    let mut s = Store::open(Path::new("/dev/null"));
    assert!(s.record(&rich(), RuleBody::default()) && !s.flush());
    assert!(s.is_empty() || s.len() == 1, "it goes on in memory");
    assert!(s.notes[0].contains("not a regular file"), "{:?}", s.notes);
}

#[test]
fn a_store_that_was_never_finished_is_made_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes) in [("empty", vec![]), ("zeros", vec![0; 8192])] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        let mut s = Store::open(&path);
        assert!(s.record(&rich(), RuleBody::default()) && s.flush(), "{name}: {:?}", s.notes);
        assert_eq!(Store::open(&path).len(), 1, "{name}");
    }
}

#[test]
fn a_broken_store_is_moved_aside() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rules.redb");
    std::fs::write(&path, b"redb, dear diary, today I was not a database".repeat(300)).expect("a file");
    let mut s = Store::open(&path);
    assert!(s.is_empty() && s.notes.len() == 1, "{:?}", s.notes);
    assert!(folder.path().join("rules.redb.bad-0").exists());
    assert!(s.record(&rich(), RuleBody::default()) && s.flush());
    assert_eq!(Store::open(&path).len(), 1);
}

#[test]
fn damaged_files_never_do_harm() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = folder.path().join("good.redb");
    let mut s = Store::open(&good);
    for i in 0..40 {
        let mut p = rich();
        p.cpu = 1 + i % 4;
        p.stack.clear();
        p.old.truncate(1 + usize::from(i) / 4);
        s.record(&p, RuleBody { effort: u64::from(i), by: "test".into(), ..RuleBody::default() });
    }
    assert!(s.flush());
    let bytes = std::fs::read(&good).expect("the file");
    let mut seed = 1u64;
    let mut random = |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % n
    };
    std::panic::set_hook(Box::new(|_| {}));
    for n in 0..150 {
        let path = folder.path().join(format!("bad-{n}.redb"));
        let mut bad = bytes.clone();
        match n % 3 {
            0 => (0..200).for_each(|_| bad[random(bytes.len())] ^= 1 << random(8)),
            1 => bad.truncate(random(bytes.len())),
            _ => (0..40).for_each(|_| bad[random(8192)] = random(256) as u8),
        }
        std::fs::write(&path, &bad).expect("a file");
        let mut s = Store::open(&path);
        let _ = s.rules();
        s.record(&rich(), RuleBody::default());
        let _ = s.flush();
        let _ = Store::open(&path).rules();
    }
}

#[test]
fn a_store_that_cannot_be_written_fails_nothing() {
    let mut s = Store::open(Path::new("/proc/nowhere/rules.redb"));
    assert!(s.record(&rich(), RuleBody::default()));
    assert!(!s.flush() && s.notes.len() == 1);
    // It is not tried again.
    assert!(s.record(&rich(), RuleBody { effort: 9, ..RuleBody::default() }));
    assert!(!s.flush() && s.notes.len() == 1, "{:?}", s.notes);
    let mut nowhere = Store::in_memory();
    assert!(nowhere.record(&rich(), RuleBody::default()) && nowhere.look_up(&rich()).is_some());
}

/// Writes without end; run by the next test in a process of its own.
#[test]
fn writer() {
    let Some(path) = std::env::var_os("BPF_SEARCH_TEST_STORE") else { return };
    let mut s = Store::open(Path::new(&path));
    for i in 0u64.. {
        let mut p = rich();
        p.regs.clear();
        p.old = ops(&format!("r0 += {}", i % 500 + 1));
        s.record(&p, RuleBody { with: Some(Vec::new()), by: "writer".into(), effort: i, excluded: None });
        s.flush();
    }
}

#[test]
fn killing_a_writer_leaves_a_file_that_opens() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rules.redb");
    let mut most = 0;
    for n in 0..50u64 {
        let mut child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "writer", "--nocapture"])
            .env("BPF_SEARCH_TEST_STORE", &path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a process");
        let until = Instant::now() + Duration::from_millis(20 + n * 37 % 90);
        while Instant::now() < until {
            std::thread::sleep(Duration::from_micros(500 + n * 13));
        }
        child.kill().expect("SIGKILL");
        child.wait().expect("its end");
        let s = Store::open(&path);
        assert!(s.notes.is_empty(), "after kill {n}: {:?}", s.notes);
        assert_eq!(s.rules().len(), s.len(), "every entry decodes");
        assert!(s.len() >= most, "what was written stays");
        most = s.len();
    }
    assert!(most > 0, "the writer wrote something");
}

#[test]
fn runs_at_the_same_time_all_leave_what_they_learnt() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rules.redb");
    std::thread::scope(|t| {
        for n in 0..4 {
            let path = &path;
            t.spawn(move || {
                let mut s = Store::open(path);
                for i in 0..10 {
                    let mut p = rich();
                    p.old = ops(&format!("r0 += {}", n * 10 + i + 1));
                    s.record(&p, RuleBody::default());
                    assert!(s.flush(), "{:?}", s.notes);
                }
            });
        }
    });
    assert_eq!(Store::open(&path).len(), 40);
}

#[test]
fn what_a_register_holds_already_is_part_of_the_problem() {
    // The window sets r8 to what it holds; the replacement leaves that out, which is only right because it does.
    let mut before = numbers(&[]);
    before.set_reg(r(8), Value::pointer(Region::Stack, BaseId::Fixed, -16));
    let (key, back) = form(&before, "r8 = r10\nr8 += -16\nr1 = r8", &[1, 8], StackSet::EMPTY);
    let with = back.to_canonical(&ops("r1 = r8")).expect("it fits the form");
    assert!(key.prove(&with, &Options::default()).is_equal(), "{}", rule(key.clone(), Some("r0 = 1")).text());
    // Of a register of which nothing is known it is not.
    let (key, back) = form(&numbers(&[]), "r8 = r10\nr8 += -16\nr1 = r8", &[1, 8], StackSet::EMPTY);
    let with = back.to_canonical(&ops("r1 = r8")).expect("it fits the form");
    assert!(!key.prove(&with, &Options::default()).is_equal());
}

#[test]
fn a_replacement_may_use_registers_that_the_window_does_not_mention() {
    let (key, back) = form(&numbers(&[3, 4]), "r3 <<= 32\nr3 >>= 32\nr4 += r3", &[3, 4], StackSet::EMPTY);
    // As room for a value of its own, but not for what it happens to hold.
    let with = back.to_canonical(&ops("w5 = w3\nr3 = r5\nr4 += r5")).expect("it fits the form");
    assert!(key.prove(&with, &Options::default()).is_equal());
    let instance = back.to_window(&with).expect("an instance");
    assert_eq!(instance[0].insn.to_string(), "w5 = w3");
    assert!(back.to_canonical(&ops("w3 |= w5\nr4 += r3")).is_none());
    // Nor what the frame holds where the window does not look.
    let (_, back) = form(&numbers(&[]), "r3 = *(u8 *)(r10 - 8)\nr4 = r3", &[4], StackSet::EMPTY);
    assert!(back.to_canonical(&ops("r4 = *(u8 *)(r10 - 8)")).is_some());
    assert!(back.to_canonical(&ops("r4 = *(u32 *)(r10 - 8)")).is_none());
}
