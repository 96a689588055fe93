//! The last gate: the running kernel's verifier.
//!
//! The original's verdict is the yardstick. Where a program loaded and its optimized form does not, the guilty change
//! is found and taken back ([`crate::blame`]); in the worst case the function stays as it was. Each program is judged by
//! itself: that one does not load is no matter of the others.
//!
//! A program is loaded as the type that its section name or the user says, never as another: what the kernel accepts
//! as a classifier says nothing about a program of an unknown type.
//!
//! The verifier's work counts, too: a change that makes it grow by more than the user allows is taken back in the same way.
//!
//! The kernel is asked nothing twice: not about an original, nor about a form that a program has had before. And it is
//! asked nothing when the run's time is up, when a load that has begun is broken off. A form that was not judged is not
//! written: the program is what it was when it was accepted last, or as it was in the beginning.
//!
//! About programs that the kernel does not judge, `bpf_check` is asked ([`checked`]), in the same way and by the same
//! rules; but it does not count the verifier's work as the kernel does, so that growing is no fault there.

mod checked;
mod elsewhere;
mod growth;
mod proofs;
mod settle;
mod whole;
mod work;
mod yardstick;

use std::borrow::Cow;
use std::cell::{Cell, LazyCell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bpf_facts::Env;
use bpf_isa::Goal;
use bpf_kernel::{KernelError, LoadOptions, LoadVerdict, Loader, ObjectVerdict, ProgramType, ProgramVerdict, Question};
use bpf_object::{FuncId, Object, ObjectError, WriteOptions};
use bpf_passes::Settings;
use bpf_program::Function;
use bpf_prove::Options as ProofOptions;
use rustc_hash::FxHashSet;

use checked::{Checked, Original};
pub(crate) use elsewhere::Elsewhere;
use growth::Growth;
pub(crate) use settle::settle;
pub(crate) use whole::settle_whole;
pub(crate) use work::Work;
pub use yardstick::{Unfit, UnfitBecause, Yardstick};

use crate::candidate::Candidate;
use crate::decided::{self, KnownFacts, Pairs};
use crate::lengths;
use crate::module::{Module, is_program};
use crate::options::Options;
use crate::report::KernelVerdict;

/// Part of the time limit in which the originals have to be judged, beside which the passes begin; the results, which are smaller,
/// have what is left.
pub(crate) const ORIGINALS: f64 = 0.5;
/// How long after the time limit the kernel may still be asked: where the work before took longer than it was to.
const GRACE: Duration = Duration::from_millis(250);

/// What a function is told that the kernel was not asked about in time.
pub(crate) const NOT_JUDGED: &str = "not judged: time";

/// What is said of a program that the kernel takes and marks otherwise.
pub(crate) const MADE_OTHERWISE: &str = "it is taken, but the kernel makes something else of it";

/// What a function is told of which the verifier leaves something else.
const RUNS_OTHERWISE: &str =
    "it is taken, but with other branches decided or other code for calls, and what then runs is not proven equal";

/// What to compare with.
pub(crate) struct Gate {
    /// LoadVerdict on the original, or why there is none.
    before: Result<ObjectVerdict, Unasked>,
    /// That on the object which this original was made of, if it was ([`Options::original`]).
    first: Option<ObjectVerdict>,
    /// The programs that `bpf_check` judges in the kernel's place. Their numbers follow those of the others.
    checked: Vec<Checked>,
    /// How long loading the original took.
    took: Duration,
    /// How long it would take to make the original's maps as large as runs need them.
    run_maps: Duration,
    judge: Judge,
    /// Loads objects as wholes.
    whole: Whole,
    /// When the kernel is asked no more.
    deadline: Cell<Option<Instant>>,
    /// By how much the verifier's work on a program may grow.
    may_grow: Growth,
    /// The kernel, if it is not the running one.
    kernel: Option<String>,
    /// A load was broken off then.
    late: Cell<bool>,
    memory: RefCell<Memory>,
    facts: KnownFacts,
    /// Work for the proofs about one program; `None`: as much as there is time for.
    work: Option<u64>,
}

/// Gives the verdicts on the programs of an object, each by its name and section as it is asked about, until a deadline: the
/// kernel, or in tests something stricter.
type Judge = Box<dyn Fn(&[u8], &dyn Fn(&str, &str) -> Question, Option<Instant>) -> Result<ObjectVerdict, Unasked>>;

/// Whether libbpf loads an object as a whole, or its words; `None` if that was not found out.
type LoadsWhole = Option<Result<(), String>>;
/// Loads an object as a whole until a deadline.
type Whole = Box<dyn Fn(&[u8], Option<Instant>) -> LoadsWhole>;

/// Why a kernel was not asked about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Unasked {
    /// The user does not want it.
    SwitchedOff,
    /// This process may not, or not in this way.
    NotPermitted(String),
    /// It might have been asked, but that failed.
    Failed(String),
}

