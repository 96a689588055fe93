//! `verify` compares all that an object declares and holds, not just its code.
//!
//! Every case changes one thing of a real object and says what `verify` has to make of it: *different* with words that
//! name the place, at least *not equal*, or *equal* for what no loader sees.

mod declarations;
mod loading;
mod maps;
mod names;
mod places;
mod records;
mod symbols;
mod types;
mod unseen;

use std::path::PathBuf;
use std::time::Duration;

use bpf_driver::{FunctionVerdict, Options, Silent, VerifyReport};
use bpf_kernel::{LoadOptions, Loader, ObjectVerdict};

use crate::edit::{self, Btf, DATASEC, DECL_TAG, Elf, Ext, FUNC, Reloc, STRUCT, Symbol, Type, VAR, Word};

fn fixture(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../object/tests/fixtures/compare");
    std::fs::read(folder.join(name)).expect("fixture")
}

fn verify(a: &[u8], b: &[u8]) -> VerifyReport {
    let options = Options { time_limit: Duration::from_secs(20), ..Options::default() };
    bpf_driver::verify(a, b, &options).expect("both can be read")
}

fn changed(name: &str, change: impl FnOnce(&mut Elf)) -> (Vec<u8>, Vec<u8>) {
    let before = fixture(name);
    let mut elf = Elf::parse(&before);
    change(&mut elf);
    (before, elf.bytes())
}

#[track_caller]
fn equal(name: &str, change: impl FnOnce(&mut Elf)) -> VerifyReport {
    let (a, b) = changed(name, change);
    assert_ne!(Elf::parse(&a).bytes(), b, "the case changes nothing");
    let report = verify(&a, &b);
    assert!(report.is_equal(), "{report:#?}");
    report
}

/// Different, outside of the code, with these words.
#[track_caller]
fn different(name: &str, words: &[&str], change: impl FnOnce(&mut Elf)) {
    let (a, b) = changed(name, change);
    for (x, y) in [(&a, &b), (&b, &a)] {
        let report = verify(x, y);
        assert!(report.is_different(), "{report:#?}");
        let said = report.differences.join("\n");
        assert!(words.iter().all(|w| said.contains(w)), "not said: {words:?} in {report:#?}");
    }
}

#[track_caller]
fn unknown(name: &str, words: &str, change: impl FnOnce(&mut Elf)) {
    let (a, b) = changed(name, change);
    for (x, y) in [(&a, &b), (&b, &a)] {
        let report = verify(x, y);
        assert!(!report.is_equal() && !report.is_different(), "{report:#?}");
        assert!(report.unknowns.join("\n").contains(words), "{report:#?}");
    }
}

#[track_caller]
fn not_equal(name: &str, change: impl FnOnce(&mut Elf)) -> VerifyReport {
    let (a, b) = changed(name, change);
    let report = verify(&b, &a);
    assert!(!report.is_equal(), "{report:#?}");
    let report = verify(&a, &b);
    assert!(!report.is_equal(), "{report:#?}");
    report
}

const DECLARATIONS: &str = "declarations.o";

#[track_caller]
fn other_btf(words: &[&str], change: impl FnOnce(&mut Btf, &mut Ext)) {
    different(DECLARATIONS, words, |elf| elf.change_btf(change));
}

fn member<'a>(btf: &'a mut Btf, ty: &str, member: &str) -> &'a mut [Word] {
    let ty = btf.find(STRUCT, ty);
    let at = btf.member(ty, member);
    &mut btf.types[ty].body[at..at + 3]
}

fn core_record<'a>(ext: &'a mut Ext, section: &str, kind: u32) -> &'a mut Vec<Word> {
    let (_, records) = ext.tables[2].1.iter_mut().find(|(name, _)| name == section).expect("records");
    records.iter_mut().find(|r| r[3] == Word::Number(kind)).expect("a record of this kind")
}

fn records<'a>(ext: &'a mut Ext, table: usize, section: &str) -> &'a mut Vec<edit::Record> {
    let (_, records) = ext.tables[table].1.iter_mut().find(|(name, _)| name == section).expect("records");
    records
}

fn number(w: &Word) -> u32 {
    match w {
        Word::Number(n) => *n,
        other => panic!("{other:?} is no number"),
    }
}

fn typedef(btf: &mut Btf, of: usize) -> usize {
    btf.add(Type { name: "around".into(), info: 8 << 24, size_or_type: Word::Type(of), body: vec![] })
}

fn pointer(btf: &mut Btf, to: usize) -> usize {
    btf.add(Type { name: String::new(), info: 2 << 24, size_or_type: Word::Type(to), body: vec![] })
}

fn type_of(w: &Word) -> usize {
    match w {
        Word::Type(id) => *id,
        other => panic!("{other:?} is no type"),
    }
}

fn plain(name: &str, info: u32, size_or_type: Word, body: Vec<Word>) -> Type {
    Type { name: name.into(), info, size_or_type, body }
}

const TWINS: &str = "twins.o";

/// Bytes of each of the two functions `twin`, which stand at the start of `.text`.
const TWIN: usize = 48;

#[test]
fn writing_an_object_anew_changes_nothing() {
    for name in [DECLARATIONS, "two_sections.o"] {
        let before = fixture(name);
        let mut elf = Elf::parse(&before);
        elf.change_btf(|_, _| {});
        let report = verify(&before, &elf.bytes());
        assert!(report.is_equal(), "{report:#?}");
    }
    let twins = fixture("twins.o");
    let report = verify(&twins, &Elf::parse(&twins).bytes());
    assert!(report.is_equal() && report.notes.is_empty(), "{report:#?}");
}
