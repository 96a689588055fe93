//! The tests of `bpf-figures`, in one binary.

mod document;
mod packets;