impl From<KernelError> for Unasked {
    fn from(e: KernelError) -> Self {
        match e {
            KernelError::NotPermitted { .. } | KernelError::UnknownProgramType { .. } => {
                Self::NotPermitted(e.to_string())
            }
            _ => Self::Failed(e.to_string()),
        }
    }
}

impl fmt::Display for Unasked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SwitchedOff => f.write_str("switched off"),
            Self::NotPermitted(why) | Self::Failed(why) => f.write_str(why),
        }
    }
}

/// An object that is read again once it is needed.
type Parsed<'a> = LazyCell<Result<Object, ObjectError>, Box<dyn FnOnce() -> Result<Object, ObjectError> + 'a>>;

/// What the kernel was asked before. Programs are numbered as in the verdict on the original.
#[derive(Default)]
struct Memory {
    /// The answer to a form of a program.
    known: HashMap<(usize, Form), Known>,
    /// The changed functions of a program when it was accepted last.
    accepted: HashMap<usize, Vec<Candidate>>,
    /// Programs that are not in their last form because there was no time to ask about it.
    late: BTreeSet<usize>,
    /// How often a change was taken back from a program because of the verifier's work, and what was banned before.
    lightened: HashMap<usize, (usize, FxHashSet<u64>)>,
}

/// All that a program consists of, as a number of 128 bits.
type Form = [u64; 2];

#[derive(Clone)]
struct Known {
    /// It can take the original's place.
    good: bool,
    words: KernelVerdict,
}

/// What results are settled with: who judges, and how they are made.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) gate: &'a Gate,
    pub(crate) module: &'a Module,
    pub(crate) settings: &'a Settings,
    pub(crate) write: &'a WriteOptions,
}

impl Gate {
    /// Loads the original, and checks what does not load, for a run that began at `started`.
    pub(crate) fn new(input: &[u8], module: &Module, options: &Options, started: Instant) -> Gate {
        let load = LoadOptions { program_type: options.program_type.clone(), only: None };
        let loader = match options.kernel {
            true => Loader::new(load).map_err(Unasked::from),
            false => Err(Unasked::SwitchedOff),
        };
        let loader = Rc::new(RefCell::new(loader));
        let mine = loader.clone();
        let judge: Judge = Box::new(move |bytes, wanted, deadline| match &mut *mine.borrow_mut() {
            Ok(loader) => loader.judge(bytes, wanted, deadline).map_err(Unasked::from),
            Err(why) => Err(why.clone()),
        });
        let mine = loader.clone();
        let whole: Whole = Box::new(move |bytes, deadline| mine.borrow().as_ref().ok()?.loads_whole(bytes, deadline));
        let first = started.checked_add(options.time_limit.mul_f64(ORIGINALS));
        let last = started.checked_add(options.time_limit + GRACE.min(options.time_limit / 20));
        let gate = Gate::with(input, judge, &|name, section| lengths::question(module, name, section), first, last);
        let run_maps = loader.borrow().as_ref().map_or(Duration::ZERO, Loader::maps_for_runs_take);
        let may_grow = match options.goal {
            Goal::Verifier => Growth::NONE,
            _ => Growth::of(options),
        };
        let mut gate = Gate { run_maps, may_grow, whole, work: proofs::work(options), ..gate };
        let first_verdict = |bytes: &Vec<u8>| (gate.judge)(bytes, &|_, _| Question::AsDefined, first).ok();
        gate.first = options.original.as_deref().and_then(first_verdict);
        let others = gate.not_looked_at(&module.object);
        gate.checked = checked::originals(&module.object, &others, options.program_type.as_deref(), first);
        gate.took += gate.checked.iter().map(|c| c.takes).sum::<Duration>();
        gate
    }

