//! A question whose answers only compute becomes arithmetic: no fork of the verifier's state.
//!
//! ```text
//!     if r2 > 100 goto A else J            t = 100
//! A:  r6 += 1                        →     t -= r2
//!     goto J                               t >>= 63
//! J:  …                                    r6 += t
//! ```
//! The verifier walks both ways, and behind each such question it walks everything that follows once more unless it finds
//! the two states alike; in a loop it keeps one for each turn ("The sequence of 8193 jumps is too complex").
//!
//! A number *t* is made that is 1 where one answer holds and 0 elsewhere; what the ways compute goes into registers that are free,
//! and a product with *t* chooses. The new code is put on both ways first, where the answer is known, which is what is proven; then
//! both ways are the same, and the question goes by the shape of the graph alone.
//!
//! No mask of all ones or all zeros is combined with a constant: there newer verifiers fork their state as they do at a jump
//! (`maybe_fork_scalars` in kernel/bpf/verifier.c), and Linux 6.18.44 reads through a null pointer where too many of these wait.

use bpf_facts::{Analysis, Kind, State};
use bpf_isa::{AluOp, Cond, Insn, Reg, RegSet, Src, Width};
use bpf_program::{BlockId, Function, Op, Terminator, predecessors};

use super::edit::{Form, add_block, alu, defined, is_arithmetic, renamed, used};

/// What it is called in reports.
pub(super) const NAME: &str = "branch-to-arithmetic";
/// Operations of a way at most.
const LONGEST: usize = 40;
/// Operations of a join that is done on each way into it at most.
const SHORT: usize = 4;

/// A question of which both ways only compute, and meet.
struct Hammock<'f> {
    /// The block that asks.
    at: BlockId,
    /// Where the ways meet.
    join: BlockId,
    /// What is computed where the condition holds, and where it does not.
    ways: [&'f [Op]; 2],
    cond: Cond,
    width: Width,
    dst: Reg,
    src: Src,
    origin: Option<usize>,
}

/// All such forms of a function, of the innermost questions first; of each question those with the fewest instructions first.
pub(super) fn forms<'a>(f: &'a Function, analysis: &'a Analysis) -> impl Iterator<Item = Form> + 'a {
    let preds = predecessors(f);
    let hammocks: Vec<Hammock> = f.layout.iter().filter_map(|b| Hammock::at(f, &preds, *b)).collect();
    hammocks.into_iter().flat_map(move |h| {
        let mut all = h.arithmetic(f, analysis);
        all.sort_by_key(Vec::len);
        all.into_iter().map(move |ops| h.form(f, ops)).collect::<Vec<_>>()
    })
}

/// The function in which short joins that only compute are done on each way into them, so that ways which only compute meet later;
/// `None` if there is none.
pub(super) fn spread(f: &Function) -> Option<Form> {
    let mut new = f.clone();
    for &join in &f.layout {
        let preds = predecessors(&new);
        let block = f.block(join).clone();
        let is_short = block.ops.len() <= SHORT && block.ops.iter().all(is_arithmetic);
        let Terminator::Goto(to) = block.term else { continue };
        if !is_short || join == f.entry() || to == join || preds[join.index()].len() < 2 {
            continue;
        }
        for b in preds[join.index()].clone() {
            // What was put into another block goes on from there.
            if let Terminator::Goto(_) = new.block(b).term {
                let there = new.block_mut(b);
                there.ops.extend(block.ops.clone());
                there.term = block.term.clone();
            } else {
                let copy = add_block(&mut new, b, block.ops.clone(), block.term.clone());
                new.block_mut(b).term.map_successors(|s| if s == join { copy } else { s });
            }
        }
    }
    super::edit::merge(&mut new);
    (new != *f).then(|| Form::new(NAME, new))
}

