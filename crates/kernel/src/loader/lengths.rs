//! Loads programs again with shorter and with longer arrays, because a loader may say how long they are.
//!
//! The verifier takes an element for there if it knows its number and the array is long enough (`can_elide_value_nullness`
//! in kernel/bpf/verifier.c). So with longer arrays it goes fewer of the ways on which an element is not there. The one idea:
//! a form is asked about with the **shortest** arrays with which the first form of its program loads, mostly those of one
//! element, and with **long** ones, where most of what differs shows.
//!
//! That is a precaution and answers for no more than was asked: the states of a way that is gone may be those by which the
//! verifier had left out another one, so between two lengths with which a program loads there may be one with which it does
//! not (docs/trust.md, (K) and G14).
//!
//! Where a first form loads with some lengths of which none is the shortest of all, or where the kernel notes less of it with
//! longer arrays, its program is one for which the means were lacking; so is one that is refused for what longer
//! arrays may have.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use bpf_platform::maps::{is_array, is_per_cpu};

use super::complete::{Filling, completed};
use super::maps::{Place, Shortest};
use super::{Key, Loader, Source, all_but_one, any_constants, is_over, key, maps, share};
use crate::{
    KernelError, LoadVerdict, ProgramVerdict, Question,
    sys::{self, Definition},
};

/// Elements of a long array, if they take no more than so many bytes; it has as many as its definition says in any case.
const LONG: u32 = 1 << 16;
/// The same of one that every processor has, whose elements are made one by one.
const LONG_OF_ALL_CPUS: u32 = 1 << 12;
const LONG_BYTES: u64 = 4 << 20;
/// What a refusal says that may be one of a lookup in an array which is too short.
const MAY_BE_NULL: &str = "map_value_or_null";

/// An array, with the length that its definition says and the one it has if it is long.
struct Array {
    place: Place,
    defined: u32,
    long: u32,
}

impl Loader {
    /// Asks again about those of these programs of which what the kernel says may hang on how long arrays are: they get
    /// [`ProgramVerdict::at_other_lengths`], or are not judged.
    pub(super) fn ask_at_other_lengths(
        &mut self,
        bytes: &[u8],
        programs: &mut [ProgramVerdict],
        question: &dyn Fn(&str, &str) -> Question,
        deadline: Option<Instant>,
    ) -> Result<(), KernelError> {
        let (mut wanted, without): (Vec<_>, Vec<_>) =
            programs.iter_mut().partition(|p| question(&p.name, &p.section) > Question::AsDefined);
        // What loads with arrays of any length must have in its place what does so.
        for p in without.into_iter().filter(|p| p.verdict.is_accepted()) {
            self.shortest.entry(key(p)).or_default();
        }
        // Those that are refused for what longer arrays may have are nobody's to judge, unless they take the place of one.
        for p in wanted.iter_mut().filter(|p| is_too_short(p) && !self.shortest.contains_key(&key(p))) {
            p.verdict = not_asked("with those that the object says it is refused");
        }
        wanted.retain(|p| p.verdict.is_accepted());
        if wanted.is_empty() {
            return Ok(());
        }
        let micros = |p: &ProgramVerdict| p.stats.as_ref().map_or(0, |stats| stats.micros);
        // Those that take long cannot keep the others from being judged in time.
        wanted.sort_by_key(|p| micros(p));
        let took = Duration::from_micros(wanted.iter().map(|p| micros(p)).sum());
        let any_reads = wanted.iter().any(|p| self.readers.contains_key(&key(p)));
        // Those that read constants are asked about once more, after two questions here.
        let until = any_constants::until(if any_reads { all_but_one(deadline, 3) } else { deadline }, took);
        let mut source = Source::new(bytes);
        let mut opened = source.open(&self.options).map_err(|reason| KernelError::Open { reason })?;
        let bound = opened.btf_bytes().is_some_and(|bytes| maps::binds_maps(&bytes));
        let mut known = self.ask_together(bytes, &wanted, question, &mut source, (&opened, bound), until)?;
        let mut count = wanted.len();
        for p in wanted {
            // It likely takes as long as before, and has what the others leave.
            let mine = Duration::from_micros(2 * micros(p));
            let until = share(until, count)
                .and_then(|share| share.checked_add(mine))
                .map(|mine| mine.min(until.unwrap_or(mine)));
            count -= 1;
            let named = |&index: &usize| (opened.program_name(index), opened.program_section(index)) == key(p);
            let Some(index) = (0..opened.program_count()).find(named) else { continue };
            let (source, opened) = (&mut source, &opened);
            let mut asking = Asking { loader: self, source, opened, index, bound, deadline: until };
            asking.ask(p, question(&p.name, &p.section), known.remove(&key(p)).unwrap_or_default())?;
        }
        Ok(())
    }

