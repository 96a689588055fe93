//! What tests are made of: objects from assembly, cases in files, random programs, shrinking.
//!
//! One idea: a test says what it is about and nothing else. This crate turns a few lines of assembly into an object
//! that libbpf loads, so a case needs neither clang nor a host object to borrow from.
//!
//! - [`assembly`]: maps, data, functions and their listings → the bytes of an ELF object with BTF.
//! - [`case`]: the files of `tests/equivalence/`, read and rewritten.
//!
//! Nothing of the product depends on this crate, and it depends on nothing above `bpf-semantics`.

pub mod assembly;
mod btf;
pub mod case;
mod elf;
