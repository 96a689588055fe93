//! Map definitions, read as libbpf reads them.
//!
//! The one idea: a definition is read member by member, in order, with the checks of libbpf (`parse_btf_map_def`,
//! `get_map_field_int` and `get_map_field_long` in `tools/lib/bpf/libbpf.c`), so that what it refuses is refused here.
//! Promise: two definitions that give the same [`Definition`] make libbpf create the same map; forms that loaders read
//! differently (members that repeat, names nobody knows) are never read.

use std::collections::{BTreeMap, BTreeSet};

use super::types::Types;
use crate::btf::{ARRAY, Btf, ENUM, ENUM64, FUNC_PROTO, PTR, STRUCT, Type, member_place};

// `enum bpf_map_type` in `include/uapi/linux/bpf.h`.
const PROG_ARRAY: u64 = 3;
const ARRAY_OF_MAPS: u64 = 12;
const HASH_OF_MAPS: u64 = 13;
/// The size in bytes of a value that is a map or a program.
const SIZE_OF_REFERENCE: u64 = 4;
/// `LIBBPF_PIN_BY_NAME`, the largest `enum libbpf_pin_type`.
const PIN_BY_NAME: u64 = 1;

/// What a definition says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Definition {
    /// Bytes of the struct.
    pub size: u32,
    /// The members that are numbers.
    pub numbers: BTreeMap<String, u64>,
    /// The types of key and value, by member name.
    pub types: BTreeMap<String, u32>,
    pub values: Option<Values>,
    /// The members that are read only by loaders that look behind typedefs and qualifiers.
    pub indirect: BTreeSet<String>,
}

/// The member `values`: what a map holds at first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Values {
    /// Bit offset in the definition; relocations are counted from here.
    pub at: u32,
    /// The definition of the inner maps; none for programs.
    pub inner: Option<Box<Definition>>,
    /// The type of the member.
    pub ty: u32,
}

/// Why a definition is not read.
pub(super) enum Unread {
    /// libbpf refuses it.
    Refused(String),
    /// Loaders differ in what they make of it.
    Unusual(String),
}

fn refused<T>(what: impl Into<String>) -> Result<T, Unread> {
    Err(Unread::Refused(what.into()))
}

/// Reads the definition of a map (or, if `inner`, of the maps in it) from the type of its variable.
pub(super) fn read(types: &Types, id: u32, inner: bool) -> Result<Definition, Unread> {
    let Some(btf) = types.btf else { return refused("there is no BTF") };
    let Some((_, t)) = btf.plain(id) else { return Err(Unread::Unusual(format!("type {id} leads nowhere"))) };
    if t.kind != STRUCT {
        return refused("it is no struct");
    }
    let definition = Definition {
        size: t.size_or_type,
        numbers: BTreeMap::new(),
        types: BTreeMap::new(),
        values: None,
        indirect: BTreeSet::new(),
    };
    let mut reader = Reader { types, btf, inner, sizes: BTreeMap::new(), definition };
    let mut seen = BTreeSet::new();
    for i in 0..t.vlen {
        let word = |n: usize| btf.word(t, i * 3 + n).ok_or_else(|| Unread::Refused("it is cut off".into()));
        let Some(name) = btf.string(word(0)?) else { return refused("a member has no readable name") };
        if !seen.insert(name.clone()) {
            return Err(Unread::Unusual(format!("`{name}` is there more than once")));
        }
        let (at, _) = member_place(t, word(2)?);
        reader.member(&name, word(1)?, at, i + 1 == t.vlen)?;
    }
    if reader.map_type() == 0 {
        return refused("it has no `type`");
    }
    Ok(reader.definition)
}

struct Reader<'a> {
    types: &'a Types<'a>,
    btf: &'a Btf,
    inner: bool,
    /// Sizes of key and value so far.
    sizes: BTreeMap<&'static str, u64>,
    definition: Definition,
}