    /// Settling results with this gate.
    pub(crate) fn job<'a>(&'a self, module: &'a Module, settings: &'a Settings, write: &'a WriteOptions) -> Job<'a> {
        Job { gate: self, module, settings, write }
    }

    /// Asks a judge about the original until `first`, and about results until `last`.
    fn with(
        input: &[u8],
        judge: Judge,
        question: &dyn Fn(&str, &str) -> Question,
        first: Option<Instant>,
        last: Option<Instant>,
    ) -> Gate {
        let started = Instant::now();
        let before = judge(input, question, first);
        let took = time_for_a_result(&before, started.elapsed());
        let (run_maps, memory, late) = (Duration::ZERO, RefCell::default(), Cell::new(false));
        let may_grow = Growth::default();
        let whole = Box::new(|_: &[u8], _| None);
        Gate {
            before,
            first: None,
            checked: Vec::new(),
            took,
            run_maps,
            judge,
            whole,
            deadline: Cell::new(last),
            may_grow,
            kernel: None,
            late,
            memory,
            facts: KnownFacts::default(),
            work: None,
        }
    }

    /// The programs of the original that the kernel accepts.
    pub(crate) fn accepted(&self) -> Vec<&ProgramVerdict> {
        self.before.iter().flat_map(|v| v.programs.iter().filter(|p| p.verdict.is_accepted())).collect()
    }

    /// Whether the kernel accepts all programs of the original.
    pub(crate) fn accepts_all(&self) -> bool {
        self.before.as_ref().is_ok_and(ObjectVerdict::is_accepted)
    }

    /// The functions that stay as they are, because a program with them was not judged; and why.
    pub(crate) fn not_judged(&self, module: &Module) -> Vec<(usize, String)> {
        let of = |(program, why): (usize, String)| {
            self.functions(module, program).into_iter().map(move |f| (f, why.clone()))
        };
        if let Err(Unasked::Failed(why)) = &self.before {
            return (0..module.object.functions().len()).map(|f| (f, format!("not judged: {why}"))).collect();
        }
        self.programs_not_judged().into_iter().flat_map(of).collect()
    }

    /// The programs that were not judged for want of time or means, and why.
    fn programs_not_judged(&self) -> Vec<(usize, String)> {
        let programs = self.before.iter().flat_map(|v| v.programs.iter().enumerate());
        let late = programs.filter_map(|(program, p)| Some((program, why_not_judged(&p.verdict)?)));
        let unchecked = self.checked().filter(|(_, c)| c.original == Original::OutOfTime);
        late.chain(unchecked.map(|(program, _)| (program, NOT_JUDGED.to_owned()))).collect()
    }

    /// How long it took to load the original: the time to be kept for loading a result once.
    pub(crate) fn took(&self) -> Duration {
        self.took
    }

    /// Why the original and a result cannot be run within `time`, if that is clear already.
    pub(crate) fn not_for_runs(&self, time: Duration) -> Option<String> {
        match &self.before {
            Err(why) => Some(format!("the kernel could not be asked: {why}")),
            Ok(_) if self.accepted().is_empty() => Some(format!("{} does not load", self.original_in_words())),
            Ok(_) if (self.took + self.run_maps) * 2 > time => {
                let (load, time) = (2.0 * (self.took + self.run_maps).as_secs_f64(), time.as_secs_f64());
                Some(format!("loading both objects takes {load:.2} s, and a tenth of the time limit is {time:.2} s"))
            }
            Ok(_) => None,
        }
    }

