//! What `verify` says where two objects do the same, and the kernel takes only the first.

use std::path::Path;
use std::time::Duration;

use bpf_driver::{Options, verify};
use bpf_kernel::testing::permitted;
use bpf_testgen::case::Case;

/// Both objects of a case of `tests/equivalence`.
fn objects(name: &str) -> [Vec<u8>; 2] {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/equivalence").join(name);
    let case = Case::parse(&std::fs::read_to_string(file).expect("the case is there")).expect("a case");
    [case.old_object().expect("it assembles"), case.new_object().expect("it assembles").expect("a pair")]
}

fn options() -> Options {
    Options { time_limit: Duration::from_secs(60), ..Options::default() }
}

#[test]
fn an_equal_object_that_the_kernel_refuses_is_no_replacement() {
    if !permitted() {
        return;
    }
    for name in ["endless-loop-where-nobody-comes", "pointer-multiplied", "uninitialized-register-read"] {
        let [a, b] = objects(&format!("redteam-c/{name}.bpf"));
        let report = verify(&a, &b, &options()).expect("both are objects");
        assert!(report.functions.iter().all(|(_, v)| *v == bpf_driver::FunctionVerdict::Equal), "{name}: {report:?}");
        assert_eq!(report.refused.len(), 1, "{name}: {report:?}");
        assert!(!report.refused[0].reason.is_empty(), "{name}: {report:?}");
        assert!(report.is_different() && !report.is_equal(), "{name}: {report:?}");
        // What the kernel refuses of both is no matter of the change, and what it takes of the second is none at all.
        for (first, second) in [(&b, &b), (&b, &a), (&a, &a)] {
            let report = verify(first, second, &options()).expect("both are objects");
            assert_eq!(report.refused, [], "{name}");
        }
    }
}

/// Words of the verifier that excuse a program elsewhere are no excuse where it has taken the one before.
#[test]
fn an_equal_object_that_the_kernel_cannot_be_asked_about_is_unknown() {
    if !permitted() {
        return;
    }
    for name in [
        "test-of-a-null-that-the-verifier-does-not-see-beside-a-long-array",
        "packet-store-where-paths-join-behind-an-element-of-a-long-array",
        "pointer-hidden-from-the-verifier-that-is-passed-to-a-function-of-a-telling-name",
    ] {
        let [a, b] = objects(&format!("redteam-ee/{name}.bpf"));
        let report = verify(&a, &b, &options()).expect("both are objects");
        assert!(!report.is_equal() && !report.is_different() && !report.unknowns.is_empty(), "{name}: {report:?}");
        let report = verify(&a, &a, &options()).expect("both are objects");
        assert!(report.is_equal(), "{name}: {report:?}");
    }
}

/// An object in which everything of this name has another one, of the same length.
fn renamed(mut bytes: Vec<u8>, from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let name = format!("{from}\0");
    let places: Vec<usize> = (0..bytes.len()).filter(|&i| bytes[i..].starts_with(name.as_bytes())).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|&i| bytes[i..i + to.len()].copy_from_slice(to.as_bytes()));
    bytes
}

/// Static variables of several units that are linked: one of the name bounds a loop, and has to be known.
#[test]
fn variables_that_share_their_name_are_told_apart() {
    if !permitted() {
        return;
    }
    const CFG: &str = "; data: cfg .rodata 4 03000000\n";
    const BOUND: &str = "; data: cfh .rodata 4 04000000\n";
    let code = |more: &str| {
        format!(
            "    r2 = cfh ll\n    r2 = *(u32 *)(r2 + 0)\n    r6 = 0\nturn:\n    r6 += 1\n    if r6 < r2 goto turn\n    \
             r1 = cfg ll\n    r1 = *(u32 *)(r1 + 0)\n    r0 = 0\n    if r1 != 7 goto out\n{more}    r0 = 7\nout:\n    exit\n"
        )
    };
    for data in [[CFG, BOUND], [BOUND, CFG]] {
        for (more, is_refused) in [("    r5 = r8\n", true), ("    r5 = 1\n", false)] {
            let objects = pair(&format!("; section: tc\n{}", data.concat()), &code(""), &code(more));
            let [a, b] = objects.map(|bytes| renamed(bytes, "cfh", "cfg"));
            let report = verify(&a, &b, &options()).expect("both are objects");
            assert_eq!((report.refused.len(), report.is_equal()), (usize::from(is_refused), !is_refused), "{report:?}");
        }
    }
}

