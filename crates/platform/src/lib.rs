#![doc = include_str!("../README.md")]
//!
//! # Design
//!
//! One idea: a fact about the kernel (what helper 26 does with its third argument, which bytes of `__sk_buff` are a
//! packet pointer, which maps give a value's address) is a row of a table here, with the kernel file and function it
//! was taken from, and stands nowhere else. The rest of the project asks by meaning, never by number.
//!
//! What has no row is unknown, and clients must assume that it touches everything it could reach.

pub mod beliefs;
mod byte_order;
pub mod context;
pub mod effects;
pub mod fields;
pub mod helpers;
mod kfuncs;
pub mod maps;
pub mod permissions;
mod prototype;
pub mod since;
pub mod translation;
pub mod verifier;
mod version;

pub use beliefs::{
    first_key_of_longer, hands_back_its_buffer, inner_maps_may_be_shorter, is_result_misjudged,
    reads_wider_than_believed,
};
pub use byte_order::ByteOrder;
pub use context::{
    CtxField, FieldKind, NO_QUEUE_MAPPING, ProgKind, access_matters, ctx_field, depends_on_access, fields_matter,
    impossible_numbers, is_cleared, may_be_given_values, may_read_wider, others_may_change, packet_pointer_offset,
    possible_bits, store_is_compared, stores_matter,
};
pub use effects::{Effects, ResultRange};
pub use fields::{ManagedField, ManagedFields};
pub use kfuncs::{is_kfunc_harmless_in_test_run, is_kfunc_translated_by_type, makes_any_address, throws};
pub use version::KernelVersion;
