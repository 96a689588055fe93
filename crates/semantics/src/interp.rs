//! The interpreter: the instruction semantics over plain numbers.
//!
//! It has no definition of any instruction: [`exec`](crate::exec) and [`branch`](crate::branch) are run over
//! [`Bv`], and this module adds what they ask for, registers and memory. [`Interp`] owns the registers, the
//! stack and the call frames; everything else of the world (memory that is not stack, helpers, maps, the
//! context) is a [`Host`]. Two hosts are here: [`KernelHost`], a model of what the kernel gives a program, and
//! [`Oracle`], flat memory whose initial bytes and calls are answered by callbacks, with which a
//! counterexample of the prover is replayed.

mod bv;
mod cpu;
mod event;
mod fault;
mod host;
mod kernel;
mod machine;
mod maps;
mod oracle;
mod packet;
mod record;
mod trail;

pub use bv::{Bv, Concrete};
pub use cpu::{Cpu, STACK_BYTES};
pub use event::{ArgValue, Event};
pub use fault::Fault;
pub use host::{Host, Next};
pub use kernel::{KernelHost, Output, TaskInfo};
pub use machine::{Interp, MAY_GOTO_BUDGET, Outcome, Stop};
pub use maps::MapSpec;
pub use oracle::{FlatMemory, Oracle};
pub use trail::Step;
