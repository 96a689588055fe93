//! General rules: what is made of a rule, which windows it fits, and that every instance is right.

use bpf_facts::{BaseId, Env, Live, Num, Region, StackSet, State, Value};
use bpf_isa::{Goal, Reg, RegSet};
use bpf_program::{BlockId, Op, ProgKind};
use bpf_prove::Verdict;
use bpf_search::Window;
use bpf_search::canonical::{WindowKey, canonical};
use bpf_search::general::{Condition, General, generalize};
use bpf_search::rules::{BY_GENERAL, Entry, RuleBody, parse_all};
use bpf_search::store::Store;

fn ops(text: &str) -> Vec<Op> {
    bpf_isa::parse_listing(text).expect("a listing").into_iter().map(Op::new).collect()
}

fn r(n: u8) -> Reg {
    Reg::new(n).expect("a register")
}

fn listing(ops: &[Op]) -> String {
    ops.iter().map(|o| o.insn.to_string()).collect::<Vec<_>>().join("\n")
}

/// The form of a window, with the names as they are if the registers are mentioned in their order.
fn form(before: &State, old: &str, live: &[u8], stack: StackSet) -> WindowKey {
    let old = ops(old);
    let env = Env::empty();
    let live = Live { regs: live.iter().fold(RegSet::EMPTY, |s, n| s.with(r(*n))), stack };
    let window = Window {
        kind: ProgKind::Xdp,
        env: &env,
        before,
        old: &old,
        live: &live,
        superblock: None,
        cpu: 3,
        goal: Goal::Size,
        deadline: None,
    };
    canonical(&window).expect("a form").0
}

/// Registers with numbers of which nothing is known.
fn numbers() -> State {
    let mut s = State::entry(ProgKind::Xdp);
    (0..10).for_each(|n| s.set_reg(r(n), Value::scalar(Num::top(64))));
    s
}

fn answer(with: &str) -> RuleBody {
    RuleBody { with: Some(ops(with)), by: "test".into(), effort: 7, excluded: None }
}

fn proven(p: &WindowKey, new: &[Op]) -> bool {
    matches!(p.prove(new, &bpf_prove::Options::default()), Verdict::Equal)
}

/// The general rule behind a rule, which must be right, and come back from its text.
fn general(p: &WindowKey, with: &str) -> General {
    assert!(proven(p, &ops(with)), "the rule itself is wrong");
    let g = generalize(p, &answer(with)).expect("a general rule");
    let verdict = g.prove(&bpf_prove::Options::default());
    assert!(matches!(verdict, Verdict::Equal), "not proven:\n{}", g.text());
    assert_eq!(parse_all(&g.text()).expect("it can be read"), [Entry::General(g.clone())], "{}", g.text());
    g
}

/// What the rule makes of a window or of a part of it; it must be right.
fn fits(g: &General, p: &WindowKey) -> Option<String> {
    let mut store = Store::in_memory();
    assert!(store.record_general(g.clone()), "{}", g.text());
    let new = store.look_up(p)?.with.expect("what fits is a replacement");
    assert!(proven(p, &new), "wrong:\n{}\nof\n{}\nby\n{}", listing(&new), listing(&p.old), g.text());
    Some(listing(&new))
}

fn plain(old: &str, live: &[u8]) -> WindowKey {
    form(&numbers(), old, live, StackSet::EMPTY)
}

#[test]
fn a_shift_pair_serves_for_other_amounts() {
    let g = general(&plain("r0 <<= 40\nr0 >>= 40", &[0]), "r0 &= 0xffffff");
    assert_eq!(fits(&g, &plain("r0 <<= 48\nr0 >>= 48", &[0])).expect("it fits"), "r0 &= 0xffff");
    assert_eq!(fits(&g, &plain("r0 <<= 33\nr0 >>= 33", &[0])).expect("it fits"), "r0 &= 0x7fffffff");
    // 0xffffffff is no immediate; and two amounts are another thing.
    assert_eq!(fits(&g, &plain("r0 <<= 32\nr0 >>= 32", &[0])), None);
    assert_eq!(fits(&g, &plain("r0 <<= 48\nr0 >>= 40", &[0])), None);
}

