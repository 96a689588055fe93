//! Which rows of a table are shown, and in which order.

use std::cmp::Ordering;
use std::str::FromStr;

use super::table::{Cell, Column, Row, Shape};
use crate::failure::Failure;

/// The column of verdicts, which a word alone is about.
pub const VERDICT: &str = "verdict";

/// A column to sort by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sort {
    column: String,
    /// From the largest; `None`: so for numbers.
    descending: Option<bool>,
}

impl FromStr for Sort {
    type Err = String;

    fn from_str(text: &str) -> Result<Sort, String> {
        let (column, descending) = match text.split_once(':') {
            None => (text, None),
            Some((column, "asc")) => (column, Some(false)),
            Some((column, "desc")) => (column, Some(true)),
            Some((_, other)) => return Err(format!("`{other}` is neither `asc` nor `desc`")),
        };
        Ok(Sort { column: column.to_owned(), descending })
    }
}

impl Sort {
    /// Puts rows into order; those without a value come last, others that are equal stay as they are.
    fn sort(&self, columns: &[Column], rows: &mut [Row]) -> Result<(), Failure> {
        let at = position(columns, &self.column)?;
        rows.sort_by(|a, b| {
            let descending = self.descending.unwrap_or(a[at].number().is_some() || b[at].number().is_some());
            match (&a[at], &b[at]) {
                (Cell::None, Cell::None) => Ordering::Equal,
                (Cell::None, _) => Ordering::Greater,
                (_, Cell::None) => Ordering::Less,
                (x, y) if descending => compare(y, x),
                (x, y) => compare(x, y),
            }
        });
        Ok(())
    }

    /// Whether there is such a column.
    fn check(&self, columns: &[Column]) -> Result<(), Failure> {
        position(columns, &self.column).map(|_| ())
    }
}

fn compare(a: &Cell, b: &Cell) -> Ordering {
    match (a.number(), b.number()) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        _ => a.field().cmp(&b.field()),
    }
}

