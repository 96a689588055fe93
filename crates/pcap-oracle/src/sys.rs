//! libpcap's functions and structures, as `pcap/pcap.h` and `pcap/bpf.h` declare them, and handles that free what they
//! own. All unsafe code of the crate is here.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::{self, NonNull};
use std::sync::Mutex;

use libloading::{Library, Symbol};

use crate::program::{Instruction, Program};

/// Under which names the library is installed.
const NAMES: [&str; 4] = ["libpcap.so.0.8", "libpcap.so.1", "libpcap.so", "libpcap.A.dylib"];
/// `PCAP_ERRBUF_SIZE`.
const ERROR_SIZE: usize = 256;
/// `PCAP_TSTAMP_PRECISION_NANO`.
const NANOSECONDS: c_uint = 1;

/// The compiler of old versions has global state.
static COMPILER: Mutex<()> = Mutex::new(());

/// `pcap_t`.
type Pcap = c_void;

#[repr(C)]
struct RawProgram {
    length: c_uint,
    instructions: *mut Instruction,
}

#[repr(C)]
struct Header {
    seconds: libc_time,
    fraction: libc_time,
    captured: u32,
    length: u32,
}

/// `time_t` and `suseconds_t`: both are C's `long` where libpcap is asked.
#[allow(non_camel_case_types)]
type libc_time = std::ffi::c_long;

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut Pcap;
type OpenOffline = unsafe extern "C" fn(*const c_char, c_uint, *mut c_char) -> *mut Pcap;
type Compile = unsafe extern "C" fn(*mut Pcap, *mut RawProgram, *const c_char, c_int, u32) -> c_int;
type NextEx = unsafe extern "C" fn(*mut Pcap, *mut *const Header, *mut *const u8) -> c_int;
type Filter = unsafe extern "C" fn(*const Instruction, *const u8, c_uint, c_uint) -> c_uint;
type Validate = unsafe extern "C" fn(*const Instruction, c_int) -> c_int;
type GetError = unsafe extern "C" fn(*mut Pcap) -> *const c_char;
type OfProgram = unsafe extern "C" fn(*mut RawProgram);
type OfPcap = unsafe extern "C" fn(*mut Pcap);
type Number = unsafe extern "C" fn(*mut Pcap) -> c_int;
type NameOf = unsafe extern "C" fn(c_int) -> *const c_char;
type NumberOf = unsafe extern "C" fn(*const c_char) -> c_int;
type Version = unsafe extern "C" fn() -> *const c_char;

/// The loaded library.
pub struct Api {
    open_dead: OpenDead,
    open_offline: OpenOffline,
    compile: Compile,
    next_ex: NextEx,
    filter: Filter,
    validate: Validate,
    get_error: GetError,
    free_code: OfProgram,
    close: OfPcap,
    datalink: Number,
    snapshot: Number,
    is_swapped: Number,
    name_of: NameOf,
    number_of: NumberOf,
    version: Version,
    /// Keeps the functions above in memory.
    _library: Library,
}

/// What a capture gives next.
pub struct RawPacket {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds on top.
    pub nanoseconds: i64,
    /// The captured bytes.
    pub captured: Vec<u8>,
    /// Length on the wire.
    pub length: u32,
}

impl Api {
    /// The library, if it is installed and has all functions.
    pub fn load() -> Option<Self> {
        // SAFETY: libpcap's initializers do nothing that depends on us.
        let library = NAMES.iter().find_map(|name| unsafe { Library::new(*name) }.ok())?;
        // SAFETY: each type is that of the function's declaration in pcap.h or bpf.h.
        unsafe {
            Some(Self {
                open_dead: function(&library, "pcap_open_dead")?,
                open_offline: function(&library, "pcap_open_offline_with_tstamp_precision")?,
                compile: function(&library, "pcap_compile")?,
                next_ex: function(&library, "pcap_next_ex")?,
                filter: function(&library, "bpf_filter")?,
                validate: function(&library, "bpf_validate")?,
                get_error: function(&library, "pcap_geterr")?,
                free_code: function(&library, "pcap_freecode")?,
                close: function(&library, "pcap_close")?,
                datalink: function(&library, "pcap_datalink")?,
                snapshot: function(&library, "pcap_snapshot")?,
                is_swapped: function(&library, "pcap_is_swapped")?,
                name_of: function(&library, "pcap_datalink_val_to_name")?,
                number_of: function(&library, "pcap_datalink_name_to_val")?,
                version: function(&library, "pcap_lib_version")?,
                _library: library,
            })
        }
    }

