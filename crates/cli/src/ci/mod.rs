//! Figures of programs against those that a pipeline keeps: what `bpf-opt ci` knows of them.
//!
//! A [`baseline`] is a file with the figures of each program; [`judge`] says what became better or worse, and by more than is
//! allowed; [`junit`] and [`sarif`] say it to the pipeline. How the figures are taken is in `many/ci.rs`.

pub mod baseline;
pub mod judge;
pub mod junit;
pub mod sarif;
