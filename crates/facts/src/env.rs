//! What the function's surroundings tell about it.

use bpf_platform::{ManagedFields, maps};

/// What the object states of a map.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MapInfo {
    /// Symbol name.
    pub name: String,
    /// `bpf_map_type`.
    pub map_type: Option<u32>,
    /// Bytes of a key.
    pub key_size: Option<u32>,
    /// Bytes of a value.
    pub value_size: Option<u32>,
    /// Greatest number of elements.
    pub max_entries: Option<u32>,
    /// What the kernel manages in its values.
    pub managed: ManagedFields,
}

impl MapInfo {
    /// Whether a lookup surely gives the address of a value, rather than an inner map or a socket.
    pub fn lookup_gives_value(&self) -> bool {
        self.map_type.is_some_and(|t| maps::element(t) == maps::Element::Value)
    }

    /// Whether its values surely begin at a multiple of eight.
    pub fn aligns_values(&self) -> bool {
        self.map_type.is_some_and(maps::aligns_values)
    }

    /// Whether an output-value argument may be read.
    pub(crate) fn may_be_bloom_filter(&self) -> bool {
        self.map_type.is_none_or(maps::peek_reads_value)
    }
}

/// The surroundings of a function: the object's maps and what is known of the functions it calls.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    /// The object's map table; [`bpf_program::Symbol::Map`] and [`crate::Region::MapValue`] index it.
    pub maps: &'a [MapInfo],
    /// How many arguments the subprogram of that name reads; `None` if unknown.
    pub callee_args: &'a dyn Fn(&str) -> Option<usize>,
    /// Sections of global data.
    pub sections: &'a [SectionInfo],
}

/// What is known of a section of global data.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SectionInfo {
    /// Name, unique in the object.
    pub name: String,
    /// It begins at a multiple of two to this power, also where it is linked with others into one (`sh_addralign`).
    pub zero_bits: u32,
    /// What the kernel manages in it.
    pub managed: ManagedFields,
}

fn unknown_arity(_: &str) -> Option<usize> {
    None
}

impl Env<'static> {
    /// No maps, nothing known of callees.
    pub fn empty() -> Env<'static> {
        Env { maps: &[], callee_args: &unknown_arity, sections: &[] }
    }
}

impl Env<'_> {
    /// The map with this index.
    pub fn map(&self, index: usize) -> Option<&MapInfo> {
        self.maps.get(index)
    }
}
