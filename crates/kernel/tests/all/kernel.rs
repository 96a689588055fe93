//! What the running kernel answers. Without permission for bpf() these tests say so and pass, unless
//! BPF_OPT_REQUIRE_KERNEL=1 makes that a failure.

use std::{
    fs,
    path::{Path, PathBuf},
};

use bpf_kernel::testing::{available, in_private_pins, permitted};
use bpf_kernel::{
    Feature, KernelError, LoadOptions, LoadVerdict, LoadedObject, Map, ProgramType, RawOptions, RawProgram,
    in_private_network, load_object, load_object_file, release, supports, supports_helper, supports_program_type,
};
use object::{Object, ObjectSection};

const HASH: u32 = 1;
const ARRAY: u32 = 2;
const PERCPU_ARRAY: u32 = 6;
const XDP_PASS: u32 = 2;
/// The shortest packet an XDP test run takes.
const PACKET: [u8; 14] = [7; 14];

/// `r0 = 2; exit`.
const RETURN_TWO: [[u8; 8]; 2] = [[0xb7, 0, 0, 0, 2, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
/// `exit`, with r0 never set.
const RETURN_NOTHING: [[u8; 8]; 1] = [[0x95, 0, 0, 0, 0, 0, 0, 0]];

fn bench(folder: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/bench").join(folder);
    if !path.is_dir() {
        eprintln!("skipped: {} is not here", path.display());
        return None;
    }
    Some(path)
}

/// The rows of a manifest, as columns by name of the header.
fn manifest(folder: &Path) -> Vec<Vec<(String, String)>> {
    let text = fs::read_to_string(folder.join("manifest.tsv")).unwrap();
    let mut lines = text.lines().map(|line| line.split('\t').map(str::to_owned).collect::<Vec<_>>());
    let header = lines.next().unwrap();
    lines.map(|row| header.iter().cloned().zip(row).collect()).collect()
}

fn column<'a>(row: &'a [(String, String)], name: &str) -> &'a str {
    &row.iter().find(|(column, _)| column == name).unwrap_or_else(|| panic!("no column {name}")).1
}

fn xdp(insns: &[[u8; 8]]) -> Result<RawProgram, bpf_kernel::Rejection> {
    RawProgram::load(ProgramType::XDP, insns.as_flattened(), &RawOptions::default())
}

#[test]
fn a_raw_program_runs_and_returns() {
    if !permitted() {
        return;
    }
    let program = xdp(&RETURN_TWO).unwrap();
    let result = program.test_run(&PACKET, None, 1).unwrap();
    assert_eq!(result.retval, XDP_PASS);
    assert_eq!(result.data_out, PACKET);
    assert_eq!(program.verified_insns().unwrap(), 2);
    let timing = program.time(&PACKET, None, 1000, 3).unwrap();
    assert!(timing.min_ns <= timing.median_ns && timing.median_ns < 100_000, "{timing:?}");
}

#[test]
fn a_raw_program_tells_its_statistics_on_request() {
    if !permitted() {
        return;
    }
    let options = RawOptions { log_level: 4, ..RawOptions::default() };
    let program = RawProgram::load(ProgramType::XDP, RETURN_TWO.as_flattened(), &options).unwrap();
    assert_eq!(program.stats().unwrap().processed, 2, "{}", program.log());
}

#[test]
fn a_bad_program_is_rejected_with_the_verifiers_words() {
    if !permitted() {
        return;
    }
    let rejection = xdp(&RETURN_NOTHING).unwrap_err();
    assert!(rejection.reason().contains("R0 !read_ok"), "{rejection}");
    let rejection = RawProgram::load(ProgramType::XDP, &[0; 7], &RawOptions::default()).unwrap_err();
    assert!(rejection.reason().contains("7 bytes"), "{rejection}");
}

#[test]
fn a_tracepoint_program_cannot_be_test_run() {
    if !permitted() {
        return;
    }
    let program = RawProgram::load(ProgramType::TRACEPOINT, RETURN_TWO.as_flattened(), &RawOptions::default()).unwrap();
    let error = program.test_run(&PACKET, None, 1).unwrap_err();
    assert!(matches!(error, KernelError::NotRunnable { .. }), "{error}");
}

#[test]
fn a_raw_tracepoint_runs_on_its_context_alone() {
    if !permitted() {
        return;
    }
    // r0 = *(u64 *)(r1 + 0); exit
    let code = [[0x79, 0x10, 0, 0, 0, 0, 0, 0], RETURN_TWO[1]];
    let program = RawProgram::load(ProgramType::RAW_TRACEPOINT, code.as_flattened(), &RawOptions::default()).unwrap();
    assert_eq!(program.test_run(&[], Some(&42u64.to_ne_bytes()), 1).unwrap().retval, 42);
}

