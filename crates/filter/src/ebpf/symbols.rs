//! Names that objects have for their own things: nothing of the user may be called so.

/// The parts of tables.
pub(super) const BITMAP: &str = "bitmap";
pub(super) const SLOTS: &str = "slots";
pub(super) const DISPLACEMENTS: &str = "displacements";
/// The beginning of a column's.
const WORD: &str = "word";

/// The part of a table that holds a word of each key.
pub(super) fn column_name(word: usize) -> String {
    format!("{WORD}{word}")
}

/// The variable that holds a part of a table.
pub(super) fn table_name(i: usize, part: &str) -> String {
    format!("{part}_{i}")
}

/// Whether a variable that holds a part of a table may be called so.
fn is_table_name(name: &str) -> bool {
    let Some((part, _)) = name.split_once('_') else { return false };
    let is_column = part.strip_prefix(WORD).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    is_column || [BITMAP, SLOTS, DISPLACEMENTS].contains(&part)
}

/// Whether programs and functions may have something of this name, and those that they are linked to.
pub(super) fn is_symbol(name: &str) -> bool {
    ["license", "_license"].contains(&name) || is_table_name(name)
}
