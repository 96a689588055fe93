//! General rules: a rule whose numbers are parameters, with the conditions under which it is proven.
//!
//! A general rule says: whatever stands for the parameters, as long as the conditions hold, the code may
//! be replaced. The prover knows nothing of parameters. To prove a general rule, every parameter gets a
//! register that the window does not use, of which the facts at the entry say what the condition says;
//! an immediate of the old code becomes that register, and an immediate of the new code becomes a
//! register into which its expression is computed first. So what is proven covers every instance.
//!
//! A rule fits a window ([`General::instance`]) if the code is the same but for the parameters, the
//! conditions hold, what is known at the window implies what the rule assumes, nothing more is live, and
//! the computed numbers fit their instructions. Nothing is trusted here either: an instance goes through
//! the judge, and a wrong rule only costs time.

mod expr;
mod generalize;
mod index;
mod matching;
mod prover;
mod simplify;
pub(crate) mod text;

pub use expr::{Expr, Two};
pub use generalize::generalize;
pub(crate) use index::Index;

use bpf_facts::{Env, Live, Num, StackSet, State, Value};
use bpf_isa::{AluOp, Imm64Kind, Insn, MemoryOperand, Reg, RegSet, Size, Src, Width};
use bpf_program::{BlockId, Op};
use bpf_prove::{Options, Verdict};

use crate::canonical::WindowKey;

/// Parameters of a rule at most: there are only so many registers to hold them.
pub const MOST_PARAMS: usize = 8;

/// A parameter with its range.
type Range = (usize, (i64, i64));

/// Cases that a proof goes through one by one, at most.
const CASES: i64 = 1024;

/// A rule with parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct General {
    /// The window. Where an immediate is a parameter, `old` has 0.
    pub window: WindowKey,
    /// For each operation of `window.old`, the parameter that is its immediate.
    pub sites: Vec<Option<u8>>,
    /// Registers that hold a number computed from the parameters when the window is entered.
    pub held: Vec<(Reg, Expr)>,
    /// What must hold of each parameter.
    pub conditions: Vec<Condition>,
    /// The replacement, with 0 where an immediate is computed.
    pub with: Vec<(Op, Option<Expr>)>,
    /// Who found the rule it was made from.
    pub by: String,
}

/// What must hold of a parameter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    /// It is one of these, as a signed number.
    In(i64, i64),
    /// It is this, computed from other parameters that are only [`Condition::In`] a range.
    Is(Expr),
}

/// Any immediate of an instruction of one slot.
pub(crate) const ANY: (i64, i64) = (i32::MIN as i64, i32::MAX as i64);

/// The immediate of an instruction that can be a parameter, sign-extended; and the numbers it can be.
pub(crate) fn immediate(i: &Insn) -> Option<(i64, (i64, i64))> {
    match *i {
        Insn::Alu { op, width, src: Src::Imm(k), .. } => Some((
            k.into(),
            match op {
                AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => (0, i64::from(width.bits()) - 1),
                // A division by an immediate zero is refused.
                AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod if k > 0 => (1, ANY.1),
                AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod => (ANY.0, -1),
                _ => ANY,
            },
        )),
        Insn::Mov { src: Src::Imm(k), .. } | Insn::Store { src: Src::Imm(k), .. } => Some((k.into(), ANY)),
        Insn::LoadImm64 { kind: Imm64Kind::Const, imm, .. } => Some((imm as i64, (i64::MIN, i64::MAX))),
        _ => None,
    }
}

/// The instruction with another immediate; `None` if it has none or the number does not fit.
pub(crate) fn with_immediate(i: &Insn, to: i64) -> Option<Insn> {
    let mut i = *i;
    match &mut i {
        Insn::Alu { op, width, src: Src::Imm(k), .. } => {
            let shift = matches!(op, AluOp::Lsh | AluOp::Rsh | AluOp::Arsh);
            let division = matches!(op, AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod);
            *k = narrow(to, *width == Width::W64 || shift)?;
            let amounts = 0..width.bits() as i32;
            if shift && !amounts.contains(k) || division && *k == 0 {
                return None;
            }
        }
        Insn::Mov { width, src: Src::Imm(k), .. } => *k = narrow(to, *width == Width::W64)?,
        Insn::Store { size, src: Src::Imm(k), .. } => *k = narrow(to, *size == Size::DW)?,
        Insn::LoadImm64 { kind: Imm64Kind::Const, imm, .. } => *imm = to as u64,
        _ => return None,
    }
    Some(i)
}

/// The number as an immediate that is sign-extended, or of which only the low half counts.
fn narrow(to: i64, extended: bool) -> Option<i32> {
    if extended { i32::try_from(to).ok() } else { Some(to as i32) }
}

