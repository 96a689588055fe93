//! Lists of addresses or ports: `host A or host B or …` is one question about a set.
//!
//! Of IPv4 addresses and ports the first is asked for as it stands in the text, which finds out whether the fields are there. All
//! others read the same fields, so that they can be asked for in any order, and together.
//!
//! Ethernet and IPv6 addresses have several words, each of which is read only if those before it are the beginning of a member: as
//! if the members were asked for one after the other. Between source and destination the order matters where a packet ends within
//! IPv6 addresses: a list that the text spells out is together only if it is about one of them; of a named one the sources are
//! asked for first.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::kind;
use super::state::{From, Lowering};
use crate::error::Error;
use crate::graph::Condition;
use crate::intervals::Intervals;
use crate::language::{Direction, Id, IdKind, Protocol, Qualifiers, Relation};
use crate::names;
use crate::tuples::{Members, Tuples};
use crate::value::{Binary, ValueId};

/// A list under construction.
#[derive(Clone, Debug)]
pub(super) struct Group {
    qualifiers: Qualifiers,
    ids: Vec<Id>,
    members: Kind,
}

/// What the members of a list are.
#[derive(Clone, Debug)]
enum Kind {
    /// Ranges of numbers.
    Numbers(Vec<(u32, u32)>),
    /// Ethernet addresses, as two words: the last four bytes, and the first two.
    Ethernet(Vec<[u32; 2]>),
    /// IPv6 networks: the address, and how many bits of it count.
    Ip6(Vec<(u128, u32)>),
}

impl Kind {
    /// Both, if they are of one kind.
    fn join(&mut self, other: Kind) -> Result<(), Kind> {
        match (self, other) {
            (Kind::Numbers(all), Kind::Numbers(more)) => all.extend(more),
            (Kind::Ethernet(all), Kind::Ethernet(more)) => all.extend(more),
            (Kind::Ip6(all), Kind::Ip6(more)) => all.extend(more),
            (_, other) => return Err(other),
        }
        Ok(())
    }
}

impl Group {
    /// A list of one, if lists of such ids are questions about a set. `is_named`: it has a name in the text.
    pub(super) fn of(qualifiers: Qualifiers, id: &Id, is_named: bool) -> Option<Group> {
        let members = member(qualifiers, id)?;
        let is_one_sided = matches!(qualifiers.direction, Direction::Src | Direction::Dst | Direction::And);
        let can_be = is_named || is_one_sided || !matches!(members, Kind::Ip6(_));
        can_be.then(|| Group { qualifiers, ids: vec![id.clone()], members })
    }

    /// A list of IPv6 addresses or networks.
    pub(super) fn is_ip6(&self) -> bool {
        matches!(self.members, Kind::Ip6(_))
    }

    /// The list without members that lie in others.
    ///
    /// Where both source and destination may be one, the first stays in any case: packets that end between the two addresses are
    /// rejected if the source is none of *its* addresses. All behind it read the same fields.
    fn without_covered(mut self) -> Group {
        let mut is_covered = match &self.members {
            Kind::Numbers(members) => covered(members),
            Kind::Ethernet(members) => covered(&members.iter().map(|m| (*m, *m)).collect::<Vec<_>>()),
            Kind::Ip6(members) => {
                let end = |(address, length): &(u128, u32)| address | u128::MAX.checked_shr(*length).unwrap_or(0);
                covered(&members.iter().map(|m| (m.0, end(m))).collect::<Vec<_>>())
            }
        };
        if matches!(self.qualifiers.direction, Direction::Default | Direction::Or) {
            is_covered[0] = false;
        }
        fn retain<T>(all: &mut Vec<T>, is_covered: &[bool]) {
            let mut of = is_covered.iter();
            all.retain(|_| !of.next().is_some_and(|is| *is));
        }
        retain(&mut self.ids, &is_covered);
        match &mut self.members {
            Kind::Numbers(members) => retain(members, &is_covered),
            Kind::Ethernet(members) => retain(members, &is_covered),
            Kind::Ip6(members) => retain(members, &is_covered),
        }
        self
    }

    /// Both lists as one, if they ask for the same.
    pub(super) fn join(mut self, other: Group) -> Result<Group, Box<(Group, Group)>> {
        if self.qualifiers != other.qualifiers {
            return Err(Box::new((self, other)));
        }
        match self.members.join(other.members) {
            Ok(()) => {
                self.ids.extend(other.ids);
                Ok(self)
            }
            Err(members) => Err(Box::new((self, Group { members, ..other }))),
        }
    }
}

