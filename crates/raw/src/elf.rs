//! Writing a relocatable BPF ELF file.
//!
//! One idea: callers name sections and symbols by the numbers they got; layout, string table, symbol order (local
//! symbols first) and relocation sections are done once, at the end. Formats: System V ABI chapter 4, and LLVM's
//! `llvm/BinaryFormat/ELFRelocs/BPF.def` for the relocation types.

/// 64-bit address in the two halves of an `ld_imm64` (`R_BPF_64_64`).
pub const RELOC_IMM64: u32 = 1;
/// Target of a call (`R_BPF_64_32`).
pub const RELOC_CALL: u32 = 10;

const SHT_PROGBITS: u32 = 1;
const SHT_SYMTAB: u32 = 2;
const SHT_STRTAB: u32 = 3;
const SHT_NOBITS: u32 = 8;
const SHT_REL: u32 = 9;
const SHF_WRITE: u64 = 1;
const SHF_ALLOC: u64 = 2;
const SHF_EXECINSTR: u64 = 4;
const SHF_INFO_LINK: u64 = 0x40;
const EM_BPF: u16 = 247;
const HEADER_BYTES: usize = 64;
const SYMBOL_BYTES: u64 = 24;
const REL_BYTES: u64 = 16;

/// What a section holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SectionKind {
    /// Instructions.
    Code,
    /// Data that programs may write.
    Data,
    /// Data that programs may only read.
    ReadOnly,
    /// Zeroes, without bytes in the file.
    Zeroes,
    /// Something for tools and loaders: BTF.
    Info,
}

/// What a symbol stands for (`STT_…`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SymbolKind {
    /// Something defined elsewhere.
    Unknown = 0,
    /// A map or a variable.
    Object = 1,
    /// A function.
    Func = 2,
    /// A section itself.
    Section = 3,
}

/// Who sees a symbol (`STB_…`, `STV_…`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Binding {
    /// This file.
    Local,
    /// All.
    Global,
    /// All; where it is not defined it is 0.
    Weak,
    /// The files that are linked together.
    Hidden,
}

impl Binding {
    /// Its numbers in a symbol: binding and visibility.
    fn numbers(self) -> (u8, u8) {
        match self {
            Binding::Local => (0, 0),
            Binding::Global => (1, 0),
            Binding::Weak => (2, 0),
            Binding::Hidden => (1, 2),
        }
    }
}

/// Number of a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SectionId(usize);

/// Number of a symbol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SymbolId(usize);

struct Section {
    name: String,
    kind: SectionKind,
    bytes: Vec<u8>,
    relocs: Vec<(u64, SymbolId, u32)>,
}

struct Symbol {
    name: String,
    kind: SymbolKind,
    binding: Binding,
    section: Option<SectionId>,
    value: u64,
    size: u64,
}

/// A file in the making.
#[derive(Default)]
pub struct Elf {
    sections: Vec<Section>,
    symbols: Vec<Symbol>,
}

impl Elf {
    /// Adds a section. The bytes of [`SectionKind::Zeroes`] only count.
    pub fn section(&mut self, name: &str, kind: SectionKind, bytes: Vec<u8>) -> SectionId {
        self.sections.push(Section { name: name.into(), kind, bytes, relocs: vec![] });
        SectionId(self.sections.len() - 1)
    }

    /// Adds a symbol; without a section it is undefined.
    pub fn symbol(
        &mut self,
        name: &str,
        kind: SymbolKind,
        binding: Binding,
        section: Option<SectionId>,
        range: std::ops::Range<u64>,
    ) -> SymbolId {
        let (value, size) = (range.start, range.end - range.start);
        self.symbols.push(Symbol { name: name.into(), kind, binding, section, value, size });
        SymbolId(self.symbols.len() - 1)
    }

    /// Adds a relocation at byte `offset` of a section.
    pub fn relocate(&mut self, section: SectionId, offset: u64, symbol: SymbolId, kind: u32) {
        self.sections[section.0].relocs.push((offset, symbol, kind));
    }

