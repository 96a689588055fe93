//! `bpf-opt opt`: optimize, write, tell. What many objects need beside is in [`crate::many`].

mod document;
mod job;
pub mod parts;
mod summary;
mod totals;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use bpf_driver::{DriverError, FunctionReport, Observer, Options, PassSelection, Report, Variant};
use bpf_object::Object;

use crate::args::{FormArg, GoalArg, OptArgs};
use crate::counts::{self, Found};
use crate::declared::{self, Specialized};
use crate::diff;
use crate::elsewhere;
use crate::explain;
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};
use crate::input::{Input, form_of_name};
use crate::page::{self, Form, Top};
use crate::progress::{Interrupt, Progress};

pub use document::{Document, Kept};
pub use job::Job;
pub use totals::{Totals, saved_percent};

/// Runs the command on one object.
pub fn run(args: &OptArgs, input: &Path, output: &Path) -> Result<u8, Failure> {
    let kernels = elsewhere::of(args)?;
    let job = Job { args, input, output, jobs: args.jobs(), kernels: &kernels, shared: None };
    let cache = args.cache_file();
    let besides: Vec<&Path> = [input, output].into_iter().chain(cache.as_deref()).chain(args.read_besides()).collect();
    let json = Destination::of_report(args.json.as_deref(), &besides)?;
    let json_wants_it = matches!(json, Some(Destination::Stdout));
    let wants_stdout = [("-o -", files::is_dash(output)), ("--json -", json_wants_it)];
    if let Some((first, _)) = wants_stdout.iter().find(|(_, wanted)| *wanted) {
        for (option, wanted) in [("--json -", json_wants_it), ("--diff", args.diff), ("--explain", args.explain)] {
            if wanted && option != *first {
                return Err(Failure::bad_input(format!("{option} and {first} both want standard output")));
            }
        }
    }
    let page = args.report.as_deref().map(Destination::of).transpose()?;
    if let Some(page) = &page {
        let besides: Vec<&Path> = besides.iter().copied().chain(args.json.as_deref()).collect();
        page.overwrites_none("the report", &besides, "name another file behind --report")?;
    }
    let interrupt = Interrupt::listen();
    check(args)?;
    let progress = Progress::new(interrupt.clone(), args.quiet);
    let outcome = optimize(&job, &interrupt, &progress, page.as_ref());
    progress.finish();
    let interrupted = interrupt.requested();
    let code = exit_code(outcome.as_ref(), interrupted);
    if let Some(json) = json {
        let told = outcome.as_ref().map(Done::told);
        files::write_json(&json, &Document::new(&job, code, interrupted, told))?;
    }
    let done = outcome?;
    files::print(&done.diff)?;
    for line in done.summary {
        files::complain(line);
    }
    Ok(code)
}

/// Options that do not go together, whatever the object.
pub fn check(args: &OptArgs) -> Result<(), Failure> {
    if args.keep.is_some_and(|n| n > 1) && args.goal != GoalArg::Latency {
        return Err(Failure::bad_input("--keep ranks by time: it needs --goal latency"));
    }
    if args.counted.any() && args.goal != GoalArg::Latency && !args.counted.only_inputs() {
        return Err(Failure::bad_input(
            "counts say where time goes: --pcap, --counts, --write-counts and --program-runs need --goal latency",
        ));
    }
    if args.counted.any() && args.by_function {
        return Err(Failure::bad_input("counts are of a whole object: they do not go with --by-function"));
    }
    if args.counted.write_counts.is_some() && args.counted.pcap.is_none() && args.counted.inputs_from.is_none() {
        return Err(Failure::bad_input("--write-counts writes what runs count: it needs --pcap or --inputs-from"));
    }
    if args.by_function && args.goal == GoalArg::Verifier {
        return Err(Failure::bad_input(
            "--goal verifier asks the kernel about whole programs: it does not go with --by-function",
        ));
    }
    Ok(())
}

/// The exit code of work on one object.
pub fn exit_code(outcome: Result<&Done, &Failure>, interrupted: bool) -> u8 {
    match outcome {
        Ok(_) if interrupted => exit::INTERRUPTED,
        Ok(_) => exit::YES,
        Err(failure) => failure.code,
    }
}

/// What is left to do once the output is written.
pub struct Done {
    /// What was done.
    pub report: Report,
    /// The forms that were kept.
    pub kept: Vec<Kept>,
    /// What it was specialized for.
    pub specialized: Option<Specialized>,
    /// What --diff and --explain print.
    pub diff: String,
    /// What people read.
    pub summary: Vec<String>,
    /// The bytes that were read.
    pub read: Vec<u8>,
    /// The bytes that were written.
    pub written: Vec<u8>,
}

impl Done {
    /// What the JSON report tells.
    pub fn told(&self) -> (&Report, &[Kept], Option<&Specialized>) {
        (&self.report, &self.kept, self.specialized.as_ref())
    }
}

