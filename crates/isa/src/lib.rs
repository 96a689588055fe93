#![doc = include_str!("../README.md")]
//!
//! # Design
//!
//! One idea carries the crate: an instruction is a *value* ([`Insn`]) with typed operands, never a bag of bit fields.
//! Decoding is total (what is not understood becomes [`Insn::Opaque`]), encoding is its exact inverse, and the text syntax
//! is LLVM's. `ld_imm64` is ONE instruction that occupies two slots. Code that must see the bit fields anyway, as readers of
//! other formats do, finds them in [`slot`].

mod costs;
mod decode;
mod encode;
mod goal;
mod insn;
pub mod slot;
mod text;

pub use costs::{Class, Cost, Costs, CostsError, Origin};
pub use decode::{DecodeError, decode, decode_all};
pub use encode::{EncodeError, encode, encode_all};
pub use goal::Goal;
pub use insn::*;
pub use text::{ParseError, parse, parse_listing};
