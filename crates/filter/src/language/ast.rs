//! The tree of a filter.

use std::net::Ipv6Addr;
use std::ops::Range;

/// A node of the tree: an index of [`Ast::nodes`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct NodeId(pub(crate) usize);

/// A node of an arithmetic expression: an index of [`Ast::arithmetic`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct ArithmeticId(pub(crate) usize);

/// A filter as it was written: operands stand before what they are operands of.
#[derive(Clone, Default, Debug)]
pub(crate) struct Ast {
    pub(crate) nodes: Vec<(Node, Range<usize>)>,
    pub(crate) arithmetic: Vec<(Arithmetic, Range<usize>)>,
    /// `None`: the text is empty, which accepts every packet.
    pub(crate) root: Option<NodeId>,
}

impl Ast {
    /// The sets that are named, each as often as it is.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().filter_map(|(node, _)| match node {
            Node::Primitive(Primitive::Id(_, Id::Set(name))) => Some(name.as_str()),
            _ => None,
        })
    }
}

/// A node.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Node {
    And(NodeId, NodeId),
    Or(NodeId, NodeId),
    Not(NodeId),
    Primitive(Primitive),
    /// `vxlan 5 (…)` of the modern dialect: the packet in a tunnel is what the node says.
    Inside(Tunnel, Option<u32>, NodeId),
}

impl Node {
    /// What a report counts: a primitive, or a tunnel around others.
    pub(crate) fn is_predicate(&self) -> bool {
        matches!(self, Node::Primitive(_) | Node::Inside(..))
    }
}

/// What carries packets in packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tunnel {
    Vxlan,
    Geneve,
    Gre,
}

impl Tunnel {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Tunnel::Vxlan => "vxlan",
            Tunnel::Geneve => "geneve",
            Tunnel::Gre => "gre",
        }
    }
}

/// What a filter is made of.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Primitive {
    /// `src host 10.0.0.1`: qualifiers and what they are about.
    Id(Qualifiers, Id),
    /// `tcp`: the packet is of this protocol.
    Protocol(Protocol),
    Relation(Relation, ArithmeticId, ArithmeticId),
    Broadcast(Option<Protocol>),
    Multicast(Option<Protocol>),
    Less(u32),
    Greater(u32),
    /// `byte 8 = 5`: the operation, the offset, the value.
    Byte(ByteOperation, u32, u32),
    /// `inbound`, `outbound`.
    Direction {
        outbound: bool,
    },
    InterfaceIndex(u32),
    Vlan(Option<u32>),
    Mpls(Option<u32>),
    PppoeDiscovery,
    PppoeSession(Option<u32>),
    Geneve(Option<u32>),
    Vxlan(Option<u32>),
    /// Of the modern dialect.
    Gre,
    Pf(Pf),
    /// Bits of the first byte of an 802.11 frame, and which of them count.
    WlanType {
        value: u32,
        mask: u32,
    },
    WlanDirection(u32),
    Llc(Llc),
    AtmType(AtmType),
    AtmField(AtmField, Relation, u32),
    Mtp2Type(Mtp2Type),
    Mtp3Field {
        field: Mtp3Field,
        high_speed: bool,
        relation: Relation,
        value: u32,
    },
}

/// An arithmetic expression over unsigned 32-bit numbers.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Arithmetic {
    Number(u32),
    /// The packet's length on the wire.
    Length,
    /// `tcp[offset:size]`
    Load {
        protocol: Protocol,
        offset: ArithmeticId,
        size: u32,
    },
    Negate(ArithmeticId),
    Binary(Binary, ArithmeticId, ArithmeticId),
}

/// Arithmetic of two operands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

#[cfg(test)]
impl Binary {
    /// All of them.
    pub(crate) const ALL: [Binary; 10] = [
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::Mod,
        Binary::And,
        Binary::Or,
        Binary::Xor,
        Binary::ShiftLeft,
        Binary::ShiftRight,
    ];
}

/// How two numbers compare.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Relation {
    Equal,
    NotEqual,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
}

/// The operators of `byte`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ByteOperation {
    Equal,
    Less,
    Greater,
    And,
    Or,
}

