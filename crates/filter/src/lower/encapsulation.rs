//! Encapsulations, which shift the offsets of the rest of the text (`gencode.c`: `gen_vlan`, `gen_mpls`, `gen_pppoes`,
//! `gen_geneve`; `gen_vxlan` of 1.11).

use super::kind;
use super::state::{From, Lowering, Offset};
use crate::error::Error;
use crate::graph::Condition;
use crate::language::Relation;
use crate::link::LinkType;
use crate::value::{Ancillary, Binary, Value, ValueId, Variable};

pub(super) const GENEVE_PORT: u32 = 6081;
pub(super) const VXLAN_PORT: u32 = 4789;
/// PPP's number of MPLS.
const PPP_MPLS: u32 = 0x281;

impl Lowering<'_> {
    /// `vlan`: the rest of the text is about what is behind the tag.
    pub(super) fn vlan(&mut self, number: Option<u32>) -> Result<Condition, Error> {
        if self.labels > 0 {
            return self.error("no VLAN match after MPLS");
        }
        let is_outermost = self.vlans == 0 && !self.header.is_variable && self.link == self.outermost;
        let condition = match self.link {
            LinkType::EN10MB | LinkType::NETANALYZER | LinkType::NETANALYZER_TRANSPARENT
                if is_outermost && self.options.source.strips_vlan() =>
            {
                self.vlan_beside_packet(number)?
            }
            link if link.is_ethernet() || link.is_wlan() && link != LinkType::PPI => self.vlan_in_packet(number)?,
            link => return self.error(format!("no VLAN support for {link}")),
        };
        self.vlans += 1;
        Ok(condition)
    }

    fn has_vlan_kind(&mut self) -> Result<Condition, Error> {
        let mut kinds = Vec::new();
        for kind in kind::VLAN {
            kinds.push(self.is_kind(kind)?);
        }
        match self.builder.any(kinds) {
            Some(any) => Ok(any),
            None => self.error("no VLAN tag has a type"),
        }
    }

    fn check_vlan(&self, number: Option<u32>) -> Result<(), Error> {
        match number {
            Some(n) if n > 0xfff => self.too_high("VLAN tag", n, 0xfff),
            _ => Ok(()),
        }
    }

    fn vlan_in_packet(&mut self, number: Option<u32>) -> Result<Condition, Error> {
        self.check_vlan(number)?;
        let tagged = self.has_vlan_kind()?;
        let condition = match number {
            Some(n) => {
                let is = self.masked(From::Network, 0, 2, n, 0xfff);
                self.builder.and(tagged, is)
            }
            None => tagged,
        };
        self.payload.constant = self.payload.constant.wrapping_add(4);
        self.kind.constant = self.kind.constant.wrapping_add(4);
        Ok(condition)
    }

    /// The kernel may have taken the tag out of the packet, so that offsets behind it are known only of the packet.
    fn vlan_beside_packet(&mut self, number: Option<u32>) -> Result<Condition, Error> {
        self.check_vlan(number)?;
        let present = self.ancillary(Ancillary::VlanPresent);
        let is_beside = self.builder.compare_with(Relation::Equal, present, 1);
        let is_inside = self.has_vlan_kind()?;
        let is_number = match number {
            Some(n) => {
                let beside = self.builder.compare_with(Relation::Equal, present, 1);
                let tag = self.ancillary(Ancillary::VlanTag);
                let mask = self.builder.values.constant(0xfff);
                let bits = self.builder.values.binary(Binary::And, tag, mask);
                let is = self.builder.compare_with(Relation::Equal, bits, n);
                let beside = self.builder.and(beside, is);
                let inside = self.builder.compare_with(Relation::NotEqual, present, 1);
                let is = self.masked(From::Network, 0, 2, n, 0xfff);
                let inside = self.builder.and(inside, is);
                Some(self.builder.or(beside, inside))
            }
            None => None,
        };
        self.has_vlan_variables = true;
        let payload = self.shifted(|s| &mut s.payload);
        let kind = self.shifted(|s| &mut s.kind);
        self.builder.set_before(is_inside, vec![payload, kind]);
        let tagged = self.builder.or(is_beside, is_inside);
        Ok(match is_number {
            Some(is) => self.builder.and(tagged, is),
            None => tagged,
        })
    }

    /// An offset that is four bytes further if a block is reached.
    fn shifted(&mut self, choose: impl Fn(&mut Self) -> &mut Offset) -> (Variable, ValueId) {
        choose(self).is_variable = true;
        let variable = match choose(self).variable {
            Some(variable) => variable,
            None => {
                let variable = self.builder.variable();
                choose(self).variable = Some(variable);
                variable
            }
        };
        let (before, four) = (self.builder.read(variable), self.builder.values.constant(4));
        (variable, self.builder.values.binary(Binary::Add, before, four))
    }

    /// `mpls`
    pub(super) fn mpls(&mut self, label: Option<u32>) -> Result<Condition, Error> {
        let labelled = if self.labels > 0 {
            // The label before is not the last.
            self.no_bit(From::Label, 2, 1, 0x01)
        } else {
            match self.link {
                LinkType::C_HDLC | LinkType::HDLC => self.is_kind(kind::MPLS)?,
                link if link.is_ethernet() => self.is_kind(kind::MPLS)?,
                LinkType::PPP => self.is_kind(PPP_MPLS)?,
                link => return self.error(format!("no MPLS support for {link}")),
            }
        };
        let condition = match label {
            Some(n) if n > 0xf_ffff => return self.too_high("MPLS label", n, 0xf_ffff),
            Some(n) => {
                let is = self.masked(From::Network, 0, 4, n << 12, 0xffff_f000);
                self.builder.and(labelled, is)
            }
            None => labelled,
        };
        self.network = self.network.wrapping_add(4);
        self.network_without_snap = self.network_without_snap.wrapping_add(4);
        self.labels += 1;
        Ok(condition)
    }

    pub(super) fn push_link(&mut self, link: LinkType, header: Offset) {
        (self.previous_link, self.previous_header) = (self.link, self.header);
        (self.link, self.header) = (link, header);
        self.is_geneve = false;
    }

    /// The rest of the text is about an Ethernet frame, whose offsets are these variables.
    fn inner_ethernet(&mut self, header: Variable, kind: Variable, payload: Variable) {
        let [header, kind, payload] =
            [header, kind, payload].map(|v| Offset { is_variable: true, variable: Some(v), ..Offset::constant(0) });
        self.push_link(LinkType::EN10MB, header);
        (self.kind, self.payload) = (kind, payload);
    }

    /// `pppoes`: what is behind is PPP.
    pub(super) fn pppoe_session(&mut self, session: Option<u32>) -> Result<Condition, Error> {
        let is_session = self.is_kind(kind::PPPOE_SESSION)?;
        let condition = match session {
            Some(n) if n > 0xffff => return self.too_high("PPPoE session number", n, 0xffff),
            Some(n) => {
                let is = self.masked(From::Network, 0, 4, n, 0xffff);
                self.builder.and(is_session, is)
            }
            None => is_session,
        };
        let constant = self.payload.constant.wrapping_add(self.network).wrapping_add(6);
        self.push_link(LinkType::PPP, Offset { constant, ..self.payload });
        self.kind = self.header;
        self.payload.constant = constant.wrapping_add(2);
        (self.network, self.network_without_snap) = (0, 0);
        Ok(condition)
    }

    /// Whether a UDP packet to `port` carries what `is_header` says, over IPv4 or IPv6; sets a variable to where UDP begins behind
    /// the constant part of the network header's place.
    fn over_udp(
        &mut self,
        port: u32,
        mut is_header: impl FnMut(&mut Self, From) -> Condition,
    ) -> Result<(Condition, Variable), Error> {
        let transport = self.builder.variable();
        let mut either = Vec::new();
        for ip6 in [false, true] {
            let to_port = self.udp_to(port, ip6)?;
            let header = is_header(self, if ip6 { From::TransportOfIp6 } else { From::TransportOfIp });
            let both = self.builder.and(to_port, header);
            let end = if ip6 {
                let length = self.builder.values.constant(40);
                match self.variable_of(|s| &mut s.payload) {
                    Some(variable) => self.builder.values.binary(Binary::Add, length, variable),
                    None => length,
                }
            } else {
                self.ip_header_end()
            };
            let set = self.builder.set(vec![(transport, end)]);
            either.push(self.builder.and(both, set));
        }
        match self.builder.any(either) {
            Some(any) => Ok((any, transport)),
            None => self.error("UDP is over IPv4 or IPv6"),
        }
    }

    pub(super) fn network_number(&mut self, from: From, number: u32) -> Condition {
        self.masked(from, 12, 4, number << 8, 0xffff_ff00)
    }

    /// `geneve`: the rest of the text is about what is inside.
    pub(super) fn geneve(&mut self, number: Option<u32>) -> Result<Condition, Error> {
        if let Some(n) = number.filter(|n| *n > 0xff_ffff) {
            return self.too_high("Geneve VNI", n, 0xff_ffff);
        }
        let (is_geneve, transport) = self.over_udp(GENEVE_PORT, |s, from| {
            let version = s.masked(from, 8, 1, 0, 0xc0);
            match number {
                Some(n) => {
                    let is = s.network_number(from, n);
                    s.builder.and(version, is)
                }
                None => version,
            }
        })?;
        let start = self.payload.constant.wrapping_add(self.network).wrapping_add(8);
        let b = &mut self.builder;
        let (header, kind, payload) = (b.variable(), b.variable(), b.variable());
        let udp = b.read(transport);
        let constant = b.values.constant(start);
        let geneve = b.values.binary(Binary::Add, udp, constant);
        let two = b.values.constant(2);
        let kind_here = b.values.binary(Binary::Add, geneve, two);
        // The header's length: 8 bytes, and words of options.
        let first = b.values.intern(Value::Load { base: Some(geneve), offset: 0, size: 1 });
        let (low, four, eight) = (b.values.constant(0x3f), b.values.constant(4), b.values.constant(8));
        let words = b.values.binary(Binary::And, first, low);
        let options = b.values.binary(Binary::Mul, words, four);
        let length = b.values.binary(Binary::Add, options, eight);
        let inner = b.values.binary(Binary::Add, length, geneve);
        let protocol = b.values.intern(Value::Load { base: Some(geneve), offset: 2, size: 2 });
        let bridged = b.values.constant(kind::BRIDGED_ETHERNET);
        let is_ethernet =
            b.set_and_compare(vec![(kind, kind_here), (header, inner)], Relation::Equal, protocol, bridged);
        let inner = b.read(header);
        let (twelve, fourteen) = (b.values.constant(12), b.values.constant(14));
        let inner_kind = b.values.binary(Binary::Add, inner, twelve);
        let inner_payload = b.values.binary(Binary::Add, inner, fourteen);
        let ethernet = b.set(vec![(kind, inner_kind), (payload, inner_payload)]);
        let other = b.set(vec![(payload, inner)]);
        let ethernet = b.and(is_ethernet, ethernet);
        let offsets = b.or(ethernet, other);
        let condition = b.and(is_geneve, offsets);
        self.inner_ethernet(header, kind, payload);
        self.network = 0;
        self.is_geneve = true;
        Ok(condition)
    }

    /// `vxlan`: the rest of the text is about what is inside.
    pub(super) fn vxlan(&mut self, number: Option<u32>) -> Result<Condition, Error> {
        if let Some(n) = number.filter(|n| *n > 0xff_ffff) {
            return self.too_high("VXLAN VNI", n, 0xff_ffff);
        }
        let (is_vxlan, transport) = self.over_udp(VXLAN_PORT, |s, from| {
            let flags = s.equal(from, 8, 1, 0x08);
            match number {
                Some(n) => {
                    let is = s.network_number(from, n);
                    s.builder.and(flags, is)
                }
                None => flags,
            }
        })?;
        let start = self.payload.constant.wrapping_add(self.network).wrapping_add(8).wrapping_add(8);
        let b = &mut self.builder;
        let (header, kind, payload) = (b.variable(), b.variable(), b.variable());
        let udp = b.read(transport);
        let constants = [start, start.wrapping_add(12), start.wrapping_add(14)].map(|n| b.values.constant(n));
        let places = constants.map(|n| b.values.binary(Binary::Add, udp, n));
        let set = b.set(vec![(header, places[0]), (kind, places[1]), (payload, places[2])]);
        let condition = b.and(is_vxlan, set);
        self.inner_ethernet(header, kind, payload);
        (self.network, self.network_without_snap) = (0, 3);
        Ok(condition)
    }
}
