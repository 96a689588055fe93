//! Common ends of blocks that go on to the same places are kept once.
//!
//! ```text
//! *(u32 *)(r10 - 4) = 5        *(u32 *)(r10 - 4) = 5
//! r1 = 1                       goto T
//! r2 = 2                  →    …
//! goto L                       *(u32 *)(r10 - 4) = 7
//! …                            T:
//! *(u32 *)(r10 - 4) = 7        r1 = 1
//! r1 = 1                       r2 = 2
//! r2 = 2                       goto L
//! goto L
//! ```
//!
//! It changes the graph alone, so it needs no solver ([`bpf_prove::shape`]). But what is known of the two ways is no longer
//! told apart behind the place where they meet, so this comes when nothing else is left to do; and only in functions that
//! can still be proven as a whole in one formula, because the blocks of the two versions correspond no more. And the kernel wants each
//! instruction to be used with pointers of one type, whichever way led to it (`reg_type_mismatch` in
//! kernel/bpf/verifier.c): ends are shared only where the facts say that what is live holds the same kinds of values.

use std::collections::HashMap;

use bpf_facts::{Kind, State, Value};
use bpf_isa::{Insn, Reg, RegSet};
use bpf_program::{Block, BlockId, Function, Op, Terminator, slot_count};
use bpf_prove::{Points, Session, fits_one_formula};

/// Operations of an end at most: longer ones are found piece by piece.
const LONGEST: usize = 64;
/// Slots that sharing an end must save if it costs a jump at run time.
const WORTH: usize = 2;

/// The function with common ends of blocks shared, if that saves slots. Only for the function as it was analysed.
pub(crate) fn share(session: &Session) -> Option<Function> {
    let f = session.function();
    if !fits_one_formula(session.derivation().original()) {
        return None;
    }
    let mut groups: HashMap<Terminator, Vec<usize>> = HashMap::new();
    let mut order = Vec::new();
    for (place, &b) in f.layout.iter().enumerate() {
        let Some(end) = normal(&f.block(b).term) else { continue };
        let group = groups.entry(end.clone()).or_default();
        if group.is_empty() {
            order.push(end);
        }
        group.push(place);
    }
    let mut new = f.clone();
    let mut done: Vec<BlockId> = Vec::new();
    let mut known: HashMap<BlockId, Option<Points>> = HashMap::new();
    for end in order {
        let group = &groups[&end];
        for (n, &first) in group.iter().enumerate() {
            let a = f.layout[first];
            if done.contains(&a) {
                continue;
            }
            let best = group[n + 1..]
                .iter()
                .map(|&place| f.layout[place])
                .filter(|b| !done.contains(b))
                .map(|b| (common(f.block(a), f.block(b)), b))
                .max_by_key(|(len, _)| *len);
            let Some((mut len, b)) = best else { continue };
            for x in [a, b] {
                known.entry(x).or_insert_with(|| session.block(x));
            }
            let (Some(Some(p)), Some(Some(q))) = (known.get(&a), known.get(&b)) else { continue };
            let ops = &f.block(b).ops;
            // A shorter end may do where what a longer one begins with is of different kinds.
            while len > 0 && !alike(p, q, &ops[ops.len() - len..]) {
                len -= 1;
            }
            let slots: usize = ops[ops.len() - len..].iter().map(|o| o.insn.slots()).sum();
            // Nobody jumps more often where one block is nothing but the end of the other.
            let is_whole = len == ops.len() || len == f.block(a).ops.len();
            let worth = if is_whole { 1 } else { WORTH };
            if slots < worth {
                continue;
            }
            let mut trial = new.clone();
            join(&mut trial, a, b, len);
            if slot_count(&trial) + worth <= slot_count(&new) {
                new = trial;
                done.extend([a, b]);
            }
        }
    }
    (!done.is_empty()).then_some(new)
}

