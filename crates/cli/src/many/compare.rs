//! `bpf-opt load --compare A B`: what the kernel makes of programs beside what it makes of others of the same names, as
//! veristat does it.

use std::path::{Path, PathBuf};

use bpf_kernel::{ObjectVerdict, ProgramVerdict};
use serde::Serialize;

use super::inputs::{self, Item};
use super::query::VERDICT;
use super::table::{Cell, Column, Row, Shape};
use super::work::{self, Account, FAILED, MESSAGE, NOT_BEGUN, Told, Work};
use crate::args::LoadArgs;
use crate::document::Head;
use crate::failure::{Failure, exit};
use crate::load::{self, Program};
use crate::progress::Interrupt;

/// The columns of names and verdicts, four for each measure, and what is to be said.
macro_rules! columns {
    ($($shown:literal),*; $($for_scripts:literal),*) => {
        &[
            Column::text("object"),
            Column::text("program"),
            Column::text("verdict_a"),
            Column::text("verdict_b"),
            Column::text(VERDICT),
            $(
                Column::number(concat!($shown, "_a")),
                Column::number(concat!($shown, "_b")),
                Column::number(concat!($shown, "_diff")),
                Column::number(concat!($shown, "_pct")).for_scripts(),
            )*
            $(
                Column::number(concat!($for_scripts, "_a")).for_scripts(),
                Column::number(concat!($for_scripts, "_b")).for_scripts(),
                Column::number(concat!($for_scripts, "_diff")).for_scripts(),
                Column::number(concat!($for_scripts, "_pct")).for_scripts(),
            )*
            Column::text(MESSAGE).for_scripts(),
        ]
    };
}

const SHAPE: Shape = Shape {
    columns: columns!("insns", "states", "peak", "usec"; "slots", "stack", "xlated", "jited"),
    verdicts: &["same", "less", "more", NOW_ACCEPTED, NOW_REFUSED, ONLY_A, ONLY_B, FAILED, NOT_BEGUN],
};

/// Columns before those of the first measure.
const NAMES: usize = 5;

/// Measures, in the order of the columns.
const MEASURES: usize = 8;

const NOW_ACCEPTED: &str = "now-accepted";
const NOW_REFUSED: &str = "now-refused";
const ONLY_A: &str = "only-a";
const ONLY_B: &str = "only-b";

/// The JSON report on a pair; docs/json.md describes it.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    a: Option<&'a Path>,
    b: Option<&'a Path>,
    kernel: String,
    /// Why the objects as a whole do not load.
    not_loadable: [Option<&'a str>; 2],
    programs: Vec<Both<'a>>,
}

/// A program in both objects.
#[derive(Serialize)]
struct Both<'a> {
    name: &'a str,
    verdict: &'static str,
    a: Option<Program<'a>>,
    b: Option<Program<'a>>,
}

/// Runs the command: two objects, or the objects of two folders by their paths below these.
pub fn run(args: &LoadArgs) -> Result<u8, Failure> {
    const NEEDED: &str = "--compare needs two: objects, or folders with objects of the same names";
    if args.many.list.is_some() {
        return Err(Failure::bad_input("--list does not go with --compare").with_hint(NEEDED));
    }
    let [a, b] = &args.files[..] else { return Err(Failure::bad_input(NEEDED)) };
    let pairs = pairs(a, b)?;
    let read: Vec<Item> =
        pairs.iter().flat_map(|p| p.paths()).map(|path| Item { path: path.clone(), below: path }).collect();
    let account = Account::of_readers(&read, None, &args.many, &args.table, args.json.as_deref())?;
    let items = pairs.iter().map(|p| Item { path: p.name.clone(), below: p.name.clone() }).collect();
    let each_alone: Vec<Vec<usize>> = (0..pairs.len()).map(|i| vec![i]).collect();
    let interrupt = Interrupt::listen();
    work::run(&Comparing { args, pairs, items }, &each_alone, &account, &interrupt)
}

/// Two objects of one name.
struct Pair {
    /// What the table calls it.
    name: PathBuf,
    a: Option<PathBuf>,
    b: Option<PathBuf>,
}

impl Pair {
    fn paths(&self) -> Vec<PathBuf> {
        self.a.iter().chain(&self.b).cloned().collect()
    }
}

fn pairs(a: &Path, b: &Path) -> Result<Vec<Pair>, Failure> {
    match (a.is_dir(), b.is_dir()) {
        (false, false) => Ok(vec![Pair { name: b.to_owned(), a: Some(a.to_owned()), b: Some(b.to_owned()) }]),
        (true, true) => {
            let (of_a, mut of_b) =
                (inputs::gather(&[a.to_owned()], None, None)?, inputs::gather(&[b.to_owned()], None, None)?);
            let mut pairs: Vec<Pair> = of_a
                .into_iter()
                .map(|item| {
                    let partner =
                        of_b.iter().position(|other| other.below == item.below).map(|at| of_b.remove(at).path);
                    Pair { name: item.below, a: Some(item.path), b: partner }
                })
                .collect();
            pairs.extend(of_b.into_iter().map(|item| Pair { name: item.below, a: None, b: Some(item.path) }));
            Ok(pairs)
        }
        _ => Err(Failure::bad_input(format!("{} and {}: one is a folder, the other is not", a.display(), b.display()))),
    }
}

