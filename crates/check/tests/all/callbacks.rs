//! Callbacks run any number of times: what they change is not what it was before the helper.
//!
//! Raw programs with callbacks need BTF to be loaded, so the kernel is not asked here; `examples/*.o` have some it takes.

use bpf_check::{MapInfo, Program, Report, SafetyVerdict};
use bpf_isa::parse_listing;

fn check(text: &str) -> Report {
    let insns = parse_listing(text).expect("a listing");
    let map = MapInfo { kind: 2, key_size: 4, value_size: 16, max_entries: 1, ..MapInfo::default() };
    Report::of(&Program::of_insns(&insns, vec![map], 6, 37, true))
}

/// Sets fp-8 to 0, has `loop` call a function that adds `step` to it, and uses it as an index into a map value.
fn indexed(step: i32, guard: &str) -> Report {
    check(&format!(
        "  *(u64 *)(r10 - 8) = 0
           r1 = 100
           r2 = func[17] ll
           r3 = r10
           r3 += -8
           r4 = 0
           call 181
           r6 = *(u64 *)(r10 - 8)
           *(u32 *)(r10 - 12) = 0
           r2 = r10
           r2 += -12
           r1 = map_fd[0] ll
           call 1
           {guard}
           r0 += r6
           r0 = *(u8 *)(r0 + 0)
           r0 = 0
           exit
           r3 = *(u64 *)(r2 + 0)
           r3 += {step}
           *(u64 *)(r2 + 0) = r3
           r0 = 0
           exit"
    ))
}

#[test]
fn a_number_that_a_callback_changes_is_unknown_afterwards() {
    let report = indexed(1, "r6 += 0");
    assert_eq!(report.verdict, SafetyVerdict::Violation, "{report:?}");
    assert!(report.problem.is_some_and(|p| p.what.contains("R0") || p.what.contains("map value")));
}

#[test]
fn a_mask_makes_it_an_index_again() {
    let report = indexed(1, "r6 &= 15");
    assert_eq!(report.verdict, SafetyVerdict::Accepted, "{report:?}");
}

#[test]
fn a_number_that_a_callback_leaves_alone_stays_known() {
    let report = indexed(0, "r6 &= 15");
    assert_eq!(report.verdict, SafetyVerdict::Accepted, "{report:?}");
}

#[test]
fn callbacks_return_zero_or_one() {
    let report = check(
        "r1 = 4
         r2 = func[6] ll
         r3 = 0
         r4 = 0
         call 181
         r0 = 0
         exit
         r0 = 2
         exit",
    );
    assert_eq!(report.verdict, SafetyVerdict::Violation, "{report:?}");
    assert!(report.problem.is_some_and(|p| p.what.contains("callback return")));
}

#[test]
fn a_callback_that_never_matters_ends() {
    let report = check(
        "r1 = 1000000
         r2 = func[6] ll
         r3 = 0
         r4 = 0
         call 181
         r0 = 0
         exit
         r0 = 0
         exit",
    );
    assert_eq!(report.verdict, SafetyVerdict::Accepted, "{report:?}");
    assert!(report.effort.processed < 100, "{report:?}");
}

#[test]
fn a_callback_that_may_return_early_is_no_infinite_loop() {
    let report = check(
        "  r1 = *(u32 *)(r1 + 12)
           w2 = 0
           *(u32 *)(r10 - 4) = r2
           w1 &= 7
           *(u32 *)(r10 - 8) = r1
           r3 = r10
           r3 += -8
           w1 = 100
           r2 = func[8] ll
           r4 = 0
           call 181
           w0 = 2
           r1 = *(u32 *)(r10 - 4)
           if w1 > 5 goto +1
           w0 = 1
           exit
           r0 = 1
           r3 = *(u32 *)(r2 + 0)
           if w3 < w1 goto +4
           r3 = *(u32 *)(r2 + 4)
           w3 += w1
           *(u32 *)(r2 + 4) = r3
           r0 = 0
           exit",
    );
    assert_eq!(report.verdict, SafetyVerdict::Accepted, "{report:?}");
}
