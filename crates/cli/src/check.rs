//! `bpf-opt check`: is each program safe, as the kernel's verifier would judge it, and if not, why and on what input? And which
//! kernel has what it uses?

mod needs;

use std::fmt::Write;
use std::path::Path;

use bpf_check::{Problem, Program, Report, SafetyVerdict, programs};
use bpf_driver::agreement::{Comparison, compare, judged};
use bpf_kernel::{LoadVerdict, ProgramType};
use bpf_object::{FuncId, Object};
use bpf_platform::KernelVersion;
use serde::Serialize;

use crate::args::CheckArgs;
use crate::document::Head;
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};
use crate::input::Input;
use crate::run::faulting_packet;
use needs::Needs;

/// Decisions of a path that are shown; the first are left out.
const SHOWN: usize = 12;

/// The JSON report; docs/json.md describes it.
#[derive(Serialize)]
pub struct Document<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    input: &'a Path,
    programs: &'a [Checked],
}

impl<'a> Document<'a> {
    /// On an object for which this came about.
    pub fn new(file: &'a Path, exit_status: u8, outcome: Result<&'a [Checked], &'a Failure>) -> Document<'a> {
        let programs = outcome.unwrap_or_default();
        Document { head: Head::new("check", exit_status, outcome.err()), input: file, programs }
    }
}

/// One program's report.
#[derive(Serialize)]
pub struct Checked {
    /// The function.
    pub name: String,
    /// Its section.
    pub section: String,
    /// The program type it was judged as.
    #[serde(rename = "type")]
    pub kind: String,
    /// What came out.
    pub verdict: &'static str,
    /// Why not.
    pub problem: Option<Explained>,
    /// Instructions processed.
    pub processed: u64,
    /// States remembered.
    pub states: u64,
    /// The kernel's verdict and its reason, if it was asked.
    pub kernel: Option<(&'static str, String)>,
    /// Whether both say the same; null if the kernel did not look at the code.
    pub agrees: Option<bool>,
    /// What it needs of a kernel.
    #[serde(flatten)]
    pub needs: Needs,
}

impl Checked {
    /// What is wrong, in a few words.
    pub fn message(&self) -> Option<String> {
        let problem = self.problem.as_ref().map(|p| p.what.clone());
        problem.or_else(|| self.needs.too_new.first().map(|lack| lack.what.clone()))
    }
}

/// A violation, explained.
#[derive(Serialize)]
pub struct Explained {
    function: String,
    slot: usize,
    instruction: String,
    source: Option<String>,
    /// What is wrong.
    pub what: String,
    path: Vec<String>,
    /// A packet on which the interpreter faults.
    packet: Option<String>,
    /// The fault.
    fault: Option<String>,
}

/// Runs the command on one object.
pub fn run(args: &CheckArgs, file: &Path) -> Result<u8, Failure> {
    let json = Destination::of_report(args.json.as_deref(), &[file])?;
    let outcome = judge(args, file);
    let told = outcome.as_deref();
    let code = exit_code(told);
    if let Some(json) = &json {
        files::write_json(json, &Document::new(file, code, told))?;
    }
    let checked = outcome?;
    if !matches!(json, Some(Destination::Stdout)) {
        files::print(&text(&checked, args.against_kernel))?;
    }
    Ok(code)
}

/// The exit code for an object.
pub fn exit_code(outcome: Result<&[Checked], &Failure>) -> u8 {
    let checked = match outcome {
        Ok(checked) => checked,
        Err(failure) => return failure.code,
    };
    let any = |verdict| checked.iter().any(|c| c.verdict == verdict);
    if any(word(SafetyVerdict::Violation)) || any(TOO_NEW) {
        exit::NO
    } else if any(word(SafetyVerdict::CannotTell)) {
        exit::UNKNOWN
    } else {
        exit::YES
    }
}

/// The verdict on a program of which the kernel that was asked for does not have everything.
pub const TOO_NEW: &str = "too new";

fn word(verdict: SafetyVerdict) -> &'static str {
    match verdict {
        SafetyVerdict::Accepted => "safe",
        SafetyVerdict::Violation => "violation",
        SafetyVerdict::CannotTell => "cannot tell",
    }
}

/// Judges the programs of an object.
pub fn judge(args: &CheckArgs, file: &Path) -> Result<Vec<Checked>, Failure> {
    let input = Input::read(file, &args.raw, args.program_type.as_deref())?;
    let program_type = input.forced_type(args.program_type.as_deref());
    let bytes = input.object;
    let object = Object::parse(bytes.clone()).map_err(|e| Failure::object(file, &e))?;
    let all = programs(&object);
    let name_of = |f: &FuncId| object.functions().get(f.0).map_or("?", |f| f.name.as_str());
    for wanted in &args.program {
        if !all.iter().any(|f| name_of(f) == wanted) {
            return Err(Failure::no_such_program(file, wanted, all.iter().map(name_of)));
        }
    }
    let chosen = |name: &str| args.program.is_empty() || args.program.iter().any(|p| p == name);
    let explainer = Explainer { path: file, object: &object, kernel: args.kernel };
    if args.against_kernel {
        let rows = compare(&bytes, &object, program_type.as_deref()).map_err(|e| Failure::kernel(file, &e))?;
        let rows = rows.iter().filter(|c| chosen(&c.name));
        return Ok(rows.map(|c| beside_the_kernel(&explainer, c)).collect());
    }
    let forced = program_type.as_deref().map(ProgramType::named).transpose();
    let forced = forced.map_err(|e| Failure::kernel(file, &e))?;
    let alone = |f: &FuncId| {
        let (program, report) = judged(&object, *f, forced);
        explainer.checked(*f, &program, &report)
    };
    Ok(all.iter().filter(|f| chosen(name_of(f))).map(alone).collect())
}

fn beside_the_kernel(explainer: &Explainer<'_>, c: &Comparison) -> Checked {
    let said = match &c.kernel {
        LoadVerdict::Accepted => "accepted",
        LoadVerdict::Rejected { .. } => "rejected",
        LoadVerdict::Unsupported { .. } => "unsupported",
        LoadVerdict::NotLoadable { .. } => "not loadable",
        LoadVerdict::OutOfMeans { .. } => "out of descriptors or memory",
        LoadVerdict::OutOfTime => "out of time",
    };
    let checked = explainer.checked(c.function, &c.program, &c.ours);
    Checked { kernel: Some((said, c.kernel.reason().to_owned())), agrees: c.agrees(), ..checked }
}

struct Explainer<'a> {
    path: &'a Path,
    object: &'a Object,
    /// The release that was asked for.
    kernel: Option<KernelVersion>,
}

