//! The state while a filter is gone through, and what all primitives are built of: loads at places, and comparisons.

use std::collections::HashMap;
use std::ops::Range;

use crate::error::Error;
use crate::graph::{Builder, Condition};
use crate::language::{Id, Protocol, Relation};
use crate::link::{Layout, LinkType};
use crate::name_files::NameFiles;
use crate::options::{Dialect, Options};
use crate::value::{Ancillary, Binary, Value, ValueId, Variable};

/// More primitives that are not in lists are not compiled: a filter of so many takes seconds.
const MOST_PRIMITIVES: usize = 10_000;

/// A place in the packet: a constant, and what is known only of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Offset {
    pub(super) constant: u32,
    pub(super) is_variable: bool,
    pub(super) variable: Option<Variable>,
    /// What is behind a header whose end is computed: no variable, but a number of the packet.
    pub(super) computed: Option<ValueId>,
}

impl Offset {
    pub(super) fn constant(constant: u32) -> Offset {
        Offset { constant, is_variable: false, variable: None, computed: None }
    }
}

/// What offsets are counted from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum From {
    Packet,
    LinkHeader,
    PreviousLinkHeader,
    /// The field that says what the payload is.
    Kind,
    /// The link's payload, where an LLC header may stand.
    Payload,
    /// The network header.
    Network,
    /// The network header if no SNAP header stands before it.
    NetworkWithoutSnap,
    /// The last MPLS label before the network header.
    Label,
    /// Behind an IPv4 header.
    TransportOfIp,
    /// Behind an IPv6 header without extension headers.
    TransportOfIp6,
}

/// The state while a filter is gone through: encapsulations shift offsets for the rest of the text.
pub(super) struct Lowering<'a> {
    pub(super) options: &'a Options,
    /// What a filter may name as `$NAME`.
    pub(super) sets: &'a HashMap<String, Vec<Id>>,
    /// By name the maps of sets that user space changes.
    pub(super) map_numbers: HashMap<String, Vec<usize>>,
    pub(super) builder: Builder,
    pub(super) outermost: LinkType,
    pub(super) link: LinkType,
    pub(super) previous_link: LinkType,
    pub(super) header: Offset,
    pub(super) previous_header: Offset,
    pub(super) kind: Offset,
    pub(super) payload: Offset,
    pub(super) network: u32,
    pub(super) network_without_snap: u32,
    /// In the payload of Geneve, which need not be Ethernet.
    pub(super) is_geneve: bool,
    /// Fields of an ATM cell's header can be asked for.
    pub(super) is_atm: bool,
    pub(super) labels: u32,
    pub(super) vlans: u32,
    /// A VLAN tag may stand in the packet or in what the kernel keeps beside it.
    pub(super) has_vlan_variables: bool,
    /// What the modern dialect knows of the headers.
    pub(super) modern: Modern,
    /// By node of the tree which predicate it is, if the filter reports that.
    pub(super) predicates: Vec<u32>,
    /// How many primitives are tests of their own.
    pub(super) primitives: usize,
    /// What the primitive at hand is, for errors.
    pub(super) span: Range<usize>,
}

/// What the modern dialect knows of the headers at hand.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Modern {
    /// Something was asked that VLAN tags are before.
    pub(super) asked_payload: bool,
    /// Something was asked that extension headers are before.
    pub(super) asked_upper: bool,
    /// IPv6 headers at this place have no extension headers behind them.
    pub(super) without_extensions: Option<(Offset, u32)>,
    /// Of an expression with `tcp[…]`: it is asked of an IPv6 packet.
    pub(super) is_ip6: bool,
    /// Something was asked that is elsewhere over IPv6.
    pub(super) asked_transport: bool,
    /// The packet in a tunnel that has no link header.
    pub(super) is_bare: bool,
    /// Where Ethernet's type stood before VLAN tags.
    pub(super) first_kind: Option<Offset>,
}

impl Modern {
    /// The same, with what another has asked for.
    fn asked_as(self, other: &Modern) -> Modern {
        Modern {
            asked_payload: other.asked_payload,
            asked_upper: other.asked_upper,
            asked_transport: other.asked_transport,
            ..self
        }
    }
}

/// What encapsulations change, and what the modern dialect knows of it.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    links: (LinkType, LinkType),
    offsets: [Offset; 4],
    networks: (u32, u32),
    counts: (u32, u32),
    flags: (bool, bool, bool),
    modern: Modern,
}

