//! The pipeline: object → graph → facts → proposals → proof → layout → gate → object.
//!
//! It owns no cleverness of its own; it knows the order of things, the time that is left, and what to
//! do when the kernel says no.

mod acceptance;
pub mod agreement;
mod arguments;
mod blame;
mod builds;
mod candidate;
pub mod counting;
pub mod counts;
mod decided;
pub mod difftest;
mod error;
mod estimate;
mod explain;
mod gate;
mod global;
pub mod inputs;
pub mod instrument;
pub mod interpret;
mod lengths;
mod lighter;
mod measures;
mod module;
mod opinion;
mod optimize;
mod options;
mod other_kernel;
mod part;
pub mod parts;
mod plan;
mod pool;
mod prepare;
mod private_stack;
pub mod profile;
mod queries;
mod reduce;
mod rename;
mod replay;
mod report;
mod results;
mod runcheck;
mod runs_first;
mod sensitive;
mod shared;
mod synthesis;
pub mod timing;
mod twins;
mod variants;
mod verify;
mod weight;
mod window_selection;
mod written;

use std::sync::Arc;

pub use bpf_isa::{Costs, CostsError, Goal};
pub use error::DriverError;
pub use estimate::Estimate;
pub use explain::{Change, ChangeProof, ProvenBy};
pub use gate::{Unfit, UnfitBecause, Yardstick};
pub use measures::{Reached, Shape};
pub use options::{Options, PassSelection};
pub use other_kernel::OtherKernel;
pub use queries::QueryFolder;
pub use report::{
    Ended, FunctionReport, FunctionVerdict, HexInput, KernelVerdict, MadeAcceptable, MapContents, NotRun, Observer,
    OtherProgram, OtherVerdicts, PartsReport, ProgramRuns, Refused, Refutation, Report, RunCheck, RunDifference,
    RunsFirst, SearchReport, Silent, TakenBack, VerifyReport,
};

pub use module::Module;
pub use part::{Named, Part, Parts, Piece};
pub use pool::on_deep_stack;
pub use reduce::{Reduced, reduce};
pub use shared::Shared;
pub use variants::{Measured, Variant, variants};

/// Optimizes `input`; the result's bytes and what was done.
///
/// # Errors
/// [`DriverError`]. A function that cannot be handled is not an error: it stays as it was, with a
/// warning in the report.
pub fn optimize(input: &[u8], options: &Options, observer: &dyn Observer) -> Result<(Vec<u8>, Report), DriverError> {
    let options = Options { forms: 1, ..options.clone() };
    Ok(optimize::forms(input, &options, None, observer)?.swap_remove(0))
}

/// The same for one of many objects: functions that are the same in several are worked on once. `shared` is for runs with the
/// same options.
///
/// # Errors
/// As of [`optimize`].
pub fn optimize_one_of_many(
    input: &[u8],
    options: &Options,
    shared: &Arc<Shared>,
    observer: &dyn Observer,
) -> Result<(Vec<u8>, Report), DriverError> {
    let options = Options { forms: 1, ..options.clone() };
    Ok(optimize::forms(input, &options, Some(shared), observer)?.swap_remove(0))
}

/// Compares two objects: their functions by proof, all else by what it means to loaders.
///
/// # Errors
/// [`DriverError`] if one cannot be read.
pub fn verify(a: &[u8], b: &[u8], options: &Options) -> Result<VerifyReport, DriverError> {
    verify::run(a, b, options)
}
