//! Whether a function may work on an arena, of which nothing is said.

use bpf_facts::{Env, Facts, Liveness, MapInfo};
use bpf_isa::{Call, Insn, RegSet};
use bpf_platform::{Effects, maps};
use bpf_program::{Function, Op};

use crate::beliefs::goes_on_in_the_program;

/// Why nothing is said of what may work on an arena.
pub(crate) const ARENA: &str = "pointers may be to an arena";

/// Whether pointers of `f` may be to an arena: arithmetic on them has 32 bits, and what is accessed may not be there.
/// The program must use an arena map; a pointer then comes from an address-space cast, from that map, a kernel function,
/// a subprogram, a callback, or as an argument (`PTR_TO_ARENA` in kernel/bpf/verifier.c).
pub(crate) fn may_use_arena(f: &Function, env: &Env) -> bool {
    // A loader may make one of a map whose definition leaves its type open.
    let may_be_arena = |m: &MapInfo| m.map_type.is_none_or(|kind| kind == maps::ARENA);
    // By name: the map table may be the other object's.
    let is_arena = |name: &str| env.maps.iter().any(|m| may_be_arena(m) && m.name == name);
    let any_map = env.maps.iter().any(may_be_arena);
    // What looks like a number may have been made of one, and a caller's frame may hold one.
    let handed_in = || {
        let live = Liveness::of(f, env, &Facts::of(f, env)).entry(f.entry()).regs;
        f.is_called() && !live.intersect(RegSet::ARGS).is_empty()
    };
    let brings = |op: &Op| match (&op.insn, op.link.as_ref().map(|l| &l.symbol)) {
        (Insn::AddrSpaceCast { .. }, _) => true,
        (_, Some(bpf_program::Symbol::Map { name, .. })) => is_arena(name),
        // Where LLVM puts variables of that address space.
        (_, Some(bpf_program::Symbol::Data { section, .. })) => section.starts_with(".addr_space"),
        // A helper brings what its callbacks leave in the frame.
        (Insn::Call(Call::Helper(_)), None) => {
            any_map && goes_on_in_the_program(op, Effects::of(&op.insn, op.link.is_some()))
        }
        (Insn::Call(_) | Insn::CallX { .. }, _) => any_map,
        _ => false,
    };
    (any_map && handed_in()) || f.layout.iter().flat_map(|b| &f.block(*b).ops).any(brings)
}
