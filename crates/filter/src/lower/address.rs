//! Ids: hosts, networks, gateways, Ethernet addresses; and broadcast and multicast (`gencode.c`: `gen_scode` and its siblings).

use std::net::{IpAddr, Ipv6Addr};

use super::group::Group;
use super::kind;
use super::state::{From, Lowering, word};
use crate::error::Error;
use crate::graph::Condition;
use crate::language::{Direction, Id, IdKind, Protocol, Qualifiers, Relation};
use crate::link::{LinkType, NOT_SET};
use crate::names;
use crate::value::ValueId;

const BROADCAST: [u8; 6] = [0xff; 6];

impl Lowering<'_> {
    /// Qualifiers and what they are about.
    pub(super) fn id(&mut self, q: Qualifiers, id: &Id) -> Result<Condition, Error> {
        match id {
            Id::Name(name) => self.named(q, name),
            Id::Number(n) => self.numbered(q, *n),
            Id::Ipv4(text) => self.ipv4_id(q, text),
            Id::Ipv4Prefix(text, length) => {
                if *length > 32 {
                    return self.too_high("netmask length", *length, 32);
                }
                let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
                self.ipv4_net(q, text, mask, &format!("{text}/{length}"))
            }
            Id::Ipv4Mask(text, mask) => {
                let Some((value, bits)) = names::ipv4(mask) else {
                    return self.error(format!("invalid IPv4 address '{mask}'"));
                };
                self.ipv4_net(q, text, value << (32 - bits), &format!("{text} mask {mask}"))
            }
            Id::Ipv6(address) => self.ipv6_id(q, *address, 128),
            Id::Ipv6Prefix(address, length) => self.ipv6_id(q, *address, *length),
            Id::Mac(mac) => self.mac_id(q, *mac),
            Id::Arcnet(address) => self.arcnet_id(q, *address),
            Id::Set(name) => self.set_id(q, name),
        }
    }

    /// Any of the entries of a set, in their order.
    fn set_id(&mut self, q: Qualifiers, name: &str) -> Result<Condition, Error> {
        let options = self.options;
        if let Some(updatable) = options.updatable.get(name) {
            return self.updatable_set(q, name, updatable);
        }
        let Some(ids) = self.sets.get(name) else { return self.error(format!("there is no set called {name:?}")) };
        // What belongs together is asked for together.
        let mut conditions = Vec::new();
        let mut list: Option<Group> = None;
        // No packet has an IPv6 address and another one that is asked for here, so that these may come last.
        let mut ip6: Option<Group> = None;
        for id in ids {
            let group = Group::of(q, id, true);
            if let Some(group) = group.as_ref().filter(|group| group.is_ip6()) {
                // All have the same qualifiers.
                ip6 = match ip6.take() {
                    Some(all) => Some(all.join(group.clone()).unwrap_or_else(|both| both.0)),
                    None => Some(group.clone()),
                };
                continue;
            }
            let group = group.filter(|_| self.options.optimize);
            let before = list.take();
            match (before, group) {
                (Some(before), Some(group)) => match before.join(group) {
                    Ok(joined) => list = Some(joined),
                    Err(both) => {
                        let (before, group) = *both;
                        conditions.push(self.group(before)?);
                        list = Some(group);
                    }
                },
                (before, group) => {
                    if let Some(before) = before {
                        conditions.push(self.group(before)?);
                    }
                    match group {
                        Some(group) => list = Some(group),
                        None => conditions.push(self.id(q, id)?),
                    }
                }
            }
        }
        if let Some(list) = list {
            conditions.push(self.group(list)?);
        }
        if let Some(list) = ip6 {
            conditions.push(self.group(list)?);
        }
        Ok(self.builder.any_or_never(conditions))
    }

    fn named(&mut self, q: Qualifiers, name: &str) -> Result<Condition, Error> {
        match q.kind {
            IdKind::Net => {
                let Some(mut address) = self.names().network(name).filter(|a| *a != 0) else {
                    return self.error(format!("unknown network '{name}'"));
                };
                let mut mask = u32::MAX;
                while address & 0xff00_0000 == 0 {
                    (address, mask) = (address << 8, mask << 8);
                }
                self.host(address, mask, q)
            }
            IdKind::Default | IdKind::Host if q.protocol == Some(Protocol::Link) => {
                let Some(mac) = self.names().ether(name) else {
                    return self.error(format!("unknown ether host '{name}'"));
                };
                self.mac_id(q, mac)
            }
            IdKind::Default | IdKind::Host if q.protocol == Some(Protocol::Decnet) => {
                self.error(format!("decnet name support not included, '{name}' cannot be translated"))
            }
            IdKind::Default | IdKind::Host => self.named_host(q, name),
            IdKind::Port | IdKind::PortRange => self.named_port(q, name),
            IdKind::Gateway => self.gateway(q, name),
            IdKind::Proto => {
                let number = self.protocol_number(name, q.protocol)?;
                self.is_protocol_number(number, q.protocol)
            }
            IdKind::ProtoChain => {
                let Ok(number) = self.protocol_number(name, q.protocol) else {
                    return self.error(format!("unknown 'protochain' value '{name}'"));
                };
                self.protocol_chain(number, q.protocol)
            }
        }
    }

    fn named_host(&mut self, q: Qualifiers, name: &str) -> Result<Condition, Error> {
        let addresses = self.names().host(name);
        // Where no field says what the payload is, IPv4 and IPv6 are all there is.
        let bare = self.kind.constant == NOT_SET && q.protocol.is_none();
        let mut conditions = Vec::new();
        for address in &addresses {
            conditions.push(match address {
                IpAddr::V4(_) if q.protocol == Some(Protocol::Ip6) => continue,
                IpAddr::V6(_) if q.protocol == Some(Protocol::Ip) => continue,
                IpAddr::V4(a) => {
                    let protocol = if bare { Some(Protocol::Ip) } else { q.protocol };
                    self.host(u32::from(*a), u32::MAX, Qualifiers { protocol, ..q })?
                }
                IpAddr::V6(a) => {
                    let protocol = if bare { Some(Protocol::Ip6) } else { q.protocol };
                    self.host6(*a, u128::MAX, Qualifiers { protocol, ..q })?
                }
            });
        }
        let family = if q.protocol.is_some() && !addresses.is_empty() { " for specified address family" } else { "" };
        match self.builder.any(conditions) {
            Some(any) => Ok(any),
            None => Err(Error::new(self.span.clone(), format!("unknown host '{name}'{family}"))
                .help("names are looked up in /etc/hosts; --resolve asks DNS, too")),
        }
    }

    fn numbered(&mut self, q: Qualifiers, n: u32) -> Result<Condition, Error> {
        match q.kind {
            IdKind::Default | IdKind::Host | IdKind::Net => match q.protocol {
                Some(Protocol::Decnet) => self.error(format!("malformed decnet address '{n}'")),
                Some(Protocol::Link) => self.error(format!("illegal link layer address '{n}'")),
                _ => {
                    let (mut address, mut mask) = (n, u32::MAX);
                    while q.kind == IdKind::Net && address != 0 && address & 0xff00_0000 == 0 {
                        (address, mask) = (address << 8, mask << 8);
                    }
                    self.host(address, mask, q)
                }
            },
            IdKind::Port | IdKind::PortRange => self.ports(q, n, n),
            IdKind::Gateway => self.error("'gateway' requires a name"),
            IdKind::Proto => self.is_protocol_number(n, q.protocol),
            IdKind::ProtoChain => self.protocol_chain(n, q.protocol),
        }
    }

    fn ipv4_id(&mut self, q: Qualifiers, text: &str) -> Result<Condition, Error> {
        let modifier = match q.kind {
            IdKind::Port => Some("port"),
            IdKind::PortRange => Some("portrange"),
            IdKind::Proto => Some("proto"),
            IdKind::ProtoChain => Some("protochain"),
            IdKind::Gateway => return self.error(format!("'gateway' requires a name, which '{text}' is not")),
            IdKind::Default | IdKind::Host | IdKind::Net => None,
        };
        if let Some(modifier) = modifier {
            return self.error(format!("'{modifier}' modifier applied to IP address"));
        }
        if q.protocol == Some(Protocol::Decnet) {
            let Some(address) = names::decnet(text) else {
                return self.error(format!("invalid DECnet address '{text}'"));
            };
            return self.decnet_host(address, q.direction);
        }
        let Some((address, bits)) = names::ipv4(text) else {
            return self.error(format!("invalid IPv4 address '{text}'"));
        };
        if q.protocol == Some(Protocol::Link) {
            return self.error(format!("illegal link layer address '{text}'"));
        }
        self.host(address << (32 - bits), u32::MAX << (32 - bits), q)
    }

    fn ipv4_net(&mut self, q: Qualifiers, text: &str, mask: u32, written: &str) -> Result<Condition, Error> {
        let Some((address, bits)) = names::ipv4(text) else {
            return self.error(format!("invalid IPv4 address '{text}'"));
        };
        let address = address << (32 - bits);
        if address & !mask != 0 {
            let net = names::dotted(address & mask);
            return Err(Error::new(self.span.clone(), format!("non-network bits set in \"{written}\""))
                .help(format!("the network that this address is in begins at {net}")));
        }
        if q.kind != IdKind::Net {
            return self.error("mask syntax is for networks only");
        }
        self.host(address, mask, q)
    }

    fn ipv6_id(&mut self, q: Qualifiers, address: Ipv6Addr, length: u32) -> Result<Condition, Error> {
        if length > 128 {
            return self.error("mask length must be <= 128");
        }
        let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
        if u128::from(address) & !mask != 0 {
            return self.error(format!("non-network bits set in \"{address}/{length}\""));
        }
        match q.kind {
            IdKind::Default | IdKind::Host if length != 128 => self.error("mask syntax is for networks only"),
            IdKind::Default | IdKind::Host | IdKind::Net => self.host6(address, mask, q),
            _ => self.error("invalid qualifier against IPv6 address"),
        }
    }

    fn mac_id(&mut self, q: Qualifiers, mac: [u8; 6]) -> Result<Condition, Error> {
        if !matches!(q.kind, IdKind::Host | IdKind::Default) || q.protocol != Some(Protocol::Link) {
            return Err(Error::new(self.span.clone(), "ethernet address used in non-ether expression")
                .help("'ether host', 'ether src' or 'ether dst' goes before it"));
        }
        let check = if self.link.is_ethernet() { self.previous_link_check() } else { None };
        let host = self.link_host(mac, q.direction)?;
        Ok(match check {
            Some(check) => self.builder.and(check, host),
            None => host,
        })
    }

    fn arcnet_id(&mut self, q: Qualifiers, address: u8) -> Result<Condition, Error> {
        if !self.link.is_arcnet() && self.link != LinkType::BACNET_MS_TP {
            return self.error("aid supported only on ARCnet and BACnet");
        }
        if !matches!(q.kind, IdKind::Host | IdKind::Default) || q.protocol != Some(Protocol::Link) {
            return self.error("ARCnet address used in non-arc expression");
        }
        self.arcnet_host(address, q.direction)
    }

    /// Both of source and destination, or one of them, as the direction says.
    pub(super) fn directed(
        &mut self,
        direction: Direction,
        what: &str,
        of: impl Fn(&mut Self, bool) -> Result<Condition, Error>,
    ) -> Result<Condition, Error> {
        match direction {
            Direction::Src => of(self, true),
            Direction::Dst => of(self, false),
            Direction::And => {
                let (src, dst) = (of(self, true)?, of(self, false)?);
                Ok(self.builder.and(src, dst))
            }
            Direction::Default | Direction::Or => {
                let (src, dst) = (of(self, true)?, of(self, false)?);
                Ok(self.builder.or(src, dst))
            }
            Direction::Addr1 | Direction::Addr2 | Direction::Addr3 | Direction::Addr4 => {
                self.error(format!("'addr1' to 'addr4' are not valid qualifiers for {what}"))
            }
            Direction::Receiver => self.error(format!("'ra' is not a valid qualifier for {what}")),
            Direction::Transmitter => self.error(format!("'ta' is not a valid qualifier for {what}")),
        }
    }

    /// A question about a key of source and destination, or one of them, as the direction says: of both, whether one key that is
    /// asked for is both of them. The key is given word by word, with what holds where it stands.
    pub(super) fn directed_key(
        &mut self,
        direction: Direction,
        what: &str,
        key: impl Fn(&mut Self, bool) -> Result<(Option<Condition>, Vec<ValueId>), Error>,
        of: impl Fn(&mut Self, Vec<ValueId>) -> Result<Condition, Error>,
    ) -> Result<Condition, Error> {
        let guarded = |s: &mut Self, guard, condition| match guard {
            Some(guard) => s.builder.and(guard, condition),
            None => condition,
        };
        if direction != Direction::And {
            return self.directed(direction, what, |s, is_src| {
                let (guard, key) = key(s, is_src)?;
                let condition = of(s, key)?;
                Ok(guarded(s, guard, condition))
            });
        }
        let ((guard, src), (_, dst)) = (key(self, true)?, key(self, false)?);
        let mut condition = of(self, src.clone())?;
        for (src, dst) in src.into_iter().zip(dst) {
            let equal = self.builder.compare(Relation::Equal, src, dst);
            condition = self.builder.and(condition, equal);
        }
        Ok(guarded(self, guard, condition))
    }

    /// An IPv4 host or network.
    fn host(&mut self, address: u32, mask: u32, q: Qualifiers) -> Result<Condition, Error> {
        let what = if q.kind == IdKind::Net { "net" } else { "host" };
        let (kind, src, dst) = match q.protocol {
            None => {
                let mut protocols = vec![Protocol::Ip];
                if self.labels == 0 {
                    protocols.extend([Protocol::Arp, Protocol::Rarp]);
                }
                let mut conditions = Vec::new();
                for protocol in protocols {
                    conditions.push(self.host(address, mask, Qualifiers { protocol: Some(protocol), ..q })?);
                }
                return match self.builder.any(conditions) {
                    Some(any) => Ok(any),
                    None => self.error("no protocol has such an address"),
                };
            }
            Some(Protocol::Ip) => (kind::IP, 12, 16),
            Some(Protocol::Arp) => (kind::ARP, 14, 24),
            Some(Protocol::Rarp) => (kind::RARP, 14, 24),
            Some(Protocol::Link) => return self.error(format!("link-layer modifier applied to {what}")),
            Some(Protocol::Ip6) => return self.error("'ip6' modifier applied to ip host"),
            Some(protocol) => return self.error(format!("'{}' modifier applied to {what}", protocol.word())),
        };
        self.directed(q.direction, "addresses other than 802.11 MAC addresses", |s, is_src| {
            let is_kind = s.is_kind(kind)?;
            let address = s.masked(From::Network, if is_src { src } else { dst }, 4, address, mask);
            Ok(s.builder.and(is_kind, address))
        })
    }

    /// An IPv6 host or network.
    fn host6(&mut self, address: Ipv6Addr, mask: u128, q: Qualifiers) -> Result<Condition, Error> {
        let what = if q.kind == IdKind::Net { "net" } else { "host" };
        match q.protocol {
            None | Some(Protocol::Ip6) => {}
            Some(Protocol::Link) => return self.error(format!("link-layer modifier applied to ip6 {what}")),
            other => return self.error(format!("'{}' modifier applied to ip6 {what}", word(other))),
        }
        let address = u128::from(address);
        self.directed(q.direction, "addresses other than 802.11 MAC addresses", |s, is_src| {
            let is_kind = s.is_kind(kind::IP6)?;
            let offset = if is_src { 8 } else { 24 };
            let mut conditions = vec![is_kind];
            for i in 0..4 {
                let shift = 96 - 32 * i;
                let (word, bits) = ((address >> shift) as u32, (mask >> shift) as u32);
                conditions.push(s.masked(From::Network, offset + 4 * i, 4, word, bits));
            }
            match s.builder.all(conditions) {
                Some(all) => Ok(all),
                None => s.error("an address has words"),
            }
        })
    }

    /// A DECnet host: packets of Phase IV with short or long headers, with or without a byte of padding.
    fn decnet_host(&mut self, address: u32, direction: Direction) -> Result<Condition, Error> {
        if matches!(direction, Direction::Default | Direction::Or | Direction::And) {
            return self.directed(direction, "addresses", |s, is_src| {
                s.decnet_host(address, if is_src { Direction::Src } else { Direction::Dst })
            });
        }
        let (short, long) = match direction {
            Direction::Src => (3, 15),
            Direction::Dst => (1, 7),
            _ => {
                return self.directed(direction, "addresses other than 802.11 MAC addresses", |s, _| {
                    Ok(s.builder.always(false))
                });
            }
        };
        let is_kind = self.is_kind(kind::DECNET)?;
        let address = u32::from((address as u16).swap_bytes());
        let mut form = |size: u8, value: u32, mask: u32, at: u32| {
            let flags = self.masked(From::Network, 2, size, value, mask);
            let address = self.equal(From::Network, at, 2, address);
            self.builder.and(flags, address)
        };
        let padded_long = form(2, 0x8106, 0xff07, 2 + 1 + long);
        let plain_long = form(1, 0x06, 0x07, 2 + long);
        let padded_short = form(2, 0x8102, 0xff07, 2 + 1 + short);
        let plain_short = form(1, 0x02, 0x07, 2 + short);
        let forms = [plain_short, padded_short, plain_long, padded_long];
        match self.builder.any(forms) {
            Some(any) => Ok(self.builder.and(is_kind, any)),
            None => Ok(is_kind),
        }
    }

    /// `gateway`: the frame is to or from the host's Ethernet address, the packet not to or from its IP address.
    fn gateway(&mut self, q: Qualifiers, name: &str) -> Result<Condition, Error> {
        if self.labels > 0 {
            return self.error("'gateway' cannot be used within MPLS");
        }
        if !matches!(q.protocol, None | Some(Protocol::Ip | Protocol::Arp | Protocol::Rarp)) {
            return self.error("illegal modifier of 'gateway'");
        }
        let Some(mac) = self.names().ether(name) else {
            return Err(Error::new(self.span.clone(), format!("unknown ether host: {name}"))
                .help("/etc/ethers names Ethernet addresses"));
        };
        let addresses = self.names().host(name);
        let check = if self.link.is_ethernet() { self.previous_link_check() } else { None };
        let is_known = self.has_plain_addresses() || self.link.is_wlan();
        if !is_known {
            return self.error("'gateway' supported only on ethernet/FDDI/token ring/802.11/ATM LANE/Fibre Channel");
        }
        let frame = self.link_host(mac, Direction::Or)?;
        let frame = match check {
            Some(check) => self.builder.and(check, frame),
            None => frame,
        };
        let mut hosts = Vec::new();
        for address in addresses {
            if let IpAddr::V4(a) = address {
                hosts.push(self.host(
                    u32::from(a),
                    u32::MAX,
                    Qualifiers { direction: Direction::Or, kind: IdKind::Host, ..q },
                )?);
            }
        }
        let Some(any) = self.builder.any(hosts) else { return self.error(format!("unknown host '{name}'")) };
        let other = self.builder.not(any);
        Ok(self.builder.and(frame, other))
    }

    /// A host by its address on the link.
    fn link_host(&mut self, mac: [u8; 6], direction: Direction) -> Result<Condition, Error> {
        if self.link.is_wlan() {
            return self.wlan_host(mac, direction);
        }
        self.link_addresses(direction, |s, offset| s.bytes(From::LinkHeader, offset, &mac))
    }

    /// The link's headers have their addresses in one place.
    pub(super) fn has_plain_addresses(&self) -> bool {
        self.link.is_ethernet() || matches!(self.link, LinkType::FDDI | LinkType::IEEE802 | LinkType::IP_OVER_FC)
    }

    /// A condition about the addresses of the link's header, by the direction; each by its offset.
    pub(super) fn link_addresses(
        &mut self,
        direction: Direction,
        of: impl Fn(&mut Self, u32) -> Condition,
    ) -> Result<Condition, Error> {
        let (src, dst) = self.link_offsets()?;
        self.directed(direction, "links other than 802.11", |s, is_src| Ok(of(s, if is_src { src } else { dst })))
    }

    /// Where the link's header has source and destination.
    pub(super) fn link_offsets(&self) -> Result<(u32, u32), Error> {
        Ok(match self.link {
            ethernet if ethernet.is_ethernet() => (6, 0),
            LinkType::FDDI => (7, 1),
            LinkType::IEEE802 => (8, 2),
            LinkType::IP_OVER_FC => (10, 2),
            _ => {
                return self.error(
                    "ethernet addresses supported only on ethernet/FDDI/token ring/802.11/ATM LANE/Fibre Channel",
                );
            }
        })
    }

    fn arcnet_host(&mut self, address: u8, direction: Direction) -> Result<Condition, Error> {
        self.directed(direction, "links other than 802.11", |s, is_src| {
            // BACnet MS/TP has its addresses behind the preamble and the frame's type, the destination first.
            let offset = match s.link {
                LinkType::BACNET_MS_TP => 3 + u32::from(is_src),
                _ => u32::from(!is_src),
            };
            Ok(s.equal(From::LinkHeader, offset, 1, u32::from(address)))
        })
    }

    /// `broadcast`
    pub(super) fn broadcast(&mut self, protocol: Option<Protocol>) -> Result<Condition, Error> {
        match protocol {
            None | Some(Protocol::Link) if self.link.is_arcnet() => self.arcnet_host(0, Direction::Dst),
            None | Some(Protocol::Link) => {
                let has_macs = self.has_plain_addresses() || self.link.is_wlan();
                if !has_macs {
                    return self.error("not a broadcast link");
                }
                let check = if self.link.is_ethernet() { self.previous_link_check() } else { None };
                let host = self.link_host(BROADCAST, Direction::Dst)?;
                Ok(match check {
                    Some(check) => self.builder.and(check, host),
                    None => host,
                })
            }
            Some(Protocol::Ip) => {
                let Some(netmask) = self.options.netmask.filter(|m| *m != u32::MAX) else {
                    return Err(Error::new(self.span.clone(), "netmask not known, so 'ip broadcast' not supported")
                        .help("--netmask gives it"));
                };
                let is_ip = self.is_kind(kind::IP)?;
                let zeros = self.masked(From::Network, 16, 4, 0, !netmask);
                let ones = self.masked(From::Network, 16, 4, !netmask, !netmask);
                let either = self.builder.or(zeros, ones);
                Ok(self.builder.and(is_ip, either))
            }
            Some(_) => self.error("only link-layer/IP broadcast filters supported"),
        }
    }

    /// `multicast`
    pub(super) fn multicast(&mut self, protocol: Option<Protocol>) -> Result<Condition, Error> {
        let bit = |s: &mut Self, offset| Ok(s.any_bit(From::LinkHeader, offset, 1, 0x01));
        match protocol {
            None | Some(Protocol::Link) => match self.link {
                arcnet if arcnet.is_arcnet() => self.arcnet_host(0, Direction::Dst),
                ethernet if ethernet.is_ethernet() => {
                    let check = self.previous_link_check();
                    let multicast = bit(self, 0)?;
                    Ok(match check {
                        Some(check) => self.builder.and(check, multicast),
                        None => multicast,
                    })
                }
                LinkType::FDDI => bit(self, 1),
                LinkType::IEEE802 | LinkType::IP_OVER_FC => bit(self, 2),
                wlan if wlan.is_wlan() => Ok(self.wlan_multicast()),
                _ => self.error(
                    "link-layer multicast filters supported only on ethernet/FDDI/token ring/ARCNET/802.11/ATM LANE/Fibre Channel",
                ),
            },
            Some(Protocol::Ip) => {
                let is_ip = self.is_kind(kind::IP)?;
                let class = self.compare(From::Network, 16, 1, Relation::GreaterEqual, 224);
                Ok(self.builder.and(is_ip, class))
            }
            Some(Protocol::Ip6) => {
                let is_ip6 = self.is_kind(kind::IP6)?;
                let prefix = self.equal(From::Network, 24, 1, 0xff);
                Ok(self.builder.and(is_ip6, prefix))
            }
            Some(_) => self.error("only IP, IPv6 and link-layer multicast filters supported"),
        }
    }
}
