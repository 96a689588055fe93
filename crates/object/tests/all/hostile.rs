//! Wrong, corrupt and hostile files: an error or a locked function, never a panic.

use bpf_object::{FuncId, Object, ObjectError, WriteOptions};

use crate::common::*;

fn error(bytes: Vec<u8>) -> ObjectError {
    Object::parse(bytes).expect_err("must not be read")
}

/// File offset of a section's contents.
fn at(bytes: &[u8], name: &str) -> usize {
    section(bytes, name).offset
}

#[test]
fn files_of_other_kinds_are_named() {
    let good = example("xdp_count.o");
    let with = |at: usize, value: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        bytes
    };
    assert_eq!(error(Vec::new()), ObjectError::NotElf);
    assert_eq!(error(b"#!/bin/sh\n".to_vec()), ObjectError::NotElf);
    assert_eq!(error(with(4, &[1])), ObjectError::Not64Bit);
    assert_eq!(error(with(18, &62u16.to_le_bytes())), ObjectError::WrongMachine { machine: 62 });
    assert_eq!(error(with(16, &2u16.to_le_bytes())), ObjectError::WrongType { found: 2 });
    // Little-endian numbers in a file that says that it is big-endian.
    assert!(matches!(error(with(5, &[2])), ObjectError::WrongMachine { .. }));
    for len in [3, 20, 63, 64, good.len() / 2, good.len() - 1] {
        let e = error(good[..len].to_vec());
        assert!(matches!(e, ObjectError::Truncated { .. } | ObjectError::NotElf), "{len}: {e}");
    }
}

#[test]
fn corrupt_sections_are_named_with_offset() {
    let good = example("subprogs.o");
    let with = |section: &str, offset: usize, value: &[u8]| {
        let mut bytes = good.clone();
        let at = at(&bytes, section) + offset;
        bytes[at..at + value.len()].copy_from_slice(value);
        bytes
    };
    for (bytes, place, what) in [
        (with(".BTF", 0, &[0, 0]), ".BTF", "magic"),
        (with(".BTF", 12, &u32::MAX.to_le_bytes()), ".BTF", "past the end"),
        (with(".BTF.ext", 0, &[0, 0]), ".BTF.ext", "magic"),
        (with(".BTF.ext", 12, &u32::MAX.to_le_bytes()), ".BTF.ext", "past the end"),
        (with(".BTF.ext", 32, &3u32.to_le_bytes()), ".BTF.ext", "record size"),
        (with(".BTF.ext", 40, &u32::MAX.to_le_bytes()), ".BTF.ext", "more records"),
        (with(".relxdp", 12, &9999u32.to_le_bytes()), ".relxdp", "symbol 9999"),
        (with(".relxdp", 0, &0x10000u64.to_le_bytes()), ".relxdp", "outside section `xdp`"),
        (
            with(".rel.maps", 0, &(section(&good, ".maps").data.len() as u64 - 4).to_le_bytes()),
            ".rel.maps",
            "past the end",
        ),
    ] {
        match error(bytes) {
            ObjectError::Corrupt { section, problem, .. } => {
                assert_eq!(section, place);
                assert!(problem.contains(what), "{problem}");
            }
            other => panic!("{other}"),
        }
    }
}

