//! The trusted prover: hash-consed terms, symbolic execution, SAT, and the verdict.
//!
//! Read in this order: [`term`] (the graph and its canonical forms), [`context`] (what variables and
//! events mean), `symex` (the machine), `region` (control flow of a
//! loop-free function), `lockstep` (functions of any shape), `access` (the rules on shared
//! memory), [`equiv`] (the judge), [`rewrite`] (what a change asks of it), [`points`] (from which facts), [`session`]
//! (the only maker of proven rewrites), [`shape`] (proof of changes that only cut and order blocks anew), [`blast`] (SAT).

mod access;
mod beliefs;
pub mod blast;
mod cache;
pub mod context;
mod entry;
pub mod equiv;
mod guide;
mod lockstep;
pub mod naive;
pub mod path;
pub mod points;
mod presence;
mod region;
mod replay;
pub mod rewrite;
mod same;
pub mod session;
pub mod shape;
pub mod smt;
mod sources;
mod standing;
mod symex;
pub mod term;

pub use beliefs::{Beliefs, MayBe};
pub use cache::Cache;
pub use context::{Limits, Stats, Switches};
pub use equiv::{Difference, Options, Verdict, along, fits_one_formula, functions, functions_that_run, window};
pub use points::Points;
pub use presence::{Sensitive, VISITS, is_taken, presence_differs, unreachable_operations};
pub use replay::{Witness, replay};
pub use rewrite::{Known, Rewrite, ask};
pub use same::same_graph;
pub use session::{Derivation, Proven, Session, Stale, Step};
pub use shape::ShapeDifference;
pub use smt::Recorder;
pub use sources::{Provenance, Sources, provenance};