fn position(columns: &[Column], name: &str) -> Result<usize, Failure> {
    columns.iter().position(|c| c.name == name).ok_or_else(|| {
        let known: Vec<&str> = columns.iter().map(|c| c.name).collect();
        Failure::bad_input(format!("no column `{name}`")).with_hint(format!("the columns are: {}", known.join(", ")))
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Contains,
}

/// The longer first.
const RELATIONS: [(&str, Relation); 7] = [
    ("!=", Relation::Unequal),
    ("<=", Relation::LessOrEqual),
    (">=", Relation::GreaterOrEqual),
    ("=", Relation::Equal),
    ("<", Relation::Less),
    (">", Relation::Greater),
    ("~", Relation::Contains),
];

/// What must hold of a row for it to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Only {
    column: String,
    relation: Relation,
    value: String,
}

impl FromStr for Only {
    type Err = String;

    fn from_str(text: &str) -> Result<Only, String> {
        let found = RELATIONS.iter().filter_map(|(sign, relation)| Some((text.find(sign)?, *sign, *relation)));
        // The leftmost; of those in one place the longest.
        let Some((at, sign, relation)) = found.min_by_key(|(at, sign, _)| (*at, usize::MAX - sign.len())) else {
            return Ok(Only { column: VERDICT.to_owned(), relation: Relation::Equal, value: text.to_owned() });
        };
        let (column, value) = (text[..at].trim().to_owned(), text[at + sign.len()..].trim().to_owned());
        if column.is_empty() {
            return Err(format!("no column before `{sign}`"));
        }
        Ok(Only { column, relation, value })
    }
}

impl Only {
    /// Whether there is such a column, and such a verdict, if it is about that.
    fn check(&self, columns: &[Column], verdicts: &[&str]) -> Result<(), Failure> {
        position(columns, &self.column)?;
        let known = || verdicts.iter().any(|v| *v == self.value);
        if self.column == VERDICT && self.relation == Relation::Equal && !known() {
            return Err(Failure::bad_input(format!("no verdict `{}`", self.value))
                .with_hint(format!("the verdicts are: {}", verdicts.join(", "))));
        }
        Ok(())
    }

    /// Whether it holds of a row. A value that is not there is unequal to all.
    fn holds(&self, columns: &[Column], row: &Row) -> Result<bool, Failure> {
        let cell = &row[position(columns, &self.column)?];
        let order = match (cell, cell.number(), self.value.trim_end_matches('%').parse::<f64>()) {
            (Cell::None, _, _) => None,
            (_, Some(is), Ok(wanted)) => is.partial_cmp(&wanted),
            _ => Some(cell.field().as_str().cmp(self.value.as_str())),
        };
        Ok(match self.relation {
            Relation::Equal => order == Some(Ordering::Equal),
            Relation::Unequal => order != Some(Ordering::Equal),
            Relation::Less => order == Some(Ordering::Less),
            Relation::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Relation::Greater => order == Some(Ordering::Greater),
            Relation::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
            Relation::Contains => cell.field().contains(&self.value),
        })
    }
}

/// Whether these questions can be put to a table.
///
/// # Errors
/// If there is no such column or verdict.
pub fn check(shape: Shape, sort: Option<&Sort>, only: &[Only]) -> Result<(), Failure> {
    sort.map_or(Ok(()), |sort| sort.check(shape.columns))?;
    only.iter().try_for_each(|o| o.check(shape.columns, shape.verdicts))
}

/// The rows of which all of `only` holds, in the order asked for.
///
/// # Errors
/// If there is no such column.
pub fn choose(shape: Shape, all: Vec<Row>, sort: Option<&Sort>, only: &[Only]) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for row in all {
        let holds = only.iter().map(|o| o.holds(shape.columns, &row)).collect::<Result<Vec<bool>, _>>()?;
        if holds.iter().all(|holds| *holds) {
            rows.push(row);
        }
    }
    if let Some(sort) = sort {
        sort.sort(shape.columns, &mut rows)?;
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [Column::text("object"), Column::number("after"), Column::text(VERDICT)];

    fn rows() -> Vec<Row> {
        let row = |name: &str, after: Cell, verdict: &str| vec![Cell::text(name), after, Cell::text(verdict)];
        vec![
            row("b.o", Cell::Count(7), "changed"),
            row("a.o", Cell::None, "failed"),
            row("c.o", Cell::Count(30), "unchanged"),
        ]
    }

    fn names(rows: &[Row]) -> Vec<String> {
        rows.iter().map(|r| r[0].field()).collect()
    }

    #[test]
    fn numbers_are_sorted_from_the_largest_and_names_from_a() {
        let sorted = |by: &str| {
            let mut rows = rows();
            by.parse::<Sort>().expect("it parses").sort(&COLUMNS, &mut rows).expect("a column");
            names(&rows)
        };
        assert_eq!(sorted("after"), ["c.o", "b.o", "a.o"]);
        assert_eq!(sorted("after:asc"), ["b.o", "c.o", "a.o"], "what has no value comes last");
        assert_eq!(sorted("object"), ["a.o", "b.o", "c.o"]);
        assert_eq!(sorted("object:desc"), ["c.o", "b.o", "a.o"]);
        assert!("after:up".parse::<Sort>().is_err());
        assert!("size".parse::<Sort>().expect("it parses").check(&COLUMNS).is_err());
    }

    #[test]
    fn rows_are_chosen_by_verdict_or_by_any_column() {
        let chosen = |only: &str| {
            let only: Only = only.parse().expect("it parses");
            let holds = |r: &Row| only.holds(&COLUMNS, r).expect("a column");
            names(&rows().into_iter().filter(holds).collect::<Vec<_>>())
        };
        assert_eq!(chosen("changed"), ["b.o"]);
        assert_eq!(chosen("verdict!=changed"), ["a.o", "c.o"]);
        assert_eq!(chosen("after>=7"), ["b.o", "c.o"]);
        assert_eq!(chosen("after<30"), ["b.o"]);
        assert_eq!(chosen("after!=7"), ["a.o", "c.o"]);
        assert_eq!(chosen("object~c"), ["c.o"]);
        assert!("=3".parse::<Only>().is_err());
        let unknown: Only = "chnaged".parse().expect("it parses");
        assert!(unknown.check(&COLUMNS, &["changed"]).is_err());
    }
}
