//! Comparison of two whole functions: by bisimulation first, then as one formula.

use bpf_facts::{Env, Facts, Liveness};
use bpf_isa::{Call, Insn, Reg, RegSet};
use bpf_platform::Effects;
use bpf_program::{Function, Op};

use crate::beliefs::goes_on_in_the_program;
use crate::compare::verdict::Verdict;
use crate::function::same::{same_graph, same_text};
use crate::function::whole::{fits_one_formula, has_loop, whole};
use crate::options::{Options, Stats};
use crate::presence::{presence_differs, spills_around_a_fast_call};
use crate::symbolic::symex::has_meaning;

/// Compares two whole functions: first block against block, which copes with any size and with loops;
/// then, without loops, both as one formula each, which copes with changes across blocks.
pub fn functions(old: &Function, new: &Function, env: &Env, options: &Options) -> (Verdict, Stats) {
    let same = is_same(old, new);
    if !same && deepest_frame_use(new, env) < deepest_frame_use(old, env) {
        return (Verdict::Unknown("more stack than before".into()), Stats::default());
    }
    match functions_that_run(old, new, env, options) {
        (Verdict::Equal, stats) if !same => match presence_differs(old, new, env) {
            Some(why) => (Verdict::Unknown(why.into()), stats),
            None => (Verdict::Equal, stats),
        },
        other => other,
    }
}

/// The same, of functions that are verified already: what counts by being there, for the verifier alone, does not count.
pub fn functions_that_run(old: &Function, new: &Function, env: &Env, options: &Options) -> (Verdict, Stats) {
    if is_same(old, new) {
        return (Verdict::Equal, Stats { trivial: 1, ..Stats::default() });
    }
    // A jump inside a block would be taken for one between the blocks of a path.
    let all = |f: &Function| f.layout.iter().flat_map(|b| &f.block(*b).ops).all(has_meaning);
    if !all(old) || !all(new) {
        return (Verdict::Unknown("a jump, or what nobody knows, inside a block".into()), Stats::default());
    }
    if may_use_arena(old, env) || may_use_arena(new, env) {
        return (Verdict::Unknown(ARENA.into()), Stats::default());
    }
    functions_in(old, new, env, options)
}

fn is_same(old: &Function, new: &Function) -> bool {
    let spills = || spills_around_a_fast_call(old) || spills_around_a_fast_call(new);
    same_graph(old, new) && (!spills() || same_text(old, new))
}

fn functions_in(old: &Function, new: &Function, env: &Env, options: &Options) -> (Verdict, Stats) {
    let (reason, mut stats) = match crate::function::bisimulation::prove(old, new, env, options) {
        Ok(stats) => return (Verdict::Equal, stats),
        Err(e) => e,
    };
    if has_loop(old) || has_loop(new) {
        return (Verdict::Unknown(format!("{reason}, and there is a loop")), stats);
    }
    if !fits_one_formula(old) {
        return (Verdict::Unknown(format!("{reason}, and the function is too large for one formula")), stats);
    }
    let (verdict, more) = whole(old, new, env, options);
    stats.add(more);
    (verdict, stats)
}

/// Why nothing is said of what may work on an arena.
pub(crate) const ARENA: &str = "pointers may be to an arena";

/// Whether pointers of `f` may be to an arena: arithmetic on them has 32 bits, and what is accessed may not be there.
/// The program must use an arena map; a pointer then comes from an address-space cast, from that map, a kernel function,
/// a subprogram, a callback, or as an argument (`PTR_TO_ARENA` in kernel/bpf/verifier.c).
pub(crate) fn may_use_arena(f: &Function, env: &Env) -> bool {
    let arena = Some(bpf_platform::maps::ARENA);
    // By name: the map table may be the other object's.
    let is_arena = |name: &str| env.maps.iter().any(|m| m.map_type == arena && m.name == name);
    let any_map = env.maps.iter().any(|m| m.map_type == arena);
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

/// The lowest frame offset that the function may access itself, hand to a callee, or make the address of.
fn deepest_frame_use(f: &Function, env: &Env) -> i64 {
    // The kernel counts code that no execution reaches.
    let facts = Facts::of_every_way(f, env);
    let mut low = 0;
    for &b in &f.layout {
        // The last state is the one behind the block's last operation.
        let operands = f.block(b).ops.iter().map(|op| op.insn.memory_operand().map(|m| (m.base, m.off)));
        for (operand, s) in operands.chain([None]).zip(facts.states(f, b)) {
            // Addresses that are made count, too: where paths meet, it may not show where an access goes.
            let places = Reg::all().filter(|r| *r != Reg::R10).map(|r| (r, 0)).chain(operand);
            for (r, off) in places {
                let v = s.reg(r);
                if v.is_stack() {
                    low = low.min(v.num.smin.saturating_add(i64::from(off)));
                }
            }
        }
    }
    low.max(-bpf_facts::FRAME)
}
