//! Which inputs are timed, and how they are run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bpf_kernel::{ProgramType, RunResult};

use super::serialized;
use super::spent::Turns;
use crate::difftest::Input;
use crate::difftest::scenario::Loaded;

/// So many inputs of one class.
const MOST_OF_CLASS: usize = 3;
/// A program that takes so much longer than a turn is not repeated to see how long it takes.
const SLOW: u32 = 100;
/// Of XDP a turn is so much longer: around its test runs stand milliseconds.
const XDP_TURN: f64 = 16.0;

/// An input that is timed.
pub(super) struct Chosen {
    pub input: Input,
    pub returns: u32,
    pub turns: Turns,
    /// By object: runs come to what is behind the exits of a program that is serialized.
    pub goes_on: Vec<bool>,
}

/// Chooses inputs for one program.
pub(super) struct Chooser<'a> {
    pub loaded: &'a Loaded,
    /// The first loads of so many objects are looked at.
    pub objects: usize,
    pub name: &'a str,
    pub kind: ProgramType,
    /// The program goes on behind its exits.
    pub serialized: bool,
    /// Inputs at most.
    pub most: usize,
    /// What the repetitions of one input take.
    pub turn: Duration,
    /// When nothing further begins.
    pub until: Option<Instant>,
}

impl Chooser<'_> {
    /// Inputs of as many classes as there are, and for how many an object returns something else than the first.
    pub fn chosen(&self, candidates: Vec<Input>) -> (Vec<Chosen>, usize) {
        let mut of_class: BTreeMap<u32, usize> = BTreeMap::new();
        let mut chosen: Vec<Chosen> = Vec::new();
        let mut differ = 0;
        for mut input in candidates {
            if chosen.len() >= self.most || self.until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            let run = |input: &Input| self.loaded.run(0, self.name, input);
            let mut seen = run(&input);
            if seen.is_err() && input.context.is_some() {
                // Not every context is taken: without one from here on.
                input.context = None;
                seen = run(&input);
            }
            let Ok(first) = seen else { continue };
            if (1..self.objects).any(|o| self.loaded.run(o, self.name, &input).is_ok_and(|r| r.retval != first.retval))
            {
                differ += 1;
                continue;
            }
            let count = of_class.entry(first.retval).or_default();
            if *count >= MOST_OF_CLASS {
                continue;
            }
            let Some((turns, goes_on)) = self.turns(&input, &first) else { continue };
            *count += 1;
            chosen.push(Chosen { input, returns: first.retval, turns, goes_on });
        }
        (chosen, differ)
    }

    /// How an input is run so that a turn is long enough, and which objects go on behind an exit then. `None`: the kernel does not run it.
    fn turns(&self, input: &Input, first: &RunResult) -> Option<(Turns, Vec<bool>)> {
        const FEW: u32 = 64;
        const MOST: f64 = 100_000.0;
        const SYSTEM_CALL: Duration = Duration::from_micros(2);
        let turn = self.turn.as_secs_f64() * if self.kind == ProgramType::XDP { XDP_TURN } else { 1.0 };
        let is_slow = Duration::from_nanos(first.duration_ns.into()) > self.turn * SLOW;
        if !is_slow
            && let Ok(run) = self.loaded.repeat(0, self.name, input, FEW)
            && (run.retval, run.data_out.len()) == (first.retval, input.packet.len())
        {
            let one = f64::from(run.duration_ns.max(1)) * 1e-9;
            let times = (turn / one).clamp(f64::from(FEW), MOST) as u32;
            if let Some(goes_on) = self.goes_on(input, times) {
                return Some((Turns::Repeated(times), goes_on));
            }
        }
        let goes_on = self.goes_on(input, 1)?;
        Some((Turns::Single(if is_slow { 1 } else { (turn / SYSTEM_CALL.as_secs_f64()) as u32 }), goes_on))
    }

    /// By object: whether each of so many repetitions comes to an exit that is serialized; `None` if some do and some do not. (A legacy
    /// load behind the packet's end ends a program without one, and a program may move where it loads from run to run, in `cb`.)
    fn goes_on(&self, input: &Input, times: u32) -> Option<Vec<bool>> {
        if !self.serialized {
            return Some(vec![false; self.objects]);
        }
        let of_object = |object: usize| {
            let before = serialized::state(self.loaded, object)?;
            self.loaded.repeat(object, self.name, input, times).ok()?;
            match serialized::state(self.loaded, object)? {
                after if after == before => Some(false),
                after if after == serialized::after(before, times) => Some(true),
                _ => None,
            }
        };
        (0..self.objects).map(of_object).collect()
    }
}
