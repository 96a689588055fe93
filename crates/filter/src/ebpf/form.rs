//! What is made of a filter as eBPF.

use super::hook::{Actions, Hook};
use super::name::FunctionName;

/// The eBPF that is made of a filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EbpfForm {
    /// A program, called `filter`.
    Program {
        /// Where it runs.
        hook: Hook,
        /// What it returns.
        actions: Actions,
        /// Whether it counts packets and bytes by verdict, in the map `counters`.
        counts: bool,
    },
    /// A function to link into programs. It returns 1 for a packet that matches, and 0 for any other.
    Function {
        /// What it is called.
        name: FunctionName,
        /// What it is given.
        takes: Takes,
    },
}

/// What a function is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Takes {
    /// Where the packet begins and ends: `(void *data, void *data_end)`. The function is hidden, so that it is verified with its
    /// caller; the verifier takes no such arguments of a function that it verifies alone.
    Data,
    /// The context of a hook's programs. The function is verified alone.
    Context(Hook),
}

impl EbpfForm {
    /// A program that does not count.
    pub fn program(hook: Hook, actions: Actions) -> EbpfForm {
        EbpfForm::Program { hook, actions, counts: false }
    }

    /// The hook whose context it is given, if it is given one.
    pub(super) fn hook(&self) -> Option<Hook> {
        match self {
            EbpfForm::Program { hook, .. } | EbpfForm::Function { takes: Takes::Context(hook), .. } => Some(*hook),
            EbpfForm::Function { takes: Takes::Data, .. } => None,
        }
    }

    /// How a program ends that notes so many predicates. A function reports nothing.
    pub(super) fn ends(&self, predicates: u32) -> Ends {
        match self {
            EbpfForm::Program { hook, actions, counts } => {
                let counting = Counting::at(*hook);
                let reports = (predicates > 0).then_some(counting);
                Ends { actions: *actions, counts: counts.then_some(counting), reports }
            }
            EbpfForm::Function { .. } => {
                Ends { actions: Actions { matched: 1, other: 0 }, counts: None, reports: None }
            }
        }
    }
}

/// How a program ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ends {
    pub(super) actions: Actions,
    /// How it counts verdicts, if it does.
    pub(super) counts: Option<Counting>,
    /// How it counts in which predicate the ways of packets end, if it does.
    pub(super) reports: Option<Counting>,
}

impl Ends {
    /// The end is more than a number that is returned.
    pub(super) fn are_counted(self) -> bool {
        self.counts.is_some() || self.reports.is_some()
    }

    /// The program may end in the middle with 0. Not in the middle of a function: its caller would end, too.
    pub(super) fn may_be_by_load(self, form: &EbpfForm) -> bool {
        matches!(form, EbpfForm::Program { .. }) && self.actions.other == 0 && !self.are_counted()
    }
}

/// How counters of this processor are increased.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counting {
    /// By a load and a store: no other run of the program comes between.
    Plain,
    /// Atomically: the program runs in processes, which interrupts may run it in the middle of.
    Atomic,
}

impl Counting {
    /// `ip_output` calls a control group's program with interrupts open; all other hooks are softirqs, or hold them off.
    fn at(hook: Hook) -> Counting {
        if hook == Hook::CgroupSkb { Counting::Atomic } else { Counting::Plain }
    }
}

/// What the map is called that counts verdicts.
pub(super) const COUNTERS: &str = "counters";
/// What the map of a report is called.
pub(super) const REPORT: &str = "report";

/// The map that counts, as [`bpf_assembly::Map::parse`] reads it: by 0 (not matched) and 1 (matched), for each processor.
pub(super) fn counters_map() -> String {
    format!("{COUNTERS} percpu_array 4 16 2 member packets member bytes")
}

/// The map of a report, for each processor: by twice the predicate's number, and one more for packets that match. Behind those of
/// the predicates stand the packets whose ways end before the first one.
pub(super) fn report_map(predicates: u32) -> String {
    format!("{REPORT} percpu_array 4 16 {} member packets member bytes", 2 * (u64::from(predicates) + 1))
}