struct Comparing<'a> {
    args: &'a LoadArgs,
    pairs: Vec<Pair>,
    items: Vec<Item>,
}

impl Work for Comparing<'_> {
    const COMMAND: &'static str = "load";
    const SHAPE: Shape = SHAPE;

    fn items(&self) -> &[Item] {
        &self.items
    }

    fn work(&self, group: &[usize], _threads: usize, tell: &dyn Fn(usize, Told)) {
        for &item in group {
            let ask = |path: &Option<PathBuf>| {
                path.as_ref().map(|path| load::ask(&self.args.raw, self.args.program_type.as_deref(), path)).transpose()
            };
            let both = ask(&self.pairs[item].a).and_then(|a| Ok((a, ask(&self.pairs[item].b)?)));
            tell(item, self.told(item, both.as_ref().map(|(a, b)| (a.as_ref(), b.as_ref()))));
        }
    }

    fn failed(&self, item: usize, failure: Failure) -> Told {
        self.told(item, Err(&failure))
    }

    fn total(&self, rows: &[Row]) -> Row {
        let mut total = vec![Cell::None; SHAPE.columns.len()];
        total[0] = Cell::text(work::objects(self.items.len()));
        total[4] = work::verdict_counts(SHAPE, rows);
        for measure in 0..MEASURES {
            let at = NAMES + 4 * measure;
            // Only what both have can be compared.
            let both = rows.iter().filter_map(|row| match (&row[at], &row[at + 1]) {
                (Cell::Count(a), Cell::Count(b)) => Some((*a, *b)),
                _ => None,
            });
            if let Some((a, b)) = both.reduce(|sum, one| (sum.0 + one.0, sum.1 + one.1)) {
                total.splice(at..at + 4, beside(Some(a), Some(b)));
            }
        }
        total
    }
}

/// What was said of both objects, as far as they are there.
type Said<'a> = (Option<&'a ObjectVerdict>, Option<&'a ObjectVerdict>);

impl Comparing<'_> {
    fn told(&self, item: usize, outcome: Result<Said<'_>, &Failure>) -> Told {
        let Pair { name, a, b } = &self.pairs[item];
        let object = Cell::text(name.display().to_string());
        let programs = outcome.map(programs).unwrap_or_default();
        let mut rows: Vec<Row> = programs.iter().map(|(name, a, b)| row(object.clone(), name, *a, *b)).collect();
        let whole = |of: fn(Said<'_>) -> Option<&ObjectVerdict>| outcome.ok().and_then(of);
        let reasons = [whole(|said| said.0), whole(|said| said.1)].map(|o| o.and_then(|o| o.not_loadable.as_deref()));
        if let Err(failure) = outcome {
            rows.push(work::failed_row(SHAPE, object, failure));
        } else if reasons != [None; 2] || rows.is_empty() {
            rows.push(whole_row(object, reasons));
        }
        let refused = rows.iter().any(|row| [NOW_REFUSED, ONLY_A].iter().any(|v| row[4] == Cell::text(*v)));
        let code = match outcome {
            Err(failure) => failure.code,
            Ok(_) if refused || rows.iter().any(|row| self.is_too_much(row)) => exit::NO,
            Ok(_) => exit::YES,
        };
        let report = work::report(&Document {
            head: Head::new("load", code, outcome.err()),
            a: a.as_deref(),
            b: b.as_deref(),
            kernel: bpf_kernel::release(),
            not_loadable: reasons,
            programs: programs
                .iter()
                .map(|(name, a, b)| Both {
                    name,
                    verdict: verdict(*a, *b),
                    a: a.map(Program::of),
                    b: b.map(Program::of),
                })
                .collect(),
        });
        Told { code, rows, failure: outcome.err().cloned(), report }
    }

    /// Whether the verifier has more to do than it may.
    fn is_too_much(&self, row: &Row) -> bool {
        let more = match &row[NAMES + 2] {
            Cell::Change(by, percent) if *by > 0 => percent.unwrap_or(f64::INFINITY),
            _ => return false,
        };
        self.args.fail_if_more.is_some_and(|most| more > most)
    }
}

