//! What counts for the kernel by standing in a program stays there, and costs nothing else of what was found.

use std::time::Duration;

use bpf_driver::{Options, Silent, optimize};
use bpf_testgen::assembly::{Map, Surroundings, functions, object};

const LEGACY_INNER: &[u8] = include_bytes!("../fixtures/legacy_inner.o");

const TWO_NAMES: &[u8] = include_bytes!("../fixtures/two_names.o");
/// `with_addends.c`, with usual relocations in a section that has the name `.rel.BTF`.
const RENAMED_RELOCATIONS: &[u8] = include_bytes!("../fixtures/renamed_relocations.o");
const WITH_ADDENDS: &[u8] = include_bytes!("../fixtures/with_addends.o");

/// The name of an array of programs, which nobody uses, among code that can be made shorter.
const CODE: &str = "
    r6 = 0
    r2 = jumps ll
    r1 = 7
    r1 += 5
    r6 += r1
    r0 = r6
    exit
";

#[test]
fn a_map_whose_name_counts_stays_named_and_the_rest_is_made_shorter() {
    let around = Surroundings {
        section: "xdp".into(),
        maps: vec![Map::parse("jumps prog_array 4 4 4").expect("a map")],
        ..Surroundings::default()
    };
    let bytes = object(&around, &functions(CODE, "xdp").expect("functions")).expect("it assembles");
    let limit = Duration::from_secs(20);
    let options = Options { kernel: false, search: false, time_limit: limit, ..Options::default() };
    let (_, report) = optimize(&bytes, &options, &Silent).expect("an object");
    let f = &report.functions[0];
    assert_eq!(f.untouched, None, "{report:#?}");
    assert!(f.listing_after.iter().any(|line| line.ends_with(" ll")), "{:?}", f.listing_after);
    assert!(f.slots_before == 8 && f.slots_after <= 5, "{:?}", f.listing_after);
}

/// The kernel takes spills around fast calls out by how instructions stand in memory, where a `goto` to the next one counts:
/// it stays, without a kernel that would be asked, too (red team OO).
#[test]
fn a_jump_between_a_spill_and_a_fast_call_stays() {
    let code = "
        r3 = *(u32 *)(r1 + 0)
        *(u64 *)(r10 - 8) = r3
        goto next
    next:
        call bpf_get_smp_processor_id
        r3 = *(u64 *)(r10 - 8)
        r1 = r10
        r1 += -8
        r2 = 8
        r3 = 0
        r4 = 0
        r5 = 0
        call bpf_csum_diff
        exit
    ";
    let around = Surroundings { section: "tc".into(), ..Surroundings::default() };
    let bytes = object(&around, &functions(code, "tc").expect("functions")).expect("it assembles");
    let limit = Duration::from_secs(20);
    let options = Options { kernel: false, search: false, time_limit: limit, ..Options::default() };
    let (_, report) = optimize(&bytes, &options, &Silent).expect("an object");
    let f = &report.functions[0];
    assert!(f.untouched.is_some() && f.slots_after == f.slots_before, "{report:#?}");
}

/// The template of the inner maps of an old `maps` section is named by a number, and arrays of each CPU of any length may take
/// its place: what the kernel makes of a lookup in one hangs on the ways there (red team XX).
#[test]
fn ways_to_a_lookup_in_an_inner_map_stay_where_its_template_is_not_known() {
    let limit = Duration::from_secs(20);
    for kernel in [false, true] {
        let options = Options { kernel, search: false, time_limit: limit, ..Options::default() };
        let (_, report) = optimize(LEGACY_INNER, &options, &Silent).expect("an object");
        let f = &report.functions[0];
        assert!(f.untouched.is_some() && f.slots_after == f.slots_before, "{report:#?}");
    }
}

/// Loaders apply relocations to one of the programs that they make of such a function, so that the address of a map is null in
/// the other (red team YY).
#[test]
fn a_program_of_several_names_stays_as_it_is() {
    let options = Options { kernel: false, search: false, time_limit: Duration::from_secs(20), ..Options::default() };
    let (result, report) = optimize(TWO_NAMES, &options, &Silent).expect("an object");
    assert!(result == TWO_NAMES, "{report:#?}");
    let why = report.functions[0].untouched.as_deref().unwrap_or_default();
    assert!(why.contains("several names"), "{report:#?}");
}

/// Loaders of today pass over relocations with addends, and under names that sections of other kinds have: the address of a map
/// is null for the kernel (red team YY).
#[test]
fn code_whose_relocations_loaders_pass_over_stays_as_it_is() {
    for (object, kernel) in [(WITH_ADDENDS, false), (WITH_ADDENDS, true), (RENAMED_RELOCATIONS, false)] {
        let options = Options { kernel, search: false, time_limit: Duration::from_secs(20), ..Options::default() };
        let (result, report) = optimize(object, &options, &Silent).expect("an object");
        assert!(result == object, "{report:#?}");
        let why = report.functions[0].untouched.as_deref().unwrap_or_default();
        assert!(why.contains("loaders pass over"), "{report:#?}");
    }
}
