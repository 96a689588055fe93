//! What a link's payload is: Ethernet types and what other links have in their place (`gencode.c`: `gen_linktype`).

use super::state::{From, Lowering};
use crate::error::Error;
use crate::graph::Condition;
use crate::language::{Llc, Protocol, Relation};
use crate::link::{LinkType, NOT_SET};

pub(super) const IP: u32 = 0x0800;
pub(super) const ARP: u32 = 0x0806;
pub(super) const RARP: u32 = 0x8035;
pub(super) const IP6: u32 = 0x86dd;
pub(super) const DECNET: u32 = 0x6003;
pub(super) const VLAN: [u32; 3] = [0x8100, 0x88a8, 0x9100];
pub(super) const MPLS: u32 = 0x8847;
pub(super) const PPPOE_DISCOVERY: u32 = 0x8863;
pub(super) const PPPOE_SESSION: u32 = 0x8864;
pub(super) const BRIDGED_ETHERNET: u32 = 0x6558;
/// LLC's service access point of ISO's network protocols.
pub(super) const ISO: u32 = 0xfe;
const ATALK: u32 = 0x809b;
const AARP: u32 = 0x80f3;
const IPX: u32 = 0x8137;
const SAP_IP: u32 = 0x06;
const SAP_STP: u32 = 0x42;
const SAP_IPX: u32 = 0xe0;
const SAP_NETBEUI: u32 = 0xf0;
/// The greatest number that is a length in Ethernet's type field.
const LONGEST: u32 = 1500;
/// Address families: IPv4 everywhere, IPv6 on Linux.
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
/// IPv6 on BSD, FreeBSD and macOS.
const AF_INET6_ELSEWHERE: [u32; 3] = [24, 28, 30];

