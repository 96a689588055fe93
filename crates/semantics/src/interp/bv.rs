//! Concrete bit vectors: the [`Domain`](crate::Domain) of plain numbers.

/// A number of 1 to 64 bits; the bits above the width are zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bv {
    /// Its width.
    pub bits: u32,
    /// Its value, zero-extended.
    pub v: u64,
}

impl Bv {
    /// `v` truncated to `bits`.
    #[inline]
    pub const fn new(bits: u32, v: u64) -> Bv {
        Bv { bits, v: v & (u64::MAX >> (64 - bits)) }
    }

    /// The value, sign-extended.
    #[inline]
    pub const fn signed(self) -> i64 {
        let up = 64 - self.bits;
        ((self.v << up) as i64) >> up
    }
}

/// The domain of plain numbers without a machine around it, for folding constants with
/// [`alu`](crate::alu) and [`compare`](crate::compare).
#[derive(Clone, Copy, Debug, Default)]
pub struct Concrete;

/// Implements [`Domain`](crate::Domain) over [`Bv`] for a machine: nothing in it depends on the machine.
macro_rules! concrete_domain {
    ([$($generics:tt)*] $machine:ty) => {
        impl<$($generics)*> $crate::Domain for $machine {
            type V = $crate::interp::Bv;
            type B = bool;

            #[inline]
            fn constant(&mut self, bits: u32, v: u64) -> Self::V {
                Bv::new(bits, v)
            }
            #[inline]
            fn add(&mut self, a: &Self::V, b: &Self::V) -> Self::V {
                Bv::new(a.bits, a.v.wrapping_add(b.v))
            }
            #[inline]
            fn sub(&mut self, a: &Self::V, b: &Self::V) -> Self::V {
                Bv::new(a.bits, a.v.wrapping_sub(b.v))
            }
            #[inline]
            fn mul(&mut self, a: &Self::V, b: &Self::V) -> Self::V {
                Bv::new(a.bits, a.v.wrapping_mul(b.v))
            }
            #[inline]
            fn udiv(&mut self, a: &Self::V, b: &Self::V) -> Self::V {
                Bv::new(a.bits, a.v.checked_div(b.v).unwrap_or(0))
            }
            #[inline]
            fn urem(&mut self, a: &Self::V, b: &Self::V) -> Self::V {
                Bv::new(a.bits, a.v.checked_rem(b.v).unwrap_or(0))
            }
            #[inline]
            fn sdiv(&mut self, a: &Self::V, b: &Self::V) -> Self::V {
                let q = if b.v == 0 { 0 } else { a.signed().wrapping_div(b.signed()) };
                Bv::new(a.bits, q as u64)
            }
            #[inline]
            fn srem(&mut self, a: &Self::V, b: &Self::V) -> Self::V {
                let r = if b.v == 0 { 0 } else { a.signed().wrapping_rem(b.signed()) };
                Bv::new(a.bits, r as u64)
            }
            #[inline]
            fn and(&mut self, a: &Self::V, b: &Self::V) -> Self::V {
                Bv { bits: a.bits, v: a.v & b.v }
            }
            #[inline]
            fn or(&mut self, a: &Self::V, b: &Self::V) -> Self::V {
                Bv { bits: a.bits, v: a.v | b.v }
            }
            #[inline]
            fn xor(&mut self, a: &Self::V, b: &Self::V) -> Self::V {
                Bv { bits: a.bits, v: a.v ^ b.v }
            }
            #[inline]
            fn shl(&mut self, a: &Self::V, b: &Self::V) -> Self::V {
                Bv::new(a.bits, a.v << b.v)
            }
            #[inline]
            fn lshr(&mut self, a: &Self::V, b: &Self::V) -> Self::V {
                Bv { bits: a.bits, v: a.v >> b.v }
            }
            #[inline]
            fn ashr(&mut self, a: &Self::V, b: &Self::V) -> Self::V {
                Bv::new(a.bits, (a.signed() >> b.v) as u64)
            }
            #[inline]
            fn extract(&mut self, a: &Self::V, lo: u32, bits: u32) -> Self::V {
                Bv::new(bits, a.v >> lo)
            }
            #[inline]
            fn zext(&mut self, a: &Self::V, bits: u32) -> Self::V {
                Bv { bits, v: a.v }
            }
            #[inline]
            fn sext(&mut self, a: &Self::V, bits: u32) -> Self::V {
                Bv::new(bits, a.signed() as u64)
            }
            #[inline]
            fn concat(&mut self, high: &Self::V, low: &Self::V) -> Self::V {
                Bv::new(high.bits + low.bits, high.v << low.bits | low.v)
            }
            #[inline]
            fn ite(&mut self, c: &bool, a: &Self::V, b: &Self::V) -> Self::V {
                if *c { *a } else { *b }
            }
            #[inline]
            fn eq(&mut self, a: &Self::V, b: &Self::V) -> bool {
                a.v == b.v
            }
            #[inline]
            fn ult(&mut self, a: &Self::V, b: &Self::V) -> bool {
                a.v < b.v
            }
            #[inline]
            fn slt(&mut self, a: &Self::V, b: &Self::V) -> bool {
                a.signed() < b.signed()
            }
            #[inline]
            fn not(&mut self, a: &bool) -> bool {
                !a
            }
        }
    };
}
pub(super) use concrete_domain;

concrete_domain!([] Concrete);
