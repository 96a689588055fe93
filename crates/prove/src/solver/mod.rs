//! Deciding formulas: clauses over CaDiCaL, guesses by samples and their repair, SAT sweeping, and queries as SMT-LIB.

pub(crate) mod assignments;
pub mod blast;
mod model;
mod repair;
pub(crate) mod sample;
pub mod smt;
pub(crate) mod sweep;
