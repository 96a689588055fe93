//! Maps as the kernel's helpers see them (`kernel/bpf/arraymap.c`, `hashtab.c`, `lpm_trie.c`), on one CPU.
//!
//! A map only knows which key has which value *address*: values are memory of the host, since programs keep
//! pointers to them.

use std::collections::BTreeMap;

use bpf_platform::{ByteOrder, maps as kind};

/// Errors as helpers return them.
pub(super) mod errno {
    pub const ENOENT: i64 = -2;
    pub const E2BIG: i64 = -7;
    pub const ENOMEM: i64 = -12;
    pub const EACCES: i64 = -13;
    pub const EFAULT: i64 = -14;
    pub const EEXIST: i64 = -17;
    pub const EINVAL: i64 = -22;
    pub const EOPNOTSUPP: i64 = -95;
    pub const ENOSPC: i64 = -28;
    pub const ERANGE: i64 = -34;
}
use errno::{E2BIG, EEXIST, EINVAL, ENOENT, ENOSPC, EOPNOTSUPP};

/// A map's definition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapSpec {
    /// Symbol name.
    pub name: String,
    /// `enum bpf_map_type`.
    pub map_type: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// The most elements it takes.
    pub max_entries: u32,
}

/// What kind of container a map is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    Array,
    Hash {
        evicts: bool,
    },
    Trie,
    /// Lookups give null, changes are refused: maps of programs, devices, sockets, maps.
    Empty,
}

/// A map with its elements.
#[derive(Clone, Debug)]
pub(super) struct Map {
    pub spec: MapSpec,
    /// Key to the address of the value. An array's elements appear when they are first asked for.
    elements: BTreeMap<Vec<u8>, u64>,
    /// Keys of a hash, least recently added first.
    order: Vec<Vec<u8>>,
    /// Of the numbers in keys: indices and prefix lengths.
    byte_order: ByteOrder,
}

/// What an update has to do with memory.
pub(super) enum Update {
    /// Write the value there.
    InPlace(u64),
    /// Put the value somewhere new and call [`Map::place`] with this key.
    Place(Vec<u8>),
}

impl Map {
    pub fn new(spec: MapSpec, byte_order: ByteOrder) -> Map {
        Map { spec, elements: BTreeMap::new(), order: vec![], byte_order }
    }

    fn shape(&self) -> Shape {
        match self.spec.map_type {
            kind::ARRAY | kind::PERCPU_ARRAY => Shape::Array,
            kind::HASH | kind::PERCPU_HASH => Shape::Hash { evicts: false },
            kind::LRU_HASH | kind::LRU_PERCPU_HASH => Shape::Hash { evicts: true },
            kind::LPM_TRIE => Shape::Trie,
            _ => Shape::Empty,
        }
    }

    /// Per-CPU hashes keep an element's memory when they are updated; the others take a new one.
    fn updates_in_place(&self) -> bool {
        kind::is_array(self.spec.map_type) || kind::is_per_cpu(self.spec.map_type)
    }

    /// Whether the key is one of an array whose element has no memory yet.
    pub fn is_untouched_element(&self, key: &[u8]) -> bool {
        self.shape() == Shape::Array && self.index(key).is_some() && !self.elements.contains_key(key)
    }

    fn index(&self, key: &[u8]) -> Option<u32> {
        let key: &[u8; 4] = key.try_into().ok()?;
        let index = self.byte_order.number(key) as u32;
        (index < self.spec.max_entries).then_some(index)
    }

    /// Gives the key's value an address.
    pub fn place(&mut self, key: Vec<u8>, address: u64) {
        if self.elements.insert(key.clone(), address).is_none() {
            self.order.push(key);
        }
    }

    /// The address of the key's value.
    pub fn lookup(&self, key: &[u8]) -> Option<u64> {
        match self.shape() {
            Shape::Trie => {
                let (bits, data) = self.prefix(key)?;
                let bits = bits.min(data.len() as u32 * 8);
                (0..=bits).rev().find_map(|n| self.elements.get(&self.trie_key(n, data)).copied())
            }
            _ => self.elements.get(key).copied(),
        }
    }

    /// What `map_update_elem` with these flags has to do, or its error.
    pub fn update(&mut self, key: &[u8], flags: u64) -> Result<Update, i64> {
        const NOEXIST: u64 = 1;
        const EXIST: u64 = 2;
        const LOCK: u64 = 4;
        let mode = flags & !LOCK;
        if mode > EXIST {
            return Err(EINVAL);
        }
        let key = match self.shape() {
            Shape::Empty => return Err(EOPNOTSUPP),
            Shape::Array => {
                if self.index(key).is_none() {
                    return Err(E2BIG);
                }
                key.to_vec()
            }
            Shape::Trie => {
                let (bits, data) = self.prefix(key).ok_or(EINVAL)?;
                if bits > data.len() as u32 * 8 {
                    return Err(EINVAL);
                }
                self.trie_key(bits, data)
            }
            Shape::Hash { .. } => key.to_vec(),
        };
        let old = self.elements.get(&key).copied();
        let exists = old.is_some() || self.shape() == Shape::Array;
        if exists && mode == NOEXIST {
            return Err(EEXIST);
        }
        if !exists && mode == EXIST {
            return Err(ENOENT);
        }
        if let (Some(address), true) = (old, self.updates_in_place()) {
            return Ok(Update::InPlace(address));
        }
        if !exists && self.order.len() as u64 >= u64::from(self.spec.max_entries) {
            if self.shape() != (Shape::Hash { evicts: true }) || self.order.is_empty() {
                return Err(if self.shape() == Shape::Trie { ENOSPC } else { E2BIG });
            }
            let victim = self.order.remove(0);
            self.elements.remove(&victim);
        }
        Ok(Update::Place(key))
    }

    /// `map_delete_elem`.
    pub fn delete(&mut self, key: &[u8]) -> i64 {
        let key = match self.shape() {
            Shape::Array => return EINVAL,
            Shape::Empty => return EOPNOTSUPP,
            Shape::Trie => match self.prefix(key) {
                Some((bits, data)) if bits <= data.len() as u32 * 8 => self.trie_key(bits, data),
                _ => return EINVAL,
            },
            Shape::Hash { .. } => key.to_vec(),
        };
        self.order.retain(|k| *k != key);
        if self.elements.remove(&key).is_some() { 0 } else { ENOENT }
    }

    /// Keys and the addresses of their values, in the order of the keys' bytes.
    pub fn elements(&self) -> impl Iterator<Item = (&Vec<u8>, u64)> {
        self.elements.iter().map(|(k, a)| (k, *a))
    }

    /// Every key `for_each_map_elem` visits.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        match self.shape() {
            Shape::Array => {
                (0..self.spec.max_entries).map(|i| self.byte_order.bytes(i.into(), 4)[..4].to_vec()).collect()
            }
            _ => self.order.clone(),
        }
    }

    /// A trie key's prefix length and data.
    fn prefix<'k>(&self, key: &'k [u8]) -> Option<(u32, &'k [u8])> {
        let (bits, data) = key.split_at_checked(4)?;
        Some((self.byte_order.number(bits) as u32, data))
    }

    /// The first `bits` bits of `data` as a key; the rest is zero.
    fn trie_key(&self, bits: u32, data: &[u8]) -> Vec<u8> {
        let mut key = self.byte_order.bytes(bits.into(), 4)[..4].to_vec();
        key.extend(data.iter().enumerate().map(|(i, b)| {
            let kept = bits.saturating_sub(8 * i as u32).min(8);
            b & !(0xff_u32 >> kept) as u8
        }));
        key
    }
}
