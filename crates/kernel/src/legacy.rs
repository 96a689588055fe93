//! Objects of older days, made such that libbpf takes them: above all their maps.
//!
//! Before maps were defined by types (`.maps`), objects defined them by numbers: records in a section `maps`, which
//! iproute2, bcc, libbpf before 1.0, cilium/ebpf and others still take, or in sections `maps/…`, which gobpf does.
//! libbpf 1.x refuses the former and knows nothing of the latter. The one idea: a copy of the object gets a `.maps`
//! section with the same records, and types that define the same maps.
//!
//! Promises: instructions, relocations and all other sections are what they were. A record with fields that nobody knows,
//! or that is no definition, gets a reason: the map is there, so that programs without it can be linked, and is not to be
//! made.

mod compilers;
mod image;
mod unlinked;

use std::{collections::BTreeMap, ffi::CStr};

use bpf_platform::maps;
use object::elf;

use crate::sys::{Types, Variable};
use image::{Image, Symbol, word};

pub(crate) use unlinked::without_calls_of;

/// An object whose maps are defined by types alone.
pub(crate) struct Converted {
    pub(crate) bytes: Vec<u8>,
    /// Maps that are not to be made, and why.
    pub(crate) impossible: Vec<(String, String)>,
}

/// Where maps are defined by types.
const BY_TYPES: &str = ".maps";
const TYPES: &str = ".BTF";

/// Does an object with a section of this name define maps in it by numbers?
fn is_legacy(section: &str) -> bool {
    section == "maps" || section.starts_with("maps/")
}

/// A record: the map it defines.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    /// What the maps in this one are like.
    inner: Inner,
    /// How this map is called by others of the section (iproute2).
    id: u32,
    /// Why it is not known what this map is.
    problem: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inner {
    None,
    /// Like the map with this id.
    Id(u32),
    /// Like the map with this number in the section.
    Index(u32),
}

/// A record in its place.
struct Map {
    name: String,
    symbol: Symbol,
    record: Record,
}

/// A copy of an object of older days; `None` if it is none, or is not to be read.
pub(crate) fn convert(bytes: &[u8]) -> Option<Converted> {
    let mut image = Image::parse(bytes)?;
    let modernized = compilers::modernize(&mut image)?;
    let impossible = convert_maps(&mut image);
    (modernized || impossible.is_some())
        .then(|| Converted { bytes: image.into_bytes(), impossible: impossible.unwrap_or_default() })
}

/// Defines the maps of legacy sections by types: those that are not to be made, and why; `None` if there are none.
fn convert_maps(image: &mut Image) -> Option<Vec<(String, String)>> {
    let legacy = |&s: &usize| image.name(s).is_some_and(is_legacy) && image.is_data(s);
    let old: Vec<usize> = image.sections().filter(legacy).collect();
    let first = *old.first()?;
    let symbols = image.symbols()?;
    let sections: Vec<Vec<Map>> = old.iter().map(|&section| read(image, section, &symbols)).collect::<Option<_>>()?;

    // Where the types are: the section that is there, or the first of the old ones.
    let target = image.find(BY_TYPES).unwrap_or(first);
    let mut data = image.data(target)?.to_vec();
    let mut starts = BTreeMap::new();
    for &section in &old {
        if section == target {
            starts.insert(section, 0);
            continue;
        }
        data.resize(data.len().next_multiple_of(8), 0);
        starts.insert(section, data.len() as u64);
        data.extend_from_slice(image.data(section)?);
    }

    let types = define(image, &sections, &starts, data.len() as u32)?;
    image.set_data(target, &data);
    for symbol in &symbols {
        if let Some(start) = starts.get(&symbol.section) {
            image.move_symbol(symbol, target, symbol.value.wrapping_add(*start));
        }
    }
    for &section in &old {
        // Of the others nothing is needed any more, but their numbers.
        image.rename(section, if section == target { BY_TYPES } else { ".legacy_maps" })?;
    }
    match image.find(TYPES) {
        Some(section) => image.set_data(section, &types),
        None => image.add(TYPES, &types)?,
    }
    Some(sections.into_iter().flatten().filter_map(|map| Some((map.name, map.record.problem?))).collect())
}

