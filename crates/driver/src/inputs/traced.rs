//! A program that runs on inputs to see which way they go.

use std::sync::Arc;

use bpf_object::FuncId;
use bpf_program::Function;

use super::input::{Input, hook};
use super::kernel;
use super::world::World;
use crate::interpret::{InterpretError, Visit, visits};
use crate::module::Module;

/// The clock and random numbers of such runs.
const SEED: u64 = 1;

/// A program in the interpreter.
pub(crate) struct Traced {
    world: World,
}

impl Traced {
    /// The program of this number in an object.
    ///
    /// # Errors
    /// Why it cannot run.
    pub fn new(module: &Module, number: usize, program_type: Option<&str>) -> Result<Traced, InterpretError> {
        let graphs: Vec<Option<Arc<Function>>> =
            module.graphs.iter().map(|g| g.as_ref().ok().cloned().map(Arc::new)).collect();
        let section = &module.object.functions()[number].section;
        let hook = hook(&module.object, section, graphs[number].as_deref(), program_type);
        Ok(Traced { world: World::of(&module.object, FuncId(number), &graphs, hook)? })
    }

    /// The packet and the context of a test run in the kernel on this input.
    pub fn for_kernel(&self, input: &Input) -> (Vec<u8>, Option<Vec<u8>>) {
        (kernel::packet(self.world.hook, input), kernel::context(&self.world, input))
    }

    /// The blocks that a run on this input goes through, and how it failed, if it did.
    pub fn run(&self, input: &Input) -> (Vec<Visit>, Option<String>) {
        let run = self.world.run(input, SEED);
        let visits = visits(&run.trail, self.world.own_number, &self.world.numbers);
        (visits, run.outcome.err().map(|e| e.to_string()))
    }
}
