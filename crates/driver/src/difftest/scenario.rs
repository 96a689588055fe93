//! What shows a difference, kept whole: the program, the contents of all maps, the inputs one after the other. It can be
//! played again, on freshly loaded objects, as often as somebody doubts it.
//!
//! # When a difference counts
//! The clock, random numbers and addresses differ between any two runs. So a scenario is played several times with
//! *three* objects, the second being the new one and the third the old one loaded once more. It shows a difference if
//! the first and the third always give one and the same result, and the second never that one. Where one of them may
//! read stack bytes that it has not written, it must also be so with frames that start filled, whatever with. Where that
//! cannot be tried, it is open whether the difference counts, and said so: it is not taken for none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use bpf_kernel::{Entry, KernelError, LoadedObject, ProgramType, RunResult};
use bpf_object::Object;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use super::calls::Calls;
use super::inputs::{self, Input};
use super::maps::{self, Filling, SharedMap};
use super::poison::{Fill, poisoned};
use super::setup::{PairError, Setup};

/// Everything that can be seen of a run; `Err` is the kernel's error number.
pub(crate) type Seen = Result<RunResult, Option<i32>>;

/// How often the whole set of objects is loaded afresh before a difference is believed. Some of what differs is settled
/// when an object is loaded, such as the order of a hash: with one of two outcomes each time, four objects a time are all
/// as they have to be in one of millions of cases.
const GENERATIONS: usize = 6;
/// The same where the question is whether a difference that is known is still there.
const GENERATIONS_AGAIN: usize = 2;
/// Runs of each of them; more for a program that asks for the clock or for random numbers.
const REPEATS: usize = 3;
const VOLATILE_REPEATS: usize = 8;

/// What frames are filled with where stack bytes may be read that nobody has written.
const FILLINGS: [u8; 2] = [0xa5, 0x3c];

/// Why it is not known whether a difference counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Open {
    /// There is no time to look so often.
    Late,
    /// What has to be run for that cannot be: in words.
    NotRun(String),
}

/// A program that can be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Runnable {
    pub name: String,
    pub kind: ProgramType,
    /// It asks for the clock, a random number or the like.
    pub volatile: bool,
}

impl Default for Runnable {
    fn default() -> Runnable {
        Runnable { name: String::new(), kind: ProgramType::UNSPEC, volatile: false }
    }
}

/// Inputs and map contents on which two objects do not do the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scenario {
    pub(super) program: Runnable,
    /// The inputs; the last one shows the difference, the others prepare it.
    pub inputs: Vec<Input>,
    /// Contents of the maps before the first input, by name. Maps that are not here are as the loader makes them.
    pub maps: Vec<(String, Vec<Entry>)>,
    /// In what they differ after the last input.
    pub(super) aspects: Vec<Aspect>,
}

/// One of the things that can be seen of a run. Each is compared by itself, so that a time stamp in one hides no
/// difference in another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Aspect {
    /// Whether the kernel runs the program.
    Runs,
    /// The return value.
    ReturnValue,
    /// The packet afterwards.
    Packet,
    /// The context afterwards.
    Context,
    /// The contents of the map of this name.
    Map(String),
}

/// An aspect of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
enum View {
    Runs(Option<Option<i32>>),
    Number(Option<u32>),
    Bytes(Option<Vec<u8>>),
    Entries(Vec<Entry>),
}

/// What is left of an aspect of which it is asked whether the objects differ in it: as a whole, in what is there at all, and
/// in each byte. So a time stamp or bytes that nobody wrote hide nothing that stands beside them.
#[derive(Debug, Clone)]
struct Doubt {
    aspect: Aspect,
    /// What the old object showed first.
    first: Option<View>,
    whole: bool,
    /// In the keys and lengths.
    shape: bool,
    /// In these bytes of each value.
    bytes: BTreeMap<Vec<u8>, Vec<bool>>,
}

impl Doubt {
    fn new(aspect: Aspect) -> Doubt {
        Doubt { aspect, first: None, whole: true, shape: false, bytes: BTreeMap::new() }
    }