/// The maps of a section, in their order.
fn read(image: &Image, section: usize, symbols: &[Symbol]) -> Option<Vec<Map>> {
    let data = image.data(section)?;
    let mut at: BTreeMap<u64, &Symbol> = BTreeMap::new();
    for symbol in symbols.iter().filter(|s| s.section == section) {
        let label = symbol.kind == elf::STT_NOTYPE && symbol.binding == elf::STB_LOCAL;
        if ![elf::STT_SECTION, elf::STT_FILE].contains(&symbol.kind) && !label {
            at.entry(symbol.value).or_insert(symbol);
        }
    }
    // Symbols need have no size: like all loaders, take the records for equally long (libbpf 0.x:
    // `bpf_object__init_user_maps`, iproute2: `bpf_fetch_maps_end`).
    let length = data.len().checked_div(at.len()).unwrap_or(0);
    let regular = length > 0 && data.len() % at.len() == 0 && at.keys().all(|at| at % length as u64 == 0);
    let mut maps: Vec<Map> = Vec::new();
    for (start, symbol) in at {
        let bytes = data.get(usize::try_from(start).ok()?..).and_then(|rest| rest.get(..length));
        let record = match bytes.filter(|_| regular) {
            Some(bytes) => Record::of(bytes),
            None => Record::unknown("the section of its definition is not a number of equally long records"),
        };
        maps.push(Map { name: symbol.name.clone(), symbol: symbol.clone(), record });
    }
    Some(maps)
}

impl Record {
    /// The five numbers that all loaders know, and what is behind them, as the record's length tells.
    fn of(bytes: &[u8]) -> Self {
        const NUMBERS: usize = 5;
        /// `struct bpf_map_def` of gobpf: one word that says how it is pinned, and the name of a directory for that.
        const GOBPF: usize = 24 + 256;
        let number = |index: usize| word(bytes, index * 4).unwrap_or(0);
        let [kind, key_size, value_size, max_entries, flags] = [0, 1, 2, 3, 4].map(number);
        let record = Self { kind, key_size, value_size, max_entries, flags, inner: Inner::None, id: 0, problem: None };
        let nests = [maps::ARRAY_OF_MAPS, maps::HASH_OF_MAPS].contains(&kind);
        match bytes.len() {
            0..16 => Self::unknown("its definition is too short"),
            // `struct bpf_map_def` of the kernel's samples (bpf_load.h): an inner map by its number, and a NUMA node.
            // Older versions of iproute2 have an id there and how to pin it, and take no maps of maps.
            24 | 28 if nests => Self { inner: Inner::Index(number(5)), ..record },
            24 | 28 | GOBPF => record,
            // `struct bpf_elf_map` (include/bpf_elf.h of iproute2): id, pinning, inner_id, inner_idx.
            36 => {
                let inner = if nests && number(7) != 0 { Inner::Id(number(7)) } else { Inner::None };
                Self { id: number(5), inner, ..record }
            }
            _ => match bytes.iter().skip(NUMBERS * 4).position(|b| *b != 0) {
                Some(at) => Self::unknown(&format!("nobody knows byte {} of its definition", NUMBERS * 4 + at)),
                None => record,
            },
        }
        .checked()
    }

    fn unknown(why: &str) -> Self {
        Self {
            kind: maps::ARRAY,
            key_size: 0,
            value_size: 0,
            max_entries: 0,
            flags: 0,
            inner: Inner::None,
            id: 0,
            problem: Some(why.to_owned()),
        }
    }

    /// libbpf opens no object with a map of type 0.
    fn checked(self) -> Self {
        if self.kind == 0 { Self::unknown("its definition has no type") } else { self }
    }
}

