//! The lines of a rule as text: each is printed and read here, whatever the rule around it.
//!
//! Rules without and with parameters ([`super`], [`crate::general`]) are put together from these lines.

use std::fmt::Write;

use bpf_isa::{Costs, Goal, Imm64Kind, Insn, Reg};
use bpf_program::{Link, Op, ProgKind, Symbol};

use super::values::{int, value_text};
use crate::canonical::{WindowKey, map_name};

const KINDS: [(ProgKind, &str); 6] = [
    (ProgKind::Xdp, "xdp"),
    (ProgKind::Skb, "skb"),
    (ProgKind::SockAddr, "sock_addr"),
    (ProgKind::Tracing, "tracing"),
    (ProgKind::Subprogram, "subprogram"),
    (ProgKind::Other, "other"),
];

const PSEUDO: [(Imm64Kind, &str); 6] = [
    (Imm64Kind::MapFd, "map_fd"),
    (Imm64Kind::MapValue, "map_value"),
    (Imm64Kind::BtfId, "btf_id"),
    (Imm64Kind::Func, "func"),
    (Imm64Kind::MapIdx, "map_idx"),
    (Imm64Kind::MapIdxValue, "map_idx_value"),
];

/// How the goal begins that is less time: behind it stands the mark of the table by which it is less, so that rules learnt by one table
/// are none for another.
const LATENCY: &str = "latency:";
/// Where nobody is said to have found it.
pub(crate) const NOBODY: &str = "nobody";
/// How the line begins that says what is live where a side exit leads.
pub(super) const LEAVING: &str = "leaving";

