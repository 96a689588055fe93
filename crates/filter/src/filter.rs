//! A compiled filter and its forms.

mod classic_form;

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use crate::classic::{Classic, ClassicError};
use crate::decision::{DecisionId, Decisions};
use crate::dot;
use crate::ebpf::{self, Actions, EbpfError, EbpfForm, Hook};
use crate::emit::{SetPolicy, emit};
use crate::graph::Graph;
use crate::jit::{Jit, JitError};
use crate::options::{Lookup, Options};
use crate::passes::{Pass, Passes};
use crate::profile::Profile;
use crate::program::{Operation, Packet, Program, Run};
use crate::proof::{self, Effort, Unproven};
use crate::suited::{Choice, Gain, Given, Suited, Target};
use crate::updatable::SetMap;
use crate::value::Values;

/// What a classic program is to have little of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClassicGoal {
    /// Instructions.
    #[default]
    Size,
    /// Instructions executed.
    Time,
}

/// What a filter is compiled for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// The interpreter.
    Here,
    /// Machine code.
    Machine,
    /// eBPF.
    Kernel,
    /// Classic BPF.
    Classic(ClassicGoal),
}

/// A compiled filter.
///
/// Each form is proven to accept the same packets as the filter as it stands when it is first asked for. Where no proof is found,
/// that without tables takes its place if it is proven, otherwise the filter as it stands, and [`Filter::unproven`] says why.
#[derive(Clone, Debug)]
pub struct Filter {
    /// The filter as it stands: what it tests.
    graph: Graph,
    /// The program of that.
    pub(crate) plain: Program,
    pub(crate) forms: Option<Forms>,
    /// Not proven yet.
    emitted: OnceLock<Option<Program>>,
    fast: OnceLock<Proven>,
    machine: OnceLock<Proven>,
    /// What the interpreter runs: loads check that they are in the packet.
    checked: OnceLock<Program>,
    kernel: OnceLock<Proven>,
    classic: [OnceLock<Result<Proven<Vec<Classic>>, ClassicError>>; 2],
    accepted_length: u32,
    /// The predicates of the text, if the filter reports.
    pub(crate) predicates: Vec<String>,
}

/// A form that is proven, or what takes its place.
#[derive(Clone, Debug)]
struct Proven<T = Program> {
    form: T,
    unproven: Option<Unproven>,
    /// What takes the place of what is not proven is optimized, but has no tables.
    goes_without_tables: bool,
    gain: Option<Gain>,
    /// The decisions that it is made of, if they are for a profile.
    way: Option<usize>,
}

/// How a form is made.
type Emit = fn(&Forms) -> Option<Program>;

/// What the optimizer made of a filter, in several ways: the first ones copy much. A form is emitted when it is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Forms {
    pub(crate) values: Values,
    pub(crate) maps: Arc<[SetMap]>,
    /// How many predicates there are to note.
    pub(crate) predicates: u32,
    /// The decisions, and where they begin: at least one way.
    pub(crate) ways: Vec<(Decisions, DecisionId)>,
    /// For the interpreter and machine code.
    pub(crate) lookup: Lookup,
    /// Which parts of the optimizer run.
    pub(crate) passes: Passes,
    /// What packets are to be decided soon.
    pub(crate) profile: Option<Arc<Profile>>,
    /// What that makes of the decisions.
    pub(crate) suited: OnceLock<Option<Suited>>,
}

impl Forms {
    fn emitted(&self, policy: SetPolicy) -> impl Iterator<Item = Program> {
        self.ways.iter().map(move |way| self.program(way, policy))
    }

    fn program(&self, (decisions, root): &(Decisions, DecisionId), policy: SetPolicy) -> Program {
        emit(&self.values, (self.maps.clone(), self.predicates), (decisions, *root), policy.with(self.passes), None)
    }

    /// The same, but for tables.
    fn to_go_without_tables(&self) -> Forms {
        let passes = Passes::of(Pass::ALL.into_iter().filter(|pass| *pass != Pass::Tables && self.passes.has(*pass)));
        Forms { passes, ..self.clone() }
    }

    /// For the interpreter. Copies make the way of a packet short: only what is much smaller is better.
    pub(crate) fn fast(&self) -> Option<Program> {
        Some(self.fast_way()?.1)
    }

    /// For machine code.
    fn machine(&self) -> Option<Program> {
        Some(self.short_way(SetPolicy::MACHINE)?.1)
    }

