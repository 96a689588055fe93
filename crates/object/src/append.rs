//! Adding to an object what it does not have: sections of data, references of its code to them, other initial values of
//! its variables.
//!
//! The one idea: sections keep their numbers; each new one of data gets one local symbol behind the other local ones, as linkers
//! want it of what no BTF describes, and what names a symbol behind them is renumbered. Promise: the result is read back before
//! it is handed out.

use std::collections::BTreeMap;

use crate::byte_order::from_little;
use crate::elf::{
    Added, Patch, SHF_ALLOC, SHF_INFO_LINK, SHF_WRITE, SHT_GROUP, SHT_LLVM_ADDRSIG, SHT_PROGBITS, SHT_REL, put,
};
use crate::error::ObjectError;
use crate::functions::{FuncId, LD_IMM64};
use crate::object::Object;
use crate::rewrite::addrsig;
use crate::symbols::{R_BPF_64_64, Reloc, STB_LOCAL, STT_OBJECT, SYM_SIZE};

/// What a new section is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SectionUse {
    /// Data that a loader makes a map of; its name says whether programs may write it.
    Data,
    /// An ELF note, which loaders pass over. Its type is not `SHT_NOTE`, which libbpf's linker refuses.
    Note,
}

/// A section to add.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewSection {
    /// Its name, which no other section has.
    pub name: String,
    /// The name of its symbol; of a note that of the note's owner.
    pub symbol: String,
    /// Its contents, not empty; of a note its description.
    pub bytes: Vec<u8>,
    /// What it is.
    pub is: SectionUse,
}

/// A reference to add: an `ld_imm64` that is to hold an address in a new section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewReference {
    /// The function.
    pub function: FuncId,
    /// The slot of the `ld_imm64` in it.
    pub slot: usize,
    /// The section, by its number among the new ones.
    pub section: usize,
    /// Bytes from its start.
    pub offset: u32,
}

/// All that is to be added to an object.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Addition {
    /// Sections.
    pub sections: Vec<NewSection>,
    /// References to them.
    pub references: Vec<NewReference>,
    /// Other contents of sections there are: by name, from which byte on, and the bytes.
    pub contents: Vec<(String, u64, Vec<u8>)>,
}

/// Relocations of sections that had none: by section, the place of each and its bytes.
type NewLists = BTreeMap<usize, Vec<(u64, Vec<u8>)>>;

impl Object {
    /// The object file with additions. New bodies of functions are not in it: write them first, and read the result.
    ///
    /// # Errors
    /// If a section of that name is there, a reference stands where no `ld_imm64` without a reference is, or contents lie
    /// outside of their section.
    pub fn with_addition(&self, addition: &Addition) -> Result<Vec<u8>, ObjectError> {
        let mut patches: Vec<Patch> =
            self.elf.sections.iter().map(|s| Patch { data: None, info: s.info, keep: true }).collect();
        for (section, offset, bytes) in &addition.contents {
            self.patch(&mut patches, section, *offset, bytes)?;
        }
        let missing = |what: &str| ObjectError::Unsupported { what: format!("adding to an object without {what}") };
        let symtab = self
            .elf
            .sections
            .get(self.symbols.table)
            .filter(|_| self.symbols.table != 0)
            .ok_or_else(|| missing("a symbol table"))?;
        let (names, section_names) = (symtab.link as usize, self.elf.section_names());
        // Local symbols stand before all others.
        let first = symtab.info;
        let mut added = Vec::new();
        let mut symbols: Vec<Option<u32>> = Vec::new();
        let mut table = Vec::new();
        for new in &addition.sections {
            if self.elf.sections.iter().any(|s| s.name == new.name) {
                return Err(ObjectError::Unsupported { what: format!("a second section `{}`", new.name) });
            }
            let number = self.elf.sections.len() + added.len();
            let number = u16::try_from(number).map_err(|_| missing("free section numbers"))?;
            let name_off = self.add_name(&mut patches, section_names, &new.name)?;
            let (flags, align, data) = match new.is {
                SectionUse::Note => {
                    symbols.push(None);
                    (0, 4, note(&new.symbol, &new.bytes))
                }
                SectionUse::Data => {
                    let writable = if new.name.starts_with(".rodata") { 0 } else { SHF_WRITE };
                    let name = self.add_name(&mut patches, names, &new.symbol)?;
                    symbols.push(Some(first + (table.len() / SYM_SIZE) as u32));
                    table.extend(symbol(name, number, new.bytes.len() as u64));
                    (SHF_ALLOC | writable, 8, new.bytes.clone())
                }
            };
            added.push(Added { name_off, kind: SHT_PROGBITS, flags, align, data, ..Added::default() });
        }
        self.add_symbols(&mut patches, first, &table);
        let mut lists = NewLists::new();
        for reference in &addition.references {
            let symbol = symbols.get(reference.section).copied().flatten();
            let symbol = symbol.ok_or_else(|| ObjectError::Internal { problem: "a reference to no section".into() })?;
            self.add_reference(&mut patches, &mut lists, *reference, symbol)?;
        }
        self.sort_relocations(&mut patches);
        for (section, mut all) in lists {
            all.sort_by_key(|r| r.0);
            let name = format!(".rel{}", self.elf.sections.get(section).map_or("", |s| s.name.as_str()));
            let name_off = self.add_name(&mut patches, section_names, &name)?;
            let data = all.into_iter().flat_map(|(_, bytes)| bytes).collect();
            let (link, info) = (self.symbols.table as u32, section as u32);
            let kind = SHT_REL;
            added.push(Added { name_off, kind, flags: SHF_INFO_LINK, align: 8, link, info, entry_size: 16, data });
        }
        let bytes = from_little(self.elf.layout_with(&patches, &added), self.byte_order);
        Object::parse(bytes.clone()).map_err(|e| ObjectError::Internal { problem: e.to_string() })?;
        Ok(bytes)
    }

