//! The integration tests of `bpf-driver`, in one binary: that is linked once, and its tests run in one process.
//! So none of them may change what belongs to the process (environment, working directory, limits, handlers), and
//! names of files and pins have to be unique among all of them.
//!
//! `equivalence.rs` is a binary of its own, since scripts run it by name; so is `limits.rs`, which measures times.

mod acceptance;
mod big_endian;
mod builds;
mod common;
mod counts;
#[path = "../../../object/tests/all/common/edit.rs"]
mod edit;
mod gate;
mod inputs;
mod judged_runs;
mod kernel_difference;
mod loader_choices;
mod managed_fields;
mod objects;
mod passes_page;
mod paths;
mod presence;
mod ssa;
mod timing;
mod unlinked;
