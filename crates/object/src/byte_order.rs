//! Big-endian object files: from and to the little-endian form that all other code here reads and writes.
//!
//! The one idea: a file is brought into one form when it is read, and back when it is written, so that nothing in between asks
//! for the order. In that form all that this crate understands is little-endian: headers, section table, symbols,
//! relocations, the words of BTF and BTF.ext, old map definitions, what relocations on data find in place, and
//! instructions (RFC 9669, section 3: beside offset and immediate, the two registers of a big-endian instruction stand the
//! other way round in their byte). Contents that only the program understands, global data above all, stay as they are.
//! Promise: a file that does not come back to the same bytes is refused.

use bpf_platform::ByteOrder;

use crate::elf::{EI_DATA, SHT_GROUP, SHT_NOBITS, SHT_PROGBITS, SHT_REL, SHT_RELA, SHT_SYMTAB, Section, elf_name};
use crate::error::ObjectError;
use crate::symbols::{R_BPF_64_32, R_BPF_64_64, R_BPF_64_ABS32, R_BPF_64_ABS64, R_BPF_64_NODYLD32};

/// Widths of the fields of structures, as they follow each other. A byte has no order.
const ELF_HEADER: &[usize] = &[2, 2, 4, 8, 8, 8, 4, 2, 2, 2, 2, 2, 2];
const SECTION_HEADER: &[usize] = &[4, 4, 8, 8, 8, 8, 4, 4, 8, 8];
const SYMBOL: &[usize] = &[4, 1, 1, 2, 8, 8];
const REL: &[usize] = &[8, 8];
const RELA: &[usize] = &[8, 8, 8];
const WORD: &[usize] = &[4];
/// Offset and immediate of an instruction, behind opcode and registers.
const INSTRUCTION: &[usize] = &[1, 1, 2, 4];

/// The byte order of a file, and the file in the little-endian form. What is no 64-bit ELF file stays as it is.
///
/// # Errors
/// If a big-endian file does not come back from there to the same bytes.
pub(crate) fn to_little(file: Vec<u8>) -> Result<(ByteOrder, Vec<u8>), ObjectError> {
    const CLASS_64: u8 = 2;
    const BIG: u8 = 2;
    let is_elf = file.starts_with(b"\x7fELF") && file.get(4) == Some(&CLASS_64);
    if !is_elf || file.get(EI_DATA) != Some(&BIG) {
        return Ok((ByteOrder::Little, file));
    }
    let little = converted(&file, ByteOrder::Big);
    if converted(&little, ByteOrder::Little) != file {
        let what = "a big-endian object in which parts of different kinds overlap".into();
        return Err(ObjectError::Unsupported { what });
    }
    Ok((ByteOrder::Big, little))
}

/// A file in the little-endian form as one of this byte order.
pub(crate) fn from_little(file: Vec<u8>, order: ByteOrder) -> Vec<u8> {
    match order {
        ByteOrder::Little => file,
        ByteOrder::Big => converted(&file, ByteOrder::Little),
    }
}

/// The file with all fields in the other order. What reaches past the end is left alone.
fn converted(file: &[u8], from: ByteOrder) -> Vec<u8> {
    let mut out = Converted { file, from, out: file.to_vec() };
    out.all(16, 48, ELF_HEADER);
    let sections = out.sections();
    for s in &sections {
        out.section(s);
    }
    for s in sections.iter().filter(|s| s.kind == SHT_REL) {
        if let Some(target) = sections.get(s.info as usize) {
            out.in_place(s, target);
        }
    }
    out.out
}

struct Converted<'a> {
    file: &'a [u8],
    from: ByteOrder,
    out: Vec<u8>,
}

