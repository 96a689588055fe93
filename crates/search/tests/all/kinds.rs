//! Windows of every kind: context fields, what the loader patches, the goal of speed.

use bpf_facts::{Env, Live, MapInfo, State, Value};
use bpf_isa::{Goal, Insn, Reg, parse_listing};
use bpf_program::{Link, Op, ProgKind, Symbol};
use bpf_prove::{Options, Verdict, window};
use bpf_search::{Answer, Budget, Chain, Payoff, Portfolio, SETTINGS, Window};

fn r(n: usize) -> Reg {
    Reg::new(n as u8).expect("a register")
}

fn live(regs: &[usize]) -> Live {
    let mut l = Live::default();
    regs.iter().for_each(|n| l.regs.insert(r(*n)));
    l
}

fn ops(listing: &str) -> Vec<Op> {
    parse_listing(listing).expect("a listing").into_iter().map(Op::new).collect()
}

struct Case {
    kind: ProgKind,
    maps: Vec<MapInfo>,
    before: State,
    old: Vec<Op>,
    live: Live,
    goal: Goal,
}

impl Case {
    fn new(kind: ProgKind, listing: &str, live: Live) -> Case {
        let maps = vec![MapInfo { name: "counters".into(), ..MapInfo::default() }];
        Case { kind, maps, before: State::entry(kind), old: ops(listing), live, goal: Goal::Size }
    }

    fn window<'a>(&'a self, env: &'a Env<'a>) -> Window<'a> {
        Window {
            kind: self.kind,
            env,
            before: &self.before,
            old: &self.old,
            live: &self.live,
            superblock: None,
            cpu: 3,
            goal: self.goal,
            deadline: None,
        }
    }

    /// The prover's answer.
    fn judge(&self, env: &Env, new: &[Op]) -> Answer {
        let options = Options::default();
        match window(self.kind, env, &self.before, &self.old, new, &self.live, None, &options).0 {
            Verdict::Equal => Answer::Equal,
            Verdict::Different(d) => Answer::Different(Some(d)),
            Verdict::Unknown(_) => Answer::Unknown,
        }
    }

    /// The best within so many proposals of the whole portfolio.
    fn best(&self, proposals: u64) -> Option<Vec<Op>> {
        let env = Env { maps: &self.maps, ..Env::empty() };
        let mut judge = |new: &[Op]| self.judge(&env, new);
        let mut portfolio = Portfolio::new(self.window(&env), &SETTINGS, 1).expect("a window that can be tested");
        portfolio.run(Budget::proposals(proposals), &mut Payoff::default(), &mut judge).map(|f| f.with.clone())
    }
}

fn listing(ops: &Option<Vec<Op>>) -> Vec<String> {
    ops.iter().flatten().map(|o| o.insn.to_string()).collect()
}

#[test]
fn a_context_field_is_read_once() {
    // Twice the same field of a packet's descriptor, the second time only to be compared.
    let case =
        Case::new(ProgKind::Skb, "r2 = *(u32 *)(r1 + 16)\nr3 = *(u32 *)(r1 + 16)\nr2 += r3\nr4 = r2", live(&[4]));
    let found = case.best(3_000_000);
    let reads = found.iter().flatten().filter(|o| matches!(o.insn, Insn::Load { .. })).count();
    assert_eq!((found.as_ref().map(Vec::len), reads), (Some(2), 1), "{:?}", listing(&found));
    // The mark may be read narrowly, but not at a place that is no field.
    let case = Case::new(ProgKind::Skb, "r2 = *(u32 *)(r1 + 8)\nr2 &= 65535", live(&[2]));
    assert_eq!(listing(&case.best(200_000)), ["r2 = *(u16 *)(r1 + 0x8)"]);
}

#[test]
fn a_store_to_the_context_stays_as_it_is() {
    let case = Case::new(
        ProgKind::Skb,
        "r2 = 7\n*(u32 *)(r1 + 8) = r2\nr2 = 9\n*(u32 *)(r1 + 8) = r2\nr3 = r2\nr3 += 0",
        live(&[3]),
    );
    let found = case.best(200_000);
    let stores = found.iter().flatten().filter(|o| matches!(o.insn, Insn::Store { .. })).count();
    assert!(found.is_some() && stores == 2, "{:?}", listing(&found));
}

#[test]
fn no_number_is_stored_into_the_context() {
    // The first example of the K2 paper's §2.2. On the stack the same is what the search finds.
    let case = |to: &str, live: Live| Case::new(ProgKind::Skb, &format!("r2 = 7\nr3 = r2\n*(u32 *)({to}) = r3"), live);
    let found = listing(&case("r1 + 8", live(&[])).best(200_000));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[1].starts_with("*(u32 *)(r1 + 0x8) = r"), "{found:?}");
    let found = listing(&case("r10 - 8", live_frame(-8)).best(200_000));
    assert_eq!(found, ["*(u32 *)(r10 - 0x8) = 0x7"]);
}

