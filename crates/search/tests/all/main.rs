//! The integration tests of `bpf-search`, in one binary: that is linked once, and its tests run in one process.
//! So none of them may change what belongs to the process (environment, working directory, limits, handlers), and
//! names of files and pins have to be unique among all of them.
//!
//! `rules.rs` is a binary of its own: it changes the panic hook, and starts and kills itself.

mod chain;
mod enumerate;
mod kinds;
mod rules_general;
mod rules_stand_alone;
mod superblocks;