    fn patch(&self, patches: &mut [Patch], name: &str, offset: u64, bytes: &[u8]) -> Result<(), ObjectError> {
        let outside = || ObjectError::corrupt(name, offset, format!("{} bytes are not there to be set", bytes.len()));
        let section = self.elf.find(name).ok_or_else(outside)?;
        let at = usize::try_from(offset).map_err(|_| outside())?;
        self.bytes_of(patches, section).and_then(|data| put(data, at, bytes)).ok_or_else(outside)
    }

    /// The contents of a section, to be changed.
    fn bytes_of<'p>(&self, patches: &'p mut [Patch], section: usize) -> Option<&'p mut Vec<u8>> {
        let patch = patches.get_mut(section)?;
        Some(patch.data.get_or_insert_with(|| self.elf.data(section).to_vec()))
    }

    /// Where in a string table the name stands that this adds.
    fn add_name(&self, patches: &mut [Patch], table: usize, name: &str) -> Result<u32, ObjectError> {
        let full = || ObjectError::Unsupported { what: "an object whose string table is full".into() };
        let names = self.bytes_of(patches, table).ok_or_else(full)?;
        let at = u32::try_from(names.len()).map_err(|_| full())?;
        names.extend_from_slice(name.as_bytes());
        names.push(0);
        Ok(at)
    }

    /// Puts symbols before the first that is not local, and renumbers what names the others.
    fn add_symbols(&self, patches: &mut [Patch], first: u32, new: &[u8]) {
        let count = (new.len() / SYM_SIZE) as u32;
        if count == 0 {
            return;
        }
        let renumbered = |symbol: u32| if symbol >= first { symbol + count } else { symbol };
        if let Some(table) = self.bytes_of(patches, self.symbols.table) {
            let at = (first as usize * SYM_SIZE).min(table.len());
            table.splice(at..at, new.iter().copied());
        }
        if let Some(patch) = patches.get_mut(self.symbols.table) {
            patch.info = first + count;
        }
        for list in &self.symbols.relocs {
            let mut bytes = Vec::new();
            for r in &list.relocs {
                Reloc { symbol: renumbered(r.symbol), ..*r }.encode(&mut bytes);
            }
            if let Some(data) = self.bytes_of(patches, list.index) {
                *data = bytes;
            }
        }
        for (i, s) in self.elf.sections.iter().enumerate() {
            match s.kind {
                SHT_GROUP => {
                    if let Some(patch) = patches.get_mut(i) {
                        patch.info = renumbered(s.info);
                    }
                }
                SHT_LLVM_ADDRSIG => {
                    let list = addrsig(self.elf.data(i), |symbol| Some(renumbered(symbol)));
                    if let Some(data) = self.bytes_of(patches, i) {
                        *data = list.unwrap_or_default();
                    }
                }
                _ => {}
            }
        }
    }

    fn add_reference(
        &self,
        patches: &mut [Patch],
        lists: &mut NewLists,
        r: NewReference,
        symbol: u32,
    ) -> Result<(), ObjectError> {
        let function = self.functions().get(r.function.0).ok_or(ObjectError::NoSuchFunction { index: r.function.0 })?;
        let bad = |problem: &str| {
            Err(ObjectError::Body { function: function.name.clone(), slot: r.slot, problem: problem.into() })
        };
        let taken = self.refs(r.function).iter().any(|other| other.slot == r.slot);
        if taken || self.code(r.function).get(r.slot * 8) != Some(&LD_IMM64) {
            return bad("it cannot carry a new reference");
        }
        let list = self.symbols.relocs.iter().find(|list| list.target == function.section_index);
        let section = list.and_then(|list| self.elf.sections.get(list.index));
        let with_addends = section.is_some_and(|s| s.entsize == 24);
        let offset = (function.start + r.slot) as u64 * 8;
        let (addend, immediate) = if with_addends { (Some(i64::from(r.offset)), 0) } else { (None, r.offset) };
        let reloc = Reloc { offset, symbol, kind: R_BPF_64_64, addend };
        match list {
            Some(list) => {
                if let Some(relocs) = self.bytes_of(patches, list.index) {
                    reloc.encode(relocs);
                }
            }
            None => {
                let mut bytes = Vec::new();
                reloc.encode(&mut bytes);
                lists.entry(function.section_index).or_default().push((offset, bytes));
            }
        }
        let code = self.bytes_of(patches, function.section_index);
        let at = offset as usize;
        // The source register says nothing yet, and the upper half of the number is the loader's.
        let done = code.and_then(|code| {
            let registers = code.get(at + 1)? & 0x0f;
            put(code, at + 1, &[registers])?;
            put(code, at + 4, &immediate.to_le_bytes())?;
            put(code, at + 12, &[0; 4])
        });
        if done.is_none() { bad("it ends early") } else { Ok(()) }
    }

    /// Relocations in the order of the places that they patch, as compilers write them.
    fn sort_relocations(&self, patches: &mut [Patch]) {
        for list in &self.symbols.relocs {
            let size = self.elf.sections.get(list.index).map_or(16, |s| s.entsize as usize).max(1);
            let Some(data) = patches.get_mut(list.index).and_then(|p| p.data.as_mut()) else { continue };
            let mut all: Vec<Vec<u8>> = data.chunks(size).map(<[u8]>::to_vec).collect();
            all.sort_by_key(|r| r.first_chunk().map(|at| u64::from_le_bytes(*at)));
            *data = all.concat();
        }
    }
}

