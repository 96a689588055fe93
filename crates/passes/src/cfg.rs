//! The shape of the graph: jumps that lead to jumps, blocks nobody needs, identical ends.
//!
//! Nothing here touches an instruction's meaning, so it needs no solver: an edge to an empty block is
//! an edge to where that block goes; two blocks with the same operations and the same successors are
//! one; a block whose only predecessor only leads to it belongs to it. The layout is then chosen so
//! that as many edges as possible fall through.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use bpf_isa::{AluOp, Cond, Insn, Src};
use bpf_program::{BlockId, Function, Terminator, drop_unreachable, predecessors, slot_count};

/// Name under which users select it.
pub const NAME: &str = "jumps";

/// Simplifies the graph; whether anything changed. Never adds a slot. Blocks that do the same become one if `share`.
pub fn simplify(f: &mut Function, share: bool) -> bool {
    let before = f.clone();
    let slots = slot_count(f);
    let mut changed = false;
    loop {
        let step = thread(f) | ask_for_bits(f) | drop_unreachable(f) | merge_chains(f) | (share && share_identical(f));
        if !step {
            break;
        }
        changed = true;
    }
    changed |= lay_out(f);
    if slot_count(f) > slots {
        *f = before;
        return false;
    }
    changed
}

/// Where control really goes from an edge to `b`.
fn destination(f: &Function, b: BlockId) -> BlockId {
    let mut at = b;
    for _ in 0..f.blocks.len() {
        match f.block(at) {
            blk if !blk.ops.is_empty() => return at,
            blk => match blk.term {
                Terminator::Goto(t) if t != at => at = t,
                _ => return at,
            },
        }
    }
    // A cycle of empty blocks: an endless loop, left as it is.
    b
}

/// `goto` to a `goto`; a branch whose sides lead to one place.
fn thread(f: &mut Function) -> bool {
    let mut changed = false;
    for i in 0..f.layout.len() {
        let b = f.layout[i];
        let mut term = f.block(b).term.clone();
        term.map_successors(|s| destination(f, s));
        if let Terminator::Branch { taken, fall, .. } = term
            && taken == fall
        {
            term = Terminator::Goto(taken);
        }
        if term != f.block(b).term {
            f.block_mut(b).term = term;
            changed = true;
        }
    }
    changed
}

/// `if w1 == 0` behind a mask of `w1` is asked the other way round, so that a jump on bits can take the place of both:
/// where the side without bits can come next, or a copy made for the mask goes as well. What comes next is not changed yet.
fn ask_for_bits(f: &mut Function) -> bool {
    let mut changed = false;
    for b in f.layout.clone() {
        let Terminator::Branch { cond: Cond::Eq, dst, src: Src::Imm(0), taken: clear, .. } = f.block(b).term else {
            continue;
        };
        let mut sets = f.block(b).ops.iter().rev().filter(|o| o.insn.defs().contains(dst)).map(|o| o.insn);
        let is_masked = matches!(sets.next(), Some(Insn::Alu { op: AluOp::And, .. }));
        let is_copy = matches!(sets.next(), Some(Insn::Mov { src: Src::Reg(_), .. }));
        if is_masked
            && (is_copy || may_come_next(f, b, clear))
            && let Terminator::Branch { cond, taken, fall, .. } = &mut f.block_mut(b).term
        {
            *cond = Cond::Ne;
            std::mem::swap(taken, fall);
            changed = true;
        }
    }
    changed
}

/// Whether block `to` can stand behind block `b` in memory although something else does now: it stands further down, and
/// nothing in between or after it leads to it.
pub(crate) fn may_come_next(f: &Function, b: BlockId, to: BlockId) -> bool {
    let below = f.layout.iter().skip_while(|x| **x != b).skip(1);
    below.clone().any(|x| *x == to) && !below.clone().any(|x| f.block(*x).term.successors().any(|s| s == to))
}

/// A block that is the only way into its only successor takes it in. Whether one did.
pub fn merge_chains(f: &mut Function) -> bool {
    let mut changed = false;
    let mut preds = predecessors(f);
    let entry = f.entry();
    let mut is_there = flags(f, &f.layout);
    for i in 0..f.blocks.len() {
        let b = BlockId(i as u32);
        if !is_there[i] {
            continue;
        }
        while let Terminator::Goto(t) = f.block(b).term {
            if t == b || t == entry || preds[t.index()].len() != 1 || preds[t.index()][0] != b {
                break;
            }
            let tail = f.block(t).clone();
            let block = f.block_mut(b);
            block.ops.extend(tail.ops);
            block.term = tail.term;
            is_there[t.index()] = false;
            for s in bpf_program::successors(f, b) {
                preds[s.index()].iter_mut().filter(|p| **p == t).for_each(|p| *p = b);
            }
            changed = true;
        }
    }
    f.layout.retain(|b| is_there[b.index()]);
    changed
}

