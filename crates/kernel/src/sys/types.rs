//! Type information that is changed before libbpf sees it: types are added, sections are taken out.
//!
//! The one idea: libbpf reads and writes BTF itself (`btf__new`, `btf__add_*`), so no format is known here but that of
//! one kind, `BTF_KIND_DATASEC`. Promise: types that are there keep their numbers, which other sections refer to.

use std::{
    ffi::{CStr, CString, c_int},
    io,
    ptr::NonNull,
    slice,
};

use libbpf_sys as bpf;

use super::{checked, copied, silence};

/// `BTF_KIND_STRUCT`, `BTF_KIND_UNION` and `BTF_KIND_DATASEC` in linux/btf.h.
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const DATASEC: u32 = 15;
/// `BTF_KIND_FUNC_PROTO`; and `BTF_KIND_TYPEDEF`, `_VOLATILE`, `_CONST`, `_RESTRICT` and `_TYPE_TAG`, which are another type.
const FUNC_PROTO: u32 = 13;
const ALIASES: [u32; 5] = [8, 9, 10, 11, 18];
/// `BTF_VAR_GLOBAL_ALLOCATED`.
const GLOBAL: c_int = 1;
/// Bytes of a pointer in BTF of the target.
const POINTER: u32 = 8;

/// A variable of a section: its type, its place, and its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) type_id: u32,
    pub(crate) offset: u32,
    pub(crate) size: u32,
}

/// A member of a structure: its place and width in bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) bit: u32,
    pub(crate) bits: u32,
}

impl Member {
    /// What it holds in the bytes of its structure, as a number of at most 64 bits; of a larger one, whether it is zero.
    pub(crate) fn value(&self, structure: &[u8]) -> u64 {
        let (first, end) = (self.bit as usize / 8, (self.bit + self.bits).div_ceil(8) as usize);
        let bytes = structure.get(first..end).unwrap_or_default();
        if bytes.len() > 8 {
            return u64::from(bytes.iter().any(|b| *b != 0));
        }
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let shifted = u64::from_le_bytes(word) >> (self.bit % 8);
        if self.bits < 64 { shifted & ((1 << self.bits) - 1) } else { shifted }
    }
}

/// BTF that is being changed.
///
/// Invariant: `raw` is libbpf's, and freed once.
pub(crate) struct Types {
    raw: NonNull<bpf::btf>,
    /// A type of one byte, the first that was added.
    byte: c_int,
}

impl Types {
    /// From encoded BTF, or without any types.
    pub(crate) fn new(encoded: Option<&[u8]>) -> io::Result<Self> {
        silence();
        // SAFETY: the bytes live through the call, which copies them; libbpf returns null or an object of its own.
        let raw = unsafe {
            match encoded {
                Some(bytes) => bpf::btf__new(bytes.as_ptr().cast(), bytes.len() as u32),
                None => bpf::btf__new_empty(),
            }
        };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let mut this = Self { raw, byte: 0 };
        // SAFETY: our BTF and a C string. From here on libbpf keeps types where they can be changed.
        this.byte = checked(unsafe { bpf::btf__add_int(raw.as_ptr(), c"char".as_ptr(), 1, 0) })?;
        Ok(this)
    }

