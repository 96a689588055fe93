//! What loaders look at before they read anything: sections that have to be there or not, their kinds, the names of
//! relocation sections, and the symbols that cut sections into programs.
//!
//! The one idea: libbpf refuses or skips parts of a file for reasons that have nothing to do with what they say
//! (`bpf_object__elf_collect`, `ignore_elf_section` and `bpf_object__add_programs` in `tools/lib/bpf/libbpf.c`).
//! Promise: if it takes a part of the first object, it takes the same part of the second.

use std::collections::BTreeSet;

use super::findings::{Findings, in_section};
use super::matching::Matching;
use super::reference::{Place, place};
use crate::elf::{SHT_PROGBITS, SHT_SYMTAB, Section};
use crate::functions::{FuncId, FuncKind};
use crate::object::Object;
use crate::symbols::STT_FUNC;

/// Sections that libbpf reads by their names, even if they are empty, whatever their type is; but no string tables.
const READ_BY_NAME: [&str; 6] = ["maps", ".maps", "license", "version", ".BTF", ".BTF.ext"];
/// The flag of compressed sections (`SHF_COMPRESSED`).
const COMPRESSED: u64 = 0x800;

pub(super) fn compare(a: &Object, b: &Object, m: &Matching, out: &mut Findings) {
    empty_sections(a, b, out);
    sections_read_by_name(a, b, out);
    compressed(a, b, out);
    kinds(a, b, m, out);
    record_header(a, b, out);
    relocation_sections(a, b, m, out);
    function_symbols(a, b, m, out);
    first_program(a, b, m, out);
}

fn empty_sections(a: &Object, b: &Object, out: &mut Findings) {
    let read = |o: &Object| {
        let empty = o.elf.sections.iter().filter(|s| s.kind != 0 && s.size == 0);
        let mut found: Vec<(String, u32)> = empty
            .filter(|s| s.kind == SHT_SYMTAB || READ_BY_NAME.contains(&s.name.as_str()))
            .map(|s| (s.name.clone(), s.kind))
            .collect();
        found.sort();
        found
    };
    let (x, y) = (read(a), read(b));
    if x != y {
        let odd = x.iter().chain(&y).find(|s| !x.contains(s) || !y.contains(s));
        let name = odd.map_or_else(String::new, |(name, _)| name.clone());
        out.different(format!("section {name}"), "empty ones, which libbpf reads, are not in both".into());
    }
    let tables = |o: &Object| o.elf.sections.iter().filter(|s| s.kind == SHT_SYMTAB).count();
    if tables(a) != tables(b) {
        out.different("symbol table".into(), "the objects do not have the same number of them".into());
    }
}

/// Symbols, relocations and sections without a type are compared by what they mean; not so where libbpf takes them for
/// something else, because of their names.
fn sections_read_by_name(a: &Object, b: &Object, out: &mut Findings) {
    let read = |o: &'_ Object| -> BTreeSet<(String, u32, Vec<u8>)> {
        let sections = o.elf.sections.iter().enumerate().skip(1);
        let of_another_kind = |s: &Section| s.kind == 0 || s.kind == SHT_SYMTAB || s.is_reloc();
        let taken = sections.filter(|(_, s)| READ_BY_NAME.contains(&s.name.as_str()) && of_another_kind(s));
        taken.map(|(i, s)| (s.name.clone(), s.kind, o.elf.data(i).to_vec())).collect()
    };
    let (x, y) = (read(a), read(b));
    if let Some((name, kind, _)) = x.symmetric_difference(&y).next() {
        let what =
            format!("libbpf reads it by its name, and there is such a one of type {kind} in one of the two only");
        out.different(format!("section {name}"), what);
    }
}

/// libelf reads no strings out of a compressed section (`elf_strptr`), and other data as they stand.
fn compressed(a: &Object, b: &Object, out: &mut Findings) {
    let compressed = |o: &'_ Object| -> BTreeSet<(String, u32)> {
        let sections = o.elf.sections.iter().filter(|s| s.flags & COMPRESSED != 0 && !s.is_debug());
        sections.map(|s| (s.name.clone(), s.kind)).collect()
    };
    let (x, y) = (compressed(a), compressed(b));
    if let Some((name, _)) = x.symmetric_difference(&y).next() {
        out.different(format!("section {name}"), "it is compressed in one of the two only".into());
    }
}