/// The object's types with definitions of these maps; `size` is that of the section.
fn define(image: &Image, sections: &[Vec<Map>], starts: &BTreeMap<usize, u64>, size: u32) -> Option<Vec<u8>> {
    let encoded = image.find(TYPES).and_then(|section| image.data(section));
    let mut types = Types::new(encoded).ok()?;
    types.take_sections(is_legacy);
    let mut variables = Vec::new();
    // A section without a size gets that and its places from the symbols, which are moved.
    let mut section_size = size;
    for (size_before, there) in types.take_sections(|name| name == BY_TYPES) {
        variables.extend(there);
        section_size = if size_before == 0 { 0 } else { section_size };
    }
    for maps in sections {
        for (index, map) in maps.iter().enumerate() {
            let end =
                maps.get(index + 1).map_or(image.data(map.symbol.section)?.len() as u64, |next| next.symbol.value);
            let definition = define_map(&mut types, maps, map, true)?;
            variables.push(Variable {
                type_id: types.variable(&map.name, definition).ok()?,
                offset: starts.get(&map.symbol.section)?.wrapping_add(map.symbol.value) as u32,
                size: end.saturating_sub(map.symbol.value) as u32,
            });
        }
    }
    variables.sort_by_key(|v| v.offset);
    types.section(c".maps", section_size, &variables).ok()?;
    types.encoded().ok()
}

/// The type that defines a map as libbpf reads it (`parse_btf_map_def`).
fn define_map(types: &mut Types, maps: &[Map], map: &Map, may_nest: bool) -> Option<u32> {
    let r = &map.record;
    let mut members: Vec<(&CStr, u32)> = Vec::new();
    for (name, number) in [(c"type", r.kind), (c"max_entries", r.max_entries), (c"map_flags", r.flags)] {
        members.push((name, types.number(number).ok()?));
    }
    let (key, value) = key_and_value(types, map);
    for (size_name, name, size, known) in
        [(c"key_size", c"key", r.key_size, key), (c"value_size", c"value", r.value_size, value)]
    {
        members.push(match known {
            Some(known) => (name, types.pointer(known).ok()?),
            None => (size_name, types.number(size).ok()?),
        });
    }
    let inner = match r.inner {
        Inner::None => None,
        Inner::Id(id) => maps.iter().find(|m| m.record.id == id),
        Inner::Index(index) => maps.get(index as usize),
    };
    // Maps of maps of maps there are none. libbpf wants this member to be the last, and values of four bytes beside it.
    if let Some(inner) =
        inner.filter(|inner| may_nest && inner.record.problem.is_none() && [0, 4].contains(&r.value_size))
    {
        let pattern = define_map(types, maps, inner, false)?;
        members.push((c"values", types.pointers(pattern).ok()?));
    }
    types.definition(&members).ok()
}

