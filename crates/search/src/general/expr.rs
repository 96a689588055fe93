//! What an immediate of a general rule is: a small expression over the rule's parameters.
//!
//! An expression can be evaluated, written and read, and turned into operations that compute it in
//! registers: the last is how the prover gets to see it. All three work on 64 bits and wrap.

use std::fmt;

use bpf_isa::{AluOp, Insn, Reg, Src, Width};

/// How deep an expression may be nested; more is a text made to exhaust the stack.
const DEEPEST: usize = 16;

/// A number computed from the parameters.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Expr {
    /// The parameter with this number.
    Param(u8),
    /// A number.
    Const(i64),
    /// `-e`
    Neg(Box<Expr>),
    /// `~e`
    Not(Box<Expr>),
    /// Two expressions joined.
    Two(Two, Box<Expr>, Box<Expr>),
}

/// What joins two expressions. Shifts take the low six bits of their amount, and `>>` brings in zeros.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Two {
    Add,
    Sub,
    And,
    Or,
    Xor,
    Shl,
    Shr,
}

const SIGNS: [(Two, &str, AluOp); 7] = [
    (Two::Add, "+", AluOp::Add),
    (Two::Sub, "-", AluOp::Sub),
    (Two::And, "&", AluOp::And),
    (Two::Or, "|", AluOp::Or),
    (Two::Xor, "^", AluOp::Xor),
    (Two::Shl, "<<", AluOp::Lsh),
    (Two::Shr, ">>", AluOp::Rsh),
];

impl Expr {
    /// `a op b`
    pub fn two(op: Two, a: Expr, b: Expr) -> Expr {
        Expr::Two(op, Box::new(a), Box::new(b))
    }

    /// Its value, if all its parameters have one.
    pub fn eval(&self, params: &[Option<i64>]) -> Option<i64> {
        Some(match self {
            Expr::Param(i) => (*params.get(usize::from(*i))?)?,
            Expr::Const(c) => *c,
            Expr::Neg(e) => e.eval(params)?.wrapping_neg(),
            Expr::Not(e) => !e.eval(params)?,
            Expr::Two(op, a, b) => {
                let (a, b) = (a.eval(params)?, b.eval(params)?);
                match op {
                    Two::Add => a.wrapping_add(b),
                    Two::Sub => a.wrapping_sub(b),
                    Two::And => a & b,
                    Two::Or => a | b,
                    Two::Xor => a ^ b,
                    Two::Shl => a.wrapping_shl((b & 63) as u32),
                    Two::Shr => (a as u64).wrapping_shr((b & 63) as u32) as i64,
                }
            }
        })
    }

    /// The largest number of a parameter it mentions, plus one.
    pub fn params(&self) -> usize {
        match self {
            Expr::Param(i) => usize::from(*i) + 1,
            Expr::Const(_) => 0,
            Expr::Neg(e) | Expr::Not(e) => e.params(),
            Expr::Two(_, a, b) => a.params().max(b.params()),
        }
    }

    /// Operations that leave its value in `dst`, given the parameters' registers; other registers are
    /// taken from `free`, which must not hold `dst` or a parameter. `None` if there are too few.
    pub fn compute(&self, dst: Reg, params: &[Reg], free: &[Reg]) -> Option<Vec<Insn>> {
        let mut code = Vec::new();
        self.leave_in(dst, params, free, &mut code)?;
        Some(code)
    }

    fn leave_in(&self, dst: Reg, params: &[Reg], free: &[Reg], code: &mut Vec<Insn>) -> Option<()> {
        let alu = |op, src| Insn::Alu { op, width: Width::W64, dst, src };
        match self {
            Expr::Param(i) => {
                let src = Src::Reg(*params.get(usize::from(*i))?);
                code.push(Insn::Mov { width: Width::W64, dst, src });
            }
            Expr::Const(c) => code.push(load(dst, *c)),
            Expr::Neg(e) => {
                e.leave_in(dst, params, free, code)?;
                code.push(Insn::Neg { width: Width::W64, dst });
            }
            Expr::Not(e) => {
                e.leave_in(dst, params, free, code)?;
                code.push(alu(AluOp::Xor, Src::Imm(-1)));
            }
            Expr::Two(op, a, b) => {
                a.leave_in(dst, params, free, code)?;
                let op = SIGNS.iter().find(|(o, ..)| o == op).map(|(.., alu)| *alu)?;
                let src = match **b {
                    Expr::Param(i) => Src::Reg(*params.get(usize::from(i))?),
                    Expr::Const(c) if i32::try_from(c).is_ok() => Src::Imm(c as i32),
                    _ => {
                        let (t, rest) = free.split_first()?;
                        b.leave_in(*t, params, rest, code)?;
                        Src::Reg(*t)
                    }
                };
                code.push(alu(op, src));
            }
        }
        Some(())
    }

    /// Reads what [`fmt::Display`] writes.
    ///
    /// # Errors
    /// What is not understood.
    pub fn parse(text: &str) -> Result<Expr, String> {
        let mut words = words(text)?;
        words.reverse();
        let e = expression(&mut words, DEEPEST)?;
        if words.is_empty() { Ok(e) } else { Err(format!("`{text}` is no expression")) }
    }
}

