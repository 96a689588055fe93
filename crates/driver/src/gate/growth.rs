//! By how much more work a result may be for the kernel's verifier.

use crate::options::Options;

/// By how much the verifier's work on a program may grow: by the larger of the two.
#[derive(Clone, Copy)]
pub(super) struct Growth {
    /// So many percent.
    pub(super) percent: f64,
    /// So many instructions.
    pub(super) always: u64,
}

impl Growth {
    /// Not at all: where that work is the goal.
    pub(super) const NONE: Growth = Growth { percent: 0.0, always: 0 };

    /// What the user allows.
    pub(super) fn of(options: &Options) -> Growth {
        Growth { percent: options.max_verifier_growth, always: options.free_verifier_growth }
    }

    /// Whether it has grown by more.
    pub(super) fn is_exceeded(self, before: u64, after: u64) -> bool {
        let more = after.saturating_sub(before);
        more > self.always && more as f64 > before as f64 * self.percent / 100.0
    }
}

impl Default for Growth {
    fn default() -> Growth {
        Growth::of(&Options::default())
    }
}
