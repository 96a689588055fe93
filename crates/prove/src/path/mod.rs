//! The conditions of the path that a run took, and inputs that take another one.
//!
//! A run in the interpreter has left its trail ([`bpf_semantics::interp::Step`]). [`Path::along`] executes the same
//! instructions over terms, by the symbolic machine of the proofs, and notes the condition of each branch; what it cannot follow
//! it takes to be what the run found there. [`Path::other_way`] asks the solver for an input that goes with the run as far as
//! one of these branches, and then the other way.
//!
//! Nothing here is trusted: an input counts only where a run has shown where it leads. So what helpers do to memory is modelled
//! as far as that pays, and the rest is left out. No verdict of the prover comes from here.
//!
//! The parts: `place` (what an input is made of), `given` (what the run was given), `helpers` (what helpers make of it),
//! `observe` (terms as the run had them), `fold` (terms with what the run had put in), `leaves` (what a condition hangs on), `walk` (along the trail), `ask` (the question).

mod ask;
mod fold;
mod given;
mod helpers;
mod leaves;
mod observe;
mod place;
mod walk;

pub use ask::{Answered, Assignment, Freedom, Looked, OtherWay};
pub use given::Given;
pub use walk::{Branch, Path};
