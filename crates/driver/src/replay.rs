//! From a formula's assignment to words, by running both programs on it.

use bpf_facts::Env;
use bpf_program::Function;
use bpf_prove::Difference;

use crate::report::FunctionVerdict;

/// Runs both sides on the input the formula found. Only a difference that shows there is one; the
/// formula treats some things (loop-free arithmetic on addresses, equal answers to equal questions)
/// more coarsely than the machine.
pub(crate) fn explain(mut d: Box<Difference>, old: &Function, new: &Function, env: &Env) -> FunctionVerdict {
    match bpf_prove::replay(&mut d, old, new, env) {
        Some(w) => FunctionVerdict::Different { explanation: w.lines() },
        None => {
            FunctionVerdict::Unknown { reason: "the formula has a difference that does not show when it is run".into() }
        }
    }
}
