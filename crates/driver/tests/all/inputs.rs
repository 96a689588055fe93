//! Inputs that reach every block: found by the solver, gone by the interpreter, and by the kernel.

use std::time::Duration;

use bpf_driver::inputs::{Comparison, InputsReport, Reach, Settings, inputs};
use bpf_testgen::case::Case;

/// What is found for an XDP program with a hash `m` of four bytes to eight, and a constant `mode` of four.
fn found(code: &str, kernel: bool) -> InputsReport {
    let text = format!(
        "; Is every block reached?\n; section: xdp\n; map: m hash 4 8 16\n; data: mode .rodata 4 00\n; expect: equal\n\nbefore:\n{code}\nafter:\n{code}"
    );
    let case = Case::parse(&text).unwrap_or_else(|e| panic!("{e}"));
    let object = case.old_object().unwrap_or_else(|e| panic!("{e}"));
    let settings = Settings { only: vec![], program_type: None, time_limit: Duration::from_secs(20), seed: 1, kernel };
    inputs(&object, &settings, &mut |_, _| {}).unwrap_or_else(|e| panic!("{e}"))
}

/// Four bytes of the packet are a number that no made packet has, and the key of an element with a number of its own.
const DEEP: &str = "
    r2 = *(u32 *)(r1 + 4)
    r1 = *(u32 *)(r1 + 0)
    r0 = 2
    r3 = r1
    r3 += 64
    if r3 > r2 goto L1
    r3 = *(u32 *)(r1 + 40)
    r3 ^= 0x5eed1234
    if r3 != 0x1337beef goto L1
    r3 = *(u32 *)(r1 + 44)
    *(u32 *)(r10 - 4) = r3
    r2 = r10
    r2 += -4
    r1 = m ll
    call bpf_map_lookup_elem
    if r0 == 0 goto L2
    r1 = *(u64 *)(r0 + 0)
    r0 = 1
    if r1 != 0x77777 goto L1
    r0 = 3
    goto L1
L2:
    r0 = 0
L1:
    exit
";

#[test]
fn a_number_in_the_packet_and_an_element_of_a_map_are_found() {
    let found = found(DEEP, false);
    let [blocks, _, interpreter] = found.totals();
    assert_eq!((interpreter, found.functions[0].unreached), (blocks, 0), "{:#?}", found.functions);
    assert!(found.programs[0].inputs.iter().all(|i| !i.made_up));
    assert!(found.programs[0].inputs.iter().any(|i| i.maps.contains_key("m")));
}

#[test]
fn the_kernel_goes_the_same_ways() {
    if !bpf_kernel::testing::permitted() {
        return;
    }
    let found = bpf_kernel::in_private_network(|| found(DEEP, true)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(found.totals()[1], found.totals()[0], "{:#?}", found.functions);
    assert!(found.programs[0].inputs.iter().all(|i| i.kernel == Some(Comparison::Same)));
}

/// What is found where these instructions bring a number to r1 that decides which way the program goes.
fn found_behind(number: &str) -> InputsReport {
    let code = format!("{number}\nr0 = 2\nif r1 != 0x12345678 goto L1\nr0 = 1\nL1:\nexit\n");
    found(&code, false)
}

/// What a clock or a random number decides is reached in the interpreter alone.
#[test]
fn what_a_helper_returns_by_chance_is_made_up() {
    let found = found_behind("call bpf_get_prandom_u32\nr1 = r0");
    assert_eq!(found.functions[0].unreached, 0);
    assert!(found.programs[0].inputs.iter().any(|i| i.made_up && i.calls.get(&0).is_some_and(|v| v == "305419896")));
}

/// What a constant decides that is the loader's to set is reached in the interpreter alone.
#[test]
fn constants_of_the_loader_are_made_up() {
    let found = found_behind("r1 = mode ll\nr1 = *(u32 *)(r1 + 0)");
    assert_eq!(found.functions[0].unreached, 0, "{:#?}", found.functions);
    let by_loader = found.programs[0].inputs.iter().find(|i| !i.data.is_empty()).expect("an input");
    assert!(by_loader.made_up && by_loader.data[".rodata"].len() == 4, "{by_loader:#?}");
}

/// No input goes where conditions contradict each other, and it says so.
#[test]
fn what_no_input_reaches_is_not_claimed() {
    let code = "
    r2 = *(u32 *)(r1 + 4)
    r1 = *(u32 *)(r1 + 0)
    r0 = 2
    r3 = r1
    r3 += 15
    if r3 > r2 goto L1
    r3 = *(u8 *)(r1 + 14)
    r4 = r3
    r4 *= r4
    r4 &= 3
    if r4 != 2 goto L1
    r0 = 1
L1:
    exit
";
    let found = found(code, false);
    let open: Vec<_> = found.functions[0].blocks.iter().filter(|b| b.reached == Reach::No).collect();
    assert_eq!(open.len(), 1, "no square is 2 modulo 4: {open:#?}");
    assert!(open[0].reason.as_deref().is_some_and(|r| r.contains("no") && r.contains("paths")), "{open:#?}");
}
