//! Programs given as bare instructions, without an ELF file around them.
//!
//! For probes, for counterexamples from the prover, and for measuring single instructions. A map is referred to by its
//! file descriptor in a 64-bit immediate load with source register 1 (BPF_PSEUDO_MAP_FD).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

mod options;

pub use options::RawOptions;

use crate::{Btf, KernelError, ProgramInfo, ProgramType, Rejection, RunResult, Timing, run::Runner, stats, sys};

/// Room for a verifier log. It is mapped lazily, so generous costs nothing.
pub(crate) const LOG_BYTES: usize = 16 << 20;
/// EINVAL, for code that is no whole number of instructions.
const EINVAL: i32 = 22;

/// A loaded program; dropping it unloads it.
#[derive(Debug)]
pub struct RawProgram {
    fd: OwnedFd,
    kind: ProgramType,
    log: String,
}

impl RawProgram {
    /// Loads `insns` (eight bytes each, as in an object file).
    pub fn load(kind: ProgramType, insns: &[u8], options: &RawOptions) -> Result<Self, Rejection> {
        Self::load_typed(kind, insns, options, None)
    }

    /// Loads `insns` with type information: `functions` says at which slot each function begins and which `BTF_KIND_FUNC`
    /// of `btf` it is. Callbacks and maps with locks or timers need it.
    pub fn load_with_btf(
        kind: ProgramType,
        insns: &[u8],
        options: &RawOptions,
        btf: &Btf,
        functions: &[(u32, u32)],
    ) -> Result<Self, Rejection> {
        Self::load_typed(kind, insns, options, Some(&sys::TypeInfo { btf: btf.as_fd(), functions }))
    }

    fn load_typed(
        kind: ProgramType,
        insns: &[u8],
        options: &RawOptions,
        types: Option<&sys::TypeInfo<'_>>,
    ) -> Result<Self, Rejection> {
        if insns.is_empty() || !insns.len().is_multiple_of(8) {
            let log = format!("{} bytes are no whole number of instructions", insns.len());
            return Err(Rejection { errno: EINVAL, log });
        }
        let mut log = vec![0; LOG_BYTES];
        let outcome = sys::load_program(kind.0, insns, options, types, &mut log);
        let log = sys::text(&log);
        match outcome {
            Ok(fd) => Ok(Self { fd, kind, log }),
            Err(error) => Err(Rejection { errno: error.raw_os_error().unwrap_or(EINVAL), log }),
        }
    }

    /// The type it was loaded as.
    pub fn kind(&self) -> ProgramType {
        self.kind
    }

    /// The verifier's log, as far as [`RawOptions::log_level`] asked for one.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// The kernel's description.
    pub fn info(&self) -> Result<ProgramInfo, KernelError> {
        sys::program_info(self.fd.as_fd()).map_err(KernelError::refused("reading the program's description"))
    }

    /// The instructions that the verifier processed.
    pub fn verified_insns(&self) -> Result<u32, KernelError> {
        self.info().map(|info| info.verified_insns)
    }

    /// The verifier's statistics; `None` unless the log level asked for them (4).
    pub fn stats(&self) -> Option<stats::VerifierStats> {
        stats::VerifierStats::parse(&self.log)
    }

    /// Runs the program `repeat` times on a packet and a context.
    pub fn test_run(&self, data_in: &[u8], ctx: Option<&[u8]>, repeat: u32) -> Result<RunResult, KernelError> {
        self.runner().run(data_in, ctx, repeat)
    }

    /// Times the program: `batches` test runs of `repeat` repetitions each.
    pub fn time(&self, data_in: &[u8], ctx: Option<&[u8]>, repeat: u32, batches: usize) -> Result<Timing, KernelError> {
        self.runner().time(data_in, ctx, repeat, batches)
    }

    fn runner(&self) -> Runner<'_> {
        Runner { fd: self.fd.as_fd(), kind: self.kind }
    }
}

impl AsFd for RawProgram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
