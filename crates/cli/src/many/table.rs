//! A table of what became of many objects: for people, and as comma-separated values.

use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table as Grid, presets};

/// What stands in one place of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Nothing is known.
    None,
    /// A name or a word.
    Text(String),
    /// How many.
    Count(u64),
    /// By how many more, and how many percent of what there was, if there was anything.
    Change(i64, Option<f64>),
    /// Percent.
    Percent(f64),
    /// A measure, shown with so many digits behind the point.
    Measure(f64, usize),
}

impl Cell {
    /// A name or a word.
    pub fn text(text: impl Into<String>) -> Cell {
        Cell::Text(text.into())
    }

    /// How many, if that is known.
    pub fn count(n: Option<impl TryInto<u64>>) -> Cell {
        n.and_then(|n| n.try_into().ok()).map_or(Cell::None, Cell::Count)
    }

    /// What it is as a number.
    pub fn number(&self) -> Option<f64> {
        match *self {
            Cell::Count(n) => Some(n as f64),
            Cell::Change(n, _) => Some(n as f64),
            Cell::Percent(x) | Cell::Measure(x, _) => Some(x),
            Cell::None | Cell::Text(_) => None,
        }
    }

    /// The same for JSON.
    pub fn value(&self) -> Option<serde_json::Value> {
        match *self {
            Cell::Count(n) => Some(n.into()),
            Cell::Change(n, _) => Some(n.into()),
            _ => self.number().map(Into::into),
        }
    }

    /// For people.
    fn shown(&self) -> String {
        match self {
            Cell::None => "-".to_owned(),
            Cell::Change(0, _) => "0".to_owned(),
            Cell::Change(by, Some(percent)) => format!("{by:+} ({percent:+.1}%)"),
            Cell::Change(by, None) => format!("{by:+}"),
            Cell::Percent(x) => format!("{x:.1}%"),
            Cell::Measure(x, digits) => format!("{x:.digits$}"),
            Cell::Text(_) | Cell::Count(_) => self.field(),
        }
    }

    /// For scripts.
    pub fn field(&self) -> String {
        match self {
            Cell::None => String::new(),
            Cell::Text(text) => text.clone(),
            Cell::Count(n) => n.to_string(),
            Cell::Change(by, _) => by.to_string(),
            Cell::Percent(x) => format!("{x:.4}"),
            Cell::Measure(x, digits) => format!("{x:.0$}", digits + 2),
        }
    }
}

/// A line of a table, with a cell for each column.
pub type Row = Vec<Cell>;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// What stands above it, and what `--sort` and `--only` call it.
    pub name: &'static str,
    is_number: bool,
    /// Whether it stands in files of comma-separated values alone.
    for_scripts: bool,
}

impl Column {
    /// Of names or words.
    pub const fn text(name: &'static str) -> Column {
        Column { name, is_number: false, for_scripts: false }
    }

    /// Of numbers.
    pub const fn number(name: &'static str) -> Column {
        Column { name, is_number: true, for_scripts: false }
    }

    /// Whether numbers stand in it.
    pub const fn is_number(&self) -> bool {
        self.is_number
    }

    /// The same, too wide for people, or nothing to them.
    pub const fn for_scripts(self) -> Column {
        Column { for_scripts: true, ..self }
    }
}

/// What a command tells about many objects.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The columns.
    pub columns: &'static [Column],
    /// All that the column of verdicts may say.
    pub verdicts: &'static [&'static str],
}

/// Rows under their columns.
pub struct Table {
    columns: &'static [Column],
    rows: Vec<Row>,
    /// Sums over all rows, those that are not shown included.
    total: Row,
    /// Rows that are not shown.
    hidden: usize,
}

impl Table {
    /// Of these rows; `hidden`: how many there are beside them, `total`: the sum over all.
    pub fn new(shape: Shape, rows: Vec<Row>, hidden: usize, total: Row) -> Table {
        Table { columns: shape.columns, rows, total, hidden }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut grid = Grid::new();
        grid.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        let shown = |row: &Row| -> Vec<String> {
            self.columns.iter().zip(row).filter(|(c, _)| !c.for_scripts).map(|(_, cell)| cell.shown()).collect()
        };
        grid.set_header(self.columns.iter().filter(|c| !c.for_scripts).map(|c| c.name));
        grid.add_rows(self.rows.iter().chain([&self.total]).map(shown));
        for (at, column) in self.columns.iter().filter(|c| !c.for_scripts).enumerate() {
            let Some(made) = grid.column_mut(at) else { continue };
            made.set_padding((0, 2));
            made.set_cell_alignment(if column.is_number { CellAlignment::Right } else { CellAlignment::Left });
        }
        let mut text: String = grid.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
        if self.hidden > 0 {
            text += &format!("{} of {} rows shown\n", self.rows.len(), self.rows.len() + self.hidden);
        }
        text
    }

    /// The rows as comma-separated values, without totals.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn csv(&self, to: &mut dyn Write) -> io::Result<()> {
        let mut csv = csv::Writer::from_writer(to);
        csv.write_record(self.columns.iter().map(|c| c.name))?;
        for row in &self.rows {
            csv.write_record(row.iter().map(Cell::field))?;
        }
        csv.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        columns: &[
            Column::text("object"),
            Column::number("saved"),
            Column::text("verdict"),
            Column::text("message").for_scripts(),
        ],
        verdicts: &["changed", "failed"],
    };

    fn table(hidden: usize) -> Table {
        let rows = vec![
            vec![Cell::text("a, \"b\".o"), Cell::Percent(12.34567), Cell::text("changed"), Cell::None],
            vec![Cell::text("c.o"), Cell::None, Cell::text("failed"), Cell::text("no ELF")],
        ];
        let total = vec![Cell::text("2 objects"), Cell::Percent(12.34567), Cell::text("1 failed"), Cell::None];
        Table::new(SHAPE, rows, hidden, total)
    }

    #[test]
    fn names_are_to_the_left_and_numbers_to_the_right() {
        let lines = "object     saved  verdict\na, \"b\".o   12.3%  changed\nc.o            -  failed\n2 objects  12.3%  1 failed\n";
        assert_eq!(table(0).text(), lines);
    }

    #[test]
    fn scripts_get_all_columns_and_more_digits() {
        let mut text = Vec::new();
        table(0).csv(&mut text).expect("written");
        let lines = "object,saved,verdict,message\n\"a, \"\"b\"\".o\",12.3457,changed,\nc.o,,failed,no ELF\n";
        assert_eq!(String::from_utf8(text).expect("text"), lines);
    }

    #[test]
    fn rows_that_are_not_shown_are_counted() {
        let text = table(3).text();
        assert!(text.ends_with("\n2 of 5 rows shown\n"), "{text}");
    }

    #[test]
    fn changes_are_shown_in_numbers_and_percent() {
        assert_eq!(Cell::Change(-5, Some(-12.5)).shown(), "-5 (-12.5%)");
        assert_eq!(Cell::Change(0, Some(0.0)).shown(), "0");
        assert_eq!(Cell::Change(3, None).shown(), "+3");
    }
}
