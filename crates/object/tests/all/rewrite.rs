//! New bodies: everything follows its instruction.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use bpf_object::{FuncId, NewInsn, Object, RefKind, WriteOptions};

use crate::common::*;

const KEEP: WriteOptions = WriteOptions { keep_debug: true };
const DROP: WriteOptions = WriteOptions { keep_debug: false };

fn parse(bytes: &[u8]) -> Object {
    Object::parse(bytes.to_vec()).unwrap()
}

fn none() -> BTreeMap<usize, Vec<usize>> {
    BTreeMap::new()
}

/// The kernel's rules for line records, wherever the input kept them.
fn check_lines(name: &str, before: &[u8], after: &[u8]) {
    let (old, new) = (ext_records(before), ext_records(after));
    let object = parse(after);
    for (section, records) in &new[1] {
        assert!(records.windows(2).all(|w| w[0].0 < w[1].0), "{name}: {section}: lines not increasing");
        let first_old: Vec<u32> = old[1][section].iter().map(|r| r.0).collect();
        for (i, f) in object.functions().iter().enumerate().filter(|(_, f)| &f.section == section) {
            let had = parse(before).functions()[i].start as u32 * 8;
            if first_old.contains(&had) {
                assert!(records.iter().any(|r| r.0 as usize == f.start * 8), "{name}: {} has no first line", f.name);
            }
            let starts: Vec<usize> =
                object.identity_body(FuncId(i)).unwrap().iter().map(|x| x.origin.unwrap() + f.start).collect();
            for r in records.iter().map(|r| r.0 as usize / 8).filter(|&s| s >= f.start && s < f.start + f.slots) {
                assert!(starts.contains(&r), "{name}: a line at half an instruction");
            }
        }
    }
    for (section, records) in &new[0] {
        let starts: Vec<usize> =
            object.functions().iter().filter(|f| &f.section == section).map(|f| f.start * 8).collect();
        assert!(records.iter().all(|r| starts.contains(&(r.0 as usize))), "{name}: {section}: function records");
    }
    // Relocations on .BTF.ext sit on the fields they sat on.
    let relocs = |file: &[u8]| sections(file).into_iter().find(|s| s.name == ".rel.BTF.ext").map(|s| s.data.len() / 16);
    let count = |r: &Records| r.iter().flat_map(|t| t.values()).map(Vec::len).sum::<usize>();
    if relocs(before) == Some(count(&old)) {
        assert_eq!(relocs(after), Some(count(&new)), "{name}");
    }
}

#[test]
fn what_is_inserted_at_the_start_and_deleted_again_leaves_no_trace() {
    for path in everything() {
        let name = path.display().to_string();
        let bytes = std::fs::read(&path).unwrap();
        let mut object = parse(&bytes);
        let inserted = insert_nops(&mut object, |_, i| i == 0);
        let passed_over = (0..object.functions().len()).filter(|f| is_passed_over(&object, FuncId(*f))).count();
        assert_eq!(inserted.len() + passed_over, object.functions().len(), "{name}");
        let longer = object.write(&KEEP).unwrap().bytes;
        check_lines(&name, &bytes, &longer);
        let mut again = parse(&longer);
        assert_eq!(attachments(&object, &none()), attachments(&again, &inserted), "{name}");
        delete(&mut again, &inserted);
        let restored = again.write(&KEEP).unwrap().bytes;
        for (old, new) in sections(&bytes).iter().zip(sections(&restored)) {
            assert_eq!((old.name.as_str(), old.link, old.info), (new.name.as_str(), new.link, new.info), "{name}");
            assert!(old.data == new.data, "{name}: section {} differs", old.name);
        }
    }
}

