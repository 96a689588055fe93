//! Working on many objects: at once, each by itself, and one account of all of them.
//!
//! The one idea: what becomes of an object is a value, [`Told`], also if it fails or breaks. So nothing that happens to one
//! keeps another from its turn, and table, report and exit code are made of the same values.

use std::any::Any;
use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::Serialize;

use super::args::{ManyArgs, TableArgs};
use super::inputs::Item;
use super::pool;
use super::query::{self, Only, Sort, VERDICT};
use super::spool::Spool;
use super::table::{Cell, Column, Row, Shape, Table};
use crate::document::Head;
use crate::failure::{Failure, exit};
use crate::files::{self, Destination};
use crate::progress::{Interrupt, Objects};

/// The verdict on an object that could not be worked on.
pub const FAILED: &str = "failed";

/// The verdict on an object that an interruption came before.
pub const NOT_BEGUN: &str = "not-begun";

/// The column of what is to be said beside the verdict.
pub const MESSAGE: &str = "message";

/// What became of one object.
pub struct Told {
    /// The exit code of a run on it alone.
    pub code: u8,
    /// What the table says of it.
    pub rows: Vec<Row>,
    /// Why it could not be worked on.
    pub failure: Option<Failure>,
    /// Its report as JSON.
    pub report: Vec<u8>,
}

/// What a command does with each of many objects.
pub trait Work: Sync {
    /// The command's name.
    const COMMAND: &'static str;
    /// Its table.
    const SHAPE: Shape;

    /// The objects.
    fn items(&self) -> &[Item];

    /// Works on objects of the same bytes, with so many threads, and tells what became of each.
    fn work(&self, group: &[usize], threads: usize, tell: &dyn Fn(usize, Told));

    /// What is told of an object that could not be worked on.
    fn failed(&self, item: usize, failure: Failure) -> Told;

    /// The last line of the table.
    fn total(&self, rows: &[Row]) -> Row;

    /// What is to be read before the table, once all is done.
    fn above_the_table(&self) -> String {
        String::new()
    }
}

/// How the work is done, and where its account goes.
pub struct Account<'a> {
    /// Threads in all.
    pub jobs: usize,
    /// Objects at once, at most.
    pub at_once: usize,
    /// Print nothing but warnings and errors.
    pub quiet: bool,
    /// Where the reports go.
    pub json: Option<Destination>,
    /// Where the table goes for scripts.
    pub csv: Option<Destination>,
    /// The order of the table.
    pub sort: Option<&'a Sort>,
    /// Which rows it shows.
    pub only: &'a [Only],
}

impl<'a> Account<'a> {
    /// Of a command that writes nothing but its account of these objects, and reads other files besides.
    pub fn of_readers<'p>(
        items: &'p [Item],
        besides: impl IntoIterator<Item = &'p Path>,
        many: &'a ManyArgs,
        table: &TableArgs,
        json: Option<&Path>,
    ) -> Result<Account<'a>, Failure> {
        let (objects, list) = (items.iter().map(|i| i.path.as_path()), many.list.iter().map(PathBuf::as_path));
        let others: Vec<&Path> = besides.into_iter().collect();
        let inputs: Vec<&Path> = objects.chain(list).chain(others).collect();
        let (json, csv) = destinations(json, table.csv.as_deref(), &inputs)?;
        let (jobs, sort, only) = (table.jobs(), many.sort.as_ref(), &many.only[..]);
        Ok(Account { jobs, at_once: jobs, quiet: false, json, csv, sort, only })
    }
}

/// Where report and table go; `others` are the files that the command reads or writes besides.
pub fn destinations(
    json: Option<&Path>,
    csv: Option<&Path>,
    others: &[&Path],
) -> Result<(Option<Destination>, Option<Destination>), Failure> {
    let beside_csv: Vec<&Path> = others.iter().copied().chain(json).collect();
    let both = (Destination::of_report(json, others)?, Destination::of_csv(csv, &beside_csv)?);
    if matches!(both, (Some(Destination::Stdout), Some(Destination::Stdout))) {
        return Err(Failure::bad_input("--json - and --csv - both want standard output"));
    }
    Ok(both)
}

