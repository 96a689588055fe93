//! Objects that were made of others for what will not change: what counts is whether the one that they were made of is taken.
//!
//! The kernel is asked about both, each program by itself; about programs that it does not judge, or if it may not be asked,
//! `bpf_check`. Promise: of a program of the original that is taken it is said if what was made of it is refused, was not judged,
//! or is more work for the verifier than the user allows.

use std::time::{Duration, Instant};

use bpf_kernel::{LoadVerdict, ObjectVerdict, ProgramVerdict, Question};
use bpf_object::{FuncId, Object};

use super::checked::{Checked, Original};
use super::growth::Growth;
use super::{Gate, find};
use crate::error::DriverError;
use crate::lengths;
use crate::module::Module;
use crate::options::Options;

/// A program that cannot take the place of the original's, which is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// Its name.
    pub program: String,
    /// The names of the functions that it consists of.
    pub functions: Vec<String>,
    /// What stands against it.
    pub because: UnfitBecause,
    /// Whether the kernel has said so; if not, `bpf_check`.
    pub by_kernel: bool,
}

/// What stands against a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnfitBecause {
    /// It is refused, and why.
    Refused(String),
    /// Nobody knows, and why.
    NotJudged(String),
    /// The verifier processes so many instructions of the original, and so many of it.
    Heavier(u64, u64),
}

/// An original, and what was said of it.
pub struct Yardstick {
    module: Module,
    gate: Gate,
    may_grow: Growth,
    within: Duration,
}

impl Yardstick {
    /// Asks about an original; each answer, on what is made of it, too, may take as long as the time limit.
    ///
    /// # Errors
    /// If it is no object.
    pub fn of(original: &[u8], options: &Options) -> Result<Yardstick, DriverError> {
        let module = Module::new(Object::parse(original.to_vec())?);
        let options = Options { original: None, ..options.clone() };
        let gate = Gate::new(original, &module, &options, Instant::now());
        Ok(Yardstick { module, gate, may_grow: Growth::of(&options), within: options.time_limit })
    }

    /// The names of the programs about which nothing is known, and why.
    #[must_use]
    pub fn not_judged(&self) -> Vec<(String, String)> {
        let name = |program: usize| match self.gate.original(program) {
            Some(p) => p.name.clone(),
            None => self.name(self.gate.checked().find(|(number, _)| *number == program).map(|(_, c)| c.id)),
        };
        self.gate.programs_not_judged().into_iter().map(|(program, why)| (name(program), why)).collect()
    }

    /// Whether the kernel takes the program of this name and section.
    #[must_use]
    pub fn is_taken(&self, program: &str, section: &str) -> bool {
        self.gate.accepted().iter().any(|p| p.name == program && p.section == section)
    }

    /// The programs of `made` that cannot take the places of those of the original.
    ///
    /// # Errors
    /// If it is no object.
    pub fn unfit(&self, made: &[u8]) -> Result<Vec<Unfit>, DriverError> {
        let after = Module::new(Object::parse(made.to_vec())?);
        let mut unfit = self.for_the_kernel(made, &after);
        let end = Instant::now().checked_add(self.within);
        let checked = self.gate.checked().filter(|(_, c)| matches!(c.original, Original::Taken(_)));
        unfit.extend(checked.filter_map(|(program, checked)| {
            let because = self.for_check(checked, &after.object, end)?;
            Some(self.told(program, self.name(Some(checked.id)), because, false))
        }));
        Ok(unfit)
    }

    fn for_the_kernel(&self, made: &[u8], after: &Module) -> Vec<Unfit> {
        let Ok(before) = &self.gate.before else { return Vec::new() };
        let taken = before.programs.iter().enumerate().filter(|(_, p)| p.verdict.is_accepted());
        let taken: Vec<_> = taken.collect();
        if taken.is_empty() {
            return Vec::new();
        }
        let question = |name: &str, section: &str| match self.is_taken(name, section) {
            true => lengths::question(after, name, section),
            false => Question::Nothing,
        };
        let verdict = (self.gate.judge)(made, &question, Instant::now().checked_add(self.within));
        let verdict = verdict.map_err(|why| why.to_string());
        let of = |(program, p): (usize, &ProgramVerdict)| {
            let because = match &verdict {
                Ok(verdict) => self.against(verdict, program)?,
                Err(why) => UnfitBecause::NotJudged(why.clone()),
            };
            Some(self.told(program, p.name.clone(), because, true))
        };
        taken.into_iter().filter_map(of).collect()
    }

    /// What stands against the form of an accepted program in a verdict.
    fn against(&self, verdict: &ObjectVerdict, program: usize) -> Option<UnfitBecause> {
        let original = self.gate.original(program)?;
        let Some(found) = find(verdict, original, self.gate.namesakes(program)) else {
            let why = verdict.not_loadable.clone().unwrap_or_else(|| "it is no longer there".to_owned());
            return Some(UnfitBecause::Refused(why));
        };
        match &found.verdict {
            LoadVerdict::Accepted => {
                let processed = |p: &ProgramVerdict| Some(p.stats.as_ref()?.processed);
                let (before, after) = (processed(original)?, processed(found)?);
                self.may_grow.is_exceeded(before, after).then_some(UnfitBecause::Heavier(before, after))
            }
            LoadVerdict::Rejected { .. } => Some(UnfitBecause::Refused(found.verdict.reason().to_owned())),
            _ => Some(UnfitBecause::NotJudged(found.verdict.reason().to_owned())),
        }
    }

    fn for_check(&self, checked: &Checked, after: &Object, end: Option<Instant>) -> Option<UnfitBecause> {
        let original = self.module.object.functions().get(checked.id.0)?;
        let all = after.functions().iter().enumerate();
        let mut same = all.filter(|(_, f)| (&f.name, &f.section) == (&original.name, &original.section));
        let verdict = match (same.next(), same.next()) {
            (Some((id, _)), None) => checked.judge_as(FuncId(id), after, end),
            (None, _) => Some(Err("it is no longer there".to_owned())),
            // Their numbers tell them apart, if they are in the same order.
            _ => checked.judge(&self.module.object, after, end),
        };
        match verdict {
            Some(Ok(())) => None,
            Some(Err(why)) => Some(UnfitBecause::Refused(why)),
            None => Some(UnfitBecause::NotJudged("no time".to_owned())),
        }
    }

    fn told(&self, program: usize, name: String, because: UnfitBecause, by_kernel: bool) -> Unfit {
        let functions = self.gate.functions(&self.module, program).into_iter();
        let functions = functions.map(|f| self.name(Some(FuncId(f)))).collect();
        Unfit { program: name, functions, because, by_kernel }
    }

    fn name(&self, id: Option<FuncId>) -> String {
        id.and_then(|id| self.module.object.functions().get(id.0)).map_or_else(String::new, |f| f.name.clone())
    }
}

impl Gate {
    /// The verdict on the program that an original program was made of; on itself if it was made of none.
    pub(super) fn first(&self, program: usize) -> Option<&ProgramVerdict> {
        let original = self.original(program)?;
        match &self.first {
            Some(first) => find(first, original, self.namesakes(program)),
            None => Some(original),
        }
    }

    /// What results are compared with, in words.
    pub(super) fn original_in_words(&self) -> &'static str {
        if self.first.is_some() { "the original as it is specialized" } else { "the original" }
    }
}
