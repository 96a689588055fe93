//! Whether the BTF types that somebody uses are the same: of maps, global variables, externals and functions.
//!
//! The one idea: BTF is used from a few roots (the variables of its data sections, the functions named by `.BTF.ext`,
//! CO-RE records), so these are compared, with all that they reach; types that nothing reaches may come and go.

use super::Findings;
use super::matching::Matching;
use super::reference::{Place, place, place_in, same_place};
use super::types::{Names, Outcome, TypeComparison, Types};
use crate::btf::{ARRAY, ENUM, ENUM64, PTR, STRUCT, SectionVariable, Type, VAR};
use crate::btf_ext::FUNC_INFO;
use crate::functions::FuncId;
use crate::object::Object;
use crate::symbols::{Reloc, STB_LOCAL};
use std::collections::{BTreeMap, HashMap};

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
        _ if section.trim_start_matches('?').starts_with(".struct_ops") => Sort::StructOps,
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
                variable(sort(section), &place, (v, w), m, types, out);
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
        let places = elf.next().map(|(here, _)| Places::of(o, here));
        for entry in types.btf.map(|b| b.section_variables(*t)).unwrap_or_default() {
            let name = types.get(entry.id).and_then(|v| types.name(v)).unwrap_or_default();
            let place = places.as_ref().map(|p| p.variable(&name, entry));
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

/// Where the variables of a section are.
struct Places<'a> {
    object: &'a Object,
    section: usize,
    /// Relocations on `.BTF`, by offset.
    relocs: HashMap<u64, &'a Reloc>,
    /// Values of the section's symbols that are not local.
    symbols: HashMap<&'a str, u64>,
}

impl<'a> Places<'a> {
    fn of(object: &'a Object, section: usize) -> Self {
        let btf = object.elf.find(".BTF");
        let relocs = object.symbols.relocs.iter().filter(|l| Some(l.target) == btf).flat_map(|l| &l.relocs);
        let symbols = object.symbols.all.iter().filter(|s| s.section() == Some(section) && s.bind != STB_LOCAL);
        Places {
            object,
            section,
            relocs: relocs.map(|r| (r.offset, r)).collect(),
            symbols: symbols.map(|s| (s.name.as_str(), s.value)).collect(),
        }
    }

    /// clang leaves the offset to a relocation, or to the loader, which asks the symbol table
    /// (libbpf: `btf_fixup_datasec`).
    fn variable(&self, name: &str, entry: SectionVariable) -> Place {
        if let Some(r) = self.relocs.get(&(entry.offset_at as u64))
            && let Some(symbol) = self.object.symbols.get(r.symbol)
            && let Some(place) = place(self.object, symbol, r.addend.unwrap_or(i64::from(entry.offset)))
        {
            return place;
        }
        let offset = self.symbols.get(name).copied().unwrap_or(u64::from(entry.offset));
        place_in(self.object, self.section, offset)
    }
}

fn variable(
    sort: Sort,
    place: &str,
    (v, w): (&Variable, &Variable),
    m: &Matching,
    types: &mut TypeComparison,
    out: &mut Findings,
) {
    if sort != Sort::Externals {
        let there = match (&v.place, &w.place) {
            (Some(p), Some(q)) => same_place(m, p, q),
            (p, q) => p.is_none() && q.is_none() && v.entry.offset == w.entry.offset,
        };
        if !there {
            out.different(place.to_owned(), "it has moved".into());
        }
        if v.entry.size != w.entry.size {
            out.different(place.to_owned(), format!("its size was {} bytes, is {}", v.entry.size, w.entry.size));
        }
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
            map_definition(place, x, y, types, out, 0);
        }
        _ => out.unknown(place.to_owned(), "its variable cannot be read".into()),
    }
}

/// libbpf reads a definition member by member, by name (`parse_btf_map_def` in `tools/lib/bpf/libbpf.c`).
fn map_definition(place: &str, a: u32, b: u32, types: &mut TypeComparison, out: &mut Findings, depth: usize) {
    let (Some(x), Some(y)) = (members(&types.a, a), members(&types.b, b)) else {
        // Not the form libbpf wants: it has to be the same type.
        return said(types.compare(a, b, Names::Count), place, out);
    };
    for name in x.keys().chain(y.keys().filter(|k| !x.contains_key(*k))) {
        let (p, q) = match (x.get(name), y.get(name)) {
            (Some(p), Some(q)) => (*p, *q),
            (p, _) => {
                let which = if p.is_some() { "first" } else { "second" };
                out.different(place.to_owned(), format!("only the {which} object says `{name}`"));
                continue;
            }
        };
        match name.as_str() {
            "type" | "max_entries" | "map_flags" | "numa_node" | "key_size" | "value_size" | "pinning"
            | "map_extra" => match (number(&types.a, p), number(&types.b, q)) {
                (Some(p), Some(q)) if p == q => {}
                (Some(p), Some(q)) => out.different(place.to_owned(), format!("`{name}` was {p}, is {q}")),
                _ => said(types.compare(p, q, Names::Count), &format!("{place}, `{name}`"), out),
            },
            "values" => match (inner(&types.a, p), inner(&types.b, q)) {
                (Some(p), Some(q)) if depth == 0 => {
                    map_definition(&format!("{place}, inner map"), p, q, types, out, 1);
                }
                // A table of programs: the signature they are declared with.
                _ => said(types.compare(p, q, Names::Count), &format!("{place}, `values`"), out),
            },
            // A pointer to the type of keys or values.
            _ => {
                let pointees = (types.a.btf.and_then(|b| b.pointee(p)), types.b.btf.and_then(|b| b.pointee(q)));
                let outcome = match (name.as_str(), pointees) {
                    ("key" | "value", (Some(p), Some(q))) => types.compare(p, q, Names::OfMembers),
                    _ => types.compare(p, q, Names::Count),
                };
                said(outcome, &format!("{place}, `{name}`"), out);
            }
        }
    }
}

/// The members of a struct by name, if each has one of its own.
fn members(types: &Types, id: u32) -> Option<BTreeMap<String, u32>> {
    let btf = types.btf?;
    let (_, t) = btf.plain(id).filter(|(_, t)| t.kind == STRUCT)?;
    let mut found = BTreeMap::new();
    for i in 0..t.vlen {
        found.insert(btf.string(btf.word(t, i * 3)?)?, btf.word(t, i * 3 + 1)?);
    }
    (found.len() == t.vlen).then_some(found)
}

/// `__uint(name, N)` is `int (*name)[N]`; `__ulong(name, N)` a pointer to an enum with one value.
fn number(types: &Types, id: u32) -> Option<u64> {
    let btf = types.btf?;
    let (_, t) = btf.plain(id).filter(|(_, t)| t.kind == PTR)?;
    let (_, t) = btf.plain(t.size_or_type)?;
    match t.kind {
        ARRAY => btf.word(t, 2).map(u64::from),
        ENUM if t.vlen == 1 => btf.word(t, 1).map(u64::from),
        ENUM64 if t.vlen == 1 => Some(u64::from(btf.word(t, 2)?) << 32 | u64::from(btf.word(t, 1)?)),
        _ => None,
    }
}

/// The definition that `values` points to, in a map of maps.
fn inner(types: &Types, id: u32) -> Option<u32> {
    let btf = types.btf?;
    let (_, t) = btf.plain(id).filter(|(_, t)| t.kind == ARRAY)?;
    let pointee = btf.pointee(btf.word(t, 0)?)?;
    btf.plain(pointee).filter(|(_, t)| t.kind == STRUCT).map(|_| pointee)
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