/// A local symbol of a whole section.
fn symbol(name: u32, section: u16, size: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(SYM_SIZE);
    out.extend_from_slice(&name.to_le_bytes());
    out.extend_from_slice(&[STB_LOCAL << 4 | STT_OBJECT, 0]);
    out.extend_from_slice(&section.to_le_bytes());
    out.extend_from_slice(&0u64.to_le_bytes());
    out.extend_from_slice(&size.to_le_bytes());
    out
}

/// An ELF note: lengths, a type, the owner's name, the description.
fn note(owner: &str, description: &[u8]) -> Vec<u8> {
    const TYPE: u32 = 1;
    let mut out = Vec::new();
    for n in [owner.len() as u32 + 1, description.len() as u32, TYPE] {
        out.extend_from_slice(&n.to_le_bytes());
    }
    for part in [&[owner.as_bytes(), &[0]].concat(), description] {
        out.extend_from_slice(part);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    out
}

/// The descriptions of the notes of this owner in a note section's bytes: several, if objects were linked. `None` if it ends
/// within a note.
pub(crate) fn descriptions<'a>(section: &'a [u8], owner: &str) -> Option<Vec<&'a [u8]>> {
    let (mut found, mut rest) = (Vec::new(), section);
    while !rest.is_empty() {
        // Linkers may fill up with zeros; no note is without an owner.
        if let Some(behind) = rest.strip_prefix(&[0; 4]) {
            rest = behind;
            continue;
        }
        let word = |at: usize| Some(u32::from_le_bytes(*rest.get(at..)?.first_chunk()?) as usize);
        let (name_len, len) = (word(0)?, word(4)?);
        let name = rest.get(12..12usize.checked_add(name_len)?)?;
        let start = 12 + name_len.checked_next_multiple_of(4)?;
        let text = rest.get(start..start.checked_add(len)?)?;
        if name.strip_suffix(&[0]) == Some(owner.as_bytes()) {
            found.push(text);
        }
        rest = rest.get(start.checked_add(len.checked_next_multiple_of(4)?)?..).unwrap_or_default();
    }
    Some(found)
}

impl Object {
    /// The descriptions of an owner's ELF notes in the sections of this name; `None` if they cannot be read.
    #[must_use]
    pub fn notes(&self, section: &str, owner: &str) -> Option<Vec<&[u8]>> {
        let of_name = self.elf.sections.iter().enumerate().filter(|(_, s)| s.name == section);
        let all = of_name.map(|(i, _)| descriptions(self.elf.data(i), owner)).collect::<Option<Vec<_>>>()?;
        Some(all.concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_of_linked_objects_are_all_found() {
        let (one, two) = (note("bpf-opt", b"12345"), note("bpf-opt", b"6"));
        let linked = [&one[..], &note("other", b"x"), &[0; 8], &two, &[0; 4]].concat();
        assert_eq!(descriptions(&one, "bpf-opt"), Some(vec![&b"12345"[..]]));
        assert_eq!(descriptions(&linked, "bpf-opt"), Some(vec![&b"12345"[..], b"6"]));
        assert_eq!(descriptions(&one[..one.len() - 5], "bpf-opt"), None);
        assert_eq!(descriptions(&[], "bpf-opt"), Some(Vec::new()));
    }
}
