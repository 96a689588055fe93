//! Sets of keys of several words: Ethernet and IPv6 addresses, and the beginnings of IPv6 networks.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// No key has more words.
pub(crate) const MOST_WORDS: usize = 4;

/// Keys that are shared: the same ones are equal, others are not, whatever they hold.
#[derive(Clone, Debug)]
pub(crate) struct Members(pub(crate) Arc<Tuples>);

impl PartialEq for Members {
    fn eq(&self, other: &Members) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Members {}

impl Hash for Members {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

/// A set of keys of the same number of words, in order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Tuples {
    width: usize,
    /// Of each key its words; those behind its width are 0.
    keys: Vec<[u32; MOST_WORDS]>,
}

impl Tuples {
    /// The set of some keys of 1 to [`MOST_WORDS`] words. Of longer ones the rest is left out, of shorter ones it is 0.
    pub(crate) fn of(width: usize, keys: impl IntoIterator<Item = Vec<u32>>) -> Tuples {
        let width = width.clamp(1, MOST_WORDS);
        let padded = |key: Vec<u32>| {
            let mut words = [0; MOST_WORDS];
            words.iter_mut().zip(key).take(width).for_each(|(to, word)| *to = word);
            words
        };
        let mut keys: Vec<[u32; MOST_WORDS]> = keys.into_iter().map(padded).collect();
        keys.sort_unstable();
        keys.dedup();
        Tuples { width, keys }
    }

    /// How many words a key has.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// How many keys.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// All keys, to be divided.
    pub(crate) fn keys(&self) -> Keys<'_> {
        Keys(&self.keys)
    }

    /// The keys, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u32]> {
        self.keys.iter().map(|key| &key[..self.width])
    }

    pub(crate) fn contains(&self, key: &[u32]) -> bool {
        key.len() == self.width && self.beginning_with(key).next().is_some()
    }

    /// The keys that begin with some words.
    pub(crate) fn beginning_with(&self, first: &[u32]) -> impl Iterator<Item = &[u32]> {
        let n = first.len().min(self.width);
        let from = self.keys.partition_point(|key| key[..n] < first[..n]);
        let many = self.keys[from..].partition_point(|key| key[..n] == first[..n]);
        self.keys[from..from + many].iter().map(|key| &key[..self.width])
    }

    /// The words that follow some first ones, each once, in order.
    pub(crate) fn next_words(&self, first: &[u32]) -> Vec<u32> {
        let mut words: Vec<u32> = self.beginning_with(first).filter_map(|key| key.get(first.len()).copied()).collect();
        words.dedup();
        words
    }

    /// The beginnings of keys: each of `width` words once.
    pub(crate) fn beginnings(&self, width: usize) -> Tuples {
        Tuples::of(width, self.iter().map(|key| key[..width.min(self.width)].to_vec()))
    }
}

/// Some keys of a set that follow each other.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Keys<'a>(&'a [[u32; MOST_WORDS]]);

impl<'a> Keys<'a> {
    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    /// A word of the first key.
    pub(crate) fn word(self, word: usize) -> Option<u32> {
        Some(self.0.first()?[word])
    }

    /// Of keys that are equal before a word, those whose word is smaller, and the others.
    pub(crate) fn split(self, word: usize, from: u32) -> (Keys<'a>, Keys<'a>) {
        let (smaller, others) = self.0.split_at(self.0.partition_point(|key| key[word] < from));
        (Keys(smaller), Keys(others))
    }
}
