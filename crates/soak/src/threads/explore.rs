//! Everything that may happen to a program while another thread stores: an exhaustive walk over the orders of steps.
//!
//! One idea: before each access of shared memory the other thread may take some steps; which numbers of steps it may
//! take is the same for all programs. A program is interpreted once for each sequence of choices, and what can be seen of
//! the run is put into a set: its result, and what the memory held at any two moments, one after the other. A correct
//! optimizer's program makes some of the original's accesses at the moments at which the original may make them, the
//! others at those of their neighbours; since "no step" is always among the choices, what is seen of it is in the
//! original's set. So what is not is a difference, whatever the scheduler does, and no difference is a matter of luck.
//! (A program that only makes more accesses than the original gives the other thread more turns, and is seen to be
//! different by how far that got. The contract forbids it as well.)
//!
//! Others store between instructions only: an access is one step, and so is an atomic.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bpf_driver::Module;
use bpf_isa::{Call, Imm64Kind, Insn, Reg};
use bpf_object::Object;
use bpf_program::{Function, Link, Op, Symbol};
use bpf_semantics::interp::{Cpu, Fault, Host, Interp, Next};
use rustc_hash::{FxHashSet, FxHasher};

use super::program::{OUTER, RESULT_COUNT, RESULTS, SHARED};
use super::race::Look;
use super::script::{OWN, Script, WORDS};

/// Addresses: shared memory, the counters of results, and what stands for a map.
const MEMORY: u64 = 0xffff_8890_0000_0000;
const COUNTERS: u64 = 0xffff_8891_0000_0000;
const MAPS: u64 = 0xffff_8892_0000_0000;
const SHARED_MAP: u64 = MAPS;
const OUTER_MAP: u64 = MAPS + 1;
const RESULTS_MAP: u64 = MAPS + 2;
/// Steps of one run.
const FUEL: u64 = 4096;
/// Runs of one program at most.
const RUNS: usize = 40_000;
/// Accesses up to which the other thread has three choices before each, and two.
const THREE_CHOICES: u32 = 8;
const TWO_CHOICES: u32 = 12;
/// Memories that runs leave behind for the next, at most.
const LEFT: usize = 8;

/// A program that can be interpreted.
pub struct Subject {
    main: Arc<Function>,
    others: Vec<Function>,
}

/// Why a program cannot be explored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unexplored {
    /// It makes too many accesses.
    TooMany,
    /// It does what the interpreter has no model of, or what the verifier would not take.
    Stuck(String),
}

/// What was chosen in a run: before which step it began, and which of the choices was taken before each access.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Schedule {
    begin: u64,
    choices: Vec<usize>,
}

/// What can be seen of a program.
#[derive(Default)]
pub struct Seen {
    all: FxHashSet<u64>,
    /// Its results.
    pub results: std::collections::BTreeSet<u64>,
    /// Runs that were made.
    pub runs: usize,
}

impl Seen {
    /// How many things are seen.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether nothing is seen.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

impl Subject {
    /// The first program of an object.
    ///
    /// # Errors
    /// Why it has no graph.
    pub fn of(object: &[u8]) -> Result<Subject, String> {
        let object = Object::parse(object.to_vec()).map_err(|e| e.to_string())?;
        let graphs = Module::new(object).graphs.into_iter().collect::<Result<Vec<_>, _>>()?;
        let (mains, others): (Vec<_>, Vec<_>) = graphs.into_iter().partition(|g| g.name == "main");
        let mut main = mains.into_iter().next().ok_or("it has no program `main`")?;
        let mut others = others;
        others.iter_mut().chain([&mut main]).for_each(mark_atomics);
        Ok(Subject { main: Arc::new(main), others })
    }

    /// How many steps the other thread may take before an access, so that this program can be explored.
    ///
    /// # Errors
    /// [`Unexplored`].
    pub fn choices(&self, script: &Script) -> Result<Vec<u64>, Unexplored> {
        let mut most = 0;
        for begin in script.beginnings() {
            let mut interp = self.interp(script, &[0]);
            let run = run(&mut interp, &self.main, &Schedule { begin, choices: vec![] })?;
            most = most.max(run.taken.len() as u32);
        }
        match most {
            0 => Err(Unexplored::Stuck("it accesses no shared memory".into())),
            1..=THREE_CHOICES => Ok(vec![0, 1, script.round()]),
            n if n <= TWO_CHOICES => Ok(vec![0, 1]),
            _ => Err(Unexplored::TooMany),
        }
    }

    /// All that can be seen of it where the other thread may take these numbers of steps before each access.
    ///
    /// # Errors
    /// [`Unexplored`].
    pub fn explore(&self, script: &Script, choices: &[u64]) -> Result<Seen, Unexplored> {
        let mut seen = Seen::default();
        let runs = self.each_run(script, choices, |run, _| {
            seen.results.insert(run.result);
            seen.all.extend(run.seen());
            true
        })?;
        seen.runs = runs;
        Ok(seen)
    }