#[test]
fn a_mask_is_bound_to_the_shift_that_follows() {
    let old = "w0 = -0x10000\nr1 &= r0\nr1 >>= 16";
    let g = general(&plain(old, &[1]), "w1 >>= 16");
    let other = |mask: &str, n: u32| fits(&g, &plain(&format!("w0 = {mask}\nr1 &= r0\nr1 >>= {n}"), &[1]));
    assert_eq!(other("-0x100", 8).expect("it fits"), "w1 >>= 0x8");
    assert_eq!(other("-0x200", 8), None);
    assert!(g.text().contains("is -1 << k"), "{}", g.text());
}

#[test]
fn stores_of_numbers_are_merged_whatever_the_numbers() {
    let stores = |a: i32, b: i32| {
        let text = format!("*(u8 *)(r10 - 8) = {a}\n*(u8 *)(r10 - 7) = {b}");
        form(&numbers(), &text, &[], StackSet::range(-8, 2))
    };
    let g = general(&stores(0x12, 0x34), "*(u16 *)(r10 - 8) = 0x3412");
    for (a, b, both) in [(0, 0, "0x0"), (1, 2, "0x201"), (-1, 0x7f, "0x7fff"), (0xff, 0xff, "0xffff")] {
        assert_eq!(fits(&g, &stores(a, b)).expect("it fits"), format!("*(u16 *)(r10 - 0x8) = {both}"));
    }
    // Four of one number: they need not be one number.
    let words = |k: [i32; 4]| {
        let at = |n: usize| format!("*(u16 *)(r10 - {}) = {}", 8 - 2 * n, k[n]);
        let text = [0, 1, 2, 3].map(at).join("\n");
        form(&numbers(), &text, &[], StackSet::range(-8, 8))
    };
    let g = general(&words([0; 4]), "*(u64 *)(r10 - 8) = 0");
    assert_eq!(fits(&g, &words([1, 0, 0, 0])).expect("it fits"), "*(u64 *)(r10 - 0x8) = 0x1");
    assert_eq!(fits(&g, &words([0, 0, -1, -1])), None, "0xffffffff00000000 is no immediate");
}

#[test]
fn masks_in_a_row_become_their_common_bits_not_the_last_one() {
    let chain = |a: i32, b: i32| plain(&format!("r0 &= {a}\nr0 &= {b}"), &[0]);
    let g = general(&chain(0xff, 0x0f), "r0 &= 0x0f");
    assert_eq!(fits(&g, &chain(0x3c, 0x0f)).expect("it fits"), "r0 &= 0xc");
    assert_eq!(fits(&g, &chain(-2, 7)).expect("it fits"), "r0 &= 0x6");
}

#[test]
fn amounts_in_a_row_are_added_only_where_the_sum_is_an_amount() {
    let pair = |a: u32, b: u32| plain(&format!("r0 <<= {a}\nr0 <<= {b}"), &[0]);
    let g = general(&pair(8, 9), "r0 <<= 17");
    assert_eq!(fits(&g, &pair(20, 11)).unwrap_or_else(|| panic!("{}", g.text())), "r0 <<= 0x1f");
    assert_eq!(fits(&g, &pair(40, 40)), None);
    let pair = |a: u32, b: u32| plain(&format!("w0 <<= {a}\nw0 <<= {b}"), &[0]);
    let g = general(&pair(8, 9), "w0 <<= 17");
    assert_eq!(fits(&g, &pair(20, 12)), None, "32 is no amount of a 32-bit shift");
}

#[test]
fn a_sign_matters_where_it_is_extended() {
    let spill = |k: i32| form(&numbers(), &format!("w0 = {k}\n*(u64 *)(r10 - 8) = r0"), &[], StackSet::range(-8, 8));
    let g = general(&spill(5), "*(u64 *)(r10 - 8) = 5");
    assert_eq!(fits(&g, &spill(77)).expect("it fits"), "*(u64 *)(r10 - 0x8) = 0x4d");
    assert_eq!(fits(&g, &spill(-1)), None);
    // All 64 bits are what is stored here.
    let spill = |k: i32| form(&numbers(), &format!("r0 = {k}\n*(u64 *)(r10 - 8) = r0"), &[], StackSet::range(-8, 8));
    let g = general(&spill(5), "*(u64 *)(r10 - 8) = 5");
    assert_eq!(fits(&g, &spill(-1)).expect("it fits"), "*(u64 *)(r10 - 0x8) = -0x1");
}