impl<'f> Hammock<'f> {
    fn at(f: &'f Function, preds: &[Vec<BlockId>], at: BlockId) -> Option<Hammock<'f>> {
        let Terminator::Branch { cond, width, dst, src, taken, fall, origin } = f.block(at).term else { return None };
        let way = |b: BlockId| match f.block(b).term {
            Terminator::Goto(to)
                if preds[b.index()] == [at]
                    && b != f.entry()
                    && f.block(b).ops.len() <= LONGEST
                    && f.block(b).ops.iter().all(is_arithmetic) =>
            {
                Some(to)
            }
            _ => None,
        };
        let (a, b) = (way(taken), way(fall));
        let (join, sides) = match (a, b) {
            _ if taken == fall => return None,
            (Some(j), _) if j == fall => (j, [true, false]),
            (_, Some(j)) if j == taken => (j, [false, true]),
            (Some(j), Some(k)) if j == k => (j, [true, true]),
            _ => return None,
        };
        if join == at {
            return None;
        }
        let ops = |b: BlockId, is_way: bool| if is_way { &f.block(b).ops[..] } else { &[] };
        let ways = [ops(taken, sides[0]), ops(fall, sides[1])];
        Some(Hammock { at, join, ways, cond, width, dst, src, origin })
    }

    /// The form with these operations in the question's place.
    fn form(&self, f: &Function, ops: Vec<Insn>) -> Form {
        let ops: Vec<Op> = ops.into_iter().map(|insn| Op::with_origin(insn, self.origin)).collect();
        let mut function = f.clone();
        let end = Terminator::Goto(self.join);
        let new = [0, 1].map(|_| add_block(&mut function, self.at, ops.clone(), end.clone()));
        if let Terminator::Branch { taken, fall, .. } = &mut function.block_mut(self.at).term {
            (*taken, *fall) = (new[1], new[0]);
        }
        bpf_program::drop_unreachable(&mut function);
        let mut then = f.clone();
        let block = then.block_mut(self.at);
        block.ops.extend(ops);
        block.term = end;
        super::edit::merge(&mut then);
        Form { then: Some(then), ..Form::new(NAME, function) }
    }

    /// The operations that may take its place.
    fn arithmetic(&self, f: &Function, analysis: &Analysis) -> Vec<Vec<Insn>> {
        let states = analysis.facts().states(f, self.at);
        let Some(state) = states.last() else { return Vec::new() };
        let operands = [Some(self.dst), self.src.reg()];
        // Pointers are compared, not computed with.
        let is_pointer = |r: &Reg| matches!(state.reg(*r).kind, Kind::Pointer { .. });
        if operands.iter().flatten().any(is_pointer) {
            return Vec::new();
        }
        let live = analysis.live();
        let after = live.entry(self.join).regs;
        let results = defined(self.ways[0]).union(defined(self.ways[1])).intersect(after);
        let busy = live.before(self.at, f.block(self.at).ops.len()).regs.union(after);
        let busy = self.ways.iter().fold(busy, |all, ops| all.union(used(ops)).union(defined(ops)));
        let busy = operands.iter().flatten().fold(busy, |all, r| all.with(*r));
        let mut free: Vec<Reg> = Reg::all().filter(|r| *r != Reg::R10 && !busy.contains(*r)).collect();
        // What is compared may go where nobody reads it any more.
        let read = self.ways.iter().fold(after, |all, ops| all.union(used(ops)).union(defined(ops)));
        if !read.contains(self.dst) && self.src != Src::Reg(self.dst) && self.dst != Reg::R10 {
            free.push(self.dst);
        }
        let mut all = Vec::new();
        let question = Question { state, cond: self.cond, width: self.width, dst: self.dst, src: self.src };
        for t in [free.first(), free.last()].into_iter().flatten().copied() {
            let others: Vec<Reg> = free.iter().copied().filter(|r| *r != t).collect();
            let spare = others.iter().copied().find(|r| *r != self.dst);
            for side in [true, false] {
                let Some(mut bit) = question.bit(side, t, spare) else { continue };
                bit.retain(|insn| *insn != copy(Width::W64, t, t));
                all.extend(self.simple(side, &bit, t));
                all.extend(self.in_place(side, &bit, t, results, state));
                all.extend(self.chosen(side, bit, t, &others, results));
            }
        }
        all
    }

    /// With one operation on one way alone that leaves its result as it was with a certain operand.
    fn simple(&self, side: bool, bit: &[Insn], t: Reg) -> Option<Vec<Insn>> {
        let (way, other) = if side { (self.ways[0], self.ways[1]) } else { (self.ways[1], self.ways[0]) };
        let (ops, true) = (way, other.is_empty()) else { return None };
        let (last, first) = ops.split_last()?;
        let mut new = bit.to_vec();
        // What comes before it may stand where it is only if it is for this operation alone; so none.
        if !first.is_empty() {
            return None;
        }
        match last.insn {
            Insn::Alu { op: AluOp::Add, width, dst, src: Src::Imm(-1) } => {
                new.push(Insn::Alu { op: AluOp::Sub, width, dst, src: Src::Reg(t) });
            }
            Insn::Alu { op: op @ (AluOp::Add | AluOp::Sub | AluOp::Or | AluOp::Xor), width, dst, src } => {
                if src != Src::Imm(1) {
                    new.push(alu(AluOp::Mul, t, src));
                }
                new.push(Insn::Alu { op, width, dst, src: Src::Reg(t) });
            }
            Insn::Alu {
                op: op @ (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh),
                width: Width::W64,
                dst,
                src: src @ Src::Imm(_),
            } => {
                new.extend([alu(AluOp::Mul, t, src), alu(op, dst, Src::Reg(t))]);
            }
            Insn::Mov { dst, src: Src::Imm(0), .. } => {
                new.extend([alu(AluOp::Xor, t, Src::Imm(1)), alu(AluOp::Mul, dst, Src::Reg(t))]);
            }
            // What it is instead, and the difference where it stays.
            Insn::Mov { width: Width::W64, dst, src } => {
                let less = match src {
                    Src::Imm(i) => alu(AluOp::Add, dst, Src::Imm(i.checked_neg()?)),
                    Src::Reg(_) => alu(AluOp::Sub, dst, src),
                };
                let keeps = alu(AluOp::Xor, t, Src::Imm(1));
                new.extend([keeps, less, alu(AluOp::Mul, dst, Src::Reg(t)), alu(AluOp::Add, dst, src)]);
            }
            _ => return None,
        }
        Some(new)
    }

    /// One way alone where its result was a constant before: it takes no register but that of the bit.
    fn in_place(&self, side: bool, bit: &[Insn], t: Reg, results: RegSet, state: &State) -> Option<Vec<Insn>> {
        let (way, other) = if side { (self.ways[0], self.ways[1]) } else { (self.ways[1], self.ways[0]) };
        let mut all = results.iter();
        let (Some(r), None, true) = (all.next(), all.next(), other.is_empty()) else { return None };
        let before = i32::try_from(state.reg(r).as_const()? as i64).ok()?;
        let mut new = bit.to_vec();
        new.extend(way.iter().map(|op| op.insn));
        if before != 0 {
            new.push(alu(AluOp::Add, r, Src::Imm(before.checked_neg()?)));
        }
        new.push(alu(AluOp::Mul, r, Src::Reg(t)));
        if before != 0 {
            new.push(alu(AluOp::Add, r, Src::Imm(before)));
        }
        Some(new)
    }

    /// The way of `side` into registers of its own, the other one in place; the product chooses.
    fn chosen(&self, side: bool, bit: Vec<Insn>, t: Reg, free: &[Reg], results: RegSet) -> Option<Vec<Insn>> {
        let (way, other) = if side { (self.ways[0], self.ways[1]) } else { (self.ways[1], self.ways[0]) };
        let mine = defined(way);
        let mut names: Vec<(Reg, Reg)> = Vec::new();
        let mut free = free.iter().copied();
        for r in mine.union(results).iter() {
            names.push((r, free.next()?));
        }
        let named = |r: Reg| names.iter().find(|(old, _)| *old == r).map_or(r, |(_, new)| *new);
        let mut new = bit;
        let (mut read_first, mut written) = (RegSet::EMPTY, RegSet::EMPTY);
        for op in way {
            read_first = read_first.union(op.insn.uses().minus(written));
            written = written.union(op.insn.defs());
        }
        // What it does not compute is what it was.
        let copied = mine.intersect(read_first).union(results.minus(mine));
        new.extend(copied.iter().map(|r| Insn::Mov { width: Width::W64, dst: named(r), src: Src::Reg(r) }));
        new.extend(way.iter().map(|op| renamed(op.insn, named)));
        new.extend(other.iter().map(|op| op.insn));
        for r in results.iter() {
            let with = named(r);
            new.extend([
                alu(AluOp::Xor, with, Src::Reg(r)),
                alu(AluOp::Mul, with, Src::Reg(t)),
                alu(AluOp::Xor, r, Src::Reg(with)),
            ]);
        }
        Some(new)
    }
}

/// A comparison, and what is known of what it compares.
struct Question<'a> {
    state: &'a State,
    cond: Cond,
    width: Width,
    dst: Reg,
    src: Src,
}

