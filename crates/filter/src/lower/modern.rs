//! The modern dialect: headers that libpcap's filters do not look behind.
//!
//! A filter is lowered once for each kind of headers that it may stand behind, and the packet chooses: without a VLAN tag, behind
//! tags, over IPv6 with extension headers. What a packet has of these is one expression without a branch, so that a way through the
//! filter is not copied for each length that headers may have:
//!
//! ```text
//! no extension headers:  protocol = packet[20]              place = 40
//! else, header by header: (next, place) = is_extension(next) ? (packet[place], place + length) : (next, place)
//! ```

use std::sync::Arc;

use super::kind;
use super::state::{From, Lowering, Modern, Offset};
use crate::error::Error;
use crate::graph::Condition;
use crate::intervals::Intervals;
use crate::language::{Protocol, Relation, Tunnel};
use crate::link::LinkType;
use crate::options::Dialect;
use crate::value::{Ancillary, Binary, Value, ValueId};

/// Extension headers that are gone past (IANA, "IPv6 Extension Header Types"): hop-by-hop options, routing, fragment, authentication,
/// destination options, mobility, HIP, Shim6. What is behind ESP is encrypted.
const EXTENSIONS: [u32; 8] = [0, 43, FRAGMENT, AUTHENTICATION, 60, 135, 139, 140];
const FRAGMENT: u32 = 44;
const AUTHENTICATION: u32 = 51;
const GRE: u32 = 47;
/// How many extension headers are gone past: those that RFC 8200, section 4.1, lists but ESP.
const MOST_HEADERS: usize = 6;

/// What is behind an IPv6 header and its extension headers.
#[derive(Clone, Copy)]
pub(super) struct Upper {
    /// The protocol; of a later fragment the one that the fragment header says.
    protocol: ValueId,
    /// The same, but more than 255 for later fragments.
    pub(super) readable: ValueId,
    /// Where it begins, behind the constant part of the network header's place.
    pub(super) place: ValueId,
}

