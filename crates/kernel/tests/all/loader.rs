//! The loader for many forms of one object: it says what loading the object says, keeps what can be kept, and ends in
//! time. Without permission for bpf() these tests say so and pass, unless BPF_OPT_REQUIRE_KERNEL=1 makes that a failure.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use object::{Object, ObjectSection};

use bpf_kernel::testing::permitted;
use bpf_kernel::{LoadOptions, LoadVerdict, LoadedObject, Loader, ProgramVerdict, load_object};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn objects(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "o"));
    paths.sort();
    paths
}

fn typed(kind: &str) -> LoadOptions {
    LoadOptions { program_type: (!kind.is_empty()).then(|| kind.to_owned()), only: None }
}

/// Compares the loader's word on an object, asked for the second time, with that of a plain load; programs compared.
fn compare(path: &Path, options: &LoadOptions) -> usize {
    let bytes = fs::read(path).unwrap();
    let plain = load_object(&bytes, options).unwrap();
    let mut loader = Loader::new(options.clone()).unwrap();
    let first = loader.judge(&bytes, |_, _| true, None).unwrap();
    let second = loader.judge(&bytes, |_, _| true, None).unwrap();
    let name = path.display();
    assert!(first.programs.len() >= plain.programs.len(), "{name}: {:?}", first.not_loadable);
    for one in &first.programs {
        let again = second.programs.iter().find(|p| p.name == one.name).unwrap();
        same(path, one, again);
    }
    for expected in &plain.programs {
        let found = first.programs.iter().find(|p| p.name == expected.name && p.section == expected.section).unwrap();
        // Where a plain load gives no verdict on the program's instructions, the loader may know more.
        if matches!(expected.verdict, LoadVerdict::Accepted | LoadVerdict::Rejected { .. }) {
            same(path, expected, found);
        }
    }
    plain.programs.len()
}

fn same(path: &Path, expected: &ProgramVerdict, found: &ProgramVerdict) {
    let name = format!("{}: {}", path.display(), expected.name);
    let outcome = |p: &ProgramVerdict| std::mem::discriminant(&p.verdict);
    assert_eq!(outcome(expected), outcome(found), "{name}: {:?}, {:?}", expected.verdict, found.verdict);
    assert_eq!((expected.kind, expected.slots), (found.kind, found.slots), "{name}");
    assert_eq!(expected.verdict.reason(), found.verdict.reason(), "{name}");
    let processed = |p: &ProgramVerdict| p.stats.as_ref().map(|stats| stats.processed);
    assert_eq!(processed(expected), processed(found), "{name}");
    // Machine code may differ in length with the addresses in it.
    let info = |p: &ProgramVerdict| p.info.map(|i| (i.unshares_packet, i.verified_insns, i.xlated_bytes));
    assert_eq!(info(expected), info(found), "{name}");
    // What the kernel notes of a program it notes of the same program again.
    assert_eq!(expected.marks.is_some(), expected.verdict.is_accepted(), "{name}");
    assert_eq!(expected.marks, found.marks, "{name}");
}

#[test]
fn programs_of_the_examples_get_the_verdicts_of_a_plain_load() {
    if !permitted() {
        return;
    }
    let compared: usize = objects(&root().join("examples")).iter().map(|o| compare(o, &LoadOptions::default())).sum();
    assert!(compared > 5, "{compared} programs");
}

#[test]
fn programs_of_the_benchmark_get_the_verdicts_of_a_plain_load() {
    let bench = root().join("../shared/bench");
    if !bench.is_dir() {
        eprintln!("skipped: {} is not here", bench.display());
        return;
    }
    if !permitted() {
        return;
    }
    let mut compared = 0;
    for folder in ["k2", "public"] {
        let text = fs::read_to_string(bench.join(folder).join("manifest.tsv")).unwrap();
        let mut rows = text.lines().map(|line| line.split('\t').collect::<Vec<_>>());
        let header = rows.next().unwrap();
        let column = |name: &str| header.iter().position(|column| *column == name);
        for row in rows {
            let kind = column("load_type").map_or("", |at| row[at]);
            compared += compare(&bench.join(folder).join(row[column("object").unwrap()]), &typed(kind));
        }
    }
    eprintln!("{compared} programs compared");
    assert!(compared > 50, "{compared} programs");
}