#[test]
fn a_map_gives_back_what_was_put_in() {
    if !permitted() {
        return;
    }
    let map = Map::create(HASH, 4, 8, 16).unwrap();
    let (key, value) = (7u32.to_ne_bytes(), 9u64.to_ne_bytes());
    assert_eq!(map.lookup(&key).unwrap(), None);
    map.update(&key, &value).unwrap();
    assert_eq!(map.lookup(&key).unwrap().as_deref(), Some(&value[..]));
    assert_eq!(map.entries().unwrap(), [(key.to_vec(), value.to_vec())]);
    assert!(map.delete(&key).unwrap());
    assert!(!map.delete(&key).unwrap());
    let error = map.update(&[0], &value).unwrap_err();
    assert!(matches!(error, KernelError::WrongLength { what: "key", given: 1, expected: 4, .. }), "{error}");
}

#[test]
fn a_per_cpu_map_has_a_value_for_each_cpu() {
    if !permitted() {
        return;
    }
    let map = Map::create(PERCPU_ARRAY, 4, 4, 1).unwrap();
    let value: Vec<u8> = (0..map.value_len()).map(|at| if at % 8 < 4 { 5 } else { 0 }).collect();
    map.update(&[0; 4], &value).unwrap();
    assert_eq!(map.value_len() % 8, 0);
    assert_eq!(map.lookup(&[0; 4]).unwrap(), Some(value));
}

#[test]
fn raw_code_reaches_a_map_by_its_descriptor() {
    if !permitted() {
        return;
    }
    let map = Map::create(ARRAY, 4, 8, 1).unwrap();
    map.update(&[0; 4], &41u64.to_ne_bytes()).unwrap();
    let [f0, f1, f2, f3] = map.fd().to_le_bytes();
    let code = [
        [0x62, 0x0a, 0xfc, 0xff, 0, 0, 0, 0],    // *(u32 *)(r10 - 4) = 0
        [0xbf, 0xa2, 0, 0, 0, 0, 0, 0],          // r2 = r10
        [0x07, 0x02, 0, 0, 0xfc, 255, 255, 255], // r2 += -4
        [0x18, 0x11, 0, 0, f0, f1, f2, f3],      // r1 = map
        [0; 8],
        [0x85, 0, 0, 0, 1, 0, 0, 0],    // call map_lookup_elem
        [0x15, 0, 3, 0, 0, 0, 0, 0],    // if r0 == 0 goto exit
        [0x79, 0x01, 0, 0, 0, 0, 0, 0], // r1 = *(u64 *)(r0 + 0)
        [0x07, 0x01, 0, 0, 1, 0, 0, 0], // r1 += 1
        [0x7b, 0x10, 0, 0, 0, 0, 0, 0], // *(u64 *)(r0 + 0) = r1
        [0xb7, 0, 0, 0, 2, 0, 0, 0],    // r0 = 2
        [0x95, 0, 0, 0, 0, 0, 0, 0],    // exit
    ];
    xdp(&code).unwrap().test_run(&PACKET, None, 1).unwrap();
    assert_eq!(map.lookup(&[0; 4]).unwrap(), Some(42u64.to_ne_bytes().to_vec()));
}

#[test]
fn every_k2_object_is_accepted_with_its_statistics() {
    let (true, Some(folder)) = (permitted(), bench("k2")) else { return };
    let rows = manifest(&folder);
    assert_eq!(rows.len(), 19);
    for row in &rows {
        let name = column(row, "object");
        let verdict = load_object_file(&folder.join(name), &LoadOptions::default()).unwrap();
        assert!(verdict.is_accepted(), "{name}: {verdict:?}");
        let [program] = &verdict.programs[..] else { panic!("{name} has one program: {verdict:?}") };
        assert_eq!(program.section, column(row, "section"), "{name}");
        assert_eq!(program.slots.to_string(), column(row, "insns"), "{name}");
        let (stats, info) = (program.stats.as_ref().unwrap(), program.info.unwrap());
        assert_eq!(u64::from(info.verified_insns), stats.processed, "{name}");
        assert!(info.xlated_bytes > 0, "{name}");
    }
}

#[test]
fn public_objects_load_as_their_manifest_says() {
    let (true, Some(folder)) = (permitted(), bench("public")) else { return };
    if !release().starts_with("6.18") {
        eprintln!("skipped: the manifest is about Linux 6.18, this is {}", release());
        return;
    }
    let mut wrong = Vec::new();
    for row in manifest(&folder) {
        let (name, loads, why_not) = (column(&row, "object"), column(&row, "loads_on_6.18"), column(&row, "why_not"));
        let kind = column(&row, "load_type");
        let options = LoadOptions { program_type: (!kind.is_empty()).then(|| kind.to_owned()), only: None };
        let verdict = load_object_file(&folder.join(name), &options).unwrap();
        let bad = verdict.programs.iter().find(|program| !program.verdict.is_accepted());
        let reason = bad.map(|program| format!("{} in {}: {:.300?}", program.name, program.section, program.verdict));
        eprintln!("{name}: manifest {loads} ({why_not}); {}", verdict.is_accepted());
        if let Some(reason) = verdict.not_loadable.as_deref().or(reason.as_deref()) {
            eprintln!("    {reason}");
        }
        if verdict.is_accepted() != (loads == "yes") {
            wrong.push(name.to_owned());
        }
    }
    assert!(wrong.is_empty(), "other than the manifest says: {wrong:?}");
}