#[test]
fn a_product_by_a_power_of_two_is_a_shift() {
    let times = |k: i32| plain(&format!("r0 *= {k}"), &[0]);
    let g = general(&times(8), "r0 <<= 3");
    assert_eq!(fits(&g, &times(1 << 20)).unwrap_or_else(|| panic!("{}", g.text())), "r0 <<= 0x14");
    assert_eq!((fits(&g, &times(12)), fits(&g, &times(0))), (None, None));
    assert!(g.conditions.iter().any(|c| matches!(c, Condition::Is(e) if e.to_string().starts_with("1 << k"))));
}

#[test]
fn stronger_facts_fit_and_weaker_ones_do_not() {
    let below = |limit: u64| {
        let mut s = numbers();
        s.set_reg(r(0), Value::scalar(Num::unsigned(64, 0, limit)));
        s.set_reg(r(1), Value::scalar(Num::unsigned(64, 3, 1 << 40)));
        form(&s, "r0 &= 0xff\nr1 += r0", &[0, 1], StackSet::EMPTY)
    };
    let g = general(&below(17), "r1 += r0");
    assert!(!g.text().contains("assume r1"), "what is not needed stays:\n{}", g.text());
    assert!(fits(&g, &below(0x10)).is_some(), "{}", g.text());
    assert!(fits(&g, &below(0xff)).is_some(), "the fact could be weakened:\n{}", g.text());
    assert_eq!(fits(&g, &below(0x100)), None);
}

#[test]
fn nothing_known_is_no_pointer_to_the_frame() {
    let at = |v: Value| {
        let mut s = numbers();
        s.set_reg(r(1), v);
        form(&s, "*(u64 *)(r10 - 8) = r2\n*(u8 *)(r1 + 0) = 1\nr2 = *(u64 *)(r10 - 8)", &[1, 2], StackSet::range(-8, 8))
    };
    let value = |offset| Value::pointer(Region::MapValue { map: 0 }, BaseId::Site(BlockId(3), 1), offset);
    let p = at(value(0));
    let names = listing(&p.old);
    let shorter = names.lines().take(2).collect::<Vec<_>>().join("\n");
    let g = general(&p, &shorter);
    assert!(fits(&g, &at(value(16))).is_some());
    assert_eq!(fits(&g, &at(Value::pointer(Region::Stack, BaseId::Fixed, -16))), None);
    let frame = at(Value::pointer(Region::Stack, BaseId::Fixed, -16));
    assert!(g.instance(&frame).is_none());
}

#[test]
fn what_more_is_live_does_not_fit() {
    let p = |live: &[u8]| plain("r0 = 5\nr1 += r0", live);
    let g = general(&p(&[1]), "r1 += 5");
    assert_eq!(fits(&g, &p(&[1])).expect("it fits"), "r1 += 0x5");
    assert_eq!(fits(&g, &p(&[0, 1])), None);
    // What is dead may as well be live where the rule leaves it alone.
    let p = |live: &[u8]| plain("r1 = r0\nr1 <<= 32\nr1 >>= 32", live);
    let g = general(&p(&[1]), "w1 = w0".replace("w1", "w0").replace("= w0", "= w1").as_str());
    assert!(fits(&g, &p(&[0, 1])).is_some(), "{}", g.text());
}

#[test]
fn bytes_of_which_nothing_is_said_stay_as_they_are() {
    // The form does not say that the bytes above are live; here they are not, elsewhere they may be.
    let code = "r0 = 0x1234\n*(u32 *)(r10 - 8) = r0";
    let p = form(&numbers(), code, &[], StackSet::range(-8, 4));
    let wide = "*(u64 *)(r10 - 8) = 0x1234";
    assert!(proven(&p, &ops(wide)) && generalize(&p, &answer(wide)).is_none());
    let g = general(&p, "*(u32 *)(r10 - 8) = 0x1234");
    assert!(fits(&g, &form(&numbers(), code, &[], StackSet::range(-8, 8))).is_some());
}

#[test]
fn a_register_that_holds_the_number_is_part_of_the_rule() {
    let mask = |k: u64, n: u32| {
        let mut s = numbers();
        s.set_reg(r(1), Value::constant(k));
        form(&s, &format!("r0 &= r1\nr0 >>= {n}\nr0 += 0"), &[0, 1], StackSet::EMPTY)
    };
    let g = general(&mask(0xffff_0000, 16), "w0 >>= 16");
    assert_eq!(fits(&g, &mask(0xffff_ff00, 8)).expect("it fits"), "w0 >>= 0x8");
    assert_eq!(fits(&g, &mask(0xffff_ff01, 9)), None);
}

