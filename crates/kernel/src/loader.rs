//! Verdicts on many forms of one object, each program by itself, in a given time.
//!
//! The one idea: what all forms have in common is made once. Maps, as short as the verifier allows, and BTF are lent to
//! every form that defines the same; libbpf links a form once, and its programs are then given to the kernel one by one,
//! and only those that are asked about. What one program lacks (a map that cannot be made, a function that this kernel
//! does not have) is no matter of the others.
//!
//! Where the kernel refuses a program without having found fault with its instructions, or needs to be told something that
//! only libbpf knows ([`attributes`]), libbpf loads that program by itself, with maps of programs that nobody else uses,
//! and its word counts. (One of struct_ops is then loaded once more, for what the verifier decides of it.) So it does for a
//! program that this loader has only ever seen refused: a mistake of this loader may cost a result, but it must not make
//! an original one that nothing is known of.
//!
//! Promises: the verdicts and the verifier's statistics are those that [`load_object`](crate::load_object) would give,
//! unless that gives none; nothing is attached or pinned; a program that the kernel still looks at when time is up is
//! [`LoadVerdict::OutOfTime`], within milliseconds; all is closed when the loader is dropped.

mod any_constants;

mod attributes;
mod complete;
mod constants;
mod elf;
mod lengths;
mod maps;
mod open_maps;
mod records;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use attributes::{Targets, attributes};
use constants::{Constants, Variable};
use elf::Source;
use maps::{AS_DEFINED, FOR_RUNS, Maps, Shortest};

use crate::{
    Decided, KernelError, LoadOptions, LoadVerdict, LoadedObject, ObjectVerdict, ProgramType, ProgramVerdict,
    VerifierStats,
    failure::{Failure, quoted, speaks_of_means, why_not_created},
    marks::{self, Wired},
    object::{Attempt, STATISTICS, accepted, accepted_alone, described, is_for_this_machine, open, with_info},
    permitted,
    raw::LOG_BYTES,
    stats,
    sys::{self, Attributes, Definition},
};

/// Room for the statistics of a program that loads, and for the complaint about one that does not.
const LOG_ROOM: usize = 64 << 10;
/// For maps that take longer to make at their full length, no refusal is looked into.
const PLAIN_LOAD: Duration = Duration::from_millis(250);
/// What is put aside for a program, for each time that it took before.
const CARE: f64 = 1.5;
/// How often a program is given to the kernel that is asked to come again, as libbpf does (`PROG_LOAD_ATTEMPTS`).
const ATTEMPTS: usize = 5;

/// What is said of programs that nobody can tell from each other.
const NAMESAKES: &str = "several programs of its section have its name";

const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const ENOSPC: i32 = 28;

/// What a [`Loader`] is asked about a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    /// Nothing.
    Nothing,
    /// Whether the kernel takes it with arrays as long as the object says.
    AsDefined,
    /// The same, and with arrays of smaller lengths: what the verifier knows of an element hangs on these.
    AndSmaller,
    /// With arrays of any length.
    AtAnyLength,
}

impl From<bool> for Question {
    fn from(wanted: bool) -> Self {
        if wanted { Self::AsDefined } else { Self::Nothing }
    }
}

/// Loads forms of one object; see the module.
pub struct Loader {
    options: LoadOptions,
    maps: Maps,
    btf: Option<KeptBtf>,
    /// How many different encodings of BTF there were.
    btfs: usize,
    targets: Targets,
    /// Maps that could not be made, and why.
    left_out: Vec<(String, String)>,
    /// How long the maps of the last object would take at their full length.
    full_maps: Duration,
    /// The same for maps that are no longer than runs need.
    maps_for_runs: Duration,
    /// Programs, by name and section, of which a refusal is believed: they were accepted, or refused by a plain load, too.
    believed: BTreeSet<Key>,
    /// Programs that refer to variables which their loader may set, and to which.
    readers: BTreeMap<Key, BTreeSet<Variable>>,
    /// All variables of that kind that the last object has.
    variables: BTreeSet<Variable>,
    /// Those variables that the first form of a program, which was accepted, needs to be known.
    known: BTreeMap<Key, BTreeSet<Variable>>,
    /// Maps that are made for one program, complete; see [`open_maps`].
    filled: Vec<Definition>,
    /// Programs that need maps which their definitions leave open, and how these are made for them; `None` if no way was found.
    fillings: BTreeMap<Key, Option<complete::Filling>>,
    /// How long the kernel took for programs of which it has said something, when it was asked last.
    takes: BTreeMap<Key, Duration>,
    /// How long the arrays are at least with which programs load that were accepted; see [`lengths`].
    shortest: BTreeMap<Key, Shortest>,
    /// Asks about programs of whose constants the verifier knows those alone; `None` of such a loader.
    other: Option<Box<Loader>>,
}

/// A program's name and section.
type Key = (String, String);

/// So many descriptors there have to be for anything to be judged: what reads the kernel's memory takes some, too.
const ROOM: usize = 16;

/// BTF that is in the kernel.
struct KeptBtf {
    bytes: Vec<u8>,
    /// The functions that libbpf has changed in it.
    hidden: Vec<String>,
    number: usize,
    fd: OwnedFd,
}

/// An object that is linked, and whose maps and BTF are in the kernel.
struct Prepared {
    object: sys::Object,
    /// Maps it has to do without, by index.
    left_out: Vec<usize>,
    /// It has arrays with fewer elements than they are going to have.
    short_arrays: bool,
    /// What may be set in its read-only data.
    constants: Constants,
    /// Maps that its programs refer to and that are not its own.
    _lent: Vec<OwnedFd>,
}

