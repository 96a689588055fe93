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

impl SearchReport {
    /// Adds what another search did; why the first ended that was cut short counts.
    pub(crate) fn add(&mut self, other: &SearchReport) {
        let is_cut = |ended| matches!(ended, Ended::Time | Ended::Interrupted);
        let ended = match self.rounds == 0 || is_cut(other.ended) || other.ended == Ended::Rounds {
            true if !is_cut(self.ended) => other.ended,
            _ => self.ended,
        };
        *self = SearchReport {
            ended,
            rounds: self.rounds + other.rounds,
            windows: self.windows + other.windows,
            improved: self.improved + other.improved,
            settled: self.settled + other.settled,
            by_enumerator: self.by_enumerator + other.by_enumerator,
            by_chain: self.by_chain + other.by_chain,
            by_rule: self.by_rule + other.by_rule,
            rule_hits: self.rule_hits + other.rule_hits,
            rule_misses: self.rule_misses + other.rule_misses,
            proposals: self.proposals + other.proposals,
            steps: self.steps + other.steps,
            judged: self.judged + other.judged,
            remembered: self.remembered + other.remembered,
            seconds: self.seconds + other.seconds,
        };
    }
}
