//! Executing one side of a proof over terms: its state, what its variables mean, its history.

pub(crate) mod access;
pub(crate) mod acyclic;
pub mod context;
pub(crate) mod entry;
pub(crate) mod history;
pub(crate) mod state;
pub(crate) mod straight;
pub(crate) mod symex;
pub mod variables;
