//! Random numbers that are the same in every run.
//!
//! One idea: what a test does follows from a seed and a number, so that any failure can be repeated alone.

/// A seeded generator; equal seeds give equal numbers on every machine.
#[derive(Clone, Debug)]
pub struct Rng(fastrand::Rng);

impl Rng {
    /// A generator.
    pub fn new(seed: u64) -> Rng {
        Rng(fastrand::Rng::with_seed(seed))
    }

    /// One for part `n` of a larger task: different parts have nothing in common.
    pub fn of(seed: u64, n: u64) -> Rng {
        Rng::new(mix(mix(seed).wrapping_add(n)))
    }

    /// Any number of 64 bits.
    #[allow(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number less than `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.0.u64(..n) }
    }

    /// True once in so many times.
    pub fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    /// One of these, of which there must be some.
    pub fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.0.usize(..of.len())]
    }

    /// A number of `w` bits (1 to 64), mostly an interesting one: near powers of two, small, runs of ones.
    pub fn number(&mut self, w: u32) -> u64 {
        let sign = 1u64 << (w - 1);
        let bit = 1u64 << self.below(w.into());
        mask(w)
            & match self.below(14) {
                0 => 0,
                1 => 1,
                2 => u64::MAX,
                3 => sign,
                4 => sign - 1,
                5 => bit,
                6 => bit - 1,
                7 => bit.wrapping_neg(),
                8 => !bit,
                9 => self.below(16),
                10 => bit | self.below(256),
                11 => sign | self.below(16),
                // A run of ones.
                12 => (u64::MAX << self.below(w.into())) & mask(1 + self.below(w.into()) as u32),
                _ => self.next(),
            }
    }
}

/// The low `w` bits, 1 to 64.
fn mask(w: u32) -> u64 {
    u64::MAX >> (64 - w)
}

/// Scrambles a number: the last step of SplitMix64. For what is a function of its input, such as the contents of
/// memory that nobody wrote.
pub fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
