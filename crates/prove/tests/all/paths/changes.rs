//! Random paths and changes of them, some of which are right.

use bpf_isa::{AluOp, Cond, Insn, Src, Width};
use bpf_prove::superblock::{SideExit, is_side_exit};

use crate::common::Rng;
use crate::common::scenes::{mutate, nearly, operation, r, source};

/// Conditions are about few values, so that one jump may decide another.
fn immediate(rng: &mut Rng) -> i32 {
    if rng.chance(3) { rng.number(32) as i32 } else { rng.one_of(&[0, 1, 2, 7, 8, 31, 255, -1, i32::MIN]) }
}

pub fn side_exit(rng: &mut Rng) -> SideExit {
    let dst = if rng.chance(12) { r(rng.below(10) as u8) } else { r(rng.below(5) as u8) };
    let src = if rng.chance(4) { Src::Reg(r(rng.below(5) as u8)) } else { Src::Imm(immediate(rng)) };
    let width = rng.one_of(&[Width::W32, Width::W64]);
    SideExit { cond: rng.one_of(&Cond::ALL), width, dst, src, leaves_if: rng.below(2) == 0 }
}

/// Straight code with one to three jumps in it.
pub fn path(rng: &mut Rng) -> Vec<Insn> {
    let mut out = vec![];
    for block in 0..2 + rng.below(3) {
        if block > 0 {
            let again = out.iter().rev().find_map(SideExit::of);
            let exit = match again {
                Some(e) if rng.chance(5) => tweaked(rng, e),
                _ => side_exit(rng),
            };
            out.push(exit.insn());
        }
        out.extend((0..rng.below(4)).map(|_| operation(rng)));
    }
    out
}

/// The same condition said otherwise: right, unless constants wrap around.
fn said_otherwise(rng: &mut Rng, exit: SideExit) -> SideExit {
    let SideExit { cond, dst, src, .. } = exit;
    let with = |cond, src| SideExit { cond, src, ..exit };
    match (cond, src) {
        (Cond::Gt | Cond::Sgt, Src::Imm(k)) => {
            with(if cond == Cond::Gt { Cond::Ge } else { Cond::Sge }, Src::Imm(k.wrapping_add(1)))
        }
        (Cond::Ge | Cond::Sge, Src::Imm(k)) => {
            with(if cond == Cond::Ge { Cond::Gt } else { Cond::Sgt }, Src::Imm(k.wrapping_sub(1)))
        }
        (Cond::Lt | Cond::Slt, Src::Imm(k)) => {
            with(if cond == Cond::Lt { Cond::Le } else { Cond::Sle }, Src::Imm(k.wrapping_sub(1)))
        }
        (Cond::Le | Cond::Sle, Src::Imm(k)) => {
            with(if cond == Cond::Le { Cond::Lt } else { Cond::Slt }, Src::Imm(k.wrapping_add(1)))
        }
        (Cond::Eq, Src::Imm(0)) if rng.chance(2) => with(Cond::Lt, Src::Imm(1)),
        (Cond::Ne, Src::Imm(0)) if rng.chance(2) => {
            with(rng.one_of(&[Cond::Gt, Cond::Set]), Src::Imm(rng.one_of(&[0, -1])))
        }
        (_, Src::Reg(s)) => SideExit { cond: cond.swap(), dst: s, src: Src::Reg(dst), ..exit },
        (_, Src::Imm(_)) => flip_width(exit),
    }
}

fn flip_width(exit: SideExit) -> SideExit {
    let width = if exit.width == Width::W32 { Width::W64 } else { Width::W32 };
    SideExit { width, ..exit }
}

/// A side exit with one thing changed.
pub fn tweaked(rng: &mut Rng, exit: SideExit) -> SideExit {
    let SideExit { cond, src, leaves_if, .. } = exit;
    match rng.below(9) {
        0 => SideExit { cond: rng.one_of(&Cond::ALL), ..exit },
        1 => SideExit { cond: cond.negate().unwrap_or(Cond::Eq), ..exit },
        2 => SideExit { cond: cond.negate().unwrap_or(Cond::Eq), leaves_if: !leaves_if, ..exit },
        3 => SideExit { leaves_if: !leaves_if, ..exit },
        4 => flip_width(exit),
        5 => SideExit { dst: r(rng.below(5) as u8), ..exit },
        6 => {
            let src = match src {
                Src::Imm(k) => Src::Imm(k.wrapping_add(rng.one_of(&[1, -1]))),
                Src::Reg(_) => Src::Reg(r(rng.below(5) as u8)),
            };
            SideExit { src, ..exit }
        }
        7 => {
            let signed = match cond {
                Cond::Gt => Cond::Sgt,
                Cond::Sgt => Cond::Gt,
                Cond::Ge => Cond::Sge,
                Cond::Sge => Cond::Ge,
                Cond::Lt => Cond::Slt,
                Cond::Slt => Cond::Lt,
                Cond::Le => Cond::Sle,
                Cond::Sle => Cond::Le,
                other => other,
            };
            SideExit { cond: signed, ..exit }
        }
        _ => said_otherwise(rng, exit),
    }
}