impl Converted<'_> {
    fn number(&self, at: usize, width: usize) -> Option<u64> {
        Some(self.from.number(self.file.get(at..at.checked_add(width)?)?))
    }

    /// Turns one field.
    fn field(&mut self, at: usize, width: usize) {
        if let Some(field) = at.checked_add(width).and_then(|end| self.out.get_mut(at..end)) {
            field.reverse();
        }
    }

    /// Turns the fields of all whole structures in a range.
    fn all(&mut self, from: usize, len: usize, fields: &[usize]) {
        let size: usize = fields.iter().sum();
        let len = len.min(self.file.len().saturating_sub(from));
        for start in (0..len / size).map(|n| from + n * size) {
            let mut at = start;
            for width in fields {
                self.field(at, *width);
                at += width;
            }
        }
    }

    /// Reads the section table, as far as it is needed here, and turns it.
    fn sections(&mut self) -> Vec<Section> {
        let number = |at, width| self.number(at, width).and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let (table, count, names) = (number(40, 8), number(60, 2), number(62, 2));
        let mut sections = Vec::new();
        for at in (0..count).map_while(|n| table.checked_add(n * 64)) {
            let Some(header) = at.checked_add(64).and_then(|end| self.file.get(at..end)) else { break };
            let word = |at: usize| self.from.number(&header[at..at + 4]) as u32;
            let long = |at: usize| self.from.number(&header[at..at + 8]);
            let range = usize::try_from(long(24)).ok().zip(usize::try_from(long(32)).ok());
            let range = range.and_then(|(start, len)| Some(start..start.checked_add(len)?));
            let range = range.filter(|r| r.end <= self.file.len() && word(4) != 0 && word(4) != SHT_NOBITS);
            sections.push(Section {
                name: String::new(),
                identity: String::new(),
                name_off: word(0),
                kind: word(4),
                flags: long(8),
                addr: long(16),
                offset: long(24),
                size: long(32),
                link: word(40),
                info: word(44),
                align: long(48),
                entsize: long(56),
                range: range.unwrap_or(0..0),
            });
        }
        let names = sections.get(names).and_then(|s: &Section| self.file.get(s.range.clone())).unwrap_or(&[]);
        for s in &mut sections {
            s.name = elf_name(names, s.name_off as usize).unwrap_or_default();
        }
        self.all(table, sections.len() * 64, SECTION_HEADER);
        sections
    }

    fn section(&mut self, s: &Section) {
        let (start, len) = (s.range.start, s.range.len());
        match (s.kind, s.name.as_str()) {
            (SHT_SYMTAB, _) => self.all(start, len, SYMBOL),
            (SHT_REL, _) => self.all(start, len, REL),
            (SHT_RELA, _) => self.all(start, len, RELA),
            (SHT_GROUP, _) => self.all(start, len, WORD),
            (SHT_PROGBITS, ".BTF") => self.btf(start, len),
            // Header and records are words (`struct btf_ext_header` in tools/lib/bpf/libbpf_internal.h).
            (SHT_PROGBITS, ".BTF.ext") => self.btf_words(start, len),
            (SHT_PROGBITS, name) if is_old_maps(name) => self.all(start, len, WORD),
            _ if s.is_code() => {
                self.all(start, len, INSTRUCTION);
                for byte in (0..len / 8).filter_map(|n| start.checked_add(n * 8 + 1)) {
                    if let Some(registers) = self.out.get_mut(byte) {
                        *registers = registers.rotate_left(4);
                    }
                }
            }
            _ => {}
        }
    }

    /// A magic number of two bytes, version and flags, and words.
    fn btf_words(&mut self, start: usize, len: usize) {
        self.field(start, 2.min(len));
        self.all(start + 4, len.saturating_sub(4), WORD);
    }

    /// Header and types are words (`struct btf_header` in include/uapi/linux/btf.h; `btf_bswap_type_rest` in
    /// tools/lib/bpf/btf.c), strings are not.
    fn btf(&mut self, start: usize, len: usize) {
        let word = |at: usize| self.number(start + at, 4).unwrap_or(0) as usize;
        let (header, types, types_len) = (word(4).min(len), word(8), word(12));
        self.btf_words(start, header);
        if let Some(from) = header.checked_add(types).filter(|from| *from <= len) {
            self.all(start + from, types_len.min(len - from), WORD);
        }
    }

    /// Turns what relocations on data find in place: addends, which are numbers in the file's order.
    fn in_place(&mut self, list: &Section, target: &Section) {
        let is_data = target.kind == SHT_PROGBITS && !target.is_code() && !is_old_maps(&target.name);
        if !is_data || target.name == ".BTF" || target.name == ".BTF.ext" {
            return;
        }
        for entry in list.range.clone().step_by(16) {
            let Some((offset, info)) = self.number(entry, 8).zip(self.number(entry + 8, 8)) else { continue };
            // In the little-endian form the type stands first, which is the lower half in both.
            let width = match info as u32 {
                R_BPF_64_64 | R_BPF_64_ABS64 => 8,
                R_BPF_64_ABS32 | R_BPF_64_NODYLD32 | R_BPF_64_32 => 4,
                _ => continue,
            };
            let Ok(offset) = usize::try_from(offset) else { continue };
            if offset.checked_add(width).is_some_and(|end| end <= target.range.len()) {
                self.field(target.range.start + offset, width);
            }
        }
    }
}

/// Sections of definitions of maps before BTF (`struct bpf_map_def`): words.
fn is_old_maps(name: &str) -> bool {
    name == "maps" || name.starts_with("maps/")
}
