//! An ELF file whose sections can be changed.
//!
//! The one idea: nothing that is there moves. New contents go to the end of the file, and so does the table of sections.
//! Promise: sections keep their numbers; a file that is not what this module knows is not read at all.

use object::elf;

/// A file of 64 bits, little-endian.
pub(super) struct Image {
    bytes: Vec<u8>,
    /// The table of sections, one `Elf64_Shdr` each.
    headers: Vec<[u8; HEADER]>,
    /// The section that holds the names of sections.
    names: usize,
}

/// A symbol (`Elf64_Sym`).
#[derive(Debug, Clone)]
pub(super) struct Symbol {
    pub(super) name: String,
    /// Where it is in the file.
    at: usize,
    pub(super) section: usize,
    pub(super) value: u64,
    #[cfg_attr(not(test), expect(dead_code, reason = "functions of old objects have none"))]
    pub(super) size: u64,
    pub(super) kind: u8,
    pub(super) binding: u8,
}

/// Bytes of `Elf64_Ehdr`, and places in it: `e_shoff`, `e_shnum`, `e_shstrndx`.
const FILE_HEADER: usize = 64;
const TABLE: usize = 40;
const COUNT: usize = 60;
const NAMES: usize = 62;
/// Bytes of `Elf64_Shdr`, and places in it: `sh_name`, `sh_type`, `sh_flags`, `sh_offset`, `sh_size`, `sh_link`, `sh_info`,
/// `sh_addralign`, `sh_entsize`.
const HEADER: usize = 64;
const NAME: usize = 0;
const KIND: usize = 4;
const FLAGS: usize = 8;
const OFFSET: usize = 24;
const SIZE: usize = 32;
const LINK: usize = 40;
const APPLIES_TO: usize = 44;
const ALIGNMENT: usize = 48;
const ENTRY: usize = 56;
/// Bytes of `Elf64_Sym`, and places in it: `st_info`, `st_shndx`, `st_value`, `st_size`.
const SYMBOL: usize = 24;
const INFO: usize = 4;
const SECTION: usize = 6;
const VALUE: usize = 8;
const LENGTH: usize = 16;

