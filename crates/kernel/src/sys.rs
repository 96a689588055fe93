//! The unsafe edge: libbpf's C interface behind safe functions. Nothing outside this module is unsafe.
//!
//! The one idea: programs and maps of an object are named by index, and every pointer stays inside [`Object`], which
//! owns what they point into. libbpf prints through one callback per process; the callback writes into a buffer of the
//! calling thread while [`capture`] runs, and is silent otherwise, so that nothing ever reaches stderr.

use std::{
    cell::RefCell,
    ffi::{CStr, CString, c_char, c_int, c_void},
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::{self, NonNull},
    sync::Once,
};

use libbpf_sys as bpf;

use crate::{
    ProgramInfo, RawOptions,
    stats::{BEGIN, unshares_packet},
};

mod classic;
mod interrupt;
mod linked;
pub(crate) mod maps;
pub(crate) mod observed;
pub(crate) mod perf;
mod types;

pub(crate) use classic::attach_classic;
pub(crate) use interrupt::until;
pub(crate) use linked::{Attributes, Definition, attach_target, prepare_btf};
pub(crate) use types::{Member, Types, Variable, fault as type_fault};

/// The name given to every object: libbpf puts its start before the names of global data maps.
const OBJECT_NAME: &CStr = c"object";
/// A test run is interrupted by signals; it is then started again, this often at most.
const INTERRUPTIONS: usize = 16;

thread_local! {
    static MESSAGES: RefCell<Option<String>> = const { RefCell::new(None) };
}

unsafe extern "C" {
    fn vsnprintf(buffer: *mut c_char, size: usize, format: *const c_char, args: *mut bpf::__va_list_tag) -> c_int;
    fn unshare(flags: c_int) -> c_int;
}

/// Keeps a warning for [`capture`]; information and debugging output is dropped.
unsafe extern "C" fn keep_message(
    level: bpf::libbpf_print_level,
    format: *const c_char,
    args: *mut bpf::__va_list_tag,
) -> c_int {
    if level != bpf::LIBBPF_WARN {
        return 0;
    }
    let mut buffer = [0u8; 4096];
    // SAFETY: libbpf passes a format and its matching arguments, and vsnprintf writes at most the size it is given,
    // with a NUL at its end.
    unsafe { vsnprintf(buffer.as_mut_ptr().cast(), buffer.len(), format, args) };
    // Neither a nested borrow nor a thread that is ending may unwind through C: then the message is lost.
    let _ = MESSAGES.try_with(|messages| {
        if let Ok(mut messages) = messages.try_borrow_mut()
            && let Some(kept) = messages.as_mut()
        {
            kept.push_str(text(&buffer).trim_start_matches("libbpf: "));
        }
    });
    0
}