/// `dst = c`
fn load(dst: Reg, c: i64) -> Insn {
    match i32::try_from(c) {
        Ok(k) => Insn::Mov { width: Width::W64, dst, src: Src::Imm(k) },
        Err(_) => Insn::LoadImm64 { dst, kind: bpf_isa::Imm64Kind::Const, imm: c as u64 },
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Two(op, a, b) => {
                let sign = SIGNS.iter().find(|(o, ..)| o == op).map_or("?", |(_, s, _)| s);
                write!(f, "{} {sign} {}", Operand(a), Operand(b))
            }
            e => Operand(e).fmt(f),
        }
    }
}

/// An expression as part of another: in parentheses where it has two parts.
struct Operand<'a>(&'a Expr);

impl fmt::Display for Operand<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Expr::Param(i) => write!(f, "k{i}"),
            Expr::Const(c) if c.unsigned_abs() > 99 => {
                write!(f, "{}{:#x}", if *c < 0 { "-" } else { "" }, c.unsigned_abs())
            }
            Expr::Const(c) => write!(f, "{c}"),
            // `-(3)` is not the number -3.
            Expr::Neg(e) if matches!(**e, Expr::Const(_)) => write!(f, "-({e})"),
            Expr::Neg(e) => write!(f, "-{}", Operand(e)),
            Expr::Not(e) => write!(f, "~{}", Operand(e)),
            e @ Expr::Two(..) => write!(f, "({e})"),
        }
    }
}

/// The words of an expression.
fn words(text: &str) -> Result<Vec<&str>, String> {
    let mut out = Vec::new();
    let mut rest = text.trim_start();
    while let Some(c) = rest.chars().next() {
        let n = if c.is_ascii_alphanumeric() {
            rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len())
        } else if rest.starts_with("<<") || rest.starts_with(">>") {
            2
        } else {
            c.len_utf8()
        };
        let (word, after) = rest.split_at(n);
        out.push(word);
        if out.len() > 200 {
            return Err("too long an expression".into());
        }
        rest = after.trim_start();
    }
    Ok(out)
}

fn expression(words: &mut Vec<&str>, depth: usize) -> Result<Expr, String> {
    let a = operand(words, depth)?;
    let Some(op) = words.last().and_then(|w| SIGNS.iter().find(|(_, s, _)| s == w)).map(|(op, ..)| *op) else {
        return Ok(a);
    };
    words.pop();
    Ok(Expr::two(op, a, operand(words, depth)?))
}

fn operand(words: &mut Vec<&str>, depth: usize) -> Result<Expr, String> {
    let depth = depth.checked_sub(1).ok_or("too deep an expression")?;
    let word = words.pop().ok_or("an expression without an end")?;
    match word {
        "(" => {
            let e = expression(words, depth)?;
            if words.pop() == Some(")") { Ok(e) } else { Err("expected `)`".into()) }
        }
        "~" => Ok(Expr::Not(Box::new(operand(words, depth)?))),
        "-" => match words.last().and_then(|w| number(w)) {
            Some(n) => {
                words.pop();
                i64::try_from(-n).map(Expr::Const).map_err(|_| "too large a number".into())
            }
            None => Ok(Expr::Neg(Box::new(operand(words, depth)?))),
        },
        _ => match word.strip_prefix('k') {
            Some(n) => param(n).map(Expr::Param).ok_or_else(|| format!("`{word}` is no parameter")),
            None => number(word)
                .and_then(|n| i64::try_from(n).ok())
                .map(Expr::Const)
                .ok_or_else(|| format!("`{word}` is no number")),
        },
    }
}

/// The number of a parameter, of which there are few.
pub(crate) fn param(digits: &str) -> Option<u8> {
    digits.parse::<u8>().ok().filter(|n| usize::from(*n) < super::MOST_PARAMS)
}

fn number(word: &str) -> Option<i128> {
    match word.strip_prefix("0x") {
        Some(hex) => i128::from_str_radix(hex, 16).ok().filter(|_| !hex.starts_with(['+', '-'])),
        None => word.parse().ok(),
    }
    .filter(|n| *n <= 1 << 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back_is_the_same() {
        let k = |i| Expr::Param(i);
        let c = Expr::Const;
        let cases = [
            (k(3), "k3"),
            (c(-5), "-5"),
            (c(i64::MIN), "-0x8000000000000000"),
            (Expr::Neg(Box::new(c(3))), "-(3)"),
            (Expr::Neg(Box::new(k(0))), "-k0"),
            (Expr::two(Two::Sub, c(64), k(0)), "64 - k0"),
            (Expr::two(Two::Sub, k(1), c(-1)), "k1 - -1"),
            (
                Expr::two(
                    Two::Or,
                    Expr::two(Two::And, k(0), c(0xff)),
                    Expr::two(Two::Shl, Expr::Not(Box::new(k(1))), c(8)),
                ),
                "(k0 & 0xff) | (~k1 << 8)",
            ),
        ];
        for (e, text) in cases {
            assert_eq!(e.to_string(), text);
            assert_eq!(Expr::parse(text), Ok(e));
        }
        for bad in [
            "",
            "k",
            "k99",
            "1 2",
            "(k0",
            "k0 +",
            "k0 ** k1",
            &"(".repeat(5000),
            &"-".repeat(150),
            "0x1ffffffffffffffff",
        ] {
            assert!(Expr::parse(bad).is_err(), "{bad}");
        }
    }
}