/// For each block of a function whether it is one of these.
fn flags(f: &Function, which: &[BlockId]) -> Vec<bool> {
    let mut flags = vec![false; f.blocks.len()];
    which.iter().for_each(|b| flags[b.index()] = true);
    flags
}

/// An instruction and what the loader patches into it.
type Meaning = (bpf_isa::Insn, Option<bpf_program::Symbol>);

/// Two blocks that do the same and go to the same places become one.
fn share_identical(f: &mut Function) -> bool {
    let mut seen: HashMap<(Vec<Meaning>, String), BlockId> = HashMap::new();
    let mut replace: Vec<Option<BlockId>> = vec![None; f.blocks.len()];
    let entry = f.entry();
    for &b in &f.layout {
        let block = f.block(b);
        // CO-RE records must not be shared: each instruction has its own.
        if b == entry || block.ops.iter().any(bpf_program::Op::is_core) {
            continue;
        }
        let ops = block.ops.iter().map(|o| (o.insn, o.link.as_ref().map(|l| l.symbol.clone()))).collect();
        let term = match &block.term {
            Terminator::Goto(t) => format!("goto {t}"),
            Terminator::Exit { .. } => "exit".into(),
            Terminator::Branch { cond, width, dst, src, taken, fall, .. } => {
                format!("{cond:?} {width:?} {dst:?} {src:?} {taken} {fall}")
            }
            Terminator::MayGoto { .. } => continue,
        };
        match seen.entry((ops, term)) {
            Entry::Occupied(e) => replace[b.index()] = Some(*e.get()),
            Entry::Vacant(e) => {
                e.insert(b);
            }
        }
    }
    if replace.iter().all(Option::is_none) {
        return false;
    }
    for b in f.layout.clone() {
        f.block_mut(b).term.map_successors(|s| replace[s.index()].unwrap_or(s));
    }
    f.layout.retain(|b| replace[b.index()].is_none());
    true
}

/// Orders blocks in chains along fall-through edges, or so that they need the fewest jumps. Kept only if it saves slots: the verifier and
/// the branch predictor like the order the compiler chose.
fn lay_out(f: &mut Function) -> bool {
    let before = slot_count(f);
    let old = f.layout.clone();
    let mut placed = vec![false; f.blocks.len()];
    let mut order = Vec::with_capacity(old.len());
    let (topo, cyclic) = bpf_program::reverse_postorder(f);
    let mut rank = vec![usize::MAX; f.blocks.len()];
    for (i, b) in topo.iter().enumerate() {
        rank[b.index()] = i;
    }
    let preds = predecessors(f);
    for &start in &old {
        let mut at = start;
        while !placed[at.index()] {
            placed[at.index()] = true;
            order.push(at);
            // A block may follow only when all its other predecessors stand before it, so that jumps
            // keep going forward.
            let ready = |s: BlockId, placed: &[bool]| {
                !placed[s.index()] && (cyclic || preds[s.index()].iter().all(|p| placed[p.index()]))
            };
            let next = match f.block(at).term {
                Terminator::Goto(t) => Some(t).filter(|t| ready(*t, &placed)),
                Terminator::Branch { taken, fall, cond, .. } => Some(fall)
                    .filter(|t| ready(*t, &placed))
                    .or(Some(taken).filter(|t| cond.negate().is_some() && ready(*t, &placed))),
                Terminator::MayGoto { fall, .. } => Some(fall).filter(|t| ready(*t, &placed)),
                Terminator::Exit { .. } => None,
            };
            match next {
                Some(n) => at = n,
                None => break,
            }
        }
    }
    let fewest = (!cyclic).then(|| crate::layout::fewest_jumps(f)).flatten();
    let mut best = (before, old);
    for order in [Some(order), fewest].into_iter().flatten() {
        f.layout = order;
        let slots = slot_count(f);
        if slots < best.0 {
            best = (slots, f.layout.clone());
        }
    }
    f.layout = best.1;
    best.0 < before
}
