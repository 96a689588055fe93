//! Maps of which the definition leaves open what verdicts hang on, made for one program after another.
//!
//! A loader knows how long the keys and values of such a map are, or what the maps in it are like; this one does not. The
//! one idea: a program loads with what its loader fills in, so the first form that is seen of it tells what that may be.
//! Its maps are made **twice**: with the shortest keys and values with which that form loads, and with the longest. A later
//! form has to load with both.
//!
//! Whatever the verifier checks against one of these sizes is a bound from one side. A program may access no more than a
//! value, nor, in a callback that is given an element, than a key: such accesses want them to be long. A helper reads a whole
//! key or value from the program's frame: such calls want them to be short. So the sizes with which a form loads lie between
//! a least and a greatest one of each sort, and what loads with all the least and with all the greatest ones of the first form
//! is within its bounds with the true ones, which are between them. (Which ways the verifier leaves out may still differ:
//! docs/trust.md, (K).) That no size is held against anything but constants, which a key
//! that stands in a value would do, is a rule of the prover (*open lengths* in `prove/src/beliefs.rs`): programs in which
//! that may be stay as they are.
//!
//! Where a form loads with none of a few usual sizes to begin with, its program is one for which the means were lacking.
//!
//! Maps in maps are hash tables where the program loads with such: no lookup in them is known to find something.

use std::time::{Duration, Instant};

use bpf_platform::maps;

use super::complete::{Fill, Filling, completed, filled};
use super::{Loader, Source, key};
use crate::{
    KernelError, LoadVerdict, ProgramVerdict,
    sys::{self, Definition},
};

/// What maps in maps may be, the first that will do.
const INNER: [u32; 4] = [maps::HASH, maps::ARRAY, maps::PERCPU_ARRAY, maps::RINGBUF];
/// Keys longer than the stack are in no program that builds them there (`MAX_BPF_STACK`).
const LONGEST_KEY: u32 = 512;
/// No value that is read field by field is longer; a map of one such element is made in no time.
const LONGEST_VALUE: u32 = 1 << 15;
/// Bytes of values and keys with which a form is tried first. Most programs hand over no whole values, and see no key.
const FIRST_VALUES: [u32; 10] = [LONGEST_VALUE, 8, 16, 4, 24, 32, 64, 48, 128, 256];
const FIRST_KEYS: [u32; 5] = [1, 8, 4, 16, 32];
/// So long other sizes are tried where a form has not loaded.
const TRYING: Duration = Duration::from_millis(300);

impl Loader {
    /// The verdict on a program, given the one that it has without maps that are open: if it needs one, with that.
    pub(super) fn with_open_maps(
        &mut self,
        source: &mut Source,
        opened: &sys::Object,
        index: usize,
        without: ProgramVerdict,
        deadline: Option<Instant>,
    ) -> Result<ProgramVerdict, KernelError> {
        let key = key(&without);
        let lacked = self.lacked(source, opened, &without.verdict);
        if !self.filled.is_empty() || lacked.is_none_or(|map| completed(&map).is_ok()) {
            return Ok(without);
        }
        if !self.fillings.contains_key(&key) {
            let Some(found) = self.find_filling(source, opened, index, &without, deadline)? else { return Ok(without) };
            self.fillings.insert(key.clone(), found);
        }
        let Some(Filling { short, long }) = self.fillings[&key].clone() else {
            // With the sizes that its loader knows it may load.
            let reason = without.verdict.reason().to_owned();
            return Ok(ProgramVerdict { verdict: LoadVerdict::OutOfMeans { reason }, ..without });
        };
        let verdict = self.alone_with(source, opened, index, short, deadline)?;
        if !verdict.verdict.is_accepted() {
            return Ok(verdict);
        }
        // What the kernel notes of the program, and makes of it, does not depend on these sizes.
        let other = self.alone_with(source, opened, index, long, deadline)?;
        Ok(if other.verdict.is_accepted() { verdict } else { other })
    }

    /// The open map for want of which a program was not judged.
    fn lacked(&self, source: &Source, opened: &sys::Object, verdict: &LoadVerdict) -> Option<Definition> {
        let LoadVerdict::NotLoadable { reason } = verdict else { return None };
        let mut definitions = (0..opened.map_count()).map(|index| opened.map_definition(index));
        definitions.find(|map| {
            // What a definition says that nobody understands is not open.
            let is_known = !source.unknown_maps.iter().any(|(name, _)| *name == map.name);
            let left_out = self.left_out.iter().find(|(name, _)| is_known && *name == map.name);
            left_out.is_some_and(|(name, why)| *reason == super::lacks_map(name, why))
        })
    }

    pub(super) fn alone_with(
        &mut self,
        source: &mut Source,
        opened: &sys::Object,
        index: usize,
        filling: Vec<Definition>,
        deadline: Option<Instant>,
    ) -> Result<ProgramVerdict, KernelError> {
        self.filled = filling;
        let verdict = self.alone(source, opened, index, deadline);
        self.filled.clear();
        verdict
    }

