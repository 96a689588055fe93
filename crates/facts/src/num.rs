//! Abstract numbers: what is known of a bit vector of 1 to 64 bits.
//!
//! One idea: three views of one set of numbers (known bits, an unsigned range, a signed range) that
//! tighten each other, as the kernel verifier does (`kernel/bpf/tnum.c`, `__reg_bounds_sync`). An
//! operation computes an interval over the integers and its known bits; [`Num::of`] wraps the interval
//! to the width and lets the views agree. Promise: every number an operation can produce from members
//! of its operands is a member of its result. The tests check that exhaustively at small widths.

use bpf_semantics::Domain;

/// Known bits, in the kernel's form: bit `i` is unknown if set in `mask`, else it equals bit `i` of
/// `value`. `value & mask == 0`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tnum {
    /// The known bits that are one.
    pub value: u64,
    /// The unknown bits.
    pub mask: u64,
}

impl Tnum {
    /// Exactly `v`.
    pub const fn constant(v: u64) -> Tnum {
        Tnum { value: v, mask: 0 }
    }

    /// Nothing known of the bits in `mask`; the others are zero.
    pub const fn unknown(mask: u64) -> Tnum {
        Tnum { value: 0, mask }
    }

    /// The bits in which all numbers of `min ..= max` agree.
    pub const fn range(min: u64, max: u64) -> Tnum {
        let differ = min ^ max;
        let delta = match differ.leading_zeros() {
            0 => u64::MAX,
            n => (1u64 << (64 - n)) - 1,
        };
        Tnum { value: min & !delta, mask: delta }
    }

    /// Whether `v` agrees with the known bits.
    pub const fn contains(self, v: u64) -> bool {
        v & !self.mask == self.value
    }

    const fn cut(self, bits: u32) -> Tnum {
        Tnum { value: self.value & ones(bits), mask: self.mask & ones(bits) }
    }

    fn add(self, o: Tnum) -> Tnum {
        let masks = self.mask.wrapping_add(o.mask);
        let values = self.value.wrapping_add(o.value);
        let carries = masks.wrapping_add(values) ^ values;
        let mask = carries | self.mask | o.mask;
        Tnum { value: values & !mask, mask }
    }

    fn sub(self, o: Tnum) -> Tnum {
        let difference = self.value.wrapping_sub(o.value);
        let borrows = difference.wrapping_add(self.mask) ^ difference.wrapping_sub(o.mask);
        let mask = borrows | self.mask | o.mask;
        Tnum { value: difference & !mask, mask }
    }

    fn mul(self, o: Tnum) -> Tnum {
        let (mut a, mut b) = (self, o);
        let mut unknown = Tnum::constant(0);
        while a.value | a.mask != 0 {
            if a.value & 1 == 1 {
                unknown = unknown.add(Tnum::unknown(b.mask));
            } else if a.mask & 1 == 1 {
                unknown = unknown.add(Tnum::unknown(b.value | b.mask));
            }
            a = Tnum { value: a.value >> 1, mask: a.mask >> 1 };
            b = Tnum { value: b.value << 1, mask: b.mask << 1 };
        }
        Tnum::constant(self.value.wrapping_mul(o.value)).add(unknown)
    }

    fn and(self, o: Tnum) -> Tnum {
        let value = self.value & o.value;
        Tnum { value, mask: (self.value | self.mask) & (o.value | o.mask) & !value }
    }

    fn or(self, o: Tnum) -> Tnum {
        let value = self.value | o.value;
        Tnum { value, mask: (self.mask | o.mask) & !value }
    }

    fn xor(self, o: Tnum) -> Tnum {
        let mask = self.mask | o.mask;
        Tnum { value: (self.value ^ o.value) & !mask, mask }
    }

    fn join(self, o: Tnum) -> Tnum {
        let mask = self.mask | o.mask | (self.value ^ o.value);
        Tnum { value: self.value & !mask, mask }
    }

    fn meet(self, o: Tnum) -> Option<Tnum> {
        if (self.value ^ o.value) & !self.mask & !o.mask != 0 {
            return None;
        }
        let mask = self.mask & o.mask;
        Some(Tnum { value: (self.value | o.value) & !mask, mask })
    }
}

/// The lowest `bits` bits set.
const fn ones(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// `v`, of `bits` bits, as a signed number.
const fn signed(bits: u32, v: u64) -> i64 {
    let unused = 64 - bits;
    ((v << unused) as i64) >> unused
}

/// A non-empty set of numbers of `bits` bits: the members of all three views.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Num {
    /// Width, 1 to 64.
    pub bits: u32,
    /// Known bits.
    pub tnum: Tnum,
    /// Least member, unsigned.
    pub umin: u64,
    /// Greatest member, unsigned.
    pub umax: u64,
    /// Least member, signed.
    pub smin: i64,
    /// Greatest member, signed.
    pub smax: i64,
}