impl Lowering<'_> {
    pub(super) fn is_modern(&self) -> bool {
        self.options.dialect == Dialect::Modern
    }

    fn any_of(&mut self, value: ValueId, numbers: &[u32]) -> Condition {
        let set = Intervals::of(numbers.iter().map(|n| (*n, *n)).collect());
        self.builder.member(value, Arc::new(set))
    }

    /// 1 if a number is one of the VLAN tags' types, otherwise 0.
    fn is_tag(&mut self, kind: ValueId) -> ValueId {
        // 0x8100 and 0x9100 differ in one bit.
        let v = &mut self.builder.values;
        let bit = v.constant(0x1000);
        let with_bit = v.binary(Binary::Or, kind, bit);
        let customer = v.is_number(with_bit, 0x9100);
        let service = v.is_number(kind, 0x88a8);
        v.binary(Binary::Or, customer, service)
    }

    fn load_behind(&mut self, offset: Offset, behind: u32, size: u8) -> ValueId {
        let offset_at = offset.constant.wrapping_add(behind);
        self.builder.values.intern(Value::Load { base: offset.computed, offset: offset_at, size })
    }

    fn moved(&mut self, offset: Offset, by: ValueId) -> Offset {
        let computed = match offset.computed {
            Some(base) => self.builder.values.binary(Binary::Add, base, by),
            None => by,
        };
        Offset { computed: Some(computed), ..offset }
    }

    /// A filter behind whatever VLAN tags and extension headers are here.
    pub(super) fn through_headers(
        &mut self,
        body: &mut dyn FnMut(&mut Self) -> Result<Condition, Error>,
    ) -> Result<Condition, Error> {
        if !self.link.is_ethernet() || self.modern.is_bare {
            return self.through_extensions(body);
        }
        let start = self.frame();
        self.modern.first_kind = Some(self.kind);
        let first = self.kind;
        let four_of = |s: &mut Self, is: ValueId| {
            let two = s.builder.values.constant(2);
            s.builder.values.binary(Binary::ShiftLeft, is, two)
        };
        if first.computed.is_some() {
            // In a tunnel, where places are computed anyway.
            let outer = self.load_behind(first, 0, 2);
            let outer = self.is_tag(outer);
            let behind = four_of(self, outer);
            let second = self.moved(first, behind);
            let inner = self.load_behind(second, 0, 2);
            let inner = self.is_tag(inner);
            let more = four_of(self, inner);
            let all = self.builder.values.binary(Binary::Add, behind, more);
            self.kind = self.moved(self.kind, all);
            self.payload = self.moved(self.payload, all);
            return self.through_extensions(body);
        }
        self.modern.asked_payload = false;
        let untagged = self.through_extensions(body)?;
        if !self.modern.asked_payload {
            return Ok(untagged);
        }
        self.set_frame(start);
        self.modern.first_kind = Some(first);
        let inner = self.load_behind(first, 4, 2);
        let inner = self.is_tag(inner);
        let more = four_of(self, inner);
        self.kind = Offset { constant: first.constant + 4, computed: Some(more), ..first };
        self.payload = Offset { constant: self.payload.constant + 4, computed: Some(more), ..self.payload };
        let tagged = self.through_extensions(body)?;
        let outer = self.load_behind(first, 0, 2);
        let is_tagged = self.any_of(outer, &kind::VLAN);
        Ok(self.builder.choice(is_tagged, tagged, untagged))
    }

    fn through_extensions(
        &mut self,
        body: &mut dyn FnMut(&mut Self) -> Result<Condition, Error>,
    ) -> Result<Condition, Error> {
        let (start, primitives) = (self.frame(), self.primitives);
        self.modern.without_extensions = Some((self.payload, self.network));
        let outer = std::mem::replace(&mut self.modern.asked_upper, false);
        let without = body(self)?;
        let asked = std::mem::replace(&mut self.modern.asked_upper, outer);
        self.set_frame(start);
        if !asked {
            return Ok(without);
        }
        self.primitives = primitives;
        self.modern.without_extensions = None;
        let with = body(self)?;
        self.set_frame(start);
        let is_ip6 = self.is_kind(kind::IP6)?;
        let next = self.load(From::Network, 6, 1);
        let has_extension = self.any_of(next, &EXTENSIONS);
        let is_extended = self.builder.and(is_ip6, has_extension);
        Ok(self.builder.choice(is_extended, with, without))
    }

    /// What is behind the IPv6 header at hand.
    pub(super) fn upper_of_ip6(&mut self) -> Upper {
        self.modern.asked_upper = true;
        self.modern.asked_transport = true;
        let headers = self.headers();
        let (readable, place) = headers[headers.len() - 1];
        let byte = self.builder.values.constant(0xff);
        let protocol = self.builder.values.binary(Binary::And, readable, byte);
        Upper { protocol, readable, place }
    }

    /// The IPv6 packet has such a header, or is of such a protocol.
    pub(super) fn ip6_carries(&mut self, number: u32) -> Condition {
        let upper = self.upper_of_ip6();
        let is = self.builder.compare_with(Relation::Equal, upper.protocol, number);
        if !EXTENSIONS.contains(&number) {
            return is;
        }
        let headers = self.headers();
        let before: Vec<Condition> = headers[..headers.len() - 1]
            .iter()
            .map(|(next, _)| self.builder.compare_with(Relation::Equal, *next, number))
            .collect();
        match self.builder.any(before) {
            Some(before) => self.builder.or(before, is),
            None => is,
        }
    }

    /// Header by header: which is next, and where it begins.
    fn headers(&mut self) -> Vec<(ValueId, ValueId)> {
        let mut next = self.load(From::Network, 6, 1);
        let mut place = self.builder.values.constant(40);
        if let Some(base) = self.variable_of(|s| &mut s.payload) {
            place = self.builder.values.binary(Binary::Add, place, base);
        }
        let mut all = vec![(next, place)];
        if self.modern.without_extensions == Some((self.payload, self.network)) {
            return all;
        }
        let start = self.payload.constant.wrapping_add(self.network);
        for _ in 0..MOST_HEADERS {
            let is_extension = self.is_extension(next);
            let v = &mut self.builder.values;
            // Of what is none the packet's first bytes are read, which are there; they count for nothing.
            let at = v.binary(Binary::Mul, place, is_extension);
            let [eight, low, four, one, fragment_offset] = [8, 0xff, 4, 1, 0xfff8].map(|n| v.constant(n));
            let header = v.intern(Value::Load { base: Some(at), offset: start, size: 2 });
            let (following, length) = (v.binary(Binary::ShiftRight, header, eight), v.binary(Binary::And, header, low));
            // RFC 8200, section 4.5; RFC 4302, section 2.2.
            let (is_fragment, is_ah) = (v.is_number(next, FRAGMENT), v.is_number(next, AUTHENTICATION));
            let field = v.intern(Value::Load { base: Some(at), offset: start.wrapping_add(2), size: 2 });
            let offset = v.binary(Binary::And, field, fragment_offset);
            let is_first = v.is_zero(offset);
            let is_later = v.binary(Binary::Xor, is_first, one);
            let is_later = v.binary(Binary::And, is_later, is_fragment);
            let later = v.binary(Binary::ShiftLeft, is_later, eight);
            let following = v.binary(Binary::Or, following, later);
            // In bytes: 8 + 8 * length; AH: 8 + 4 * length; fragment: 8.
            let (less, none) = (v.binary(Binary::Mul, is_ah, four), v.binary(Binary::Mul, is_fragment, eight));
            let unit = v.binary(Binary::Sub, eight, less);
            let unit = v.binary(Binary::Sub, unit, none);
            let behind = v.binary(Binary::Mul, length, unit);
            let size = v.binary(Binary::Add, behind, eight);
            let size = v.binary(Binary::Mul, size, is_extension);
            place = v.binary(Binary::Add, place, size);
            next = v.chosen(is_extension, following, next);
            all.push((next, place));
        }
        all
    }

    /// 1 if a header is one that is gone past, otherwise 0. Numbers are below 512, so that three multiply to less than 2^31.
    fn is_extension(&mut self, next: ValueId) -> ValueId {
        let v = &mut self.builder.values;
        let bit = v.constant(0x10);
        let with_bit = v.binary(Binary::Or, next, bit);
        let [routing, authentication, mobility, hip, shim] = [43, AUTHENTICATION, 135, 139, 140].map(|n| {
            let n = v.constant(n);
            v.binary(Binary::Xor, next, n)
        });
        // 44 and 60 differ in one bit.
        let sixty = v.constant(60);
        let fragment_or_options = v.binary(Binary::Xor, with_bit, sixty);
        let mut any = v.is_zero(shim);
        for [a, b, c] in [[next, routing, authentication], [fragment_or_options, mobility, hip]] {
            let product = v.binary(Binary::Mul, a, b);
            let product = v.binary(Binary::Mul, product, c);
            let is = v.is_zero(product);
            any = v.binary(Binary::Or, any, is);
        }
        any
    }

    /// `vlan`: one of the tags, also the one beside the packet, has the number.
    pub(super) fn has_vlan(&mut self, number: Option<u32>) -> Result<Condition, Error> {
        if let Some(n) = number.filter(|n| *n > 0xfff) {
            return self.too_high("VLAN tag", n, 0xfff);
        }
        if self.modern.is_bare {
            return Ok(self.builder.always(false));
        }
        let Some(first) = self.modern.first_kind.filter(|_| self.link.is_ethernet()) else {
            return self.error(format!("no VLAN support for {}", self.link));
        };
        self.modern.asked_payload = true;
        let mut any = None;
        // The inner tag only behind the outer one.
        for tag in [4, 0] {
            let kind = self.load_behind(first, tag, 2);
            let is_tag = self.any_of(kind, &kind::VLAN);
            let mut is = match number {
                Some(n) => {
                    let tci = self.load_behind(first, tag + 2, 2);
                    let mask = self.builder.values.constant(0xfff);
                    let bits = self.builder.values.binary(Binary::And, tci, mask);
                    self.builder.compare_with(Relation::Equal, bits, n)
                }
                None => self.builder.always(true),
            };
            if let Some(inner) = any {
                is = self.builder.or(is, inner);
            }
            any = Some(self.builder.and(is_tag, is));
        }
        let Some(inside) = any else { return self.error("a packet has tags") };
        if !self.options.source.strips_vlan() || first.computed.is_some() {
            return Ok(inside);
        }
        let present = self.ancillary(Ancillary::VlanPresent);
        let mut beside = self.builder.compare_with(Relation::Equal, present, 1);
        if let Some(n) = number {
            let tag = self.ancillary(Ancillary::VlanTag);
            let mask = self.builder.values.constant(0xfff);
            let bits = self.builder.values.binary(Binary::And, tag, mask);
            let is = self.builder.compare_with(Relation::Equal, bits, n);
            beside = self.builder.and(beside, is);
        }
        Ok(self.builder.or(beside, inside))
    }

    /// `ether proto 0x8100`: a tag of this type, or what is behind tags.
    pub(super) fn has_tag_of(&mut self, number: u32) -> Result<Condition, Error> {
        let behind = self.is_kind(number)?;
        let Some(first) = self.modern.first_kind.filter(|_| self.link.is_ethernet() && !self.modern.is_bare) else {
            return Ok(behind);
        };
        let [outer, inner] = [0, 4].map(|tag| self.load_behind(first, tag, 2));
        let is_outer = self.builder.compare_with(Relation::Equal, outer, number);
        let is_tag = self.any_of(outer, &kind::VLAN);
        let is_inner = self.builder.compare_with(Relation::Equal, inner, number);
        let further = self.builder.or(is_inner, behind);
        let further = self.builder.and(is_tag, further);
        Ok(self.builder.or(is_outer, further))
    }

    /// A relation: with `tcp[…]` and its like once for IPv6 and once for IPv4.
    pub(super) fn modern_relation(
        &mut self,
        relation: &mut dyn FnMut(&mut Self) -> Result<Condition, Error>,
    ) -> Result<Condition, Error> {
        self.modern.asked_transport = false;
        self.modern.is_ip6 = false;
        let other = relation(self)?;
        if !self.modern.asked_transport {
            return Ok(other);
        }
        self.modern.is_ip6 = true;
        let ip6 = relation(self);
        self.modern.is_ip6 = false;
        let is_ip6 = self.is_kind(kind::IP6)?;
        Ok(self.builder.choice(is_ip6, ip6?, other))
    }

    /// Whether `tcp[…]` is that of IPv6 here, and which number it has there, if any.
    pub(super) fn transport_of_relation(&mut self, protocol: Protocol) -> Option<Option<u32>> {
        self.modern.asked_transport |= self.is_modern();
        self.modern.is_ip6.then_some(match protocol {
            Protocol::Tcp => Some(6),
            Protocol::Udp => Some(17),
            Protocol::Sctp => Some(132),
            Protocol::Pim => Some(103),
            _ => None,
        })
    }

    /// A tunnel's header stands at `from`, over IPv6 or IPv4.
    fn tunnel_over(&mut self, tunnel: Tunnel, number: Option<u32>, ip6: bool) -> Result<Condition, Error> {
        let from = if ip6 { From::TransportOfIp6 } else { From::TransportOfIp };
        let port = match tunnel {
            Tunnel::Vxlan => super::encapsulation::VXLAN_PORT,
            Tunnel::Geneve => super::encapsulation::GENEVE_PORT,
            Tunnel::Gre => {
                let is_kind = self.is_kind(if ip6 { kind::IP6 } else { kind::IP })?;
                let carries = self.carries_ports(GRE, ip6);
                // RFC 2784, section 2.3: version 0; no routing (RFC 1701).
                let is_plain = self.no_bit(from, 0, 2, 0x4007);
                let inner = self.builder.and(carries, is_plain);
                return Ok(self.builder.and(is_kind, inner));
            }
        };
        let to_port = self.udp_to(port, ip6)?;
        // RFC 7348, section 5: the number is there; RFC 8926, section 3.4: version 0.
        let is = match tunnel {
            Tunnel::Vxlan => self.any_bit(from, 8, 1, 0x08),
            _ => self.no_bit(from, 8, 1, 0xc0),
        };
        let is = match number {
            Some(n) => {
                let number = self.network_number(from, n);
                self.builder.and(is, number)
            }
            None => is,
        };
        Ok(self.builder.and(to_port, is))
    }

    fn check_tunnel(&self, tunnel: Tunnel, number: Option<u32>) -> Result<(), Error> {
        let what = if tunnel == Tunnel::Vxlan { "VXLAN VNI" } else { "Geneve VNI" };
        number.filter(|n| *n > 0xff_ffff).map_or(Ok(()), |n| self.too_high(what, n, 0xff_ffff))
    }

    /// `vxlan`, `geneve`, `gre` without parentheses: a test.
    pub(super) fn is_tunnel(&mut self, tunnel: Tunnel, number: Option<u32>) -> Result<Condition, Error> {
        if tunnel == Tunnel::Gre {
            return self.is_protocol_number(GRE, None);
        }
        self.check_tunnel(tunnel, number)?;
        let (ip, ip6) = (self.tunnel_over(tunnel, number, false)?, self.tunnel_over(tunnel, number, true)?);
        Ok(self.builder.or(ip, ip6))
    }

    /// `vxlan 5 (…)`: what is inside is what `body` says. What follows is about the outer packet.
    pub(super) fn inside(
        &mut self,
        tunnel: Tunnel,
        number: Option<u32>,
        body: &mut dyn FnMut(&mut Self) -> Result<Condition, Error>,
    ) -> Result<Condition, Error> {
        self.check_tunnel(tunnel, number)?;
        let (start, primitives) = (self.frame(), self.primitives);
        let mut either = Vec::new();
        for ip6 in [false, true] {
            self.primitives = primitives;
            let is_tunnel = self.tunnel_over(tunnel, number, ip6)?;
            let base = if ip6 { self.upper_of_ip6().place } else { self.ip_header_end() };
            let constant = self.payload.constant.wrapping_add(self.network);
            let outer = Offset { computed: Some(base), ..Offset::constant(constant) };
            let inner = self.packet_in(tunnel, outer, body)?;
            self.set_frame(start);
            either.push(self.builder.and(is_tunnel, inner));
        }
        match self.builder.any(either) {
            Some(any) => Ok(any),
            None => self.error("tunnels are over IPv4 or IPv6"),
        }
    }

    /// The packet behind a tunnel's header, which stands at `outer`.
    fn packet_in(
        &mut self,
        tunnel: Tunnel,
        outer: Offset,
        body: &mut dyn FnMut(&mut Self) -> Result<Condition, Error>,
    ) -> Result<Condition, Error> {
        let behind_udp = Offset { constant: outer.constant.wrapping_add(8), ..outer };
        let (header, length) = match tunnel {
            Tunnel::Vxlan => {
                let inner = Offset { constant: behind_udp.constant.wrapping_add(8), ..outer };
                return self.frame_in(inner, None, body);
            }
            Tunnel::Geneve => {
                let first = self.load_behind(behind_udp, 0, 1);
                let v = &mut self.builder.values;
                let [mask, two] = [0x3f, 2].map(|n| v.constant(n));
                let words = v.binary(Binary::And, first, mask);
                (Offset { constant: behind_udp.constant, ..outer }, (v.binary(Binary::ShiftLeft, words, two), 8))
            }
            Tunnel::Gre => {
                // RFC 2784, section 2.1, and RFC 2890: checksum, key and sequence number, four bytes each.
                let flags = self.load_behind(outer, 0, 1);
                let v = &mut self.builder.values;
                let [one, two] = [1, 2].map(|n| v.constant(n));
                let mut words = v.constant(0);
                for shift in [7, 5, 4] {
                    let shift = v.constant(shift);
                    let flag = v.binary(Binary::ShiftRight, flags, shift);
                    let flag = v.binary(Binary::And, flag, one);
                    words = v.binary(Binary::Add, flag, words);
                }
                (outer, (v.binary(Binary::ShiftLeft, words, two), 4))
            }
        };
        let protocol = Offset { constant: header.constant.wrapping_add(2), ..header };
        let moved = self.moved(header, length.0);
        let inner = Offset { constant: moved.constant.wrapping_add(length.1), ..moved };
        let carried = self.load_behind(protocol, 0, 2);
        let is_ethernet = self.builder.compare_with(Relation::Equal, carried, kind::BRIDGED_ETHERNET);
        let before = self.frame();
        let frame = self.frame_in(inner, None, body)?;
        self.set_frame(before);
        let bare = self.frame_in(inner, Some(protocol), body)?;
        Ok(self.builder.choice(is_ethernet, frame, bare))
    }

    /// An Ethernet frame; or, if `protocol` says where its type stands, what has no link header.
    fn frame_in(
        &mut self,
        at: Offset,
        protocol: Option<Offset>,
        body: &mut dyn FnMut(&mut Self) -> Result<Condition, Error>,
    ) -> Result<Condition, Error> {
        let further = |n: u32| Offset { constant: at.constant.wrapping_add(n), ..at };
        let asked = (self.modern.asked_payload, self.modern.asked_upper);
        self.push_link(LinkType::EN10MB, at);
        self.kind = protocol.unwrap_or(further(12));
        self.payload = if protocol.is_some() { at } else { further(14) };
        (self.network, self.network_without_snap) = (0, if protocol.is_some() { 0 } else { 3 });
        (self.labels, self.vlans, self.is_atm) = (0, 0, false);
        self.modern = Modern { is_bare: protocol.is_some(), ..Modern::default() };
        let condition = self.through_headers(body)?;
        (self.modern.asked_payload, self.modern.asked_upper) = asked;
        Ok(condition)
    }
}