    /// The kernel's own, to look at.
    pub(crate) fn of_kernel() -> io::Result<Self> {
        silence();
        // SAFETY: libbpf returns an object of its own or null with an error number.
        let raw = NonNull::new(unsafe { bpf::btf__load_vmlinux_btf() }).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { raw, byte: 0 })
    }

    /// `int (*)[number]`, which is how map definitions hold numbers. The elements have one byte: the kernel refuses types
    /// of 4 GiB and more.
    pub(crate) fn number(&mut self, number: u32) -> io::Result<u32> {
        // SAFETY: our BTF, and a type of it.
        let array = checked(unsafe { bpf::btf__add_array(self.raw.as_ptr(), self.byte, self.byte, number) })?;
        self.pointer(array as u32)
    }

    /// A pointer to a type.
    pub(crate) fn pointer(&mut self, to: u32) -> io::Result<u32> {
        // SAFETY: our BTF.
        checked(unsafe { bpf::btf__add_ptr(self.raw.as_ptr(), to as c_int) }).map(|id| id as u32)
    }

    /// `to *[]`, an array of no elements.
    pub(crate) fn pointers(&mut self, to: u32) -> io::Result<u32> {
        let pointer = self.pointer(to)?;
        // SAFETY: our BTF, and types of it.
        checked(unsafe { bpf::btf__add_array(self.raw.as_ptr(), self.byte, pointer as c_int, 0) }).map(|id| id as u32)
    }

    /// A structure as small as a pointer, with all members at its beginning: what definitions of maps say is in the types
    /// of their members alone.
    pub(crate) fn definition(&mut self, members: &[(&CStr, u32)]) -> io::Result<u32> {
        let raw = self.raw.as_ptr();
        // SAFETY: our BTF, and C strings that live through the calls; fields go to the structure that was added last.
        unsafe {
            let id = checked(bpf::btf__add_struct(raw, std::ptr::null(), POINTER))?;
            for (name, member) in members {
                checked(bpf::btf__add_field(raw, name.as_ptr(), *member as c_int, 0, 0))?;
            }
            Ok(id as u32)
        }
    }

    /// A global variable.
    pub(crate) fn variable(&mut self, name: &str, type_id: u32) -> io::Result<u32> {
        let name = CString::new(name)?;
        // SAFETY: our BTF and a C string.
        checked(unsafe { bpf::btf__add_var(self.raw.as_ptr(), name.as_ptr(), GLOBAL, type_id as c_int) })
            .map(|id| id as u32)
    }

    /// A section with these variables, in their order; with a size of 0, libbpf takes it and their places from the file.
    pub(crate) fn section(&mut self, name: &CStr, size: u32, variables: &[Variable]) -> io::Result<()> {
        let raw = self.raw.as_ptr();
        // SAFETY: as for `definition`.
        unsafe {
            checked(bpf::btf__add_datasec(raw, name.as_ptr(), size))?;
            for v in variables {
                checked(bpf::btf__add_datasec_var_info(raw, v.type_id as c_int, v.offset, v.size))?;
            }
        }
        Ok(())
    }

    /// Takes the sections of such names out: their size, if it is known, and their variables, which stay. In their place
    /// are types that nothing refers to.
    pub(crate) fn take_sections(&mut self, named: impl Fn(&str) -> bool) -> Vec<(u32, Vec<Variable>)> {
        let mut taken = Vec::new();
        for id in 1..self.count() {
            let (kind, name) = self.kind_and_name(id);
            if kind == DATASEC && named(&name) {
                taken.push(self.take_section(id));
            }
        }
        taken
    }

    fn take_section(&mut self, id: u32) -> (u32, Vec<Variable>) {
        // SAFETY: a type of our BTF of kind DATASEC: behind it are as many `struct btf_var_secinfo` (three words) as its
        // lowest 16 bits of information say. A UNION has as many `struct btf_member` of the same size there: name, type
        // and offset. `new` has made libbpf keep types in memory that may be written; we have it exclusively.
        unsafe {
            let section = bpf::btf__type_by_id(self.raw.as_ptr(), id).cast_mut();
            let count = (*section).info & 0xffff;
            let words = slice::from_raw_parts_mut(section.add(1).cast::<[u32; 3]>(), count as usize);
            let size = (*section).__bindgen_anon_1.size;
            let variables = words.iter().map(|w| Variable { type_id: w[0], offset: w[1], size: w[2] }).collect();
            words.fill([0, self.byte as u32, 0]);
            (*section).name_off = 0;
            (*section).info = UNION << 24 | count;
            (*section).__bindgen_anon_1.size = POINTER;
            (size, variables)
        }
    }

    /// What the members of a structure are called and which types they have; of the first of this name.
    pub(crate) fn members(&self, structure: &str) -> Vec<(String, u32)> {
        let Ok(name) = CString::new(structure) else { return Vec::new() };
        // SAFETY: our BTF and a C string; behind a STRUCT are as many `struct btf_member` as its information says.
        unsafe {
            let id = bpf::btf__find_by_name_kind(self.raw.as_ptr(), name.as_ptr(), STRUCT);
            let found = if id > 0 { bpf::btf__type_by_id(self.raw.as_ptr(), id as u32) } else { std::ptr::null() };
            if found.is_null() {
                return Vec::new();
            }
            let members = slice::from_raw_parts(found.add(1).cast::<[u32; 3]>(), ((*found).info & 0xffff) as usize);
            members.iter().map(|m| (copied(bpf::btf__name_by_offset(self.raw.as_ptr(), m[0])), m[1])).collect()
        }
    }

    /// Where the members of a structure are, those of anonymous members among them; of the first of this name.
    pub(crate) fn layout(&self, structure: &str) -> Vec<Member> {
        let Ok(name) = CString::new(structure) else { return Vec::new() };
        let mut members = Vec::new();
        // SAFETY: our BTF and a C string.
        if let Ok(id) = u32::try_from(unsafe { bpf::btf__find_by_name_kind(self.raw.as_ptr(), name.as_ptr(), STRUCT) })
        {
            self.add_members(id, 0, &mut members);
        }
        members
    }

    fn add_members(&self, id: u32, begin: u32, members: &mut Vec<Member>) {
        // SAFETY: our BTF; behind a STRUCT or UNION are as many `struct btf_member` as its information says.
        let (raw, with_widths) = unsafe {
            let found = bpf::btf__type_by_id(self.raw.as_ptr(), id);
            if found.is_null() || ![STRUCT, UNION].contains(&((*found).info >> 24 & 0x1f)) {
                return;
            }
            let count = ((*found).info & 0xffff) as usize;
            (slice::from_raw_parts(found.add(1).cast::<[u32; 3]>(), count), (*found).info >> 31 != 0)
        };
        for &[name, type_id, place] in raw {
            // `BTF_MEMBER_BIT_OFFSET` and `BTF_MEMBER_BITFIELD_SIZE` in linux/btf.h.
            let (offset, width) = if with_widths { (place & 0xff_ffff, place >> 24) } else { (place, 0) };
            if name == 0 {
                self.add_members(type_id, begin + offset, members);
                continue;
            }
            // SAFETY: our BTF, and a place in its strings.
            let name = unsafe { copied(bpf::btf__name_by_offset(self.raw.as_ptr(), name)) };
            let bits = if width > 0 { width } else { 8 * self.size_of(type_id).unwrap_or(0) };
            members.push(Member { name, bit: begin + offset, bits });
        }
    }

    /// Bytes of a value of a type.
    pub(crate) fn size_of(&self, type_id: u32) -> Option<u32> {
        // SAFETY: our BTF.
        u32::try_from(unsafe { bpf::btf__resolve_size(self.raw.as_ptr(), type_id) }).ok()
    }

    /// All of it, encoded.
    pub(crate) fn encoded(self) -> io::Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: our BTF, whose encoding stays until it is copied.
        unsafe {
            let data = bpf::btf__raw_data(self.raw.as_ptr(), &mut size);
            if data.is_null() {
                return Err(io::Error::last_os_error());
            }
            Ok(slice::from_raw_parts(data.cast::<u8>(), size as usize).to_vec())
        }
    }

    fn count(&self) -> u32 {
        // SAFETY: our BTF.
        unsafe { bpf::btf__type_cnt(self.raw.as_ptr()) }
    }

    fn kind_and_name(&self, id: u32) -> (u32, String) {
        // SAFETY: our BTF; libbpf returns null for what is no type.
        unsafe {
            let found = bpf::btf__type_by_id(self.raw.as_ptr(), id);
            if found.is_null() {
                return (0, String::new());
            }
            let name = copied(bpf::btf__name_by_offset(self.raw.as_ptr(), (*found).name_off));
            ((*found).info >> 24 & 0x1f, name)
        }
    }
}

