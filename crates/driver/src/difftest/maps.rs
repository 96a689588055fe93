//! The maps of the objects under test, side by side: filled alike before a round, compared after it.
//!
//! Of queues, stacks and ring buffers all elements are taken out; their keys here are numbers in that order.
//!
//! Left alone are maps whose values are not numbers (programs, devices, sockets, inner maps), arrays too large to read after
//! every round, maps that user space may not write (`.rodata`), global data that is laid out otherwise in one object, and
//! maps that share their name: which of the one object is which of the other is not known.

use std::collections::{BTreeMap, BTreeSet};

use bpf_kernel::{Entry, LoadedObject, Map};
use bpf_platform::maps;

use super::inputs::Filled;
use super::traffic::Random;

/// Elements of an array that is read and written in every round.
const LARGEST_ARRAY: u32 = 4096;
/// Elements put into a hash before a round, at most.
const FILL: u64 = 24;
/// An LRU map with less room than this may evict early: each CPU takes free elements by the batch.
const ROOMY: u32 = 1024;

/// The map of one name in all objects.
#[derive(Debug)]
pub(crate) struct SharedMap {
    pub name: String,
    /// One for each object.
    sides: Vec<Map>,
    kind: u32,
    /// What the loader put there.
    pub initial: Filling,
}

/// Contents for one map before a round.
pub(crate) type Filling = Vec<Entry>;

/// The maps of several objects.
pub(super) struct Maps {
    /// Those that all objects have and that can be compared.
    pub shared: Vec<SharedMap>,
    /// The names of the first object's others.
    pub left_alone: Vec<String>,
    /// Some of the others may hold something that programs have left there.
    pub keep_state: bool,
}

/// Whether programs can change what is in such a map; of types that are not known they can.
fn is_written_by_programs(kind: u32) -> bool {
    use maps::{CGROUP_ARRAY, CPUMAP, DEVMAP, DEVMAP_HASH, PERF_EVENT_ARRAY, PROG_ARRAY, XSKMAP};
    !matches!(kind, PROG_ARRAY | PERF_EVENT_ARRAY | CGROUP_ARRAY | DEVMAP | DEVMAP_HASH | CPUMAP | XSKMAP)
}

/// The elements are taken out in an order, and have no keys.
fn is_queue(kind: u32) -> bool {
    matches!(kind, maps::QUEUE | maps::STACK)
}

/// Sorts out the maps of these objects. `aside`: names of maps that are to be left alone.
pub(super) fn shared(objects: &[LoadedObject], aside: &BTreeSet<String>) -> Maps {
    let (mut found, mut left) = (Vec::new(), Vec::new());
    let mut keep_state = false;
    let mut all = objects.iter().map(|o| o.maps().unwrap_or_default());
    let (first, mut others) = (all.next().unwrap_or_default(), all.collect::<Vec<_>>());
    let names: Vec<String> = first.iter().map(|m| m.name().to_owned()).collect();
    for map in first {
        let is_alone = names.iter().filter(|name| *name == map.name()).count() == 1;
        let of_name = |maps: &Vec<Map>| {
            let mut places =
                maps.iter().enumerate().filter(|(_, m)| is_alone && m.name() == map.name()).map(|(i, _)| i);
            places.next().filter(|_| places.next().is_none())
        };
        let places = others.iter().map(of_name);
        let Some(places) = places.collect::<Option<Vec<usize>>>().filter(|_| !aside.contains(map.name())) else {
            keep_state |= is_written_by_programs(map.kind());
            left.push(map.name().to_owned());
            continue;
        };
        let (name, kind, shape) = (map.name().to_owned(), map.kind(), shape(&map));
        let taken = others.iter_mut().zip(places).map(|(maps, at)| maps.swap_remove(at));
        let sides: Vec<Map> = std::iter::once(map).chain(taken).collect();
        let plain = (maps::holds_bytes(kind) || is_queue(kind) || kind == maps::RINGBUF)
            && (!maps::evicts(kind) || shape.3 >= ROOMY)
            && (!maps::is_array(kind) || shape.3 <= LARGEST_ARRAY)
            && sides.iter().all(|m| self::shape(m) == shape);
        let initial = if plain { all_of(&sides[0]) } else { None };
        match initial {
            // What cannot be written back is frozen: programs cannot write it either.
            Some(initial)
                if !maps::holds_bytes(kind) || initial.first().is_none_or(|(k, v)| sides[0].update(k, v).is_ok()) =>
            {
                found.push(SharedMap { name, sides, kind, initial });
            }
            initial => {
                keep_state |= initial.is_none() && is_written_by_programs(kind);
                left.push(name);
            }
        }
    }
    keep_state |= others.iter().flatten().any(|m| is_written_by_programs(m.kind()));
    Maps { shared: found, left_alone: left, keep_state }
}

