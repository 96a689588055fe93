//! What nobody reads goes: instructions without effect, parameters of blocks, blocks that nothing leads to.
//!
//! ```text
//! before: v3 = add v1, 14          after: goto b2
//!         goto b2(v3)
//!         b2(v4):   ; v4 is read nowhere
//! ```

use bpf_facts::Env;

use super::pass::Pass;
use crate::lift::{remove_params, simplify_params};
use crate::{Operand, Ssa};

/// The pass.
pub struct Dead;

impl Pass for Dead {
    fn name(&self) -> &'static str {
        "ssa-dead"
    }

    fn run(&self, f: &mut Ssa, _: &Env<'_>) -> bool {
        remove(f)
    }
}

/// Removes what nobody reads; whether there was anything.
pub(crate) fn remove(f: &mut Ssa) -> bool {
    let blocks = f.layout.len();
    f.drop_unreachable();
    let simpler = simplify_params(f);
    // What is read by what has an effect, and so on backwards.
    let mut read = vec![false; f.values.len()];
    let mut todo: Vec<Operand> = Vec::new();
    for b in &f.layout {
        let block = f.block(*b);
        todo.extend(block.insts.iter().filter(|i| !i.is_removable()).flat_map(|i| i.args.iter().copied()));
        todo.extend(block.term.reads());
    }
    let mut sources: Vec<Vec<Operand>> = vec![vec![]; f.values.len()];
    for b in &f.layout {
        for i in &f.block(*b).insts {
            if let Some(v) = i.result {
                sources[v.index()].extend(&i.args);
            }
        }
        for e in f.block(*b).term.edges() {
            for (p, a) in f.block(e.to).params.iter().zip(&e.args) {
                sources[p.index()].push(*a);
            }
        }
    }
    while let Some(o) = todo.pop() {
        let Some(v) = o.value() else { continue };
        if !std::mem::replace(&mut read[v.index()], true) {
            todo.extend(&sources[v.index()]);
        }
    }
    let mut changed = simpler || f.layout.len() != blocks;
    let entry = f.entry();
    for b in f.layout.clone() {
        let n = f.block(b).insts.len();
        f.block_mut(b).insts.retain(|i| !i.is_removable() || i.result.is_none_or(|v| read[v.index()]));
        changed |= f.block(b).insts.len() != n;
        changed |= b != entry && f.block(b).params.iter().any(|v| !read[v.index()]);
    }
    let given = f.block(entry).params.clone();
    remove_params(f, |v| !read[v.index()] && !given.contains(&v));
    changed
}
