//! Objects whose functions are equal may still not be worth the same: the kernel's verifier may refuse the second.
//!
//! Proofs are about what programs do. The verifier asks for more: registers that were written before they are read, no
//! arithmetic on some pointers, no loop that it cannot see the end of, even where nobody comes. It is asked itself.
//!
//! Promise: only a program of the second object that the verifier has looked at and refused is named. What this kernel
//! cannot load for another reason (no such map type, no memory, another program type) says nothing.

use bpf_kernel::{LoadOptions, Verdict, load_object};
use serde::Serialize;

use crate::report::Options;

/// A program that this kernel takes from the first object, and refuses from the second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Its name.
    pub name: String,
    /// The verifier's last words.
    pub reason: String,
}

/// The programs of `b` that this kernel refuses, of those of `a` that it takes; none where it may not be asked.
pub(crate) fn refused(a: &[u8], b: &[u8], options: &Options) -> Vec<Refused> {
    if !options.kernel || !options.run_check || bpf_kernel::permitted().require().is_err() {
        return Vec::new();
    }
    let load = LoadOptions { program_type: options.program_type.clone(), only: None };
    let verdicts = |bytes: &[u8]| load_object(bytes, &load).map(|v| v.programs).unwrap_or_default();
    let first = verdicts(a);
    let taken = |name: &str| first.iter().any(|p| p.name == name && p.verdict.is_accepted());
    let wanted = |name: &str| options.programs.is_empty() || options.programs.iter().any(|p| p == name);
    if !first.iter().any(|p| p.verdict.is_accepted() && wanted(&p.name)) {
        return Vec::new();
    }
    let refused = verdicts(b).into_iter().filter(|p| wanted(&p.name) && taken(&p.name));
    let refused = refused.filter(|p| matches!(p.verdict, Verdict::Rejected { .. }));
    refused.map(|p| Refused { reason: p.verdict.reason().to_owned(), name: p.name }).collect()
}
