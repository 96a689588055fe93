//! What a pass is.

use bpf_facts::Env;
use bpf_platform::KernelVersion;
use bpf_program::Function;

use crate::Ssa;

/// A change of a function in SSA form.
pub trait Pass: Send + Sync {
    /// The name by which users choose it.
    fn name(&self) -> &'static str;
    /// Changes the function; whether anything is different now.
    fn run(&self, f: &mut Ssa, env: &Env<'_>) -> bool;
    /// Whether it works on the graph of a function ([`Pass::graphs`]), and leaves its form alone.
    fn is_of_graphs(&self) -> bool {
        false
    }
    /// What a pass of graphs makes of one. Proposed before any form is made of it.
    fn graphs(&self, _: &Function, _: &Env<'_>) -> Vec<Function> {
        vec![]
    }
    /// Whether it is for functions of any size: what it does takes no more than some tenths of a second beside an analysis.
    fn is_for_any_size(&self) -> bool {
        false
    }
    /// Whether what it does is often beyond what can be proven: what contains it is not tried again and again.
    fn is_hard(&self) -> bool {
        false
    }
    /// Whether it is a step of its own: together with what else can be done, it is rarely proven in time.
    fn stands_alone(&self) -> bool {
        false
    }
    /// The oldest kernel whose verifier takes what it makes, if that is not any.
    fn min_kernel(&self) -> Option<KernelVersion> {
        None
    }
    /// Whether it runs when all others have nothing left to do: once, because it undoes what they would do again; of graphs as long
    /// as it finds something.
    fn is_last(&self) -> bool {
        false
    }
}
