//! What code is optimized for.

/// What to optimize for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Goal {
    /// Fewest instruction slots.
    #[default]
    Size,
    /// Fewest estimated nanoseconds; never trades an access for an atomic.
    Latency,
    /// Fewest instructions for the kernel's verifier to process.
    Verifier,
}

impl Goal {
    /// Whether fewer slots win over less time.
    pub const fn puts_slots_first(self) -> bool {
        !matches!(self, Goal::Latency)
    }

    /// The goal by whose order code is compared: [`Goal::Verifier`] compares as [`Goal::Size`] does, since what the
    /// verifier processes is only known of whole programs.
    #[must_use]
    pub const fn order(self) -> Goal {
        if self.puts_slots_first() { Goal::Size } else { Goal::Latency }
    }
}
