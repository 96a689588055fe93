//! Lane `threads`: what others see of a program, and make it see, through shared memory while it runs.
//!
//! All other lanes run one thread, to which a value read twice is the value read once. Here another thread stores by a
//! script ([`script`]) into memory that a random program ([`program`]) reads and writes. Three questions are asked:
//!
//! - *Every order*: [`explore`] interprets original and optimized program in each order in which the other thread's steps
//!   may fall between their accesses. What is seen of the optimized one must be among what may be seen of the original.
//! - *The prover*: programs with a wrong change ([`change`]), wrong because some order shows it, are put to `verify`,
//!   which must not say equal.
//! - *The kernel*: original and optimized program run in the kernel while another thread on another CPU plays the script
//!   ([`race`]). A result that the optimized program shows clearly in each of six races, that no order of steps explains,
//!   and that the original does not show in any of twenty-one, is a difference; so is a look of the other thread at
//!   what the program stores, unless both make the same accesses in the same order, or some order of the original's
//!   steps within one run shows it.
//!
//! The first two have no luck in them; the third shares nothing with the prover, not even what instructions mean.
//! Stores that the CPU itself delays are in the third only, where original and optimized program have the same of them.

pub mod change;
pub mod explore;
pub mod program;
pub mod race;
pub mod script;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bpf_driver::{Options, Silent, optimize, verify};
use bpf_testgen::random::Rng;
use bpf_testgen::shrink;

use crate::finds::{PASSES, SEARCH, in_own_thread, keep};
use crate::{Lane, Tally};
use change::Change;
use explore::{Schedule, Seen, Subject, Unexplored};
use program::Source;
use race::{Look, Runner, Sample, Track};
use script::Script;

/// Programs of a unit.
const PROGRAMS: u64 = 4;
/// Changes of a program that are tried.
const CHANGES: u64 = 8;
/// Time to verify a program.
const VERIFY: Duration = Duration::from_millis(1000);
/// One program in so many is also searched, and one in so many races.
const SEARCHED: u64 = 32;
const RACED: u64 = 2;
/// Time of a race.
const RACE: Duration = Duration::from_millis(8);
/// Races of the original that confirm a difference, and of the optimized program.
const CONFIRM: u64 = 20;
const AGAIN: u64 = 5;
/// How often the optimized program must show something in each race: as its result, or to the thread that looks.
const CLEARLY: [u64; 2] = [8, 20];
/// Time to shrink a find.
const SHRINK: Duration = Duration::from_secs(20);
/// Places at which a change is tried again in a program that has shrunk.
const SHRINK_PLACES: u64 = 6;

/// What makes a new object of a program, or says why it cannot.
pub type Optimizer = Box<dyn Fn(&Source, &Options) -> Result<Vec<u8>, String> + Send + Sync>;

/// Which questions a lane asks about what the optimizer made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Questions {
    /// Whether some order of steps shows a difference.
    pub orders: bool,
    /// Of how many programs the kernel shows a difference: one in so many.
    pub races: u64,
    /// Changes of each program that are put to `verify`.
    pub changes: u64,
}

/// The lane.
pub struct ThreadsLane {
    optimizer: Optimizer,
    track: Track,
    questions: Questions,
    /// Where finds are kept.
    keep: PathBuf,
}

/// A program with everything that decides what is done with it.
struct Subjects<'a> {
    source: &'a Source,
    script: &'a Script,
    options: &'a Options,
}

/// What is known of a program.
struct Explored {
    object: Vec<u8>,
    choices: Vec<u64>,
    seen: Seen,
}

/// A difference: the second object, and what happens, in words.
struct Difference {
    second: Vec<u8>,
    what: String,
}

