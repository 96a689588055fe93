//! Relations of arithmetic expressions, and `byte` (`gencode.c`: `gen_relation`, `gen_load`, `gen_byteop`).

use super::kind;
use super::state::{From, Lowering};
use crate::error::Error;
use crate::graph::Condition;
use crate::language::{Arithmetic, ArithmeticId, Ast, Binary, ByteOperation, Protocol, Relation};
use crate::link::LinkType;
use crate::value::{Value, ValueId};

/// An operand: its value, and what must hold before it is read.
#[derive(Clone, Copy)]
struct Operand {
    value: ValueId,
    guard: Option<Condition>,
}

impl Lowering<'_> {
    pub(super) fn relation(
        &mut self,
        relation: Relation,
        a: ArithmeticId,
        b: ArithmeticId,
        ast: &Ast,
    ) -> Result<Condition, Error> {
        if self.is_modern() {
            return self.modern_relation(&mut |s| s.plain_relation(relation, a, b, ast));
        }
        self.plain_relation(relation, a, b, ast)
    }

    fn plain_relation(
        &mut self,
        relation: Relation,
        a: ArithmeticId,
        b: ArithmeticId,
        ast: &Ast,
    ) -> Result<Condition, Error> {
        let (a, b) = (self.operand(a, ast)?, self.operand(b, ast)?);
        let guard = self.both(a.guard, b.guard);
        let test = self.builder.compare(relation, a.value, b.value);
        Ok(match guard {
            Some(guard) => self.builder.and(guard, test),
            None => test,
        })
    }

    fn both(&mut self, a: Option<Condition>, b: Option<Condition>) -> Option<Condition> {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.builder.and(a, b)),
            (a, b) => a.or(b),
        }
    }

    /// Nested no deeper than the parser allows.
    fn operand(&mut self, id: ArithmeticId, ast: &Ast) -> Result<Operand, Error> {
        let (node, span) = &ast.arithmetic[id.0];
        Ok(match node {
            Arithmetic::Number(n) => Operand { value: self.builder.values.constant(*n), guard: None },
            Arithmetic::Length => Operand { value: self.builder.values.intern(Value::Length), guard: None },
            Arithmetic::Negate(a) => {
                let a = self.operand(*a, ast)?;
                Operand { value: self.builder.values.intern(Value::Negate(a.value)), guard: a.guard }
            }
            Arithmetic::Binary(op, a, b) => {
                let is_literal = matches!(ast.arithmetic[b.0].0, Arithmetic::Number(_));
                let (a, b) = (self.operand(*a, ast)?, self.operand(*b, ast)?);
                if let (true, Some(n)) = (is_literal, self.builder.values.as_constant(b.value)) {
                    let wrong = match op {
                        Binary::Div if n == 0 => Some("division by zero"),
                        Binary::Mod if n == 0 => Some("modulus by zero"),
                        Binary::ShiftLeft | Binary::ShiftRight if n > 31 => Some("shift by more than 31 bits"),
                        _ => None,
                    };
                    if let Some(wrong) = wrong {
                        return Err(Error::new(span.clone(), wrong));
                    }
                }
                // Only what the first operand needs is asked for: libpcap forgets the second's protocol (`gen_arth`).
                let guard = if self.is_modern() { self.both(a.guard, b.guard) } else { a.guard };
                Operand { value: self.builder.values.binary(*op, a.value, b.value), guard }
            }
            Arithmetic::Load { protocol, offset, size } => {
                let offset = self.operand(*offset, ast)?;
                let outer = std::mem::replace(&mut self.span, span.clone());
                let loaded = self.indexed(*protocol, offset, *size as u8)?;
                self.span = outer;
                loaded
            }
        })
    }

    /// What no packet has at this index.
    fn never(&mut self, index: Operand) -> Operand {
        let never = self.builder.always(false);
        Operand { value: index.value, guard: self.both(Some(never), index.guard) }
    }

    /// `protocol[index:size]`
    fn indexed(&mut self, protocol: Protocol, index: Operand, size: u8) -> Result<Operand, Error> {
        let (base, constant, guard) = match protocol {
            Protocol::Radio => {
                let has_radio = [LinkType::IEEE802_11_RADIO_AVS, LinkType::IEEE802_11_RADIO, LinkType::PRISM_HEADER]
                    .contains(&self.link);
                if !has_radio {
                    return self.error("radio information not present in capture");
                }
                (None, 0, index.guard)
            }
            Protocol::Link => {
                let constant = self.header.constant;
                if self.modern.is_bare {
                    return Ok(self.never(index));
                }
                (self.variable_of(|s| &mut s.header), constant, index.guard)
            }
            Protocol::Ip
            | Protocol::Arp
            | Protocol::Rarp
            | Protocol::Atalk
            | Protocol::Decnet
            | Protocol::Sca
            | Protocol::Lat
            | Protocol::Moprc
            | Protocol::Mopdl
            | Protocol::Ip6 => {
                let base = self.variable_of(|s| &mut s.payload);
                let constant = self.payload.constant.wrapping_add(self.network);
                let is = self.is_protocol(protocol)?;
                (base, constant, self.both(index.guard, Some(is)))
            }
            Protocol::Sctp
            | Protocol::Tcp
            | Protocol::Udp
            | Protocol::Icmp
            | Protocol::Igmp
            | Protocol::Igrp
            | Protocol::Pim
            | Protocol::Vrrp
            | Protocol::Carp => {
                if let Some(number) = self.transport_of_relation(protocol) {
                    // What is over IPv4 alone reads nothing of IPv6.
                    let Some(number) = number else { return Ok(self.never(index)) };
                    let is_ip6 = self.is_kind(kind::IP6)?;
                    let carries = self.carries_ports(number, true);
                    let guard = self.both(Some(is_ip6), index.guard);
                    let guard = self.both(guard, Some(carries));
                    let base = self.upper_of_ip6().place;
                    let constant = self.payload.constant.wrapping_add(self.network);
                    return Ok(self.loaded(Some(base), constant, index, size, guard));
                }
                let base = self.ip_header_end();
                let constant = self.payload.constant.wrapping_add(self.network);
                // IPv4 first, then what the operand needs, then the protocol and that it is no later fragment.
                let carries = self.is_protocol(protocol)?;
                let whole = self.no_fragment();
                let inner = self.builder.and(carries, whole);
                let inner = self.both(index.guard, Some(inner));
                let is_ip = self.is_kind(kind::IP)?;
                (Some(base), constant, self.both(Some(is_ip), inner))
            }
            Protocol::Icmp6 => {
                let is_ip6 = self.is_kind(kind::IP6)?;
                let outer = self.both(index.guard, Some(is_ip6));
                let carries = self.carries_ports(58, true);
                let guard = self.both(outer, Some(carries));
                let constant = self.payload.constant.wrapping_add(self.network);
                if self.is_modern() {
                    (Some(self.upper_of_ip6().place), constant, guard)
                } else {
                    (self.variable_of(|s| &mut s.payload), constant.wrapping_add(40), guard)
                }
            }
            _ => return self.error(format!("unsupported index operation: '{}[…]'", protocol.word())),
        };
        Ok(self.loaded(base, constant, index, size, guard))
    }

    fn loaded(
        &mut self,
        base: Option<ValueId>,
        constant: u32,
        index: Operand,
        size: u8,
        guard: Option<Condition>,
    ) -> Operand {
        let values = &mut self.builder.values;
        let at = match base {
            Some(base) => values.binary(Binary::Add, index.value, base),
            None => index.value,
        };
        let value = values.intern(Value::Load { base: Some(at), offset: constant, size });
        Operand { value, guard }
    }

    /// `byte 8 = 5`
    pub(super) fn byte(&mut self, operation: ByteOperation, offset: u32, value: u32) -> Result<Condition, Error> {
        let relation = match operation {
            ByteOperation::Equal => Relation::Equal,
            ByteOperation::Less => Relation::Less,
            ByteOperation::Greater => Relation::Greater,
            ByteOperation::And => return Ok(self.any_bit(From::LinkHeader, offset, 1, value)),
            ByteOperation::Or => {
                let loaded = self.load(From::LinkHeader, offset, 1);
                let value = self.builder.values.constant(value);
                let bits = self.builder.values.binary(Binary::Or, loaded, value);
                return Ok(self.builder.compare_with(Relation::NotEqual, bits, 0));
            }
        };
        Ok(self.compare(From::LinkHeader, offset, 1, relation, value))
    }
}
