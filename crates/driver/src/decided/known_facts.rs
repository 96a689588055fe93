//! Facts that are worked out once, though many questions need them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use bpf_facts::{Env, Facts};
use bpf_program::Function;
use bpf_prove::Options as ProofOptions;

/// Facts about functions of one module that were worked out lately. Programs are asked about for several lengths and constants, and
/// in many forms of which one half is always the original.
#[derive(Default)]
pub(crate) struct KnownFacts(RefCell<VecDeque<(Function, Rc<Facts>)>>);

impl KnownFacts {
    /// Functions that are kept, at most.
    const KEPT: usize = 64;

    fn of(&self, f: &Function, env: &Env) -> Rc<Facts> {
        if let Some((_, facts)) = self.0.borrow().iter().find(|(known, _)| known == f) {
            return facts.clone();
        }
        let facts = Rc::new(Facts::of(f, env));
        let mut known = self.0.borrow_mut();
        known.truncate(Self::KEPT - 1);
        known.push_front((f.clone(), facts.clone()));
        facts
    }
}

/// What functions are looked at with.
#[derive(Clone, Copy)]
pub(crate) struct With<'a> {
    pub(super) env: &'a Env<'a>,
    pub(super) options: &'a ProofOptions,
    facts: &'a KnownFacts,
}

impl<'a> With<'a> {
    pub(super) fn new(env: &'a Env<'a>, options: &'a ProofOptions, facts: &'a KnownFacts) -> Self {
        Self { env, options, facts }
    }

    pub(super) fn facts(&self, f: &Function) -> Rc<Facts> {
        self.facts.of(f, self.env)
    }
}
