//! Programs of objects that leave their maps to loaders other than libbpf, or parts of their definitions to any loader, are
//! judged like others. Without permission for bpf() these tests say so and pass, unless BPF_OPT_REQUIRE_KERNEL=1 makes that
//! a failure.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use bpf_kernel::testing::permitted;
use bpf_kernel::{LoadOptions, LoadVerdict, LoadedObject, Loader, ObjectVerdict, ProgramType};
use bpf_testgen::case::Case;

const LEGACY: &[u8] = include_bytes!("../fixtures/legacy.o");
const WITHOUT_TYPES: &[u8] = include_bytes!("../fixtures/legacy_without_types.o");
const IPROUTE: &[u8] = include_bytes!("../fixtures/iproute.o");
const UNKNOWN: &[u8] = include_bytes!("../fixtures/unknown.o");
const ARRAYS: &[u8] = include_bytes!("../fixtures/arrays.o");
const COMPLETED: &[u8] = include_bytes!("../fixtures/completed.o");

/// The verdicts on an object, which are the same for all programs at once, for each alone, and for all with maps that are
/// there already.
fn judged(bytes: &[u8]) -> ObjectVerdict {
    let mut loader = Loader::new(LoadOptions::default()).unwrap();
    let first = loader.judge(bytes, |_, _| true, None).unwrap();
    assert!(!first.programs.is_empty(), "{:?}", first.not_loadable);
    for p in &first.programs {
        let alone = loader.judge(bytes, |name, _| name == p.name, None).unwrap();
        assert_eq!(alone.program(&p.name).map(|p| p.verdict.reason()), Some(p.verdict.reason()));
    }
    let again = loader.judge(bytes, |_, _| true, None).unwrap();
    let words = |v: &ObjectVerdict| v.programs.iter().map(|p| p.verdict.reason().to_owned()).collect::<Vec<_>>();
    assert_eq!(words(&first), words(&again));
    first
}

#[track_caller]
fn are_accepted(verdict: &ObjectVerdict, expected: &[&str]) {
    let accepted: BTreeSet<&str> =
        verdict.programs.iter().filter(|p| p.verdict.is_accepted()).map(|p| p.name.as_str()).collect();
    assert_eq!(accepted, expected.iter().copied().collect(), "{verdict:#?}");
}

/// Why a program was not judged.
#[track_caller]
fn why_not_judged<'v>(verdict: &'v ObjectVerdict, program: &str) -> &'v str {
    match verdict.program(program).map(|p| &p.verdict) {
        Some(LoadVerdict::NotLoadable { reason }) => reason,
        other => panic!("{program}: {other:?}"),
    }
}

#[track_caller]
fn is_refused(verdict: &ObjectVerdict, program: &str, words: &str) {
    match verdict.program(program).map(|p| &p.verdict) {
        Some(refused @ LoadVerdict::Rejected { .. }) => {
            assert!(refused.reason().contains(words), "{}", refused.reason())
        }
        other => panic!("{program}: {other:?}"),
    }
}

#[test]
fn programs_with_maps_that_are_defined_by_numbers_are_judged() {
    if !permitted() {
        return;
    }
    let started = Instant::now();
    let verdict = judged(LEGACY);
    assert!(started.elapsed() < Duration::from_secs(10), "the huge table was made as it is defined");
    let accepted = ["uses_table", "uses_array", "uses_elsewhere", "uses_events", "uses_locks", "uses_types"];
    are_accepted(&verdict, &accepted);
    is_refused(&verdict, "refused", "invalid mem access 'map_value_or_null'");
    let verdict = judged(WITHOUT_TYPES);
    are_accepted(&verdict, &accepted[..4]);
    is_refused(&verdict, "refused", "invalid mem access 'map_value_or_null'");
}