/// Bounds at which a growing range stops for a while during widening.
const THRESHOLDS: [u64; 10] =
    [0, 0xff, 0x1ff, 0xffff, 0x1f_ffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64 >> 1, i64::MAX as u64, u64::MAX];

impl Num {
    /// Every number of that width.
    pub const fn top(bits: u32) -> Num {
        let all = ones(bits);
        Num {
            bits,
            tnum: Tnum::unknown(all),
            umin: 0,
            umax: all,
            smin: signed(bits, 1 << (bits - 1)),
            smax: (all >> 1) as i64,
        }
    }

    /// `v`, truncated to the width.
    pub const fn constant(bits: u32, v: u64) -> Num {
        let v = v & ones(bits);
        let s = signed(bits, v);
        Num { bits, tnum: Tnum::constant(v), umin: v, umax: v, smin: s, smax: s }
    }

    /// The unsigned numbers `lo ..= hi`; top if that is empty.
    pub fn unsigned(bits: u32, lo: u64, hi: u64) -> Num {
        Num::of(bits, Tnum::unknown(ones(bits)), &[(lo.into(), hi.into())])
    }

    /// The signed numbers `lo ..= hi`; top if that is empty.
    pub fn signed(bits: u32, lo: i64, hi: i64) -> Num {
        Num::of(bits, Tnum::unknown(ones(bits)), &[(lo.into(), hi.into())])
    }

    /// The numbers with these known bits.
    pub fn with_bits(bits: u32, tnum: Tnum) -> Num {
        Num::of(bits, tnum, &[])
    }

    /// The numbers that have these known bits and are, modulo 2^`bits`, in every one of the intervals.
    fn of(bits: u32, tnum: Tnum, intervals: &[(i128, i128)]) -> Num {
        let mut n = Num { tnum: tnum.cut(bits), ..Num::top(bits) };
        for &(lo, hi) in intervals {
            if lo > hi || hi.checked_sub(lo).is_none_or(|width| width >> bits != 0) {
                continue;
            }
            let (l, h) = (lo as u64 & ones(bits), hi as u64 & ones(bits));
            if l <= h {
                n.umin = n.umin.max(l);
                n.umax = n.umax.min(h);
            }
            let (l, h) = (signed(bits, l), signed(bits, h));
            if l <= h {
                n.smin = n.smin.max(l);
                n.smax = n.smax.min(h);
            }
        }
        // Contradictory operands describe no execution at all: any answer is right for them.
        n.sync().unwrap_or(Num::top(bits))
    }

    /// Lets the three views tighten each other; `None` if they are seen to contradict.
    fn sync(mut self) -> Option<Num> {
        let sign = 1u64 << (self.bits - 1);
        for _ in 0..4 {
            let before = self;
            let t = self.tnum;
            self.umin = self.umin.max(t.value);
            self.umax = self.umax.min(t.value | t.mask);
            self.smin = self.smin.max(signed(self.bits, t.value | (t.mask & sign)));
            self.smax = self.smax.min(signed(self.bits, t.value | (t.mask & !sign)));
            if self.umin > self.umax || self.smin > self.smax {
                return None;
            }
            if (self.smin < 0) == (self.smax < 0) {
                self.umin = self.umin.max(self.smin as u64 & ones(self.bits));
                self.umax = self.umax.min(self.smax as u64 & ones(self.bits));
            }
            if self.umin > self.umax {
                return None;
            }
            if self.umin & sign == self.umax & sign {
                self.smin = self.smin.max(signed(self.bits, self.umin));
                self.smax = self.smax.min(signed(self.bits, self.umax));
            }
            if self.smin > self.smax {
                return None;
            }
            self.tnum = self.tnum.meet(Tnum::range(self.umin, self.umax))?;
            if self == before {
                break;
            }
        }
        Some(self)
    }

    /// The only member, if there is one.
    pub fn as_const(&self) -> Option<u64> {
        (self.umin == self.umax).then_some(self.umin)
    }

    /// The only member, sign-extended.
    pub fn as_signed_const(&self) -> Option<i64> {
        self.as_const().map(|v| signed(self.bits, v))
    }

    /// Whether nothing is known.
    pub fn is_top(&self) -> bool {
        *self == Num::top(self.bits)
    }

