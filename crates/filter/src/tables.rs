//! Lookup tables: sets that a few operations decide, however many members there are (BPF+, section 6.3).

use bpf_perfect_hash::PerfectHash;

use crate::intervals::Intervals;
use crate::tuples::Tuples;

/// A table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Table {
    /// One bit a number, from `first` on.
    Bitmap { first: u32, words: Vec<u32> },
    /// A perfect hash: each member stands in the slot that it is sent to.
    Hash(PerfectHash),
    /// A perfect hash of keys of several words.
    Tuples(TupleHash),
}

/// A perfect hash of keys of several words, which are folded to one: `f = first; f = f * multiplier ^ next; …`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TupleHash {
    /// Odd.
    pub(crate) multiplier: u32,
    /// Finds the slot of a folded key; its slots hold folded keys.
    pub(crate) hash: PerfectHash,
    /// By word of the key what stands in each slot. Slots without a member hold a member that is sent elsewhere.
    pub(crate) columns: Vec<Vec<u32>>,
}

/// Operations that a lookup counts as in the interpreter, without the load of what is looked up.
pub(crate) const BITMAP_OPERATIONS: u64 = 6;
/// Operations of a lookup in a perfect hash: multiply, shift, exclusive or, shift, load, exclusive or, mask, load, compare.
pub(crate) const HASH_OPERATIONS: u64 = 9;
/// What each further word of a key costs: multiply, exclusive or, load, compare.
pub(crate) const WORD_OPERATIONS: u64 = 4;

impl Table {
    /// How many words a key has.
    pub(crate) fn width(&self) -> usize {
        match self {
            Table::Bitmap { .. } | Table::Hash(_) => 1,
            Table::Tuples(tuples) => tuples.columns.len(),
        }
    }

    /// Whether a key is a member: as many words as the table's keys have.
    pub(crate) fn contains(&self, key: &[u32]) -> bool {
        match (self, key) {
            (Table::Bitmap { first, words }, [x]) => {
                let i = x.wrapping_sub(*first);
                words.get((i >> 5) as usize).is_some_and(|w| w >> (i & 31) & 1 == 1)
            }
            (Table::Hash(hash), [x]) => hash.slots[hash.slot(*x)] == *x,
            (Table::Tuples(tuples), key) => tuples.contains(key),
            _ => false,
        }
    }

    /// What a lookup counts.
    pub(crate) fn operations(&self) -> u64 {
        match self {
            Table::Bitmap { .. } => BITMAP_OPERATIONS,
            Table::Hash(_) => HASH_OPERATIONS,
            Table::Tuples(tuples) => HASH_OPERATIONS + WORD_OPERATIONS * (tuples.columns.len() as u64 - 1),
        }
    }

    /// A bitmap of a set whose numbers are close together.
    pub(crate) fn bitmap(set: &Intervals) -> Option<Table> {
        const WIDEST: u32 = 1 << 16;
        let (first, last) = (set.as_slice().first()?.0 & !31, set.as_slice().last()?.1);
        if last - first >= WIDEST {
            return None;
        }
        let mut words = vec![0u32; ((last - first) >> 5) as usize + 1];
        for (low, high) in set.as_slice() {
            for x in *low..=*high {
                words[((x - first) >> 5) as usize] |= 1 << ((x - first) & 31);
            }
        }
        Some(Table::Bitmap { first, words })
    }

    /// A perfect hash of numbers, and `None` if none is found.
    pub(crate) fn hash(members: &[u32]) -> Option<Table> {
        PerfectHash::of(members).map(Table::Hash)
    }

    /// A perfect hash of keys of several words, and `None` if none is found.
    pub(crate) fn tuples(members: &Tuples) -> Option<Table> {
        (0..64u32)
            .find_map(|i| TupleHash::new(members, 0x85eb_ca6bu32.wrapping_add(i.wrapping_mul(0x2545_f492))))
            .map(Table::Tuples)
    }

    /// The certificate: the table holds the members and nothing else. A hit needs equality, and an equal number is sent to the same
    /// slot, so it is enough that each member is found and that each slot holds a member or what is sent elsewhere.
    pub(crate) fn is_of(&self, members: &Intervals) -> bool {
        match self {
            Table::Bitmap { first, words } => {
                (0..words.len() as u64 * 32).all(|i| {
                    let x = u64::from(*first) + i;
                    u32::try_from(x).map_or(words[(i / 32) as usize] >> (i % 32) & 1 == 0, |x| {
                        self.contains(&[x]) == members.contains(x)
                    })
                }) && members
                    .as_slice()
                    .iter()
                    .all(|(low, high)| low >= first && u64::from(*high) < u64::from(*first) + words.len() as u64 * 32)
            }
            Table::Hash(hash) => {
                let all_found =
                    members.as_slice().iter().all(|(low, high)| (*low..=*high).all(|x| self.contains(&[x])));
                let no_other = hash.slots.iter().enumerate().all(|(i, x)| hash.slot(*x) != i || members.contains(*x));
                all_found && no_other
            }
            Table::Tuples(_) => false,
        }
    }

