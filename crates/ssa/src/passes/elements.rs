//! The first element of an array is always there: the code for where it is not goes. The test for it stays, because kernels
//! before 6.14 take no access without one; it leads to where the function ends anyway.
//!
//! ```text
//! before: r0 = call map_lookup_elem        after: r0 = call map_lookup_elem
//!         if r0 == 0 goto none                    if r0 == 0 goto out
//!         ...                                     ...
//!         goto out                          out:  r0 = 0
//!  none:  call map_update_elem                    exit
//!  out:   r0 = 0
//!         exit
//! ```
//! A verifier that does not know it walks that way, too. So it may need nothing of what came before, and leads to the end that
//! it came to anyway, whichever of its ways it took.
//!
//! Or it leads to a bare `exit`, with the null as the result, where an end that one question alone still leads to becomes that
//! `exit`, too:
//!
//! ```text
//! before:     if r3 > r2 goto none                after:     r0 = 1
//!             r0 = call map_lookup_elem                      if r3 > r2 goto out
//!             if r0 == 0 goto none                           r0 = call map_lookup_elem
//!             ...                                            if r0 == 0 goto out
//!             exit                                           ...
//!       none: r0 = 1                                    out: exit
//!             exit
//! ```
//! That is done in programs of which the verifier takes 0 as a result. A function that may hold something which it has to give back first keeps
//! its code; so does a subprogram, of which the caller's frame may hold what was stored there.

use bpf_facts::{BaseId, Env, Facts, Kind, Liveness, map_and_key};
use bpf_isa::{Cond, Insn, Reg, RegSet, Src, Width};
use bpf_platform::helpers::{Arg, Ret};
use bpf_platform::{Effects, maps};
use bpf_program::{Block, BlockId, Function, Op, ProgKind, Terminator, drop_unreachable};

use super::pass::Pass;
use crate::Ssa;

/// The pass.
pub struct Elements;

/// Ends that are tried, at most.
const ENDS: usize = 4;
/// Blocks on the way to an end, at most.
const WAY: usize = 3;

impl Pass for Elements {
    fn name(&self) -> &'static str {
        "ssa-elements"
    }

    fn run(&self, _: &mut Ssa, _: &Env<'_>) -> bool {
        false
    }

    fn is_of_graphs(&self) -> bool {
        true
    }

    /// One graph for each end that the code may have instead.
    fn graphs(&self, f: &Function, env: &Env<'_>) -> Vec<Function> {
        let all = || f.layout.iter().flat_map(|b| &f.block(*b).ops);
        let is_called = f.kind == ProgKind::Subprogram;
        if is_called || !all().any(looks_up) || all().any(may_take_hold) {
            return vec![];
        }
        let facts = Facts::of(f, env);
        let impossible: Vec<(BlockId, BlockId)> =
            f.layout.iter().filter_map(|b| Some((*b, without_element(f, *b, &facts, env)?))).collect();
        if impossible.is_empty() {
            return vec![];
        }
        let live = Liveness::of(f, env, &facts);
        let mut ends: Vec<(Vec<Op>, BlockId)> = vec![];
        for &b in &f.layout {
            let needs_nothing = live.entry(b).regs.without(Reg::R10) == RegSet::EMPTY;
            if let Some(way) = way_out(f, b).filter(|_| needs_nothing)
                && ends.len() < ENDS
                && ends.iter().all(|(known, _)| *known != way)
            {
                ends.push((way, b));
            }
        }
        let to = |end: BlockId| {
            let mut g = f.clone();
            for (b, none) in impossible.iter().filter(|(_, none)| all_lead_to(f, *none, end)) {
                redirect(&mut g, *b, *none, end);
            }
            drop_unreachable(&mut g);
            g
        };
        let mut all: Vec<Function> =
            ends.iter().map(|(_, end)| to(*end)).filter(|g| g.layout.len() < f.layout.len()).collect();
        all.extend(bare_exit(f, &impossible, &facts, env));
        all
    }
}

