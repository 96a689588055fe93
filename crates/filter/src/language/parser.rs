//! From tokens to a tree: recursive descent over libpcap's grammar (`grammar.y`).
//!
//! What is unusual in this grammar:
//! - `and` and `or` bind alike and to the left.
//! - An id without qualifiers has those of the last id before it. Behind a closing parenthesis that is the last one before the
//!   opening parenthesis.
//! - `%` and `^` have no precedence there, so that a conflict is decided for what follows: their right operand goes as far as it
//!   can, their left operand is only what stands directly before them.
//! - What an opening parenthesis opens (a filter, ids, a number, arithmetic) is told by what follows it and what follows the
//!   closing one.

use std::collections::HashSet;
use std::net::Ipv6Addr;
use std::ops::Range;

use super::ast::*;
use super::fields::{atm_type, mtp2_type, mtp3_field};
use super::lexer::{Keyword, Kind, Operator, Token, tokens};
use crate::error::Error;
use crate::options::Dialect;

/// How deep parentheses, `not` and arithmetic may stand in each other.
const MAX_DEPTH: usize = 500;

/// The tree of a text. `sets` are the names that may follow a `$`.
pub(crate) fn parse(text: &str, sets: &HashSet<String>, dialect: Dialect) -> Result<Ast, Error> {
    let tokens = tokens(text, sets)?;
    let mut parser = Parser {
        end: text.len(),
        closing: closing(&tokens),
        tokens,
        at: 0,
        depth: 0,
        tunnels: 0,
        dialect,
        ast: Ast::default(),
    };
    if parser.tokens.is_empty() {
        return Ok(parser.ast);
    }
    let (root, _) = parser.filter(None)?;
    if let Some(token) = parser.tokens.get(parser.at) {
        return Err(Error::new(
            token.span.clone(),
            "syntax error: the filter should end here, or go on with 'and' or 'or'",
        ));
    }
    parser.ast.root = Some(root);
    Ok(parser.ast)
}

/// An entry of a set: an address, a network, a number or a name.
pub(crate) fn parse_id(text: &str) -> Result<Id, Error> {
    let tokens = tokens(text, &HashSet::new())?;
    let mut parser = Parser {
        end: text.len(),
        closing: Vec::new(),
        tokens,
        at: 0,
        depth: 0,
        tunnels: 0,
        dialect: Dialect::Libpcap,
        ast: Ast::default(),
    };
    let id = parser.plain_id()?;
    match parser.tokens.get(parser.at) {
        Some(token) => Err(Error::new(token.span.clone(), format!("{text:?} is more than one address"))),
        None => Ok(id),
    }
}

/// For each opening parenthesis the token that closes it; the number of tokens if none does.
fn closing(tokens: &[Token]) -> Vec<usize> {
    let mut closing = vec![tokens.len(); tokens.len()];
    let mut open = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Operator(Operator::Open) => open.push(i),
            Kind::Operator(Operator::Close) => {
                if let Some(o) = open.pop() {
                    closing[o] = i;
                }
            }
            _ => {}
        }
    }
    closing
}

/// What stands at a place where a term or an id may stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    Term,
    Id,
    Arithmetic,
}

pub(super) struct Parser<'a> {
    pub(super) tokens: Vec<Token<'a>>,
    pub(super) closing: Vec<usize>,
    pub(super) at: usize,
    /// The length of the text.
    pub(super) end: usize,
    pub(super) depth: usize,
    /// How many tunnels what stands here is in.
    pub(super) tunnels: usize,
    pub(super) dialect: Dialect,
    pub(super) ast: Ast,
}

pub(super) type Inherited = Option<Qualifiers>;

