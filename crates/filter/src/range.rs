//! Ranges of 32-bit numbers, and what arithmetic on numbers of two ranges can come to.

use crate::language::Binary;
use crate::value::apply;

/// From the least to the greatest number that something may be, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub(crate) least: u32,
    pub(crate) greatest: u32,
}

impl Range {
    pub(crate) const ANY: Range = Range { least: 0, greatest: u32::MAX };

    pub(crate) fn up_to(greatest: u32) -> Range {
        Range { least: 0, greatest }
    }

    pub(crate) fn one(n: u32) -> Range {
        Range { least: n, greatest: n }
    }

    fn single(self) -> Option<u32> {
        (self.least == self.greatest).then_some(self.least)
    }

    /// What holds the numbers of both.
    pub(crate) fn hull(self, other: Range) -> Range {
        Range { least: self.least.min(other.least), greatest: self.greatest.max(other.greatest) }
    }

    /// Of the numbers from one to the other, modulo 2^32: a range if all of them wrap as often.
    fn wrapped(least: i64, greatest: i64) -> Range {
        let (below, above) = (least.div_euclid(1 << 32), greatest.div_euclid(1 << 32));
        // The lower 32 bits.
        if below == above { Range { least: least as u32, greatest: greatest as u32 } } else { Range::ANY }
    }

    /// All numbers that arithmetic may give where it gives one: a divisor of 0 gives none.
    pub(crate) fn of(op: Binary, a: Range, b: Range) -> Range {
        if let (Some(x), Some(y)) = (a.single(), b.single()) {
            return apply(op, x, y).map_or(Range::ANY, Range::one);
        }
        let wide = |n: u32| i64::from(n);
        match op {
            Binary::Add => Range::wrapped(wide(a.least) + wide(b.least), wide(a.greatest) + wide(b.greatest)),
            Binary::Sub => Range::wrapped(wide(a.least) - wide(b.greatest), wide(a.greatest) - wide(b.least)),
            Binary::Mul => match a.greatest.checked_mul(b.greatest) {
                Some(greatest) => Range { least: a.least * b.least, greatest },
                None => Range::ANY,
            },
            Binary::Div => Range { least: a.least / b.greatest.max(1), greatest: a.greatest / b.least.max(1) },
            Binary::Mod if a.greatest < b.least => a,
            Binary::Mod => Range::up_to(a.greatest.min(b.greatest.saturating_sub(1))),
            Binary::And => Range::up_to(a.greatest.min(b.greatest)),
            Binary::Or => Range { least: a.least.max(b.least), greatest: ones_below(a.greatest | b.greatest) },
            Binary::Xor => Range::up_to(ones_below(a.greatest | b.greatest)),
            // Shifts by more than 31 give 0.
            Binary::ShiftLeft if b.least > 31 => Range::one(0),
            Binary::ShiftLeft => {
                let greatest = u64::from(a.greatest) << b.greatest.min(31);
                match u32::try_from(greatest) {
                    Ok(greatest) if b.greatest > 31 => Range::up_to(greatest),
                    Ok(greatest) => Range { least: a.least << b.least, greatest },
                    Err(_) => Range::ANY,
                }
            }
            Binary::ShiftRight => {
                let of = |n: u32, by: u32| n.checked_shr(by).unwrap_or(0);
                Range { least: of(a.least, b.greatest), greatest: of(a.greatest, b.least) }
            }
        }
    }
}

/// The number whose bits are those of `n` and all below its highest one.
fn ones_below(n: u32) -> u32 {
    u32::MAX.checked_shr(n.leading_zeros()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    #[test]
    fn results_are_in_the_range() {
        let mut random = Rng::with_seed(3);
        let number = |random: &mut Rng| match random.u32(0..4) {
            0 => random.u32(0..70),
            1 => u32::MAX - random.u32(0..70),
            _ => random.u32(..) >> random.u32(0..32),
        };
        let mut narrower = 0;
        for _ in 0..200_000 {
            let mut range = || {
                let (a, b) = (number(&mut random), number(&mut random));
                let b = if random.bool() { b } else { a.saturating_add(b & 0xf) };
                Range { least: a.min(b), greatest: a.max(b) }
            };
            let (a, b) = (range(), range());
            for op in Binary::ALL {
                let result = Range::of(op, a, b);
                narrower += u32::from(result != Range::ANY);
                let mut within = |r: Range| match random.u32(0..3) {
                    0 => r.least,
                    1 => r.greatest,
                    _ => random.u32(r.least..=r.greatest),
                };
                let (x, y) = (within(a), within(b));
                let Some(n) = apply(op, x, y) else { continue };
                assert!(result.least <= n && n <= result.greatest, "{x} {op:?} {y} = {n}: {a:?}, {b:?}, {result:?}");
            }
        }
        assert!(narrower > 1_000_000, "{narrower}");
    }

    #[test]
    fn what_wraps_as_often_is_a_range() {
        let of = Range::of;
        let byte = Range::up_to(0xff);
        assert_eq!(of(Binary::Sub, byte, Range::one(1)), Range::ANY);
        assert_eq!(
            of(Binary::Add, Range { least: 8, greatest: 60 }, Range::one(8u32.wrapping_neg())),
            Range::up_to(52)
        );
        assert_eq!(of(Binary::Mul, byte, Range::one(4)), Range::up_to(1020));
        assert_eq!(of(Binary::Mul, byte, Range::one(1 << 25)), Range::ANY);
    }
}
