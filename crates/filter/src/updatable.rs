//! Sets that user space changes while a filter runs: maps of the kernel.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::tuples::MOST_WORDS;

/// Which field of a packet is a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Field {
    /// An IPv4 address.
    Ipv4,
    /// An IPv6 address.
    Ipv6,
    /// An Ethernet address.
    Mac,
    /// A port.
    Port,
}

impl Field {
    /// Bytes of the loads that a key is read by, in the packet's order.
    pub(crate) fn words(self) -> &'static [u8] {
        match self {
            Field::Ipv4 => &[4],
            Field::Ipv6 => &[4; MOST_WORDS],
            Field::Mac => &[2, 4],
            Field::Port => &[2],
        }
    }

    /// Bits of the field.
    pub(crate) fn bits(self) -> u32 {
        self.words().iter().map(|bytes| u32::from(*bytes) * 8).sum()
    }

    /// What its keys are, in words.
    pub(crate) fn words_for(self) -> &'static str {
        match self {
            Field::Ipv4 => "IPv4 addresses",
            Field::Ipv6 => "IPv6 addresses",
            Field::Mac => "Ethernet addresses",
            Field::Port => "ports",
        }
    }

    /// What stands behind the name of a set that has several maps.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Field::Ipv4 => "_v4",
            Field::Ipv6 => "_v6",
            Field::Mac => "_mac",
            Field::Port => "_port",
        }
    }
}

/// What the keys of a set are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyKind {
    /// The field.
    pub field: Field,
    /// Whether they are prefixes.
    pub by_prefix: bool,
}

impl KeyKind {
    /// The kind of a name: `ipv4`, `ipv4-net`, `ipv6`, `ipv6-net`, `mac`, `port`.
    pub fn of_name(name: &str) -> Option<KeyKind> {
        let (field, by_prefix) = match name {
            "ipv4" => (Field::Ipv4, false),
            "ipv4-net" => (Field::Ipv4, true),
            "ipv6" => (Field::Ipv6, false),
            "ipv6-net" => (Field::Ipv6, true),
            "mac" => (Field::Mac, false),
            "port" => (Field::Port, false),
            _ => return None,
        };
        Some(KeyKind { field, by_prefix })
    }
}

/// How a set becomes maps.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Updatable {
    /// What its keys are; nothing: what its entries are.
    pub kinds: Vec<KeyKind>,
    /// How many elements a map takes at most; `None`: 1024, or twice as many as there are, if that is more.
    pub max_entries: Option<u32>,
}

/// A map: the part of a set that is about one field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetMap {
    pub(crate) set: String,
    pub(crate) name: String,
    pub(crate) field: Field,
    pub(crate) by_prefix: bool,
    /// Whether its entries, or what was said of them, are networks.
    pub(crate) has_networks: bool,
    /// Whether the filter asks for one element that is source and destination.
    pub(crate) is_paired: bool,
    pub(crate) max_entries: u32,
    /// Length in bits, and the bits.
    pub(crate) entries: BTreeSet<(u32, u128)>,
}

impl SetMap {
    /// The set that it is, or is a part of.
    pub fn set(&self) -> &str {
        &self.set
    }

    /// What it is called in the kernel.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its keys are.
    pub fn field(&self) -> Field {
        self.field
    }

    /// Whether it is a trie of prefixes (`BPF_MAP_TYPE_LPM_TRIE`), and not a hash map.
    pub fn is_by_prefix(&self) -> bool {
        self.by_prefix
    }

    /// Bytes of a key.
    pub fn key_size(&self) -> u32 {
        self.field.bits() / 8 + if self.by_prefix { 4 } else { 0 }
    }

    /// Whether a key, word by word, is in it.
    pub(crate) fn contains(&self, words: impl Iterator<Item = u32>) -> bool {
        let sizes = self.field.words().iter();
        let key = sizes.zip(words).fold(0, |key, (bytes, word)| key << (8 * bytes) | u128::from(word));
        // At most one question for each length.
        let mut length = self.entries.first().map(|(length, _)| *length);
        while let Some(n) = length {
            if self.entries.contains(&(n, key & self.mask(n))) {
                return true;
            }
            length = self.entries.range((n + 1, 0)..).next().map(|(length, _)| *length);
        }
        false
    }

    /// The first bits of a key.
    pub(crate) fn mask(&self, length: u32) -> u128 {
        let bits = self.field.bits();
        let all = u128::MAX >> (128 - bits);
        all & !all.checked_shr(length).unwrap_or(0)
    }

    /// The keys as the kernel takes them: the field as it stands in the packet; behind a prefix's length, if it is a trie of them
    /// (`struct bpf_lpm_trie_key_u8`; the length is little-endian, as objects are).
    pub fn keys(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        let skipped = 16 - self.field.bits() as usize / 8;
        self.entries.iter().map(move |(length, bits)| {
            let length = if self.by_prefix { length.to_le_bytes().to_vec() } else { Vec::new() };
            [&length[..], &bits.to_be_bytes()[skipped..]].concat()
        })
    }

    /// The contents as lines for `bpftool batch file`.
    pub fn batch(&self) -> String {
        let mut out = String::new();
        for key in self.keys() {
            let key: Vec<String> = key.iter().map(ToString::to_string).collect();
            let _ = writeln!(out, "map update name {} key {} value 1", self.name, key.join(" "));
        }
        out
    }
}
