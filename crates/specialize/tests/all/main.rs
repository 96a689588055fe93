//! Specialized objects beside their originals.

mod constants;
mod frozen;
mod support;
