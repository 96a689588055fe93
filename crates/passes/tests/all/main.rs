//! The integration tests of `bpf-passes`, in one binary: that is linked once, and its tests run in one process.
//! So none of them may change what belongs to the process (environment, working directory, limits, handlers), and
//! names of files and pins have to be unique among all of them.

mod layout;
mod local;
mod quiet;
mod untrusted;