    /// A schedule in which something can be seen of this program that is not among `original`, if there is one; and how
    /// many were tried.
    ///
    /// # Errors
    /// [`Unexplored`].
    pub fn beyond(
        &self,
        script: &Script,
        choices: &[u64],
        original: &Seen,
    ) -> Result<(Option<Schedule>, usize), Unexplored> {
        let mut beyond = None;
        let runs = self.each_run(script, choices, |run, begin| {
            if run.seen().any(|what| !original.all.contains(&what)) {
                beyond = Some(Schedule { begin, choices: run.taken.clone() });
            }
            beyond.is_none()
        })?;
        Ok((beyond, runs))
    }

    /// Whether another program makes the same accesses of shared memory, with the same values and in the same order, whatever
    /// the schedule.
    ///
    /// # Errors
    /// [`Unexplored`].
    pub fn accesses_as(&self, other: &Subject, script: &Script, choices: &[u64]) -> Result<bool, Unexplored> {
        let accesses = |subject: &Subject| {
            let mut all = vec![];
            subject.each_run(script, choices, |run, _| {
                all.push(run.accesses);
                true
            })?;
            Ok::<_, Unexplored>(all)
        };
        Ok(accesses(self)? == accesses(other)?)
    }

    /// Which of these looks no order shows that begins and ends in one run. What the program's own words hold at its
    /// beginning is what runs before it have left.
    ///
    /// # Errors
    /// [`Unexplored`].
    pub fn never_shows(&self, script: &Script, choices: &[u64], looks: &[Look]) -> Result<Vec<Look>, Unexplored> {
        let mut never = looks.to_vec();
        let mut left: Vec<Own> = vec![[0; WORDS - OWN]];
        let mut next = 0;
        while next < left.len() && !never.is_empty() {
            let mut interp = self.interp(script, choices);
            interp.host.left = left[next];
            interp.host.watched = Some(vec![]);
            self.each_run_in(&mut interp, |run, _| {
                let moments = &run.watched;
                let later = |i: usize| moments[i..].iter();
                never.retain(|look| !(0..moments.len()).any(|i| later(i).any(|b| look.is_of(&moments[i], b))));
                if let Some(end) = moments.last()
                    && !left.contains(end)
                    && left.len() < LEFT
                {
                    left.push(*end);
                }
                !never.is_empty()
            })?;
            next += 1;
        }
        Ok(never)
    }

    /// Runs it by every schedule until `go_on` says no; gives the number of runs.
    fn each_run(
        &self,
        script: &Script,
        choices: &[u64],
        go_on: impl FnMut(&Run, u64) -> bool,
    ) -> Result<usize, Unexplored> {
        self.each_run_in(&mut self.interp(script, choices), go_on)
    }

    fn each_run_in(
        &self,
        interp: &mut Interp<World>,
        mut go_on: impl FnMut(&Run, u64) -> bool,
    ) -> Result<usize, Unexplored> {
        let (script, choices) = (interp.host.script, interp.host.choices);
        let mut runs = 0;
        for begin in script.beginnings() {
            let mut schedule = Schedule { begin, choices: vec![] };
            loop {
                if runs == RUNS {
                    return Err(Unexplored::TooMany);
                }
                let run = run(interp, &self.main, &schedule)?;
                runs += 1;
                if !go_on(&run, begin) {
                    return Ok(runs);
                }
                // The next sequence: the last choice that can be another one is, and what comes after it starts anew.
                let mut taken = run.taken;
                while taken.last().is_some_and(|c| c + 1 == choices.len()) {
                    taken.pop();
                }
                let Some(last) = taken.last_mut() else { break };
                *last += 1;
                schedule.choices = taken;
            }
        }
        Ok(runs)
    }

    /// What happens in a run, in words.
    pub fn tell(&self, script: &Script, choices: &[u64], schedule: &Schedule) -> String {
        let mut interp = self.interp(script, choices);
        interp.host.telling = Some(String::new());
        let result = match run(&mut interp, &self.main, schedule) {
            Ok(run) => format!("result {:#x}", run.result),
            Err(why) => format!("{why:?}"),
        };
        format!("{}  {result}\n", interp.host.telling.unwrap_or_default())
    }