impl Lowering<'_> {
    /// The payload is of an Ethernet type, or, if the number is small, of an LLC service access point.
    pub(super) fn is_kind(&mut self, kind: u32) -> Result<Condition, Error> {
        if self.labels > 0 {
            return self.is_kind_behind_label(kind);
        }
        let condition = match self.link {
            ethernet if ethernet.is_ethernet() => {
                // Geneve's payload is asked whether it is Ethernet where its addresses are asked for only.
                let check = if self.is_geneve || self.modern.is_bare { None } else { self.previous_link_check() };
                let kind = self.is_ethernet_kind(kind);
                match check {
                    Some(check) => self.builder.and(check, kind),
                    None => kind,
                }
            }
            LinkType::C_HDLC | LinkType::HDLC => {
                let kind = if kind == ISO { ISO << 8 | ISO } else { kind };
                self.equal(From::Kind, 0, 2, kind)
            }
            wlan if wlan.is_wlan() => {
                let data = self.is_wlan_data();
                let kind = self.is_llc_kind(kind);
                self.builder.and(data, kind)
            }
            LinkType::FDDI | LinkType::IEEE802 | LinkType::ATM_RFC1483 | LinkType::ATM_CLIP | LinkType::IP_OVER_FC => {
                self.is_llc_kind(kind)
            }
            LinkType::SUNATM => {
                let llc = self.is_atm_protocol(super::link_specific::ATM_LLC)?;
                let kind = self.is_llc_kind(kind);
                self.builder.and(llc, kind)
            }
            LinkType::LINUX_SLL => self.is_sll_kind(kind),
            LinkType::SLIP | LinkType::SLIP_BSDOS | LinkType::RAW => match kind {
                IP => self.masked(From::LinkHeader, 0, 1, 0x40, 0xf0),
                IP6 => self.masked(From::LinkHeader, 0, 1, 0x60, 0xf0),
                _ => self.builder.always(false),
            },
            LinkType::IPV4 => self.builder.always(kind == IP),
            LinkType::IPV6 => self.builder.always(kind == IP6),
            LinkType::PPP | LinkType::PPP_PPPD | LinkType::PPP_SERIAL | LinkType::PPP_ETHER => {
                self.equal(From::Kind, 0, 2, ppp_protocol(kind))
            }
            LinkType::PPP_BSDOS if kind == IP => {
                // Van Jacobson's compressed and uncompressed headers, too.
                self.any_equal(From::Kind, 0, 2, &[ppp_protocol(IP), 0x2d, 0x2f])
            }
            LinkType::PPP_BSDOS => self.equal(From::Kind, 0, 2, ppp_protocol(kind)),
            LinkType::NULL | LinkType::LOOP | LinkType::ENC => match kind {
                IP => self.is_family(AF_INET),
                IP6 if self.is_live() => self.is_family(AF_INET6),
                IP6 => {
                    let [bsd, freebsd, darwin] = AF_INET6_ELSEWHERE.map(|family| self.is_family(family));
                    let both = self.builder.or(bsd, freebsd);
                    self.builder.or(darwin, both)
                }
                _ => self.builder.always(false),
            },
            LinkType::PFLOG => match kind {
                IP => self.equal(From::LinkHeader, 1, 1, AF_INET),
                // Those who write such captures are not Linux.
                IP6 if self.is_modern() => {
                    let [bsd, freebsd, darwin] = AF_INET6_ELSEWHERE;
                    self.any_equal(From::LinkHeader, 1, 1, &[bsd, freebsd, darwin, AF_INET6])
                }
                IP6 => self.equal(From::LinkHeader, 1, 1, AF_INET6),
                _ => self.builder.always(false),
            },
            LinkType::ARCNET | LinkType::ARCNET_LINUX => match kind {
                IP6 => self.equal(From::Kind, 0, 1, 0xc4),
                IP => self.equal(From::Kind, 0, 1, 212),
                ARP => self.equal(From::Kind, 0, 1, 213),
                RARP => self.equal(From::Kind, 0, 1, 214),
                ATALK => self.equal(From::Kind, 0, 1, 221),
                _ => self.builder.always(false),
            },
            LinkType::LTALK => self.builder.always(kind == ATALK),
            LinkType::FRELAY => match kind {
                IP => self.equal(From::LinkHeader, 2, 2, 0x03cc),
                IP6 => self.equal(From::LinkHeader, 2, 2, 0x038e),
                ISO => {
                    let [clnp, esis, isis] = [0x0381, 0x0382, 0x0383].map(|v| self.equal(From::LinkHeader, 2, 2, v));
                    let both = self.builder.or(esis, isis);
                    self.builder.or(clnp, both)
                }
                _ => self.builder.always(false),
            },
            LinkType::MFR => return self.error("Multi-link Frame Relay link-layer type filtering not implemented"),
            juniper if juniper.is_juniper() => self.masked(From::LinkHeader, 0, 4, 0x4d47_4300, 0xffff_ff00),
            LinkType::BACNET_MS_TP => self.masked(From::LinkHeader, 0, 4, 0x55ff_0000, 0xffff_0000),
            LinkType::IPNET => match kind {
                IP => self.equal(From::Kind, 0, 1, 2),
                IP6 => self.equal(From::Kind, 0, 1, 26),
                _ => self.builder.always(false),
            },
            link if self.kind.constant == NOT_SET || link.is_mtp2() => {
                return self.error(format!("{link} link-layer type filtering not implemented"));
            }
            _ => self.equal(From::Kind, 0, 2, kind),
        };
        Ok(condition)
    }

    fn any_equal(&mut self, from: From, offset: u32, size: u8, values: &[u32]) -> Condition {
        let conditions: Vec<Condition> = values.iter().map(|v| self.equal(from, offset, size, *v)).collect();
        self.builder.any_or_never(conditions)
    }

    /// Of frames in frames: the outer one says that there is an inner one.
    pub(super) fn previous_link_check(&mut self) -> Option<Condition> {
        if self.is_geneve {
            let (header, payload) = (self.variable_of(|s| &mut s.header)?, self.variable_of(|s| &mut s.payload)?);
            return Some(self.builder.compare(Relation::NotEqual, header, payload));
        }
        if self.modern.is_bare {
            return Some(self.builder.always(false));
        }
        // LANE: no control frame.
        (self.previous_link == LinkType::SUNATM && self.link != LinkType::SUNATM)
            .then(|| self.compare(From::PreviousLinkHeader, 4, 2, Relation::NotEqual, 0xff00))
    }

    fn is_length(&mut self) -> Condition {
        self.compare(From::Kind, 0, 2, Relation::LessEqual, LONGEST)
    }

    fn snap(&mut self, organization: u32, kind: u32) -> Condition {
        let [_, a, b, c] = organization.to_be_bytes();
        let [_, _, d, e] = kind.to_be_bytes();
        self.bytes(From::Payload, 0, &[0xaa, 0xaa, 0x03, a, b, c, d, e])
    }

    fn apple_snap(&mut self, kind: u32) -> Condition {
        self.snap(if kind == ATALK { 0x080007 } else { 0 }, kind)
    }

    fn is_ethernet_kind(&mut self, kind: u32) -> Condition {
        match kind {
            ISO | SAP_IP | SAP_NETBEUI => {
                let length = self.is_length();
                let saps = self.equal(From::Payload, 0, 2, kind << 8 | kind);
                self.builder.and(length, saps)
            }
            SAP_IPX => {
                // By its type; or, behind a length, by SNAP, by LLC, or Novell's frames that have neither.
                let by_type = self.equal(From::Kind, 0, 2, IPX);
                let length = self.is_length();
                let snap = self.snap(0, IPX);
                let llc = self.equal(From::Payload, 0, 1, SAP_IPX);
                let novell = self.equal(From::Payload, 0, 2, 0xffff);
                let without = self.builder.or(llc, novell);
                let any = self.builder.or(snap, without);
                let framed = self.builder.and(length, any);
                self.builder.or(by_type, framed)
            }
            ATALK | AARP => {
                let by_type = self.equal(From::Kind, 0, 2, kind);
                let length = self.is_length();
                let snap = self.apple_snap(kind);
                let framed = self.builder.and(length, snap);
                self.builder.or(by_type, framed)
            }
            _ if kind <= LONGEST => {
                let length = self.is_length();
                let sap = self.equal(From::Kind, 2, 1, kind);
                self.builder.and(length, sap)
            }
            _ => self.equal(From::Kind, 0, 2, kind),
        }
    }

    fn is_sll_kind(&mut self, kind: u32) -> Condition {
        /// Linux's pseudo-types of frames with LLC, and of Novell's without.
        const LLC: u32 = 4;
        const NOVELL: u32 = 1;
        match kind {
            ISO | SAP_IP | SAP_NETBEUI => {
                let llc = self.equal(From::Kind, 0, 2, LLC);
                let saps = self.equal(From::Payload, 0, 2, kind << 8 | kind);
                self.builder.and(llc, saps)
            }
            SAP_IPX => {
                let by_type = self.equal(From::Kind, 0, 2, IPX);
                let novell = self.equal(From::Kind, 0, 2, NOVELL);
                let llc = self.equal(From::Kind, 0, 2, LLC);
                let sap = self.equal(From::Payload, 0, 1, SAP_IPX);
                let snap = self.snap(0, IPX);
                let either = self.builder.or(sap, snap);
                let framed = self.builder.and(llc, either);
                let unframed = self.builder.or(novell, framed);
                self.builder.or(by_type, unframed)
            }
            ATALK | AARP => {
                let by_type = self.equal(From::Kind, 0, 2, kind);
                let llc = self.equal(From::Kind, 0, 2, LLC);
                let snap = self.apple_snap(kind);
                let framed = self.builder.and(llc, snap);
                self.builder.or(by_type, framed)
            }
            _ if kind <= LONGEST => {
                let llc = self.equal(From::Kind, 0, 2, LLC);
                let payload = self.payload.constant;
                let sap = self.equal(From::LinkHeader, payload, 1, kind);
                self.builder.and(llc, sap)
            }
            _ => self.equal(From::Kind, 0, 2, kind),
        }
    }

    fn is_llc_kind(&mut self, kind: u32) -> Condition {
        match kind {
            SAP_IP | ISO | SAP_NETBEUI => self.equal(From::Payload, 0, 2, kind << 8 | kind),
            SAP_IPX => self.equal(From::Payload, 0, 1, SAP_IPX),
            ATALK => self.snap(0x080007, ATALK),
            _ if kind <= LONGEST => self.equal(From::Payload, 0, 1, kind),
            _ => self.equal(From::Payload, 6, 2, kind),
        }
    }

    fn is_family(&mut self, family: u32) -> Condition {
        // DLT_LOOP has network byte order, the others that of the host which wrote them.
        let family = match self.link {
            LinkType::LOOP => family,
            _ if self.options.is_swapped => family,
            _ => family.swap_bytes(),
        };
        self.equal(From::LinkHeader, 0, 4, family)
    }

    fn is_kind_behind_label(&mut self, kind: u32) -> Result<Condition, Error> {
        let version = match kind {
            IP => 0x40,
            IP6 => 0x60,
            _ => return self.error("unsupported protocol over mpls"),
        };
        // The last label says that it is the last.
        let bottom = self.masked(From::Network, 2u32.wrapping_neg(), 1, 0x01, 0x01);
        let version = self.masked(From::Network, 0, 1, version, 0xf0);
        Ok(self.builder.and(bottom, version))
    }

    /// `llc`
    pub(super) fn llc(&mut self, llc: Llc) -> Result<Condition, Error> {
        let is_llc = match self.link {
            ethernet
                if ethernet.is_ethernet()
                    && !matches!(ethernet, LinkType::NETANALYZER | LinkType::NETANALYZER_TRANSPARENT) =>
            {
                let length = self.is_length();
                let not_novell = self.compare(From::Payload, 0, 2, Relation::NotEqual, 0xffff);
                self.builder.and(length, not_novell)
            }
            LinkType::SUNATM => self.atm_llc()?,
            LinkType::IEEE802 | LinkType::FDDI | LinkType::ATM_RFC1483 => self.builder.always(true),
            wlan if wlan.is_wlan() => self.is_wlan_data(),
            link => return self.error(format!("'llc' not supported for {link}")),
        };
        let control = match llc {
            Llc::Any => return Ok(is_llc),
            Llc::Information => self.no_bit(From::Payload, 2, 1, 0x01),
            Llc::Supervisory => self.masked(From::Payload, 2, 1, 0x01, 0x03),
            Llc::Unnumbered => self.masked(From::Payload, 2, 1, 0x03, 0x03),
            Llc::SupervisoryOf(kind) => self.masked(From::Payload, 2, 1, kind, 0x0f),
            Llc::UnnumberedOf(kind) => self.masked(From::Payload, 2, 1, kind, 0xef),
        };
        Ok(self.builder.and(is_llc, control))
    }

    /// A protocol's name on its own.
    pub(super) fn is_protocol(&mut self, protocol: Protocol) -> Result<Condition, Error> {
        /// Types of IS-IS' messages.
        const L1_HELLO: u32 = 15;
        const L2_HELLO: u32 = 16;
        const POINT_TO_POINT_HELLO: u32 = 17;
        const L1_LSP: u32 = 18;
        const L2_LSP: u32 = 20;
        const L1_CSNP: u32 = 24;
        const L2_CSNP: u32 = 25;
        const L1_PSNP: u32 = 26;
        const L2_PSNP: u32 = 27;
        let ip_protocol = |n| (n, Some(Protocol::Ip));
        let (number, of) = match protocol {
            Protocol::Sctp => (132, None),
            Protocol::Tcp => (6, None),
            Protocol::Udp => (17, None),
            Protocol::Icmp => ip_protocol(1),
            Protocol::Igmp => ip_protocol(2),
            Protocol::Igrp => ip_protocol(9),
            Protocol::Pim => (103, None),
            Protocol::Vrrp | Protocol::Carp => ip_protocol(112),
            Protocol::Icmp6 => (58, Some(Protocol::Ip6)),
            Protocol::Ah => (51, None),
            Protocol::Esp => (50, None),
            Protocol::Esis => (0x82, Some(Protocol::Iso)),
            Protocol::Isis => (0x83, Some(Protocol::Iso)),
            Protocol::Clnp => (0x81, Some(Protocol::Iso)),
            Protocol::Ip => return self.is_kind(IP),
            Protocol::Ip6 => return self.is_kind(IP6),
            Protocol::Arp => return self.is_kind(ARP),
            Protocol::Rarp => return self.is_kind(RARP),
            Protocol::Atalk => return self.is_kind(ATALK),
            Protocol::Aarp => return self.is_kind(AARP),
            Protocol::Decnet => return self.is_kind(DECNET),
            Protocol::Sca => return self.is_kind(0x6007),
            Protocol::Lat => return self.is_kind(0x6004),
            Protocol::Mopdl => return self.is_kind(0x6001),
            Protocol::Moprc => return self.is_kind(0x6002),
            Protocol::Iso => return self.is_kind(ISO),
            Protocol::Stp => return self.is_kind(SAP_STP),
            Protocol::Ipx => return self.is_kind(SAP_IPX),
            Protocol::Netbeui => return self.is_kind(SAP_NETBEUI),
            // The order is that in which libpcap's code tests them.
            Protocol::L1 => return self.isis(&[L1_PSNP, L1_CSNP, L1_LSP, L1_HELLO, POINT_TO_POINT_HELLO]),
            Protocol::L2 => return self.isis(&[L2_PSNP, L2_CSNP, L2_LSP, L2_HELLO, POINT_TO_POINT_HELLO]),
            Protocol::Iih => return self.isis(&[POINT_TO_POINT_HELLO, L1_HELLO, L2_HELLO]),
            Protocol::Lsp => return self.isis(&[L1_LSP, L2_LSP]),
            Protocol::Snp => return self.isis(&[L2_PSNP, L1_PSNP, L1_CSNP, L2_CSNP]),
            Protocol::Csnp => return self.isis(&[L1_CSNP, L2_CSNP]),
            Protocol::Psnp => return self.isis(&[L1_PSNP, L2_PSNP]),
            Protocol::Link => return self.error("link layer applied in wrong context"),
            Protocol::Radio => return self.error("'radio' is not a valid protocol type"),
        };
        self.is_protocol_number(number, of)
    }

    fn isis(&mut self, types: &[u32]) -> Result<Condition, Error> {
        let mut conditions = Vec::new();
        for kind in types {
            conditions.push(self.is_protocol_number(*kind, Some(Protocol::Isis))?);
        }
        Ok(self.builder.any_or_never(conditions))
    }
}

/// PPP's number of a payload.
fn ppp_protocol(kind: u32) -> u32 {
    match kind {
        IP => 0x21,
        IP6 => 0x57,
        DECNET => 0x27,
        ATALK => 0x29,
        0x0600 => 0x25,
        ISO => 0x23,
        SAP_STP => 0x31,
        SAP_IPX => 0x2b,
        _ => kind,
    }
}
