//! Finding the maps of an object.
//!
//! The one idea: a map is a symbol in a map section; its definition comes from the BTF variable
//! at its place, or of its name where BTF has no places (`.maps`), or from the numbers in the
//! section itself (legacy `maps`, where libbpf's and iproute2's structs agree in the first five
//! fields). Promise: a map without a readable definition is still listed, with unknown fields, so
//! that references to it resolve.

use std::collections::{BTreeMap, HashMap};

use bpf_platform::ManagedFields;

use crate::btf::{ARRAY, Btf, DATASEC, STRUCT, VAR};
use crate::elf::{Elf, SHT_PROGBITS, u32_at};
use crate::managed;
use crate::symbols::{STB_LOCAL, STT_FILE, STT_FUNC, STT_NOTYPE, STT_SECTION, Symbols};

/// A map as its definition says, from BTF's `.maps` or from a legacy `maps` section.
///
/// `None` is what the definition does not say. A type, size or length of 0 is not said either: libbpf keeps no other mark of
/// what a loader has yet to set (`bpf_map__set_value_size` and siblings).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MapDef {
    /// Symbol name.
    pub name: String,
    /// `enum bpf_map_type`.
    pub map_type: Option<u32>,
    /// Bytes of a key; `None` for maps without keys, too.
    pub key_size: Option<u32>,
    /// Bytes of a value; `None` for maps without values, too.
    pub value_size: Option<u32>,
    /// Number of entries.
    pub max_entries: Option<u32>,
    /// `BPF_F_…` flags; `None` if the definition does not say.
    pub map_flags: Option<u32>,
    /// Defined in a legacy `maps` section, not through BTF.
    pub legacy: bool,
    /// The template of the inner maps of a map-in-map.
    pub inner: Option<Box<MapDef>>,
    /// What the kernel manages in its values. Only BTF tells it of that.
    pub managed: ManagedFields,
    /// Whether `managed` is all: the map will be made by this definition. Of a legacy definition the types of values may be
    /// told elsewhere (`BPF_ANNOTATE_KV_PAIR` of libbpf 0.x), and a map that is pinned may be another object's, with types
    /// that this one does not know: libbpf compares but sizes (`map_is_reuse_compat`).
    pub values_known: bool,
}

/// All maps, and where they are.
#[derive(Debug, Clone, Default)]
pub(crate) struct Maps {
    pub defs: Vec<MapDef>,
    /// (section, offset) of each map.
    pub places: BTreeMap<(usize, u64), usize>,
    sections: Vec<usize>,
}

impl Maps {
    pub fn read(elf: &Elf, symbols: &Symbols, btf: Option<&Btf>) -> Self {
        let mut this = Self::default();
        let btf_maps = btf.map(map_defs).unwrap_or_default();
        let mut by_place: HashMap<u64, &MapDef> = HashMap::new();
        let mut by_name: HashMap<&str, Vec<&MapDef>> = HashMap::new();
        for (at, def) in &btf_maps {
            match at {
                Some(at) => drop(by_place.entry(u64::from(*at)).or_insert(def)),
                None => by_name.entry(def.name.as_str()).or_default().push(def),
            }
        }
        // libbpf takes a reference for that to the map at the symbol's place, whatever the symbol is called
        // (`bpf_program__record_reloc`).
        let from_btf = |name: &str, start: u64| {
            let named = || match by_name.get(name)?.as_slice() {
                [only] => Some(*only),
                // Nothing says which is where.
                _ => None,
            };
            by_place.get(&start).copied().or_else(named).map(|def| MapDef { name: name.to_owned(), ..def.clone() })
        };
        for (section, s) in elf.sections.iter().enumerate() {
            let legacy = s.name == "maps" || s.name.starts_with("maps/");
            if s.kind != SHT_PROGBITS || s.is_code() || !(legacy || s.name == ".maps") {
                continue;
            }
            this.sections.push(section);
            let mut names: BTreeMap<u64, &str> = BTreeMap::new();
            for symbol in symbols.all.iter().filter(|y| y.section() == Some(section) && y.value < s.size) {
                let label = symbol.kind == STT_NOTYPE && symbol.bind == STB_LOCAL;
                if !label && ![STT_SECTION, STT_FILE, STT_FUNC].contains(&symbol.kind) {
                    names.entry(symbol.value).or_insert(&symbol.name);
                }
            }
            let ends: Vec<u64> = names.keys().copied().skip(1).chain([s.size]).collect();
            for ((&start, &name), end) in names.iter().zip(ends) {
                let def = if legacy {
                    legacy_def(name, elf.data(section), start, end)
                } else {
                    from_btf(name, start).unwrap_or_else(|| MapDef { name: name.to_owned(), ..MapDef::default() })
                };
                this.places.insert((section, start), this.defs.len());
                this.defs.push(def);
            }
        }
        this
    }