    /// How the open maps of a program are to be made; `Some(None)` if there is no way that this finds, `None` if there is
    /// no time to find out.
    fn find_filling(
        &mut self,
        source: &mut Source,
        opened: &sys::Object,
        index: usize,
        without: &ProgramVerdict,
        deadline: Option<Instant>,
    ) -> Result<Option<Option<Filling>>, KernelError> {
        let mut search = Search { loader: self, source, opened, index, deadline, is_late: false };
        let began = Instant::now();
        let mut found = None;
        for (key_size, value_size) in FIRST_VALUES.iter().flat_map(|value| FIRST_KEYS.map(|key| (key, *value))) {
            found = search.beginning(&without.verdict, key_size, value_size)?;
            if found.is_some() || search.is_late || began.elapsed() > TRYING {
                break;
            }
        }
        let Some(open) = found else { return Ok((!search.is_late).then_some(None)) };
        let (mut short, mut long) = (open.clone(), open.clone());
        for n in 0..open.len() {
            let with_key = |key_size, fill| Fill { key_size, ..fill };
            let with_value = |value_size, fill| Fill { value_size, ..fill };
            let Fill { key_size: key, value_size: value, .. } = open[n].1;
            short[n].1.key_size = search.border(&open, n, [key, 1], with_key)?;
            short[n].1.value_size = search.border(&open, n, [value, 1], with_value)?;
            long[n].1.key_size = search.border(&open, n, [key, LONGEST_KEY], with_key)?;
            long[n].1.value_size = search.border(&open, n, [value, LONGEST_VALUE], with_value)?;
        }
        let filling = made(&short).zip(made(&long)).map(|(short, long)| Filling { short, long });
        Ok((!search.is_late).then_some(filling))
    }
}

/// These maps, filled in; `None` if one of them cannot be.
fn made(open: &[(Definition, Fill)]) -> Option<Vec<Definition>> {
    open.iter().map(|(map, fill)| filled(map, *fill)).collect()
}

/// Asks about one program with one filling after another.
struct Search<'a> {
    loader: &'a mut Loader,
    source: &'a mut Source,
    opened: &'a sys::Object,
    index: usize,
    deadline: Option<Instant>,
    is_late: bool,
}

impl Search<'_> {
    fn lacked(&self, verdict: &LoadVerdict) -> Option<Definition> {
        self.loader.lacked(self.source, self.opened, verdict)
    }

    /// The open maps of a program that has this verdict without them, filled in with these sizes, so that it loads.
    fn beginning(
        &mut self,
        without: &LoadVerdict,
        key_size: u32,
        value_size: u32,
    ) -> Result<Option<Vec<(Definition, Fill)>>, KernelError> {
        let mut open: Vec<(Definition, Fill)> = Vec::new();
        let mut verdict = without.clone();
        while let Some(map) = self.lacked(&verdict) {
            if open.iter().any(|(known, _)| known.name == map.name) {
                return Ok(None);
            }
            let fill = |inner| Fill { inner, key_size, value_size };
            open.push((map, fill(INNER[0])));
            let last = open.len() - 1;
            for inner in INNER {
                open[last].1 = fill(inner);
                let Some(found) = self.verdict(&open)? else { return Ok(None) };
                verdict = found;
                if verdict.is_accepted() || self.lacked(&verdict).is_some() {
                    break;
                }
            }
        }
        Ok(verdict.is_accepted().then_some(open))
    }

    /// The verdict on the program with its open maps filled in like this; `None` if one of them cannot be.
    fn verdict(&mut self, open: &[(Definition, Fill)]) -> Result<Option<LoadVerdict>, KernelError> {
        let Some(filling) = made(open) else { return Ok(None) };
        let found = self.loader.alone_with(self.source, self.opened, self.index, filling, self.deadline)?;
        self.is_late |= matches!(found.verdict, LoadVerdict::OutOfTime | LoadVerdict::OutOfMeans { .. });
        Ok(Some(found.verdict))
    }

    /// The size nearest to the second of two with which the program still loads, as it does with the first.
    fn border(
        &mut self,
        open: &[(Definition, Fill)],
        which: usize,
        [good, other]: [u32; 2],
        with: impl Fn(u32, Fill) -> Fill,
    ) -> Result<u32, KernelError> {
        let mut trial = open.to_vec();
        let mut loads = |size: u32| {
            trial[which].1 = with(size, open[which].1);
            // Late answers are none.
            let verdict = if self.is_late { None } else { self.verdict(&trial)? };
            Ok::<_, KernelError>(verdict.is_some_and(|v| v.is_accepted()))
        };
        if loads(other)? {
            return Ok(other);
        }
        let (mut good, mut bad) = (good, other);
        while good.abs_diff(bad) > 1 {
            let middle = good.midpoint(bad);
            match loads(middle)? {
                true => good = middle,
                false => bad = middle,
            }
        }
        Ok(good)
    }
}
