//! Reading `.BTF`: the types of maps and the signatures of functions.
//!
//! The one idea: one checked pass finds where every type starts; questions then walk from type to
//! type with a bounded number of steps, so that cyclic or corrupt type graphs cannot hang.
//! Promise: the section itself is never changed.

use crate::elf::{u16_at, u32_at};
use crate::error::ObjectError;

const SECTION: &str = ".BTF";
const MAX_STEPS: usize = 64;
/// Bytes of the header (`struct btf_header` in `include/uapi/linux/btf.h`).
const HEADER: usize = 24;
/// `BTF_MAX_TYPE` and `BTF_MAX_NAME_OFFSET`.
const MAX_TYPES: usize = 0x000f_ffff;
const MAX_STRINGS: usize = 0x00ff_ffff;

pub(crate) const INT: u32 = 1;
pub(crate) const PTR: u32 = 2;
pub(crate) const ARRAY: u32 = 3;
pub(crate) const STRUCT: u32 = 4;
pub(crate) const UNION: u32 = 5;
pub(crate) const ENUM: u32 = 6;
pub(crate) const FWD: u32 = 7;
pub(crate) const TYPEDEF: u32 = 8;
pub(crate) const VOLATILE: u32 = 9;
pub(crate) const CONST: u32 = 10;
pub(crate) const RESTRICT: u32 = 11;
pub(crate) const FUNC: u32 = 12;
pub(crate) const FUNC_PROTO: u32 = 13;
pub(crate) const VAR: u32 = 14;
pub(crate) const DATASEC: u32 = 15;
pub(crate) const FLOAT: u32 = 16;
pub(crate) const DECL_TAG: u32 = 17;
pub(crate) const TYPE_TAG: u32 = 18;
pub(crate) const ENUM64: u32 = 19;

/// What a value of a function's signature is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueType {
    /// `void` (a return type only).
    Void,
    /// An integer, enumeration or boolean.
    Int {
        /// Width in bits.
        bits: u32,
        /// Whether the type is signed.
        signed: bool,
    },
    /// A pointer.
    Pointer {
        /// Name of the struct, union, typedef or integer pointed to, without qualifiers; empty if it has none.
        name: String,
        /// Size in bytes of what is pointed to, where known (`void` and forward declarations have none).
        size: Option<u32>,
    },
    /// Anything else: a struct by value, a float …
    Other,
}

/// One parameter of a [`FuncProto`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Its name, possibly empty.
    pub name: String,
    /// Its type.
    pub value: ValueType,
}

/// The signature of a function, from BTF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FuncProto {
    /// What it returns.
    pub returns: ValueType,
    /// Its parameters in order.
    pub params: Vec<Param>,
}

#[derive(Debug, Clone)]
pub(crate) struct Btf {
    bytes: Vec<u8>,
    /// Byte offset of each type's header in `bytes`; entry 0 is `void`.
    types: Vec<usize>,
    strings: std::ops::Range<usize>,
    /// The first type of a kind this crate does not know, in words.
    pub unknown_kind: Option<String>,
}

/// The fields that all kinds of types have (`struct btf_type` in `include/uapi/linux/btf.h`).
#[derive(Clone, Copy)]
pub(crate) struct Type {
    pub name: u32,
    /// Kind, count, flag, and bits without a meaning yet.
    pub info: u32,
    pub kind: u32,
    pub vlen: usize,
    pub kflag: bool,
    pub size_or_type: u32,
    /// Where the kind's own data start.
    pub body: usize,
}

/// One entry of a DATASEC type.
#[derive(Clone, Copy)]
pub(crate) struct SectionVariable {
    /// The VAR or, for kernel functions, FUNC type.
    pub id: u32,
    /// As written in the file, before relocation.
    pub offset: u32,
    pub size: u32,
}

impl Btf {
    /// Reads the section; the second value is a warning if it holds a kind newer than this crate.
    pub fn parse(bytes: Vec<u8>) -> Result<(Self, Option<String>), ObjectError> {
        let bad = |at: usize, problem: &str| ObjectError::corrupt(SECTION, at as u64, problem);
        if u16_at(&bytes, 0) != Some(0xeb9f) {
            return Err(bad(0, "no BTF magic"));
        }
        if bytes.get(2) != Some(&1) {
            return Err(ObjectError::Unsupported {
                what: format!("BTF version {}", bytes.get(2).copied().unwrap_or(0)),
            });
        }
        let word = |at: usize| u32_at(&bytes, at).map(|v| v as usize).ok_or_else(|| bad(at, "truncated header"));
        let header = word(4)?;
        let range = |at: usize, what: &str| {
            let start = header.checked_add(word(at)?);
            let end = start.and_then(|s| s.checked_add(word(at + 4).ok()?));
            match (start, end) {
                (Some(s), Some(e)) if header >= 24 && e <= bytes.len() => Ok(s..e),
                _ => Err(bad(at, what)),
            }
        };
        let type_range = range(8, "the types reach past the end")?;
        let strings = range(16, "the strings reach past the end")?;
        let mut types = vec![usize::MAX];
        let mut warning = None;
        let mut at = type_range.start;
        while at < type_range.end {
            let info = u32_at(&bytes, at.saturating_add(4)).ok_or_else(|| bad(at, "truncated type"))?;
            let (kind, vlen) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
            let extra = match kind {
                PTR | FWD | TYPEDEF | VOLATILE | CONST | RESTRICT | FUNC | FLOAT | TYPE_TAG => 0,
                INT | VAR | DECL_TAG => 4,
                ARRAY => 12,
                STRUCT | UNION | DATASEC | ENUM64 => vlen * 12,
                ENUM | FUNC_PROTO => vlen * 8,
                0 => return Err(bad(at, "a type of kind 0")),
                _ => {
                    warning = Some(format!(
                        "{SECTION}+{at:#x}: type {} has unknown kind {kind}; types after it are not used",
                        types.len()
                    ));
                    break;
                }
            };
            let end = at.saturating_add(12 + extra);
            if end > type_range.end {
                return Err(bad(at, "a type reaches past the end of the types"));
            }
            types.push(at);
            at = end;
        }
        Ok((Self { bytes, types, strings, unknown_kind: warning.clone() }, warning))
    }