#[test]
fn maps_that_name_each_other_by_numbers_are_made_of_each_other() {
    if !permitted() {
        return;
    }
    let verdict = judged(IPROUTE);
    // What is in the last map no definition says.
    are_accepted(&verdict, &["uses_outer", "calling", "uses_lost"]);
    // The verifier knows what is in the outer map.
    is_refused(&verdict, "refused", "R0 min value is outside of the allowed memory range");
}

#[test]
fn what_nobody_knows_of_a_map_keeps_its_programs_alone_from_being_judged() {
    if !permitted() {
        return;
    }
    let verdict = judged(UNKNOWN);
    are_accepted(&verdict, &["uses_known"]);
    let why = why_not_judged(&verdict, "uses_odd");
    assert_eq!(why, "map odd cannot be created: nobody knows byte 32 of its definition");
}

#[test]
fn definitions_are_completed() {
    if !permitted() {
        return;
    }
    let verdict = judged(COMPLETED);
    let completed = ["numbers", "trie", "far", "some", "tables", "events", "calls", "cpus", "rings", "stacks"];
    // These as each program needs them.
    let open = ["no_keys", "no_values", "no_inner"];
    let accepted: Vec<String> = completed.iter().chain(&open).map(|m| format!("uses_{m}")).collect();
    are_accepted(&verdict, &accepted.iter().map(String::as_str).collect::<Vec<_>>());
    // An array of four elements has an element 3; this one is made with one, since nobody says how long it is.
    let why = why_not_judged(&verdict, "believes_in_three");
    assert!(why.starts_with("an array was made shorter than it is going to be: R0 invalid mem access"), "{why}");
}

/// A program whose maps leave all open that can be: `sessions` is a hash table, and the maps in `tenants` are hash tables
/// for all that anybody knows. Its key has `key` bytes, and it reads `value` bytes of what it finds, from the beginning.
fn with_open_maps(map: &str, key: u32, value: u32, more: &str) -> Vec<u8> {
    let find = match map {
        "sessions" => "r1 = sessions ll\n r2 = r10\n r2 += -{key}\n call bpf_map_lookup_elem",
        _ => {
            "r1 = tenants ll\n r2 = r10\n r2 += -4\n call bpf_map_lookup_elem\n if r0 == 0 goto over\n \
             r1 = r0\n r2 = r10\n r2 += -{key}\n call bpf_map_lookup_elem"
        }
    };
    let find = find.replace("{key}", &key.to_string());
    let text = format!(
        "; A.\n; section: xdp\n; map: sessions hash 0 0 16\n; map: tenants hash_of_maps 4 4 16\n; expect: equal\nbefore:\n \
         r1 = 0\n *(u64 *)(r10 - 8) = r1\n *(u64 *)(r10 - 16) = r1\n {find}\n if r0 == 0 goto over\n \
         r1 = *(u8 *)(r0 + {})\n {more}\nover:\n r0 = 0\n exit\nafter:\n r0 = 0\n exit\n",
        value - 1
    );
    Case::parse(&text).expect("a case").old_object().expect("it assembles")
}

#[test]
fn what_is_open_of_a_map_is_made_as_the_first_form_needs_it() {
    if !permitted() {
        return;
    }
    for map in ["sessions", "tenants"] {
        let judged = |loader: &mut Loader, key: u32, value: u32| {
            let verdict = loader.judge(&with_open_maps(map, key, value, ""), |_, _| true, None).unwrap();
            verdict.programs[0].verdict.clone()
        };
        // The key is as long as the stack that is behind its address, at least.
        for (key, value) in [(16, 24), (8, 1), (4, 7), (16, 32_767)] {
            let mut loader = Loader::new(LoadOptions::default()).unwrap();
            assert_eq!(judged(&mut loader, key, value), LoadVerdict::Accepted, "{map}: {key}, {value}");
            // Its loader may make the key so long, and the value no longer.
            for (key, value, words) in
                [(key - 1, value, "stack"), (key, value + 1, "outside of the allowed memory range")]
            {
                let refused = judged(&mut loader, key, value);
                assert!(matches!(refused, LoadVerdict::Rejected { .. }), "{map}: {key}, {value}: {refused:?}");
                assert!(refused.reason().contains(words), "{}", refused.reason());
            }
            for (key, value) in [(key, value), (key + 4, value), (key, value.div_ceil(2))] {
                assert_eq!(judged(&mut loader, key, value), LoadVerdict::Accepted, "{map}: {key}, {value}");
            }
        }
    }
}

