//! An object that libbpf prepares and does not load: its maps as they are defined, made or lent, and its programs as they
//! would be given to the kernel.

use std::{
    borrow::Cow,
    ffi::CString,
    io,
    ops::Range,
    os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd},
    ptr, slice,
    sync::OnceLock,
};

use libbpf_sys as bpf;

use super::{Line, Object, checked, copied, owned, silence};
use crate::{
    marks::Wired,
    ways::{self, Decided},
};

/// A map as its object defines it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Definition {
    pub(crate) name: String,
    pub(crate) kind: u32,
    pub(crate) key_size: u32,
    pub(crate) value_size: u32,
    pub(crate) max_entries: u32,
    pub(crate) flags: u32,
    pub(crate) extra: u64,
    pub(crate) numa_node: u32,
    pub(crate) ifindex: u32,
    /// Global data, with its contents if libbpf tells.
    pub(crate) internal: bool,
    pub(crate) contents: Option<Vec<u8>>,
    /// What the maps in a map of maps look like.
    pub(crate) inner: Option<Box<Definition>>,
}

/// What the kernel is told about a program besides its type, its instructions, and their BTF.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Attributes {
    pub(crate) expected_attach_type: u32,
    pub(crate) flags: u32,
    /// A type of the kernel's own BTF; 0 for none.
    pub(crate) attach_target: u32,
    pub(crate) log_level: u32,
}

impl Object {
    /// Links programs, creates maps and loads BTF, for [`Object::load_linked`] or [`Object::load`]. Once. After a failure
    /// the object is good for its names only.
    pub(crate) fn prepare(&mut self) -> io::Result<()> {
        // SAFETY: the object is open.
        checked(unsafe { bpf::bpf_object__prepare(self.raw.as_ptr()) }).map(drop)
    }

    /// Before [`Object::prepare`], like all that follows up to there.
    pub(crate) fn map_definition(&self, index: usize) -> Definition {
        // SAFETY: a map of the open object.
        unsafe { definition(self.map(index)) }
    }

    pub(crate) fn set_max_entries(&mut self, index: usize, entries: u32) -> io::Result<()> {
        // SAFETY: a map of the open object.
        checked(unsafe { bpf::bpf_map__set_max_entries(self.map(index), entries) }).map(drop)
    }

    /// Gives a map other sizes of keys and values, and other flags. Not for global data.
    pub(crate) fn define(&mut self, index: usize, map: &Definition) -> io::Result<()> {
        // SAFETY: a map of the open object.
        unsafe {
            checked(bpf::bpf_map__set_key_size(self.map(index), map.key_size))?;
            checked(bpf::bpf_map__set_value_size(self.map(index), map.value_size))?;
            checked(bpf::bpf_map__set_map_flags(self.map(index), map.flags)).map(drop)
        }
    }

    /// Gives a map of maps another pattern, which has to stay open until the object is prepared.
    pub(crate) fn set_inner_map(&mut self, index: usize, pattern: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: a map of the open object; libbpf keeps the number of the descriptor and looks at it in `prepare` only.
        checked(unsafe { bpf::bpf_map__set_inner_map_fd(self.map(index), pattern.as_raw_fd()) }).map(drop)
    }

    /// Uses a map that exists instead of making one. libbpf duplicates the descriptor.
    pub(crate) fn lend_map(&mut self, index: usize, map: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: a map of the open object and an open descriptor.
        checked(unsafe { bpf::bpf_map__reuse_fd(self.map(index), map.as_raw_fd()) }).map(drop)
    }

    /// Has a map made even if the object calls it optional (`SEC("?.struct_ops")`), as its loader may.
    pub(crate) fn ask_for_map(&mut self, index: usize) -> io::Result<()> {
        // SAFETY: a map of the open object.
        checked(unsafe { bpf::bpf_map__set_autocreate(self.map(index), true) }).map(drop)
    }

