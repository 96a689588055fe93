//! `bpf-opt ci`: the figures of programs beside those of a baseline; a row for each program.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bpf_kernel::permitted;
use serde::Serialize;

use super::inputs::{self, Item};
use super::query::VERDICT;
use super::table::{Cell, Column, Row, Shape};
use super::work::{self, Account, FAILED, MESSAGE, NOT_BEGUN, Told, Work};
use crate::args::CiArgs;
use crate::ci::baseline::{Baseline, Objects};
use crate::ci::judge::{Figure, Judged, Measured, Status};
use crate::ci::{junit, measure, sarif};
use crate::document::Head;
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};
use crate::progress::Interrupt;

const SHAPE: Shape = Shape {
    columns: &[
        Column::text("object"),
        Column::text("program"),
        Column::text(VERDICT),
        Column::number("slots"),
        Column::number("slots_diff"),
        Column::number("insns"),
        Column::number("insns_diff"),
        Column::number("stack"),
        Column::number("stack_diff"),
        Column::number("ns"),
        Column::number("ns_diff"),
        Column::text(MESSAGE).for_scripts(),
    ],
    verdicts: &{
        let [a, b, c, d, e, f, g, h] = Status::WORDS;
        [a, b, c, d, e, f, g, h, FAILED, NOT_BEGUN]
    },
};

/// The JSON report on an object; docs/json.md describes it.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    input: &'a Path,
    object: &'a Path,
    kernel: Option<String>,
    programs: &'a [Judged],
}

/// Runs the command.
pub fn run(args: &CiArgs) -> Result<u8, Failure> {
    let baseline = read(args)?;
    let objects = inputs::gather(&args.objects, args.many.list.as_deref(), None)?;
    let mut names: BTreeMap<&Path, &Path> = BTreeMap::new();
    for item in &objects {
        if let Some(other) = names.insert(&item.below, &item.path) {
            let (a, b, name) = (other.display(), item.path.display(), item.below.display());
            return Err(Failure::bad_input(format!("{a} and {b} are both {name} to the baseline"))
                .with_hint("give the folder that holds both, so that they keep their paths below it"));
        }
    }
    let baseline_too = Item { path: args.baseline.clone(), below: args.baseline.clone() };
    let read_too = [&objects[..], &[baseline_too]].concat();
    let mut account = Account::of_readers(&read_too, None, &args.many, &args.table, args.json.as_deref())?;
    if args.run_time {
        // Nothing else of ours is to run while one is timed.
        (account.jobs, account.at_once) = (1, 1);
    }
    let outputs = Outputs::of(args, &objects)?;
    if !args.no_kernel {
        permitted().require().map_err(|e| {
            Failure::kernel(&objects[0].path, &e)
                .with_hint("run it with sudo, or with --no-kernel to compare slots alone")
        })?;
    }
    // Those that only the baseline has come last.
    let gone = baseline.objects.keys().map(PathBuf::from).filter(|name| !names.contains_key(name.as_path()));
    let gone: Vec<Item> = gone.map(|name| Item { path: name.clone(), below: name }).collect();
    let mut groups = inputs::twins(&objects);
    groups.extend((objects.len()..objects.len() + gone.len()).map(|item| vec![item]));

    let interrupt = Interrupt::listen();
    let processor = args.run_time.then(bpf_kernel::processor).flatten();
    let there = objects.len();
    let items = [objects, gone].concat();
    let times_count = !args.run_time || processor.is_some() && baseline.processor == processor;
    let told = Mutex::new(vec![None; items.len()]);
    let judging = Judging { args, baseline, items, there, times_count, told };
    let code = work::run(&judging, &groups, &account, &interrupt)?;
    judging.close(code, processor, &outputs)
}

/// The baseline: none, if it is yet to be made.
fn read(args: &CiArgs) -> Result<Baseline, Failure> {
    if args.update && !args.baseline.exists() {
        return Ok(Baseline::default());
    }
    Baseline::read(&args.baseline).map_err(|failure| match args.baseline.exists() {
        true => failure,
        false => failure.with_hint("--update makes a baseline of what is measured"),
    })
}

/// Where results go besides table and report.
struct Outputs {
    baseline: Option<Destination>,
    junit: Option<Destination>,
    sarif: Option<Destination>,
}

