//! The error of the crate: an object cannot be read, or it lacks what the user named.

use thiserror::Error;

/// Why nothing could be done with an object at all.
#[derive(Debug, Error)]
pub enum DriverError {
    /// The ELF object or its BTF.
    #[error(transparent)]
    Object(#[from] bpf_object::ObjectError),
    /// A kernel that was to be asked gives no answer.
    #[error("{kernel}: no answer: {why}")]
    OtherKernel {
        /// Its release.
        kernel: String,
        /// Why.
        why: String,
    },
    /// A kernel that was to be asked takes a program of the true original only.
    #[error("{kernel}: `{program}` is taken of the original, and not as it is specialized: {why}")]
    NotAsSpecialized {
        /// Its release.
        kernel: String,
        /// The program.
        program: String,
        /// Why.
        why: String,
    },
    /// No function has this name.
    #[error("no program named `{name}`; the object has: {known}")]
    NoSuchProgram {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// Another build of the object is for machines of another byte order.
    #[error("{name} is {is}, and the object is {wanted}")]
    OtherOrder {
        /// The build.
        name: String,
        /// Its byte order.
        is: &'static str,
        /// The object's.
        wanted: &'static str,
    },
    /// No pass has this name.
    #[error("no pass named `{name}`; there are: {known}")]
    NoSuchPass {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
}
