//! Filters held against libpcap, and run in the kernel.

mod chains;
mod classic;
mod common;
mod errors;
mod fuzz;
mod goals;
mod interface;
mod jit;
mod kernel;
mod lengths;
mod linked;
mod lists;
mod mixed;
mod modern;
mod names;
mod passes;
mod profile;
mod reach;
mod report;
mod shown;
mod unset;
mod updatable;
mod verdicts;