    /// Whether `v` (of the same width) is a member.
    pub fn contains(&self, v: u64) -> bool {
        let s = signed(self.bits, v);
        v & !ones(self.bits) == 0
            && self.tnum.contains(v)
            && (self.umin..=self.umax).contains(&v)
            && (self.smin..=self.smax).contains(&s)
    }

    /// The members of either.
    #[must_use]
    pub fn join(&self, o: &Num) -> Num {
        if self == o {
            return *self;
        }
        Num {
            bits: self.bits,
            tnum: self.tnum.join(o.tnum),
            umin: self.umin.min(o.umin),
            umax: self.umax.max(o.umax),
            smin: self.smin.min(o.smin),
            smax: self.smax.max(o.smax),
        }
        .sync()
        .unwrap_or(Num::top(self.bits))
    }

    /// The members of both; `None` if there are none (not every such case is seen).
    pub fn meet(&self, o: &Num) -> Option<Num> {
        Num {
            bits: self.bits,
            tnum: self.tnum.meet(o.tnum)?,
            umin: self.umin.max(o.umin),
            umax: self.umax.min(o.umax),
            smin: self.smin.max(o.smin),
            smax: self.smax.min(o.smax),
        }
        .sync()
    }

    /// A superset of `next` (itself a superset of `self`) such that repeated widening soon stands still.
    #[must_use]
    pub fn widen(&self, next: &Num) -> Num {
        let n = *next;
        let limit = ones(n.bits);
        let above = |v: u64| THRESHOLDS.into_iter().find(|t| *t >= v).unwrap_or(limit).min(limit);
        let below = |v: i64| -(above(v.unsigned_abs()).min(i64::MAX as u64) as i64) - 1;
        let top = Num::top(n.bits);
        Num {
            bits: n.bits,
            tnum: if n.tnum.mask == self.tnum.mask { n.tnum } else { spread(n.tnum, n.bits) },
            umin: if n.umin < self.umin { 0 } else { n.umin },
            umax: if n.umax > self.umax { above(n.umax) } else { n.umax },
            smin: if n.smin < self.smin { if n.smin >= 0 { 0 } else { below(n.smin).max(top.smin) } } else { n.smin },
            smax: match (n.smax > self.smax, n.smax < 0) {
                (false, _) => n.smax,
                (true, true) => -1,
                (true, false) => (above(n.smax as u64).min(i64::MAX as u64) as i64).min(top.smax),
            },
        }
        .sync()
        .unwrap_or(top)
    }

    /// The `bits` lowest bits.
    #[must_use]
    pub fn truncate(&self, bits: u32) -> Num {
        if bits >= self.bits {
            return *self;
        }
        Num::of(bits, self.tnum, &[self.u(), self.s()])
    }

    /// The `bits` bits starting at bit `lo`.
    #[must_use]
    pub fn extract(&self, lo: u32, bits: u32) -> Num {
        if lo == 0 { self.truncate(bits) } else { self.lshr_by(lo).truncate(bits) }
    }

    /// Zero-extended to `bits`.
    #[must_use]
    pub fn zext(&self, bits: u32) -> Num {
        if bits == self.bits { *self } else { Num::of(bits, self.tnum, &[self.u()]) }
    }

    /// Sign-extended to `bits`.
    #[must_use]
    pub fn sext(&self, bits: u32) -> Num {
        let tnum =
            Tnum { value: signed(self.bits, self.tnum.value) as u64, mask: signed(self.bits, self.tnum.mask) as u64 };
        if bits == self.bits { *self } else { Num::of(bits, tnum, &[self.s()]) }
    }

    /// `self` above `low`.
    #[must_use]
    pub fn concat(&self, low: &Num) -> Num {
        let k = low.bits;
        let shift = |v: u64| if k == 64 { 0 } else { v << k };
        let tnum = Tnum { value: shift(self.tnum.value) | low.tnum.value, mask: shift(self.tnum.mask) | low.tnum.mask };
        let interval =
            ((i128::from(self.umin) << k) + i128::from(low.umin), (i128::from(self.umax) << k) + i128::from(low.umax));
        Num::of(self.bits + k, tnum, &[interval])
    }

    /// `self + o`
    #[must_use]
    pub fn add(&self, o: &Num) -> Num {
        let sum = |a: (i128, i128), b: (i128, i128)| (a.0 + b.0, a.1 + b.1);
        Num::of(self.bits, self.tnum.add(o.tnum), &[sum(self.u(), o.u()), sum(self.s(), o.s())])
    }

