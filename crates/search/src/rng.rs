//! Random numbers: small, fast, and the same on every machine for the same seed.

/// A generator. Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(fastrand::Rng);

impl Rng {
    /// The generator with this seed.
    pub fn new(seed: u64) -> Rng {
        Rng(fastrand::Rng::with_seed(seed))
    }

    /// The next 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number below `n`; 0 if `n` is 0.
    #[inline]
    pub fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { self.0.usize(..n) }
    }

    /// Whether an event of probability 1/`n` happens.
    #[inline]
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A number in [0, 1).
    #[inline]
    pub fn unit(&mut self) -> f64 {
        self.0.f64()
    }

    /// One of `of`; `None` if there is none.
    #[inline]
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        self.0.choice(of).copied()
    }
}

/// A number that depends on both and looks random.
#[inline]
pub fn mix(a: u64, b: u64) -> u64 {
    let t = u128::from(a ^ 0xa076_1d64_78bd_642f) * u128::from(b ^ 0xe703_7ed1_a0b4_28db);
    ((t >> 64) as u64 ^ t as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ a.rotate_left(23)
}