/// Whether a range lies in another one, or is the same as an earlier one.
fn covered<T: Ord + Copy>(ranges: &[(T, T)]) -> Vec<bool> {
    let mut order: Vec<usize> = (0..ranges.len()).collect();
    // What holds another one comes before it.
    order.sort_by_key(|i| (ranges[*i].0, Reverse(ranges[*i].1), *i));
    let (mut is_covered, mut furthest) = (vec![false; ranges.len()], None);
    for i in order {
        let high = Some(ranges[i].1);
        is_covered[i] = furthest >= high;
        furthest = furthest.max(high);
    }
    is_covered
}

/// What an id stands for.
fn member(q: Qualifiers, id: &Id) -> Option<Kind> {
    if !matches!(q.direction, Direction::Default | Direction::Src | Direction::Dst | Direction::Or | Direction::And) {
        return None;
    }
    match q.kind {
        IdKind::Default | IdKind::Host if q.protocol == Some(Protocol::Link) => match id {
            Id::Mac([a, b, rest @ ..]) => {
                Some(Kind::Ethernet(vec![[u32::from_be_bytes(*rest), u32::from_be_bytes([0, 0, *a, *b])]]))
            }
            _ => None,
        },
        IdKind::Default | IdKind::Host | IdKind::Net if matches!(id, Id::Ipv6(_) | Id::Ipv6Prefix(..)) => {
            let (address, length) = match id {
                Id::Ipv6(address) => (u128::from(*address), 128),
                Id::Ipv6Prefix(address, length) if q.kind == IdKind::Net && *length <= 128 => {
                    (u128::from(*address), *length)
                }
                _ => return None,
            };
            let rest = u128::MAX.checked_shr(length).unwrap_or(0);
            let is_member = matches!(q.protocol, None | Some(Protocol::Ip6)) && address & rest == 0;
            is_member.then(|| Kind::Ip6(vec![(address, length)]))
        }
        IdKind::Default | IdKind::Host | IdKind::Net
            if matches!(q.protocol, None | Some(Protocol::Ip | Protocol::Arp | Protocol::Rarp)) =>
        {
            let (text, length) = match id {
                Id::Ipv4(text) => (text, None),
                Id::Ipv4Prefix(text, length) if q.kind == IdKind::Net && *length <= 32 => (text, Some(*length)),
                _ => return None,
            };
            let (address, bits) = names::ipv4(text)?;
            let (address, length) = (address << (32 - bits), length.unwrap_or(bits));
            let rest = u32::MAX.checked_shr(length).unwrap_or(0);
            (address & rest == 0).then(|| Kind::Numbers(vec![(address, address | rest)]))
        }
        IdKind::Port if matches!(q.protocol, None | Some(Protocol::Tcp | Protocol::Udp | Protocol::Sctp)) => match id {
            Id::Number(n) if *n <= 0xffff => Some(Kind::Numbers(vec![(*n, *n)])),
            _ => None,
        },
        IdKind::PortRange if matches!(q.protocol, None | Some(Protocol::Tcp | Protocol::Udp | Protocol::Sctp)) => {
            let (first, last) = match id {
                Id::Number(n) => (*n, *n),
                // Ports by name may be those of one protocol only.
                Id::Name(text) => {
                    let (first, last) = text.split_once('-')?;
                    (first.parse().ok()?, last.parse().ok()?)
                }
                _ => return None,
            };
            let (first, last): (u32, u32) = (first.min(last), first.max(last));
            (last <= 0xffff).then(|| Kind::Numbers(vec![(first, last)]))
        }
        _ => None,
    }
}

/// Numbers of which the same ranges say where a second one may be, and where that is.
struct RangePart {
    of: (u32, u32),
    together: (u32, u32),
}

