//! What only some links have: direction and interface, OpenBSD's packet filter, ATM, SS7.

use super::state::{From, Lowering, Offset};
use crate::error::Error;
use crate::graph::Condition;
use crate::language::{AtmField, AtmType, Mtp2Type, Mtp3Field, Pf, Relation};
use crate::link::LinkType;
use crate::value::Ancillary;

/// SunATM's number of frames with LLC.
pub(super) const ATM_LLC: u32 = 2;
const ATM_LANE: u32 = 1;
/// `PACKET_OUTGOING`
const OUTGOING: u32 = 4;

impl Lowering<'_> {
    /// `inbound`, `outbound`
    pub(super) fn direction(&mut self, outbound: bool) -> Result<Condition, Error> {
        let is_or_not = if outbound { Relation::Equal } else { Relation::NotEqual };
        Ok(match self.link {
            LinkType::SLIP => self.equal(From::LinkHeader, 0, 1, u32::from(outbound)),
            LinkType::IPNET => self.equal(From::LinkHeader, 2, 2, if outbound { 1 } else { 2 }),
            LinkType::LINUX_SLL => self.compare(From::LinkHeader, 0, 2, is_or_not, OUTGOING),
            LinkType::LINUX_SLL2 => self.compare(From::LinkHeader, 10, 1, is_or_not, OUTGOING),
            LinkType::PFLOG => self.equal(From::LinkHeader, 60, 1, if outbound { 2 } else { 1 }),
            LinkType::PPP_PPPD => self.equal(From::LinkHeader, 0, 1, u32::from(outbound)),
            // The switch's tag says where a frame came from or goes.
            LinkType::DSA_TAG_BRCM => self.masked(From::LinkHeader, 12, 1, if outbound { 0x20 } else { 0 }, 0xe0),
            LinkType::DSA_TAG_DSA if outbound => self.masked(From::LinkHeader, 12, 1, 0x40, 0xc0),
            LinkType::DSA_TAG_DSA => self.no_bit(From::LinkHeader, 12, 1, 0x40),
            juniper if juniper.is_juniper() => self.masked(From::LinkHeader, 3, 1, u32::from(!outbound), 0x01),
            _ if self.options.source.has_packet_type() => {
                let kind = self.ancillary(Ancillary::PacketType);
                self.builder.compare_with(is_or_not, kind, OUTGOING)
            }
            link if self.is_live() => {
                return self.error(format!("inbound/outbound not supported on {link} at this hook"));
            }
            link => return self.error(format!("inbound/outbound not supported on {link} when reading savefiles")),
        })
    }

    /// `ifindex`
    pub(super) fn interface_index(&mut self, n: u32) -> Result<Condition, Error> {
        if self.link == LinkType::LINUX_SLL2 {
            return Ok(self.equal(From::LinkHeader, 4, 4, n));
        }
        if !self.is_live() {
            return self.error(format!("ifindex not supported on {} when reading savefiles", self.link));
        }
        let index = self.ancillary(Ancillary::InterfaceIndex);
        Ok(self.builder.compare_with(Relation::Equal, index, n))
    }

    /// What OpenBSD's packet filter has noted of a packet (`pflog.h`: `struct pfloghdr`).
    pub(super) fn pf(&mut self, pf: &Pf) -> Result<Condition, Error> {
        if self.link != LinkType::PFLOG {
            let word = match pf {
                Pf::Interface(_) => "ifname",
                Pf::RuleSet(_) => "ruleset",
                Pf::Rule(_) => "rnr",
                Pf::SubRule(_) => "srnr",
                Pf::Reason(_) => "reason",
                Pf::Action(_) => "action",
            };
            return self.error(format!("{word} supported only on PF linktype"));
        }
        let too_long = |s: &Self, name: &str, most: usize, what: &str| {
            if name.len() >= most {
                s.error(format!("{what} names can only be {} characters", most - 1))
            } else {
                Ok(())
            }
        };
        Ok(match pf {
            Pf::Interface(name) => {
                too_long(self, name, 16, "ifname interface")?;
                self.bytes(From::LinkHeader, 4, name.as_bytes())
            }
            Pf::RuleSet(name) => {
                too_long(self, name, 16, "ruleset")?;
                self.bytes(From::LinkHeader, 20, name.as_bytes())
            }
            Pf::Rule(n) => self.equal(From::LinkHeader, 36, 4, *n),
            Pf::SubRule(n) => self.equal(From::LinkHeader, 40, 4, *n),
            Pf::Reason(n) => self.equal(From::LinkHeader, 3, 1, *n),
            Pf::Action(n) => self.equal(From::LinkHeader, 2, 1, *n),
        })
    }

    // ---- ATM ----

    fn needs_atm(&self, what: &str) -> Result<(), Error> {
        if self.is_atm { Ok(()) } else { self.error(format!("'{what}' supported only on raw ATM")) }
    }

    pub(super) fn is_atm_protocol(&mut self, protocol: u32) -> Result<Condition, Error> {
        self.needs_atm("llc")?;
        Ok(self.masked(From::LinkHeader, 0, 1, protocol, 0x0f))
    }

    pub(super) fn atm_llc(&mut self) -> Result<Condition, Error> {
        let condition = self.is_atm_protocol(ATM_LLC)?;
        self.link = self.previous_link;
        Ok(condition)
    }

    /// `vpi`, `vci`
    pub(super) fn atm_field(&mut self, field: AtmField, relation: Relation, value: u32) -> Result<Condition, Error> {
        let (what, offset, size, most) = match field {
            AtmField::Vpi => ("VPI", 1, 1, 0xff),
            AtmField::Vci => ("VCI", 2, 2, 0xffff),
        };
        self.needs_atm(&what.to_lowercase())?;
        if value > most {
            return self.too_high(what, value, most);
        }
        Ok(self.compare(From::LinkHeader, offset, size, relation, value))
    }

    fn atm_channel(&mut self, channel: u32) -> Condition {
        let path = self.equal(From::LinkHeader, 1, 1, 0);
        let channel = self.equal(From::LinkHeader, 2, 2, channel);
        self.builder.and(path, channel)
    }

    fn atm_messages(&mut self, kinds: &[u32], channel: u32) -> Result<Condition, Error> {
        let channel = self.atm_channel(channel);
        // The payload stands at 4, the message's type at 5 of it.
        let kinds: Vec<Condition> = kinds.iter().map(|kind| self.equal(From::LinkHeader, 9, 1, *kind)).collect();
        match self.builder.any(kinds) {
            Some(any) => Ok(self.builder.and(channel, any)),
            None => Ok(channel),
        }
    }

    /// `lane`, `oam` and their siblings.
    pub(super) fn atm_type(&mut self, kind: AtmType) -> Result<Condition, Error> {
        /// Types of messages (`atmuni31.h`), in the order in which libpcap's code tests them.
        const CONNECT_MESSAGES: [u32; 6] = [0x5a, 0x4d, 0x0f, 0x07, 0x05, 0x02];
        const META_MESSAGES: [u32; 5] = [0x5a, 0x4d, 0x07, 0x05, 0x02];
        let word = match kind {
            AtmType::Lane => "lane",
            AtmType::Metac => "metac",
            AtmType::Bcc => "bcc",
            AtmType::OamF4Ec => "oamf4ec",
            AtmType::OamF4Sc => "oamf4sc",
            AtmType::Sc => "sc",
            AtmType::Ilmic => "ilmic",
            AtmType::Oam => "oam",
            AtmType::OamF4 => "oamf4",
            AtmType::ConnectMsg => "connectmsg",
            AtmType::MetaConnect => "metaconnect",
        };
        self.needs_atm(word)?;
        Ok(match kind {
            AtmType::Metac => self.atm_channel(1),
            AtmType::Bcc => self.atm_channel(2),
            AtmType::OamF4Sc => self.atm_channel(3),
            AtmType::OamF4Ec => self.atm_channel(4),
            AtmType::Sc => self.atm_channel(5),
            AtmType::Ilmic => self.atm_channel(16),
            AtmType::Oam | AtmType::OamF4 => {
                let path = self.equal(From::LinkHeader, 1, 1, 0);
                let [segment, end] = [3, 4].map(|channel| self.equal(From::LinkHeader, 2, 2, channel));
                let either = self.builder.or(segment, end);
                self.builder.and(path, either)
            }
            AtmType::ConnectMsg => self.atm_messages(&CONNECT_MESSAGES, 5)?,
            AtmType::MetaConnect => self.atm_messages(&META_MESSAGES, 1)?,
            AtmType::Lane => {
                let is_lane = self.is_atm_protocol(ATM_LANE)?;
                // An Ethernet frame behind the LANE header of two bytes.
                let header = Offset::constant(4 + 2);
                (self.previous_link, self.previous_header) = (self.link, self.header);
                (self.link, self.header, self.is_geneve) = (LinkType::EN10MB, header, false);
                self.kind.constant = header.constant + 12;
                self.payload.constant = header.constant + 14;
                (self.network, self.network_without_snap) = (0, 3);
                is_lane
            }
        })
    }

    // ---- SS7 ----

    /// How many bytes stand before MTP2's header.
    fn mtp2_start(&self) -> Option<u32> {
        match self.link {
            LinkType::MTP2 => Some(0),
            LinkType::MTP2_WITH_PHDR => Some(4),
            LinkType::ERF => Some(20),
            _ => None,
        }
    }

    /// `fisu` and its siblings: by the length indicator.
    pub(super) fn mtp2_type(&mut self, kind: Mtp2Type) -> Result<Condition, Error> {
        let (word, high_speed) = match kind {
            Mtp2Type::Fisu => ("fisu", false),
            Mtp2Type::Lssu => ("lssu", false),
            Mtp2Type::Msu => ("msu", false),
            Mtp2Type::HFisu => ("hfisu", true),
            Mtp2Type::HLssu => ("hlssu", true),
            Mtp2Type::HMsu => ("hmsu", true),
        };
        let Some(start) = self.mtp2_start() else {
            return self.error(format!("'{word}' supported only on MTP2{}", if high_speed { "_HSL" } else { "" }));
        };
        let (offset, size, mask, two) =
            if high_speed { (start + 4, 2, 0xff80, 0x0100) } else { (start + 2, 1, 0x3f, 2) };
        let mut length = |relation, n| self.compare_masked(From::Packet, offset, size, mask, relation, n);
        Ok(match kind {
            Mtp2Type::Fisu | Mtp2Type::HFisu => length(Relation::Equal, 0),
            Mtp2Type::Msu | Mtp2Type::HMsu => length(Relation::Greater, two),
            Mtp2Type::Lssu | Mtp2Type::HLssu => {
                let some = length(Relation::Greater, 0);
                let few = length(Relation::LessEqual, two);
                self.builder.and(some, few)
            }
        })
    }

    /// `sio`, `opc`, `dpc`, `sls` and those of high-speed links.
    pub(super) fn mtp3_field(
        &mut self,
        field: Mtp3Field,
        high_speed: bool,
        relation: Relation,
        value: u32,
    ) -> Result<Condition, Error> {
        let word = match field {
            Mtp3Field::Sio => "sio",
            Mtp3Field::Opc => "opc",
            Mtp3Field::Dpc => "dpc",
            Mtp3Field::Sls => "sls",
        };
        let word = format!("{}{word}", if high_speed { "h" } else { "" });
        let Some(start) = self.mtp2_start() else { return self.error(format!("'{word}' supported only on SS7")) };
        let start = start + if high_speed { 3 } else { 0 };
        // Point codes have 14 bits, whose bytes stand in the packet the least significant first.
        let (offset, size, mask, most, bits) = match field {
            Mtp3Field::Sio => (3, 1, u32::MAX, 255, value),
            Mtp3Field::Opc => {
                let bits = (value & 0x3c00) >> 10 | (value & 0x3fc) << 6 | (value & 3) << 22;
                (4, 4, 0x00c0_ff0f, 16383, bits)
            }
            Mtp3Field::Dpc => (4, 4, 0xff3f_0000, 16383, (value & 0xff) << 24 | (value & 0x3f00) << 8),
            Mtp3Field::Sls => (7, 1, 0xf0, 15, value << 4),
        };
        if value > most {
            return self.too_high(&word, value, most);
        }
        Ok(self.compare_masked(From::Packet, start + offset, size, mask, relation, bits))
    }
}