fn spell<K: PartialEq + Copy>(table: &[(K, &'static str)], k: K) -> &'static str {
    table.iter().find(|(x, _)| *x == k).map_or("?", |(_, s)| s)
}

fn read<K: Copy>(table: &[(K, &'static str)], word: &str) -> Option<K> {
    table.iter().find(|(_, s)| *s == word).map(|(k, _)| *k)
}

/// The first line, and what is assumed.
pub(crate) fn header_text(t: &mut String, p: &WindowKey, general: bool) {
    let goal = match p.goal {
        Goal::Latency(costs) => format!("{LATENCY}{:08x}", costs.mark()),
        Goal::Size | Goal::Verifier => "size".to_owned(),
    };
    let _ = write!(t, "rule {}cpu v{} goal {goal}", if general { "general " } else { "" }, p.cpu);
    if p.kind != ProgKind::Other {
        let _ = write!(t, " context {}", spell(&KINDS, p.kind));
    }
    if p.maps > 0 {
        let _ = write!(t, " maps {}", p.maps);
    }
    if p.frame_leaked {
        t.push_str(" frame leaked");
    }
    t.push('\n');
    for (r, v) in &p.regs {
        let _ = writeln!(t, "  assume {r}: {}", value_text(v));
    }
    for (off, v) in &p.stack {
        let _ = writeln!(t, "  assume fp{off}, {} bytes: {}", v.num.bits / 8, value_text(v));
    }
}

/// The lines that say what is live: where the side exits lead, and afterwards.
pub(crate) fn live_text(t: &mut String, p: &WindowKey) {
    let places = p.sides.iter().map(|l| (LEAVING, l)).chain([("live", &p.live)]);
    for (what, live) in places {
        let _ = write!(t, "  {what}");
        live.regs.iter().for_each(|r| {
            let _ = write!(t, " {r}");
        });
        for (off, len) in live.stack.runs() {
            let _ = write!(t, " fp{off}+{len}");
        }
        t.push('\n');
    }
}

/// Reads one of these lines after its first word.
pub(super) fn live(words: &str) -> Result<bpf_facts::Live, String> {
    let mut live = bpf_facts::Live::default();
    for word in words.split_whitespace() {
        match word.strip_prefix("fp") {
            Some(w) => {
                let (off, len) = w.split_once('+').ok_or("expected `fp-N+M`")?;
                live.stack.insert_range(int(off)?, int(len)?);
            }
            None => live.regs.insert(reg(word)?),
        }
    }
    Ok(live)
}

/// The line of an operation.
pub(crate) fn op_text(t: &mut String, o: &Op) {
    let _ = match o.insn {
        Insn::LoadImm64 { dst, kind, imm } if kind != Imm64Kind::Const => {
            write!(t, "    {dst} = {}[{imm:#x}] ll", spell(&PSEUDO, kind))
        }
        i => write!(t, "    {i}"),
    };
    if let Some(l) = &o.link {
        let _ = write!(t, " @{} ", l.slot);
        let _ = match &l.symbol {
            Symbol::Map { index, .. } => write!(t, "map {index}"),
            Symbol::Data { section, offset } => write!(t, "data {offset} {section}"),
            Symbol::Func { name } => write!(t, "func {name}"),
            Symbol::Extern { name } => write!(t, "extern {name}"),
            Symbol::Core { kind, type_id, access } => write!(t, "core {kind} {type_id} {access}"),
        };
    }
    t.push('\n');
}

/// Reads the first line; whether the rule is a general one comes second.
pub(super) fn header(line: &str) -> Result<(WindowKey, bool), String> {
    let mut words = line.split_whitespace().peekable();
    if words.next() != Some("rule") {
        return Err("expected `rule`".into());
    }
    let general = words.next_if_eq(&"general").is_some();
    let mut p = WindowKey {
        kind: ProgKind::Other,
        cpu: 0,
        goal: Goal::Size,
        maps: 0,
        frame_leaked: false,
        regs: Vec::new(),
        stack: Vec::new(),
        old: Vec::new(),
        sides: Vec::new(),
        live: bpf_facts::Live::default(),
    };
    while let Some(key) = words.next() {
        let word = words.next().ok_or_else(|| format!("`{key}` of what?"))?;
        match (key, word) {
            ("cpu", v) => p.cpu = int(v.strip_prefix('v').ok_or("expected `v1` … `v4`")?)?,
            ("goal", "size") => p.goal = Goal::Size,
            ("goal", goal) if goal.starts_with(LATENCY) => p.goal = Goal::Latency(Costs::marked(mark(goal)?)),
            ("context", kind) => p.kind = read(&KINDS, kind).ok_or("no such context")?,
            ("maps", n) => p.maps = int(n)?,
            ("frame", "leaked") => p.frame_leaked = true,
            _ => return Err(format!("`{key} {word}` says nothing here")),
        }
    }
    if !(1..=4).contains(&p.cpu) || p.maps > 64 {
        return Err("cpu level or number of maps out of range".into());
    }
    Ok((p, general))
}

/// Reads the line of an operation.
pub(super) fn op(line: &str) -> Result<Op, String> {
    let (code, link) = line.split_once(" @").map_or((line, None), |(c, l)| (c, Some(l)));
    let insn = bpf_isa::parse(code).map_err(|e| e.message)?;
    let link = link.map(link_of).transpose()?;
    Ok(Op { insn, origin: None, link })
}

fn link_of(text: &str) -> Result<Link, String> {
    let mut words = text.splitn(3, ' ');
    let slot = int(words.next().unwrap_or(""))?;
    let (kind, rest) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let symbol = match kind {
        "map" => {
            let index = int(rest)?;
            Symbol::Map { name: map_name(index).into(), index }
        }
        "data" => {
            let (offset, section) = rest.split_once(' ').ok_or("expected offset and section")?;
            Symbol::Data { section: section.into(), offset: int(offset)? }
        }
        "func" => Symbol::Func { name: rest.into() },
        "extern" => Symbol::Extern { name: rest.into() },
        "core" => {
            let mut w = rest.splitn(3, ' ');
            let (kind, type_id) = (int(w.next().unwrap_or(""))?, int(w.next().unwrap_or(""))?);
            Symbol::Core { kind, type_id, access: w.next().unwrap_or("").into() }
        }
        _ => return Err(format!("`{kind}` is nothing a loader patches")),
    };
    Ok(Link { slot, symbol })
}

/// By which table of costs a rule takes less time.
fn mark(goal: &str) -> Result<u32, String> {
    let digits = goal.strip_prefix(LATENCY).filter(|d| d.len() == 8);
    digits.and_then(|d| u32::from_str_radix(d, 16).ok()).ok_or_else(|| format!("`{goal}` names no table of costs"))
}

pub(super) fn reg(text: &str) -> Result<Reg, String> {
    let n = text.strip_prefix('r').and_then(|t| t.parse().ok());
    n.and_then(Reg::new).ok_or_else(|| format!("`{text}` is no register"))
}
