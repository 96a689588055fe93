//! Protocols by number, ports, chains of headers (`gencode.c`: `gen_proto`, `gen_port`, `gen_portrange`, `gen_protochain`).

use std::sync::Arc;

use super::kind;
use super::state::{From, Lowering};
use crate::error::Error;
use crate::graph::{Chain, Condition};
use crate::intervals::Intervals;
use crate::language::{Protocol, Qualifiers, Relation};
use crate::link::LinkType;
use crate::name_files::PortProtocol;
use crate::names;
use crate::value::{Binary, Value, Values};

const TCP: u32 = 6;
const UDP: u32 = 17;
const SCTP: u32 = 132;
const FRAGMENT: u32 = 44;
const AUTHENTICATION: u32 = 51;
/// The headers that libpcap's `protochain` goes past: hop-by-hop and destination options, routing, fragment, authentication.
const LIBPCAP_EXTENSIONS: &[u32] = &[0, 60, 43, FRAGMENT, AUTHENTICATION];

impl Lowering<'_> {
    /// The number of a protocol's name.
    pub(super) fn protocol_number(&mut self, name: &str, of: Option<Protocol>) -> Result<u32, Error> {
        let (number, what) = match of {
            None | Some(Protocol::Ip | Protocol::Ip6) => (self.names().protocol(name), "ip"),
            Some(Protocol::Link) => (names::ether_protocol(name), "ether"),
            Some(Protocol::Iso) => {
                let number = match name {
                    "esis" => Some(0x82),
                    "isis" => Some(0x83),
                    "clnp" => Some(0x81),
                    _ => None,
                };
                (number, "osi")
            }
            Some(_) => return self.error(format!("unknown protocol: {name}")),
        };
        match number {
            Some(number) => Ok(number),
            None => self.error(format!("unknown {what} proto '{name}'")),
        }
    }

    /// `proto`: what `of` carries has this number.
    pub(super) fn is_protocol_number(&mut self, number: u32, of: Option<Protocol>) -> Result<Condition, Error> {
        let most =
            |s: &Self, what: &str, most: u32| if number > most { s.too_high(what, number, most) } else { Ok(()) };
        match of {
            None => {
                let ip = self.is_protocol_number(number, Some(Protocol::Ip))?;
                let ip6 = self.is_protocol_number(number, Some(Protocol::Ip6))?;
                Ok(self.builder.or(ip, ip6))
            }
            Some(Protocol::Link) if self.is_modern() && kind::VLAN.contains(&number) => self.has_tag_of(number),
            Some(Protocol::Link) => {
                self.check_kind_number(number)?;
                self.is_kind(number)
            }
            Some(Protocol::Ip) => {
                most(self, "protocol number", 255)?;
                let is_ip = self.is_kind(kind::IP)?;
                let carried = self.equal(From::Network, 9, 1, number);
                Ok(self.builder.and(is_ip, carried))
            }
            Some(Protocol::Ip6) if self.is_modern() => {
                most(self, "protocol number", 255)?;
                let is_ip6 = self.is_kind(kind::IP6)?;
                let carried = self.ip6_carries(number);
                Ok(self.builder.and(is_ip6, carried))
            }
            Some(Protocol::Ip6) => {
                most(self, "protocol number", 255)?;
                // Also behind a fragment header.
                let is_ip6 = self.is_kind(kind::IP6)?;
                let next = self.equal(From::Network, 6, 1, number);
                let fragment = self.equal(From::Network, 6, 1, FRAGMENT);
                let behind = self.equal(From::Network, 40, 1, number);
                let behind = self.builder.and(fragment, behind);
                let carried = self.builder.or(next, behind);
                Ok(self.builder.and(is_ip6, carried))
            }
            Some(Protocol::Iso) => {
                most(self, "ISO protocol", 255)?;
                match self.link {
                    LinkType::FRELAY => Ok(self.equal(From::LinkHeader, 2, 2, 0x0300 | number)),
                    LinkType::C_HDLC | LinkType::HDLC => {
                        let is_iso = self.is_kind(kind::ISO << 8 | kind::ISO)?;
                        let carried = self.equal(From::NetworkWithoutSnap, 1, 1, number);
                        Ok(self.builder.and(is_iso, carried))
                    }
                    _ => {
                        let is_iso = self.is_kind(kind::ISO)?;
                        let carried = self.equal(From::NetworkWithoutSnap, 0, 1, number);
                        Ok(self.builder.and(is_iso, carried))
                    }
                }
            }
            Some(Protocol::Isis) => {
                most(self, "IS-IS PDU type", 31)?;
                let is_isis = self.is_protocol_number(0x83, Some(Protocol::Iso))?;
                // Cisco's HDLC has a byte of padding before the header.
                let padding = u32::from(matches!(self.link, LinkType::C_HDLC | LinkType::HDLC));
                let kind = self.masked(From::NetworkWithoutSnap, 4 + padding, 1, number, 0x1f);
                Ok(self.builder.and(is_isis, kind))
            }
            Some(Protocol::Arp) => self.error("arp does not encapsulate another protocol"),
            Some(Protocol::Rarp) => self.error("rarp does not encapsulate another protocol"),
            Some(Protocol::Atalk) => self.error("AppleTalk encapsulation is not specifiable"),
            Some(Protocol::Decnet) => self.error("DECNET encapsulation is not specifiable"),
            Some(p @ (Protocol::Lat | Protocol::Sca | Protocol::Moprc | Protocol::Mopdl)) => {
                self.error(format!("{} does not encapsulate another protocol", p.word().to_uppercase()))
            }
            Some(Protocol::Clnp) => self.error("'clnp proto' is not supported"),
            Some(other) => self.error(format!("'{} proto' is bogus", other.word())),
        }
    }

    /// What a link can say of its payload.
    fn check_kind_number(&self, number: u32) -> Result<(), Error> {
        let (what, most) = match self.link {
            LinkType::C_HDLC | LinkType::HDLC => ("HDLC protocol", 0xffff),
            LinkType::PPP | LinkType::PPP_PPPD | LinkType::PPP_SERIAL | LinkType::PPP_ETHER | LinkType::PPP_BSDOS => {
                ("PPP protocol", 0xffff)
            }
            // Numbers up to Ethernet's greatest length are LLC's.
            LinkType::LINUX_SLL if number <= 1500 => ("LLC DSAP", 0xff),
            ethernet if ethernet.is_ethernet() && number <= 1500 => ("LLC DSAP", 0xff),
            _ => ("EtherType", 0xffff),
        };
        if number > most { self.too_high(what, number, most) } else { Ok(()) }
    }

    /// The transport protocols whose ports are meant: by qualifier, and by the service that a port's name says.
    fn port_protocols(&self, q: Qualifiers, named: PortProtocol, name: &str) -> Result<Option<u32>, Error> {
        let of = match named {
            PortProtocol::Tcp => Some((TCP, "tcp")),
            PortProtocol::Udp => Some((UDP, "udp")),
            PortProtocol::Any => None,
        };
        let wanted = match q.protocol {
            None => return Ok(of.map(|(n, _)| n)),
            Some(Protocol::Tcp) => TCP,
            Some(Protocol::Udp) => UDP,
            Some(Protocol::Sctp) => SCTP,
            Some(_) => return self.error("illegal qualifier of 'port'"),
        };
        match of {
            Some((n, word)) if n != wanted => self.error(format!("port '{name}' is {word}")),
            _ => Ok(Some(wanted)),
        }
    }

    /// `port` and `portrange` with names.
    pub(super) fn named_port(&mut self, q: Qualifiers, name: &str) -> Result<Condition, Error> {
        let range = q.kind == crate::language::IdKind::PortRange;
        let mut ends = Vec::new();
        let parts: Vec<&str> = if range { name.splitn(2, '-').collect() } else { vec![name] };
        if range && parts.len() != 2 {
            return Err(Error::new(self.span.clone(), format!("unknown port in range '{name}'"))
                .help("'port' asks for one service; a range has two ends, as in 'portrange ftp-data-ftp' or 'portrange 20-21'"));
        }
        for part in parts {
            let Some(port) = self.names().port(part) else {
                return self.error(format!("unknown port '{part}'{}", if range { " in range" } else { "" }));
            };
            ends.push(port);
        }
        let (first, last) = (ends[0], ends[ends.len() - 1]);
        let protocol = if first.1 == last.1 { first.1 } else { PortProtocol::Any };
        let protocols = self.port_protocols(q, protocol, name)?;
        self.port_range(q, first.0, last.0, protocols)
    }

    /// Ports by number.
    pub(super) fn ports(&mut self, q: Qualifiers, first: u32, last: u32) -> Result<Condition, Error> {
        let protocols = self.port_protocols(q, PortProtocol::Any, "")?;
        self.port_range(q, first, last, protocols)
    }

    /// A port from `first` to `last`, in either order, over IPv6 or IPv4.
    fn port_range(&mut self, q: Qualifiers, first: u32, last: u32, protocol: Option<u32>) -> Result<Condition, Error> {
        for port in [first, last] {
            if port > 65535 {
                return self.error(format!("illegal port number {port} > 65535"));
            }
        }
        let ends = (first.min(last), first.max(last));
        // A single number is compared once only if it was not written as a range: both are the same to every packet.
        let ip6 = self.port_over(q, ends, protocol, true)?;
        let ip = self.port_over(q, ends, protocol, false)?;
        Ok(self.builder.or(ip6, ip))
    }

    fn port_over(
        &mut self,
        q: Qualifiers,
        ends: (u32, u32),
        protocol: Option<u32>,
        ip6: bool,
    ) -> Result<Condition, Error> {
        let is_kind = self.is_kind(if ip6 { kind::IP6 } else { kind::IP })?;
        let protocols = match protocol {
            Some(protocol) => vec![protocol],
            None => vec![SCTP, TCP, UDP],
        };
        let mut conditions = Vec::new();
        for protocol in protocols {
            conditions.push(self.port_of(q, ends, protocol, ip6)?);
        }
        let Some(any) = self.builder.any(conditions) else { return self.error("no protocol has ports") };
        Ok(self.builder.and(is_kind, any))
    }

    /// The transport protocols whose ports are meant, in the order in which they are asked for.
    pub(super) fn transport_protocols(&self, q: Qualifiers) -> Result<Vec<u32>, Error> {
        Ok(match self.port_protocols(q, PortProtocol::Any, "")? {
            Some(protocol) => vec![protocol],
            None => vec![SCTP, TCP, UDP],
        })
    }

    /// The packet carries this protocol's ports.
    pub(super) fn carries_ports(&mut self, protocol: u32, ip6: bool) -> Condition {
        if ip6 && self.is_modern() {
            let upper = self.upper_of_ip6();
            return self.builder.compare_with(Relation::Equal, upper.readable, protocol);
        }
        if ip6 {
            return self.equal(From::Network, 6, 1, protocol);
        }
        let carried = self.equal(From::Network, 9, 1, protocol);
        let first_fragment = self.no_fragment();
        self.builder.and(carried, first_fragment)
    }

    fn port_of(
        &mut self,
        q: Qualifiers,
        (first, last): (u32, u32),
        protocol: u32,
        ip6: bool,
    ) -> Result<Condition, Error> {
        let carried = self.carries_ports(protocol, ip6);
        let from = if ip6 { From::TransportOfIp6 } else { From::TransportOfIp };
        let port = self.directed(q.direction, "ports", |s, is_src| {
            let offset = if is_src { 0 } else { 2 };
            if first == last {
                return Ok(s.equal(from, offset, 2, first));
            }
            let low = s.compare(from, offset, 2, Relation::GreaterEqual, first);
            let high = s.compare(from, offset, 2, Relation::LessEqual, last);
            Ok(s.builder.and(low, high))
        })?;
        Ok(self.builder.and(carried, port))
    }

    /// UDP to this port, over IPv4 or IPv6.
    pub(super) fn udp_to(&mut self, port: u32, ip6: bool) -> Result<Condition, Error> {
        let q = Qualifiers {
            protocol: Some(Protocol::Udp),
            direction: crate::language::Direction::Dst,
            kind: crate::language::IdKind::Port,
        };
        self.port_over(q, (port, port), Some(UDP), ip6)
    }

    /// The packet is no later fragment.
    pub(super) fn no_fragment(&mut self) -> Condition {
        self.no_bit(From::Network, 6, 2, 0x1fff)
    }

    /// `protochain`
    pub(super) fn protocol_chain(&mut self, protocol: u32, of: Option<Protocol>) -> Result<Condition, Error> {
        if protocol > 255 {
            return self.too_high("protocol number", protocol, 255);
        }
        let is_ip6 = match of {
            Some(Protocol::Ip) => false,
            Some(Protocol::Ip6) => true,
            None => {
                let ip = self.protocol_chain(protocol, Some(Protocol::Ip))?;
                let ip6 = self.protocol_chain(protocol, Some(Protocol::Ip6))?;
                return Ok(self.builder.or(ip, ip6));
            }
            Some(_) => return self.error("bad protocol applied for 'protochain'"),
        };
        if self.is_modern() {
            // A header that is in the chain is what 'ip6 proto' asks for; authentication headers of IPv4 are not gone past.
            return self.is_protocol_number(protocol, of);
        }
        if self.payload.is_variable {
            return self.error("'protochain' not supported with variable length headers");
        }
        let is_kind = self.is_kind(if is_ip6 { kind::IP6 } else { kind::IP })?;
        let chain = if self.options.source.is_kernel() {
            self.bounded_chain(is_ip6, protocol)
        } else {
            let start = self.payload.constant.wrapping_add(self.network);
            self.builder.chain(Chain { is_ip6, start, protocol })
        };
        Ok(self.builder.and(is_kind, chain))
    }

    /// The chain of headers for the kernel: [`Chain`] without a loop. One of more headers rejects the packet, as one does that leads
    /// off its end.
    ///
    /// Each header is read where the numbers of those before it say, which are one expression whatever headers these are.
    fn bounded_chain(&mut self, is_ip6: bool, protocol: u32) -> Condition {
        /// RFC 8200, section 4.1, knows of seven headers in one packet.
        const MOST_HEADERS: usize = 8;
        let start = self.payload.constant.wrapping_add(self.network);
        let (mut next, mut at) = if is_ip6 {
            (self.load(From::Network, 6, 1), self.builder.values.constant(40))
        } else {
            (self.load(From::Network, 9, 1), self.ip_header_end())
        };
        let mut steps = Vec::new();
        for step in 0..=MOST_HEADERS {
            let found = self.builder.compare_with(Relation::Equal, next, protocol);
            let goes_on = if is_ip6 { LIBPCAP_EXTENSIONS } else { &[AUTHENTICATION] };
            let set = Intervals::of(goes_on.iter().map(|n| (*n, *n)).collect());
            let goes_on = self.builder.member(next, Arc::new(set));
            steps.push((found, goes_on));
            if step == MOST_HEADERS {
                break;
            }
            let v = &mut self.builder.values;
            let header = v.intern(Value::Load { base: Some(at), offset: start, size: 2 });
            let [eight, low] = [8, 0xff].map(|n| v.constant(n));
            let following = v.binary(Binary::ShiftRight, header, eight);
            let length = v.binary(Binary::And, header, low);
            // Behind an authentication header libpcap goes on at four times its length, from the IP header on.
            let words = |v: &mut Values, add: u32, shift: u32| {
                let [add, shift] = [add, shift].map(|n| v.constant(n));
                let sum = v.binary(Binary::Add, length, add);
                v.binary(Binary::ShiftLeft, sum, shift)
            };
            let authenticated = words(v, 2, 2);
            at = if is_ip6 {
                let option = words(v, 1, 3);
                let behind = v.binary(Binary::Add, at, option);
                let is_authentication = v.is_number(next, AUTHENTICATION);
                v.chosen(is_authentication, authenticated, behind)
            } else {
                authenticated
            };
            next = following;
        }
        // Nothing is behind all packets.
        let mut rest = self.compare(From::Packet, u32::MAX, 1, Relation::Equal, 0);
        for (found, goes_on) in steps.into_iter().rev() {
            let further = self.builder.and(goes_on, rest);
            rest = self.builder.or(found, further);
        }
        rest
    }
}
