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
//! the number of the link, and its symbol. Rules with parameters are described in [`crate::general`].
//!
//! The text is the storage format and the exchange format; printing and parsing are inverse to each
//! other. The part before `becomes` is the [`WindowKey`], and names it exactly.

use std::fmt::Write;

use bpf_program::Op;
use bpf_prove::superblock::{is_side_exit, ways};

use crate::canonical::WindowKey;
use crate::general::text::condition;
use crate::general::{Expr, General};
use crate::window::plain;

pub(crate) mod lines;
mod values;

use lines::{LEAVING, NOBODY, header, header_text, live, live_text, op, op_text, reg};
use values::{int, value_of};

/// A problem and what is known about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// The window.
    pub window: WindowKey,
    /// The best replacement, or that none is known.
    pub answer: RuleBody,
}

/// What a search gave.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RuleBody {
    /// The best replacement known; `None` if none was found.
    pub with: Option<Vec<Op>>,
    /// Who found it, or who looked last.
    pub by: String,
    /// Candidates looked at.
    pub effort: u64,
    /// No sequence of at most that many slots does it, in the enumerator's instruction subset.
    pub excluded: Option<u32>,
}

/// Who found what a general rule gives: see [`RuleBody::by`].
pub const BY_GENERAL: &str = "general rule";

impl RuleBody {
    /// Whether this is worth keeping instead of `o`: a replacement beats none, a shorter one a longer
    /// one, and then more effort less. What a search found, be it nothing, beats what a general rule gives:
    /// the search was made because that did not do.
    pub fn better_than(&self, o: &RuleBody) -> bool {
        let general = |a: &RuleBody| a.by == BY_GENERAL;
        if general(self) != general(o) {
            return general(o);
        }
        let slots = |a: &RuleBody| a.with.as_ref().map_or(usize::MAX, |w| w.iter().map(|op| op.insn.slots()).sum());
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

/// The text of a window: the key under which its answer is kept.
pub fn key_text(p: &WindowKey) -> String {
    let mut t = String::with_capacity(256);
    header_text(&mut t, p, false);
    t.push_str("  code\n");
    ops_text(&mut t, &p.old);
    live_text(&mut t, p);
    t
}

/// The text of what is known about a problem.
pub fn answer_text(a: &RuleBody) -> String {
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
        key_text(&self.window) + &answer_text(&self.answer)
    }
}

fn ops_text(t: &mut String, ops: &[Op]) {
    if ops.is_empty() {
        t.push_str("    nothing\n");
    }
    ops.iter().for_each(|o| op_text(t, o));
}

/// A rule of either kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// One that is about one window.
    Specific(Rule),
    /// One with parameters.
    General(General),
}

impl Entry {
    /// The whole rule as text.
    pub fn text(&self) -> String {
        match self {
            Entry::Specific(r) => r.text(),
            Entry::General(g) => g.text(),
        }
    }
}

/// Reads any number of rules of either kind. Empty lines and lines that begin with `#` do not count.
///
/// # Errors
/// The first line that cannot be understood.
pub fn parse_all(text: &str) -> Result<Vec<Entry>, RuleError> {
    let lines = text.lines().enumerate().map(|(i, l)| (i + 1, l.trim()));
    let mut p = Parser { lines: lines.filter(|(_, l)| !l.is_empty() && !l.starts_with('#')).peekable(), line: 0 };
    let mut rules = Vec::new();
    while p.lines.peek().is_some() {
        let rule = p.rule().map_err(|message| RuleError { line: p.line, message })?;
        rules.push(rule);
    }
    Ok(rules)
}

/// Reads any number of rules without parameters.
///
/// # Errors
/// The first line that cannot be understood, or that there is a general rule.
pub fn parse(text: &str) -> Result<Vec<Rule>, RuleError> {
    let specific = |entry| match entry {
        Entry::Specific(rule) => Ok(rule),
        Entry::General(_) => Err(RuleError { line: 0, message: "a general rule is not expected here".into() }),
    };
    parse_all(text)?.into_iter().map(specific).collect()
}

