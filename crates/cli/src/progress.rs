//! What the user sees while `opt` works, and how the user stops it.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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

/// How many programs of an object are done, on a terminal.
pub struct Programs(ProgressBar);

impl Programs {
    /// A bar, unless standard error is no terminal.
    pub fn bar() -> Programs {
        let bar = if std::io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed:>4} [{bar:24}] {pos}/{len} programs") {
            bar.set_style(style);
        }
        Programs(bar)
    }

    /// None.
    pub fn hidden() -> Programs {
        Programs(ProgressBar::hidden())
    }

    /// So many of so many.
    pub fn tell(&self, done: usize, of: usize) {
        self.0.set_length(of as u64);
        self.0.set_position(done as u64);
    }

    /// Takes it away.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// How many of many objects are done, on a terminal.
pub struct Objects {
    bar: ProgressBar,
    told: AtomicBool,
}

impl Objects {
    /// A bar for so many, unless standard error is no terminal or `quiet`.
    pub fn new(count: usize, quiet: bool) -> Objects {
        let hidden = quiet || !std::io::stderr().is_terminal();
        let bar = if hidden { ProgressBar::hidden() } else { ProgressBar::new(count as u64) };
        if let Ok(style) =
            ProgressStyle::with_template("{spinner} {elapsed:>4} [{bar:24}] {pos}/{len} objects, {eta} left{wide_msg}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        Objects { bar, told: AtomicBool::new(quiet) }
    }

    /// One more.
    pub fn done(&self) {
        self.bar.inc(1);
    }

    /// Prints a line above it.
    pub fn complain(&self, line: &str) {
        self.bar.suspend(|| crate::files::complain(line));
    }

    /// Says once that the wish to stop was heard.
    pub fn interrupted(&self) {
        if !self.told.swap(true, Ordering::Relaxed) {
            self.complain("interrupted: no more objects are begun");
        }
    }

    /// Takes it away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// How often is looked whether the user wants to stop, beside the work.
const LOOK: Duration = Duration::from_millis(20);

/// Shows progress on a terminal and passes on the wish to stop.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    interrupt: Interrupt,
    /// Functions begun, each once. They do not come in their order, and some come again.
    begun: Mutex<BTreeSet<usize>>,
    /// Slots that are known to be saved.
    saved: AtomicUsize,
    /// There is nothing to be told about the wish to stop (any more).
    told: Arc<AtomicBool>,
}

impl Progress {
    /// A bar, unless standard error is no terminal or `quiet`. That a wish to stop was heard is said at once, whatever
    /// the work is busy with.
    pub fn new(interrupt: Interrupt, quiet: bool) -> Progress {
        let bar = if quiet || !std::io::stderr().is_terminal() { ProgressBar::hidden() } else { ProgressBar::new(0) };
        if let Ok(style) =
            ProgressStyle::with_template("{spinner} {elapsed:>4} [{bar:24}] {pos}/{len} {prefix}{wide_msg}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        let told = Arc::new(AtomicBool::new(quiet));
        if !quiet {
            let (bar, interrupt, told) = (bar.clone(), interrupt.clone(), Arc::clone(&told));
            std::thread::spawn(move || {
                while !told.load(Ordering::Relaxed) {
                    if interrupt.requested() {
                        tell(&bar, &told);
                    }
                    std::thread::sleep(LOOK);
                }
            });
        }
        Progress { bar, interrupt, begun: Mutex::default(), saved: AtomicUsize::new(0), told }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.told.store(true, Ordering::Relaxed);
        self.bar.finish_and_clear();
    }

    /// Notes that a function is begun; how many are.
    fn begin(&self, index: usize) -> usize {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.insert(index);
        begun.len()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Says once that the wish to stop was heard.
fn tell(bar: &ProgressBar, told: &AtomicBool) {
    if !told.swap(true, Ordering::Relaxed) {
        bar.suspend(|| crate::files::complain("interrupted: writing what there is"));
    }
}

impl Observer for Progress {
    fn function(&self, index: usize, count: usize, name: &str, slots: usize) {
        self.bar.set_length(count as u64);
        // Threads may come here in another order than they were counted.
        let begun = self.begin(index) as u64;
        self.bar.update(|bar| bar.set_pos(bar.pos().max(begun)));
        self.bar.set_message(format!("{name} ({slots} slots)"));
    }

    fn saved(&self, slots: usize) {
        // What one function has saved is no more than all have.
        let saved = self.saved.fetch_max(slots, Ordering::Relaxed).max(slots);
        self.bar.set_prefix(format!("-{saved} slots  "));
    }

    fn searching(&self, open: usize, rate: f64) {
        self.bar.set_message(format!("searching: {open} windows open, {:.0} thousand proposals a second", rate / 1e3));
    }

    fn phase(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    fn stop(&self) -> bool {
        let stop = self.interrupt.requested();
        if stop {
            tell(&self.bar, &self.told);
        }
        stop
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_never_runs_backwards() {
        let progress = Progress::new(Interrupt::default(), true);
        let mut last = 0;
        // Out of order, and some of them again with what is left of the time.
        for index in [2, 0, 1, 0, 3, 2] {
            progress.function(index, 4, "f", 10);
            let position = progress.bar.position();
            assert!((last..=4).contains(&position), "{position} after {last}");
            last = position;
        }
        assert_eq!(last, 4);
    }

    #[test]
    fn saved_slots_never_become_fewer() {
        let progress = Progress::new(Interrupt::default(), true);
        for (slots, shown) in [(6, "-6 slots  "), (0, "-6 slots  "), (43, "-43 slots  ")] {
            progress.saved(slots);
            assert_eq!(progress.bar.prefix(), shown);
        }
    }
}