impl ThreadsLane {
    /// The lane.
    ///
    /// # Errors
    /// Why it cannot run here: no `bpf()`, or one CPU only.
    pub fn new(keep: &Path) -> Result<ThreadsLane, String> {
        let optimizer: Optimizer = Box::new(|source, options| {
            let object = source.object().map_err(|e| e.to_string())?;
            optimize(&object, options, &Silent).map(|(bytes, _)| bytes).map_err(|e| e.to_string())
        });
        ThreadsLane::of(optimizer, Questions { orders: true, races: RACED, changes: CHANGES }, keep)
    }

    /// The lane with another optimizer, and some of the questions.
    ///
    /// # Errors
    /// As [`ThreadsLane::new`].
    pub fn of(optimizer: Optimizer, questions: Questions, keep: &Path) -> Result<ThreadsLane, String> {
        bpf_kernel::permitted().require().map_err(|e| e.to_string())?;
        Ok(ThreadsLane { optimizer, track: Track::new()?, questions, keep: keep.to_owned() })
    }

    fn program(&self, seed: u64, index: u64, r: &mut Rng, tally: &mut Tally) {
        let (script, source) = (Script::random(r), Source::random(r));
        let search = r.chance(SEARCHED);
        let time_limit = if search { SEARCH } else { PASSES };
        // What the proofs let through is to be seen here, not taken back by a run.
        let options = Options { time_limit, search, run_check: false, ..Options::default() };
        let subjects = Subjects { source: &source, script: &script, options: &options };
        let original = match explored(&source, &script) {
            Ok(original) => original,
            Err(Unexplored::TooMany) => return tally.count("programs with too many orders", 1),
            Err(Unexplored::Stuck(why)) => return refused(tally, "programs that are not interpreted", index, &why),
        };
        tally.count("programs", 1);
        tally.count("orders", original.seen.runs as u64);
        self.optimized(&subjects, &original, r, (seed, index), tally);
        for _ in 0..self.questions.changes {
            self.changed(&subjects, &original, r, (seed, index), tally);
        }
    }

    /// What the optimizer makes of a program.
    fn optimized(&self, s: &Subjects, original: &Explored, r: &mut Rng, (seed, index): (u64, u64), tally: &mut Tally) {
        let second = match (self.optimizer)(s.source, s.options) {
            Ok(second) => second,
            Err(why) => return refused(tally, "programs not optimized", index, &why),
        };
        if second == original.object {
            return tally.count("programs that stay as they are", 1);
        }
        if self.questions.orders
            && let Some(difference) = in_some_order(s.script, original, second.clone(), tally)
        {
            return self.find("optimized", s, difference, (seed, index), tally, &|source| {
                let original = explored(source, s.script).ok()?;
                let second = (self.optimizer)(source, s.options).ok()?;
                in_some_order(s.script, &original, second, &mut Tally::default())
            });
        }
        if self.questions.races > 0 && r.chance(self.questions.races) {
            match self.race(s, original, &second, r.next(), tally) {
                Ok(None) => {}
                Ok(Some(what)) => {
                    let difference = Difference { second, what };
                    self.find("race", s, difference, (seed, index), tally, &|_| None);
                }
                Err(why) => refused(tally, "races the kernel would not run", index, &why.to_string()),
            }
        }
    }

    /// A wrong change, put to `verify`.
    fn changed(&self, s: &Subjects, original: &Explored, r: &mut Rng, (seed, index): (u64, u64), tally: &mut Tally) {
        let change = r.one_of(&Change::ALL);
        if let Some(difference) = proven_wrongly(s, original, change, r, tally) {
            self.find("equal", s, difference, (seed, index), tally, &|source| {
                let original = explored(source, s.script).ok()?;
                // Where the change is made follows from the program, so it is tried at a few places.
                let at = |n| {
                    proven_wrongly(
                        &Subjects { source, ..*s },
                        &original,
                        change,
                        &mut Rng::new(n),
                        &mut Tally::default(),
                    )
                };
                (0..SHRINK_PLACES).find_map(at)
            });
        }
    }

