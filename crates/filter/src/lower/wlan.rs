//! 802.11 (`gencode.c`: `gen_wlanhostop`, `gen_p80211_type`, `gen_load_802_11_header_len`).

use super::state::{From, Lowering};
use crate::error::Error;
use crate::graph::{Block, Condition, Target, Test};
use crate::language::{Direction, Relation};
use crate::link::LinkType;
use crate::value::{Binary, Value, ValueId, Variable};

/// Bits of the first byte: data, and control or reserved.
const DATA: u32 = 0x08;
const CONTROL: u32 = 0x04;
/// Bits of the second byte: to and from the distribution system.
const TO_DS: u32 = 0x01;
const FROM_DS: u32 = 0x02;

impl Lowering<'_> {
    fn bit(&mut self, offset: u32, mask: u32, set: bool) -> Condition {
        if set {
            self.any_bit(From::LinkHeader, offset, 1, mask)
        } else {
            self.no_bit(From::LinkHeader, offset, 1, mask)
        }
    }

    /// A data frame.
    pub(super) fn is_wlan_data(&mut self) -> Condition {
        let not_control = self.bit(0, CONTROL, false);
        let data = self.bit(0, DATA, true);
        self.builder.and(not_control, data)
    }

    fn needs_wlan(&self, what: &str) -> Result<(), Error> {
        if self.link.is_wlan() { Ok(()) } else { self.error(what) }
    }

    /// `type`, `subtype`
    pub(super) fn wlan_type(&mut self, value: u32, mask: u32) -> Result<Condition, Error> {
        self.needs_wlan("802.11 link-layer types supported only on 802.11")?;
        Ok(self.masked(From::LinkHeader, 0, 1, value, mask))
    }

    /// `dir`
    pub(super) fn wlan_direction(&mut self, direction: u32) -> Result<Condition, Error> {
        self.needs_wlan("frame direction supported only with 802.11 headers")?;
        Ok(self.masked(From::LinkHeader, 1, 1, direction, TO_DS | FROM_DS))
    }

    /// If a bit is set the address is at one place, otherwise at another: the second is asked first.
    fn address_by_bit(&mut self, mask: u32, unset: Condition, set: Condition, byte: u32) -> Condition {
        let is_unset = self.bit(byte, mask, false);
        let unset = self.builder.and(is_unset, unset);
        let is_set = self.bit(byte, mask, true);
        let set = self.builder.and(is_set, set);
        self.builder.or(unset, set)
    }

    pub(super) fn wlan_host(&mut self, mac: [u8; 6], direction: Direction) -> Result<Condition, Error> {
        let at = |s: &mut Self, offset| s.bytes(From::LinkHeader, offset, &mac);
        Ok(match direction {
            Direction::Src => {
                let (bridged, from_station) = (at(self, 24), at(self, 16));
                let behind_ds = self.address_by_bit(TO_DS, from_station, bridged, 1);
                let direct = at(self, 10);
                let data = self.address_by_bit(FROM_DS, direct, behind_ds, 1);
                let management = at(self, 10);
                self.wlan_frame(management, data)
            }
            Direction::Dst => {
                let (to_ds, direct) = (at(self, 16), at(self, 4));
                let data = self.address_by_bit(TO_DS, direct, to_ds, 1);
                let management = at(self, 4);
                self.wlan_frame(management, data)
            }
            Direction::And | Direction::Or | Direction::Default => {
                return self.directed(direction, "802.11", |s, is_src| {
                    s.wlan_host(mac, if is_src { Direction::Src } else { Direction::Dst })
                });
            }
            Direction::Addr1 => at(self, 4),
            Direction::Addr2 => {
                let has = self.has_second_address();
                let address = at(self, 10);
                self.builder.and(has, address)
            }
            Direction::Addr3 => {
                let not_control = self.compare_masked(From::LinkHeader, 0, 1, 0x0c, Relation::NotEqual, CONTROL);
                let address = at(self, 16);
                self.builder.and(not_control, address)
            }
            Direction::Addr4 => {
                let bridged = self.masked(From::LinkHeader, 1, 1, TO_DS | FROM_DS, TO_DS | FROM_DS);
                let address = at(self, 24);
                self.builder.and(bridged, address)
            }
            Direction::Receiver => {
                let data = self.bit(0, DATA, true);
                let address = at(self, 4);
                self.builder.and(data, address)
            }
            Direction::Transmitter => {
                let data = self.bit(0, DATA, true);
                let has = self.has_second_address();
                let both = self.builder.and(data, has);
                let address = at(self, 10);
                self.builder.and(both, address)
            }
        })
    }

    /// No control frame; of management frames one condition, of data frames another.
    fn wlan_frame(&mut self, management: Condition, data: Condition) -> Condition {
        let not_control = self.bit(0, CONTROL, false);
        let either = self.address_by_bit(DATA, management, data, 0);
        self.builder.and(not_control, either)
    }

    /// All but CTS and ACK frames have a second address.
    fn has_second_address(&mut self) -> Condition {
        let not_control = self.compare_masked(From::LinkHeader, 0, 1, 0x0c, Relation::NotEqual, CONTROL);
        let not_cts = self.compare_masked(From::LinkHeader, 0, 1, 0xf0, Relation::NotEqual, 0xc0);
        let not_ack = self.compare_masked(From::LinkHeader, 0, 1, 0xf0, Relation::NotEqual, 0xd0);
        let neither = self.builder.and(not_cts, not_ack);
        self.builder.or(not_control, neither)
    }

    pub(super) fn wlan_multicast(&mut self) -> Condition {
        let group = |s: &mut Self, offset| s.bit(offset, 1, true);
        let (to_ds, direct) = (group(self, 16), group(self, 4));
        let data = self.address_by_bit(TO_DS, direct, to_ds, 1);
        let management = group(self, 4);
        self.wlan_frame(management, data)
    }

    /// Finds where the 802.11 header and its payload begin, if the filter asks for what is behind them.
    pub(super) fn wlan_prelude(&mut self) -> Vec<Block> {
        let mut blocks = Vec::new();
        // Without a receiver's header the frame begins the packet, also where an encapsulation has a header of its own.
        let header = self.header.variable.filter(|_| self.outermost != LinkType::IEEE802_11);
        if let Some(header) = header {
            self.receiver_header(header, &mut blocks);
        }
        if let Some(payload) = self.payload.variable {
            self.wlan_header(header, payload, &mut blocks);
        }
        blocks
    }

    fn packet(&mut self, offset: u32, size: u8) -> ValueId {
        self.builder.values.intern(Value::Load { base: None, offset, size })
    }

    /// The length of the header that the receiver has put before the frame.
    fn receiver_header(&mut self, header: Variable, blocks: &mut Vec<Block>) {
        match self.outermost {
            LinkType::PRISM_HEADER => {
                // AVS headers have a cookie and say their length; Prism's have 144 bytes.
                let cookie = self.packet(0, 4);
                let values = &mut self.builder.values;
                let (mask, avs) = (values.constant(0xffff_f000), values.constant(0x8021_1000));
                let cookie = values.binary(Binary::And, cookie, mask);
                let test = Test::Compare(Relation::Equal, cookie, avs);
                blocks.push(Block::new(Vec::new(), test, Target::Block(1), Target::Block(2)));
                let length = self.packet(4, 4);
                blocks.push(self.step(vec![(header, length)], 3));
                let length = self.builder.values.constant(144);
                blocks.push(self.step(vec![(header, length)], 3));
            }
            LinkType::IEEE802_11_RADIO_AVS => {
                let length = self.packet(4, 4);
                blocks.push(self.step(vec![(header, length)], 1));
            }
            _ => {
                // Radiotap and PPI: two bytes, the less significant first.
                let (high, low) = (self.packet(3, 1), self.packet(2, 1));
                let values = &mut self.builder.values;
                let eight = values.constant(8);
                let high = values.binary(Binary::ShiftLeft, high, eight);
                let length = values.binary(Binary::Or, high, low);
                blocks.push(self.step(vec![(header, length)], 1));
            }
        }
    }

    /// The length of the 802.11 header: 24 bytes, two more with QoS, and with radiotap perhaps padding.
    fn wlan_header(&mut self, header: Option<Variable>, payload: Variable, blocks: &mut Vec<Block>) {
        let start = match header {
            // Behind PPPoE both are one variable: libpcap's code has the header's place in a register meanwhile.
            Some(header) if header == payload => {
                let place = self.builder.variable();
                let held = self.builder.read(header);
                blocks.push(self.step(vec![(place, held)], blocks.len() + 1));
                self.builder.read(place)
            }
            Some(header) => self.builder.read(header),
            None => self.builder.values.constant(0),
        };
        let has_radiotap = self.link == LinkType::IEEE802_11_RADIO;
        let first = blocks.len();
        let end = first + if has_radiotap { 10 } else { 4 };
        let control = self.builder.values.intern(Value::Load { base: Some(start), offset: 0, size: 1 });
        let (zero, short, two) = {
            let values = &mut self.builder.values;
            (values.constant(0), values.constant(24), values.constant(2))
        };
        let length = self.builder.values.binary(Binary::Add, start, short);
        let with_qos = {
            let before = self.builder.read(payload);
            self.builder.values.binary(Binary::Add, before, two)
        };
        let bit = |s: &mut Self, value: ValueId, mask: u32| {
            let mask = s.builder.values.constant(mask);
            let bits = s.builder.values.binary(Binary::And, value, mask);
            Test::Compare(Relation::NotEqual, bits, zero)
        };
        let to = |i: usize| Target::Block(first + i);
        let none = Vec::new;
        let test = bit(self, control, DATA);
        blocks.push(Block::new(vec![(payload, length)], test, to(1), Target::Block(end)));
        let test = bit(self, control, CONTROL);
        blocks.push(Block::new(none(), test, Target::Block(end), to(2)));
        let after_qos = if has_radiotap { to(4) } else { Target::Block(end) };
        let test = bit(self, control, 0x80);
        blocks.push(Block::new(none(), test, to(3), after_qos));
        let always = Test::Compare(Relation::Equal, zero, zero);
        blocks.push(Block::new(vec![(payload, with_qos)], always.clone(), after_qos, after_qos));
        if !has_radiotap {
            return;
        }
        // Radiotap's flags say whether the header is padded to four bytes: they stand behind the time stamp, if there is one.
        let present = self.packet(4, 4);
        let test = bit(self, present, 0x2u32.swap_bytes());
        blocks.push(Block::new(none(), test, to(5), Target::Block(end)));
        let test = bit(self, present, 0x8000_0000u32.swap_bytes());
        blocks.push(Block::new(none(), test, Target::Block(end), to(6)));
        let test = bit(self, present, 0x1u32.swap_bytes());
        blocks.push(Block::new(none(), test, to(7), to(8)));
        for (i, offset) in [(7, 16), (8, 8)] {
            debug_assert_eq!(blocks.len(), first + i);
            let flags = self.packet(offset, 1);
            let test = bit(self, flags, 0x20);
            blocks.push(Block::new(none(), test, to(9), Target::Block(end)));
        }
        let values = &mut self.builder.values;
        let (three, mask) = (values.constant(3), values.constant(!3));
        let before = self.builder.read(payload);
        let sum = self.builder.values.binary(Binary::Add, before, three);
        let padded = self.builder.values.binary(Binary::And, sum, mask);
        blocks.push(Block::new(vec![(payload, padded)], always, Target::Block(end), Target::Block(end)));
    }
}
