//! The operations a kind of value must offer so that the instruction semantics can run over it.

/// Bit-vector values of 1 to 64 bits and truth values.
///
/// Every value knows its width; both operands of a binary operation have the same one. Operations
/// wrap. Shift amounts passed here are already smaller than the width (the instruction semantics
/// mask them), divisors may be zero but the result is then discarded by an [`Domain::ite`].
pub trait Domain {
    /// A bit vector.
    type V: Clone;
    /// A truth value.
    type B: Clone;

    /// The number `v` truncated to `bits`.
    fn constant(&mut self, bits: u32, v: u64) -> Self::V;
    /// `a + b`
    fn add(&mut self, a: &Self::V, b: &Self::V) -> Self::V;
    /// `a - b`
    fn sub(&mut self, a: &Self::V, b: &Self::V) -> Self::V;
    /// `a * b`
    fn mul(&mut self, a: &Self::V, b: &Self::V) -> Self::V;
    /// Unsigned quotient; anything if `b` is zero.
    fn udiv(&mut self, a: &Self::V, b: &Self::V) -> Self::V;
    /// Unsigned remainder; anything if `b` is zero.
    fn urem(&mut self, a: &Self::V, b: &Self::V) -> Self::V;
    /// Signed quotient truncated toward zero, wrapping for `MIN / -1`; anything if `b` is zero.
    fn sdiv(&mut self, a: &Self::V, b: &Self::V) -> Self::V;
    /// Signed remainder with the dividend's sign; anything if `b` is zero.
    fn srem(&mut self, a: &Self::V, b: &Self::V) -> Self::V;
    /// Bitwise and.
    fn and(&mut self, a: &Self::V, b: &Self::V) -> Self::V;
    /// Bitwise or.
    fn or(&mut self, a: &Self::V, b: &Self::V) -> Self::V;
    /// Bitwise exclusive or.
    fn xor(&mut self, a: &Self::V, b: &Self::V) -> Self::V;
    /// `a << b`
    fn shl(&mut self, a: &Self::V, b: &Self::V) -> Self::V;
    /// `a >> b`, zeros shifted in.
    fn lshr(&mut self, a: &Self::V, b: &Self::V) -> Self::V;
    /// `a >> b`, the sign shifted in.
    fn ashr(&mut self, a: &Self::V, b: &Self::V) -> Self::V;
    /// The `bits` bits starting at bit `lo`.
    fn extract(&mut self, a: &Self::V, lo: u32, bits: u32) -> Self::V;
    /// Zero-extended to `bits`.
    fn zext(&mut self, a: &Self::V, bits: u32) -> Self::V;
    /// Sign-extended to `bits`.
    fn sext(&mut self, a: &Self::V, bits: u32) -> Self::V;
    /// `high` above `low`; the widths add up.
    fn concat(&mut self, high: &Self::V, low: &Self::V) -> Self::V;
    /// `a` if `c`, else `b`.
    fn ite(&mut self, c: &Self::B, a: &Self::V, b: &Self::V) -> Self::V;
    /// `a == b`
    fn eq(&mut self, a: &Self::V, b: &Self::V) -> Self::B;
    /// `a < b`, unsigned.
    fn ult(&mut self, a: &Self::V, b: &Self::V) -> Self::B;
    /// `a < b`, signed.
    fn slt(&mut self, a: &Self::V, b: &Self::V) -> Self::B;
    /// Negation.
    fn not(&mut self, a: &Self::B) -> Self::B;
}
