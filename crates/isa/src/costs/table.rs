//! A table of costs, and what an instruction weighs by it.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::class::Class;
use crate::Insn;

/// What one class costs, in picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// In a chain of such operations: how long the next one waits for the result.
    pub dependent: u32,
    /// Among operations that do not wait for each other: how much longer one more makes it.
    pub independent: u32,
}

/// Where a table is from: lines of text, for people.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Origin {
    /// The architecture, as `uname -m` says.
    pub arch: String,
    /// The processor.
    pub cpu: String,
    /// The kernel whose JIT made the machine code; empty if nothing was run.
    pub kernel: String,
    /// The day.
    pub date: String,
    /// How the numbers came about.
    pub source: String,
}

impl Origin {
    const NONE: Origin = Origin {
        arch: String::new(),
        cpu: String::new(),
        kernel: String::new(),
        date: String::new(),
        source: String::new(),
    };
}

/// A table of costs.
#[derive(Clone)]
pub struct Costs {
    /// Where it is from.
    pub origin: Origin,
    costs: [Cost; Class::COUNT],
    /// What an instruction of each class weighs by itself.
    times: [u32; Class::COUNT],
    mark: u32,
}

/// One part in so many of what an operation is waited for counts where nothing is known of what stands around it.
const WAITED: u32 = 2;

impl Costs {
    /// A table with these numbers.
    pub fn new(origin: Origin, costs: impl Fn(Class) -> Cost) -> Costs {
        let costs: [Cost; Class::COUNT] = std::array::from_fn(|i| costs(Class::ALL[i]));
        let alone = |c: Cost| c.independent + c.dependent.saturating_sub(c.independent) / WAITED;
        Costs { origin, costs, times: costs.map(alone), mark: mark(&costs) }
    }

    /// What a class costs.
    pub const fn of(&self, class: Class) -> Cost {
        self.costs[class as usize]
    }

    /// What an instruction weighs by itself, in picoseconds: between what it takes in a chain and what it takes beside others.
    #[inline]
    pub const fn time(&self, insn: &Insn) -> u32 {
        self.times[Class::of(insn) as usize]
    }

    /// What an operation of a class weighs by itself.
    pub const fn class_time(&self, class: Class) -> u32 {
        self.times[class as usize]
    }

    /// What tells tables with other numbers apart.
    pub const fn mark(&self) -> u32 {
        self.mark
    }

    /// Rough weights that never change, for what is as long: with the goal `size` the result is the same on every machine, whatever is
    /// measured there.
    pub const fn rough() -> &'static Costs {
        &ROUGH
    }

    /// A table that only has this mark, and rough weights.
    pub(super) fn unknown(mark: u32) -> Costs {
        Costs { mark, ..ROUGH.clone() }
    }
}

/// By the numbers alone.
impl PartialEq for Costs {
    fn eq(&self, other: &Costs) -> bool {
        self.mark == other.mark
    }
}

impl Eq for Costs {}

impl Hash for Costs {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.mark.hash(state);
    }
}

impl fmt::Debug for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Costs({:08x})", self.mark)
    }
}

/// See [`Costs::rough`].
static ROUGH: Costs = {
    let mut costs = [Cost { dependent: 0, independent: 0 }; Class::COUNT];
    let mut times = [0; Class::COUNT];
    let mut i = 0;
    while i < Class::COUNT {
        let weight = Class::ALL[i].rough();
        costs[i] = Cost { dependent: weight, independent: weight };
        times[i] = weight;
        i += 1;
    }
    Costs { origin: Origin::NONE, mark: mark(&costs), costs, times }
};

/// FNV-1a over the numbers.
const fn mark(costs: &[Cost; Class::COUNT]) -> u32 {
    let mut hash = 0x811c_9dc5_u32;
    let mut i = 0;
    while i < 2 * Class::COUNT {
        let Cost { dependent, independent } = costs[i / 2];
        let word = if i % 2 == 0 { dependent } else { independent };
        let mut at = 0;
        while at < 32 {
            hash = (hash ^ (word >> at & 0xff)).wrapping_mul(0x0100_0193);
            at += 8;
        }
        i += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn time(costs: &Costs, text: &str) -> u32 {
        costs.time(&parse(text).expect("an instruction"))
    }

    #[test]
    fn rough_weights_stay_what_they_are() {
        let all = [
            ("r1 += r2", 300),
            ("r1 *= 3", 1000),
            ("w1 /= w2", 8000),
            ("r1 = *(u8 *)(r10 - 8)", 1300),
            ("*(u32 *)(r1 + 0) = r2", 600),
            ("lock *(u64 *)(r1 + 0) += r2", 5500),
            ("r1 = be16 r1", 600),
            ("r1 = be64 r1", 300),
            ("r1 = 7 ll", 300),
            ("call 1", 6000),
            ("exit", 300),
            ("if r1 == 0 goto +1", 300),
        ];
        for (text, weight) in all {
            assert_eq!(time(Costs::rough(), text), weight, "{text}");
        }
    }

    #[test]
    fn an_instruction_alone_weighs_something_between_chain_and_throughput() {
        let costs = Costs::new(Origin::default(), |_| Cost { dependent: 500, independent: 100 });
        assert_eq!(time(&costs, "r1 += r2"), 300);
    }
}
