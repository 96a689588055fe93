//! Whether libbpf and the kernel take the function and line records of both objects.
//!
//! The one idea: libbpf cuts the records of a program and of all that it calls out of `.BTF.ext` and hands them over
//! with the program (`adjust_prog_btf_ext_info` in `tools/lib/bpf/libbpf.c`); the kernel refuses the program if they are
//! not as it wants them (`check_btf_func` and `check_btf_line` in `kernel/bpf/verifier.c`). Neither drops records that
//! are wrong. What they do drop: all records of a program whose own are missing, with those of what it calls, and the
//! parts of longer records that the kernel does not know (`alloc_zero_tailing_info` in `tools/lib/bpf/bpf.c`). Seen on
//! Linux 6.18 with bpftool: `driver/tests/all/objects.rs`. Promise: if the records of one object are refused and those of
//! the other are not, or for something else, that is unknown.

use std::fmt;

use super::findings::Findings;
use super::matching::Matching;
use crate::btf::{FUNC, FUNC_PROTO};
use crate::btf_ext::{CORE_RELO, FUNC_INFO, LINE_INFO, Record};
use crate::functions::{FuncId, FuncKind, Function};
use crate::object::Object;

/// Why a program's records are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Problem {
    NoFunctionRecord,
    SeveralFunctionRecords,
    FunctionRecordElsewhere,
    NoFunctionType,
    NoLineRecord,
    NoFirstLine,
    LinesOutOfOrder,
    LineInsideInstruction,
    LineWithoutText,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoFunctionRecord => "it has no function record, though its caller has one",
            Self::SeveralFunctionRecords => "it has more than one function record",
            Self::FunctionRecordElsewhere => "its function record is not at its first instruction",
            Self::NoFunctionType => "the type of its function record is no function",
            Self::NoLineRecord => "it has no line record, though its caller has some",
            Self::NoFirstLine => "its first instruction has no line record",
            Self::LinesOutOfOrder => "its line records are not in order",
            Self::LineInsideInstruction => "a line record is inside an instruction",
            Self::LineWithoutText => "the file or text of a line record is not among the strings of .BTF",
        })
    }
}

/// Why libbpf refuses an object for its CO-RE records, those of no function included (`bpf_object__relocate_core`).
fn core_refused(o: &Object) -> Option<&'static str> {
    let subs = || o.ext.iter().flat_map(|e| e.tables.get(CORE_RELO)).flat_map(|t| &t.subs);
    let named = |off: u32| o.btf.as_ref().and_then(|b| b.string(off)).is_some_and(|name| !name.is_empty());
    if !subs().all(|s| named(s.section_name_off)) {
        return Some("a list of CO-RE records names no section");
    }
    let aligned = subs().flat_map(|s| &s.records).all(|r| r.insn_off.is_multiple_of(8));
    (!aligned).then_some("a CO-RE record is inside an instruction")
}

/// libbpf loads the kernel's types if there is any CO-RE record, and refuses the object without them
/// (`obj_needs_vmlinux_btf`).
fn has_core(o: &Object) -> bool {
    o.ext.iter().flat_map(|e| e.tables.get(CORE_RELO)).any(|t| !t.subs.is_empty())
}

fn core(a: &Object, b: &Object, out: &mut Findings) {
    let place = || "section .BTF.ext".to_owned();
    let (x, y) = (core_refused(a), core_refused(b));
    if x != y {
        out.different(place(), format!("libbpf refuses one of the two: {}", x.or(y).unwrap_or_default()));
    }
    if has_core(b) && !has_core(a) {
        out.different(place(), "only the second object has CO-RE records".into());
    }
}

/// Compares what is refused.
pub(super) fn compare(a: &Object, b: &Object, m: &Matching, out: &mut Findings) {
    core(a, b, out);
    for root in roots(a) {
        let Some(partner) = m.function(root) else { continue };
        let (x, y) = (refused(a, root), refused(b, partner));
        let same = match (x, y) {
            (None, None) => true,
            (Some((f, why)), Some((g, other))) => m.function(f) == Some(g) && why == other,
            _ => false,
        };
        if same {
            continue;
        }
        let place = format!("records of function {}", a.function_identity(root));
        for (o, found, which) in [(a, x, "first"), (b, y, "second")] {
            if let Some((f, why)) = found {
                let name = o.function_identity(f);
                out.unknown(place.clone(), format!("the kernel refuses them for `{name}` ({which} object): {why}"));
            }
        }
    }
}

