//! The trusted prover: hash-consed terms, symbolic execution, SAT, and the verdict.
//!
//! Read in this order: [`term`] (the graph and its canonical forms), [`variables`] and `history` (what a proof speaks
//! about), [`context`] (what both sides share), `symex` (the symbolic machine), `acyclic` (an acyclic function), `refinement`
//! (the rules on shared memory), `judge`, `window` and `stretch` (what is compared), `bisimulation` (functions of any shape),
//! `functions`, [`rewrite`] (what a change asks of it), [`points`] (from which facts), [`session`] (the only maker of proven
//! rewrites), [`shape`] (proof of changes that only cut and order blocks anew), [`blast`] (SAT).

mod access;
mod acyclic;
mod attempt;
mod available;
mod beliefs;
mod bisimulation;
pub mod blast;
mod cache;
pub mod context;
mod entry;
mod exits;
mod expression;
mod functions;
mod history;
mod judge;
mod options;
pub mod points;
mod presence;
pub mod reference;
mod refinement;
mod relation;
mod replay;
pub mod rewrite;
mod same;
mod sample;
pub mod session;
pub mod shape;
pub mod smt;
mod sources;
mod state;
mod straight;
mod stretch;
pub mod superblock;
mod sweep;
mod symex;
pub mod term;
pub mod variables;
mod verdict;
mod whole;
mod window;

pub use beliefs::{Beliefs, MayBe};
pub use cache::Cache;
pub use functions::{functions, functions_that_run};
pub use options::{Limits, Options, Stats, Switches};
pub use points::Points;
pub use presence::{Sensitive, VISITS, is_taken, presence_differs, unreachable_operations};
pub use replay::{Witness, replay};
pub use rewrite::{Known, Rewrite, ask};
pub use same::same_graph;
pub use session::{Derivation, Proven, Session, Stale, Step};
pub use shape::ShapeDifference;
pub use smt::Recorder;
pub use sources::{Provenance, Sources, provenance};
pub use verdict::{Difference, Verdict};
pub use whole::fits_one_formula;
pub use window::{along, window};
