//! Random numbers that are the same in every run.
//!
//! One idea: what a test does follows from a seed and a number, so that any failure can be repeated alone.

/// A seeded generator; equal seeds give equal numbers on every machine.
#[derive(Clone, Debug)]
pub struct Random(fastrand::Rng);

impl Random {
    /// A generator.
    pub fn new(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    /// One for part `n` of a larger task: different parts have nothing in common.
    pub fn of(seed: u64, n: u64) -> Random {
        Random::new(Random::new(seed ^ n.wrapping_mul(0xd129_42f0_9f6c_4c8b)).bits())
    }

    /// Any number of 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number less than `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.0.u64(..n) }
    }

    /// One time in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of the choices, of which there must be some.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.0.usize(..choices.len())]
    }

    /// A number of the kind at which arithmetic goes wrong: near powers of two, small, or any.
    pub fn edge(&mut self) -> u64 {
        match self.below(5) {
            0 => self.bits(),
            1 => self.bits() >> self.below(64),
            2 => (1u64 << self.below(64)).wrapping_add(self.below(5)).wrapping_sub(2),
            3 => self.bits() as i32 as i64 as u64,
            _ => self.below(70),
        }
    }
}