impl Explainer<'_> {
    fn checked(&self, f: FuncId, program: &Program, report: &Report) -> Checked {
        let problem = report.problem.as_ref().map(|p| {
            let mut explained = self.explain(program, p);
            if report.verdict == SafetyVerdict::Violation
                && let Some((packet, fault)) = faulting_packet(self.path, self.object, f)
            {
                explained.packet = Some(packet);
                explained.fault = Some(fault);
            }
            explained
        });
        let needs = Needs::of(self.object, program, report, self.kernel);
        let verdict = match report.verdict {
            SafetyVerdict::Violation => word(SafetyVerdict::Violation),
            _ if !needs.too_new.is_empty() => TOO_NEW,
            _ if !needs.not_judged.is_empty() => word(SafetyVerdict::CannotTell),
            other => word(other),
        };
        Checked {
            name: program.name.clone(),
            section: program.section.clone(),
            kind: ProgramType(program.kind).to_string(),
            verdict,
            problem,
            processed: report.effort.processed,
            states: report.effort.states,
            kernel: None,
            agrees: None,
            needs,
        }
    }

    fn explain(&self, program: &Program, problem: &Problem) -> Explained {
        let slot = program.slots.get(problem.slot);
        let origin = slot.map(|s| s.origin);
        let line = origin.and_then(|(f, at)| self.object.line_of(f, at));
        let function = origin.and_then(|(f, _)| self.object.functions().get(f.0)).map(|f| f.name.clone());
        let decisions = problem.path.iter().map(|d| {
            let insn = program.slots.get(d.slot).and_then(|s| s.insn);
            let text = insn.map_or(String::new(), |i| i.to_string());
            format!("{}: {text}: {}", d.slot, if d.taken { "taken" } else { "not taken" })
        });
        Explained {
            function: function.unwrap_or_default(),
            slot: problem.slot,
            instruction: slot.and_then(|s| s.insn).map_or(String::new(), |i| i.to_string()),
            source: line.map(|line| line.to_string()),
            what: problem.what.clone(),
            path: decisions.collect(),
            packet: None,
            fault: None,
        }
    }
}

fn text(checked: &[Checked], against_kernel: bool) -> String {
    let mut out = String::new();
    for c in checked {
        let _ = writeln!(
            out,
            "{} ({}, {}): {}, {} instructions processed, {} states",
            c.name, c.section, c.kind, c.verdict, c.processed, c.states
        );
        if let Some(p) = &c.problem {
            out += &told(p);
        }
        out += &c.needs.told();
        if let Some((verdict, reason)) = &c.kernel {
            let beside = match c.agrees {
                Some(true) => "agrees",
                Some(false) => "DISAGREES",
                None => "did not look at the code",
            };
            let colon = if reason.is_empty() { "" } else { ": " };
            let _ = writeln!(out, "  the kernel {beside}: {verdict}{colon}{reason}");
        }
    }
    if against_kernel {
        let agreed = checked.iter().filter(|c| c.agrees == Some(true)).count();
        let judged = checked.iter().filter(|c| c.agrees.is_some()).count();
        let _ = writeln!(out, "{agreed} of {judged} programs that the kernel judged agree");
    }
    out
}

fn told(p: &Explained) -> String {
    let mut out = format!("  {}\n  at {}: {}", p.what, p.slot, p.instruction);
    if !p.function.is_empty() {
        let _ = write!(out, "   in {}", p.function);
    }
    if let Some(source) = &p.source {
        let _ = write!(out, "   {source}");
    }
    out.push('\n');
    let hidden = p.path.len().saturating_sub(SHOWN);
    if !p.path.is_empty() {
        out += "  path:\n";
    }
    if hidden > 0 {
        let _ = writeln!(out, "    ({hidden} decisions before)");
    }
    for decision in p.path.iter().skip(hidden) {
        let _ = writeln!(out, "    {decision}");
    }
    if let (Some(packet), Some(fault)) = (&p.packet, &p.fault) {
        let shown = if packet.is_empty() { "(empty)" } else { packet };
        let _ = writeln!(out, "  input: packet {shown}\n  the interpreter faults on it: {fault}");
    }
    out
}
