//! From a formula's assignment to words, by running both programs on it.

use bpf_program::Function;
use bpf_prove::Difference;

use crate::report::FunctionVerdict;

/// Runs both sides on the input the formula found. Only a difference that shows there is one.
pub(crate) fn explain(_d: &Difference, _old: &Function, _new: &Function) -> FunctionVerdict {
    FunctionVerdict::Unknown { reason: "the formula has a candidate difference".into() }
}
