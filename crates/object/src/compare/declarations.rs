//! Whether the BTF types that somebody uses are the same: of maps, global variables, externals and functions.
//!
//! The one idea: BTF is used from a few roots (the variables of its data sections, the functions named by `.BTF.ext`,
//! CO-RE records), so these are compared, with all that they reach; types that nothing reaches may come and go.

use std::collections::{BTreeMap, BTreeSet};

use super::definition::{self, Definition, Unread};
use super::findings::Findings;
use super::matching::Matching;
use super::reference::{Place, place_in, same_place};
use super::types::{Names, Outcome, TypeComparison, Types};
use crate::btf::{DATASEC, SectionVariable, Type, VAR};
use crate::btf_ext::FUNC_INFO;
use crate::datasec::Places;
use crate::functions::FuncId;
use crate::object::Object;
use crate::programs::loaded_section;

/// How the variables of a data section are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    /// Map definitions, by what they say.
    Maps,
    /// Kernel symbols and configuration values: by name; libbpf chooses the places.
    Externals,
    /// The kernel knows the types by name.
    StructOps,
    /// Global variables, which user space finds by name and place.
    Variables,
}

fn sort(section: &str) -> Sort {
    match section {
        ".maps" => Sort::Maps,
        ".ksyms" | ".kconfig" => Sort::Externals,
        _ if loaded_section(section).starts_with(".struct_ops") => Sort::StructOps,
        _ => Sort::Variables,
    }
}

/// A variable of a data section.
struct Variable {
    entry: SectionVariable,
    /// Where it is, relocations applied; `None` for sections that are not in the file.
    place: Option<Place>,
}

/// Compares the variables of all data sections.
pub(super) fn variables(a: &Object, b: &Object, m: &Matching, types: &mut TypeComparison, out: &mut Findings) {
    let (mine, theirs) = (types.a.data_sections(), types.b.data_sections());
    for name in mine.keys().chain(theirs.keys().filter(|name| !mine.contains_key(*name))) {
        let list = |sections: &'_ BTreeMap<String, Vec<Type>>| sections.get(name).cloned().unwrap_or_default();
        let (x, y) = (Section::of(a, name, &list(&mine)), Section::of(b, name, &list(&theirs)));
        section(&format!("BTF of section {name}"), &x, &y, types, out);
    }
    for (section, list) in &mine {
        let partners = theirs.get(section).map_or(&[][..], Vec::as_slice);
        let (x, y) = (by_name(a, &types.a, section, list), by_name(b, &types.b, section, partners));
        for (name, variables) in &x {
            let partners = y.get(name).map_or(&[][..], Vec::as_slice);
            let place = match sort(section) {
                Sort::Maps => format!("BTF of map {name}"),
                _ => format!("BTF of variable {name} in {section}"),
            };
            if variables.len() != partners.len() {
                let what = format!("declared {} times, in the second object {}", variables.len(), partners.len());
                out.different(place, what);
                continue;
            }
            for (v, w) in variables.iter().zip(partners) {
                variable(section, &place, (v, w), m, types, out);
            }
        }
        for name in y.keys().filter(|name| !x.contains_key(*name)) {
            out.different(format!("BTF of {name} in {section}"), "only the second object has it".into());
        }
    }
    for (section, list) in theirs.iter().filter(|(s, _)| !mine.contains_key(*s)) {
        for name in by_name(b, &types.b, section, list).keys() {
            out.different(format!("BTF of {name} in {section}"), "only the second object has it".into());
        }
    }
}

/// Compares what libbpf takes for the types of external symbols, wherever they are declared.
pub(super) fn externals(a: &Object, types: &mut TypeComparison, out: &mut Findings) {
    for name in a.symbols.all.iter().filter(|s| s.is_undefined() && !s.name.is_empty()).map(|s| &s.name) {
        let place = format!("BTF of external {name}");
        match (types.a.external(name), types.b.external(name)) {
            (Some(x), Some(y)) => said(types.compare(x, y, Names::Count), &place, out),
            (None, None) => {}
            _ => out.different(place, "only one of the two declares it".into()),
        }
    }
}

/// The variables of the data sections of one name, by variable name and place.
fn by_name(o: &Object, types: &Types, section: &str, list: &[Type]) -> BTreeMap<String, Vec<Variable>> {
    let mut found: BTreeMap<String, Vec<Variable>> = BTreeMap::new();
    let mut elf = o.elf.sections.iter().enumerate().filter(|(_, s)| s.name == section && !s.is_reloc());
    for t in list {
        let (here, places) = (elf.next().map(|(here, _)| here), Places::of(&o.symbols, *t));
        for entry in types.btf.map(|b| b.section_variables(*t)).unwrap_or_default() {
            let variable = types.get(entry.id);
            let name = variable.and_then(|v| types.name(v)).unwrap_or_default();
            let linkage = variable.and_then(|v| types.btf?.word(v, 0));
            let place = here.and_then(|s| Some(place_in(o, s, places.offset(&name, linkage, entry)?)));
            found.entry(name).or_default().push(Variable { entry, place });
        }
    }
    for variables in found.values_mut() {
        variables.sort_by_key(|v| match &v.place {
            Some(Place::Section(s, at)) => (*s, *at),
            Some(Place::Map(map, at)) => (*map, *at),
            _ => (usize::MAX, u64::from(v.entry.offset)),
        });
    }
    found
}

