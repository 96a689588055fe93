//! The section table of a 64-bit ELF file, and laying a changed one out again.
//!
//! The one idea: the input bytes are kept and every section is a checked range of them, so that
//! an unchanged object is written by giving the bytes back, and a changed one by copying all
//! sections but the patched ones. Promise: all ranges handed out lie inside the file and do not
//! overlap, section order and (but for dropped sections) numbers are preserved. Of a big-endian file it gets the form that
//! `byte_order.rs` makes of it, so that all is little-endian here.

use std::collections::HashSet;
use std::ops::Range;

use crate::error::ObjectError;

pub(crate) const SHT_PROGBITS: u32 = 1;
pub(crate) const SHT_SYMTAB: u32 = 2;
pub(crate) const SHT_STRTAB: u32 = 3;
pub(crate) const SHT_RELA: u32 = 4;
pub(crate) const SHT_NOBITS: u32 = 8;
pub(crate) const SHT_REL: u32 = 9;
pub(crate) const SHT_GROUP: u32 = 17;
pub(crate) const SHT_SYMTAB_SHNDX: u32 = 18;
pub(crate) const SHT_LLVM_ADDRSIG: u32 = 0x6fff_4c03;
pub(crate) const SHF_WRITE: u64 = 1;
pub(crate) const SHF_ALLOC: u64 = 2;
pub(crate) const SHF_EXECINSTR: u64 = 4;
pub(crate) const SHF_INFO_LINK: u64 = 0x40;
pub(crate) const SHN_UNDEF: u16 = 0;
pub(crate) const SHN_LORESERVE: u16 = 0xff00;

/// Where it stands whether a file is little-endian, 1, or big-endian, 2.
pub(crate) const EI_DATA: usize = 5;
const EHDR_SIZE: usize = 64;
const SHDR_SIZE: usize = 64;
const EM_BPF: u16 = 247;
/// Longest name taken from a string table: protects against quadratic memory on corrupt files.
const NAME_MAX: usize = 4096;
/// Largest alignment believed.
const ALIGN_MAX: u64 = 1 << 16;

pub(crate) fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(b.get(at..at.checked_add(2)?)?.try_into().ok()?))
}
pub(crate) fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(b.get(at..at.checked_add(4)?)?.try_into().ok()?))
}
pub(crate) fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(b.get(at..at.checked_add(8)?)?.try_into().ok()?))
}
/// Overwrites bytes; `None` (and nothing written) where they would not fit.
#[must_use]
pub(crate) fn put(b: &mut [u8], at: usize, bytes: &[u8]) -> Option<()> {
    b.get_mut(at..at.checked_add(bytes.len())?)?.copy_from_slice(bytes);
    Some(())
}
/// The NUL-terminated string at an offset of a string table, cut at a sane length.
pub(crate) fn string_at(table: &[u8], at: usize) -> Option<String> {
    let rest = table.get(at..)?;
    let rest = rest.get(..NAME_MAX).unwrap_or(rest);
    let end = rest.iter().position(|&c| c == 0).unwrap_or(rest.len());
    let bytes = rest.get(..end)?;
    Some(match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        // Different names must stay different: no replacement characters.
        Err(_) => bytes.escape_ascii().to_string(),
    })
}

/// A name of an ELF string table: ended within it, as libelf wants it (`elf_strptr`), and of a sane length, so that
/// different names stay different.
pub(crate) fn elf_name(table: &[u8], at: usize) -> Option<String> {
    let rest = table.get(at..)?;
    rest.get(..NAME_MAX).unwrap_or(rest).contains(&0).then(|| string_at(table, at))?
}

/// Gives each thing a name of its own: its first choice if nothing before took that, else its second
/// choice, marked until that is free.
pub(crate) fn unique_names(choices: Vec<(String, String)>) -> Vec<String> {
    let mut taken: HashSet<String> = HashSet::new();
    let first: HashSet<String> = choices.iter().map(|(first, _)| first.clone()).collect();
    let mut names = Vec::with_capacity(choices.len());
    for (wanted, mut second) in choices {
        let mut name = wanted;
        while !taken.insert(name.clone()) {
            while first.contains(&second) || taken.contains(&second) {
                second.push('\'');
            }
            name.clone_from(&second);
        }
        names.push(name);
    }
    names
}

#[derive(Debug, Clone)]
pub(crate) struct Section {
    pub name: String,
    /// The name; if an earlier section has it too, with the section's number, which makes it unique.
    pub identity: String,
    pub name_off: u32,
    pub kind: u32,
    pub flags: u64,
    pub addr: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
    pub info: u32,
    pub align: u64,
    pub entsize: u64,
    /// Where the contents are in the file; empty for NULL and NOBITS.
    pub range: Range<usize>,
}

