//! What a conditional jump teaches on each of its edges.
//!
//! Whether an edge is possible at all is asked of [`bpf_semantics::branch`]; the rest is the inverse
//! of a comparison: numbers that cannot satisfy it are cut off, a pointer compared with zero is null
//! or not, and a packet pointer compared with the packet's end tells how much of the packet there is.

use std::convert::Infallible;

use bpf_isa::{Cond, Reg, Src, Width};
use bpf_program::{BlockId, ProgKind, Terminator};

use crate::machine::AbstractMachine;
use crate::num::Tnum;
use crate::{Env, Kind, Num, Region, State, Value};

/// Kernel's `MAX_PACKET_OFF`: an offset up to this does not carry an address past the end of memory.
const MAX_PACKET_OFFSET: u64 = 0xffff;

/// The comparison of a [`Terminator::Branch`].
#[derive(Clone, Copy)]
pub(crate) struct Test {
    cond: Cond,
    width: Width,
    dst: Reg,
    src: Src,
}

impl Test {
    pub(crate) fn of(term: &Terminator) -> Option<Test> {
        match *term {
            Terminator::Branch { cond, width, dst, src, .. } => Some(Test { cond, width, dst, src }),
            _ => None,
        }
    }
}

impl State {
    /// The state in which the test came out as `taken`, or `None` if it cannot.
    pub(crate) fn assume(
        mut self,
        test: Test,
        taken: bool,
        at: (BlockId, usize),
        kind: ProgKind,
        env: &Env<'_>,
    ) -> Option<State> {
        let Test { cond, width, dst, src } = test;
        let mut m = AbstractMachine { state: &mut self, at, kind, env };
        let outcome = match bpf_semantics::branch(&mut m, cond, width, dst, src) {
            Ok(outcome) => outcome,
            Err::<_, Infallible>(never) => match never {},
        };
        if outcome == Some(!taken) {
            return None;
        }
        if src == Src::Reg(dst) {
            return Some(self);
        }
        let a = self.reg(dst).clone();
        let b = match src {
            Src::Reg(r) => self.reg(r).clone(),
            Src::Imm(i) => Value::constant(i64::from(i) as u64),
        };
        match (a.region().is_some(), b.region().is_some()) {
            (false, false) => {
                let (a, b) = refine(cond, width, taken, &a.num, &b.num)?;
                self.narrow(dst, a);
                if let Src::Reg(r) = src {
                    self.narrow(r, b);
                }
            }
            (true, true) if width == Width::W64 => self.compare_with_end(cond, taken, &a, &b),
            (true, false) if width == Width::W64 && b.as_const() == Some(0) => self.null_check(cond, taken, dst, &a),
            (false, true) if width == Width::W64 && a.as_const() == Some(0) => {
                if let Src::Reg(r) = src {
                    self.null_check(cond, taken, r, &b);
                }
            }
            _ => {}
        }
        Some(self)
    }

    fn narrow(&mut self, r: Reg, num: Num) {
        let kind = match &self.reg(r).kind {
            Kind::Unknown if num.as_const() == Some(0) => Kind::Scalar,
            k => k.clone(),
        };
        self.set_reg(r, Value { kind, num });
    }

    /// `p == 0` or `p != 0`, where `p` is what register `r` holds.
    fn null_check(&mut self, cond: Cond, taken: bool, r: Reg, p: &Value) {
        let is_null = match cond {
            Cond::Eq => taken,
            Cond::Ne => !taken,
            _ => return,
        };
        let Kind::Pointer { region, base, nullable: true } = &p.kind else { return };
        let settle = |v: &mut Value| match &mut v.kind {
            _ if is_null => *v = Value::constant(0),
            Kind::Pointer { nullable, .. } => *nullable = false,
            _ => {}
        };
        let mut own = p.clone();
        settle(&mut own);
        self.set_reg(r, own);
        // All copies share the base's fate.
        self.update(
            |v| matches!(&v.kind, Kind::Pointer { region: q, base: b, nullable: true } if q == region && base.same(*b)),
            settle,
        );
    }

    fn compare_with_end(&mut self, cond: Cond, taken: bool, a: &Value, b: &Value) {
        let cond = match (taken, cond.negate()) {
            (true, _) => cond,
            (false, Some(c)) => c,
            (false, None) => return,
        };
        self.packet_at_most(cond, a, b);
        self.packet_at_most(cond.swap(), b, a);
    }

