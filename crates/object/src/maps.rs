//! Finding the maps of an object.
//!
//! The one idea: a map is a symbol in a map section; its definition comes from the BTF variable
//! at its place, or of its name where BTF has no places (`.maps`), or from the numbers in the
//! section itself (legacy `maps`, where libbpf's and iproute2's structs agree in the first five
//! fields). Promise: a map without a readable definition is still listed, with unknown fields, so
//! that references to it resolve.

use bpf_platform::ManagedFields;

use crate::btf::{Btf, MapDef};
use crate::elf::{Elf, SHT_PROGBITS, u32_at};
use crate::symbols::{STB_LOCAL, STT_FILE, STT_FUNC, STT_NOTYPE, STT_SECTION, Symbols};
use std::collections::{BTreeMap, HashMap};

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
        let btf_maps = btf.map(Btf::map_defs).unwrap_or_default();
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

fn legacy_def(name: &str, data: &[u8], start: u64, end: u64) -> MapDef {
    let field = |index: u64| {
        let at = start.checked_add(index * 4).filter(|at| at.saturating_add(4) <= end)?;
        u32_at(data, usize::try_from(at).ok()?)
    };
    MapDef {
        name: name.to_owned(),
        map_type: field(0),
        key_size: field(1),
        value_size: field(2),
        max_entries: field(3),
        map_flags: field(4),
        legacy: true,
        inner: None,
        // Their values have no types.
        managed: ManagedFields::default(),
    }
}