#[test]
fn a_rule_is_about_what_changes_and_is_found_inside_longer_code() {
    let mut store = Store::in_memory();
    let p = plain("r0 += r1\nr2 ^= 7\nr2 <<= 40\nr2 >>= 40\nr1 -= r0\nr3 += r1", &[0, 1, 2, 3]);
    let with = "r0 += r1\nr2 ^= 7\nr2 &= 0xffffff\nr1 -= r0\nr3 += r1";
    assert!(store.record(&p, answer(with)));
    assert_eq!(store.general_rules().len(), 1);
    assert_eq!(store.general_rules()[0].window.old.len(), 2, "{}", store.general_rules()[0].text());
    let q = plain("r0 *= 3\nr1 <<= 56\nr1 >>= 56\nr0 += r1\nr0 <<= 48\nr0 >>= 48", &[0, 1]);
    let found = store.look_up(&q).expect("it is known");
    assert_eq!((found.by.as_str(), found.effort, found.excluded), (BY_GENERAL, 0, None));
    let new = found.with.expect("a replacement");
    assert_eq!(listing(&new), "r0 *= 0x3\nr1 &= 0xff\nr0 += r1\nr0 &= 0xffff");
    assert!(proven(&q, &new));
    assert_eq!((store.hits, store.general_hits), (0, 1));
    // And from now on it is known for itself.
    assert_eq!(store.look_up(&q).expect("known").with.expect("a replacement"), new);
    assert_eq!((store.hits, store.general_hits), (1, 1));
}

#[test]
fn two_changes_in_one_window_are_two_rules() {
    let mut store = Store::in_memory();
    let p = plain("r2 <<= 40\nr2 >>= 40\nr1 -= r0\nr3 += r1\nr3 ^= r2\nr3 &= 0xff\nr3 &= 0xf", &[0, 1, 2, 3]);
    let with = "r0 &= 0xffffff\nr1 -= r2\nr3 += r1\nr3 ^= r0\nr3 &= 0xf";
    assert!(proven(&p, &ops(with)), "{}", listing(&p.old));
    assert!(store.record(&p, answer(with)));
    assert_eq!(store.general_rules().iter().map(|g| g.window.old.len()).collect::<Vec<_>>(), [2, 2]);
    let alone = store.look_up(&plain("r0 &= 0x3c\nr0 &= 0x0f", &[0])).and_then(|a| a.with).expect("the second one");
    assert_eq!(listing(&alone), "r0 &= 0xc");
}

#[test]
fn what_is_known_of_the_window_itself_always_wins() {
    let mut store = Store::in_memory();
    let (p, q) = (plain("r0 <<= 40\nr0 >>= 40", &[0]), plain("r0 <<= 48\nr0 >>= 48", &[0]));
    let unsolved = RuleBody { by: "test".into(), effort: 3, ..RuleBody::default() };
    assert!(store.record(&q, unsolved.clone()) && store.record(&p, answer("r0 &= 0xffffff")));
    assert_eq!(store.look_up(&q), Some(unsolved));
    // A search that was made although a general rule fits says that its answer did not do.
    let other = plain("r0 <<= 56\nr0 >>= 56", &[0]);
    assert_eq!(store.look_up(&other).expect("a rule fits").by, BY_GENERAL);
    let searched = RuleBody { by: "test".into(), effort: 9, ..RuleBody::default() };
    assert!(store.record(&other, searched.clone()));
    assert_eq!(store.look_up(&other), Some(searched));
}

#[test]
fn general_rules_are_kept_in_the_file_and_the_same_each_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let make = |name: &str| {
        let path = folder.path().join(name);
        let mut s = Store::open(&path);
        s.record(&plain("r0 <<= 40\nr0 >>= 40", &[0]), answer("r0 &= 0xffffff"));
        s.record(&plain("r0 &= 0xff\nr0 &= 0x0f", &[0]), answer("r0 &= 0x0f"));
        assert!(s.flush());
        let text = |s: &Store| s.general_rules().iter().map(General::text).collect::<String>();
        let again = Store::open(&path);
        assert_eq!(text(&again), text(&s));
        text(&again)
    };
    assert_eq!(make("a.redb"), make("b.redb"));
    let mut again = Store::open(&folder.path().join("a.redb"));
    assert!(again.look_up(&plain("r0 <<= 48\nr0 >>= 48", &[0])).is_some());
}

