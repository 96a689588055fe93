//! Judging the safety of programs without a kernel.

use bpf_check::{Report, SafetyVerdict, programs};
use bpf_kernel::ProgramType;
use bpf_object::Object;
use serde::Serialize;

use crate::error::Error;

/// How safe a program is, as the kernel's verifier would see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is safe.
    Safe,
    /// It is not.
    Violation,
    /// Something in it is not described here.
    Unknown,
}

/// What is said of a program.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    /// Its name.
    pub name: String,
    /// The verdict.
    pub verdict: Verdict,
    /// What is wrong, in the verifier's words.
    pub problem: Option<String>,
}

/// Judges all programs of an object as the verifier of Linux 6.18 does, without asking it. `program_type` (bpftool's names) is for
/// objects whose sections do not tell it.
///
/// # Errors
/// If it is no BPF object, or no program type is called so.
pub fn check(object: &[u8], program_type: Option<&str>) -> Result<Vec<Checked>, Error> {
    let object = Object::parse(object.to_vec())?;
    let forced = program_type.map(ProgramType::named).transpose().map_err(|e| Error::ProgramType(e.to_string()))?;
    let judged = |f| {
        let (_, Report { verdict, problem, .. }) = bpf_driver::agreement::judged(&object, f, forced);
        Checked {
            name: object.functions()[f.0].name.clone(),
            verdict: match verdict {
                SafetyVerdict::Accepted => Verdict::Safe,
                SafetyVerdict::Violation => Verdict::Violation,
                SafetyVerdict::CannotTell => Verdict::Unknown,
            },
            problem: problem.map(|p| p.what),
        }
    };
    let all = bpf_driver::on_deep_stack(|| programs(&object).into_iter().map(judged).collect());
    all.ok_or(Error::Internal)
}
