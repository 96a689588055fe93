//! What an object declares beside its code: maps, variables and signatures, with their BTF.

use bpf_platform::maps;

use super::words::{AssemblyError, hex, number, syntax};
use bpf_raw::btf::{Btf, Linkage, TypeId, VOID};

/// What stands at the beginning or end of a map's value, for the kernel to manage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// `struct bpf_spin_lock` at offset 0.
    Lock,
    /// `struct bpf_timer` at offset 0.
    Timer,
}

/// What the type of a map's keys says of them, for tools that print and set elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keys {
    /// Bytes.
    Bytes,
    /// `struct { u32 prefixlen; u8 address[]; }`, as the kernel's tries of prefixes want it (`struct bpf_lpm_trie_key_u8`).
    Prefix,
}

/// A map.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Map {
    /// Its name.
    pub name: String,
    /// `enum bpf_map_type`.
    pub map_type: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Room.
    pub max_entries: u32,
    /// `BPF_F_…`.
    pub flags: u32,
    /// What the kernel manages in its values.
    pub special: Option<Special>,
    /// Pointers in its values that the kernel manages, too: type tag and offset.
    pub pointers: Vec<(String, u32)>,
    /// The map that its inner maps are like, by name.
    pub inner: Option<String>,
    /// The type of its keys; values are then bytes, too.
    pub keys: Option<Keys>,
    /// It may be another object's, found by its name (`LIBBPF_PIN_BY_NAME`).
    pub pinned: bool,
    /// Members of its values, numbers of eight bytes each, for tools that print them.
    pub members: Vec<String>,
    /// The programs that loaders put into it, from its first element on, by name.
    pub programs: Vec<String>,
}

/// A global variable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// `.data`, `.rodata`, `.bss`, or `.data.` and `.rodata.` with more.
    pub section: String,
    /// Its size in bytes.
    pub size: u32,
    /// The first bytes of its value; the others are 0.
    pub value: Vec<u8>,
    /// The type tag of a pointer that the kernel manages, if it is one.
    pub pointer: Option<String>,
}

/// A type in a signature.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Type {
    /// Nothing (a result only).
    Void,
    /// A number of so many bytes.
    Int {
        /// 1, 2, 4 or 8.
        bytes: u32,
        /// Whether it is signed.
        signed: bool,
    },
    /// The context of the case's first program.
    Context,
    /// `void *`.
    Pointer,
    /// A pointer to a structure of so many bytes, without members.
    Memory(u32),
    /// A pointer to the structure of this name.
    Struct(String),
}

/// Parameters and result of a function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signature {
    /// Its name.
    pub name: String,
    /// Types of its parameters.
    pub params: Vec<Type>,
    /// Type of its result.
    pub returns: Type,
}

/// How an object says which maps it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MapForm {
    /// By BTF, in the section `.maps`.
    #[default]
    Typed,
    /// By numbers in a section: type, sizes of key and value, length and flags, four bytes each, and then zeroes. No flag
    /// of [`Map`] beside these is said, nor are inner maps. libbpf takes such maps before its version 1.0 only.
    Legacy {
        /// Bytes of a definition, at least 20: `struct bpf_map_def` of libbpf has 20, of samples/bpf 28,
        /// `struct bpf_elf_map` of iproute2 36.
        bytes: u32,
        /// Each map has a section of its own, `maps/NAME`, instead of a place in `maps`.
        apart: bool,
    },
}

impl Map {
    /// Reads `NAME TYPE KEY VALUE ENTRIES`, then in any order `flags N`, `lock`, `timer`, `pinned`, `pointer TAG OFFSET`, `of MAP`,
    /// `holds PROGRAM`, `member NAME`, `keys bytes`, `keys prefix`.
    ///
    /// # Errors
    /// The word that is wrong.
    pub fn parse(text: &str) -> Result<Map, AssemblyError> {
        let mut words = text.split_whitespace();
        let name = words.next().ok_or_else(|| syntax(text, "map"))?.to_string();
        let kind = words.next().unwrap_or_default();
        let map_type = maps::named(kind).ok_or_else(|| syntax(kind, "map type"))?;
        let mut sizes = [0; 3];
        for size in &mut sizes {
            *size = number(words.next().unwrap_or_default())?;
        }
        let [key_size, value_size, max_entries] = sizes;
        let mut map = Map { name, map_type, key_size, value_size, max_entries, ..Map::default() };
        while let Some(word) = words.next() {
            match word {
                "flags" => map.flags = number(words.next().unwrap_or_default())?,
                "lock" => map.special = Some(Special::Lock),
                "timer" => map.special = Some(Special::Timer),
                "pinned" => map.pinned = true,
                "pointer" => {
                    let tag = words.next().unwrap_or_default().to_owned();
                    map.pointers.push((tag, number(words.next().unwrap_or_default())?));
                }
                "of" => map.inner = words.next().map(str::to_string),
                "holds" => map.programs.extend(words.next().map(str::to_string)),
                "keys" => {
                    map.keys = Some(match words.next().unwrap_or_default() {
                        "bytes" => Keys::Bytes,
                        "prefix" => Keys::Prefix,
                        other => return Err(syntax(other, "type of keys (`bytes`, `prefix`)")),
                    });
                }
                "member" => map.members.extend(words.next().map(str::to_string)),
                other => {
                    let known = "property of a map (`flags N`, `lock`, `timer`, `pinned`, `pointer TAG OFFSET`, `of MAP`, `holds PROGRAM`, \
                                 `member NAME`, `keys bytes`, `keys prefix`)";
                    return Err(syntax(other, known));
                }
            }
        }
        Ok(map)
    }