impl Loader {
    /// A loader that has made nothing yet.
    ///
    /// # Errors
    /// [`KernelError::NotPermitted`], or the type the programs are to have is unknown.
    pub fn new(options: LoadOptions) -> Result<Self, KernelError> {
        sys::allow_many_descriptors();
        permitted().require()?;
        sys::need_descriptors(ROOM).map_err(KernelError::refused("making room for descriptors"))?;
        options.program_type.as_deref().map(ProgramType::named).transpose()?;
        // As long as there are descriptors for what this reads and keeps.
        marks::prepare();
        sys::prepare_btf();
        let other = Box::new(Self::with(options.clone(), None));
        Ok(Self::with(options, Some(other)))
    }

    fn with(options: LoadOptions, other: Option<Box<Loader>>) -> Self {
        Self {
            options,
            maps: Maps::default(),
            btf: None,
            btfs: 0,
            targets: Vec::new(),
            left_out: Vec::new(),
            full_maps: Duration::ZERO,
            maps_for_runs: Duration::ZERO,
            believed: BTreeSet::new(),
            readers: BTreeMap::new(),
            variables: BTreeSet::new(),
            known: BTreeMap::new(),
            filled: Vec::new(),
            fillings: BTreeMap::new(),
            takes: BTreeMap::new(),
            shortest: BTreeMap::new(),
            other,
        }
    }

    /// At most about how long the kernel would take to make the maps of the last object for runs
    /// ([`LoadedObject::load_for_runs`](crate::LoadedObject::load_for_runs)), which this loader does not have it do.
    pub fn maps_for_runs_take(&self) -> Duration {
        self.maps_for_runs
    }

    /// Whether libbpf loads all programs of an object at once, as users load it, or its words. `None` if that was not found
    /// out: time or means were lacking, or the maps take long to make at their full length.
    pub fn loads_whole(&self, bytes: &[u8], deadline: Option<Instant>) -> Option<Result<(), String>> {
        let object = match open(bytes, &self.options, false) {
            Ok(object) => object,
            Err(KernelError::Open { reason }) if !speaks_of_means(&reason) => return Some(Err(reason)),
            Err(_) => return None,
        };
        if is_over(deadline) || maps::time_to_make_all(&object, AS_DEFINED) > PLAIN_LOAD {
            return None;
        }
        let (attempt, broken_off) = sys::until(deadline, || Attempt::chosen(object, &self.options));
        match attempt.ok()?.outcome {
            Ok(()) => Some(Ok(())),
            Err(failure) if broken_off || failure.is_for_want_of_means() => None,
            Err(failure) => Some(Err(failure.reason())),
        }
    }

    /// Asks the kernel about the programs of an object until `deadline`; what about each, `wanted` says by name and section.
    /// There are no verdicts on the others; those there are stand in the object's order.
    ///
    /// # Errors
    /// [`KernelError::Refused`] if the kernel does not describe a program that it has loaded.
    pub fn judge<Q: Into<Question>>(
        &mut self,
        bytes: &[u8],
        wanted: impl Fn(&str, &str) -> Q,
        deadline: Option<Instant>,
    ) -> Result<ObjectVerdict, KernelError> {
        is_for_this_machine(bytes)?;
        // Each is asked for several times, and may take the analysis of a whole program to answer.
        let questions: RefCell<BTreeMap<Key, Question>> = RefCell::default();
        let question = |name: &str, section: &str| {
            let mut known = questions.borrow_mut();
            *known.entry((name.to_owned(), section.to_owned())).or_insert_with(|| wanted(name, section).into())
        };
        let is_wanted = |name: &str, section: &str| question(name, section) != Question::Nothing;
        // What takes long to verify must leave time for the questions about what does not.
        let is_shared = deadline.is_some() && self.any_hangs(bytes, &question);
        let first = if is_shared { share(deadline, 2) } else { deadline };
        let mut verdict = self.judge_as_it_is(bytes, is_wanted, first)?;
        // All that is remembered of programs goes by their names and sections, so that of namesakes nothing is known, and nothing more is asked.
        let mut seen = BTreeSet::new();
        let namesakes: BTreeSet<Key> =
            verdict.programs.iter().map(key).filter(|key| !seen.insert(key.clone())).collect();
        for p in verdict.programs.iter_mut().filter(|p| namesakes.contains(&key(p))) {
            p.verdict = LoadVerdict::OutOfMeans { reason: NAMESAKES.to_owned() };
        }
        self.ask_at_other_lengths(bytes, &mut verdict.programs, &question, deadline)?;
        // Those that come again must not take the time for this from those that were judged.
        self.ask_about_any_constants(bytes, &mut verdict, deadline)?;
        let is_late = |p: &ProgramVerdict| p.verdict == LoadVerdict::OutOfTime;
        let late: Vec<Key> = verdict.programs.iter().filter(|p| is_late(p)).map(key).collect();
        if is_shared && !late.is_empty() && !is_over(deadline) {
            let is_late = |name: &str, section: &str| late.contains(&(name.to_owned(), section.to_owned()));
            let mut again = self.judge_as_it_is(bytes, is_late, deadline)?;
            self.ask_at_other_lengths(bytes, &mut again.programs, &question, deadline)?;
            self.ask_about_any_constants(bytes, &mut again, deadline)?;
            for found in again.programs {
                let same = |p: &&mut ProgramVerdict| key(p) == key(&found) && p.verdict == LoadVerdict::OutOfTime;
                if let Some(p) = verdict.programs.iter_mut().find(same) {
                    *p = found;
                }
            }
        }
        Ok(verdict)
    }