#[test]
fn a_rule_that_a_general_one_covers_makes_no_other() {
    let mut store = Store::in_memory();
    store.record(&plain("r0 <<= 40\nr0 >>= 40", &[0]), answer("r0 &= 0xffffff"));
    store.record(&plain("r0 <<= 48\nr0 >>= 48", &[0]), answer("r0 &= 0xffff"));
    assert_eq!(store.general_rules().len(), 1);
}

#[test]
fn wrong_general_rules_propose_nothing() {
    let text = "rule general cpu v3 goal size\n code\n r0 &= {k0}\n r0 &= {k1}\n live r0\n \
                where k0 in 0..=255\n where k1 in 0..=255\n becomes\n r0 &= {k1}\n by malice\nend\n";
    let Some(Entry::General(wrong)) = parse_all(text).expect("it reads well").pop() else { panic!("it is general") };
    assert!(matches!(wrong.prove(&bpf_prove::Options::default()), Verdict::Different(_)));
    let mut store = Store::in_memory();
    assert!(store.record_general(wrong.clone()));
    let q = plain("r0 &= 0xf0\nr0 &= 0x0f", &[0]);
    assert!(store.look_up(&q).is_none(), "nor is it remembered for this window");
    assert!(store.rules().is_empty());
    // Where it happens to be right, it serves.
    let q = plain("r0 &= 0xff\nr0 &= 0x0f", &[0]);
    let new = store.look_up(&q).and_then(|a| a.with).expect("it is proposed");
    assert!(proven(&q, &new));
}

#[test]
fn texts_that_make_no_sense_are_refused() {
    let rule = |assume: &str, code: &str, conditions: &str, with: &str| {
        parse_all(&format!(
            "rule general cpu v3 goal size\n{assume}\ncode\n{code}\nlive r0\n{conditions}\nbecomes\n{with}\nby x\nend\n"
        ))
    };
    assert!(rule("", "r0 += {k0}", "where k0 in 0..=3", "nothing").is_ok());
    let bad = [
        rule("", "r0 += {k0}", "", "nothing"),
        rule("", "r0 += {k0 + 1}", "where k0 in 0..=3", "nothing"),
        rule("", "r0 += {k0}", "where k0 in 3..=0", "nothing"),
        rule("", "r0 += {k0}", "where k0 is k1\nwhere k1 is k0", "nothing"),
        rule("", "r0 += {k0}", "where k1 in 0..=3", "nothing"),
        rule("", "r0 += {k0}", "where k0 in 0..=3", "r0 += {k5}"),
        rule("", "r0 += {k0}", "where k0 in 0..=3", "r0 = *(u8 *)(r1 + {k0})"),
        rule("", "r0 += {k0}", "where k0 in 0..=3", "call {k0}"),
        rule("", "r0 += {k0", "where k0 in 0..=3", "nothing"),
        // Two that nothing tells: all pairs would have to be tried.
        rule("", "r0 += 1", "where k0 in 0..=63\nwhere k1 in 0..=63", "nothing"),
        rule("assume r0: number\nassume r0: {k0}", "r0 += {k0}", "where k0 in 0..=3", "nothing"),
        rule("assume r10: {k0}", "r0 += {k0}", "where k0 in 0..=3", "nothing"),
    ];
    for (n, text) in bad.iter().enumerate() {
        assert!(text.is_err(), "{n}: {text:?}");
    }
    let good = general(&plain("r0 <<= 40\nr0 >>= 40", &[0]), "r0 &= 0xffffff").text();
    for (i, _) in good.char_indices() {
        let _ = parse_all(&good[..i]);
        for c in ["9", "(", "k"] {
            let mut other = good.clone();
            other.insert_str(i, c);
            if let Ok(entries) = parse_all(&other) {
                // Whatever it means: it can be asked and proven without harm.
                for e in entries {
                    if let Entry::General(g) = e {
                        let _ = g.instance(&plain("r0 <<= 40\nr0 >>= 40", &[0]));
                        let _ = g.prove(&bpf_prove::Options::default());
                    }
                }
            }
        }
    }
}