/// Asks about each of a group of objects; what was said of one is said of others with the same bytes.
pub fn ask_each<T>(
    items: &[Item],
    group: &[usize],
    ask: impl Fn(&Path) -> Result<T, Failure>,
    tell: impl Fn(usize, Result<&T, &Failure>),
) {
    let mut first: Option<(&Path, T)> = None;
    for &item in group {
        let path = items[item].path.as_path();
        match &first {
            Some((other, said)) if files::read(path).is_ok_and(|b| files::read(other).is_ok_and(|o| o == b)) => {
                tell(item, Ok(said));
            }
            _ => {
                let outcome = ask(path);
                tell(item, outcome.as_ref());
                first = outcome.ok().map(|said| (path, said)).or(first);
            }
        }
    }
}

/// The row of an object that could not be worked on.
pub fn failed_row(shape: Shape, object: Cell, failure: &Failure) -> Row {
    let cell = |column: &Column| match column.name {
        "object" => object.clone(),
        VERDICT if failure.code == exit::INTERRUPTED => Cell::text(NOT_BEGUN),
        VERDICT => Cell::text(FAILED),
        MESSAGE => Cell::text(failure.message.clone()),
        _ => Cell::None,
    };
    shape.columns.iter().map(cell).collect()
}

/// A report on one object, to be kept.
pub fn report(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).unwrap_or_else(|_| b"null".to_vec())
}

/// The JSON document; docs/json.md describes it.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    objects: usize,
    jobs: usize,
    interrupted: bool,
    totals: BTreeMap<&'static str, serde_json::Value>,
    verdicts: BTreeMap<&'static str, usize>,
    seconds: f64,
    peak_memory_kib: Option<u64>,
    reports: &'a Spool,
}

/// What is known so far.
struct Known {
    told: Vec<Option<(u8, Vec<Row>)>>,
    spool: Option<Spool>,
    /// Why a report could not be kept.
    trouble: Option<std::io::Error>,
    /// Messages that were printed.
    said: HashSet<String>,
}

/// Works on all objects, and gives account; the exit code.
pub fn run<W: Work>(
    work: &W,
    groups: &[Vec<usize>],
    account: &Account<'_>,
    interrupt: &Interrupt,
) -> Result<u8, Failure> {
    let started = Instant::now();
    query::check(W::SHAPE, account.sort, account.only)?;
    let count = work.items().len();
    let temporary = |e: &std::io::Error| Failure::io("keep reports in", &std::env::temp_dir(), e);
    let spool = account.json.as_ref().map(|_| Spool::new(count)).transpose().map_err(|e| temporary(&e))?;
    let bar = Objects::new(count, account.quiet);
    let known = Mutex::new(Known { told: vec![None; count], spool, trouble: None, said: HashSet::new() });
    let tell = |item: usize, told: Told| {
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = known.spool.as_mut().map_or(Ok(()), |spool| spool.put(item, &told.report));
        known.trouble = known.trouble.take().or(kept.err());
        if let Some(failure) = told.failure.filter(|f| f.code != exit::INTERRUPTED)
            && known.said.insert(failure.message.clone())
        {
            bar.complain(&format!("bpf-opt: {}", failure.message));
        }
        known.told[item] = Some((told.code, told.rows));
        bar.done();
    };
    pool::each(groups.len(), account.jobs, account.at_once, |group, threads| {
        let group = &groups[group];
        let failure = if interrupt.requested() {
            bar.interrupted();
            Failure { code: exit::INTERRUPTED, message: "interrupted before its turn".to_owned(), hint: None }
        } else {
            match catch_unwind(AssertUnwindSafe(|| work.work(group, threads, &tell))) {
                Ok(()) => return,
                Err(panic) => Failure::internal(broken(panic.as_ref())),
            }
        };
        for &item in group {
            let is_told = known.lock().unwrap_or_else(PoisonError::into_inner).told[item].is_some();
            if !is_told {
                let message = format!("{}: {}", work.items()[item].path.display(), failure.message);
                tell(item, work.failed(item, Failure { message, ..failure.clone() }));
            }
        }
    });
    bar.finish();
    let Known { told, spool, trouble, .. } = known.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(trouble) = trouble {
        return Err(temporary(&trouble));
    }
    let interrupted = interrupt.requested();
    let (codes, rows): (Vec<u8>, Vec<Vec<Row>>) = told.into_iter().flatten().unzip();
    let code = if interrupted { exit::INTERRUPTED } else { worst(&codes) };
    let rows = rows.concat();
    let total = work.total(&rows);
    let (seconds, verdicts) = (started.elapsed().as_secs_f64(), verdicts(W::SHAPE, &rows));
    let memory = peak_memory();
    if let (Some(json), Some(spool)) = (&account.json, &spool) {
        let totals = W::SHAPE.columns.iter().zip(&total).filter_map(|(c, cell)| Some((c.name, cell.value()?)));
        let document = Document {
            head: Head::new(W::COMMAND, code, None),
            objects: count,
            jobs: account.jobs,
            interrupted,
            totals: totals.collect(),
            verdicts,
            seconds,
            peak_memory_kib: memory,
            reports: spool,
        };
        files::stream_json(json, &document)?;
    }
    let all = rows.len();
    let rows = query::choose(W::SHAPE, rows, account.sort, account.only)?;
    let hidden = all - rows.len();
    let table = Table::new(W::SHAPE, rows, hidden, total);
    if let Some(csv) = &account.csv {
        csv.write_by(|to| table.csv(to), None)?;
    }
    if !account.quiet {
        if ![&account.json, &account.csv].iter().any(|d| matches!(d, Some(Destination::Stdout))) {
            files::print(&work.above_the_table())?;
            files::print(&table.text())?;
        }
        let memory = memory.map_or_else(String::new, |kib| format!(", {} MiB of memory at most", kib.div_ceil(1024)));
        let threads = if account.jobs == 1 { "1 thread".to_owned() } else { format!("{} threads", account.jobs) };
        files::complain(format!("{} in {seconds:.1} s with {threads}{memory}", objects(count)));
    }
    Ok(code)
}