    /// What the library says of its version.
    pub fn version(&self) -> String {
        // SAFETY: the function takes nothing and returns a static text.
        text(unsafe { (self.version)() })
    }

    /// The name of a `DLT_` number.
    pub fn name_of(&self, dlt: u16) -> Option<String> {
        // SAFETY: the function returns a static text, or null.
        let name = unsafe { (self.name_of)(c_int::from(dlt)) };
        (!name.is_null()).then(|| text(name))
    }

    /// The `DLT_` number of a name.
    pub fn number_of(&self, name: &str) -> Option<u16> {
        let name = CString::new(name).ok()?;
        // SAFETY: the text ends with a zero.
        u16::try_from(unsafe { (self.number_of)(name.as_ptr()) }).ok()
    }

    /// Whether the library would run this program.
    pub fn valid(&self, program: &Program) -> bool {
        let instructions = &program.instructions;
        let Ok(length) = c_int::try_from(instructions.len()) else { return false };
        // SAFETY: the pointer is to `length` instructions, which the function only reads.
        length > 0 && unsafe { (self.validate)(instructions.as_ptr(), length) != 0 }
    }

    /// What the library's interpreter returns.
    ///
    /// # Panics
    /// If the program is not one that `valid` takes.
    pub fn run(&self, program: &Program, captured: &[u8], length: u32) -> u32 {
        assert!(self.valid(program), "libpcap takes no such program:\n{program}");
        // SAFETY: it is valid.
        unsafe { self.filter(program, captured, length) }
    }

    /// What the library's interpreter returns.
    ///
    /// # Safety
    /// The program must be one that `valid` takes.
    #[inline]
    unsafe fn filter(&self, program: &Program, captured: &[u8], length: u32) -> u32 {
        // SAFETY: a valid program ends, jumps within itself, and has its loads checked against the length of the bytes.
        unsafe { (self.filter)(program.instructions.as_ptr(), captured.as_ptr(), length, captured.len() as c_uint) }
    }
}

/// A program that the library takes.
pub struct Valid<'a> {
    api: &'a Api,
    program: Program,
}

impl<'a> Valid<'a> {
    /// The program, if the library takes it.
    pub fn of(api: &'a Api, program: Program) -> Option<Self> {
        api.valid(&program).then_some(Self { api, program })
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// What the library's interpreter returns.
    #[inline]
    pub fn run(&self, captured: &[u8], length: u32) -> u32 {
        // SAFETY: the program was found valid, and has not changed since.
        unsafe { self.api.filter(&self.program, captured, length) }
    }
}

/// The function of this name.
///
/// # Safety
/// `F` has to be its type.
unsafe fn function<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: the caller vouches for the type.
    let symbol: Symbol<'_, F> = unsafe { library.get(name) }.ok()?;
    Some(*symbol)
}

/// A text of the library.
fn text(raw: *const c_char) -> String {
    // SAFETY: the callers pass what the library returned as a text that ends with a zero.
    unsafe { CStr::from_ptr(raw) }.to_string_lossy().into_owned()
}

/// An open `pcap_t`.
pub struct Handle<'a> {
    api: &'a Api,
    pcap: NonNull<Pcap>,
}

// SAFETY: a `pcap_t` belongs to no thread; it must not be used by two at once, and this type is not `Sync`.
unsafe impl Send for Handle<'_> {}