/// What is known of programs goes by their names: of two that have one, an answer about the constants of the one is none about
/// the other's, and what was not answered in time is not the other's answer (red team of 30 November).
#[test]
fn of_programs_with_one_name_in_one_section_nothing_is_known() {
    if !permitted() {
        return;
    }
    let two = include_bytes!("../fixtures/namesakes.o");
    let mut one = two.to_vec();
    let at = two.windows(5).position(|w| w == b"\0two\0").expect("its name");
    one[at + 1..at + 4].copy_from_slice(b"one");
    let verdicts = |bytes: &[u8]| {
        let mut loader = Loader::new(LoadOptions::default()).unwrap();
        loader.judge(bytes, |_, _| true, None).unwrap().programs
    };
    let apart = verdicts(two);
    assert!(apart.len() == 2 && apart.iter().all(|p| p.verdict.is_accepted()), "{apart:?}");
    let alike = verdicts(&one);
    assert_eq!(alike.len(), 2, "{alike:?}");
    for p in alike {
        assert!(matches!(&p.verdict, LoadVerdict::OutOfMeans { reason } if reason.contains("its name")), "{p:?}");
    }
}

#[test]
fn what_one_program_lacks_is_no_matter_of_the_others() {
    if !permitted() {
        return;
    }
    let bytes = include_bytes!("../fixtures/shapes.o");
    assert!(!load_object(bytes, &LoadOptions::default()).unwrap().is_accepted());
    let mut loader = Loader::new(LoadOptions::default()).unwrap();
    let started = Instant::now();
    // All at once, each alone, and all again with maps that are there already.
    let mut verdicts = vec![loader.judge(bytes, |_, _| true, None).unwrap()];
    for one in verdicts[0].programs.clone() {
        let mut alone = loader.judge(bytes, |name, _| name == one.name, None).unwrap();
        let [alone] = &mut alone.programs[..] else { panic!("{alone:?}") };
        assert_eq!(alone.verdict.is_accepted(), one.verdict.is_accepted());
        assert_eq!(alone.verdict.reason(), one.verdict.reason());
    }
    verdicts.push(loader.judge(bytes, |_, _| true, None).unwrap());
    assert!(started.elapsed() < Duration::from_secs(10), "the huge map was made as it is defined");
    for verdict in verdicts {
        let of = |name: &str| verdict.program(name).map(|p| p.verdict.clone());
        for name in ["uses_huge", "uses_sized", "uses_pinned", "jumping", "not_exported"] {
            assert_eq!(of(name), Some(LoadVerdict::Accepted), "{name}");
        }
        let refused = of("refused").unwrap();
        assert!(refused.reason().contains("invalid mem access 'map_value_or_null'"), "{refused:?}");
        let Some(LoadVerdict::NotLoadable { reason }) = of("uses_impossible") else { panic!("{verdict:?}") };
        assert!(reason.starts_with("map impossible cannot be created"), "{reason}");
        let Some(LoadVerdict::Unsupported { reason }) = of("calls_what_is_not_there") else { panic!("{verdict:?}") };
        assert!(reason.contains("no_such_kernel_function"), "{reason}");
        assert_eq!(verdict.programs.len(), 8);
    }
}

/// The bytes of an example whose program begins with a loop that the verifier follows for very long.
fn with_a_long_loop() -> Vec<u8> {
    let mut bytes = fs::read(root().join("examples/xdp_count.o")).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let (offset, _) = file.section_by_name("xdp").unwrap().file_range().unwrap();
    let [l0, l1, l2, l3] = 400_000i32.to_le_bytes();
    let code = [
        [0xb7, 0, 0, 0, 0, 0, 0, 0],           // r0 = 0
        [0x07, 0, 0, 0, 1, 0, 0, 0],           // r0 += 1
        [0xa5, 0, 0xfe, 0xff, l0, l1, l2, l3], // if r0 < 400000 goto -2
    ];
    bytes[offset as usize..][..24].copy_from_slice(code.as_flattened());
    bytes
}