/// Everything up to the written output, which comes last.
pub fn optimize(
    job: &Job<'_>,
    interrupt: &Interrupt,
    observer: &dyn Observer,
    page: Option<&Destination>,
) -> Result<Done, Failure> {
    const HINT: &str = "name another output behind -o";
    let started = Instant::now();
    let args = job.args;
    let output = Destination::of_object(job.output)?;
    let cache = args.cache_file();
    let kept: Vec<&Path> = cache.as_deref().into_iter().chain(args.read_besides()).collect();
    output.overwrites_none("the result", &kept, HINT)?;
    let taken = [Some(job.input), args.json.as_deref(), args.report.as_deref(), cache.as_deref()];
    let taken: Vec<&Path> = taken.into_iter().flatten().chain(args.read_besides()).collect();
    for path in (2..=args.keep.unwrap_or(1).into()).map(|n| beside(job.output, n)) {
        Destination::of(&path)?.overwrites_none("a form kept by --keep", &taken, HINT)?;
    }
    let taken = Input::read(job.input, &args.arrays(), args.program_type.as_deref())?;
    let program_type = taken.forced_type(args.program_type.as_deref());
    let (read, array, original) = (taken.bytes, taken.array, taken.object);
    let first = Options { program_type: program_type.clone(), ..job.options() };
    let done = args.declared.as_ref().map(|d| declared::fitted(job.input, &original, d, &first)).transpose()?;
    let is_of =
        |(done, notes): (&bpf_specialize::Done, &Vec<String>), wanted| Specialized::of(done, wanted, notes.clone());
    let specialized =
        done.as_ref().zip(args.declared.as_deref()).map(|((done, notes), wanted)| is_of((done, notes), wanted));
    let true_original = done.is_some().then(|| Arc::new(original.clone()));
    let input = done.map_or_else(|| original.clone(), |(done, _)| done.bytes);
    // What is optimized is an object; what is written is what was read, unless another form is asked for.
    let as_written = |object: &[u8]| match &array {
        None => Ok(object.to_vec()),
        Some(array) => match args.form.map(FormArg::form).or_else(|| form_of_name(job.output)) {
            Some(None) => Ok(object.to_vec()),
            Some(Some(form)) => array.array(object, form),
            None => array.array(object, array.form),
        },
    };
    let mode = files::mode_of(job.input);
    let queries = args.dump_queries.as_deref().map(files::query_folder).transpose()?;
    let recorder = queries.as_ref().map(|q| q.recorder());
    let also = args.also.iter().map(|path| {
        let other = Input::read(path, &args.arrays(), args.program_type.as_deref())?.object;
        Object::parse(other.clone()).map_err(|e| Failure::object(path, &e))?;
        Ok((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), other))
    });
    let also = also.collect::<Result<_, Failure>>()?;
    let mut options = Options { queries: recorder, program_type, also, original: true_original, ..job.options() };
    let counted = counts::of(&args.counted, args.contents(), &input, options.program_type.as_deref(), job.input)?;
    let mut about_counts = Vec::new();
    if let Some(Found { counts, traffic, notes }) = counted {
        (options.counts, options.traffic) = (Some(Arc::new(counts)), traffic.map(Arc::new));
        about_counts = notes;
    }
    options.program_runs = counts::program_runs(&args.counted, &input, job.input)?;
    let several = options.forms > 1;
    // What is wrong with it is told by whoever optimizes it.
    let object = Object::parse(original).ok();
    let stripped = object.as_ref().is_some_and(Object::is_stripped);
    if stripped {
        (options.passes, options.ssa, options.search) = (PassSelection::None, false, false);
    }
    let boots = elsewhere::boot(job.kernels, &input, options.program_type.as_deref());
    let mut outcome = optimized(&input, &options, job, observer);
    let mut less_done = None;
    // Whoever gets the object asks `verify --assume`, which proves functions as wholes.
    while specialized.is_some()
        && (options.search || options.ssa)
        && outcome.as_ref().is_ok_and(|forms| forms.iter().any(|form| is_proven_by_steps_alone(&form.report)))
    {
        less_done = Some(if options.search { "the search" } else { "the search and the global passes" });
        (options.search, options.ssa) = (false, options.search && options.ssa);
        outcome = optimized(&input, &options, job, observer);
    }
    boots.finish();
    files::queries_written(queries)?;
    let mut forms = outcome.map_err(|e| Failure::driver(job.input, &e))?;
    let mut kept = Vec::new();
    // The best comes last, so that the others are there when it is. Nobody finds files beside it that were not asked for.
    for (i, form) in forms.iter().enumerate().skip(1).rev() {
        let path = args.keep.map(|_| beside(job.output, i + 1));
        if let Some(path) = &path {
            Destination::of(path)?.write(&as_written(&form.bytes)?, mode)?;
        }
        kept.push(Kept::of(form, path));
    }
    let mut best = forms.swap_remove(0);
    if several {
        kept.push(Kept::of(&best, Some(job.output.to_owned())));
        kept.reverse();
        // All forms were made, and measured.
        best.report.seconds = started.elapsed().as_secs_f64();
    }
    if stripped {
        best.report.warnings.push(format!("{}: {STRIPPED}", job.input.display()));
    }
    best.report.notes.extend(object.as_ref().and_then(about_static_programs));
    best.report.notes.extend(about_counts);
    best.report.notes.extend(less_done.map(|what| {
        format!("made without {what}, whose result was proven step by step and not as a whole: `verify --assume` would not know")
    }));
    let fewer = args.keep.filter(|n| *n > 1 && kept.len() < (*n).into());
    let fewer = fewer.map(|n| format!("note: only {} of the {n} forms asked for came about", kept.len()));
    let mut report = best.report;
    if let Some(original) = object.as_ref().filter(|_| specialized.is_some()) {
        declared::correct(&mut report, original);
    }
    let mut diff = if args.explain { explain::report(&report) } else { String::new() };
    // It is ours, and was read again already.
    let result = (args.diff || page.is_some()).then(|| Object::parse(best.bytes.clone()).ok()).flatten();
    let both = object.as_ref().zip(result.as_ref());
    if let Some((before, after)) = both.filter(|_| args.diff) {
        diff += &diff::report(&report, before, after, &diff::Options { full: args.full, lines: args.lines });
    }
    let remarks = summary::remarks(&report, job, interrupt.requested());
    let mut summary = summary::summary(&report, job, &remarks, interrupt.requested());
    if let Some((page, (before, after))) = page.zip(both) {
        let html = page::html(&top(job, &report, &kept, remarks), &report, before, after);
        let html = html.map_err(|e| Failure::internal(format!("the report is no JSON: {e}")))?;
        page.write(html.as_bytes(), None)?;
    }
    if !args.quiet {
        summary.splice(0..0, specialized.iter().flat_map(Specialized::lines));
        summary.extend(fewer);
        summary.extend(kept.iter().filter_map(summary::form_line));
    }
    let written = as_written(&best.bytes)?;
    output.write(&written, mode)?;
    Ok(Done { report, kept, specialized, diff, summary, read, written })
}

