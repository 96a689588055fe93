//! Writing `.BTF` and `.BTF.ext`.
//!
//! One idea: types are only appended; a type of the same bytes is not written twice, so callers ask for `int` whenever
//! they need one. Format: `Documentation/bpf/btf.rst` of the kernel.

use std::collections::HashMap;

const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: u32 = 24;
const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;
const TYPE_TAG: u32 = 18;

/// Number of a type; 0 is `void`.
pub type TypeId = u32;

/// `void`.
pub const VOID: TypeId = 0;

/// Whether a function or variable is static, global or defined elsewhere (`enum btf_func_linkage`, `BTF_VAR_…`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Linkage {
    /// Of a function: verified with its callers.
    Static = 0,
    /// Of a function: verified alone.
    Global = 1,
    /// A kernel function.
    Extern = 2,
}

/// A type table in the making.
#[derive(Default)]
pub struct Btf {
    types: Vec<u8>,
    count: u32,
    known: HashMap<Vec<u8>, TypeId>,
    strings: Vec<u8>,
    offsets: HashMap<String, u32>,
}

impl Btf {
    /// The offset of a string.
    pub fn string(&mut self, text: &str) -> u32 {
        if self.strings.is_empty() {
            self.strings.push(0);
        }
        if text.is_empty() {
            return 0;
        }
        if let Some(at) = self.offsets.get(text) {
            return *at;
        }
        let at = self.strings.len() as u32;
        self.strings.extend(text.as_bytes());
        self.strings.push(0);
        self.offsets.insert(text.into(), at);
        at
    }

    fn add(&mut self, name: &str, kind: u32, vlen: usize, size_or_type: u32, body: &[u32]) -> TypeId {
        let name = self.string(name);
        let words = [name, kind << 24 | vlen as u32, size_or_type];
        let bytes: Vec<u8> = words.iter().chain(body).flat_map(|w| w.to_le_bytes()).collect();
        if let Some(id) = self.known.get(&bytes) {
            return *id;
        }
        self.types.extend(&bytes);
        self.count += 1;
        self.known.insert(bytes, self.count);
        self.count
    }

    /// An integer of that many bytes.
    pub fn int(&mut self, bytes: u32, signed: bool) -> TypeId {
        let name = match (bytes, signed) {
            (1, false) => "unsigned char",
            (1, true) => "signed char",
            (2, false) => "unsigned short",
            (2, true) => "short",
            (4, false) => "unsigned int",
            (4, true) => "int",
            (_, false) => "unsigned long long",
            (_, true) => "long long",
        };
        self.add(name, INT, 0, bytes, &[(u32::from(signed) << 24) | (bytes * 8)])
    }

    /// A pointer.
    pub fn pointer(&mut self, to: TypeId) -> TypeId {
        self.add("", PTR, 0, to, &[])
    }

    /// A pointer to a type with a tag (`__attribute__((btf_type_tag("…")))`).
    pub fn tagged_pointer(&mut self, tag: &str, to: TypeId) -> TypeId {
        let tagged = self.add(tag, TYPE_TAG, 0, to, &[]);
        self.pointer(tagged)
    }

    /// An array.
    pub fn array(&mut self, of: TypeId, count: u32) -> TypeId {
        let index = self.int(4, false);
        self.add("", ARRAY, 0, 0, &[of, index, count])
    }

    /// A structure of members (name, type, byte offset).
    pub fn structure(&mut self, name: &str, bytes: u32, members: &[(&str, TypeId, u32)]) -> TypeId {
        let body: Vec<u32> =
            members.iter().flat_map(|(name, ty, offset)| [self.string(name), *ty, offset * 8]).collect();
        self.add(name, STRUCT, members.len(), bytes, &body)
    }

    /// The type of functions with these parameters (name, type).
    pub fn prototype(&mut self, params: &[(String, TypeId)], returns: TypeId) -> TypeId {
        let body: Vec<u32> = params.iter().flat_map(|(name, ty)| [self.string(name), *ty]).collect();
        self.add("", FUNC_PROTO, params.len(), returns, &body)
    }

