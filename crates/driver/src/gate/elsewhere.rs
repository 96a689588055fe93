//! Kernels other than the one that runs: what they took of the original they have to take of the result.
//!
//! Each is a gate of its own, so that its verdicts, too, find the change to blame. They are asked last, about results that nothing
//! else stands against. What they say is their verifier's verdict and its count; what they make of a program that they take is
//! not compared, as it is in the running kernel.

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bpf_kernel::{ObjectVerdict, Question};
use bpf_object::Object;
use bpf_passes::Settings;

use super::settle::settle_changes;
use super::{Gate, Job, Unasked, words};
use crate::candidate::Candidate;
use crate::error::DriverError;
use crate::module::Module;
use crate::options::Options;
use crate::other_kernel::OtherKernel;
use crate::report::{KernelVerdict, OtherProgram, OtherVerdicts, Report};

/// The gates of other kernels, which are asked about the original when there is a result to compare it with.
pub(crate) struct Elsewhere<'a> {
    input: &'a [u8],
    options: &'a Options,
    gates: OnceCell<Vec<Gate>>,
}

impl<'a> Elsewhere<'a> {
    pub(crate) fn new(input: &'a [u8], options: &'a Options) -> Elsewhere<'a> {
        Elsewhere { input, options, gates: OnceCell::new() }
    }

    /// Has each kernel judge a result, and takes back what one refuses. How long it took, if anything was taken back: then the
    /// result has to be settled anew. `job` is of the running kernel's gate, whose time does not pass meanwhile.
    ///
    /// # Errors
    /// If a kernel does not answer about the original, or takes the true one only.
    pub(crate) fn settle(
        &self,
        job: Job,
        object: &mut Object,
        candidates: &mut [Candidate],
        report: &mut Report,
    ) -> Result<Option<Duration>, DriverError> {
        let began = Instant::now();
        let left = job.settings.deadline.map(|end| end.saturating_duration_since(began));
        let form = |candidates: &[Candidate]| -> Vec<_> {
            candidates.iter().map(|c| (c.steps().len(), c.body.clone())).collect()
        };
        let gates = self.gates(job.gate)?;
        for (gate, kernel) in gates.iter().zip(&self.options.other_kernels) {
            let before = form(candidates);
            let mut found = Report::default();
            let settings = &Settings { deadline: left.map(|left| Instant::now() + left), ..job.settings.clone() };
            settle_changes(Job { gate, settings, ..job }, object, candidates, &mut found)?;
            report.taken_back.append(&mut found.taken_back);
            let verdicts = OtherVerdicts {
                kernel: kernel.name().to_owned(),
                programs: programs(gate, job.module, object, candidates),
                taken_back: found.dropped,
                heavier: found.heavier,
            };
            match report.other_kernels.iter_mut().find(|o| o.kernel == verdicts.kernel) {
                Some(old) => {
                    let (taken_back, heavier) = (old.taken_back, old.heavier);
                    *old = verdicts;
                    old.taken_back += taken_back;
                    old.heavier += heavier;
                }
                None => report.other_kernels.push(verdicts),
            }
            if form(candidates) != before {
                let took = began.elapsed();
                job.gate.goes_on_after(took);
                return Ok(Some(took));
            }
        }
        Ok(None)
    }

    fn gates(&self, here: &Gate) -> Result<&[Gate], DriverError> {
        if let Some(gates) = self.gates.get() {
            return Ok(gates);
        }
        let gate = |kernel: &Arc<dyn OtherKernel>| {
            let (asked, program_type) = (kernel.clone(), self.options.program_type.clone());
            let judge = Box::new(move |bytes: &[u8], _: &dyn Fn(&str, &str) -> Question, _| {
                asked.judge(bytes, program_type.as_deref()).map_err(Unasked::Failed)
            });
            let failed = |why: String| DriverError::OtherKernel { kernel: kernel.name().to_owned(), why };
            let gate = Gate::with(self.input, judge, &|_, _| Question::AsDefined, None, None);
            let before = gate.before.as_ref().map_err(|why| failed(why.to_string()))?;
            let program_type = self.options.program_type.as_deref();
            let first = self.options.original.as_deref().map(|original| kernel.judge(original, program_type));
            let first = first.transpose().map_err(failed)?;
            if let Some((program, why)) = first.as_ref().and_then(|first| not_taken_any_more(first, before)) {
                return Err(DriverError::NotAsSpecialized { kernel: kernel.name().to_owned(), program, why });
            }
            Ok(Gate { may_grow: here.may_grow, work: here.work, kernel: Some(kernel.name().to_owned()), first, ..gate })
        };
        let gates = self.options.other_kernels.iter().map(gate).collect::<Result<Vec<_>, _>>()?;
        Ok(self.gates.get_or_init(|| gates))
    }
}

/// A program that is accepted in the first verdict and not in the second, and why.
fn not_taken_any_more(first: &ObjectVerdict, second: &ObjectVerdict) -> Option<(String, String)> {
    first.programs.iter().filter(|p| p.verdict.is_accepted()).find_map(|p| {
        let same = second.programs.iter().find(|q| q.name == p.name && q.section == p.section);
        match same {
            Some(q) if q.verdict.is_accepted() => None,
            Some(q) => Some((p.name.clone(), q.verdict.reason().to_owned())),
            None => Some((p.name.clone(), "it is no longer there".to_owned())),
        }
    })
}

