//! From assembly to an object file that libbpf loads.
//!
//! One idea: everything around the code (maps, data, kernel functions) is declared once, in [`Surroundings`], and two
//! versions of the code are assembled in the same surroundings; so two such objects differ in code alone.
//!
//! The listing is LLVM's syntax, as [`bpf_isa::parse_listing`] reads it, with names where an object has relocations:
//! `r1 = NAME ll` is the address of a map, a variable (`NAME + 8 ll`) or a function, `call NAME` calls a function, a
//! declared kernel function, or a helper by its name (`bpf_map_lookup_elem`; `call 1` still works).

use bpf_isa::{Call, Imm64Kind, Insn, ParseError};
use bpf_platform::helpers::Helper;
use bpf_platform::maps;
use thiserror::Error;

use crate::btf::{Btf, CodeRecords, Linkage, TypeId, VOID, code_records};
use crate::elf::{Binding, Elf, RELOC_CALL, RELOC_IMM64, SectionId, SectionKind, SymbolId, SymbolKind};

/// Why there is no object.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AssemblyError {
    /// The listing of a function.
    #[error("function {function}: {source}")]
    Listing {
        /// Which.
        function: String,
        /// What the parser says; lines count within the function.
        source: ParseError,
    },
    /// A name that nothing has.
    #[error("function {function}: nothing is called `{name}`")]
    Unknown {
        /// Where it is used.
        function: String,
        /// The name.
        name: String,
    },
    /// A word that should have been something else.
    #[error("`{text}` is no {expected}")]
    Syntax {
        /// What stands there.
        text: String,
        /// What should.
        expected: &'static str,
    },
}

fn syntax(text: impl Into<String>, expected: &'static str) -> AssemblyError {
    AssemblyError::Syntax { text: text.into(), expected }
}

/// What stands at the beginning or end of a map's value, for the kernel to manage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// `struct bpf_spin_lock` at offset 0.
    Lock,
    /// `struct bpf_timer` at offset 0.
    Timer,
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

/// What there is beside the code.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Surroundings {
    /// The section of the first program, such as `xdp`.
    pub section: String,
    /// Maps, in order.
    pub maps: Vec<Map>,
    /// Variables, in order.
    pub variables: Vec<Variable>,
    /// Kernel functions that are called.
    pub kfuncs: Vec<Signature>,
    /// Kernel functions without which the object loads, too (`__weak`): their address is 0 then.
    pub weak_kfuncs: Vec<Signature>,
    /// How maps are defined.
    pub map_form: MapForm,
    /// Without `.BTF` and `.BTF.ext`, as `clang` writes objects without `-g`.
    pub untyped: bool,
    /// Each instruction has a record that says which line of source it comes from.
    pub lines: bool,
}

/// How a function is seen from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// An entry point.
    Program,
    /// A subprogram that is verified with its callers; callbacks, too. In a program's section, a program whose symbol
    /// is local.
    Static,
    /// A subprogram that is verified alone.
    Global,
}

/// A function as text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// Its name and type.
    pub signature: Signature,
    /// What it is.
    pub role: Role,
    /// The section it stands in.
    pub section: String,
    /// Its listing.
    pub listing: String,
}

