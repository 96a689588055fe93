//! What a relocation points to, in terms that two objects share.
//!
//! The one idea: a relocation is a symbol and a number; the place that the two give is looked up among functions, maps
//! and sections, so that moving code or maps about changes nothing, and pointing elsewhere is seen. Loaders also use
//! the symbol alone (libbpf: `bpf_object__collect_st_ops_relos`, `bpf_object__collect_map_relos`), so it is part of the
//! identity. Promise: a relocation that cannot be followed is an error, never equal to anything.

use super::matching::Matching;
use crate::elf::{u32_at, u64_at};
use crate::functions::FuncId;
use crate::object::Object;
use crate::symbols::{R_BPF_64_32, R_BPF_64_64, R_BPF_64_ABS32, R_BPF_64_ABS64, R_BPF_64_NODYLD32, Reloc, Symbol};

/// A place in an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Bytes from the start of a function.
    Function(FuncId, u64),
    /// Bytes from the start of a map's definition.
    Map(usize, u64),
    /// Bytes from the start of a section.
    Section(usize, u64),
    /// Bytes from the start of a section of this name that is empty: variables without a size stand there.
    Empty(String, u64),
    /// A symbol that another object or the kernel defines, and a distance.
    Undefined(String, i64),
    /// A number, or a common symbol, with `st_shndx`.
    Absolute(u16, u64),
    /// Relocation to no symbol.
    Nothing(i64),
}

/// A relocation, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    /// Bytes that it patches.
    pub width: usize,
    /// Where it leads.
    place: Place,
    /// The symbol itself: where it is, and what loaders see of it beside that.
    symbol: (Place, Identity),
}

/// Follows a relocation on data.
///
/// # Errors
/// Why it cannot be followed.
pub(super) fn follow(o: &Object, section: usize, r: &Reloc) -> Result<Reference, String> {
    let width = match r.kind {
        R_BPF_64_64 | R_BPF_64_ABS64 => 8,
        R_BPF_64_ABS32 | R_BPF_64_NODYLD32 | R_BPF_64_32 => 4,
        kind => return Err(format!("relocation of unknown type {kind} at {:#x}", r.offset)),
    };
    let data = o.elf.data(section);
    let at = usize::try_from(r.offset).map_err(|e| e.to_string())?;
    let in_place = match width {
        8 => u64_at(data, at).map(|v| v as i64),
        _ => u32_at(data, at).map(|v| i64::from(v as i32)),
    };
    let in_place = in_place.ok_or_else(|| format!("relocation at {:#x} reaches past the end", r.offset))?;
    let symbol = o.symbols.get(r.symbol).ok_or_else(|| format!("relocation at {:#x} names no symbol", r.offset))?;
    let own = place(o, symbol, 0).ok_or_else(|| format!("symbol `{}` is nowhere", symbol.name))?;
    let there = place(o, symbol, r.addend.unwrap_or(in_place))
        .ok_or_else(|| format!("relocation at {:#x} leads before its section", r.offset))?;
    Ok(Reference { width, place: there, symbol: (own, identity(symbol)) })
}

/// What loaders see of the symbol that a relocation names, beside its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// Its own name, or that of the section it stands for.
    name: String,
    kind: u8,
    bind: u8,
}

/// The identity of a symbol.
pub(super) fn identity(s: &Symbol) -> Identity {
    Identity { name: s.name.clone(), kind: s.kind, bind: s.bind }
}

/// The place at a distance from a symbol.
pub(super) fn place(o: &Object, symbol: &Symbol, distance: i64) -> Option<Place> {
    if symbol.is_undefined() {
        return Some(match symbol.name.is_empty() {
            true => Place::Nothing(distance),
            false => Place::Undefined(symbol.name.clone(), distance),
        });
    }
    let at = symbol.value.checked_add_signed(distance)?;
    match symbol.section() {
        Some(section) => Some(place_in(o, section, at)),
        None => Some(Place::Absolute(symbol.shndx, at)),
    }
}

/// The place at an offset of a section.
pub(super) fn place_in(o: &Object, section: usize, at: u64) -> Place {
    let slot = usize::try_from(at / 8).unwrap_or(usize::MAX);
    for &f in o.layout.functions_of(section) {
        if let Some(function) = o.functions().get(f)
            && (function.start..function.start + function.slots).contains(&slot)
        {
            return Place::Function(FuncId(f), at - function.start as u64 * 8);
        }
    }
    match o.maps.at(section, at) {
        Some((map, distance)) => Place::Map(map, distance),
        None => match o.elf.sections.get(section) {
            Some(s) if s.size == 0 => Place::Empty(s.name.clone(), at),
            _ => Place::Section(section, at),
        },
    }
}

/// Whether two relocations lead to the same thing.
pub(super) fn same(m: &Matching, a: &Reference, b: &Reference) -> bool {
    a.width == b.width && same_place(m, &a.place, &b.place) && same_place(m, &a.symbol.0, &b.symbol.0) && {
        a.symbol.1 == b.symbol.1
    }
}

/// Whether two places stand for each other. Inside a function only the start does: what is at another distance
/// depends on its body.
pub(super) fn same_place(m: &Matching, a: &Place, b: &Place) -> bool {
    match (a, b) {
        (Place::Function(f, x), Place::Function(g, y)) => m.function(*f) == Some(*g) && *x == 0 && *y == 0,
        (Place::Map(p, x), Place::Map(q, y)) => m.map_back(*q) == Some(*p) && x == y,
        (Place::Section(s, x), Place::Section(t, y)) => m.sections.get(*s).copied().flatten() == Some(*t) && x == y,
        (Place::Empty(..) | Place::Undefined(..) | Place::Absolute(..) | Place::Nothing(_), _) => a == b,
        _ => false,
    }
}

/// What a relocation leads to, for messages.
pub(super) fn describe(o: &Object, r: &Reference) -> String {
    describe_place(o, &r.place)
}

pub(super) fn describe_place(o: &Object, place: &Place) -> String {
    let plus = |name: &str, offset: u64| match offset {
        0 => name.to_owned(),
        _ => format!("{name}+{offset:#x}"),
    };
    match place {
        Place::Function(f, at) => plus(&format!("function {}", o.function_identity(*f)), *at),
        Place::Map(map, at) => plus(&format!("map {}", o.map_identity(*map)), *at),
        Place::Section(s, at) => plus(o.elf.sections.get(*s).map_or("?", |s| &s.identity), *at),
        Place::Empty(section, at) => plus(section, *at),
        Place::Undefined(name, _) => format!("external {name}"),
        Place::Absolute(_, value) => format!("number {value:#x}"),
        Place::Nothing(_) => "no symbol".into(),
    }
}