    /// Its definition, and the definition's bytes.
    pub(super) fn definition(&self, btf: &mut Btf, maps: &[Map]) -> (TypeId, u32) {
        let mut members = vec![("type", btf.number(self.map_type))];
        if self.key_size > 0 {
            members.push(("key_size", btf.number(self.key_size)));
        }
        let inner = self.inner.as_ref().and_then(|name| maps.iter().find(|m| m.name == *name));
        let has_types = self.special.is_some() || !self.pointers.is_empty() || !self.members.is_empty();
        if let Some(keys) = self.keys {
            let byte = btf.int(1, false);
            let key = match keys {
                Keys::Bytes => btf.array(byte, self.key_size),
                Keys::Prefix => {
                    let (length, address) = (btf.int(4, false), btf.array(byte, self.key_size.saturating_sub(4)));
                    btf.structure("prefix", self.key_size, &[("prefixlen", length, 0), ("address", address, 4)])
                }
            };
            let value = if self.value_size == 1 { byte } else { btf.array(byte, self.value_size) };
            members.retain(|m| m.0 != "key_size");
            members.push(("key", btf.pointer(key)));
            members.push(("value", btf.pointer(value)));
            return self.finished(btf, members);
        }
        match (has_types, inner) {
            (true, _) => {
                let value = self.value_type(btf);
                // Types of key and value come together, or the kernel takes neither.
                let key = btf.int(4, false);
                let key = if self.key_size == 4 { key } else { btf.array(key, self.key_size / 4) };
                members.retain(|m| m.0 != "key_size");
                members.push(("key", btf.pointer(key)));
                members.push(("value", btf.pointer(value)));
            }
            (false, Some(inner)) => {
                let (inner, _) = inner.definition(btf, &[]);
                let inner = btf.pointer(inner);
                members.push(("values", btf.array(inner, 0)));
            }
            // The kernel takes storage of its objects only with types.
            (false, None) if maps::is_local_storage(self.map_type) => {
                let word = btf.int(4, false);
                let words = btf.array(word, self.value_size / 4);
                let value = btf.structure("value", self.value_size, &[("words", words, 0)]);
                members.retain(|m| m.0 != "key_size");
                let key = btf.int(4, true);
                members.push(("key", btf.pointer(key)));
                members.push(("value", btf.pointer(value)));
            }
            (false, None) if self.value_size > 0 => members.push(("value_size", btf.number(self.value_size))),
            (false, None) => {}
        }
        self.finished(btf, members)
    }

