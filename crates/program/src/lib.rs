#![doc = include_str!("../README.md")]
//!
//! # Design
//!
//! Jump offsets and relocations disappear. A [`Function`] is a graph of basic blocks whose edges are block names, and an
//! instruction that the loader will patch carries a [`Link`]: *what* it refers to (a map, a global, a function, a CO-RE
//! field) and *which* original slot's records travel with it. [`build`] makes the graph, [`lower`] turns it back into slots
//! with final jump offsets.

mod build;
mod cfg;
mod frequency;
mod graph;
mod lower;

pub use bpf_platform::{
    ByteOrder, CtxField, FieldKind, ProgKind, access_matters, ctx_field, depends_on_access, fields_matter, is_cleared,
    may_read_wider, others_may_change, packet_pointer_offset, stores_matter,
};
pub use build::{BuildError, build, build_from_insns};
pub use cfg::{Argument, Block, BlockId, Function, Link, Op, Pointee, Symbol, Terminator};
pub use frequency::{Frequencies, Profile};
pub use graph::{Dominators, drop_unreachable, predecessors, reverse_postorder, successors};
pub use lower::{LowerError, Lowered, lower, slot_count};
