//! The integration tests of `bpf-object`, in one binary: that is linked once, and its tests run in one process.
//! So none of them may change what belongs to the process (environment, working directory, limits, handlers), and
//! names of files and pins have to be unique among all of them.

mod common;
mod data;
mod hostile;
mod managed;
mod rewrite;
mod unchanged;
mod written;