impl Section {
    pub fn is_code(&self) -> bool {
        let described = self.is_debug() || self.name == ".BTF" || self.name == ".BTF.ext";
        self.kind == SHT_PROGBITS && self.flags & SHF_EXECINSTR != 0 && self.size > 0 && !described
    }
    pub fn is_reloc(&self) -> bool {
        self.kind == SHT_REL || self.kind == SHT_RELA
    }
    /// DWARF and call frame sections: they describe the code by address.
    pub fn is_debug(&self) -> bool {
        let base = self.name.as_str();
        let base = if self.is_reloc() {
            base.strip_prefix(".rela").filter(|r| r.starts_with('.')).or(base.strip_prefix(".rel")).unwrap_or(base)
        } else {
            base
        };
        base.starts_with(".debug_") || base.starts_with(".zdebug_") || base == CALL_FRAMES
    }
    /// Call frames, which compilers write for unwinders.
    pub fn is_call_frames(&self) -> bool {
        self.name == CALL_FRAMES
    }
}

const CALL_FRAMES: &str = ".eh_frame";

#[derive(Debug, Clone)]
pub(crate) struct Elf {
    pub bytes: Vec<u8>,
    pub sections: Vec<Section>,
    shstrndx: usize,
}

/// A replacement section table for [`Elf::layout`].
pub(crate) struct Patch {
    /// New contents; `None` keeps the old ones.
    pub data: Option<Vec<u8>>,
    pub info: u32,
    pub keep: bool,
}

/// A section that [`Elf::layout_with`] adds behind the others.
#[derive(Default)]
pub(crate) struct Added {
    /// Its name's place in the table of section names.
    pub name_off: u32,
    pub kind: u32,
    pub flags: u64,
    pub align: u64,
    pub link: u32,
    pub info: u32,
    pub entry_size: u64,
    pub data: Vec<u8>,
}

impl Elf {
    pub fn parse(bytes: Vec<u8>) -> Result<Self, ObjectError> {
        if bytes.get(..4) != Some(&b"\x7fELF"[..]) {
            return Err(ObjectError::NotElf);
        }
        match bytes.get(4) {
            Some(2) => {}
            Some(1) => return Err(ObjectError::Not64Bit),
            _ => return Err(ObjectError::NotElf),
        }
        if !matches!(bytes.get(EI_DATA), Some(1 | 2)) {
            return Err(ObjectError::NotElf);
        }
        let half = |at| u16_at(&bytes, at).ok_or(ObjectError::NotElf);
        let (etype, machine) = (half(16)?, half(18)?);
        if machine != EM_BPF && machine != 0 {
            return Err(ObjectError::WrongMachine { machine });
        }
        if bytes.len() < EHDR_SIZE {
            return Err(truncated("ELF header", 0, EHDR_SIZE as u64, bytes.len()));
        }
        // `EI_VERSION`: libelf knows 1 (`EV_CURRENT`) alone.
        if bytes.get(6) != Some(&1) {
            return Err(ObjectError::Unsupported { what: format!("ELF version {}", bytes.get(6).unwrap_or(&0)) });
        }
        if etype != 1 {
            return Err(ObjectError::WrongType { found: etype });
        }
        let shoff = u64_at(&bytes, 40).unwrap_or(0);
        let (shentsize, shnum, shstrndx) = (half(58)?, half(60)?, half(62)?);
        if half(56)? != 0 {
            return Err(ObjectError::Unsupported { what: "an object file with program headers".into() });
        }
        if shoff == 0 || shnum == 0 || shnum >= SHN_LORESERVE {
            return Err(ObjectError::Unsupported { what: format!("a section table of {shnum} entries at {shoff:#x}") });
        }
        if usize::from(shentsize) != SHDR_SIZE {
            return Err(ObjectError::Unsupported { what: format!("section headers of {shentsize} bytes") });
        }
        let table_len = u64::from(shnum) * SHDR_SIZE as u64;
        let table = slice(&bytes, shoff, table_len)
            .ok_or_else(|| truncated("section header table", shoff, table_len, bytes.len()))?;
        let mut sections = Vec::with_capacity(usize::from(shnum));
        for (index, h) in bytes.get(table).unwrap_or(&[]).chunks_exact(SHDR_SIZE).enumerate() {
            sections.push(header(h, index, bytes.len())?);
        }
        let shstrndx = usize::from(shstrndx);
        let names = sections
            .get(shstrndx)
            .filter(|_| shstrndx != 0)
            .and_then(|s: &Section| bytes.get(s.range.clone()))
            .ok_or_else(|| ObjectError::Unsupported { what: "an object without section names".into() })?;
        for (index, s) in sections.iter_mut().enumerate().skip(1) {
            s.name = elf_name(names, s.name_off as usize).ok_or_else(|| {
                ObjectError::corrupt(
                    &format!("#{index}"),
                    0,
                    format!("its name at {:#x} does not end in the string table, or is too long", s.name_off),
                )
            })?;
        }
        let names = sections.iter().enumerate().map(|(i, s)| (s.name.clone(), format!("{}#{i}", s.name)));
        let identities = unique_names(names.collect());
        for (s, identity) in sections.iter_mut().zip(identities) {
            s.identity = identity;
        }
        let mut in_file: Vec<&Section> = sections.iter().filter(|s| !s.range.is_empty()).collect();
        in_file.sort_by_key(|s| s.range.start);
        for pair in in_file.windows(2) {
            if let [a, b] = pair
                && b.range.start < a.range.end
            {
                return Err(ObjectError::corrupt(&b.name, 0, format!("it overlaps section `{}` in the file", a.name)));
            }
        }
        Ok(Self { bytes, sections, shstrndx })
    }