/// Gives the calling thread, and no other, a new network namespace.
pub(crate) fn leave_network() -> io::Result<()> {
    /// `CLONE_NEWNET` in `linux/sched.h`.
    const CLONE_NEWNET: c_int = 0x4000_0000;
    // SAFETY: takes a number; with this flag alone it changes which network the calling thread sees, and no memory,
    // descriptor or signal state that Rust relies on.
    match unsafe { unshare(CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives the calling thread, and no other, a new `/sys/fs/bpf` that nobody else sees.
///
/// # Errors
/// What the system said; the thread may then have a mount namespace of its own with what it saw before.
pub(crate) fn leave_pins() -> io::Result<()> {
    let result = |code: c_int| if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: takes a number; with this flag alone it changes which mounts the calling thread sees, and no memory,
    // descriptor or signal state that Rust relies on.
    result(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    let mount = |target: &CStr, kind: &CStr, flags| {
        // SAFETY: strings that end with NUL and live until the call returns; there are no options.
        result(unsafe { libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, ptr::null()) })
    };
    mount(c"/", c"none", libc::MS_REC | libc::MS_PRIVATE)?;
    mount(c"/sys/fs/bpf", c"bpf", 0)
}

/// Lets this process have as many descriptors as it may: each map and each program takes one.
pub(crate) fn allow_many_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes to, and reads, one `rlimit`. Where it refuses, things stay as they are.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// Whether this process may have so many more descriptors.
pub(crate) fn need_descriptors(count: usize) -> io::Result<()> {
    let one = || {
        // SAFETY: takes two numbers; what it gives is a new descriptor or -1.
        match unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) } {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        }
    };
    (0..count).map(|_| one()).collect::<io::Result<Vec<_>>>().map(drop)
}

/// Makes libbpf print nowhere. Every function here that may make it print calls this first.
fn silence() {
    static ONCE: Once = Once::new();
    // SAFETY: the callback is a function of the type libbpf wants, and lives for ever.
    ONCE.call_once(|| unsafe {
        bpf::libbpf_set_print(Some(keep_message));
    });
}

/// Runs `action` and returns with it the warnings libbpf gave in this thread meanwhile.
pub(crate) fn capture<T>(action: impl FnOnce() -> T) -> (T, String) {
    silence();
    MESSAGES.set(Some(String::new()));
    let result = action();
    (result, MESSAGES.take().unwrap_or_default())
}

/// The text in a buffer that C filled, up to its NUL.
pub(crate) fn text(buffer: &[u8]) -> String {
    let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(buffer.len());
    String::from_utf8_lossy(&buffer[..end]).into_owned()
}

/// libbpf returns a negative error number.
fn checked(code: c_int) -> io::Result<c_int> {
    if code < 0 { Err(io::Error::from_raw_os_error(-code)) } else { Ok(code) }
}

/// A new file descriptor from libbpf, or its error.
fn owned(code: c_int) -> io::Result<OwnedFd> {
    let fd = checked(code)?;
    // SAFETY: libbpf returned a descriptor that it just created and gave away.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Copies a string that C owns.
///
/// # Safety
/// `string` is null or points to a NUL-terminated string.
unsafe fn copied(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: not null, and the caller promises the rest.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

/// An object opened by libbpf, with its programs and maps, closed when dropped.
///
/// Invariant: `raw` is open, and `programs` and `maps` are its own; libbpf settles both lists when it opens an object.
/// `logs` holds the buffer of each program that libbpf was given one for, never resized after.
pub(crate) struct Object {
    raw: NonNull<bpf::bpf_object>,
    programs: Vec<NonNull<bpf::bpf_program>>,
    slots: Vec<usize>,
    maps: Vec<NonNull<bpf::bpf_map>>,
    logs: Vec<Vec<u8>>,
}

impl Object {
    /// Opens an object and clears the pin paths of its maps: nothing of it will be found or left under /sys/fs/bpf.
    /// `lenient` ignores attributes of maps that libbpf does not know.
    pub(crate) fn open(bytes: &[u8], lenient: bool) -> io::Result<Self> {
        silence();
        let options = bpf::bpf_object_open_opts {
            sz: size_of::<bpf::bpf_object_open_opts>() as bpf::size_t,
            object_name: OBJECT_NAME.as_ptr(),
            relaxed_maps: lenient,
            ..Default::default()
        };
        // SAFETY: the bytes and the options live through the call, which copies all it keeps: libbpf closes the ELF
        // reader before it returns.
        let raw = unsafe { bpf::bpf_object__open_mem(bytes.as_ptr().cast(), bytes.len() as bpf::size_t, &options) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let mut object = Self { raw, programs: Vec::new(), slots: Vec::new(), maps: Vec::new(), logs: Vec::new() };
        object.list_programs();
        object.list_maps()?;
        Ok(object)
    }

    fn list_programs(&mut self) {
        let mut last = ptr::null_mut();
        // SAFETY: the object is open, and `last` is null or a program of it.
        while let Some(program) = NonNull::new(unsafe { bpf::bpf_object__next_program(self.raw.as_ptr(), last) }) {
            last = program.as_ptr();
            self.programs.push(program);
            // SAFETY: a program of the open object.
            self.slots.push(unsafe { bpf::bpf_program__insn_cnt(last) } as usize);
            self.logs.push(Vec::new());
        }
    }

    fn list_maps(&mut self) -> io::Result<()> {
        let mut last = ptr::null_mut();
        // SAFETY: the object is open, and `last` is null or a map of it.
        while let Some(map) = NonNull::new(unsafe { bpf::bpf_object__next_map(self.raw.as_ptr(), last) }) {
            last = map.as_ptr();
            self.maps.push(map);
            // SAFETY: a map of the open object; a null path means that it is not pinned.
            checked(unsafe { bpf::bpf_map__set_pin_path(last, ptr::null()) })?;
        }
        Ok(())
    }

    /// Loads what is set to autoload. After a failure the object is good for its names and logs only.
    pub(crate) fn load(&mut self) -> io::Result<()> {
        // SAFETY: the object is open, and the log buffers its programs were given are in `self.logs`.
        checked(unsafe { bpf::bpf_object__load(self.raw.as_ptr()) }).map(drop)
    }

    fn program(&self, index: usize) -> *mut bpf::bpf_program {
        self.programs[index].as_ptr()
    }

    fn map(&self, index: usize) -> *mut bpf::bpf_map {
        self.maps[index].as_ptr()
    }

    pub(crate) fn program_count(&self) -> usize {
        self.programs.len()
    }

    pub(crate) fn program_name(&self, index: usize) -> String {
        // SAFETY: a program of the open object, whose name is a C string of libbpf's.
        unsafe { copied(bpf::bpf_program__name(self.program(index))) }
    }

    pub(crate) fn program_section(&self, index: usize) -> String {
        // SAFETY: as for the name.
        unsafe { copied(bpf::bpf_program__section_name(self.program(index))) }
    }

    pub(crate) fn program_type(&self, index: usize) -> u32 {
        // SAFETY: a program of the open object.
        unsafe { bpf::bpf_program__type(self.program(index)) }
    }

    /// The program's slots in the object, before libbpf appended subprograms.
    pub(crate) fn program_slots(&self, index: usize) -> usize {
        self.slots[index]
    }

    /// Before the load only, like the other setters.
    pub(crate) fn set_program_type(&mut self, index: usize, kind: u32, attach: u32) {
        // SAFETY: a program of the open object. libbpf refuses when it is loaded already, which changes nothing.
        unsafe {
            bpf::bpf_program__set_type(self.program(index), kind);
            bpf::bpf_program__set_expected_attach_type(self.program(index), attach);
        }
    }

    pub(crate) fn set_autoload(&mut self, index: usize, wanted: bool) {
        // SAFETY: as for the type.
        unsafe { bpf::bpf_program__set_autoload(self.program(index), wanted) };
    }

    /// Asks for a verifier log of at most `room` bytes.
    pub(crate) fn request_log(&mut self, index: usize, level: u32, room: usize) {
        let program = self.program(index);
        let log = &mut self.logs[index];
        assert!(log.is_empty(), "libbpf may still hold the old buffer");
        *log = vec![0; room];
        // SAFETY: the buffer has `room` bytes, and lives in `self.logs` until after the object is closed.
        unsafe {
            bpf::bpf_program__set_log_buf(program, log.as_mut_ptr().cast(), room as bpf::size_t);
            bpf::bpf_program__set_log_level(program, level);
        }
    }

    /// The verifier's log of a program; empty when none was requested.
    pub(crate) fn log(&self, index: usize) -> String {
        text(&self.logs[index])
    }

    /// The descriptor of a loaded program.
    pub(crate) fn program_fd(&self, index: usize) -> Option<BorrowedFd<'_>> {
        // SAFETY: a program of the open object; its descriptor stays open as long as the object.
        unsafe {
            let fd = bpf::bpf_program__fd(self.program(index));
            (fd >= 0).then(|| BorrowedFd::borrow_raw(fd))
        }
    }

    pub(crate) fn map_count(&self) -> usize {
        self.maps.len()
    }

    /// The map's name; for global data without the object's name, that is `.rodata`, `.data`, `.bss`.
    pub(crate) fn map_name(&self, index: usize) -> String {
        // SAFETY: a map of the open object, whose name is a C string of libbpf's.
        let (name, internal) =
            unsafe { (copied(bpf::bpf_map__name(self.map(index))), bpf::bpf_map__is_internal(self.map(index))) };
        match name.find('.') {
            Some(dot) if internal => name[dot..].to_owned(),
            _ => name,
        }
    }

    /// The descriptor of a created map.
    pub(crate) fn map_fd(&self, index: usize) -> Option<BorrowedFd<'_>> {
        // SAFETY: a map of the open object; its descriptor stays open as long as the object.
        unsafe {
            let fd = bpf::bpf_map__fd(self.map(index));
            (fd >= 0).then(|| BorrowedFd::borrow_raw(fd))
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed once, and no pointer into it outlives `self`.
        unsafe { bpf::bpf_object__close(self.raw.as_ptr()) }
    }
}

/// Type information for a program: the descriptor of the BTF and `(first slot, type)` of each function.
pub(crate) struct TypeInfo<'a> {
    pub(crate) btf: BorrowedFd<'a>,
    pub(crate) functions: &'a [(u32, u32)],
}

/// Hands type information to the kernel.
pub(crate) fn load_btf(bytes: &[u8], log: &mut [u8]) -> io::Result<OwnedFd> {
    silence();
    let mut request = bpf::bpf_btf_load_opts {
        sz: size_of::<bpf::bpf_btf_load_opts>() as bpf::size_t,
        log_buf: log.as_mut_ptr().cast(),
        log_size: log.len() as u32,
        log_level: 1,
        ..Default::default()
    };
    // SAFETY: both buffers are as long as said, and all pointers live through the call.
    owned(unsafe { bpf::bpf_btf_load(bytes.as_ptr().cast(), bytes.len() as bpf::size_t, &mut request) })
}

/// The id of the kernel's own type of this name and `BTF_KIND_*`.
pub(crate) fn kernel_type_id(name: &str, kind: u32) -> io::Result<u32> {
    silence();
    let name = CString::new(name)?;
    // SAFETY: libbpf returns an object of its own or null with an error number; it is freed here, once.
    unsafe {
        let btf = NonNull::new(bpf::btf__load_vmlinux_btf()).ok_or_else(io::Error::last_os_error)?;
        let id = bpf::btf__find_by_name_kind(btf.as_ptr(), name.as_ptr(), kind);
        bpf::btf__free(btf.as_ptr());
        checked(id).map(|id| id as u32)
    }
}

/// Loads bare instructions. With log level 0, a refused program is loaded again with level 1 for its log.
pub(crate) fn load_program(
    kind: u32,
    insns: &[u8],
    options: &RawOptions,
    types: Option<&TypeInfo<'_>>,
    log: &mut [u8],
) -> io::Result<OwnedFd> {
    silence();
    let code: Vec<u64> = insns.as_chunks().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect();
    let license = CString::new(options.license.as_str())?;
    // `struct bpf_func_info`: two words each.
    let functions: Vec<[u32; 2]> = types.iter().flat_map(|t| t.functions.iter().map(|(at, id)| [*at, *id])).collect();
    let mut request = bpf::bpf_prog_load_opts {
        sz: size_of::<bpf::bpf_prog_load_opts>() as bpf::size_t,
        prog_btf_fd: types.map_or(0, |t| t.btf.as_raw_fd() as u32),
        func_info: if functions.is_empty() { ptr::null() } else { functions.as_ptr().cast() },
        func_info_cnt: functions.len() as u32,
        func_info_rec_size: size_of::<[u32; 2]>() as u32,
        expected_attach_type: options.expected_attach_type,
        prog_flags: options.flags,
        log_level: options.log_level,
        log_size: log.len() as u32,
        log_buf: log.as_mut_ptr().cast(),
        ..Default::default()
    };
    // SAFETY: the code is aligned and as long as said, the log too, and all pointers live through the call.
    owned(unsafe {
        bpf::bpf_prog_load(
            kind,
            ptr::null(),
            license.as_ptr(),
            code.as_ptr().cast(),
            code.len() as bpf::size_t,
            &mut request,
        )
    })
}

/// A record of lines (`struct bpf_line_info`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Line {
    pub(crate) slot: u32,
    /// Where in BTF the name of the file and the text of the line stand; 0 for none.
    pub(crate) file: u32,
    pub(crate) text: u32,
    /// The line and the column; here, the slot that an instruction had when it was loaded.
    pub(crate) number: u32,
}

pub(crate) fn program_info(fd: BorrowedFd<'_>) -> io::Result<ProgramInfo> {
    let mut begin = [[0u8; 8]; BEGIN];
    let mut info = bpf::bpf_prog_info {
        xlated_prog_len: size_of_val(&begin) as u32,
        xlated_prog_insns: begin.as_mut_ptr() as u64,
        ..bpf::bpf_prog_info::default()
    };
    let mut length = size_of::<bpf::bpf_prog_info>() as u32;
    // SAFETY: the kernel writes at most `length` bytes of `info`, and as many of `begin` as `info` says it has.
    checked(unsafe { bpf::bpf_prog_get_info_by_fd(fd.as_raw_fd(), &mut info, &mut length) })?;
    Ok(ProgramInfo {
        unshares_packet: unshares_packet(&begin),
        id: info.id,
        verified_insns: info.verified_insns,
        xlated_bytes: info.xlated_prog_len,
        jited_bytes: info.jited_prog_len,
    })
}

/// The type that a loaded program is attached to, if it is one of the kernel's own BTF.
pub(crate) fn attach_target_of_loaded(fd: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    /// The kernel's own BTF is the first that there is (`btf_vmlinux`, `btf_get_by_id` in kernel/bpf/btf.c).
    const OF_KERNEL: u32 = 1;
    let mut info = bpf::bpf_prog_info::default();
    let mut length = size_of::<bpf::bpf_prog_info>() as u32;
    // SAFETY: the kernel writes at most `length` bytes of `info`, and nothing else, as all its lengths are 0.
    checked(unsafe { bpf::bpf_prog_get_info_by_fd(fd.as_raw_fd(), &mut info, &mut length) })?;
    Ok((info.attach_btf_obj_id == OF_KERNEL && info.attach_btf_id != 0).then_some(info.attach_btf_id))
}

/// The input of a test run and room for its output.
pub(crate) struct TestRun<'a> {
    pub(crate) data_in: &'a [u8],
    pub(crate) data_out: &'a mut [u8],
    /// The kernel writes the context of a syscall program back here (`bpf_prog_test_run_syscall`).
    pub(crate) ctx_in: &'a mut [u8],
    pub(crate) ctx_out: &'a mut [u8],
    pub(crate) repeat: u32,
}

