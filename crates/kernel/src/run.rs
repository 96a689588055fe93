//! Running a loaded program on demand (BPF_PROG_TEST_RUN), for its result and for its time.
//!
//! The kernel sets up a packet from `data_in`, a context from `ctx`, calls the program `repeat` times and reports the
//! last result and the average duration in whole nanoseconds. Programs are never attached anywhere for this.

use std::os::fd::BorrowedFd;

use crate::{KernelError, ProgramType, sys};

/// Packets may grow while a program runs: room for what a program may add in front and behind.
const GROWTH: usize = 8192;
/// The kernel's ENOTSUPP, which it returns for types without a test run.
const ENOTSUPP: i32 = 524;

/// What a test run gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunResult {
    /// The program's return value.
    pub retval: u32,
    /// The packet afterwards.
    pub data_out: Vec<u8>,
    /// The context afterwards; empty when none was passed in or the type does not give it back.
    pub ctx_out: Vec<u8>,
    /// The average duration of one repetition.
    pub duration_ns: u32,
}

/// How long one run takes, over several batches of repetitions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// The fastest batch: the program with the least disturbance.
    pub min_ns: u32,
    /// The batch in the middle.
    pub median_ns: u32,
}

/// Borrowed access to a loaded program, however it was loaded.
pub(crate) struct Runner<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) kind: ProgramType,
}

impl Runner<'_> {
    pub(crate) fn run(&self, data_in: &[u8], ctx: Option<&[u8]>, repeat: u32) -> Result<RunResult, KernelError> {
        let bare = self.kind.runs_on_context_alone();
        let mut data_out = vec![0; if bare || data_in.is_empty() { 0 } else { data_in.len() + GROWTH }];
        let mut ctx_in = ctx.unwrap_or_default().to_vec();
        let mut ctx_out = vec![0; if bare { 0 } else { ctx_in.len() }];
        let request = sys::TestRun {
            data_in,
            data_out: &mut data_out,
            ctx_in: &mut ctx_in,
            ctx_out: &mut ctx_out,
            repeat: if bare { 0 } else { repeat },
        };
        let outcome = sys::test_run(self.fd, request).map_err(|source| match source.raw_os_error() {
            Some(ENOTSUPP) => KernelError::NotRunnable { kind: self.kind.to_string() },
            _ => KernelError::Refused { operation: format!("test run of a {} program", self.kind), source },
        })?;
        data_out.truncate(outcome.data_len);
        ctx_out.truncate(outcome.ctx_len);
        if self.kind == ProgramType::SYSCALL {
            ctx_out = ctx_in;
        }
        Ok(RunResult { retval: outcome.retval, data_out, ctx_out, duration_ns: outcome.duration_ns })
    }

    pub(crate) fn time(
        &self,
        data_in: &[u8],
        ctx: Option<&[u8]>,
        repeat: u32,
        batches: usize,
    ) -> Result<Timing, KernelError> {
        let mut nanos = (0..batches.max(1))
            .map(|_| self.run(data_in, ctx, repeat).map(|result| result.duration_ns))
            .collect::<Result<Vec<_>, _>>()?;
        nanos.sort_unstable();
        Ok(Timing { min_ns: nanos[0], median_ns: nanos[nanos.len() / 2] })
    }
}