#[test]
fn everything_follows_its_instruction() {
    for path in everything() {
        let name = path.display().to_string();
        let bytes = std::fs::read(&path).unwrap();
        for seed in 0..4 {
            let mut rng = Rng::new(seed);
            let mut object = parse(&bytes);
            // Every other function stays as it is: its records shift only.
            let inserted = insert_nops(&mut object, |f, _| (f as u64 + seed).is_multiple_of(2) && rng.below(6) == 0);
            let longer = object.write(&DROP).unwrap().bytes;
            check_lines(&name, &bytes, &longer);
            let mut again = parse(&longer);
            assert_eq!(attachments(&object, &none()), attachments(&again, &inserted), "{name}");
            // The symbols still cover the code they covered.
            for (a, b) in object.functions().iter().zip(again.functions()) {
                assert_eq!((&a.name, &a.section, a.kind), (&b.name, &b.section, b.kind));
            }
            // Labels, functions and data have kept what they point to.
            let labels = |file: &[u8]| -> Vec<(String, Vec<u8>)> {
                let all = sections(file);
                let mut found: Vec<(String, Vec<u8>)> = symbols(file)
                    .into_iter()
                    .filter(|s| s.0.starts_with("LBB"))
                    .map(|(n, section, value, _)| {
                        (n, all[section as usize].data.get(value as usize..value as usize + 1).unwrap_or(&[]).to_vec())
                    })
                    .collect();
                found.sort();
                found
            };
            assert_eq!(labels(&bytes), labels(&longer), "{name}");
            delete(&mut again, &inserted);
            let back = again.write(&DROP).unwrap().bytes;
            for old in sections(&bytes) {
                if [".BTF", ".BTF.ext"].contains(&old.name.as_str())
                    || (old.kind == 1 && !old.name.starts_with(".debug") && old.name != ".eh_frame")
                {
                    assert!(
                        section(&back, &old.name).data == old.data
                            || sections(&bytes).iter().filter(|s| s.name == old.name).count() > 1,
                        "{name}: {}",
                        old.name
                    );
                }
            }
        }
    }
}

#[test]
fn records_of_deleted_instructions_go_and_the_first_line_stays() {
    let bytes = example("globals.o");
    let mut object = parse(&bytes);
    let id = object.function_named("on_getpid").unwrap();
    let old = object.identity_body(id).unwrap();
    let gone = [object.refs(id)[0].slot, object.core_relocs(id)[0].slot, 0];
    let order: Vec<Result<usize, NewInsn>> =
        (0..old.len()).filter(|&i| !gone.contains(&old[i].origin.unwrap())).map(Ok).collect();
    object.set_body(id, relayout(&old, &order).unwrap()).unwrap();
    let after = object.write(&DROP).unwrap().bytes;
    check_lines("globals.o", &bytes, &after);
    let again = parse(&after);
    assert_eq!(again.refs(id).len(), object.refs(id).len() - 1);
    assert_eq!(again.core_relocs(id).len(), object.core_relocs(id).len() - 1);
    // The next function in the section has lost nothing.
    let next = object.function_named("on_getpid_again").unwrap();
    assert_eq!(again.functions()[next.0].start, again.functions()[id.0].slots);
    assert_eq!(attachments(&object, &none())[next.0], attachments(&again, &none())[next.0]);
}

#[test]
fn several_instructions_may_carry_the_records_of_one() {
    let mut object = parse(&example("globals.o"));
    let id = object.function_named("on_getpid").unwrap();
    let mut body = object.identity_body(id).unwrap();
    let slots = [object.refs(id)[0].slot, object.core_relocs(id)[0].slot];
    let copies: Vec<NewInsn> = body.iter().filter(|i| slots.contains(&i.origin.unwrap())).cloned().collect();
    assert_eq!(copies.len(), 2);
    // Behind the end: nothing jumps over them.
    body.extend(copies);
    object.set_body(id, body).unwrap();
    let again = parse(&object.write(&DROP).unwrap().bytes);
    assert_eq!(again.refs(id).len(), object.refs(id).len() + 1);
    assert_eq!(again.core_relocs(id).len(), object.core_relocs(id).len() + 1);
    assert_eq!(again.refs(id)[0].kind, again.refs(id).last().unwrap().kind);
}

