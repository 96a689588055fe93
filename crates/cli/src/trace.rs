//! Traces of the libraries, for developers: where a proof gets stuck, which terms differ. They go to stderr.
//!
//! `BPF_OPT_TRACE=1` shows all of them, `BPF_OPT_LOG=bpf_prove::function::bisimulation=trace,...` those of some modules. Without either
//! nothing is installed, and tracing costs one comparison where it would speak.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::files;

/// Shows the traces that the environment asks for.
pub fn install() {
    let Some(targets) = wanted() else { return };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false).without_time();
    tracing_subscriber::registry().with(lines).with(targets).init();
}

fn wanted() -> Option<Targets> {
    /// The prefix of this project's crates.
    const OURS: &str = "bpf";
    if std::env::var_os("BPF_OPT_TRACE").is_some() {
        return Some(Targets::new().with_target(OURS, LevelFilter::TRACE));
    }
    let text = std::env::var("BPF_OPT_LOG").ok()?;
    text.parse().map_err(|e| files::complain(format!("BPF_OPT_LOG is ignored: {e}"))).ok()
}
