//! Relations of arithmetic expressions.

use super::ast::*;
use super::lexer::{Keyword, Kind, Operator};
use super::parser::Parser;
use crate::error::Error;

impl Parser<'_> {
    pub(super) fn relation_operator(&mut self) -> Option<Relation> {
        let relation = match self.peek()? {
            Kind::Operator(Operator::Equal) => Relation::Equal,
            Kind::Operator(Operator::NotEqual) => Relation::NotEqual,
            Kind::Operator(Operator::Greater) => Relation::Greater,
            Kind::Operator(Operator::GreaterEqual) => Relation::GreaterEqual,
            Kind::Operator(Operator::Less) => Relation::Less,
            Kind::Operator(Operator::LessEqual) => Relation::LessEqual,
            _ => return None,
        };
        self.at += 1;
        Some(relation)
    }

    pub(super) fn relation(&mut self) -> Result<Primitive, Error> {
        let left = self.arithmetic(0)?;
        let Some(relation) = self.relation_operator() else {
            return Err(self.unexpected("a comparison (= != < <= > >=)"));
        };
        let right = self.arithmetic(0)?;
        Ok(Primitive::Relation(relation, left, right))
    }

    /// Arithmetic whose operators bind at least as strongly as `least`.
    pub(super) fn arithmetic(&mut self, least: u8) -> Result<ArithmeticId, Error> {
        let from = self.at;
        let mut left = self.deeper(Self::operand)?;
        loop {
            let Some(Kind::Operator(operator)) = self.peek() else { return Ok(left) };
            let (binary, strength) = match operator {
                Operator::Or => (Binary::Or, 1),
                Operator::And => (Binary::And, 2),
                Operator::ShiftLeft => (Binary::ShiftLeft, 3),
                Operator::ShiftRight => (Binary::ShiftRight, 3),
                Operator::Plus => (Binary::Add, 4),
                Operator::Minus => (Binary::Sub, 4),
                Operator::Times => (Binary::Mul, 5),
                Operator::Divide => (Binary::Div, 5),
                // Without precedence: always taken, and what follows is all theirs.
                Operator::Modulo => (Binary::Mod, u8::MAX),
                Operator::Xor => (Binary::Xor, u8::MAX),
                _ => return Ok(left),
            };
            if strength < least {
                return Ok(left);
            }
            self.at += 1;
            let least = if strength == u8::MAX { 0 } else { strength + 1 };
            let right = self.deeper(|p| p.arithmetic(least))?;
            left = self.arithmetic_node(Arithmetic::Binary(binary, left, right), from);
        }
    }

    pub(super) fn operand(&mut self) -> Result<ArithmeticId, Error> {
        const NEGATION: u8 = 6;
        let from = self.at;
        let Some(kind) = self.peek() else { return Err(self.unexpected("a number or a load such as ip[0]")) };
        self.at += 1;
        let node = match kind {
            Kind::Number(n) => Arithmetic::Number(n),
            Kind::Keyword(Keyword::Len) => Arithmetic::Length,
            Kind::Operator(Operator::Minus) => Arithmetic::Negate(self.arithmetic(NEGATION)?),
            Kind::Operator(Operator::Open) => {
                let inner = self.arithmetic(0)?;
                self.close()?;
                return Ok(inner);
            }
            Kind::Protocol(protocol) => {
                if !self.take(Kind::Operator(Operator::OpenIndex)) {
                    return Err(self.unexpected("'['"));
                }
                let offset = self.arithmetic(0)?;
                let mut size = 1;
                if self.take(Kind::Operator(Operator::Colon)) {
                    let at = self.at;
                    size = self.number(":")?;
                    if !matches!(size, 1 | 2 | 4) {
                        return Err(Error::new(self.span(at), "data size must be 1, 2, or 4"));
                    }
                }
                if !self.take(Kind::Operator(Operator::CloseIndex)) {
                    return Err(self.unexpected("']'"));
                }
                Arithmetic::Load { protocol, offset, size }
            }
            _ => {
                self.at -= 1;
                return Err(self.unexpected("a number or a load such as ip[0]"));
            }
        };
        Ok(self.arithmetic_node(node, from))
    }
}