    /// Looks at one more view of an object, which is the old one or the new one; whether they may still differ.
    fn stays(&mut self, view: View, is_old: bool) -> bool {
        let Some(first) = &self.first else {
            let all = |(key, bytes): (&[u8], &[u8])| (key.to_vec(), vec![true; bytes.len()]);
            self.bytes = view.pieces().into_iter().map(all).collect();
            self.shape = !self.bytes.is_empty() || matches!(view, View::Entries(_));
            self.first = Some(view);
            return true;
        };
        self.whole &= (*first == view) == is_old;
        let (before, now): (BTreeMap<_, _>, BTreeMap<_, _>) =
            (first.pieces().into_iter().collect(), view.pieces().into_iter().collect());
        let lengths = |pieces: &BTreeMap<&[u8], &[u8]>| -> Vec<(Vec<u8>, usize)> {
            pieces.iter().map(|(key, bytes)| (key.to_vec(), bytes.len())).collect()
        };
        self.shape = self.shape && (lengths(&before) == lengths(&now)) == is_old;
        self.bytes.retain(|key, left| {
            let old = before.get(key.as_slice()).copied().unwrap_or_default();
            let new = now.get(key.as_slice()).copied();
            for (at, left) in left.iter_mut().enumerate() {
                *left &= (old.get(at) == new.and_then(|new| new.get(at))) == is_old;
            }
            left.contains(&true)
        });
        self.whole || self.shape || !self.bytes.is_empty()
    }
}

impl View {
    /// The bytes by key; none where a view is one number.
    fn pieces(&self) -> Vec<(&[u8], &[u8])> {
        match self {
            View::Runs(_) | View::Number(_) | View::Bytes(None) => vec![],
            View::Bytes(Some(bytes)) => vec![(&[], bytes)],
            View::Entries(entries) => entries.iter().map(|(k, v)| (k.as_slice(), v.as_slice())).collect(),
        }
    }
}

/// Objects in the kernel, side by side, with the maps they share.
pub(crate) struct Loaded {
    sides: Vec<LoadedObject>,
    pub maps: Vec<SharedMap>,
    /// Maps that are neither filled nor compared.
    pub left_alone: Vec<String>,
    /// Some of these may hold something that programs have left there.
    pub keeps_state: bool,
}

impl Scenario {
    /// The program.
    pub fn program(&self) -> &str {
        &self.program.name
    }

    /// Whether the last input shows, or leaves in the maps, a difference between `old` and `new` that is none between
    /// `old` and itself. Objects that do not load show nothing.
    pub fn shows(&self, old: &[u8], new: &[u8], setup: &Setup) -> bool {
        self.still_shows(old, new, setup) == Some(true)
    }

    /// The same; `None` if it could not be seen.
    pub(crate) fn still_shows(&self, old: &[u8], new: &[u8], setup: &Setup) -> Option<bool> {
        self.lasting_over(GENERATIONS_AGAIN, old, new, setup).ok().map(|aspects| !aspects.is_empty())
    }

    /// The aspects in which they differ however often one looks.
    pub(super) fn lasting(&self, old: &[u8], new: &[u8], setup: &Setup) -> Result<Vec<Aspect>, Open> {
        self.lasting_over(GENERATIONS, old, new, setup)
    }

    fn lasting_over(&self, generations: usize, old: &[u8], new: &[u8], setup: &Setup) -> Result<Vec<Aspect>, Open> {
        let _here = OneCpu::stay();
        let mut left: Vec<Doubt> = self.aspects.iter().cloned().map(Doubt::new).collect();
        for generation in 0..generations {
            if left.is_empty() {
                break;
            }
            // At different distances: some numbers that the kernel gives, as those of maps, come one after another.
            let objects = [(old, true), (new, false), (old, true), (old, true)];
            self.compare(&objects, generation % 2 == 1, setup, &mut left)?;
        }
        let calls = [old, new].map(Calls::of);
        let by_layout = |c: &Option<Calls>| c.as_ref().is_none_or(|c| c.may_read_unwritten_stack(self.program()));
        if !left.is_empty() && calls.iter().any(by_layout) {
            // Filling a whole frame may make the stack deeper than the kernel allows.
            match self.compare_filled([old, new], Fill::All, setup, &mut left) {
                Err(Open::NotRun(_)) => self.compare_filled([old, new], Fill::Used, setup, &mut left)?,
                other => other?,
            }
        }
        Ok(left.into_iter().map(|doubt| doubt.aspect).collect())
    }

