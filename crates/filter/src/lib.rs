//! Compiles the filter language of tcpdump, pcap-filter(7).
//!
//! A filter is text. It becomes a tree (`language`), then a predicate graph: what is tested, in the order of the text, with the
//! meaning that libpcap's code has before its optimizer (`lower`, `graph`). The optimizer walks that graph with what is known on
//! the way, so that each question is asked once and each field is known to be there once (`optimize`, `decision`). What comes
//! out becomes a program of operations over registers (`emit`, `program`), which the interpreter runs and the back ends
//! translate; for x86-64 to machine code (`jit`), once a verifier has taken it (`safety`).

mod allocate;
mod classic;
mod decision;
mod ebpf;
mod emit;
mod emit_plain;
mod error;
mod graph;
mod intervals;
mod jit;
mod language;
mod link;
mod listing;
mod lower;
mod names;
mod optimize;
mod options;
mod order;
mod program;
mod safety;
mod simplify;
mod tables;
mod value;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

pub use classic::{Classic, ClassicError, MOST_INSTRUCTIONS};
pub use ebpf::{Actions, EbpfError, EbpfForm, FunctionName, Hook, Takes};
pub use error::Error;
pub use jit::{Jit, JitError};
pub use link::LinkType;
pub use names::{NameFiles, set_of_file};
pub use options::{Options, Source};
pub use program::{Beside, Packet, Run};
pub use safety::{Fault, Unsafe};
pub use value::Ancillary;

use language::Id;
use optimize::Limits;
use program::Program;

/// What a classic program is to have little of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClassicGoal {
    /// Instructions.
    #[default]
    Size,
    /// Instructions executed.
    Time,
}

/// A compiled filter.
#[derive(Clone, Debug)]
pub struct Filter {
    forms: Forms,
    /// What the interpreter runs: loads check that they are in the packet.
    checked: Program,
    accepted_length: u32,
}

/// Compiles a filter.
///
/// # Errors
/// If the text is no filter, or asks for what the link type does not have.
pub fn compile(text: &str, options: &Options) -> Result<Filter, Error> {
    /// For graphs of hundreds of thousands of blocks, which are walked by recursion. What is not used takes no memory.
    const STACK: usize = 1 << 30;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, || compiled(text, options));
        match thread.map(|t| t.join()) {
            Ok(Ok(result)) => result,
            _ => Err(Error::new(0..text.len(), "no memory to compile this filter")),
        }
    })
}

fn compiled(text: &str, options: &Options) -> Result<Filter, Error> {
    let names: HashSet<String> = options.sets.keys().cloned().collect();
    let ast = language::parse(text, &names)?;
    let mut sets: HashMap<String, Vec<Id>> = HashMap::new();
    for (name, entries) in &options.sets {
        let parsed = |entry: &String| {
            let named = |e| Error::new(0..text.len(), format!("{entry:?} in the set {name:?}: {e}"));
            language::parse_id(entry).map_err(named)
        };
        let ids = entries.iter().map(parsed).collect::<Result<Vec<Id>, Error>>()?;
        sets.insert(name.clone(), ids);
    }
    let mut graph = lower::lower(&ast, options, &sets)?;
    let optimized = if options.optimize { optimized(&mut graph) } else { None };
    let forms = optimized.unwrap_or_else(|| Forms::alike(emit_plain::emit_plainly(&graph)));
    let checked = forms.fast.with_checked_loads();
    Ok(Filter { forms, checked, accepted_length: options.accepted_length })
}

/// The programs of a filter, which differ in how sets are decided.
#[derive(Clone, Debug)]
struct Forms {
    /// For the interpreter and machine code.
    fast: Program,
    /// For eBPF: the smallest.
    kernel: Program,
    /// Without tables, for classic BPF.
    without_tables: Vec<Program>,
}

impl Forms {
    fn alike(program: Program) -> Forms {
        Forms { fast: program.clone(), kernel: program.clone(), without_tables: vec![program] }
    }
}