/// Static functions of several units that are linked: the kernel notes something of one of them.
#[test]
fn functions_that_share_their_name_are_told_apart() {
    if !permitted() {
        return;
    }
    let code = |first: &str, second: &str| {
        format!(
            "    r6 = r1\n    r7 = r1\n    r7 = -r7\n    r7 = -r7\n    r1 = {first}\n    call fa\n    r8 = r0\n    r1 = {second}\n    \
             call fb\n    r0 += r8\n    exit\nstatic fa(ctx) u64:\n    r0 = 3\n    exit\nstatic fb(ctx) u64:\n    r0 = 4\n    exit\n"
        )
    };
    for name in ["fb", "fa"] {
        let objects = pair("; section: tc\n", &code("r6", "r7"), &code("r7", "r6"));
        let [a, b] = objects.map(|bytes| renamed(bytes, "fb", name));
        assert!(!verify(&a, &b, &options()).expect("both are objects").is_equal(), "{name}");
        let report = verify(&a, &a, &options()).expect("both are objects");
        assert!(report.is_equal(), "{name}: {report:?}");
    }
}

/// The kernel is asked about programs by section and name.
#[test]
fn programs_that_share_section_and_name_are_unknown() {
    if !permitted() {
        return;
    }
    let case = |more: &str| {
        let text = format!(
            "; A.\n; section: xdp\n; expect: equal\nbefore:\n    r0 = 2\n    exit\nprogram mair xdp:\n    r0 = 2\n    exit\n\
             after:\n    r0 = 2\n    exit\nprogram mair xdp:\n{more}    r0 = 2\n    exit\n"
        );
        let case = Case::parse(&text).expect("a case");
        [case.old_object().expect("it assembles"), case.new_object().expect("it assembles").expect("a pair")]
    };
    let [a, b] = case("    r5 = r3\n");
    assert_eq!(verify(&a, &b, &options()).expect("both are objects").refused.len(), 1);
    let [a, b] = [a, b].map(|bytes| renamed(bytes, "mair", "main"));
    for (first, second) in [(&a, &b), (&a, &a)] {
        let report = verify(first, second, &options()).expect("both are objects");
        assert!(!report.is_equal() && !report.is_different() && !report.unknowns.is_empty(), "{report:?}");
    }
}

/// What the verifier never sees as the objects are, because it knows their read-only data.
#[test]
fn an_equal_object_that_the_kernel_refuses_with_other_read_only_data_is_no_replacement() {
    if !permitted() {
        return;
    }
    let code = |more: &str| {
        format!(
            "    r1 = limit ll\n    r1 = *(u32 *)(r1 + 0)\n    r0 = 0\n    if r1 == 0 goto out\n{more}    r0 = 7\nout:\n    exit\n"
        )
    };
    let case = |more: &str| {
        let head = "; A case.\n; section: socket\n; data: limit .rodata 4 00000000\n; expect: equal\n";
        let case = Case::parse(&format!("{head}before:\n{}after:\n{}", code(""), code(more))).expect("a case");
        [case.old_object().expect("it assembles"), case.new_object().expect("it assembles").expect("a pair")]
    };
    const NEVER_SET: &str = "    r5 = r3\n";
    for (more, is_refused) in [(NEVER_SET, true), ("    r5 = 1\n", false)] {
        let [a, b] = case(more);
        let report = verify(&a, &b, &options()).expect("both are objects");
        assert_eq!(report.refused.len(), usize::from(is_refused), "{report:?}");
        assert!(report.refused.iter().all(|r| r.reason.contains("read-only data")), "{report:?}");
        assert_eq!(report.is_equal(), !is_refused, "{report:?}");
        // A first object that is refused with other data says nothing of the second.
        let report = verify(&b, &a, &options()).expect("both are objects");
        assert_eq!(report.refused, []);
    }
}

/// The two objects of a case with such a head and these two bodies.
fn pair(head: &str, before: &str, after: &str) -> [Vec<u8>; 2] {
    let case =
        Case::parse(&format!("; A case.\n{head}; expect: equal\nbefore:\n{before}after:\n{after}")).expect("a case");
    [case.old_object().expect("it assembles"), case.new_object().expect("it assembles").expect("a pair")]
}

