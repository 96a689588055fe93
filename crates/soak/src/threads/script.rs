//! What the other thread writes: rounds of stores whose values say by themselves when something is wrong.
//!
//! One idea: round after round the same words get values that depend on the number of the round alone: numbers that
//! only grow, words whose halves are equal, the two numbers of a seqlock. So equalities and orders between what a
//! program reads tell in which order it read, and how often. The steps of a script are numbered through, for ever.

use bpf_testgen::random::Rng;

/// Words of the memory that is shared.
pub const WORDS: usize = 8;
/// The first word that is the program's to write; those before are the other thread's.
pub const OWN: usize = 4;
/// Rounds that are over before anything begins, so that no word holds what it never gets again.
const ROUNDS_BEFORE: u64 = 4;

/// What is stored in a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// The number of the round.
    Count,
    /// The number of the round in both halves.
    Halves,
    /// 16 bits of it, four times.
    Quarters,
    /// A large number less that of the round.
    Down,
    /// An odd number: the seqlock's writer is at work.
    Odd,
    /// The even number after it: it is done.
    Even,
}

impl Value {
    fn of(self, round: u64) -> u64 {
        match self {
            Value::Count => round,
            Value::Halves => round << 32 | round & 0xffff_ffff,
            Value::Quarters => (round & 0xffff) * 0x0001_0001_0001_0001,
            Value::Down => (1 << 31) - round,
            Value::Odd => 2 * round - 1,
            Value::Even => 2 * round,
        }
    }
}

/// A round of stores, each of a whole word.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    steps: Vec<(usize, Value)>,
}

impl Script {
    /// A random script that writes every word before [`OWN`], and now and then one of the program's. The word of a
    /// seqlock, if there is one, is word 0.
    pub fn random(r: &mut Rng) -> Script {
        let mut words: Vec<usize> = (0..OWN).collect();
        for i in (1..words.len()).rev() {
            words.swap(i, r.below(i as u64 + 1) as usize);
        }
        let data = [Value::Count, Value::Count, Value::Halves, Value::Quarters, Value::Down];
        let mut steps: Vec<(usize, Value)> = words.into_iter().map(|w| (w, r.one_of(&data))).collect();
        if r.chance(2) {
            steps.retain(|(w, _)| *w != 0);
            steps.insert(0, (0, Value::Odd));
            steps.push((0, Value::Even));
        }
        if r.chance(4) {
            let contested = OWN + r.below((WORDS - OWN) as u64) as usize;
            let at = r.below(steps.len() as u64 + 1) as usize;
            steps.insert(at, (contested, r.one_of(&data)));
        }
        Script { steps }
    }

    /// The script of these words and values, of which there must be some.
    pub fn of(steps: Vec<(usize, Value)>) -> Script {
        assert!(!steps.is_empty() && steps.iter().all(|(word, _)| *word < WORDS), "a script stores in what is shared");
        Script { steps }
    }

    /// Steps of a round.
    pub fn round(&self) -> u64 {
        self.steps.len() as u64
    }

    /// Where a run may begin, that is, before which step.
    pub fn beginnings(&self) -> std::ops::Range<u64> {
        let first = ROUNDS_BEFORE * self.round();
        first..first + self.round()
    }

    /// What step `n` stores, and in which word.
    pub fn step(&self, n: u64) -> (usize, u64) {
        let (word, value) = self.steps[(n % self.round()) as usize];
        (word, value.of(1 + n / self.round()))
    }

    /// The memory before step `n`. What is the program's alone is zero.
    pub fn memory(&self, n: u64) -> [u64; WORDS] {
        let mut memory = [0; WORDS];
        for step in n.saturating_sub(self.round())..n {
            let (word, value) = self.step(step);
            memory[word] = value;
        }
        memory
    }
}

impl std::fmt::Display for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the other thread stores, round by round:")?;
        self.steps.iter().try_for_each(|(word, value)| write!(f, " +{} {value:?};", 8 * word))
    }
}
