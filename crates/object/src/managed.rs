//! Where in map values and sections of global data the fields are that the kernel manages.
//!
//! The one idea: walk the type as the kernel does (`btf_parse_fields` and what it calls in `kernel/bpf/btf.c`), into
//! nested structures and arrays, and look for the names in [`bpf_platform::fields`]. Promise: no field is missed. What is
//! too large or too deep to be walked counts as managed as a whole; the kernel refuses a map with so many fields.

use bpf_platform::fields::{self, ManagedField, ManagedFields};

use crate::btf::{
    ARRAY, Btf, CONST, DATASEC, PTR, RESTRICT, STRUCT, TYPE_TAG, TYPEDEF, Type, UNION, VAR, VOLATILE, member_place,
};
use crate::datasec::Places;
use crate::elf::Section;
use crate::symbols::Symbols;

/// Nesting that is followed (the kernel follows `MAX_RESOLVE_DEPTH`, 32).
const DEPTH: usize = 32;
/// Types looked at for one value, or for all of a section.
const TYPES: usize = 100_000;
/// Fields of an array that are told apart (the kernel allows `BTF_FIELDS_MAX`, 11, in one value).
const FIELDS: usize = 256;

/// The managed fields of a value of this type.
pub(crate) fn in_type(btf: &Btf, id: u32) -> ManagedFields {
    ManagedFields::new(within(btf, id, DEPTH, &mut TYPES.clone()))
}

/// The managed fields of a section of global data, as its BTF says.
pub(crate) fn in_section(btf: &Btf, symbols: &Symbols, section: &Section) -> ManagedFields {
    let (mut found, mut left) = (Vec::new(), TYPES);
    let all = || whole(u32::try_from(section.size).unwrap_or(u32::MAX));
    // Types behind one of a kind that is not known are not read.
    if btf.unknown_kind.is_some() {
        found.push(all());
    }
    let described = |t: &Type| t.kind == DATASEC && btf.string(t.name).as_deref() == Some(section.name.as_str());
    for t in btf.ids().filter_map(|id| btf.get(id)).filter(described) {
        let places = Places::of(symbols, t);
        for entry in btf.section_variables(t) {
            let Some(variable) = btf.get(entry.id).filter(|v| v.kind == VAR) else { continue };
            let fields = within(btf, variable.size_or_type, DEPTH, &mut left);
            if fields.is_empty() {
                continue;
            }
            let name = btf.string(variable.name).unwrap_or_default();
            match places.offset(&name, btf.word(variable, 0), entry).and_then(|at| u32::try_from(at).ok()) {
                Some(at) => found.extend(fields.iter().map(|f| moved(f, at))),
                // Somewhere.
                None => found.push(all()),
            }
        }
    }
    ManagedFields::new(found)
}

/// The managed fields of a value of this type, in the order in which the walk comes to them.
fn within(btf: &Btf, id: u32, depth: usize, left: &mut usize) -> Vec<ManagedField> {
    // Of a type that cannot be read not even the size is known.
    let Some((_, t)) = btf.plain(id) else { return vec![whole(u32::MAX)] };
    let all = || vec![whole(btf.size_of(id).unwrap_or(u32::MAX))];
    if depth == 0 || *left == 0 {
        return all();
    }
    *left -= 1;
    match t.kind {
        PTR if is_managed_pointer(btf, t.size_or_type) => all(),
        STRUCT | UNION if btf.string(t.name).is_some_and(|name| fields::is_managed_structure(&name)) => {
            vec![ManagedField { bytes: 0..t.size_or_type, is_pointer: false }]
        }
        // The kernel does not look into unions; a field more does no harm.
        STRUCT | UNION => {
            let mut found = Vec::new();
            for i in 0..t.vlen {
                let (Some(ty), Some(offset)) = (btf.word(t, i * 3 + 1), btf.word(t, i * 3 + 2)) else { return all() };
                let (bit, _) = member_place(t, offset);
                found.extend(within(btf, ty, depth - 1, left).iter().map(|f| moved(f, bit / 8)));
            }
            found
        }
        ARRAY => {
            let (Some(element), Some(count)) = (btf.word(t, 0), btf.word(t, 2)) else { return all() };
            let found = within(btf, element, depth - 1, left);
            // However many of them.
            if found.is_empty() {
                return found;
            }
            match (btf.size_of(element), found.len().checked_mul(count as usize)) {
                (Some(bytes), Some(fields)) if fields <= FIELDS => {
                    let starts = (0..count).map(|i| i.saturating_mul(bytes));
                    starts.flat_map(|at| found.iter().map(move |f| moved(f, at))).collect()
                }
                _ => all(),
            }
        }
        _ => vec![],
    }
}

/// Whether a pointer to this type is one that the kernel manages: the tag stands before all else.
fn is_managed_pointer(btf: &Btf, mut target: u32) -> bool {
    for _ in 0..DEPTH {
        let Some(t) = btf.get(target) else { return false };
        match t.kind {
            TYPE_TAG if btf.string(t.name).is_none_or(|tag| fields::is_managed_pointer(&tag)) => return true,
            TYPE_TAG | CONST | VOLATILE | RESTRICT | TYPEDEF => target = t.size_or_type,
            _ => return false,
        }
    }
    true
}

/// A value of which nothing is known but its size.
fn whole(bytes: u32) -> ManagedField {
    ManagedField { bytes: 0..bytes, is_pointer: true }
}

/// A field of a part that starts here.
fn moved(f: &ManagedField, start: u32) -> ManagedField {
    let bytes = f.bytes.start.saturating_add(start)..f.bytes.end.saturating_add(start);
    ManagedField { bytes, is_pointer: f.is_pointer }
}
