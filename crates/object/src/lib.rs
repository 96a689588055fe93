#![doc = include_str!("../README.md")]
//!
//! # Design
//!
//! Everything that names an instruction is resolved when a file is read and encoded again when it is written. So a
//! function can get a new body ([`Object::set_body`]), and each record travels with its instruction
//! ([`NewInsn::origin`], [`NewInsn::refs_from`]).

mod append;
mod btf;
mod btf_ext;
mod byte_order;
pub mod compare;
mod core_relo;
mod data;
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

pub use append::{Addition, NewReference, NewSection, SectionUse};
pub use bpf_platform::ByteOrder;
pub use btf::{FuncProto, Param, ValueType};
pub use data::{DataSection, KconfigKind, KconfigVariable, Variable};
pub use error::ObjectError;
pub use functions::{CoreReloc, FuncId, FuncKind, Function, Ref, RefKind};
pub use maps::MapDef;
pub use object::{NewInsn, Object, SourceLine, WriteOptions, Written};