    /// A race of both; the difference in words.
    fn race(
        &self,
        s: &Subjects,
        original: &Explored,
        second: &[u8],
        seed: u64,
        tally: &mut Tally,
    ) -> Result<Option<String>, bpf_kernel::KernelError> {
        let load = |object| Runner::load(s.source.home, object);
        let (a, b) = (load(&original.object)?, load(second)?);
        let same_accesses = || {
            let (Ok(a), Ok(b)) = (Subject::of(&original.object), Subject::of(second)) else { return false };
            a.accesses_as(&b, s.script, &original.choices).unwrap_or(false)
        };
        let mut n = seed;
        let mut runs = 0;
        let mut sample = |runner: &Runner| -> Result<Sample, bpf_kernel::KernelError> {
            n = n.wrapping_add(1);
            let sample = self.track.race(runner, s.script, n, RACE)?;
            runs += sample.runs();
            Ok(sample)
        };
        let mut first = sample(&a)?;
        let mut second = sample(&b)?;
        let mut suspects = Suspects::of(&first, &second, &original.seen);
        let suspected = !suspects.is_empty();
        // What depends on how a race happens to begin is shown in some races and not in others, by either program. So
        // the optimized one must show it in each race, and the original in none.
        for race in 0..CONFIRM {
            if suspects.is_empty() {
                break;
            }
            first.add(&sample(&a)?);
            if race < AGAIN {
                second = sample(&b)?;
            }
            suspects.keep(&Suspects::of(&first, &second, &original.seen));
        }
        // How long a program takes between two accesses decides how often another thread sees what lies between them: what the
        // original may show in one run, it shows so rarely that no race was long enough.
        if !suspects.looks.is_empty() {
            let before = suspects.looks.len();
            if same_accesses() {
                suspects.looks.clear();
            } else if let Ok(subject) = Subject::of(&original.object)
                && let Ok(never) = subject.never_shows(s.script, &original.choices, &suspects.looks)
            {
                suspects.looks = never;
            }
            tally.count("looks that are a matter of time", (before - suspects.looks.len()) as u64);
        }
        tally.count("races", 1);
        tally.count("raced runs", runs);
        tally.count("suspicions not confirmed", u64::from(suspected && suspects.is_empty()));
        Ok((!suspects.is_empty()).then(|| suspects.words(&second, first.runs())))
    }

    /// Shrinks, keeps and reports a difference.
    fn find(
        &self,
        kind: &str,
        s: &Subjects,
        first: Difference,
        (seed, index): (u64, u64),
        tally: &mut Tally,
        differs: &dyn Fn(&Source) -> Option<Difference>,
    ) {
        let until = Instant::now() + SHRINK;
        let mut smallest = first;
        let lines = shrink(s.source.lines.clone(), |lines| {
            let found = if Instant::now() < until { differs(&s.source.with(lines.to_vec())) } else { None };
            found.map(|found| smallest = found).is_some()
        });
        let source = s.source.with(lines);
        let mut text = format!("{kind}: {}\n{}\n{source}", s.script, smallest.what);
        let folder = self.keep.join(format!("threads-{seed}-{index}"));
        let search = if s.options.search { ", with the search" } else { ", passes only" };
        let note = format!("{text}\nbpf-opt opt{search}\nbpf-soak --seed {seed} --unit threads:{index}\n");
        let mut files = vec![("README", note.into_bytes()), ("after.o", smallest.second)];
        files.extend(source.object().ok().map(|object| ("before.o", object)));
        text += &keep(&folder, &files);
        tally.disagree(seed, index, text);
    }
}

/// A program with all that can be seen of it.
fn explored(source: &Source, script: &Script) -> Result<Explored, Unexplored> {
    let object = source.object().map_err(|e| Unexplored::Stuck(e.to_string()))?;
    let subject = Subject::of(&object).map_err(Unexplored::Stuck)?;
    let choices = subject.choices(script)?;
    let seen = subject.explore(script, &choices)?;
    Ok(Explored { object, choices, seen })
}