#[test]
fn a_load_is_interrupted_at_the_deadline() {
    if !permitted() {
        return;
    }
    let bytes = with_a_long_loop();
    // As its section says, which the loader does by itself; as something else, which it leaves to libbpf.
    for kind in ["", "classifier"] {
        let mut loader = Loader::new(typed(kind)).unwrap();
        let started = Instant::now();
        let whole = loader.judge(&bytes, |_, _| true, None).unwrap();
        let whole_took = started.elapsed();
        assert!(matches!(whole.programs[0].verdict, LoadVerdict::Rejected { .. }), "{whole:?}");
        let limit = whole_took / 4;
        let started = Instant::now();
        let verdict = loader.judge(&bytes, |_, _| true, Some(started + limit)).unwrap();
        let took = started.elapsed();
        eprintln!("{kind:?}: {whole_took:?} without a limit, {took:?} with {limit:?}");
        assert!(verdict.programs.iter().all(|p| p.verdict == LoadVerdict::OutOfTime), "{verdict:?}");
        assert!(took < limit + whole_took / 2, "{took:?}");
        let started = Instant::now();
        assert!(LoadedObject::load_for_runs(&bytes, &typed(kind), Some(started + limit)).is_err());
        let took = started.elapsed();
        assert!(took < limit + whole_took / 2, "for runs: {took:?}");
        // The loader is as good as before.
        let good = fs::read(root().join("examples/xdp_count.o")).unwrap();
        assert!(loader.judge(&good, |_, _| true, None).unwrap().programs[0].stats.is_some());
    }
}

#[test]
fn only_the_programs_asked_about_are_loaded() {
    if !permitted() {
        return;
    }
    let bytes = fs::read(root().join("examples/kinds.o")).unwrap();
    let mut loader = Loader::new(LoadOptions::default()).unwrap();
    let verdict = loader.judge(&bytes, |name, _| name == "on_skb", None).unwrap();
    let [program] = &verdict.programs[..] else { panic!("{verdict:?}") };
    assert_eq!((program.name.as_str(), &program.verdict), ("on_skb", &LoadVerdict::Accepted));
    // Another type, with the same program array.
    let verdict = loader.judge(&bytes, |name, _| name == "on_xdp", None).unwrap();
    assert!(verdict.programs.len() == 1 && verdict.is_accepted(), "{verdict:?}");
}

#[test]
fn nothing_is_judged_when_time_is_up() {
    if !permitted() {
        return;
    }
    let bytes = fs::read(root().join("examples/globals.o")).unwrap();
    let mut loader = Loader::new(LoadOptions::default()).unwrap();
    let verdict = loader.judge(&bytes, |_, _| true, Some(Instant::now())).unwrap();
    assert!(!verdict.programs.is_empty());
    assert!(verdict.programs.iter().all(|p| p.verdict == LoadVerdict::OutOfTime), "{verdict:?}");
    let verdict = loader.judge(&bytes, |_, _| true, Some(Instant::now() + Duration::from_secs(60))).unwrap();
    assert!(verdict.is_accepted(), "{verdict:?}");
}

#[test]
fn an_object_may_lie_at_any_address() {
    if !permitted() {
        return;
    }
    let example = fs::read(root().join("crates/driver/tests/fixtures/exception.o")).unwrap();
    for shift in 0..8 {
        let mut bytes = vec![0; shift];
        bytes.extend(&example);
        let mut loader = Loader::new(LoadOptions::default()).unwrap();
        // Only a program under the GPL may call functions of the kernel.
        let verdict = loader.judge(&bytes[shift..], |_, _| true, None).unwrap();
        assert!(verdict.is_accepted() && verdict.programs.len() == 2, "{shift}: {verdict:#?}");
    }
}

/// libbpf changes its own copy of the BTF for hidden functions, after the loader has looked at it.
#[test]
fn hidden_functions_are_verified_with_their_callers_beside_functions_of_the_kernel() {
    if !permitted() {
        return;
    }
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hidden.o");
    assert!(load_object(&fs::read(&fixture).unwrap(), &LoadOptions::default()).unwrap().is_accepted());
    assert_eq!(compare(&fixture, &LoadOptions::default()), 1);
}

#[test]
fn what_one_program_needs_of_another_kernel_or_object_is_no_matter_of_the_others() {
    if !permitted() {
        return;
    }
    let bytes = include_bytes!("../fixtures/lacking.o");
    let verdict = Loader::new(LoadOptions::default()).unwrap().judge(bytes, |_, _| true, None).unwrap();
    for (name, expected) in [
        ("plain", None),
        ("optional", None),
        ("option", Some("this kernel has no CONFIG_OF_NO_KERNEL")),
        ("through_a_call", Some("this kernel has no CONFIG_OF_NO_KERNEL")),
        ("variable", Some("this kernel has no variable_of_no_kernel")),
        ("unlinked", Some("the object is not linked: it has no of_another_object")),
        ("attached", Some("prog 'attached': failed to find kernel BTF type ID of 'function_of_no_kernel': -ESRCH")),
    ] {
        match (expected, &verdict.program(name).unwrap().verdict) {
            (None, LoadVerdict::Accepted) => {}
            (Some(expected), verdict @ (LoadVerdict::Unsupported { .. } | LoadVerdict::NotLoadable { .. })) => {
                assert_eq!(verdict.reason(), expected);
            }
            (_, other) => panic!("{name}: {other:?}"),
        }
    }
}

