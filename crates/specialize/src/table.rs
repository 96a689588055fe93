//! The elements of a map as a table in read-only data.
//!
//! Each row holds a key in whole words, and its value where programs read values. Rows stand in the order of the slots of
//! a perfect hash of the folded keys ([`Layout::Hash`]), in that of the elements ([`Layout::Few`]), or in that of an
//! array's numbers ([`Layout::Array`]).

use bpf_perfect_hash::PerfectHash;

use crate::declared::Element;

/// So many keys of one word are compared one after the other (for filters, a search by comparing was the fastest up to 8).
const FEW: usize = 8;

/// Where the row of a key is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// The key is compared with one row after the other.
    Few,
    /// In the slot that the folded key is sent to.
    Hash {
        /// Folds keys of several words: `f = first; f = f * multiplier ^ next; …`.
        multiplier: u32,
        /// Whether upper halves are mixed into lower ones, of the folded key and before each word: keys that differ in their last
        /// bytes alone (the addresses of a network) would be sent to few slots, and pairs of them be folded to one number.
        mixed: bool,
        /// Of the folded keys.
        hash: PerfectHash,
        /// Where the displacements are in the table.
        displacements: u32,
    },
    /// The key is the number of the row.
    Array,
}

/// A table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Table {
    pub(crate) layout: Layout,
    /// Bytes of a key.
    pub(crate) key_size: u32,
    /// Of each row the words of its key.
    pub(crate) keys: Vec<Vec<u32>>,
    /// Of each row the value's bytes.
    values: Vec<Vec<u8>>,
    /// Bytes of a row.
    pub(crate) stride: u32,
    /// Where in a row the value is.
    pub(crate) value_at: u32,
    /// All bytes.
    pub(crate) bytes: Vec<u8>,
}

/// The words of a key; what is missing from the last one is 0.
pub(crate) fn words(key: &[u8]) -> Vec<u32> {
    let word = |part: &[u8]| part.iter().rev().fold(0, |n, byte| n << 8 | u32::from(*byte));
    key.chunks(4).map(word).collect()
}

fn folded(key: &[u32], multiplier: u32, mixed: bool) -> u32 {
    let mix = |f: u32| if mixed { f ^ f >> 16 } else { f };
    mix(key.iter().copied().reduce(|f, word| mix(f).wrapping_mul(multiplier) ^ word).unwrap_or_default())
}

impl Layout {
    /// How many rows there are to send keys to.
    fn slots(&self) -> usize {
        if let Layout::Hash { hash, .. } = self { hash.slots.len() } else { 0 }
    }

    /// The row that a key is sent to.
    pub(crate) fn slot(&self, key: &[u32]) -> usize {
        let Layout::Hash { multiplier, mixed, hash, .. } = self else { return 0 };
        hash.slot(folded(key, *multiplier, *mixed))
    }
}

impl Table {
    /// The table of a hash map's elements, which are not none; `None` if no perfect hash of them is found.
    pub(crate) fn of_hash(elements: &[Element], key_size: u32, with_values: bool, only_hashes: bool) -> Option<Table> {
        let keys: Vec<Vec<u32>> = elements.iter().map(|(key, _)| words(key)).collect();
        if keys.len() <= FEW && key_size <= 4 && !only_hashes {
            let rows = elements.iter().map(|(key, value)| (words(key), value.clone())).collect();
            return Some(Table::of_rows(Layout::Few, key_size, rows, with_values));
        }
        let attempt = |(multiplier, mixed): (u32, bool)| {
            let mut all: Vec<u32> = keys.iter().map(|key| folded(key, multiplier, mixed)).collect();
            all.sort_unstable();
            // Keys that are folded to one number stand in no two slots.
            let are_different = all.windows(2).all(|two| two.first() != two.last());
            let hash = if are_different { PerfectHash::of(&all)? } else { return None };
            Some(Layout::Hash { multiplier, mixed, hash, displacements: 0 })
        };
        // Of keys of one word the multiplier does not count.
        let multiplier = |i: u32| 0x85eb_ca6bu32.wrapping_add(i.wrapping_mul(0x2545_f492)) | 1;
        let attempts = if key_size <= 4 { 1 } else { 16 };
        let layout =
            [false, true].into_iter().flat_map(|m| (0..attempts).map(move |i| (multiplier(i), m))).find_map(attempt)?;
        // A slot without a member holds one that is sent elsewhere.
        let (key, value) = elements.first()?;
        let mut rows = vec![(words(key), vec![0; value.len()]); layout.slots()];
        for (key, value) in elements {
            let key = words(key);
            if let Some(row) = rows.get_mut(layout.slot(&key)) {
                *row = (key, value.clone());
            }
        }
        Some(Table::of_rows(layout, key_size, rows, with_values))
    }

    /// The table of an array of so many elements; those that are not given are 0.
    pub(crate) fn of_array(elements: &[Element], entries: u32, value_size: u32) -> Table {
        let mut rows = vec![(Vec::new(), vec![0; value_size as usize]); entries as usize];
        for (key, value) in elements {
            let number = words(key).first().copied().unwrap_or_default();
            if let Some(row) = rows.get_mut(number as usize) {
                row.1.clone_from(value);
            }
        }
        Table::of_rows(Layout::Array, 4, rows, true)
    }

    fn of_rows(layout: Layout, key_size: u32, rows: Vec<(Vec<u32>, Vec<u8>)>, with_values: bool) -> Table {
        let key_words = rows.first().map_or(0, |(key, _)| key.len() as u32);
        let value_size = rows.first().filter(|_| with_values).map_or(0, |(_, value)| value.len() as u32);
        let value_at = if with_values { (key_words * 4).next_multiple_of(8) } else { 0 };
        let stride = if with_values { (value_at + value_size).next_multiple_of(8) } else { key_words * 4 };
        let mut bytes = Vec::with_capacity(rows.len() * stride as usize);
        for (key, value) in &rows {
            let start = bytes.len();
            bytes.extend(key.iter().flat_map(|word| word.to_le_bytes()));
            if with_values {
                bytes.resize(start + value_at as usize, 0);
                bytes.extend_from_slice(value);
            }
            bytes.resize(start + stride as usize, 0);
        }
        let layout = match layout {
            Layout::Hash { multiplier, mixed, hash, .. } => {
                let displacements = bytes.len() as u32;
                bytes.extend(hash.displacements.iter().flat_map(|d| d.to_le_bytes()));
                Layout::Hash { multiplier, mixed, hash, displacements }
            }
            other => other,
        };
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let (keys, values) = rows.into_iter().unzip();
        Table { layout, key_size, keys, values, stride, value_at, bytes }
    }

    /// The value in a row.
    pub(crate) fn value(&self, row: usize) -> &[u8] {
        self.values.get(row).map_or(&[], Vec::as_slice)
    }
}
