//! Who answers for a kernel that is not the running one.

use std::fmt;

use bpf_kernel::ObjectVerdict;

/// A kernel that is not the running one.
pub trait OtherKernel: fmt::Debug + Send + Sync {
    /// Its release.
    fn name(&self) -> &str;

    /// Its verdict on each program of an object, loaded as this type where one is given.
    ///
    /// # Errors
    /// If it does not answer.
    fn judge(&self, object: &[u8], program_type: Option<&str>) -> Result<ObjectVerdict, String>;
}
