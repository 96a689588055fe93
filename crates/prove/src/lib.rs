#![doc = include_str!("../README.md")]
//!
//! # Reading the source
//!
//! In this order: [`term`] (the graph and its canonical forms), [`variables`] and `history` (what a proof speaks
//! about), [`context`] (what both sides share), `symex` (the symbolic machine), `region` (an acyclic function), `refinement`
//! (the rules on shared memory), `judge`, `window` and `stretch` (what is compared), `lockstep` (functions of any shape),
//! `functions`, [`rewrite`] (what a change asks of it), [`points`] (from which facts), [`session`] (the only maker of proven
//! rewrites), [`shape`] (proof of changes that only cut and order blocks anew), [`blast`] (SAT).

mod access;
mod attempt;
mod beliefs;
pub mod blast;
mod cache;
mod computation;
pub mod context;
mod entry;
mod functions;
mod guide;
mod history;
mod judge;
mod lockstep;
pub mod naive;
mod options;
pub mod path;
pub mod points;
mod presence;
mod refinement;
mod region;
mod relation;
mod replay;
pub mod rewrite;
mod same;
mod sample;
pub mod session;
pub mod shape;
pub mod smt;
mod sources;
mod standing;
mod state;
mod straight;
mod stretch;
mod symex;
pub mod term;
mod turns;
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
