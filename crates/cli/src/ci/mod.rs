//! Figures of programs against those that a pipeline keeps: what `bpf-opt ci` knows of them.
//!
//! [`measure`] takes the figures of an object. A [`baseline`] is a file with those of each program; [`judge`] says what became
//! better or worse, and by more than is allowed; [`junit`] and [`sarif`] say it to the pipeline.

pub mod baseline;
pub mod judge;
pub mod junit;
pub mod measure;
pub mod sarif;
