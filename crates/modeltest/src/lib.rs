//! The tables of helpers and context fields (`bpf-platform`), held against the running kernel.
//!
//! One idea: *observations know nothing of the tables*. A recipe calls a helper in a program that writes down registers,
//! frame, context, packet and maps before and after; [`compare`] then asks the table whether what changed was
//! allowed to, and whether what it calls certain happened. What a recipe cannot reach is counted and named, not passed over.
//!
//! | want | see |
//! |---|---|
//! | how to call a helper | [`recipe`], `recipes/*.txt` |
//! | the program around a call | [`program`] |
//! | the network namespace, sockets and maps around it | [`lab`] |
//! | what a run showed | [`observe`] |
//! | what the table says | [`compare`], the only file that knows it |
//! | one round over all recipes, counted | [`campaign`] |
//! | context fields | [`fields`], [`context`] |

pub mod btf;
pub mod campaign;
pub mod compare;
pub mod context;
pub mod fields;
pub mod kinds;
pub mod lab;
pub mod observe;
pub mod program;
pub mod recipe;