    /// The way that the interpreter's form is made of, and the form.
    fn fast_way(&self) -> Option<(&(Decisions, DecisionId), Program)> {
        self.short_way(SetPolicy::FAST)
    }

    /// The way that makes the ways of packets short, and what comes of it.
    fn short_way(&self, suited: SetPolicy) -> Option<(&(Decisions, DecisionId), Program)> {
        let policy = self.policy(suited);
        let is_smaller = |next: &Program, best: &Program| next.size() * 2 < best.size();
        let forms = self.ways.iter().zip(self.emitted(policy));
        forms.reduce(|best, next| if is_smaller(&next.1, &best.1) { next } else { best })
    }

    fn policy(&self, suited: SetPolicy) -> SetPolicy {
        match self.lookup {
            Lookup::Suited => suited.with(self.passes),
            Lookup::Linear => SetPolicy::SMALL.with(self.passes),
            Lookup::Table => SetPolicy::TABLE.with(self.passes),
        }
    }

    /// What the decisions are about.
    fn given(&self) -> Given<'_> {
        Given { values: &self.values, maps: &self.maps, predicates: self.predicates }
    }

    /// The decisions for the profile, if there is one.
    fn suited(&self) -> Option<&Suited> {
        let runs = self.passes.has(Pass::Order) && self.passes.has(Pass::Trees);
        let profile = self.profile.as_ref().filter(|_| runs);
        let suit = || Suited::of(profile?, self.given(), &self.ways);
        self.suited.get_or_init(|| with_large_stack(suit).flatten()).as_ref()
    }

    /// For eBPF: the smallest.
    pub(crate) fn kernel(&self) -> Option<Program> {
        let is_smaller = |next: &Program, best: &Program| next.size() * 10 < best.size() * 9;
        self.emitted(SetPolicy::KERNEL).reduce(|best, next| if is_smaller(&next, &best) { next } else { best })
    }

    /// Without tables, for classic BPF.
    pub(crate) fn without_tables(&self) -> impl Iterator<Item = Program> {
        self.ways.iter().flat_map(move |way| SetPolicy::WITHOUT_TABLES.map(|policy| self.program(way, policy)))
    }
}

/// For graphs of hundreds of thousands of blocks, which are walked by recursion. `None`: there is not so much memory.
pub(crate) fn with_large_stack<T: Send>(f: impl FnOnce() -> T + Send) -> Option<T> {
    /// What is not used takes no memory.
    const STACK: usize = 1 << 30;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, f).ok()?;
        thread.join().ok()
    })
}