/// All that is in a map. The records of a ring buffer are no longer there then.
fn all_of(map: &Map) -> Option<Filling> {
    let numbered = |values: Vec<Vec<u8>>| {
        let number = |i: usize| (i as u32).to_be_bytes().to_vec();
        values.into_iter().enumerate().map(|(i, v)| (number(i), v)).collect::<Filling>()
    };
    match map.kind() {
        maps::RINGBUF => Some(numbered(map.drain().ok()?)),
        kind if is_queue(kind) => {
            let values = map.pop_all().ok()?;
            put_back(map, &values);
            Some(numbered(values))
        }
        _ => map.entries().ok(),
    }
}

/// Fills an empty queue or stack with values in the order in which they are to come out.
fn put_back(map: &Map, values: &[Vec<u8>]) {
    let push = |value: &Vec<u8>| drop(map.update(&[], value));
    match map.kind() {
        maps::STACK => values.iter().rev().for_each(push),
        _ => values.iter().for_each(push),
    }
}

/// Type, key bytes, value bytes, elements.
fn shape(m: &Map) -> (u32, u32, usize, u32) {
    (m.kind(), m.key_size(), m.value_len(), m.max_entries())
}

impl SharedMap {
    /// Random contents: often what the loader put there, else few numbers or noise. `packet` lends bytes
    /// that may be keys.
    pub fn filling(&self, r: &mut Random, packets: &[Vec<u8>]) -> Filling {
        let lengths = (self.sides[0].key_size() as usize, self.sides[0].value_len());
        if r.one_in(2) {
            return self.initial.clone();
        }
        let noise = r.one_in(2);
        if self.kind == maps::RINGBUF {
            return vec![];
        }
        if is_queue(self.kind) {
            let count = r.below(FILL.min(u64::from(self.sides[0].max_entries()) + 1)) as u32;
            return (0..count).map(|i| (i.to_be_bytes().to_vec(), value(r, lengths.1, noise))).collect();
        }
        if maps::is_array(self.kind) {
            let keep = r.below(3);
            let change = |(k, v): &Entry| {
                let v = if r.below(3) < keep { v.clone() } else { value(r, lengths.1, noise) };
                (k.clone(), v)
            };
            return self.initial.iter().map(change).collect();
        }
        let count = r.below(FILL.min(u64::from(self.sides[0].max_entries()) / 2 + 1));
        let mut entries = self.initial.clone();
        for _ in 0..count {
            let k = key(r, self.kind, lengths.0, packets);
            entries.push((k, value(r, lengths.1, noise)));
        }
        entries
    }

    /// What the loader put there, with these elements, and with these bytes of global data. Of a map of each processor all get the value.
    pub fn holding(&self, filled: &Filled) -> Filling {
        let (entries, data) = (filled.maps.get(&self.name), filled.data.get(&self.name));
        let length = self.sides[0].value_len();
        let mut all: BTreeMap<Vec<u8>, Vec<u8>> = self.initial.iter().cloned().collect();
        for value in all.values_mut() {
            for (at, byte) in data.into_iter().flatten() {
                if let Some(place) = usize::try_from(*at).ok().and_then(|at| value.get_mut(at)) {
                    *place = *byte;
                }
            }
        }
        for (key, value) in entries.into_iter().flatten() {
            let one = value.len().next_multiple_of(8).max(1);
            let processors = if maps::is_per_cpu(self.kind) { (length / one).max(1) } else { 1 };
            let mut value = value.clone();
            value.resize(length / processors, 0);
            all.insert(key.clone(), value.repeat(processors));
        }
        all.into_iter().collect()
    }

    /// Gives all sides these contents and nothing else. What one refuses the others must refuse too.
    pub fn fill(&self, contents: &Filling) -> Result<(), String> {
        if is_queue(self.kind) || self.kind == maps::RINGBUF {
            let failed = |e: bpf_kernel::KernelError| format!("map {}: {e}", self.name);
            let values: Vec<Vec<u8>> = contents.iter().map(|(_, value)| value.clone()).collect();
            for side in &self.sides {
                match self.kind {
                    maps::RINGBUF => drop(side.drain().map_err(failed)?),
                    _ => {
                        side.pop_all().map_err(failed)?;
                        put_back(side, &values);
                    }
                }
            }
            return Ok(());
        }
        for side in &self.sides {
            if !maps::is_array(self.kind) {
                for key in side.keys().unwrap_or_default() {
                    let _ = side.delete(&key);
                }
            }
        }
        for (key, value) in contents {
            let mut outcomes = self.sides.iter().map(|side| side.update(key, value).is_ok());
            let first = outcomes.next();
            if outcomes.any(|outcome| Some(outcome) != first) {
                return Err(format!("map {}: not all objects take the key {}", self.name, hex::encode(key)));
            }
        }
        Ok(())
    }

