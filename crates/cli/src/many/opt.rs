//! `bpf-opt opt … -d DIR`: optimizing many objects.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bpf_driver::{Observer, Shared};

use super::inputs::{self, Item};
use super::query::VERDICT;
use super::table::{Cell, Column, Row, Shape};
use super::work::{self, Account, FAILED, MESSAGE, NOT_BEGUN, Told, Work};
use crate::args::{GoalArg, OptArgs};
use crate::elsewhere::{self, OtherKernel};
use crate::failure::Failure;
use crate::files::{self, Destination};
use crate::opt::{self, Document, Done, Job, Totals, saved_percent};
use crate::progress::Interrupt;

const SHAPE: Shape = Shape {
    columns: &[
        Column::text("object"),
        Column::number("functions"),
        Column::number("changed"),
        Column::number("before"),
        Column::number("after"),
        Column::number("saved"),
        Column::number("insns_before"),
        Column::number("insns_after"),
        Column::number("seconds"),
        Column::text("kernel"),
        Column::text(VERDICT),
        Column::text("output").for_scripts(),
        Column::text("twin_of").for_scripts(),
        Column::text(MESSAGE).for_scripts(),
    ],
    verdicts: &["changed", "unchanged", FAILED, NOT_BEGUN],
};

/// Runs the command on many objects; results go below `folder`.
pub fn run(args: &OptArgs, folder: &Path) -> Result<u8, Failure> {
    opt::check(args)?;
    if args.keep.is_some_and(|n| n > 1) {
        return Err(Failure::bad_input("--keep writes several forms of one object; it goes with -o, not with -d"));
    }
    let of_one =
        [&args.counted.counts, &args.counted.inputs_from, &args.counted.write_counts, &args.counted.program_runs];
    if of_one.iter().any(|file| file.is_some()) {
        return Err(Failure::bad_input(
            "--counts, --inputs-from, --program-runs and --write-counts are about one object; they go with -o, not with -d",
        ));
    }
    if folder.exists() && !folder.is_dir() {
        return Err(Failure::bad_input(format!("{}: is no folder", folder.display())));
    }
    let items = inputs::gather(&args.inputs, args.many.list.as_deref(), Some(folder))?;
    let targets = inputs::targets(&items, folder)?;
    let cache = args.cache_file();
    let read: Vec<&Path> = args.read_besides().chain(cache.as_deref()).collect();
    for target in &targets {
        Destination::File(target.clone()).overwrites_none("a result", &read, "name another folder behind -d")?;
    }
    let paths = items.iter().map(|i| i.path.as_path()).chain(targets.iter().map(PathBuf::as_path));
    let besides: Vec<&Path> = paths.chain(cache.as_deref()).chain(args.read_besides()).collect();
    let (json, csv) = work::destinations(args.json.as_deref(), args.csv.as_deref(), &besides)?;
    fs::create_dir_all(folder).map_err(|e| Failure::io("make this folder", folder, &e))?;
    let kernels = elsewhere::of(args)?;
    let groups = inputs::twins(&items);
    let interrupt = Interrupt::listen();
    // What is measured must be alone.
    let measures = args.goal == GoalArg::Latency && !args.no_kernel;
    let account = Account {
        jobs: args.jobs(),
        at_once: if measures { 1 } else { args.jobs() },
        quiet: args.quiet,
        json,
        csv,
        sort: args.many.sort.as_ref(),
        only: &args.many.only,
    };
    let watch = Watch { interrupt: &interrupt, told: AtomicBool::new(args.quiet) };
    let optimizing = Optimizing {
        args,
        items: &items,
        targets: &targets,
        interrupt: &interrupt,
        watch,
        shared: Arc::default(),
        kernels,
    };
    work::run(&optimizing, &groups, &account, &interrupt)
}

/// Passes on the wish to stop; there is one bar for all objects.
struct Watch<'a> {
    interrupt: &'a Interrupt,
    told: AtomicBool,
}

impl Observer for Watch<'_> {
    fn stop(&self) -> bool {
        let stop = self.interrupt.requested();
        if stop && !self.told.swap(true, Ordering::Relaxed) {
            files::complain("interrupted: writing what there is of the objects that are begun");
        }
        stop
    }
}

struct Optimizing<'a> {
    args: &'a OptArgs,
    items: &'a [Item],
    targets: &'a [PathBuf],
    interrupt: &'a Interrupt,
    watch: Watch<'a>,
    shared: Arc<Shared>,
    /// Other kernels that are to take the results.
    kernels: Vec<Arc<OtherKernel>>,
}

