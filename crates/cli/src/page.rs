//! `opt --report`: one HTML file that holds all of it, to open in a browser.
//!
//! The file holds the data as JSON, and a script that draws what is looked at. It loads nothing, and nothing in it is run
//! but that script; a policy in the file says so to the browser.

mod graph;

use bpf_driver::timing::Call;
use bpf_driver::{Change, FunctionReport, Report, SearchReport, TakenBack};
use bpf_object::{FuncId, FuncKind, Object};
use serde::Serialize;

use crate::beside::{Beside, Side};
use crate::diff::is_changed;
use crate::verdict;

use graph::Graph;

/// The parts of the file.
const FRAME: &str = include_str!("page/page.html");
pub const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// What stands above all functions.
#[derive(Serialize)]
pub struct Top<'a> {
    /// The tool's version.
    pub version: &'static str,
    /// Names of the files.
    pub input: String,
    /// See `input`.
    pub output: String,
    /// What was minimized.
    pub goal: &'static str,
    /// Of everything random.
    pub seed: u64,
    /// Release of the running kernel, if it was asked.
    pub kernel: Option<String>,
    /// Lines of the summary that are about the object as a whole.
    pub remarks: Vec<String>,
    /// Changes that were taken back.
    pub taken_back: &'a [TakenBack],
    /// What the search did.
    pub search: Option<&'a SearchReport>,
    /// The forms that were made, the best first, if there are several.
    pub forms: Vec<Form>,
    /// Wall-clock seconds.
    pub seconds: f64,
}

/// One of several forms of the object.
#[derive(Serialize)]
pub struct Form {
    /// The name of its file, if it was written.
    pub output: Option<String>,
    /// Instruction slots.
    pub slots: usize,
    /// Its time, in parts of the original's, if it was timed.
    pub time_ratio: Option<f64>,
    /// What is to be believed of that.
    pub time_call: Option<Call>,
}

#[derive(Serialize)]
struct Page<'a> {
    #[serde(flatten)]
    top: &'a Top<'a>,
    functions: Vec<Part<'a>>,
}

/// A function.
#[derive(Serialize)]
struct Part<'a> {
    name: &'a str,
    section: &'a str,
    kind: &'static str,
    /// Slots before and after.
    slots: [usize; 2],
    /// Instructions that the kernel's verifier processed, before and after.
    verified: [Option<u64>; 2],
    /// Estimated nanoseconds.
    estimated: Option<(f64, f64)>,
    seconds: f64,
    /// Seconds until it was first as small.
    reached: f64,
    proofs: usize,
    refused: usize,
    solver: u64,
    whole: &'a str,
    untouched: Option<&'a str>,
    twin_of: Option<&'a str>,
    /// The kernel's words.
    kernel: Option<String>,
    rewrites: &'a [(String, usize)],
    changes: &'a [Change],
    /// Files of the source, which the lines name by number.
    files: Vec<String>,
    /// Listings before and after; none if nothing changed.
    code: Option<Code>,
}

/// What a function was and is.
#[derive(Serialize)]
struct Code {
    /// Lines before and after.
    listings: [Vec<Shown>; 2],
    /// Mark, and the numbers of the lines (-1: none).
    rows: Vec<(char, i64, i64)>,
    /// The first row of each block, and whether the block changed.
    blocks: Vec<(usize, bool)>,
    graphs: [Graph; 2],
}

/// An instruction: slot, text with comment, number of its source line in `Source` or -1.
#[derive(Serialize)]
struct Shown(usize, String, Option<(usize, u32, String)>);

/// The file.
///
/// # Errors
/// If the data cannot be written as JSON.
pub fn html(top: &Top, report: &Report, before: &Object, after: &Object) -> serde_json::Result<String> {
    let functions = report.functions.iter().enumerate();
    let functions = functions.map(|(i, f)| Part::of(f, FuncId(i), before, after)).collect();
    // `<` cannot end the element that holds it then.
    let data = serde_json::to_string(&Page { top, functions })?.replace('<', "\\u003c");
    Ok(filled(FRAME, &[("{{style}}", STYLE), ("{{data}}", &data), ("{{script}}", SCRIPT)]))
}

