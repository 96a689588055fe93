//! The tree of a filter as text: one node a line, operands indented below what they are operands of.
//!
//! ```text
//! tcp dst port 80 or 81 and not ip[0] & 0xf > 5      →      and
//!                                                             or
//!                                                               tcp dst port 80
//!                                                               tcp dst port 81
//!                                                             not
//!                                                               ip[0] & 0xf > 5
//! ```
//!
//! Qualifiers that an id inherits stand before it. Operands of the same operator in a row stand beside each other.

use std::fmt::Write as _;

use crate::language::{
    Arithmetic, ArithmeticId, Ast, AtmField, ByteOperation, Direction, Id, IdKind, Llc, Mtp3Field, Node, NodeId, Pf,
    Primitive, Qualifiers, Relation,
};

/// The tree as text.
pub(crate) fn text(ast: &Ast) -> String {
    let mut out = String::new();
    let Some(root) = ast.root else { return "accept\n".to_owned() };
    // Without recursion: operands of one operator may be a million.
    let mut open = vec![(root, 0)];
    while let Some((id, depth)) = open.pop() {
        let line = line(ast, &ast.nodes[id.0].0);
        let _ = writeln!(out, "{:1$}{line}", "", depth * 2);
        open.extend(operands(ast, id).into_iter().map(|operand| (operand, depth + 1)));
    }
    out
}

/// The predicates of a filter in the order of the text.
pub(crate) fn predicates(ast: &Ast) -> Vec<String> {
    let text = |(node, _): &(Node, _)| match node {
        Node::Inside(..) => format!("{} (…)", line(ast, node)),
        _ => line(ast, node),
    };
    ast.nodes.iter().filter(|(node, _)| node.is_predicate()).map(text).collect()
}

/// A node without its operands.
fn line(ast: &Ast, node: &Node) -> String {
    match node {
        Node::And(..) => "and".to_owned(),
        Node::Or(..) => "or".to_owned(),
        Node::Not(_) => "not".to_owned(),
        Node::Inside(tunnel, number, _) => with(tunnel.word(), number),
        Node::Primitive(p) => primitive(ast, p),
    }
}

/// The operands of a node, the last one first; those of a row of the same operator are all of one node.
fn operands(ast: &Ast, id: NodeId) -> Vec<NodeId> {
    let mut all = Vec::new();
    let mut at = id;
    loop {
        match (&ast.nodes[id.0].0, &ast.nodes[at.0].0) {
            (Node::And(..), Node::And(a, b)) | (Node::Or(..), Node::Or(a, b)) => {
                all.push(*b);
                at = *a;
            }
            (_, Node::Not(a) | Node::Inside(_, _, a)) if at == id => return vec![*a],
            _ if at == id => return all,
            _ => {
                all.push(at);
                return all;
            }
        }
    }
}

fn with(word: &str, number: &Option<u32>) -> String {
    number.map_or_else(|| word.to_owned(), |n| format!("{word} {n}"))
}

fn primitive(ast: &Ast, p: &Primitive) -> String {
    match p {
        Primitive::Id(qualifiers, id) => qualified(*qualifiers, id),
        Primitive::Protocol(p) => p.word().to_owned(),
        Primitive::Relation(relation, a, b) => {
            format!("{} {} {}", arithmetic(ast, *a), symbol(*relation), arithmetic(ast, *b))
        }
        Primitive::Broadcast(p) => p.map_or_else(|| "broadcast".to_owned(), |p| format!("{} broadcast", p.word())),
        Primitive::Multicast(p) => p.map_or_else(|| "multicast".to_owned(), |p| format!("{} multicast", p.word())),
        Primitive::Less(n) => format!("less {n}"),
        Primitive::Greater(n) => format!("greater {n}"),
        Primitive::Byte(operation, offset, value) => {
            let operation = match operation {
                ByteOperation::Equal => "=",
                ByteOperation::Less => "<",
                ByteOperation::Greater => ">",
                ByteOperation::And => "&",
                ByteOperation::Or => "|",
            };
            format!("byte {offset} {operation} {value}")
        }
        Primitive::Direction { outbound } => if *outbound { "outbound" } else { "inbound" }.to_owned(),
        Primitive::InterfaceIndex(n) => format!("ifindex {n}"),
        Primitive::Vlan(n) => with("vlan", n),
        Primitive::Mpls(n) => with("mpls", n),
        Primitive::PppoeDiscovery => "pppoed".to_owned(),
        Primitive::PppoeSession(n) => with("pppoes", n),
        Primitive::Geneve(n) => with("geneve", n),
        Primitive::Vxlan(n) => with("vxlan", n),
        Primitive::Gre => "gre".to_owned(),
        Primitive::Pf(pf) => match pf {
            Pf::Interface(name) => format!("ifname {name}"),
            Pf::RuleSet(name) => format!("ruleset {name}"),
            Pf::Rule(n) => format!("rnr {n}"),
            Pf::SubRule(n) => format!("srnr {n}"),
            Pf::Reason(n) => format!("reason {n}"),
            Pf::Action(n) => format!("action {n}"),
        },
        // No text says a mask: these are bits of a frame's first byte.
        Primitive::WlanType { value, mask } => format!("type and subtype: wlan[0] & {mask:#x} = {value:#x}"),
        Primitive::WlanDirection(n) => format!("dir {n}"),
        Primitive::Llc(llc) => match llc {
            Llc::Any => "llc".to_owned(),
            Llc::Information => "llc i".to_owned(),
            Llc::Supervisory => "llc s".to_owned(),
            Llc::Unnumbered => "llc u".to_owned(),
            Llc::SupervisoryOf(n) => format!("llc s: control field {n:#x}"),
            Llc::UnnumberedOf(n) => format!("llc u: control field {n:#x}"),
        },
        Primitive::AtmType(kind) => format!("{kind:?}").to_ascii_lowercase(),
        Primitive::AtmField(field, relation, n) => {
            let field = match field {
                AtmField::Vpi => "vpi",
                AtmField::Vci => "vci",
            };
            format!("{field} {} {n}", symbol(*relation))
        }
        Primitive::Mtp2Type(kind) => format!("{kind:?}").to_ascii_lowercase(),
        Primitive::Mtp3Field { field, high_speed, relation, value } => {
            let field = match field {
                Mtp3Field::Sio => "sio",
                Mtp3Field::Opc => "opc",
                Mtp3Field::Dpc => "dpc",
                Mtp3Field::Sls => "sls",
            };
            format!("{}{field} {} {value}", if *high_speed { "h" } else { "" }, symbol(*relation))
        }
    }
}