impl Filter {
    /// A filter as it stands, and what the optimizer made of it.
    pub(crate) fn new(graph: Graph, plain: Program, forms: Option<Forms>, accepted_length: u32) -> Filter {
        Filter {
            graph,
            plain,
            forms,
            emitted: OnceLock::new(),
            fast: OnceLock::new(),
            machine: OnceLock::new(),
            checked: OnceLock::new(),
            kernel: OnceLock::new(),
            classic: Default::default(),
            accepted_length,
            predicates: Vec::new(),
        }
    }

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
        REGISTERS.with_borrow_mut(|registers| self.checked().run(packet, registers))
    }

    fn checked(&self) -> &Program {
        self.checked.get_or_init(|| self.fast().form.with_checked_loads())
    }

    /// A form as the optimizer made it.
    fn emit(&self, form: Emit) -> Option<Program> {
        with_large_stack(|| form(self.forms.as_ref()?)).flatten()
    }

    /// The form for the interpreter and machine code as the optimizer made it.
    fn emitted(&self) -> Option<&Program> {
        self.emitted.get_or_init(|| self.emit(Forms::fast)).as_ref()
    }

    fn fast(&self) -> &Proven {
        let target = |forms: &Forms| Target { policy: forms.policy(SetPolicy::FAST), checks_loads: true, most: 200 };
        self.fast.get_or_init(|| self.proven_for_profile(self.emitted().cloned(), Forms::fast, target))
    }

    fn machine(&self) -> &Proven {
        let target =
            |forms: &Forms| Target { policy: forms.policy(SetPolicy::MACHINE), checks_loads: false, most: 200 };
        self.machine.get_or_init(|| match self.emit(Forms::machine) {
            // Without larger sets it is the interpreter's.
            form if form.as_ref() == self.emitted() && !self.has_profile() => self.fast().clone(),
            form => self.proven_for_profile(form, Forms::machine, target),
        })
    }

    fn kernel(&self) -> &Proven {
        let target =
            |forms: &Forms| Target { policy: SetPolicy::KERNEL.with(forms.passes), checks_loads: false, most: 130 };
        self.kernel.get_or_init(|| self.proven_for_profile(self.emit(Forms::kernel), Forms::kernel, target))
    }

    fn has_profile(&self) -> bool {
        self.forms.as_ref().is_some_and(|forms| forms.profile.is_some())
    }

    /// Of the forms that a profile suggests the best one that is proven; otherwise the form without it.
    fn proven_for_profile(&self, form: Option<Program>, emit: Emit, target: impl FnOnce(&Forms) -> Target) -> Proven {
        let (Some(forms), Some(base)) = (&self.forms, &form) else { return self.proven(form, emit) };
        let Some(suited) = forms.suited() else { return self.proven(form, emit) };
        let target = target(forms);
        let better = with_large_stack(|| suited.better(forms.given(), base, target)).unwrap_or_default();
        let before = suited.operations(base, target.checks_loads);
        let mut refused = 0;
        for Choice { program, operations, way } in better {
            if self.prove(&program).is_ok() {
                let gain = Some(suited.gain(before, operations, refused));
                return Proven { form: program, unproven: None, goes_without_tables: false, gain, way: Some(way) };
            }
            refused += 1;
        }
        Proven { gain: Some(suited.gain(before, before, refused)), ..self.proven(form, emit) }
    }

    /// A form, if it is proven; otherwise that without tables, if that is; otherwise the filter as it stands.
    fn proven(&self, form: Option<Program>, emit: Emit) -> Proven {
        let proven = |form, unproven| Proven { form, unproven, goes_without_tables: false, gain: None, way: None };
        let Some(form) = form else {
            // There is one, but no memory to emit it.
            return proven(self.plain.clone(), self.is_optimized().then_some(Unproven::TooLarge));
        };
        let Err(why) = self.prove(&form) else { return proven(form, None) };
        let again = || emit(&self.forms.as_ref().filter(|_| !form.tables.is_empty())?.to_go_without_tables());
        match with_large_stack(again).flatten() {
            Some(form) if self.prove(&form).is_ok() => Proven { goes_without_tables: true, ..proven(form, Some(why)) },
            _ => proven(self.plain.clone(), Some(why)),
        }
    }

    fn prove(&self, form: &Program) -> Result<(), Unproven> {
        self.prove_within(form, Effort::All)
    }

    fn prove_within(&self, form: &Program, effort: Effort) -> Result<(), Unproven> {
        let prove = || proof::prove_equal(&self.plain, form, effort);
        with_large_stack(prove).unwrap_or(Err(Unproven::TooLarge))
    }

    /// Whether the optimizer made something of it: it was to, and there were not too many ways.
    pub fn is_optimized(&self) -> bool {
        self.forms.is_some()
    }

    /// Why a form is not optimized, or has no tables: no proof was found that it accepts the same packets. `None` if it is as it was to
    /// be.
    pub fn unproven(&self, form: Form) -> Option<&Unproven> {
        match form {
            Form::Here => self.fast().unproven.as_ref(),
            Form::Machine => self.machine().unproven.as_ref(),
            Form::Kernel => self.kernel().unproven.as_ref(),
            Form::Classic(goal) => self.classic_form(goal).as_ref().ok()?.unproven.as_ref(),
        }
    }

    /// Whether a form is optimized, but has no tables, because with them it is not proven.
    pub fn goes_without_tables(&self, form: Form) -> bool {
        match form {
            Form::Here => self.fast().goes_without_tables,
            Form::Machine => self.machine().goes_without_tables,
            Form::Kernel => self.kernel().goes_without_tables,
            Form::Classic(_) => false,
        }
    }

    /// The filter as a classic BPF program: the smallest; or, with a goal of time, that of which fewest instructions are executed among
    /// those that are at most 1.3 times as large as the smallest.
    ///
    /// # Errors
    /// If it needs more memory than classic BPF has.
    pub fn classic(&self, goal: ClassicGoal) -> Result<&[Classic], ClassicError> {
        self.classic_form(goal).as_ref().map(|proven| &proven.form[..]).map_err(Clone::clone)
    }

    fn classic_form(&self, goal: ClassicGoal) -> &Result<Proven<Vec<Classic>>, ClassicError> {
        self.classic[usize::from(goal == ClassicGoal::Time)].get_or_init(|| self.best_classic(goal))
    }

    /// What the profile brings a form; `None` without a profile, and where there are too many decisions for one.
    pub fn gain(&self, form: Form) -> Option<Gain> {
        match form {
            Form::Here => self.fast().gain,
            Form::Machine => self.machine().gain,
            Form::Kernel => self.kernel().gain,
            Form::Classic(goal) => self.classic_form(goal).as_ref().ok()?.gain,
        }
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
        ebpf::write_object(&self.kernel().form, form)
    }

    /// How far behind its base the filter's furthest field ends, where this form may not be able to read so far: it then rejects the
    /// packets that are asked for it.
    pub fn beyond_reach(&self, form: &EbpfForm) -> Option<u64> {
        ebpf::beyond_reach(&self.kernel().form, form)
    }

    /// Whether eBPF asks for the packet's length, which at a hook is that of what is there of it.
    pub fn reads_length(&self) -> bool {
        let mut operations = self.kernel().form.blocks.iter().flat_map(|b| &b.operations);
        operations.any(|operation| matches!(operation, Operation::Length { .. }))
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
        ebpf::assembly(&self.kernel().form, form)
    }

    /// The C header that declares a function; `None` for a program. `text` is the filter.
    pub fn header(form: &EbpfForm, text: &str, options: &Options) -> Option<String> {
        ebpf::header(form, text, options.link_type)
    }

    /// No packet is accepted.
    pub fn rejects_all(&self) -> bool {
        // Proven only if it matters.
        self.emitted().unwrap_or(&self.plain).rejects_all() && self.fast().form.rejects_all()
    }

    /// The filter as machine code of x86-64, where this is one; otherwise [`Filter::run`] runs it.
    ///
    /// # Errors
    /// If the machine or the system does not take it, or the filter is too large.
    pub fn jit(&self) -> Result<Jit, JitError> {
        Jit::new(&self.machine().form)
    }

    /// The predicates of the text in its order, as [`crate::tree`] writes them, if the filter was compiled to report.
    pub fn predicates(&self) -> &[String] {
        &self.predicates
    }

    /// The sets that user space changes, in the order in which the filter first names them.
    pub fn maps(&self) -> &[SetMap] {
        &self.plain.maps
    }

    /// The program as text.
    pub fn listing(&self) -> String {
        self.checked().to_string()
    }

    /// What the interpreter's form tests, as a graph in the language of Graphviz.
    pub fn dot(&self) -> String {
        let of = |forms: &Forms| {
            let suited = forms.suited().zip(self.fast().way).map(|(suited, way)| suited.way(way));
            let (decisions, root) = suited.or_else(|| Some(forms.fast_way()?.0))?;
            Some(dot::of_decisions(&forms.values, decisions, *root))
        };
        let forms = self.forms.as_ref().filter(|_| self.fast().unproven.is_none());
        let optimized = forms.and_then(|forms| with_large_stack(|| of(forms)).flatten());
        optimized.unwrap_or_else(|| dot::of_graph(&self.graph))
    }

    /// How many operations the program has.
    pub fn size(&self) -> usize {
        self.checked().size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Table;

    /// The tree of comparisons takes the place of a table that holds something else.
    #[test]
    fn what_is_not_proven_with_tables_goes_without() {
        let ports = (0..100u32).map(|i| (i * i + 500).to_string()).collect();
        let options = Options { sets: [("PORTS".to_owned(), ports)].into(), ..Options::default() };
        let filter = crate::compile("tcp dst port $PORTS", &options).expect("a filter");
        let mut form = filter.emit(Forms::kernel).expect("it is optimized");
        assert!(filter.proven(Some(form.clone()), Forms::kernel).unproven.is_none());
        for table in &mut form.tables {
            if let Table::Bitmap { words, .. } = table {
                words[0] ^= 1;
            }
        }
        let proven = filter.proven(Some(form), Forms::kernel);
        assert!(matches!(proven.unproven, Some(Unproven::Differ { .. })), "{:?}", proven.unproven);
        assert!(proven.goes_without_tables && proven.form.tables.is_empty() && proven.form != filter.plain);
    }
}
