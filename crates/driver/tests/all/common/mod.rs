//! Traps: wrong rewrites that look right, and how they are judged.
//!
//! As in Alive2: next to each wrong rewrite stands, where there is one, a right one that does what the wrong
//! one tried. A wrong one must be refuted by an input on which both versions were run and differed; a right
//! one must be proven. Rewrites that only break the rules for shared memory and the stack have no such input:
//! of those it is enough that they are not proven.
//!
//! The two versions of a body take the place of a function of a host object. Instructions are separated by `;`.
//! `r1 = &name` is the address of a map, a global, a kconfig value or a function, `call name` calls a subprogram,
//! `r1 = core` is the host's first instruction with a CO-RE record, and `r1 = core field` (`type`, `enum`) its
//! first that asks whether such a thing exists.

use std::time::Duration;

use bpf_driver::{FunctionVerdict, Options, verify};
use bpf_isa::{Insn, encode, parse_listing};
use bpf_object::{FuncId, NewInsn, Object, RefKind, WriteOptions};