/// Where the types of an object stand in its bytes: offset, number and kind of each.
fn types_of(bytes: &[u8]) -> Vec<(usize, u32, u32)> {
    let file = object::File::parse(bytes).unwrap();
    let (section, _) = file.section_by_name(".BTF").unwrap().file_range().unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let section = section as usize;
    let first = section + (word(section + 4) + word(section + 8)) as usize;
    let end = first + word(section + 12) as usize;
    let (mut at, mut found) = (first, vec![]);
    while at < end {
        let (kind, entries) = (word(at + 4) >> 24 & 0x1f, (word(at + 4) & 0xffff) as usize);
        found.push((at, found.len() as u32 + 1, kind));
        at += 12
            + match kind {
                1 | 14 | 17 => 4,
                3 => 12,
                4 | 5 | 15 | 19 => 12 * entries,
                6 | 13 => 8 * entries,
                _ => 0,
            };
    }
    found
}

/// libbpf follows these without looking: it would be the end of this process, or never end (red team MM).
#[test]
fn types_that_lead_nowhere_or_to_themselves_are_bad_input() {
    if !permitted() {
        return;
    }
    let bytes = fs::read(root().join("crates/kernel/tests/fixtures/shapes.o")).unwrap();
    for (kind, target) in [(13, Some(60_000)), (8, None)] {
        let mut changed = bytes.clone();
        let (at, number, _) = types_of(&bytes).into_iter().find(|(_, _, k)| *k == kind).unwrap();
        changed[at + 8..at + 12].copy_from_slice(&target.unwrap_or(number).to_le_bytes());
        let verdict = load_object(&changed, &LoadOptions::default()).unwrap();
        let reason = verdict.not_loadable.unwrap();
        assert!(reason.contains(".BTF") && reason.contains(&format!("type {number}")), "{reason}");
    }
}

/// Only libbpf knows what a program of struct_ops attaches to. What the verifier decides of it is known all the same.
#[test]
fn what_is_decided_of_programs_of_struct_ops_is_known() {
    if !permitted() {
        return;
    }
    let bytes = fs::read(root().join("crates/kernel/tests/fixtures/dummy_ops.o")).unwrap();
    let mut loader = Loader::new(LoadOptions::default()).unwrap();
    let verdict = loader.judge(&bytes, |_, _| true, None).unwrap();
    assert_eq!(verdict.programs.len(), 2, "{verdict:?}");
    for program in &verdict.programs {
        // Not all kernels have that structure.
        if program.verdict.is_accepted() {
            assert!(program.decided.as_ref().is_some_and(|decided| !decided.hidden), "{program:?}");
        } else {
            eprintln!("skipped: {}: {}", program.name, program.verdict.reason());
            assert!(std::env::var_os("BPF_OPT_REQUIRE_KERNEL").is_none(), "{program:?}");
        }
    }
}

/// The object with records of functions, or of lines, of four bytes more each, all of which have this value.
fn with_longer_records(bytes: &[u8], kind: usize, rest: u8) -> Vec<u8> {
    let word = |b: &[u8], at: usize| u32::from_le_bytes(b[at..at + 4].try_into().unwrap()) as usize;
    let file = object::File::parse(bytes).unwrap();
    let section = file.section_by_name(".BTF.ext").unwrap();
    let old = section.data().unwrap();
    let header = word(old, 4);
    let (at, length) = (word(old, 8 + 8 * kind), word(old, 12 + 8 * kind));
    let records = &old[header + at..][..length];
    let size = word(records, 0);
    let mut longer = (size as u32 + 4).to_le_bytes().to_vec();
    let mut next = 4;
    while next < length {
        let count = word(records, next + 4);
        longer.extend(&records[next..next + 8]);
        for record in records[next + 8..][..count * size].chunks(size) {
            longer.extend(record);
            longer.extend([rest; 4]);
        }
        next += 8 + count * size;
    }
    // At the end of the section, and the section at the end of the file.
    let mut ext = old.to_vec();
    let place = (ext.len() - header) as u32;
    ext[8 + 8 * kind..][..4].copy_from_slice(&place.to_le_bytes());
    ext[12 + 8 * kind..][..4].copy_from_slice(&(longer.len() as u32).to_le_bytes());
    ext.extend(longer);
    let mut out = bytes.to_vec();
    out.resize(out.len().next_multiple_of(8), 0);
    let start = out.len() as u64;
    let headers = u64::from_le_bytes(out[40..48].try_into().unwrap()) as usize;
    let entry = headers + 64 * section.index().0;
    out[entry + 24..entry + 32].copy_from_slice(&start.to_le_bytes());
    out[entry + 32..entry + 40].copy_from_slice(&(ext.len() as u64).to_le_bytes());
    out.extend(ext);
    out
}

