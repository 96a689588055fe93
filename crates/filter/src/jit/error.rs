//! Why there is no machine code.

use crate::safety::Unsafe;

/// Why a filter is not translated. The interpreter runs it all the same.
#[derive(Debug, thiserror::Error)]
pub enum JitError {
    /// The program does not keep what machine code must.
    #[error("not safe: {0}")]
    Unsafe(#[from] Unsafe),
    /// A set that user space changes is the kernel's to look into.
    #[error("machine code has no maps")]
    Maps,
    /// Code and tables are beyond 2 GiB, or the stack frame beyond 2 KiB.
    #[error("the filter is too large for machine code")]
    TooLarge,
    /// The system gives no memory that may be executed.
    #[error("no executable memory: {0}")]
    Memory(#[from] std::io::Error),
    /// There is no translator for this machine.
    #[error("machine code is written for x86-64 only")]
    Machine,
}