    /// The certificate of a table of keys of several words, as [`Table::is_of`] for numbers.
    pub(crate) fn is_of_tuples(&self, members: &Tuples) -> bool {
        let Table::Tuples(table) = self else { return false };
        table.columns.len() == members.width()
            && members.iter().all(|key| table.contains(key))
            && table.found().all(|key| members.contains(&key))
    }
}

impl TupleHash {
    /// A key as one number.
    pub(crate) fn folded(&self, key: &[u32]) -> u32 {
        key.iter().copied().reduce(|f, word| f.wrapping_mul(self.multiplier) ^ word).unwrap_or_default()
    }

    /// The slot that a key is sent to.
    pub(crate) fn slot(&self, key: &[u32]) -> usize {
        self.hash.slot(self.folded(key))
    }

    fn contains(&self, key: &[u32]) -> bool {
        let slot = self.slot(key);
        key.len() == self.columns.len() && self.columns.iter().zip(key).all(|(column, word)| column[slot] == *word)
    }

    /// The keys that a lookup finds. A hit needs equality with what is in the slot, so that only what stands in the slot that it is
    /// sent to is found.
    pub(crate) fn found(&self) -> impl Iterator<Item = Vec<u32>> {
        let keys = (0..self.hash.slots.len()).map(|i| self.columns.iter().map(|c| c[i]).collect::<Vec<u32>>());
        keys.enumerate().filter(|(i, key)| self.slot(key) == *i).map(|(_, key)| key)
    }

    fn new(members: &Tuples, multiplier: u32) -> Option<TupleHash> {
        let multiplier = multiplier | 1;
        let mut tuples =
            TupleHash { multiplier, hash: PerfectHash::empty(), columns: vec![Vec::new(); members.width()] };
        let mut folded: Vec<u32> = members.iter().map(|key| tuples.folded(key)).collect();
        folded.sort_unstable();
        // Keys that are folded to one number stand in no two slots.
        if folded.windows(2).any(|two| two[0] == two[1]) {
            return None;
        }
        let Table::Hash(hash) = Table::hash(&folded)? else { return None };
        tuples.hash = hash;
        let any = members.iter().next()?;
        for (word, column) in tuples.columns.iter_mut().enumerate() {
            *column = vec![any[word]; tuples.hash.slots.len()];
        }
        for key in members.iter() {
            let slot = tuples.slot(key);
            for (column, word) in tuples.columns.iter_mut().zip(key) {
                column[slot] = *word;
            }
        }
        Some(tuples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_hold_their_members_and_nothing_else() {
        for n in [3u32, 65, 1000, 10_000] {
            let members: Vec<u32> = (0..n).map(|i| i.wrapping_mul(2_654_435_761) ^ 0x5bd1_e995).collect();
            let set = Intervals::of(members.iter().map(|x| (*x, *x)).collect());
            let table = Table::hash(&members).unwrap();
            assert!(table.is_of(&set), "{n}");
            assert!(!table.is_of(&set.union(&Intervals::one(77))));
            let mut damaged = table.clone();
            if let Table::Hash(hash) = &mut damaged {
                let slot = hash.slot(members[0]);
                hash.slots[slot] ^= 1;
            }
            assert!(!damaged.is_of(&set));
        }
        let ports = Intervals::of(vec![(20, 25), (80, 80), (8000, 8999), (65535, 65535)]);
        let bitmap = Table::bitmap(&ports).unwrap();
        assert!(bitmap.is_of(&ports));
        assert!((0..=65535).all(|x| bitmap.contains(&[x]) == ports.contains(x)));
    }
    #[test]
    fn tables_of_several_words_hold_their_members_and_nothing_else() {
        let number = |i: u32| i.wrapping_mul(2_654_435_761) ^ 0x5bd1_e995;
        for (width, n) in [(2, 1u32), (2, 70), (3, 1000), (4, 10_000)] {
            // Members share words, so that a hit needs all of them.
            let keys = (0..n).map(|i| (0..width).map(|w| number(i >> w & 0xff | w << 20)).collect());
            let members = Tuples::of(width as usize, keys);
            let table = Table::tuples(&members).unwrap();
            assert!(table.is_of_tuples(&members), "{width} {n}");
            let key = members.iter().last().unwrap().to_vec();
            for word in 0..key.len() {
                let mut other = key.clone();
                other[word] ^= 1;
                assert!(!table.contains(&other));
            }
            let damaged = |column: usize| {
                let mut damaged = table.clone();
                if let Table::Tuples(tuples) = &mut damaged {
                    let slot = tuples.slot(&key);
                    tuples.columns[column][slot] ^= 1;
                }
                damaged
            };
            assert!((0..key.len()).all(|column| !damaged(column).is_of_tuples(&members)));
            let more = Tuples::of(width as usize, members.iter().map(<[u32]>::to_vec).chain([vec![7; width as usize]]));
            assert!(!table.is_of_tuples(&more));
        }
    }
}