    /// The definition, with what all maps have.
    fn finished(&self, btf: &mut Btf, mut members: Vec<(&'static str, TypeId)>) -> (TypeId, u32) {
        if self.max_entries > 0 {
            members.push(("max_entries", btf.number(self.max_entries)));
        }
        if self.flags > 0 {
            members.push(("map_flags", btf.number(self.flags)));
        }
        if self.pinned {
            members.push(("pinning", btf.number(1)));
        }
        if !self.programs.is_empty() {
            let (context, result) = (btf.pointer(VOID), btf.int(4, true));
            let program = btf.prototype(&[("ctx".into(), context)], result);
            let program = btf.pointer(program);
            members.push(("values", btf.array(program, 0)));
        }
        btf.map_definition(members)
    }

    /// The members of a value, or what the kernel manages in it and words between.
    fn value_type(&self, btf: &mut Btf) -> TypeId {
        if !self.members.is_empty() {
            let wide = btf.int(8, false);
            let members = self.members.iter().enumerate().map(|(i, name)| (name.as_str(), wide, 8 * i as u32));
            return btf.structure("value", self.value_size, &members.collect::<Vec<_>>());
        }
        let word = btf.int(4, false);
        let mut fields = vec![];
        match self.special {
            Some(Special::Lock) => fields.push((0, 4, btf.structure("bpf_spin_lock", 4, &[("val", word, 0)]))),
            Some(Special::Timer) => {
                let wide = btf.int(8, false);
                let opaque = btf.array(wide, 2);
                fields.push((0, 16, btf.structure("bpf_timer", 16, &[("__opaque", opaque, 0)])));
            }
            None => {}
        }
        fields.extend(self.pointers.iter().map(|(tag, at)| (*at, 8, managed_pointer(btf, tag))));
        fields.sort_unstable();
        let (mut members, mut end) = (vec![], 0);
        let last = (self.value_size, 0, None);
        for (at, bytes, ty) in fields.into_iter().map(|(at, bytes, ty)| (at, bytes, Some(ty))).chain([last]) {
            if at > end {
                members.push((format!("words{end}"), btf.array(word, (at - end) / 4), end));
            }
            members.extend(ty.map(|ty| (format!("field{at}"), ty, at)));
            end = at + bytes;
        }
        let members: Vec<(&str, TypeId, u32)> =
            members.iter().map(|(name, ty, at)| (name.as_str(), *ty, *at)).collect();
        btf.structure("value", self.value_size, &members)
    }
}

/// A pointer that the kernel manages: to a task, or where the tag does not allow that, to a structure of the program.
pub(super) fn managed_pointer(btf: &mut Btf, tag: &str) -> TypeId {
    let to = if tag.starts_with("kptr") {
        btf.structure("task_struct", 0, &[])
    } else {
        let wide = btf.int(8, false);
        btf.structure("element", 8, &[("wide", wide, 0)])
    };
    btf.tagged_pointer(tag, to)
}

impl Variable {
    /// Reads `NAME SECTION BYTES`, and perhaps the first bytes in hexadecimal digits, or `pointer TAG`.
    ///
    /// # Errors
    /// The word that is wrong.
    pub fn parse(text: &str) -> Result<Variable, AssemblyError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [name, section, size, value @ ..] = &words[..] else {
            return Err(syntax(text, "variable (`NAME SECTION BYTES [HEX | pointer TAG]`)"));
        };
        let (value, pointer) = match value {
            ["pointer", tag] => (vec![], Some((*tag).to_owned())),
            digits => (hex(&digits.concat())?, None),
        };
        Ok(Variable { name: (*name).into(), section: (*section).into(), size: number(size)?, value, pointer })
    }
}

impl Type {
    pub(super) fn parse(text: &str) -> Result<Type, AssemblyError> {
        let (head, rest) = text.split_once(' ').unwrap_or((text, ""));
        Ok(match (head, rest) {
            ("void", "") => Type::Void,
            ("ctx", "") => Type::Context,
            ("ptr", "") => Type::Pointer,
            ("mem", n) => Type::Memory(number(n)?),
            ("struct", name) => Type::Struct(name.into()),
            (int, "") if int.starts_with(['u', 's']) => {
                let bits = number(&int[1..])?;
                if !matches!(bits, 8 | 16 | 32 | 64) {
                    return Err(syntax(text, "number type"));
                }
                Type::Int { bytes: bits / 8, signed: int.starts_with('s') }
            }
            _ => return Err(syntax(text, "type (`u32`, `s64`, `ctx`, `ptr`, `mem BYTES`, `struct NAME`, `void`)")),
        })
    }

    pub(super) fn id(&self, btf: &mut Btf, context: &str) -> TypeId {
        let mut to = |name: &str, bytes| {
            let to = btf.structure(name, bytes, &[]);
            btf.pointer(to)
        };
        match self {
            Type::Void => VOID,
            Type::Int { bytes, signed } => btf.int(*bytes, *signed),
            Type::Context => to(context, 4),
            Type::Pointer => btf.pointer(VOID),
            Type::Memory(bytes) => {
                let byte = btf.int(1, false);
                let bytes_type = btf.array(byte, *bytes);
                let memory = btf.structure("memory", *bytes, &[("bytes", bytes_type, 0)]);
                btf.pointer(memory)
            }
            Type::Struct(name) => to(name, 0),
        }
    }
}

impl Signature {
    /// Reads `NAME(TYPE, TYPE) TYPE`; the result is `u64` where none is given.
    ///
    /// # Errors
    /// The word that is wrong.
    pub fn parse(text: &str) -> Result<Signature, AssemblyError> {
        let (name, rest) = text.split_once('(').unwrap_or((text, ")"));
        let (params, returns) = rest.split_once(')').ok_or_else(|| syntax(text, "signature (`NAME(u64, ctx) u32`)"))?;
        let params = params.split(',').map(str::trim).filter(|p| !p.is_empty());
        let returns = match returns.trim() {
            "" => Type::Int { bytes: 8, signed: false },
            other => Type::parse(other)?,
        };
        Ok(Signature { name: name.trim().into(), params: params.map(Type::parse).collect::<Result<_, _>>()?, returns })
    }

    pub(super) fn id(&self, btf: &mut Btf, linkage: Linkage, context: &str) -> TypeId {
        let params: Vec<(String, TypeId)> =
            self.params.iter().enumerate().map(|(i, p)| (format!("a{i}"), p.id(btf, context))).collect();
        let returns = self.returns.id(btf, context);
        btf.function(&self.name, linkage, &params, returns)
    }
}
