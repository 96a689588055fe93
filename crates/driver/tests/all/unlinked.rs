//! Objects that are to be linked to others: what counts for a program as a whole may be in another one.

use std::time::Duration;

use bpf_driver::{Options, Silent, optimize, verify};

const PROGRAM: &[u8] = include_bytes!("../fixtures/unlinked.o");
const OTHERWISE: &[u8] = include_bytes!("../fixtures/unlinked_otherwise.o");
const LIBRARY: &[u8] = include_bytes!("../fixtures/library.o");

fn options() -> Options {
    let time_limit = Duration::from_secs(5);
    Options { kernel: false, run_check: false, search: false, time_limit, ..Options::default() }
}

#[test]
fn a_function_of_another_object_may_read_what_changes_the_translation_of_a_field() {
    for (a, b) in [(PROGRAM, OTHERWISE), (OTHERWISE, PROGRAM)] {
        let report = verify(a, b, &options()).expect("both are objects");
        assert!(!report.is_equal(), "{report:?}");
    }
    assert!(verify(PROGRAM, PROGRAM, &options()).expect("it is an object").is_equal());
}

#[test]
fn functions_that_are_to_be_linked_to_a_program_keep_what_counts_for_it() {
    let (_, report) = optimize(LIBRARY, &options(), &Silent).expect("it is an object");
    let saved = |name: &str| {
        let f = report.functions.iter().find(|f| f.name == name).expect("it is there");
        f.slots_before - f.slots_after
    };
    assert_eq!((saved("reads_the_type"), saved("writes_the_packet")), (0, 0));
    assert!(saved("does_neither") > 0);
}
