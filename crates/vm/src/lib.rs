//! Other kernels than the one that runs: an image is booted under qemu with this very program as its init, which answers on the
//! serial console and switches the machine off.
//!
//! The one idea: a [`Guest`] is files, and arguments for the program that runs in them. Nothing has to be installed in the guest
//! and nothing is written to a disk: the kernel unpacks an archive in memory (`archive.rs`) that holds the running
//! executable, the libraries that are mapped into it, and the files. It uses KVM where that works, emulation else.
//!
//! Open `machine.rs` for the command line of qemu, `archive.rs` for what the guest finds.

mod archive;
mod image;
mod machine;

pub use archive::Program;
pub use image::{Image, ImageError};
pub use machine::{Accelerator, Guest, VmError, is_available, last_words};
