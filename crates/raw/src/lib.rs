//! Arrays of `struct bpf_insn`, without an ELF file around them: what loaders of their own, JIT compilers and test suites
//! hold, and what people paste.
//!
//! One idea: such an array is wrapped into an object, and all else is done with the object. So nothing behind this crate
//! knows of arrays. What an object says beside the code has to be told: the program's type ([`section_of`]), and what the
//! maps are like ([`RawMap`]), whose numbers stand in the instructions.
//!
//! - [`read`]: an array as bytes, C initializers or hexadecimal digits; [`write()`]: the same way back.
//! - [`wrap`]: the object of an array; [`unwrap`]: the array of an object's program.
//! - [`elf`], [`btf`]: what writes objects; tests make theirs with it, too.
//!
//! Nothing here is trusted: what is wrapped wrongly is another program, and what comes of that is proven equal to it.

pub mod btf;
pub mod elf;
mod error;
mod expression;
mod foreign;
mod macros;
mod maps;
mod sections;
mod text;
mod unwrap;
mod wrap;

pub use error::RawError;
pub use maps::{RawMap, maps};
pub use sections::section_of;
pub use text::{Array, Form, read, write};
pub use unwrap::{Program, unwrap};
pub use wrap::{PROGRAM, Wrapped, map_numbers, wrap};