    /// `self - o`
    #[must_use]
    pub fn sub(&self, o: &Num) -> Num {
        let difference = |a: (i128, i128), b: (i128, i128)| (a.0 - b.1, a.1 - b.0);
        Num::of(self.bits, self.tnum.sub(o.tnum), &[difference(self.u(), o.u()), difference(self.s(), o.s())])
    }

    fn u(&self) -> (i128, i128) {
        (self.umin.into(), self.umax.into())
    }

    fn s(&self) -> (i128, i128) {
        (self.smin.into(), self.smax.into())
    }

    /// Greatest absolute value of a member, signed.
    fn magnitude(&self) -> i128 {
        self.s().0.abs().max(self.s().1.abs())
    }

    fn mul(&self, o: &Num) -> Num {
        let mut intervals = Vec::with_capacity(2);
        if let (Some(l), Some(h)) = (self.u().0.checked_mul(o.u().0), self.u().1.checked_mul(o.u().1)) {
            intervals.push((l, h));
        }
        let (a, b) = (self.s(), o.s());
        let corners = [a.0 * b.0, a.0 * b.1, a.1 * b.0, a.1 * b.1];
        intervals
            .push((corners.into_iter().min().unwrap_or(i128::MIN), corners.into_iter().max().unwrap_or(i128::MAX)));
        Num::of(self.bits, self.tnum.mul(o.tnum), &intervals)
    }

    fn udiv(&self, o: &Num) -> Num {
        if o.umax == 0 {
            return Num::top(self.bits);
        }
        Num::unsigned(self.bits, self.umin / o.umax, self.umax / o.umin.max(1))
    }

    fn urem(&self, o: &Num) -> Num {
        match o.as_const() {
            Some(0) => Num::top(self.bits),
            Some(c) if c.is_power_of_two() => self.and(&Num::constant(self.bits, c - 1)),
            _ if self.umax < o.umin => *self,
            _ => Num::unsigned(self.bits, 0, self.umax.min(o.umax - 1)),
        }
    }

    fn sdiv(&self, o: &Num) -> Num {
        if self.smin >= 0 && o.smin >= 0 {
            return self.udiv(o);
        }
        // The quotient is nearest to zero when the divisor is farthest; by zero is the caller's affair.
        // MIN / -1 gives +2^(n-1), which wraps: the interval is taken modulo 2^n.
        let (lo, hi) = self.s();
        let mut q: Option<(i128, i128)> = None;
        let mut include = |v: i128| q = Some(q.map_or((v, v), |(l, h)| (l.min(v), h.max(v))));
        let mut divisors = |from: i128, to: i128| {
            if from <= to {
                for d in [from, to] {
                    include(lo / d);
                    include(hi / d);
                    if lo < 0 && hi > 0 {
                        include(0);
                    }
                }
            }
        };
        divisors(o.s().0, o.s().1.min(-1));
        divisors(o.s().0.max(1), o.s().1);
        match q {
            Some(interval) => Num::of(self.bits, Tnum::unknown(u64::MAX), &[interval]),
            None => Num::top(self.bits),
        }
    }

    fn srem(&self, o: &Num) -> Num {
        if self.smin >= 0 && o.smin >= 0 {
            return self.urem(o);
        }
        let limit = o.magnitude() - 1;
        if limit < 0 {
            return Num::top(self.bits);
        }
        let (lo, hi) = self.s();
        Num::of(self.bits, Tnum::unknown(u64::MAX), &[(lo.min(0).max(-limit), hi.max(0).min(limit))])
    }

    fn and(&self, o: &Num) -> Num {
        Num::of(self.bits, self.tnum.and(o.tnum), &[(0, self.umax.min(o.umax).into())])
    }

    fn or(&self, o: &Num) -> Num {
        Num::of(self.bits, self.tnum.or(o.tnum), &[(self.umin.max(o.umin).into(), ones(self.bits).into())])
    }

    fn xor(&self, o: &Num) -> Num {
        Num::of(self.bits, self.tnum.xor(o.tnum), &[])
    }

    fn shl_by(&self, k: u32) -> Num {
        let tnum = Tnum { value: self.tnum.value << k, mask: self.tnum.mask << k };
        let up = |(l, h): (i128, i128)| (l << k, h << k);
        Num::of(self.bits, tnum, &[up(self.u()), up(self.s())])
    }

    fn lshr_by(&self, k: u32) -> Num {
        let tnum = Tnum { value: self.tnum.value >> k, mask: self.tnum.mask >> k };
        Num::of(self.bits, tnum, &[((self.umin >> k).into(), (self.umax >> k).into())])
    }

