//! Sets that user space changes: questions to maps in the place of comparisons.
//!
//! The whole field is read before a map is asked: a packet that ends within it is rejected.

use std::collections::BTreeSet;

use super::kind;
use super::state::{From, Lowering};
use crate::ebpf;
use crate::error::Error;
use crate::graph::Condition;
use crate::language::{Direction, Id, IdKind, Protocol, Qualifiers};
use crate::names;
use crate::updatable::{Field, KeyKind, SetMap, Updatable};
use crate::value::ValueId;

/// The kernel takes no longer names of maps (`BPF_OBJ_NAME_LEN`).
const LONGEST_NAME: usize = 15;

/// An entry: a field, the length of its prefix, its bits, and whether it is written as a network, which 'host' does not take.
struct Entry {
    field: Field,
    length: u32,
    bits: u128,
    is_network: bool,
}

impl Lowering<'_> {
    /// A field of the packet is in a set that user space changes.
    pub(super) fn updatable_set(&mut self, q: Qualifiers, name: &str, of: &Updatable) -> Result<Condition, Error> {
        let wanted: &[Field] = match (q.kind, q.protocol) {
            (IdKind::Default | IdKind::Host | IdKind::Net, None) => &[Field::Ipv4, Field::Ipv6],
            (IdKind::Default | IdKind::Host | IdKind::Net, Some(Protocol::Ip | Protocol::Arp | Protocol::Rarp)) => {
                &[Field::Ipv4]
            }
            (IdKind::Default | IdKind::Host | IdKind::Net, Some(Protocol::Ip6)) => &[Field::Ipv6],
            (IdKind::Default | IdKind::Host, Some(Protocol::Link)) => &[Field::Mac],
            (IdKind::Port, None | Some(Protocol::Tcp | Protocol::Udp | Protocol::Sctp)) => &[Field::Port],
            _ => {
                return self.error(format!(
                    "user space changes the set {name:?}: it may stand for hosts, networks, Ethernet addresses and ports"
                ));
            }
        };
        let maps = self.maps_of(name, of)?;
        let mut conditions = Vec::new();
        for map in maps {
            let SetMap { field, by_prefix, has_networks, is_paired, .. } = &mut self.builder.maps[map];
            if !wanted.contains(field) {
                let text = format!("the set {name:?} has {}, which are not asked for here", field.words_for());
                return self.error(text);
            }
            if *has_networks && q.kind != IdKind::Net {
                let text = format!("the set {name:?} has networks, and hosts are asked for here");
                let help = format!("'net ${name}' asks whether an address is in one of them");
                return Err(Error::new(self.span.clone(), text).help(help));
            }
            let field = *field;
            *by_prefix |= q.kind == IdKind::Net;
            *is_paired |= q.direction == Direction::And;
            if *by_prefix && *is_paired {
                let text = format!(
                    "'src and dst' asks of one network whether both are in it; the set {name:?} is asked as a whole"
                );
                let help = format!("'src net ${name} and dst net ${name}' asks whether each is in some network of it");
                return Err(Error::new(self.span.clone(), text).help(help));
            }
            let word = |s: &mut Self, value: ValueId| Ok(s.builder.lookup(map, vec![value]));
            conditions.push(match field {
                Field::Ipv4 => self.ipv4_set(q, u32::MAX, &word)?,
                Field::Port => self.port_set(q, &word)?,
                Field::Mac => self.mac_set(q, map)?,
                Field::Ipv6 => {
                    let key = |s: &mut Self, is_src| {
                        let is_kind = s.is_kind(kind::IP6)?;
                        let at = if is_src { 8 } else { 24 };
                        Ok((Some(is_kind), (0..4).map(|i| s.load(From::Network, at + 4 * i, 4)).collect()))
                    };
                    let what = "addresses other than 802.11 MAC addresses";
                    self.directed_key(q.direction, what, key, |s, key| Ok(s.builder.lookup(map, key)))?
                }
            });
        }
        match self.builder.any(conditions) {
            Some(any) => Ok(any),
            None => self.error(format!("the set {name:?} has no kind of keys")),
        }
    }

    fn mac_set(&mut self, q: Qualifiers, map: usize) -> Result<Condition, Error> {
        if self.link.is_wlan() {
            return self.error("802.11 has its addresses at varying places: no set that user space changes");
        }
        let check = if self.link.is_ethernet() { self.previous_link_check() } else { None };
        let (src, dst) = self.link_offsets()?;
        let key = |s: &mut Self, is_src| {
            let at = if is_src { src } else { dst };
            Ok((None, vec![s.load(From::LinkHeader, at, 2), s.load(From::LinkHeader, at + 2, 4)]))
        };
        let host =
            self.directed_key(q.direction, "links other than 802.11", key, |s, key| Ok(s.builder.lookup(map, key)))?;
        Ok(match check {
            Some(check) => self.builder.and(check, host),
            None => host,
        })
    }

    /// The maps of a set, made when it is first asked for.
    fn maps_of(&mut self, name: &str, of: &Updatable) -> Result<Vec<usize>, Error> {
        if let Some(maps) = self.map_numbers.get(name) {
            return Ok(maps.clone());
        }
        let Some(ids) = self.sets.get(name) else { return self.error(format!("there is no set called {name:?}")) };
        let mut kinds: Vec<KeyKind> = of.kinds.clone();
        let mut has_networks: BTreeSet<Field> = of.kinds.iter().filter(|k| k.by_prefix).map(|k| k.field).collect();
        let mut entries = Vec::with_capacity(ids.len());
        // As the file has it.
        let texts = self.options.sets.get(name).map(Vec::as_slice).unwrap_or_default();
        for (i, id) in ids.iter().enumerate() {
            let named = texts.get(i).map_or(String::new(), |text| format!("{text:?} in "));
            let Some(entry) = entry(id) else {
                let text = format!(
                    "{named}the set {name:?}, which user space changes: its entries are addresses, networks and ports"
                );
                return Err(Error::new(self.span.clone(), text).help("write numbers, and no names"));
            };
            has_networks.extend(entry.is_network.then_some(entry.field));
            let by_prefix = entry.length < entry.field.bits() || entry.is_network;
            match kinds.iter_mut().find(|kind| kind.field == entry.field) {
                Some(kind) if of.kinds.is_empty() => kind.by_prefix |= by_prefix,
                Some(kind) if by_prefix && !kind.by_prefix => {
                    return self.error(format!("{named}the set {name:?}: a network among addresses"));
                }
                Some(_) => {}
                None if of.kinds.is_empty() => kinds.push(KeyKind { field: entry.field, by_prefix }),
                None => return self.error(format!("{named}the set {name:?}: a kind that was not named")),
            }
            entries.push(entry);
        }
        if kinds.is_empty() {
            let text = format!("the set {name:?} is empty: nothing says what its keys are");
            return Err(Error::new(self.span.clone(), text)
                .help("--updatable NAME:KIND says so: ipv4, ipv4-net, ipv6, ipv6-net, mac or port"));
        }
        kinds.sort_by_key(|kind| kind.field);
        let mut numbers = Vec::new();
        for kind in &kinds {
            let suffix = if kinds.len() > 1 { kind.field.suffix() } else { "" };
            let map = format!("{name}{suffix}");
            self.check_map_name(&map)?;
            let of_field = entries.iter().filter(|e| e.field == kind.field).map(|e| (e.length, e.bits));
            let entries: BTreeSet<(u32, u128)> = of_field.collect();
            let usual = u32::try_from(entries.len() * 2).unwrap_or(u32::MAX).max(1024);
            let max_entries = of.max_entries.unwrap_or(usual);
            if (max_entries as usize) < entries.len() || max_entries == 0 {
                let n = entries.len();
                return self.error(format!("the set {name:?} has {n} entries, and its map room for {max_entries}"));
            }
            numbers.push(self.builder.maps.len());
            let (field, by_prefix) = (kind.field, kind.by_prefix);
            let has_networks = has_networks.contains(&field);
            let set = name.to_owned();
            let map = SetMap { set, name: map, field, by_prefix, has_networks, is_paired: false, max_entries, entries };
            self.builder.maps.push(map);
        }
        self.map_numbers.insert(name.to_owned(), numbers.clone());
        Ok(numbers)
    }

    /// Names of maps are symbols of the object, and stand in its code.
    fn check_map_name(&self, name: &str) -> Result<(), Error> {
        let is_word = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let is_register =
            name.len() <= 3 && name.starts_with(['r', 'w']) && name[1..].bytes().all(|b| b.is_ascii_digit());
        let is_taken = ebpf::is_own_name(name) || self.builder.maps.iter().any(|map| map.name == name);
        let wrong = if name.len() > LONGEST_NAME {
            "longer than the kernel takes names of maps (15)"
        } else if !is_word || !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
            "no name for a map: a letter, then letters, digits and _"
        } else if is_register {
            "no name for a map: the object's code has registers of such names"
        } else if is_taken {
            "something else in the object is called so"
        } else {
            return Ok(());
        };
        self.error(format!("the map {name:?}: {wrong}"))
    }
}

