//! What operations cost on this machine: a table of costs, measured (K2 paper, §3.2).
//!
//! Each class of operations gets two programs, which differ only in how many copies of the operation they have; what one more copy takes
//! is the difference of their times over the difference of their copies. So the test run, the program's beginning and the call of it fall
//! out. The programs take turns, round after round, on one processor; of the rounds the median counts, and the quartiles say how sure it
//! is. They are loaded and test-run; nothing is attached.

mod programs;
mod rank;

use std::time::Duration;

use bpf_isa::{Class, Cost, Costs, Origin, encode_all, parse_listing};
use bpf_kernel::{KernelError, Map, ProgramType, RawOptions, RawProgram};
use bpf_platform::maps;
use serde::Serialize;
use thiserror::Error;

use crate::difftest::scenario::OneCpu;

pub use programs::Way;
use programs::{Fds, Micro, PACKET, words};
pub use rank::{spearman, spearman_of_ratios};

/// How costs are measured.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Rounds; one more, which does not count, warms caches and predictors.
    pub rounds: usize,
    /// What the repetitions of one program take in a round.
    pub turn: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { rounds: 25, turn: Duration::from_micros(200) }
    }
}

/// One number of one class: picoseconds an operation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Number {
    /// The median of the rounds.
    pub median: f64,
    /// A quarter of the rounds has less.
    pub lower_quartile: f64,
    /// Three quarters have less.
    pub upper_quartile: f64,
}

/// What came of one class.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// Its name.
    pub class: &'static str,
    /// What it is.
    pub meaning: &'static str,
    /// In a chain, where there can be one.
    pub dependent: Option<Number>,
    /// Beside others.
    pub independent: Option<Number>,
}

/// Why costs cannot be measured.
#[derive(Debug, Error)]
pub enum ProfileError {
    /// The kernel does not make what is needed, or does not run it.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// It refuses one of the programs.
    #[error("the program for the class `{class}` is refused: {reason}")]
    Refused {
        /// The class.
        class: &'static str,
        /// The end of what the verifier says.
        reason: String,
    },
}

/// A program with all copies and one with half of them.
struct Pair {
    micro: Micro,
    programs: [RawProgram; 2],
    repeat: [u32; 2],
    /// Picoseconds a copy, by round.
    slopes: Vec<f64>,
}

/// Measures all classes. `progress` is told the rounds that are done and how many there are.
///
/// # Errors
/// [`ProfileError`].
pub fn measure(settings: &Settings, progress: &mut dyn FnMut(usize, usize)) -> Result<Vec<Measured>, ProfileError> {
    let _here = OneCpu::stay();
    let world = World::new()?;
    let mut pairs = programs::all().into_iter().map(|m| world.pair(m, settings)).collect::<Result<Vec<_>, _>>()?;
    let tails = world.tails()?;
    let mut chains: Vec<f64> = Vec::new();
    for round in 0..=settings.rounds {
        progress(round, settings.rounds + 1);
        for pair in &mut pairs {
            let slope = pair.slope()?;
            if round > 0 {
                pair.slopes.push(slope);
            }
        }
        let slope = tails.slope(settings)?;
        if round > 0 {
            chains.push(slope);
        }
    }
    progress(settings.rounds + 1, settings.rounds + 1);
    Ok(table(&pairs, chains))
}

/// The table that these numbers make.
pub fn costs(measured: &[Measured], origin: Origin) -> Costs {
    let picoseconds = |n: &Option<Number>| n.as_ref().map(|n| n.median.round().max(1.0) as u32);
    Costs::new(origin, |class| {
        let Some(m) = measured.iter().find(|m| m.class == class.name()) else { return Cost::default() };
        let dependent = picoseconds(&m.dependent);
        let independent = picoseconds(&m.independent).or(dependent).unwrap_or(1);
        // Where there is no chain, the next one waits for nothing but its turn.
        Cost { dependent: dependent.unwrap_or(independent).max(independent), independent }
    })
}

/// The numbers by class, without what else was in the copies.
fn table(pairs: &[Pair], mut tails: Vec<f64>) -> Vec<Measured> {
    let mut all: Vec<Measured> = Class::ALL
        .iter()
        .map(|c| Measured { class: c.name(), meaning: c.meaning(), dependent: None, independent: None })
        .collect();
    let mut known = [[0.0; 2]; Class::COUNT];
    for Pair { micro, slopes, .. } in pairs {
        let besides: f64 = micro.besides.iter().map(|(n, c, w)| f64::from(*n) * known[*c as usize][*w as usize]).sum();
        let mut own: Vec<f64> = slopes.iter().map(|s| (s - besides) * micro.share).collect();
        let number = Number::of(&mut own);
        known[micro.class as usize][micro.way as usize] = number.median;
        let measured = &mut all[micro.class as usize];
        *(match micro.way {
            Way::Dependent => &mut measured.dependent,
            Way::Independent => &mut measured.independent,
        }) = Some(number);
    }
    // That was the time of the programs that are predicted.
    all[Class::BranchMispredicted as usize].dependent = None;
    all[Class::CallTail as usize].independent = Some(Number::of(&mut tails));
    all
}

