//! The SSA form of one function: what global optimizations work on.
//!
//! [`lift`] makes it from a function's graph, [`lower`] turns it back; between the two, passes change it ([`passes`]).
//! Nothing here is trusted: what comes out is a proposal like any other, and goes nowhere unless the prover has shown
//! the whole function equal. So a mistake here costs gain or time.
//!
//! ```
//! use bpf_facts::Env;
//! # use bpf_isa::{Insn, Reg, Src, Width};
//! # let code = [
//! #     (0, Insn::Mov { width: Width::W64, dst: Reg::R0, src: Src::Imm(7) }),
//! #     (1, Insn::Exit),
//! # ];
//! # let kind = bpf_program::ProgKind::Subprogram;
//! let function = bpf_program::build_from_insns("f", kind, &code, Default::default()).expect("a function");
//! let ssa = bpf_ssa::lift(&function, &Env::empty(), true).expect("nothing special in it");
//! bpf_ssa::verify(&ssa).expect("a function in SSA form");
//! let again = bpf_ssa::lower(&ssa, &function).expect("registers suffice");
//! assert_eq!(bpf_program::slot_count(&again), 2);
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `ir` | values, operands, instructions, blocks |
//! | `print` | the text form |
//! | `verify` | the rules of the form |
//! | `graph` | dominators, edges, loops |
//! | `lift`, `slots` | from a graph of blocks; which spill slots become values |
//! | `select` | instructions over virtual registers |
//! | `allocate`, `splitting` | registers: by joining and colouring; by the crate `regalloc2` |
//! | `emit`, `lower` | the graph of blocks again |
//! | `passes` | global optimizations |
//! | `candidate` | all of it in a row |

mod allocate;
mod candidate;
mod emit;
mod graph;
mod ir;
mod lift;
mod lower;
pub mod passes;
mod print;
mod select;
mod slots;
mod splitting;
mod verify;

pub use candidate::{Candidate, Judge, NoCandidate, Step, candidate, detours_of, finish, improve};
pub use graph::Graph;
pub use ir::{Block, BlockData, Edge, Inst, Op, Operand, Ssa, Term, Value, ValueData};
pub use lift::{Refusal, Roles, lift, roles};
pub use lower::{in_place, lower, with_moves};
pub use passes::all_passes;
pub use verify::verify;
