//! The classic program of a filter: of all that its forms come to, the one that suits the goal best.

use super::{ClassicGoal, Filter, Forms, Proven, with_large_stack};
use crate::classic::{self, Classic, ClassicError, MOST_INSTRUCTIONS};
use crate::emit::SetPolicy;
use crate::program::Program;
use crate::proof::Effort;

/// A program that may be the filter's, and its classic form.
#[derive(Clone, Debug)]
struct Candidate {
    program: Program,
    instructions: Vec<Classic>,
    /// Whether it is to be proven. Others are tried in case they are right.
    is_owed: bool,
}

impl Filter {
    pub(super) fn best_classic(&self, goal: ClassicGoal) -> Result<Proven<Vec<Classic>>, ClassicError> {
        let mut all = self.classic_candidates()?;
        match goal {
            ClassicGoal::Size => all.sort_by(|a, b| {
                let expected = |c: &Candidate| classic::expected(&c.instructions);
                a.instructions.len().cmp(&b.instructions.len()).then(expected(a).total_cmp(&expected(b)))
            }),
            ClassicGoal::Time => return self.fast_classic(all),
        }
        let (form, unproven, _) = self.first_proven(all)?;
        Ok(Proven { form: form.instructions, unproven, goes_without_tables: false, gain: None, way: None })
    }

    /// The one of which fewest instructions are executed.
    fn fast_classic(&self, mut all: Vec<Candidate>) -> Result<Proven<Vec<Classic>>, ClassicError> {
        /// What is executed is a guess: what is longer is to promise so much less, or it is not taken.
        const LESS: f64 = 0.6;
        let smallest = self.classic(ClassicGoal::Size)?;
        let short = smallest.len();
        // Nor more than the kernel takes, if it takes the smallest.
        let most = (short * 13 / 10).min(MOST_INSTRUCTIONS).max(short);
        let expected = |c: &Candidate| classic::expected(&c.instructions);
        all.retain(|c| c.instructions.len() <= most);
        all.sort_by(|a, b| expected(a).total_cmp(&expected(b)).then(a.instructions.len().cmp(&b.instructions.len())));
        let suited = self.forms.as_ref().and_then(Forms::suited);
        let before = all.iter().find(|c| c.is_owed).or(all.first()).map(|c| c.program.clone());
        if let (Some(forms), Some(suited)) = (&self.forms, suited) {
            let of_policy = |policy: SetPolicy| suited.forms(forms.given(), policy.with(forms.passes));
            let more = || SetPolicy::WITHOUT_TABLES.into_iter().flat_map(of_policy).collect::<Vec<_>>();
            let more = with_large_stack(more).into_iter().flatten();
            all.extend(more.filter_map(|(_, program)| {
                let instructions = self.classic_of(&program).ok()?;
                Some(Candidate { program, instructions, is_owed: true })
            }));
            all.retain(|c| c.instructions.len() <= most);
            all.sort_by_cached_key(|c| suited.operations(&c.program, true));
        } else {
            all.retain(|c| c.instructions.len() <= short || classic::is_less(&c.instructions, smallest, LESS));
        }
        let (form, unproven, refused) = self.first_proven(all)?;
        let operations = |program| suited.map(|suited| suited.operations(program, true));
        let both = before.as_ref().and_then(operations).zip(operations(&form.program));
        let gain = suited.zip(both).map(|(suited, (before, after))| suited.gain(before, after, refused));
        Ok(Proven { form: form.instructions, unproven, goes_without_tables: false, gain, way: None })
    }

    /// The first one that is proven, why one that is owed is not if it is the filter as it stands, and how many of these are not.
    fn first_proven(&self, all: Vec<Candidate>) -> Result<(Candidate, Option<crate::Unproven>, usize), ClassicError> {
        let (mut unproven, mut refused) = (None, 0);
        for candidate in all {
            if candidate.program == self.plain {
                return Ok((candidate, unproven, refused));
            }
            let effort = if candidate.is_owed { Effort::All } else { Effort::Little };
            match self.prove_within(&candidate.program, effort) {
                Ok(()) => return Ok((candidate, None, refused)),
                Err(why) if candidate.is_owed => (unproven, refused) = (Some(why), refused + 1),
                Err(_) => {}
            }
        }
        let (program, instructions) = (self.plain.clone(), self.classic_of(&self.plain)?);
        Ok((Candidate { program, instructions, is_owed: true }, unproven, refused))
    }

    fn classic_of(&self, program: &Program) -> Result<Vec<Classic>, ClassicError> {
        let written = with_large_stack(|| classic::classic(program, self.accepted_length));
        written.unwrap_or(Err(ClassicError::Memory))
    }

    /// All that may be the classic program.
    fn classic_candidates(&self) -> Result<Vec<Candidate>, ClassicError> {
        let emit = || self.forms.iter().flat_map(Forms::without_tables).collect::<Vec<Program>>();
        let mut programs: Vec<Program> = Vec::new();
        // The filter as it stands may be smaller: what is known on a way makes copies, and where headers stand at varying places it has
        // variables in their place.
        for program in with_large_stack(emit).unwrap_or_default().into_iter().chain([self.plain.clone()]) {
            if !programs.contains(&program) {
                programs.push(program);
            }
        }
        let mut all = Vec::new();
        let mut error = None;
        for program in &programs {
            match self.classic_of(program) {
                Ok(instructions) => all.push(Candidate { program: program.clone(), instructions, is_owed: true }),
                Err(e) => error = error.or(Some(e)),
            }
        }
        if self.is_optimized() {
            let mut woven: Vec<Program> = Vec::new();
            for program in programs.iter().flat_map(classic::forms) {
                if !woven.contains(&program) && !programs.contains(&program) {
                    woven.push(program);
                }
            }
            all.extend(woven.into_iter().filter_map(|program| {
                let instructions = self.classic_of(&program).ok()?;
                Some(Candidate { program, instructions, is_owed: false })
            }));
        }
        if all.is_empty() { Err(error.unwrap_or(ClassicError::Memory)) } else { Ok(all) }
    }
}