impl<'a> Parser<'a> {
    pub(super) fn peek(&self) -> Option<Kind<'a>> {
        self.kind(self.at)
    }

    pub(super) fn kind(&self, i: usize) -> Option<Kind<'a>> {
        self.tokens.get(i).map(|t| t.kind)
    }

    pub(super) fn span(&self, i: usize) -> Range<usize> {
        self.tokens.get(i).map_or(self.end..self.end, |t| t.span.clone())
    }

    /// From the start of the token `from` to the end of the last one that was taken.
    pub(super) fn since(&self, from: usize) -> Range<usize> {
        self.span(from).start..self.span(self.at.saturating_sub(1).max(from)).end
    }

    pub(super) fn is(&self, kind: Kind) -> bool {
        self.peek() == Some(kind)
    }

    pub(super) fn take(&mut self, kind: Kind) -> bool {
        let is = self.is(kind);
        self.at += usize::from(is);
        is
    }

    pub(super) fn keyword(&mut self, k: Keyword) -> bool {
        self.take(Kind::Keyword(k))
    }

    pub(super) fn unexpected(&self, wanted: &str) -> Error {
        let what = if self.at >= self.tokens.len() { "the filter ends where" } else { "syntax error:" };
        Error::new(self.span(self.at), format!("{what} {wanted} should stand"))
    }

    pub(super) fn close(&mut self) -> Result<(), Error> {
        if self.take(Kind::Operator(Operator::Close)) {
            return Ok(());
        }
        Err(self.unexpected("')'"))
    }

    pub(super) fn number(&mut self, of: &str) -> Result<u32, Error> {
        match self.peek() {
            Some(Kind::Number(n)) => {
                self.at += 1;
                Ok(n)
            }
            _ => Err(self.unexpected(&format!("the number of '{of}'"))),
        }
    }

    pub(super) fn deeper<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        if self.depth >= MAX_DEPTH {
            return Err(Error::new(self.span(self.at), format!("nested more than {MAX_DEPTH} deep")));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    pub(super) fn node(&mut self, node: Node, span: Range<usize>) -> NodeId {
        self.ast.nodes.push((node, span));
        NodeId(self.ast.nodes.len() - 1)
    }

    pub(super) fn arithmetic_node(&mut self, node: Arithmetic, from: usize) -> ArithmeticId {
        let span = self.since(from);
        self.ast.arithmetic.push((node, span));
        ArithmeticId(self.ast.arithmetic.len() - 1)
    }

    /// `expr`: terms and ids with `and` and `or` between them.
    pub(super) fn filter(&mut self, inherited: Inherited) -> Result<(NodeId, Inherited), Error> {
        let from = self.at;
        let (mut left, mut inherited) = self.term(inherited)?;
        loop {
            let is_and = match self.peek() {
                Some(Kind::Keyword(Keyword::And)) => true,
                Some(Kind::Keyword(Keyword::Or)) => false,
                _ => return Ok((left, inherited)),
            };
            self.at += 1;
            let right = match self.next() {
                Next::Id => self.id(inherited)?,
                _ => {
                    let (right, q) = self.term(inherited)?;
                    inherited = q;
                    right
                }
            };
            let node = if is_and { Node::And(left, right) } else { Node::Or(left, right) };
            left = self.node(node, self.since(from));
        }
    }

    /// What stands here, told without recursion: parentheses and `not` are looked through.
    pub(super) fn next(&self) -> Next {
        let mut at = self.at;
        let mut opened = Vec::new();
        loop {
            match self.kind(at) {
                Some(Kind::Keyword(Keyword::Not)) => {}
                Some(Kind::Operator(Operator::Open)) => opened.push(at),
                _ => break,
            }
            at += 1;
        }
        // Only what stands between parentheses that arithmetic goes on behind is arithmetic.
        if opened.iter().any(|o| self.arithmetic_goes_on(self.closing[*o] + 1)) {
            let outermost = opened.first().is_some_and(|o| self.arithmetic_goes_on(self.closing[*o] + 1));
            return if outermost { Next::Arithmetic } else { Next::Term };
        }
        match self.kind(at) {
            Some(Kind::Name(_)) if self.is_gre(at) => Next::Term,
            Some(Kind::Name(_) | Kind::Ipv4(_) | Kind::Ipv6(_) | Kind::Mac(_) | Kind::Arcnet(_) | Kind::Set(_)) => {
                Next::Id
            }
            Some(Kind::Number(_)) => {
                if self.arithmetic_goes_on(at + 1) {
                    if opened.is_empty() && !matches!(self.peek(), Some(Kind::Keyword(_))) {
                        Next::Arithmetic
                    } else {
                        Next::Term
                    }
                } else {
                    Next::Id
                }
            }
            _ => Next::Term,
        }
    }

    /// Whether the token is an operator of arithmetic or a relation.
    pub(super) fn arithmetic_goes_on(&self, at: usize) -> bool {
        use Operator::*;
        matches!(
            self.kind(at),
            Some(Kind::Operator(
                Equal
                    | Greater
                    | Less
                    | GreaterEqual
                    | LessEqual
                    | NotEqual
                    | Plus
                    | Minus
                    | Times
                    | Divide
                    | Modulo
                    | And
                    | Or
                    | Xor
                    | ShiftLeft
                    | ShiftRight
            ))
        )
    }

    /// `term`: what needs no qualifiers from elsewhere.
    pub(super) fn term(&mut self, inherited: Inherited) -> Result<(NodeId, Inherited), Error> {
        let from = self.at;
        if self.keyword(Keyword::Not) {
            let (inner, q) = self.deeper(|p| p.term(inherited))?;
            let node = self.node(Node::Not(inner), self.since(from));
            return Ok((node, q));
        }
        let Some(kind) = self.peek() else { return Err(self.unexpected("a primitive")) };
        if kind == Kind::Operator(Operator::Open) && self.next() != Next::Arithmetic {
            self.at += 1;
            let (inner, _) = self.deeper(|p| p.filter(inherited))?;
            self.close()?;
            return Ok((inner, inherited));
        }
        if let Kind::Protocol(protocol) = kind
            && self.kind(self.at + 1) != Some(Kind::Operator(Operator::OpenIndex))
        {
            self.at += 1;
            return self.behind_protocol(from, protocol);
        }
        match kind {
            Kind::Number(_)
            | Kind::Protocol(_)
            | Kind::Operator(Operator::Open | Operator::Minus)
            | Kind::Keyword(Keyword::Len) => {
                let relation = self.relation()?;
                Ok((self.node(Node::Primitive(relation), self.since(from)), None))
            }
            Kind::Keyword(k) => self.behind_no_protocol(from, k),
            Kind::Name(_) if self.is_gre(from) => {
                self.at += 1;
                self.tunnel(from, Tunnel::Gre, None)
            }
            _ => Err(self
                .unexpected("a primitive")
                .help("an address or name needs a qualifier before it, as in 'host 10.0.0.1'")),
        }
    }

    pub(super) fn primitive(&mut self, from: usize, primitive: Primitive) -> Result<(NodeId, Inherited), Error> {
        Ok((self.node(Node::Primitive(primitive), self.since(from)), None))
    }

    /// A protocol's name was read: it qualifies an id, or stands for itself.
    pub(super) fn behind_protocol(&mut self, from: usize, protocol: Protocol) -> Result<(NodeId, Inherited), Error> {
        if let Some(q) = self.qualifiers(Some(protocol))? {
            return Ok((self.id(Some(q))?, Some(q)));
        }
        if let Some(Kind::Keyword(k)) = self.peek()
            && let Some(primitive) = self.behind_any_protocol(Some(protocol), k)?
        {
            return self.primitive(from, primitive);
        }
        self.primitive(from, Primitive::Protocol(protocol))
    }

    pub(super) fn behind_no_protocol(&mut self, from: usize, k: Keyword) -> Result<(NodeId, Inherited), Error> {
        if let Some(q) = self.qualifiers(None)? {
            return Ok((self.id(Some(q))?, Some(q)));
        }
        if let Some(primitive) = self.behind_any_protocol(None, k)? {
            return self.primitive(from, primitive);
        }
        self.at += 1;
        let primitive = match k {
            Keyword::Less => Primitive::Less(self.number("less")?),
            Keyword::Greater => Primitive::Greater(self.number("greater")?),
            Keyword::Byte => self.byte()?,
            Keyword::Inbound => Primitive::Direction { outbound: false },
            Keyword::Outbound => Primitive::Direction { outbound: true },
            Keyword::IfIndex => Primitive::InterfaceIndex(self.number("ifindex")?),
            Keyword::Vlan => Primitive::Vlan(self.optional_number()?),
            Keyword::Mpls => Primitive::Mpls(self.optional_number()?),
            Keyword::Pppoed => Primitive::PppoeDiscovery,
            Keyword::Pppoes => Primitive::PppoeSession(self.optional_number()?),
            Keyword::Geneve | Keyword::Vxlan => {
                let number = self.optional_number()?;
                return self.tunnel(from, if k == Keyword::Vxlan { Tunnel::Vxlan } else { Tunnel::Geneve }, number);
            }
            Keyword::Llc => self.llc()?,
            Keyword::Vpi | Keyword::Vci => {
                return self.atm_field(from, if k == Keyword::Vpi { AtmField::Vpi } else { AtmField::Vci });
            }
            _ => {
                if let Some(pf) = self.pf(k)? {
                    Primitive::Pf(pf)
                } else if let Some(atm) = atm_type(k) {
                    Primitive::AtmType(atm)
                } else if let Some(mtp2) = mtp2_type(k) {
                    Primitive::Mtp2Type(mtp2)
                } else if let Some((field, high_speed)) = mtp3_field(k) {
                    return self.mtp3_field(from, field, high_speed);
                } else {
                    self.at -= 1;
                    return Err(self.unexpected("a primitive"));
                }
            }
        };
        self.primitive(from, primitive)
    }

    /// Qualifiers behind an optional protocol; `None` if there are none.
    pub(super) fn qualifiers(&mut self, protocol: Option<Protocol>) -> Result<Option<Qualifiers>, Error> {
        let direction = self.direction();
        let kind = match self.peek() {
            Some(Kind::Keyword(Keyword::Host)) => IdKind::Host,
            Some(Kind::Keyword(Keyword::Net)) => IdKind::Net,
            Some(Kind::Keyword(Keyword::Port)) => IdKind::Port,
            Some(Kind::Keyword(Keyword::PortRange)) => IdKind::PortRange,
            Some(Kind::Keyword(Keyword::Proto)) if direction.is_none() => IdKind::Proto,
            Some(Kind::Keyword(Keyword::ProtoChain)) if direction.is_none() => IdKind::ProtoChain,
            Some(Kind::Keyword(Keyword::Gateway)) if direction.is_none() => IdKind::Gateway,
            Some(Kind::Keyword(k @ (Keyword::Proto | Keyword::ProtoChain | Keyword::Gateway))) => {
                let word = &match k {
                    Keyword::Proto => "proto",
                    Keyword::ProtoChain => "protochain",
                    _ => "gateway",
                };
                return Err(Error::new(self.span(self.at), format!("syntax error: '{word}' has no direction")));
            }
            _ => IdKind::Default,
        };
        if kind != IdKind::Default {
            self.at += 1;
        } else if direction.is_none() {
            return Ok(None);
        }
        Ok(Some(Qualifiers { protocol, direction: direction.unwrap_or_default(), kind }))
    }

    pub(super) fn direction(&mut self) -> Option<Direction> {
        let Some(Kind::Keyword(k)) = self.peek() else { return None };
        let direction = match k {
            Keyword::Src | Keyword::Dst => {
                let other = if k == Keyword::Src { Keyword::Dst } else { Keyword::Src };
                let both = match self.kind(self.at + 1) {
                    Some(Kind::Keyword(Keyword::Or)) => Some(Direction::Or),
                    Some(Kind::Keyword(Keyword::And)) => Some(Direction::And),
                    _ => None,
                };
                match both {
                    Some(both) if self.kind(self.at + 2) == Some(Kind::Keyword(other)) => {
                        self.at += 2;
                        both
                    }
                    _ if k == Keyword::Src => Direction::Src,
                    _ => Direction::Dst,
                }
            }
            Keyword::Addr1 => Direction::Addr1,
            Keyword::Addr2 => Direction::Addr2,
            Keyword::Addr3 => Direction::Addr3,
            Keyword::Addr4 => Direction::Addr4,
            Keyword::Ra => Direction::Receiver,
            Keyword::Ta => Direction::Transmitter,
            _ => return None,
        };
        self.at += 1;
        Some(direction)
    }

    /// `id`: what qualifiers are about, or several of it in parentheses.
    pub(super) fn id(&mut self, inherited: Inherited) -> Result<NodeId, Error> {
        let from = self.at;
        if self.keyword(Keyword::Not) {
            let inner = self.deeper(|p| p.id(inherited))?;
            return Ok(self.node(Node::Not(inner), self.since(from)));
        }
        if self.is(Kind::Operator(Operator::Open)) {
            self.at += 1;
            let mut left = self.deeper(|p| p.id(inherited))?;
            loop {
                let is_and = match self.peek() {
                    Some(Kind::Keyword(Keyword::And)) => true,
                    Some(Kind::Keyword(Keyword::Or)) => false,
                    _ => break,
                };
                self.at += 1;
                let right = self.deeper(|p| p.id(inherited))?;
                let node = if is_and { Node::And(left, right) } else { Node::Or(left, right) };
                left = self.node(node, self.since(from));
            }
            self.close()?;
            return Ok(left);
        }
        let id = self.plain_id()?;
        let span = self.since(from);
        let Some(q) = inherited else {
            return Err(Error::new(span, "syntax error: nothing says what kind of id this is")
                .help("an id without qualifiers has those of the id before it; here there is none"));
        };
        Ok(self.node(Node::Primitive(Primitive::Id(q, id)), span))
    }

    pub(super) fn plain_id(&mut self) -> Result<Id, Error> {
        let Some(kind) = self.peek() else { return Err(self.unexpected("an address, a name or a number")) };
        self.at += 1;
        Ok(match kind {
            Kind::Name(name) => Id::Name(name.to_owned()),
            Kind::Number(n) => Id::Number(n),
            Kind::Mac(mac) => Id::Mac(mac),
            Kind::Arcnet(a) => Id::Arcnet(a),
            Kind::Set(name) => Id::Set(name.to_owned()),
            Kind::Ipv4(text) => {
                if self.take(Kind::Operator(Operator::Divide)) {
                    Id::Ipv4Prefix(text.to_owned(), self.number("/")?)
                } else if self.keyword(Keyword::Mask) {
                    let Some(Kind::Ipv4(mask)) = self.peek() else {
                        return Err(self.unexpected("a mask such as 255.0.0.0"));
                    };
                    self.at += 1;
                    Id::Ipv4Mask(text.to_owned(), mask.to_owned())
                } else {
                    Id::Ipv4(text.to_owned())
                }
            }
            Kind::Ipv6(text) => {
                let address: Ipv6Addr =
                    text.parse().map_err(|_| Error::new(self.span(self.at - 1), "bogus IPv6 address"))?;
                if self.take(Kind::Operator(Operator::Divide)) {
                    Id::Ipv6Prefix(address, self.number("/")?)
                } else {
                    Id::Ipv6(address)
                }
            }
            _ => {
                self.at -= 1;
                let error = self.unexpected("an address, a name or a number");
                return Err(if matches!(kind, Kind::Keyword(_) | Kind::Protocol(_)) {
                    error.help("a word with a meaning of its own needs a backslash to be a name, as in 'proto \\tcp'")
                } else {
                    error
                });
            }
        })
    }
}