    pub fn data(&self, section: usize) -> &[u8] {
        self.sections.get(section).and_then(|s| self.bytes.get(s.range.clone())).unwrap_or(&[])
    }

    pub fn name(&self, section: usize) -> &str {
        self.sections.get(section).map_or("?", |s| &s.name)
    }

    pub fn find(&self, name: &str) -> Option<usize> {
        self.sections.iter().position(|s| s.name == name && !s.range.is_empty())
    }

    /// New section numbers after dropping those which `patches` does not keep.
    pub fn renumbering(patches: &[Patch]) -> Vec<Option<usize>> {
        let mut next = 0;
        patches
            .iter()
            .map(|p| {
                p.keep.then(|| {
                    next += 1;
                    next - 1
                })
            })
            .collect()
    }

    /// The number of the table of section names.
    pub fn section_names(&self) -> usize {
        self.shstrndx
    }

    /// Writes the file anew: sections in file order, each aligned, then the header table.
    pub fn layout(&self, patches: &[Patch]) -> Vec<u8> {
        self.layout_with(patches, &[])
    }

    /// The same with more sections, which are numbered behind the others.
    pub fn layout_with(&self, patches: &[Patch], added: &[Added]) -> Vec<u8> {
        let renumber = Self::renumbering(patches);
        let moved = |i: u32| renumber.get(i as usize).copied().flatten().unwrap_or(0) as u32;
        let mut order: Vec<usize> = (1..self.sections.len()).collect();
        order.sort_by_key(|&i| self.sections.get(i).map_or(0, |s| s.offset));
        let mut out = self.bytes.get(..EHDR_SIZE).unwrap_or(&[]).to_vec();
        let mut placed = vec![(0u64, 0u64); self.sections.len()];
        for i in order {
            let (Some(s), Some(p), Some(place)) = (self.sections.get(i), patches.get(i), placed.get_mut(i)) else {
                continue;
            };
            if !p.keep {
                continue;
            }
            let data = p.data.as_deref().unwrap_or_else(|| self.data(i));
            if s.kind != 0 {
                pad(&mut out, s.align);
            }
            *place = (out.len() as u64, if s.kind == SHT_NOBITS { s.size } else { data.len() as u64 });
            if s.kind != SHT_NOBITS {
                out.extend_from_slice(data);
            }
        }
        let mut places = Vec::with_capacity(added.len());
        for new in added {
            pad(&mut out, new.align);
            places.push(out.len() as u64);
            out.extend_from_slice(&new.data);
        }
        pad(&mut out, 8);
        let shoff = out.len() as u64;
        let mut count = 0u16;
        for ((s, p), place) in self.sections.iter().zip(patches).zip(placed) {
            if !p.keep {
                continue;
            }
            count = count.saturating_add(1);
            let (offset, size) = if s.kind == 0 { (s.offset, s.size) } else { place };
            let info = if s.is_reloc() || s.flags & SHF_INFO_LINK != 0 { moved(p.info) } else { p.info };
            out.extend_from_slice(&s.name_off.to_le_bytes());
            out.extend_from_slice(&s.kind.to_le_bytes());
            for v in [s.flags, s.addr, offset, size] {
                out.extend_from_slice(&v.to_le_bytes());
            }
            out.extend_from_slice(&moved(s.link).to_le_bytes());
            out.extend_from_slice(&info.to_le_bytes());
            out.extend_from_slice(&s.align.to_le_bytes());
            out.extend_from_slice(&s.entsize.to_le_bytes());
        }
        for (new, offset) in added.iter().zip(places) {
            count = count.saturating_add(1);
            out.extend_from_slice(&new.name_off.to_le_bytes());
            out.extend_from_slice(&new.kind.to_le_bytes());
            for v in [new.flags, 0, offset, new.data.len() as u64] {
                out.extend_from_slice(&v.to_le_bytes());
            }
            out.extend_from_slice(&moved(new.link).to_le_bytes());
            out.extend_from_slice(&moved(new.info).to_le_bytes());
            for v in [new.align, new.entry_size] {
                out.extend_from_slice(&v.to_le_bytes());
            }
        }
        let shstrndx = moved(self.shstrndx as u32) as u16;
        // The header is 64 bytes long: checked when it was read.
        let _ = put(&mut out, 40, &shoff.to_le_bytes());
        let _ = put(&mut out, 60, &count.to_le_bytes());
        let _ = put(&mut out, 62, &shstrndx.to_le_bytes());
        out
    }
}