    /// What a function is told that goes back for this.
    fn says<'w>(&self, words: &'w str) -> Cow<'w, str> {
        self.kernel.as_ref().map_or(Cow::Borrowed(words), |kernel| format!("{kernel}: {words}").into())
    }

    /// Something that this gate did not ask for took so long, and took back what it had accepted: its own time goes on, and no
    /// program goes back to what it was.
    fn goes_on_after(&self, took: Duration) {
        self.deadline.set(self.deadline.get().map(|end| end + took));
        self.late.set(false);
        self.memory.borrow_mut().accepted.clear();
    }

    fn is_over(&self) -> bool {
        self.late.get() || self.deadline.get().is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// The verdict on an original program.
    fn original(&self, program: usize) -> Option<&ProgramVerdict> {
        self.before.as_ref().ok()?.programs.get(program)
    }

    /// The programs that `bpf_check` judges, with their numbers.
    fn checked(&self) -> impl Iterator<Item = (usize, &Checked)> {
        self.checked.iter().enumerate().map(|(at, checked)| (self.first_checked() + at, checked))
    }

    /// The number of the first of them.
    fn first_checked(&self) -> usize {
        self.before.as_ref().map_or(0, |v| v.programs.len())
    }

    /// The functions that are programs and of whose code the kernel says nothing, though it had the time. Of loaders other
    /// than libbpf that are all outside of `.text`, however their symbols are bound.
    fn not_looked_at(&self, object: &Object) -> Vec<usize> {
        let judged = self.before.iter().flat_map(|v| &v.programs);
        let judged = judged.filter(|p| !p.verdict.is_of_the_place());
        let judged: BTreeSet<usize> = judged.flat_map(|p| object.entries(&p.name, &p.section)).map(|f| f.0).collect();
        let functions = object.functions().iter().enumerate();
        let programs = functions.filter(|(i, f)| is_program(object, *i) || f.section != ".text").map(|(i, _)| i);
        programs.filter(|i| !judged.contains(i)).collect()
    }

    /// The functions that a program consists of. Where nobody knows which they are, it may be any: a program with a
    /// verdict is never one that nothing of the object has to do with.
    fn functions(&self, module: &Module, program: usize) -> Vec<usize> {
        let object = &module.object;
        if let Some((_, checked)) = self.checked().find(|(number, _)| *number == program) {
            return object.loaded_with([checked.id]).into_iter().map(|f| f.0).collect();
        }
        let Some(p) = self.original(program) else { return Vec::new() };
        let mut entries = object.entries(&p.name, &p.section);
        if entries.is_empty() {
            entries = (0..object.functions().len()).map(FuncId).collect();
        }
        object.loaded_with(entries).into_iter().map(|f| f.0).collect()
    }

    /// The programs of the object that there is no verdict on, though there are verdicts: libbpf does not know them.
    fn unheard_of(&self, module: &Module) -> Vec<usize> {
        let Ok(before) = &self.before else { return Vec::new() };
        let entries = before.programs.iter().flat_map(|p| module.object.entries(&p.name, &p.section));
        let known: BTreeSet<usize> = entries.map(|f| f.0).collect();
        let all = 0..module.object.functions().len();
        all.filter(|&i| is_program(&module.object, i) && !known.contains(&i)).collect()
    }

    /// How many programs of the same name and section come before this one in verdicts.
    fn namesakes(&self, program: usize) -> usize {
        let Some(p) = self.original(program) else { return 0 };
        let before = self.before.iter().flat_map(|v| v.programs.iter().take(program));
        before.filter(|q| q.name == p.name && q.section == p.section).count()
    }

    /// What was said to a program as it is in this object, if it was asked about.
    fn known(&self, module: &Module, object: &Object, program: usize) -> Option<Known> {
        let form = form(object, &self.functions(module, program));
        self.memory.borrow().known.get(&(program, form)).cloned()
    }

    /// Whether a program of this object can take the original's place; `None` if there is no time to find out.
    fn is_good(&self, module: &Module, object: &Object, bytes: &[u8], program: usize) -> Option<bool> {
        let known = || self.known(module, object, program).map(|known| known.good);
        known().or_else(|| {
            self.ask(module, object, bytes, &[program]);
            known()
        })
    }

    /// Whether a form makes much more work for the verifier than the original of this program did.
    fn is_heavier(&self, program: usize, form: &Known) -> bool {
        let processed = |p: Option<&ProgramVerdict>| Some(p?.stats.as_ref()?.processed);
        let (Some(own), Some(after)) = (processed(self.original(program)), form.words.processed) else { return false };
        let before = processed(self.first(program)).unwrap_or(own);
        after > own && self.may_grow.is_exceeded(before, after)
    }

    /// Asks about programs of an object and remembers the answers.
    fn ask(&self, module: &Module, object: &Object, bytes: &[u8], programs: &[usize]) {
        if self.is_over() {
            return;
        }
        // They judge what is written, as the kernel does.
        let written: Parsed = LazyCell::new(Box::new(|| Object::parse(bytes.to_vec())));
        self.check(module, object, &written, programs);
        let named: Vec<(usize, &ProgramVerdict)> =
            programs.iter().filter_map(|&at| Some((at, self.original(at)?))).collect();
        if named.is_empty() || self.is_over() {
            return;
        }
        let question = |program: usize| {
            let Ok(written) = &*written else { return Question::AtAnyLength };
            let is_changed = |f| object.new_body(f).is_some();
            lengths::question_with(module, written, is_changed, &self.functions(module, program))
        };
        let questions: Vec<_> = named.iter().map(|(program, p)| (&p.name, &p.section, question(*program))).collect();
        let wanted = |name: &str, section: &str| {
            let asked = questions.iter().filter(|(n, s, _)| *n == name && *s == section).map(|(.., asked)| *asked);
            asked.max().unwrap_or(Question::Nothing)
        };
        let verdict = (self.judge)(bytes, &wanted, self.deadline.get());
        for (program, original) in named {
            let known = match &verdict {
                Ok(verdict) => match find(verdict, original, self.namesakes(program)) {
                    Some(found) if found.verdict.is_open() => {
                        self.late.set(true);
                        continue;
                    }
                    Some(found) => {
                        let mut known = Known { good: original.replaced_by(found), words: words(found) };
                        let other = || original.made_otherwise(found).map(|what| format!("{MADE_OTHERWISE}: {what}"));
                        known.words.reason =
                            known.words.reason.or_else(other).or_else(|| original.not_for_any_loader(found));
                        if known.good && !self.runs_as_before(module, &written, original, found) {
                            known.good = false;
                            let why = decided::not_told(original, found).unwrap_or(RUNS_OTHERWISE);
                            known.words.reason = Some(why.to_owned());
                        }
                        known
                    }
                    None => refused(verdict.not_loadable.as_deref().unwrap_or("it is no longer there")),
                },
                Err(why) => refused(&why.to_string()),
            };
            let form = form(object, &self.functions(module, program));
            self.memory.borrow_mut().known.insert((program, form), known);
        }
    }
}

