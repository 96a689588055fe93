//! `bpf-opt verify … -d DIR`: many objects against those of the same names below a folder.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bpf_driver::{FunctionVerdict, VerifyReport};

use super::inputs::{self, Item};
use super::query::VERDICT;
use super::table::{Cell, Column, Row, Shape};
use super::work::{self, Account, FAILED, MESSAGE, NOT_BEGUN, Told, Work};
use crate::args::VerifyArgs;
use crate::failure::{Failure, exit};
use crate::progress::Interrupt;
use crate::verify::{self, Document, Verified};

const SHAPE: Shape = Shape {
    columns: &[
        Column::text("object"),
        Column::number("functions"),
        Column::number("equal"),
        Column::number("different"),
        Column::number("unknown"),
        Column::number("seconds"),
        Column::text(VERDICT),
        Column::text("against").for_scripts(),
        Column::text(MESSAGE).for_scripts(),
    ],
    verdicts: &["equal", "different", "unknown", FAILED, NOT_BEGUN],
};

/// Runs the command: each object against the one below `folder` that `opt … -d folder` writes for it.
pub fn run(args: &VerifyArgs, folder: &Path) -> Result<u8, Failure> {
    let items = inputs::gather(&args.objects, args.many.list.as_deref(), Some(folder))?;
    let others = inputs::targets(&items, folder)?;
    let besides = others.iter().map(PathBuf::as_path).chain(args.declared.files()).chain(args.raw.maps.as_deref());
    let account = Account::of_readers(&items, besides, &args.many, &args.table, args.json.as_deref())?;
    let interrupt = Interrupt::listen();
    let each_alone: Vec<Vec<usize>> = (0..items.len()).map(|i| vec![i]).collect();
    let assumed = Mutex::new(vec![Vec::new(); items.len()]);
    work::run(&Verifying { args, items: &items, others, assumed }, &each_alone, &account, &interrupt)
}

struct Verifying<'a> {
    args: &'a VerifyArgs,
    items: &'a [Item],
    others: Vec<PathBuf>,
    /// What is taken for granted of each pair, line by line.
    assumed: Mutex<Vec<Vec<String>>>,
}

impl Work for Verifying<'_> {
    const COMMAND: &'static str = "verify";
    const SHAPE: Shape = SHAPE;

    fn items(&self) -> &[Item] {
        self.items
    }

    fn work(&self, group: &[usize], threads: usize, tell: &dyn Fn(usize, Told)) {
        for &item in group {
            let outcome = verify::compare(self.args, &self.items[item].path, &self.others[item], threads);
            if let Ok(verified) = &outcome {
                let mut all = self.assumed.lock().unwrap_or_else(PoisonError::into_inner);
                all[item].clone_from(&verified.assumed);
            }
            tell(item, self.told(item, outcome.as_ref()));
        }
    }

    fn failed(&self, item: usize, failure: Failure) -> Told {
        self.told(item, Err(&failure))
    }

    fn above_the_table(&self) -> String {
        let all = self.assumed.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |(item, lines): (&Item, &Vec<String>)| {
            let object = item.path.display();
            lines.iter().map(|line| format!("{object}: assumed: {line}\n")).collect::<String>()
        };
        self.items.iter().zip(all.iter()).map(of).collect()
    }

    fn total(&self, rows: &[Row]) -> Row {
        let count = |column| work::sum_of_counts(SHAPE, rows, column);
        vec![
            Cell::text(work::objects(self.items.len())),
            count("functions"),
            count("equal"),
            count("different"),
            count("unknown"),
            Cell::Measure(work::sum(SHAPE, rows, "seconds").unwrap_or(0.0), 2),
            work::verdict_counts(SHAPE, rows),
            Cell::None,
            Cell::None,
        ]
    }
}

impl Verifying<'_> {
    fn told(&self, item: usize, outcome: Result<&Verified, &Failure>) -> Told {
        let (a, b) = (&self.items[item].path, &self.others[item]);
        let code = verify::exit_code(outcome);
        let object = Cell::text(a.display().to_string());
        let row = match outcome {
            Ok(verified) => row(object, &verified.report, code, b),
            Err(failure) => work::failed_row(SHAPE, object, failure),
        };
        let empty = VerifyReport::default();
        let report = work::report(&Document::new([a, b], code, outcome, &empty));
        Told { code, rows: vec![row], failure: outcome.err().cloned(), report }
    }
}

fn row(object: Cell, report: &VerifyReport, code: u8, against: &Path) -> Row {
    let count = |which: fn(&FunctionVerdict) -> bool| {
        Cell::count(Some(report.functions.iter().filter(|(_, v)| which(v)).count()))
    };
    let said = report.differences.iter().chain(&report.unknowns).cloned();
    let refused = report.refused.iter().map(|r| format!("{}: refused by this kernel: {}", r.name, r.reason));
    let said: Vec<String> = said.chain(refused).collect();
    vec![
        object,
        Cell::count(Some(report.functions.len())),
        count(|v| matches!(v, FunctionVerdict::Equal)),
        count(|v| matches!(v, FunctionVerdict::Different { .. })),
        count(|v| matches!(v, FunctionVerdict::Unknown { .. })),
        Cell::Measure(report.seconds, 2),
        Cell::text(match code {
            exit::YES => "equal",
            exit::NO => "different",
            _ => "unknown",
        }),
        Cell::text(against.display().to_string()),
        if said.is_empty() { Cell::None } else { Cell::text(said.join("; ")) },
    ]
}
