//! What the user asks of the pipeline: the goal, the passes, the limits and what is switched on.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bpf_isa::{Costs, Goal};
use bpf_object::Object;
use bpf_platform::{ByteOrder, KernelVersion};

use crate::counts::{Counts, Traffic};
use crate::error::DriverError;
use crate::other_kernel::OtherKernel;
use crate::part::Parts;

/// Which passes run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum PassSelection {
    /// All of them.
    #[default]
    All,
    /// None: the object is read and written, nothing else.
    None,
    /// Only these, by name (see `bpf_passes::names`).
    Only(Vec<String>),
}

/// The patience of a short search.
const SHORT: Option<u64> = Some(1);

/// What the user asks for.
#[derive(Clone, Debug)]
pub struct Options {
    /// What to optimize for.
    pub goal: Goal,
    /// How often the parts of the object ran: what a run of a function is expected to take goes by that, where less time is the goal. It
    /// only weighs.
    pub counts: Option<Arc<Counts>>,
    /// What forms are measured on, instead of made inputs.
    pub traffic: Option<Arc<Traffic>>,
    /// How often programs run, by name, where that is known: the search begins with those that run most.
    pub program_runs: BTreeMap<String, u64>,
    /// By which table the time of functions is estimated in reports.
    pub costs: &'static Costs,
    /// Time for the whole object; functions not reached in time stay as they were.
    pub time_limit: Duration,
    /// Seed of everything random.
    pub seed: u64,
    /// Rounds of the search at most; `None`: as many as the time allows. If time does not end first, the result is the
    /// same on every machine, whatever the number of jobs.
    pub rounds: Option<u64>,
    /// Rounds of the search that may bring nothing before it ends; `None`: it goes on while anything is open.
    pub patience: Option<u64>,
    /// Time for the proof of one function as a whole, at most.
    pub whole: Duration,
    /// Worker threads.
    pub jobs: usize,
    /// Highest cpu level to use; `None`: what the object uses already, at least 3.
    pub cpu: Option<u8>,
    /// The oldest kernel that is to take the result.
    pub min_kernel: KernelVersion,
    /// Which passes run.
    pub passes: PassSelection,
    /// The global passes run, too ([`bpf_ssa`]).
    pub ssa: bool,
    /// Only the functions with these names; empty: all.
    pub programs: Vec<String>,
    /// Other builds of the object, with their names: of each function the best beginning that is proven equal is taken.
    pub also: Vec<(String, Vec<u8>)>,
    /// Ask the running kernel's verifier; if not, `bpf_check` is asked.
    pub kernel: bool,
    /// Kernels that have to take of the result, too, what they take of the original.
    pub other_kernels: Vec<Arc<dyn OtherKernel>>,
    /// Run original and result in the kernel, where that can do no harm.
    pub run_check: bool,
    /// Program type for the kernel where the section name does not tell (bpftool's names).
    pub program_type: Option<String>,
    /// By how many percent the instructions that the verifier processes of a program may grow.
    pub max_verifier_growth: f64,
    /// So many more it may always process.
    pub free_verifier_growth: u64,
    /// The object that the one to be optimized, or the first to be compared, was made of for what will not change: what the
    /// kernel says of this one is what counts, and what reports tell ([`Yardstick`](crate::Yardstick)).
    pub original: Option<std::sync::Arc<Vec<u8>>>,
    /// Forbid merging accesses to shared memory and load-add-store to atomics.
    pub strict_shared_memory: bool,
    /// Keep DWARF sections although they describe the old code.
    pub keep_debug: bool,
    /// Tell every change ([`FunctionReport::changes`](crate::FunctionReport::changes)).
    pub explain: bool,
    /// Sees every query of the prover.
    pub queries: Option<bpf_prove::Recorder>,
    /// How many forms the search keeps for [`variants`](crate::variants).
    pub forms: usize,
    /// Search after the passes, for as long as the time allows and something may come of it.
    pub search: bool,
    /// The rules that come with the program are used ([`bpf_search::shipped`]), also where there is no search.
    pub shipped_rules: bool,
    /// Where what the search learns is kept from run to run; `None`: nowhere.
    pub cache: Option<std::path::PathBuf>,
    /// Each function is worked on by itself, with so many rounds of its own: what comes of it does not depend on other functions.
    pub by_function: bool,
    /// With `by_function`: where results of functions are kept and taken from.
    pub parts: Option<Arc<dyn Parts>>,
}

impl Options {
    /// These options for an object: of one for machines with another byte order than this one, the kernel here can say nothing.
    ///
    /// # Errors
    /// Other kernels are to be asked about such an object.
    pub(crate) fn for_object(&self, object: &Object) -> Result<Cow<'_, Options>, DriverError> {
        if object.byte_order() == ByteOrder::HOST {
            return Ok(Cow::Borrowed(self));
        }
        if let Some(kernel) = self.other_kernels.first() {
            let why = format!("it runs on this machine, and the object is {}", object.byte_order().name());
            return Err(DriverError::OtherKernel { kernel: kernel.name().to_owned(), why });
        }
        Ok(Cow::Owned(Options { kernel: false, ..self.clone() }))
    }

    /// How much to do, as `opt -O` says, for the goal these options have. 1: rules. 2: global passes and a short search, too.
    /// 3: a search that ends when it gains no more. Any other: one that ends when nothing is open.
    #[must_use]
    pub fn at_level(self, level: u8) -> Options {
        let patience = match level {
            2 => SHORT,
            3 => Some(3),
            _ => None,
        };
        // A second or so is for all that an ordinary program needs.
        let whole = if level == 2 { self.whole / 20 } else { self.whole };
        Options { patience, whole, ssa: level > 1, search: level > 1, shipped_rules: true, ..self }
    }
}

impl Options {
    /// What [`Options::free_verifier_growth`] is to be for a goal, where the user says nothing. Code that is copied for the usual way
    /// is walked twice, which is nothing beside what a verifier takes (1,000,000 instructions, `BPF_COMPLEXITY_LIMIT_INSNS` in
    /// include/linux/bpf.h).
    #[must_use]
    pub fn free_growth(goal: Goal) -> u64 {
        match goal {
            Goal::Latency(_) => 200,
            _ => Options::default().free_verifier_growth,
        }
    }

    /// Whether the search is to end soon, whatever comes of it, as at level 2.
    pub(crate) fn is_short(&self) -> bool {
        self.patience == SHORT
    }

    /// Whether windows are looked at after the passes: to search them, or only for what known rules make of them.
    pub(crate) fn looks_at_windows(&self) -> bool {
        self.search || self.shipped_rules || self.cache.is_some()
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            goal: Goal::Size,
            counts: None,
            traffic: None,
            program_runs: BTreeMap::new(),
            costs: Costs::of_host(),
            time_limit: Duration::from_secs(30),
            seed: 1,
            rounds: None,
            patience: None,
            whole: Duration::from_secs(10),
            jobs: 1,
            cpu: None,
            min_kernel: KernelVersion::OLDEST,
            passes: PassSelection::All,
            ssa: false,
            programs: Vec::new(),
            also: Vec::new(),
            kernel: true,
            other_kernels: Vec::new(),
            run_check: true,
            program_type: None,
            max_verifier_growth: 2.0,
            free_verifier_growth: 2,
            original: None,
            strict_shared_memory: false,
            keep_debug: false,
            explain: false,
            queries: None,
            forms: 1,
            search: false,
            shipped_rules: false,
            cache: None,
            by_function: false,
            parts: None,
        }
    }
}