/// The qualifiers before an id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Qualifiers {
    pub(crate) protocol: Option<Protocol>,
    pub(crate) direction: Direction,
    pub(crate) kind: IdKind,
}

/// Which address or port is meant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum Direction {
    /// None is named, which means source or destination.
    #[default]
    Default,
    Src,
    Dst,
    Or,
    And,
    Addr1,
    Addr2,
    Addr3,
    Addr4,
    Receiver,
    Transmitter,
}

/// What an id is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) enum IdKind {
    /// None is named, which means a host.
    #[default]
    Default,
    Host,
    Net,
    Port,
    PortRange,
    Gateway,
    Proto,
    ProtoChain,
}

/// What qualifiers are about.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Id {
    Name(String),
    Number(u32),
    /// Two to four numbers with dots, as written.
    Ipv4(String),
    Ipv4Prefix(String, u32),
    Ipv4Mask(String, String),
    Ipv6(Ipv6Addr),
    Ipv6Prefix(Ipv6Addr, u32),
    Mac([u8; 6]),
    Arcnet(u8),
    /// A set, by its name.
    Set(String),
}

macro_rules! protocols {
    ($($name:ident: $($text:literal)|+;)*) => {
        /// A protocol that a filter can name.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub(crate) enum Protocol {
            $($name),*
        }

        impl Protocol {
            /// The protocol that a word names.
            pub(crate) fn of_word(word: &str) -> Option<Protocol> {
                Some(match word {
                    $($($text)|+ => Protocol::$name,)*
                    _ => return None,
                })
            }

            /// The word for it; the first of several.
            pub(crate) fn word(self) -> &'static str {
                match self {
                    $(Protocol::$name => first(&[$($text),+]),)*
                }
            }
        }
    };
}

fn first(words: &[&'static str]) -> &'static str {
    words[0]
}

protocols! {
    Link: "link" | "ether" | "ppp" | "slip" | "fddi" | "tr" | "wlan";
    Ip: "ip";
    Ip6: "ip6";
    Arp: "arp";
    Rarp: "rarp";
    Sctp: "sctp";
    Tcp: "tcp";
    Udp: "udp";
    Icmp: "icmp";
    Icmp6: "icmp6";
    Igmp: "igmp";
    Igrp: "igrp";
    Pim: "pim";
    Vrrp: "vrrp";
    Carp: "carp";
    Radio: "radio";
    Ah: "ah";
    Esp: "esp";
    Atalk: "atalk";
    Aarp: "aarp";
    Decnet: "decnet";
    Lat: "lat";
    Sca: "sca";
    Moprc: "moprc";
    Mopdl: "mopdl";
    Iso: "iso";
    Esis: "esis" | "es-is";
    Isis: "isis" | "is-is";
    L1: "l1";
    L2: "l2";
    Iih: "iih";
    Lsp: "lsp";
    Snp: "snp";
    Csnp: "csnp";
    Psnp: "psnp";
    Clnp: "clnp";
    Stp: "stp";
    Ipx: "ipx";
    Netbeui: "netbeui";
}

/// What OpenBSD's packet filter has noted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Pf {
    Interface(String),
    RuleSet(String),
    Rule(u32),
    SubRule(u32),
    Reason(u32),
    Action(u32),
}

/// Kinds of LLC frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Llc {
    Any,
    Information,
    Supervisory,
    Unnumbered,
    /// A supervisory frame with this control field.
    SupervisoryOf(u32),
    /// An unnumbered frame with this control field.
    UnnumberedOf(u32),
}

/// Kinds of ATM cells and messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub(crate) enum AtmType {
    Lane,
    Metac,
    Bcc,
    OamF4Ec,
    OamF4Sc,
    Sc,
    Ilmic,
    Oam,
    OamF4,
    ConnectMsg,
    MetaConnect,
}

/// Fields of an ATM cell's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AtmField {
    Vpi,
    Vci,
}

/// Kinds of MTP2 signal units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mtp2Type {
    Fisu,
    Lssu,
    Msu,
    HFisu,
    HLssu,
    HMsu,
}

/// Fields of MTP3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mtp3Field {
    Sio,
    Opc,
    Dpc,
    Sls,
}