/// The types of keys and values, if a structure beside the record says so (`BPF_ANNOTATE_KV_PAIR`), and they are as long
/// as the record says (libbpf 0.x: `bpf_map_find_btf_info`).
fn key_and_value(types: &Types, map: &Map) -> (Option<u32>, Option<u32>) {
    let members = types.members(&format!("____btf_map_{}", map.name));
    let [(key_name, key), (value_name, value)] = &members[..] else { return (None, None) };
    let fits = types.size_of(*key) == Some(map.record.key_size) && types.size_of(*value) == Some(map.record.value_size);
    if fits && key_name == "key" && value_name == "value" { (Some(*key), Some(*value)) } else { (None, None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(words: &[u32]) -> Record {
        Record::of(&words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>())
    }

    #[test]
    fn the_length_of_a_record_tells_what_its_fields_are() {
        let [kind, key_size, value_size, max_entries, flags] = [1, 4, 8, 16, 1];
        let plain = record(&[kind, key_size, value_size, max_entries, flags]);
        assert_eq!(plain.problem, None);
        assert_eq!((plain.kind, plain.key_size, plain.value_size), (1, 4, 8));
        assert_eq!((plain.max_entries, plain.flags, plain.inner), (16, 1, Inner::None));
        // Without flags; with what places it or pins it.
        assert_eq!(record(&[1, 4, 8, 16]), Record { flags: 0, ..plain.clone() });
        assert_eq!(record(&[1, 4, 8, 16, 1, 7, 2]), plain);
        assert_eq!(record(&[12, 4, 4, 16, 0, 3, 0]).inner, Inner::Index(3));
        let nested = record(&[12, 4, 4, 16, 0, 9, 2, 7, 0]);
        assert_eq!((nested.id, nested.inner), (9, Inner::Id(7)));
        assert_eq!(record(&[12, 4, 4, 16, 0, 9, 2, 0, 0]).inner, Inner::None);
    }

    #[test]
    fn what_nobody_knows_is_not_guessed() {
        let mut words = [1, 4, 8, 16, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(record(&words).problem, None);
        words[9] = 1 << 8;
        assert_eq!(record(&words).problem.as_deref(), Some("nobody knows byte 37 of its definition"));
        assert_eq!(record(&[0, 4, 8, 16, 0]).problem.as_deref(), Some("its definition has no type"));
        assert_eq!(record(&[1, 4, 8]).problem.as_deref(), Some("its definition is too short"));
    }

    const EXAMPLE: &[u8] = include_bytes!("../../../examples/xdp_count.o");

    #[test]
    fn objects_of_today_are_not_touched() {
        assert!(convert(EXAMPLE).is_none());
        assert!(convert(b"no object").is_none());
    }

    #[test]
    fn functions_without_a_type_and_relocations_with_addends_become_what_they_are_today() {
        let mut image = Image::parse(EXAMPLE).unwrap();
        let functions = |image: &Image| -> Vec<(String, u64, u64)> {
            let symbols = image.symbols().unwrap().into_iter().filter(|s| s.kind == elf::STT_FUNC);
            symbols.map(|s| (s.name, s.value, s.size)).collect()
        };
        let code = image.find("xdp").unwrap();
        let relocations = image.find(".relxdp").unwrap();
        let today = (functions(&image), image.data(relocations).unwrap().to_vec());
        assert!(!today.0.is_empty() && !today.1.is_empty());

        image.age(code, relocations);
        let aged = image.into_bytes();
        assert!(functions(&Image::parse(&aged).unwrap()).is_empty());
        let converted = convert(&aged).expect("there is something to do");
        assert!(converted.impossible.is_empty());
        let image = Image::parse(&converted.bytes).unwrap();
        assert_eq!((functions(&image), image.data(relocations).unwrap().to_vec()), today);
        assert!(convert(&converted.bytes).is_none(), "it is of today now");
    }

    #[test]
    fn damaged_objects_are_converted_or_not_and_nothing_worse() {
        let whole = include_bytes!("../tests/fixtures/legacy.o");
        let mut state = 1u64;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let header = whole.len() - 40 * 64..whole.len();
        let converted = (0..4000).filter(|round| {
            let mut bytes = whole.to_vec();
            for _ in 0..1 + below(3) {
                // Mostly in the headers, which are at the end, and in that of the file.
                let at = match round % 3 {
                    0 => below(64),
                    1 => header.start + below(header.len()),
                    _ => below(whole.len()),
                };
                bytes[at] = below(256) as u8;
            }
            convert(&bytes).is_some()
        });
        assert!((500..4000).contains(&converted.count()));
    }

    #[test]
    fn a_record_per_symbol_or_none() {
        let legacy = include_bytes!("../tests/fixtures/legacy.o");
        assert!(convert(legacy).unwrap().impossible.is_empty());
        // One byte more, and no length fits.
        let mut image = Image::parse(legacy).unwrap();
        let section = image.find("maps").unwrap();
        let longer = [image.data(section).unwrap(), &[0]].concat();
        image.set_data(section, &longer);
        let impossible = convert(&image.into_bytes()).unwrap().impossible;
        let names: Vec<&str> = impossible.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["table", "array", "events", "locks"]);
        assert!(impossible[0].1.ends_with("is not a number of equally long records"), "{impossible:?}");
    }
}