impl Question<'_> {
    /// Operations that set `t` to 1 where the answer is `side`, and to 0 elsewhere; `u` is free, too. The last one leaves
    /// nothing but the sign.
    fn bit(&self, side: bool, t: Reg, u: Option<Reg>) -> Option<Vec<Insn>> {
        let Question { width, dst, src, .. } = *self;
        let fits = |r: Reg, most: u64| self.state.reg(r).bits().umax <= most;
        let most = match src {
            Src::Reg(r) => self.state.reg(r).bits().umax,
            Src::Imm(i) if width == Width::W32 => u64::from(i as u32),
            Src::Imm(i) => i64::from(i) as u64,
        };
        let sign = Insn::Alu { op: AluOp::Rsh, width: Width::W64, dst: t, src: Src::Imm(63) };
        let cond = match side {
            true => self.cond,
            false => match self.cond.negate() {
                Some(negated) => negated,
                // No bit is set.
                None => {
                    let mut ops = self.bits(t)?;
                    ops.extend([alu(AluOp::Add, t, Src::Imm(-1)), sign]);
                    return Some(ops);
                }
            },
        };
        // A number with one bit that may be set.
        let known = self.state.reg(dst).bits();
        let only = known.tnum;
        if let (Cond::Ne, Src::Imm(0), true) = (cond, src, only.value == 0 && only.mask.count_ones() == 1) {
            let bit = only.mask.trailing_zeros();
            return Some(vec![copy(Width::W64, t, dst), alu(AluOp::Lsh, t, Src::Imm(63 - bit as i32)), sign]);
        }
        if let (Cond::Set, Src::Imm(i)) = (cond, src) {
            let mask = if width == Width::W32 { u64::from(i as u32) } else { i64::from(i) as u64 };
            if mask.count_ones() == 1 {
                let bit = mask.trailing_zeros();
                return Some(vec![copy(Width::W64, t, dst), alu(AluOp::Lsh, t, Src::Imm(63 - bit as i32)), sign]);
            }
        }
        if cond == Cond::Set {
            let mut ops = self.bits(t)?;
            ops.extend([Insn::Neg { width: Width::W64, dst: t }, sign]);
            return Some(ops);
        }
        let is_signed = matches!(cond, Cond::Sgt | Cond::Sge | Cond::Slt | Cond::Sle);
        let half = match width {
            Width::W32 => i32::MAX as u64,
            Width::W64 => i64::MAX as u64 >> 1,
        };
        let is_small = fits(dst, half) && most <= half;
        let mut ops = Vec::new();
        if t == dst && width == Width::W32 && !is_signed && !fits(dst, u64::from(u32::MAX)) {
            ops.push(copy(Width::W32, t, t));
        }
        let (a, b) = match width {
            Width::W32 if is_signed && !is_small => {
                ops.extend([
                    copy(Width::W64, t, dst),
                    alu(AluOp::Lsh, t, Src::Imm(32)),
                    alu(AluOp::Arsh, t, Src::Imm(32)),
                ]);
                let b = match src {
                    Src::Reg(r) => {
                        let u = u?;
                        ops.extend([
                            copy(Width::W64, u, r),
                            alu(AluOp::Lsh, u, Src::Imm(32)),
                            alu(AluOp::Arsh, u, Src::Imm(32)),
                        ]);
                        Src::Reg(u)
                    }
                    imm @ Src::Imm(_) => imm,
                };
                (t, b)
            }
            Width::W32 => {
                let b = match src {
                    Src::Reg(r) if !fits(r, u64::from(u32::MAX)) => {
                        ops.push(copy(Width::W32, u?, r));
                        Src::Reg(u?)
                    }
                    Src::Imm(i) if i < 0 && !matches!(cond, Cond::Eq | Cond::Ne) => return None,
                    b => b,
                };
                (dst, b)
            }
            Width::W64 if matches!(cond, Cond::Eq | Cond::Ne) => (dst, src),
            Width::W64 if is_small => (dst, src),
            Width::W64 => return None,
        };
        let is_number = |r: Reg| width == Width::W32 || fits(r, i64::MAX as u64);
        match cond {
            Cond::Eq | Cond::Ne => {
                ops.push(copy(width, t, a));
                if b != Src::Imm(0) {
                    ops.push(Insn::Alu { op: AluOp::Xor, width, dst: t, src: b });
                }
                if is_number(dst) && (width == Width::W32 || most <= i64::MAX as u64) {
                    match cond {
                        Cond::Eq => ops.push(alu(AluOp::Add, t, Src::Imm(-1))),
                        _ => ops.push(Insn::Neg { width: Width::W64, dst: t }),
                    }
                } else {
                    let u = u?;
                    ops.extend([
                        copy(Width::W64, u, t),
                        Insn::Neg { width: Width::W64, dst: u },
                        alu(AluOp::Or, t, Src::Reg(u)),
                    ]);
                    if cond == Cond::Eq {
                        ops.push(alu(AluOp::Xor, t, Src::Imm(-1)));
                    }
                }
            }
            Cond::Lt | Cond::Slt | Cond::Le | Cond::Sle => {
                let from = if width == Width::W32 && !is_signed { Width::W32 } else { Width::W64 };
                if a != t {
                    ops.push(copy(from, t, a));
                }
                let more = i64::from(matches!(cond, Cond::Le | Cond::Sle));
                match b {
                    Src::Reg(_) => {
                        ops.push(alu(AluOp::Sub, t, b));
                        if more == 1 {
                            ops.push(alu(AluOp::Add, t, Src::Imm(-1)));
                        }
                    }
                    Src::Imm(i) => {
                        let i = i32::try_from(-i64::from(i) - more).ok()?;
                        if i != 0 {
                            ops.push(alu(AluOp::Add, t, Src::Imm(i)));
                        }
                    }
                }
            }
            Cond::Gt | Cond::Sgt | Cond::Ge | Cond::Sge => {
                let less = i64::from(matches!(cond, Cond::Ge | Cond::Sge));
                let narrow = |r: Reg| width == Width::W64 || is_signed || fits(r, u64::from(u32::MAX));
                match (a == t, b) {
                    // What is compared is in `t` already: turn its sign.
                    (true, b) => {
                        ops.extend([Insn::Neg { width: Width::W64, dst: t }, alu(AluOp::Add, t, b)]);
                        if less == 1 {
                            ops.push(alu(AluOp::Add, t, Src::Imm(-1)));
                        }
                    }
                    (false, b) => {
                        let a = if narrow(a) {
                            a
                        } else {
                            let u = u.filter(|u| b != Src::Reg(*u))?;
                            ops.push(copy(Width::W32, u, a));
                            u
                        };
                        match b {
                            Src::Reg(_) => ops.push(Insn::Mov { width: Width::W64, dst: t, src: b }),
                            Src::Imm(i) => {
                                let i = i32::try_from(i64::from(i) - less).ok()?;
                                ops.push(Insn::Mov { width: Width::W64, dst: t, src: Src::Imm(i) });
                            }
                        }
                        ops.push(alu(AluOp::Sub, t, Src::Reg(a)));
                        if less == 1 && b.reg().is_some() {
                            ops.push(alu(AluOp::Add, t, Src::Imm(-1)));
                        }
                    }
                }
            }
            Cond::Set => return None,
        }
        ops.push(sign);
        Some(ops)
    }

    /// The bits that are asked for, in `t`, if they are no sign.
    fn bits(&self, t: Reg) -> Option<Vec<Insn>> {
        let positive = match (self.width, self.src) {
            (Width::W32, _) => true,
            (Width::W64, Src::Imm(i)) => i >= 0,
            (Width::W64, Src::Reg(r)) => {
                [self.dst, r].iter().any(|r| self.state.reg(*r).bits().umax <= i64::MAX as u64)
            }
        };
        let and = Insn::Alu { op: AluOp::And, width: self.width, dst: t, src: self.src };
        positive.then(|| vec![copy(self.width, t, self.dst), and])
    }
}

fn copy(width: Width, dst: Reg, src: Reg) -> Insn {
    Insn::Mov { width, dst, src: Src::Reg(src) }
}
