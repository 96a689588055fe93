//! Programs of which what the verifier says may hang on how long arrays are: the kernel is asked about them more than once
//! ([`Question::AtAnyLength`]).

use bpf_kernel::Question;
use bpf_object::{FuncId, Object};
use bpf_prove::{HangsOnLengths, hangs_on_lengths};

use crate::module::Module;

/// What the kernel is to be asked about a program of an object.
pub(crate) fn question(module: &Module, program: &str, section: &str) -> Question {
    let functions = module.object.loaded_with(module.object.entries(program, section));
    of(functions.into_iter().map(|f| hangs(module, f)))
}

/// The same of a program that consists of these functions, of which some are others than in the module's object: `written` is
/// the object with them.
pub(crate) fn question_with(
    module: &Module,
    written: &Object,
    changed: impl Fn(FuncId) -> bool,
    all: &[usize],
) -> Question {
    of(all.iter().map(|f| FuncId(*f)).map(|f| {
        let Ok(was) = &module.graphs[f.0] else { return HangsOnLengths::OnAny };
        match bpf_program::build(written, f) {
            Ok(is) if changed(f) => module.with_env(|env| {
                let is = bpf_program::Function { kind: was.kind, arguments: was.arguments.clone(), ..is };
                hangs_on_lengths(&is, env)
            }),
            Ok(_) => hangs(module, f),
            Err(_) => HangsOnLengths::OnAny,
        }
    }))
}

fn of(hangs: impl Iterator<Item = HangsOnLengths>) -> Question {
    match hangs.max() {
        None | Some(HangsOnLengths::No) => Question::AsDefined,
        Some(HangsOnLengths::OnSmaller) => Question::AndSmaller,
        Some(HangsOnLengths::OnAny) => Question::AtAnyLength,
    }
}

/// Of a function that is no graph nothing is known.
fn hangs(module: &Module, f: FuncId) -> HangsOnLengths {
    let graph = module.graphs[f.0].as_ref();
    graph.map_or(HangsOnLengths::OnAny, |g| module.with_env(|env| hangs_on_lengths(g, env)))
}