impl Lowering<'_> {
    /// What text is about here.
    pub(super) fn frame(&self) -> Frame {
        Frame {
            links: (self.link, self.previous_link),
            offsets: [self.header, self.previous_header, self.kind, self.payload],
            networks: (self.network, self.network_without_snap),
            counts: (self.labels, self.vlans),
            flags: (self.is_geneve, self.is_atm, self.has_vlan_variables),
            modern: self.modern,
        }
    }

    /// Back to what text was about; what was asked for stays known.
    pub(super) fn set_frame(&mut self, frame: Frame) {
        (self.link, self.previous_link) = frame.links;
        [self.header, self.previous_header, self.kind, self.payload] = frame.offsets;
        (self.network, self.network_without_snap) = frame.networks;
        (self.labels, self.vlans) = frame.counts;
        (self.is_geneve, self.is_atm, self.has_vlan_variables) = frame.flags;
        self.modern = frame.modern.asked_as(&self.modern);
    }
}

impl<'a> Lowering<'a> {
    pub(super) fn new(options: &'a Options, sets: &'a HashMap<String, Vec<Id>>) -> Result<Lowering<'a>, Error> {
        let link = options.link_type;
        let Some(layout) = link.layout() else {
            return Err(Error::new(0..0, format!("the link type {link} is not one that can be filtered")));
        };
        let Layout { header, kind, payload, network, network_without_snap } = layout;
        let wlan = link.is_wlan();
        let mut header = Offset { is_variable: wlan && link != LinkType::IEEE802_11, ..Offset::constant(header) };
        let mut payload = Offset { is_variable: wlan || link == LinkType::PFLOG, ..Offset::constant(payload) };
        let mut builder = Builder::default();
        if options.dialect == Dialect::Modern {
            // Text is gone through several times, each time from the beginning: no time may find a variable that others do not know.
            for offset in [&mut header, &mut payload] {
                offset.variable = offset.is_variable.then(|| builder.variable());
            }
        }
        Ok(Lowering {
            options,
            sets,
            map_numbers: HashMap::new(),
            builder,
            outermost: link,
            link,
            previous_link: link,
            header,
            previous_header: header,
            kind: Offset::constant(kind),
            payload,
            network,
            network_without_snap,
            is_geneve: false,
            is_atm: link == LinkType::SUNATM,
            labels: 0,
            vlans: 0,
            has_vlan_variables: false,
            modern: Modern::default(),
            predicates: Vec::new(),
            primitives: 0,
            span: 0..0,
        })
    }

    pub(super) fn error<T>(&self, message: impl Into<String>) -> Result<T, Error> {
        Err(Error::new(self.span.clone(), message))
    }

    pub(super) fn too_high<T>(&self, what: &str, value: u32, most: u32) -> Result<T, Error> {
        self.error(format!("{what} {value} greater than maximum {most}"))
    }

    /// Counts primitives that are tests of their own.
    pub(super) fn counted(&mut self, n: usize) -> Result<(), Error> {
        self.primitives += n;
        if self.primitives <= MOST_PRIMITIVES {
            return Ok(());
        }
        Err(Error::new(self.span.clone(), format!("more than {MOST_PRIMITIVES} primitives"))
            .help("lists of addresses or ports, also from files (--set), have no such limit"))
    }

    pub(super) fn length(&mut self, relation: Relation, n: u32) -> Result<Condition, Error> {
        let length = self.builder.values.intern(Value::Length);
        Ok(self.builder.compare_with(relation, length, n))
    }

    pub(super) fn ancillary(&mut self, what: Ancillary) -> ValueId {
        self.builder.values.intern(Value::Ancillary(what))
    }

    /// Whether the filter will see packets as the kernel has them, and not those of a file.
    pub(super) fn is_live(&self) -> bool {
        !self.options.source.is_file()
    }

    // ---- Loads ----

    /// The variable of an offset that has one, made when it is first asked for.
    pub(super) fn variable_of(&mut self, choose: impl Fn(&mut Self) -> &mut Offset) -> Option<ValueId> {
        let offset = *choose(self);
        if !offset.is_variable {
            return offset.computed;
        }
        let variable = match offset.variable {
            Some(variable) => variable,
            None => {
                let variable = self.builder.variable();
                choose(self).variable = Some(variable);
                variable
            }
        };
        Some(self.builder.read(variable))
    }

    pub(super) fn load_at(&mut self, choose: impl Fn(&mut Self) -> &mut Offset, behind: u32, size: u8) -> ValueId {
        let offset = choose(self).constant.wrapping_add(behind);
        let base = self.variable_of(choose);
        self.builder.values.intern(Value::Load { base, offset, size })
    }

    /// The bytes at an offset.
    pub(super) fn load(&mut self, from: From, offset: u32, size: u8) -> ValueId {
        let (network, without_snap) = (self.network, self.network_without_snap);
        self.modern.asked_payload |= !matches!(from, From::Packet | From::LinkHeader | From::PreviousLinkHeader);
        match from {
            From::Packet => self.builder.values.intern(Value::Load { base: None, offset, size }),
            From::LinkHeader => self.load_at(|s| &mut s.header, offset, size),
            From::PreviousLinkHeader => self.load_at(|s| &mut s.previous_header, offset, size),
            From::Kind => self.load_at(|s| &mut s.kind, offset, size),
            From::Payload => self.load_at(|s| &mut s.payload, offset, size),
            From::Network => self.load_at(|s| &mut s.payload, network.wrapping_add(offset), size),
            From::NetworkWithoutSnap => self.load_at(|s| &mut s.payload, without_snap.wrapping_add(offset), size),
            From::Label => self.load_at(|s| &mut s.payload, network.wrapping_sub(4).wrapping_add(offset), size),
            From::TransportOfIp => {
                let base = self.ip_header_end();
                let offset = self.payload.constant.wrapping_add(network).wrapping_add(offset);
                self.builder.values.intern(Value::Load { base: Some(base), offset, size })
            }
            From::TransportOfIp6 if self.is_modern() => {
                let base = self.upper_of_ip6().place;
                let offset = self.payload.constant.wrapping_add(network).wrapping_add(offset);
                self.builder.values.intern(Value::Load { base: Some(base), offset, size })
            }
            From::TransportOfIp6 => {
                self.load_at(|s| &mut s.payload, network.wrapping_add(40).wrapping_add(offset), size)
            }
        }
    }

    /// The length of the IPv4 header, and what of its place is variable.
    pub(super) fn ip_header_end(&mut self) -> ValueId {
        let first = self.load(From::Network, 0, 1);
        let values = &mut self.builder.values;
        let (low, two) = (values.constant(0xf), values.constant(2));
        let words = values.binary(Binary::And, first, low);
        let length = values.binary(Binary::ShiftLeft, words, two);
        match self.variable_of(|s| &mut s.payload) {
            Some(variable) => self.builder.values.binary(Binary::Add, length, variable),
            None => length,
        }
    }

    pub(super) fn compare(&mut self, from: From, offset: u32, size: u8, relation: Relation, value: u32) -> Condition {
        let loaded = self.load(from, offset, size);
        self.builder.compare_with(relation, loaded, value)
    }

    pub(super) fn equal(&mut self, from: From, offset: u32, size: u8, value: u32) -> Condition {
        self.compare(from, offset, size, Relation::Equal, value)
    }

    /// The bits of `mask` are those of `value`.
    pub(super) fn masked(&mut self, from: From, offset: u32, size: u8, value: u32, mask: u32) -> Condition {
        self.compare_masked(from, offset, size, mask, Relation::Equal, value)
    }

    pub(super) fn compare_masked(
        &mut self,
        from: From,
        offset: u32,
        size: u8,
        mask: u32,
        relation: Relation,
        value: u32,
    ) -> Condition {
        let loaded = self.load(from, offset, size);
        let mask = self.builder.values.constant(mask);
        let bits = self.builder.values.binary(Binary::And, loaded, mask);
        self.builder.compare_with(relation, bits, value)
    }

    /// One of the bits of `mask` is set.
    pub(super) fn any_bit(&mut self, from: From, offset: u32, size: u8, mask: u32) -> Condition {
        self.compare_masked(from, offset, size, mask, Relation::NotEqual, 0)
    }

    /// No bit of `mask` is set.
    pub(super) fn no_bit(&mut self, from: From, offset: u32, size: u8, mask: u32) -> Condition {
        self.compare_masked(from, offset, size, mask, Relation::Equal, 0)
    }

    /// The bytes are those of `bytes`, compared from the end in words.
    pub(super) fn bytes(&mut self, from: From, offset: u32, bytes: &[u8]) -> Condition {
        let mut conditions = Vec::new();
        let mut rest = bytes.len();
        for size in [4usize, 2, 1] {
            while rest >= size {
                rest -= size;
                let value = bytes[rest..rest + size].iter().fold(0u32, |v, b| v << 8 | u32::from(*b));
                conditions.push(self.equal(from, offset.wrapping_add(rest as u32), size as u8, value));
            }
        }
        match self.builder.all(conditions) {
            Some(all) => all,
            None => self.builder.always(true),
        }
    }
}

/// The word for a protocol in a message; `ip6` and the like.
pub(super) fn word(protocol: Option<Protocol>) -> &'static str {
    protocol.map_or("", Protocol::word)
}

impl Lowering<'_> {
    pub(super) fn names(&self) -> &NameFiles {
        &self.options.names
    }
}
