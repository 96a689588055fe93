//! What the function's surroundings tell about it.

use bpf_platform::{ManagedFields, first_key_of_longer, maps};
use bpf_program::{ByteOrder, Symbol};

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
    /// Whether `managed` is all: nobody else defines the map.
    pub values_known: bool,
    /// It holds maps, which may have fewer elements than the verifier believes
    /// ([`bpf_platform::inner_maps_may_be_shorter`]).
    pub inner_may_be_shorter: bool,
    /// Of the maps in it, what [`MapInfo::first_key_of_longer`] is of itself.
    pub first_inner_key_of_longer: Option<u32>,
    /// Only its loader knows how long its keys or values are, or those of the maps in it.
    pub is_open: bool,
}

impl MapInfo {
    /// Whether a lookup surely gives the address of a value, rather than an inner map or a socket.
    pub fn lookup_gives_value(&self) -> bool {
        self.map_type.is_some_and(|t| maps::element(t) == maps::Element::Value)
    }

    /// The first constant key that the verifier may take for there if its loader makes it longer, or chooses its type.
    pub fn first_key_of_longer(&self) -> Option<u32> {
        first_key_of_longer(self.map_type, self.max_entries)
    }

    /// To what power of two its values surely begin at a multiple.
    pub fn value_zero_bits(&self) -> u32 {
        self.map_type.map_or(0, |t| maps::value_zero_bits(t, self.key_size))
    }

    /// Bytes of the program's memory that are read where it hands over a value.
    pub fn value_bytes_read(&self) -> Option<u32> {
        self.value_size.map(|n| maps::value_bytes_read(self.map_type, n))
    }

    /// Whether it may count that a program names it.
    pub fn naming_counts(&self) -> bool {
        self.map_type.is_none_or(maps::naming_counts)
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
    /// Functions that are not in the object.
    pub externs: &'a [ExternInfo],
    /// The order of bytes of the machine it is for: that of its functions.
    pub byte_order: ByteOrder,
}

/// A function of the kernel's or of another object, as this one declares it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ExternInfo {
    /// Its symbol's name.
    pub name: String,
    /// How many parameters it has. The kernel and libbpf refuse a call if its own function has others
    /// (`bpf_object__resolve_ksym_func_btf_id`; `check_kfunc_args` in kernel/bpf/verifier.c).
    pub parameters: usize,
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
    /// No maps, nothing known of callees, a little-endian machine.
    pub fn empty() -> Env<'static> {
        Env { maps: &[], callee_args: &unknown_arity, sections: &[], externs: &[], byte_order: ByteOrder::Little }
    }
}

impl Env<'_> {
    /// How many argument registers the callee of a call by this symbol has; `None` if unknown.
    pub fn arguments_of(&self, callee: &Symbol) -> Option<usize> {
        match callee {
            Symbol::Func { name } => (self.callee_args)(name),
            Symbol::Extern { name } => self.externs.iter().find(|e| *e.name == **name).map(|e| e.parameters),
            _ => None,
        }
    }

    /// The map with this index.
    pub fn map(&self, index: usize) -> Option<&MapInfo> {
        self.maps.get(index)
    }
}
