//! Programs as text.

use std::fmt::{Display, Formatter, Result};

use crate::graph::Chain;
use crate::language::Binary;
use crate::program::{BlockId, Comparison, End, Operand, Operation, Program, Register};
use crate::tables::{Table, TupleHash};

impl Display for Register {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "v{}", self.0)
    }
}

impl Display for BlockId {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "b{}", self.0)
    }
}

impl Display for Operand {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Operand::Constant(n) => write!(f, "{n:#x}"),
            Operand::Register(r) => write!(f, "{r}"),
        }
    }
}

impl Binary {
    /// The operator as a filter writes it.
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Binary::Add => "+",
            Binary::Sub => "-",
            Binary::Mul => "*",
            Binary::Div => "/",
            Binary::Mod => "%",
            Binary::And => "&",
            Binary::Or => "|",
            Binary::Xor => "^",
            Binary::ShiftLeft => "<<",
            Binary::ShiftRight => ">>",
        }
    }
}

/// What stands between the brackets of `packet[v1 + 14]`.
pub(crate) fn place(base: Option<impl Display>, offset: u64) -> String {
    match base {
        Some(base) => format!("{base} + {offset}"),
        None => offset.to_string(),
    }
}

impl Display for Operation {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Operation::Constant { to, n } => write!(f, "{to} = {n:#x}"),
            Operation::Copy { to, from } => write!(f, "{to} = {from}"),
            Operation::Length { to } => write!(f, "{to} = length"),
            Operation::Ancillary { to, what } => write!(f, "{to} = {what:?}"),
            Operation::Bound { base, end } => write!(f, "reject unless captured >= {}", place(*base, *end)),
            Operation::Note { predicate } => write!(f, "predicate {predicate}:"),
            Operation::NotZero { register } => write!(f, "reject if {register} == 0"),
            Operation::Load { to, base, offset, size } => {
                write!(f, "{to} = packet[{}:{size}]", place(*base, u64::from(*offset)))
            }
            Operation::HeaderLength { to, offset } => write!(f, "{to} = 4 * (packet[{offset}] & 0xf)"),
            Operation::Binary { op, to, a, b } => write!(f, "{to} = {a} {} {b}", op.symbol()),
            Operation::Negate { to, a } => write!(f, "{to} = -{a}"),
            Operation::IsGreater { to, a, b } => write!(f, "{to} = {a} > {b}"),
        }
    }
}

impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Comparison::Equal(b) => write!(f, "== {b}"),
            Comparison::Greater(b) => write!(f, "> {b}"),
            Comparison::AtLeast(b) => write!(f, ">= {b}"),
            Comparison::AnyBit(mask) => write!(f, "& {mask:#x}"),
        }
    }
}

impl Display for Chain {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Chain { is_ip6, start, protocol } = self;
        let version = if *is_ip6 { 6 } else { 4 };
        write!(f, "the IPv{version} headers from {start} on lead to {protocol}")
    }
}

impl Display for End {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            End::Accept => f.write_str("accept"),
            End::Reject => f.write_str("reject"),
            End::Goto(next) => write!(f, "goto {next}"),
            End::Branch { a, comparison, yes, no } => write!(f, "if {a} {comparison} goto {yes} else {no}"),
            End::Lookup { keys, table, yes, no } => {
                let keys: Vec<String> = keys.iter().map(Register::to_string).collect();
                write!(f, "if {} in table {table} goto {yes} else {no}", keys.join(", "))
            }
            End::Member { map, key, yes, no } => {
                let key: Vec<String> = key.iter().map(Register::to_string).collect();
                write!(f, "if {} in map {map} goto {yes} else {no}", key.join("."))
            }
            End::Chain { chain, yes, no } => write!(f, "if {chain} goto {yes} else {no}"),
        }
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for (i, block) in self.blocks.iter().enumerate() {
            writeln!(f, "{}:", BlockId(i))?;
            for operation in &block.operations {
                writeln!(f, "    {operation}")?;
            }
            writeln!(f, "    {}", block.end)?;
        }
        for (i, map) in self.maps.iter().enumerate() {
            writeln!(f, "map {i}: {}", map.name())?;
        }
        for (i, table) in self.tables.iter().enumerate() {
            match table {
                Table::Bitmap { first, words } => {
                    writeln!(f, "table {i}: bitmap of {} words from {first} on", words.len())?
                }
                Table::Hash(hash) => {
                    let (slots, displacements) = (hash.slots.len(), hash.displacements.len());
                    writeln!(f, "table {i}: perfect hash of {slots} slots, {displacements} displacements")?;
                }
                Table::Tuples(TupleHash { hash, columns, .. }) => {
                    let (slots, displacements) = (hash.slots.len(), hash.displacements.len());
                    let words = columns.len();
                    writeln!(
                        f,
                        "table {i}: perfect hash of {slots} slots of {words} words, {displacements} displacements"
                    )?;
                }
            }
        }
        Ok(())
    }
}