/// The parts into which ranges divide the numbers that are in one, by what they say of a second number that is in a range with the
/// first: all ranges that hold a number are one together.
fn parts_of(ranges: &[(u32, u32)]) -> Vec<RangePart> {
    let mut ends: Vec<u32> = ranges.iter().flat_map(|(low, high)| [*low, high + 1]).collect();
    ends.sort_unstable();
    ends.dedup();
    let (mut by_low, mut by_high) = (ranges.to_vec(), ranges.to_vec());
    by_low.sort_unstable();
    by_high.sort_unstable_by_key(|(_, high)| *high);
    // The furthest ends of those that begin up to a range, and of those that end from it on.
    by_low.iter_mut().reduce(|before, range| {
        range.1 = range.1.max(before.1);
        range
    });
    by_high.iter_mut().rev().reduce(|behind, range| {
        range.0 = range.0.min(behind.0);
        range
    });
    let mut parts: Vec<RangePart> = Vec::new();
    for part in ends.windows(2) {
        let n = part[0];
        let high = by_low[..by_low.partition_point(|(low, _)| *low <= n)].last().map(|(_, high)| *high);
        let low = by_high[by_high.partition_point(|(_, high)| *high < n)..].first().map(|(low, _)| *low);
        let Some(together) = low.zip(high).filter(|(low, high)| (*low..=*high).contains(&n)) else { continue };
        match parts.last_mut() {
            Some(last) if last.together == together && last.of.1 + 1 == n => last.of.1 = part[1] - 1,
            _ => parts.push(RangePart { of: (n, part[1] - 1), together }),
        }
    }
    parts
}

