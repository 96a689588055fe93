//! eBPF object files in and out: ELF, BTF and BTF.ext.
//!
//! The one idea: everything that names an instruction (relocations, CO-RE records, function and
//! line records, symbols, calls, function pointers in data) is resolved when a file is read and
//! encoded again when it is written, so that functions can get new bodies and all of it follows
//! the instruction it belongs to. What instructions *mean* is not known here, beyond a slot being
//! 8 bytes, `ld_imm64` taking two, and which immediates point to code.
//!
//! Promises: an object without changes is written byte for byte as it was read; no input, however
//! corrupt, makes the crate panic; what is not fully understood is left as it is and said so
//! ([`Object::locked`], [`Object::warnings`]).
//!
//! ```
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/xdp_count.o");
//! use bpf_object::{NewInsn, Object, WriteOptions};
//!
//! let mut object = Object::parse(std::fs::read(path)?)?;
//! let id = object.function_named("xdp_count").expect("the program is there");
//! // Put `goto +0` in front of the program; everything else carries on from where it was.
//! let mut body = object.identity_body(id)?;
//! body.insert(0, NewInsn { bytes: vec![5, 0, 0, 0, 0, 0, 0, 0], origin: None, refs_from: None });
//! object.set_body(id, body)?;
//! let written = object.write(&WriteOptions::default())?;
//! let again = Object::parse(written.bytes)?;
//! assert_eq!(again.functions()[id.0].slots, object.functions()[id.0].slots + 1);
//! assert_eq!(again.refs(id)[0].slot, object.refs(id)[0].slot + 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod btf;
mod btf_ext;
pub mod compare;
mod core_relo;
mod datasec;
mod elf;
mod error;
mod functions;
mod managed;
mod maps;
mod object;
mod programs;
mod rewrite;
mod symbols;

pub use btf::{FuncProto, Param, ValueType};
pub use error::ObjectError;
pub use functions::{CoreReloc, FuncId, FuncKind, Function, Ref, RefKind};
pub use maps::MapDef;
pub use object::{NewInsn, Object, WriteOptions, Written};
