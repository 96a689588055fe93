//! Reading and writing `.BTF.ext`: function, line and CO-RE records.
//!
//! The one idea: a record is its raw bytes plus the one field that moves, the byte offset of its
//! instruction; so records of a newer kernel with longer layouts pass through unharmed. The
//! relocations some compilers emit on that field travel with the record. Promise: encoding what
//! was decoded gives the same bytes, if the input was laid out without gaps.

use std::collections::HashSet;

use crate::elf::{u16_at, u32_at};
use crate::error::ObjectError;
use crate::symbols::Reloc;

const SECTION: &str = ".BTF.ext";
const KNOWN_HEADER: usize = 32;

/// One record of any of the three tables.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// Byte offset of the instruction in its section.
    pub insn_off: u32,
    /// The whole record as in the file; the first four bytes are replaced by `insn_off` on writing.
    raw: Vec<u8>,
    /// The relocation on `insn_off`, if any.
    reloc: Option<Reloc>,
}

impl Record {
    /// The 32-bit word at an index of the record (0 is the instruction offset).
    pub fn word(&self, index: usize) -> u32 {
        u32_at(&self.raw, index * 4).unwrap_or(0)
    }
    /// All but the instruction offset.
    pub fn rest(&self) -> &[u8] {
        self.raw.get(4..).unwrap_or(&[])
    }
    /// The relocation on the instruction offset.
    pub fn reloc(&self) -> Option<&Reloc> {
        self.reloc.as_ref()
    }
    pub fn slot(&self) -> usize {
        self.insn_off as usize / 8
    }
    /// The same record for an instruction at another slot.
    pub fn at_slot(&self, slot: usize) -> Option<Self> {
        Some(Self { insn_off: u32::try_from(slot.checked_mul(8)?).ok()?, ..self.clone() })
    }
}

/// The records of one code section.
#[derive(Debug, Clone)]
pub(crate) struct SubTable {
    pub section_name_off: u32,
    /// The code section of that name, if there is one.
    pub section: Option<usize>,
    pub records: Vec<Record>,
}

/// One of the three kinds of records.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    /// Whether the header names it at all (a header may be too short for CO-RE records).
    present: bool,
    record_size: u32,
    pub subs: Vec<SubTable>,
    /// Offset of the table in the input, after the header: tables are written in this order.
    at: usize,
}

/// The whole section.
#[derive(Debug, Clone)]
pub(crate) struct BtfExt {
    header: Vec<u8>,
    /// func_info, line_info, core_relo.
    pub tables: [Table; 3],
    /// What stands behind the header where there are no records: GCC 12 writes a record size without a table.
    rest: Vec<u8>,
    /// Why the section cannot be written anew, if it cannot.
    pub frozen: Option<String>,
}

pub(crate) const FUNC_INFO: usize = 0;
pub(crate) const LINE_INFO: usize = 1;
pub(crate) const CORE_RELO: usize = 2;

impl BtfExt {
    pub fn parse(bytes: &[u8], relocs: &[Reloc]) -> Result<Self, ObjectError> {
        let bad = |at: usize, problem: &str| ObjectError::corrupt(SECTION, at as u64, problem);
        if u16_at(bytes, 0) != Some(0xeb9f) {
            return Err(bad(0, "no BTF magic"));
        }
        if bytes.get(2) != Some(&1) {
            return Err(ObjectError::Unsupported {
                what: format!("BTF.ext version {}", bytes.get(2).copied().unwrap_or(0)),
            });
        }
        let header_len = u32_at(bytes, 4).ok_or_else(|| bad(4, "truncated header"))? as usize;
        let header =
            bytes.get(..header_len).filter(|h| h.len() >= 24).ok_or_else(|| bad(4, "impossible header length"))?;
        let mut frozen = None;
        if header.get(KNOWN_HEADER..).is_some_and(|more| more.iter().any(|&b| b != 0)) {
            frozen = Some(format!("{SECTION} has parts newer than this program"));
        }
        let mut by_offset: Vec<Reloc> = relocs.to_vec();
        by_offset.sort_by_key(|r| r.offset);
        let mut used = 0;
        let mut covered = header_len;
        let mut tables = <[Table; 3]>::default();
        for (i, table) in tables.iter_mut().enumerate() {
            let (Some(at), Some(len)) = (u32_at(header, 8 + i * 8), u32_at(header, 12 + i * 8)) else { continue };
            table.present = true;
            table.at = at as usize;
            if len == 0 {
                continue;
            }
            let start = header_len.saturating_add(at as usize);
            let data = start.checked_add(len as usize).and_then(|end| bytes.get(start..end));
            let data = data.ok_or_else(|| bad(8 + i * 8, "a table reaches past the end"))?;
            covered = covered.saturating_add(data.len());
            // libbpf then reads none of the section (`btf_ext_parse_sec_info`).
            if !at.is_multiple_of(4) || len == 4 {
                frozen = Some(format!("a table of {SECTION} is empty or not aligned"));
            }
            let minimum = [8, 16, 16].get(i).copied().unwrap_or(8);
            table.record_size = u32_at(data, 0).ok_or_else(|| bad(start, "truncated table"))?;
            let size = table.record_size as usize;
            if size < minimum || !size.is_multiple_of(4) {
                return Err(bad(start, "impossible record size"));
            }
            let mut rest = 4usize;
            while rest < data.len() {
                let here = start.saturating_add(rest);
                let (Some(section_name_off), Some(count)) = (u32_at(data, rest), u32_at(data, rest + 4)) else {
                    return Err(bad(here, "truncated table"));
                };
                let first = rest.saturating_add(8);
                let end = (count as usize).checked_mul(size).and_then(|n| first.checked_add(n));
                let body = end
                    .and_then(|e| data.get(first..e))
                    .ok_or_else(|| bad(here, "more records than the table holds"))?;
                if count == 0 {
                    return Err(bad(here, "a section without records"));
                }
                let mut records = Vec::with_capacity(body.len() / size);
                for (n, raw) in body.chunks_exact(size).enumerate() {
                    let field = (here + 8 + n * size) as u64;
                    let at = by_offset.partition_point(|r| r.offset < field);
                    let reloc = by_offset.get(at).filter(|r| r.offset == field).copied();
                    used += usize::from(reloc.is_some());
                    if reloc.and_then(|r| r.addend).is_some_and(|a| Some(a as u32) != u32_at(raw, 0)) {
                        frozen.get_or_insert_with(|| format!("{SECTION} has relocations with explicit addends"));
                    }
                    records.push(Record { insn_off: u32_at(raw, 0).unwrap_or(0), raw: raw.to_vec(), reloc });
                }
                table.subs.push(SubTable { section_name_off, section: None, records });
                rest = first.saturating_add(body.len());
            }
        }
        if used != relocs.len() && frozen.is_none() {
            frozen = Some(format!("{SECTION} has relocations that are not on instruction offsets"));
        }
        if covered > bytes.len() {
            return Err(bad(8, "its tables overlap"));
        }
        // The same (`btf_ext_parse`), and where BTF is needed, libbpf refuses the object.
        if bytes.len() == header_len {
            frozen = Some(format!("{SECTION} is empty"));
        }
        let rest = bytes.get(header_len..).filter(|_| covered == header_len).unwrap_or(&[]).to_vec();
        Ok(Self { header: header.to_vec(), tables, rest, frozen })
    }