impl<'a> Handle<'a> {
    /// A handle for compiling only.
    pub fn dead(api: &'a Api, dlt: u16, snapshot: u32) -> Option<Self> {
        let snapshot = c_int::try_from(snapshot).ok()?;
        // SAFETY: two numbers are passed.
        let pcap = NonNull::new(unsafe { (api.open_dead)(c_int::from(dlt), snapshot) })?;
        Some(Self { api, pcap })
    }

    /// A capture file, with time stamps in nanoseconds.
    pub fn offline(api: &'a Api, path: &CStr) -> Result<Self, String> {
        let mut error: [c_char; ERROR_SIZE] = [0; ERROR_SIZE];
        // SAFETY: the path ends with a zero, and the buffer has the length that the interface asks for.
        let pcap = unsafe { (api.open_offline)(path.as_ptr(), NANOSECONDS, error.as_mut_ptr()) };
        match NonNull::new(pcap) {
            Some(pcap) => Ok(Self { api, pcap }),
            None => Err(text(error.as_ptr())),
        }
    }

    /// The handle's last error.
    fn error(&self) -> String {
        // SAFETY: the handle is open, and its error is a text within it.
        text(unsafe { (self.api.get_error)(self.pcap.as_ptr()) })
    }

    /// Compiles an expression for this handle.
    pub fn compile(&mut self, expression: &CStr, optimize: bool, netmask: u32) -> Result<Program, String> {
        let mut code = RawProgram { length: 0, instructions: ptr::null_mut() };
        let _alone = COMPILER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (text, optimize) = (expression.as_ptr(), c_int::from(optimize));
        // SAFETY: the handle is open, the text ends with a zero, `code` is written.
        if unsafe { (self.api.compile)(self.pcap.as_ptr(), &raw mut code, text, optimize, netmask) } != 0 {
            return Err(self.error());
        }
        // SAFETY: after success `code` has so many instructions, which live until they are freed below.
        let all = unsafe { std::slice::from_raw_parts(code.instructions, code.length as usize) };
        let instructions = all.to_vec();
        // SAFETY: `code` comes from the compiler and is not used afterwards.
        unsafe { (self.api.free_code)(&raw mut code) };
        Ok(Program { instructions })
    }

    /// The next packet; nothing at the end.
    pub fn next(&mut self) -> Result<Option<RawPacket>, String> {
        let (mut header, mut data) = (ptr::null(), ptr::null());
        // SAFETY: the handle is open; both pointers are written.
        match unsafe { (self.api.next_ex)(self.pcap.as_ptr(), &raw mut header, &raw mut data) } {
            1 => {
                // SAFETY: after 1 both are valid until the handle is used again, and the data has the captured length.
                let (header, bytes) = unsafe {
                    let header = &*header;
                    (header, std::slice::from_raw_parts(data, header.captured as usize))
                };
                Ok(Some(RawPacket {
                    seconds: header.seconds,
                    nanoseconds: header.fraction,
                    captured: bytes.to_vec(),
                    length: header.length,
                }))
            }
            -2 => Ok(None),
            _ => Err(self.error()),
        }
    }

    /// The `DLT_` number.
    pub fn dlt(&self) -> u32 {
        // SAFETY: the handle is open.
        unsafe { (self.api.datalink)(self.pcap.as_ptr()) as u32 }
    }

    /// The snapshot length in bytes.
    pub fn snapshot(&self) -> u32 {
        // SAFETY: the handle is open.
        unsafe { (self.api.snapshot)(self.pcap.as_ptr()) as u32 }
    }

    /// Whether the file has the other byte order.
    pub fn swapped(&self) -> bool {
        // SAFETY: the handle is open.
        unsafe { (self.api.is_swapped)(self.pcap.as_ptr()) != 0 }
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is open and not used afterwards.
        unsafe { (self.api.close)(self.pcap.as_ptr()) };
    }
}
