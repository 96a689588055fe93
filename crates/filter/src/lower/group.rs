//! Lists of addresses or ports: `host A or host B or …` is one question about a set.
//!
//! The first of a list is asked for as it stands in the text, which finds out whether the fields are there. All others read the same
//! fields, so that they can be asked for in any order, and together.

use std::sync::Arc;

use super::kind;
use super::state::{From, Lowering};
use crate::error::Error;
use crate::graph::Condition;
use crate::intervals::Intervals;
use crate::language::{Direction, Id, IdKind, Protocol, Qualifiers};
use crate::names;

/// A list under construction.
#[derive(Clone, Debug)]
pub(super) struct Group {
    qualifiers: Qualifiers,
    ids: Vec<Id>,
    members: Vec<(u32, u32)>,
}

impl Group {
    /// A list of one, if lists of such ids are questions about a set.
    pub(super) fn of(qualifiers: Qualifiers, id: &Id) -> Option<Group> {
        let member = member(qualifiers, id)?;
        Some(Group { qualifiers, ids: vec![id.clone()], members: vec![member] })
    }

    /// Both lists as one, if they ask for the same.
    pub(super) fn join(mut self, other: Group) -> Result<Group, (Group, Group)> {
        if self.qualifiers != other.qualifiers {
            return Err((self, other));
        }
        self.ids.extend(other.ids);
        self.members.extend(other.members);
        Ok(self)
    }
}

/// The numbers that an id stands for.
fn member(q: Qualifiers, id: &Id) -> Option<(u32, u32)> {
    if !matches!(q.direction, Direction::Default | Direction::Src | Direction::Dst | Direction::Or) {
        return None;
    }
    match q.kind {
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
            (address & rest == 0).then_some((address, address | rest))
        }
        IdKind::Port if matches!(q.protocol, None | Some(Protocol::Tcp | Protocol::Udp | Protocol::Sctp)) => match id {
            Id::Number(n) if *n <= 0xffff => Some((*n, *n)),
            _ => None,
        },
        _ => None,
    }
}

impl Lowering<'_> {
    /// The list's first, then all of it as a set.
    pub(super) fn group(&mut self, group: Group) -> Result<Condition, Error> {
        /// Fewer are asked for one by one.
        const FEW: usize = 4;
        let Group { qualifiers: q, ids, members } = group;
        if ids.len() < FEW {
            self.counted(ids.len())?;
            let mut conditions = Vec::with_capacity(ids.len());
            for id in &ids {
                conditions.push(self.id(q, id)?);
            }
            return match self.builder.any(conditions) {
                Some(any) => Ok(any),
                None => Ok(self.builder.always(false)),
            };
        }
        let first = self.id(q, &ids[0])?;
        let set = Arc::new(Intervals::of(members));
        let rest = if q.kind == IdKind::Port { self.port_set(q, &set)? } else { self.host_set(q, &set)? };
        Ok(self.builder.or(first, rest))
    }

    fn host_set(&mut self, q: Qualifiers, set: &Arc<Intervals>) -> Result<Condition, Error> {
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
            conditions.push(self.directed(q.direction, "addresses", |s, is_src| {
                let is_kind = s.is_kind(kind)?;
                let address = s.load(From::Network, if is_src { src } else { dst }, 4);
                let is_member = s.builder.member(address, set.clone());
                Ok(s.builder.and(is_kind, is_member))
            })?);
        }
        match self.builder.any(conditions) {
            Some(any) => Ok(any),
            None => self.error("no protocol has such an address"),
        }
    }

    fn port_set(&mut self, q: Qualifiers, set: &Arc<Intervals>) -> Result<Condition, Error> {
        let protocols = self.transport_protocols(q)?;
        let mut either = Vec::new();
        for ip6 in [true, false] {
            let is_kind = self.is_kind(if ip6 { kind::IP6 } else { kind::IP })?;
            let mut conditions = Vec::new();
            for protocol in &protocols {
                let carried = self.carries_ports(*protocol, ip6);
                let from = if ip6 { From::TransportOfIp6 } else { From::TransportOfIp };
                let port = self.directed(q.direction, "ports", |s, is_src| {
                    let port = s.load(from, if is_src { 0 } else { 2 }, 2);
                    Ok(s.builder.member(port, set.clone()))
                })?;
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
