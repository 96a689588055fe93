//! From the tree to the predicate graph: what each primitive means for a link type.
//!
//! The meaning, and the order in which fields are read, are those of libpcap's code before its optimizer (`gencode.c` of 1.10.3;
//! primitives that came later or were mended, of 1.11): the order matters for packets that end before a field.

mod address;
mod arithmetic;
mod encapsulation;
mod group;
mod kind;
mod link_specific;
mod transport;
mod wlan;

use std::collections::HashMap;
use std::ops::Range;

use crate::language::{Ast, Id, Node, NodeId, Primitive, Protocol, Relation};
use crate::link::{Layout, LinkType};
use crate::names::NameFiles;
use crate::graph::{Block, Builder, Condition, Graph, Target, Test};
use crate::value::{Ancillary, Binary, Value, ValueId, Variable};
use crate::{Error, Options, Source};
use group::Group;

/// A place in the packet: a constant, and what is known only of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Offset {
    constant: u32,
    is_variable: bool,
    variable: Option<Variable>,
}

impl Offset {
    fn constant(constant: u32) -> Offset {
        Offset { constant, is_variable: false, variable: None }
    }
}

/// What offsets are counted from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum From {
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
struct Lowering<'a> {
    options: &'a Options,
    /// What a filter may name as `$NAME`.
    sets: &'a HashMap<String, Vec<Id>>,
    builder: Builder,
    outermost: LinkType,
    link: LinkType,
    previous_link: LinkType,
    header: Offset,
    previous_header: Offset,
    kind: Offset,
    payload: Offset,
    network: u32,
    network_without_snap: u32,
    /// In the payload of Geneve, which need not be Ethernet.
    is_geneve: bool,
    /// Fields of an ATM cell's header can be asked for.
    is_atm: bool,
    labels: u32,
    vlans: u32,
    /// A VLAN tag may stand in the packet or in what the kernel keeps beside it.
    has_vlan_variables: bool,
    /// What the primitive at hand is, for errors.
    span: Range<usize>,
}

/// The predicate graph of a filter.
///
/// # Errors
/// If the filter asks for what the link type does not have, or for a name that no file has.
pub(crate) fn lower(ast: &Ast, options: &Options, sets: &HashMap<String, Vec<Id>>) -> Result<Graph, Error> {
    let Some(root) = ast.root else { return Ok(Graph::constant(true)) };
    let mut lowering = Lowering::new(options, sets)?;
    let mut parts: HashMap<NodeId, Part> = HashMap::new();
    for (i, (node, span)) in ast.nodes.iter().enumerate() {
        lowering.span = span.clone();
        let part = match node {
            Node::Primitive(primitive) => {
                let group = match primitive {
                    Primitive::Id(q, id) if options.optimize => Group::of(*q, id),
                    _ => None,
                };
                match group {
                    Some(group) => Part::Group(group),
                    None => {
                        // What comes may shift offsets, which those before must not see.
                        for part in parts.values_mut() {
                            lowering.settle(part)?;
                        }
                        Part::Condition(lowering.primitive(primitive, ast)?)
                    }
                }
            }
            Node::Not(a) => {
                let Some(a) = parts.remove(a) else { continue };
                let a = lowering.condition(a)?;
                Part::Condition(lowering.builder.not(a))
            }
            Node::And(a, b) | Node::Or(a, b) => {
                let is_and = matches!(node, Node::And(..));
                let (Some(a), Some(b)) = (parts.remove(a), parts.remove(b)) else { continue };
                lowering.both_parts(a, b, is_and)?
            }
        };
        parts.insert(NodeId(i), part);
    }
    match parts.remove(&root) {
        Some(root) => {
            let root = lowering.condition(root)?;
            Ok(lowering.finish(root))
        }
        None => Ok(Graph::constant(true)),
    }
}

/// A part of a filter: lists wait for more that belongs to them.
enum Part {
    Condition(Condition),
    Group(Group),
}

impl Lowering<'_> {
    fn condition(&mut self, part: Part) -> Result<Condition, Error> {
        match part {
            Part::Condition(condition) => Ok(condition),
            Part::Group(group) => self.group(group),
        }
    }

    fn settle(&mut self, part: &mut Part) -> Result<(), Error> {
        if let Part::Group(group) = part {
            *part = Part::Condition(self.group(group.clone())?);
        }
        Ok(())
    }

    fn both_parts(&mut self, a: Part, b: Part, is_and: bool) -> Result<Part, Error> {
        let (a, b) = match (a, b) {
            (Part::Group(a), Part::Group(b)) if !is_and => match a.join(b) {
                Ok(joined) => return Ok(Part::Group(joined)),
                Err((a, b)) => (Part::Group(a), Part::Group(b)),
            },
            other => other,
        };
        let (a, b) = (self.condition(a)?, self.condition(b)?);
        Ok(Part::Condition(if is_and { self.builder.and(a, b) } else { self.builder.or(a, b) }))
    }
}