/// Numbers as code has them.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn number(&mut self) -> i32 {
        let k = 1i32.wrapping_shl(self.below(32) as u32);
        match self.below(6) {
            0 => k,
            1 => k.wrapping_sub(1),
            2 => k.wrapping_neg(),
            3 => self.below(4) as i32 - 1,
            _ => self.below(1 << 30) as i32 - (1 << 29),
        }
    }

    /// A line of code; the numbers in it are `{}`.
    fn line(&mut self) -> &'static str {
        const LINES: [&str; 22] = [
            "r0 += {}",
            "r1 += {}",
            "w0 += {}",
            "r0 &= {}",
            "w0 &= {}",
            "r1 &= {}",
            "r0 |= {}",
            "r1 ^= {}",
            "r0 = {}",
            "w1 = {}",
            "r1 = r0",
            "r0 += r1",
            "r0 &= r1",
            "w1 = w0",
            "r0 *= {}",
            "*(u8 *)(r10 - 8) = {}",
            "*(u8 *)(r10 - 7) = {}",
            "*(u32 *)(r10 - 8) = {}",
            "*(u64 *)(r10 - 16) = {}",
            "*(u64 *)(r10 - 16) = r0",
            "r0 = *(u64 *)(r10 - 16)",
            "*(u16 *)(r10 - 8) = r1",
        ];
        const SHIFTS: [&str; 6] = ["r0 <<= []", "r0 >>= []", "r1 >>= []", "r0 s>>= []", "w0 <<= ()", "w0 >>= ()"];
        let n = self.below(LINES.len() + 2 * SHIFTS.len());
        LINES.get(n).copied().unwrap_or(SHIFTS[n % SHIFTS.len()])
    }

    fn fill(&mut self, line: &str) -> String {
        let line = line.replace("{}", &self.number().to_string());
        let amount = [8, 16, 24, 32, 40, 48, 56, 1, 63][self.below(9)];
        let line = line.replace("[]", &amount.to_string());
        line.replace("()", &[8, 16, 24, 1, 31][self.below(5)].to_string())
    }

    fn key(&mut self, code: &[&str], live: usize) -> WindowKey {
        let mut s = numbers();
        for n in 0..2 {
            let limit = [0xf, 0xff, 0xffff, u64::from(u32::MAX)].get(self.below(9)).copied();
            limit.into_iter().for_each(|l| s.set_reg(r(n), Value::scalar(Num::unsigned(64, 0, l))));
        }
        let text: Vec<String> = code.iter().map(|l| self.fill(l)).collect();
        let regs: Vec<u8> = (0..2).filter(|n| live >> n & 1 == 1).collect();
        let bytes = if live & 4 != 0 { StackSet::range(-16, 16) } else { StackSet::range(-8, 2) };
        form(&s, &text.join("\n"), &regs, bytes)
    }
}

/// Random code from which an operation can be dropped, or whose end can be said in another way: the rule
/// is made general, and then asked about code with the same lines and other numbers, facts and liveness.
#[test]
fn every_instance_of_a_random_rule_is_right() {
    let mut dice = Dice(2024);
    let (mut rules, mut instances, mut with_parameters) = (0, 0, 0);
    for _ in 0..2_000 {
        let code: Vec<&str> = (0..2 + dice.below(3)).map(|_| dice.line()).collect();
        let live = dice.below(8);
        let p = dice.key(&code, live);
        let shorter = (0..p.old.len()).find_map(|i| {
            let mut new = p.old.clone();
            new.remove(i);
            let mut told = new.clone();
            if i < told.len() {
                // Instead of two operations one with a number that follows from theirs.
                let line = code[dice.below(code.len())];
                let line = dice.fill(line);
                told[i] = ops(&line)[0].clone();
            }
            [new, told].into_iter().find(|n| proven(&p, n))
        });
        let Some(shorter) = shorter else { continue };
        let found = RuleBody { with: Some(shorter), by: "dice".into(), effort: 1, excluded: None };
        let Some(g) = generalize(&p, &found) else { continue };
        rules += 1;
        with_parameters += usize::from(!g.conditions.is_empty());
        let text = g.text();
        assert_eq!(parse_all(&text).expect("it can be read"), [Entry::General(g.clone())], "{text}");
        let mut store = Store::in_memory();
        assert!(store.record_general(g.clone()), "{text}");
        for _ in 0..12 {
            let live = if dice.below(2) == 0 { live } else { dice.below(8) };
            let q = dice.key(&code, live);
            if let Some(new) = store.look_up(&q).and_then(|a| a.with) {
                instances += 1;
                assert!(proven(&q, &new), "{}\nbecomes\n{}\nby\n{text}", listing(&q.old), listing(&new));
            }
        }
    }
    println!("{rules} rules, {with_parameters} with parameters, {instances} instances");
    assert!(rules > 200 && with_parameters > 100 && instances > 1_000, "{rules} {with_parameters} {instances}");
}
