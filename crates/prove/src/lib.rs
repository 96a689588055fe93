//! The trusted prover: hash-consed terms, symbolic execution, SAT, and the verdict.
//!
//! Read in this order: [`term`] (the graph and its canonical forms), [`context`] (what variables and
//! events mean), `symex` (the machine), `region` (control flow of a
//! loop-free function), `lockstep` (functions of any shape), `discipline` (the rules on shared
//! memory), [`equiv`] (the judge and the only maker of proven rewrites), [`blast`] (SAT).

pub mod blast;
pub mod context;
mod discipline;
mod entry;
pub mod equiv;
mod lockstep;
mod region;
mod replay;
mod symex;
pub mod term;

pub use context::{Limits, Stats};
pub use equiv::{Difference, Known, Options, Proven, Rewrite, Verdict, functions, prove, same_graph, window};
pub use replay::{Witness, replay};