    /// Does without a map: instructions that refer to it become such that no verifier takes.
    pub(crate) fn leave_map_out(&mut self, index: usize) -> io::Result<()> {
        // SAFETY: a map of the open object.
        checked(unsafe { bpf::bpf_map__set_autocreate(self.map(index), false) }).map(drop)
    }

    /// A copy of the object's BTF, encoded.
    ///
    /// libbpf keeps what it has encoded until one of its functions for that changes the BTF. But [`Object::prepare`]
    /// changes hidden functions behind their back (`bpf_object__sanitize_and_load_btf`), and would give the kernel what it
    /// has kept from before. Looking for a string makes it forget that (`btf_ensure_modifiable`), whether it is there or not.
    pub(crate) fn btf_bytes(&mut self) -> Option<Vec<u8>> {
        // SAFETY: the object is open and owns its BTF, whose encoding stays until it is copied; the string is a C string.
        unsafe {
            let btf = bpf::bpf_object__btf(self.raw.as_ptr());
            if btf.is_null() {
                return None;
            }
            let mut size = 0;
            let data = bpf::btf__raw_data(btf, &mut size);
            let bytes = (!data.is_null()).then(|| slice::from_raw_parts(data.cast::<u8>(), size as usize).to_vec());
            bpf::btf__find_str(btf, c"".as_ptr());
            bytes
        }
    }

