//! Primitives with a grammar of their own: 802.11, LLC, OpenBSD's packet filter, ATM, SS7, `byte`.

use super::ast::*;
use super::lexer::{Keyword, Kind, Operator};
use super::parser::{Inherited, Parser};
use crate::error::Error;
use crate::names::{self, TypeOfFrame};
use crate::options::Dialect;

impl Parser<'_> {
    /// What stands behind a protocol that may also be left out.
    pub(super) fn behind_any_protocol(
        &mut self,
        protocol: Option<Protocol>,
        k: Keyword,
    ) -> Result<Option<Primitive>, Error> {
        let at = self.at;
        self.at += 1;
        Ok(Some(match k {
            Keyword::Broadcast => Primitive::Broadcast(protocol),
            Keyword::Multicast => Primitive::Multicast(protocol),
            Keyword::Type => {
                let kind = self.wlan_value(
                    "type",
                    |p, name| names::wlan_type(name).ok_or_else(|| p.unknown("802.11 type", name)),
                    names::WLAN_TYPE_MASK,
                )?;
                if !self.keyword(Keyword::Subtype) {
                    return Ok(Some(Primitive::WlanType { value: kind, mask: names::WLAN_TYPE_MASK }));
                }
                let subtype = self.wlan_value(
                    "subtype",
                    |p, name| {
                        let of = TypeOfFrame::of_bits(kind).ok_or_else(|| p.unknown("802.11 type", name))?;
                        names::wlan_subtype(of, name).ok_or_else(|| p.unknown("802.11 subtype", name))
                    },
                    names::WLAN_SUBTYPE_MASK,
                )?;
                Primitive::WlanType { value: kind | subtype, mask: names::WLAN_TYPE_MASK | names::WLAN_SUBTYPE_MASK }
            }
            Keyword::Subtype => {
                let Some(Kind::Name(name)) = self.peek() else {
                    return Err(self
                        .unexpected("the name of a subtype")
                        .help("a number needs its type before it, as in 'type 0 subtype 0x80'"));
                };
                let value = names::wlan_any_subtype(name).ok_or_else(|| self.unknown("802.11 type", name))?;
                self.at += 1;
                Primitive::WlanType { value, mask: names::WLAN_TYPE_MASK | names::WLAN_SUBTYPE_MASK }
            }
            Keyword::Dir => {
                let value = match self.peek() {
                    Some(Kind::Number(n)) if n <= 3 => n,
                    Some(Kind::Number(_)) => {
                        return Err(Error::new(self.span(self.at), "invalid 802.11 direction")
                            .help("0 to 3, or nods, tods, fromds, dstods"));
                    }
                    Some(Kind::Name(name)) => names::wlan_direction(name)
                        .ok_or_else(|| self.unknown("802.11 direction", name).help("nods, tods, fromds or dstods"))?,
                    _ => return Err(self.unexpected("a direction")),
                };
                self.at += 1;
                Primitive::WlanDirection(value)
            }
            _ => {
                self.at = at;
                return Ok(None);
            }
        }))
    }

    pub(super) fn unknown(&self, what: &str, name: &str) -> Error {
        Error::new(self.span(self.at), format!("unknown {what} {name:?}"))
    }

    /// A number within `mask`, or a name.
    pub(super) fn wlan_value(
        &mut self,
        what: &str,
        named: impl Fn(&Self, &str) -> Result<u32, Error>,
        mask: u32,
    ) -> Result<u32, Error> {
        let value = match self.peek() {
            Some(Kind::Number(n)) if n & !mask == 0 => n,
            Some(Kind::Number(n)) => {
                return Err(Error::new(self.span(self.at), format!("invalid 802.11 {what} value {n:#04x}")));
            }
            Some(Kind::Name(name)) => named(self, name)?,
            _ => return Err(self.unexpected(&format!("an 802.11 {what}"))),
        };
        self.at += 1;
        Ok(value)
    }

    pub(super) fn byte(&mut self) -> Result<Primitive, Error> {
        let offset = self.number("byte")?;
        let operation = match self.peek() {
            Some(Kind::Operator(Operator::And)) => ByteOperation::And,
            Some(Kind::Operator(Operator::Or)) => ByteOperation::Or,
            Some(Kind::Operator(Operator::Less)) => ByteOperation::Less,
            Some(Kind::Operator(Operator::Greater)) => ByteOperation::Greater,
            Some(Kind::Operator(Operator::Equal)) => ByteOperation::Equal,
            _ => return Err(self.unexpected("one of & | < > =")),
        };
        self.at += 1;
        let at = self.at;
        let value = self.number("byte")?;
        if value > 255 {
            return Err(Error::new(self.span(at), format!("byte argument {value} greater than maximum 255")));
        }
        Ok(Primitive::Byte(operation, offset, value))
    }

    /// A number, also in parentheses, if one stands here.
    pub(super) fn optional_number(&mut self) -> Result<Option<u32>, Error> {
        let mut at = self.at;
        while self.kind(at) == Some(Kind::Operator(Operator::Open)) {
            at += 1;
        }
        let Some(Kind::Number(n)) = self.kind(at) else { return Ok(None) };
        let opened = at - self.at;
        let closes = (0..opened).all(|i| self.kind(at + 1 + i) == Some(Kind::Operator(Operator::Close)));
        if !closes {
            return Ok(None);
        }
        self.at = at + 1 + opened;
        Ok(Some(n))
    }

    /// `gre` as a word of the modern dialect: without a backslash before it, and where no qualifier asks for a name.
    pub(super) fn is_gre(&self, at: usize) -> bool {
        self.dialect == Dialect::Modern
            && self.kind(at) == Some(Kind::Name("gre"))
            && self.span(at).len() == "gre".len()
    }

    /// A tunnel's word and number were read: in the modern dialect what is inside may follow in parentheses.
    pub(super) fn tunnel(
        &mut self,
        from: usize,
        tunnel: Tunnel,
        number: Option<u32>,
    ) -> Result<(NodeId, Inherited), Error> {
        /// Each is one more place at which headers are looked for in several ways.
        const MOST_TUNNELS: usize = 2;
        if self.dialect == Dialect::Modern && self.take(Kind::Operator(Operator::Open)) {
            if self.tunnels == MOST_TUNNELS {
                return Err(Error::new(self.span(from), format!("more than {MOST_TUNNELS} tunnels in each other")));
            }
            self.tunnels += 1;
            let (inner, _) = self.deeper(|p| p.filter(None))?;
            self.tunnels -= 1;
            self.close()?;
            return Ok((self.node(Node::Inside(tunnel, number, inner), self.since(from)), None));
        }
        self.primitive(
            from,
            match tunnel {
                Tunnel::Vxlan => Primitive::Vxlan(number),
                Tunnel::Geneve => Primitive::Geneve(number),
                Tunnel::Gre => Primitive::Gre,
            },
        )
    }

    pub(super) fn llc(&mut self) -> Result<Primitive, Error> {
        let kind = match self.peek() {
            Some(Kind::Keyword(Keyword::RuleNumber)) => names::llc("rnr"),
            Some(Kind::Name(name)) => Some(names::llc(name).ok_or_else(|| self.unknown("LLC type name", name))?),
            _ => return Ok(Primitive::Llc(Llc::Any)),
        };
        self.at += 1;
        Ok(Primitive::Llc(kind.unwrap_or(Llc::Any)))
    }

    pub(super) fn pf(&mut self, k: Keyword) -> Result<Option<Pf>, Error> {
        let name = match self.peek() {
            Some(Kind::Name(name)) => Some(name),
            _ => None,
        };
        let wanted = |p: &Self, what: &str| p.unexpected(what);
        let pf = match k {
            Keyword::IfName => Pf::Interface(name.ok_or_else(|| wanted(self, "an interface's name"))?.to_owned()),
            Keyword::RuleSet => Pf::RuleSet(name.ok_or_else(|| wanted(self, "a rule set's name"))?.to_owned()),
            Keyword::Action => {
                let name = name.ok_or_else(|| wanted(self, "an action"))?;
                Pf::Action(names::pf_action(name).ok_or_else(|| self.unknown("PF action", name))?)
            }
            Keyword::Reason => match (name, self.peek()) {
                (Some(name), _) => Pf::Reason(names::pf_reason(name).ok_or_else(|| self.unknown("PF reason", name))?),
                (None, Some(Kind::Number(n))) => Pf::Reason(n),
                _ => return Err(wanted(self, "a reason")),
            },
            Keyword::RuleNumber => return Ok(Some(Pf::Rule(self.number("rnr")?))),
            Keyword::SubRuleNumber => return Ok(Some(Pf::SubRule(self.number("srnr")?))),
            _ => return Ok(None),
        };
        self.at += 1;
        Ok(Some(pf))
    }

    pub(super) fn atm_field(&mut self, from: usize, field: AtmField) -> Result<(NodeId, Inherited), Error> {
        self.field_values(from, |relation, value| Primitive::AtmField(field, relation, value))
    }

    pub(super) fn mtp3_field(
        &mut self,
        from: usize,
        field: Mtp3Field,
        high_speed: bool,
    ) -> Result<(NodeId, Inherited), Error> {
        self.field_values(from, |relation, value| Primitive::Mtp3Field { field, high_speed, relation, value })
    }

    /// `vpi 5`, `vpi > 5`, `vpi (5 or 6)`
    pub(super) fn field_values(
        &mut self,
        from: usize,
        primitive: impl Fn(Relation, u32) -> Primitive,
    ) -> Result<(NodeId, Inherited), Error> {
        let value = |p: &mut Self, relation: Relation| {
            let n = p.number("a field")?;
            Ok::<_, Error>(p.node(Node::Primitive(primitive(relation, n)), p.since(from)))
        };
        if self.take(Kind::Operator(Operator::Open)) {
            let mut left = value(self, Relation::Equal)?;
            while self.keyword(Keyword::Or) {
                let right = value(self, Relation::Equal)?;
                left = self.node(Node::Or(left, right), self.since(from));
            }
            self.close()?;
            return Ok((left, None));
        }
        let relation = self.relation_operator().unwrap_or(Relation::Equal);
        Ok((value(self, relation)?, None))
    }
}
