//! Comparing two sides: windows and stretches, from a relation at their start to one at their end.

pub(crate) mod attempt;
pub(crate) mod exits;
pub(crate) mod judge;
pub(crate) mod refinement;
pub(crate) mod relation;
pub(crate) mod stretch;
pub(crate) mod verdict;
pub(crate) mod window;