#[test]
fn functions_with_longer_records_are_global_all_the_same() {
    if !permitted() {
        return;
    }
    let bytes = fs::read(root().join("crates/kernel/tests/fixtures/verified_alone.o")).unwrap();
    let verdict = |bytes: &[u8]| {
        let options = LoadOptions::default();
        let plain = load_object(bytes, &options).unwrap();
        let ours = Loader::new(options).unwrap().judge(bytes, |_, _| true, None).unwrap();
        let of = |v: &[ProgramVerdict]| v.iter().map(|p| p.verdict.is_accepted()).collect::<Vec<_>>();
        assert_eq!(of(&plain.programs), of(&ours.programs), "{:?} {:?}", plain.programs, ours.programs);
        of(&ours.programs)
    };
    assert_eq!(verdict(&bytes), [false]);
    let good = fs::read(root().join("examples/subprogs.o")).unwrap();
    for kind in [0, 1] {
        assert_eq!(verdict(&with_longer_records(&bytes, kind, 0)), [false], "{kind}");
        assert!(verdict(&with_longer_records(&good, kind, 0)).iter().all(|accepted| *accepted), "{kind}");
        // The kernel takes no records of which it does not know all, where libbpf gives them.
        assert_eq!(verdict(&with_longer_records(&bytes, kind, 1)), [false], "{kind}");
        verdict(&with_longer_records(&good, kind, 1));
    }
}

#[test]
fn programs_of_optional_structures_are_judged() {
    if !permitted() {
        return;
    }
    for (name, accepted) in [("optional_ops.o", true), ("optional_ops_refused.o", false)] {
        let bytes = fs::read(root().join("crates/kernel/tests/fixtures").join(name)).unwrap();
        let found = Loader::new(LoadOptions::default()).unwrap().judge(&bytes, |_, _| true, None).unwrap();
        let [program] = &found.programs[..] else { panic!("{found:?}") };
        assert_eq!(program.verdict.is_accepted(), accepted, "{found:?}");
        assert_eq!(matches!(program.verdict, LoadVerdict::Rejected { .. }), !accepted, "{found:?}");
        // libbpf loads the object without it, so the kernel has said nothing.
        let plain = load_object(&bytes, &LoadOptions::default()).unwrap();
        assert!(matches!(&plain.programs[..], [p] if p.verdict.is_of_the_place()), "{plain:?}");
    }
}

#[test]
fn programs_that_libbpf_loads_are_described_though_their_object_fills_a_program_array() {
    if !permitted() {
        return;
    }
    let bytes = fs::read(root().join("crates/kernel/tests/fixtures/slots.o")).unwrap();
    let found = Loader::new(LoadOptions::default()).unwrap().judge(&bytes, |_, _| true, None).unwrap();
    assert_eq!(found.programs.len(), 2, "{found:?}");
    for program in &found.programs {
        assert!(program.verdict.is_accepted() && program.info.is_some() && program.marks.is_some(), "{program:?}");
    }
}

#[test]
fn programs_of_structures_are_judged_beside_one_that_needs_a_long_array() {
    if !permitted() {
        return;
    }
    for (name, accepted) in [("two_structures.o", true), ("two_structures_refused.o", false)] {
        let bytes = fs::read(root().join("crates/kernel/tests/fixtures").join(name)).unwrap();
        let found = Loader::new(LoadOptions::default()).unwrap().judge(&bytes, |_, _| true, None).unwrap();
        let apart = found.programs.iter().find(|p| p.name == "apart").unwrap();
        assert_eq!(apart.verdict.is_accepted(), accepted, "{found:?}");
        assert_eq!(matches!(apart.verdict, LoadVerdict::Rejected { .. }), !accepted, "{found:?}");
    }
}
