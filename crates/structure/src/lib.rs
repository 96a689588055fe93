//! Which source files of a crate import which others, read from the source text.
//!
//! Start with [`Crate::read`], then ask for [`Crate::imports`] and [`circles`]. A test of this crate holds the whole workspace
//! against the rule that no two files of a crate import each other, directly or around a circle.
//!
//! What counts is every path that begins with `crate`, `super`, `self` or the name of a module that is in scope: in `use`
//! items, expressions, types, patterns and macro arguments. Code under `#[cfg(test)]` does not count, nor do `mod` items, nor
//! the re-exports (`pub use`) of files that have modules below them. A path through a re-export leads to the file that it
//! names in the end, save through `pub use a::*`, which counts as the file that says so.

mod graph;
mod modules;
mod paths;

pub use graph::circles;
pub use modules::{Crate, Error, Import};
