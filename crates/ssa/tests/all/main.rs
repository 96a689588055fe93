//! The tests of `bpf-ssa`, in one binary: that is linked once.

mod common;
mod passes;
mod stores_and_ways;
