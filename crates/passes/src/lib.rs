//! Rewriting by dataflow: passes propose, the prover disposes.
//!
//! A pass looks at one block with its facts and liveness ([`View`]) and proposes [`Rewrite`]s, which
//! may be hopeful: each is proven before it is applied ([`engine`]). A pass is a file under `local`
//! with its before and after in the header. What changes the graph itself is in [`mod@cfg`].
//!
//! [`Rewrite`]: bpf_prove::Rewrite

pub mod cfg;
pub mod engine;
mod layout;
mod local;
mod quiet;
mod settings;
mod straight;
mod tails;
mod threads;
mod view;

pub use cfg::NAME as SHAPE;
pub use engine::{Engine, Tally, optimize, paths_of, shape_mark};
pub use local::{Pass, all as all_passes};
pub use quiet::Quiet;
pub use settings::{Proposal, Recorder, Settings};
pub use straight::jumps;
pub use view::{Cost, View};

/// The names of all passes, in the order they run.
pub fn names() -> Vec<&'static str> {
    all_passes().iter().map(|p| p.name()).chain([cfg::NAME, threads::NAME]).collect()
}
