//! libpcap, asked by tests: what it compiles an expression to, what it makes of a packet, what it reads from a capture.
//!
//! The one idea: the library itself is the oracle, loaded at run time, so that nothing is linked to it and tests can be
//! skipped where it is missing. Beside it stand the data of `../shared/filter` as typed records, and an interpreter of
//! classic BPF of our own, which counts what it executes.
//!
//! | module | holds |
//! |---|---|
//! | [`library`] | [`Libpcap`]: compile, run, open captures; [`Prepared`] programs |
//! | `sys` | the library's functions and structures: all unsafe code of this crate |
//! | [`program`] | [`Program`], [`Instruction`] |
//! | [`interpreter`] | [`interpreter::run`], with a count of instructions |
//! | [`listing`] | what `tcpdump -d` prints, as a program |
//! | [`expressions`] | random filters, and packets that fit them |
//! | [`data`] | expressions, verdicts and captures of `../shared/filter` |

pub mod data;
pub mod expressions;
pub mod interpreter;
pub mod library;
pub mod listing;
pub mod program;
mod sys;

pub use library::{Libpcap, Prepared, Received, Savefile};
pub use program::{Instruction, Program};
