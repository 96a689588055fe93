//! `bpf-opt bench … -d DIR`: timing many objects beside those of the same names below a folder, one after another.

use std::path::{Path, PathBuf};

use bpf_driver::timing::{Call, Program};

use super::inputs::{self, Item};
use super::query::VERDICT;
use super::table::{Cell, Column, Row, Shape};
use super::work::{self, Account, FAILED, MESSAGE, NOT_BEGUN, Told, Work};
use crate::args::BenchArgs;
use crate::bench::{self, Document};
use crate::failure::Failure;
use crate::progress::Interrupt;

const SHAPE: Shape = Shape {
    columns: &[
        Column::text("object"),
        Column::text("program"),
        Column::text("type"),
        Column::number("inputs"),
        Column::number("before_ns"),
        Column::number("after_ns"),
        Column::number("ratio"),
        Column::number("low"),
        Column::number("high"),
        Column::text(VERDICT),
        Column::text("against").for_scripts(),
        Column::text(MESSAGE).for_scripts(),
    ],
    verdicts: &["faster", "slower", "noise", NOT_TIMED, FAILED, NOT_BEGUN],
};

/// Of a program that cannot be run on demand, or of an object without programs.
const NOT_TIMED: &str = "not-timed";

/// Runs the command.
pub fn run(args: &BenchArgs, folder: &Path) -> Result<u8, Failure> {
    let items = inputs::gather(&args.objects, args.many.list.as_deref(), Some(folder))?;
    let others = inputs::targets(&items, folder)?;
    let inputs = items.iter().map(|i| i.path.as_path()).chain(others.iter().map(PathBuf::as_path));
    let besides: Vec<&Path> = inputs.chain(args.pcap.as_deref()).chain(args.maps.as_deref()).collect();
    let (json, csv) = work::destinations(args.json.as_deref(), args.csv.as_deref(), &besides)?;
    let (sort, only) = (args.many.sort.as_ref(), &args.many.only[..]);
    // Nothing else of ours is to run while one is timed.
    let account = Account { jobs: 1, at_once: 1, quiet: false, json, csv, sort, only };
    let interrupt = Interrupt::listen();
    let each_alone: Vec<Vec<usize>> = (0..items.len()).map(|i| vec![i]).collect();
    work::run(&Timing { args, items: &items, others }, &each_alone, &account, &interrupt)
}

struct Timing<'a> {
    args: &'a BenchArgs,
    items: &'a [Item],
    others: Vec<PathBuf>,
}

impl Work for Timing<'_> {
    const COMMAND: &'static str = "bench";
    const SHAPE: Shape = SHAPE;

    fn items(&self) -> &[Item] {
        self.items
    }

    fn work(&self, group: &[usize], _threads: usize, tell: &dyn Fn(usize, Told)) {
        for &item in group {
            let outcome = bench::measured(self.args, &self.pair(item), false);
            tell(item, self.told(item, outcome.as_deref()));
        }
    }

    fn failed(&self, item: usize, failure: Failure) -> Told {
        self.told(item, Err(&failure))
    }

    fn total(&self, rows: &[Row]) -> Row {
        let mut total = vec![Cell::None; SHAPE.columns.len()];
        total[0] = Cell::text(work::objects(self.items.len()));
        total[3] = work::sum_of_counts(SHAPE, rows, "inputs");
        // Every program counts alike.
        let ratios: Vec<f64> = rows.iter().filter_map(|r| r[6].number()).filter(|r| *r > 0.0).collect();
        if !ratios.is_empty() {
            total[6] = Cell::Measure((ratios.iter().map(|r| r.ln()).sum::<f64>() / ratios.len() as f64).exp(), 3);
        }
        total[9] = work::verdict_counts(SHAPE, rows);
        total
    }
}

impl Timing<'_> {
    fn pair(&self, item: usize) -> [PathBuf; 2] {
        [self.items[item].path.clone(), self.others[item].clone()]
    }

    fn told(&self, item: usize, outcome: Result<&[Program], &Failure>) -> Told {
        let pair = self.pair(item);
        let code = bench::exit_code(self.args, outcome);
        let object = Cell::text(pair[0].display().to_string());
        let rows = match outcome {
            Ok([]) => vec![not_timed(object, "no program that both have")],
            Ok(programs) => programs.iter().map(|p| row(object.clone(), p, &pair[1])).collect(),
            Err(failure) => vec![work::failed_row(SHAPE, object, failure)],
        };
        let report = work::report(&Document::new(self.args, &pair, code, outcome, None));
        Told { code, rows, failure: outcome.err().cloned(), report }
    }
}

fn not_timed(object: Cell, why: &str) -> Row {
    let mut row = vec![Cell::None; SHAPE.columns.len()];
    (row[0], row[9], row[11]) = (object, Cell::text(NOT_TIMED), Cell::text(why));
    row
}

fn row(object: Cell, program: &Program, against: &Path) -> Row {
    let all = program.classes.first().map(|all| (all, &all.objects[..]));
    let Some((all, [before, after, ..])) = all else {
        let mut row = not_timed(object, program.skipped.as_deref().unwrap_or_default());
        (row[1], row[2]) = (Cell::text(program.name.clone()), Cell::text(program.kind.clone()));
        return row;
    };
    let ratio = after.comparison.ratio.as_ref();
    let measure = |x: Option<f64>, digits| x.filter(|x| x.is_finite()).map_or(Cell::None, |x| Cell::Measure(x, digits));
    vec![
        object,
        Cell::text(program.name.clone()),
        Cell::text(program.kind.clone()),
        Cell::count(Some(all.inputs)),
        measure(Some(before.ns.middle), 1),
        measure(Some(after.ns.middle), 1),
        measure(ratio.map(|r| r.value), 3),
        measure(ratio.map(|r| r.low), 3),
        measure(ratio.map(|r| r.high), 3),
        Cell::text(match after.call {
            Call::Faster => "faster",
            Call::Slower => "slower",
            Call::Noise => "noise",
        }),
        Cell::text(against.display().to_string()),
        Cell::None,
    ]
}