/// One random change.
pub fn change(rng: &mut Rng, ops: &mut Vec<Insn>) {
    let jumps: Vec<usize> = (0..ops.len()).filter(|i| is_side_exit(&ops[*i])).collect();
    let others: Vec<usize> = (0..ops.len()).filter(|i| !is_side_exit(&ops[*i])).collect();
    let what = rng.below(16);
    match what {
        // An operation across one jump, in either direction, or anywhere.
        0..=5 if !others.is_empty() && !jumps.is_empty() => {
            let i = rng.one_of(&others);
            let op = ops.remove(i);
            let j = rng.one_of(&jumps);
            let to = match rng.below(4) {
                0 => rng.below(ops.len() as u64 + 1) as usize,
                // Right before or right behind a jump, whose place is now one less if it was behind.
                n => (j - usize::from(j > i) + (n % 2) as usize).min(ops.len()),
            };
            ops.insert(to, op);
        }
        // A copy of it, too.
        6 if !others.is_empty() => {
            let op = ops[rng.one_of(&others)];
            let to = rng.below(ops.len() as u64 + 1) as usize;
            ops.insert(to, op);
        }
        7 if !others.is_empty() => {
            ops.remove(rng.one_of(&others));
        }
        8 | 9 if !jumps.is_empty() => {
            let i = rng.one_of(&jumps);
            if let Some(exit) = SideExit::of(&ops[i]) {
                ops[i] = (if what == 8 { said_otherwise } else { tweaked })(rng, exit).insn();
            }
        }
        10 if !jumps.is_empty() => known_behind(rng, ops, &jumps),
        11 if ops.len() > 1 => {
            let i = rng.below(ops.len() as u64 - 1) as usize;
            ops.swap(i, i + 1);
        }
        12 | 13 if !others.is_empty() => {
            let i = rng.one_of(&others);
            if let Some(with) = nearly(rng, ops[i]) {
                ops.splice(i..=i, with);
            }
        }
        _ => inside(rng, ops),
    }
}

/// Behind `if r != k` that was not taken, the register is k; and so on, often wrongly.
fn known_behind(rng: &mut Rng, ops: &mut [Insn], jumps: &[usize]) {
    let j = rng.one_of(jumps);
    let Some(SideExit { dst: d, src: Src::Imm(k), .. }) = SideExit::of(&ops[j]) else { return };
    let backwards = rng.chance(6);
    let range = if backwards { 0..j } else { j + 1..ops.len() };
    for op in &mut ops[range] {
        *op = match *op {
            Insn::Alu { op, width, dst, src: Src::Reg(s) } if s == d => Insn::Alu { op, width, dst, src: Src::Imm(k) },
            Insn::Mov { width, dst, src: Src::Reg(s) } if s == d => Insn::Mov { width, dst, src: Src::Imm(k) },
            Insn::Store { size, base, off, src: Src::Reg(s) } if s == d => {
                Insn::Store { size, base, off, src: Src::Imm(k) }
            }
            Insn::Mov { width, dst, src: Src::Imm(i) } if i == k && dst != d => {
                Insn::Mov { width, dst, src: Src::Reg(d) }
            }
            Insn::Alu { op: AluOp::And, width, dst, .. } if dst == d && rng.chance(2) => {
                Insn::Mov { width, dst, src: Src::Reg(d) }
            }
            other => other,
        };
    }
}

/// A change between two jumps.
fn inside(rng: &mut Rng, ops: &mut Vec<Insn>) {
    let mut start = rng.below(ops.len() as u64 + 1) as usize;
    while start > 0 && !is_side_exit(&ops[start - 1]) {
        start -= 1;
    }
    let end = start + ops[start..].iter().take_while(|i| !is_side_exit(i)).count();
    let mut part = ops[start..end].to_vec();
    if part.is_empty() {
        let src = source(rng);
        part.push(if rng.chance(2) {
            operation(rng)
        } else {
            Insn::Mov { width: Width::W64, dst: r(rng.below(5) as u8), src }
        });
    } else {
        mutate(rng, &mut part);
    }
    ops.splice(start..end, part);
}

/// Whether an operation that `old` has between two jumps stands between two others in `new`.
pub fn moved(old: &[Insn], new: &[Insn]) -> bool {
    let parts = |ops: &[Insn]| -> Vec<Vec<Insn>> { ops.split(is_side_exit).map(<[Insn]>::to_vec).collect() };
    let (a, b) = (parts(old), parts(new));
    let count = |part: Option<&Vec<Insn>>, i: &Insn| part.map_or(0, |p| p.iter().filter(|j| *j == i).count());
    a.iter().flatten().any(|i| {
        let fewer = (0..a.len()).any(|k| count(b.get(k), i) < count(a.get(k), i));
        let more = (0..a.len()).any(|k| count(b.get(k), i) > count(a.get(k), i));
        fewer && more
    })
}
