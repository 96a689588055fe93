//! What `opt` makes of fields that the kernel manages where no kernel is asked; the proofs have their cases in
//! `tests/equivalence/managed-fields`.

use std::path::Path;
use std::time::Duration;

use bpf_driver::{Options, Report, Silent};
use bpf_kernel::testing::permitted;
use bpf_kernel::{LoadOptions, load_object};
use bpf_object::{Object, WriteOptions};

const FIXTURES: [&str; 2] = ["managed.o", "managed_linked.o"];

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../object/tests/fixtures/compare");
    std::fs::read(folder.join(name)).expect("fixture")
}

/// What the kernel refuses, with its reasons.
fn refused(object: &[u8]) -> Vec<String> {
    let verdict = load_object(object, &LoadOptions::default()).expect("it is asked");
    let programs = verdict.programs.iter().filter(|p| !p.verdict.is_accepted());
    let programs = programs.map(|p| format!("{}: {}", p.name, p.verdict.reason()));
    programs.chain(verdict.not_loadable.clone()).collect()
}

/// Without a kernel, with the passes and, if that is wanted, a short search.
fn optimized(name: &str, search: bool) -> (Vec<u8>, Report) {
    let before = fixture(name);
    let options =
        Options { kernel: false, run_check: false, search, time_limit: Duration::from_secs(5), ..Options::default() };
    bpf_driver::optimize(&before, &options, &Silent).expect("it can be read")
}

fn listing(report: &Report, function: &str) -> Vec<String> {
    let function = report.functions.iter().find(|f| f.name == function).expect("it is there");
    function.listing_after.iter().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn a_pointer_of_the_kernel_is_read_as_a_whole() {
    for name in FIXTURES {
        for search in [false, true] {
            let (_, report) = optimized(name, search);
            let reads = listing(&report, "reads");
            assert!(reads.iter().any(|line| line.ends_with("*(u64 *)(r0 + 0x28)")), "{name}: {reads:#?}");
            assert!(!reads.iter().any(|line| line.ends_with("*(u32 *)(r0 + 0x28)")), "{name}: {reads:#?}");
        }
    }
}

#[test]
fn a_number_beside_it_is_read_in_half() {
    let (_, report) = optimized("managed.o", true);
    let reads = listing(&report, "reads_number");
    assert!(reads.iter().any(|line| line.ends_with("*(u32 *)(r0 + 0x0)")), "{reads:#?}");
}

#[test]
fn the_kernel_takes_what_was_made_without_it() {
    if !permitted() {
        return;
    }
    for name in FIXTURES {
        let (after, _) = optimized(name, true);
        assert_eq!(refused(&after), Vec::<String>::new(), "{name}");
    }
}

/// Reads each word of a value alone: the kernel refuses that of its own fields and of no others.
#[test]
fn the_fields_are_those_that_the_kernel_finds() {
    /// The slot in `reads` of `r1 = *(u64 *)(r0 + 40)`.
    const READ: usize = 8;
    if !permitted() {
        return;
    }
    for name in FIXTURES {
        let mut object = Object::parse(fixture(name)).expect("it can be read");
        let map = object.maps().iter().find(|m| m.name == "m").expect("it is there").clone();
        let reads = object.function_named("reads").expect("it is there");
        let body = object.identity_body(reads).expect("it can be changed");
        let read = body.iter().position(|i| i.origin == Some(READ)).expect("it is there");
        assert_eq!(body[read].bytes, [0x79, 0x01, 40, 0, 0, 0, 0, 0]);
        for at in (0..map.value_size.expect("it is known") as u8).step_by(4) {
            let mut body = body.clone();
            body[read].bytes = vec![0x61, 0x01, at, 0, 0, 0, 0, 0];
            object.set_body(reads, body).expect("it is a body");
            let refused = refused(&object.write(&WriteOptions::default()).expect("it can be written").bytes);
            let managed = map.managed.may_be_accessed(Some(at.into()), 4);
            assert_eq!(!refused.is_empty(), managed, "{name}, word at {at}: {refused:?}");
        }
    }
}

#[test]
fn what_a_map_holds_is_known_by_its_own_definition() {
    use bpf_assembly::{Map, MapForm, Surroundings, functions, object};
    let known = |map: &str, map_form: MapForm| {
        let maps = vec![Map::parse(map).expect("a map")];
        let around = Surroundings { section: "xdp".into(), maps, map_form, ..Surroundings::default() };
        let bytes = object(&around, &functions("r1 = m ll\nw0 = 2\nexit\n", "xdp").expect("code")).expect("an object");
        Object::parse(bytes).expect("it can be read").maps()[0].values_known
    };
    assert!(known("m array 4 16 1", MapForm::Typed));
    assert!(known("m array 4 16 1 lock", MapForm::Typed));
    // It may be another object's, or its types be told elsewhere.
    assert!(!known("m array 4 16 1 pinned", MapForm::Typed));
    assert!(!known("m array 4 16 1", MapForm::Legacy { bytes: 20, apart: false }));
}