#[test]
fn pointers_from_data_follow_the_code() {
    let bytes = fixture("code_pointers.o");
    let mut object = parse(&bytes);
    for f in ["three", "one", "two"] {
        let id = object.function_named(f).unwrap();
        let mut body = object.identity_body(id).unwrap();
        body.insert(0, goto_next());
        object.set_body(id, body).unwrap();
    }
    let after = object.write(&DROP).unwrap().bytes;
    let again = parse(&after);
    let start = |name: &str| again.functions()[again.function_named(name).unwrap().0].start as u64 * 8;
    let data = section(&after, ".data").data;
    assert_eq!([u64_at(&data, 0), u64_at(&data, 8), u64_at(&data, 16)], [start("one"), start("two"), 0]);
    assert_eq!([start("three"), start("one"), start("two")], [0, 9 * 8, 14 * 8]);
    let second = again.function_named("second").unwrap();
    let two = again.function_named("two").unwrap();
    assert!(again.refs(second).iter().any(|r| r.kind == RefKind::FuncAddr { target: two }));
}

#[test]
fn calls_may_be_moved_and_retargeted_by_their_reference() {
    let mut object = parse(&example("subprogs.o"));
    let id = object.function_named("add_one").unwrap();
    let call = object.refs(id)[0].slot;
    let old = object.identity_body(id).unwrap();
    // The same call twice, with nonsense in the immediate: it is set on writing.
    let mut copy = old.iter().find(|i| i.origin == Some(call)).unwrap().clone();
    copy.bytes[4..8].copy_from_slice(&12345i32.to_le_bytes());
    let mut order: Vec<Result<usize, NewInsn>> = (0..old.len()).map(Ok).collect();
    order.insert(1, Err(copy));
    object.set_body(id, relayout(&old, &order).unwrap()).unwrap();
    let again = parse(&object.write(&DROP).unwrap().bytes);
    let targets: Vec<_> = again.refs(id).iter().map(|r| r.kind.clone()).collect();
    let mix = RefKind::Call { target: again.function_named("mix").unwrap() };
    assert_eq!(targets, [mix.clone(), mix]);
}

#[test]
fn debug_sections_of_changed_objects_go_or_are_announced() {
    let bytes = example("xdp_count.o");
    let mut object = parse(&bytes);
    insert_nops(&mut object, |_, i| i == 3);
    let dropped = object.write(&DROP).unwrap();
    assert!(sections(&dropped.bytes).iter().all(|s| !s.name.contains("debug_")));
    assert!(dropped.notes.iter().any(|n| n.contains("DWARF section")), "{:?}", dropped.notes);
    let kept = object.write(&KEEP).unwrap();
    assert_eq!(
        section(&kept.bytes, ".debug_info"),
        RawSection { offset: section(&kept.bytes, ".debug_info").offset, ..section(&bytes, ".debug_info") }
    );
    assert!(kept.notes.iter().any(|n| n.starts_with("warning")), "{:?}", kept.notes);
    // The address-significance list names the same symbols as before.
    let named = |file: &[u8]| -> Vec<String> {
        let symbols = symbols(file);
        section(file, ".llvm_addrsig").data.iter().map(|&i| symbols[i as usize].0.clone()).collect()
    };
    assert_eq!(named(&bytes), named(&dropped.bytes));
    object.reset_body(FuncId(0));
    assert!(object.write(&DROP).unwrap().bytes == bytes);
}

