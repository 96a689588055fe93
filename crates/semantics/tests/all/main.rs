//! The integration tests of `bpf-semantics`, in one binary: that is linked once, and its tests run in one process.
//! So none of them may change what belongs to the process (environment, working directory, limits, handlers), and
//! names of files and pins have to be unique among all of them.

mod byte_orders;
mod interp;
mod kernel_agreement;
mod kernel_checksums;
mod kernel_helpers;
