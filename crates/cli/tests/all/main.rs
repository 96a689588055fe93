//! The integration tests of `bpf-opt`, in one binary: that is linked once, and its tests run in one process.
//! So none of them may change what belongs to the process (environment, working directory, limits, handlers), and
//! names of files and pins have to be unique among all of them.
//!
//! `kill.rs` and `shapes.rs` are binaries of their own, since they measure times; so is `mutations.rs`, which uses all
//! processors and is run by name (`make soak`).

mod bench;
mod calls;
mod ci;
mod cli;
mod clients;
mod common;
mod counts;
mod difftest;
mod filter;
mod filter_options;
mod filter_profile;
mod inputs;
mod install;
mod kernels;
mod many;
mod page;
mod parts;
mod profile;
mod queries;
mod raw;
mod recipes;
mod reduce;
mod refused;
mod releases;
mod rules;
mod runs;
mod search;
mod specialize;
mod words;
