//! What can go wrong.

use thiserror::Error;

/// Why there is no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The object cannot be read.
    #[error(transparent)]
    Object(#[from] bpf_object::ObjectError),
    /// The pipeline: an object that cannot be read, a program that is not there.
    #[error(transparent)]
    Pipeline(#[from] bpf_driver::DriverError),
    /// What is declared does not fit the object.
    #[error(transparent)]
    Specialize(#[from] bpf_specialize::SpecializeError),
    /// A filter with a mistake, which is shown in its text.
    #[error("{0}")]
    Filter(String),
    /// No program type is called so.
    #[error("{0}")]
    ProgramType(String),
    /// A fault of this library.
    #[error("internal error")]
    Internal,
}