    /// Whether of any program of an object it is to be asked about other lengths.
    fn any_hangs(&self, bytes: &[u8], question: &dyn Fn(&str, &str) -> Question) -> bool {
        let Ok(object) = Source::new(bytes).open(&self.options) else { return false };
        let hangs = |index| question(&object.program_name(index), &object.program_section(index)) > Question::AsDefined;
        (0..object.program_count()).any(hangs)
    }

    fn judge_as_it_is(
        &mut self,
        bytes: &[u8],
        wanted: impl Fn(&str, &str) -> bool,
        deadline: Option<Instant>,
    ) -> Result<ObjectVerdict, KernelError> {
        let mut source = Source::new(bytes);
        let object = match source.open(&self.options) {
            Ok(object) => object,
            Err(reason) if speaks_of_means(&reason) => return Err(KernelError::Open { reason }),
            Err(reason) => return Ok(ObjectVerdict { programs: Vec::new(), not_loadable: Some(reason) }),
        };
        self.full_maps = maps::time_to_make_all(&object, AS_DEFINED);
        self.maps_for_runs = maps::time_to_make_all(&object, FOR_RUNS);
        let of_interest = |&index: &usize| wanted(&object.program_name(index), &object.program_section(index));
        let mut wanted: Vec<usize> = (0..object.program_count()).filter(of_interest).collect();
        // What took longest last; of what nothing is known, what is longest: then it cannot keep the others from being judged in time.
        let key_of = |index: usize| (object.program_name(index), object.program_section(index));
        wanted.sort_by_key(|&index| (self.takes.get(&key_of(index)).copied(), object.program_slots(index)));
        let prepared = match self.prepare(&mut source, &object, &wanted, deadline) {
            Some(Ok(prepared)) => Some(prepared),
            // One of them keeps the others from being linked; or there is no time, as each of them will find out.
            Some(Err(_)) | None => None,
        };
        let (mut programs, mut late) = (Vec::new(), Vec::new());
        // Those that take longer than their share come again when all have had theirs: a short program may take as long as
        // a million instructions.
        for is_first in [true, false] {
            let turn = if is_first { std::mem::take(&mut wanted) } else { std::mem::take(&mut late) };
            for (done, &index) in turn.iter().enumerate() {
                let waiting: Vec<Key> = turn[done + 1..].iter().chain(&late).map(|i| key_of(*i)).collect();
                let until = self.until(deadline, &waiting);
                let begun = Instant::now();
                let answer = match &prepared {
                    Some(prepared) => self.first_answer(&source, prepared, index, until)?,
                    None => None,
                };
                let verdict = match answer {
                    Some(verdict) => verdict,
                    None => self.alone(&mut source, &object, index, until)?,
                };
                let verdict = self.with_open_maps(&mut source, &object, index, verdict, until)?;
                if verdict.verdict != LoadVerdict::OutOfTime {
                    self.takes.insert(key_of(index), begun.elapsed());
                }
                match verdict.verdict {
                    LoadVerdict::OutOfTime if is_first && !is_over(deadline) => late.push(index),
                    _ => programs.push((index, verdict)),
                }
            }
        }
        // libbpf knows of no other maps than those of the object.
        if self.other.is_some() && self.filled.is_empty() {
            for (index, program) in &mut programs {
                self.look_into(&source, *index, program, deadline);
            }
        }
        programs.sort_by_key(|(index, _)| *index);
        Ok(ObjectVerdict { programs: programs.into_iter().map(|(_, verdict)| verdict).collect(), not_loadable: None })
    }

    /// Until when the kernel is asked about a program while others wait: it has its share, and what the others will not need of theirs by
    /// what they took before. Half of a share, of what is left when it is given, stays with each in any case.
    fn until(&self, deadline: Option<Instant>, waiting: &[Key]) -> Option<Instant> {
        let end = share(deadline, waiting.len() + 1)?;
        let share = end.saturating_duration_since(Instant::now());
        let needs = |key: &Key| self.takes.get(key).map_or(share, |took| took.mul_f64(CARE).clamp(share / 2, share));
        end.checked_add(waiting.iter().map(|key| share - needs(key)).sum())
    }

    /// Asks libbpf about a refusal, unless it is believed: where a plain load accepts the program, that is the verdict.
    fn look_into(&mut self, source: &Source, index: usize, program: &mut ProgramVerdict, deadline: Option<Instant>) {
        let key = key(program);
        let open = matches!(program.verdict, LoadVerdict::Rejected { .. }) && !self.believed.contains(&key);
        if program.verdict.is_accepted() {
            self.believed.insert(key);
        } else if open && self.full_maps <= PLAIN_LOAD && !is_over(deadline) {
            let plain = || accepted_alone(&source.bytes, &self.options, index);
            match sys::until(deadline, plain) {
                (Ok(Some(plain)), _) => *program = plain,
                (Ok(None), false) => {
                    self.believed.insert(key);
                }
                _ => {}
            }
        }
    }

    /// Links the `wanted` programs of an object, and makes its maps; `None` if there is no time for it. `opened` is the
    /// same object, for its names.
    fn prepare(
        &mut self,
        source: &mut Source,
        opened: &sys::Object,
        wanted: &[usize],
        deadline: Option<Instant>,
    ) -> Option<Result<Prepared, Failure>> {
        loop {
            if is_over(deadline) {
                return None;
            }
            let mut object = match source.open(&self.options) {
                Ok(object) => object,
                Err(messages) => return Some(Err(Failure { error: io::ErrorKind::InvalidData.into(), messages })),
            };
            for index in 0..object.program_count() {
                object.set_autoload(index, wanted.contains(&index));
            }
            if let [only] = wanted {
                object.request_log(*only, STATISTICS, LOG_ROOM);
            }
            let failure = match self.prepare_once(source, object) {
                Ok(prepared) => return Some(Ok(prepared)),
                Err(failure) => failure,
            };
            let words = &failure.messages;
            let map = quoted(words, "map '", "': failed to create").filter(|name| self.can_do_without(opened, name));
            let function = quoted(words, "extern (func ksym) '", "': not found");
            let value = quoted(words, "extern '", "' (strong): not resolved");
            let value = value.or_else(|| quoted(words, "extern (var ksym) '", "': not found in kernel BTF"));
            if let Some(name) = map {
                self.left_out.push((name.to_owned(), why_not_created(words)));
            } else if !function.is_some_and(|name| source.do_without(name))
                && !value.is_some_and(|name| source.do_without_value(name))
            {
                return Some(Err(failure));
            }
        }
    }

