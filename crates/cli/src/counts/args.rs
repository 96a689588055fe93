//! Where counts come from, on the command line.

use std::path::PathBuf;

use clap::Args;

/// What stands above these options in `--help`.
const HEADING: &str = "Counts, for --goal latency";

/// Where counts come from.
#[derive(Clone, Debug, Default, Args)]
pub struct CountsArgs {
    /// Run the programs on the packets of this pcap or pcapng file, in the interpreter, and count how often each block runs; maps
    /// hold what `--maps FILE.json` says (lists that `bpftool -j map dump` writes, by name), and keep what runs leave there
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    pub pcap: Option<PathBuf>,
    /// Run them on the inputs that `bpf-opt inputs --json` has written to this file, each with its own contents of maps; the run check
    /// takes them, too, under every goal
    #[arg(long, value_name = "FILE.json", help_heading = HEADING, conflicts_with = "pcap")]
    pub inputs_from: Option<PathBuf>,
    /// Take the counts in this file, of `bpf-opt instrument --read` or --write-counts; they are of this object and no other
    #[arg(long, value_name = "FILE.json", help_heading = HEADING, conflicts_with_all = ["pcap", "inputs_from"])]
    pub counts: Option<PathBuf>,
    /// How often each program runs, as `bpf-opt profile --prog-id N --json` has written: the search begins with those that run most
    #[arg(long, value_name = "FILE.json", help_heading = HEADING)]
    pub program_runs: Option<PathBuf>,
    /// Write what was counted to this file
    #[arg(long, value_name = "FILE.json", help_heading = HEADING)]
    pub write_counts: Option<PathBuf>,
}

impl CountsArgs {
    /// Whether anything is counted.
    pub fn any(&self) -> bool {
        self.pcap.is_some() || self.inputs_from.is_some() || self.counts.is_some() || self.program_runs.is_some()
    }

    /// Whether there are inputs and nothing else: they serve the run check, too.
    pub fn only_inputs(&self) -> bool {
        self.inputs_from.is_some() && self.program_runs.is_none() && self.write_counts.is_none()
    }

    /// The files that are read.
    pub fn read(&self) -> impl Iterator<Item = &PathBuf> {
        self.pcap.iter().chain(&self.inputs_from).chain(&self.counts).chain(&self.program_runs)
    }
}