/// What has to be known of the data, a text that a helper wants to be frozen or a number that bounds a loop, does not keep
/// the kernel from being asked about the rest.
#[test]
fn only_those_read_only_data_are_taken_for_known_that_have_to_be() {
    if !permitted() {
        return;
    }
    const CFG: &str = "; section: tc\n; data: cfg .rodata 4 03000000\n";
    const TEXT: &str = "; data: fmt .rodata 4 25640000\n";
    const BOUND: &str = "; data: turns .rodata 8 0400000000000000\n";
    const PRINT: &str = "    *(u64 *)(r10 - 24) = 5\n    r1 = r10\n    r1 += -32\n    r2 = 8\n    r3 = fmt ll\n    r4 = r10\n    \
                         r4 += -24\n    r5 = 8\n    call bpf_snprintf\n";
    const COUNT: &str = "    r2 = turns ll\n    r2 = *(u64 *)(r2 + 0)\n    r6 = 0\nturn:\n    r6 += 1\n    \
                         if r6 < r2 goto turn\n";
    let strict = CFG.replace(".rodata", ".rodata.strict");
    let rest = |more: &str| {
        format!(
            "    r1 = cfg ll\n    r1 = *(u32 *)(r1 + 0)\n    r0 = 0\n    if r1 != 7 goto out\n{more}    r0 = 7\nout:\n    exit\n"
        )
    };
    // How the second gets at the number: by its own address, and by that of the text before it.
    const BESIDE: &str = "    r1 = fmt ll\n    r1 = *(u32 *)(r1 + 4)\n    r0 = 0\n    if r1 != 7 goto out\n    r5 = r8\n    r0 = 7\nout:\n    exit\n";
    for (head, begin) in [
        (CFG.to_owned(), ""),
        (strict, ""),
        (format!("{CFG}{TEXT}"), PRINT),
        (format!("{TEXT}{CFG}"), PRINT),
        (format!("{CFG}{BOUND}"), COUNT),
        (format!("{BOUND}{TEXT}{CFG}"), &*format!("{COUNT}{PRINT}")),
    ] {
        for (more, is_refused) in [("    r5 = r8\n", true), ("    r5 = 1\n", false)] {
            let [a, b] = pair(&head, &format!("{begin}{}", rest("")), &format!("{begin}{}", rest(more)));
            let report = verify(&a, &b, &options()).expect("both are objects");
            let told = report.refused.iter().filter(|r| r.reason.contains("read-only data")).count();
            assert_eq!((told, report.is_equal()), (usize::from(is_refused), !is_refused), "{head}{begin}{report:?}");
        }
    }
    let [a, b] = pair(&format!("{TEXT}{CFG}"), &format!("{PRINT}{}", rest("")), &format!("{PRINT}{BESIDE}"));
    let report = verify(&a, &b, &options()).expect("both are objects");
    assert!(!report.is_equal(), "{report:?}");
}

/// An original that the kernel takes as it stands, and that it cannot be asked about with other data.
#[test]
fn an_object_that_cannot_be_asked_about_with_other_read_only_data_is_unknown() {
    if !permitted() {
        return;
    }
    let head = "; section: tc\n; map: table percpu_array 4 8 200000\n; data: cfg .rodata 4 03000000\n";
    let code = |more: &str| {
        format!(
            "    *(u32 *)(r10 - 4) = 90000\n    r1 = cfg ll\n    r1 = *(u32 *)(r1 + 0)\n    if r1 != 7 goto none\n{more}    \
             r2 = r10\n    r2 += -4\n    r1 = table ll\n    call bpf_map_lookup_elem\n    r0 = *(u64 *)(r0 + 0)\n    exit\n\
             none:\n    r0 = 0\n    exit\n"
        )
    };
    let [a, b] = pair(head, &code(""), &code("    r5 = 1\n"));
    let report = verify(&a, &b, &options()).expect("both are objects");
    assert!(!report.is_equal() && !report.is_different() && !report.unknowns.is_empty(), "{report:?}");
    let chosen = Options { search: false, ..options() };
    let (_, report) = bpf_driver::optimize(&a, &chosen, &bpf_driver::Silent).expect("an object");
    assert!(report.functions.iter().all(|f| f.slots_before == f.slots_after), "{report:?}");
}