    /// A map that the object has and has not been prepared without.
    fn can_do_without(&self, object: &sys::Object, map: &str) -> bool {
        let known = (0..object.map_count()).any(|index| object.map_definition(index).name == map);
        known && !self.left_out.iter().any(|(name, _)| name == map)
    }

    /// The maps that an object has to do without, by index: those of which that is known already, and those of which its
    /// definition says so.
    fn cannot_be_made(&mut self, source: &Source, object: &sys::Object, btf: Option<&[u8]>) -> Vec<usize> {
        let mut indexes = Vec::new();
        for index in 0..object.map_count() {
            let map = object.map_definition(index);
            if self.filled.iter().any(|filled| filled.name == map.name) {
                continue;
            }
            if !self.left_out.iter().any(|(name, _)| *name == map.name) {
                let unknown = source.unknown_maps.iter().find(|(name, _)| *name == map.name);
                let why = unknown.map(|(_, why)| why.clone()).or_else(|| maps::why_not(&map, btf));
                let Some(why) = why else { continue };
                self.left_out.push((map.name, why));
            }
            indexes.push(index);
        }
        indexes
    }

    fn prepare_once(&mut self, source: &Source, mut object: sys::Object) -> Result<Prepared, Failure> {
        let failed = |error: io::Error| Failure { error, messages: String::new() };
        let bytes = object.btf_bytes();
        let left_out = self.cannot_be_made(source, &object, bytes.as_deref());
        let lent = self.btf.as_ref().filter(|kept| {
            bytes.as_ref() == Some(&kept.bytes) && kept.hidden == source.hidden && !maps::needs_own_btf(&object)
        });
        let most = maps::for_verdicts(&object);
        let short_arrays = (0..object.map_count()).any(|i| maps::is_short_array(&object.map_definition(i), most));
        let number = lent.map_or(self.btfs + 1, |kept| kept.number);
        let plan = self.maps.lend(&mut object, number, bytes.as_deref(), &left_out, &self.filled).map_err(failed)?;
        match lent {
            Some(kept) => object.lend_btf(kept.fd.try_clone().map_err(failed)?),
            None => self.btfs += 1,
        }
        let (outcome, messages) = sys::capture(|| object.prepare());
        outcome.map_err(|error| Failure { error, messages })?;
        self.maps.keep(&object, plan);
        if self.btf.as_ref().is_none_or(|kept| kept.number != number)
            && let (Some(bytes), Some(fd)) = (bytes, object.btf_fd())
        {
            let fd = fd.try_clone_to_owned().map_err(failed)?;
            self.btf = Some(KeptBtf { bytes, hidden: source.hidden.clone(), number, fd });
        }
        let constants = Constants::of(&source.bytes, &object);
        self.variables = constants.variables().cloned().collect();
        let lent = if self.other.is_none() { self.lend_constants(&mut object, &constants) } else { Ok(Vec::new()) };
        Ok(Prepared { object, left_out, short_arrays, constants, _lent: lent.map_err(failed)? })
    }

    /// Makes the programs of a prepared object refer to constants that the verifier does not know.
    fn lend_constants(&self, object: &mut sys::Object, constants: &Constants) -> io::Result<Vec<OwnedFd>> {
        let nothing = BTreeSet::new();
        let mut lent = Vec::new();
        for index in 0..object.program_count() {
            let key = (object.program_name(index), object.program_section(index));
            let known = self.known.get(&key).unwrap_or(&nothing);
            lent.extend(constants.lend(object, index, known)?);
        }
        Ok(lent)
    }

    /// Gives a program of a prepared object to the kernel; `None` where libbpf is to be asked.
    fn first_answer(
        &mut self,
        source: &Source,
        prepared: &Prepared,
        index: usize,
        deadline: Option<Instant>,
    ) -> Result<Option<ProgramVerdict>, KernelError> {
        // Whoever loads it in the end.
        self.note_constants(prepared, index);
        let object = &prepared.object;
        if object.program_type(index) == ProgramType::UNSPEC.0 {
            let reason = format!("no program type goes with section {}", object.program_section(index));
            return Ok(Some(described(object, index, LoadVerdict::NotLoadable { reason })));
        }
        // libbpf has put the functions that it calls behind it.
        let calls = object.instructions(index).len() > object.program_slots(index);
        if let Some(name) = source.lacks(&object.program_name(index), &object.program_section(index), calls) {
            let reason = format!("this kernel has no {name}");
            return Ok(Some(described(object, index, LoadVerdict::Unsupported { reason })));
        }
        let Some(attributes) = attributes(object, index, &mut self.targets) else { return Ok(None) };
        let (outcome, log) = load(object, index, &source.license, &attributes, deadline);
        let verdict = match outcome {
            Ok(fd) => {
                let verdict = with_info(object, index, fd.as_fd())?;
                let decided = decided(object, index, fd.as_fd(), verdict.info.map(|info| info.id));
                ProgramVerdict { decided: Some(decided), ..verdict }
            }
            Err(Refusal::Time) => described(object, index, LoadVerdict::OutOfTime),
            Err(Refusal::Error(_)) if !stats::complains(&log) => return Ok(None),
            Err(Refusal::Error(error)) => {
                let failure = Failure { error, messages: String::new() };
                let verdict = match failure.verdict_of_the_kernel(&log) {
                    // What it attaches to was not found to be right: libbpf may know better.
                    LoadVerdict::Unsupported { .. } => return Ok(None),
                    verdict => self.excused(source, prepared, &log).unwrap_or(verdict),
                };
                described(object, index, verdict)
            }
        };
        Ok(Some(ProgramVerdict { stats: VerifierStats::parse(&log), ..verdict }))
    }

