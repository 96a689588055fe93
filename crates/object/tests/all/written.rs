//! What was written is compared with the original, all but the bodies that changed.

use std::collections::{BTreeMap, BTreeSet};

use bpf_object::compare::{Finding, beside_bodies};
use bpf_object::{FuncId, Object, WriteOptions};

use crate::common::edit::Elf;
use crate::common::*;

const DECLARATIONS: &[u8] = include_bytes!("../fixtures/compare/declarations.o");

fn parse(bytes: &[u8]) -> Object {
    Object::parse(bytes.to_vec()).unwrap()
}

/// The object with `goto +0` in every function with an odd number, what was written of it, and which functions changed.
fn lengthened(bytes: &[u8], keep_debug: bool) -> (Object, Vec<u8>, BTreeSet<FuncId>) {
    with_nops(bytes, keep_debug, |slot| slot % 3 == 0)
}

fn with_nops(bytes: &[u8], keep_debug: bool, at: impl Fn(usize) -> bool) -> (Object, Vec<u8>, BTreeSet<FuncId>) {
    let mut object = parse(bytes);
    let inserted = insert_nops(&mut object, |f, slot| f % 2 == 1 && at(slot));
    let written = object.write(&WriteOptions { keep_debug }).unwrap().bytes;
    (object, written, inserted.iter().filter(|(_, slots)| !slots.is_empty()).map(|(f, _)| FuncId(*f)).collect())
}

fn found(object: &Object, written: &[u8], changed: &BTreeSet<FuncId>) -> Vec<Finding> {
    match Object::parse(written.to_vec()) {
        Ok(written) => beside_bodies(object, &written, changed),
        Err(e) => vec![Finding { place: "the file".into(), what: e.to_string() }],
    }
}

#[test]
fn nothing_differs_beside_the_bodies_that_changed() {
    let mut changed_functions = 0;
    for path in everything() {
        let bytes = std::fs::read(&path).unwrap();
        for keep_debug in [true, false] {
            let (object, written, changed) = lengthened(&bytes, keep_debug);
            changed_functions += changed.len();
            assert_eq!(found(&object, &written, &changed), [], "{}", path.display());
        }
    }
    assert!(changed_functions >= 20, "{changed_functions}");
}

#[test]
fn a_changed_body_that_nobody_has_proven_is_seen() {
    let (object, written, changed) = lengthened(DECLARATIONS, false);
    assert!(changed.len() >= 3);
    for f in &changed {
        let others = changed.iter().copied().filter(|g| g != f).collect();
        assert_ne!(found(&object, &written, &others), []);
    }
}

/// Changes one part of what was written, which has to be seen.
#[track_caller]
fn seen(change: impl FnOnce(&mut Elf)) {
    let (object, written, changed) = lengthened(DECLARATIONS, false);
    let mut elf = Elf::parse(&written);
    assert_eq!(found(&object, &elf.bytes(), &changed), [], "taking it apart changes something");
    change(&mut elf);
    assert_ne!(found(&object, &elf.bytes(), &changed), []);
}

#[test]
fn symbols_that_did_not_follow_are_seen() {
    for n in 0..3 {
        seen(|elf| {
            let mut symbols = elf.symbols();
            let functions: Vec<usize> = (0..symbols.len()).filter(|&i| symbols[i].kind == 2).collect();
            match n {
                0 => symbols[functions[1]].size += 8,
                1 => symbols[functions[1]].bind = 2,
                _ => symbols[functions[1]].name.push('x'),
            }
            elf.set_symbols(&symbols);
        });
    }
    seen(|elf| {
        let mut symbols = elf.symbols();
        let at = symbols.iter().position(|s| s.kind == 1).unwrap();
        symbols[at].value += 8;
        elf.set_symbols(&symbols);
    });
}

#[test]
fn sections_that_changed_are_seen() {
    seen(|elf| elf.section("license").data[0] ^= 1);
    seen(|elf| elf.section(".rodata").data[0] ^= 1);
    seen(|elf| elf.section(".maps").flags ^= 1);
    seen(|elf| elf.section("license").align = 64);
    seen(|elf| elf.section(".bss").size += 8);
}

#[test]
fn relocations_that_changed_are_seen() {
    let lists: Vec<String> = Elf::parse(DECLARATIONS)
        .sections
        .iter()
        .filter(|s| s.kind == 9 && !s.name.contains("debug") && !s.name.contains("BTF") && !s.data.is_empty())
        .map(|s| s.name.clone())
        .collect();
    assert!(lists.len() >= 3, "{lists:?}");
    for list in &lists {
        seen(|elf| {
            let mut relocs = elf.relocs(list);
            relocs[0].kind ^= 3;
            elf.set_relocs(list, &relocs);
        });
    }
    for list in lists.iter().filter(|l| l.contains(".maps") || l.contains(".data") || l.contains("struct_ops")) {
        seen(|elf| {
            let mut relocs = elf.relocs(list);
            relocs.pop();
            elf.set_relocs(list, &relocs);
        });
    }
}

#[test]
fn records_that_did_not_follow_are_seen() {
    let words = |elf: &mut Elf, change: &dyn Fn(&mut [u8])| change(&mut elf.section(".BTF.ext").data);
    let word = |b: &[u8], at: usize| u32::from_le_bytes(b[at..at + 4].try_into().unwrap()) as usize;
    // The first record of each table: its instruction, and what it says.
    for table in 0..3 {
        for field in [0, 4] {
            seen(|elf| {
                words(elf, &|b| {
                    let start = word(b, 4) + word(b, 8 + table * 8);
                    b[start + 12 + field] ^= 8;
                });
            });
        }
    }
}

#[test]
fn types_that_changed_are_seen() {
    for at in [30, 200, 1000, 1500] {
        seen(|elf| elf.section(".BTF").data[at] ^= 1);
    }
}

/// Every byte of the file that is not the body of a changed function.
#[test]
fn every_byte_counts() {
    // Only the first instruction is new: which line others had is known.
    let (object, written, changed) = with_nops(DECLARATIONS, false, |slot| slot == 0);
    let all = sections(&written);
    let again = parse(&written);
    let bodies: Vec<(usize, std::ops::Range<usize>)> = changed
        .iter()
        .map(|f| &again.functions()[f.0])
        .map(|f| (f.section_index, f.start * 8..(f.start + f.slots) * 8))
        .collect();
    let mut missed: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut tried = 0;
    for (i, s) in all.iter().enumerate().filter(|(_, s)| s.kind != 0 && s.kind != 8 && s.kind != 3) {
        let slots = [".BTF.ext", ".symtab"].contains(&s.name.as_str());
        let flips = if slots { &[4, 0x18][..] } else { &[4] };
        for (at, flip) in (0..s.data.len()).flat_map(|at| flips.iter().map(move |flip| (at, flip))) {
            if bodies.iter().any(|(section, range)| *section == i && range.contains(&at)) {
                continue;
            }
            let mut other = written.clone();
            other[s.offset + at] ^= flip;
            tried += 1;
            if found(&object, &other, &changed).is_empty() {
                missed.entry(s.name.clone()).or_default().push(at);
            }
        }
    }
    // Nobody who loads an object reads the list of symbols whose addresses count, and its numbers follow the symbols.
    missed.remove(".llvm_addrsig");
    assert!(tried > 9000, "{tried}");
    assert!(missed.is_empty(), "not seen: {missed:?}");
}