    /// Plays it with both objects as they are when their frames start filled.
    fn compare_filled(
        &self,
        [old, new]: [&[u8]; 2],
        fill: Fill,
        setup: &Setup,
        left: &mut Vec<Doubt>,
    ) -> Result<(), Open> {
        let filled: Option<Vec<(Vec<u8>, bool)>> = FILLINGS
            .into_iter()
            .flat_map(|byte| [(old, byte, true), (new, byte, false)])
            .map(|(object, byte, is_old)| Some((poisoned(object, byte, fill)?, is_old)))
            .collect();
        let Some(filled) = filled else { return Err(Open::NotRun("a function cannot be read".to_owned())) };
        let sides: Vec<(&[u8], bool)> = filled.iter().map(|(bytes, is_old)| (bytes.as_slice(), *is_old)).collect();
        self.compare(&sides, false, setup, left)
    }

    /// Plays it with these objects, each with whether it is a form of the old one, and drops every aspect that the old
    /// ones do not agree on, or a new one does. `backwards`: beginning with the last object.
    fn compare(
        &self,
        objects: &[(&[u8], bool)],
        backwards: bool,
        setup: &Setup,
        left: &mut Vec<Doubt>,
    ) -> Result<(), Open> {
        let bytes: Vec<&[u8]> = objects.iter().map(|(bytes, _)| *bytes).collect();
        let is_over = || setup.patience.is_some_and(|until| Instant::now() >= until);
        if is_over() {
            return Err(Open::Late);
        }
        let loaded = Loaded::new(&bytes, setup, None).map_err(|e| Open::NotRun(e.source.to_string()))?;
        let repeats = match (loaded.keeps_state, self.program.volatile) {
            // A second time it would begin from what the first has left.
            (true, _) => 1,
            (false, true) => VOLATILE_REPEATS,
            (false, false) => REPEATS,
        };
        let mut order: Vec<usize> = (0..objects.len()).collect();
        if backwards {
            order.reverse();
        }
        for _ in 0..repeats {
            if left.is_empty() {
                return Ok(());
            }
            if is_over() {
                return Err(Open::Late);
            }
            loaded.fill(&self.fillings(&loaded)).map_err(Open::NotRun)?;
            for &side in &order {
                let last = self.play(&loaded, side);
                left.retain_mut(|doubt| {
                    let view = doubt.aspect.of(&loaded, side, &last);
                    doubt.stays(view, objects[side].1)
                });
            }
            // What depends on the order of runs is none of the programs' doing.
            order.reverse();
        }
        Ok(())
    }

    fn fillings(&self, loaded: &Loaded) -> Vec<Filling> {
        let mine =
            |m: &SharedMap| self.maps.iter().find(|(name, _)| *name == m.name).map(|(_, entries)| entries.clone());
        loaded.maps.iter().map(|m| mine(m).unwrap_or_else(|| m.initial.clone())).collect()
    }

    fn play(&self, loaded: &Loaded, side: usize) -> Seen {
        let mut last = Err(None);
        for input in &self.inputs {
            last = loaded.run(side, &self.program.name, input);
        }
        last
    }

    /// The smallest part of it that still shows the difference, of a few that are tried: the last input alone, with the
    /// maps as the loader makes them or as they were filled.
    pub fn reduced(self, old: &[u8], new: &[u8], setup: &Setup) -> Scenario {
        let last: Vec<Input> = self.inputs.last().cloned().into_iter().collect();
        let bare = Scenario { inputs: last.clone(), maps: vec![], ..self.clone() };
        let alone = Scenario { inputs: last, ..self.clone() };
        let empty = Scenario { maps: vec![], ..self.clone() };
        [bare, alone, empty].into_iter().find(|s| s.shows(old, new, setup)).unwrap_or(self)
    }
}

impl Aspect {
    fn of(&self, loaded: &Loaded, side: usize, last: &Seen) -> View {
        let ok = last.as_ref().ok();
        match self {
            Aspect::Runs => View::Runs(last.as_ref().err().copied()),
            Aspect::ReturnValue => View::Number(ok.map(|r| r.retval)),
            Aspect::Packet => View::Bytes(ok.map(|r| r.data_out.clone())),
            Aspect::Context => View::Bytes(ok.map(|r| r.ctx_out.clone())),
            Aspect::Map(name) => {
                let map = loaded.maps.iter().find(|m| m.name == *name);
                View::Entries(map.map(|m| m.contents(side)).unwrap_or_default())
            }
        }
    }
}

