//! Two listings side by side.
//!
//! Lines are aligned by what they do, not by where they are: slot numbers and jump distances change whenever anything
//! is deleted, so they do not count as differences. A line that differs in nothing else has `~` between the columns.

use std::fmt::Write;
use std::io::IsTerminal;

use bpf_driver::{FunctionReport, Report};
use similar::{Algorithm, DiffOp, capture_diff_slices};

/// Width of a column; two of them and the mark make less than 160.
const COLUMN: usize = 76;

/// Colours, or none.
#[derive(Clone, Copy)]
struct Palette {
    removed: &'static str,
    added: &'static str,
    title: &'static str,
    reset: &'static str,
}

const PLAIN: Palette = Palette { removed: "", added: "", title: "", reset: "" };
const COLOUR: Palette = Palette { removed: "\x1b[31m", added: "\x1b[32m", title: "\x1b[1m", reset: "\x1b[0m" };

/// All changed functions, for standard output.
pub fn report(report: &Report) -> String {
    let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let palette = if colour { COLOUR } else { PLAIN };
    let mut text = String::new();
    for f in report.functions.iter().filter(|f| is_changed(f)) {
        let Palette { title, reset, .. } = palette;
        let _ =
            writeln!(text, "{title}{} ({}): {} -> {} slots{reset}", f.name, f.section, f.slots_before, f.slots_after);
        side_by_side(&mut text, &f.listing_before, &f.listing_after, palette);
        text.push('\n');
    }
    if text.is_empty() {
        text.push_str("no function changed\n");
    }
    text
}

/// Whether the function's code is another than before.
pub fn is_changed(f: &FunctionReport) -> bool {
    f.slots_before != f.slots_after || f.listing_before != f.listing_after
}

fn side_by_side(text: &mut String, before: &[String], after: &[String], palette: Palette) {
    let keys = |lines: &[String]| lines.iter().map(|l| key(l).to_owned()).collect::<Vec<_>>();
    let (old, new) = (keys(before), keys(after));
    let line = |lines: &[String], i: usize| lines.get(i).cloned().unwrap_or_default();
    for op in capture_diff_slices(Algorithm::Patience, &old, &new) {
        match op {
            DiffOp::Equal { old_index, new_index, len } => {
                for i in 0..len {
                    let (l, r) = (line(before, old_index + i), line(after, new_index + i));
                    let mark = if without_slot(&l) == without_slot(&r) { ' ' } else { '~' };
                    row(text, &l, mark, &r, PLAIN);
                }
            }
            DiffOp::Delete { old_index, old_len, .. } => {
                (0..old_len).for_each(|i| row(text, &line(before, old_index + i), '<', "", palette));
            }
            DiffOp::Insert { new_index, new_len, .. } => {
                (0..new_len).for_each(|i| row(text, "", '>', &line(after, new_index + i), palette));
            }
            DiffOp::Replace { old_index, old_len, new_index, new_len } => {
                for i in 0..old_len.max(new_len) {
                    let l = if i < old_len { line(before, old_index + i) } else { String::new() };
                    let r = if i < new_len { line(after, new_index + i) } else { String::new() };
                    let mark = match (i < old_len, i < new_len) {
                        (true, true) => '|',
                        (true, false) => '<',
                        _ => '>',
                    };
                    row(text, &l, mark, &r, palette);
                }
            }
        }
    }
}

fn row(text: &mut String, left: &str, mark: char, right: &str, palette: Palette) {
    let (left, right) = (fit(left), fit(right));
    let Palette { removed, added, reset, .. } = palette;
    let padding = " ".repeat(COLUMN - left.chars().count());
    let line = format!("{removed}{left}{reset}{padding} {mark} {added}{right}{reset}");
    text.push_str(line.trim_end());
    text.push('\n');
}

/// The line in at most a column.
fn fit(line: &str) -> String {
    let line = line.replace('\t', " ");
    match line.char_indices().nth(COLUMN - 1) {
        Some((cut, _)) if line.chars().count() > COLUMN => format!("{}…", &line[..cut]),
        _ => line,
    }
}

/// What follows `slot:`.
fn without_slot(line: &str) -> &str {
    match line.split_once(':') {
        Some((slot, rest)) if slot.trim().parse::<usize>().is_ok() => rest.trim(),
        _ => line.trim(),
    }
}

/// What is compared: the line without its slot and without the distance of a jump.
fn key(line: &str) -> &str {
    let text = without_slot(line);
    match text.find("goto") {
        Some(at) => text.get(..at + "goto".len()).unwrap_or(text),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(before: &[&str], after: &[&str]) -> String {
        let owned = |lines: &[&str]| lines.iter().map(|l| (*l).to_owned()).collect::<Vec<_>>();
        let mut text = String::new();
        side_by_side(&mut text, &owned(before), &owned(after), PLAIN);
        // Narrower, to be readable here.
        text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ") + "\n").collect()
    }

    #[test]
    fn a_deleted_instruction_moves_nothing_else() {
        let before = ["0: r1 = 0x0", "1: if r2 == 0x0 goto +0x2", "2: r3 = r4", "3: r0 = 0x1", "4: exit"];
        let after = ["0: r1 = 0x0", "1: if r2 == 0x0 goto +0x1", "2: r0 = 0x1", "3: exit"];
        assert_eq!(
            shown(&before, &after),
            "0: r1 = 0x0 0: r1 = 0x0\n\
             1: if r2 == 0x0 goto +0x2 ~ 1: if r2 == 0x0 goto +0x1\n\
             2: r3 = r4 <\n\
             3: r0 = 0x1 2: r0 = 0x1\n\
             4: exit 3: exit\n"
        );
    }

    #[test]
    fn rows_fit_in_160_columns() {
        let long = "0: ".to_owned() + &"ä".repeat(300);
        let mut text = String::new();
        side_by_side(&mut text, std::slice::from_ref(&long), &[format!("{long}x")], PLAIN);
        assert!(text.lines().all(|l| l.chars().count() < 160), "{text}");
    }
}
