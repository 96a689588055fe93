//! Comparing two objects, whoever made them.
//!
//! The one idea: what the objects declare and hold is compared by meaning ([`bpf_object::compare`]), and every pair of
//! functions of one matching is proven equal, with the second one's names put in terms of the first. Where static
//! functions share a name, matchings are tried one after the other: objects are equal if they are under one of them,
//! and different only if they are under all.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use bpf_facts::Env;
use bpf_object::compare::{Comparison, Finding, Matching};
use bpf_object::{FuncId, Object, RefKind};
use bpf_passes::Settings;
use bpf_platform::is_kfunc_translated_by_type;
use bpf_program::{ByteOrder, Function, slot_count};
use bpf_prove::{Limits, Options as ProofOptions, Verdict};

use crate::acceptance;
use crate::error::DriverError;
use crate::global;
use crate::module::{Module, is_program};
use crate::options::Options;
use crate::pool::on_deep_stack;
use crate::prepare::check_programs;
use crate::private_stack::{self, is_in_struct_ops};
use crate::rename::Names;
use crate::report::{FunctionVerdict, NotRun, RunsFirst, VerifyReport};
use crate::results::{is_ignored, without_result};
use crate::runs_first;
use crate::sensitive::{is_given_types, is_sensitive};

/// Time for all that is left when it is clear already that the objects differ.
const AFTER_A_DIFFERENCE: Duration = Duration::from_secs(1);

pub(crate) fn run(a: &[u8], b: &[u8], options: &Options) -> Result<VerifyReport, DriverError> {
    let started = Instant::now();
    let bytes = [a, b];
    let (a, b) = (Module::new(Object::parse(a.to_vec())?), Module::new(Object::parse(b.to_vec())?));
    let orders = [&a, &b].map(|m| m.object.byte_order());
    if orders[0] != orders[1] {
        let [first, second] = orders.map(ByteOrder::name);
        let what = format!("byte order: the first object is {first}, the second {second}");
        let seconds = started.elapsed().as_secs_f64();
        return Ok(VerifyReport { differences: vec![what], seconds, ..VerifyReport::default() });
    }
    let options = &*options.for_object(&a.object)?;
    check_programs(&a.object, options)?;
    let runs = runs_first::try_runs(bytes[0], bytes[1], &a, &b, options);
    // Once a run has shown a difference, the rest is told only as far as that is quick.
    let left = options.time_limit.saturating_sub(started.elapsed());
    let left = if runs.different.is_empty() { left } else { left.min(AFTER_A_DIFFERENCE) };
    let end = Instant::now().checked_add(left);
    let mut comparison = Comparison::of(&a.object, &b.object);
    let matchings = comparison.matchings();
    let wanted = wanted(&[&a.object, &b.object], &options.programs);
    let mut verdicts = Verdicts { a: &a, b: &b, options, end, wanted, runs: &runs, known: HashMap::new() };
    let mut best: Option<(VerifyReport, &Matching)> = None;
    let mut all_different = matchings.complete;
    for matching in &matchings.list {
        let report = under(matching, &mut comparison, &mut verdicts);
        let (equal, different) = (report.is_equal(), report.is_different());
        all_different &= different;
        let better = match &best {
            None => true,
            Some((best, _)) => equal || (best.is_different() && !different),
        };
        if better {
            best = Some((report, matching));
        }
        if equal {
            break;
        }
    }
    let (mut report, matching) = best.map_or_else(Default::default, |(report, matching)| (report, Some(matching)));
    if report.is_different() && !all_different {
        report.doubt(matchings.list.len());
    }
    if let Some(matching) = matching.filter(|_| report.is_equal()) {
        let names = Names { a: &a, b: &b, matching, comparison: &comparison };
        let (refused, unknown) = acceptance::refused(bytes[0], bytes[1], &names, options);
        report.unknowns.extend(unknown);
        report.refused = refused;
    }
    report.runs = runs;
    report.seconds = started.elapsed().as_secs_f64();
    Ok(report)
}

/// The names of the functions asked for, with all that may run when they do in either object: that is part of what they
/// do. `None` stands for all.
fn wanted(objects: &[&Object], programs: &[String]) -> Option<BTreeSet<String>> {
    if programs.is_empty() {
        return None;
    }
    let mut names: BTreeSet<String> = programs.iter().cloned().collect();
    loop {
        let before = names.len();
        for o in objects {
            let known = o.functions().iter().enumerate().filter(|(_, f)| names.contains(&f.name));
            let run: Vec<FuncId> = o.run_with(known.map(|(i, _)| FuncId(i)));
            names.extend(run.iter().filter_map(|f| o.functions().get(f.0)).map(|f| f.name.clone()));
        }
        if names.len() == before {
            return Some(names);
        }
    }
}

