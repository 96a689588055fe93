//! A store of known bytes goes if all of them are stored over, once the later stores are made as wide as they may be: those
//! beside what they store hold known numbers.
//!
//! ```text
//! before: *(u64 *)(r10 - 56) = 0             after:
//!         if r9 != 8 goto v6                         if r9 != 8 goto v6
//!         *(u8 *)(r10 - 52) = r2    ; 8 bits         *(u32 *)(r10 - 52) = r2
//!         goto on                                    goto on
//!     v6: *(u32 *)(r10 - 52) = r4                v6: *(u32 *)(r10 - 52) = r4
//!     on: *(u32 *)(r10 - 56) = r3                on: *(u32 *)(r10 - 56) = r3
//!         call fib_lookup                            call fib_lookup
//! ```
//! Constants take in what is known on both sides of them: over `*(u32 *)(r10 - 4) = 0`, `*(u16 *)(r10 - 2) = 7` is
//! `*(u32 *)(r10 - 4) = 0x70000`. In the frame only, which nobody else sees, at aligned offsets, and where bytes were stored before: so
//! the frame does not grow.

use bpf_facts::{Env, Facts, Liveness, State};
use bpf_isa::{Insn, Reg, Size, Src};
use bpf_program::{BlockId, ByteOrder, Function, Op, slot_count};

use super::pass::Pass;
use crate::Ssa;

/// The pass.
pub struct Fill;

/// Stores of a function that are looked at, at most: each is asked about several times.
const STORES: usize = 40;

impl Pass for Fill {
    fn name(&self) -> &'static str {
        "ssa-fill"
    }

    fn run(&self, _: &mut Ssa, _: &Env<'_>) -> bool {
        false
    }

    fn is_of_graphs(&self) -> bool {
        true
    }

    fn graphs(&self, f: &Function, env: &Env<'_>) -> Vec<Function> {
        let facts = Facts::of(f, env);
        let mut chosen: Vec<(Wider, usize)> = widened(f, &facts).into_iter().map(|w| (w, 0)).collect();
        if chosen.is_empty() || chosen.len() > STORES {
            return vec![];
        }
        let mut best = without_dead(&with(f, &chosen), env);
        let least = slot_count(&without_dead(f, env));
        if slot_count(&best) >= least {
            return vec![];
        }
        // Only what is needed: a store stays as it is if as many go without.
        for at in 0..chosen.len() {
            let widest = chosen[at].1;
            for narrower in (widest + 1..=chosen[at].0.forms.len()).rev() {
                chosen[at].1 = narrower;
                let other = without_dead(&with(f, &chosen), env);
                if slot_count(&other) <= slot_count(&best) {
                    best = other;
                    break;
                }
                chosen[at].1 = widest;
            }
        }
        vec![best]
    }
}

/// A store, and what may stand in its place, the widest first.
struct Wider {
    block: BlockId,
    at: usize,
    forms: Vec<Insn>,
}

fn widened(f: &Function, facts: &Facts) -> Vec<Wider> {
    let mut all = vec![];
    for &block in &f.layout {
        let states = facts.states(f, block);
        for (at, (op, state)) in f.block(block).ops.iter().zip(&states).enumerate() {
            let forms: Vec<Insn> = [Size::DW, Size::W, Size::H]
                .into_iter()
                .filter_map(|size| as_wide_as(op, state, size, f.byte_order))
                .collect();
            if !forms.is_empty() {
                all.push(Wider { block, at, forms });
            }
        }
    }
    all
}

/// The store that does the same as this one to the frame, and is that wide.
fn as_wide_as(op: &Op, state: &State, size: Size, order: ByteOrder) -> Option<Insn> {
    let Insn::Store { size: own, base: Reg::R10, off, src } = op.insn else { return None };
    if own >= size || op.link.is_some() {
        return None;
    }
    let (own_bytes, bytes) = (i64::from(own.bytes()), i64::from(size.bytes()));
    let behind = i64::from(off).rem_euclid(bytes);
    let begin = i64::from(off) - behind;
    if begin + bytes > 0 || begin < -bpf_facts::FRAME {
        return None;
    }
    // What is beside the store, byte by byte.
    let mut beside = 0u64;
    for i in (0..bytes).filter(|i| !(behind..behind + own_bytes).contains(i)) {
        beside |= state.stack_bytes(begin + i, 1).as_const()? << order.bit(i as u32, 1, size.bytes());
    }
    let off = i16::try_from(begin).ok()?;
    let most = u64::MAX >> (64 - own.bits());
    let shift = order.bit(behind as u32, own.bytes(), size.bytes());
    match src {
        Src::Imm(n) => {
            let number = beside | (n as i64 as u64 & most) << shift;
            // Of a store of 8 bytes the sign of the number fills the upper half.
            let imm = number as u32 as i32;
            (size != Size::DW || imm as i64 as u64 == number).then_some(Insn::Store {
                size,
                base: Reg::R10,
                off,
                src: Src::Imm(imm),
            })
        }
        Src::Reg(r) => {
            let is_short = state.reg(r).bits().umax <= most;
            (shift == 0 && beside == 0 && is_short).then_some(Insn::Store { size, base: Reg::R10, off, src })
        }
    }
}

fn with(f: &Function, chosen: &[(Wider, usize)]) -> Function {
    let mut g = f.clone();
    for (store, form) in chosen {
        if let Some(insn) = store.forms.get(*form) {
            g.block_mut(store.block).ops[store.at].insn = *insn;
        }
    }
    g
}

/// The function without stores to its frame that nobody reads.
fn without_dead(f: &Function, env: &Env<'_>) -> Function {
    let mut g = f.clone();
    loop {
        let facts = Facts::of(&g, env);
        let live = Liveness::of(&g, env, &facts);
        let mut changed = false;
        for b in g.layout.clone() {
            let is_dead = |i: usize, op: &Op| {
                let Insn::Store { size, base: Reg::R10, off, .. } = op.insn else { return false };
                let own = bpf_facts::StackSet::range(i64::from(off), size.bytes());
                op.link.is_none() && live.after(b, i).stack.intersect(&own).is_empty()
            };
            let ops = &g.block(b).ops;
            let kept: Vec<Op> =
                ops.iter().enumerate().filter(|(i, op)| !is_dead(*i, op)).map(|(_, op)| op.clone()).collect();
            changed |= kept.len() < ops.len();
            g.block_mut(b).ops = kept;
        }
        if !changed {
            return g;
        }
    }
}