/// The instruction with this in the place of its immediate, whether it may stand there or not.
pub(crate) fn placeholder(i: &Insn, to: i32) -> Insn {
    let mut i = *i;
    match &mut i {
        Insn::Alu { src: Src::Imm(k), .. }
        | Insn::Mov { src: Src::Imm(k), .. }
        | Insn::Store { src: Src::Imm(k), .. } => *k = to,
        Insn::LoadImm64 { kind: Imm64Kind::Const, imm, .. } => *imm = i64::from(to) as u64,
        _ => {}
    }
    i
}

/// The instruction without its number.
pub(crate) fn blank(i: &Insn) -> Insn {
    placeholder(i, 0)
}

/// The instruction with a register in the place of its immediate.
fn with_register(i: &Insn, r: Reg) -> Insn {
    let mut i = *i;
    match &mut i {
        Insn::Alu { src, .. } | Insn::Mov { src, .. } | Insn::Store { src, .. } => *src = Src::Reg(r),
        Insn::LoadImm64 { dst, .. } => return Insn::Mov { width: Width::W64, dst: *dst, src: Src::Reg(r) },
        _ => {}
    }
    i
}

/// Registers that operations name or imply.
pub(crate) fn mentioned<'a>(ops: impl IntoIterator<Item = &'a Op>) -> RegSet {
    ops.into_iter().fold(RegSet::EMPTY, |s, o| s.union(o.insn.uses()).union(o.insn.defs()))
}

/// Both sides of a general rule in the prover's terms.
struct Sides {
    before: State,
    old: Vec<Op>,
    new: Vec<Op>,
}