impl Outputs {
    fn of(args: &CiArgs, objects: &[Item]) -> Result<Outputs, Failure> {
        let mut others: Vec<&Path> = objects.iter().map(|item| item.path.as_path()).collect();
        let baseline = args.update.then(|| Destination::of(&args.baseline)).transpose()?;
        if let Some(baseline) = &baseline {
            baseline.overwrites_none("the baseline", &others, "name another file behind --baseline")?;
        }
        others.extend([&args.baseline].into_iter().chain(&args.json).chain(&args.table.csv).map(PathBuf::as_path));
        let report = |path: &Option<PathBuf>, option: &str| -> Result<Option<Destination>, Failure> {
            let Some(path) = path else { return Ok(None) };
            let to = Destination::of(path)?;
            to.overwrites_none("the report", &others, &format!("name another file behind {option}"))?;
            Ok(Some(to))
        };
        let junit = report(&args.junit, "--junit")?;
        let sarif = report(&args.sarif, "--sarif")?;
        if args.sarif.is_some() && args.sarif == args.junit {
            return Err(Failure::bad_input("--junit and --sarif name the same file"));
        }
        Ok(Outputs { baseline, junit, sarif })
    }
}

/// What was said of an object: its programs, or why it could not be measured.
type Outcome = Result<Vec<Judged>, Failure>;

struct Judging<'a> {
    args: &'a CiArgs,
    baseline: Baseline,
    /// The objects, and behind them those that only the baseline has.
    items: Vec<Item>,
    /// How many there are.
    there: usize,
    /// Whether times of the baseline, if there are any, are of this processor.
    times_count: bool,
    told: Mutex<Vec<Option<Outcome>>>,
}

impl Work for Judging<'_> {
    const COMMAND: &'static str = "ci";
    const SHAPE: Shape = SHAPE;

    fn items(&self) -> &[Item] {
        &self.items
    }

    fn work(&self, group: &[usize], _threads: usize, tell: &dyn Fn(usize, Told)) {
        if let [item] = *group
            && item >= self.there
        {
            return tell(item, self.told(item, Ok(&[])));
        }
        work::ask_each(
            &self.items,
            group,
            |path| measure::measure(self.args, path),
            |item, outcome| tell(item, self.told(item, outcome.map(Vec::as_slice))),
        );
    }

    fn failed(&self, item: usize, failure: Failure) -> Told {
        self.told(item, Err(&failure))
    }

    fn total(&self, rows: &[Row]) -> Row {
        let mut total = vec![Cell::None; SHAPE.columns.len()];
        total[0] = Cell::text(work::objects(self.there));
        total[2] = work::verdict_counts(SHAPE, rows);
        for (at, column) in SHAPE.columns.iter().enumerate().filter(|(at, _)| (3..9).contains(at)) {
            total[at] = match column.name.ends_with("_diff") {
                false => work::sum_of_counts(SHAPE, rows, column.name),
                true => work::sum(SHAPE, rows, column.name).map_or(Cell::None, |n| Cell::Change(n as i64, None)),
            };
        }
        total
    }
}