/// The kinds of sections whose contents are compared elsewhere.
fn kinds(a: &Object, b: &Object, m: &Matching, out: &mut Findings) {
    for (i, s) in a.elf.sections.iter().enumerate() {
        let partner = m.sections.get(i).copied().flatten().and_then(|j| b.elf.sections.get(j));
        let Some(t) = partner.filter(|t| s.is_code() || t.is_code() || s.name.starts_with(".BTF")) else { continue };
        if s.kind != t.kind {
            let what = format!("its type was {}, is {}; libbpf wants {SHT_PROGBITS}", s.kind, t.kind);
            out.different(in_section(s), what);
        }
    }
}

/// libbpf reads no `.BTF.ext` with flags (`btf_ext_parse` in `tools/lib/bpf/btf.c`).
fn record_header(a: &Object, b: &Object, out: &mut Findings) {
    let header = |o: &Object| -> Option<Vec<u8>> {
        let flags_and_length = 2..8;
        Some(o.elf.data(o.elf.find(".BTF.ext")?).get(flags_and_length)?.to_vec())
    };
    if let (Some(x), Some(y)) = (header(a), header(b))
        && x != y
    {
        out.unknown("section .BTF.ext".into(), "its header has other flags or another length".into());
    }
}

/// libbpf skips relocations by the name of their section, those with addends, and refuses entries of another size.
fn relocation_sections(a: &Object, b: &Object, m: &Matching, out: &mut Findings) {
    type Form<'a> = (usize, &'a str, u32, u64);
    let unusual = |o: &'_ Object, back: &dyn Fn(usize) -> Option<usize>| -> BTreeSet<(usize, String, u32, u64)> {
        let lists = o.symbols.relocs.iter().filter(|l| !l.relocs.is_empty());
        let form = |l: &crate::symbols::RelocSection| {
            let (s, target) = (o.elf.sections.get(l.index)?, o.elf.sections.get(l.target)?);
            if target.is_debug() || target.name.starts_with(".BTF") || l.is_usual(&o.elf) {
                return None;
            }
            Some((back(l.target).unwrap_or(usize::MAX), s.name.clone(), s.kind, s.entsize))
        };
        lists.filter_map(form).collect()
    };
    let x = unusual(a, &Some);
    let y = unusual(b, &|s| m.sections_back.get(s).copied().flatten());
    let odd: Option<Form> =
        x.symmetric_difference(&y).next().map(|(t, name, kind, size)| (*t, name.as_str(), *kind, *size));
    if let Some((_, name, kind, size)) = odd {
        let which = if x.iter().any(|f| f.1 == name) { "first" } else { "second" };
        let what =
            format!("relocations of type {kind}, {size} bytes each, under this name: only in the {which} object");
        out.different(format!("section {name}"), what);
    }
}

/// Each symbol of a function makes a program of its own; one without a size, or a local one outside of `.text`, makes
/// libbpf refuse the object.
fn function_symbols(a: &Object, b: &Object, m: &Matching, out: &mut Findings) {
    type Program = (Option<FuncId>, bool, String, u8, u8, bool);
    let programs = |o: &Object, back: &dyn Fn(FuncId) -> Option<FuncId>| -> Vec<Program> {
        let functions = o.symbols.all.iter().filter(|s| s.kind == STT_FUNC);
        let program = |s: &crate::symbols::Symbol| {
            o.elf.sections.get(s.section()?).filter(|s| s.is_code())?;
            let (at, start) = match place(o, s, 0)? {
                Place::Function(f, distance) => (back(f), distance == 0),
                _ => (None, false),
            };
            Some((at, start, s.name.clone(), s.bind, s.visibility, s.size == 0))
        };
        let mut found: Vec<Program> = functions.filter_map(program).collect();
        found.sort();
        found
    };
    let (x, y) = (programs(a, &Some), programs(b, &|f| m.function_back(f)));
    if x != y {
        let odd = x.iter().chain(&y).find(|s| !x.contains(s) || !y.contains(s)).or_else(|| x.first());
        let name = odd.map_or("", |(_, _, name, ..)| name.as_str());
        out.different(format!("symbol {name}"), "it makes a program, or has a size, in one of the two only".into());
    }
}

/// `bpftool prog load` loads the first program, by section and place (`bpf_object__next_program`).
fn first_program(a: &Object, b: &Object, m: &Matching, out: &mut Findings) {
    let first = |o: &Object| {
        let programs = o.functions().iter().enumerate().filter(|(_, f)| f.kind == FuncKind::Program);
        programs.min_by_key(|(_, f)| (f.section_index, f.start)).map(|(i, _)| FuncId(i))
    };
    if let (Some(x), Some(y)) = (first(a), first(b))
        && m.function(x) != Some(y)
    {
        let what = format!(
            "it was {}, is {}; bpftool loads and pins the first",
            a.function_identity(x),
            b.function_identity(y)
        );
        out.different("first program".into(), what);
    }
}