    fn interp<'a>(&self, script: &'a Script, choices: &'a [u64]) -> Interp<World<'a>> {
        let mut interp = Interp::new(World::new(script, choices));
        self.others.iter().for_each(|f| interp.add_function(f.clone()));
        interp
    }
}

/// Atomics get a mark by which the world is told of them: their load and their store are one step.
fn mark_atomics(f: &mut Function) {
    let ops = f.blocks.iter_mut().flat_map(|b| &mut b.ops);
    for op in ops.filter(|op| matches!(op.insn, Insn::Atomic { .. })) {
        let symbol = Symbol::Core { kind: 0, type_id: 0, access: "atomic".into() };
        op.link = Some(Link { slot: 0, symbol });
    }
}

/// What the program's own words hold.
type Own = [u64; WORDS - OWN];

/// A run that is over.
struct Run {
    taken: Vec<usize>,
    result: u64,
    /// Hashes of what the memory held, one after the other.
    moments: Vec<u64>,
    /// A hash of its accesses of shared memory, in their order.
    accesses: u64,
    /// The program's own words, moment after moment, if somebody watches.
    watched: Vec<Own>,
}

fn run(interp: &mut Interp<World>, main: &Function, schedule: &Schedule) -> Result<Run, Unexplored> {
    interp.cpu = Cpu::default();
    interp.cpu.recording = false;
    interp.cpu.set(Reg::R1, 0);
    interp.host.begin(schedule);
    let outcome = interp.run(main, FUEL).map_err(|fault| Unexplored::Stuck(fault.to_string()))?;
    interp.host.look();
    let World { taken, moments, accesses, watched, .. } = &mut interp.host;
    let accesses = accesses.finish();
    let watched = watched.as_mut().map(std::mem::take).unwrap_or_default();
    Ok(Run { taken: std::mem::take(taken), result: outcome.r0, moments: std::mem::take(moments), accesses, watched })
}

impl Run {
    /// The result together with what the memory held at two moments, one after the other; as hashes.
    fn seen(&self) -> impl Iterator<Item = u64> {
        let pairs = self.moments.iter().enumerate().flat_map(|(i, a)| self.moments[i..].iter().map(move |b| (a, b)));
        pairs.map(|(a, b)| {
            let mut h = FxHasher::default();
            (self.result, a, b).hash(&mut h);
            h.finish()
        })
    }
}

/// Shared memory, and the other thread.
struct World<'a> {
    script: &'a Script,
    choices: &'a [u64],
    schedule: Schedule,
    taken: Vec<usize>,
    /// The other thread's next step.
    step: u64,
    memory: [u64; WORDS],
    counters: [u8; 8 * RESULT_COUNT as usize],
    moments: Vec<u64>,
    /// What the program's own words hold when it begins.
    left: Own,
    /// What they have held since, if somebody watches.
    watched: Option<Vec<Own>>,
    accesses: FxHasher,
    /// The next load belongs to an atomic; the next store belongs to one, whose load has been.
    atomic: (bool, bool),
    telling: Option<String>,
}

impl<'a> World<'a> {
    fn new(script: &'a Script, choices: &'a [u64]) -> World<'a> {
        World {
            script,
            choices,
            schedule: Schedule::default(),
            taken: vec![],
            step: 0,
            memory: [0; WORDS],
            counters: [0; 8 * RESULT_COUNT as usize],
            moments: vec![],
            left: [0; WORDS - OWN],
            watched: None,
            accesses: FxHasher::default(),
            atomic: (false, false),
            telling: None,
        }
    }

    fn begin(&mut self, schedule: &Schedule) {
        self.schedule = schedule.clone();
        self.taken.clear();
        self.moments.clear();
        self.watched.iter_mut().for_each(Vec::clear);
        self.accesses = FxHasher::default();
        self.atomic = (false, false);
        self.step = schedule.begin;
        self.memory = self.script.memory(self.step);
        // With one of the program's words the script stores there, too.
        let own = self.memory[OWN..].iter_mut().zip(self.left);
        own.filter(|(_, left)| *left != 0).for_each(|(word, left)| *word = left);
        self.look();
    }

    /// Somebody looks at the memory.
    fn look(&mut self) {
        let mut h = FxHasher::default();
        self.memory.hash(&mut h);
        let now = h.finish();
        if self.moments.last() != Some(&now) {
            self.moments.push(now);
            if let Some(watched) = &mut self.watched {
                watched.extend(<Own>::try_from(&self.memory[OWN..]));
            }
        }
    }

    /// The other thread's turn.
    fn others(&mut self) {
        let choice = self.schedule.choices.get(self.taken.len()).copied().unwrap_or(0);
        self.taken.push(choice);
        for _ in 0..self.choices[choice] {
            let (word, value) = self.script.step(self.step);
            self.memory[word] = value;
            self.step += 1;
            if let Some(text) = &mut self.telling {
                *text += &format!("      the other thread: +{} = {value:#x}\n", 8 * word);
            }
        }
    }

    /// Where `size` bytes are, if they are shared.
    fn shared(&self, address: u64, size: usize) -> Option<usize> {
        let at = usize::try_from(address.checked_sub(MEMORY)?).ok()?;
        (at + size <= 8 * WORDS).then_some(at)
    }

    fn counter(&self, address: u64, size: usize) -> Option<usize> {
        let at = usize::try_from(address.checked_sub(COUNTERS)?).ok()?;
        (at + size <= self.counters.len()).then_some(at)
    }

    fn bytes(&self) -> [u8; 8 * WORDS] {
        let mut bytes = [0; 8 * WORDS];
        bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.memory).for_each(|(b, w)| *b = w.to_le_bytes());
        bytes
    }
}

