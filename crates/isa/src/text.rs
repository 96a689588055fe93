//! Instructions as text, in LLVM's syntax.
//!
//! One idea: printing follows `llvm-objdump -d` (version 19, default cpu) character for character, so
//! that our listings and LLVM's can be compared with `diff`. Parsing reads that syntax back, plus
//! what people write by hand: decimal numbers, `wN` for the narrow side of a memory access, labels
//! and comments. Spellings stand in the tables below, read by both directions.
//!
//! LLVM's text does not hold everything: all three kinds of `call` print alike, a pseudo `ld_imm64`
//! prints its lower half only, and an opaque slot prints `<unknown>`. For the first two the parser
//! accepts unambiguous forms (see [`parse`]).

mod listing;
mod parse;
mod print;

pub use listing::parse_listing;
pub use parse::{ParseError, parse};

use crate::{AluOp, AtomicOp, Cond, Endian, Imm64Kind, Size};

const ALU_TEXT: [(AluOp, &str); 13] = [
    (AluOp::Add, "+="),
    (AluOp::Sub, "-="),
    (AluOp::Mul, "*="),
    (AluOp::Div, "/="),
    (AluOp::SDiv, "s/="),
    (AluOp::Mod, "%="),
    (AluOp::SMod, "s%="),
    (AluOp::Or, "|="),
    (AluOp::And, "&="),
    (AluOp::Xor, "^="),
    (AluOp::Lsh, "<<="),
    (AluOp::Rsh, ">>="),
    (AluOp::Arsh, "s>>="),
];

const COND_TEXT: [(Cond, &str); 11] = [
    (Cond::Eq, "=="),
    (Cond::Ne, "!="),
    (Cond::Gt, ">"),
    (Cond::Ge, ">="),
    (Cond::Lt, "<"),
    (Cond::Le, "<="),
    (Cond::Sgt, "s>"),
    (Cond::Sge, "s>="),
    (Cond::Slt, "s<"),
    (Cond::Sle, "s<="),
    (Cond::Set, "&"),
];

const ENDIAN_TEXT: [(Endian, &str); 3] = [(Endian::Le, "le"), (Endian::Be, "be"), (Endian::Swap, "bswap")];

/// Atomics without result, written `lock *(…)(…) op= src`.
const LOCK_TEXT: [(AtomicOp, &str); 4] = [
    (AtomicOp::Add { fetch: false }, "+="),
    (AtomicOp::Or { fetch: false }, "|="),
    (AtomicOp::And { fetch: false }, "&="),
    (AtomicOp::Xor { fetch: false }, "^="),
];

/// Atomics with the old value as result, written `src = name((…)(…), src)`.
const FETCH_TEXT: [(AtomicOp, &str); 4] = [
    (AtomicOp::Add { fetch: true }, "atomic_fetch_add"),
    (AtomicOp::Or { fetch: true }, "atomic_fetch_or"),
    (AtomicOp::And { fetch: true }, "atomic_fetch_and"),
    (AtomicOp::Xor { fetch: true }, "atomic_fetch_xor"),
];

/// Exchanges, whose size is in the name.
const XCHG_TEXT: [((AtomicOp, Size), &str); 4] = [
    ((AtomicOp::Xchg, Size::W), "xchg32_32"),
    ((AtomicOp::Xchg, Size::DW), "xchg_64"),
    ((AtomicOp::CmpXchg, Size::W), "cmpxchg32_32"),
    ((AtomicOp::CmpXchg, Size::DW), "cmpxchg_64"),
];

/// Our own spelling of the kinds of `ld_imm64` that LLVM prints incompletely: `r1 = map_fd[N] ll`.
const IMM64_TEXT: [(Imm64Kind, &str); 6] = [
    (Imm64Kind::MapFd, "map_fd"),
    (Imm64Kind::MapValue, "map_value"),
    (Imm64Kind::BtfId, "btf_id"),
    (Imm64Kind::Func, "func"),
    (Imm64Kind::MapIdx, "map_idx"),
    (Imm64Kind::MapIdxValue, "map_idx_value"),
];