/// The bytes of an object whose section `section` starts with an instruction that no verifier accepts.
fn with_a_bad_start(path: &Path, section: &str) -> Vec<u8> {
    let mut bytes = fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let (offset, _) = file.section_by_name(section).unwrap().file_range().unwrap();
    let at = offset as usize;
    bytes[at..at + 8].copy_from_slice(&[0xbf, 0x90, 0, 0, 0, 0, 0, 0]); // r0 = r9
    bytes
}

#[test]
fn each_program_of_a_failing_object_gets_its_own_verdict() {
    let (true, Some(folder)) = (permitted(), bench("public")) else { return };
    let path = folder.join("es-new_linux-sockex3_kern.o");
    let options = LoadOptions { program_type: Some("socket".to_owned()), only: None };
    let good = load_object_file(&path, &options).unwrap();
    let bad = good.programs[1].clone();
    let verdict = load_object(&with_a_bad_start(&path, &bad.section), &options).unwrap();
    assert_eq!(verdict.not_loadable, None);
    for (before, after) in good.programs.iter().zip(&verdict.programs) {
        assert_eq!(before.name, after.name);
        if after.name != bad.name {
            assert_eq!(after.verdict, LoadVerdict::Accepted, "{}", after.name);
            continue;
        }
        let LoadVerdict::Rejected { errno, .. } = after.verdict else { panic!("{after:?}") };
        assert_eq!(errno, 13);
        assert_eq!(after.verdict.reason(), "R9 !read_ok");
        assert_eq!(after.stats.as_ref().unwrap().processed, 1);
    }
    assert!(matches!(
        LoadedObject::load(&with_a_bad_start(&path, &bad.section), &options),
        Err(KernelError::Load { .. })
    ));
}

#[test]
fn a_missing_attach_target_is_no_fault_of_the_program() {
    let (true, Some(folder)) = (permitted(), bench("k2")) else { return };
    let options = LoadOptions { program_type: Some("fentry".to_owned()), only: None };
    let verdict = load_object_file(&folder.join("11-xdp1.o"), &options).unwrap();
    assert!(matches!(verdict.programs[0].verdict, LoadVerdict::Unsupported { .. }), "{verdict:?}");
}

