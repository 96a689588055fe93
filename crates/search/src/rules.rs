//! Rules as text: what a window may be replaced by, or how hard nothing was found.
//!
//! ```text
//! rule cpu v3 goal size
//!   assume r0: number unsigned 0x0..0xffffffff
//!   code
//!     r0 <<= 0x20
//!     r0 >>= 0x20
//!   live r0
//!   becomes
//!     nothing
//!   by enumerate, effort 120
//! end
//! ```
//!
//! Instead of `becomes` there may be `unsolved`; `excluded up to N` says that no sequence of at most N
//! slots does it, in the enumerator's instruction subset. What the loader patches is marked with `@`,
//! the number of the link, and its symbol.
//!
//! The text is the storage format and the exchange format; printing and parsing are inverse to each
//! other. The part before `becomes` is the [`Problem`], and names it exactly.

use std::fmt::Write;
use std::sync::Arc;

use bpf_facts::{BaseId, Kind, Num, Region, Tnum, Value};
use bpf_isa::{Imm64Kind, Insn, Reg};
use bpf_program::{BlockId, Link, Op, ProgKind, Symbol};

use crate::canonical::{Problem, map_name};

/// A problem and what is known about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The window.
    pub problem: Problem,
    /// The best replacement, or that none is known.
    pub answer: Answered,
}

/// What a search gave.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answered {
    /// The best replacement known; `None` if none was found.
    pub with: Option<Vec<Op>>,
    /// Who found it, or who looked last.
    pub by: String,
    /// Candidates looked at.
    pub effort: u64,
    /// No sequence of at most that many slots does it, in the enumerator's instruction subset.
    pub excluded: Option<u32>,
}

impl Answered {
    /// Whether this is worth keeping instead of `o`: a replacement beats none, a shorter one a longer
    /// one, and then more effort less.
    pub fn better_than(&self, o: &Answered) -> bool {
        let slots = |a: &Answered| a.with.as_ref().map_or(usize::MAX, |w| w.iter().map(|op| op.insn.slots()).sum());
        (slots(o), self.excluded, self.effort) > (slots(self), o.excluded, o.effort)
    }
}

/// Why a text is no rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct RuleError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

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

/// Where nobody is said to have found it.
const NOBODY: &str = "nobody";

