//! A program in the kernel on one CPU, the other thread's script on another: what do both see?
//!
//! One idea: the kernel runs a program thousands of times a call, and the program counts its own results; so a race of
//! some milliseconds is some hundred thousand samples. The other thread stores what the script says, in its order, at
//! a pace that changes, and between two stores it looks at the words that the program writes: are the halves of one equal, is
//! one less than another that it reads later?
//!
//! It needs two CPUs. Races wait for each other, since two at a time would take the CPUs from each other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bpf_kernel::{KernelError, LoadOptions, LoadedObject, Map, SharedWords};
use bpf_platform::maps::{self, MMAPABLE};
use bpf_testgen::random::Rng;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::program::{Home, OUTER, RESULT_COUNT, RESULTS, SHARED};
use super::script::{OWN, Script, WORDS};

/// Runs of a program for one call.
const REPEAT: u32 = 2_000;
/// The packet of a test run.
const PACKET: [u8; 64] = [0; 64];

/// Two CPUs for the two threads.
pub struct Track {
    cpus: [usize; 2],
}

/// A program in the kernel with its memory.
pub struct Runner {
    object: LoadedObject,
    words: SharedWords,
    results: Map,
}

/// What the other thread saw of two words that the program writes, or of one, if they are the same: it read them in this
/// order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Look {
    first: usize,
    second: usize,
    /// How the first compares to the second; of one word, its lower half to its upper half.
    order: std::cmp::Ordering,
}

impl Look {
    /// The first of the program's words at `first`, then that at `second`, compared like this.
    pub const fn new(first: usize, second: usize, order: std::cmp::Ordering) -> Look {
        Look { first, second, order }
    }

    /// Whether it shows if the program's own words hold this when it reads the first, and that when it reads the second.
    pub fn is_of(&self, first: &[u64; WORDS - OWN], second: &[u64; WORDS - OWN]) -> bool {
        let a = first[self.first - OWN];
        let order = if self.first == self.second {
            (a as u32).cmp(&((a >> 32) as u32))
        } else {
            a.cmp(&second[self.second - OWN])
        };
        order == self.order
    }
}

impl std::fmt::Display for Look {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (a, b) = (8 * self.first, 8 * self.second);
        if self.first == self.second {
            write!(f, "+{a}: its lower half is {:?} in comparison to its upper half", self.order)
        } else {
            write!(f, "+{a}, and then +{b}: the first is {:?} in comparison to the second", self.order)
        }
    }
}

/// What was seen, and how often.
#[derive(Clone, Default, Debug)]
pub struct Sample {
    /// The program's results.
    pub results: BTreeMap<u64, u64>,
    /// What the other thread saw.
    pub looks: BTreeMap<Look, u64>,
}

impl Sample {
    /// How often the program ran.
    pub fn runs(&self) -> u64 {
        self.results.values().sum()
    }

    /// Adds another sample.
    pub fn add(&mut self, other: &Sample) {
        other.results.iter().for_each(|(what, n)| *self.results.entry(*what).or_default() += n);
        other.looks.iter().for_each(|(what, n)| *self.looks.entry(*what).or_default() += n);
    }
}

