//! What a comparison has to say.

use std::fmt;

use crate::elf::Section;

/// Something to say about two objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The section, symbol, map, variable or function.
    pub place: String,
    /// What is different there, unknown, or ignored.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// What loaders, the kernel or user space see.
    pub differences: Vec<Finding>,
    /// What could not be understood, and is not the same as it stands.
    pub unknowns: Vec<Finding>,
    /// What differs without effect.
    pub notes: Vec<Finding>,
}

impl Findings {
    /// Adds: What somebody sees.
    pub(super) fn different(&mut self, place: String, what: String) {
        self.differences.push(Finding { place, what });
    }

    /// Adds: What is not understood.
    pub(super) fn unknown(&mut self, place: String, what: String) {
        self.unknowns.push(Finding { place, what });
    }

    /// Adds: What nobody sees.
    pub(super) fn note(&mut self, place: String, what: String) {
        self.notes.push(Finding { place, what });
    }
}

/// A section as a place.
pub(super) fn in_section(s: &Section) -> String {
    format!("section {}", s.identity)
}