#[test]
fn programs_that_no_filling_suits_keep_their_reason() {
    if !permitted() {
        return;
    }
    // With what their loaders know they may load.
    let out_of_means = |reason: &str| LoadVerdict::OutOfMeans { reason: reason.to_owned() };
    let mut loader = Loader::new(LoadOptions::default()).unwrap();
    // It takes keys of its map for longer than any on a stack.
    let far = "r2 = *(u8 *)(r10 - 600)";
    let verdict = loader.judge(&with_open_maps("sessions", 4, 8, far), |_, _| true, None).unwrap();
    let expected = "map sessions cannot be created: its definition does not say how long its keys are";
    assert_eq!(verdict.programs[0].verdict, out_of_means(expected));
    // It is refused whatever its maps are like.
    let wrong = "r1 = *(u64 *)(r9 + 0)";
    let verdict = loader.judge(&with_open_maps("tenants", 4, 8, wrong), |_, _| true, None).unwrap();
    let expected = "map tenants cannot be created: its definition does not say what the maps in it are like";
    assert_eq!(verdict.programs[0].verdict, out_of_means(expected));
}

/// What a helper is handed wants short sizes, what is read of an element wants long ones; a later form has to load with both.
#[test]
fn what_is_handed_over_whole_is_as_long_as_the_first_form_has_it() {
    if !permitted() {
        return;
    }
    // The value that is put in begins at this place in the frame.
    let update = |at: i32| {
        format!("r1 = sessions ll\n r2 = r10\n r2 += -16\n r3 = r10\n r3 += {at}\n r4 = 0\n call bpf_map_update_elem")
    };
    let mut loader = Loader::new(LoadOptions::default()).unwrap();
    let mut judged = |key, value, at| {
        let verdict = loader.judge(&with_open_maps("sessions", key, value, &update(at)), |_, _| true, None).unwrap();
        verdict.programs[0].verdict.clone()
    };
    assert_eq!(judged(16, 8, -16), LoadVerdict::Accepted);
    for (key, value, at) in [(16, 8, -24), (16, 4, -16)] {
        assert_eq!(judged(key, value, at), LoadVerdict::Accepted, "{key}, {value}, {at}");
    }
    // Values may have 16 bytes for all that the first form tells, and keys, too.
    for (key, value, at) in [(16, 8, -8), (16, 17, -16), (8, 8, -16)] {
        let refused = judged(key, value, at);
        assert!(matches!(refused, LoadVerdict::Rejected { .. }), "{key}, {value}, {at}: {refused:?}");
    }
}

/// A callback is given the key of an element, too: longer keys are not the stricter choice for it.
#[test]
fn keys_that_a_callback_reads_are_no_longer_than_the_first_form_needs() {
    if !permitted() {
        return;
    }
    let object = |byte: u32| {
        let text = format!(
            "; A.\n; section: xdp\n; map: sessions hash 0 8 16\n; expect: equal\nbefore:\n r1 = sessions ll\n r2 = each ll\n \
             r3 = 0\n r4 = 0\n call bpf_for_each_map_elem\n r0 = 0\n exit\nstatic each(ptr, ptr, ptr, ptr) u64:\n \
             r1 = *(u8 *)(r2 + {byte})\n r0 = 0\n exit\nafter:\n r0 = 0\n exit\n"
        );
        Case::parse(&text).expect("a case").old_object().expect("it assembles")
    };
    let mut loader = Loader::new(LoadOptions::default()).unwrap();
    let mut judged = |byte| loader.judge(&object(byte), |_, _| true, None).unwrap().programs[0].verdict.clone();
    assert_eq!(judged(6), LoadVerdict::Accepted);
    assert_eq!(judged(3), LoadVerdict::Accepted);
    let refused = judged(7);
    assert!(matches!(refused, LoadVerdict::Rejected { .. }), "{refused:?}");
}