#[test]
fn bodies_that_make_no_sense_are_refused() {
    let mut object = parse(&example("xdp_count.o"));
    let id = FuncId(0);
    let old = object.identity_body(id).unwrap();
    let wide = object.refs(id)[0].slot;
    let with = |insn: NewInsn| {
        let mut body = old.clone();
        body.insert(0, insn);
        body
    };
    let call = NewInsn { bytes: vec![0x85, 0x10, 0, 0, 0, 0, 0, 0], origin: None, refs_from: None };
    for (body, what) in [
        (Vec::new(), "empty"),
        (with(NewInsn { bytes: vec![5; 7], ..goto_next() }), "bytes"),
        (with(NewInsn { bytes: vec![5; 16], ..goto_next() }), "bytes"),
        (with(NewInsn { bytes: vec![0x18; 8], ..goto_next() }), "bytes"),
        (with(NewInsn { origin: Some(100_000), ..goto_next() }), "no instruction starts"),
        (with(NewInsn { origin: Some(wide + 1), ..goto_next() }), "no instruction starts"),
        (with(NewInsn { refs_from: Some(wide), ..goto_next() }), "cannot carry"),
        (with(call), "no reference"),
    ] {
        let error = object.set_body(id, body).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    assert!(object.set_body(FuncId(7), old).is_err());
}

#[test]
fn readelf_has_nothing_to_complain_about() {
    let dir = std::env::temp_dir().join(format!("bpf-object-readelf-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    for tool in ["llvm-readelf-19", "llvm-readelf", "readelf"] {
        if !have(tool) {
            eprintln!("skipped: {tool} is not installed");
            continue;
        }
        let complaints = |path: &Path| {
            let out = Command::new(tool).arg("-aW").arg(path).output().unwrap();
            let text = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
            text.lines().filter(|l| l.to_lowercase().contains("warning") || l.to_lowercase().contains("error:")).count()
        };
        for path in everything() {
            let mut object = parse(&std::fs::read(&path).unwrap());
            if object.functions().iter().map(|f| f.slots).sum::<usize>() > 6000 {
                continue;
            }
            insert_nops(&mut object, |_, i| i % 5 == 1);
            let out = dir.join("out.o");
            std::fs::write(&out, object.write(&DROP).unwrap().bytes).unwrap();
            assert!(complaints(&out) <= complaints(&path), "{tool}: {}", path.display());
        }
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn the_kernel_takes_what_it_took() {
    let required = std::env::var("BPF_OPT_REQUIRE_KERNEL").is_ok_and(|v| v == "1");
    let skip = |why: &str| {
        assert!(!required, "BPF_OPT_REQUIRE_KERNEL=1, but {why}");
        eprintln!("skipped: {why}");
    };
    if !have("bpftool") {
        return skip("bpftool is not installed");
    }
    if !Path::new("/sys/fs/bpf").exists() {
        return skip("there is no /sys/fs/bpf");
    }
    let dir = std::env::temp_dir().join(format!("bpf-object-kernel-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let pins = format!("/sys/fs/bpf/bpf-object-test-{}", std::process::id());
    let load = |path: &Path| {
        let out = Command::new("bpftool").args(["prog", "loadall"]).arg(path).arg(&pins).output().unwrap();
        let _ = std::fs::remove_dir_all(&pins);
        if out.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&out.stderr).into_owned()) }
    };
    if let Err(e) = load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/xdp_count.o")) {
        std::fs::remove_dir_all(&dir).unwrap();
        return skip(&format!("it does not load examples/xdp_count.o: {e}"));
    }
    let mut loaded = 0;
    for path in everything() {
        let bytes = std::fs::read(&path).unwrap();
        let mut object = parse(&bytes);
        // Some objects pin their maps when loaded: that would stay behind.
        let pinning = bytes.windows(7).any(|w| w == b"pinning");
        if pinning || object.functions().iter().map(|f| f.slots).sum::<usize>() > 3000 || load(&path).is_err() {
            continue;
        }
        insert_nops(&mut object, |_, i| i % 4 == 0);
        let out = dir.join("out.o");
        let longer = object.write(&DROP).unwrap().bytes;
        std::fs::write(&out, &longer).unwrap();
        load(&out).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        loaded += 1;
    }
    std::fs::remove_dir_all(&dir).unwrap();
    eprintln!("{loaded} objects loaded");
    assert!(loaded >= 3, "the examples load");
}