impl Image {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        const MAGIC_64_LITTLE: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
        if !bytes.starts_with(&MAGIC_64_LITTLE) || bytes.len() < FILE_HEADER {
            return None;
        }
        let (table, count) = (usize::try_from(long(bytes, TABLE)?).ok()?, half(bytes, COUNT)?);
        // Numbers from there on mean something else, and one section may be added.
        if count >= elf::SHN_LORESERVE - 1 {
            return None;
        }
        let headers = bytes.get(table..)?.get(..usize::from(count) * HEADER)?.as_chunks().0.to_vec();
        Some(Self { names: half(bytes, NAMES)?.into(), bytes: bytes.to_vec(), headers })
    }

    pub(super) fn sections(&self) -> std::ops::Range<usize> {
        0..self.headers.len()
    }

    pub(super) fn name(&self, section: usize) -> Option<&str> {
        string(self.data(self.names)?, word(self.headers.get(section)?, NAME)? as usize)
    }

    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.sections().find(|&section| self.name(section) == Some(name))
    }

    /// Holds it data of the program's (`SHT_PROGBITS`)?
    pub(super) fn is_data(&self, section: usize) -> bool {
        self.kind(section) == Some(elf::SHT_PROGBITS)
    }

    /// Holds it instructions?
    pub(super) fn is_code(&self, section: usize) -> bool {
        let flags = self.headers.get(section).and_then(|h| long(h, FLAGS)).unwrap_or(0);
        self.is_data(section)
            && flags & u64::from(elf::SHF_EXECINSTR) != 0
            && self.data(section).is_some_and(|data| !data.is_empty())
    }

    /// Holds it relocations with a number to add (`SHT_RELA`)?
    pub(super) fn is_with_addends(&self, section: usize) -> bool {
        self.kind(section) == Some(elf::SHT_RELA)
    }

    /// Holds it relocations with nothing to add (`SHT_REL`)?
    pub(super) fn is_relocations(&self, section: usize) -> bool {
        self.kind(section) == Some(elf::SHT_REL)
    }

    /// The section that relocations are for.
    pub(super) fn applies_to(&self, section: usize) -> Option<usize> {
        Some(word(self.headers.get(section)?, APPLIES_TO)? as usize)
    }

    /// Its relocations are of this many bytes each, without a number to add.
    pub(super) fn set_without_addends(&mut self, section: usize, bytes: u64) {
        let header = &mut self.headers[section];
        header[KIND..][..4].copy_from_slice(&elf::SHT_REL.to_le_bytes());
        header[ENTRY..][..8].copy_from_slice(&bytes.to_le_bytes());
    }

    fn kind(&self, section: usize) -> Option<u32> {
        word(self.headers.get(section)?, KIND)
    }

    pub(super) fn data(&self, section: usize) -> Option<&[u8]> {
        let header = self.headers.get(section)?;
        let (offset, size) = (usize::try_from(long(header, OFFSET)?).ok()?, usize::try_from(long(header, SIZE)?).ok()?);
        self.bytes.get(offset..)?.get(..size)
    }

    pub(super) fn set_data(&mut self, section: usize, data: &[u8]) {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let header = &mut self.headers[section];
        header[OFFSET..][..8].copy_from_slice(&(self.bytes.len() as u64).to_le_bytes());
        header[SIZE..][..8].copy_from_slice(&(data.len() as u64).to_le_bytes());
        self.bytes.extend_from_slice(data);
    }

    pub(super) fn rename(&mut self, section: usize, name: &str) -> Option<()> {
        let at = self.add_string(self.names, name)?;
        self.headers[section][NAME..][..4].copy_from_slice(&at.to_le_bytes());
        Some(())
    }

    /// Where a string now stands in a table of strings.
    fn add_string(&mut self, table: usize, string: &str) -> Option<u32> {
        let mut strings = self.data(table)?.to_vec();
        let at = strings.len() as u32;
        strings.extend_from_slice(string.as_bytes());
        strings.push(0);
        self.set_data(table, &strings);
        Some(at)
    }

    /// A new section with data, behind all others.
    pub(super) fn add(&mut self, name: &str, data: &[u8]) -> Option<()> {
        let mut header = [0; HEADER];
        header[KIND..][..4].copy_from_slice(&elf::SHT_PROGBITS.to_le_bytes());
        header[ALIGNMENT] = 4;
        self.headers.push(header);
        self.rename(self.headers.len() - 1, name)?;
        self.set_data(self.headers.len() - 1, data);
        Some(())
    }

    /// All symbols.
    pub(super) fn symbols(&self) -> Option<Vec<Symbol>> {
        let table = self.headers.iter().find(|h| word(*h, KIND) == Some(elf::SHT_SYMTAB))?;
        let (offset, size) = (usize::try_from(long(table, OFFSET)?).ok()?, usize::try_from(long(table, SIZE)?).ok()?);
        let names = self.data(word(table, LINK)? as usize)?;
        let symbols = self.bytes.get(offset..)?.get(..size)?.as_chunks::<SYMBOL>().0.iter().enumerate();
        let symbol = |(index, s): (usize, &[u8; SYMBOL])| {
            Some(Symbol {
                name: string(names, word(s, NAME)? as usize)?.to_owned(),
                at: offset + index * SYMBOL,
                section: half(s, SECTION)?.into(),
                value: long(s, VALUE)?,
                size: long(s, LENGTH)?,
                kind: s[INFO] & 0xf,
                binding: s[INFO] >> 4,
            })
        };
        symbols.map(symbol).collect()
    }

    /// Moves a symbol; one that is not a section's becomes an object that all know, as variables are.
    pub(super) fn move_symbol(&mut self, symbol: &Symbol, section: usize, value: u64) {
        let bytes = &mut self.bytes[symbol.at..][..SYMBOL];
        bytes[SECTION..][..2].copy_from_slice(&(section as u16).to_le_bytes());
        bytes[VALUE..][..8].copy_from_slice(&value.to_le_bytes());
        if symbol.kind != elf::STT_SECTION {
            bytes[INFO] = elf::STB_GLOBAL << 4 | elf::STT_OBJECT;
        }
    }

    pub(super) fn rename_symbol(&mut self, symbol: &Symbol, name: &str) -> Option<()> {
        let table = self.headers.iter().find(|h| word(*h, KIND) == Some(elf::SHT_SYMTAB))?;
        let at = self.add_string(word(table, LINK)? as usize, name)?;
        self.bytes[symbol.at..][..4].copy_from_slice(&at.to_le_bytes());
        Some(())
    }

    /// A symbol has no name from now on.
    pub(super) fn forget_name(&mut self, symbol: &Symbol) {
        self.bytes[symbol.at..][..4].fill(0);
    }

    /// Makes a symbol a function of so many bytes that all know.
    pub(super) fn make_function(&mut self, symbol: &Symbol, length: u64) {
        let bytes = &mut self.bytes[symbol.at..][..SYMBOL];
        bytes[LENGTH..][..8].copy_from_slice(&length.to_le_bytes());
        bytes[INFO] = elf::STB_GLOBAL << 4 | elf::STT_FUNC;
    }

    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let table = self.bytes.len() as u64;
        self.bytes.extend_from_slice(self.headers.as_flattened());
        self.bytes[TABLE..][..8].copy_from_slice(&table.to_le_bytes());
        self.bytes[COUNT..][..2].copy_from_slice(&(self.headers.len() as u16).to_le_bytes());
        self.bytes
    }
}

#[cfg(test)]
impl Image {
    /// Makes a section of code, and its relocations, what compilers made of them before LLVM 6.
    pub(super) fn age(&mut self, code: usize, relocations: usize) {
        for symbol in self.symbols().unwrap().iter().filter(|s| s.section == code && s.kind == elf::STT_FUNC) {
            self.make_function(symbol, 0);
            self.bytes[symbol.at + INFO] = elf::STB_GLOBAL << 4 | elf::STT_NOTYPE;
        }
        let records = self.data(relocations).unwrap().as_chunks::<16>().0;
        let with_addends: Vec<u8> = records.iter().flat_map(|r| r.iter().copied().chain([0; 8])).collect();
        self.set_data(relocations, &with_addends);
        let header = &mut self.headers[relocations];
        header[KIND..][..4].copy_from_slice(&elf::SHT_RELA.to_le_bytes());
        header[ENTRY..][..8].copy_from_slice(&24u64.to_le_bytes());
    }
}

pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn string(table: &[u8], at: usize) -> Option<&str> {
    let rest = table.get(at..)?;
    std::str::from_utf8(&rest[..rest.iter().position(|b| *b == 0)?]).ok()
}