/// What an entry stands for; `None`: it is no address, network or port.
fn entry(id: &Id) -> Option<Entry> {
    let ipv4 = |text: &str, length: Option<u32>| {
        let (address, bits) = names::ipv4(text)?;
        let (address, length) = (address << (32 - bits), length.unwrap_or(bits));
        let rest = u32::MAX.checked_shr(length).unwrap_or(0);
        let entry = Entry { field: Field::Ipv4, length, bits: u128::from(address), is_network: false };
        (address & rest == 0 && length <= 32).then_some(entry)
    };
    match id {
        Id::Ipv4(text) => ipv4(text, None),
        Id::Ipv4Prefix(text, length) => ipv4(text, Some(*length)).map(|e| Entry { is_network: true, ..e }),
        Id::Ipv4Mask(text, mask) => {
            let (mask, bits) = names::ipv4(mask)?;
            let mask = mask << (32 - bits);
            let length = mask.leading_ones();
            let entry = (mask.count_ones() == length).then(|| ipv4(text, Some(length))).flatten()?;
            Some(Entry { is_network: true, ..entry })
        }
        Id::Ipv6(address) => {
            Some(Entry { field: Field::Ipv6, length: 128, bits: u128::from(*address), is_network: false })
        }
        Id::Ipv6Prefix(address, length) => {
            let bits = u128::from(*address);
            let rest = u128::MAX.checked_shr(*length).unwrap_or(0);
            // As 'host' takes it: all of an address is one.
            let entry = Entry { field: Field::Ipv6, length: *length, bits, is_network: *length < 128 };
            (*length <= 128 && bits & rest == 0).then_some(entry)
        }
        Id::Mac(mac) => {
            let bits = mac.iter().fold(0, |bits, byte| bits << 8 | u128::from(*byte));
            Some(Entry { field: Field::Mac, length: 48, bits, is_network: false })
        }
        Id::Number(n) if *n <= 0xffff => {
            Some(Entry { field: Field::Port, length: 16, bits: u128::from(*n), is_network: false })
        }
        _ => None,
    }
}
