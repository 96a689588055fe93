//! What code is optimized for.

use crate::Costs;

/// What to optimize for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Goal {
    /// Fewest instruction slots.
    #[default]
    Size,
    /// Fewest estimated nanoseconds by this table; never trades an access for an atomic.
    Latency(&'static Costs),
    /// Fewest instructions for the kernel's verifier to process.
    Verifier,
}

impl Goal {
    /// Less time by the table that is shipped for this machine's architecture.
    pub fn latency() -> Goal {
        Goal::Latency(Costs::of_host())
    }

    /// Whether fewer slots win over less time.
    pub const fn puts_slots_first(self) -> bool {
        !matches!(self, Goal::Latency(_))
    }

    /// The table that code is weighed by. Where slots come first it only decides between forms that are as long, and is the same on
    /// every machine.
    pub const fn costs(self) -> &'static Costs {
        match self {
            Goal::Latency(costs) => costs,
            Goal::Size | Goal::Verifier => Costs::rough(),
        }
    }

    /// The goal by whose order code is compared: [`Goal::Verifier`] compares as [`Goal::Size`] does, since what the
    /// verifier processes is only known of whole programs.
    #[must_use]
    pub const fn order(self) -> Goal {
        if self.puts_slots_first() { Goal::Size } else { self }
    }
}
