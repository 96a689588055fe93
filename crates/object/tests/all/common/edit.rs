//! Taking an object apart and putting it together again, changed: sections, symbols, relocations, BTF and BTF.ext.
//! Knows nothing of the crate. Types are kept by index and strings as text, so that both can be numbered anew.
#![allow(dead_code, reason = "the tests of this crate and those of `bpf-driver` use their part")]

use std::collections::{BTreeMap, HashMap};

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(b[at..at + 2].try_into().unwrap())
}
fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().unwrap())
}
fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().unwrap())
}
fn text_at(table: &[u8], at: usize) -> String {
    let end = table[at..].iter().position(|&c| c == 0).unwrap();
    String::from_utf8(table[at..at + end].to_vec()).unwrap()
}

#[derive(Clone, Debug)]
pub struct Section {
    pub name: String,
    pub kind: u32,
    pub flags: u64,
    pub data: Vec<u8>,
    /// Size of a section without contents.
    pub size: u64,
    pub link: u32,
    pub info: u32,
    pub align: u64,
    pub entsize: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Symbol {
    pub name: String,
    pub kind: u8,
    pub bind: u8,
    pub visibility: u8,
    pub section: u16,
    pub value: u64,
    pub size: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Reloc {
    pub offset: u64,
    pub kind: u32,
    pub symbol: usize,
}

#[derive(Clone, Debug)]
pub struct Elf {
    header: Vec<u8>,
    pub sections: Vec<Section>,
    names: usize,
}

impl Elf {
    pub fn parse(file: &[u8]) -> Elf {
        let table = u64_at(file, 40) as usize;
        let (count, names) = (u16_at(file, 60) as usize, u16_at(file, 62) as usize);
        let mut offsets = Vec::new();
        let mut sections = Vec::new();
        for i in 0..count {
            let h = &file[table + i * 64..table + (i + 1) * 64];
            let (kind, offset, size) = (u32_at(h, 4), u64_at(h, 24) as usize, u64_at(h, 32));
            let data = if kind == 0 || kind == 8 { vec![] } else { file[offset..offset + size as usize].to_vec() };
            offsets.push(u32_at(h, 0) as usize);
            sections.push(Section {
                name: String::new(),
                kind,
                flags: u64_at(h, 8),
                data,
                size,
                link: u32_at(h, 40),
                info: u32_at(h, 44),
                align: u64_at(h, 48),
                entsize: u64_at(h, 56),
            });
        }
        let table = sections[names].data.clone();
        for (s, at) in sections.iter_mut().zip(offsets) {
            s.name = text_at(&table, at);
        }
        Elf { header: file[..64].to_vec(), sections, names }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut this = self.clone();
        let mut names = Vec::new();
        for s in &self.sections {
            names.push(this.sections[self.names].data.len() as u32);
            this.sections[self.names].data.extend(s.name.bytes().chain([0]));
        }
        let mut out = this.header.clone();
        let mut places = Vec::new();
        for s in &this.sections {
            out.resize(out.len().next_multiple_of(16), 0);
            places.push(out.len() as u64);
            out.extend(&s.data);
        }
        out.resize(out.len().next_multiple_of(16), 0);
        let table = out.len() as u64;
        for ((s, name), place) in this.sections.iter().zip(names).zip(places) {
            let size = if s.kind == 8 { s.size } else { s.data.len() as u64 };
            out.extend(name.to_le_bytes());
            out.extend(s.kind.to_le_bytes());
            for v in [s.flags, 0, place, size] {
                out.extend(v.to_le_bytes());
            }
            out.extend(s.link.to_le_bytes());
            out.extend(s.info.to_le_bytes());
            out.extend(s.align.to_le_bytes());
            out.extend(s.entsize.to_le_bytes());
        }
        out[40..48].copy_from_slice(&table.to_le_bytes());
        out[60..62].copy_from_slice(&(this.sections.len() as u16).to_le_bytes());
        out
    }

    pub fn find(&self, name: &str) -> usize {
        self.sections.iter().position(|s| s.name == name).unwrap_or_else(|| panic!("no section {name}"))
    }

    pub fn section(&mut self, name: &str) -> &mut Section {
        let i = self.find(name);
        &mut self.sections[i]
    }

    pub fn symbols(&self) -> Vec<Symbol> {
        let table = self.sections.iter().find(|s| s.kind == 2).unwrap();
        let strings = &self.sections[table.link as usize].data;
        let symbol = |s: &[u8]| Symbol {
            name: text_at(strings, u32_at(s, 0) as usize),
            kind: s[4] & 15,
            bind: s[4] >> 4,
            visibility: s[5],
            section: u16_at(s, 6),
            value: u64_at(s, 8),
            size: u64_at(s, 16),
        };
        table.data.chunks(24).map(symbol).collect()
    }

    /// Writes the symbols back; local ones have to come first.
    pub fn set_symbols(&mut self, symbols: &[Symbol]) {
        let table = self.sections.iter().position(|s| s.kind == 2).unwrap();
        let strings = self.sections[table].link as usize;
        let mut data = Vec::new();
        for s in symbols {
            let name = match s.name.as_str() {
                "" => 0,
                name => {
                    let at = self.sections[strings].data.len();
                    self.sections[strings].data.extend(name.bytes().chain([0]));
                    at as u32
                }
            };
            data.extend(name.to_le_bytes());
            data.extend([s.bind << 4 | s.kind, s.visibility]);
            data.extend(s.section.to_le_bytes());
            data.extend(s.value.to_le_bytes());
            data.extend(s.size.to_le_bytes());
        }
        self.sections[table].data = data;
        self.sections[table].info = symbols.iter().filter(|s| s.bind == 0).count() as u32;
    }

    /// Changes the first symbol of this name that `wanted` takes.
    pub fn change_symbol(&mut self, name: &str, change: impl Fn(&mut Symbol)) {
        let mut symbols = self.symbols();
        let i = self.symbol(name);
        change(&mut symbols[i]);
        self.set_symbols(&symbols);
    }

    pub fn symbol(&self, name: &str) -> usize {
        self.symbols().iter().position(|s| s.name == name).unwrap_or_else(|| panic!("no symbol {name}"))
    }

    pub fn relocs(&self, section: &str) -> Vec<Reloc> {
        let raw = &self.sections[self.find(section)].data;
        let reloc = |r: &[u8]| Reloc { offset: u64_at(r, 0), kind: u32_at(r, 8), symbol: u32_at(r, 12) as usize };
        raw.chunks(16).map(reloc).collect()
    }

    pub fn set_relocs(&mut self, section: &str, relocs: &[Reloc]) {
        let mut data = Vec::new();
        for r in relocs {
            data.extend(r.offset.to_le_bytes());
            data.extend(r.kind.to_le_bytes());
            data.extend((r.symbol as u32).to_le_bytes());
        }
        self.section(section).data = data;
    }

    pub fn change_reloc(&mut self, section: &str, offset: u64, change: impl Fn(&mut Reloc)) {
        let mut relocs = self.relocs(section);
        change(relocs.iter_mut().find(|r| r.offset == offset).expect("a relocation there"));
        self.set_relocs(section, &relocs);
    }

    /// Reverses the order of local and of other symbols.
    pub fn reverse_symbols(&mut self) {
        let old = self.symbols();
        let locals = old.iter().filter(|s| s.bind == 0).count();
        let order: Vec<usize> = [0].into_iter().chain((1..locals).rev()).chain((locals..old.len()).rev()).collect();
        let symbols: Vec<Symbol> = order.iter().map(|&i| old[i].clone()).collect();
        self.set_symbols(&symbols);
        let new = |old: usize| order.iter().position(|&i| i == old).unwrap();
        let names: Vec<String> = self.sections.iter().filter(|s| s.kind == 9).map(|s| s.name.clone()).collect();
        for name in names {
            let relocs: Vec<Reloc> =
                self.relocs(&name).into_iter().map(|r| Reloc { symbol: new(r.symbol), ..r }).collect();
            self.set_relocs(&name, &relocs);
        }
        // It counts symbols.
        self.empty(|name| name == ".llvm_addrsig");
    }

    /// Empties sections, which the reader then takes for not there.
    pub fn empty(&mut self, wanted: impl Fn(&str) -> bool) {
        for s in &mut self.sections {
            if wanted(&s.name) {
                s.data.clear();
            }
        }
    }

    pub fn btf(&self) -> Btf {
        Btf::parse(&self.sections[self.find(".BTF")].data)
    }

    /// Changes types and records, and writes them with their new numbers.
    pub fn change_btf(&mut self, change: impl FnOnce(&mut Btf, &mut Ext)) {
        let old = self.sections[self.find(".BTF")].data.clone();
        let mut btf = Btf::parse(&old);
        let strings = u32_at(&old, 4) as usize + u32_at(&old, 16) as usize;
        let mut ext = Ext::parse(&self.sections[self.find(".BTF.ext")].data, &old[strings..]);
        let entries: HashMap<usize, (usize, usize)> = btf.entry_offsets().into_iter().collect();
        change(&mut btf, &mut ext);
        let (bytes, mut strings) = btf.encode();
        let new: HashMap<(usize, usize), usize> = btf.entry_offsets().into_iter().map(|(at, key)| (key, at)).collect();
        let ext = ext.encode(&btf, &mut strings);
        let bytes = strings.finish(bytes);
        self.section(".BTF").data = bytes;
        self.section(".BTF.ext").data = ext;
        if self.sections.iter().any(|s| s.name == ".rel.BTF") {
            let mut relocs = self.relocs(".rel.BTF");
            for r in &mut relocs {
                r.offset = new[&entries[&(r.offset as usize)]] as u64;
            }
            relocs.sort_by_key(|r| r.offset);
            self.set_relocs(".rel.BTF", &relocs);
        }
    }
}

/// A word of BTF.
#[derive(Clone, Debug, PartialEq)]
pub enum Word {
    Number(u32),
    Text(String),
    /// An index into [`Btf::types`]; 0 is `void`.
    Type(usize),
}

#[derive(Clone, Debug)]
pub struct Type {
    pub name: String,
    pub info: u32,
    pub size_or_type: Word,
    pub body: Vec<Word>,
}

impl Type {
    pub fn kind(&self) -> u32 {
        self.info >> 24 & 0x1f
    }
}

#[derive(Clone, Debug)]
pub struct Btf {
    /// By number in the input; entry 0 stands for `void`.
    pub types: Vec<Type>,
    /// The numbers in the order in which they are written.
    pub order: Vec<usize>,
    pub reverse_strings: bool,
}

struct Strings {
    places: BTreeMap<String, u32>,
    table: Vec<u8>,
}

impl Strings {
    fn of(&mut self, s: &str) -> u32 {
        *self.places.entry(s.to_owned()).or_insert_with(|| {
            let at = self.table.len() as u32;
            self.table.extend(s.bytes().chain([0]));
            at
        })
    }

    fn finish(self, mut bytes: Vec<u8>) -> Vec<u8> {
        bytes[20..24].copy_from_slice(&(self.table.len() as u32).to_le_bytes());
        bytes.extend(self.table);
        bytes
    }
}

const PTR: u32 = 2;
pub const STRUCT: u32 = 4;
pub const FUNC: u32 = 12;
pub const VAR: u32 = 14;
pub const DATASEC: u32 = 15;
pub const DECL_TAG: u32 = 17;

impl Btf {
    fn parse(b: &[u8]) -> Btf {
        let header = u32_at(b, 4) as usize;
        let (start, len) = (header + u32_at(b, 8) as usize, u32_at(b, 12) as usize);
        let strings = &b[header + u32_at(b, 16) as usize..];
        let text = |at: u32| text_at(strings, at as usize);
        let mut types = vec![Type { name: String::new(), info: 0, size_or_type: Word::Number(0), body: vec![] }];
        let mut at = start;
        while at < start + len {
            let info = u32_at(b, at + 4);
            let (kind, vlen) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
            let number = |i: usize| u32_at(b, at + 12 + i * 4);
            let ty = |i: usize| Word::Type(number(i) as usize);
            let body: Vec<Word> = match kind {
                1 | VAR | DECL_TAG => vec![Word::Number(number(0))],
                3 => vec![ty(0), ty(1), Word::Number(number(2))],
                STRUCT | 5 => (0..vlen)
                    .flat_map(|i| [Word::Text(text(number(i * 3))), ty(i * 3 + 1), Word::Number(number(i * 3 + 2))])
                    .collect(),
                6 => {
                    (0..vlen).flat_map(|i| [Word::Text(text(number(i * 2))), Word::Number(number(i * 2 + 1))]).collect()
                }
                13 => (0..vlen).flat_map(|i| [Word::Text(text(number(i * 2))), ty(i * 2 + 1)]).collect(),
                DATASEC => (0..vlen)
                    .flat_map(|i| [ty(i * 3), Word::Number(number(i * 3 + 1)), Word::Number(number(i * 3 + 2))])
                    .collect(),
                _ => vec![],
            };
            let refers = matches!(kind, PTR | 8..=14 | 17 | 18);
            let word = u32_at(b, at + 8);
            let size_or_type = if refers { Word::Type(word as usize) } else { Word::Number(word) };
            types.push(Type { name: text(u32_at(b, at)), info, size_or_type, body: body.clone() });
            at += 12 + body.len() * 4;
        }
        let order = (1..types.len()).collect();
        Btf { types, order, reverse_strings: false }
    }

    /// Byte offsets of the offset fields of data sections, by type and entry.
    fn entry_offsets(&self) -> Vec<(usize, (usize, usize))> {
        let mut found = Vec::new();
        let mut at = 24;
        for &i in &self.order {
            let t = &self.types[i];
            if t.kind() == DATASEC {
                found.extend((0..t.body.len() / 3).map(|n| (at + 12 + n * 12 + 4, (i, n))));
            }
            at += 12 + t.body.len() * 4;
        }
        found
    }

    fn word(&self, w: &Word, strings: &mut Strings) -> u32 {
        match w {
            Word::Number(n) => *n,
            Word::Text(s) => strings.of(s),
            Word::Type(0) => 0,
            Word::Type(i) => self.order.iter().position(|o| o == i).expect("a type that is written") as u32 + 1,
        }
    }

    fn encode(&self) -> (Vec<u8>, Strings) {
        let mut strings = Strings { places: BTreeMap::from([(String::new(), 0)]), table: vec![0] };
        if self.reverse_strings {
            for t in self.types.iter().rev() {
                strings.of(&t.name);
            }
        }
        let mut body = Vec::new();
        for &i in &self.order {
            let t = &self.types[i];
            for w in [strings.of(&t.name), t.info, self.word(&t.size_or_type, &mut strings)] {
                body.extend(w.to_le_bytes());
            }
            for w in &t.body {
                body.extend(self.word(w, &mut strings).to_le_bytes());
            }
        }
        let mut out = vec![0x9f, 0xeb, 1, 0];
        for w in [24, 0, body.len() as u32, body.len() as u32, 0] {
            out.extend(w.to_le_bytes());
        }
        out.extend(body);
        (out, strings)
    }

    /// The only type of this kind and name.
    pub fn find(&self, kind: u32, name: &str) -> usize {
        let mut found = (1..self.types.len()).filter(|&i| self.types[i].kind() == kind && self.types[i].name == name);
        let first = found.next().unwrap_or_else(|| panic!("no type {name} of kind {kind}"));
        assert_eq!(found.next(), None, "several types {name}");
        first
    }

    /// The index of a member's first word.
    pub fn member(&self, ty: usize, name: &str) -> usize {
        let words = self.types[ty].body.iter();
        words.clone().position(|w| *w == Word::Text(name.into())).unwrap_or_else(|| panic!("no member {name}"))
    }

    /// The definition of a map.
    pub fn map(&self, name: &str) -> usize {
        match self.types[self.find(VAR, name)].size_or_type {
            Word::Type(ty) => ty,
            _ => unreachable!(),
        }
    }

    pub fn add(&mut self, t: Type) -> usize {
        self.types.push(t);
        self.order.push(self.types.len() - 1);
        self.types.len() - 1
    }

    /// A pointer to an array of `n`: the number `n` in a map definition.
    pub fn number(&mut self, n: u32) -> usize {
        let int = self.find(1, "int");
        let body = vec![Word::Type(int), Word::Type(int), Word::Number(n)];
        let array = self.add(Type { name: String::new(), info: 3 << 24, size_or_type: Word::Number(0), body });
        self.add(Type { name: String::new(), info: PTR << 24, size_or_type: Word::Type(array), body: vec![] })
    }

    /// Gives a member of a map definition another number.
    pub fn set_number(&mut self, map: &str, member: &str, n: u32) {
        let (ty, to) = (self.map(map), self.number(n));
        let at = self.member(ty, member);
        self.types[ty].body[at + 1] = Word::Type(to);
    }
}

/// A record as words; the first is the instruction's offset.
pub type Record = Vec<Word>;

/// Size of a record in bytes, and the records by section name.
pub type Table = (u32, Vec<(String, Vec<Record>)>);

/// Function, line and CO-RE records.
pub struct Ext {
    header: usize,
    pub tables: [Table; 3],
}

impl Ext {
    fn parse(b: &[u8], strings: &[u8]) -> Ext {
        let header = u32_at(b, 4) as usize;
        let mut tables = <[Table; 3]>::default();
        for (i, table) in tables.iter_mut().enumerate() {
            let (at, len) = (header + u32_at(b, 8 + i * 8) as usize, u32_at(b, 12 + i * 8) as usize);
            if len == 0 {
                continue;
            }
            let data = &b[at..at + len];
            table.0 = u32_at(data, 0);
            let mut rest = 4;
            while rest < len {
                let count = u32_at(data, rest + 4) as usize;
                let name = text_at(strings, u32_at(data, rest) as usize);
                let record = |r: &[u8]| -> Record {
                    let words = r.chunks(4).map(|w| u32::from_le_bytes(w.try_into().unwrap()));
                    let text = |w: u32| Word::Text(text_at(strings, w as usize));
                    words
                        .enumerate()
                        .map(|(n, w)| match (i, n) {
                            (0 | 2, 1) => Word::Type(w as usize),
                            (1, 1 | 2) | (2, 2) => text(w),
                            _ => Word::Number(w),
                        })
                        .collect()
                };
                let size = table.0 as usize;
                let records = data[rest + 8..rest + 8 + count * size].chunks(size).map(record).collect();
                table.1.push((name, records));
                rest += 8 + count * size;
            }
        }
        Ext { header, tables }
    }

    fn encode(&self, btf: &Btf, strings: &mut Strings) -> Vec<u8> {
        let mut out = vec![0x9f, 0xeb, 1, 0];
        out.extend((self.header as u32).to_le_bytes());
        out.resize(self.header, 0);
        for (i, (size, sections)) in self.tables.iter().enumerate() {
            let start = out.len();
            if !sections.is_empty() {
                out.extend(size.to_le_bytes());
            }
            for (name, records) in sections {
                out.extend(strings.of(name).to_le_bytes());
                out.extend((records.len() as u32).to_le_bytes());
                for w in records.iter().flatten() {
                    out.extend(btf.word(w, strings).to_le_bytes());
                }
            }
            let (at, len) = ((start - self.header) as u32, (out.len() - start) as u32);
            out[8 + i * 8..12 + i * 8].copy_from_slice(&at.to_le_bytes());
            out[12 + i * 8..16 + i * 8].copy_from_slice(&len.to_le_bytes());
        }
        out
    }
}
