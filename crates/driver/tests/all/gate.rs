//! What the kernel took of the original it takes of the result, however a program is named and whatever it consists of.
//!
//! The objects (`fixtures`) have programs of which the verifier sees from the code as compiled that the result is in range,
//! and does not from the shorter code that the passes make of it; so the gate has to take changes back.

use std::time::Duration;

use bpf_driver::{FunctionReport, KernelVerdict, Options, Report, Silent, optimize, verify};
use bpf_kernel::testing::permitted;
use bpf_kernel::{LoadOptions, Loader, ObjectVerdict, load_object};
use bpf_object::Object;
use bpf_testgen::case::Case;
use bpf_testgen::shapes::{Shape, generate};

const ENTRIES: &[u8] = include_bytes!("../fixtures/entries.o");
const EXCEPTION: &[u8] = include_bytes!("../fixtures/exception.o");
const LOADERS: &[u8] = include_bytes!("../fixtures/loaders.o");
const LARGE: &[u8] = include_bytes!("../fixtures/large.o");

fn options() -> Options {
    Options { time_limit: Duration::from_secs(20), ..Options::default() }
}

fn judged(bytes: &[u8]) -> ObjectVerdict {
    let mut loader = Loader::new(LoadOptions::default()).expect("the kernel can be asked");
    loader.judge(bytes, |_, _| true, None).expect("it answers")
}

/// Optimizes an object of which the kernel takes these programs (by name), as it has to take them of the result.
#[track_caller]
fn optimized(object: &[u8], programs: &[&str]) -> Report {
    let (result, report) = optimize(object, &options(), &Silent).expect("an object");
    for bytes in [object, &result] {
        let verdict = judged(bytes);
        let mut names: Vec<&str> = verdict.programs.iter().map(|p| p.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, programs, "{:?}", verdict.not_loadable);
        assert!(verdict.is_accepted(), "{verdict:#?}\n{report:#?}");
    }
    report
}

fn function<'r>(report: &'r Report, name: &str) -> &'r FunctionReport {
    report.functions.iter().find(|f| f.name == name).expect("it is there")
}

#[test]
fn programs_are_judged_by_whatever_name_libbpf_knows_them() {
    if !permitted() {
        return;
    }
    let report = optimized(ENTRIES, &["another_name", "of_this_file", "one_name", "switched_off"]);
    assert!(
        report.dropped > 0 && report.gate.starts_with("each program accepted"),
        "the kernel no longer minds: {report:#?}"
    );
    assert!(!report.gate.contains("not judged"), "{}", report.gate);
    for name in ["switched_off", "of_this_file", "one_name"] {
        let f = function(&report, name);
        let after = f.kernel_after.as_ref().expect("it was judged");
        assert!(after.accepted && f.slots_after == 8, "{f:#?}");
    }
}

#[test]
fn an_exception_callback_is_judged_as_part_of_its_program() {
    if !permitted() {
        return;
    }
    let report = optimized(EXCEPTION, &["bystander", "thrower"]);
    assert!(report.dropped > 0, "the kernel no longer minds: {report:#?}");
}

/// The object with another number in the first instruction of the callback, which changes what `thrower` may return.
fn with_another_callback() -> Vec<u8> {
    let object = Object::parse(EXCEPTION.to_vec()).expect("a committed object");
    let code = object.code(object.function_named("caught").expect("it is there")).to_vec();
    let mut bytes = EXCEPTION.to_vec();
    let at = bytes.windows(code.len()).position(|w| w == code).expect("the code is in the file");
    assert_eq!(bytes[at..at + 8], [0x57, 1, 0, 0, 7, 0, 0, 0]);
    bytes[at + 4] = 3;

    bytes[at + 8..at + 16].copy_from_slice(&[0x07, 1, 0, 0, 1, 0, 0, 0]);
    bytes
}

#[test]
fn a_program_with_another_exception_callback_is_another_program() {
    let other = with_another_callback();
    for program in ["thrower", "bystander"] {
        let options = Options { programs: vec![program.to_owned()], ..options() };
        let report = verify(EXCEPTION, &other, &options).expect("both are objects");
        assert_eq!(report.is_equal(), program == "bystander", "{program}: {report:#?}");
    }
}

#[test]
fn programs_with_maps_of_other_loaders_are_judged() {
    if !permitted() {
        return;
    }
    let (result, report) = optimize(LOADERS, &options(), &Silent).expect("an object");
    assert!(report.dropped > 0, "the kernel no longer minds: {report:#?}");
    let verdict = judged(&result);
    for name in ["with_numbers", "completed", "not_known"] {
        let of = |k: &Option<KernelVerdict>| k.as_ref().is_some_and(|k| k.accepted);
        let f = function(&report, name);
        assert!(of(&f.kernel_before) && of(&f.kernel_after), "{f:#?}");
        assert!(verdict.program(name).is_some_and(|p| p.verdict.is_accepted()), "{verdict:#?}");
    }
    let runs = report.run_check.expect("it was asked for");
    let run: Vec<&str> = runs.programs.iter().filter(|p| p.inputs > 0).map(|p| p.name.as_str()).collect();
    assert!(runs.status == "no difference" && run.contains(&"with_numbers"), "{runs:#?}");
}