fn qualified(Qualifiers { protocol, direction, kind }: Qualifiers, id: &Id) -> String {
    let direction = match direction {
        Direction::Default => "",
        Direction::Src => "src ",
        Direction::Dst => "dst ",
        Direction::Or => "src or dst ",
        Direction::And => "src and dst ",
        Direction::Addr1 => "addr1 ",
        Direction::Addr2 => "addr2 ",
        Direction::Addr3 => "addr3 ",
        Direction::Addr4 => "addr4 ",
        Direction::Receiver => "ra ",
        Direction::Transmitter => "ta ",
    };
    let kind = match kind {
        IdKind::Default => "",
        IdKind::Host => "host ",
        IdKind::Net => "net ",
        IdKind::Port => "port ",
        IdKind::PortRange => "portrange ",
        IdKind::Gateway => "gateway ",
        IdKind::Proto => "proto ",
        IdKind::ProtoChain => "protochain ",
    };
    let protocol = protocol.map_or(String::new(), |p| format!("{} ", p.word()));
    let id = match id {
        Id::Name(name) => name.clone(),
        Id::Number(n) => n.to_string(),
        Id::Ipv4(address) => address.clone(),
        Id::Ipv4Prefix(address, bits) => format!("{address}/{bits}"),
        Id::Ipv4Mask(address, mask) => format!("{address} mask {mask}"),
        Id::Ipv6(address) => address.to_string(),
        Id::Ipv6Prefix(address, bits) => format!("{address}/{bits}"),
        Id::Mac(mac) => mac.map(|byte| format!("{byte:02x}")).join(":"),
        Id::Arcnet(n) => format!("${n:02x}"),
        Id::Set(name) => format!("${name}"),
    };
    format!("{protocol}{direction}{kind}{id}")
}

/// The relation as a filter writes it.
pub(crate) fn symbol(relation: Relation) -> &'static str {
    match relation {
        Relation::Equal => "=",
        Relation::NotEqual => "!=",
        Relation::Greater => ">",
        Relation::GreaterEqual => ">=",
        Relation::Less => "<",
        Relation::LessEqual => "<=",
    }
}

/// An arithmetic expression with a parenthesis around each operation within another.
fn arithmetic(ast: &Ast, id: ArithmeticId) -> String {
    let within = |id: ArithmeticId| match &ast.arithmetic[id.0].0 {
        Arithmetic::Binary(..) => format!("({})", arithmetic(ast, id)),
        _ => arithmetic(ast, id),
    };
    match &ast.arithmetic[id.0].0 {
        Arithmetic::Number(n) => n.to_string(),
        Arithmetic::Length => "len".to_owned(),
        Arithmetic::Load { protocol, offset, size } => {
            let size = if *size == 1 { String::new() } else { format!(":{size}") };
            format!("{}[{}{size}]", protocol.word(), arithmetic(ast, *offset))
        }
        Arithmetic::Negate(a) => format!("-{}", within(*a)),
        Arithmetic::Binary(op, a, b) => format!("{} {} {}", within(*a), op.symbol(), within(*b)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::language::parse;
    use crate::options::Dialect;

    fn of(filter: &str) -> String {
        text(&parse(filter, &HashSet::from(["BAD".to_owned()]), Dialect::Libpcap).expect("a filter"))
    }

    #[test]
    fn qualifiers_that_are_inherited_are_shown() {
        let text = of("tcp dst port 80 or 81 and not ip[0] & 0xf > 5 or src net 10.0.0.0/8 or host $BAD");
        let wanted = "\
or
  and
    or
      tcp dst port 80
      tcp dst port 81
    not
      ip[0] & 15 > 5
  src net 10.0.0.0/8
  host $BAD
";
        assert_eq!(text, wanted);
    }

    #[test]
    fn a_line_that_is_text_of_the_language_means_the_same() {
        for filter in [
            "ether src host 01:02:03:04:05:06",
            "ip6 net 2001:db8::/32",
            "net 10.1.0.0 mask 255.255.0.0",
            "src and dst port 53",
            "((ip[2:2] - ((ip[0] & 15) << 2)) - ((tcp[12] & 240) >> 2)) != 0",
            "-len % 7 = 3",
            "byte 8 | 4",
            "vlan 7",
            "ip protochain 51",
            "ether multicast",
            "less 60",
            "llc u",
            "rnr 5",
        ] {
            let once = of(filter);
            assert_eq!(of(once.trim_end()), once, "{filter}");
        }
    }

    #[test]
    fn a_long_row_is_flat() {
        let row = vec!["port 1"; 100_000].join(" or ");
        assert_eq!(of(&row).lines().count(), 100_001);
        assert_eq!(of(""), "accept\n");
    }
}
