//! The text form, for people: `bpf-opt dis --ssa`.

use std::fmt::{self, Display, Formatter};

use bpf_facts::{Kind, Region, Value as Fact};
use bpf_isa::{AluOp, Cond, Size, Width};

use crate::{Block, Edge, Inst, Op, Operand, Ssa, Term, Value};

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl Display for Block {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}

impl Display for Operand {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Value(v) => write!(f, "{v}"),
            Operand::Const(c) if *c > -10_000 && *c < 10_000 => write!(f, "{c}"),
            Operand::Const(c) => write!(f, "{c:#x}"),
            Operand::Frame(n) => write!(f, "r10{n:+}"),
        }
    }
}

impl Display for Edge {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to)?;
        list(f, &self.args)
    }
}

fn list<T: Display>(f: &mut Formatter<'_>, items: &[T]) -> fmt::Result {
    if items.is_empty() {
        return Ok(());
    }
    write!(f, "(")?;
    for (i, x) in items.iter().enumerate() {
        write!(f, "{}{x}", if i == 0 { "" } else { ", " })?;
    }
    write!(f, ")")
}

fn alu(op: AluOp) -> String {
    format!("{op:?}").to_lowercase()
}

fn bits(w: Width) -> &'static str {
    match w {
        Width::W32 => "32",
        Width::W64 => "",
    }
}

fn unsigned(size: Size) -> String {
    format!("u{}", size.bits())
}

pub(crate) fn condition(c: Cond) -> &'static str {
    match c {
        Cond::Eq => "==",
        Cond::Ne => "!=",
        Cond::Gt => ">",
        Cond::Ge => ">=",
        Cond::Lt => "<",
        Cond::Le => "<=",
        Cond::Sgt => "s>",
        Cond::Sge => "s>=",
        Cond::Slt => "s<",
        Cond::Sle => "s<=",
        Cond::Set => "&",
    }
}

/// The kind of a value in a word.
fn kind(fact: &Fact) -> String {
    let region = |r: &Region| match r {
        Region::MapValue { map } => format!("map value {map}"),
        Region::MapPtr { map } => format!("map {map}"),
        Region::Data { section } => format!("data {section}"),
        other => format!("{other:?}").to_lowercase(),
    };
    match &fact.kind {
        Kind::Unknown => "?".into(),
        Kind::Scalar => match fact.num.as_const() {
            Some(c) => format!("= {c}"),
            None => format!("number of {} bits", 64 - fact.num.umax.leading_zeros()),
        },
        Kind::Pointer { region: r, nullable, .. } => {
            format!("{}{}", region(r), if *nullable { " or null" } else { "" })
        }
    }
}

impl Inst {
    fn text(&self) -> String {
        let args: Vec<String> = self.args.iter().map(ToString::to_string).collect();
        let at = |i: usize| args.get(i).map_or("?", String::as_str);
        let all = || args.join(", ");
        match &self.op {
            Op::Const(c) => Operand::Const(*c).to_string(),
            Op::Frame(n) => Operand::Frame(*n).to_string(),
            Op::Copy => all(),
            Op::Keep => format!("keep {}", all()),
            Op::Alu(op, w) => format!("{}{} {}", alu(*op), bits(*w), all()),
            Op::Low32 => format!("low32 {}", all()),
            Op::SignExtend(w, from) => format!("sext{} {} {}", bits(*w), from.bits(), all()),
            Op::Neg(w) => format!("neg{} {}", bits(*w), all()),
            Op::Endian(kind, n) => format!("{}{n} {}", format!("{kind:?}").to_lowercase(), all()),
            Op::Load { size, sext, off } => {
                format!("load {}{} [{} {off:+}]", unsigned(*size), if *sext { " signed" } else { "" }, at(0))
            }
            Op::Store { size, off } => format!("store {} [{} {off:+}] = {}", unsigned(*size), at(0), at(1)),
            Op::Atomic { op, size, off } => {
                format!("atomic {op:?} {} [{} {off:+}], {}", unsigned(*size), at(0), args[1..].join(", "))
            }
            Op::LdAbs(size, imm) => format!("ldabs {} {imm}, {}", unsigned(*size), all()),
            Op::LdInd(size, imm) => format!("ldind {} {imm}, {}", unsigned(*size), all()),
            Op::Call(call) => match &self.link {
                Some(link) => format!("call {:?}({})", link.symbol, all()),
                None => format!("call {call:?}({})", all()),
            },
            Op::CallIndirect => format!("call indirect {}", all()),
            Op::Address(insn) => match &self.link {
                Some(link) => format!("address {:?}", link.symbol),
                None => format!("address {insn}"),
            },
            Op::Opaque(insn) => format!("opaque `{insn}` {}", all()),
        }
    }
}

impl Display for Ssa {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for &b in &self.layout {
            let block = self.block(b);
            write!(f, "{b}")?;
            list(f, &block.params)?;
            writeln!(f, ":")?;
            for &v in &block.params {
                writeln!(f, "    ; {v}: {}", kind(&self.values[v.index()].fact))?;
            }
            for i in &block.insts {
                let (mut line, mut note) = (String::new(), String::new());
                if let Some(v) = i.result {
                    line = format!("{v} = ");
                    note = kind(&self.values[v.index()].fact);
                }
                line.push_str(&i.text());
                if let Some(region) = &i.region {
                    note = format!("{note}{}in {region:?}", if note.is_empty() { "" } else { ", " });
                }
                match note.as_str() {
                    "" => writeln!(f, "    {line}")?,
                    _ => writeln!(f, "    {line:48} ; {note}")?,
                }
            }
            match &block.term {
                Term::Goto(e) => writeln!(f, "    goto {e}")?,
                Term::Branch { cond, width, a, b, taken, fall, .. } => {
                    let (c, w) = (condition(*cond), bits(*width));
                    writeln!(f, "    if{w} {a} {c} {b} goto {taken} else {fall}")?;
                }
                Term::MayGoto { taken, fall, .. } => writeln!(f, "    may_goto {taken} else {fall}")?,
                Term::Exit { value: Some(v), .. } => writeln!(f, "    exit {v}")?,
                Term::Exit { value: None, .. } => writeln!(f, "    exit")?,
            }
        }
        Ok(())
    }
}