    pub fn is_map_section(&self, section: usize) -> bool {
        self.sections.contains(&section)
    }

    /// The map at or before an offset, and the distance from its start.
    pub fn at(&self, section: usize, offset: u64) -> Option<(usize, u64)> {
        let (&(_, start), &map) = self.places.range((section, 0)..=(section, offset)).next_back()?;
        Some((map, offset - start))
    }
}

/// The variables of the `.maps` data section: (offset if the section has places, name, type).
fn map_variables(btf: &Btf) -> Vec<(Option<u32>, String, u32)> {
    let mut found = Vec::new();
    for id in btf.ids() {
        let Some(t) = btf.get(id).filter(|t| t.kind == DATASEC) else { continue };
        if btf.string(t.name).as_deref() != Some(".maps") {
            continue;
        }
        // clang leaves size and offsets to loaders, linkers write both (libbpf: `btf_fixup_datasec`).
        let has_places = t.size_or_type != 0;
        for entry in btf.section_variables(t) {
            if let Some(var) = btf.get(entry.id).filter(|v| v.kind == VAR)
                && let Some(name) = btf.string(var.name)
            {
                found.push((has_places.then_some(entry.offset), name, var.size_or_type));
            }
        }
    }
    found
}

/// The definitions of all `.maps` variables, with their offsets there if BTF has them.
fn map_defs(btf: &Btf) -> Vec<(Option<u32>, MapDef)> {
    map_variables(btf).into_iter().map(|(at, name, ty)| (at, map_def(btf, name, ty, 0))).collect()
}

/// libbpf's encoding: numbers are the lengths of arrays pointed to, types are pointed to.
fn map_def(btf: &Btf, name: String, ty: u32, depth: usize) -> MapDef {
    let mut map = MapDef { name, values_known: true, ..MapDef::default() };
    let Some((_, t)) = btf.plain(ty).filter(|(_, t)| t.kind == STRUCT) else { return map };
    for (member, ty) in btf.members(t) {
        match member.as_str() {
            "type" => map.map_type = number(btf, ty).filter(is_said),
            "key_size" => map.key_size = number(btf, ty).filter(is_said),
            "value_size" => map.value_size = number(btf, ty).filter(is_said),
            "max_entries" => map.max_entries = number(btf, ty).filter(is_said),
            "map_flags" => map.map_flags = number(btf, ty),
            "pinning" => map.values_known = false,
            "key" => map.key_size = btf.pointee(ty).and_then(|t| btf.size_of(t)).filter(is_said),
            "value" => {
                let value = btf.pointee(ty);
                map.value_size = value.and_then(|t| btf.size_of(t)).filter(is_said);
                map.managed = value.map_or_else(ManagedFields::default, |t| managed::in_type(btf, t));
            }
            "values" => {
                map.value_size = Some(4);
                let inner = btf.plain(ty).filter(|(_, t)| t.kind == ARRAY).and_then(|(_, t)| btf.word(t, 0));
                if let Some(inner) = inner.and_then(|t| btf.pointee(t))
                    && depth == 0
                    && btf.plain(inner).is_some_and(|(_, t)| t.kind == STRUCT)
                {
                    map.inner = Some(Box::new(map_def(btf, format!("{}.inner", map.name), inner, 1)));
                }
            }
            _ => {}
        }
    }
    map
}

/// Whether a number says something ([`MapDef`]).
fn is_said(number: &u32) -> bool {
    *number != 0
}

/// `__uint(name, N)` is `int (*name)[N]` (libbpf: `get_map_field_int`).
fn number(btf: &Btf, id: u32) -> Option<u32> {
    btf.get(btf.pointee(id)?).filter(|t| t.kind == ARRAY).and_then(|t| btf.word(t, 2))
}

fn legacy_def(name: &str, data: &[u8], start: u64, end: u64) -> MapDef {
    let field = |index: u64| {
        let at = start.checked_add(index * 4).filter(|at| at.saturating_add(4) <= end)?;
        u32_at(data, usize::try_from(at).ok()?)
    };
    MapDef {
        name: name.to_owned(),
        map_type: field(0).filter(is_said),
        key_size: field(1).filter(is_said),
        value_size: field(2).filter(is_said),
        max_entries: field(3).filter(is_said),
        map_flags: field(4),
        legacy: true,
        inner: None,
        // The definition has no types.
        managed: ManagedFields::default(),
        values_known: false,
    }
}
