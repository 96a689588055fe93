//! What tests are made of: objects from assembly, cases in files, random programs, shrinking.
//!
//! One idea: a test says what it is about and nothing else. This crate turns a few lines of assembly into an object
//! that libbpf loads, so a case needs neither clang nor a host object to borrow from.
//!
//! - [`assembly`]: maps, data, functions and their listings → the bytes of an ELF object with BTF.
//! - [`case`]: the files of `tests/equivalence/`, read and rewritten.
//! - [`c`]: random programs in C, and clang.
//! - [`files`]: files in folders.
//! - [`listing`]: functions from listings, without an object around them.
//! - [`random`]: random numbers that are the same in every run.
//! - [`shapes`]: objects with what is special about those of real projects.
//! - [`windows`]: random states, straight-line code over them, and changes of it that are right or nearly.
//! - [`shrink`]: making what fails smaller.
//!
//! Nothing of the product depends on this crate, and it depends on nothing above `bpf-semantics`.

pub mod c;
pub mod case;
pub mod files;
pub mod listing;
pub mod random;
pub mod shapes;
pub mod windows;

pub use bpf_assembly as assembly;
pub use bpf_shrink::shrink;
