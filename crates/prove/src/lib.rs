//! The trusted prover: hash-consed terms, symbolic execution, SAT, and the verdict.
//!
//! Read in this order: [`term`] (the graph and its canonical forms), [`context`] (what variables and
//! events mean), `symex` (the machine), `region` (control flow of a
//! loop-free function), `lockstep` (functions of any shape), `access` (the rules on shared
//! memory), [`equiv`] (the judge), [`rewrite`] (the only maker of proven rewrites), [`blast`] (SAT).

mod access;
pub mod blast;
mod cache;
pub mod context;
mod entry;
pub mod equiv;
mod guide;
mod lockstep;
pub mod naive;
pub mod path;
mod region;
mod replay;
pub mod rewrite;
pub mod shape;
pub mod smt;
mod standing;
mod symex;
pub mod term;

pub use cache::Cache;
pub use context::{Limits, Stats, Switches};
pub use equiv::{Difference, Options, Verdict, along, functions, same_graph, window};
pub use replay::{Witness, replay};
pub use rewrite::{Known, Proven, Rewrite, prove};
pub use smt::Recorder;
