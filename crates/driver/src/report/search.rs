//! What the search did, as plain data.

use serde::Serialize;

/// Why a search came to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ended {
    /// No window is open.
    #[default]
    Done,
    /// There were to be no more rounds ([`crate::Options::rounds`]).
    Rounds,
    /// Too many rounds had brought nothing ([`crate::Options::patience`]).
    Stalled,
    /// The time limit.
    Time,
    /// The user.
    Interrupted,
}

/// What the search did, for the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SearchReport {
    /// Rounds that were begun.
    pub rounds: u64,
    /// Why there were no more.
    pub ended: Ended,
    /// Windows looked at, counted anew when they changed or got more effort.
    pub windows: usize,
    /// Windows improved.
    pub improved: usize,
    /// Windows shown to be as short as the enumerator's instructions allow.
    pub settled: usize,
    /// Windows improved by the enumerator, by a chain, by a remembered rule.
    pub by_enumerator: usize,
    /// See `by_enumerator`.
    pub by_chain: usize,
    /// See `by_enumerator`.
    pub by_rule: usize,
    /// Windows whose answer was remembered, and those whose was not.
    pub rule_hits: usize,
    /// See `rule_hits`.
    pub rule_misses: usize,
    /// Candidates the chains tried.
    pub proposals: u64,
    /// Instructions the enumerator ran.
    pub steps: u64,
    /// Candidates that went to the prover.
    pub judged: u64,
    /// Candidates known to be refused without asking again.
    pub remembered: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
}