    /// What one side holds now, in the order of the keys.
    pub fn contents(&self, side: usize) -> Vec<Entry> {
        let mut entries = all_of(&self.sides[side]).unwrap_or_default();
        entries.sort();
        entries
    }
}

/// Takes from two contents, in the order of keys, what a third one, of the first object loaded once more, does not have as
/// the first has it.
pub(super) fn steady(a: &mut Vec<Entry>, b: &mut Vec<Entry>, again: &[Entry]) {
    let place = |of: &[Entry], key: &Vec<u8>| of.binary_search_by(|(k, _)| k.cmp(key)).ok();
    let first = a.clone();
    a.retain(|(k, _)| place(again, k).is_some());
    b.retain(|(k, _)| place(&first, k).is_some() == place(again, k).is_some());
    for (key, v) in a.iter() {
        if let (Some(at), Some(same)) = (place(b, key), place(again, key)) {
            take_unsteady(v, &mut b[at].1, &again[same].1);
        }
    }
}

/// Gives `b` the bytes of `a` wherever `again` has others.
pub(super) fn take_unsteady(a: &[u8], b: &mut [u8], again: &[u8]) {
    for ((b, a), again) in b.iter_mut().zip(a).zip(again) {
        if a != again {
            *b = *a;
        }
    }
}

/// The first thing in which two contents differ, in words.
pub(super) fn compare(name: &str, a: &[Entry], b: &[Entry]) -> Option<String> {
    let (mut i, mut j) = (0, 0);
    loop {
        match (a.get(i), b.get(j)) {
            (None, None) => return None,
            (Some((k, v)), Some((l, w))) if k == l => {
                if v != w {
                    let at = v.iter().zip(w).position(|(x, y)| x != y).unwrap_or(0);
                    let part = |v: &[u8]| hex::encode(&v[at & !7..v.len().min((at & !7) + 8)]);
                    let (x, y) = (part(v), part(w));
                    return Some(format!(
                        "map {name}, key {}: byte {at} of the value; bytes from {}: {x} and {y}",
                        hex::encode(k),
                        at & !7
                    ));
                }
                (i, j) = (i + 1, j + 1);
            }
            (Some((k, _)), other) if other.is_none_or(|(l, _)| k < l) => {
                return Some(format!("map {name}: key {} is only in the first", hex::encode(k)));
            }
            (_, Some((l, _))) => return Some(format!("map {name}: key {} is only in the second", hex::encode(l))),
            (Some(_), None) => return None,
        }
    }
}

fn key(r: &mut Random, kind: u32, len: usize, packets: &[Vec<u8>]) -> Vec<u8> {
    let mut key = match r.below(4) {
        0 => r.bytes(len),
        1 => vec![0; len],
        2 => {
            let mut key = vec![0; len];
            let at = if r.one_in(2) { 0 } else { len - 1 };
            key[at] = r.below(16) as u8;
            key
        }
        // What a packet has somewhere is what programs look up.
        _ => {
            let packet = packets.get(r.below(packets.len() as u64) as usize).map_or(&[][..], |p| p);
            let at = r.below(packet.len().min(64) as u64) as usize;
            let mut key: Vec<u8> = packet[at..].iter().copied().take(len).collect();
            key.resize(len, 0);
            key
        }
    };
    if kind == maps::LPM_TRIE && len > 4 {
        let bits = r.below(8 * (len as u64 - 4) + 1) as u32;
        key[..4].copy_from_slice(&bits.to_le_bytes());
    }
    key
}

fn value(r: &mut Random, len: usize, noise: bool) -> Vec<u8> {
    if noise {
        return r.bytes(len);
    }
    let mut v = vec![0; len];
    for chunk in v.chunks_mut(4) {
        chunk[0] = if r.one_in(2) { r.below(5) as u8 } else { 0 };
    }
    v
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_of_two_maps_is_named() {
        let e = |k: u8, v: u8| (vec![k], vec![0, v]);
        assert_eq!(compare("m", &[e(1, 1)], &[e(1, 1)]), None);
        assert_eq!(compare("m", &[e(1, 1), e(3, 1)], &[e(3, 1)]).unwrap(), "map m: key 01 is only in the first");
        assert_eq!(compare("m", &[], &[e(3, 1)]).unwrap(), "map m: key 03 is only in the second");
        assert_eq!(
            compare("m", &[e(1, 1)], &[e(1, 2)]).unwrap(),
            "map m, key 01: byte 1 of the value; bytes from 0: 0001 and 0002"
        );
    }
}