    /// What the kernel says of these programs, as far as they need no maps of their own, all at once:
    /// that takes less time than one after the other.
    fn ask_together(
        &mut self,
        bytes: &[u8],
        wanted: &[&mut ProgramVerdict],
        question: &dyn Fn(&str, &str) -> Question,
        source: &mut Source,
        (opened, bound): (&sys::Object, bool),
        deadline: Option<Instant>,
    ) -> Result<BTreeMap<Key, Known>, KernelError> {
        let arrays = Asking { loader: self, source, opened, index: 0, bound, deadline }.arrays(&[]);
        let is_plain = |key: &Key| !matches!(self.fillings.get(key), Some(Some(_)));
        let all: Vec<Key> = wanted.iter().map(|p| key(p)).filter(is_plain).collect();
        let mut groups: BTreeMap<Option<Shortest>, BTreeSet<Key>> = BTreeMap::new();
        for key in &all {
            let shortest = self.shortest.get(key).cloned().unwrap_or_default();
            groups.entry(Some(shortest)).or_default().insert(key.clone());
            if question(&key.0, &key.1) == Question::AtAnyLength {
                groups.entry(None).or_default().insert(key.clone());
            }
        }
        let mut known: BTreeMap<Key, Known> = BTreeMap::new();
        let mut count = groups.len();
        for (shortest, group) in groups {
            let until = share(deadline, count);
            count -= 1;
            let length = |array: &Array| match &shortest {
                Some(shortest) => shortest.get(&array.place).copied().unwrap_or(1),
                None => array.long,
            };
            self.filled = with_lengths(&arrays, length);
            let is_in_group = |name: &str, section: &str| group.contains(&(name.to_owned(), section.to_owned()));
            let found = self.judge_as_it_is(bytes, is_in_group, until);
            self.filled.clear();
            for found in found?.programs {
                let of_it = known.entry(key(&found)).or_default();
                of_it[usize::from(shortest.is_none())] = Some(found);
            }
        }
        Ok(known)
    }
}

/// Definitions of arrays of these lengths.
fn with_lengths(
    (definitions, arrays): &(Vec<Definition>, Vec<Array>),
    length: impl Fn(&Array) -> u32,
) -> Vec<Definition> {
    let mut definitions = definitions.clone();
    for array in arrays {
        let (name, is_inner) = &array.place;
        let Some(map) = definitions.iter_mut().find(|map| map.name == *name) else { continue };
        match (is_inner, &mut map.inner) {
            (true, Some(inner)) => inner.max_entries = length(array),
            _ => map.max_entries = length(array),
        }
    }
    definitions
}

/// What is known already of a program with the shortest arrays, and with long ones.
type Known = [Option<ProgramVerdict>; 2];

/// Whether a program is refused, or not judged, for a lookup that an array of another length may answer.
fn is_too_short(p: &ProgramVerdict) -> bool {
    p.verdict.reason().contains(MAY_BE_NULL)
}

fn not_asked(why: &str) -> LoadVerdict {
    LoadVerdict::OutOfMeans { reason: format!("it cannot be asked about with arrays of other lengths: {why}") }
}

/// Asks about one program with arrays of one length after another.
struct Asking<'a> {
    loader: &'a mut Loader,
    source: &'a mut Source,
    opened: &'a sys::Object,
    index: usize,
    /// Whether maps of the object belong to its types.
    bound: bool,
    deadline: Option<Instant>,
}