/// The smaller of what little and much copying give; without tables all that they give.
fn optimized(graph: &mut graph::Graph) -> Option<Forms> {
    /// Blocks walked, where much may be copied, and where little may.
    const WALKS: [usize; 2] = [40_000, 4_000_000];
    let mut best: Option<Forms> = None;
    // Of a graph with variables nothing is known in common, so that all walks are the same one.
    let all_copies: &[usize] = if graph.variables == 0 { &[64, 8, 1, 0] } else { &[0] };
    for &copies in all_copies {
        let walks = WALKS[usize::from(copies <= 1)];
        let Some((decisions, root)) = optimize::optimize(graph, Limits { copies, walks }) else { continue };
        let emit = |policy| emit::emit(&graph.values, &decisions, root, policy);
        let fast = emit(emit::SetPolicy::FAST);
        let kernel = emit(emit::SetPolicy::KERNEL);
        let without_tables = [emit::SetPolicy::CLASSIC, emit::SetPolicy::SMALLISH, emit::SetPolicy::SMALL].map(emit);
        match &mut best {
            None => best = Some(Forms { fast, kernel, without_tables: without_tables.into() }),
            Some(best) => {
                // Copies make the way of a packet short: only what is much smaller is better.
                if fast.size() * 2 < best.fast.size() {
                    best.fast = fast;
                }
                if kernel.size() * 10 < best.kernel.size() * 9 {
                    best.kernel = kernel;
                }
                best.without_tables.extend(without_tables);
            }
        }
    }
    best
}

impl Filter {
    /// What of a packet is accepted: 0 if it is not.
    pub fn run(&self, packet: &Packet) -> u32 {
        if self.count(packet).accepted { self.accepted_length } else { 0 }
    }

    /// Runs the filter and counts operations.
    pub fn count(&self, packet: &Packet) -> Run {
        thread_local! {
            /// Allocated once, not for each packet.
            static REGISTERS: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
        }
        REGISTERS.with_borrow_mut(|registers| self.checked.run(packet, registers))
    }

    /// The filter as a classic BPF program: the smallest; or, with a goal of time, that of the fewest comparisons on the longest way
    /// among those that are at most 1.3 times as large as the smallest.
    ///
    /// # Errors
    /// If it needs more memory than classic BPF has.
    pub fn classic(&self, goal: ClassicGoal) -> Result<Vec<Classic>, ClassicError> {
        let mut all = Vec::new();
        let mut error = ClassicError::Variables;
        for program in &self.forms.without_tables {
            match classic::classic(program, self.accepted_length) {
                Ok(instructions) => all.push((instructions.len(), program.expected(), instructions)),
                Err(e) => error = e,
            }
        }
        let Some(smallest) = all.iter().map(|(size, ..)| *size).min() else { return Err(error) };
        let most = match goal {
            ClassicGoal::Size => smallest,
            ClassicGoal::Time => smallest * 13 / 10,
        };
        all.retain(|(size, ..)| *size <= most);
        all.sort_by(|a, b| a.1.total_cmp(&b.1));
        all.into_iter().next().map(|(_, _, instructions)| instructions).ok_or(error)
    }

    /// The filter as an object file for a hook of the kernel: one program, called `filter`.
    ///
    /// # Errors
    /// If the filter asks for what the hook does not have.
    pub fn object(&self, hook: Hook, actions: Actions) -> Result<Vec<u8>, EbpfError> {
        self.object_of(&EbpfForm::program(hook, actions))
    }

    /// The filter as an object file.
    ///
    /// # Errors
    /// If the filter asks for what this form does not have.
    pub fn object_of(&self, form: &EbpfForm) -> Result<Vec<u8>, EbpfError> {
        ebpf::write_object(&self.forms.kernel, form)
    }

    /// The filter as eBPF assembly for a hook of the kernel.
    ///
    /// # Errors
    /// If the filter asks for what the hook does not have.
    pub fn assembly(&self, hook: Hook, actions: Actions) -> Result<String, EbpfError> {
        self.assembly_of(&EbpfForm::program(hook, actions))
    }

    /// The filter as eBPF assembly.
    ///
    /// # Errors
    /// If the filter asks for what this form does not have.
    pub fn assembly_of(&self, form: &EbpfForm) -> Result<String, EbpfError> {
        ebpf::assembly(&self.forms.kernel, form)
    }

    /// The C header that declares a function; `None` for a program. `text` is the filter.
    pub fn header(form: &EbpfForm, text: &str, options: &Options) -> Option<String> {
        ebpf::header(form, text, options.link_type)
    }

    /// No packet is accepted.
    pub fn rejects_all(&self) -> bool {
        self.forms.fast.rejects_all()
    }

    /// The filter as machine code of x86-64, where this is one; otherwise [`Filter::run`] runs it.
    ///
    /// # Errors
    /// If the machine or the system does not take it, or the filter is too large.
    pub fn jit(&self) -> Result<Jit, JitError> {
        Jit::new(&self.forms.fast)
    }

    /// The program as text.
    pub fn listing(&self) -> String {
        self.checked.to_string()
    }

    /// How many operations the program has.
    pub fn size(&self) -> usize {
        self.checked.size()
    }
}