fn header(h: &[u8], index: usize, file_len: usize) -> Result<Section, ObjectError> {
    let w = |at| u32_at(h, at).unwrap_or(0);
    let x = |at| u64_at(h, at).unwrap_or(0);
    let (kind, offset, size, align) = (w(4), x(24), x(32), x(48));
    let range = if kind == 0 || kind == SHT_NOBITS {
        0..0
    } else {
        let in_file = |start: u64| {
            let start = usize::try_from(start).ok()?;
            let end = start.checked_add(usize::try_from(size).ok()?)?;
            (end <= file_len).then_some(start..end)
        };
        in_file(offset).ok_or_else(|| truncated(&format!("section #{index}"), offset, size, file_len))?
    };
    if kind != 0 && (align > ALIGN_MAX || (align != 0 && !align.is_power_of_two())) {
        return Err(ObjectError::corrupt(&format!("#{index}"), 0, format!("impossible alignment {align:#x}")));
    }
    if kind == SHT_SYMTAB_SHNDX {
        return Err(ObjectError::Unsupported { what: "extended section numbers (SHT_SYMTAB_SHNDX)".into() });
    }
    Ok(Section {
        name: String::new(),
        identity: String::new(),
        name_off: w(0),
        kind,
        flags: x(8),
        addr: x(16),
        offset,
        size,
        link: w(40),
        info: w(44),
        align,
        entsize: x(56),
        range,
    })
}

fn slice(bytes: &[u8], offset: u64, size: u64) -> Option<Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(usize::try_from(size).ok()?)?;
    (end <= bytes.len()).then_some(start..end)
}

fn truncated(what: &str, offset: u64, size: u64, len: usize) -> ObjectError {
    ObjectError::Truncated { what: what.to_owned(), offset, size, len: len as u64 }
}

fn pad(out: &mut Vec<u8>, align: u64) {
    let align = align.clamp(1, ALIGN_MAX) as usize;
    out.resize(out.len().next_multiple_of(align), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_sections_are_known_by_name_and_relocations_by_type() {
        let named = |name: &str, kind| {
            let mut s = header(&[0; SHDR_SIZE], 1, 0).unwrap();
            (s.name, s.kind) = (name.to_owned(), kind);
            s.is_debug()
        };
        assert!(
            named(".debug_info", SHT_PROGBITS)
                && named(".rel.debug_info", SHT_REL)
                && named(".rela.debug_info", SHT_RELA)
        );
        assert!(named(".eh_frame", SHT_PROGBITS) && named(".rela.eh_frame", SHT_RELA));
        assert!(!named(".rel.debug_info", SHT_PROGBITS) && !named(".reltc", SHT_REL) && !named(".relatc", SHT_RELA));
    }

    #[test]
    fn reads_and_writes_outside_give_nothing() {
        let mut b = [0u8; 8];
        assert_eq!(u64_at(&b, 1), None);
        assert_eq!(u32_at(&b, usize::MAX), None);
        assert_eq!(put(&mut b, usize::MAX, &[1]), None);
        assert_eq!(put(&mut b, 5, &[1; 4]), None);
        assert_eq!(string_at(b"ab\0cd", 3).as_deref(), Some("cd"));
        assert_eq!(string_at(b"ab", 3), None);
        assert_eq!(elf_name(b"ab\0cd\0", 3).as_deref(), Some("cd"));
        assert_eq!(elf_name(b"ab\0cd", 3), None);
        assert_eq!(elf_name(&[b'a'; 2 * NAME_MAX], 0), None);
    }
}
