//! The BPF instruction set: every instruction of RFC 9669 and of Linux up to cpu v4.
//!
//! One idea carries the crate: an instruction is a *value* ([`Insn`]) with typed operands, never a
//! bag of bit fields. Decoding is total (what is not understood becomes [`Insn::Opaque`]), encoding
//! is its exact inverse, and the text syntax is LLVM's, so listings compare with `llvm-objdump -d`.
//! `ld_imm64` is ONE instruction that occupies two slots.
//!
//! The crate knows nothing of ELF, relocations or solvers.

mod decode;
mod encode;
mod insn;
mod latency;
mod slot;
mod text;

pub use decode::{DecodeError, decode, decode_all};
pub use encode::{EncodeError, encode, encode_all};
pub use insn::*;
pub use text::{ParseError, parse, parse_listing};