#[test]
fn programs_that_are_not_judged_have_a_reason() {
    if !permitted() {
        return;
    }
    // How long the values are that it stores, its loader knows; it is handed 8 bytes and reads what is behind them.
    let text = "; A.\n; section: xdp\n; map: unknown hash 4 0 16\n; expect: equal\nbefore:\n    r1 = 0\n    \
                *(u64 *)(r10 - 8) = r1\n    r1 = unknown ll\n    r2 = r10\n    r2 += -4\n    r3 = r10\n    r3 += -8\n    \
                r4 = 0\n    call bpf_map_update_elem\n    r1 = unknown ll\n    r2 = r10\n    r2 += -4\n    \
                call bpf_map_lookup_elem\n    if r0 == 0 goto out\n    r1 = 1\n    r1 += 1\n    r0 = *(u8 *)(r0 + 8)\nout:\n    \
                r0 = 0\n    exit\nafter:\n    r0 = 0\n    exit\n";
    let object = Case::parse(text).expect("a case").old_object().expect("it assembles");
    let (result, report) = optimize(&object, &options(), &Silent).expect("an object");
    let reason = "map unknown cannot be created: its definition does not say how long its values are";
    assert!(report.gate.contains(reason), "{}", report.gate);
    // With what its loader says it may load, so that it is no program about which only proofs speak.
    assert!(result == object, "{report:#?}");
}

#[test]
fn runs_do_not_wait_for_tables_of_full_length() {
    if !permitted() {
        return;
    }
    // Both tables would take longer than the tenth of the limit that runs may take.
    let (_, report) = optimize(LARGE, &options(), &Silent).expect("an object");
    let runs = report.run_check.expect("it was asked for");
    assert!(runs.status == "no difference" && runs.inputs > 0, "{runs:#?}");
    assert!(runs.milliseconds < 2000, "{runs:#?}");
}

/// The result and the report of a run without the kernel.
fn alone(object: &[u8]) -> (Vec<u8>, Report) {
    let options = Options { kernel: false, ..options() };
    optimize(object, &options, &Silent).expect("an object")
}

#[test]
fn without_the_kernel_check_judges_in_its_place() {
    for (object, programs) in [(ENTRIES, 3), (LOADERS, 3)] {
        let (result, report) = alone(object);
        assert!(report.unsafe_changes > 0 && report.dropped == 0, "check no longer minds: {report:#?}");
        let check = report.check.as_deref().expect("it was asked");
        assert!(check.starts_with(&format!("{programs} of {programs} program(s) ")), "{check}");
        if !permitted() {
            continue;
        }
        for (before, after) in judged(object).programs.iter().zip(&judged(&result).programs) {
            assert!(!before.verdict.is_accepted() || before.replaced_by(after), "{after:#?}\n{report:#?}");
        }
    }
}

/// The object with one text for another of the same length, wherever it stands.
fn with(object: &[u8], text: &str, other: &str) -> Vec<u8> {
    assert_eq!(text.len(), other.len());
    let mut bytes = object.to_vec();
    let places: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(text.as_bytes())).collect();
    assert!(!places.is_empty(), "no {text}");
    places.into_iter().for_each(|at| bytes[at..at + other.len()].copy_from_slice(other.as_bytes()));
    bytes
}

#[test]
fn beside_a_kernel_check_judges_what_the_kernel_does_not() {
    if !permitted() {
        return;
    }
    // A section that tells libbpf no type, but for other loaders begins with the name of one.
    let (typed, untyped) = ("cgroup_skb/ingress", "cgroup_skb/ingresz");
    let (result, report) = optimize(&with(ENTRIES, typed, untyped), &options(), &Silent).expect("an object");
    assert!(report.warnings.iter().any(|w| w.contains("could not be asked about switched_off")), "{report:#?}");
    let check = report.check.expect("it was asked");
    assert!(check.starts_with("1 of 1 program(s) that the kernel did not judge are safe as before"), "{check}");
    let verdict = judged(&with(&result, untyped, typed));
    assert!(verdict.is_accepted(), "{verdict:#?}");
    // Where the kernel judges all, check is not asked.
    let (_, report) = optimize(ENTRIES, &options(), &Silent).expect("an object");
    assert!(report.check.is_none() && report.unsafe_changes == 0, "{report:#?}");
}