/// Whether libbpf leaves the size of a section's variables as BTF has it. It lays `.kconfig` out anew, but with these
/// sizes, which the kernel holds against the types; in `.ksyms` it writes its own (`bpf_object__collect_externs`;
/// `btf_datasec_check_meta` and `btf_datasec_resolve` in `kernel/bpf/btf.c`).
fn keeps_sizes(section: &str) -> bool {
    section != ".ksyms"
}

/// What BTF says of a data section as a whole.
fn section(place: &str, x: &Section, y: &Section, types: &TypeComparison, out: &mut Findings) {
    if x.count != y.count {
        out.different(place.to_owned(), format!("declared {} times, in the second object {}", x.count, y.count));
    }
    if x.sizes != y.sizes && sort(x.name) != Sort::Externals {
        out.different(place.to_owned(), format!("its size was {:?} bytes, is {:?}", x.sizes, y.sizes));
    }
    // Of several only one gets the places and types of externals (`bpf_object__collect_externs`).
    if sort(x.name) == Sort::Externals && x.count.max(y.count) > 1 && !types.identical() {
        out.unknown(place.to_owned(), "it is declared more than once".into());
    }
    // libbpf looks for the section by its bare name (`map_fill_btf_type_info`).
    let first = |types: &Types, name: &str| types.first_of_name(name).map(|t| t.kind);
    if first(&types.a, x.name) != first(&types.b, x.name) || first(&types.b, x.name).is_some_and(|k| k != DATASEC) {
        out.unknown(place.to_owned(), "another type has the same name".into());
    }
}

/// The data sections of one name.
struct Section<'a> {
    name: &'a str,
    count: usize,
    /// Bytes that libbpf takes for the size of each; 0 stops it.
    sizes: Vec<u64>,
}

impl<'a> Section<'a> {
    fn of(o: &Object, name: &'a str, list: &[Type]) -> Self {
        // The first of the name (`find_elf_sec_sz`).
        let elf = o.elf.sections.iter().find(|s| s.name == name && s.kind != 0).map_or(0, |s| s.size);
        let size = |t: &Type| match t.size_or_type {
            0 => elf,
            size => u64::from(size),
        };
        Section { name, count: list.len(), sizes: list.iter().map(size).collect() }
    }
}

fn variable(
    section: &str,
    place: &str,
    (v, w): (&Variable, &Variable),
    m: &Matching,
    types: &mut TypeComparison,
    out: &mut Findings,
) {
    let sort = sort(section);
    if sort != Sort::Externals {
        let there = match (&v.place, &w.place) {
            (Some(p), Some(q)) => same_place(m, p, q),
            (p, q) => p.is_none() && q.is_none() && v.entry.offset == w.entry.offset,
        };
        if !there {
            out.different(place.to_owned(), "it has moved".into());
        }
    }
    if keeps_sizes(section) && v.entry.size != w.entry.size {
        out.different(place.to_owned(), format!("its size was {} bytes, is {}", v.entry.size, w.entry.size));
    }
    let outcome = match sort {
        Sort::Maps => return map_variable(place, v.entry.id, w.entry.id, types, out),
        Sort::Externals | Sort::StructOps => types.compare(v.entry.id, w.entry.id, Names::Count),
        Sort::Variables => types.compare(v.entry.id, w.entry.id, Names::OfMembers),
    };
    said(outcome, place, out);
}

fn said(outcome: Outcome, place: &str, out: &mut Findings) {
    match outcome {
        Outcome::Same => {}
        Outcome::Different(what) => out.different(place.to_owned(), what),
        Outcome::Unreadable(what) => out.unknown(place.to_owned(), what),
    }
}

fn map_variable(place: &str, a: u32, b: u32, types: &mut TypeComparison, out: &mut Findings) {
    let var = |types: &Types, id: u32| {
        let t = types.get(id).filter(|t| t.kind == VAR)?;
        Some((t.size_or_type, types.btf?.word(t, 0)?, types.tags_of(id)))
    };
    match (var(&types.a, a), var(&types.b, b)) {
        (Some((x, linkage, tags)), Some((y, other, other_tags))) => {
            if linkage != other || tags != other_tags {
                out.different(place.to_owned(), "its linkage or tags differ".into());
            }
            map_definition(place, x, y, types, out);
        }
        _ => out.unknown(place.to_owned(), "its variable cannot be read".into()),
    }
}