impl Reader<'_> {
    fn map_type(&self) -> u64 {
        self.definition.numbers.get("type").copied().unwrap_or(0)
    }

    fn member(&mut self, name: &str, ty: u32, at: u32, last: bool) -> Result<(), Unread> {
        match name {
            "pinning" if self.inner => return refused("`pinning` of an inner map"),
            "values" if self.inner => return refused("`values` of an inner map"),
            "type" | "max_entries" | "map_flags" | "numa_node" | "key_size" | "value_size" | "pinning" => {
                let n = u64::from(self.number(name, ty)?);
                match name {
                    "key_size" => self.size("key", n)?,
                    "value_size" => self.size("value", n)?,
                    "pinning" if n > PIN_BY_NAME => return refused(format!("`pinning` is {n}")),
                    _ => {}
                }
                self.definition.numbers.insert(name.to_owned(), n);
            }
            "map_extra" => {
                let n = self.long(name, ty)?;
                self.definition.numbers.insert(name.to_owned(), n);
            }
            "key" => self.typed("key", ty)?,
            "value" => self.typed("value", ty)?,
            "values" => self.values(ty, at, last)?,
            _ => return Err(Unread::Unusual(format!("`{name}` is no member that all loaders know"))),
        }
        Ok(())
    }

    /// The type behind typedefs and qualifiers, if it is of this kind.
    fn plain(&mut self, name: &str, ty: u32, kind: u32) -> Option<Type> {
        let (id, t) = self.btf.plain(ty).filter(|(_, t)| t.kind == kind)?;
        if id != ty {
            self.definition.indirect.insert(name.to_owned());
        }
        Some(t)
    }

    /// `__uint(name, N)`: `int (*name)[N]`, with the array right behind the pointer.
    fn number(&mut self, name: &str, ty: u32) -> Result<u32, Unread> {
        let pointer = self.plain(name, ty, PTR);
        let array = pointer.and_then(|p| self.types.get(p.size_or_type)).filter(|t| t.kind == ARRAY);
        match array.and_then(|t| self.btf.word(t, 2)) {
            Some(n) => Ok(n),
            None => refused(format!("`{name}` is no pointer to an array, but a {}", self.types.describe(ty))),
        }
    }

    /// `__ulong(name, N)`: an enumeration of one value; or a number as above.
    fn long(&mut self, name: &str, ty: u32) -> Result<u64, Unread> {
        let (btf, one) = (self.btf, |t: &Type| t.vlen == 1);
        if let Some(t) = self.plain(name, ty, ENUM).filter(one) {
            // `*res = e->val`, which is signed.
            return Ok(btf.word(t, 1).map_or(0, |v| i64::from(v as i32) as u64));
        }
        if let Some(t) = self.plain(name, ty, ENUM64).filter(one) {
            return Ok(u64::from(btf.word(t, 2).unwrap_or(0)) << 32 | u64::from(btf.word(t, 1).unwrap_or(0)));
        }
        self.number(name, ty).map(u64::from)
    }

    fn size(&mut self, of: &'static str, bytes: u64) -> Result<(), Unread> {
        if let Some(&was) = self.sizes.get(of).filter(|&&was| was != 0 && was != bytes) {
            return refused(format!("conflicting sizes of its {of}: {was} and {bytes} bytes"));
        }
        self.sizes.insert(of, bytes);
        Ok(())
    }

    /// `__type(name, T)`: a pointer, and nothing around it, to the type.
    fn typed(&mut self, name: &'static str, ty: u32) -> Result<(), Unread> {
        let Some(pointer) = self.types.get(ty).filter(|t| t.kind == PTR) else {
            return refused(format!("`{name}` is no pointer, but a {}", self.types.describe(ty)));
        };
        let Some(bytes) = self.btf.size_of(pointer.size_or_type) else {
            return refused(format!("`{name}` has no size"));
        };
        self.size(name, u64::from(bytes))?;
        self.definition.types.insert(name.to_owned(), pointer.size_or_type);
        Ok(())
    }

    /// `__array(values, T)`: an array without elements of pointers to a definition or a signature.
    fn values(&mut self, ty: u32, at: u32, last: bool) -> Result<(), Unread> {
        let kind = self.map_type();
        if !last {
            return refused("`values` is not its last member");
        }
        if ![PROG_ARRAY, ARRAY_OF_MAPS, HASH_OF_MAPS].contains(&kind) {
            return refused(format!("`values` of a map of type {kind}"));
        }
        self.size("value", SIZE_OF_REFERENCE)?;
        let array = self.types.get(ty).filter(|t| t.kind == ARRAY && self.btf.word(*t, 2) == Some(0));
        let pointer = array.and_then(|t| self.btf.word(t, 0)).and_then(|t| self.plain("values", t, PTR));
        let Some(pointer) = pointer else {
            return refused("`values` is no array of size zero, of pointers");
        };
        let wanted = if kind == PROG_ARRAY { FUNC_PROTO } else { STRUCT };
        if self.btf.plain(pointer.size_or_type).is_none_or(|(_, t)| t.kind != wanted) {
            return refused(format!("`values` are pointers to a {}", self.types.describe(pointer.size_or_type)));
        }
        let inner = match kind {
            PROG_ARRAY => None,
            _ => Some(Box::new(read(self.types, pointer.size_or_type, true).map_err(|why| match why {
                Unread::Refused(why) => Unread::Refused(format!("the inner map: {why}")),
                Unread::Unusual(why) => Unread::Unusual(format!("the inner map: {why}")),
            })?)),
        };
        self.definition.values = Some(Values { at, inner, ty });
        Ok(())
    }
}
