//! The symbol table and the relocations that name its entries.
//!
//! The one idea: everything is read once into plain numbers, checked against the bounds of the
//! file (a relocation names an existing symbol, and where it patches code, an existing slot), so
//! that all later code can look things up without doubt. Promise: symbol and relocation order is
//! the file's.

use crate::elf::{Elf, SHN_LORESERVE, SHN_UNDEF, SHT_REL, SHT_RELA, SHT_SYMTAB, elf_name, u16_at, u32_at, u64_at};
use crate::error::ObjectError;

pub(crate) const SYM_SIZE: usize = 24;
pub(crate) const STT_NOTYPE: u8 = 0;
pub(crate) const STT_OBJECT: u8 = 1;
pub(crate) const STT_FUNC: u8 = 2;
pub(crate) const STT_SECTION: u8 = 3;
pub(crate) const STT_FILE: u8 = 4;
pub(crate) const STB_LOCAL: u8 = 0;
pub(crate) const STB_GLOBAL: u8 = 1;
pub(crate) const STB_WEAK: u8 = 2;

pub(crate) const R_BPF_64_64: u32 = 1;
pub(crate) const R_BPF_64_ABS64: u32 = 2;
pub(crate) const R_BPF_64_ABS32: u32 = 3;
pub(crate) const R_BPF_64_NODYLD32: u32 = 4;
pub(crate) const R_BPF_64_32: u32 = 10;

#[derive(Debug, Clone)]
pub(crate) struct Symbol {
    pub name: String,
    pub kind: u8,
    pub bind: u8,
    pub visibility: u8,
    pub shndx: u16,
    pub value: u64,
    pub size: u64,
}

impl Symbol {
    /// The section it is defined in, if it is in one.
    pub fn section(&self) -> Option<usize> {
        (self.shndx != SHN_UNDEF && self.shndx < SHN_LORESERVE).then_some(usize::from(self.shndx))
    }
    pub fn is_undefined(&self) -> bool {
        self.shndx == SHN_UNDEF
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Reloc {
    pub offset: u64,
    pub symbol: u32,
    pub kind: u32,
    /// Only in RELA sections; in REL ones it is in the patched bytes.
    pub addend: Option<i64>,
}

impl Reloc {
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.kind.to_le_bytes());
        out.extend_from_slice(&self.symbol.to_le_bytes());
        if let Some(addend) = self.addend {
            out.extend_from_slice(&addend.to_le_bytes());
        }
    }
}

/// One REL or RELA section.
#[derive(Debug, Clone)]
pub(crate) struct RelocSection {
    pub index: usize,
    pub target: usize,
    pub relocs: Vec<Reloc>,
}

