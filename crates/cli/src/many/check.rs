//! `bpf-opt check` of many objects: a row for each program.

use super::inputs::{self, Item};
use super::query::VERDICT;
use super::table::{Cell, Column, Row, Shape};
use super::work::{self, Account, FAILED, MESSAGE, NOT_BEGUN, Told, Work};
use crate::args::CheckArgs;
use crate::check::{self, Checked};
use crate::failure::Failure;
use crate::progress::Interrupt;

/// Of an object without programs.
const NO_PROGRAMS: &str = "no-programs";

const SHAPE: Shape = Shape {
    columns: &[
        Column::text("object"),
        Column::text("program"),
        Column::text("type"),
        Column::text(VERDICT),
        Column::number("insns"),
        Column::number("states"),
        Column::text("kernel"),
        Column::text("agrees"),
        Column::text("needs"),
        Column::text("section").for_scripts(),
        Column::text(MESSAGE).for_scripts(),
    ],
    verdicts: &["safe", "violation", "too-new", "cannot-tell", NO_PROGRAMS, FAILED, NOT_BEGUN],
};

/// Runs the command on many objects.
pub fn run(args: &CheckArgs) -> Result<u8, Failure> {
    let items = inputs::gather(&args.files, args.many.list.as_deref(), None)?;
    let account = Account::of_readers(&items, None, &args.many, &args.table, args.json.as_deref())?;
    let interrupt = Interrupt::listen();
    work::run(&Checking { args, items: &items }, &inputs::twins(&items), &account, &interrupt)
}

struct Checking<'a> {
    args: &'a CheckArgs,
    items: &'a [Item],
}

impl Work for Checking<'_> {
    const COMMAND: &'static str = "check";
    const SHAPE: Shape = SHAPE;

    fn items(&self) -> &[Item] {
        self.items
    }

    fn work(&self, group: &[usize], _threads: usize, tell: &dyn Fn(usize, Told)) {
        work::ask_each(
            self.items,
            group,
            |path| check::judge(self.args, path),
            |item, outcome| tell(item, self.told(item, outcome.map(Vec::as_slice))),
        );
    }

    fn failed(&self, item: usize, failure: Failure) -> Told {
        self.told(item, Err(&failure))
    }

    fn total(&self, rows: &[Row]) -> Row {
        let mut total = vec![Cell::None; SHAPE.columns.len()];
        total[0] = Cell::text(work::objects(self.items.len()));
        total[3] = work::verdict_counts(SHAPE, rows);
        total[4] = work::sum_of_counts(SHAPE, rows, "insns");
        total[5] = work::sum_of_counts(SHAPE, rows, "states");
        total
    }
}

impl Checking<'_> {
    fn told(&self, item: usize, outcome: Result<&[Checked], &Failure>) -> Told {
        let path = &self.items[item].path;
        let code = check::exit_code(outcome);
        let object = Cell::text(path.display().to_string());
        let rows = match outcome {
            Ok([]) => vec![row(object, None)],
            Ok(checked) => checked.iter().map(|c| row(object.clone(), Some(c))).collect(),
            Err(failure) => vec![work::failed_row(SHAPE, object, failure)],
        };
        let report = work::report(&check::Document::new(path, code, outcome));
        Told { code, rows, failure: outcome.err().cloned(), report }
    }
}

fn row(object: Cell, checked: Option<&Checked>) -> Row {
    let text = |of: fn(&Checked) -> String| checked.map_or(Cell::None, |c| Cell::text(of(c)));
    let kernel = checked.and_then(|c| c.kernel.as_ref());
    let agrees = checked.and_then(|c| c.agrees);
    vec![
        object,
        text(|c| c.name.clone()),
        text(|c| c.kind.clone()),
        checked.map_or(Cell::text(NO_PROGRAMS), |c| Cell::text(c.verdict.replace(' ', "-"))),
        Cell::count(checked.map(|c| c.processed)),
        Cell::count(checked.map(|c| c.states)),
        kernel.map_or(Cell::None, |(said, _)| Cell::text(*said)),
        agrees.map_or(Cell::None, |agrees| Cell::text(if agrees { "yes" } else { "no" })),
        checked.and_then(|c| c.needs.needs.as_ref()).map_or(Cell::None, Cell::text),
        text(|c| c.section.clone()),
        checked.and_then(Checked::message).map_or(Cell::None, Cell::text),
    ]
}