    /// Remembers which variables a program refers to that its loader may set.
    fn note_constants(&mut self, prepared: &Prepared, index: usize) {
        let variables = prepared.constants.of_program(&prepared.object, index);
        let key = (prepared.object.program_name(index), prepared.object.program_section(index));
        match variables.is_empty() {
            true => drop(self.readers.remove(&key)),
            false => drop(self.readers.insert(key, variables)),
        }
    }

    /// Was a program refused because it needs what it was prepared without, or more than it was given? libbpf puts calls of functions that do not
    /// exist in the place (`POISON_LDIMM64_MAP_BASE` and `POISON_CALL_KFUNC_BASE` in libbpf.c).
    fn excused(&self, source: &Source, prepared: &Prepared, log: &str) -> Option<LoadVerdict> {
        if !source.unlinked.is_empty() {
            // The kernel does not take types of functions that are not there, and wants types for some programs.
            let reason = format!("the object is not linked: it has no {}", source.unlinked.join(" or "));
            return Some(LoadVerdict::NotLoadable { reason });
        }
        let complaint = stats::last_complaint(log);
        if prepared.short_arrays && complaint.contains("map_value_or_null") {
            let reason = format!("an array was made shorter than it is going to be: {complaint}");
            return Some(LoadVerdict::NotLoadable { reason });
        }
        let (_, number) = complaint.split_once("invalid func unknown#")?;
        if let Some(map) = number.strip_prefix("200100").and_then(|index| index.parse::<usize>().ok()) {
            let name = prepared.left_out.contains(&map).then(|| prepared.object.map_definition(map).name)?;
            let (_, reason) = self.left_out.iter().find(|(left_out, _)| *left_out == name)?;
            let whole = lacks_map(&name, reason);
            return Some(match speaks_of_means(reason) {
                true => LoadVerdict::OutOfMeans { reason: whole },
                false => LoadVerdict::NotLoadable { reason: whole },
            });
        }
        if number.starts_with("2002") && !source.missing.is_empty() {
            let reason = format!("this kernel has no function {}", source.missing.join(" or "));
            return Some(LoadVerdict::Unsupported { reason });
        }
        None
    }

    /// The verdict on a program that is alone in its object, if need be by libbpf: with all structures of the kernel, and
    /// without the optional ones where these are in the way.
    fn alone(
        &mut self,
        source: &mut Source,
        opened: &sys::Object,
        index: usize,
        deadline: Option<Instant>,
    ) -> Result<ProgramVerdict, KernelError> {
        let verdict = self.alone_once(source, opened, index, deadline)?;
        if !verdict.verdict.is_of_the_place() || !maps::needs_own_btf(opened) {
            return Ok(verdict);
        }
        source.without_optional = true;
        let without = self.alone_once(source, opened, index, deadline);
        source.without_optional = false;
        let without = without?;
        if !without.verdict.is_of_the_place() {
            return Ok(without);
        }
        // libbpf loads with it whatever its structures name, which may need maps as they are defined.
        let plain = self.plainly(source, index, deadline)?;
        Ok(plain.filter(|v| !v.verdict.is_of_the_place()).unwrap_or(verdict))
    }

    /// The verdict on a program of structures, of a plain load of it; `None` if the kernel was not asked about it, or
    /// there was no time.
    fn plainly(
        &self,
        source: &Source,
        index: usize,
        deadline: Option<Instant>,
    ) -> Result<Option<ProgramVerdict>, KernelError> {
        if is_over(deadline) {
            return Ok(None);
        }
        let plain = || Attempt::alone(&source.bytes, &self.options, index, STATISTICS);
        let (Ok(Attempt { object, outcome }), false) = sys::until(deadline, plain) else { return Ok(None) };
        let log = object.log(index);
        let verdict = match outcome {
            Ok(()) => loaded(source, &object, index, deadline)?,
            Err(failure) if failure.is_of_the_kernel(&object.program_name(index)) => {
                described(&object, index, failure.verdict_of_the_kernel(&log))
            }
            Err(_) => return Ok(None),
        };
        Ok(Some(ProgramVerdict { stats: VerifierStats::parse(&log), ..verdict }))
    }