/// Reads an answer of the store for the problem with this text.
pub(crate) fn parse_entry(key: &str, answer: &str) -> Option<Rule> {
    let mut rules = parse(&format!("{key}{answer}")).ok()?;
    let rule = rules.pop()?;
    rules.is_empty().then_some(rule)
}

/// Reads a general rule of the store.
pub(crate) fn parse_general(key: &str, answer: &str) -> Option<General> {
    match parse_all(&format!("{key}{answer}")).ok()?.as_slice() {
        [Entry::General(g)] => Some(g.clone()),
        _ => None,
    }
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

    fn rule(&mut self) -> Result<Entry, String> {
        let (mut p, general) = header(self.next()?)?;
        let mut held = Vec::new();
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
            } else if let Some(e) = value.strip_prefix('{').and_then(|v| v.strip_suffix('}')) {
                held.push((reg(place)?, Expr::parse(e)?));
            } else {
                p.regs.push((reg(place)?, value_of(value, 64)?));
            }
            line = self.next()?;
        }
        if line != "code" {
            return Err("expected `code`".into());
        }
        let (old, line) = self.ops()?;
        let mut sites = Vec::new();
        for (op, e) in old {
            p.old.push(op);
            sites.push(match e {
                None => None,
                Some(Expr::Param(i)) => Some(i),
                Some(e) => return Err(format!("the code has parameters, not `{e}`")),
            });
        }
        let mut line = line;
        while let Some(words) = line.strip_prefix(LEAVING) {
            p.sides.push(live(words)?);
            line = self.next()?;
        }
        p.live = live(line.strip_prefix("live").ok_or("expected `live`")?)?;
        let mut conditions = Vec::new();
        let mut line = self.next()?;
        while let Some(c) = line.strip_prefix("where ") {
            conditions.push(condition(c, conditions.len())?);
            line = self.next()?;
        }
        let mut with = None;
        let by = match line {
            "unsolved" => self.next()?,
            "becomes" => {
                let (ops, line) = self.ops()?;
                with = Some(ops);
                line
            }
            _ => return Err("expected `becomes` or `unsolved`".into()),
        };
        let mut answer = RuleBody::default();
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
        let left = ways(&p.old);
        let fit = left.as_ref().is_some_and(|left| left.len() == p.sides.len())
            && with.as_ref().is_none_or(|with| ways(with.iter().map(|(o, _)| o)) == left);
        let inside = |o: &Op| plain(&o.insn) || is_side_exit(&o.insn);
        if !fit || !p.old.iter().chain(with.iter().flatten().map(|(o, _)| o)).all(inside) {
            return Err("a rule has no calls, and no jumps but those of its region".into());
        }
        if general {
            let with = with.ok_or("a general rule has a replacement")?;
            let rule = General { window: p, sites, held, conditions, with, by: answer.by };
            rule.check()?;
            return Ok(Entry::General(rule));
        }
        let parameters = sites.iter().flatten().count() + held.len() + conditions.len();
        if parameters > 0 || with.iter().flatten().any(|(_, e)| e.is_some()) {
            return Err("only a general rule has parameters".into());
        }
        answer.with = with.map(|ops| ops.into_iter().map(|(o, _)| o).collect());
        Ok(Entry::Specific(Rule { window: p, answer }))
    }

    /// Operations up to a line that is none, which is returned.
    #[allow(clippy::type_complexity)]
    fn ops(&mut self) -> Result<(Vec<(Op, Option<Expr>)>, &'a str), String> {
        let mut ops = Vec::new();
        loop {
            let line = self.next()?;
            if line == "nothing" {
                continue;
            }
            let ends = ["live", LEAVING, "by"];
            if line.split_whitespace().next().is_some_and(|word| ends.contains(&word)) {
                return Ok((ops, line));
            }
            ops.push(crate::general::text::line(line, op)?);
        }
    }
}
