#![doc = include_str!("../README.md")]
//!
//! # Where to start
//!
//! Run [`Facts::of`], ask for the [`State`] at a point or on an edge; then [`Liveness::of`] for the
//! backward half; or [`Analysis::of`] for both. Everything here is *sound*: it holds in every execution the kernel admits. The prover
//! assumes these facts, so they are computed by the one definition of the instructions,
//! [`bpf_semantics::exec`], run over abstract values.
//!
//! | module | holds |
//! |---|---|
//! | `num` | numbers: known bits and ranges |
//! | `value` | numbers, pointers with region, base and offset |
//! | `frame` | the stack frame's contents; sets of its bytes |
//! | `state` | registers and frame at one point; joins |
//! | `machine` | executing an operation |
//! | `calls` | what a call reads and writes of the frame |
//! | `refine` | what a conditional jump teaches |
//! | `fixpoint` | all points of a function |
//! | `liveness` | registers and stack bytes that may still be read |
//! | `analysis` | both halves of one function, together |
//! | `env` | maps and callees around the function |
//!
//! Contents of `.rodata` and of kconfig variables are never constants here: a loader may set them.

mod analysis;
mod calls;
mod depth;
mod env;
mod fixpoint;
mod frame;
mod liveness;
mod machine;
mod num;
mod refine;
mod retain;
mod state;
mod value;

#[cfg(test)]
mod tests;

pub use analysis::Analysis;
pub use calls::{has_no_effect, map_and_key};
pub use depth::deepest_frame_use;
pub use env::{Env, ExternInfo, MapInfo, SectionInfo};
pub use fixpoint::{Facts, registers_read};
pub use frame::{FRAME, StackSet};
pub use liveness::{Effect, Live, Liveness};
pub use num::{Num, NumDomain, Tnum};
pub use refine::refine;
pub use state::{State, address_of};
pub use value::{BaseId, Kind, Region, Value};
