//! Maps by number, and the runs that the kernel counts.

use bpf_kernel::testing::permitted;
use bpf_kernel::{LoadOptions, LoadedObject, Map, Observed, Statistics};

const OBJECT: &[u8] = include_bytes!("../../../../examples/xdp_count.o");
const RUNS: u32 = 50;

#[test]
fn runs_are_counted_while_the_kernel_is_asked_to() {
    if !permitted() {
        return;
    }
    let loaded = LoadedObject::load(OBJECT, &LoadOptions::default()).expect("it loads");
    let program = &loaded.programs()[0];
    let id = program.info.as_ref().expect("what the kernel says of it").id;
    let observed = Observed::by_id(id).expect("it is there");
    let was_on = Statistics::are_on();
    let before = observed.runs().expect("it is told").runs;
    let counting = Statistics::enable().expect("it may be told to");
    loaded.test_run(&program.name, &[0; 64], None, RUNS).expect("it runs");
    let after = observed.runs().expect("it is told");
    assert_eq!(after.runs - before, RUNS.into());
    assert!(after.nanoseconds > 0 && program.name.starts_with(&after.name), "{after:?}");
    drop(counting);
    assert_eq!(Statistics::are_on(), was_on);
}

#[test]
fn what_is_not_there_is_said() {
    if !permitted() {
        return;
    }
    let said = Observed::by_id(u32::MAX).expect_err("there is no such program").to_string();
    assert!(said.contains("program 4294967295"), "{said}");
    assert!(Map::by_id(u32::MAX).is_err() && Map::pinned("/nowhere".as_ref()).is_err());
}