/// So many objects.
pub fn objects(count: usize) -> String {
    if count == 1 { "1 object".to_owned() } else { format!("{count} objects") }
}

/// How often each verdict of a table came, as one phrase.
pub fn verdict_counts(shape: Shape, rows: &[Row]) -> Cell {
    let counts = verdicts(shape, rows);
    let told = shape.verdicts.iter().filter_map(|v| Some(format!("{} {v}", counts.get(v)?)));
    Cell::text(told.collect::<Vec<_>>().join(", "))
}

/// The sum of the counts in a column.
pub fn sum(shape: Shape, rows: &[Row], column: &str) -> Option<f64> {
    let at = shape.columns.iter().position(|c| c.name == column)?;
    rows.iter().filter_map(|r| r[at].number()).reduce(|a, b| a + b)
}

/// The same as a cell.
pub fn sum_of_counts(shape: Shape, rows: &[Row], column: &str) -> Cell {
    sum(shape, rows, column).map_or(Cell::None, |n| Cell::Count(n as u64))
}

fn verdicts(shape: Shape, rows: &[Row]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    let Some(at) = shape.columns.iter().position(|c| c.name == VERDICT) else { return counts };
    for row in rows {
        let said = row[at].field();
        if let Some(verdict) = shape.verdicts.iter().find(|v| **v == said) {
            *counts.entry(*verdict).or_insert(0) += 1;
        }
    }
    counts
}

/// The exit code for all: the most urgent of theirs.
fn worst(codes: &[u8]) -> u8 {
    const URGENCY: [u8; 5] = [exit::INTERRUPTED, exit::INTERNAL, exit::BAD_INPUT, exit::NO, exit::UNKNOWN];
    URGENCY.into_iter().find(|code| codes.contains(code)).unwrap_or(exit::YES)
}

fn broken(panic: &(dyn Any + Send)) -> String {
    let what = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    let what = what.map_or_else(String::new, |text| format!(": {}", text.replace('\n', " ")));
    format!("internal error, please report it with the input file{what}")
}

/// The most memory this process has had.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_the_most_urgent() {
        assert_eq!(worst(&[]), 0);
        assert_eq!(worst(&[0, 3, 0]), 3);
        assert_eq!(worst(&[3, 1, 0]), 1);
        assert_eq!(worst(&[1, 2, 3]), 2);
        assert_eq!(worst(&[2, 70]), 70);
        assert_eq!(worst(&[70, 130]), 130);
    }

    #[test]
    fn the_peak_of_memory_is_known() {
        assert!(peak_memory().is_some_and(|kib| kib > 1000));
    }
}
