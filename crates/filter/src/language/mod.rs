//! The language of pcap-filter(7): from text to a tree.
//!
//! The tree is an arena in which operands stand before what they are operands of, so that whoever goes through it needs no
//! recursion: a filter may have a million primitives.

mod arithmetic;
mod ast;
mod fields;
mod lexer;
mod parser;
mod specific;

pub(crate) use ast::*;
pub(crate) use lexer::is_set_name;
pub(crate) use parser::{parse, parse_id};