/// The comparison under one matching.
fn under(m: &Matching, comparison: &mut Comparison, verdicts: &mut Verdicts) -> VerifyReport {
    let programs = &verdicts.options.programs;
    let asked = |name: &str| programs.is_empty() || programs.iter().any(|p| p == name);
    let names = verdicts.wanted.clone();
    let wanted = |name: &str| names.as_ref().is_none_or(|names| names.contains(name));
    let findings = comparison.findings(m, &wanted);
    let said = |list: Vec<Finding>| list.iter().map(Finding::to_string).collect();
    let mut report = VerifyReport {
        differences: said(findings.differences),
        unknowns: said(findings.unknowns),
        notes: said(findings.notes),
        ..VerifyReport::default()
    };
    let functions = verdicts.a.object.functions().iter().enumerate().filter(|(_, f)| wanted(&f.name));
    let pairs: Vec<_> = functions.filter_map(|(i, f)| Some((i, f, m.function(FuncId(i))?))).collect();
    for (n, (i, f, j)) in pairs.iter().enumerate() {
        let (i, j) = (*i, *j);
        let verdict = verdicts.of(FuncId(i), j, m, comparison, n + 1 == pairs.len());
        // Of functions that nobody asked for by name only what stands in the way is told.
        if asked(&f.name) || !matches!(verdict, FunctionVerdict::Equal) {
            report.functions.push((f.name.clone(), verdict));
        }
    }
    report
}

/// A pair of functions, and the partners of all that the second one refers to: what a verdict depends on.
type Question = (FuncId, FuncId, Vec<Option<FuncId>>);

/// What has been proven of pairs of functions.
struct Verdicts<'a> {
    a: &'a Module,
    b: &'a Module,
    options: &'a Options,
    /// When the whole comparison is to end.
    end: Option<Instant>,
    /// The names of the functions to compare; `None` for all.
    wanted: Option<BTreeSet<String>>,
    /// What running both has shown.
    runs: &'a RunsFirst,
    known: HashMap<Question, FunctionVerdict>,
}

impl Verdicts<'_> {
    fn of(&mut self, i: FuncId, j: FuncId, m: &Matching, comparison: &Comparison, last: bool) -> FunctionVerdict {
        let name = &self.a.object.functions()[i.0].name;
        let shown = self.runs.different.iter().find(|(program, _)| program == name && is_program(&self.a.object, i.0));
        if let Some((_, lines)) = shown {
            return FunctionVerdict::Different { explanation: lines.clone() };
        }
        let partner = |kind: &RefKind| match kind {
            RefKind::Call { target } | RefKind::FuncAddr { target } => Some(m.function_back(*target)),
            _ => None,
        };
        let callees = self.b.object.refs(j).iter().filter_map(|r| partner(&r.kind)).collect();
        let question = (i, j, callees);
        if let Some(verdict) = self.known.get(&question) {
            return verdict.clone();
        }
        let names = Names { a: self.a, b: self.b, matching: m, comparison };
        let deadline = self.deadline(last);
        let verdict = on_deep_stack(|| pair(&names, i, j, self.options, deadline))
            .unwrap_or_else(|| FunctionVerdict::Unknown { reason: "the proof ran out of stack".into() });
        let open = self.runs.open.iter().find(|open| open.name == *name && is_program(&self.a.object, i.0));
        let verdict = match (verdict, open) {
            (FunctionVerdict::Equal, Some(NotRun { reason, .. })) => FunctionVerdict::Unknown {
                reason: format!(
                    "proven equal, but runs differed once, and it could not be seen whether they always do: {reason}"
                ),
            },
            (verdict, _) => verdict,
        };
        self.known.insert(question, verdict.clone());
        verdict
    }

    /// When the next proof is to end: it may take half of the time that is left, the last one all of it.
    fn deadline(&self, last: bool) -> Option<Instant> {
        let now = Instant::now();
        let left = self.end?.saturating_duration_since(now);
        now.checked_add(if last { left } else { left / 2 })
    }
}

/// Why nothing is said of a function that names types by numbers.
const NUMBERS: &str = "types are named by numbers, which are others in the other object";

/// Whether functions of these objects may name types by numbers that mean another type in the other object: kernel functions
/// that are given a type take its number in BTF, which need not come from a CO-RE record.
fn numbers_types(a: &Module, b: &Module) -> bool {
    let asks = |u: &Module| u.externs().iter().any(|e| is_kfunc_translated_by_type(&e.name));
    (asks(a) || asks(b)) && !a.object.has_types_of(&b.object)
}