/// The programs of both objects by name: those of the first in their order, then those that the second alone has.
fn programs<'a>(said: Said<'a>) -> Vec<(&'a str, Option<&'a ProgramVerdict>, Option<&'a ProgramVerdict>)> {
    let of = |object: Option<&'a ObjectVerdict>| object.map_or(&[][..], |o| &o.programs);
    let (of_a, of_b) = (of(said.0), of(said.1));
    let same = |x: &ProgramVerdict, y: &ProgramVerdict| (&x.section, &x.name) == (&y.section, &y.name);
    let both = of_a.iter().map(|a| (a.name.as_str(), Some(a), of_b.iter().find(|b| same(a, b))));
    let rest = of_b.iter().filter(|b| !of_a.iter().any(|a| same(a, b))).map(|b| (b.name.as_str(), None, Some(b)));
    both.chain(rest).collect()
}

fn verdict(a: Option<&ProgramVerdict>, b: Option<&ProgramVerdict>) -> &'static str {
    let (a, b) = match (a, b) {
        (Some(a), Some(b)) => (a, b),
        (Some(_), None) => return ONLY_A,
        (None, _) => return ONLY_B,
    };
    let insns = |p: &ProgramVerdict| p.stats.as_ref().map(|s| s.processed);
    match (a.verdict.is_accepted(), b.verdict.is_accepted()) {
        (true, false) => NOW_REFUSED,
        (false, true) => NOW_ACCEPTED,
        _ => match (insns(a), insns(b)) {
            (Some(a), Some(b)) if b < a => "less",
            (Some(a), Some(b)) if b > a => "more",
            _ => "same",
        },
    }
}

/// Both values, their difference, and that in percent.
fn beside(a: Option<u64>, b: Option<u64>) -> [Cell; 4] {
    let (change, percent) = match (a, b) {
        (Some(a), Some(b)) => {
            let by = i64::try_from(i128::from(b) - i128::from(a)).unwrap_or(i64::MAX);
            let percent = (a > 0).then(|| 100.0 * by as f64 / a as f64);
            (Cell::Change(by, percent), percent.map_or(Cell::None, Cell::Percent))
        }
        _ => (Cell::None, Cell::None),
    };
    [Cell::count(a), Cell::count(b), change, percent]
}

fn row(object: Cell, name: &str, a: Option<&ProgramVerdict>, b: Option<&ProgramVerdict>) -> Row {
    let said =
        |p: Option<&ProgramVerdict>| p.map_or(Cell::None, |p| Cell::text(load::verdict(&p.verdict).replace(' ', "-")));
    let mut row = vec![object, Cell::text(name), said(a), said(b), Cell::text(verdict(a, b))];
    let measures: [fn(&ProgramVerdict) -> Option<u64>; MEASURES] = [
        |p| p.stats.as_ref().map(|s| s.processed),
        |p| p.stats.as_ref().map(|s| s.total_states),
        |p| p.stats.as_ref().map(|s| s.peak_states),
        |p| p.stats.as_ref().map(|s| s.micros),
        |p| Some(p.slots as u64),
        |p| p.stats.as_ref().map(|s| s.stack_depths.iter().map(|d| u64::from(*d)).sum()),
        |p| p.info.map(|i| i.xlated_bytes.into()),
        |p| p.info.map(|i| i.jited_bytes.into()),
    ];
    row.extend(measures.iter().flat_map(|measure| beside(a.and_then(measure), b.and_then(measure))));
    let reason = b.or(a).map(|p| p.verdict.reason()).filter(|r| !r.is_empty());
    row.push(reason.map_or(Cell::None, Cell::text));
    row
}

/// Of objects of which one does not load as a whole, or without programs.
fn whole_row(object: Cell, [a, b]: [Option<&str>; 2]) -> Row {
    let verdict = match (a, b) {
        (None, Some(_)) => NOW_REFUSED,
        (Some(_), None) => NOW_ACCEPTED,
        _ => "same",
    };
    let mut row = vec![Cell::None; SHAPE.columns.len()];
    (row[0], row[4]) = (object, Cell::text(verdict));
    for (cell, reason) in row[2..4].iter_mut().zip([a, b]) {
        *cell = reason.map_or(Cell::None, |_| Cell::text("not-loadable"));
    }
    row[NAMES + 4 * MEASURES] = b.or(a).map_or(Cell::None, |reason| Cell::text(reason.trim_end()));
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measure_has_its_four_columns() {
        assert_eq!(SHAPE.columns.len(), NAMES + 4 * MEASURES + 1);
        assert_eq!(SHAPE.columns[NAMES + 2].name, "insns_diff");
    }

    #[test]
    fn differences_are_told_in_numbers_and_percent() {
        let [_, _, by, percent] = beside(Some(40), Some(30));
        assert_eq!((by, percent), (Cell::Change(-10, Some(-25.0)), Cell::Percent(-25.0)));
        assert_eq!(beside(Some(0), Some(3))[2], Cell::Change(3, None));
        assert_eq!(beside(None, Some(3))[2..], [Cell::None, Cell::None]);
    }
}