impl General {
    /// Whether all parts agree with each other: what a text might get wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        let n = self.conditions.len();
        if n > MOST_PARAMS || self.sites.len() != self.window.old.len() {
            return Err("too many parameters".into());
        }
        if self.sites.iter().flatten().any(|i| usize::from(*i) >= n) {
            return Err("a parameter without a condition".into());
        }
        let known = |e: &Expr| e.params() <= n;
        if !self.held.iter().map(|(_, e)| e).chain(self.with.iter().filter_map(|(_, e)| e.as_ref())).all(known) {
            return Err("a parameter without a condition".into());
        }
        for c in &self.conditions {
            match c {
                Condition::In(lo, hi) if lo > hi => return Err("no number is in that range".into()),
                Condition::Is(e) if !known(e) || !self.independent(e) => {
                    return Err("a condition may mention only parameters that have a range".into());
                }
                _ => {}
            }
        }
        let told = |i: u8| self.sites.contains(&Some(i)) || self.held.iter().any(|(_, e)| *e == Expr::Param(i));
        let ranges = (0..n as u8).filter(|i| matches!(self.conditions[usize::from(*i)], Condition::In(..)));
        if ranges.filter(|i| !told(*i)).count() > 1 {
            return Err("more than one parameter that nothing tells".into());
        }
        if self.held.iter().any(|(r, _)| *r == Reg::R10 || self.window.regs.iter().any(|(q, _)| q == r)) {
            return Err("two things are said of one register".into());
        }
        Ok(())
    }

    /// Whether an expression mentions only parameters that have a range.
    fn independent(&self, e: &Expr) -> bool {
        match e {
            Expr::Param(i) => matches!(self.conditions.get(usize::from(*i)), Some(Condition::In(..))),
            Expr::Const(_) => true,
            Expr::Neg(e) | Expr::Not(e) => self.independent(e),
            Expr::Two(_, a, b) => self.independent(a) && self.independent(b),
        }
    }

    /// Parameters whose values a proof goes through one by one, with their ranges; and how many cases
    /// that makes.
    fn cases(&self) -> (Vec<Range>, i64) {
        let mut ranges = Vec::new();
        let mut cases = 1;
        for (k, c) in self.conditions.iter().enumerate() {
            if let Condition::In(lo, hi) = c
                && let Some(size) = hi.checked_sub(*lo).filter(|n| *n < 64).map(|n| n + 1)
                && cases * size <= CASES
            {
                cases *= size;
                ranges.push((k, (*lo, *hi)));
            }
        }
        (ranges, cases)
    }

    /// What the prover says of it. Parameters of few values, such as amounts of shifts, are gone through
    /// one by one: with the number in sight the prover hardly ever needs its solver.
    pub fn prove(&self, options: &Options) -> Verdict {
        if let Err(why) = self.check() {
            return Verdict::Unknown(why);
        }
        let (ranges, cases) = self.cases();
        if cases == 1 {
            return self.prove_at_once(options);
        }
        let mut case = self.clone();
        // From both ends: a rule that is wrong is so at the ends more often than not.
        for n in 0..cases {
            let mut number = if n % 2 == 0 { n / 2 } else { cases - 1 - n / 2 };
            for (k, (lo, hi)) in &ranges {
                let size = hi - lo + 1;
                let v = lo + number % size;
                number /= size;
                case.conditions[*k] = Condition::In(v, v);
            }
            match case.prove_at_once(options) {
                Verdict::Equal => {}
                other => return other,
            }
        }
        Verdict::Equal
    }

    fn prove_at_once(&self, options: &Options) -> Verdict {
        let p = &self.window;
        let Some(sides) = self.sides() else {
            return Verdict::Unknown("a register for every parameter cannot be found".into());
        };
        let maps = p.map_table();
        let env = Env { maps: &maps, ..Env::empty() };
        // A form says only of the bytes that the code touches whether they are live.
        let others = StackSet::ALL.minus(&self.touched(&env));
        let live = Live { stack: p.live.stack.union(&others), ..p.live };
        bpf_prove::window(p.kind, &env, &sides.before, &sides.old, &sides.new, &live, None, options).0
    }

    /// Bytes of the frame that the old code may touch.
    fn touched(&self, env: &Env) -> StackSet {
        let p = &self.window;
        let mut state = p.before();
        let mut all = StackSet::EMPTY;
        for (i, o) in p.old.iter().enumerate() {
            if let Some(MemoryOperand { base, off, size, .. }) = o.insn.memory_operand() {
                all = all.union(&state.touched(state.reg(base), off, size.bytes()));
            }
            state.step(o, (BlockId(0), i), p.kind, env);
        }
        all
    }

    /// A rule without parameters, as a general one.
    fn fixed(p: WindowKey, with: &[Op], by: &str) -> General {
        General {
            sites: vec![None; p.old.len()],
            held: Vec::new(),
            conditions: Vec::new(),
            with: with.iter().map(|o| (o.clone(), None)).collect(),
            by: by.to_owned(),
            window: p,
        }
    }

    /// Registers for the parameters, and numbers computed first; `None` if there are too few registers.
    fn sides(&self) -> Option<Sides> {
        let p = &self.window;
        let mut taken = mentioned(p.old.iter().chain(self.with.iter().map(|(o, _)| o))).union(p.live.regs);
        p.regs.iter().map(|(r, _)| *r).chain(self.held.iter().map(|(r, _)| *r)).for_each(|r| taken.insert(r));
        let free: Vec<Reg> = RegSet::ALL.without(Reg::R10).minus(taken).iter().collect();
        let params = free.get(..self.conditions.len())?;
        let mut free = &free[self.conditions.len()..];
        let mut before = p.before();
        let op = |insn: Insn| Op::new(insn);
        // What both sides begin with: parameters that are computed from others, registers that hold some.
        let mut first: Vec<Op> = Vec::new();
        for (c, r) in self.conditions.iter().zip(params) {
            match c {
                Condition::In(lo, hi) => before.set_reg(*r, Value::scalar(Num::signed(64, *lo, *hi))),
                Condition::Is(e) => first.extend(e.compute(*r, params, free)?.into_iter().map(op)),
            }
        }
        for (r, e) in &self.held {
            first.extend(e.compute(*r, params, free)?.into_iter().map(op));
        }
        let mut old = first.clone();
        for (o, site) in p.old.iter().zip(&self.sites) {
            let insn = site.map_or(o.insn, |i| with_register(&o.insn, params[usize::from(i)]));
            old.push(Op { insn, ..o.clone() });
        }
        let mut new = first;
        let mut code: Vec<Op> = Vec::new();
        let mut computed: Vec<(&Expr, Reg)> = Vec::new();
        for (o, e) in &self.with {
            let reg = match e {
                None => None,
                Some(Expr::Param(i)) => Some(params[usize::from(*i)]),
                Some(e) => Some(match computed.iter().find(|(f, _)| *f == e) {
                    Some((_, r)) => *r,
                    None => {
                        let (r, rest) = free.split_first()?;
                        free = rest;
                        computed.push((e, *r));
                        *r
                    }
                }),
            };
            let insn = reg.map_or(o.insn, |r| with_register(&o.insn, r));
            code.push(Op { insn, ..o.clone() });
        }
        for (e, r) in computed {
            new.extend(e.compute(r, params, free)?.into_iter().map(op));
        }
        new.append(&mut code);
        Some(Sides { before, old, new })
    }

    /// The replacement for these parameters; `None` if a number does not fit its instruction.
    pub(crate) fn replacement(&self, params: &[Option<i64>]) -> Option<Vec<Op>> {
        let op = |(o, e): &(Op, Option<Expr>)| {
            let insn = match e {
                Some(e) => with_immediate(&o.insn, e.eval(params)?)?,
                None => o.insn,
            };
            Some(Op { insn, ..o.clone() })
        };
        self.with.iter().map(op).collect()
    }
}
