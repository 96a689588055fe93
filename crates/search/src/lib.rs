//! Synthesis: finds code no rule writer thought of, for stretches of one block.
//!
//! Nothing here is trusted. A searcher gets a [`Window`] and a [`Judge`]; what it returns has been
//! called equal by the judge, which is the prover in disguise. Tests, costs, caches and chains only
//! decide where to look and in which order.

pub mod window;

pub use window::{Answer, Cost, Found, Judge, Latency, Window};
