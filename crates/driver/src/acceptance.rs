//! Objects whose functions are equal may still not be worth the same: the kernel's verifier may refuse the second.
//!
//! Proofs are about what programs do. The verifier asks for more: registers that were written before they are read, no
//! arithmetic on some pointers, no loop that it cannot see the end of, even where nobody comes. It is asked itself.
//!
//! Promise: only a program of the second object that the verifier has looked at and refused is named. What this kernel
//! cannot load for another reason (no such map type, no memory, another program type), or not in time, says nothing.

use std::time::Instant;

use bpf_kernel::{LoadOptions, Loader, ProgramVerdict, Verdict};
use bpf_object::FuncId;
use bpf_prove::{Limits, Options as ProofOptions};
use serde::Serialize;

use crate::decided::{self, Jumps};
use crate::rename::Names;
use crate::report::Options;

/// A program that this kernel takes from the first object, and refuses from the second; or takes for something else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Its name.
    pub name: String,
    /// The verifier's last words.
    pub reason: String,
}

/// The programs of `b` that this kernel refuses, of those of `a` that it takes, and those of which it is not proven that
/// it leaves the same of both, by name; none where it may not be asked.
pub(crate) fn refused(a: &[u8], b: &[u8], names: &Names, options: &Options) -> (Vec<Refused>, Vec<String>) {
    if !options.kernel || !options.run_check || bpf_kernel::permitted().require().is_err() {
        return Default::default();
    }
    let load = LoadOptions { program_type: options.program_type.clone(), only: None };
    let Ok(mut loader) = Loader::new(load) else { return Default::default() };
    let deadline = Instant::now().checked_add(options.time_limit);
    let chosen = |name: &str| options.programs.is_empty() || options.programs.iter().any(|p| p == name);
    let mut verdicts = |bytes: &[u8], wanted: &dyn Fn(&str) -> bool| {
        let verdict = loader.judge(bytes, |name, _| wanted(name), deadline);
        verdict.map(|v| v.programs).unwrap_or_default()
    };
    let mut first = verdicts(a, &chosen);
    first.retain(|p| p.verdict.is_accepted());
    if first.is_empty() {
        return Default::default();
    }
    let second = verdicts(b, &|name| first.iter().any(|p| p.name == name));
    let pairs =
        first.iter().filter_map(|p| Some((p, second.iter().find(|q| q.name == p.name && q.section == p.section)?)));
    let reason = |p: &ProgramVerdict, q: &ProgramVerdict| match q.verdict {
        Verdict::Rejected { .. } => Some(q.verdict.reason().to_owned()),
        Verdict::Accepted => {
            p.made_otherwise(q).map(|what| format!("it is taken, but the kernel makes something else of it: {what}"))
        }
        _ => None,
    };
    let (same, other): (Vec<_>, Vec<_>) = pairs.partition(|(p, q)| p.replaced_by(q));
    let refused =
        other.into_iter().filter_map(|(p, q)| Some(Refused { reason: reason(p, q)?, name: q.name.clone() })).collect();
    let limits = Limits { deadline, recorder: options.queries, ..Limits::default() };
    let proof = ProofOptions { limits, strict_shared_memory: options.strict_shared_memory, ..ProofOptions::default() };
    let unknown = same.into_iter().filter(|(p, q)| !runs_as_before(names, p, q, &proof)).map(|(p, _)| p.name.clone());
    (refused, unknown.collect())
}

/// Whether the verifier leaves of a program of the second object what it leaves of that of the first.
fn runs_as_before(names: &Names, p: &ProgramVerdict, q: &ProgramVerdict, options: &ProofOptions) -> bool {
    let (Some(before), Some(after)) = (&p.decided, &q.decided) else { return true };
    let [a, b] = [names.a, names.b].map(|u| &u.object);
    let [first, second] = [(a, p), (b, q)].map(|(object, p)| object.entries(&p.name, &p.section));
    let ([first], [second]) = (&first[..], &second[..]) else { return before == after };
    let pair = |(f, old): (FuncId, &Jumps), (g, new): (FuncId, &Jumps)| {
        if old == new && names.comparison.same_code(names.matching, f, g) {
            return true;
        }
        let (Ok(f), Ok(g)) = (&names.a.graphs[f.0], &names.b.graphs[g.0]) else { return false };
        let (f, g) = (names.first(f), names.second(g));
        names.with_env(|env| decided::run_as_one((&f, old), (&g, new), a, env, options))
    };
    decided::runs_as_before((a, *first, before), (b, *second, after), |f| names.matching.function(f), pair)
}
