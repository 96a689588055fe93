//! Our verdict beside the running kernel's: the measure of this crate.

use bpf_kernel::{KernelError, LoadOptions, ObjectVerdict, ProgramType, Verdict as Kernel, load_object};
use bpf_object::{FuncId, Object};

use crate::program::Program;
use crate::report::{Report, Verdict, programs, types_of};

/// Both verdicts on one program.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The program.
    pub function: FuncId,
    /// Its name.
    pub name: String,
    /// The type both judged it as.
    pub kind: (u32, u32),
    /// What we say.
    pub ours: Report,
    /// What the kernel says.
    pub kernel: Kernel,
    /// The program as we saw it.
    pub program: Program,
}

impl Comparison {
    /// Do both say the same? `None` if the kernel did not look at the code.
    pub fn agrees(&self) -> Option<bool> {
        match (&self.kernel, self.ours.verdict) {
            (Kernel::Unsupported { .. } | Kernel::NotLoadable { .. }, _) => None,
            (Kernel::Accepted, ours) => Some(ours == Verdict::Accepted),
            (Kernel::Rejected { .. }, ours) => Some(ours == Verdict::Violation),
        }
    }
}

/// Judges all programs of an object, by ourselves and by the kernel, as `forced` type or as their sections say.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn compare(bytes: &[u8], object: &Object, forced: Option<&str>) -> Result<Vec<Comparison>, KernelError> {
    let all = programs(object);
    let plain = load_object(bytes, &LoadOptions { program_type: forced.map(str::to_owned) })?;
    let known = |f: &FuncId| object.functions().get(f.0);
    // Where the section name says nothing, the first of the usual types with which the kernel takes the object.
    let nameless = forced.is_none() && all.iter().filter_map(known).all(|f| types_of(&f.section).len() > 1);
    let mut chosen: Option<(String, ObjectVerdict)> = None;
    if nameless {
        let mut refused = None;
        for name in ["classifier", "xdp", "socket", "kprobe"] {
            let verdict = load_object(bytes, &LoadOptions { program_type: Some(name.to_owned()) })?;
            if verdict.is_accepted() && !verdict.programs.is_empty() {
                chosen = Some((name.to_owned(), verdict));
                break;
            }
            refused.get_or_insert((name.to_owned(), verdict));
        }
        chosen = chosen.or(refused);
    }
    let (forced, verdict) = match chosen {
        Some((name, verdict)) => (Some(name), verdict),
        None => (forced.map(str::to_owned), plain),
    };
    let forced = forced.map(|name| ProgramType::named(&name)).transpose()?;
    let mut rows = Vec::new();
    for f in all {
        let Some(function) = known(&f) else { continue };
        let kind = match forced {
            Some((kind, attach)) => (kind.0, attach),
            None => types_of(&function.section).first().copied().unwrap_or((0, 0)),
        };
        let program = Program::link(object, f, kind.0, kind.1);
        let kernel = match verdict.program(&function.name) {
            Some(p) => p.verdict.clone(),
            None => {
                let reason = verdict.not_loadable.clone().unwrap_or_else(|| "not a program to libbpf".to_owned());
                Kernel::NotLoadable { reason }
            }
        };
        let ours = Report::of(&program);
        rows.push(Comparison { function: f, name: function.name.clone(), kind, ours, kernel, program });
    }
    Ok(rows)
}