/// The graph in which the ways on which there is no element lead to a bare `exit`, if another end comes to it, too.
fn bare_exit(f: &Function, impossible: &[(BlockId, BlockId)], facts: &Facts, env: &Env<'_>) -> Option<Function> {
    if !matches!(f.kind, ProgKind::Xdp | ProgKind::Skb | ProgKind::Tracing) {
        return None;
    }
    let mut g = f.clone();
    let exit = BlockId(g.blocks.len() as u32);
    g.blocks.push(Block { ops: vec![], term: Terminator::Exit { origin: None } });
    for (b, none) in impossible {
        // The result is the null itself.
        let Terminator::Branch { dst, .. } = f.block(*b).term else { continue };
        let states = facts.states(f, *b);
        let (tested, result) = states.last().map(|s| (&s.reg(dst).kind, &s.reg(Reg::R0).kind))?;
        if tested == result {
            redirect(&mut g, *b, *none, exit);
        }
    }
    for b in f.layout.clone() {
        if matches!(g.block(b).term, Terminator::Exit { .. }) {
            g.block_mut(b).term = Terminator::Goto(exit);
        }
    }
    g.layout.push(exit);
    drop_unreachable(&mut g);
    let facts = Facts::of(&g, env);
    let live = Liveness::of(&g, env, &facts);
    let mut any = false;
    for end in g.layout.clone() {
        let Some(way) = way_out(&g, end).filter(|way| !way.is_empty()) else { continue };
        let leading: Vec<BlockId> =
            g.layout.iter().copied().filter(|b| g.block(*b).term.successors().any(|t| t == end)).collect();
        let [from] = leading[..] else { continue };
        let Terminator::Branch { dst, src, taken, fall, .. } = g.block(from).term else { continue };
        let other = if taken == end { fall } else { taken };
        let is_free = dst != Reg::R0 && src.reg() != Some(Reg::R0) && !live.entry(other).regs.contains(Reg::R0);
        if taken != fall && is_free {
            g.block_mut(from).ops.extend(way);
            redirect(&mut g, from, end, exit);
            any = true;
        }
    }
    drop_unreachable(&mut g);
    any.then_some(g)
}

/// Lets a branch that leads to one block lead to another.
fn redirect(f: &mut Function, from: BlockId, old: BlockId, new: BlockId) {
    f.block_mut(from).term.map_successors(|to| if to == old { new } else { to });
}

/// Whether it is the plain lookup.
pub(super) fn looks_up(op: &Op) -> bool {
    matches!(op.insn, Insn::Call(_)) && Effects::of(&op.insn, op.link.is_some()).is_lookup_by_key()
}

/// Whether the function may hold something after this call that it has to give back: memory, an object, a lock. Of calls
/// without a row nobody knows.
fn may_take_hold(op: &Op) -> bool {
    if !matches!(op.insn, Insn::Call(_) | Insn::CallX { .. }) {
        return false;
    }
    let row = Effects::of(&op.insn, op.link.is_some());
    let gives = matches!(row.result, Ret::MemOrNull | Ret::SockOrNull | Ret::Ptr | Ret::Slice | Ret::Unknown);
    row.touches_everything || gives || row.arguments.iter().any(|a| a.class == Arg::Opaque)
}

/// Where a block leads to if the first element of an array, which it looks up, is not there; if it asks.
pub(super) fn without_element(f: &Function, b: BlockId, facts: &Facts, env: &Env<'_>) -> Option<BlockId> {
    let Terminator::Branch { cond, width: Width::W64, dst, src: Src::Imm(0), taken, fall, .. } = f.block(b).term else {
        return None;
    };
    let none = match cond {
        Cond::Eq => taken,
        Cond::Ne => fall,
        _ => return None,
    };
    let states = facts.states(f, b);
    let Kind::Pointer { base: BaseId::Site(at, i), nullable: true, .. } = states.last()?.reg(dst).kind else {
        return None;
    };
    let i = i as usize;
    let (op, state) = (f.block(b).ops.get(i).filter(|op| at == b && looks_up(op))?, states.get(i)?);
    let (map, key) = map_and_key(op, state, env);
    let is_array = map.is_some_and(|m| m.map_type.is_some_and(maps::is_array));
    (is_array && key == Some(0) && taken != fall).then_some(none)
}

/// Whether whoever comes from a block to the end of the function comes through `end`.
fn all_lead_to(f: &Function, from: BlockId, end: BlockId) -> bool {
    let (mut open, mut seen) = (vec![from], vec![]);
    while let Some(b) = open.pop() {
        if b == end || seen.contains(&b) {
            continue;
        }
        let term = &f.block(b).term;
        if matches!(term, Terminator::Exit { .. }) {
            return false;
        }
        seen.push(b);
        open.extend(term.successors());
    }
    true
}

/// The operations from a block to the end of the function, if they do nothing but set the result to a number.
fn way_out(f: &Function, mut b: BlockId) -> Option<Vec<Op>> {
    let mut ops = vec![];
    for _ in 0..WAY {
        ops.extend(f.block(b).ops.iter().map(|op| Op { origin: None, ..op.clone() }));
        match f.block(b).term {
            Terminator::Goto(to) => b = to,
            Terminator::Exit { .. } => {
                let sets = |op: &Op| matches!(op.insn, Insn::Mov { dst: Reg::R0, src: Src::Imm(_), .. });
                return ops.iter().all(|op| sets(op) && op.link.is_none()).then_some(ops);
            }
            _ => return None,
        }
    }
    None
}