#[test]
fn programs_are_asked_about_that_hold_the_functions_which_are_named() {
    if !permitted() {
        return;
    }
    let code = |more: &str| {
        format!("    call f\n    exit\nstatic f(u64) u64:\n    r0 = *(u32 *)(r1 + 0)\n{more}    r0 &= 7\n    exit\n")
    };
    let [a, b] = pair("; section: socket\n", &code(""), &code("    r5 = r8\n"));
    for named in ["f", "main"] {
        let chosen = Options { programs: vec![named.into()], ..options() };
        let report = verify(&a, &b, &chosen).expect("both are objects");
        assert!(report.refused.len() == 1 && !report.is_equal(), "{named}: {report:?}");
    }
}

#[test]
fn a_kernel_that_is_not_to_be_asked_refuses_nothing() {
    let [a, b] = objects("redteam-c/uninitialized-register-read.bpf");
    for options in [Options { kernel: false, ..options() }, Options { run_check: false, ..options() }] {
        let report = verify(&a, &b, &options).expect("both are objects");
        assert!(report.refused.is_empty() && report.is_equal(), "{report:?}");
    }
}

/// Whether the verifier comes to a store to the packet hangs on what it knows; no proof sees that, but the kernel tells.
#[test]
fn a_program_for_which_the_kernel_unshares_the_packet_is_none_for_which_it_does_not() {
    if !permitted() {
        return;
    }
    for name in [
        "open-argument-of-a-storer-to-the-packet-becomes-a-constant-one",
        "constant-argument-of-a-storer-to-the-packet-becomes-an-open-one",
        "read-only-switch-around-a-packet-store-is-hidden",
        "read-only-switch-around-a-packet-store-is-shown",
    ] {
        let [a, b] = objects(&format!("redteam-i/{name}.bpf"));
        let report = verify(&a, &b, &options()).expect("both are objects");
        assert!(report.refused.len() == 1 && !report.is_equal(), "{name}: {report:?}");
        let report = verify(&a, &a, &options()).expect("both are objects");
        assert!(report.is_equal(), "{name}: {report:?}");
    }
}

/// Neither a program that begins like the kernel's own code, nor other code of the kernel's before that, hides it.
#[test]
fn whether_the_kernel_unshares_the_packet_is_told_by_all_of_its_code_for_that() {
    if !permitted() {
        return;
    }
    for name in [
        "packet-store-that-is-seen-in-a-program-that-begins-as-if-it-unshared-the-packet",
        "packet-store-that-is-seen-in-a-program-that-counts-its-turns",
        "packet-store-that-is-no-longer-seen-in-a-program-that-counts-its-turns",
    ] {
        let [a, b] = objects(&format!("redteam-hh/{name}.bpf"));
        let report = verify(&a, &b, &options()).expect("both are objects");
        assert!(report.refused.len() == 1 && !report.is_equal(), "{name}: {report:?}");
    }
}

/// What is noted of functions is noted of these and no others.
#[test]
fn notes_that_change_places_are_told() {
    if !permitted() {
        return;
    }
    for name in [
        "functions-that-are-shown-the-context-change-places",
        "three-functions-of-which-another-is-shown-the-context",
        "two-of-three-functions-are-shown-the-context-others-then",
    ] {
        let [a, b] = objects(&format!("redteam-hh/{name}.bpf"));
        let report = verify(&a, &b, &options()).expect("both are objects");
        assert!(report.refused.iter().any(|r| r.reason.contains("of its functions")), "{name}: {report:?}");
    }
}

/// The same for what else the kernel notes of a program.
#[test]
fn a_program_of_which_the_kernel_notes_otherwise_is_no_replacement() {
    if !permitted() {
        return;
    }
    for (name, note) in [
        ("redteam-r/read-only-switch-around-a-read-of-cb-is-hidden", "cb_access"),
        ("redteam-r/read-only-switch-around-a-route-realm-is-hidden", "dst_needed"),
        ("redteam-r/read-only-switch-around-a-tail-call-is-hidden", "cb_access"),
        ("redteam-s/number-that-is-the-address-is-passed-as-the-address", "of its functions"),
    ] {
        let [a, b] = objects(&format!("{name}.bpf"));
        for [a, b] in [[&a, &b], [&b, &a]] {
            let report = verify(a, b, &options()).expect("both are objects");
            let told = report.refused.first().is_some_and(|r| r.reason.contains(note));
            assert!(told && !report.is_equal(), "{name}: {report:?}");
            let report = verify(a, a, &options()).expect("both are objects");
            assert!(report.is_equal(), "{name}: {report:?}");
        }
    }
}

