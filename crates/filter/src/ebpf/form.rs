//! What is made of a filter as eBPF.

use super::hook::{Actions, Hook};

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
}

impl EbpfForm {
    /// A program that does not count.
    pub fn program(hook: Hook, actions: Actions) -> EbpfForm {
        EbpfForm::Program { hook, actions, counts: false }
    }

    pub(super) fn hook(&self) -> Hook {
        match self {
            EbpfForm::Program { hook, .. } => *hook,
        }
    }

    pub(super) fn ends(&self) -> Ends {
        match self {
            EbpfForm::Program { hook, actions, counts } => {
                Ends { actions: *actions, counts: counts.then(|| Counting::at(*hook)) }
            }
        }
    }
}

/// How a program ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ends {
    pub(super) actions: Actions,
    /// How it counts, if it does.
    pub(super) counts: Option<Counting>,
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

/// The map that counts, as [`bpf_assembly::Map::parse`] reads it: by 0 (not matched) and 1 (matched), for each processor.
pub(super) const COUNTERS: &str = "counters percpu_array 4 16 2 member packets member bytes";