    /// The descriptor of the BTF in the kernel, once it is there.
    pub(crate) fn btf_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the object is open; the descriptor stays open as long as it.
        unsafe {
            let fd = bpf::bpf_object__btf_fd(self.raw.as_ptr());
            (fd >= 0).then(|| BorrowedFd::borrow_raw(fd))
        }
    }

    /// Uses BTF that the kernel has already. [`Object::prepare`] then tries to load it again, fails at once because there
    /// is a descriptor (`btf_load_into_kernel`), and goes on, as BTF is optional for all but struct_ops maps.
    pub(crate) fn lend_btf(&mut self, loaded: OwnedFd) {
        // SAFETY: the object is open; its BTF, if any, takes the descriptor and closes it when it is freed.
        unsafe {
            let btf = bpf::bpf_object__btf(self.raw.as_ptr());
            if !btf.is_null() && bpf::btf__fd(btf) < 0 {
                bpf::btf__set_fd(btf, loaded.into_raw_fd());
            }
        }
    }

    pub(crate) fn expected_attach_type(&self, index: usize) -> u32 {
        // SAFETY: a program of the open object.
        unsafe { bpf::bpf_program__expected_attach_type(self.program(index)) }
    }

    pub(crate) fn program_flags(&self, index: usize) -> u32 {
        // SAFETY: a program of the open object.
        unsafe { bpf::bpf_program__flags(self.program(index)) }
    }

    /// A program's instructions; those of its subprograms are among them once the object is prepared.
    pub(crate) fn instructions(&self, index: usize) -> &[[u8; 8]] {
        let program = self.program(index);
        // SAFETY: a program of the open object; its instructions change in functions only that take `&mut`.
        unsafe {
            let first = bpf::bpf_program__insns(program);
            if first.is_null() {
                return &[];
            }
            slice::from_raw_parts(first.cast(), bpf::bpf_program__insn_cnt(program) as usize)
        }
    }

    /// Has the kernel given other instructions, once the object is prepared and before it is loaded; as many as before, since
    /// what is known of them stays as it is.
    pub(crate) fn set_instructions(&mut self, index: usize, code: &[[u8; 8]]) -> io::Result<()> {
        let count = code.len() as bpf::size_t;
        // SAFETY: a program of the open object; libbpf copies the instructions, of 8 bytes each.
        checked(unsafe { bpf::bpf_program__set_insns(self.program(index), code.as_ptr().cast_mut().cast(), count) })
            .map(drop)
    }

    /// Whether a program comes with records of functions or lines that libbpf does not show, as they have another size than
    /// ours.
    pub(crate) fn hides_records(&self, index: usize) -> bool {
        let program = self.program(index);
        // SAFETY: as for the lines.
        unsafe {
            let functions = bpf::bpf_program__func_info(program).is_null();
            let lines = bpf::bpf_program__line_info(program).is_null();
            functions && bpf::bpf_program__func_info_cnt(program) > 0
                || lines && bpf::bpf_program__line_info_cnt(program) > 0
        }
    }

    /// The records of lines that come with a program, those of another size than ours left out.
    fn own_lines(&self, index: usize) -> &[Line] {
        let program = self.program(index);
        // SAFETY: a program of the open object, whose records change in `prepare` and `load` only, which take `&mut`.
        unsafe {
            let lines = bpf::bpf_program__line_info(program);
            let count = bpf::bpf_program__line_info_cnt(program) as usize;
            if lines.is_null() { &[] } else { slice::from_raw_parts(lines.cast(), count) }
        }
    }

    /// Where the functions of a program begin, as its type information says.
    fn function_starts(&self, index: usize) -> Vec<u32> {
        let program = self.program(index);
        // SAFETY: as for the lines.
        let functions = unsafe {
            let functions = bpf::bpf_program__func_info(program);
            let count = bpf::bpf_program__func_info_cnt(program) as usize;
            if functions.is_null() { &[] } else { slice::from_raw_parts(functions, count) }
        };
        functions.iter().map(|f| f.insn_off).collect()
    }

    /// The names of a program's functions, in the order of their code, and the numbers of their types, as its type
    /// information says.
    pub(crate) fn function_names(&self, index: usize) -> Vec<(String, u32)> {
        let program = self.program(index);
        // SAFETY: as for the lines; the object owns its BTF, which may be null, and `named` takes any number of a type.
        unsafe {
            let functions = bpf::bpf_program__func_info(program);
            let count = bpf::bpf_program__func_info_cnt(program) as usize;
            let functions = if functions.is_null() { &[] } else { slice::from_raw_parts(functions, count) };
            let btf = bpf::bpf_object__btf(self.raw.as_ptr());
            functions.iter().map(|f| (named(btf, f.type_id), f.type_id)).collect()
        }
    }

    /// Where the variables of a section of data are, and their names, as BTF says.
    pub(crate) fn variables_of(&self, section: &str) -> Vec<(Range<u32>, String)> {
        /// `BTF_KIND_DATASEC`; its number of variables are the low bits of `info`.
        const DATASEC: u32 = 15;
        const COUNT: u32 = 0xffff;
        let Ok(section) = CString::new(section) else { return Vec::new() };
        // SAFETY: the object owns its BTF; behind a section's type stand as many variables as it says.
        unsafe {
            let btf = bpf::bpf_object__btf(self.raw.as_ptr());
            let id = if btf.is_null() { -1 } else { bpf::btf__find_by_name_kind(btf, section.as_ptr(), DATASEC) };
            let Ok(id) = u32::try_from(id) else { return Vec::new() };
            let of_section = bpf::btf__type_by_id(btf, id);
            if of_section.is_null() {
                return Vec::new();
            }
            let variables: *const bpf::btf_var_secinfo = of_section.add(1).cast();
            let variables = slice::from_raw_parts(variables, ((*of_section).info & COUNT) as usize);
            let place = |v: &bpf::btf_var_secinfo| v.offset..v.offset.saturating_add(v.size);
            variables.iter().map(|v| (place(v), named(btf, v.type_))).collect()
        }
    }

    /// The records of lines that the kernel is given with a program: one for each instruction; or those of the program
    /// itself, if the kernel is not going to take them.
    fn lines(&self, index: usize) -> Cow<'_, [Line]> {
        let code = self.instructions(index);
        let own = if self.btf_fd().is_some() { self.own_lines(index) } else { &[] };
        // SAFETY: the object is open and owns its BTF; the text is not looked at.
        let is_text =
            |at: u32| unsafe { !bpf::btf__str_by_offset(bpf::bpf_object__btf(self.raw.as_ptr()), at).is_null() };
        match ways::are_taken(own, code, &self.function_starts(index), is_text) {
            true => Cow::Owned(ways::lines(code)),
            false => Cow::Borrowed(own),
        }
    }

    /// What the kernel has made of a program that [`Object::load_linked`] has loaded, with these tail calls wired.
    pub(crate) fn decided(&self, index: usize, program: BorrowedFd<'_>, wired: &[Wired]) -> Decided {
        let (code, starts) = (self.instructions(index), self.function_starts(index));
        match translated(program) {
            Ok((lines, translated)) if !lines.is_empty() => ways::decided(code, &starts, &lines, &translated, wired),
            _ => Decided::hidden(code),
        }
    }

    /// Gives a program of a prepared object to the kernel, once: neither a failure nor a signal makes this try again.
    pub(crate) fn load_linked(
        &self,
        index: usize,
        license: &str,
        attributes: &Attributes,
        log: &mut [u8],
    ) -> io::Result<OwnedFd> {
        silence();
        let program = self.program(index);
        let license = CString::new(license)?;
        // The kernel takes letters, digits, `_` and `.` (`bpf_obj_name_cpy`), and a name says nothing to the verifier.
        let valid = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let name = CString::new(self.program_name(index).replace(|c| !valid(c), "_"))?;
        let own_btf = self.btf_fd();
        let lines = self.lines(index);
        let mut request = bpf::bpf_prog_load_opts {
            sz: size_of::<bpf::bpf_prog_load_opts>() as bpf::size_t,
            attempts: 1,
            expected_attach_type: attributes.expected_attach_type,
            attach_btf_id: attributes.attach_target,
            prog_flags: attributes.flags,
            // SAFETY: the object is open.
            kern_version: unsafe { bpf::bpf_object__kversion(self.raw.as_ptr()) },
            log_level: attributes.log_level,
            log_size: log.len() as u32,
            log_buf: log.as_mut_ptr().cast(),
            ..Default::default()
        };
        if own_btf.is_some() {
            request.func_info_rec_size = size_of::<bpf::bpf_func_info>() as u32;
            // SAFETY: a program of the open object. Records of another size than ours give null, and are not counted.
            unsafe {
                let functions = bpf::bpf_program__func_info(program);
                request.func_info = functions.cast();
                request.func_info_cnt = if functions.is_null() { 0 } else { bpf::bpf_program__func_info_cnt(program) };
            }
        }
        if let Some(btf) = own_btf.or_else(empty_btf) {
            request.prog_btf_fd = btf.as_raw_fd() as u32;
            request.line_info_rec_size = size_of::<Line>() as u32;
            request.line_info = lines.as_ptr().cast();
            request.line_info_cnt = lines.len() as u32;
        }
        let code = self.instructions(index);
        // SAFETY: a program of the open object, whose instructions are libbpf's; the log is as long as said, and
        // all pointers live through the call.
        owned(unsafe {
            bpf::bpf_prog_load(
                self.program_type(index),
                name.as_ptr(),
                license.as_ptr(),
                code.as_ptr().cast(),
                code.len() as bpf::size_t,
                &mut request,
            )
        })
    }
}

