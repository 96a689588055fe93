//! What an instruction comes to when its operands are known: constants, identities, known bits, offsets.
//!
//! ```text
//! v2 = low32 v1        ; v1 has 32 bits          →  v1
//! v3 = and v1, 0xff    ; v1 has 8 bits           →  v1
//! v5 = add v4, 4;  v6 = add v5, 8                →  v6 = add v4, 12
//! v5 = add v4, 4;  load u8 [v5 + 1]              →  load u8 [v4 + 5]
//! v3 = lsh v1, 32; v4 = rsh v3, 32               →  v4 = low32 v1
//! ```

use bpf_facts::{Num, NumDomain, Region};
use bpf_isa::{AluOp, Width};

use crate::{Inst, Op, Operand, Ssa, Value};

/// The instruction that defines each value, if one does.
pub(crate) struct Definitions(Vec<Option<(Op, Vec<Operand>)>>);

impl Definitions {
    pub(crate) fn of(f: &Ssa) -> Definitions {
        let mut d = vec![None; f.values.len()];
        for b in &f.layout {
            for i in &f.block(*b).insts {
                if let Some(v) = i.result {
                    d[v.index()] = Some((i.op.clone(), i.args.clone()));
                }
            }
        }
        Definitions(d)
    }

    pub(crate) fn get(&self, v: Value) -> Option<&(Op, Vec<Operand>)> {
        self.0.get(v.index())?.as_ref()
    }

    pub(crate) fn set(&mut self, v: Value, i: &Inst) {
        if self.0.len() <= v.index() {
            self.0.resize(v.index() + 1, None);
        }
        self.0[v.index()] = Some((i.op.clone(), i.args.clone()));
    }

    /// The number that the operand is.
    pub(crate) fn constant(&self, o: Operand) -> Option<i64> {
        match o {
            Operand::Const(c) => Some(c),
            Operand::Frame(_) => None,
            Operand::Value(v) => match self.get(v)?.0 {
                Op::Const(c) => Some(c),
                _ => None,
            },
        }
    }

    /// The offset of the frame's address that the operand is.
    pub(crate) fn frame(&self, o: Operand) -> Option<i64> {
        match o {
            Operand::Frame(n) => Some(i64::from(n)),
            Operand::Value(v) => match self.get(v)?.0 {
                Op::Frame(n) => Some(i64::from(n)),
                _ => None,
            },
            Operand::Const(_) => None,
        }
    }

    /// The operand as another one plus a number.
    pub(crate) fn sum(&self, o: Operand) -> (Operand, i64) {
        if let Operand::Value(v) = o
            && let Some((Op::Alu(AluOp::Add, Width::W64), args)) = self.get(v)
            && let Some(c) = self.constant(args[1])
            && self.constant(args[0]).is_none()
        {
            return (args[0], c);
        }
        (o, 0)
    }
}

/// What is known of the number that an operand is.
pub(crate) fn num(f: &Ssa, d: &Definitions, o: Operand) -> Num {
    match d.constant(o) {
        Some(c) => Num::constant(64, c as u64),
        None => f.fact(o).bits(),
    }
}

/// What an instruction comes to.
pub(crate) enum Folded {
    /// Nothing else.
    Same,
    /// Its result is this.
    Is(Operand),
    /// It does this.
    Does(Op, Vec<Operand>),
}

/// Looks at one instruction.
pub(crate) fn fold(f: &Ssa, d: &Definitions, i: &Inst) -> Folded {
    if i.link.is_some() {
        return Folded::Same;
    }
    match &i.op {
        Op::Copy => Folded::Is(i.args[0]),
        Op::Alu(op, width) => alu(f, d, *op, *width, i.args[0], i.args[1]),
        Op::Low32 => {
            let x = i.args[0];
            if let Some(c) = d.constant(x) {
                return Folded::Does(Op::Const(c & 0xffff_ffff), vec![]);
            }
            if is_number(f, x) && num(f, d, x).umax <= u64::from(u32::MAX) { Folded::Is(x) } else { Folded::Same }
        }
        Op::Load { size, sext, off } => match address(f, d, i.args[0], *off) {
            Some((base, off)) => Folded::Does(Op::Load { size: *size, sext: *sext, off }, vec![base]),
            None => Folded::Same,
        },
        Op::Store { size, off } => match address(f, d, i.args[0], *off) {
            Some((base, off)) => Folded::Does(Op::Store { size: *size, off }, vec![base, i.args[1]]),
            None => Folded::Same,
        },
        Op::Atomic { op, size, off } => match address(f, d, i.args[0], *off) {
            Some((base, off)) => {
                let args = std::iter::once(base).chain(i.args[1..].iter().copied()).collect();
                Folded::Does(Op::Atomic { op: *op, size: *size, off }, args)
            }
            None => Folded::Same,
        },
        _ => Folded::Same,
    }
}

