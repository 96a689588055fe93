//! `bpf-capture` held against libpcap, and this crate's interpreter, listings and data against the library.

mod captures;
mod figures;
mod programs;
