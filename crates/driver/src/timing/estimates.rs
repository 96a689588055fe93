//! What a table of costs says of the inputs that are timed: each is run in the interpreter, with the same contents of maps, and its path
//! is estimated.

use std::collections::BTreeMap;

use bpf_isa::Costs;
use bpf_kernel::Entry;
use bpf_object::{FuncId, Object};

use crate::difftest::Input;
use crate::estimate::Estimate;
use crate::interpret::{Program, RunState};

/// Steps of one run.
const FUEL: u64 = 1 << 20;

/// By object and input (with what the kernel returned for it): the estimate, `None` where the interpreter does not run it, or with
/// another result.
pub(super) fn of(
    objects: &[&[u8]],
    name: &str,
    inputs: &[(&Input, u32)],
    contents: &BTreeMap<String, Vec<Entry>>,
    costs: &Costs,
) -> Vec<Vec<Option<Estimate>>> {
    let of_object = |bytes: &&[u8]| {
        let program = program(bytes, name);
        inputs.iter().map(|(input, returns)| estimate(program.as_ref()?, input, *returns, contents, costs)).collect()
    };
    objects.iter().map(of_object).collect()
}

/// The mean of estimates, if there is none missing.
pub(super) fn mean(all: impl Iterator<Item = Option<Estimate>>) -> Option<Estimate> {
    let all: Vec<Estimate> = all.collect::<Option<_>>()?;
    let mean = |f: fn(&Estimate) -> f64| all.iter().map(f).sum::<f64>() / all.len() as f64;
    (!all.is_empty()).then(|| Estimate {
        beside_ns: mean(|e| e.beside_ns),
        chain_ns: mean(|e| e.chain_ns),
        operations: mean(|e| e.operations),
    })
}

fn program(bytes: &[u8], name: &str) -> Option<Program> {
    let object = Object::parse(bytes.to_vec()).ok()?;
    let number = object.functions().iter().position(|f| f.name == name)?;
    let mut program = Program::of(&object, FuncId(number)).ok()?;
    program.core_as_compiled = true;
    program.leaves_trail = true;
    Some(program)
}

fn estimate(
    program: &Program,
    input: &Input,
    returns: u32,
    contents: &BTreeMap<String, Vec<Entry>>,
    costs: &Costs,
) -> Option<Estimate> {
    let mut state = program.start();
    program.fill(&mut state, contents);
    let run = |state: &RunState| {
        let (mut interp, outcome) = program.run(&input.packet, None, state, FUEL);
        let is_same = outcome.is_ok_and(|o| o.r0 as u32 == returns);
        is_same.then(|| (interp.take_trail(), program.state(&interp.host)))
    };
    let (first, after) = run(&state)?;
    // The kernel's runs repeat, so most of them find what the first has left.
    let trail = run(&after).map_or(first, |(second, _)| second);
    Some(program.estimate(&trail, costs))
}