/// Gives the kernel the BTF of programs that have none, unless it has it.
pub(crate) fn prepare_btf() {
    empty_btf();
}

/// BTF with one type, for programs that have none: without it the kernel takes no lines.
fn empty_btf<'a>() -> Option<BorrowedFd<'a>> {
    static LOADED: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let load = || {
        /// `struct btf_header`: magic, version, flags, length; where types and texts begin, and their lengths.
        const HEADER: [u32; 6] = [0x0001_eb9f, 24, 0, 16, 16, 3];
        /// `int`, of 4 bytes: its name, `BTF_KIND_INT`, size, and encoding.
        const INT: [u32; 4] = [1, 1 << 24, 4, 32];
        let mut bytes: Vec<u8> = HEADER.iter().chain(&INT).flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(b"\0i\0");
        super::load_btf(&bytes, &mut [0; 1024]).ok()
    };
    LOADED.get_or_init(load).as_ref().map(AsFd::as_fd)
}

/// The records of lines of a loaded program, and its translated code.
fn translated(program: BorrowedFd<'_>) -> io::Result<(Vec<Line>, Vec<[u8; 8]>)> {
    let ask = |info: &mut bpf::bpf_prog_info| {
        let mut length = size_of::<bpf::bpf_prog_info>() as u32;
        // SAFETY: the kernel writes at most `length` bytes of `info`, and no more to the buffers in it than it says.
        checked(unsafe { bpf::bpf_prog_get_info_by_fd(program.as_raw_fd(), info, &mut length) }).map(drop)
    };
    let mut sizes = bpf::bpf_prog_info::default();
    ask(&mut sizes)?;
    let mut lines = vec![Line::default(); sizes.nr_line_info as usize];
    let mut code = vec![[0; 8]; sizes.xlated_prog_len as usize / 8];
    let mut info = bpf::bpf_prog_info {
        line_info: lines.as_mut_ptr() as u64,
        nr_line_info: lines.len() as u32,
        line_info_rec_size: size_of::<Line>() as u32,
        xlated_prog_insns: code.as_mut_ptr() as u64,
        xlated_prog_len: (code.len() * 8) as u32,
        ..bpf::bpf_prog_info::default()
    };
    ask(&mut info)?;
    // Who may not read the code is told that there is none.
    let told = info.xlated_prog_insns != 0 && info.nr_line_info as usize == lines.len();
    if told { Ok((lines, code)) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// The name of a type; none of one that is not there.
///
/// # Safety
/// `btf` is null or somebody's BTF.
unsafe fn named(btf: *const bpf::btf, id: u32) -> String {
    // SAFETY: the caller's promise; `copied` takes null.
    unsafe {
        let named = if btf.is_null() { ptr::null() } else { bpf::btf__type_by_id(btf, id) };
        if named.is_null() { String::new() } else { copied(bpf::btf__name_by_offset(btf, (*named).name_off)) }
    }
}

/// # Safety
/// `map` is a map of an open object, or the pattern of the maps in one.
unsafe fn definition(map: *mut bpf::bpf_map) -> Definition {
    // SAFETY: the caller's promise; `inner` is null or owned by `map`, and the contents are as long as told.
    unsafe {
        let internal = bpf::bpf_map__is_internal(map);
        let mut size = 0;
        let contents = if internal { bpf::bpf_map__initial_value(map, &mut size) } else { ptr::null_mut() };
        let contents =
            (!contents.is_null()).then(|| slice::from_raw_parts(contents.cast::<u8>(), size as usize).to_vec());
        let inner = bpf::bpf_map__inner_map(map);
        Definition {
            name: copied(bpf::bpf_map__name(map)),
            kind: bpf::bpf_map__type(map),
            key_size: bpf::bpf_map__key_size(map),
            value_size: bpf::bpf_map__value_size(map),
            max_entries: bpf::bpf_map__max_entries(map),
            flags: bpf::bpf_map__map_flags(map),
            extra: bpf::bpf_map__map_extra(map),
            numa_node: bpf::bpf_map__numa_node(map),
            ifindex: bpf::bpf_map__ifindex(map),
            internal,
            contents,
            inner: (!inner.is_null()).then(|| Box::new(definition(inner))),
        }
    }
}

/// The id in the kernel's own BTF of what a program attaches to.
pub(crate) fn attach_target(name: &str, attach_type: u32) -> Option<u32> {
    silence();
    let name = CString::new(name).ok()?;
    // SAFETY: a C string that lives through the call.
    let id = unsafe { bpf::libbpf_find_vmlinux_btf_id(name.as_ptr(), attach_type) };
    u32::try_from(id).ok().filter(|id| *id != 0)
}
