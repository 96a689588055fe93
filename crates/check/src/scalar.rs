//! Numbers as the kernel's verifier keeps them: the 64-bit view and the view of the lower half, each tightening the other.

use bpf_facts::{Num, NumDomain};
use bpf_isa::{AluOp, Cond, Width};
use bpf_semantics::Domain;

/// What is known of a register that holds a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scalar {
    /// All 64 bits.
    pub w: Num,
    /// The lower 32 bits.
    pub l: Num,
}

const I32: std::ops::RangeInclusive<i64> = i32::MIN as i64..=i32::MAX as i64;

impl Scalar {
    /// Anything.
    pub const TOP: Scalar = Scalar { w: Num::top(64), l: Num::top(32) };

    /// Exactly `v`.
    pub const fn constant(v: u64) -> Scalar {
        Scalar { w: Num::constant(64, v), l: Num::constant(32, v) }
    }

    /// From the 64-bit view alone.
    pub fn of_wide(w: Num) -> Scalar {
        Scalar { w, l: Num::top(32) }.sync().unwrap_or(Scalar::TOP)
    }

    /// A zero-extended 32-bit number.
    pub fn of_low(l: Num) -> Scalar {
        Scalar { w: l.zext(64), l }
    }

    /// Zero-extended from so many bytes.
    pub fn of_bytes(bytes: u32) -> Scalar {
        if bytes == 8 { Scalar::TOP } else { Scalar::of_wide(Num::top(bytes * 8).zext(64)) }
    }

    fn sync(mut self) -> Option<Scalar> {
        for _ in 0..2 {
            let before = self;
            self.l = self.l.meet(&self.w.truncate(32))?;
            self.w = self.w.meet(&self.w.extract(32, 32).concat(&self.l))?;
            if I32.contains(&self.w.smin) && I32.contains(&self.w.smax) {
                self.w = self.w.meet(&self.l.sext(64))?;
            }
            if self == before {
                break;
            }
        }
        Some(self)
    }

    /// The only value, if there is one.
    pub fn as_const(&self) -> Option<u64> {
        self.w.as_const()
    }

    /// Whether every member of `o` is one of `self`.
    pub fn includes(&self, o: &Scalar) -> bool {
        within(&self.w, &o.w) && within(&self.l, &o.l)
    }

    /// The lower `bytes`, zero- or sign-extended.
    #[must_use]
    pub fn cast(&self, bytes: u32, sign: bool) -> Scalar {
        match (bytes, sign) {
            (8, _) => *self,
            (4, false) => Scalar::of_low(self.l),
            (4, true) => Scalar::of_wide(self.l.sext(64)),
            (_, false) => Scalar::of_wide(self.w.truncate(bytes * 8).zext(64)),
            (_, true) => Scalar::of_wide(self.w.truncate(bytes * 8).sext(64)),
        }
    }

    /// `self op o`.
    #[must_use]
    pub fn alu(&self, op: AluOp, width: Width, o: &Scalar) -> Scalar {
        match width {
            Width::W32 => Scalar::of_low(apply(op, &self.l, &o.l)),
            Width::W64 => {
                let w = apply(op, &self.w, &o.w);
                // Only the lower halves matter to the lower half of these.
                let l = match op {
                    AluOp::Add | AluOp::Sub | AluOp::Mul | AluOp::And | AluOp::Or | AluOp::Xor => {
                        apply(op, &self.l, &o.l)
                    }
                    _ => Num::top(32),
                };
                Scalar { w, l }.sync().unwrap_or(Scalar::of_wide(w))
            }
        }
    }

    /// What is left of both operands if the comparison comes out as `taken`; `None` if it cannot.
    pub fn refine(cond: Cond, width: Width, taken: bool, a: &Scalar, b: &Scalar) -> Option<(Scalar, Scalar)> {
        match width {
            Width::W64 => {
                let (x, y) = bpf_facts::refine(cond, Width::W64, taken, &a.w, &b.w)?;
                Some((Scalar { w: x, l: a.l }.sync()?, Scalar { w: y, l: b.l }.sync()?))
            }
            Width::W32 => {
                let (x, y) = bpf_facts::refine(cond, Width::W64, taken, &a.l, &b.l)?;
                Some((Scalar { w: a.w, l: x }.sync()?, Scalar { w: b.w, l: y }.sync()?))
            }
        }
    }
}

fn within(old: &Num, new: &Num) -> bool {
    old.umin <= new.umin
        && old.umax >= new.umax
        && old.smin <= new.smin
        && old.smax >= new.smax
        && new.tnum.mask & !old.tnum.mask == 0
        && new.tnum.value & !old.tnum.mask == old.tnum.value
}

fn apply(op: AluOp, a: &Num, b: &Num) -> Num {
    let mut d = NumDomain;
    let bits = a.bits;
    match op {
        AluOp::Add => a.add(b),
        AluOp::Sub => a.sub(b),
        AluOp::Mul => d.mul(a, b),
        AluOp::And => d.and(a, b),
        AluOp::Or => d.or(a, b),
        AluOp::Xor => d.xor(a, b),
        // What the kernel does not compute, this does not either: shifts by unknown amounts, divisions.
        AluOp::Lsh | AluOp::Rsh | AluOp::Arsh if b.as_const().is_some_and(|k| k < u64::from(bits)) => match op {
            AluOp::Lsh => d.shl(a, b),
            AluOp::Rsh => d.lshr(a, b),
            _ => d.ashr(a, b),
        },
        _ => Num::top(bits),
    }
}