/// Sets a field of a named symbol.
fn patch_symbol(bytes: &mut [u8], name: &str, field: usize, value: u64) {
    let index = symbols(bytes).iter().position(|s| s.0 == name).unwrap();
    let place = at(bytes, ".symtab") + index * 24 + field;
    bytes[place..place + 8].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn overlapping_functions_are_locked() {
    let mut bytes = example("subprogs.o");
    let size = symbols(&bytes).iter().find(|s| s.0 == "mix").unwrap().3;
    patch_symbol(&mut bytes, "mix", 16, size + 8);
    let mut object = Object::parse(bytes.clone()).unwrap();
    for name in ["mix", "account"] {
        let id = object.function_named(name).unwrap();
        assert!(object.locked(id).unwrap().contains("overlap"));
        assert!(object.warnings().iter().any(|w| w.starts_with(".text+0x") && w.contains(name)));
        let mut body = object.identity_body(id).unwrap();
        body.insert(0, goto_next());
        assert!(matches!(object.set_body(id, body), Err(ObjectError::Locked { .. })));
    }
    // The others still move, and carry the locked ones along.
    let id = object.function_named("classify").unwrap();
    let mut body = object.identity_body(id).unwrap();
    body.insert(0, goto_next());
    object.set_body(id, body).unwrap();
    let again = Object::parse(object.write(&WriteOptions::default()).unwrap().bytes).unwrap();
    let start = |o: &Object| o.functions()[o.function_named("mix").unwrap().0].start;
    assert_eq!(start(&again), start(&object) + 1);
}

#[test]
fn symbols_that_do_not_fit_lock_their_section() {
    let mut bytes = example("subprogs.o");
    patch_symbol(&mut bytes, "mix", 8, 0x54);
    let object = Object::parse(bytes).unwrap();
    assert!(object.function_named("mix").is_none());
    assert!(object.locked(object.function_named("account").unwrap()).is_some());
    assert!(object.locked(object.function_named("pass").unwrap()).is_some(), "it calls code that is no function now");
}

#[test]
fn code_that_belongs_to_no_function_locks_its_section() {
    let mut bytes = example("subprogs.o");
    patch_symbol(&mut bytes, "classify", 16, 72);
    let object = Object::parse(bytes).unwrap();
    let reason = |name: &str| object.locked(object.function_named(name).unwrap());
    assert!(reason("mix").unwrap().contains("0x48"));
    assert_eq!(reason("entry"), None);
}

#[test]
fn references_that_are_not_understood_lock_the_function() {
    // A relocation moved from a call to another instruction.
    let mut bytes = example("subprogs.o");
    let place = at(&bytes, ".relxdp");
    let first = u64_at(&bytes, place);
    bytes[place..place + 8].copy_from_slice(&(first + 8).to_le_bytes());
    let object = Object::parse(bytes).unwrap();
    let locked = object.functions().iter().enumerate().filter(|&(i, _)| object.locked(FuncId(i)).is_some()).count();
    assert!(locked >= 1);
    assert!(!object.warnings().is_empty());
}

#[test]
fn functions_without_size_reach_to_the_next() {
    let mut bytes = example("subprogs.o");
    let good = Object::parse(bytes.clone()).unwrap();
    for name in ["mix", "account", "add_one", "entry"] {
        patch_symbol(&mut bytes, name, 16, 0);
    }
    let object = Object::parse(bytes).unwrap();
    assert_eq!(good.functions(), object.functions());
}

#[test]
fn code_without_symbols_or_btf_is_one_function() {
    // Turn the symbol and relocation tables and BTF into sections nobody knows.
    let mut bytes = example("xdp_count.o");
    let shoff = u64_at(&bytes, 40) as usize;
    let names: Vec<(usize, RawSection)> = sections(&bytes).into_iter().enumerate().collect();
    for (i, s) in &names {
        if s.kind == 2 || s.kind == 9 || s.name.starts_with(".BTF") {
            bytes[shoff + i * 64 + 4..shoff + i * 64 + 8].copy_from_slice(&0x6000_0000u32.to_le_bytes());
        }
    }
    let mut object = Object::parse(bytes).unwrap();
    assert_eq!(object.functions().len(), 1);
    assert_eq!((object.functions()[0].name.as_str(), object.functions()[0].start), ("xdp", 0));
    assert_eq!(insert_nops(&mut object, |_, i| i < 2).len(), 1);
    let again = Object::parse(object.write(&WriteOptions::default()).unwrap().bytes).unwrap();
    assert_eq!(again.functions()[0].slots, object.functions()[0].slots + 2);
}

#[test]
fn mutated_files_never_panic() {
    let wanted: Option<u64> = std::env::var("BPF_OBJECT_FUZZ").ok().and_then(|v| v.parse().ok());
    let cases = wanted.unwrap_or(1500);
    // The longer campaign takes the small benchmark objects too.
    let paths = if wanted.is_some() { everything() } else { fixtures() };
    let mut fixtures: Vec<Vec<u8>> = paths.iter().map(|p| std::fs::read(p).unwrap()).collect();
    fixtures.retain(|f| f.len() < 70_000);
    let (mut read, mut written) = (0, 0);
    for seed in 0..cases {
        let mut rng = Rng::new(seed);
        let mut bytes = fixtures[rng.below(fixtures.len())].clone();
        // Half of the time aim at the tables, where flips matter most.
        let all = sections(&bytes);
        let targets: Vec<&RawSection> =
            all.iter().filter(|s| !s.data.is_empty() && !s.name.contains("debug")).collect();
        for _ in 0..1 + rng.below(6) {
            let place = match rng.below(5) {
                0 => rng.below(bytes.len()),
                1 => (u64_at(&bytes, 40).min(1 << 20) as usize + rng.below(all.len() * 64)).min(bytes.len() - 1),
                _ => {
                    let s = targets[rng.below(targets.len())];
                    s.offset + rng.below(s.data.len())
                }
            };
            bytes[place] = match rng.below(3) {
                0 => bytes[place] ^ (1 << rng.below(8)),
                1 => [0, 0xff, 0x7f, 0x80][rng.below(4)],
                _ => rng.next() as u8,
            };
        }
        if rng.below(8) == 0 {
            bytes.truncate(rng.below(bytes.len()));
        }
        let Ok(mut object) = Object::parse(bytes) else { continue };
        read += 1;
        for f in 0..object.functions().len() {
            let id = FuncId(f);
            let _ = (
                object.func_proto(id),
                object.line_of(id, 1),
                object.source_lines(id),
                object.refs(id),
                object.core_relocs(id),
                object.locked(id),
            );
            let mut body = object.identity_body(id).unwrap();
            let _ = object.set_body(id, body.clone());
            if rng.below(2) == 0 {
                body.insert(rng.below(body.len()), goto_next());
            } else {
                body.remove(rng.below(body.len()));
            }
            let _ = object.set_body(id, body);
        }
        let options = WriteOptions { keep_debug: rng.below(2) == 0 };
        match object.write(&options) {
            Ok(out) => {
                Object::parse(out.bytes).unwrap();
                written += 1;
            }
            Err(e) => eprintln!("seed {seed}: {e}"),
        }
    }
    assert!(read > cases / 10 && written > cases / 20, "{read} read, {written} written: the mutations are too rough");
}
