//! Deciding formulas: clauses over CaDiCaL, guesses by samples, SAT sweeping, and queries as SMT-LIB.

pub mod blast;
mod model;
pub(crate) mod sample;
pub mod smt;
pub(crate) mod sweep;