    /// Learns from `p cond end`.
    fn packet_at_most(&mut self, cond: Cond, p: &Value, end: &Value) {
        let beyond = match cond {
            Cond::Le | Cond::Eq => 0,
            Cond::Lt => 1,
            _ => return,
        };
        let Kind::Pointer { region: Region::Packet, base, nullable: false } = &p.kind else { return };
        let Some((Region::PacketEnd, end_base, 0)) = end.pointer_at() else { return };
        let current = base.same(self.packet_base()) && end_base.same(self.packet_base());
        if current && p.num.umax <= MAX_PACKET_OFFSET {
            self.packet_readable(p.num.umin as u32 + beyond);
        }
    }
}

/// The members of `a` and `b` for which the test comes out as `taken`; `None` if there are none.
pub fn refine(cond: Cond, width: Width, taken: bool, a: &Num, b: &Num) -> Option<(Num, Num)> {
    match width {
        Width::W64 => refine_whole(cond, taken, a, b),
        Width::W32 => {
            let (low_a, low_b) = refine_whole(cond, taken, &a.truncate(32), &b.truncate(32))?;
            let back = |whole: &Num, low: &Num| whole.meet(&whole.extract(32, 32).concat(low));
            Some((back(a, &low_a)?, back(b, &low_b)?))
        }
    }
}

fn refine_whole(cond: Cond, taken: bool, a: &Num, b: &Num) -> Option<(Num, Num)> {
    let cond = match (taken, cond.negate()) {
        (true, _) => cond,
        (false, Some(c)) => c,
        (false, None) => return Some((without_bits(a, b)?, without_bits(b, a)?)),
    };
    let swapped = |r: Option<(Num, Num)>| r.map(|(b, a)| (a, b));
    match cond {
        Cond::Eq => a.meet(b).map(|m| (m, m)),
        Cond::Ne => Some((other_than(a, b)?, other_than(b, a)?)),
        Cond::Lt => below(a, b, 1),
        Cond::Le => below(a, b, 0),
        Cond::Gt => swapped(below(b, a, 1)),
        Cond::Ge => swapped(below(b, a, 0)),
        Cond::Slt => signed_below(a, b, 1),
        Cond::Sle => signed_below(a, b, 0),
        Cond::Sgt => swapped(signed_below(b, a, 1)),
        Cond::Sge => swapped(signed_below(b, a, 0)),
        Cond::Set => Some((with_a_bit(a, b)?, with_a_bit(b, a)?)),
    }
}

/// `a + gap <= b`, unsigned.
fn below(a: &Num, b: &Num, gap: u64) -> Option<(Num, Num)> {
    let most = b.umax.checked_sub(gap)?;
    let least = a.umin.checked_add(gap)?;
    let low = Num { umax: a.umax.min(most), ..*a };
    let high = Num { umin: b.umin.max(least), ..*b };
    Some((low.meet(a)?, high.meet(b)?))
}

/// `a + gap <= b`, signed.
fn signed_below(a: &Num, b: &Num, gap: i64) -> Option<(Num, Num)> {
    let most = b.smax.checked_sub(gap)?;
    let least = a.smin.checked_add(gap)?;
    let low = Num { smax: a.smax.min(most), ..*a };
    let high = Num { smin: b.smin.max(least), ..*b };
    Some((low.meet(a)?, high.meet(b)?))
}

/// The members of `a` that differ from `b`, where `b` is a constant at an end of `a`.
fn other_than(a: &Num, b: &Num) -> Option<Num> {
    let (Some(c), Some(s)) = (b.as_const(), b.as_signed_const()) else { return Some(*a) };
    if a.as_const() == Some(c) {
        return None;
    }
    let mut n = *a;
    if n.umin == c {
        n.umin += 1;
    }
    if n.umax == c {
        n.umax -= 1;
    }
    if n.smin == s {
        n.smin += 1;
    }
    if n.smax == s {
        n.smax -= 1;
    }
    n.meet(a)
}

/// The members of `a` that share no bit with `b`.
fn without_bits(a: &Num, b: &Num) -> Option<Num> {
    let all = Num::top(a.bits).tnum.mask;
    a.meet(&Num::with_bits(a.bits, Tnum::unknown(all & !b.tnum.value)))
}

/// The members of `a` that share a bit with `b`.
fn with_a_bit(a: &Num, b: &Num) -> Option<Num> {
    let possible = (a.tnum.value | a.tnum.mask) & (b.tnum.value | b.tnum.mask);
    if possible == 0 {
        return None;
    }
    let a = other_than(a, &Num::constant(a.bits, 0))?;
    if possible.is_power_of_two() {
        let all = Num::top(a.bits).tnum.mask;
        return a.meet(&Num::with_bits(a.bits, Tnum { value: possible, mask: all & !possible }));
    }
    Some(a)
}
