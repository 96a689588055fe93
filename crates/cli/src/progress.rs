//! What the user sees while `opt` works, and how the user stops it.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bpf_driver::Observer;
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::exit;

/// Set by the first Ctrl-C or SIGTERM; the second ends the process.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Starts to listen. Without success the signals keep their usual effect.
    pub fn listen() -> Interrupt {
        let interrupt = Interrupt::default();
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag clear, the second finds it set.
            let _ = flag::register_conditional_shutdown(signal, exit::INTERRUPTED.into(), Arc::clone(&interrupt.0));
            let _ = flag::register(signal, Arc::clone(&interrupt.0));
        }
        interrupt
    }

    /// Whether the user asked to stop.
    pub fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Shows progress on a terminal and passes on the wish to stop.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    interrupt: Interrupt,
    quiet: bool,
    /// Functions begun. They do not come in their order.
    begun: AtomicU64,
    /// The user was told that the wish to stop was heard.
    told: AtomicBool,
}

impl Progress {
    /// A bar, unless standard error is no terminal or `quiet`.
    pub fn new(interrupt: Interrupt, quiet: bool) -> Progress {
        let bar = if quiet || !std::io::stderr().is_terminal() { ProgressBar::hidden() } else { ProgressBar::new(0) };
        if let Ok(style) =
            ProgressStyle::with_template("{spinner} {elapsed:>4} [{bar:24}] {pos}/{len} {prefix}{wide_msg}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        Progress { bar, interrupt, quiet, begun: AtomicU64::new(0), told: AtomicBool::new(false) }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Progress {
    fn function(&self, _index: usize, count: usize, name: &str, slots: usize) {
        self.bar.set_length(count as u64);
        self.bar.set_position(self.begun.fetch_add(1, Ordering::Relaxed));
        self.bar.set_message(format!("{name} ({slots} slots)"));
    }

    fn saved(&self, slots: usize) {
        self.bar.set_prefix(format!("-{slots} slots  "));
    }

    fn searching(&self, open: usize, rate: f64) {
        self.bar.set_message(format!("searching: {open} windows open, {:.0} thousand proposals a second", rate / 1e3));
    }

    fn phase(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    fn stop(&self) -> bool {
        let stop = self.interrupt.requested();
        if stop && !self.quiet && !self.told.swap(true, Ordering::Relaxed) {
            self.bar.suspend(|| crate::files::complain("interrupted: writing what there is"));
        }
        stop
    }
}