impl Number {
    fn of(all: &mut [f64]) -> Number {
        all.sort_unstable_by(f64::total_cmp);
        let at = |part: f64| {
            all.get((part * (all.len().saturating_sub(1)) as f64).round() as usize).copied().unwrap_or(f64::NAN)
        };
        Number { median: at(0.5), lower_quartile: at(0.25), upper_quartile: at(0.75) }
    }
}

impl Pair {
    /// Picoseconds that one more copy takes, in this round.
    fn slope(&self) -> Result<f64, KernelError> {
        let packet = [0; PACKET];
        let [all, half] =
            [0, 1].map(|i| self.programs[i].test_run(&packet, None, self.repeat[i]).map(|r| f64::from(r.duration_ns)));
        Ok((all? - half?) * 1000.0 / (self.micro.copies - self.micro.copies / 2) as f64)
    }
}

/// How often a program is to run so that it takes a turn.
fn repeat(program: &RawProgram, settings: &Settings) -> Result<u32, KernelError> {
    const FEW: u32 = 16;
    const MOST: f64 = 1_000_000.0;
    let one = f64::from(program.test_run(&[0; PACKET], None, FEW)?.duration_ns.max(1)) * 1e-9;
    Ok((settings.turn.as_secs_f64() / one).clamp(f64::from(FEW), MOST) as u32)
}

/// The maps of all programs.
struct World {
    values: Map,
    array: Map,
    per_cpu: Map,
    hash: Map,
}

impl World {
    fn new() -> Result<World, KernelError> {
        let values = Map::create(maps::ARRAY, 4, words::SIZE as u32, 1)?;
        let mut value = vec![0; words::SIZE];
        let set =
            [(words::ONE, 1), (words::BIG, 0x1234_5678), (words::RANDOM, 0x9e37_79b9_7f4a_7c15), (words::MASKS[0], 1)];
        for (at, word) in set {
            value[at..at + 8].copy_from_slice(&u64::to_le_bytes(word));
        }
        values.update(&0_u32.to_ne_bytes(), &value)?;
        let hash = Map::create(maps::HASH, 8, 8, 1024)?;
        hash.update(&1_u64.to_le_bytes(), &[0; 8])?;
        let (array, per_cpu) = (Map::create(maps::ARRAY, 4, 8, 4)?, Map::create(maps::PERCPU_ARRAY, 4, 8, 4)?);
        Ok(World { values, array, per_cpu, hash })
    }

    fn pair(&self, micro: Micro, settings: &Settings) -> Result<Pair, ProfileError> {
        let fds =
            Fds { values: self.values.fd(), array: self.array.fd(), per_cpu: self.per_cpu.fd(), hash: self.hash.fd() };
        let load = |copies: usize| load(micro.class, &micro.listing(copies, &fds));
        let programs = [load(micro.copies)?, load(micro.copies / 2)?];
        let repeat = [repeat(&programs[0], settings)?, repeat(&programs[1], settings)?];
        Ok(Pair { micro, programs, repeat, slopes: Vec::new() })
    }

    /// A program that calls itself until the kernel lets it go on, and one that finds nothing to call.
    fn tails(&self) -> Result<Tails, ProfileError> {
        let make = |itself: bool| -> Result<(RawProgram, Map), ProfileError> {
            let targets = Map::create(maps::PROG_ARRAY, 4, 4, 1)?;
            let text = format!("r2 = map_fd[{}] ll\nr3 = 0\ncall 12\nr0 = 0\nexit", targets.fd());
            let program = load(Class::CallTail, &text)?;
            if itself {
                use std::os::fd::{AsFd, AsRawFd};
                targets.update(&0_u32.to_ne_bytes(), &program.as_fd().as_raw_fd().to_ne_bytes())?;
            }
            Ok((program, targets))
        };
        Ok(Tails { programs: [make(true)?, make(false)?] })
    }
}

struct Tails {
    programs: [(RawProgram, Map); 2],
}

impl Tails {
    /// `MAX_TAIL_CALL_CNT` of the kernel.
    const CALLS: f64 = 33.0;

    fn slope(&self, settings: &Settings) -> Result<f64, KernelError> {
        let time = |p: &RawProgram| {
            let repeat = repeat(p, settings)?;
            Ok::<f64, KernelError>(f64::from(p.test_run(&[0; PACKET], None, repeat)?.duration_ns))
        };
        Ok((time(&self.programs[0].0)? - time(&self.programs[1].0)?) * 1000.0 / Tails::CALLS)
    }
}

impl Drop for Tails {
    fn drop(&mut self) {
        // A map that holds a program that uses the map would keep both.
        for (_, targets) in &self.programs {
            let _ = targets.delete(&0_u32.to_ne_bytes());
        }
    }
}

fn load(class: Class, listing: &str) -> Result<RawProgram, ProfileError> {
    let refused = |reason: String| ProfileError::Refused { class: class.name(), reason };
    let insns = parse_listing(listing).map_err(|e| refused(e.to_string()))?;
    let code = encode_all(&insns).map_err(|e| refused(e.to_string()))?;
    RawProgram::load(ProgramType::SCHED_CLS, &code, &RawOptions::default()).map_err(|rejection| {
        let end: Vec<&str> = rejection.log.lines().rev().take(3).collect();
        refused(end.into_iter().rev().collect::<Vec<_>>().join("; "))
    })
}