/// Looks up an element of a map.
fn look_up(map: &str, key: u32) -> String {
    format!(
        "    *(u32 *)(r10 - 8) = {key}\n    r2 = r10\n    r2 += -8\n    r1 = {map} ll\n    call bpf_map_lookup_elem\n"
    )
}

/// The rest of a program that reads the element just looked up if it is there, with this before the test.
fn read_if_there(hidden: &str) -> String {
    format!(
        "    r6 = r0\n{hidden}    if r0 == 0 goto out\n    r0 = *(u64 *)(r6 + 0)\n    r0 &= 1\n    exit\nout:\n    r0 = 0\n    exit\n"
    )
}

/// That an element is there the verifier knows of arrays that are long enough. The first needs that of element 2, without
/// which it does not load, and not of element 5.
#[test]
fn an_equal_object_is_asked_about_with_the_shortest_arrays_with_which_the_first_loads() {
    if !permitted() {
        return;
    }
    let head = "; section: tc\n; map: m array 4 8 8\n; map: other array 4 8 1\n";
    let begin = look_up("m", 2) + "    r7 = *(u64 *)(r0 + 0)\n";
    for (key, is_refused) in [(2, false), (3, true), (5, true)] {
        let [plain, hidden] = ["", "    r0 = -r0\n    r0 = -r0\n"]
            .map(|hidden| begin.clone() + &look_up("m", key) + &read_if_there(hidden));
        let [a, b] = pair(head, &plain, &hidden);
        let report = verify(&a, &b, &options()).expect("both are objects");
        let told = report.refused.iter().filter(|r| r.reason.contains("other lengths")).count();
        assert_eq!((told, report.is_equal()), (usize::from(is_refused), !is_refused), "{key}: {report:?}");
        // What shows more than the first is no worse.
        let report = verify(&b, &a, &options()).expect("both are objects");
        assert!(report.is_equal(), "{key}: {report:?}");
    }
}

/// It loads if one of two arrays has the element 3, whichever.
#[test]
fn an_object_of_which_no_arrays_are_the_shortest_is_unknown() {
    if !permitted() {
        return;
    }
    let body = |add: &str| {
        let out = "    r7 = *(u64 *)(r0 + 0)\nout:\n    r0 = 0\n    exit\n";
        look_up("m", 3) + add + "    if r0 != 0 goto out\n" + &look_up("n", 3) + out
    };
    for [m, n] in [[8, 8], [8, 1], [1, 1]] {
        let head = format!("; section: tc\n; map: m array 4 8 {m}\n; map: n array 4 8 {n}\n");
        let [a, b] = pair(&head, &body(""), &body("    r8 = 1\n"));
        let report = verify(&a, &b, &options()).expect("both are objects");
        assert!(!report.is_equal() && !report.is_different(), "{m} {n}: {report:?}");
        let is_told = report.unknowns.iter().any(|u| u.contains("none are the shortest"));
        // In the others the proof does not go through, or the first does not load.
        assert!(is_told || [m, n] != [8, 8], "{m} {n}: {report:?}");
    }
}

/// Two thousand million pointers take 16 GB, which the kernel would make.
#[test]
fn a_table_for_which_no_machine_has_room_is_not_made() {
    if !permitted() {
        return;
    }
    let head = "; section: tc\n; map: p prog_array 4 4 2147483647\n";
    let body = |more: &str| format!("    r2 = p ll\n    r3 = 5\n    call bpf_tail_call\n    r0 = 0\n{more}    exit\n");
    let [a, b] = pair(head, &body("    r0 += 0\n"), &body(""));
    let report = verify(&a, &b, &options()).expect("both are objects");
    assert!(report.is_equal(), "{report:?}");
    assert!(report.runs.not_in_kernel.iter().any(|p| p.reason.contains("make its maps")), "{report:?}");
}