    fn alone_once(
        &mut self,
        source: &mut Source,
        opened: &sys::Object,
        index: usize,
        deadline: Option<Instant>,
    ) -> Result<ProgramVerdict, KernelError> {
        let mut prepared = match self.prepare(source, opened, &[index], deadline) {
            None => return Ok(described(opened, index, LoadVerdict::OutOfTime)),
            Some(Err(failure)) => return Ok(described(opened, index, failure.blames_the_place())),
            Some(Ok(prepared)) => prepared,
        };
        if let Some(verdict) = self.first_answer(source, &prepared, index, deadline)? {
            return Ok(verdict);
        }
        if is_over(deadline) {
            return Ok(described(opened, index, LoadVerdict::OutOfTime));
        }
        let ((outcome, sent), messages) = sys::capture(|| sys::until(deadline, || prepared.object.load()));
        let object = &prepared.object;
        let Err(error) = outcome else {
            return loaded(source, object, index, deadline);
        };
        let log = object.log(index);
        let failure = Failure { error, messages };
        let verdict = if sent && is_of_a_signal(&failure.error) {
            LoadVerdict::OutOfTime
        } else if failure.is_of_the_kernel(&object.program_name(index)) {
            let verdict = failure.verdict_of_the_kernel(&log);
            self.excused(source, &prepared, &log).unwrap_or(verdict)
        } else if failure.messages.contains("failed to initialize slot") {
            // The program was loaded, and is gone again. The others, which the object puts into a program array, were not to be.
            if source.empty_slots() {
                return self.alone_once(source, opened, index, deadline);
            }
            failure.blames_the_place()
        } else {
            failure.blames_the_place()
        };
        Ok(described(object, index, verdict))
    }
}

impl LoadedObject {
    /// [`LoadedObject::load`] for runs: with maps of old objects, with definitions completed that are left to a loader
    /// (`loader/complete.rs`), and with tables not longer than a few thousand elements, which is much quicker. Whether an object
    /// loads as its users would load it this does not tell. A load that lasts beyond `deadline` is broken off.
    ///
    /// # Errors
    /// As for [`LoadedObject::load`].
    pub fn load_for_runs(bytes: &[u8], options: &LoadOptions, deadline: Option<Instant>) -> Result<Self, KernelError> {
        permitted().require()?;
        is_for_this_machine(bytes)?;
        let mut source = Source::new(bytes);
        // What only some loaders ask for may keep the rest from being loaded.
        source.without_optional = true;
        let mut object = source.open(options).map_err(|reason| KernelError::Open { reason })?;
        // Nothing breaks off the kernel while it makes a map.
        let takes = maps::time_to_make_all(&object, FOR_RUNS);
        if deadline.is_some_and(|deadline| Instant::now().checked_add(takes).is_none_or(|end| end > deadline)) {
            let reason =
                format!("it takes {:.1} s to make its maps, and there is no time for that", takes.as_secs_f64());
            return Err(KernelError::Open { reason });
        }
        let patterns = maps::make_all_ready(&mut object, &source.unknown_maps, FOR_RUNS);
        let _until_loaded = patterns.map_err(KernelError::refused("preparing the maps"))?;
        Self::of(sys::until(deadline, || Attempt::chosen(object, options)).0?)
    }
}

/// Why the kernel did not load a program.
enum Refusal {
    Time,
    Error(io::Error),
}

/// Gives a program to the kernel, again if it is told to come again, and with more room if the log needs it.
fn load(
    object: &sys::Object,
    index: usize,
    license: &str,
    attributes: &Attributes,
    deadline: Option<Instant>,
) -> (Result<OwnedFd, Refusal>, String) {
    let mut log = vec![0; LOG_ROOM];
    for attempt in 1.. {
        if is_over(deadline) {
            break;
        }
        let (outcome, sent) = sys::until(deadline, || object.load_linked(index, license, attributes, &mut log));
        let error = match outcome {
            Ok(fd) => return (Ok(fd), sys::text(&log)),
            Err(error) => error,
        };
        if is_of_a_signal(&error) && (sent || attempt < ATTEMPTS) {
            continue;
        }
        if error.raw_os_error() == Some(ENOSPC) && log.len() < LOG_BYTES {
            log = vec![0; LOG_BYTES];
            continue;
        }
        return (Err(Refusal::Error(error)), sys::text(&log));
    }
    (Err(Refusal::Time), String::new())
}

/// The verdict on a program that libbpf has loaded, or left out.
fn loaded(
    source: &Source,
    object: &sys::Object,
    index: usize,
    deadline: Option<Instant>,
) -> Result<ProgramVerdict, KernelError> {
    let verdict = accepted(object, index)?;
    Ok(match decided_of_loaded(source, object, index, deadline) {
        Ok(decided) => ProgramVerdict { decided, ..verdict },
        Err(_) => described(object, index, LoadVerdict::OutOfTime),
    })
}

/// What the verifier has decided of a program that libbpf has loaded: it is loaded once more as this loader does it, with what
/// libbpf has found out for it. `None` where that is not to be had of the loaded program.
///
/// # Errors
/// If there was no time: then nothing is known, which must not be taken for nothing decided.
fn decided_of_loaded(
    source: &Source,
    object: &sys::Object,
    index: usize,
    deadline: Option<Instant>,
) -> Result<Option<Decided>, Refusal> {
    let attributes = object.program_fd(index).and_then(|loaded| attributes::of_loaded(object, index, loaded));
    let Some(attributes) = attributes else { return Ok(None) };
    match load(object, index, &source.license, &attributes, deadline).0 {
        Ok(fd) => {
            let id = sys::program_info(fd.as_fd()).ok().map(|info| info.id);
            Ok(Some(decided(object, index, fd.as_fd(), id)))
        }
        Err(Refusal::Error(_)) => Ok(None),
        Err(Refusal::Time) => Err(Refusal::Time),
    }
}

/// What the verifier has decided of a program that this loader has loaded, by its number, if the kernel tells that.
fn decided(object: &sys::Object, index: usize, loaded: BorrowedFd<'_>, id: Option<u32>) -> Decided {
    // Where the kernel's memory cannot be read, no tail call is known to be wired.
    let wired = id.and_then(|id| Wired::of(loaded, id)).unwrap_or_default();
    object.decided(index, loaded, &wired)
}

