#![doc = include_str!("../README.md")]
//!
//! # Design
//!
//! [`exec`] and [`branch`] are the definition. They speak only of a [`Domain`] (bit-vector operations) and a [`Machine`]
//! (registers, memory, calls). Run over `u64` they are the interpreter ([`interp`]), over abstract values the static
//! facts, over hash-consed terms the prover. The K2 authors report (paper §7) that two definitions drift apart; here
//! there is nothing to drift.
//!
//! What helpers do with their arguments is a table, `bpf_platform::helpers`.

mod domain;
mod exec;
pub mod interp;

pub use domain::Domain;
pub use exec::{Machine, alu, atomic_new, branch, compare, exec};