#[test]
fn what_is_read_of_a_record_or_the_stack_stays_where_the_verifier_takes_it() {
    // Neighbours are read at once where their place is a multiple of their width together.
    let of_a_record = |at: i32| {
        format!(
            "r2 = *(u32 *)(r1 + {at})\nr3 = *(u32 *)(r1 + {})\n*(u32 *)(r10 - 8) = r2\n*(u32 *)(r10 - 4) = r3\n\
             r4 = *(u64 *)(r10 - 8)",
            at + 4
        )
    };
    let widest = |at: i32| {
        let found = Case::new(ProgKind::Tracing, &of_a_record(at), live(&[4])).best(400_000);
        listing(&found).iter().filter(|insn| insn.contains("*(u64 *)(r1 ")).count()
    };
    assert_eq!((widest(16), widest(20)), (1, 0));
    // A part of a number is no field.
    let found = Case::new(ProgKind::Tracing, "r2 = *(u64 *)(r1 + 16)\nr2 &= 255", live(&[2])).best(200_000);
    assert_eq!(listing(&found), Vec::<String>::new());
    // The same on the stack, of which all is allowed that is a multiple of its width.
    let found = Case::new(ProgKind::Xdp, "r2 = 0\n*(u32 *)(r10 - 12) = r2\n*(u32 *)(r10 - 8) = r2", live_frame(-12));
    let found = listing(&found.best(200_000));
    assert!(!found.iter().any(|insn| insn.contains("*(u64 *)(r10 - 0xc)")), "{found:?}");
}

#[test]
fn stores_to_the_scratch_area_of_a_packet_are_merged_only_where_the_kernel_takes_one() {
    // `bpf_skb_is_valid_access` in net/core/filter.c: `cb` takes any width at a multiple of it. The prover does not mind where.
    let widest = |at: i32| {
        let stores = format!("r2 = 0\n*(u32 *)(r1 + {at}) = r2\n*(u32 *)(r1 + {}) = r2", at + 4);
        let case = Case::new(ProgKind::Skb, &stores, live(&[]));
        let found = listing(&case.best(400_000));
        found.iter().filter(|insn| insn.contains("*(u64 *)(r1 ")).count()
    };
    assert_eq!((widest(56), widest(52)), (1, 0));
}

/// Eight bytes of the frame.
fn live_frame(from: i64) -> Live {
    let mut l = Live::default();
    l.stack.insert_range(from, 8);
    l
}

#[test]
fn what_the_loader_patches_is_moved_or_dropped_as_a_whole() {
    // The address of a map is made in two steps that are one; the first address is never used.
    let mut case = Case::new(ProgKind::Xdp, "r2 = 0x0 ll\nr3 = r2\nr2 = 0x0 ll\nr4 = r3\nr4 = r3", live(&[2, 4]));
    let map = |slot| Link { slot, symbol: Symbol::Map { name: "counters".into(), index: 0 } };
    for (slot, i) in [(0, 0), (3, 2)] {
        case.old[i].insn = Insn::LoadImm64 { dst: r(2), kind: bpf_isa::Imm64Kind::MapFd, imm: 0 };
        case.old[i].link = Some(map(slot));
    }
    let found = case.best(300_000).expect("one address is enough");
    let linked = found.iter().filter(|o| o.link.is_some()).count();
    assert_eq!((linked, found.len()), (1, 2), "{:?}", listing(&Some(found)));
    // An offset that is only known when the program is loaded: what depends on it alone may go.
    let mut case = Case::new(ProgKind::Tracing, "r2 = r1\nr2 += 8\nr3 = r2\nr3 <<= 32\nr3 >>= 32\nr4 = r3", live(&[4]));
    case.before.set_reg(r(1), Value::unknown());
    let symbol = Symbol::Core { kind: 0, type_id: 5, access: "0:1".into() };
    case.old[1].link = Some(Link { slot: 1, symbol: symbol.clone() });
    let found = case.best(300_000).expect("the copies are idle");
    let patched: Vec<&Op> = found.iter().filter(|o| o.is_core()).collect();
    assert!(patched.len() == 1 && patched[0].insn == case.old[1].insn, "{:?}", listing(&Some(found.clone())));
    assert_eq!(patched[0].link.as_ref().map(|l| &l.symbol), Some(&symbol));
    assert!(found.len() < case.old.len());
}

#[test]
fn for_speed_time_counts_and_not_slots() {
    // What takes as many slots and less time.
    let mut case = Case::new(ProgKind::Subprogram, "r2 = r1\nr2 *= 8", live(&[2]));
    case.goal = Goal::latency();
    assert_eq!(listing(&case.best(200_000)), ["r2 = r1", "r2 <<= 0x3"]);
    let mut case = Case::new(ProgKind::Subprogram, "r2 = r1\nr2 /= 16\nr2 += 0", live(&[2]));
    case.goal = Goal::latency();
    assert_eq!(listing(&case.best(200_000)), ["r2 = r1", "r2 >>= 0x4"]);
}

#[test]
fn what_breaks_a_rule_of_the_verifier_is_a_fault_and_no_question() {
    // One load would do, and the prover would call it equal: but it is at no multiple of its width.
    let halves = "r2 = *(u32 *)(r1 + 20)\nr3 = *(u32 *)(r1 + 24)\nr3 <<= 32\nr2 |= r3\nr4 = r2";
    let case = Case::new(ProgKind::Tracing, halves, live(&[4]));
    let env = Env::empty();
    assert!(matches!(case.judge(&env, &ops("r4 = *(u64 *)(r1 + 20)")), Answer::Equal));
    let mut refused = 0;
    for setting in SETTINGS {
        let mut chain = Chain::new(case.window(&env), setting, 2).expect("a window that can be tested");
        let mut judge = |new: &[Op]| {
            let wide =
                |o: &Op| o.insn.memory_operand().is_some_and(|m| i64::from(m.off) % i64::from(m.size.bytes()) != 0);
            assert!(!new.iter().any(wide), "asked about {new:?}");
            case.judge(&env, new)
        };
        chain.run(Budget::proposals(100_000), &mut judge);
        refused += chain.progress.violations;
    }
    assert!(refused > 0, "the window no longer tempts the search");
}