/// What libbpf follows in BTF without looking whether it leads anywhere: what a signature returns, which
/// `btf_validate_type` (tools/lib/bpf/btf.c) leaves out, and qualifiers and names that lead back to themselves
/// (`skip_mods_and_typedefs` in tools/lib/bpf/libbpf.c). `None` if there is nothing of that; what libbpf refuses itself is no
/// fault here.
pub(crate) fn fault(encoded: &[u8]) -> Option<String> {
    silence();
    // SAFETY: the bytes live through the call, which copies them; libbpf returns null or an object of its own.
    let raw = NonNull::new(unsafe { bpf::btf__new(encoded.as_ptr().cast(), encoded.len() as u32) })?;
    let types = Types { raw, byte: 0 };
    let count = types.count();
    // Kind, and the type that it is made of.
    let behind = |id: u32| {
        // SAFETY: our BTF; libbpf returns null for what is no type.
        let found = unsafe { bpf::btf__type_by_id(types.raw.as_ptr(), id).as_ref() }?;
        // SAFETY: both members of the union are numbers.
        Some((found.info >> 24 & 0x1f, unsafe { found.__bindgen_anon_1.type_ }))
    };
    let goes_on = |id: u32| behind(id).filter(|(kind, _)| ALIASES.contains(kind)).map(|(_, next)| next);
    // Of each type it is known by then whether its chain ends.
    let mut ends = vec![false; count as usize];
    for id in 1..count {
        if let Some((FUNC_PROTO, result)) = behind(id)
            && result >= count
        {
            return Some(format!("type {id} returns type {result}, and there are {count} types"));
        }
        let mut chain = vec![id];
        while let Some(next) = chain.last().and_then(|last| goes_on(*last)).filter(|next| !ends[*next as usize]) {
            if chain.len() > count as usize {
                return Some(format!("type {id} leads back to itself"));
            }
            chain.push(next);
        }
        chain.into_iter().for_each(|id| ends[id as usize] = true);
    }
    None
}

impl Drop for Types {
    fn drop(&mut self) {
        // SAFETY: made by `new`, freed once.
        unsafe { bpf::btf__free(self.raw.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_that_is_taken_out_leaves_the_numbers_of_types_as_they_are() {
        let mut types = Types::new(None).unwrap();
        let number = types.number(7).unwrap();
        let variable = types.variable("m", number).unwrap();
        let inside = Variable { type_id: variable, offset: 0, size: 20 };
        types.section(c"maps", 20, &[inside]).unwrap();
        let after = types.definition(&[(c"type", number)]).unwrap();

        let mut read = Types::new(Some(&types.encoded().unwrap())).unwrap();
        assert_eq!(read.take_sections(|name| name == "maps"), [(20, vec![inside])]);
        let mut again = Types::new(Some(&read.encoded().unwrap())).unwrap();
        assert_eq!(again.take_sections(|name| name == "maps"), []);
        assert_eq!(again.kind_and_name(after).0, STRUCT);
        assert_eq!(again.size_of(after), Some(POINTER));
    }

    #[test]
    fn members_are_found_by_the_name_of_their_structure() {
        let types = Types::new(None).unwrap();
        assert_eq!(types.members("no such structure"), []);
        assert!(Types::new(Some(b"no BTF")).is_err());
    }
}