impl Track {
    /// Two CPUs that this thread may use.
    ///
    /// # Errors
    /// That there is only one.
    pub fn new() -> Result<Track, String> {
        let usable = sched_getaffinity(None).map_err(|e| e.to_string())?;
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| usable.is_set(*cpu));
        match (cpus.next(), cpus.next()) {
            (Some(a), Some(b)) => Ok(Track { cpus: [a, b] }),
            _ => Err("there is one CPU only: no other thread can write while a program runs".into()),
        }
    }

    /// Runs a program for some time amid the stores of a script.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn race(&self, runner: &Runner, script: &Script, seed: u64, time: Duration) -> Result<Sample, KernelError> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        for result in 0..RESULT_COUNT {
            runner.results.update(&result.to_ne_bytes(), &[0; 8])?;
        }
        let begin = script.beginnings().start;
        let memory = script.memory(begin);
        runner.words.iter().zip(memory).for_each(|(word, value)| word.store(value, Ordering::SeqCst));
        let over = AtomicBool::new(false);
        let words = &runner.words;
        let before = sched_getaffinity(None);
        let (looks, ran) = std::thread::scope(|s| {
            let other = s.spawn(|| {
                stay_on(self.cpus[1]);
                others(words, script, begin, &mut Rng::new(seed), &over)
            });
            stay_on(self.cpus[0]);
            let until = Instant::now() + time;
            let mut ran = Ok(());
            while ran.is_ok() && Instant::now() < until {
                ran = runner.object.test_run("main", &PACKET, None, REPEAT).map(drop);
            }
            over.store(true, Ordering::Relaxed);
            (other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), ran)
        });
        if let Ok(before) = before {
            let _ = sched_setaffinity(None, &before);
        }
        ran?;
        let mut results = BTreeMap::new();
        for result in 0..RESULT_COUNT {
            let count = runner.results.lookup(&result.to_ne_bytes())?.unwrap_or_default();
            let count = count.try_into().map_or(0, u64::from_ne_bytes);
            if count > 0 {
                results.insert(u64::from(result), count);
            }
        }
        Ok(Sample { results, looks })
    }
}

/// Keeps the thread on one CPU; where that is not allowed, it goes on wherever it is.
fn stay_on(cpu: usize) {
    let mut here = CpuSet::new();
    here.set(cpu);
    let _ = sched_setaffinity(None, &here);
}

/// The other thread: stores, and looks.
fn others(
    words: &[std::sync::atomic::AtomicU64],
    script: &Script,
    begin: u64,
    r: &mut Rng,
    over: &AtomicBool,
) -> BTreeMap<Look, u64> {
    const OWNED: usize = WORDS - OWN;
    let mut counts = [[[0u64; 3]; OWNED]; OWNED];
    let mut step = begin;
    while !over.load(Ordering::Relaxed) {
        let pace = r.one_of(&[1, 4, 16]);
        for _ in 0..script.round() * (1 + r.below(40)) {
            let (word, value) = script.step(step);
            words[word].store(value, Ordering::Release);
            step += 1;
            for _ in 0..pace {
                let a = r.below(OWNED as u64) as usize;
                let b = if r.chance(2) { a } else { r.below(OWNED as u64) as usize };
                let first = words[OWN + a].load(Ordering::Acquire);
                // As in `Look::is_of`.
                let order = if a == b {
                    (first as u32).cmp(&((first >> 32) as u32))
                } else {
                    first.cmp(&words[OWN + b].load(Ordering::Acquire))
                };
                counts[a][b][(order as i8 + 1) as usize] += 1;
            }
        }
    }
    let mut looks = BTreeMap::new();
    for (a, row) in counts.iter().enumerate() {
        for (b, orders) in row.iter().enumerate() {
            for (order, count) in [std::cmp::Ordering::Less, std::cmp::Ordering::Equal, std::cmp::Ordering::Greater]
                .into_iter()
                .zip(orders)
            {
                if *count > 0 {
                    looks.insert(Look { first: OWN + a, second: OWN + b, order }, *count);
                }
            }
        }
    }
    looks
}

impl Runner {
    /// Loads a program whose shared memory is at home there.
    ///
    /// # Errors
    /// What libbpf or the kernel says.
    pub fn load(home: Home, object: &[u8]) -> Result<Runner, KernelError> {
        let object = LoadedObject::load(object, &LoadOptions::default())?;
        let shared = match home {
            Home::Bss | Home::Argument => object.map(".bss")?,
            Home::Data => object.map(".data")?,
            Home::Element => object.map(SHARED)?,
            Home::Inner => {
                let inner = Map::create_with(maps::ARRAY, 4, 8 * WORDS as u32, 1, MMAPABLE, None)?;
                object.map(OUTER)?.update(&[0; 4], &inner.fd().to_ne_bytes())?;
                inner
            }
        };
        Ok(Runner { words: shared.share()?, results: object.map(RESULTS)?, object })
    }
}