#[test]
fn a_loaded_object_runs_and_its_maps_are_read() {
    let (true, Some(folder)) = (permitted(), bench("k2")) else { return };
    let object = LoadedObject::load_file(&folder.join("11-xdp1.o"), &LoadOptions::default()).unwrap();
    let [program] = object.programs() else { panic!("one program") };
    let maps = object.maps().unwrap();
    let map = object.map(maps[0].name()).unwrap();
    assert!(!map.entries().unwrap().is_empty());
    // An IPv4 packet with protocol 17, which xdp1 counts and drops.
    let mut packet = [0u8; 64];
    packet[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    packet[23] = 17;
    let result = object.test_run(&program.name, &packet, None, 3).unwrap();
    assert_eq!(result.retval, 1);
    let counted = map.lookup(&17u32.to_ne_bytes()).unwrap().unwrap();
    assert_eq!(counted.iter().map(|byte| u32::from(*byte)).sum::<u32>(), 3);
    assert!(matches!(object.test_run("absent", &packet, None, 1), Err(KernelError::NoProgram { .. })));
    assert!(matches!(object.map("absent"), Err(KernelError::NoMap { .. })));
}

#[test]
fn what_is_no_object_is_not_loadable() {
    if !permitted() {
        return;
    }
    let verdict = load_object(b"not an ELF file", &LoadOptions::default()).unwrap();
    assert!(!verdict.is_accepted() && verdict.not_loadable.is_some(), "{verdict:?}");
}

#[test]
fn program_types_have_bpftools_names() {
    assert_eq!(ProgramType::named("xdp").unwrap().0, ProgramType::XDP);
    assert_eq!(ProgramType::named("socket").unwrap().0, ProgramType::SOCKET_FILTER);
    assert_eq!(ProgramType::named("classifier").unwrap().0, ProgramType::SCHED_CLS);
    assert_eq!(ProgramType::named("sched_cls").unwrap().0, ProgramType::SCHED_CLS);
    assert_eq!(ProgramType::named("kprobe").unwrap().0.to_string(), "kprobe");
    assert!(matches!(ProgramType::named("nonsense"), Err(KernelError::UnknownProgramType { .. })));
}

#[test]
fn features_are_found_by_trying() {
    if !permitted() {
        return;
    }
    let found: Vec<_> = Feature::ALL.into_iter().filter(|feature| supports(*feature).unwrap()).collect();
    eprintln!("Linux {}: {found:?}", release());
    if release().starts_with("6.18") {
        assert_eq!(found, Feature::ALL);
    }
    assert!(supports_program_type(ProgramType::XDP).unwrap());
    assert!(supports_helper(ProgramType::XDP, 1).unwrap());
    assert!(!supports_helper(ProgramType::XDP, 9).unwrap());
}

#[test]
fn nothing_is_left_under_sys_fs_bpf() {
    let (true, Some(folder)) = (permitted(), bench("public")) else { return };
    // Its only map asks to be pinned by name.
    let object = folder.join("es-cilium-examples-kprobepin_bpf_bpfel.o");
    let pinned = || fs::read_dir("/sys/fs/bpf").unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let seen = in_private_pins(|| {
        // The kernel's own.
        let before = pinned();
        let verdict = load_object_file(&object, &LoadOptions::default()).unwrap();
        assert!(verdict.is_accepted());
        let loaded = LoadedObject::load_file(&object, &LoadOptions::default()).unwrap();
        assert_eq!(loaded.map("kprobe_map").unwrap().name(), "kprobe_map");
        (before, pinned())
    });
    if let Some((before, after)) = available(seen) {
        assert_eq!(before, after);
    }
}

/// Network namespace of the calling thread.
fn network() -> PathBuf {
    fs::read_link("/proc/thread-self/ns/net").unwrap()
}

#[test]
fn a_private_network_is_that_of_one_thread_and_has_no_device_but_its_own() {
    let host = network();
    let seen = || (network(), fs::read_to_string("/proc/thread-self/net/dev").unwrap());
    if let Some((private, devices)) = available(in_private_network(seen)) {
        assert_ne!(private, host);
        assert!(devices.lines().skip(2).all(|line| line.split_whitespace().nth(2) == Some("0")), "{devices}");
    }
    assert_eq!(network(), host);
}

#[test]
fn a_syscall_program_gives_its_context_back() {
    if !permitted() {
        return;
    }
    // r0 = 5; *(u64 *)(r1 + 0) = r0; exit
    let code = [[0xb7, 0, 0, 0, 5, 0, 0, 0], [0x7b, 0x01, 0, 0, 0, 0, 0, 0], RETURN_TWO[1]];
    let sleepable = RawOptions { flags: 1 << 4, ..RawOptions::default() };
    let program = RawProgram::load(ProgramType::SYSCALL, code.as_flattened(), &sleepable).unwrap();
    let context = [9; 8];
    let result = program.test_run(&[], Some(&context), 1).unwrap();
    assert_eq!((result.retval, result.ctx_out), (5, 5u64.to_ne_bytes().to_vec()));
    assert_eq!(context, [9; 8], "the caller's bytes stay as they were");
}

#[test]
fn one_program_loads_where_all_together_do_not() {
    if !permitted() {
        return;
    }
    // Its XDP and tc programs share a program array, which takes programs of one type.
    let object = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/kinds.o");
    assert!(LoadedObject::load_file(&object, &LoadOptions::default()).is_err());
    for name in ["on_xdp", "on_skb"] {
        let only = LoadOptions { only: Some(name.to_owned()), ..LoadOptions::default() };
        let loaded = LoadedObject::load_file(&object, &only).unwrap();
        assert!(loaded.test_run(name, &[7; 64], None, 1).is_ok());
        assert!(loaded.program_fd(if name == "on_xdp" { "on_skb" } else { "on_xdp" }).is_err());
    }
}

#[test]
fn memory_of_a_map_is_shared_with_programs() {
    if !permitted() {
        return;
    }
    /// `BPF_F_MMAPABLE` in `linux/bpf.h`.
    const MMAPABLE: u32 = 1 << 10;
    let map = Map::create_with(ARRAY, 4, 16, 2, MMAPABLE, None).unwrap();
    let words = map.share().unwrap();
    assert_eq!(words.len(), 4);
    words[3].store(7, std::sync::atomic::Ordering::Relaxed);
    let second = map.lookup(&1u32.to_ne_bytes()).unwrap().unwrap();
    assert_eq!(second[8..], 7u64.to_ne_bytes());
    map.update(&0u32.to_ne_bytes(), &[9; 16]).unwrap();
    drop(map);
    assert_eq!(words[0].load(std::sync::atomic::Ordering::Relaxed), u64::from_ne_bytes([9; 8]));
    let plain = Map::create(ARRAY, 4, 16, 2).unwrap();
    assert!(plain.share().is_err());
}