fn is_number(f: &Ssa, o: Operand) -> bool {
    f.fact(o).kind == bpf_facts::Kind::Scalar
}

/// Base and offset with the sum that the base is taken into the offset. The context is left alone: the kernel wants the
/// register that came with it.
fn address(f: &Ssa, d: &Definitions, base: Operand, off: i16) -> Option<(Operand, i16)> {
    let (inner, c) = d.sum(base);
    if c == 0 || f.fact(inner).region().is_none_or(|r| *r == Region::Ctx) {
        return None;
    }
    Some((inner, i16::try_from(c.checked_add(i64::from(off))?).ok()?))
}

fn alu(f: &Ssa, d: &Definitions, op: AluOp, width: Width, a: Operand, b: Operand) -> Folded {
    let commutes = matches!(op, AluOp::Add | AluOp::Mul | AluOp::And | AluOp::Or | AluOp::Xor);
    let (ca, cb) = (d.constant(a), d.constant(b));
    if let (Some(x), Some(y)) = (ca, cb) {
        let n = |c: i64| Num::constant(64, c as u64);
        if let Some(c) = bpf_semantics::alu(&mut NumDomain, op, width, &n(x), &n(y)).as_const() {
            return Folded::Does(Op::Const(c as i64), vec![]);
        }
    }
    if commutes && ca.is_some() && cb.is_none() {
        return Folded::Does(Op::Alu(op, width), vec![b, a]);
    }
    let Some(c) = cb else {
        return Folded::Same;
    };
    let (x, whole) = (num(f, d, a), width == Width::W64);
    // A pointer goes through 32-bit arithmetic only where the kernel lets it.
    let keeps = whole || is_number(f, a) && x.umax <= u64::from(u32::MAX);
    let bits = if whole { u64::MAX } else { u64::from(u32::MAX) };
    let (value, mask) = (x.tnum.value, x.tnum.mask);
    let may_be_set = value | mask;
    let nothing = match op {
        AluOp::Add | AluOp::Sub | AluOp::Or | AluOp::Xor | AluOp::Lsh | AluOp::Rsh | AluOp::Arsh => c == 0,
        AluOp::Mul | AluOp::Div => c == 1,
        AluOp::And => may_be_set & !(c as u64) & bits == 0 && (is_number(f, a) || c == -1),
        _ => false,
    };
    if nothing && keeps {
        return Folded::Is(a);
    }
    if nothing && is_number(f, a) {
        return Folded::Does(Op::Low32, vec![a]);
    }
    // A sum of a sum.
    if whole
        && op == AluOp::Add
        && let (inner, first) = d.sum(a)
        && inner != a
        && let Some(sum) = first.checked_add(c)
        && i32::try_from(sum).is_ok()
    {
        return match sum {
            0 => Folded::Is(inner),
            _ => Folded::Does(Op::Alu(AluOp::Add, Width::W64), vec![inner, Operand::Const(sum)]),
        };
    }
    if whole
        && op == AluOp::Sub
        && let Some(c) = c.checked_neg()
        && i32::try_from(c).is_ok()
    {
        return Folded::Does(Op::Alu(AluOp::Add, Width::W64), vec![a, Operand::Const(c)]);
    }
    if whole
        && op == AluOp::Rsh
        && c == 32
        && let Operand::Value(v) = a
        && let Some((Op::Alu(AluOp::Lsh, Width::W64), args)) = d.get(v)
        && d.constant(args[1]) == Some(32)
    {
        let inner = args[0];
        return match is_number(f, inner) && num(f, d, inner).umax <= u64::from(u32::MAX) {
            true => Folded::Is(inner),
            false => Folded::Does(Op::Low32, vec![inner]),
        };
    }
    if !matches!(b, Operand::Const(_)) && (i32::try_from(c).is_ok() || !whole) {
        return Folded::Does(Op::Alu(op, width), vec![a, Operand::Const(c)]);
    }
    Folded::Same
}
