//! Which predicate decided: against a walk through the text that asks libpcap for each predicate alone, and in the kernel.

use std::collections::HashMap;

use bpf_filter::{Beside, EbpfForm, Filter, Options, Packet, compile};
use bpf_kernel::LoadedObject;
use bpf_kernel::testing::permitted;
use bpf_pcap_oracle::data::Data;
use bpf_pcap_oracle::{Libpcap, Program, interpreter};
use fastrand::Rng;

use crate::common::{by_libpcap, cuts, expressions, link_type, options, seen};
use crate::kernel::{STEP, counted, hooks, loaded, returned};

/// An expression. Its predicates change nothing for those behind them.
enum Tree {
    Predicate(usize),
    Not(Box<Tree>),
    Both(bool, Box<Tree>, Box<Tree>),
}

const PREDICATES: [&str; 14] = [
    "ip",
    "ip6",
    "arp",
    "tcp",
    "udp port 53",
    "tcp dst port 80",
    "src net 10.0.0.0/8",
    "host 10.0.0.1",
    "ip[8] > 60",
    "less 200",
    "icmp",
    "ether[0] & 1 = 0",
    "portrange 1000-40000",
    "dst net 192.168.0.0/16",
];

impl Tree {
    fn random(random: &mut Rng, depth: u32) -> Tree {
        match random.u8(0..if depth == 0 { 1 } else { 6 }) {
            0 => Tree::Predicate(random.usize(0..PREDICATES.len())),
            1 => Tree::Not(Box::new(Tree::random(random, depth - 1))),
            _ => {
                let and = random.bool();
                let [a, b] = [0, 1].map(|_| Box::new(Tree::random(random, depth - 1)));
                Tree::Both(and, a, b)
            }
        }
    }

    fn text(&self) -> String {
        match self {
            Tree::Predicate(i) => format!("({})", PREDICATES[*i]),
            Tree::Not(a) => format!("(not {})", a.text()),
            Tree::Both(and, a, b) => format!("({} {} {})", a.text(), if *and { "and" } else { "or" }, b.text()),
        }
    }

    /// Whether it holds, and which of its predicates said so: the number in the text. `before`: how many there are before it.
    fn answer(&self, holds: &mut dyn FnMut(usize) -> bool, before: usize) -> (bool, usize) {
        match self {
            Tree::Predicate(i) => (holds(*i), before),
            Tree::Not(a) => {
                let (answer, by) = a.answer(holds, before);
                (!answer, by)
            }
            Tree::Both(and, a, b) => match a.answer(holds, before) {
                (answer, _) if answer == *and => b.answer(holds, before + a.predicates()),
                decided => decided,
            },
        }
    }

    fn predicates(&self) -> usize {
        match self {
            Tree::Predicate(_) => 1,
            Tree::Not(a) => a.predicates(),
            Tree::Both(_, a, b) => a.predicates() + b.predicates(),
        }
    }
}

#[test]
fn the_last_predicate_that_is_asked_has_decided() {
    let (Some(data), Some(pcap)) = (Data::for_test(), Libpcap::for_test()) else { return };
    let alone: Vec<Program> = PREDICATES.iter().map(|p| by_libpcap(&pcap, 1, p).expect("a filter")).collect();
    // Nothing ends before a field.
    let padded = |captured: &[u8]| [captured, &[0; 200]].concat();
    let packets: Vec<Vec<u8>> = data.packets(1).iter().step_by(7).map(|p| padded(&p.captured)).collect();
    let mut random = Rng::with_seed(9);
    let mut compared = 0;
    let mut deciders: HashMap<usize, u64> = HashMap::new();
    for _ in 0..80 {
        let tree = Tree::random(&mut random, 4);
        let options = Options { report: true, optimize: random.u8(0..4) > 0, ..options(bpf_filter::LinkType::EN10MB) };
        let filter = compile(&tree.text(), &options).expect("a filter");
        assert_eq!(filter.predicates().len(), tree.predicates(), "{}", tree.text());
        for captured in &packets {
            let length = captured.len() as u32 - 100;
            let mut holds = |i: usize| interpreter::run(&alone[i], captured, length).verdict != 0;
            let (accepted, decided) = tree.answer(&mut holds, 0);
            let run = filter.count(&Packet { captured, length, beside: Beside::default() });
            assert_eq!((run.accepted, run.decided), (accepted, Some(decided)), "{} on {captured:?}", tree.text());
            *deciders.entry(decided).or_default() += 1;
            compared += 1;
        }
    }
    eprintln!("{compared} verdicts, decided by {deciders:?}");
    assert!(compared > 10_000 && deciders.len() > 8);
}

