//! `opt --diff`: what changed, side by side, for a terminal.
//!
//! Only blocks with a change are shown, unless all are asked for. Of a line that differs in nothing but the distance of its
//! jump there is a `~` between the columns.

use std::fmt::Write;
use std::io::IsTerminal;

use bpf_driver::{FunctionReport, Report};
use bpf_object::{FuncId, Object};
use rustix::termios::tcgetwinsize;

use crate::beside::{Beside, Mark, Row, Side};
use crate::listing;

/// Columns where the output is no terminal.
const WIDTH: usize = 160;
/// The least: two columns in which an instruction is still readable.
const NARROWEST: usize = 60;
/// Columns that a mark takes.
const MARK: usize = 3;

/// What to show, and how.
pub struct Options {
    /// All blocks, not the changed ones only.
    pub full: bool,
    /// Source lines, too.
    pub lines: bool,
}

/// Colours, or none.
#[derive(Clone, Copy)]
struct Palette {
    removed: &'static str,
    added: &'static str,
    title: &'static str,
    dim: &'static str,
    reset: &'static str,
}

const PLAIN: Palette = Palette { removed: "", added: "", title: "", dim: "", reset: "" };
const COLOUR: Palette =
    Palette { removed: "\x1b[31m", added: "\x1b[32m", title: "\x1b[1m", dim: "\x1b[2m", reset: "\x1b[0m" };

/// All changed functions, for standard output.
pub fn report(report: &Report, before: &Object, after: &Object, options: &Options) -> String {
    let out = std::io::stdout();
    let colour = out.is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let palette = if colour { COLOUR } else { PLAIN };
    let width = tcgetwinsize(&out).map_or(WIDTH, |size| size.ws_col.into());
    // A terminal that does not know its width says 0.
    let width = if width == 0 { WIDTH } else { width.max(NARROWEST) };
    let mut table = Table { text: String::new(), column: (width - MARK) / 2, palette };
    for (i, f) in report.functions.iter().enumerate().filter(|(_, f)| is_changed(f)) {
        let Palette { title, reset, .. } = palette;
        let (name, section) = (&f.name, &f.section);
        let head = format!("{title}{name} ({section}): {} -> {} slots{reset}", f.slots_before, f.slots_after);
        table.text += &(head + "\n");
        table.function(&Beside::of(before, after, FuncId(i)), options);
        table.text.push('\n');
    }
    if table.text.is_empty() {
        table.text.push_str("no function changed\n");
    }
    table.text
}

/// Whether the function's code is another than before.
pub fn is_changed(f: &FunctionReport) -> bool {
    f.slots_before != f.slots_after || f.listing_before != f.listing_after
}

/// A text that grows by rows of two columns.
struct Table {
    text: String,
    column: usize,
    palette: Palette,
}

impl Table {
    fn function(&mut self, both: &Beside, options: &Options) {
        let mut left_out = 0;
        let mut source = None;
        for block in both.blocks() {
            if !options.full && !both.is_changed(block.clone()) {
                left_out += block.len();
                continue;
            }
            self.left_out(std::mem::take(&mut left_out));
            for row in &both.rows[block] {
                if options.lines {
                    self.source(both, row, &mut source);
                }
                self.row(both, row);
            }
        }
        self.left_out(left_out);
    }

    fn left_out(&mut self, count: usize) {
        let Palette { dim, reset, .. } = self.palette;
        let lines = match count {
            0 => return,
            1 => "1 instruction".to_owned(),
            n => format!("{n} instructions"),
        };
        let _ = writeln!(self.text, "{dim}… {lines} unchanged{reset}");
    }

    /// The source line of a row, unless it is the last one that was told.
    fn source(&mut self, both: &Beside, row: &Row, last: &mut Option<String>) {
        let of = |side: &Side, line: Option<usize>| side.source(side.lines[line?].slot).map(listing::source);
        let told = of(&both.before, row.before).or_else(|| of(&both.after, row.after));
        if told.is_some() && told != *last {
            let Palette { dim, reset, .. } = self.palette;
            let line = fit(told.as_deref().unwrap_or_default(), 2 * self.column);
            let _ = writeln!(self.text, "{dim}; {line}{reset}");
            *last = told;
        }
    }

    fn row(&mut self, both: &Beside, row: &Row) {
        let Palette { removed, added, reset, .. } =
            if matches!(row.mark, Mark::Same | Mark::Moved) { PLAIN } else { self.palette };
        let column = self.column;
        let line = |side: &Side, line: Option<usize>| {
            let line = line.map(|i| &side.lines[i]);
            fit(&line.map_or(String::new(), |l| format!("{:4}: {}", l.slot, l.whole())), column)
        };
        let (left, right) = (line(&both.before, row.before), line(&both.after, row.after));
        let padding = " ".repeat(column - left.chars().count());
        let line = format!("{removed}{left}{reset}{padding} {} {added}{right}{reset}", row.mark.character());
        let _ = writeln!(self.text, "{}", line.trim_end());
    }
}

/// The line in at most so many columns.
fn fit(line: &str, columns: usize) -> String {
    let line = line.replace('\t', " ");
    match line.char_indices().nth(columns - 1) {
        Some((cut, _)) if line.chars().count() > columns => format!("{}…", &line[..cut]),
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::beside::tests::beside;

    fn shown(before: &[&str], after: &[&str], full: bool) -> String {
        let mut table = Table { text: String::new(), column: 76, palette: PLAIN };
        table.function(&beside(before, after), &Options { full, lines: false });
        // Narrower, to be readable here.
        table.text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ") + "\n").collect()
    }

    const BEFORE: [&str; 6] =
        ["0: r1 = 0x0", "1: if r2 == 0x0 goto +0x2", "2: r3 = r4", "3: r0 = 0x1", "4: >r0 = 0x2", "5: exit"];
    const AFTER: [&str; 5] = ["0: r1 = 0x0", "1: if r2 == 0x0 goto +0x1", "2: r0 = 0x1", "3: >r0 = 0x2", "4: exit"];

    #[test]
    fn changed_blocks_alone_are_shown() {
        assert_eq!(
            shown(&BEFORE, &AFTER, false),
            "… 2 instructions unchanged\n\
             2: r3 = r4 <\n\
             3: r0 = 0x1 2: r0 = 0x1\n\
             … 2 instructions unchanged\n"
        );
    }

    #[test]
    fn all_are_shown_if_asked_for() {
        assert_eq!(
            shown(&BEFORE, &AFTER, true),
            "0: r1 = 0x0 0: r1 = 0x0\n\
             1: if r2 == 0x0 goto +0x2 ~ 1: if r2 == 0x0 goto +0x1\n\
             2: r3 = r4 <\n\
             3: r0 = 0x1 2: r0 = 0x1\n\
             4: r0 = 0x2 3: r0 = 0x2\n\
             5: exit 4: exit\n"
        );
    }

    #[test]
    fn rows_fit_in_160_columns() {
        let long = "0: ".to_owned() + &"ä".repeat(300);
        let mut table = Table { text: String::new(), column: (WIDTH - MARK) / 2, palette: PLAIN };
        table.function(&beside(&[&long], &[&format!("{long}x")]), &Options { full: false, lines: false });
        assert!(table.text.lines().all(|l| l.chars().count() <= WIDTH), "{}", table.text);
    }
}
