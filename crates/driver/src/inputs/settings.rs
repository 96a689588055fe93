//! What the caller asks for.

use std::time::Duration;

/// How inputs are looked for.
#[derive(Clone, Debug)]
pub struct Settings {
    /// These functions only, by name; empty: all programs.
    pub only: Vec<String>,
    /// Take every program for this type instead of what its section name says.
    pub program_type: Option<String>,
    /// For the whole object.
    pub time_limit: Duration,
    /// Of random packets.
    pub seed: u64,
    /// Run them in the kernel, too.
    pub kernel: bool,
}