impl Gate {
    /// Whether the verifier leaves of a result what it leaves of the original: `written` is the object with the result.
    fn runs_as_before(&self, module: &Module, written: &Parsed, old: &ProgramVerdict, new: &ProgramVerdict) -> bool {
        let is_refused = matches!(old.verdict, LoadVerdict::Rejected { .. });
        let same = |(p, q): (&ProgramVerdict, &ProgramVerdict)| p.decided == q.decided;
        if !is_refused && old.pairs(new).into_iter().all(same) {
            return true;
        }
        let Ok(written) = &**written else { return false };
        if written.functions().len() != module.object.functions().len() {
            return false;
        }
        let options = proofs::options(self.deadline.get(), self.work);
        let pairs = Written { module, written, options, facts: &self.facts };
        match is_refused {
            true => decided::runs_as_loaded(written, new, &pairs),
            false => decided::run_as_one_program((&module.object, old), (written, new), &pairs),
        }
    }

    /// Asks `bpf_check` about those of these programs that it judges.
    fn check(&self, module: &Module, object: &Object, written: &Parsed, programs: &[usize]) {
        let asked: Vec<_> = self.checked().filter(|(program, _)| programs.contains(program)).collect();
        if asked.is_empty() {
            return;
        }
        for (program, checked) in asked {
            let verdict = match &**written {
                Ok(written) => checked.judge(&module.object, written, self.deadline.get()),
                Err(why) => Some(Err(why.to_string())),
            };
            let known = match verdict {
                None => {
                    self.late.set(true);
                    return;
                }
                Some(Err(why)) => refused(&why),
                Some(Ok(())) => Known {
                    good: true,
                    words: KernelVerdict { judged: true, accepted: true, ..KernelVerdict::default() },
                },
            };
            let form = form(object, &self.functions(module, program));
            self.memory.borrow_mut().known.insert((program, form), known);
        }
    }
}

/// The functions of an object, and those that were written in their places.
struct Written<'a> {
    module: &'a Module,
    written: &'a Object,
    options: ProofOptions,
    facts: &'a KnownFacts,
}