#[test]
fn an_original_that_was_not_checked_in_time_stays_as_it_was_and_the_others_do_not() {
    let original = generate(Shape::EndlessLoops, 1, 2).expect("it assembles");
    // A million instructions take much longer.
    let options = Options { kernel: false, time_limit: Duration::from_millis(500), ..Options::default() };
    let (_, report) = optimize(&original.bytes, &options, &Silent).expect("an object");
    let f = function(&report, "endless_0");
    assert_eq!((f.untouched.as_deref(), f.slots_after), (Some("not judged: time"), f.slots_before));
    let check = report.check.as_deref().expect("it was asked");
    assert!(check.starts_with("3 of 5") && check.ends_with("not judged: time: endless_0, endless_1"), "{check}");
}

#[test]
fn what_check_refuses_of_the_original_it_does_not_judge() {
    // `r0 = 0`, of the first program, becomes `r0 = 2`.
    let mut bytes = ENTRIES.to_vec();
    let zero = [0xb7, 0, 0, 0, 0, 0, 0, 0];
    let at = bytes.windows(8).position(|w| w == zero).expect("it is there");
    bytes[at + 4] = 2;
    let (_, report) = alone(&bytes);
    let check = report.check.expect("it was asked");
    assert!(
        check.starts_with("2 of 3") && check.contains("the original is not safe: switched_off (At program exit"),
        "{check}"
    );
}

#[test]
fn a_result_that_reads_no_constants_is_held_against_what_was_asked_of_the_original() {
    if !permitted() {
        return;
    }
    // With hidden constants the original is asked about with arrays as they are; the result has no constants to hide, and
    // is asked about with long ones, too, for which the kernel makes other code of a lookup.
    let text = "; A.\n; section: tc\n; map: table array 4 8 1\n; data: cfg .rodata 4 03000000\n; keeps: exit\nbefore:\n    r7 = cfg ll\n    \
                r7 = *(u32 *)(r7 + 0)\n    *(u32 *)(r10 - 4) = 0\n    r2 = r10\n    r2 += -4\n    r1 = table ll\n    \
                call bpf_map_lookup_elem\n    if r0 == 0 goto out\n    r0 = *(u64 *)(r0 + 0)\n    exit\nout:\n    r0 = 0\n    \
                exit\n";
    let object = Case::parse(text).expect("a case").old_object().expect("it assembles");
    let (result, report) = optimize(&object, &options(), &Silent).expect("an object");
    assert_eq!((report.dropped, report.gate.as_str()), (0, "accepted"), "{report:#?}");
    let listing = &function(&report, "main").listing_after;
    assert!(!listing.iter().any(|line| line.contains("r7")), "{listing:#?}");
    assert!(verify(&object, &result, &options()).expect("both are objects").is_equal());
}

#[test]
fn a_test_for_an_element_goes_where_all_kernels_that_are_to_take_the_result_know_it() {
    let text = "; A.\n; section: socket\n; map: table array 4 8 1\n; keeps: exit\nbefore:\n    *(u32 *)(r10 - 4) = 0\n    \
                r2 = r10\n    r2 += -4\n    r1 = table ll\n    call bpf_map_lookup_elem\n    r6 = r0\n    \
                if r6 == 0 goto out\n    r0 = *(u64 *)(r6 + 0)\n    exit\nout:\n    r0 = 1\n    exit\n";
    let object = Case::parse(text).expect("a case").old_object().expect("it assembles");
    let tests = |version: &str| {
        let min_kernel = version.parse().expect("a version");
        let options = Options { ssa: true, min_kernel, kernel: permitted(), ..options() };
        let (result, report) = optimize(&object, &options, &Silent).expect("an object");
        assert!(verify(&object, &result, &options).expect("both are objects").is_equal());
        let f = function(&report, "main");
        assert!(f.kernel_after.as_ref().is_none_or(|k| k.accepted), "{f:#?}");
        f.listing_after.iter().filter(|line| line.contains("if r0 == 0x0")).count()
    };
    assert_eq!(["5.15", "6.13", "6.14", "7.0"].map(tests), [1, 1, 0, 0]);
}

#[test]
fn an_object_that_libbpf_refuses_as_a_whole_is_not_called_accepted() {
    if !permitted() {
        return;
    }
    let whole = |object: &[u8]| {
        let (result, report) = optimize(object, &options(), &Silent).expect("an object");
        let load = |bytes: &[u8]| load_object(bytes, &LoadOptions::default()).expect("the kernel can be asked");
        assert_eq!(load(object).not_loadable.is_some(), load(&result).not_loadable.is_some());
        assert_ne!(result, object, "nothing was changed");
        let told = report.loads_whole.clone().expect("it was asked");
        assert_eq!(told.accepted, load(&result).is_accepted());
        (report.gate, told.reason)
    };
    // Programs of two types share a program array: each of them loads, and never both.
    let (gate, reason) = whole(include_bytes!("../../../../examples/hooks.o"));
    assert!(gate.starts_with("each program accepted; libbpf refuses the object as a whole"), "{gate}");
    assert!(reason.is_some_and(|why| why.contains("on_skb")), "{gate}");
    let (gate, reason) = whole(include_bytes!("../../../../examples/globals.o"));
    assert_eq!((gate.as_str(), reason), ("accepted", None));
}
