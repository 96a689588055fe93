//! Arguments of commands that take many objects.

use std::path::{Path, PathBuf};

use clap::Args;

use super::query::{Only, Sort};

/// What stands above these options in `--help`.
pub const MANY: &str = "Many objects";

/// Of commands that take many objects: more of them, and what the table about them shows.
#[derive(Clone, Debug, Default, Args)]
pub struct ManyArgs {
    /// Also the objects that this file names, one on a line (`-`: standard input; `#` begins a remark)
    #[arg(long, help_heading = MANY, value_name = "FILE")]
    pub list: Option<PathBuf>,
    /// Sort the table by this column: numbers from the largest, names from A, `COLUMN:asc` and `COLUMN:desc` as they say
    /// [default: in the order of the command line]
    #[arg(long, help_heading = MANY, value_name = "COLUMN")]
    pub sort: Option<Sort>,
    /// Show only rows with this verdict (`changed`, `failed` …), or of which this holds: `COLUMN=VALUE`, also with `!=`,
    /// `<`, `<=`, `>`, `>=`, and `~` for "contains" (may be repeated: all must hold). Totals are of all objects
    #[arg(long, help_heading = MANY, value_name = "WHAT")]
    pub only: Vec<Only>,
}

impl ManyArgs {
    /// Whether a table was asked for, however many objects there are.
    pub fn asks_for_a_table(&self) -> bool {
        self.first_given(None).is_some()
    }

    /// The first that is given of the options about many objects; `csv` is the file that the command's own `--csv` names.
    pub fn first_given(&self, csv: Option<&Path>) -> Option<&'static str> {
        let options = [
            ("--list", self.list.is_some()),
            ("--sort", self.sort.is_some()),
            ("--only", !self.only.is_empty()),
            ("--csv", csv.is_some()),
        ];
        options.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }
}

/// Of commands that only read many objects.
#[derive(Clone, Debug, Default, Args)]
pub struct TableArgs {
    /// Write the table as comma-separated values (`-`: standard output)
    #[arg(long, help_heading = MANY, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Threads, over all objects that are worked on at once [default: one per CPU]
    #[arg(long, help_heading = MANY, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
}

impl TableArgs {
    /// The one object of a command line that gives no table; `None`: there are several, or a table was asked for.
    pub fn only_one<'a>(&self, inputs: &'a [PathBuf], many: &ManyArgs) -> Option<&'a Path> {
        match inputs {
            [one] if !many.asks_for_a_table() && self.csv.is_none() && !one.is_dir() => Some(one),
            _ => None,
        }
    }

    /// Threads in all.
    pub fn jobs(&self) -> usize {
        self.jobs.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from)
    }
}