/// Definitions that loaders read are compared by what they say, all others as they stand.
fn map_definition(place: &str, a: u32, b: u32, types: &mut TypeComparison, out: &mut Findings) {
    match (definition::read(&types.a, a, false), definition::read(&types.b, b, false)) {
        (Ok(x), Ok(y)) => same_definition(place, &x, &y, types, out),
        (x, y) => match (types.compare(a, b, Names::Count), x, y) {
            (Outcome::Same, ..) => {}
            (_, Ok(_), Err(Unread::Refused(why))) => {
                out.different(place.to_owned(), format!("libbpf refuses it in the second object: {why}"));
            }
            (_, Err(Unread::Refused(why)), Ok(_)) => {
                out.different(place.to_owned(), format!("libbpf refuses it in the first object: {why}"));
            }
            (outcome, Err(Unread::Refused(_)), Err(Unread::Refused(_))) => said(outcome, place, out),
            (_, Err(Unread::Unusual(why)), _) | (_, _, Err(Unread::Unusual(why))) => {
                out.unknown(place.to_owned(), why);
            }
            (_, Ok(_), Ok(_)) => {}
        },
    }
}

fn same_definition(place: &str, x: &Definition, y: &Definition, types: &mut TypeComparison, out: &mut Findings) {
    if x.size != y.size {
        out.different(place.to_owned(), format!("the size of its type was {} bytes, is {}", x.size, y.size));
    }
    only_one(place, x.numbers.keys(), y.numbers.keys(), out);
    only_one(place, x.types.keys(), y.types.keys(), out);
    for (name, p) in &x.numbers {
        if let Some(q) = y.numbers.get(name).filter(|q| *q != p) {
            out.different(place.to_owned(), format!("`{name}` was {p}, is {q}"));
        }
    }
    for (name, p) in &x.types {
        if let Some(q) = y.types.get(name) {
            said(types.compare(*p, *q, Names::OfMembers), &format!("{place}, `{name}`"), out);
        }
    }
    match (&x.values, &y.values) {
        (Some(p), Some(q)) => {
            if p.at != q.at {
                out.different(place.to_owned(), format!("`values` was at bit {}, is at {}", p.at, q.at));
            }
            match (&p.inner, &q.inner) {
                (Some(p), Some(q)) => same_definition(&format!("{place}, inner map"), p, q, types, out),
                // A table of programs: the signature they are declared with.
                _ => said(types.compare(p.ty, q.ty, Names::Count), &format!("{place}, `values`"), out),
            }
        }
        (None, None) => {}
        (p, _) => {
            let which = if p.is_some() { "first" } else { "second" };
            out.different(place.to_owned(), format!("only the {which} object says `values`"));
        }
    }
    if let Some(name) = x.indirect.symmetric_difference(&y.indirect).next() {
        let what =
            format!("only one of the two has a name around the type of `{name}`, which not all loaders look behind");
        out.unknown(place.to_owned(), what);
    }
}

fn only_one<'a>(
    place: &str,
    x: impl Iterator<Item = &'a String>,
    y: impl Iterator<Item = &'a String>,
    out: &mut Findings,
) {
    let (x, y): (BTreeSet<&String>, BTreeSet<&String>) = (x.collect(), y.collect());
    for name in x.symmetric_difference(&y) {
        let which = if x.contains(name) { "first" } else { "second" };
        out.different(place.to_owned(), format!("only the {which} object says `{name}`"));
    }
}

/// Compares the types that `.BTF.ext` gives a pair of functions.
pub(super) fn function(a: &Object, i: FuncId, b: &Object, j: FuncId, types: &mut TypeComparison, out: &mut Findings) {
    let place = || format!("function {}", a.function_identity(i));
    let declared = |o: &Object, f: FuncId| -> Vec<u32> {
        let Some((f, ext)) = o.functions().get(f.0).zip(o.ext.as_ref()) else { return vec![] };
        ext.records(FUNC_INFO, f.section_index).filter(|r| r.slot() == f.start).map(|r| r.word(1)).collect()
    };
    match (declared(a, i).as_slice(), declared(b, j).as_slice()) {
        ([], []) => {}
        ([x], [y]) => {
            let outcome = types.compare(*x, *y, Names::Count);
            said(outcome, &format!("{}, BTF type", place()), out);
        }
        ([_], []) => out.different(place(), "the second object has no BTF type for it".into()),
        ([], [_]) => out.different(place(), "only the second object has a BTF type for it".into()),
        _ => out.unknown(place(), "several BTF types for it".into()),
    }
}
