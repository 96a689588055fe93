//! The arguments of `instrument`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

/// Of `instrument`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("counters").args(["map_id", "pinned", "dump"]).requires("read"))]
pub struct InstrumentArgs {
    /// The object, not a copy that counts
    #[arg(value_name = "FILE.o")]
    pub file: PathBuf,
    /// Where to write the copy that counts, or with --read the counts (`-`: standard output)
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// Read what a copy has counted, and write a file for `opt --counts`
    #[arg(long, requires = "counters")]
    pub read: bool,
    /// With --read: from the map with this number (`bpftool map`), whose name is `.data.counts`
    #[arg(long, value_name = "N")]
    pub map_id: Option<u32>,
    /// With --read: from the map that is pinned there
    #[arg(long, value_name = "PATH")]
    pub pinned: Option<PathBuf>,
    /// With --read: from what `bpftool -j map dump` has written (`-`: standard input)
    #[arg(long, value_name = "FILE.json")]
    pub dump: Option<PathBuf>,
    /// Do not ask this kernel whether it takes the copy
    #[arg(long, conflicts_with = "read")]
    pub no_kernel: bool,
    /// Program type for the kernel, where the section name does not tell (`xdp`, `classifier`, `socket` …)
    #[arg(long = "type", value_name = "PROGTYPE", conflicts_with = "read")]
    pub program_type: Option<String>,
}
