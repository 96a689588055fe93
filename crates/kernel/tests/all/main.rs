//! The integration tests of `bpf-kernel`, in one binary: that is linked once, and its tests run in one process.
//! So none of them may change what belongs to the process (environment, working directory, limits, handlers), and
//! names of files and pins have to be unique among all of them.
//!
//! `loader_descriptors.rs` is a binary of its own: it counts the descriptors of its process.

mod kernel;
mod loader;
mod observed;
mod old_maps;
