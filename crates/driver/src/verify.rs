//! Comparing two objects, whoever made them.

use std::time::{Duration, Instant};

use bpf_object::{FuncId, Object};
use bpf_prove::{Limits, Options as ProofOptions, Verdict};

use crate::DriverError;
use crate::optimize::{check_programs, is_program};
use crate::pool::on_deep_stack;
use crate::report::{FunctionVerdict, Options, VerifyReport};
use crate::runs_first;
use crate::unit::Unit;

/// Time for each function when it is clear already that the objects differ.
const AFTER_A_DIFFERENCE: Duration = Duration::from_millis(200);

pub(crate) fn run(a: &[u8], b: &[u8], options: &Options) -> Result<VerifyReport, DriverError> {
    let started = Instant::now();
    let (ua, ub) = (Unit::new(Object::parse(a.to_vec())?), Unit::new(Object::parse(b.to_vec())?));
    let mut report = VerifyReport::default();
    check_programs(&ua.object, options)?;
    report.runs = runs_first::try_runs(a, b, &ua, &ub, options);
    // Once a run has shown a difference, the rest is told only as far as that is quick.
    let hurried = Options { time_limit: options.time_limit.min(AFTER_A_DIFFERENCE), ..options.clone() };
    let options = if report.runs.different.is_empty() { options } else { &hurried };
    let mut matched = vec![false; ub.object.functions().len()];
    for i in 0..ua.object.functions().len() {
        let key = ua.key(i);
        if !options.programs.is_empty() && !options.programs.contains(&key.1) {
            continue;
        }
        let partner = (0..matched.len()).find(|j| !matched[*j] && ub.key(*j) == key);
        let Some(j) = partner else {
            report.differences.push(format!("function {} of section {} is missing in the second object", key.1, key.0));
            continue;
        };
        matched[j] = true;
        let shown = report.runs.different.iter().find(|(name, _)| *name == key.1 && is_program(&ua.object, i));
        if let Some((_, lines)) = shown {
            report.functions.push((key.1, FunctionVerdict::Different { explanation: lines.clone() }));
            continue;
        }
        let verdict = on_deep_stack(|| pair(&ua, i, &ub, j, options))
            .unwrap_or_else(|| FunctionVerdict::Unknown { reason: "the proof ran out of stack".into() });
        report.functions.push((key.1, verdict));
    }
    if options.programs.is_empty() {
        for (j, _) in matched.iter().enumerate().filter(|(_, m)| !**m) {
            let key = ub.key(j);
            report.differences.push(format!("function {} of section {} is only in the second object", key.1, key.0));
        }
    }
    if ua.maps != ub.maps {
        report.differences.push("the maps differ".into());
    }
    report.differences.extend(crate::sections::differences(a, b));
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

fn pair(ua: &Unit, i: usize, ub: &Unit, j: usize, options: &Options) -> FunctionVerdict {
    let (f, g) = match (&ua.graphs[i], &ub.graphs[j]) {
        (Ok(f), Ok(g)) => (f, g),
        (Err(why), _) | (_, Err(why)) => {
            let same = ua.object.code(FuncId(i)) == ub.object.code(FuncId(j))
                && ua.object.refs(FuncId(i)) == ub.object.refs(FuncId(j))
                && ua.object.core_relocs(FuncId(i)) == ub.object.core_relocs(FuncId(j));
            return match same {
                true => FunctionVerdict::Equal,
                false => FunctionVerdict::Unknown { reason: why.clone() },
            };
        }
    };
    let deadline = Instant::now().checked_add(options.time_limit);
    let limits = Limits { deadline, recorder: options.queries, ..Limits::default() };
    let proof = ProofOptions { limits, strict_shared_memory: options.strict_shared_memory, ..ProofOptions::default() };
    ua.with_env(|env| match bpf_prove::functions(f, g, env, &proof).0 {
        Verdict::Equal => FunctionVerdict::Equal,
        Verdict::Unknown(reason) => FunctionVerdict::Unknown { reason },
        Verdict::Different(d) => crate::replay::explain(d, f, g, env),
    })
}