impl Asking<'_> {
    /// What the kernel says of an accepted program with the shortest and with long arrays.
    fn ask(&mut self, p: &mut ProgramVerdict, question: Question, known: Known) -> Result<(), KernelError> {
        let [short, long] = known;
        let key = key(p);
        let is_first = !self.loader.shortest.contains_key(&key);
        let mut shortest = self.loader.shortest.entry(key.clone()).or_default().clone();
        let at_shortest = |shortest: &Shortest, array: &Array| shortest.get(&array.place).copied().unwrap_or(1);
        let mut short = match short {
            Some(short) => short,
            None => self.verdict(p, |array| at_shortest(&shortest, array))?,
        };
        if is_first && !short.verdict.is_accepted() && !short.verdict.is_open() {
            shortest = match self.find_shortest(p)? {
                Ok(found) => found,
                Err(open) => {
                    self.loader.shortest.remove(&key);
                    p.verdict = open;
                    return Ok(());
                }
            };
            short = self.verdict(p, |array| at_shortest(&shortest, array))?;
            self.loader.shortest.insert(key.clone(), shortest);
        }
        let long = match question {
            Question::AtAnyLength => match long {
                Some(long) => long,
                None => self.verdict(p, |array| array.long)?,
            },
            // The verifier knows of nothing that is in longer arrays only.
            _ => p.clone(),
        };
        let both = [short, long];
        if let Some(open) = both.iter().find(|found| found.verdict.is_open()) {
            p.verdict = open.verdict.clone();
        } else if let Some(refused) = both.iter().find(|found| is_first && !found.verdict.is_accepted()) {
            p.verdict = not_asked(refused.verdict.reason());
        } else if is_first && both[0].made_otherwise(&both[1]).is_some() {
            p.verdict = not_asked("the kernel makes something else of it");
        } else {
            p.at_other_lengths = Some(Box::new(both));
        }
        if is_first && !p.verdict.is_accepted() {
            self.loader.shortest.remove(&key);
        }
        Ok(())
    }

    /// The arrays of the object, if its open maps are made like this, that can be made of any length.
    fn arrays(&self, filling: &[Definition]) -> (Vec<Definition>, Vec<Array>) {
        let most = maps::for_verdicts(self.opened);
        let processors = sys::possible_cpus().map_or(1, |count| count as u64);
        let (mut definitions, mut arrays) = (Vec::new(), Vec::new());
        for index in 0..self.opened.map_count() {
            let own = self.opened.map_definition(index);
            let definition = filling.iter().find(|filled| filled.name == own.name).unwrap_or(&own).clone();
            let left_out = self.loader.left_out.iter().any(|(name, _)| *name == own.name);
            let is_unknown = self.source.unknown_maps.iter().any(|(name, _)| *name == own.name);
            let is_filled = filling.iter().any(|filled| filled.name == own.name);
            if own.internal || is_unknown || left_out && !is_filled || completed(&definition).is_err() {
                continue;
            }
            let mut add = |map: &Definition, is_inner: bool| {
                let defined = maps::length(map, most);
                let bytes = u64::from(map.value_size).next_multiple_of(8).max(8);
                let (elements, each) = match is_per_cpu(map.kind) {
                    true => (LONG_OF_ALL_CPUS, bytes * processors),
                    false => (LONG, bytes),
                };
                let fit = u32::try_from(LONG_BYTES / each).unwrap_or(u32::MAX);
                let long = elements.min(fit).max(defined);
                arrays.push(Array { place: (own.name.clone(), is_inner), defined, long });
            };
            let before = definitions.len();
            if is_array(definition.kind) {
                add(&definition, false);
                definitions.push(definition.clone());
            }
            // Others cannot be made in the place of those that belong to types.
            let inner =
                definition.inner.as_deref().filter(|inner| is_array(inner.kind) && inner.extra == 0 && !self.bound);
            if let Some(inner) = inner {
                add(inner, true);
                if definitions.len() == before {
                    definitions.push(definition);
                }
            }
        }
        (definitions, arrays)
    }

    /// The verdict on the program with arrays of these lengths. Where it has open maps, it is the one with the shortest keys
    /// and values, if it loads with the longest, too.
    fn verdict(&mut self, p: &ProgramVerdict, length: impl Fn(&Array) -> u32) -> Result<ProgramVerdict, KernelError> {
        let fillings = match self.loader.fillings.get(&key(p)) {
            Some(Some(Filling { short, long })) => vec![short.clone(), long.clone()],
            _ => vec![Vec::new()],
        };
        let mut first = None;
        for mut filling in fillings {
            let definitions = with_lengths(&self.arrays(&filling), &length);
            filling.retain(|filled| !definitions.iter().any(|map| map.name == filled.name));
            filling.extend(definitions);
            let found = self.loader.alone_with(self.source, self.opened, self.index, filling, self.deadline)?;
            if !found.verdict.is_accepted() {
                return Ok(found);
            }
            first.get_or_insert(found);
        }
        Ok(first.unwrap_or_else(|| p.clone()))
    }

    /// The shortest arrays with which a program loads, which it does not with those of one element; or why that cannot be
    /// found out.
    fn find_shortest(&mut self, p: &ProgramVerdict) -> Result<Result<Shortest, LoadVerdict>, KernelError> {
        let filling = match self.loader.fillings.get(&key(p)) {
            Some(Some(filling)) => filling.short.clone(),
            _ => Vec::new(),
        };
        let arrays = self.arrays(&filling).1;
        let mut shortest: Shortest = arrays.iter().map(|array| (array.place.clone(), array.defined)).collect();
        for array in &arrays {
            let (mut refused, mut good) = (0, array.defined);
            while good - refused > 1 && !is_over(self.deadline) {
                let middle = refused.midpoint(good);
                shortest.insert(array.place.clone(), middle);
                match self.loads(p, &shortest, |_| 1)? {
                    true => good = middle,
                    false => refused = middle,
                }
            }
            shortest.insert(array.place.clone(), good);
        }
        for array in arrays.iter().filter(|array| shortest[&array.place] > 1) {
            let shorter = Shortest::from([(array.place.clone(), shortest[&array.place] - 1)]);
            if self.loads(p, &shorter, |array| array.long)? {
                return Ok(Err(not_asked("of those with which it loads, none are the shortest")));
            }
        }
        Ok(match is_over(self.deadline) {
            true => Err(LoadVerdict::OutOfTime),
            false => Ok(shortest),
        })
    }

    /// Whether a program loads with arrays of these lengths, and others as `other` says. What is late does not load.
    fn loads(
        &mut self,
        p: &ProgramVerdict,
        lengths: &Shortest,
        other: impl Fn(&Array) -> u32,
    ) -> Result<bool, KernelError> {
        let length = |array: &Array| lengths.get(&array.place).copied().unwrap_or_else(|| other(array));
        Ok(self.verdict(p, length)?.verdict.is_accepted())
    }
}
