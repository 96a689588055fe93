//! One object to optimize: what the user wants, and where it is.

use std::path::Path;
use std::sync::Arc;

use bpf_driver::{Options, Shared};

use crate::args::OptArgs;
use crate::elsewhere::OtherKernel;

/// One object to optimize.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// What the user wants of every object.
    pub args: &'a OptArgs,
    /// The object; `-`: standard input.
    pub input: &'a Path,
    /// Where the result goes; `-`: standard output.
    pub output: &'a Path,
    /// Threads for it.
    pub jobs: usize,
    /// Other kernels that are to take the result.
    pub kernels: &'a [Arc<OtherKernel>],
    /// What is known of functions of other objects, if it is one of many.
    pub shared: Option<&'a Arc<Shared>>,
}

impl Job<'_> {
    /// What the pipeline is to do.
    pub fn options(&self) -> Options {
        let other_kernels = self.kernels.iter().map(|k| k.clone() as Arc<dyn bpf_driver::OtherKernel>).collect();
        Options { jobs: self.jobs, other_kernels, ..self.args.options() }
    }
}