    /// What the kernel refuses in the section as a whole: it wants the types right behind the header, the strings
    /// right behind the types, and nothing else (`btf_parse_hdr`, `btf_check_sec_info` and `btf_parse_str_sec` in
    /// `kernel/bpf/btf.c`).
    pub fn layout_problem(&self) -> Option<&'static str> {
        let word = |at: usize| u32_at(&self.bytes, at).map_or(usize::MAX, |v| v as usize);
        let strings = self.bytes.get(self.strings.clone()).unwrap_or(&[]);
        if self.bytes.get(3) != Some(&0) || word(4) != HEADER {
            return Some("the header of its BTF has flags or parts that are not known");
        }
        if word(8) != 0 || word(12) != word(16) || word(12) % 4 != 0 || self.strings.end != self.bytes.len() {
            return Some("types and strings of its BTF do not follow each other");
        }
        if strings.first() != Some(&0) || strings.last() != Some(&0) {
            return Some("the strings of its BTF do not start and end with an empty one");
        }
        if self.types.len() > MAX_TYPES || strings.len() > MAX_STRINGS {
            return Some("its BTF has too many types or strings");
        }
        None
    }

    pub fn string(&self, at: u32) -> Option<String> {
        crate::elf::string_at(self.bytes.get(self.strings.clone())?, at as usize)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The numbers of all types but `void`.
    pub fn ids(&self) -> std::ops::Range<u32> {
        1..u32::try_from(self.types.len()).unwrap_or(u32::MAX)
    }

    /// The variables of a DATASEC type.
    pub fn section_variables(&self, t: Type) -> Vec<SectionVariable> {
        let variable = |i: usize| {
            Some(SectionVariable {
                id: self.word(t, i * 3)?,
                offset: self.word(t, i * 3 + 1)?,
                size: self.word(t, i * 3 + 2)?,
            })
        };
        (0..t.vlen).filter_map(variable).collect()
    }

    pub fn get(&self, id: u32) -> Option<Type> {
        let at = *self.types.get(id as usize).filter(|_| id != 0)?;
        let info = u32_at(&self.bytes, at.checked_add(4)?)?;
        Some(Type {
            name: u32_at(&self.bytes, at)?,
            info,
            kind: info >> 24 & 0x1f,
            vlen: (info & 0xffff) as usize,
            kflag: info >> 31 != 0,
            size_or_type: u32_at(&self.bytes, at.checked_add(8)?)?,
            body: at.checked_add(12)?,
        })
    }

    /// A 32-bit word of the kind's own data.
    pub fn word(&self, t: Type, index: usize) -> Option<u32> {
        u32_at(&self.bytes, t.body.checked_add(index.checked_mul(4)?)?)
    }

    /// The type behind typedefs and qualifiers.
    pub fn plain(&self, mut id: u32) -> Option<(u32, Type)> {
        for _ in 0..MAX_STEPS {
            let t = self.get(id)?;
            match t.kind {
                TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => id = t.size_or_type,
                _ => return Some((id, t)),
            }
        }
        None
    }

    /// Bytes of a value of a type; `None` for types without a size.
    pub fn size_of(&self, id: u32) -> Option<u32> {
        let (mut id, mut count) = (id, 1u32);
        for _ in 0..MAX_STEPS {
            let (_, t) = self.plain(id)?;
            let size = match t.kind {
                INT | STRUCT | UNION | ENUM | ENUM64 | FLOAT | DATASEC => t.size_or_type,
                PTR => 8,
                ARRAY => {
                    count = count.checked_mul(self.word(t, 2)?)?;
                    id = self.word(t, 0)?;
                    continue;
                }
                _ => return None,
            };
            return count.checked_mul(size);
        }
        None
    }

    /// Names and types of a structure's members.
    pub fn members(&self, t: Type) -> impl Iterator<Item = (String, u32)> + '_ {
        (0..t.vlen.min(MAX_STEPS))
            .filter_map(move |i| Some((self.string(self.word(t, i * 3)?)?, self.word(t, i * 3 + 1)?)))
    }

    pub fn pointee(&self, id: u32) -> Option<u32> {
        self.plain(id).filter(|(_, t)| t.kind == PTR).map(|(_, t)| t.size_or_type)
    }

    /// The signature of the FUNC type with this number.
    pub fn func_proto(&self, id: u32) -> Option<FuncProto> {
        let func = self.get(id).filter(|t| t.kind == FUNC)?;
        let proto = self.get(func.size_or_type).filter(|t| t.kind == FUNC_PROTO)?;
        let params = (0..proto.vlen)
            .map(|i| {
                Some(Param {
                    name: self.string(self.word(proto, i * 2)?)?,
                    value: self.value(self.word(proto, i * 2 + 1)?),
                })
            })
            .collect::<Option<Vec<_>>>()?;
        Some(FuncProto { returns: self.value(proto.size_or_type), params })
    }

    /// Whether a FUNC type has global linkage (`BTF_FUNC_GLOBAL`).
    pub fn is_global(&self, id: u32) -> bool {
        self.get(id).is_some_and(|t| t.kind == FUNC && t.vlen == 1)
    }

    /// The signatures of functions that are declared only (`BTF_FUNC_EXTERN`), by name; of those that take any number of
    /// arguments, or of whose name there is another FUNC, none.
    pub fn extern_functions(&self) -> impl Iterator<Item = (String, FuncProto)> {
        const EXTERN: usize = 2;
        let declared =
            (1..self.types.len() as u32).filter(|id| self.get(*id).is_some_and(|t| t.kind == FUNC && t.vlen == EXTERN));
        declared.filter_map(|id| {
            let name = self.string(self.get(id)?.name)?;
            let proto = self.func_proto(self.func_named(&name)?)?;
            let fixed = proto.params.iter().all(|p| p.value != ValueType::Void);
            fixed.then_some((name, proto))
        })
    }

    /// Whether libbpf looks for a symbol of this name in the kernel or its configuration: it is declared in one of these
    /// sections (`bpf_object__collect_externs` in `tools/lib/bpf/libbpf.c`).
    pub fn is_asked_of_the_kernel(&self, name: &str) -> bool {
        let section =
            |t: &Type| t.kind == DATASEC && matches!(self.string(t.name).as_deref(), Some(".ksyms" | ".kconfig"));
        let declared = self.ids().filter_map(|id| self.get(id)).filter(section).flat_map(|t| self.section_variables(t));
        declared.filter_map(|v| self.get(v.id)).any(|t| self.string(t.name).as_deref() == Some(name))
    }

    /// The tags by which libbpf finds exception callbacks, on whatever type (`bpf_prog_assign_exc_cb` in
    /// `tools/lib/bpf/libbpf.c`): the name of the callback, and the type whose tag it is, if it is there.
    pub fn exception_callbacks(&self) -> impl Iterator<Item = (String, Option<Type>)> {
        const TAG: &str = "exception_callback:";
        let tags = self.ids().filter_map(|id| self.get(id)).filter(|t| t.kind == DECL_TAG);
        tags.filter_map(|t| Some((self.string(t.name)?.strip_prefix(TAG)?.to_owned(), self.get(t.size_or_type))))
    }

    /// The number of the FUNC type of this name, if there is exactly one.
    pub fn func_named(&self, name: &str) -> Option<u32> {
        let mut found = (1..self.types.len() as u32)
            .filter(|&id| self.get(id).is_some_and(|t| t.kind == FUNC && self.string(t.name).as_deref() == Some(name)));
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    fn value(&self, id: u32) -> ValueType {
        if id == 0 {
            return ValueType::Void;
        }
        let Some((_, t)) = self.plain(id) else { return ValueType::Other };
        match t.kind {
            INT => {
                let encoding = self.word(t, 0).unwrap_or(0);
                ValueType::Int { bits: encoding & 0xff, signed: encoding >> 24 & 1 != 0 }
            }
            ENUM | ENUM64 => ValueType::Int { bits: t.size_or_type.saturating_mul(8), signed: t.kflag },
            PTR => {
                let to = self.plain(t.size_or_type);
                let mut name = to.and_then(|(_, t)| self.string(t.name)).unwrap_or_default();
                if name.is_empty() {
                    name = self.typedef_name(t.size_or_type).unwrap_or_default();
                }
                ValueType::Pointer { name, size: to.and_then(|(id, _)| self.size_of(id)) }
            }
            _ => ValueType::Other,
        }
    }

    fn typedef_name(&self, mut id: u32) -> Option<String> {
        for _ in 0..MAX_STEPS {
            let t = self.get(id)?;
            match t.kind {
                TYPEDEF => return self.string(t.name),
                VOLATILE | CONST | RESTRICT | TYPE_TAG => id = t.size_or_type,
                _ => return None,
            }
        }
        None
    }
}

/// Bit offset and bit-field width of a member (`struct btf_member` in `include/uapi/linux/btf.h`).
pub(crate) fn member_place(t: Type, offset: u32) -> (u32, u32) {
    if t.kflag { (offset & 0x00ff_ffff, offset >> 24) } else { (offset, 0) }
}