/// What map types are called.
const MAP_TYPES: [(&str, u32); 33] = [
    ("hash", maps::HASH),
    ("array", maps::ARRAY),
    ("prog_array", maps::PROG_ARRAY),
    ("perf_event_array", maps::PERF_EVENT_ARRAY),
    ("percpu_hash", maps::PERCPU_HASH),
    ("percpu_array", maps::PERCPU_ARRAY),
    ("stack_trace", maps::STACK_TRACE),
    ("cgroup_array", maps::CGROUP_ARRAY),
    ("lru_hash", maps::LRU_HASH),
    ("lru_percpu_hash", maps::LRU_PERCPU_HASH),
    ("lpm_trie", maps::LPM_TRIE),
    ("array_of_maps", maps::ARRAY_OF_MAPS),
    ("hash_of_maps", maps::HASH_OF_MAPS),
    ("devmap", maps::DEVMAP),
    ("sockmap", maps::SOCKMAP),
    ("cpumap", maps::CPUMAP),
    ("xskmap", maps::XSKMAP),
    ("sockhash", maps::SOCKHASH),
    ("cgroup_storage", maps::CGROUP_STORAGE),
    ("reuseport_sockarray", maps::REUSEPORT_SOCKARRAY),
    ("percpu_cgroup_storage", maps::PERCPU_CGROUP_STORAGE),
    ("queue", maps::QUEUE),
    ("stack", maps::STACK),
    ("sk_storage", maps::SK_STORAGE),
    ("devmap_hash", maps::DEVMAP_HASH),
    ("struct_ops", maps::STRUCT_OPS),
    ("ringbuf", maps::RINGBUF),
    ("inode_storage", maps::INODE_STORAGE),
    ("task_storage", maps::TASK_STORAGE),
    ("bloom_filter", maps::BLOOM_FILTER),
    ("user_ringbuf", maps::USER_RINGBUF),
    ("cgrp_storage", maps::CGRP_STORAGE),
    ("arena", maps::ARENA),
];

/// The C structure of the context, by how a section's name begins (libbpf's `section_defs` with the program types'
/// entries in the kernel's `include/linux/bpf_types.h`); the longest beginning counts.
const CONTEXTS: [(&str, &str); 24] = [
    ("xdp", "xdp_md"),
    ("tc", "__sk_buff"),
    ("tcx", "__sk_buff"),
    ("classifier", "__sk_buff"),
    ("action", "__sk_buff"),
    ("socket", "__sk_buff"),
    ("cgroup_skb", "__sk_buff"),
    ("cgroup/skb", "__sk_buff"),
    ("lwt", "__sk_buff"),
    ("sk_skb", "__sk_buff"),
    ("flow_dissector", "__sk_buff"),
    ("netkit", "__sk_buff"),
    ("sk_msg", "sk_msg_md"),
    ("sockops", "bpf_sock_ops"),
    ("cgroup/sock", "bpf_sock"),
    ("cgroup/bind", "bpf_sock_addr"),
    ("cgroup/connect", "bpf_sock_addr"),
    ("cgroup/getsockopt", "bpf_sockopt"),
    ("cgroup/setsockopt", "bpf_sockopt"),
    ("cgroup/sysctl", "bpf_sysctl"),
    ("sk_lookup", "bpf_sk_lookup"),
    ("kprobe", "bpf_user_pt_regs_t"),
    ("perf_event", "bpf_perf_event_data"),
    ("raw_tp", "bpf_raw_tracepoint_args"),
];

/// About as many instructions as a line of C has.
const INSNS_OF_A_LINE: u32 = 3;

/// Where subprograms stand.
const TEXT: &str = ".text";

