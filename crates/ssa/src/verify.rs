//! Whether a function keeps the rules of the form. Tests ask after every step; a pass that breaks them is wrong.
//!
//! The rules: every value read has exactly one definition, which dominates the read (an argument of an edge counts as
//! read at the end of the block that the edge leaves); each edge has as many arguments as its target has parameters;
//! the entry has no way in, and a parameter for each register set there; operands are as many as the operation takes;
//! the layout names every block that can be reached, once.

use crate::graph::Graph;
use crate::{Block, Op, Operand, Ssa, Value, roles};

/// Checks the rules.
///
/// # Errors
/// A sentence that names block and value.
pub fn verify(f: &Ssa) -> Result<(), String> {
    let mut seen = vec![false; f.blocks.len()];
    for b in &f.layout {
        if b.index() >= f.blocks.len() || std::mem::replace(&mut seen[b.index()], true) {
            return Err(format!("{b} is no block, or is laid out twice"));
        }
    }
    for b in &f.layout {
        for e in f.block(*b).term.edges() {
            if e.to.index() >= f.blocks.len() || !seen[e.to.index()] {
                return Err(format!("an edge of {b} leads to {}, which is not laid out", e.to));
            }
            let (args, params) = (e.args.len(), f.block(e.to).params.len());
            if args != params {
                return Err(format!("an edge from {b} has {args} arguments, {} has {params} parameters", e.to));
            }
            if e.to == f.entry() {
                return Err(format!("an edge of {b} leads to the entry"));
            }
        }
    }
    if f.block(f.entry()).params.len() != f.entry_regs.len() {
        return Err("the entry has not one parameter for each register".into());
    }
    let graph = Graph::of(f);
    let place = definitions(f)?;
    for &b in &f.layout {
        let block = f.block(b);
        let check = |o: Operand, at: usize| -> Result<(), String> {
            let Some(v) = o.value() else { return Ok(()) };
            let Some((home, n)) = place.get(v.index()).copied().flatten() else {
                return Err(format!("{b} reads {v}, which nothing defines"));
            };
            let dominated = if home == b { n <= at } else { graph.dominates(home, b) };
            if dominated || !graph.is_reachable(b) {
                Ok(())
            } else {
                Err(format!("{b} reads {v} of {home} before it is there"))
            }
        };
        for (i, inst) in block.insts.iter().enumerate() {
            inst.args.iter().try_for_each(|o| check(*o, i))?;
            if let Some(n) = arity(&inst.op)
                && n != inst.args.len()
            {
                return Err(format!("{b}: {:?} has {} operands", inst.op, inst.args.len()));
            }
            let must = !matches!(inst.op, Op::Keep | Op::Store { .. } | Op::Atomic { .. } | Op::Opaque(_));
            if must != inst.result.is_some() && !matches!(inst.op, Op::Atomic { .. } | Op::Opaque(_)) {
                return Err(format!("{b}: {:?} and its result", inst.op));
            }
        }
        block.term.operands().into_iter().try_for_each(|o| check(o, block.insts.len()))?;
    }
    Ok(())
}

/// Where each value is defined: block, and from which instruction on it is there.
fn definitions(f: &Ssa) -> Result<Vec<Option<(Block, usize)>>, String> {
    let mut place = vec![None; f.values.len()];
    for &b in &f.layout {
        let block = f.block(b);
        let params = block.params.iter().map(|v| (*v, 0));
        let results = block.insts.iter().enumerate().filter_map(|(i, x)| Some((x.result?, i + 1)));
        for (v, at) in params.chain(results) {
            define(&mut place, v, (b, at))?;
        }
    }
    Ok(place)
}

fn define(place: &mut [Option<(Block, usize)>], v: Value, at: (Block, usize)) -> Result<(), String> {
    match place.get_mut(v.index()) {
        None => Err(format!("{v} is no value")),
        Some(Some((b, _))) => Err(format!("{v} is defined in {b} and in {}", at.0)),
        Some(slot) => {
            *slot = Some(at);
            Ok(())
        }
    }
}

/// How many operands the operation takes; `None` if that differs.
fn arity(op: &Op) -> Option<usize> {
    Some(match op {
        Op::Const(_) | Op::Frame(_) | Op::Address(_) => 0,
        Op::Copy
        | Op::Keep
        | Op::Low32
        | Op::SignExtend(..)
        | Op::Neg(_)
        | Op::Endian(..)
        | Op::Load { .. }
        | Op::LdAbs(..) => 1,
        Op::Alu(..) | Op::Store { .. } | Op::LdInd(..) => 2,
        Op::Atomic { op: bpf_isa::AtomicOp::CmpXchg, .. } => 3,
        Op::Atomic { .. } => 2,
        Op::Opaque(insn) => roles(insn).uses.len(),
        Op::Call(_) | Op::CallIndirect => return None,
    })
}
