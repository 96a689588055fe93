//! Why executions end early.

use bpf_isa::Reg;
use thiserror::Error;

/// Why an execution could not go on. None of them can happen to a program that the verifier accepted, except
/// [`Fault::OutOfFuel`] and [`Fault::Unmodelled`], which are limits of the interpreter.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Fault {
    /// A register without a value was read.
    #[error("{0} is read before it has a value")]
    Uninitialised(Reg),
    /// An access to an address at which there is nothing of that length.
    #[error("{} of {size} bytes at {address:#x} is out of bounds", if *write { "write" } else { "read" })]
    Access {
        /// It was a write.
        write: bool,
        /// The first byte accessed.
        address: u64,
        /// How many bytes.
        size: u64,
    },
    /// The step budget is spent.
    #[error("the program did not end within its step budget")]
    OutOfFuel,
    /// More frames than the kernel allows.
    #[error("calls are nested more than 8 deep")]
    CallDepth,
    /// Something this host has no model of.
    #[error("no model of {0}")]
    Unmodelled(String),
}