impl Loaded {
    /// Loads objects, the first of which has the maps that count, and breaks that off at `until`.
    pub fn new(objects: &[&[u8]], setup: &Setup, until: Option<Instant>) -> Result<Loaded, PairError> {
        let options = setup.load_options();
        let load = |(i, bytes): (usize, &&[u8])| {
            LoadedObject::load_for_runs(bytes, &options, until).map_err(|source| PairError { second: i == 1, source })
        };
        let sides = objects.iter().enumerate().map(load).collect::<Result<Vec<_>, _>>()?;
        sides.iter().for_each(|side| setup.furnish.apply(side));
        let maps::Maps { shared, left_alone, keep_state } = maps::shared(&sides, &laid_out_otherwise(objects));
        Ok(Loaded { sides, maps: shared, left_alone, keeps_state: keep_state })
    }

    /// How many objects there are.
    pub fn count(&self) -> usize {
        self.sides.len()
    }

    /// The programs of one object.
    pub fn programs(&self, side: usize) -> &[bpf_kernel::ProgramVerdict] {
        self.sides[side].programs()
    }

    /// Gives all objects these contents of their maps.
    pub fn fill(&self, fillings: &[Filling]) -> Result<(), String> {
        self.maps.iter().zip(fillings).try_for_each(|(m, f)| m.fill(f))
    }

    /// Runs the program of one object so many times on the packet, which is left as it is in between.
    pub fn repeat(&self, side: usize, program: &str, input: &Input, times: u32) -> Result<RunResult, KernelError> {
        self.sides[side].test_run(program, &input.packet, input.context.as_deref(), times)
    }

    /// Runs the program of one object.
    pub fn run(&self, side: usize, program: &str, input: &Input) -> Seen {
        let run = |context| self.sides[side].test_run(program, &input.packet, context, 1);
        match run(input.context.as_deref()) {
            // Not every type takes a context, and none takes every context.
            Err(_) if input.context.is_some() && !input.packet.is_empty() => run(None),
            outcome => outcome,
        }
        .map_err(|e| match e {
            KernelError::Refused { source, .. } => source.raw_os_error(),
            _ => None,
        })
    }

    /// The maps that do not hold the same for the first two objects, with words for it. `steady`: but for what the third
    /// object, which is the first loaded once more, holds otherwise.
    pub fn maps_differ(&self, steady: bool) -> Vec<(Aspect, String)> {
        let what = |m: &SharedMap| {
            let (mut a, mut b) = (m.contents(0), m.contents(1));
            if steady {
                maps::steady(&mut a, &mut b, &m.contents(2));
            }
            let words = maps::compare(&m.name, &a, &b)?;
            Some((Aspect::Map(m.name.clone()), words))
        };
        self.maps.iter().filter_map(what).collect()
    }
}

/// Sections of global data, by their names, of which the variables do not lie in the same places in all of these objects:
/// equal bytes mean something else there.
fn laid_out_otherwise(objects: &[&[u8]]) -> BTreeSet<String> {
    let parsed: Vec<Object> = objects.iter().filter_map(|bytes| Object::parse(bytes.to_vec()).ok()).collect();
    let places = |object: &Object, name: &str| -> BTreeSet<(String, u64, u64)> {
        let inside = object.variables().filter(|v| v.section == name && !v.name.is_empty());
        inside.map(|v| (v.name.to_owned(), v.offset, v.size)).collect()
    };
    let Some((first, others)) = parsed.split_first() else { return BTreeSet::new() };
    let names = first.data_sections().map(|s| s.name.to_owned());
    names.filter(|name| others.iter().any(|o| places(o, name) != places(first, name))).collect()
}

/// Whether the first program did not run because it reads more context than it was given. That is before anything runs,
/// and says nothing of a second one that reads less (`bpf_prog_test_run_syscall`, `bpf_prog_test_run_raw_tp`:
/// `max_ctx_offset`).
pub(super) fn is_too_short(kind: ProgramType, first: &Seen) -> bool {
    const EINVAL: i32 = 22;
    inputs::context_alone(kind) && matches!(first, Err(Some(EINVAL)))
}

/// Keeps the thread on the CPU it is on, as far as the system lets it.
pub(crate) struct OneCpu(Option<CpuSet>);

impl OneCpu {
    pub fn stay() -> OneCpu {
        let Ok(before) = sched_getaffinity(None) else { return OneCpu(None) };
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        OneCpu(sched_setaffinity(None, &here).is_ok().then_some(before))
    }
}

impl Drop for OneCpu {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = sched_setaffinity(None, before);
        }
    }
}