/// Programs, and functions that no program leads to.
fn roots(o: &Object) -> Vec<FuncId> {
    let all = || (0..o.functions().len()).map(FuncId);
    let is_program = |f: &FuncId| o.functions().get(f.0).is_some_and(|f| f.kind == FuncKind::Program);
    let mut reached = vec![false; o.functions().len()];
    for f in o.loaded_with(all().filter(is_program)) {
        if let Some(reached) = reached.get_mut(f.0) {
            *reached = true;
        }
    }
    all().filter(|f| is_program(f) || reached.get(f.0) == Some(&false)).collect()
}

/// The first thing for which a program is refused, and the function that has it.
fn refused(o: &Object, root: FuncId) -> Option<(FuncId, Problem)> {
    let all = o.loaded_with([root]);
    let any = |table: usize| o.functions().get(root.0).is_some_and(|f| !cut_out(o, table, f).is_empty());
    let (functions, lines) = (any(FUNC_INFO), any(LINE_INFO));
    all.into_iter().find_map(|id| {
        let f = o.functions().get(id.0)?;
        let problem = functions.then(|| function_record(o, f)).flatten();
        Some((id, problem.or_else(|| lines.then(|| line_records(o, f)).flatten())?))
    })
}

/// The records that libbpf takes for a function's: from the first to the last that is inside, up to one behind it.
fn cut_out<'o>(o: &'o Object, table: usize, f: &Function) -> &'o [Record] {
    let tables = o.ext.as_ref().and_then(|e| e.tables.get(table));
    let sub = tables.and_then(|t| t.subs.iter().find(|s| s.section == Some(f.section_index)));
    let records = sub.map_or(&[][..], |s| &s.records);
    let behind = records.iter().position(|r| r.slot() >= f.start + f.slots).unwrap_or(records.len());
    let before = records.get(..behind).unwrap_or(&[]);
    let inside = |r: &Record| r.slot() >= f.start;
    match (before.iter().position(inside), before.iter().rposition(inside)) {
        (Some(first), Some(last)) => before.get(first..=last).unwrap_or(&[]),
        _ => &[],
    }
}

fn function_record(o: &Object, f: &Function) -> Option<Problem> {
    let record = match cut_out(o, FUNC_INFO, f) {
        [] => return Some(Problem::NoFunctionRecord),
        [one] => one,
        _ => return Some(Problem::SeveralFunctionRecords),
    };
    let is_function = || {
        let t = o.btf.as_ref()?.get(record.word(1)).filter(|t| t.kind == FUNC)?;
        o.btf.as_ref()?.get(t.size_or_type).filter(|t| t.kind == FUNC_PROTO)
    };
    if record.insn_off as usize != f.start * 8 {
        Some(Problem::FunctionRecordElsewhere)
    } else {
        is_function().is_none().then_some(Problem::NoFunctionType)
    }
}

fn line_records(o: &Object, f: &Function) -> Option<Problem> {
    let records = cut_out(o, LINE_INFO, f);
    let first = match records.first() {
        Some(first) => first.insn_off as usize,
        None => return Some(Problem::NoLineRecord),
    };
    let starts = o.layout.code.get(&f.section_index).map_or(&[][..], |c| &c.starts);
    let at_instruction = |r: &Record| r.insn_off.is_multiple_of(8) && starts.get(r.slot()) == Some(&true);
    let text =
        |r: &Record| o.btf.as_ref().is_some_and(|b| b.string(r.word(1)).is_some() && b.string(r.word(2)).is_some());
    if first != f.start * 8 {
        Some(Problem::NoFirstLine)
    } else if !records.windows(2).all(|w| matches!(w, [x, y] if x.slot() < y.slot())) {
        Some(Problem::LinesOutOfOrder)
    } else if !records.iter().all(at_instruction) {
        Some(Problem::LineInsideInstruction)
    } else {
        (!records.iter().all(text)).then_some(Problem::LineWithoutText)
    }
}