impl Host for World<'_> {
    fn read(&mut self, address: u64, out: &mut [u8]) -> Result<(), Fault> {
        if let Some(at) = self.shared(address, out.len()) {
            self.others();
            out.copy_from_slice(&self.bytes()[at..at + out.len()]);
            (false, self.atomic.0, at, &*out).hash(&mut self.accesses);
            if self.atomic.0 {
                self.atomic = (false, true);
            }
            if let Some(text) = &mut self.telling {
                *text += &format!("  read {} bytes at +{at}: {}\n", out.len(), little(out));
            }
            return Ok(());
        }
        let size = out.len() as u64;
        let at = self.counter(address, out.len()).ok_or(Fault::Access { write: false, address, size })?;
        self.atomic = (false, false);
        out.copy_from_slice(&self.counters[at..at + out.len()]);
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        if let Some(at) = self.shared(address, bytes.len()) {
            if !self.atomic.1 {
                self.others();
            }
            (true, self.atomic.1, at, bytes).hash(&mut self.accesses);
            self.atomic = (false, false);
            self.look();
            let mut memory = self.bytes();
            memory[at..at + bytes.len()].copy_from_slice(bytes);
            memory.as_chunks::<8>().0.iter().zip(&mut self.memory).for_each(|(b, w)| *w = u64::from_le_bytes(*b));
            self.look();
            if let Some(text) = &mut self.telling {
                *text += &format!("  write {} bytes at +{at}: {}\n", bytes.len(), little(bytes));
            }
            return Ok(());
        }
        let size = bytes.len() as u64;
        // Who counts how often a result was is no part of what is seen.
        self.counter(address, bytes.len()).map(drop).ok_or(Fault::Access { write: true, address, size })
    }

    fn call(&mut self, cpu: &mut Cpu, op: &Op) -> Result<Next, Fault> {
        /// `bpf_map_lookup_elem`, `bpf_ktime_get_ns`, `bpf_get_smp_processor_id` (`enum bpf_func_id`).
        const LOOKUP: i32 = 1;
        const CLOCK: i32 = 5;
        const PROCESSOR: i32 = 8;
        let result = match op.insn {
            Insn::Call(Call::Helper(LOOKUP)) => {
                let mut key = [0; 4];
                cpu.read(self, cpu.get(Reg::R2)?, &mut key)?;
                let key = u32::from_le_bytes(key);
                match (cpu.get(Reg::R1)?, key) {
                    (SHARED_MAP, 0) => MEMORY,
                    (OUTER_MAP, 0) => SHARED_MAP,
                    (RESULTS_MAP, 0..RESULT_COUNT) => COUNTERS + 8 * u64::from(key),
                    _ => 0,
                }
            }
            Insn::Call(Call::Helper(CLOCK)) => 1_000_000_000,
            Insn::Call(Call::Helper(PROCESSOR)) => 0,
            _ => return Err(Fault::Unmodelled(op.insn.to_string())),
        };
        cpu.set(Reg::R0, result);
        Ok(Next::Done)
    }

    fn address_of(&mut self, _: Imm64Kind, _: u64, link: Option<&Link>) -> Result<u64, Fault> {
        match link.map(|l| &l.symbol) {
            Some(Symbol::Data { offset, .. }) => Ok(MEMORY.wrapping_add_signed(*offset)),
            Some(Symbol::Map { name, .. }) => match &**name {
                SHARED => Ok(SHARED_MAP),
                OUTER => Ok(OUTER_MAP),
                RESULTS => Ok(RESULTS_MAP),
                other => Err(Fault::Unmodelled(format!("the map {other}"))),
            },
            other => Err(Fault::Unmodelled(format!("the address of {other:?}"))),
        }
    }

    fn relocate(&mut self, op: &Op) -> Result<Insn, Fault> {
        self.atomic = (true, false);
        Ok(op.insn)
    }
}

/// Bytes as a number.
fn little(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().rev().map(|b| format!("{b:02x}")).collect();
    format!("{:#x}", u64::from_str_radix(&digits, 16).unwrap_or(0))
}