impl Map {
    /// Reads `NAME TYPE KEY VALUE ENTRIES`, then in any order `flags N`, `lock`, `timer`, `pointer TAG OFFSET`, `of MAP`,
    /// `holds PROGRAM`.
    ///
    /// # Errors
    /// The word that is wrong.
    pub fn parse(text: &str) -> Result<Map, AssemblyError> {
        let mut words = text.split_whitespace();
        let name = words.next().ok_or_else(|| syntax(text, "map"))?.to_string();
        let kind = words.next().unwrap_or_default();
        let map_type = MAP_TYPES.iter().find(|t| t.0 == kind).ok_or_else(|| syntax(kind, "map type"))?.1;
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
                "pointer" => {
                    let tag = words.next().unwrap_or_default().to_owned();
                    map.pointers.push((tag, number(words.next().unwrap_or_default())?));
                }
                "of" => map.inner = words.next().map(str::to_string),
                "holds" => map.programs.extend(words.next().map(str::to_string)),
                other => {
                    let known = "property of a map (`flags N`, `lock`, `timer`, `pointer TAG OFFSET`, `of MAP`, `holds PROGRAM`)";
                    return Err(syntax(other, known));
                }
            }
        }
        Ok(map)
    }

    fn definition(&self, btf: &mut Btf, maps: &[Map]) -> TypeId {
        let mut members = vec![("type", btf.number(self.map_type))];
        if self.key_size > 0 {
            members.push(("key_size", btf.number(self.key_size)));
        }
        let inner = self.inner.as_ref().and_then(|name| maps.iter().find(|m| m.name == *name));
        let is_managed = self.special.is_some() || !self.pointers.is_empty();
        match (is_managed, inner) {
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
                let inner = inner.definition(btf, &[]);
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
        if self.max_entries > 0 {
            members.push(("max_entries", btf.number(self.max_entries)));
        }
        if self.flags > 0 {
            members.push(("map_flags", btf.number(self.flags)));
        }
        if !self.programs.is_empty() {
            let (context, result) = (btf.pointer(VOID), btf.int(4, true));
            let program = btf.prototype(&[("ctx".into(), context)], result);
            let program = btf.pointer(program);
            members.push(("values", btf.array(program, 0)));
        }
        // libbpf wants the array of `values` at the end of the structure.
        members.sort_by_key(|m| m.0 == "values");
        let members: Vec<(&str, TypeId, u32)> =
            members.into_iter().enumerate().map(|(i, (name, ty))| (name, ty, 8 * i as u32)).collect();
        btf.structure("", self.definition_bytes(), &members)
    }

    /// Bytes in the section: the definition, and a pointer to each program that the map holds.
    fn room(&self) -> u32 {
        self.definition_bytes() + 8 * self.programs.len() as u32
    }

    fn definition_bytes(&self) -> u32 {
        let sizes = [self.key_size, self.value_size, self.max_entries, self.flags];
        let numbers = 1 + sizes.iter().filter(|n| **n > 0).count() as u32;
        8 * if self.inner.is_some() { numbers - u32::from(self.value_size > 0) } else { numbers }
    }

    /// What the kernel manages in a value, and words between.
    fn value_type(&self, btf: &mut Btf) -> TypeId {
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
fn managed_pointer(btf: &mut Btf, tag: &str) -> TypeId {
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
    fn parse(text: &str) -> Result<Type, AssemblyError> {
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

    fn id(&self, btf: &mut Btf, context: &str) -> TypeId {
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

    fn id(&self, btf: &mut Btf, linkage: Linkage, context: &str) -> TypeId {
        let params: Vec<(String, TypeId)> =
            self.params.iter().enumerate().map(|(i, p)| (format!("a{i}"), p.id(btf, context))).collect();
        let returns = self.returns.id(btf, context);
        btf.function(&self.name, linkage, &params, returns)
    }
}

/// Cuts code into functions. `static NAME(TYPES) TYPE:` and `global NAME(TYPES) TYPE:` begin a subprogram,
/// `program NAME SECTION:` another program; what stands before the first such line is the program `main`.
///
/// # Errors
/// A line that begins no function and looks as if it did.
pub fn functions(text: &str, section: &str) -> Result<Vec<Function>, AssemblyError> {
    let returns = Type::Int { bytes: 4, signed: true };
    let program = |name: &str, section: &str| Function {
        signature: Signature { name: name.into(), params: vec![Type::Context], returns: returns.clone() },
        role: Role::Program,
        section: section.into(),
        listing: String::new(),
    };
    let mut found = vec![program("main", section)];
    for line in text.lines() {
        let bare = without_comment(line).trim();
        let heading = bare.strip_suffix(':').and_then(|h| h.split_once(' '));
        let subprogram = |role, text| {
            Ok(Function { signature: Signature::parse(text)?, role, section: TEXT.into(), listing: String::new() })
        };
        match heading {
            Some(("static", text)) => found.push(subprogram(Role::Static, text)?),
            Some(("global", text)) => found.push(subprogram(Role::Global, text)?),
            Some(("program", text)) => {
                let (name, section) = text.split_once(' ').ok_or_else(|| syntax(text, "program (`NAME SECTION`)"))?;
                found.push(program(name, section.trim()));
            }
            _ => {
                let f = found.last_mut().ok_or_else(|| syntax(line, "line of a function"))?;
                f.listing += line;
                f.listing.push('\n');
            }
        }
    }
    found.retain(|f| f.listing.lines().any(|l| !without_comment(l).trim().is_empty()));
    Ok(found)
}

/// An instruction's reference by name.
struct Named {
    insn: usize,
    name: String,
    addend: u64,
}

/// The object of these functions in these surroundings.
///
/// # Errors
/// [`AssemblyError`].
pub fn object(around: &Surroundings, functions: &[Function]) -> Result<Vec<u8>, AssemblyError> {
    let context =
        CONTEXTS.iter().filter(|(head, _)| around.section.starts_with(head)).max_by_key(|(head, _)| head.len());
    let context = context.map_or("unknown_ctx", |(_, name)| name);
    let (elf, btf) = (Elf::default(), Btf::default());
    let mut writer = Writer { around, functions, context, elf, btf, symbols: vec![], held: vec![] };
    writer.maps();
    writer.variables();
    writer.kfuncs();
    writer.code()?;
    let Writer { mut elf, btf, .. } = writer;
    elf.section("license", SectionKind::Data, b"GPL\0".to_vec());
    if !around.untyped {
        elf.section(".BTF", SectionKind::Info, btf.write());
    }
    Ok(elf.write())
}

struct Writer<'a> {
    around: &'a Surroundings,
    functions: &'a [Function],
    context: &'a str,
    elf: Elf,
    btf: Btf,
    /// What maps, variables and kernel functions are called.
    symbols: Vec<(String, SymbolId)>,
    /// Where maps hold programs, and which.
    held: Vec<(SectionId, u64, String)>,
}

/// A section of code: its functions with their instructions.
struct Code<'a> {
    id: SectionId,
    symbol: SymbolId,
    name: &'a str,
}

impl<'a> Writer<'a> {
    fn maps(&mut self) {
        match self.around.map_form {
            _ if self.around.maps.is_empty() => {}
            MapForm::Typed => self.typed_maps(),
            MapForm::Legacy { bytes, apart } => self.legacy_maps(bytes, apart),
        }
    }

    fn legacy_maps(&mut self, bytes: u32, apart: bool) {
        let definition = |map: &Map| {
            let numbers = [map.map_type, map.key_size, map.value_size, map.max_entries, map.flags];
            let mut definition = numbers.map(u32::to_le_bytes).concat();
            definition.resize(bytes as usize, 0);
            definition
        };
        let maps = &self.around.maps;
        let together = (!apart).then(|| {
            let all: Vec<u8> = maps.iter().flat_map(definition).collect();
            self.elf.section("maps", SectionKind::Data, all)
        });
        for (at, map) in maps.iter().enumerate() {
            let (section, at) = match together {
                Some(section) => (section, at as u64),
                None => (self.elf.section(&format!("maps/{}", map.name), SectionKind::Data, definition(map)), 0),
            };
            let range = at * u64::from(bytes)..(at + 1) * u64::from(bytes);
            let symbol = self.elf.symbol(&map.name, SymbolKind::Object, Binding::Global, Some(section), range);
            self.symbols.push((map.name.clone(), symbol));
        }
    }

    fn typed_maps(&mut self) {
        let mut entries = vec![];
        let mut ranges = vec![];
        let mut end = 0;
        for map in &self.around.maps {
            let definition = map.definition(&mut self.btf, &self.around.maps);
            let variable = self.btf.variable(&map.name, Linkage::Global, definition);
            let bytes = map.room();
            entries.push((variable, end, bytes));
            ranges.push(u64::from(end)..u64::from(end + bytes));
            end += bytes;
        }
        self.btf.section(".maps", end, &entries);
        let section = self.elf.section(".maps", SectionKind::Data, vec![0; end as usize]);
        for (map, range) in self.around.maps.iter().zip(ranges) {
            let places = (range.start + u64::from(map.definition_bytes())..range.end).step_by(8);
            self.held.extend(places.zip(&map.programs).map(|(at, program)| (section, at, program.clone())));
            let symbol = self.elf.symbol(&map.name, SymbolKind::Object, Binding::Global, Some(section), range);
            self.symbols.push((map.name.clone(), symbol));
        }
    }

    fn variables(&mut self) {
        let mut sections: Vec<&str> = vec![];
        for v in &self.around.variables {
            if !sections.contains(&v.section.as_str()) {
                sections.push(&v.section);
            }
        }
        for name in sections {
            let (mut bytes, mut entries, mut found) = (vec![], vec![], vec![]);
            for v in self.around.variables.iter().filter(|v| v.section == name) {
                bytes.resize(bytes.len().next_multiple_of(8), 0);
                let at = bytes.len();
                bytes.extend(v.value.iter().take(v.size as usize));
                bytes.resize(at + v.size as usize, 0);
                // User space maps sections with variables that it may see, and the kernel none with its pointers
                // (`map_is_mmapable` in libbpf.c, `bpf_map_mmap` in kernel/bpf/syscall.c).
                let (linkage, ty) = match &v.pointer {
                    Some(tag) => (Linkage::Static, managed_pointer(&mut self.btf, tag)),
                    None if self.around.variables.iter().any(|w| w.section == name && w.pointer.is_some()) => {
                        (Linkage::Static, self.bytes(v.size))
                    }
                    None => (Linkage::Global, self.bytes(v.size)),
                };
                entries.push((self.btf.variable(&v.name, linkage, ty), at as u32, v.size));
                found.push((v.name.clone(), at as u64..bytes.len() as u64));
            }
            let kind = match name {
                _ if name.starts_with(".bss") => SectionKind::Zeroes,
                _ if name.starts_with(".rodata") => SectionKind::ReadOnly,
                _ => SectionKind::Data,
            };
            self.btf.section(name, bytes.len() as u32, &entries);
            let section = self.elf.section(name, kind, bytes);
            for (name, range) in found {
                let symbol = self.elf.symbol(&name, SymbolKind::Object, Binding::Global, Some(section), range);
                self.symbols.push((name, symbol));
            }
        }
    }

    fn bytes(&mut self, count: u32) -> TypeId {
        let byte = self.btf.int(1, false);
        self.btf.array(byte, count)
    }

    fn kfuncs(&mut self) {
        let mut entries = vec![];
        let strong = self.around.kfuncs.iter().map(|k| (k, Binding::Global));
        let weak = self.around.weak_kfuncs.iter().map(|k| (k, Binding::Weak));
        for (k, binding) in strong.chain(weak) {
            entries.push((k.id(&mut self.btf, Linkage::Extern, self.context), 0, 0));
            let symbol = self.elf.symbol(&k.name, SymbolKind::Unknown, binding, None, 0..0);
            self.symbols.push((k.name.clone(), symbol));
        }
        if !entries.is_empty() {
            self.btf.section(".ksyms", 0, &entries);
        }
    }

    fn code(&mut self) -> Result<(), AssemblyError> {
        let parsed: Vec<(Vec<Insn>, Vec<Named>)> =
            self.functions.iter().map(|f| self.parse(f)).collect::<Result<_, _>>()?;
        let slots = |insns: &[Insn]| insns.iter().map(|i| i.slots()).sum::<usize>();
        let mut ends: Vec<(&str, usize)> = vec![];
        let mut starts = vec![];
        for (f, (insns, _)) in self.functions.iter().zip(&parsed) {
            let known = ends.iter().position(|(name, _)| *name == f.section);
            let known = known.unwrap_or_else(|| {
                ends.push((&f.section, 0));
                ends.len() - 1
            });
            starts.push(ends[known].1);
            ends[known].1 += slots(insns);
        }
        let mut sections = vec![];
        for (name, _) in ends {
            let mut bytes = vec![];
            for (f, (insns, named)) in self.functions.iter().zip(&parsed).filter(|(f, _)| f.section == name) {
                let mut encoded = bpf_isa::encode_all(insns)
                    .map_err(|e| syntax(format!("{}: {e}", f.signature.name), "encodable function"))?;
                self.set_addends(insns, named, &starts, &mut encoded);
                bytes.extend(encoded);
            }
            let id = self.elf.section(name, SectionKind::Code, bytes);
            let symbol = self.elf.symbol("", SymbolKind::Section, Binding::Local, Some(id), 0..0);
            sections.push(Code { id, symbol, name });
        }
        let mut records = vec![];
        for code in &sections {
            let mut functions = vec![];
            let mut lines = vec![];
            for (i, f) in self.functions.iter().enumerate().filter(|(_, f)| f.section == code.name) {
                let range = 8 * starts[i] as u64..8 * (starts[i] + slots(&parsed[i].0)) as u64;
                let (binding, linkage) = match f.role {
                    Role::Static => (Binding::Local, Linkage::Static),
                    Role::Program | Role::Global => (Binding::Global, Linkage::Global),
                };
                let symbol = self.elf.symbol(&f.signature.name, SymbolKind::Func, binding, Some(code.id), range);
                for (section, at, _) in self.held.iter().filter(|(_, _, program)| *program == f.signature.name) {
                    self.elf.relocate(*section, *at, symbol, RELOC_IMM64);
                }
                functions.push((8 * starts[i] as u32, f.signature.id(&mut self.btf, linkage, self.context)));
                if self.around.lines {
                    let file = self.btf.string("generated.c");
                    let line = |(n, slot)| (8 * (starts[i] + slot) as u32, file, 1 + n as u32 / INSNS_OF_A_LINE);
                    lines.extend(slots_of(&parsed[i].0).into_iter().enumerate().map(line));
                }
                self.relocations(code, starts[i], &parsed[i], &sections);
            }
            records.push(CodeRecords { name: self.btf.string(code.name), functions, lines });
        }
        if !self.around.untyped {
            self.elf.section(".BTF.ext", SectionKind::Info, code_records(&records));
        }
        Ok(())
    }

    /// Writes what is added to a symbol's value. Functions are reached from their section: a call counts slots less one,
    /// an address bytes.
    fn set_addends(&self, insns: &[Insn], named: &[Named], starts: &[usize], bytes: &mut [u8]) {
        let starts_of = slots_of(insns);
        for n in named {
            let at = 8 * starts_of[n.insn] + 4;
            let target = self.functions.iter().position(|f| f.signature.name == n.name).map(|t| starts[t] as i32);
            let addend = match (target, insns[n.insn]) {
                (Some(start), Insn::Call(_)) => start - 1,
                (Some(start), _) => 8 * start,
                (None, Insn::Call(_)) => -1,
                (None, _) => n.addend as i32,
            };
            bytes[at..at + 4].copy_from_slice(&addend.to_le_bytes());
        }
    }

    fn relocations(&mut self, code: &Code, start: usize, parsed: &(Vec<Insn>, Vec<Named>), sections: &[Code]) {
        let (insns, named) = parsed;
        let starts_of = slots_of(insns);
        for n in named {
            let kind = if matches!(insns[n.insn], Insn::Call(_)) { RELOC_CALL } else { RELOC_IMM64 };
            let function = self.functions.iter().find(|f| f.signature.name == n.name);
            let symbol = match function {
                Some(f) => sections.iter().find(|s| s.name == f.section).map(|s| s.symbol),
                None => self.symbols.iter().find(|s| s.0 == n.name).map(|s| s.1),
            };
            if let Some(symbol) = symbol {
                self.elf.relocate(code.id, 8 * (start + starts_of[n.insn]) as u64, symbol, kind);
            }
        }
    }

    /// Instructions with stand-ins for what has a name, and the names.
    fn parse(&self, f: &Function) -> Result<(Vec<Insn>, Vec<Named>), AssemblyError> {
        let (mut lines, mut named, mut count) = (vec![], vec![], 0);
        for line in f.listing.lines() {
            let line = without_comment(line);
            let (labels, insn) = split_labels(line);
            let stand_in = match name_in(insn) {
                None => insn.to_string(),
                Some((name, addend)) => {
                    let known = self.symbols.iter().any(|s| s.0 == name)
                        || self.functions.iter().any(|f| f.signature.name == name);
                    let helper = helper_named(name);
                    match (insn.strip_prefix("call "), known, helper) {
                        (Some(_), false, Some(id)) => format!("call {id}"),
                        (call, true, _) => {
                            named.push(Named { insn: count, name: name.into(), addend });
                            let dst = insn.split(' ').next().unwrap_or_default();
                            if call.is_some() { "call pc+0".into() } else { format!("{dst} = 0 ll") }
                        }
                        _ => {
                            return Err(AssemblyError::Unknown {
                                function: f.signature.name.clone(),
                                name: name.into(),
                            });
                        }
                    }
                }
            };
            count += usize::from(!insn.is_empty());
            lines.push(format!("{labels}{stand_in}"));
        }
        let insns = bpf_isa::parse_listing(&lines.join("\n"))
            .map_err(|source| AssemblyError::Listing { function: f.signature.name.clone(), source })?;
        debug_assert_eq!(insns.len(), count, "each line holds one instruction");
        debug_assert!(named.iter().all(|n| matches!(
            insns[n.insn],
            Insn::Call(Call::Local(_)) | Insn::LoadImm64 { kind: Imm64Kind::Const, .. }
        )));
        Ok((insns, named))
    }
}

/// The slot of each instruction within its function.
fn slots_of(insns: &[Insn]) -> Vec<usize> {
    let mut end = 0;
    let mut starts = Vec::with_capacity(insns.len());
    for insn in insns {
        starts.push(end);
        end += insn.slots();
    }
    starts
}

fn without_comment(line: &str) -> &str {
    let end = [";", "//", "#"].into_iter().filter_map(|c| line.find(c)).min();
    &line[..end.unwrap_or(line.len())]
}

/// The labels at the beginning of a line, and the rest.
fn split_labels(line: &str) -> (&str, &str) {
    let is_label = |text: &str| {
        let text = text.trim();
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$'))
    };
    let mut at = 0;
    while let Some(colon) = line[at..].find(':').filter(|c| is_label(&line[at..at + c])) {
        at += colon + 1;
    }
    (&line[..at], line[at..].trim())
}

/// The name in `rN = NAME ll`, `rN = NAME + K ll` or `call NAME`, with K.
fn name_in(insn: &str) -> Option<(&str, u64)> {
    let is_name = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$'))
    };
    if let Some(callee) = insn.strip_prefix("call ") {
        return Some((callee.trim(), 0)).filter(|(name, _)| is_name(name));
    }
    let (_, value) = insn.strip_suffix(" ll")?.split_once(" = ")?;
    let (name, addend) = match value.split_once('+') {
        Some((name, addend)) => (name.trim(), number(addend.trim()).ok()?.into()),
        None => (value.trim(), 0),
    };
    Some((name, addend)).filter(|(name, _)| is_name(name))
}

/// The number of a helper, with or without `bpf_` before its name.
fn helper_named(name: &str) -> Option<i32> {
    /// More than there are (`enum bpf_func_id` ends at 211 and takes no new ones).
    const END: i32 = 256;
    let bare = name.strip_prefix("bpf_").unwrap_or(name);
    (1..END).find(|id| Helper::get(*id).is_some_and(|h| h.name == bare))
}

fn number(text: &str) -> Result<u32, AssemblyError> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| syntax(text, "number"))
}

/// Bytes from hexadecimal digits.
///
/// # Errors
/// What is no such text.
pub fn hex(text: &str) -> Result<Vec<u8>, AssemblyError> {
    let digits: Vec<u32> =
        text.chars().map(|c| c.to_digit(16)).collect::<Option<_>>().ok_or_else(|| syntax(text, "hex"))?;
    if digits.len() % 2 == 1 {
        return Err(syntax(text, "whole number of bytes"));
    }
    Ok(digits.chunks(2).map(|d| (d[0] << 4 | d[1]) as u8).collect())
}