impl<'a> Lowering<'a> {
    fn new(options: &'a Options, sets: &'a HashMap<String, Vec<Id>>) -> Result<Lowering<'a>, Error> {
        let link = options.link_type;
        let Some(layout) = link.layout() else {
            return Err(Error::new(0..0, format!("the link type {link} is not one that can be filtered")));
        };
        let Layout { header, kind, payload, network, network_without_snap } = layout;
        let wlan = link.is_wlan();
        let header = Offset { constant: header, is_variable: wlan && link != LinkType::IEEE802_11, variable: None };
        Ok(Lowering {
            options,
            sets,
            builder: Builder::default(),
            outermost: link,
            link,
            previous_link: link,
            header,
            previous_header: header,
            kind: Offset::constant(kind),
            payload: Offset { constant: payload, is_variable: wlan || link == LinkType::PFLOG, variable: None },
            network,
            network_without_snap,
            is_geneve: false,
            is_atm: link == LinkType::SUNATM,
            labels: 0,
            vlans: 0,
            has_vlan_variables: false,
            span: 0..0,
        })
    }

    fn error<T>(&self, message: impl Into<String>) -> Result<T, Error> {
        Err(Error::new(self.span.clone(), message))
    }

    fn too_high<T>(&self, what: &str, value: u32, most: u32) -> Result<T, Error> {
        self.error(format!("{what} {value} greater than maximum {most}"))
    }

    fn primitive(&mut self, primitive: &Primitive, ast: &Ast) -> Result<Condition, Error> {
        match primitive {
            Primitive::Id(qualifiers, id) => self.id(*qualifiers, id),
            Primitive::Protocol(protocol) => self.is_protocol(*protocol),
            Primitive::Relation(relation, a, b) => self.relation(*relation, *a, *b, ast),
            Primitive::Broadcast(protocol) => self.broadcast(*protocol),
            Primitive::Multicast(protocol) => self.multicast(*protocol),
            Primitive::Less(n) => self.length(Relation::LessEqual, *n),
            Primitive::Greater(n) => self.length(Relation::GreaterEqual, *n),
            Primitive::Byte(operation, offset, value) => self.byte(*operation, *offset, *value),
            Primitive::Direction { outbound } => self.direction(*outbound),
            Primitive::InterfaceIndex(n) => self.interface_index(*n),
            Primitive::Vlan(n) => self.vlan(*n),
            Primitive::Mpls(n) => self.mpls(*n),
            Primitive::PppoeDiscovery => self.is_kind(kind::PPPOE_DISCOVERY),
            Primitive::PppoeSession(n) => self.pppoe_session(*n),
            Primitive::Geneve(n) => self.geneve(*n),
            Primitive::Vxlan(n) => self.vxlan(*n),
            Primitive::Pf(pf) => self.pf(pf),
            Primitive::WlanType { value, mask } => self.wlan_type(*value, *mask),
            Primitive::WlanDirection(n) => self.wlan_direction(*n),
            Primitive::Llc(llc) => self.llc(*llc),
            Primitive::AtmType(kind) => self.atm_type(*kind),
            Primitive::AtmField(field, relation, value) => self.atm_field(*field, *relation, *value),
            Primitive::Mtp2Type(kind) => self.mtp2_type(*kind),
            Primitive::Mtp3Field { field, high_speed, relation, value } => {
                self.mtp3_field(*field, *high_speed, *relation, *value)
            }
        }
    }

    fn length(&mut self, relation: Relation, n: u32) -> Result<Condition, Error> {
        let length = self.builder.values.intern(Value::Length);
        Ok(self.builder.compare_with(relation, length, n))
    }

    fn ancillary(&mut self, what: Ancillary) -> ValueId {
        self.builder.values.intern(Value::Ancillary(what))
    }

    /// Whether the filter will see packets as the kernel has them, and not those of a file.
    fn is_live(&self) -> bool {
        self.options.source != Source::File
    }

    // ---- Loads ----

    /// The variable of an offset that has one, made when it is first asked for.
    fn variable_of(&mut self, choose: impl Fn(&mut Self) -> &mut Offset) -> Option<ValueId> {
        let offset = *choose(self);
        if !offset.is_variable {
            return None;
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

    fn load_at(&mut self, choose: impl Fn(&mut Self) -> &mut Offset, behind: u32, size: u8) -> ValueId {
        let offset = choose(self).constant.wrapping_add(behind);
        let base = self.variable_of(choose);
        self.builder.values.intern(Value::Load { base, offset, size })
    }

    /// The bytes at an offset.
    fn load(&mut self, from: From, offset: u32, size: u8) -> ValueId {
        let (network, without_snap) = (self.network, self.network_without_snap);
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
            From::TransportOfIp6 => self.load_at(|s| &mut s.payload, network.wrapping_add(40).wrapping_add(offset), size),
        }
    }

    /// The length of the IPv4 header, and what of its place is variable.
    fn ip_header_end(&mut self) -> ValueId {
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

    fn compare(&mut self, from: From, offset: u32, size: u8, relation: Relation, value: u32) -> Condition {
        let loaded = self.load(from, offset, size);
        self.builder.compare_with(relation, loaded, value)
    }

    fn equal(&mut self, from: From, offset: u32, size: u8, value: u32) -> Condition {
        self.compare(from, offset, size, Relation::Equal, value)
    }

    /// The bits of `mask` are those of `value`.
    fn masked(&mut self, from: From, offset: u32, size: u8, value: u32, mask: u32) -> Condition {
        self.compare_masked(from, offset, size, mask, Relation::Equal, value)
    }

    fn compare_masked(&mut self, from: From, offset: u32, size: u8, mask: u32, relation: Relation, value: u32) -> Condition {
        let loaded = self.load(from, offset, size);
        let mask = self.builder.values.constant(mask);
        let bits = self.builder.values.binary(Binary::And, loaded, mask);
        self.builder.compare_with(relation, bits, value)
    }

    /// One of the bits of `mask` is set.
    fn any_bit(&mut self, from: From, offset: u32, size: u8, mask: u32) -> Condition {
        self.compare_masked(from, offset, size, mask, Relation::NotEqual, 0)
    }

    /// No bit of `mask` is set.
    fn no_bit(&mut self, from: From, offset: u32, size: u8, mask: u32) -> Condition {
        self.compare_masked(from, offset, size, mask, Relation::Equal, 0)
    }

    /// The bytes are those of `bytes`, compared from the end in words.
    fn bytes(&mut self, from: From, offset: u32, bytes: &[u8]) -> Condition {
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

    // ---- The end ----

    fn finish(mut self, root: Condition) -> Graph {
        // The header's place is asked for by those of what is behind it.
        if self.payload.variable.is_some() && self.header.is_variable && self.header.variable.is_none() {
            self.header.variable = Some(self.builder.variable());
        }
        let prelude = self.prelude();
        let ppi = (self.link == LinkType::PPI).then(|| {
            // Only 802.11 can stand behind a PPI header.
            let values = &mut self.builder.values;
            let kind = values.intern(Value::Load { base: None, offset: 4, size: 4 });
            (kind, values.constant(u32::from(LinkType::IEEE802_11.0).swap_bytes()))
        });
        let mut graph = self.builder.finish(root);
        graph.prepend(prelude);
        if let Some((kind, wlan)) = ppi {
            let test = Test::Compare(Relation::Equal, kind, wlan);
            graph.prepend(vec![Block { sets: Vec::new(), test, yes: Target::Block(1), no: Target::Reject }]);
        }
        graph
    }

    /// What finds variable offsets before the filter begins.
    fn prelude(&mut self) -> Vec<Block> {
        if self.outermost.is_wlan() {
            return self.wlan_prelude();
        }
        if self.outermost == LinkType::PFLOG
            && let Some(variable) = self.payload.variable
        {
            // The first byte is the header's length, which is rounded up to four.
            let length = self.load(From::Packet, 0, 1);
            let values = &mut self.builder.values;
            let (three, mask) = (values.constant(3), values.constant(!3));
            let sum = values.binary(Binary::Add, length, three);
            let rounded = values.binary(Binary::And, sum, mask);
            return vec![self.step(vec![(variable, rounded)], 1)];
        }
        Vec::new()
    }

    /// A block that only sets variables.
    fn step(&mut self, sets: Vec<(Variable, ValueId)>, next: usize) -> Block {
        let zero = self.builder.values.constant(0);
        let next = Target::Block(next);
        Block { sets, test: Test::Compare(Relation::Equal, zero, zero), yes: next, no: next }
    }
}

/// The word for a protocol in a message; `ip6` and the like.
fn word(protocol: Option<Protocol>) -> &'static str {
    protocol.map_or("", Protocol::word)
}

impl Lowering<'_> {
    fn names(&self) -> &NameFiles {
        &self.options.names
    }
}