    fn ashr_by(&self, k: u32) -> Num {
        let down = |v: u64| (signed(self.bits, v) >> k) as u64;
        let tnum = Tnum { value: down(self.tnum.value), mask: down(self.tnum.mask) };
        Num::of(self.bits, tnum, &[((self.smin >> k).into(), (self.smax >> k).into())])
    }

    /// A shift by every amount that `amount` allows below the width, joined.
    fn shifted(&self, amount: &Num, by: impl Fn(&Num, u32) -> Num) -> Num {
        let last = amount.umax.min(u64::from(self.bits) - 1);
        (amount.umin..=last)
            .filter(|k| amount.contains(*k))
            .map(|k| by(self, k as u32))
            .reduce(|a, b| a.join(&b))
            .unwrap_or(Num::top(self.bits))
    }

    fn eq(&self, o: &Num) -> Option<bool> {
        match (self.as_const(), o.as_const()) {
            (Some(a), Some(b)) => Some(a == b),
            _ if self.meet(o).is_none() => Some(false),
            _ => None,
        }
    }

    fn ult(&self, o: &Num) -> Option<bool> {
        decided(self.umax < o.umin, self.umin >= o.umax)
    }

    fn slt(&self, o: &Num) -> Option<bool> {
        decided(self.smax < o.smin, self.smin >= o.smax)
    }
}

fn decided(yes: bool, no: bool) -> Option<bool> {
    match (yes, no) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

/// Makes every bit from the lowest to the highest unknown one unknown, so that the mask can grow only
/// a few more times.
fn spread(t: Tnum, bits: u32) -> Tnum {
    if t.mask == 0 {
        return t;
    }
    let mask = ones(64 - t.mask.leading_zeros()) & !ones(t.mask.trailing_zeros());
    Tnum { value: t.value & !mask, mask }.cut(bits)
}

/// The numbers without provenance as a value domain.
#[derive(Clone, Copy, Default, Debug)]
pub struct NumDomain;

impl Domain for NumDomain {
    type V = Num;
    type B = Option<bool>;

    fn constant(&mut self, bits: u32, v: u64) -> Num {
        Num::constant(bits, v)
    }
    fn add(&mut self, a: &Num, b: &Num) -> Num {
        a.add(b)
    }
    fn sub(&mut self, a: &Num, b: &Num) -> Num {
        a.sub(b)
    }
    fn mul(&mut self, a: &Num, b: &Num) -> Num {
        a.mul(b)
    }
    fn udiv(&mut self, a: &Num, b: &Num) -> Num {
        a.udiv(b)
    }
    fn urem(&mut self, a: &Num, b: &Num) -> Num {
        a.urem(b)
    }
    fn sdiv(&mut self, a: &Num, b: &Num) -> Num {
        a.sdiv(b)
    }
    fn srem(&mut self, a: &Num, b: &Num) -> Num {
        a.srem(b)
    }
    fn and(&mut self, a: &Num, b: &Num) -> Num {
        a.and(b)
    }
    fn or(&mut self, a: &Num, b: &Num) -> Num {
        a.or(b)
    }
    fn xor(&mut self, a: &Num, b: &Num) -> Num {
        a.xor(b)
    }
    fn shl(&mut self, a: &Num, b: &Num) -> Num {
        a.shifted(b, Num::shl_by)
    }
    fn lshr(&mut self, a: &Num, b: &Num) -> Num {
        a.shifted(b, Num::lshr_by)
    }
    fn ashr(&mut self, a: &Num, b: &Num) -> Num {
        a.shifted(b, Num::ashr_by)
    }
    fn extract(&mut self, a: &Num, lo: u32, bits: u32) -> Num {
        a.extract(lo, bits)
    }
    fn zext(&mut self, a: &Num, bits: u32) -> Num {
        a.zext(bits)
    }
    fn sext(&mut self, a: &Num, bits: u32) -> Num {
        a.sext(bits)
    }
    fn concat(&mut self, high: &Num, low: &Num) -> Num {
        high.concat(low)
    }
    fn ite(&mut self, c: &Option<bool>, a: &Num, b: &Num) -> Num {
        match c {
            Some(true) => *a,
            Some(false) => *b,
            None => a.join(b),
        }
    }
    fn eq(&mut self, a: &Num, b: &Num) -> Option<bool> {
        a.eq(b)
    }
    fn ult(&mut self, a: &Num, b: &Num) -> Option<bool> {
        a.ult(b)
    }
    fn slt(&mut self, a: &Num, b: &Num) -> Option<bool> {
        a.slt(b)
    }
    fn not(&mut self, a: &Option<bool>) -> Option<bool> {
        a.map(|t| !t)
    }
}