fn reporting(expression: &str, options: &Options) -> Option<Filter> {
    compile(expression, &Options { report: true, ..options.clone() }).ok()
}

#[test]
fn the_optimizer_leaves_what_decides() {
    let Some(data) = Data::for_test() else { return };
    let (mut filters, mut compared) = (0, 0);
    for link_type in [1, 12, 113].map(bpf_filter::LinkType) {
        let packets = data.packets(link_type.0);
        for expression in expressions(&data, link_type, 11) {
            let options = options(link_type);
            let Some(filter) = reporting(&expression, &options) else { continue };
            let plain = reporting(&expression, &Options { optimize: false, ..options.clone() }).expect("a filter");
            let silent = compile(&expression, &options).expect("a filter");
            filters += 1;
            for (i, packet) in packets.iter().enumerate().step_by(31) {
                for packet in cuts(packet, i) {
                    let (run, expected) = (filter.count(&packet), plain.count(&packet));
                    assert_eq!((run.accepted, run.decided), (expected.accepted, expected.decided), "{expression:.300}");
                    assert_eq!(run.accepted, silent.run(&packet) != 0, "{expression:.300}");
                    compared += 1;
                }
            }
        }
    }
    eprintln!("{filters} filters, {compared} verdicts");
    assert!(filters > 60 && compared > 10_000);
}

/// Packets by predicate and verdict, on all processors; the last ones end before the first predicate.
fn reported(object: &LoadedObject, predicates: usize) -> Vec<u64> {
    (0..2 * (predicates as u32 + 1)).map(|key| counted(object, "report", key).0).collect()
}

#[test]
fn the_kernel_reports_what_the_interpreter_reports() {
    if !permitted() {
        return;
    }
    let Some(data) = Data::for_test() else { return };
    let packets = data.packets(1);
    let own =
        ["vlan and tcp port 80", "not (tcp or udp)", "ip protochain 6 or ip6 protochain 17", "ip[0] / ip[1] < 80"];
    let filters = data.filters().into_iter().map(|f| f.expression).filter(|e| e.len() < 3000);
    let expressions: Vec<String> = filters.step_by(2).chain(own.map(str::to_owned)).collect();
    for (hook, actions) in hooks() {
        let (mut programs, mut runs) = (0, 0);
        for expression in &expressions {
            let options = Options { source: hook.source(), ..options(link_type(hook)) };
            let Some(filter) = reporting(expression, &options) else { continue };
            for counts in [false, true] {
                let Ok(object) = filter.object_of(&EbpfForm::Program { hook, actions, counts }) else { continue };
                let object = loaded(hook, expression, &object);
                let predicates = filter.predicates().len();
                let mut counted = vec![0; 2 * (predicates + 1)];
                for captured in packets.iter().step_by(STEP).map(|p| &p.captured[..p.captured.len().min(61)]) {
                    let seen = seen(hook, captured);
                    let run =
                        filter.count(&Packet { captured: seen, length: seen.len() as u32, beside: Beside::default() });
                    let Some(verdict) = returned(&object, hook, captured) else { continue };
                    assert_eq!(verdict == actions.matched, run.accepted, "{hook:?} {expression}");
                    counted[2 * run.decided.unwrap_or(predicates) + usize::from(run.accepted)] += 1;
                    runs += 1;
                }
                assert_eq!(reported(&object, predicates), counted, "{hook:?} {expression:.200}");
                programs += 1;
            }
        }
        eprintln!("{hook:?}: {programs} filters that report, {runs} runs");
        assert!(programs > 40 && runs > 1000);
    }
}