/// Whether some order of steps shows of the second program what no order shows of the original.
fn in_some_order(script: &Script, original: &Explored, second: Vec<u8>, tally: &mut Tally) -> Option<Difference> {
    let subject = match Subject::of(&second) {
        Ok(subject) => subject,
        Err(_) => {
            tally.count("second programs that are not understood", 1);
            return None;
        }
    };
    let how: Schedule = match subject.beyond(script, &original.choices, &original.seen) {
        Ok((how, runs)) => {
            tally.count("orders", runs as u64);
            how?
        }
        Err(_) => {
            tally.count("second programs that are not interpreted", 1);
            return None;
        }
    };
    let what = format!("the original cannot show this:\n{}", subject.tell(script, &original.choices, &how));
    Some(Difference { second, what })
}

/// A change at a random place that some order of steps shows and `verify` calls equal.
fn proven_wrongly(
    s: &Subjects,
    original: &Explored,
    change: Change,
    r: &mut Rng,
    tally: &mut Tally,
) -> Option<Difference> {
    let second = change.apply(s.source, r)?;
    let object = second.object().ok()?;
    let Some(difference) = in_some_order(s.script, original, object, tally) else {
        tally.count("changes that no order shows", 1);
        return None;
    };
    tally.count("wrong changes", 1);
    let options = Options { time_limit: VERIFY, kernel: false, run_check: false, ..Options::default() };
    match verify(&original.object, &difference.second, &options) {
        Ok(report) if report.is_equal() => {
            let what = format!("{change:?} is proven equal:\n{}\n{}", second.listing(), difference.what);
            Some(Difference { what, ..difference })
        }
        Ok(_) => None,
        Err(_) => {
            tally.count("changes that cannot be verified", 1);
            None
        }
    }
}

fn refused(tally: &mut Tally, counter: &str, index: u64, why: &str) {
    tally.count(counter, 1);
    if std::env::var_os("BPF_OPT_REFUSALS").is_some() {
        eprintln!("{index}: {counter}: {why}");
    }
}

/// What the second program shows clearly and the first does not show at all.
#[derive(PartialEq, Eq)]
struct Suspects {
    results: Vec<u64>,
    looks: Vec<Look>,
}

impl Suspects {
    fn of(first: &Sample, second: &Sample, possible: &Seen) -> Suspects {
        let result = |(what, n): (&u64, &u64)| {
            (*n >= CLEARLY[0] && !first.results.contains_key(what) && !possible.results.contains(what)).then_some(*what)
        };
        let look = |(what, n): (&Look, &u64)| (*n >= CLEARLY[1] && !first.looks.contains_key(what)).then_some(*what);
        Suspects {
            results: second.results.iter().filter_map(result).collect(),
            looks: second.looks.iter().filter_map(look).collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.results.is_empty() && self.looks.is_empty()
    }

    fn keep(&mut self, others: &Suspects) {
        self.results.retain(|what| others.results.contains(what));
        self.looks.retain(|what| others.looks.contains(what));
    }

    fn words(&self, second: &Sample, runs: u64) -> String {
        let mut text = format!("not seen in {runs} runs of the original, seen again in {} runs:\n", second.runs());
        for what in &self.results {
            let _ = writeln!(text, "  result {what:#x}, {} times", second.results[what]);
        }
        for what in &self.looks {
            let _ = writeln!(text, "  {what}, {} times", second.looks[what]);
        }
        text
    }
}

impl Lane for ThreadsLane {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn unit(&mut self, seed: u64, index: u64, tally: &mut Tally) {
        let mut r = Rng::of(seed ^ 0x7d5e, index);
        in_own_thread(tally, |tally| {
            (0..PROGRAMS).for_each(|_| self.program(seed, index, &mut r, tally));
            Ok(())
        });
    }
}