impl Lowering<'_> {
    /// The list's first, then all of it as a set.
    pub(super) fn group(&mut self, group: Group) -> Result<Condition, Error> {
        /// Fewer are asked for one by one.
        const FEW: usize = 4;
        /// Fewer IPv6 addresses: what is known of other questions helps these more.
        const FEW_KEYS: usize = 16;
        /// Of Ethernet addresses the words of one are behind another's.
        const FEW_MACS: usize = 2;
        let Group { qualifiers: q, ids, members } = if self.options.optimize { group.without_covered() } else { group };
        let few = match members {
            Kind::Numbers(_) => FEW,
            Kind::Ethernet(_) => FEW_MACS,
            Kind::Ip6(_) => FEW_KEYS,
        };
        let members = match members {
            _ if ids.len() < few || !self.options.optimize => return self.one_by_one(q, &ids),
            Kind::Numbers(members) if q.direction == Direction::And => return self.pairs(q, &ids, &members),
            Kind::Numbers(members) => members,
            Kind::Ethernet(members) if self.has_plain_addresses() => return self.ethernet_set(q, &members),
            Kind::Ethernet(_) => return self.one_by_one(q, &ids),
            Kind::Ip6(members) => return self.ip6_set(q, &members),
        };
        let first = self.id(q, &ids[0])?;
        let set = Arc::new(Intervals::of(members));
        let member = |s: &mut Self, value: ValueId| Ok(s.builder.member(value, set.clone()));
        let is_of_ports = matches!(q.kind, IdKind::Port | IdKind::PortRange);
        let rest = if is_of_ports { self.port_set(q, &member)? } else { self.ipv4_set(q, u32::MAX, &member)? };
        Ok(self.builder.or(first, rest))
    }

    /// One of the members is both source and destination: for each length of prefixes one question about the source, and whether both
    /// are equal under its mask. Of the only one of its length both are compared with it.
    fn pairs(&mut self, q: Qualifiers, ids: &[Id], members: &[(u32, u32)]) -> Result<Condition, Error> {
        let is_of_ports = matches!(q.kind, IdKind::Port | IdKind::PortRange);
        // Ranges of ports are no prefixes.
        if is_of_ports && members.iter().any(|(low, high)| low != high) {
            return self.pairs_in_ranges(q, members);
        }
        let mut by_mask: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (i, (low, high)) in members.iter().enumerate() {
            by_mask.entry(!(low ^ high)).or_default().push(i);
        }
        let mut conditions = Vec::with_capacity(by_mask.len());
        for (mask, of) in by_mask.into_iter().rev() {
            if let [only] = of[..] {
                conditions.push(self.id(q, &ids[only])?);
                continue;
            }
            let set = Arc::new(Intervals::of(of.iter().map(|i| (members[*i].0, members[*i].0)).collect()));
            let member = |s: &mut Self, value: ValueId| Ok(s.builder.member(value, set.clone()));
            conditions.push(if is_of_ports { self.port_set(q, &member)? } else { self.ipv4_set(q, mask, &member)? });
        }
        Ok(self.builder.any_or_never(conditions))
    }

    /// One of the ranges holds both source and destination: of the parts into which they divide the numbers, the one that has the
    /// source says where the destination may be.
    fn pairs_in_ranges(&mut self, q: Qualifiers, ranges: &[(u32, u32)]) -> Result<Condition, Error> {
        let parts = parts_of(ranges);
        self.ports_of(q, |s, from| {
            let [source, destination] = [0, 2].map(|offset| s.load(from, offset, 2));
            Ok(s.in_parts(&parts, source, destination))
        })
    }

    /// The part that has the source, found by halves, has the destination near it.
    fn in_parts(&mut self, parts: &[RangePart], source: ValueId, destination: ValueId) -> Condition {
        match parts {
            [] => self.builder.always(false),
            [RangePart { of, together }] => {
                let is_part = self.builder.member(source, Arc::new(Intervals::range(of.0, of.1)));
                let is_near = self.builder.member(destination, Arc::new(Intervals::range(together.0, together.1)));
                self.builder.and(is_part, is_near)
            }
            _ => {
                let (low, high) = parts.split_at(parts.len() / 2);
                let is_high = self.builder.compare_with(Relation::GreaterEqual, source, high[0].of.0);
                let (low, high) = [low, high].map(|half| self.in_parts(half, source, destination)).into();
                self.builder.choice(is_high, high, low)
            }
        }
    }

    /// The members of a list, in their order; of IPv6 addresses all sources first.
    fn one_by_one(&mut self, q: Qualifiers, ids: &[Id]) -> Result<Condition, Error> {
        let is_ip6 = ids.iter().all(|id| matches!(id, Id::Ipv6(_) | Id::Ipv6Prefix(..)));
        let sides: &[Direction] = match q.direction {
            Direction::Default | Direction::Or if is_ip6 => &[Direction::Src, Direction::Dst],
            _ => &[q.direction],
        };
        self.counted(ids.len())?;
        let mut conditions = Vec::with_capacity(ids.len());
        for direction in sides {
            for id in ids {
                conditions.push(self.id(Qualifiers { direction: *direction, ..q }, id)?);
            }
        }
        Ok(self.builder.any_or_never(conditions))
    }

    /// Ethernet addresses of a link whose headers have them in one place.
    fn ethernet_set(&mut self, q: Qualifiers, members: &[[u32; 2]]) -> Result<Condition, Error> {
        let members = Members(Arc::new(Tuples::of(2, members.iter().map(|words| words.to_vec()))));
        let check = if self.link.is_ethernet() { self.previous_link_check() } else { None };
        let (src, dst) = self.link_offsets()?;
        let key = |s: &mut Self, is_src| {
            let offset = if is_src { src } else { dst };
            Ok((None, vec![s.load(From::LinkHeader, offset + 2, 4), s.load(From::LinkHeader, offset, 2)]))
        };
        let set = self.directed_key(q.direction, "links other than 802.11", key, |s, words| {
            Ok(s.builder.among(words, members.clone()))
        })?;
        Ok(match check {
            Some(check) => self.builder.and(check, set),
            None => set,
        })
    }

    /// IPv6 networks, those of one length together.
    fn ip6_set(&mut self, q: Qualifiers, members: &[(u128, u32)]) -> Result<Condition, Error> {
        let mut by_length: BTreeMap<u32, Vec<u128>> = BTreeMap::new();
        for (address, length) in members {
            by_length.entry(*length).or_default().push(*address);
        }
        let word = |address: u128, i: u32| (address >> (96 - 32 * i)) as u32;
        let sets: Vec<(u32, Members)> = by_length
            .into_iter()
            .map(|(length, addresses)| {
                let width = length.div_ceil(32).max(1);
                let keys = addresses.into_iter().map(|a| (0..width).map(|i| word(a, i)).collect());
                (length, Members(Arc::new(Tuples::of(width as usize, keys))))
            })
            .collect();
        let masked = |s: &mut Self, length: u32, width: usize, is_src| {
            let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
            let offset = if is_src { 8 } else { 24 };
            let words = (0..width as u32).map(|i| {
                let loaded = s.load(From::Network, offset + 4 * i, 4);
                let mask = s.builder.values.constant(word(mask, i));
                s.builder.values.binary(Binary::And, loaded, mask)
            });
            words.collect::<Vec<ValueId>>()
        };
        // Words that do not count are read, too.
        let rest = |s: &mut Self, is_src| s.masked(From::Network, if is_src { 20 } else { 36 }, 4, 0, 0);
        let what = "addresses other than 802.11 MAC addresses";
        if q.direction == Direction::And {
            let is_kind = self.is_kind(kind::IP6)?;
            let mut conditions = Vec::new();
            for (length, members) in &sets {
                let [src, dst] = [true, false].map(|is_src| masked(self, *length, members.0.width(), is_src));
                let mut all = vec![self.builder.among(src.clone(), members.clone()), rest(self, true)];
                all.extend(src.into_iter().zip(dst).map(|(a, b)| self.builder.compare(Relation::Equal, a, b)));
                all.push(rest(self, false));
                conditions.extend(self.builder.all(all));
            }
            let any = self.builder.any_or_never(conditions);
            return Ok(self.builder.and(is_kind, any));
        }
        self.directed(q.direction, what, |s, is_src| {
            let is_kind = s.is_kind(kind::IP6)?;
            let mut conditions = Vec::new();
            for (length, members) in &sets {
                let words = masked(s, *length, members.0.width(), is_src);
                let found = s.builder.among(words, members.clone());
                let rest = rest(s, is_src);
                conditions.push(s.builder.and(found, rest));
            }
            let any = s.builder.any_or_never(conditions);
            Ok(s.builder.and(is_kind, any))
        })
    }

    /// What is asked of IPv4 addresses under a mask, of whatever protocol has such.
    pub(super) fn ipv4_set(
        &mut self,
        q: Qualifiers,
        mask: u32,
        of: &impl Fn(&mut Self, ValueId) -> Result<Condition, Error>,
    ) -> Result<Condition, Error> {
        let protocols = match q.protocol {
            Some(protocol) => vec![protocol],
            None if self.labels > 0 => vec![Protocol::Ip],
            None => vec![Protocol::Ip, Protocol::Arp, Protocol::Rarp],
        };
        let mut conditions = Vec::new();
        for protocol in protocols {
            let (kind, src, dst) = match protocol {
                Protocol::Ip => (kind::IP, 12, 16),
                Protocol::Arp => (kind::ARP, 14, 24),
                _ => (kind::RARP, 14, 24),
            };
            let address = |s: &mut Self, is_src| {
                let is_kind = s.is_kind(kind)?;
                let loaded = s.load(From::Network, if is_src { src } else { dst }, 4);
                let mask = s.builder.values.constant(mask);
                Ok((Some(is_kind), vec![s.builder.values.binary(Binary::And, loaded, mask)]))
            };
            conditions.push(self.directed_key(q.direction, "addresses", address, |s, key| of(s, key[0]))?);
        }
        match self.builder.any(conditions) {
            Some(any) => Ok(any),
            None => self.error("no protocol has such an address"),
        }
    }

    /// What is asked of ports, of whatever protocol has such.
    pub(super) fn port_set(
        &mut self,
        q: Qualifiers,
        of: &impl Fn(&mut Self, ValueId) -> Result<Condition, Error>,
    ) -> Result<Condition, Error> {
        self.ports_of(q, |s, from| {
            let port = |s: &mut Self, is_src| Ok((None, vec![s.load(from, if is_src { 0 } else { 2 }, 2)]));
            s.directed_key(q.direction, "ports", port, |s, key| of(s, key[0]))
        })
    }

    /// What is asked of the headers that begin with ports, of whatever protocol has such.
    fn ports_of(
        &mut self,
        q: Qualifiers,
        of: impl Fn(&mut Self, From) -> Result<Condition, Error>,
    ) -> Result<Condition, Error> {
        let protocols = self.transport_protocols(q)?;
        let mut either = Vec::new();
        for ip6 in [true, false] {
            let is_kind = self.is_kind(if ip6 { kind::IP6 } else { kind::IP })?;
            let mut conditions = Vec::new();
            for protocol in &protocols {
                let carried = self.carries_ports(*protocol, ip6);
                let from = if ip6 { From::TransportOfIp6 } else { From::TransportOfIp };
                let port = of(self, from)?;
                conditions.push(self.builder.and(carried, port));
            }
            let Some(any) = self.builder.any(conditions) else { return self.error("no protocol has ports") };
            either.push(self.builder.and(is_kind, any));
        }
        match self.builder.any(either) {
            Some(any) => Ok(any),
            None => self.error("no protocol has ports"),
        }
    }
}