fn pair(names: &Names, i: FuncId, j: FuncId, options: &Options, deadline: Option<Instant>) -> FunctionVerdict {
    let by_number = numbers_types(names.a, names.b);
    let may_number = |u: &Module, f: FuncId| by_number && u.graphs[f.0].as_ref().is_ok_and(is_given_types);
    let (f, g) = match (&names.a.graphs[i.0], &names.b.graphs[j.0]) {
        (Ok(f), Ok(g)) => (names.first(f), names.second(g)),
        (Err(why), _) | (_, Err(why)) => {
            return match names.comparison.same_code(names.matching, i, j) {
                true if by_number => FunctionVerdict::Unknown { reason: NUMBERS.into() },
                true => FunctionVerdict::Equal,
                false => FunctionVerdict::Unknown { reason: why.clone() },
            };
        }
    };
    let (f, g) = match is_ignored(names.a, i) && is_ignored(names.b, j) {
        true => (without_result(&f), without_result(&g)),
        false => (f, g),
    };
    if let Some(reason) = names.comparison.unreadable_records(i, j) {
        return FunctionVerdict::Unknown { reason: format!("a CO-RE record cannot be read: {reason}") };
    }
    let limits = Limits { deadline, ..Limits::default() };
    let (strict_shared_memory, recorder) = (options.strict_shared_memory, options.queries.clone());
    let proof = ProofOptions { limits, strict_shared_memory, recorder, ..ProofOptions::default() };
    let cpu = names.a.cpu.max(names.b.cpu).max(Settings::default().cpu);
    names.with_env(|env| match decided(&f, &g, env, &proof, cpu) {
        FunctionVerdict::Equal if bpf_prove::unreachable_operations(&g) > bpf_prove::unreachable_operations(&f) => {
            FunctionVerdict::Unknown { reason: "contains more unreachable code, which the kernel refuses".into() }
        }
        FunctionVerdict::Equal
            if (is_sensitive(names.a, i) || is_sensitive(names.b, j)) && !bpf_prove::same_graph(&f, &g) =>
        {
            FunctionVerdict::Unknown { reason: bpf_prove::VISITS.into() }
        }
        // Graphs do not tell where a `goto` takes a place in memory.
        FunctionVerdict::Equal
            if (bpf_prove::spills_around_a_fast_call(&f) || bpf_prove::spills_around_a_fast_call(&g))
                && !names.comparison.same_code(names.matching, i, j) =>
        {
            FunctionVerdict::Unknown { reason: bpf_prove::VISITS.into() }
        }
        FunctionVerdict::Equal if is_in_struct_ops(names.a, i) && private_stack::differs(&f, &g, env) => {
            FunctionVerdict::Unknown { reason: private_stack::OWN_STACK.into() }
        }
        FunctionVerdict::Equal if may_number(names.a, i) || may_number(names.b, j) => {
            FunctionVerdict::Unknown { reason: NUMBERS.into() }
        }
        verdict => verdict,
    })
}

/// Compares two functions; where that does not succeed, the first with what a global pass would make of it so that small steps
/// lead on from there ([`bpf_ssa::detours_of`]), and that with the second: both are proven, or it is left.
fn decided(f: &Function, g: &Function, env: &Env, proof: &ProofOptions, cpu: u8) -> FunctionVerdict {
    let verdict = match functions(f, g, env, proof, cpu) {
        Verdict::Equal => FunctionVerdict::Equal,
        Verdict::Unknown(reason) => FunctionVerdict::Unknown { reason },
        Verdict::Different(d) => crate::replay::explain(d, f, g, env),
    };
    let is_late = proof.limits.deadline.is_some_and(|end| Instant::now() >= end);
    if !matches!(verdict, FunctionVerdict::Unknown { .. }) || is_late || slot_count(f) > global::LARGE {
        return verdict;
    }
    let leads_on = |from: &Function, to: &Function| bpf_prove::functions(from, to, env, proof).0.is_equal();
    let is_over = |over: &Function| leads_on(f, over) && leads_on(over, g);
    // What counts by being there is compared from end to end, too.
    let is_equal = bpf_ssa::detours_of(f, env).iter().any(is_over) && bpf_prove::presence_differs(f, g, env).is_none();
    if is_equal { FunctionVerdict::Equal } else { verdict }
}

/// Compares two functions; where that does not succeed, the second with what the passes make of the first. Each step of
/// theirs is proven, and whoever has optimized the second has likely gone a good part of the same way. `cpu` is the highest
/// level of their new instructions.
fn functions(f: &Function, g: &Function, env: &Env, proof: &ProofOptions, cpu: u8) -> Verdict {
    let limits = Limits { deadline: half_of(proof.limits.deadline), ..proof.limits };
    let early = ProofOptions { limits, ..proof.clone() };
    let verdict = bpf_prove::functions(f, g, env, &early).0;
    if !matches!(verdict, Verdict::Unknown(_)) {
        return verdict;
    }
    let settings = Settings {
        cpu,
        strict_shared_memory: proof.strict_shared_memory,
        deadline: half_of(proof.limits.deadline),
        queries: proof.recorder.clone(),
        ..Settings::default()
    };
    let derivation = bpf_passes::optimize(f.clone(), env, &settings);
    if derivation.steps().is_empty() {
        return verdict;
    }
    match derivation.leads_to(g, env, proof).0 {
        Verdict::Equal => Verdict::Equal,
        Verdict::Unknown(_) | Verdict::Different(_) => verdict,
    }
}

/// When half of the time until `deadline` is over.
fn half_of(deadline: Option<Instant>) -> Option<Instant> {
    let now = Instant::now();
    deadline.map(|d| now + d.saturating_duration_since(now) / 2)
}
