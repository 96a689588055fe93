//! Both halves of what analysing a function tells: what its registers and stack bytes hold, and which are read.

use bpf_program::Function;

use crate::{Env, Facts, Liveness};

/// Facts and liveness of one function. Only analysing makes one: its parts belong together.
#[derive(Clone, Debug)]
pub struct Analysis {
    facts: Facts,
    live: Liveness,
}

impl Analysis {
    /// Analyses `f` in its surroundings.
    pub fn of(f: &Function, env: &Env<'_>) -> Analysis {
        let facts = Facts::of(f, env);
        let live = Liveness::of(f, env, &facts);
        Analysis { facts, live }
    }

    /// What registers and stack bytes hold.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Which of them may still be read.
    pub fn live(&self) -> &Liveness {
        &self.live
    }
}