/// What a kernel says of each program, before and after.
fn programs(gate: &Gate, module: &Module, object: &Object, candidates: &[Candidate]) -> Vec<OtherProgram> {
    let before = gate.before.iter().flat_map(|v| v.programs.iter().enumerate());
    let of = |(program, p): (usize, &bpf_kernel::ProgramVerdict)| {
        let is_changed = gate.functions(module, program).iter().any(|i| candidates[*i].body.is_some());
        let after = match is_changed {
            false => words(p),
            true => gate.known(module, object, program).map_or_else(KernelVerdict::default, |known| known.words),
        };
        OtherProgram {
            name: p.name.clone(),
            before: gate.first(program).map_or_else(KernelVerdict::default, words),
            after,
        }
    };
    before.map(of).collect()
}

#[cfg(test)]
mod tests {
    use bpf_isa::Insn;
    use bpf_kernel::{LoadVerdict, ProgramType, ProgramVerdict};
    use bpf_object::{FuncId, WriteOptions};

    use super::*;
    use crate::module::is_program;

    const OBJECT: &[u8] = include_bytes!("../../../../examples/globals.o");
    const WRITE: WriteOptions = WriteOptions { keep_debug: false };

    /// A kernel whose verifier knows no atomics, or one that does not answer.
    #[derive(Debug)]
    struct Old {
        answers: bool,
    }

    impl OtherKernel for Old {
        fn name(&self) -> &'static str {
            "4.19"
        }

        fn judge(&self, object: &[u8], _: Option<&str>) -> Result<ObjectVerdict, String> {
            if !self.answers {
                return Err("it is gone".to_owned());
            }
            let object = Object::parse(object.to_vec()).map_err(|e| e.to_string())?;
            let programs = (0..object.functions().len()).filter(|i| is_program(&object, *i)).map(|i| {
                let code = bpf_isa::decode_all(object.code(FuncId(i))).unwrap_or_default();
                let verdict = match code.iter().any(|(_, insn)| matches!(insn, Insn::Atomic { .. })) {
                    true => LoadVerdict::Rejected { errno: 22, log: "no atomics here".into() },
                    false => LoadVerdict::Accepted,
                };
                let f = &object.functions()[i];
                ProgramVerdict::new(f.name.clone(), f.section.clone(), ProgramType::UNSPEC, f.slots, verdict)
            });
            Ok(ObjectVerdict { programs: programs.collect(), not_loadable: None })
        }
    }

    #[test]
    fn what_another_kernel_refuses_goes_back_and_the_rest_stays() {
        let module = Module::new(Object::parse(OBJECT.to_vec()).expect("a committed object"));
        let settings = Settings::default();
        let (mut candidates, mut object) = crate::candidate::after_passes(&module, &settings);
        let has_atomics = |object: &Object| {
            let bytes = object.write(&WRITE).expect("it is written").bytes;
            let verdict = Old { answers: true }.judge(&bytes, None).expect("it answers");
            verdict.programs.iter().any(|p| !p.verdict.is_accepted())
        };
        assert!(has_atomics(&object), "the example no longer tempts the optimizer");
        let options = Options { other_kernels: vec![Arc::new(Old { answers: true })], ..Options::default() };
        let all = Box::new(|_: &[u8], _: &dyn Fn(&str, &str) -> Question, _| {
            Ok(ObjectVerdict { programs: Vec::new(), not_loadable: None })
        });
        let here = Gate::with(OBJECT, all, &|_, _| Question::AsDefined, None, None);
        let elsewhere = Elsewhere::new(OBJECT, &options);
        let mut report = Report::default();
        let mut settle = |candidates: &mut Vec<Candidate>, object: &mut Object| {
            let job = here.job(&module, &settings, &WRITE);
            elsewhere.settle(job, object, candidates, &mut report).expect("it settles")
        };
        assert!(settle(&mut candidates, &mut object).is_some());
        assert!(settle(&mut candidates, &mut object).is_none(), "it does not end");
        assert!(!has_atomics(&object));
        assert!(candidates.iter().any(|c| c.body.is_some()), "everything was given up");
        let [of] = &report.other_kernels[..] else { panic!("{:?}", report.other_kernels) };
        assert!(of.kernel == "4.19" && of.taken_back > 0, "{of:?}");
        assert!(of.programs.iter().all(|p| p.after.accepted), "{of:?}");
        assert!(report.taken_back.iter().all(|t| t.reason.starts_with("4.19: ")), "{:?}", report.taken_back);
    }

    #[test]
    fn what_another_kernel_takes_of_the_true_original_it_has_to_take_as_it_is_specialized() {
        let old = Old { answers: true };
        let with_atomics = {
            let module = Module::new(Object::parse(OBJECT.to_vec()).expect("a committed object"));
            crate::candidate::after_passes(&module, &Settings::default()).1.write(&WRITE).expect("it is written").bytes
        };
        let verdicts = [OBJECT, &with_atomics[..]].map(|object| old.judge(object, None).expect("it answers"));
        let [without, with] = &verdicts;
        assert!(not_taken_any_more(without, with).is_some_and(|(_, why)| why.contains("no atomics")));
        assert!(not_taken_any_more(with, without).is_none() && not_taken_any_more(without, without).is_none());
        let options = Options {
            other_kernels: vec![Arc::new(old)],
            original: Some(Arc::new(OBJECT.to_vec())),
            ..Options::default()
        };
        let said = crate::optimize(&with_atomics, &options, &crate::Silent).map(|_| ()).expect_err("it is refused");
        assert!(said.to_string().contains("not as it is specialized"), "{said}");
    }

    #[test]
    fn a_kernel_that_does_not_answer_is_an_error() {
        let options = Options { other_kernels: vec![Arc::new(Old { answers: false })], ..Options::default() };
        let said = crate::optimize(OBJECT, &options, &crate::Silent).map(|_| ()).expect_err("no answer");
        assert!(matches!(&said, DriverError::OtherKernel { .. }) && said.to_string().contains("it is gone"), "{said}");
    }
}
