//! General rules as text.
//!
//! ```text
//! rule general cpu v3 goal size
//!   assume r0: number
//!   code
//!     r0 <<= {k0}
//!     r0 >>= {k0}
//!   live r0
//!   where k0 in 32..=63
//!   becomes
//!     r0 &= {-1 >> k0}
//!   by chain
//! end
//! ```
//!
//! A register that holds a number computed from the parameters is an assumption, too: `assume r3: {k0}`;
//! and a parameter may be bound to others: `where k1 is -1 << k0`. The rest is as in [`crate::rules`].

use std::fmt::Write;

use bpf_program::Op;

use super::{Condition, Expr, General, blank, immediate, placeholder};
use crate::cost;
use crate::rules::lines::{NOBODY, header_text, live_text, op_text};

/// Stands where an expression is to be written. No offset and no other number of a line can be it.
const MARK: i32 = 0x7a57_c0de;

impl General {
    /// The whole rule as text.
    pub fn text(&self) -> String {
        self.key() + &self.answer_text()
    }

    /// What it says of which windows: the key under which it is kept.
    pub fn key(&self) -> String {
        let p = &self.window;
        let mut t = String::with_capacity(256);
        header_text(&mut t, p, true);
        for (r, e) in &self.held {
            let _ = writeln!(t, "  assume {r}: {{{e}}}");
        }
        t.push_str("  code\n");
        for (o, site) in p.old.iter().zip(&self.sites) {
            line_text(&mut t, o, site.map(Expr::Param).as_ref());
        }
        live_text(&mut t, p);
        for (i, c) in self.conditions.iter().enumerate() {
            let _ = match c {
                Condition::In(lo, hi) => writeln!(t, "  where k{i} in {lo}..={hi}"),
                Condition::Is(e) => writeln!(t, "  where k{i} is {e}"),
            };
        }
        t
    }

    /// What becomes of them.
    pub(crate) fn answer_text(&self) -> String {
        let mut t = "  becomes\n".to_owned();
        if self.with.is_empty() {
            t.push_str("    nothing\n");
        }
        self.with.iter().for_each(|(o, e)| line_text(&mut t, o, e.as_ref()));
        let _ = write!(t, "  by {}\nend\n", if self.by.is_empty() { NOBODY } else { &self.by });
        t
    }

    /// Whether it makes better code of the same windows.
    pub(crate) fn better_than(&self, o: &General) -> bool {
        let cost = |g: &General| {
            let code: Vec<Op> = g.with.iter().map(|(o, _)| o.clone()).collect();
            cost::of(&code, g.window.goal)
        };
        cost(self) < cost(o)
    }
}

fn line_text(t: &mut String, o: &Op, e: Option<&Expr>) {
    let Some(e) = e else {
        return op_text(t, o);
    };
    let mut line = String::new();
    op_text(&mut line, &Op { insn: placeholder(&o.insn, MARK), ..o.clone() });
    t.push_str(&line.replacen(&format!("{MARK:#x}"), &format!("{{{e}}}"), 1));
}

/// Reads a line of code in which an immediate may be an expression.
pub(crate) fn line(text: &str, op: impl Fn(&str) -> Result<Op, String>) -> Result<(Op, Option<Expr>), String> {
    let Some((start, rest)) = text.split_once('{') else { return Ok((op(text)?, None)) };
    let (inside, end) = rest.split_once('}').ok_or("expected `}`")?;
    let e = Expr::parse(inside)?;
    // Any number of one digit may stand in the place of any immediate.
    let mut o = op(&format!("{start}1{end}"))?;
    if immediate(&o.insn).is_none_or(|(k, _)| k != 1) {
        return Err(format!("{{{inside}}} is not in the place of an immediate"));
    }
    o.insn = blank(&o.insn);
    Ok((o, Some(e)))
}

/// Reads `k0 in 1..=31` or `k1 is -1 << k0`, which must be about this parameter.
pub(crate) fn condition(text: &str, n: usize) -> Result<Condition, String> {
    let rest = text.strip_prefix(&format!("k{n} ")).ok_or_else(|| format!("expected a condition of k{n}"))?;
    if let Some(e) = rest.strip_prefix("is ") {
        return Expr::parse(e).map(Condition::Is);
    }
    let (lo, hi) = rest
        .strip_prefix("in ")
        .and_then(|r| r.split_once("..="))
        .ok_or("expected `in LOW..=HIGH` or `is EXPRESSION`")?;
    let number = |t: &str| t.parse::<i64>().map_err(|_| format!("`{t}` is no number that fits"));
    Ok(Condition::In(number(lo)?, number(hi)?))
}
