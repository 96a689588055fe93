//! The long campaign: everything that could be wrong, tried against something that cannot.
//!
//! A [`Lane`] is one kind of check. Its work is cut into numbered units, and what a unit does follows
//! from the seed and the number alone, so that a campaign can stop, resume and repeat any failure.

pub mod campaign;
pub mod clang;
pub mod concrete;
pub mod corpus;
pub mod exec;
pub mod facts;
pub mod finds;
pub mod generate;
pub mod helpers;
pub mod lanes;
pub mod mutants;
pub mod packets;
pub mod queries;
pub mod report;
pub mod term_identities;
pub mod threads;
pub mod z3;

use std::collections::{BTreeMap, BTreeSet};

/// One kind of check.
pub trait Lane {
    /// Its name on the command line and in the state file: lower case, no spaces.
    fn name(&self) -> &'static str;

    /// Does unit `index` of the campaign with this seed; counts what it did and tells what disagreed.
    /// A unit takes about a second at most.
    fn unit(&mut self, seed: u64, index: u64, tally: &mut Tally);
}

/// What a lane has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Tally {
    /// Counters by name, for instance `instructions`, `packets`, `queries`.
    pub counts: BTreeMap<String, u64>,
    /// Sets of names by what they are, for instance the helpers that were called.
    #[serde(default)]
    pub names: BTreeMap<String, BTreeSet<String>>,
    /// What did not agree and is not explained.
    pub disagreements: Vec<Disagreement>,
}

impl Tally {
    /// Adds `n` to a counter.
    pub fn count(&mut self, what: &str, n: u64) {
        *self.counts.entry(what.to_string()).or_default() += n;
    }

    /// Puts a name into a set.
    pub fn note(&mut self, what: &str, name: &str) {
        self.names.entry(what.to_string()).or_default().insert(name.to_string());
    }

    /// Reports a disagreement.
    pub fn disagree(&mut self, seed: u64, index: u64, what: impl Into<String>) {
        self.disagreements.push(Disagreement { seed, index, what: what.into() });
    }

    /// Adds another tally.
    pub fn add(&mut self, other: Tally) {
        for (k, n) in other.counts {
            *self.counts.entry(k).or_default() += n;
        }
        for (what, names) in other.names {
            self.names.entry(what).or_default().extend(names);
        }
        self.disagreements.extend(other.disagreements);
    }
}

/// Two judges that do not say the same.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Disagreement {
    /// Seed of the campaign.
    pub seed: u64,
    /// Unit.
    pub index: u64,
    /// What it is, with everything needed to see it again.
    pub what: String,
}
