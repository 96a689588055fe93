//! Filters in the kernel: loaded, run by BPF_PROG_TEST_RUN, attached nowhere, and gone with the value that holds them.

use bpf_filter::{Actions, EbpfForm, Filter, Hook, Options, compile};
use bpf_kernel::{LoadOptions, LoadedObject, ProgramVerdict};

use crate::timing::Turn;

/// A filter's program.
pub struct InKernel {
    object: LoadedObject,
    actions: Actions,
}

impl InKernel {
    /// Loads a filter's program.
    ///
    /// # Errors
    /// If it has no such form, or the kernel refuses it.
    pub fn load(filter: &Filter, hook: Hook) -> Result<InKernel, String> {
        let actions = Actions::passing(hook);
        let object = filter.object_of(&EbpfForm::program(hook, actions)).map_err(|e| e.to_string())?;
        let object = LoadedObject::load(&object, &LoadOptions::default()).map_err(|e| e.to_string())?;
        Ok(InKernel { object, actions })
    }

    /// A program that only lets all packets pass.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn empty(hook: Hook) -> Result<InKernel, String> {
        let filter = compile("", &options(hook)).map_err(|e| e.to_string())?;
        InKernel::load(&filter, hook)
    }

    /// Whether it accepts a packet.
    ///
    /// # Errors
    /// If the kernel does not run it.
    pub fn accepts(&self, packet: &[u8]) -> Result<bool, String> {
        let run = self.object.test_run("filter", packet, None, 1).map_err(|e| e.to_string())?;
        Ok(run.retval.cast_signed() == self.actions.matched)
    }

    /// A turn that runs it on each packet, with the repetitions left to the kernel.
    pub fn turn<'a>(&'a self, packets: &'a [Vec<u8>], repetitions: u32) -> Turn<'a> {
        Box::new(move || {
            let time = |packet: &Vec<u8>| {
                let run = self.object.test_run("filter", packet, None, repetitions);
                // It ran when verdicts were compared; a signal may end a run before its time.
                run.map_or(f64::NAN, |run| f64::from(run.duration_ns))
            };
            packets.iter().map(time).sum::<f64>() / packets.len() as f64
        })
    }

    /// Slots of the program, and how many instructions the verifier processed.
    pub fn size(&self) -> (usize, Option<u64>) {
        let program: Option<&ProgramVerdict> = self.object.programs().first();
        let processed = program.and_then(|p| p.stats.as_ref()).map(|s| s.processed);
        (program.map_or(0, |p| p.slots), processed)
    }
}

/// How a filter is compiled for a hook.
pub fn options(hook: Hook) -> Options {
    Options { source: hook.source(), ..Options::default() }
}