/// The forms of an object: one, or as many as are asked for.
fn optimized(
    input: &[u8],
    options: &Options,
    job: &Job<'_>,
    observer: &dyn Observer,
) -> Result<Vec<Variant>, DriverError> {
    if options.forms > 1 {
        return bpf_driver::variants(input, options, observer);
    }
    let (bytes, report) = match job.shared {
        Some(shared) => bpf_driver::optimize_one_of_many(input, options, shared, observer),
        None => bpf_driver::optimize(input, options, observer),
    }?;
    Ok(vec![Variant { bytes, report, measured: None }])
}

/// Whether a function is not proven equal as a whole.
fn is_proven_by_steps_alone(report: &Report) -> bool {
    report.functions.iter().any(FunctionReport::is_proven_by_steps_alone)
}

/// Of an object without symbols.
const STRIPPED: &str = "it has no symbol table (fully stripped), so nothing can load it; left as it was";

/// A note about programs whose symbols are local, if there are any: the kernel takes them, and libbpf does not.
fn about_static_programs(object: &Object) -> Option<String> {
    let names: Vec<&str> = object.static_programs().collect();
    (!names.is_empty()).then(|| {
        format!(
            "libbpf loads no object with static programs; here they are judged as if they were not: {}",
            names.join(", ")
        )
    })
}

/// `out.o` and 2: `out.2.o`.
fn beside(output: &Path, number: usize) -> PathBuf {
    let name = output.file_stem().unwrap_or_default().to_string_lossy();
    let extension = output.extension().map_or(String::new(), |e| format!(".{}", e.to_string_lossy()));
    output.with_file_name(format!("{name}.{number}{extension}"))
}

/// What stands above the report for a browser.
fn top<'a>(job: &Job<'_>, report: &'a Report, kept: &[Kept], remarks: Vec<String>) -> Top<'a> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let form = |form: &Kept| {
        let Kept { output, slots, time_ratio, time_call, .. } = form;
        Form { output: output.as_deref().map(name), slots: *slots, time_ratio: *time_ratio, time_call: *time_call }
    };
    Top {
        version: env!("CARGO_PKG_VERSION"),
        input: name(job.input),
        output: name(job.output),
        goal: job.args.goal.name(),
        seed: job.args.seed,
        kernel: (!job.args.no_kernel).then(bpf_kernel::release),
        // A table has them.
        remarks: remarks.into_iter().filter(|r| !r.starts_with("taken back: ")).collect(),
        taken_back: &report.taken_back,
        search: report.search.as_ref(),
        forms: kept.iter().map(form).collect(),
        seconds: report.seconds,
    }
}