/// What the kernel filled in.
pub(crate) struct TestOutcome {
    pub(crate) retval: u32,
    pub(crate) duration_ns: u32,
    pub(crate) data_len: usize,
    pub(crate) ctx_len: usize,
}

pub(crate) fn test_run(fd: BorrowedFd<'_>, run: TestRun<'_>) -> io::Result<TestOutcome> {
    for _ in 0..INTERRUPTIONS {
        let mut request = bpf::bpf_test_run_opts {
            sz: size_of::<bpf::bpf_test_run_opts>() as bpf::size_t,
            data_in: pointer(run.data_in),
            data_size_in: run.data_in.len() as u32,
            data_out: pointer_mut(run.data_out),
            data_size_out: run.data_out.len() as u32,
            ctx_in: pointer_mut(run.ctx_in),
            ctx_size_in: run.ctx_in.len() as u32,
            ctx_out: pointer_mut(run.ctx_out),
            ctx_size_out: run.ctx_out.len() as u32,
            repeat: run.repeat as c_int,
            ..Default::default()
        };
        // SAFETY: every buffer is as long as said and lives through the call; what the kernel may write is borrowed
        // mutably.
        match checked(unsafe { bpf::bpf_prog_test_run_opts(fd.as_raw_fd(), &mut request) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            outcome => outcome?,
        };
        return Ok(TestOutcome {
            retval: request.retval,
            duration_ns: request.duration,
            data_len: request.data_size_out as usize,
            ctx_len: request.ctx_size_out as usize,
        });
    }
    Err(io::ErrorKind::Interrupted.into())
}

/// The kernel wants null, not a dangling pointer, where there is nothing.
fn pointer(bytes: &[u8]) -> *const c_void {
    if bytes.is_empty() { ptr::null() } else { bytes.as_ptr().cast() }
}

fn pointer_mut(bytes: &mut [u8]) -> *mut c_void {
    if bytes.is_empty() { ptr::null_mut() } else { bytes.as_mut_ptr().cast() }
}

// SAFETY: the memory is shared by all threads of the process anyway, and only atomic accesses to it are given out.
// SAFETY: as above.

/// Processors that there may be.
pub(crate) fn possible_cpus() -> io::Result<usize> {
    silence();
    // SAFETY: takes nothing; reads a file under /sys.
    checked(unsafe { bpf::libbpf_num_possible_cpus() }).map(|count| count as usize)
}

/// The program type and attach type that a section name stands for.
pub(crate) fn program_type_by_section(section: &str) -> Option<(u32, u32)> {
    silence();
    let section = CString::new(section).ok()?;
    let (mut kind, mut attach) = (0, 0);
    // SAFETY: a C string and two places to write to, all alive through the call.
    let code = unsafe { bpf::libbpf_prog_type_by_name(section.as_ptr(), &mut kind, &mut attach) };
    (code == 0).then_some((kind, attach))
}

/// The kernel's enum name of a program type, as far as libbpf knows it.
pub(crate) fn program_type_name(kind: u32) -> Option<String> {
    // SAFETY: returns null or a string constant.
    let name = unsafe { copied(bpf::libbpf_bpf_prog_type_str(kind)) };
    (!name.is_empty()).then_some(name)
}

pub(crate) fn probe_program_type(kind: u32) -> io::Result<bool> {
    silence();
    // SAFETY: the options must be null.
    checked(unsafe { bpf::libbpf_probe_bpf_prog_type(kind, ptr::null()) }).map(|found| found > 0)
}

pub(crate) fn probe_helper(kind: u32, helper: u32) -> io::Result<bool> {
    silence();
    // SAFETY: the options must be null.
    checked(unsafe { bpf::libbpf_probe_bpf_helper(kind, helper, ptr::null()) }).map(|found| found > 0)
}
