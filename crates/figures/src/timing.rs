//! Times of things that are compared: rounds in which each has its turn, so that what slows the machine slows all of them.

use std::hint::black_box;
use std::time::Instant;

/// Something that is timed: each call is one turn, and says how many nanoseconds a packet took.
pub type Turn<'a> = Box<dyn FnMut() -> f64 + 'a>;

/// What all turns of all rounds took.
pub struct Rounds(Vec<Vec<f64>>);

impl Rounds {
    /// Runs rounds. One more comes first, for warmth.
    pub fn run(rounds: usize, turns: &mut [Turn<'_>]) -> Rounds {
        for turn in turns.iter_mut() {
            turn();
        }
        let mut all = vec![Vec::with_capacity(rounds); turns.len()];
        for _ in 0..rounds {
            for (times, turn) in all.iter_mut().zip(turns.iter_mut()) {
                times.push(turn());
            }
        }
        Rounds(all)
    }

    /// The median of one thing's times.
    pub fn median(&self, which: usize) -> f64 {
        median(self.0[which].iter().copied())
    }

    /// The median of how much longer one took than another in the same round.
    pub fn difference(&self, which: usize, than: usize) -> f64 {
        median(self.0[which].iter().zip(&self.0[than]).map(|(a, b)| a - b))
    }
}

/// The value in the middle; of none, not a number.
pub fn median(all: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = all.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The geometric mean; of none, not a number.
pub fn geometric_mean(all: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = all.fold((0, 0.0), |(count, sum), x| (count + 1, sum + x.ln()));
    (sum / f64::from(count)).exp()
}

/// A turn that runs `f` over all packets some times.
pub fn over<'a, T>(packets: &'a [T], times: usize, mut f: impl FnMut(&T) -> bool + 'a) -> Turn<'a> {
    Box::new(move || {
        let start = Instant::now();
        for _ in 0..times {
            for packet in packets {
                black_box(f(black_box(packet)));
            }
        }
        start.elapsed().as_nanos() as f64 / (packets.len() * times) as f64
    })
}
