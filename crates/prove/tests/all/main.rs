//! The integration tests of `bpf-prove`, in one binary: that is linked once, and its tests run in one process.
//! So none of them may change what belongs to the process (environment, working directory, limits, handlers), and
//! names of files and pins have to be unique among all of them.

mod bisimulation;
mod blast;
mod byte_orders;
mod carried;
mod common;
mod core;
mod effects;
mod maps;
mod paths;
mod session;
mod shape;
mod smt;
mod terms;
mod trust;
mod whole;
mod windows;
