//! Finding 12: names that repeat.

use super::*;

fn exchange_twins(elf: &mut Elf) {
    let text = &mut elf.section(".text").data;
    let (first, second) = text[..2 * TWIN].split_at_mut(TWIN);
    first.swap_with_slice(second);
}

/// Points the call at this slot of section `xdp` to the n-th twin. The relocation is on `.text`.
fn call_twin(elf: &mut Elf, slot: usize, n: usize) {
    let imm = (n * TWIN / 8) as i32 - 1;
    elf.section("xdp").data[slot * 8 + 4..slot * 8 + 8].copy_from_slice(&imm.to_le_bytes());
}

/// The same for the call at the start of `calls_twin`, which has no relocation.
fn direct_call_twin(elf: &mut Elf, n: usize) {
    let slot = 2 * TWIN / 8;
    let imm = (n * TWIN / 8) as i32 - slot as i32 - 1;
    elf.section(".text").data[slot * 8 + 4..slot * 8 + 8].copy_from_slice(&imm.to_le_bytes());
}

#[test]
fn finding_12_two_static_functions_of_one_name_changed_places() {
    let report = not_equal(TWINS, exchange_twins);
    assert!(report.is_different(), "{report:#?}");
}

#[test]
fn finding_12_a_call_goes_to_the_other_function_of_that_name() {
    not_equal(TWINS, |elf| call_twin(elf, 1, 1));
    not_equal(TWINS, |elf| call_twin(elf, 5, 0));
}

#[test]
fn finding_12_callee_of_an_untouched_function() {
    not_equal(TWINS, |elf| direct_call_twin(elf, 0));
    // Bodies and all calls but one change places.
    not_equal(TWINS, |elf| {
        exchange_twins(elf);
        call_twin(elf, 1, 1);
        call_twin(elf, 5, 0);
    });
}

#[test]
fn finding_12_functions_of_one_name_may_change_places_with_all_their_calls() {
    equal(TWINS, |elf| {
        exchange_twins(elf);
        call_twin(elf, 1, 1);
        call_twin(elf, 5, 0);
        direct_call_twin(elf, 0);
        // The relocations of the two are at the same places.
    });
}

#[test]
fn finding_12_functions_of_one_name_with_other_data() {
    // Both write to `state`, each to its own.
    not_equal(TWINS, |elf| elf.section(".text").data[8 + 4] = 4);
    different(TWINS, &["section .data"], |elf| elf.section(".data").data.swap(0, 4));
}

#[test]
fn finding_12_one_of_two_functions_of_one_name_is_another() {
    not_equal(TWINS, |elf| elf.section(".text").data[TWIN + 36] = 0xfd);
    different(TWINS, &["twin"], |elf| {
        let mut symbols = elf.symbols();
        let twin = symbols.iter_mut().rfind(|s: &&mut Symbol| s.name == "twin").unwrap();
        twin.name = "single".into();
        elf.set_symbols(&symbols);
    });
}

const SECTIONS: &str = "two_sections.o";

/// Gives both data sections one name.
fn one_data_name(elf: &mut Elf) {
    for name in [".data.low", ".data.high"] {
        elf.section(name).name = ".data.x".into();
    }
}

#[test]
fn finding_12_two_data_sections_of_one_name() {
    let (_, before) = changed(SECTIONS, one_data_name);
    assert!(verify(&before, &before).is_equal());
    let refused = |change: &dyn Fn(&mut Elf)| {
        let mut elf = Elf::parse(&before);
        change(&mut elf);
        let report = verify(&before, &elf.bytes());
        assert!(!report.is_equal(), "{report:#?}");
        report
    };
    // Contents change places.
    let report = refused(&|elf| {
        for s in elf.sections.iter_mut().filter(|s| s.name == ".data.x") {
            s.data[0] ^= 3;
        }
    });
    assert!(report.is_different(), "{report:#?}");
    // References change places.
    refused(&|elf| {
        let (low, high) = (elf.symbol("low"), elf.symbol("high"));
        elf.change_reloc(".relxdp/1", 0, |r| r.symbol = high);
        elf.change_reloc(".relxdp/2", 0, |r| r.symbol = low);
    });
    // One reference goes to the other section.
    refused(&|elf| {
        let high = elf.symbol("high");
        elf.change_reloc(".relxdp/1", 0, |r| r.symbol = high);
    });
    // The second alone changes.
    let report = refused(&|elf| elf.sections.iter_mut().rfind(|s| s.name == ".data.x").unwrap().data[0] = 9);
    assert!(report.differences.join("\n").contains(".data.x#"), "{report:#?}");
    // A symbol goes to the other section.
    refused(&|elf| {
        let other = elf.symbols()[elf.symbol("high")].section;
        elf.change_symbol("low", |s| s.section = other);
    });
}

