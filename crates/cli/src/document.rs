//! What all JSON reports begin with; docs/json.md describes it.

use serde::Serialize;

use crate::failure::Failure;

/// The fields of every report.
#[derive(Serialize)]
pub struct Head<'a> {
    tool: &'static str,
    version: &'static str,
    command: &'static str,
    exit_status: u8,
    error: Option<&'a str>,
}

impl<'a> Head<'a> {
    /// Of a command that ends with this code, and with this failure if it could not do its work.
    pub fn new(command: &'static str, exit_status: u8, failure: Option<&'a Failure>) -> Head<'a> {
        let error = failure.map(|e| e.message.as_str());
        Head { tool: "bpf-opt", version: env!("CARGO_PKG_VERSION"), command, exit_status, error }
    }
}