    /// The section's new bytes and the relocations on it.
    pub fn encode(&self) -> Option<(Vec<u8>, Vec<Reloc>)> {
        let mut out = self.header.clone();
        let mut relocs = Vec::new();
        let mut order: Vec<usize> = (0..self.tables.len()).collect();
        order.sort_by_key(|&i| self.tables.get(i).map_or(0, |t| t.at));
        for i in order {
            let Some(table) = self.tables.get(i).filter(|t| t.present) else { continue };
            let start = out.len();
            let live = || table.subs.iter().filter(|s| !s.records.is_empty());
            if table.record_size != 0 && live().next().is_some() {
                out.extend_from_slice(&table.record_size.to_le_bytes());
                for sub in live() {
                    out.extend_from_slice(&sub.section_name_off.to_le_bytes());
                    out.extend_from_slice(&u32::try_from(sub.records.len()).ok()?.to_le_bytes());
                    for r in &sub.records {
                        if let Some(reloc) = r.reloc {
                            let addend = reloc.addend.map(|_| i64::from(r.insn_off));
                            relocs.push(Reloc { offset: out.len() as u64, addend, ..reloc });
                        }
                        out.extend_from_slice(&r.insn_off.to_le_bytes());
                        out.extend_from_slice(r.raw.get(4..)?);
                    }
                }
            }
            let len = u32::try_from(out.len() - start).ok()?;
            let at = u32::try_from(start.checked_sub(self.header.len())?).ok()?;
            crate::elf::put(&mut out, 8 + i * 8, &at.to_le_bytes())?;
            crate::elf::put(&mut out, 12 + i * 8, &len.to_le_bytes())?;
        }
        out.extend_from_slice(&self.rest);
        Some((out, relocs))
    }

    /// Finds the code sections, whose names the BTF strings hold.
    pub fn resolve(&mut self, section: impl Fn(u32) -> Option<usize>) {
        for sub in self.tables.iter_mut().flat_map(|t| &mut t.subs) {
            sub.section = section(sub.section_name_off);
        }
        // libbpf reads the first list alone (`adjust_prog_btf_ext_info`).
        for table in self.tables.iter().take(CORE_RELO) {
            let mut seen = HashSet::new();
            if table.subs.iter().filter_map(|s| s.section).any(|s| !seen.insert(s)) {
                self.frozen.get_or_insert_with(|| format!("{SECTION} has two lists of records for one section"));
            }
        }
    }

    /// The records of one kind in one code section.
    pub fn records(&self, table: usize, section: usize) -> impl Iterator<Item = &Record> + '_ {
        let subs = self.tables.get(table).map_or(&[][..], |t| &t.subs);
        subs.iter().filter(move |s| s.section == Some(section)).flat_map(|s| &s.records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The section as GCC 12 writes it: a header that names no table, and four bytes.
    #[test]
    fn what_stands_behind_a_header_without_tables_stays() {
        let mut bytes = vec![0x9f, 0xeb, 1, 0, 32, 0, 0, 0];
        bytes.resize(32, 0);
        bytes.extend([16, 0, 0, 0]);
        let ext = BtfExt::parse(&bytes, &[]).expect("it is read");
        assert_eq!(ext.frozen, None);
        assert_eq!(ext.encode().map(|(written, _)| written), Some(bytes));
    }
}