/// A frame with its parts in their places, which stand in this order; what a part says is never taken for a place.
pub fn filled(frame: &str, parts: &[(&str, &str)]) -> String {
    let mut page = String::with_capacity(frame.len() + parts.iter().map(|(_, part)| part.len()).sum::<usize>());
    let mut rest = frame;
    for (name, part) in parts {
        let (head, tail) = rest.split_once(*name).unwrap_or((rest, ""));
        page += head;
        page += part;
        rest = tail;
    }
    page + rest
}

impl<'a> Part<'a> {
    fn of(f: &'a FunctionReport, id: FuncId, before: &Object, after: &Object) -> Part<'a> {
        let verified = [&f.kernel_before, &f.kernel_after].map(|v| v.as_ref().and_then(|v| v.processed));
        let kind = match before.functions().get(id.0).map(|f| f.kind) {
            Some(FuncKind::Program) => "program",
            Some(FuncKind::Global) => "global function",
            _ => "function",
        };
        let mut files = Vec::new();
        let code = is_changed(f).then(|| Code::of(id, before, after, &mut files));
        Part {
            name: &f.name,
            section: &f.section,
            kind,
            slots: [f.slots_before, f.slots_after],
            verified,
            estimated: f.estimated_ns,
            seconds: f.seconds,
            reached: f.reached.seconds,
            proofs: f.proofs,
            refused: f.refused,
            solver: f.sat_calls,
            whole: &f.whole,
            untouched: f.untouched.as_deref(),
            twin_of: f.twin_of.as_deref(),
            kernel: verdict::phrase(f.kernel_before.as_ref(), f.kernel_after.as_ref()),
            rewrites: &f.rewrites,
            changes: &f.changes,
            files,
            code,
        }
    }
}

impl Code {
    fn of(id: FuncId, before: &Object, after: &Object, files: &mut Vec<String>) -> Code {
        let both = Beside::of(before, after, id);
        let blocks = both.blocks();
        let number = |line: Option<usize>| line.map_or(-1, |i| i64::try_from(i).unwrap_or(-1));
        let rows = both.rows.iter();
        let rows: Vec<_> = rows.map(|r| (r.mark.character(), number(r.before), number(r.after))).collect();
        let changed = |lines: usize, of: fn(&crate::beside::Row) -> Option<usize>| {
            let mut changed = vec![false; lines];
            for block in blocks.iter().filter(|b| both.is_changed((*b).clone())) {
                both.rows[block.clone()].iter().filter_map(of).for_each(|i| changed[i] = true);
            }
            changed
        };
        let of_before = changed(both.before.lines.len(), |r| r.before);
        let of_after = changed(both.after.lines.len(), |r| r.after);
        let graphs =
            [Graph::of(before, id, &both.before.lines, &of_before), Graph::of(after, id, &both.after.lines, &of_after)];
        let listings = [&both.before, &both.after].map(|side| shown(side, files));
        let blocks = blocks.into_iter().map(|b| (b.start, both.is_changed(b))).collect();
        Code { listings, rows, blocks, graphs }
    }
}

/// The lines of a side; a source line stands at the first instruction of it.
fn shown(side: &Side, files: &mut Vec<String>) -> Vec<Shown> {
    let mut last = None;
    let mut lines = Vec::with_capacity(side.lines.len());
    for line in &side.lines {
        let source = side.source(line.slot);
        let told = source.filter(|_| source != last).map(|s| {
            let file = files.iter().position(|f| *f == s.file).unwrap_or_else(|| {
                files.push(s.file.clone());
                files.len() - 1
            });
            (file, s.line, s.text.trim().to_owned())
        });
        last = source;
        lines.push(Shown(line.slot, line.whole(), told));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_cannot_leave_its_element() {
        let top = Top {
            version: "0",
            input: "</script><script>alert(1)</script>".into(),
            output: "{{script}}".into(),
            goal: "size",
            seed: 1,
            kernel: None,
            remarks: vec![],
            taken_back: &[],
            search: None,
            forms: vec![],
            seconds: 0.0,
        };
        let object = bpf_testgen_object();
        let page = html(&top, &Report::default(), &object, &object).expect("JSON");
        assert_eq!(page.matches("</script>").count(), FRAME.matches("</script>").count());
        assert_eq!(page.matches("alert(1)").count(), 1);
        assert!(page.contains("{{script}}"), "what the data says is not a place for a part");
        assert!(page.trim_end().ends_with("</html>"));
    }

    fn bpf_testgen_object() -> Object {
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/xdp_count.o");
        Object::parse(std::fs::read(example).expect("an example")).expect("an object")
    }
}