#[test]
fn finding_12_two_code_sections_of_one_name() {
    let (_, before) = changed(SECTIONS, |elf| {
        elf.section("xdp/2").name = "xdp/1".into();
    });
    assert!(verify(&before, &before).is_equal());
    let refused = |change: &dyn Fn(&mut Elf)| {
        let mut elf = Elf::parse(&before);
        change(&mut elf);
        let report = verify(&before, &elf.bytes());
        assert!(!report.is_equal(), "{report:#?}");
    };
    refused(&|elf| elf.sections.iter_mut().rfind(|s| s.name == "xdp/1").unwrap().data[17] ^= 0x10);
    refused(&|elf| {
        let (low, high) = (elf.symbol("low"), elf.symbol("high"));
        elf.change_reloc(".relxdp/1", 0, |r| r.symbol = high);
        elf.change_reloc(".relxdp/2", 0, |r| r.symbol = low);
    });
    refused(&|elf| {
        elf.change_symbol("reads_low", |s| s.name = "x".into());
        elf.change_symbol("reads_high", |s| s.name = "reads_low".into());
        elf.change_symbol("x", |s| s.name = "reads_high".into());
    });
}

#[test]
fn verdicts_of_functions_are_still_there() {
    let report = verify(&fixture(TWINS), &fixture(TWINS));
    let names: Vec<&str> = report.functions.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["twin", "twin", "calls_twin", "uses_a", "uses_b"]);
    assert!(report.functions.iter().all(|(_, v)| *v == FunctionVerdict::Equal));
}

/// Whether the verifier comes to the read of `tstamp_type` decides how `tstamp` is read; the loader finds it by its name.
#[test]
fn a_field_by_which_others_are_translated_is_found_by_its_name() {
    let [a, b] = ["visited.o", "unvisited.o"].map(fixture);
    let options = Options { kernel: false, time_limit: Duration::from_secs(5), ..Options::default() };
    let report = bpf_driver::verify(&a, &b, &options).expect("both can be read");
    let reads = report.functions.iter().find(|(name, _)| name == "reads").expect("it is compared");
    assert!(matches!(reads.1, FunctionVerdict::Unknown { .. }), "{report:#?}");
    let (_, report) = bpf_driver::optimize(&a, &options, &Silent).expect("it can be read");
    assert!(report.functions.iter().all(|f| f.slots_after == f.slots_before), "{report:#?}");
}

/// `bpftool gen object` puts data where its alignment allows, and takes the strong one of two variables.
#[test]
fn what_a_linker_may_change_is_not_relied_on() {
    let options = Options { time_limit: Duration::from_secs(5), ..Options::default() };
    let (_, report) = bpf_driver::optimize(&fixture("linked.o"), &options, &Silent).expect("it can be read");
    let [stores, clears] =
        ["stores", "clears"].map(|n| report.functions.iter().find(|f| f.name == n).expect("it is there"));
    // That the one before it has shrunk is no change of the one that is left alone.
    assert!(stores.slots_after < stores.slots_before, "{report:#?}");
    let words = stores.listing_after.iter().filter(|line| line.contains("*(u32 *)(r2")).count();
    assert_eq!(words, 2, "its two words are no double word: {:#?}", stores.listing_after);
    assert!(clears.untouched.as_ref().is_some_and(|why| why.contains("linker")), "{report:#?}");
}

/// A variable without a size stands in a section that is empty, and is where it was.
#[test]
fn variables_in_an_empty_section_are_compared_by_its_name() {
    let object = fixture("empty_section.o");
    let report = verify(&object, &object);
    assert!(report.is_equal(), "{report:#?}");
    different("empty_section.o", &["nothing", ".bss"], |elf| elf.change_symbol("nothing", |s| s.value = 8));
}
