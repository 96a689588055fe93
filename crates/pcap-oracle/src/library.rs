//! The library behind a safe interface.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::program::Program;
use crate::sys;

/// `PCAP_NETMASK_UNKNOWN`: the expression's `ip broadcast` is an error then.
pub const NETMASK_UNKNOWN: u32 = u32::MAX;

/// The loaded library. It may be used by several threads; compiling is done by one at a time.
pub struct Libpcap {
    api: sys::Api,
}

/// A packet that the library has read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The captured bytes.
    pub captured: Vec<u8>,
    /// Length on the wire, in bytes.
    pub length: u32,
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds on top of them.
    pub nanoseconds: i64,
}

/// A program that the library has found valid, so that it is not looked at again for each packet.
pub struct Prepared<'a> {
    valid: sys::Valid<'a>,
}

/// A capture that the library reads.
pub struct Savefile<'a> {
    handle: sys::Handle<'a>,
}

impl Libpcap {
    /// Loads the library; nothing if it is not installed.
    pub fn load() -> Option<Self> {
        sys::Api::load().map(|api| Self { api })
    }

    /// The library for a test. Where it is missing, a message says that the test is skipped.
    pub fn for_test() -> Option<Self> {
        let loaded = Self::load();
        if loaded.is_none() {
            eprintln!("skipped: no libpcap.so.0.8 (Debian's package libpcap0.8)");
        }
        loaded
    }

    /// What the library says of its version: `libpcap version 1.10.3 …`.
    pub fn version(&self) -> String {
        self.api.version()
    }

    /// The `DLT_` number of a name without that prefix, as `EN10MB`.
    pub fn dlt(&self, name: &str) -> Option<u16> {
        self.api.number_of(name)
    }

    /// The name of a `DLT_` number, without that prefix.
    pub fn dlt_name(&self, dlt: u16) -> Option<String> {
        self.api.name_of(dlt)
    }

    /// Compiles an expression as for a live capture, by `pcap_open_dead` and `pcap_compile`. `netmask` is a number whose
    /// bytes are those of the address in the order of this machine's memory, as libpcap has it.
    ///
    /// # Errors
    /// The library's message.
    pub fn compile(
        &self,
        expression: &str,
        dlt: u16,
        snapshot: u32,
        optimize: bool,
        netmask: u32,
    ) -> Result<Program, String> {
        let mut handle = sys::Handle::dead(&self.api, dlt, snapshot).ok_or("no handle for this link type")?;
        handle.compile(&zero_ended(expression.as_bytes())?, optimize, netmask)
    }

    /// Compiles an expression for the capture at `path`: it knows link type, snapshot length and byte order, and that
    /// nothing is captured live.
    ///
    /// # Errors
    /// The library's message.
    pub fn compile_offline(
        &self,
        path: &Path,
        expression: &str,
        optimize: bool,
        netmask: u32,
    ) -> Result<Program, String> {
        self.open(path)?.compile(expression, optimize, netmask)
    }

    /// Whether the library's `bpf_validate` takes the program. It takes any absolute load, also those of Linux.
    pub fn valid(&self, program: &Program) -> bool {
        self.api.valid(program)
    }

    /// What a program returns for a packet of which `captured` is there and `length` bytes were on the wire, by
    /// `bpf_filter`: how many bytes are accepted, 0 for none.
    ///
    /// # Panics
    /// If the program is not [`Self::valid`].
    pub fn run(&self, program: &Program, captured: &[u8], length: u32) -> u32 {
        self.api.run(program, captured, length)
    }

    /// A program to run on many packets; nothing if it is not [`Self::valid`].
    pub fn prepare(&self, program: Program) -> Option<Prepared<'_>> {
        sys::Valid::of(&self.api, program).map(|valid| Prepared { valid })
    }

    /// Opens a capture.
    ///
    /// # Errors
    /// The library's message.
    pub fn open(&self, path: &Path) -> Result<Savefile<'_>, String> {
        let path = zero_ended(path.as_os_str().as_bytes())?;
        sys::Handle::offline(&self.api, &path).map(|handle| Savefile { handle })
    }
}

impl Prepared<'_> {
    /// The program.
    pub fn program(&self) -> &Program {
        self.valid.program()
    }

    /// What the program returns for a packet, as [`Libpcap::run`], in the time that the library's interpreter takes.
    #[inline]
    pub fn run(&self, captured: &[u8], length: u32) -> u32 {
        self.valid.run(captured, length)
    }
}

impl Savefile<'_> {
    /// The next packet; nothing at the end.
    ///
    /// # Errors
    /// The library's message.
    pub fn next_packet(&mut self) -> Result<Option<Received>, String> {
        let packet = self.handle.next()?;
        Ok(packet.map(|sys::RawPacket { seconds, nanoseconds, captured, length }| Received {
            captured,
            length,
            seconds,
            nanoseconds,
        }))
    }

    /// Compiles an expression for this capture.
    ///
    /// # Errors
    /// The library's message.
    pub fn compile(&mut self, expression: &str, optimize: bool, netmask: u32) -> Result<Program, String> {
        self.handle.compile(&zero_ended(expression.as_bytes())?, optimize, netmask)
    }

    /// The `DLT_` number.
    pub fn dlt(&self) -> u32 {
        self.handle.dlt()
    }

    /// The snapshot length in bytes.
    pub fn snapshot(&self) -> u32 {
        self.handle.snapshot()
    }

    /// Whether the file was written in another byte order than that of this machine.
    pub fn swapped(&self) -> bool {
        self.handle.swapped()
    }
}

fn zero_ended(bytes: &[u8]) -> Result<CString, String> {
    CString::new(bytes).map_err(|_| "a zero byte in a text".to_owned())
}
