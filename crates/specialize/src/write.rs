//! Writing: new bodies, the tables, the references to them, and the note.

use std::collections::BTreeMap;

use bpf_object::{Addition, FuncId, NewReference, NewSection, Object, SectionUse, WriteOptions};
use bpf_program::{Function, LowerError, Lowered, lower};

use crate::declared::{Declared, NOTE_OWNER, NOTE_SECTION};
use crate::error::SpecializeError;
use crate::lookup::Places;

/// The section of the tables.
const TABLES: &str = ".rodata.bpf_opt";
/// The section of the number that says whether maps have changed.
const GUARD: &str = ".data.bpf_opt";

/// Functions as they are written, by their numbers.
///
/// # Errors
/// The number of one that cannot be written, and why.
pub(crate) fn lowered(changed: &BTreeMap<usize, Function>) -> Result<Vec<(usize, Lowered)>, (usize, LowerError)> {
    changed.iter().map(|(id, f)| Ok((*id, lower(f).map_err(|e| (*id, e))?))).collect()
}

/// The object with these functions, tables and note.
pub(crate) fn write(
    object: &Object,
    changed: Vec<(usize, Lowered)>,
    places: &Places,
    tables: Vec<u8>,
    guard: bool,
    declared: &Declared,
) -> Result<Vec<u8>, SpecializeError> {
    let mut object = object.clone();
    let mut references = Vec::new();
    for (id, lowered) in changed {
        for (slot, insn) in &lowered.listing {
            if let Some(place) = places.of(insn) {
                let (section, offset) = (place.section, place.offset);
                references.push(NewReference { function: FuncId(id), slot: *slot, section, offset });
            }
        }
        object.set_body(FuncId(id), lowered.insns)?;
    }
    let section = |name: &str, symbol: &str, bytes: Vec<u8>, is| NewSection {
        name: name.to_owned(),
        symbol: symbol.to_owned(),
        bytes,
        is,
    };
    let mut sections = Vec::new();
    if !tables.is_empty() {
        sections.push(section(TABLES, "bpf_opt_tables", tables, SectionUse::Data));
    }
    if guard {
        sections.push(section(GUARD, "bpf_opt_generation", vec![0; 8], SectionUse::Data));
    }
    sections.push(section(NOTE_SECTION, NOTE_OWNER, declared.to_json().into_bytes(), SectionUse::Note));
    let written = object.write(&WriteOptions::default())?;
    let object = Object::parse(written.bytes)?;
    Ok(object.with_addition(&Addition { sections, references, ..Addition::default() })?)
}