#[test]
fn arrays_are_made_as_long_as_they_can_be_in_short_time() {
    if !permitted() {
        return;
    }
    let started = Instant::now();
    let mut loader = Loader::new(LoadOptions::default()).unwrap();
    let verdict = loader.judge(ARRAYS, |_, _| true, None).unwrap();
    assert!(started.elapsed() < Duration::from_secs(3), "the arrays were made as they are defined");
    // Older kernels want a test in any case; when that changed, the rule was in Linux 6.15 at the latest.
    let release = bpf_kernel::release();
    let mut numbers = release.split(['.', '-']).map(|n| n.parse().unwrap_or(0));
    let wants_tests = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < (6, 15);
    are_accepted(&verdict, if wants_tests { &["tests"] } else { &["tests", "believes_in_three"] });
    let why = why_not_judged(&verdict, "believes_in_many");
    assert!(why.starts_with("an array was made shorter than it is going to be: R0 invalid mem access"), "{why}");
}

#[test]
fn programs_with_such_maps_can_be_run() {
    if !permitted() {
        return;
    }
    for (bytes, map, programs) in
        [(LEGACY, "table", ["uses_table", "uses_locks"]), (COMPLETED, "some", ["uses_far", "uses_cpus"])]
    {
        for program in programs {
            let options = LoadOptions { only: Some(program.to_owned()), ..LoadOptions::default() };
            assert!(LoadedObject::load(bytes, &options).is_err(), "libbpf takes it by itself");
            let loaded = LoadedObject::load_for_runs(bytes, &options, None).unwrap();
            assert_eq!(loaded.test_run(program, &[0; 64], None, 1).map(|run| run.data_out.len()).unwrap(), 64);
            // 50 million elements are not made for that.
            assert!((1..=4096).contains(&loaded.map(map).unwrap().max_entries()));
        }
    }
}

#[test]
fn objects_of_the_benchmark_that_libbpf_does_not_take_are_judged() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/bench/public");
    if !folder.is_dir() {
        eprintln!("skipped: {} is not here", folder.display());
        return;
    }
    if !permitted() {
        return;
    }
    // Some were compiled before functions had types; one has relocations with numbers to add.
    for (name, kind, programs) in [
        ("es-linux-xdp_tx_iptunnel_kern.o", "xdp", 1),
        ("es-ovs-datapath.o", "classifier", 19),
        ("es-prototype-kernel-xdp_ddos01_blacklist_kern.o", "xdp", 1),
        ("es-suricata-xdp_filter.o", "xdp", 1),
    ] {
        let options = LoadOptions { program_type: Some(kind.to_owned()), only: None };
        let verdict = Loader::new(options).unwrap().judge(&fs::read(folder.join(name)).unwrap(), |_, _| true, None);
        let verdict = verdict.unwrap();
        assert!(verdict.is_accepted() && verdict.programs.len() == programs, "{name}: {verdict:#?}");
    }
}

#[test]
fn sections_named_for_older_loaders_are_of_the_type_that_those_would_say() {
    let object = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/bench/public/es-new_linux-sockex3_kern.o");
    if !object.is_file() {
        eprintln!("skipped: {} is not here", object.display());
        return;
    }
    if !permitted() {
        return;
    }
    // `socket/0` to `socket/4`.
    let verdict = judged(&fs::read(object).unwrap());
    assert!(verdict.is_accepted() && verdict.programs.len() == 5, "{verdict:#?}");
    assert!(verdict.programs.iter().all(|p| p.kind == ProgramType::SOCKET_FILTER), "{verdict:#?}");
}