/// What the verifier returns when it sees a signal (`do_check`), and what system calls do in general.
fn is_of_a_signal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(EAGAIN | EINTR))
}

/// Why a program is not judged that needs a map which there is not.
fn lacks_map(name: &str, why: &str) -> String {
    format!("map {name} cannot be created: {why}")
}

fn key(p: &ProgramVerdict) -> Key {
    (p.name.clone(), p.section.clone())
}

/// What is said of a program that the kernel takes as it stands, where that does not tell what it says of other read-only data.
fn not_asked(why: &str) -> LoadVerdict {
    LoadVerdict::OutOfMeans { reason: format!("it cannot be asked about with other read-only data: {why}") }
}

/// When one of so many that wait has had its part of the time.
fn share(deadline: Option<Instant>, waiting: usize) -> Option<Instant> {
    let now = Instant::now();
    let left = deadline?.saturating_duration_since(now);
    now.checked_add(left / u32::try_from(waiting.max(1)).unwrap_or(u32::MAX))
}

/// When one of so many parts of the time is left.
fn all_but_one(deadline: Option<Instant>, parts: u32) -> Option<Instant> {
    let left = deadline?.saturating_duration_since(Instant::now());
    deadline?.checked_sub(left / parts)
}

fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use bpf_testgen::case::Case;

    use super::*;

    #[test]
    fn a_refusal_is_believed_only_if_a_plain_load_refuses_too() {
        if !crate::testing::permitted() {
            return;
        }
        let source = Source::new(include_bytes!("../../../examples/xdp_count.o"));
        let mut loader = Loader::new(LoadOptions::default()).expect("the kernel can be asked");
        let object = Source::new(&source.bytes).open(&loader.options).expect("a committed object");
        let refused = || described(&object, 0, LoadVerdict::Rejected { errno: 13, log: "by mistake".into() });
        let mut program = refused();
        loader.look_into(&source, 0, &mut program, None);
        assert!(program.verdict.is_accepted(), "{program:?}");
        // A program that this loader has accepted before has become worse.
        loader.look_into(&source, 0, &mut program, None);
        program = refused();
        loader.look_into(&source, 0, &mut program, None);
        assert!(!program.verdict.is_accepted());
    }

    #[test]
    fn a_program_is_judged_when_it_has_been_with_any_constants() {
        if !crate::testing::permitted() {
            return;
        }
        // A loop of one turn; of very many, if the verifier does not know the number.
        let bytes = |section: &str| {
            let text = format!(
                "; A.\n; section: {section}\n; data: turns .rodata 4 01000000\n; expect: equal\nbefore:\n    r1 = turns ll\n    \
                 r1 = *(u16 *)(r1 + 0)\n    r0 = 0\nback:\n    r0 += 1\n    if r0 < r1 goto back\n    r0 = 0\n    exit\n\
                 after:\n    r0 = 0\n    exit\n"
            );
            Case::parse(&text).expect("a case").old_object().expect("it assembles")
        };
        let judged = |section: &str, deadline: Option<Instant>| {
            let mut loader = Loader::new(LoadOptions::default()).expect("the kernel can be asked");
            let mut verdict = loader.judge(&bytes(section), |_, _| true, deadline).expect("it is judged");
            verdict.programs.remove(0)
        };
        let late = judged("xdp", Instant::now().checked_add(Duration::from_millis(40)));
        assert_eq!(late.verdict, LoadVerdict::OutOfTime);
        // libbpf alone can load the second.
        for section in ["xdp", "usdt"] {
            let asked = judged(section, None);
            let with_any = asked.with_any_constants.as_ref().expect("it is asked about twice");
            assert!(asked.verdict.is_accepted() && with_any.verdict.is_accepted(), "{asked:?}");
        }
    }

    /// The conditional jumps of which the verifier's log says that one way was never gone, as the kernel decides them
    /// (`opt_hard_wire_dead_code_branches`).
    fn decided_by_log(code: &[[u8; 8]], log: &str) -> Vec<(usize, bool)> {
        let visited = |line: &str| line.split_once(": (")?.0.parse::<usize>().ok();
        let seen: BTreeSet<usize> = log.lines().filter_map(visited).collect();
        let mut jumps = Vec::new();
        for &slot in &seen {
            let [opcode, _, o0, o1, ..] = code[slot];
            // Conditional jumps of both classes; not `ja`, `call`, `exit`.
            if ![5, 6].contains(&(opcode & 7)) || [0x00, 0x80, 0x90].contains(&(opcode & 0xf0)) {
                continue;
            }
            let target = (slot + 1).wrapping_add_signed(i16::from_le_bytes([o0, o1]).into());
            match (seen.contains(&(slot + 1)), seen.contains(&target)) {
                (false, _) => jumps.push((slot, true)),
                (true, false) => jumps.push((slot, false)),
                (true, true) => {}
            }
        }
        jumps
    }

    /// Where one comes from a slot by jumps that are decided by a log: those of `jumps` in one way, others in both.
    fn leads(code: &[[u8; 8]], from: usize, jumps: &[(usize, bool)], by_log: &[(usize, bool)]) -> BTreeSet<usize> {
        let (mut open, mut seen, mut ends) = (vec![from], BTreeSet::new(), BTreeSet::new());
        while let Some(slot) = open.pop() {
            if !seen.insert(slot) {
                continue;
            }
            let [opcode, _, o0, o1, ..] = code[slot];
            let target = (slot + 1).wrapping_add_signed(i16::from_le_bytes([o0, o1]).into());
            match jumps.iter().find(|(jump, _)| *jump == slot) {
                _ if opcode == 0x05 => open.push(target),
                Some((_, taken)) => open.push(if *taken { target } else { slot + 1 }),
                None if by_log.iter().any(|(jump, _)| *jump == slot) => open.extend([slot + 1, target]),
                None => drop(ends.insert(slot)),
            }
        }
        ends
    }

    /// Whether the verifier did not come to an instruction.
    fn gone(slot: usize, log: &str) -> bool {
        !log.lines().any(|line| line.split_once(": (").is_some_and(|(number, _)| number == slot.to_string()))
    }

    /// Whether the verifier came to a call, and never to what stands behind it: the function that is called throws. What is
    /// left of that cannot be told.
    fn never_returns(code: &[[u8; 8]], log: &str) -> bool {
        const CALL: u8 = 0x85;
        (0..code.len()).any(|slot| code[slot][0] == CALL && !gone(slot, log) && gone(slot + 1, log))
    }

    /// Compares what the kernel has left of an object's programs with the verifier's log of them; how many programs and
    /// decided jumps there were.
    fn holds_against_the_log(name: &str, bytes: &[u8], program_type: Option<String>) -> [usize; 2] {
        /// `BPF_LOG_LEVEL2`: a line for each instruction that is looked at.
        const EACH: u32 = 2;
        /// Instructions of which a log takes long.
        const LONG: u64 = 4_000;
        let options = LoadOptions { program_type, only: None };
        let mut loader = Loader::new(options.clone()).expect("the kernel can be asked");
        let verdict = loader.judge(bytes, |_, _| true, None).expect("it is judged");
        // What the kernel was asked about.
        let converted = crate::legacy::convert(bytes).map(|c| c.bytes);
        let bytes = converted.as_deref().unwrap_or(bytes);
        let (mut programs, mut decided) = (0, 0);
        for (index, program) in verdict.programs.iter().enumerate().filter(|(_, p)| p.verdict.is_accepted()) {
            let Some(found) = &program.decided else { continue };
            let name = format!("{name}: {}", program.name);
            if program.stats.as_ref().is_some_and(|stats| stats.processed > LONG) {
                assert!(!found.unclear, "{name}");
                continue;
            }
            let plain = Attempt::alone(bytes, &options, index, EACH);
            let Ok(Attempt { object, outcome: Ok(()) }) = plain else {
                assert!(!found.unclear, "{name}");
                continue;
            };
            // The log is that of longer arrays.
            let most = maps::for_verdicts(&object);
            if (0..object.map_count()).any(|map| maps::is_short_array(&object.map_definition(map), most)) {
                continue;
            }
            let (log, code) = (object.log(index), object.instructions(index));
            // A longer log has lost its beginning.
            assert!(log.len() + 1 < LOG_BYTES, "{name}");
            if found.unclear {
                assert!(never_returns(code, &log), "{name}");
                continue;
            }
            let expected = decided_by_log(code, &log);
            for (slot, _) in &expected {
                let [by_log, by_kernel] = [&expected, &found.jumps].map(|jumps| leads(code, *slot, jumps, &expected));
                assert_eq!(by_kernel, by_log, "{name}: {slot}");
            }
            let unknown = |jump: &&(usize, bool)| !expected.contains(jump);
            let others = found.jumps.iter().filter(unknown).all(|(slot, _)| gone(*slot, &log));
            assert!(others, "{name}: {:?}, {expected:?}", found.jumps);
            programs += 1;
            decided += expected.len();
        }
        [programs, decided]
    }

    #[test]
    fn what_the_kernel_has_decided_is_what_its_verifier_did_not_see() {
        /// Bytes of objects whose programs take long.
        const LARGE: u64 = 200_000;
        if !crate::testing::permitted() {
            return;
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let files = |folder: PathBuf, ending: &str| {
            let entries = std::fs::read_dir(folder).into_iter().flatten().map(|e| e.expect("an entry").path());
            let mut paths: Vec<_> = entries.filter(|p| p.extension().is_some_and(|e| e == ending)).collect();
            paths.sort();
            paths
        };
        let mut found = [0, 0];
        let mut add = |more: [usize; 2]| found = [found[0] + more[0], found[1] + more[1]];
        let folders = ["examples", "crates/driver/tests/fixtures", "../shared/bench/k2", "../shared/bench/public"];
        for path in folders.iter().flat_map(|folder| files(root.join(folder), "o")) {
            if path.metadata().is_ok_and(|m| m.len() <= LARGE) {
                let bytes = std::fs::read(&path).expect("readable");
                add(holds_against_the_log(&path.display().to_string(), &bytes, None));
            }
        }
        let topics = std::fs::read_dir(root.join("tests/equivalence")).expect("cases").flatten();
        // All of them take a minute: 4,598 programs with 659 decided jumps.
        let mut topics: Vec<PathBuf> = topics.map(|topic| topic.path()).collect();
        topics.sort();
        for path in topics.into_iter().flat_map(|topic| files(topic, "bpf")).step_by(3) {
            let name = path.display().to_string();
            let Ok(case) = Case::parse(&std::fs::read_to_string(&path).expect("readable")) else { continue };
            let versions = [case.old_object().ok(), case.new_object().ok().flatten()];
            for bytes in versions.into_iter().flatten() {
                add(holds_against_the_log(&name, &bytes, case.program_type.clone()));
            }
        }
        eprintln!("{} programs, {} decided jumps", found[0], found[1]);
        assert!(found[0] >= 1000 && found[1] >= 100);
    }

    #[test]
    fn statistics_are_no_complaint() {
        assert!(!stats::complains("verification time 6 usec\nstack depth 0\nprocessed 2 insns (limit 1000000)\n"));
        assert!(stats::complains("R0 !read_ok\nprocessed 1 insns\n"));
    }
}
