//! All tests of this crate, in one binary: linking is the longest part of building tests.

mod circles;
mod documents;
