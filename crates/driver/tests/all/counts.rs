//! A copy that counts in the kernel counts what the interpreter does on the same packets.

use std::collections::{BTreeMap, BTreeSet};

use bpf_driver::counting::of_packets;
use bpf_driver::counts::Counts;
use bpf_driver::difftest::{Random, packet};
use bpf_driver::instrument::{SECTION, instrument, read};
use bpf_driver::{FunctionVerdict, Goal, Options, PassSelection, Silent, optimize, verify};
use bpf_kernel::testing::permitted;
use bpf_kernel::{LoadOptions, LoadedObject, in_private_network};
use bpf_object::Object;
use bpf_testgen::case::Case;

/// Packets of all kinds, none too short for a test run.
fn packets() -> Vec<Vec<u8>> {
    let mut random = Random::new(7);
    let mut all: Vec<Vec<u8>> = (0..200).map(|_| packet(&mut random, &[])).collect();
    all.retain(|p| p.len() >= 14);
    all
}

/// An XDP object with a hash `m` of four bytes to eight and an array `a`.
fn object(code: &str) -> Vec<u8> {
    let text = format!(
        "; A.\n; section: xdp\n; map: m hash 4 8 16\n; map: a array 4 8 4\n; expect: equal\n\nbefore:\n{code}\nafter:\n{code}"
    );
    let case = Case::parse(&text).unwrap_or_else(|e| panic!("{e}"));
    case.old_object().unwrap_or_else(|e| panic!("{e}"))
}

/// What a copy of an object counts in the kernel, its only program on these packets one after the other.
fn in_kernel(object: &[u8], packets: &[Vec<u8>]) -> Counts {
    let copy = instrument(object, &BTreeSet::new()).expect("it can count");
    assert_eq!(copy.left_out, []);
    let program = Object::parse(object.to_vec()).expect("it is read").functions()[0].name.clone();
    let run = || {
        let loaded = LoadedObject::load(&copy.bytes, &LoadOptions::default()).expect("the kernel takes it");
        for packet in packets {
            loaded.test_run(&program, packet, None, 1).expect("it runs");
        }
        loaded.map(SECTION).expect("its counters").lookup(&[0; 4]).expect("they are read").expect("they are there")
    };
    let counters = in_private_network(run).expect("a network namespace");
    read(object, &counters).expect("they are its counters")
}

fn same_counts(object: &[u8]) {
    if !permitted() {
        return;
    }
    let packets = packets();
    let interpreted = of_packets(object, &packets, &BTreeMap::new(), &[]).expect("it is read");
    assert_eq!((interpreted.runs, &interpreted.faults), (packets.len() as u64, &vec![]));
    let counted = in_kernel(object, &packets);
    assert_eq!((counted.source.as_str(), counted.check(object)), ("kernel", Ok(())));
    assert_eq!(counted.functions, interpreted.counts.functions);
    assert!(counted.total() > packets.len() as u64);
}

/// Branches, lookups, elements that stay from packet to packet, a loop, and no register free in it.
const BUSY: &str = "
    r6 = *(u32 *)(r1 + 0)
    r7 = *(u32 *)(r1 + 4)
    r0 = 1
    r2 = r6
    r2 += 34
    if r2 > r7 goto out
    r8 = *(u8 *)(r6 + 23)
    r9 = *(u8 *)(r6 + 12)
    *(u32 *)(r10 - 4) = r8
    r2 = r10
    r2 += -4
    r1 = m ll
    call bpf_map_lookup_elem
    if r0 != 0 goto known
    *(u64 *)(r10 - 16) = r9
    r1 = m ll
    r2 = r10
    r2 += -4
    r3 = r10
    r3 += -16
    r4 = 0
    call bpf_map_update_elem
    r0 = 2
    goto out
known:
    r1 = 0
    r2 = *(u64 *)(r0 + 0)
    r3 = r8
    r4 = r9
    r5 = 7
again:
    r2 += r3
    r3 += r4
    r4 += r5
    r5 += r8
    r8 += r9
    r9 += r2
    r1 += 1
    if r1 < 5 goto again
    *(u64 *)(r0 + 0) = r2
    r5 += r9
    r3 &= 1
    r0 = 2
    if r3 == 0 goto out
    r0 = 3
    if r5 == 0 goto out
    r0 = 2
out:
    exit
";

#[test]
fn the_kernel_counts_what_the_interpreter_counts() {
    same_counts(&object(BUSY));
    same_counts(include_bytes!("../../../../examples/xdp_count.o"));
}

/// Two lookups that the compiler keeps apart from a branch on which most packets go one way.
const UNLIKELY: &str = "
    r2 = *(u32 *)(r1 + 4)
    r1 = *(u32 *)(r1 + 0)
    r0 = 2
    r3 = r1
    r3 += 14
    if r3 > r2 goto out
    r4 = *(u8 *)(r1 + 12)
    if r4 != 8 goto other
    r0 = 1
    r5 = *(u8 *)(r1 + 13)
    if r5 == 6 goto out
    r0 = 3
    goto out
other:
    r4 += 3
    r4 *= r4
    r4 &= 1
    r0 = 2
    if r4 == 0 goto out
    r0 = 0
out:
    exit
";

#[test]
fn counts_choose_between_proven_forms_and_nothing_else() {
    let object = object(UNLIKELY);
    let ethernet = |kind: [u8; 2]| [&[2; 12][..], &kind, &[0; 50]].concat();
    let traffic =
        |kind| of_packets(&object, &vec![ethernet(kind); 50], &BTreeMap::new(), &[]).expect("it is read").counts;
    let (ip, other) = (traffic([8, 0]), traffic([0x86, 0xdd]));
    let written = |counts: Option<&Counts>| {
        let options = Options {
            goal: Goal::latency(),
            counts: counts.cloned().map(std::sync::Arc::new),
            passes: PassSelection::All,
            kernel: false,
            ..Options::default()
        };
        let (bytes, report) = optimize(&object, &options, &Silent).expect("it is read");
        let verdict = verify(&object, &bytes, &options).expect("both are read");
        assert!(matches!(verdict.functions[0].1, FunctionVerdict::Equal), "{:?}", verdict.functions);
        (bytes, report.functions[0].estimated_ns.expect("an estimate").1)
    };
    for counts in [&ip, &other] {
        assert_eq!(written(Some(counts)), written(Some(counts)), "the same counts give the same bytes");
    }
    assert_ne!(written(Some(&ip)).0, written(Some(&other)).0, "the likely side falls through");
    written(None);
}
