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
mod modern;
mod state;
mod transport;
mod updatable;
mod wlan;

use std::collections::HashMap;

use crate::error::Error;
use crate::graph::{Block, Condition, Graph, Target, Test};
use crate::language::{Ast, Id, Node, NodeId, Primitive, Relation, Tunnel};
use crate::link::LinkType;
use crate::options::{Dialect, Options};
use crate::value::{Binary, Value, ValueId, Variable};
use group::Group;
use state::{From, Lowering};

/// The predicate graph of a filter.
///
/// # Errors
/// If the filter asks for what the link type does not have, or for a name that no file has.
pub(crate) fn lower(ast: &Ast, options: &Options, sets: &HashMap<String, Vec<Id>>) -> Result<Graph, Error> {
    let Some(root) = ast.root else { return Ok(Graph::constant(true)) };
    let mut lowering = Lowering::new(options, sets)?;
    let (predicates, count) = if options.report { predicates(ast) } else { Default::default() };
    lowering.predicates = predicates;
    let root = match options.dialect {
        Dialect::Libpcap => lowering.tree(ast, 0, root)?,
        Dialect::Modern => lowering.through_headers(&mut |s| s.tree(ast, 0, root))?,
    };
    Ok(Graph { predicates: count, ..lowering.finish(root) })
}

/// For each node how many predicates stand before it, and how many there are.
fn predicates(ast: &Ast) -> (Vec<u32>, u32) {
    let mut before = 0;
    let number = |(node, _): &(Node, _)| {
        let number = before;
        before += u32::from(node.is_predicate());
        number
    };
    (ast.nodes.iter().map(number).collect(), before)
}

/// For each node the first one of its tree.
fn beginnings(ast: &Ast) -> Vec<usize> {
    let mut begins: Vec<usize> = Vec::with_capacity(ast.nodes.len());
    for (i, (node, _)) in ast.nodes.iter().enumerate() {
        begins.push(match node {
            Node::Primitive(_) => i,
            Node::And(a, _) | Node::Or(a, _) | Node::Not(a) | Node::Inside(_, _, a) => begins[a.0],
        });
    }
    begins
}

/// A part of a filter: lists wait for more that belongs to them.
enum Part {
    Condition(Condition),
    Group(Group),
}

impl Lowering<'_> {
    /// The nodes from `first` up to `root`, which are those of its tree: operands stand before what they are operands of.
    fn tree(&mut self, ast: &Ast, first: usize, root: NodeId) -> Result<Condition, Error> {
        let begins = beginnings(ast);
        let mut parts: HashMap<NodeId, Part> = HashMap::new();
        let mut i = first;
        while i <= root.0 {
            // What is in a tunnel is gone through at another place, and may be several times.
            let tunnels = i..=root.0;
            let is_tunnel = |j: &usize| matches!(ast.nodes[*j].0, Node::Inside(..)) && begins[*j] == i;
            if self.options.dialect == Dialect::Modern {
                i = tunnels.rev().find(is_tunnel).unwrap_or(i);
            }
            let (node, span) = &ast.nodes[i];
            self.span = span.clone();
            let around = self.builder.predicate;
            self.builder.predicate = self.predicates.get(i).copied().or(around);
            let part = match node {
                Node::Primitive(primitive) => {
                    let group = match primitive {
                        Primitive::Id(q, id) if self.options.joins_lists() => Group::of(*q, id, false),
                        _ => None,
                    };
                    match group {
                        Some(group) => Part::Group(group),
                        None => {
                            // What comes may shift offsets, which those before must not see.
                            for part in parts.values_mut() {
                                self.settle(part)?;
                            }
                            Part::Condition(self.primitive(primitive, ast)?)
                        }
                    }
                }
                Node::Inside(tunnel, number, inner) => {
                    for part in parts.values_mut() {
                        self.settle(part)?;
                    }
                    let first = begins[i];
                    Part::Condition(self.inside(*tunnel, *number, &mut |s| s.tree(ast, first, *inner))?)
                }
                Node::Not(a) => {
                    let Some(a) = parts.remove(a) else { return self.error("an operand is missing") };
                    let a = self.condition(a)?;
                    Part::Condition(self.builder.not(a))
                }
                Node::And(a, b) | Node::Or(a, b) => {
                    let is_and = matches!(node, Node::And(..));
                    let (Some(a), Some(b)) = (parts.remove(a), parts.remove(b)) else {
                        return self.error("an operand is missing");
                    };
                    self.both_parts(a, b, is_and)?
                }
            };
            self.builder.predicate = around;
            parts.insert(NodeId(i), part);
            i += 1;
        }
        match parts.remove(&root) {
            Some(root) => self.condition(root),
            None => self.error("nothing stands here"),
        }
    }

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
                Err(both) => {
                    let (a, b) = *both;
                    (Part::Group(a), Part::Group(b))
                }
            },
            other => other,
        };
        let (a, b) = (self.condition(a)?, self.condition(b)?);
        Ok(Part::Condition(if is_and { self.builder.and(a, b) } else { self.builder.or(a, b) }))
    }
}

impl Lowering<'_> {
    fn primitive(&mut self, primitive: &Primitive, ast: &Ast) -> Result<Condition, Error> {
        self.counted(1)?;
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
            Primitive::Vlan(n) if self.is_modern() => self.has_vlan(*n),
            Primitive::Vlan(n) => self.vlan(*n),
            Primitive::Mpls(n) => self.mpls(*n),
            Primitive::PppoeDiscovery => self.is_kind(kind::PPPOE_DISCOVERY),
            Primitive::PppoeSession(n) => self.pppoe_session(*n),
            Primitive::Geneve(n) if self.is_modern() => self.is_tunnel(Tunnel::Geneve, *n),
            Primitive::Vxlan(n) if self.is_modern() => self.is_tunnel(Tunnel::Vxlan, *n),
            Primitive::Gre => self.is_tunnel(Tunnel::Gre, None),
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

    fn finish(mut self, root: Condition) -> Graph {
        if self.is_modern() {
            // There from the beginning (`Lowering::new`). What nobody reads is not looked for: a packet may end before it.
            let values = &self.builder.values;
            for offset in [&mut self.header, &mut self.payload] {
                offset.variable = offset.variable.filter(|v| values.contains(Value::Variable(*v)));
            }
        }
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
            graph.prepend(vec![Block::new(Vec::new(), test, Target::Block(1), Target::Reject)]);
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
        Block::new(sets, Test::Compare(Relation::Equal, zero, zero), next, next)
    }
}