    /// The file.
    pub fn write(self) -> Vec<u8> {
        let mut strings = Strings(vec![0]);
        let mut out = Output { bytes: vec![0; HEADER_BYTES], headers: vec![vec![0; 64]] };
        for s in &self.sections {
            let (kind, flags) = match s.kind {
                SectionKind::Code => (SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR),
                SectionKind::Data => (SHT_PROGBITS, SHF_ALLOC | SHF_WRITE),
                SectionKind::ReadOnly => (SHT_PROGBITS, SHF_ALLOC),
                SectionKind::Zeroes => (SHT_NOBITS, SHF_ALLOC | SHF_WRITE),
                SectionKind::Info => (SHT_PROGBITS, 0),
            };
            out.section(strings.at(&s.name), kind, flags, &s.bytes, [0, 0, 0]);
        }
        let mut order: Vec<usize> = (0..self.symbols.len()).collect();
        order.sort_by_key(|i| self.symbols[*i].binding != Binding::Local);
        let number = |id: SymbolId| 1 + order.iter().position(|i| *i == id.0).unwrap_or(0) as u64;
        let symtab = out.headers.len() + self.sections.iter().filter(|s| !s.relocs.is_empty()).count();
        for (i, s) in self.sections.iter().enumerate().filter(|(_, s)| !s.relocs.is_empty()) {
            let entry = |(offset, symbol, kind): &(u64, SymbolId, u32)| {
                [*offset, number(*symbol) << 32 | u64::from(*kind)].map(u64::to_le_bytes).concat()
            };
            let bytes: Vec<u8> = s.relocs.iter().flat_map(entry).collect();
            let name = strings.at(&format!(".rel{}", s.name));
            out.section(name, SHT_REL, SHF_INFO_LINK, &bytes, [symtab as u64, i as u64 + 1, REL_BYTES]);
        }
        let mut bytes = vec![0; SYMBOL_BYTES as usize];
        for s in order.iter().map(|i| &self.symbols[*i]) {
            bytes.extend(strings.at(&s.name).to_le_bytes());
            let (binding, visibility) = s.binding.numbers();
            bytes.extend([binding << 4 | s.kind as u8, visibility]);
            bytes.extend(s.section.map_or(0, |s| s.0 as u16 + 1).to_le_bytes());
            bytes.extend(s.value.to_le_bytes());
            bytes.extend(s.size.to_le_bytes());
        }
        let locals = 1 + self.symbols.iter().filter(|s| s.binding == Binding::Local).count() as u64;
        let name = strings.at(".symtab");
        out.section(name, SHT_SYMTAB, 0, &bytes, [symtab as u64 + 1, locals, SYMBOL_BYTES]);
        let name = strings.at(".strtab");
        let bytes = std::mem::take(&mut strings.0);
        out.section(name, SHT_STRTAB, 0, &bytes, [0, 0, 0]);
        out.finish()
    }
}

/// The string table; names are few, so equal ones are not shared.
struct Strings(Vec<u8>);

impl Strings {
    fn at(&mut self, name: &str) -> u32 {
        if name.is_empty() {
            return 0;
        }
        let at = self.0.len() as u32;
        self.0.extend(name.as_bytes());
        self.0.push(0);
        at
    }
}

struct Output {
    bytes: Vec<u8>,
    headers: Vec<Vec<u8>>,
}

impl Output {
    /// `more`: `sh_link`, `sh_info`, `sh_entsize`.
    fn section(&mut self, name: u32, kind: u32, flags: u64, bytes: &[u8], more: [u64; 3]) {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let offset = self.bytes.len() as u64;
        if kind != SHT_NOBITS {
            self.bytes.extend(bytes);
        }
        let mut h = [name, kind].map(u32::to_le_bytes).concat();
        h.extend([flags, 0, offset, bytes.len() as u64].map(u64::to_le_bytes).concat());
        h.extend([more[0] as u32, more[1] as u32].map(u32::to_le_bytes).concat());
        h.extend([8, more[2]].map(u64::to_le_bytes).concat());
        self.headers.push(h);
    }

    fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let table = self.bytes.len() as u64;
        let count = self.headers.len() as u16;
        self.bytes.extend(self.headers.concat());
        // 64-bit, little-endian, version 1; a relocatable file (`ET_REL`).
        let mut h = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        h.extend([1u16, EM_BPF].map(u16::to_le_bytes).concat());
        h.extend(1u32.to_le_bytes());
        h.extend([0u64, 0, table].map(u64::to_le_bytes).concat());
        h.extend(0u32.to_le_bytes());
        h.extend([HEADER_BYTES as u16, 0, 0, 64, count, count - 1].map(u16::to_le_bytes).concat());
        self.bytes[..HEADER_BYTES].copy_from_slice(&h);
        self.bytes
    }
}
