//! Synthesis: finds code no rule writer thought of, for stretches of one block or of a few.
//!
//! Nothing here is trusted. A searcher gets a [`Window`] and a [`Judge`]; what it returns has been
//! called equal by the judge, which is the prover in disguise. Tests, costs, caches and chains only
//! decide where to look and in which order.

pub mod batch;
pub mod canonical;
pub mod chain;
pub mod cost;
pub mod counterexample;
pub mod enumerate;
pub mod general;
pub mod inputs;
pub mod lanes;
pub mod pointer_rules;
pub mod pool;
pub mod portfolio;
pub mod propose;
pub mod rng;
pub mod rules;
pub mod settings;
pub mod shipped;
pub mod store;
pub mod superblock;
pub mod test_memory;
pub mod window;

pub use chain::{Budget, Chain, Progress};
pub use portfolio::{Payoff, Portfolio};
pub use settings::{SETTINGS, Setting};
pub use window::{Answer, Cost, Found, Judge, Window};
