//! Filters as machine code of x86-64 (BPF+, section 7.2).
//!
//! A program is verified ([`crate::safety`]), simplified ([`crate::simplify`]) and verified again; a plan says which loads are checked
//! ([`bounds`]), and is verified too. Then registers are assigned ([`crate::allocate`]), fields found that need not be swapped
//! ([`network`]), and the operations written as instructions ([`translate`], [`assembler`]) to memory that may then be executed
//! and not written ([`memory`]). Elsewhere than on x86-64 there is only the interpreter.

#[cfg(target_arch = "x86_64")]
mod assembler;
#[cfg(target_arch = "x86_64")]
mod bounds;
mod error;
#[cfg(target_arch = "x86_64")]
mod memory;
#[cfg(target_arch = "x86_64")]
mod network;
#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
#[cfg(target_arch = "x86_64")]
mod translate;

pub use error::JitError;

use crate::program::{Packet, Program};

/// A filter as machine code.
#[derive(Debug)]
pub struct Jit {
    #[cfg(target_arch = "x86_64")]
    machine: memory::Machine,
}

#[cfg(target_arch = "x86_64")]
impl Jit {
    /// Verifies and translates a program.
    ///
    /// # Errors
    /// If it is not safe or too large, or the system gives no executable memory.
    pub(crate) fn new(program: &Program) -> Result<Jit, JitError> {
        if !program.maps.is_empty() {
            return Err(JitError::Maps);
        }
        let code = translate::translate(program)?;
        Ok(Jit { machine: memory::Machine::new(&code)? })
    }

    /// Whether the filter accepts a packet.
    #[inline]
    pub fn run(&self, packet: &Packet) -> bool {
        self.machine.call(packet)
    }

    /// The instructions.
    pub fn code(&self) -> &[u8] {
        self.machine.instructions()
    }

    /// The instructions with the tables behind them, which they address relative to themselves.
    pub fn image(&self) -> &[u8] {
        self.machine.bytes()
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Jit {
    /// There is no translator for this machine.
    ///
    /// # Errors
    /// Always.
    pub(crate) fn new(_: &Program) -> Result<Jit, JitError> {
        Err(JitError::Machine)
    }

    /// Never called: there is no `Jit` on this machine.
    pub fn run(&self, _: &Packet) -> bool {
        false
    }

    /// The instructions: none.
    pub fn code(&self) -> &[u8] {
        &[]
    }

    /// The instructions and tables: none.
    pub fn image(&self) -> &[u8] {
        &[]
    }
}