impl RelocSection {
    /// Whether libbpf reads it: `.relX` without addends, for a section `X`. Under some other names, and with addends, it passes
    /// over relocations without a word (`ignore_elf_section`, `bpf_object__elf_collect`).
    pub fn is_usual(&self, elf: &Elf) -> bool {
        let (Some(s), Some(target)) = (elf.sections.get(self.index), elf.sections.get(self.target)) else {
            return false;
        };
        s.kind == SHT_REL && s.name.strip_prefix(".rel") == Some(target.name.as_str())
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Symbols {
    /// The section index of the table, 0 if there is none.
    pub table: usize,
    pub all: Vec<Symbol>,
    pub relocs: Vec<RelocSection>,
}

impl Symbols {
    pub fn parse(elf: &Elf) -> Result<Self, ObjectError> {
        let mut this = Self::default();
        for (index, s) in elf.sections.iter().enumerate() {
            if s.kind != SHT_SYMTAB {
                continue;
            }
            if this.table != 0 {
                return Err(ObjectError::corrupt(&s.name, 0, "a second symbol table"));
            }
            this.table = index;
            let data = elf.data(index);
            if s.entsize != SYM_SIZE as u64 || !data.len().is_multiple_of(SYM_SIZE) {
                return Err(ObjectError::corrupt(&s.name, 0, "its size is not a whole number of 24-byte symbols"));
            }
            let strings = elf.data(s.link as usize);
            for (n, raw) in data.chunks_exact(SYM_SIZE).enumerate() {
                this.all.push(symbol(elf, raw, n, &s.name, strings)?);
            }
            if s.info as usize > this.all.len() {
                return Err(ObjectError::corrupt(
                    &s.name,
                    0,
                    format!("it claims {} local symbols but has only {}", s.info, this.all.len()),
                ));
            }
        }
        for (index, s) in elf.sections.iter().enumerate() {
            if s.is_reloc() {
                this.relocs.push(this.section_relocs(elf, index)?);
            }
        }
        Ok(this)
    }

    pub fn get(&self, index: u32) -> Option<&Symbol> {
        self.all.get(index as usize)
    }

    fn section_relocs(&self, elf: &Elf, index: usize) -> Result<RelocSection, ObjectError> {
        let bad = |offset: usize, problem: String| ObjectError::corrupt(elf.name(index), offset as u64, problem);
        let s = elf.sections.get(index).ok_or(ObjectError::NotElf)?;
        let rela = s.kind == SHT_RELA;
        let size = if rela { 24 } else { 16 };
        let data = elf.data(index);
        if s.entsize != size as u64 || !data.len().is_multiple_of(size) {
            return Err(bad(0, format!("its size is not a whole number of {size}-byte relocations")));
        }
        let target = s.info as usize;
        let Some(to) = elf.sections.get(target).filter(|t| target != 0 && t.kind != 0) else {
            return Err(bad(0, format!("it relocates section number {target}, which does not exist")));
        };
        if s.link as usize != self.table && !data.is_empty() {
            return Err(bad(0, format!("its symbols are in section number {}, which is not the symbol table", s.link)));
        }
        let mut relocs = Vec::with_capacity(data.len() / size);
        for (n, raw) in data.chunks_exact(size).enumerate() {
            let r = Reloc {
                offset: u64_at(raw, 0).unwrap_or(0),
                kind: u32_at(raw, 8).unwrap_or(0),
                symbol: u32_at(raw, 12).unwrap_or(0),
                addend: rela.then(|| u64_at(raw, 16).unwrap_or(0) as i64),
            };
            if self.get(r.symbol).is_none() {
                return Err(bad(
                    n * size,
                    format!(
                        "relocation at {:#x} names symbol {}, but there are only {}",
                        r.offset,
                        r.symbol,
                        self.all.len()
                    ),
                ));
            }
            if r.offset >= to.size {
                return Err(bad(
                    n * size,
                    format!("relocation at {:#x} is outside section `{}` of {:#x} bytes", r.offset, to.name, to.size),
                ));
            }
            relocs.push(r);
        }
        Ok(RelocSection { index, target, relocs })
    }
}

fn symbol(elf: &Elf, raw: &[u8], n: usize, table: &str, strings: &[u8]) -> Result<Symbol, ObjectError> {
    let bad = |problem: String| ObjectError::corrupt(table, (n * SYM_SIZE) as u64, problem);
    let name_off = u32_at(raw, 0).unwrap_or(0) as usize;
    let info = raw.get(4).copied().unwrap_or(0);
    let shndx = u16_at(raw, 6).unwrap_or(0);
    if shndx < SHN_LORESERVE && usize::from(shndx) >= elf.sections.len() {
        return Err(bad(format!("symbol {n} is in section number {shndx}, which does not exist")));
    }
    let mut name = if name_off == 0 {
        String::new()
    } else {
        elf_name(strings, name_off).ok_or_else(|| {
            bad(format!("the name of symbol {n}, at {name_off:#x}, does not end in the string table, or is too long"))
        })?
    };
    let kind = info & 15;
    if kind == STT_SECTION && name.is_empty() {
        elf.name(usize::from(shndx)).clone_into(&mut name);
    }
    Ok(Symbol {
        name,
        kind,
        bind: info >> 4,
        visibility: raw.get(5).copied().unwrap_or(0) & 3,
        shndx,
        value: u64_at(raw, 8).unwrap_or(0),
        size: u64_at(raw, 16).unwrap_or(0),
    })
}