impl Work for Optimizing<'_> {
    const COMMAND: &'static str = "opt";
    const SHAPE: Shape = SHAPE;

    fn items(&self) -> &[Item] {
        self.items
    }

    fn work(&self, group: &[usize], threads: usize, tell: &dyn Fn(usize, Told)) {
        // The one that was optimized, for those of the same bytes.
        let mut first: Option<(usize, Done)> = None;
        for &item in group {
            let shared = first.as_ref().and_then(|(of, done)| Some((*of, self.same(item, *of, done)?)));
            match shared {
                Some((of, outcome)) => tell(item, self.told(item, Some(of), outcome.as_ref())),
                None => {
                    let outcome = self.optimized(item, threads);
                    tell(item, self.told(item, None, outcome.as_ref()));
                    // One that was cut short says nothing about the next.
                    first = outcome.ok().filter(|_| !self.interrupt.requested()).map(|done| (item, done)).or(first);
                }
            }
        }
    }

    fn failed(&self, item: usize, failure: Failure) -> Told {
        self.told(item, None, Err(&failure))
    }

    fn total(&self, rows: &[Row]) -> Row {
        let count = |column| work::sum_of_counts(SHAPE, rows, column);
        let sum = |column| work::sum(SHAPE, rows, column).unwrap_or(0.0);
        vec![
            Cell::text(work::objects(rows.len())),
            count("functions"),
            count("changed"),
            count("before"),
            count("after"),
            Cell::Percent(saved_percent(sum("before") as usize, sum("after") as usize)),
            count("insns_before"),
            count("insns_after"),
            Cell::Measure(sum("seconds"), 2),
            Cell::None,
            work::verdict_counts(SHAPE, rows),
            Cell::None,
            Cell::None,
            Cell::None,
        ]
    }
}

impl Optimizing<'_> {
    fn job(&self, item: usize, threads: usize) -> Job<'_> {
        Job {
            args: self.args,
            input: &self.items[item].path,
            output: &self.targets[item],
            jobs: threads,
            kernels: &self.kernels,
            shared: Some(&self.shared),
        }
    }

    fn optimized(&self, item: usize, threads: usize) -> Result<Done, Failure> {
        self.make_folder(item)?;
        opt::optimize(&self.job(item, threads), self.interrupt, &self.watch, None)
    }

    fn make_folder(&self, item: usize) -> Result<(), Failure> {
        let Some(folder) = self.targets[item].parent() else { return Ok(()) };
        fs::create_dir_all(folder).map_err(|e| Failure::io("make this folder", folder, &e))
    }

    /// What was made of `of` is written for `item`, too; `None` if it does not have the same bytes.
    fn same(&self, item: usize, of: usize, done: &Done) -> Option<Result<Done, Failure>> {
        let path = &self.items[item].path;
        if files::read(path).ok()? != done.read {
            return None;
        }
        let write = || {
            self.make_folder(item)?;
            Destination::of(&self.targets[item])?.write(&done.written, files::mode_of(path))
        };
        Some(write().map(|()| {
            let mut report = done.report.clone();
            let (own, other) = (path.display().to_string(), self.items[of].path.display().to_string());
            for warning in report.warnings.iter_mut().filter(|w| w.starts_with(&other)) {
                *warning = warning.replacen(&other, &own, 1);
            }
            report.seconds = 0.0;
            Done {
                report,
                kept: Vec::new(),
                specialized: None,
                diff: String::new(),
                summary: Vec::new(),
                read: Vec::new(),
                written: Vec::new(),
            }
        }))
    }

    fn told(&self, item: usize, twin_of: Option<usize>, outcome: Result<&Done, &Failure>) -> Told {
        let interrupted = self.interrupt.requested();
        let code = opt::exit_code(outcome, interrupted);
        let told = outcome.map(Done::told);
        let report = work::report(&Document::new(&self.job(item, 1), code, interrupted, told));
        let row = self.row(item, twin_of, outcome);
        Told { code, rows: vec![row], failure: outcome.err().cloned(), report }
    }

    fn row(&self, item: usize, twin_of: Option<usize>, outcome: Result<&Done, &Failure>) -> Row {
        let object = Cell::text(self.items[item].path.display().to_string());
        let report = match outcome {
            Ok(done) => &done.report,
            Err(failure) => return work::failed_row(SHAPE, object, failure),
        };
        let totals = Totals::of(report);
        // The rest says it of single programs.
        let kernel = report.gate.split([':', ';', ',']).next().unwrap_or_default();
        vec![
            object,
            Cell::count(Some(totals.functions)),
            Cell::count(Some(totals.changed)),
            Cell::count(Some(totals.slots_before)),
            Cell::count(Some(totals.slots_after)),
            Cell::Percent(totals.saved_percent),
            Cell::count(totals.verified_before),
            Cell::count(totals.verified_after),
            Cell::Measure(report.seconds, 2),
            if kernel.is_empty() { Cell::None } else { Cell::text(kernel) },
            Cell::text(if totals.changed > 0 { "changed" } else { "unchanged" }),
            Cell::text(self.targets[item].display().to_string()),
            twin_of.map_or(Cell::None, |of| Cell::text(self.items[of].path.display().to_string())),
            Cell::None,
        ]
    }
}