/// How a block ends, alike for a condition and its opposite. `None`: such ends are not shared.
fn normal(term: &Terminator) -> Option<Terminator> {
    match *term {
        Terminator::Goto(t) => Some(Terminator::Goto(t)),
        Terminator::Exit { .. } => Some(Terminator::Exit { origin: None }),
        Terminator::Branch { cond, width, dst, src, taken, fall, .. } => {
            let (cond, taken, fall) = match cond.negate() {
                Some(opposite) if opposite < cond => (opposite, fall, taken),
                _ => (cond, taken, fall),
            };
            Some(Terminator::Branch { cond, width, dst, src, taken, fall, origin: None })
        }
        Terminator::MayGoto { .. } => None,
    }
}

/// How many operations two blocks have in common at their ends. CO-RE records must not be shared: each instruction has its
/// own.
fn common(a: &Block, b: &Block) -> usize {
    let symbol = |o: &Op| o.link.as_ref().map(|l| l.symbol.clone());
    let same = |(x, y): &(&Op, &Op)| x.insn == y.insn && symbol(x) == symbol(y) && !x.is_core() && !y.is_core();
    a.ops.iter().rev().zip(b.ops.iter().rev()).take_while(same).take(LONGEST).count()
}

/// Makes the last `len` operations of `b`, which stands further down, the end of `a` as well.
fn join(f: &mut Function, a: BlockId, b: BlockId, len: usize) {
    let mut end = b;
    if f.block(b).ops.len() > len {
        end = BlockId(f.blocks.len() as u32);
        let block = f.block_mut(b);
        let ops = block.ops.split_off(block.ops.len() - len);
        let term = std::mem::replace(&mut block.term, Terminator::Goto(end));
        f.blocks.push(Block { ops, term });
        let place = f.layout.iter().position(|x| *x == b).map_or(f.layout.len(), |p| p + 1);
        f.layout.insert(place, end);
    }
    let block = f.block_mut(a);
    block.ops.truncate(block.ops.len() - len);
    block.term = Terminator::Goto(end);
}

/// Whether values of the same kinds are live where both come to their end, which consists of `ops`.
fn alike(a: &Points, b: &Points, ops: &[Op]) -> bool {
    let before_end = |p: &Points| {
        let at = p.states().len().checked_sub(ops.len() + 1)?;
        Some((p.states().get(at)?.clone(), *p.live().get(at)?))
    };
    let (Some((s, live)), Some((t, others))) = (before_end(a), before_end(b)) else { return false };
    let (regs, stack) = (live.regs.union(others.regs), live.stack.union(&others.stack));
    let bases = ops.iter().fold(RegSet::EMPTY, |all, o| base(&o.insn).map_or(all, |r| all.with(r)));
    let same_registers = regs.iter().all(|r| {
        let unknown_base = bases.contains(r) && matches!(s.reg(r).kind, Kind::Unknown);
        same_kind(s.reg(r), t.reg(r)) && !unknown_base
    });
    // Spilled pointers.
    let pointers = |x: &State| -> Vec<(i64, Value)> {
        let live = |off: &i64| (0..8).any(|i| stack.contains(off + i));
        let spilled = x.stack_values().filter(|(off, v)| v.region().is_some() && live(off));
        spilled.map(|(off, v)| (off, v.clone())).collect()
    };
    let (p, q) = (pointers(&s), pointers(&t));
    same_registers && p.len() == q.len() && p.iter().zip(&q).all(|((i, v), (j, w))| i == j && same_kind(v, w))
}

fn same_kind(a: &Value, b: &Value) -> bool {
    match (&a.kind, &b.kind) {
        (Kind::Pointer { region: r, nullable: n, .. }, Kind::Pointer { region: s, nullable: m, .. }) => {
            r == s && n == m
        }
        (x, y) => std::mem::discriminant(x) == std::mem::discriminant(y),
    }
}

/// The register through which an instruction accesses memory.
fn base(insn: &Insn) -> Option<Reg> {
    insn.memory_operand().map(|m| m.base)
}