    /// A function with parameters (name, type).
    pub fn function(&mut self, name: &str, linkage: Linkage, params: &[(String, TypeId)], returns: TypeId) -> TypeId {
        let proto = self.prototype(params, returns);
        self.add(name, FUNC, linkage as usize, proto, &[])
    }

    /// A variable, global or static.
    pub fn variable(&mut self, name: &str, linkage: Linkage, ty: TypeId) -> TypeId {
        self.add(name, VAR, 0, ty, &[linkage as u32])
    }

    /// A data section of variables or functions (type, offset, bytes).
    pub fn section(&mut self, name: &str, bytes: u32, entries: &[(TypeId, u32, u32)]) -> TypeId {
        let body: Vec<u32> = entries.iter().flat_map(|(ty, offset, size)| [*ty, *offset, *size]).collect();
        self.add(name, DATASEC, entries.len(), bytes, &body)
    }

    /// `__uint(name, n)` of libbpf: a pointer to an array of `n` numbers.
    pub fn number(&mut self, n: u32) -> TypeId {
        let int = self.int(4, true);
        let array = self.array(int, n);
        self.pointer(array)
    }

    /// The definition of a map by its members (name, type), and the definition's bytes: what `__uint(type, …)` and its siblings
    /// of libbpf's `bpf_helpers.h` make. Each member is a pointer, but for `values`: an array without a length, which libbpf
    /// wants at the end.
    pub fn map_definition(&mut self, mut members: Vec<(&str, TypeId)>) -> (TypeId, u32) {
        let is_array = |(name, _): &(&str, TypeId)| *name == "values";
        members.sort_by_key(is_array);
        let bytes = 8 * members.iter().filter(|m| !is_array(m)).count() as u32;
        let placed: Vec<(&str, TypeId, u32)> =
            members.into_iter().zip((0..).step_by(8)).map(|((name, ty), at)| (name, ty, at)).collect();
        (self.structure("", bytes, &placed), bytes)
    }

    /// The contents of `.BTF`.
    pub fn write(&self) -> Vec<u8> {
        let types = self.types.len() as u32;
        let strings = if self.strings.is_empty() { vec![0] } else { self.strings.clone() };
        let mut out = header();
        out.extend([0, types, types, strings.len() as u32].map(u32::to_le_bytes).concat());
        out.extend(&self.types);
        out.extend(strings);
        out
    }
}

fn header() -> Vec<u8> {
    let mut out = MAGIC.to_le_bytes().to_vec();
    out.extend([1, 0]);
    out.extend(HEADER_BYTES.to_le_bytes());
    out
}

/// What `.BTF.ext` says of a section of code.
pub struct CodeRecords {
    /// Where its name is among the strings.
    pub name: u32,
    /// Functions: byte offset, type.
    pub functions: Vec<(u32, TypeId)>,
    /// Lines: byte offset, and where the file's name is among the strings, and the line's number.
    pub lines: Vec<(u32, u32, u32)>,
}

/// The contents of `.BTF.ext`.
pub fn code_records(sections: &[CodeRecords]) -> Vec<u8> {
    let mut functions = 8u32.to_le_bytes().to_vec();
    let mut lines = 16u32.to_le_bytes().to_vec();
    for s in sections {
        functions.extend([s.name, s.functions.len() as u32].map(u32::to_le_bytes).concat());
        functions.extend(s.functions.iter().flat_map(|(at, ty)| [*at, *ty].map(u32::to_le_bytes).concat()));
        lines.extend([s.name, s.lines.len() as u32].map(u32::to_le_bytes).concat());
        // The column has the lower ten bits; the text of the line is left out.
        let line = |(at, file, number): &(u32, u32, u32)| [*at, *file, 0, number << 10].map(u32::to_le_bytes).concat();
        lines.extend(s.lines.iter().flat_map(line));
    }
    // libbpf takes a table of lines without records for damaged.
    if sections.iter().any(|s| s.lines.is_empty()) {
        lines.clear();
    }
    let mut out = header();
    let size = functions.len() as u32;
    out.extend([0, size, size, lines.len() as u32].map(u32::to_le_bytes).concat());
    out.extend(functions);
    out.extend(lines);
    out
}
