//! Loads programs again with read-only data hidden from the verifier, because a loader may set other values.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::constants::Variable;
use super::{Key, Loader, all_but_one, key, not_asked};
use crate::{KernelError, LoadVerdict, ObjectVerdict, ProgramVerdict};

/// How much longer than before programs may take that are asked about again, all together.
const LONGER: u32 = 4;

/// So long they may take in any case: a few times what the verifier takes for a million instructions, at which it gives up.
const ANYHOW: Duration = Duration::from_secs(30);

/// The halves of what can be halved, the first one last.
fn halves<T>(all: &[T]) -> impl Iterator<Item = &[T]> {
    let (first, second) = all.split_at(all.len() / 2);
    [second, first].into_iter().filter(|half| !first.is_empty() && !half.is_empty())
}

/// Until when questions about programs may take, which took so long before, if all ends at the deadline.
pub(super) fn until(deadline: Option<Instant>, took: Duration) -> Option<Instant> {
    let most = Instant::now() + ANYHOW + LONGER * took;
    deadline.map(|deadline| deadline.min(most))
}

impl Loader {
    /// Asks again about programs that read constants, without the verifier knowing these, but for those that the first form
    /// of a program needs to be known. Those of which it cannot be asked so are not judged.
    pub(super) fn ask_about_any_constants(
        &mut self,
        bytes: &[u8],
        verdict: &mut ObjectVerdict,
        deadline: Option<Instant>,
    ) -> Result<(), KernelError> {
        let Some(other) = self.other.as_mut() else { return Ok(()) };
        let accepted = verdict.programs.iter_mut().filter(|p| p.verdict.is_accepted()).map(|p| (key(p), p));
        let (mut wanted, without): (BTreeMap<Key, &mut ProgramVerdict>, BTreeMap<_, _>) =
            accepted.partition(|(key, _)| self.readers.contains_key(key));
        // What reads no constants needs none to be known, and so must all that takes its place.
        for key in without.into_keys() {
            other.known.entry(key).or_default();
        }
        if wanted.is_empty() {
            return Ok(());
        }
        other.fillings.clone_from(&self.fillings);
        let micros = wanted.values().map(|p| p.stats.as_ref().map_or(0, |s| s.micros)).sum();
        // What comes after this needs time, too; that is little.
        let until = until(all_but_one(deadline, 4), Duration::from_micros(micros));
        let is_wanted = |name: &str, section: &str| wanted.contains_key(&(name.to_owned(), section.to_owned()));
        for mut found in other.judge_as_it_is(bytes, is_wanted, until)?.programs {
            let key = key(&found);
            let Some(program) = wanted.remove(&key) else { continue };
            let is_first = !other.known.contains_key(&key);
            if is_first && matches!(found.verdict, LoadVerdict::Rejected { .. }) {
                found = other.find_what_has_to_be_known(bytes, found, &self.readers[&key], until)?;
            }
            match found.verdict {
                LoadVerdict::OutOfTime | LoadVerdict::OutOfMeans { .. } => program.verdict = found.verdict,
                // Of variables that another object has elsewhere it is not known which they are.
                LoadVerdict::Rejected { .. } if !is_first && !other.known[&key].is_subset(&other.variables) => {
                    program.verdict = not_asked("it has other variables of the same name");
                }
                LoadVerdict::Rejected { .. } if !is_first => program.with_any_constants = Some(Box::new(found)),
                LoadVerdict::Accepted => {
                    other.known.entry(key).or_default();
                    program.with_any_constants = Some(Box::new(found));
                }
                _ => program.verdict = not_asked(found.verdict.reason()),
            }
        }
        for program in wanted.into_values() {
            program.verdict = not_asked("it is not there");
        }
        Ok(())
    }

    /// Asks about a program, which is refused when none of these variables is known, until it is clear which of them have to
    /// be. What is returned is the verdict with those alone; a refusal if all of them are not enough.
    fn find_what_has_to_be_known(
        &mut self,
        bytes: &[u8],
        refused: ProgramVerdict,
        variables: &BTreeSet<Variable>,
        deadline: Option<Instant>,
    ) -> Result<ProgramVerdict, KernelError> {
        let key = key(&refused);
        let all: Vec<&Variable> = variables.iter().collect();
        let mut ask = |known: &BTreeSet<Variable>| {
            self.known.insert(key.clone(), known.clone());
            let verdict =
                self.judge_as_it_is(bytes, |name, section| (name, section) == (&*key.0, &*key.1), deadline)?;
            Ok::<_, KernelError>(verdict.programs.into_iter().next().unwrap_or_else(|| refused.clone()))
        };
        let mut known = variables.clone();
        let mut last = ask(&known)?;
        // Of what has to be known together, the halves are asked about.
        let mut parts: Vec<&[&Variable]> = halves(&all).collect();
        while let Some(part) = parts.pop().filter(|_| last.verdict.is_accepted()) {
            let fewer: BTreeSet<Variable> = known.iter().filter(|v| !part.contains(v)).cloned().collect();
            let found = ask(&fewer)?;
            match found.verdict {
                LoadVerdict::Accepted => (known, last) = (fewer, found),
                LoadVerdict::Rejected { .. } => parts.extend(halves(part)),
                _ => last = found,
            }
        }
        self.known.remove(&key);
        if last.verdict.is_accepted() {
            self.known.insert(key, known);
        }
        Ok(last)
    }
}
