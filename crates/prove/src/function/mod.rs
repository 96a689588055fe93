//! Comparing whole functions: by bisimulation, and as one formula.

pub(crate) mod available;
pub(crate) mod bisimulation;
mod chain;
pub(crate) mod expression;
pub(crate) mod functions;
mod pruned;
pub(crate) mod same;
mod sums;
pub(crate) mod whole;
