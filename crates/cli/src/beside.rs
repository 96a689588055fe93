//! The listings of a function before and after, line beside line.
//!
//! Lines are aligned by what they do, not by where they are: slot numbers and jump distances change whenever anything
//! is deleted, so they do not count as differences.

use std::ops::Range;

use bpf_object::{FuncId, Object, SourceLine};
use similar::{Algorithm, DiffOp, capture_diff_slices};

use crate::listing::{self, Line};

/// One of the two.
pub struct Side {
    /// Its instructions.
    pub lines: Vec<Line>,
    /// Source lines by the first slot that they stand for; in the order of slots.
    source: Vec<(usize, SourceLine)>,
}

impl Side {
    fn of(object: &Object, f: FuncId) -> Side {
        Side { lines: listing::lines(object, f), source: object.source_lines(f) }
    }

    /// The source line of an instruction, where the object tells.
    pub fn source(&self, slot: usize) -> Option<&SourceLine> {
        let behind = self.source.partition_point(|(at, _)| *at <= slot);
        self.source[..behind].last().map(|(_, line)| line)
    }
}

/// How the two lines of a row differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// In nothing but, maybe, their slots.
    Same,
    /// In the distance of a jump.
    Moved,
    /// In what they do.
    Changed,
    /// There is only the one before.
    Removed,
    /// There is only the one after.
    Added,
}

impl Mark {
    /// A character for it.
    pub fn character(self) -> char {
        match self {
            Mark::Same => ' ',
            Mark::Moved => '~',
            Mark::Changed => '|',
            Mark::Removed => '<',
            Mark::Added => '>',
        }
    }
}

/// Two lines beside each other, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// The line before.
    pub before: Option<usize>,
    /// The line after.
    pub after: Option<usize>,
    /// How they differ.
    pub mark: Mark,
}

/// A function before and after.
pub struct Beside {
    /// Before.
    pub before: Side,
    /// After.
    pub after: Side,
    /// Their lines, aligned.
    pub rows: Vec<Row>,
}

impl Beside {
    /// A function of an object and of what was made of it.
    pub fn of(before: &Object, after: &Object, f: FuncId) -> Beside {
        let (before, after) = (Side::of(before, f), Side::of(after, f));
        let rows = rows(&before.lines, &after.lines);
        Beside { before, after, rows }
    }

    /// Rows by basic block, of either side: a block begins where a jump comes to, and ends with one.
    pub fn blocks(&self) -> Vec<Range<usize>> {
        let lines = |row: &Row| {
            [row.before.map(|i| &self.before.lines[i]), row.after.map(|i| &self.after.lines[i])].into_iter().flatten()
        };
        let mut starts = vec![0];
        for (i, pair) in self.rows.windows(2).enumerate() {
            if lines(&pair[0]).any(|l| l.ends_block) || lines(&pair[1]).any(|l| l.is_target) {
                starts.push(i + 1);
            }
        }
        starts.push(self.rows.len());
        starts.windows(2).map(|w| w[0]..w[1]).filter(|block| !block.is_empty()).collect()
    }

    /// Whether a block does something else than before.
    pub fn is_changed(&self, block: Range<usize>) -> bool {
        self.rows[block].iter().any(|row| !matches!(row.mark, Mark::Same | Mark::Moved))
    }
}

fn rows(before: &[Line], after: &[Line]) -> Vec<Row> {
    let keys = |lines: &[Line]| -> Vec<(String, String)> {
        lines.iter().map(|l| (l.key().0.to_owned(), l.key().1.to_owned())).collect()
    };
    let mut rows = Vec::new();
    let mut push = |before, after, mark| rows.push(Row { before, after, mark });
    for op in capture_diff_slices(Algorithm::Patience, &keys(before), &keys(after)) {
        match op {
            DiffOp::Equal { old_index, new_index, len } => {
                for (l, r) in (old_index..old_index + len).zip(new_index..) {
                    let mark = if before[l].text == after[r].text { Mark::Same } else { Mark::Moved };
                    push(Some(l), Some(r), mark);
                }
            }
            DiffOp::Delete { old_index, old_len, .. } => {
                (old_index..old_index + old_len).for_each(|l| push(Some(l), None, Mark::Removed));
            }
            DiffOp::Insert { new_index, new_len, .. } => {
                (new_index..new_index + new_len).for_each(|r| push(None, Some(r), Mark::Added));
            }
            DiffOp::Replace { old_index, old_len, new_index, new_len } => {
                for i in 0..old_len.max(new_len) {
                    let (l, r) = ((i < old_len).then_some(old_index + i), (i < new_len).then_some(new_index + i));
                    let mark = match (l, r) {
                        (Some(_), Some(_)) => Mark::Changed,
                        (Some(_), None) => Mark::Removed,
                        _ => Mark::Added,
                    };
                    push(l, r, mark);
                }
            }
        }
    }
    rows
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Lines from `slot: text`; jumps end blocks, and `>` in front says that one comes there.
    pub fn lines(texts: &[&str]) -> Vec<Line> {
        let line = |text: &&str| {
            let (slot, rest) = text.split_once(": ").expect("a slot");
            let target = rest.strip_prefix('>');
            let text = target.unwrap_or(rest).to_owned();
            let ends_block = text.contains("goto") || text == "exit";
            let slot = slot.parse().expect("a number");
            Line { slot, text, comment: String::new(), is_target: target.is_some(), ends_block }
        };
        texts.iter().map(line).collect()
    }

    /// Two listings beside each other.
    pub fn beside(before: &[&str], after: &[&str]) -> Beside {
        let side = |texts| Side { lines: lines(texts), source: Vec::new() };
        let (before, after) = (side(before), side(after));
        let rows = rows(&before.lines, &after.lines);
        Beside { before, after, rows }
    }

    #[test]
    fn a_deleted_instruction_moves_nothing_else() {
        let before = ["0: r1 = 0x0", "1: if r2 == 0x0 goto +0x2", "2: r3 = r4", "3: r0 = 0x1", "4: exit"];
        let after = ["0: r1 = 0x0", "1: if r2 == 0x0 goto +0x1", "2: r0 = 0x1", "3: exit"];
        let marks: String = beside(&before, &after).rows.iter().map(|r| r.mark.character()).collect();
        assert_eq!(marks, " ~<  ");
    }

    #[test]
    fn blocks_begin_at_targets_and_end_with_jumps() {
        let before =
            ["0: r1 = 0x0", "1: if r2 == 0x0 goto +0x2", "2: r3 = r4", "3: r0 = 0x1", "4: >r0 = 0x2", "5: exit"];
        let after = ["0: r1 = 0x0", "1: if r2 == 0x0 goto +0x1", "2: r0 = 0x1", "3: >r0 = 0x2", "4: exit"];
        let both = beside(&before, &after);
        assert_eq!(both.blocks(), [0..2, 2..4, 4..6]);
        let changed: Vec<bool> = both.blocks().into_iter().map(|b| both.is_changed(b)).collect();
        assert_eq!(changed, [false, true, false]);
        assert!(beside(&[], &[]).blocks().is_empty());
    }
}
