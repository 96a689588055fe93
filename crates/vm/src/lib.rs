//! Other kernels than the one that runs: an image is booted under qemu with this very program as its init, which answers questions
//! on a serial line for as long as the machine runs.
//!
//! The one idea: a [`Guest`] is a kernel and a program in it, and a [`Session`] is one boot that answers many questions. Nothing has
//! to be installed in the guest and nothing is written to a disk: the kernel unpacks an archive in memory (`archive.rs`) that holds
//! the running executable and the libraries that are mapped into it. It uses KVM where that works, emulation else.
//!
//! Open `machine.rs` for the command line of qemu, `archive.rs` for what the guest finds.

mod archive;
mod image;
mod machine;

pub use archive::Program;
pub use image::{Image, ImageError};
pub use machine::{Accelerator, Guest, LINE, Session, VmError, is_available};