impl Pairs for Written<'_> {
    fn partner(&self, f: FuncId) -> Option<FuncId> {
        Some(f)
    }

    fn are_the_same(&self, f: FuncId, g: FuncId) -> bool {
        self.module.object.code(f) == self.written.code(g)
    }

    fn with_graphs<T>(&self, f: FuncId, g: FuncId, ask: impl FnOnce(&Function, &Function, &Env) -> T) -> Option<T> {
        let a = self.module.graphs[f.0].as_ref().ok()?;
        let b = bpf_program::build(self.written, g).ok()?;
        let b = Function { kind: a.kind, arguments: a.arguments.clone(), ..b };
        Some(self.module.with_env(|env| ask(a, &b, env)))
    }

    fn options(&self) -> &ProofOptions {
        &self.options
    }

    fn facts(&self) -> &KnownFacts {
        self.facts
    }
}

/// How long it takes to load a result, of which the original took so long: programs that were not judged in time are not
/// loaded again. Beside the verification itself there is about as much to do: linking, and translation to machine code.
fn time_for_a_result(before: &Result<ObjectVerdict, Unasked>, took: Duration) -> Duration {
    let Ok(before) = before else { return took };
    if !before.programs.iter().any(|p| p.verdict.is_open()) {
        return took;
    }
    let judged = before.programs.iter().filter(|p| !p.verdict.is_open());
    let micros = judged.filter_map(|p| p.stats.as_ref()).map(|stats| stats.micros).sum();
    took.min(2 * Duration::from_micros(micros))
}

/// What a function is told where the kernel was not asked about a program with it.
fn why_not_judged(verdict: &LoadVerdict) -> Option<String> {
    match verdict {
        LoadVerdict::OutOfTime => Some(NOT_JUDGED.to_owned()),
        LoadVerdict::OutOfMeans { .. } => Some(format!("not judged: {}", verdict.reason())),
        _ => None,
    }
}

/// The verdict on the same program in another verdict, where there are so many namesakes before it.
fn find<'v>(v: &'v ObjectVerdict, p: &ProgramVerdict, namesakes: usize) -> Option<&'v ProgramVerdict> {
    v.programs.iter().filter(|q| q.name == p.name && q.section == p.section).nth(namesakes)
}

fn refused(why: &str) -> Known {
    let reason = Some(why.to_owned());
    Known { good: false, words: KernelVerdict { judged: true, reason, ..KernelVerdict::default() } }
}

fn words(p: &ProgramVerdict) -> KernelVerdict {
    KernelVerdict {
        judged: matches!(p.verdict, LoadVerdict::Accepted | LoadVerdict::Rejected { .. }),
        accepted: p.verdict.is_accepted(),
        processed: p.stats.as_ref().map(|s| s.processed),
        states: p.stats.as_ref().map(|s| s.total_states),
        peak_states: p.stats.as_ref().map(|s| s.peak_states),
        stack_depths: p.stats.as_ref().map_or_else(Vec::new, |s| s.stack_depths.clone()),
        reason: match &p.verdict {
            LoadVerdict::Accepted => None,
            LoadVerdict::Unsupported { .. } | LoadVerdict::NotLoadable { .. } | LoadVerdict::OutOfMeans { .. } => {
                Some(format!("not judged: {}", p.verdict.reason()))
            }
            LoadVerdict::Rejected { .. } | LoadVerdict::OutOfTime => Some(p.verdict.reason().to_owned()),
        },
    }
}

/// What these functions are in this object. All else that the kernel sees of a program is the same in every form.
fn form(object: &Object, functions: &[usize]) -> Form {
    [0u8, 1].map(|seed| {
        let mut hasher = DefaultHasher::new();
        seed.hash(&mut hasher);
        for &f in functions {
            (f, object.new_body(FuncId(f))).hash(&mut hasher);
        }
        hasher.finish()
    })
}

/// The programs whose section names tell no type, so that the kernel was not asked about them: loaded as some other
/// type, a program may well be accepted, but its context means something else then.
fn untyped(v: &ObjectVerdict) -> Vec<&str> {
    let untyped = |p: &&ProgramVerdict| p.kind == ProgramType::UNSPEC && !p.verdict.is_accepted();
    v.programs.iter().filter(untyped).map(|p| p.name.as_str()).collect()
}