fn spell<K: PartialEq + Copy>(table: &[(K, &'static str)], k: K) -> &'static str {
    table.iter().find(|(x, _)| *x == k).map_or("?", |(_, s)| s)
}

fn read<K: Copy>(table: &[(K, &'static str)], word: &str) -> Option<K> {
    table.iter().find(|(_, s)| *s == word).map(|(k, _)| *k)
}

/// The text of a problem: the key under which its answer is kept.
pub fn problem_text(p: &Problem) -> String {
    let mut t = String::with_capacity(256);
    let _ = write!(t, "rule cpu v{} goal {}", p.cpu, if p.size { "size" } else { "latency" });
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
    t.push_str("  code\n");
    ops_text(&mut t, &p.old);
    t.push_str("  live");
    p.live.regs.iter().for_each(|r| {
        let _ = write!(t, " {r}");
    });
    for (off, len) in p.live.stack.runs() {
        let _ = write!(t, " fp{off}+{len}");
    }
    t.push('\n');
    t
}

/// The text of what is known about a problem.
pub fn answer_text(a: &Answered) -> String {
    let mut t = String::new();
    match &a.with {
        None => t.push_str("  unsolved\n"),
        Some(ops) => {
            t.push_str("  becomes\n");
            ops_text(&mut t, ops);
        }
    }
    let _ = write!(t, "  by {}, effort {}", if a.by.is_empty() { NOBODY } else { &a.by }, a.effort);
    if let Some(n) = a.excluded {
        let _ = write!(t, ", excluded up to {n}");
    }
    t.push_str("\nend\n");
    t
}

impl Rule {
    /// The whole rule as text.
    pub fn text(&self) -> String {
        problem_text(&self.problem) + &answer_text(&self.answer)
    }
}

fn ops_text(t: &mut String, ops: &[Op]) {
    if ops.is_empty() {
        t.push_str("    nothing\n");
    }
    for o in ops {
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
}

fn value_text(v: &Value) -> String {
    let mut t = match &v.kind {
        Kind::Unknown => "anything".to_owned(),
        Kind::Scalar => "number".to_owned(),
        Kind::Pointer { region, base, nullable } => {
            let region = match region {
                Region::Stack => "frame".to_owned(),
                Region::Ctx => "context".to_owned(),
                Region::Packet => "packet".to_owned(),
                Region::PacketMeta => "metadata".to_owned(),
                Region::PacketEnd => "packet_end".to_owned(),
                Region::MapValue { map } => format!("value of map {map}"),
                Region::AnyMapValue => "value of some map".to_owned(),
                Region::MapPtr { map } => format!("map {map}"),
                Region::Func => "function".to_owned(),
                Region::Mem => "memory".to_owned(),
                Region::Kernel => "kernel".to_owned(),
                Region::Data { section } => format!("data {section}"),
            };
            let base = match base {
                BaseId::Fixed => String::new(),
                BaseId::Unknown => " somewhere".to_owned(),
                BaseId::Site(_, n) => format!(" object {n}"),
                BaseId::Join(b) => format!(" join {}", b.0),
            };
            format!("pointer to {region}{base}{}, offset", if *nullable { " or null" } else { "" })
        }
    };
    let n = &v.num;
    let top = Num::top(n.bits);
    if let Some(k) = n.as_const() {
        let _ = write!(t, " = {k:#x}");
        if *n == Num::constant(n.bits, k) {
            return t;
        }
    }
    if n.tnum != top.tnum {
        let _ = write!(t, " bits {:#x}/{:#x}", n.tnum.value, n.tnum.mask);
    }
    if (n.umin, n.umax) != (top.umin, top.umax) {
        let _ = write!(t, " unsigned {:#x}..{:#x}", n.umin, n.umax);
    }
    if (n.smin, n.smax) != (top.smin, top.smax) {
        let _ = write!(t, " signed {}..{}", n.smin, n.smax);
    }
    t
}

/// Reads any number of rules. Empty lines and lines that begin with `#` do not count.
///
/// # Errors
/// The first line that cannot be understood.
pub fn parse(text: &str) -> Result<Vec<Rule>, RuleError> {
    let lines = text.lines().enumerate().map(|(i, l)| (i + 1, l.trim()));
    let mut p = Parser { lines: lines.filter(|(_, l)| !l.is_empty() && !l.starts_with('#')).peekable(), line: 0 };
    let mut rules = Vec::new();
    while p.lines.peek().is_some() {
        let rule = p.rule().map_err(|message| RuleError { line: p.line, message })?;
        rules.push(rule);
    }
    Ok(rules)
}

/// Reads an answer of the store for the problem with this text.
pub(crate) fn parse_entry(problem: &str, answer: &str) -> Option<Rule> {
    let mut rules = parse(&format!("{problem}{answer}")).ok()?;
    let rule = rules.pop()?;
    rules.is_empty().then_some(rule)
}

struct Parser<'a, I: Iterator<Item = (usize, &'a str)>> {
    lines: std::iter::Peekable<I>,
    line: usize,
}

impl<'a, I: Iterator<Item = (usize, &'a str)>> Parser<'a, I> {
    fn next(&mut self) -> Result<&'a str, String> {
        match self.lines.next() {
            Some((n, l)) => {
                self.line = n;
                Ok(l)
            }
            None => Err("the rule has no end".into()),
        }
    }

    fn rule(&mut self) -> Result<Rule, String> {
        let mut p = header(self.next()?)?;
        let mut line = self.next()?;
        while let Some(rest) = line.strip_prefix("assume ") {
            let (place, value) = rest.split_once(": ").ok_or("expected `place: value`")?;
            if let Some(place) = place.strip_prefix("fp") {
                let (off, len) = place.split_once(", ").ok_or("expected `fp-N, M bytes`")?;
                let off: i64 = int(off)?;
                let len: u32 = int(len.strip_suffix(" bytes").ok_or("expected `bytes`")?)?;
                if !(1..=8).contains(&len) || off < -512 || off + i64::from(len) > 0 {
                    return Err("outside of the frame".into());
                }
                p.stack.push((off, value_of(value, len * 8)?));
            } else {
                p.regs.push((reg(place)?, value_of(value, 64)?));
            }
            line = self.next()?;
        }
        if line != "code" {
            return Err("expected `code`".into());
        }
        let (old, line) = self.ops()?;
        p.old = old;
        let live = line.strip_prefix("live").ok_or("expected `live`")?;
        for word in live.split_whitespace() {
            match word.strip_prefix("fp") {
                Some(w) => {
                    let (off, len) = w.split_once('+').ok_or("expected `fp-N+M`")?;
                    p.live.stack.insert_range(int(off)?, int(len)?);
                }
                None => p.live.regs.insert(reg(word)?),
            }
        }
        let mut answer = Answered::default();
        let by = match self.next()? {
            "unsolved" => self.next()?,
            "becomes" => {
                let (ops, line) = self.ops()?;
                answer.with = Some(ops);
                line
            }
            _ => return Err("expected `becomes` or `unsolved`".into()),
        };
        let mut parts = by.strip_prefix("by ").ok_or("expected `by`")?.split(", ");
        answer.by = parts.next().filter(|by| *by != NOBODY).unwrap_or("").to_owned();
        for part in parts {
            if let Some(n) = part.strip_prefix("effort ") {
                answer.effort = int(n)?;
            } else if let Some(n) = part.strip_prefix("excluded up to ") {
                answer.excluded = Some(int(n)?);
            } else {
                return Err(format!("`{part}` says nothing here"));
            }
        }
        if self.next()? != "end" {
            return Err("expected `end`".into());
        }
        let plain =
            |o: &Op| !matches!(o.insn, Insn::Call(_) | Insn::CallX { .. } | Insn::LdAbs { .. } | Insn::LdInd { .. });
        if !p.old.iter().chain(answer.with.iter().flatten()).all(|o| plain(o) && o.insn.jump_offset().is_none()) {
            return Err("a rule has no calls and no jumps".into());
        }
        Ok(Rule { problem: p, answer })
    }

    /// Operations up to a line that is none, which is returned.
    fn ops(&mut self) -> Result<(Vec<Op>, &'a str), String> {
        let mut ops = Vec::new();
        loop {
            let line = self.next()?;
            if line == "nothing" {
                continue;
            }
            if line == "live" || line.starts_with("live ") || line.starts_with("by ") {
                return Ok((ops, line));
            }
            ops.push(op(line)?);
        }
    }
}

fn header(line: &str) -> Result<Problem, String> {
    let mut words = line.split_whitespace();
    if words.next() != Some("rule") {
        return Err("expected `rule`".into());
    }
    let mut p = Problem {
        kind: ProgKind::Other,
        cpu: 0,
        size: true,
        maps: 0,
        frame_leaked: false,
        regs: Vec::new(),
        stack: Vec::new(),
        old: Vec::new(),
        live: bpf_facts::Live::default(),
    };
    while let Some(key) = words.next() {
        let word = words.next().ok_or_else(|| format!("`{key}` of what?"))?;
        match (key, word) {
            ("cpu", v) => p.cpu = int(v.strip_prefix('v').ok_or("expected `v1` … `v4`")?)?,
            ("goal", "size") => p.size = true,
            ("goal", "latency") => p.size = false,
            ("context", kind) => p.kind = read(&KINDS, kind).ok_or("no such context")?,
            ("maps", n) => p.maps = int(n)?,
            ("frame", "leaked") => p.frame_leaked = true,
            _ => return Err(format!("`{key} {word}` says nothing here")),
        }
    }
    if !(1..=4).contains(&p.cpu) || p.maps > 64 {
        return Err("cpu level or number of maps out of range".into());
    }
    Ok(p)
}

fn op(line: &str) -> Result<Op, String> {
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

fn value_of(text: &str, bits: u32) -> Result<Value, String> {
    let (kind, rest) = if let Some(rest) = text.strip_prefix("anything") {
        (Kind::Unknown, rest)
    } else if let Some(rest) = text.strip_prefix("number") {
        (Kind::Scalar, rest)
    } else {
        let rest = text.strip_prefix("pointer to ").ok_or("expected `anything`, `number` or `pointer to`")?;
        let (what, rest) = rest.split_once(", offset").ok_or("expected `, offset`")?;
        (pointer(what)?, rest)
    };
    let mut n = Num::top(bits);
    let mut words = rest.split_whitespace();
    while let Some(key) = words.next() {
        let word = words.next().ok_or_else(|| format!("`{key}` of what?"))?;
        let pair = |at: &str| word.split_once(at).ok_or_else(|| format!("`{word}` is no pair"));
        match key {
            "=" => n = Num::constant(bits, int(word)?),
            "bits" => {
                let (value, mask) = pair("/")?;
                n.tnum = Tnum { value: int(value)?, mask: int(mask)? };
            }
            "unsigned" => {
                let (lo, hi) = pair("..")?;
                (n.umin, n.umax) = (int(lo)?, int(hi)?);
            }
            "signed" => {
                let (lo, hi) = pair("..")?;
                (n.smin, n.smax) = (int(lo)?, int(hi)?);
            }
            _ => return Err(format!("`{key}` is nothing one knows of a value")),
        }
    }
    let top = Num::top(bits);
    let inside =
        (n.tnum.value | n.tnum.mask) & !top.umax == 0 && n.umax <= top.umax && n.smin >= top.smin && n.smax <= top.smax;
    if n.tnum.value & n.tnum.mask != 0 || n.umin > n.umax || n.smin > n.smax || !inside {
        return Err("no such numbers".into());
    }
    if bits < 64 && kind != Kind::Scalar {
        return Err("less than eight bytes are a number".into());
    }
    Ok(Value { kind, num: n })
}

fn pointer(text: &str) -> Result<Kind, String> {
    let (text, nullable) = text.strip_suffix(" or null").map_or((text, false), |t| (t, true));
    let (text, base) = if let Some(t) = text.strip_suffix(" somewhere") {
        (t, BaseId::Unknown)
    } else if let Some((t, n)) = text.rsplit_once(" object ") {
        (t, BaseId::Site(BlockId(0), int(n)?))
    } else {
        (text, BaseId::Fixed)
    };
    let region = match text {
        "frame" => Region::Stack,
        "context" => Region::Ctx,
        "packet" => Region::Packet,
        "metadata" => Region::PacketMeta,
        "packet_end" => Region::PacketEnd,
        "value of some map" => Region::AnyMapValue,
        "function" => Region::Func,
        "memory" => Region::Mem,
        "kernel" => Region::Kernel,
        _ => {
            if let Some(n) = text.strip_prefix("value of map ") {
                Region::MapValue { map: int(n)? }
            } else if let Some(n) = text.strip_prefix("map ") {
                Region::MapPtr { map: int(n)? }
            } else if let Some(section) = text.strip_prefix("data ") {
                Region::Data { section: Arc::from(section) }
            } else {
                return Err(format!("`{text}` is nothing one points to"));
            }
        }
    };
    Ok(Kind::Pointer { region, base, nullable })
}

fn reg(text: &str) -> Result<Reg, String> {
    let n = text.strip_prefix('r').and_then(|t| t.parse().ok());
    n.and_then(Reg::new).ok_or_else(|| format!("`{text}` is no register"))
}

/// A number, decimal or hexadecimal.
fn int<T: TryFrom<i128>>(text: &str) -> Result<T, String> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => i128::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    number.and_then(|n| T::try_from(n).ok()).ok_or_else(|| format!("`{text}` is no number that fits"))
}
