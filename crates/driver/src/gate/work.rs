//! What programs are for the verifier, for those who want less of it ([`crate::lighter`]): how many instructions it processes, of
//! forms that are not settled yet.

use bpf_kernel::{ProgramVerdict, Question};
use bpf_object::{FuncId, Object};

use super::{Gate, find};
use crate::module::Module;

/// What a form of a program is for the verifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// It can take the original's place, if that was accepted.
    pub(crate) good: bool,
    /// The kernel accepts it.
    pub(crate) accepted: bool,
    /// Instructions processed.
    pub(crate) processed: Option<u64>,
}

impl Gate {
    /// What a program of this object is for the verifier; `None` if there is no time to find out.
    pub(crate) fn work(&self, module: &Module, object: &Object, bytes: &[u8], program: usize) -> Option<Work> {
        self.is_good(module, object, bytes, program)?;
        let known = self.known(module, object, program)?;
        Some(Work { good: known.good, accepted: known.words.accepted, processed: known.words.processed })
    }

    /// How many instructions the verifier processes of programs of an object, and no more than that; `None` if it refuses one, or
    /// there is no time.
    pub(crate) fn counts(&self, bytes: &[u8], programs: impl Iterator<Item = usize>) -> Option<Vec<u64>> {
        if self.is_over() {
            return None;
        }
        let programs: Vec<(usize, &ProgramVerdict)> =
            programs.map(|p| Some((p, self.original(p)?))).collect::<Option<_>>()?;
        let is_one = |name: &str, section: &str| programs.iter().any(|(_, p)| p.name == name && p.section == section);
        let verdict =
            (self.judge)(bytes, &|name, section| Question::from(is_one(name, section)), self.deadline.get()).ok()?;
        let count = |&(program, original): &(usize, &ProgramVerdict)| {
            let found = find(&verdict, original, self.namesakes(program))?;
            found.stats.as_ref().filter(|_| found.verdict.is_accepted()).map(|stats| stats.processed)
        };
        programs.iter().map(count).collect()
    }

    /// The programs that consist of this function, too, with the work on the originals; none unless the kernel accepts all of them, because
    /// whether another one still loads where it does, nobody says.
    pub(crate) fn accepted_with(&self, module: &Module, function: usize) -> Vec<(usize, u64)> {
        let programs = self.before.iter().flat_map(|v| v.programs.iter().enumerate());
        let with = programs.filter(|(program, _)| self.functions(module, *program).contains(&function));
        let work = |p: &ProgramVerdict| p.stats.as_ref().filter(|_| p.verdict.is_accepted()).map(|s| s.processed);
        let all: Option<Vec<_>> = with.map(|(program, p)| Some((program, work(p)?))).collect();
        let is_in = |entry: &usize| module.object.loaded_with([FuncId(*entry)]).contains(&FuncId(function));
        let is_of_others = self.unheard_of(module).iter().any(is_in);
        all.filter(|_| !is_of_others).unwrap_or_default()
    }

    /// The programs that the kernel refuses because they are too much for it, and why.
    pub(crate) fn too_much(&self) -> Vec<(usize, String)> {
        let programs = self.before.iter().flat_map(|v| v.programs.iter().enumerate());
        let refused = programs.filter(|(_, p)| p.verdict.is_for_complexity());
        refused.map(|(program, p)| (program, p.verdict.reason().to_owned())).collect()
    }

    /// The name of a program that the kernel has judged.
    pub(crate) fn name(&self, program: usize) -> &str {
        self.original(program).map_or("", |p| p.name.as_str())
    }

    /// The functions that a program consists of.
    pub(crate) fn functions_of(&self, module: &Module, program: usize) -> Vec<usize> {
        self.functions(module, program)
    }
}
