//! `bpf-opt load` of many objects: a row for each program.

use bpf_kernel::{ObjectVerdict, ProgramVerdict};

use super::inputs::{self, Item};
use super::query::VERDICT;
use super::table::{Cell, Column, Row, Shape};
use super::work::{self, Account, FAILED, MESSAGE, NOT_BEGUN, Told, Work};
use crate::args::LoadArgs;
use crate::failure::Failure;
use crate::load;
use crate::progress::Interrupt;

/// Of a program, or in a row without one of an object as a whole, though each program may be accepted by itself.
const NOT_LOADABLE: &str = "not-loadable";

/// Of an object without programs.
const NO_PROGRAMS: &str = "no-programs";

const SHAPE: Shape = Shape {
    columns: &[
        Column::text("object"),
        Column::text("program"),
        Column::text("type"),
        Column::text(VERDICT),
        Column::number("slots"),
        Column::number("insns"),
        Column::number("states"),
        Column::number("peak"),
        Column::number("usec"),
        Column::number("xlated"),
        Column::number("jited"),
        Column::text("section").for_scripts(),
        Column::number("stack").for_scripts(),
        Column::number("max_states").for_scripts(),
        Column::text(MESSAGE).for_scripts(),
    ],
    verdicts: &[
        "accepted",
        "rejected",
        "unsupported",
        NOT_LOADABLE,
        "out-of-descriptors-or-memory",
        "out-of-time",
        NO_PROGRAMS,
        FAILED,
        NOT_BEGUN,
    ],
};

/// Runs the command on many objects.
pub fn run(args: &LoadArgs) -> Result<u8, Failure> {
    let items = inputs::gather(&args.files, args.many.list.as_deref(), None)?;
    let account = Account::of_readers(&items, None, &args.many, &args.table, args.json.as_deref())?;
    let interrupt = Interrupt::listen();
    work::run(&Loading { args, items: &items }, &inputs::twins(&items), &account, &interrupt)
}

struct Loading<'a> {
    args: &'a LoadArgs,
    items: &'a [Item],
}

impl Work for Loading<'_> {
    const COMMAND: &'static str = "load";
    const SHAPE: Shape = SHAPE;

    fn items(&self) -> &[Item] {
        self.items
    }

    fn work(&self, group: &[usize], _threads: usize, tell: &dyn Fn(usize, Told)) {
        work::ask_each(
            self.items,
            group,
            |path| load::ask(&self.args.raw, self.args.program_type.as_deref(), path),
            |item, outcome| tell(item, self.told(item, outcome)),
        );
    }

    fn failed(&self, item: usize, failure: Failure) -> Told {
        self.told(item, Err(&failure))
    }

    fn total(&self, rows: &[Row]) -> Row {
        let mut total = vec![Cell::None; SHAPE.columns.len()];
        total[0] = Cell::text(work::objects(self.items.len()));
        total[3] = work::verdict_counts(SHAPE, rows);
        for (cell, column) in total.iter_mut().zip(SHAPE.columns).skip(4).filter(|(_, c)| c.is_number()) {
            *cell = work::sum_of_counts(SHAPE, rows, column.name);
        }
        total
    }
}

impl Loading<'_> {
    fn told(&self, item: usize, outcome: Result<&ObjectVerdict, &Failure>) -> Told {
        let path = &self.items[item].path;
        let code = load::exit_code(outcome);
        let object = Cell::text(path.display().to_string());
        let rows = match outcome {
            Ok(verdict) => rows(&object, verdict),
            Err(failure) => vec![work::failed_row(SHAPE, object, failure)],
        };
        let report = work::report(&load::Document::new(path, code, outcome));
        Told { code, rows, failure: outcome.err().cloned(), report }
    }
}

fn rows(object: &Cell, verdict: &ObjectVerdict) -> Vec<Row> {
    let mut rows: Vec<Row> = verdict.programs.iter().map(|p| row(object.clone(), p)).collect();
    let whole = match &verdict.not_loadable {
        Some(reason) => Some((NOT_LOADABLE, Cell::text(reason.trim_end()))),
        None if rows.is_empty() => Some((NO_PROGRAMS, Cell::None)),
        None => None,
    };
    if let Some((verdict, message)) = whole {
        let mut row = vec![Cell::None; SHAPE.columns.len()];
        (row[0], row[3], row[14]) = (object.clone(), Cell::text(verdict), message);
        rows.push(row);
    }
    rows
}

fn row(object: Cell, p: &ProgramVerdict) -> Row {
    let stats = p.stats.as_ref();
    vec![
        object,
        Cell::text(p.name.clone()),
        Cell::text(p.kind.to_string()),
        Cell::text(load::verdict(&p.verdict).replace(' ', "-")),
        Cell::count(Some(p.slots)),
        Cell::count(stats.map(|s| s.processed)),
        Cell::count(stats.map(|s| s.total_states)),
        Cell::count(stats.map(|s| s.peak_states)),
        Cell::count(stats.map(|s| s.micros)),
        Cell::count(p.info.map(|i| i.xlated_bytes)),
        Cell::count(p.info.map(|i| i.jited_bytes)),
        Cell::text(p.section.clone()),
        Cell::count(stats.map(|s| s.stack_depths.iter().sum::<u32>())),
        Cell::count(stats.map(|s| s.max_states_per_insn)),
        Some(p.verdict.reason()).filter(|r| !r.is_empty()).map_or(Cell::None, Cell::text),
    ]
}
