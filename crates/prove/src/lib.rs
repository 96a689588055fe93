#![doc = include_str!("../README.md")]
//!
//! # Reading the source
//!
//! In this order:
//! - [`term`]: the graph of terms and its canonical forms;
//! - `symbolic`: execution of one side: [`variables`] and `history` (what a proof speaks about), [`context`] (what both sides
//!   share), `symex` (the symbolic machine), `acyclic` (a graph without loops);
//! - `solver`: [`blast`] (SAT), samples, SAT sweeping, [`smt`] (queries as text);
//! - `compare`: `refinement` (the rules on shared memory), `judge`, `window` and `stretch` (what is compared);
//! - `unread`: calls whose results nobody reads, taken out of both sides before they are compared;
//! - `function`: `bisimulation` (functions of any shape), `whole` (one formula), `functions` (both in turn);
//! - [`rewrite`] (what a change asks of it), [`points`] (from which facts), [`session`] (the only maker of proven rewrites),
//!   [`shape`] (proof of changes that only cut and order blocks anew);
//! - `replay` (refutations, shown by a run), [`reference`](mod@reference) (the second encoding).

mod arena;
mod beliefs;
mod cache;
mod compare;
mod function;
mod lengths;
mod options;
pub mod path;
pub mod points;
mod presence;
pub mod reference;
mod replay;
pub mod rewrite;
pub mod session;
pub mod shape;
mod solver;
mod sources;
pub mod superblock;
mod symbolic;
pub mod term;
mod unread;

pub use beliefs::{Beliefs, MayBe};
pub use cache::Cache;
pub use compare::verdict::{Difference, Verdict};
pub use compare::window::{along, window};
pub use function::functions::{functions, functions_that_run};
pub use function::same::same_graph;
pub use function::whole::fits_one_formula;
pub use lengths::{HangsOnLengths, hangs_on_lengths};
pub use options::{Budget, Limits, Options, Stats, Switches};
pub use points::Points;
pub use presence::{Sensitive, VISITS, is_taken, presence_differs, spills_around_a_fast_call, unreachable_operations};
pub use replay::{Witness, replay};
pub use rewrite::{Known, Rewrite, ask};
pub use session::{Derivation, Proof, Proven, Session, Stale, Step};
pub use shape::ShapeDifference;
pub use solver::blast;
pub use solver::smt;
pub use solver::smt::Recorder;
pub use sources::{Provenance, Sources, provenance};
pub use symbolic::context;
pub use symbolic::variables;