impl Judging<'_> {
    /// What is told of an object, and kept for the other reports.
    fn told(&self, item: usize, outcome: Result<&[Measured], &Failure>) -> Told {
        let judged = outcome.map(|programs| self.judged(item, programs));
        let Item { path, below } = &self.items[item];
        let name = Cell::text(below.display().to_string());
        let code = match &judged {
            Ok(_) if self.args.update => exit::YES,
            Ok(programs) if programs.iter().any(|p| p.verdict.fails()) => exit::NO,
            Ok(programs) if programs.iter().any(|p| p.verdict == Status::NotMeasured) => exit::UNKNOWN,
            Ok(_) => exit::YES,
            Err(failure) => failure.code,
        };
        let rows = match &judged {
            Ok(programs) => programs.iter().map(|p| row(name.clone(), p)).collect(),
            Err(failure) => vec![work::failed_row(SHAPE, name, failure)],
        };
        let report = work::report(&Document {
            head: Head::new("ci", code, outcome.err()),
            input: path,
            object: below,
            kernel: (!self.args.no_kernel).then(bpf_kernel::release),
            programs: judged.as_deref().unwrap_or_default(),
        });
        let failure = outcome.err().cloned();
        self.told.lock().unwrap_or_else(PoisonError::into_inner)[item] = Some(judged.map_err(Failure::clone));
        Told { code, rows, failure, report }
    }

    /// The programs of an object, and those that only the baseline has of it.
    fn judged(&self, item: usize, programs: &[Measured]) -> Vec<Judged> {
        let object = self.items[item].below.display().to_string();
        let mut judged: Vec<Judged> = programs
            .iter()
            .map(|program| {
                let mut before = self.baseline.figures(&object, &program.name).cloned();
                if let Some(before) = before.as_mut().filter(|_| !self.times_count) {
                    before.ns = None;
                }
                Judged::of(program, before.as_ref(), &self.args.allow, self.args.run_time)
            })
            .collect();
        let there: BTreeSet<&str> = programs.iter().map(|p| p.name.as_str()).collect();
        let before = self.baseline.objects.get(&object).into_iter().flatten();
        judged.extend(
            before.filter(|(name, _)| !there.contains(name.as_str())).map(|(name, f)| Judged::vanished(name, f)),
        );
        judged
    }

    /// Says what failed, and writes what was asked for; the exit code.
    fn close(self, code: u8, processor: Option<String>, to: &Outputs) -> Result<u8, Failure> {
        let told = self.told.into_inner().unwrap_or_else(PoisonError::into_inner);
        let found: Vec<(&Item, &Outcome)> =
            self.items.iter().zip(&told).filter_map(|(item, told)| Some((item, told.as_ref()?))).collect();
        for (item, program) in found.iter().flat_map(|(item, o)| o.iter().flatten().map(move |p| (item, p))) {
            for reason in &program.reasons {
                files::complain(format!("{}: {}: {}", item.below.display(), program.name, reason.text));
            }
        }
        let (then, now) = (self.baseline.kernel.as_deref(), bpf_kernel::release());
        let other_work = |p: &Judged| p.reasons.iter().any(|r| matches!(r.figure, Some(Figure::Insns | Figure::Stack)));
        if then.is_some_and(|then| then != now) && found.iter().flat_map(|(_, o)| o.iter().flatten()).any(other_work) {
            let then = then.unwrap_or_default();
            files::complain(format!(
                "note: the baseline is of Linux {then}, and this is {now}, whose verifier may count otherwise"
            ));
        }
        if self.baseline.processor.is_some() && !self.times_count {
            files::complain("note: times were not compared: the baseline is of another processor");
        }
        let named = |path: fn(&Item) -> &Path| {
            found.iter().map(move |(item, outcome)| {
                (path(item), outcome.as_ref().map(Vec::as_slice).map_err(|failure| failure.message.as_str()))
            })
        };
        if let Some(to) = &to.junit {
            to.write(junit::report(named(|item| &item.below))?.as_bytes(), None)?;
        }
        if let Some(to) = &to.sarif {
            to.write(sarif::report(named(|item| &item.path))?.as_bytes(), None)?;
        }
        let Some(to) = &to.baseline else { return Ok(code) };
        if code != exit::YES {
            files::complain(format!("{}: not updated", self.args.baseline.display()));
            return Ok(code);
        }
        let objects = objects(&found[..self.there]);
        let programs: usize = objects.values().map(BTreeMap::len).sum();
        let updated = Baseline::of(objects, (!self.args.no_kernel).then_some(now), processor);
        if updated != self.baseline || !self.args.baseline.exists() {
            to.write(updated.text().as_bytes(), None)?;
        }
        files::complain(format!("{}: has the figures of {programs} programs now", self.args.baseline.display()));
        Ok(code)
    }
}

/// The figures of all objects.
fn objects(found: &[(&Item, &Outcome)]) -> Objects {
    let figures = |p: &Judged| Some((p.name.clone(), p.now.clone()?));
    found
        .iter()
        .map(|(item, outcome)| {
            let programs = outcome.iter().flatten().filter_map(figures);
            (item.below.display().to_string(), programs.collect())
        })
        .collect()
}

fn row(object: Cell, program: &Judged) -> Row {
    let (before, now) = (program.before.as_ref(), program.now.as_ref());
    let mut row = vec![object, Cell::text(program.name.clone()), Cell::text(program.verdict.word())];
    for figure in Figure::ALL {
        let (before, now) = (before.and_then(|f| figure.of(f)), now.and_then(|f| figure.of(f)));
        let count = |x: f64| if figure == Figure::Ns { Cell::Measure(x, 1) } else { Cell::Count(x as u64) };
        row.push(now.map_or(Cell::None, count));
        row.push(match (before, now) {
            (Some(b), Some(n)) => Cell::Change((n - b).round() as i64, (b > 0.0).then(|| 100.0 * (n - b) / b)),
            _ => Cell::None,
        });
    }
    let texts: Vec<&str> = program.reasons.iter().map(|r| r.text.as_str()).collect();
    row.push(if texts.is_empty() { Cell::None } else { Cell::text(texts.join("; ")) });
    row
}
