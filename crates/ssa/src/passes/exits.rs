//! A joined return value that is a constant on some ways becomes an exit of its own for each constant.
//!
//! ```text
//! before: b1: if v1 > v2 goto b9(1)      after: b1: if v1 > v2 goto b10
//!         b5: v7 = call redirect_map            b5: v7 = call redirect_map
//!             goto b9(v7)                           exit v7
//!         b9(v8): exit v8                       b10: exit 1
//! ```
//! The constant then needs no register that lives as long as the function does.

use bpf_facts::Env;

use super::fold::Definitions;
use super::pass::Pass;
use crate::{Block, BlockData, Edge, Operand, Ssa, Term};

/// The pass.
pub struct Exits;

impl Pass for Exits {
    fn name(&self) -> &'static str {
        "ssa-exits"
    }

    fn run(&self, f: &mut Ssa, _: &Env<'_>) -> bool {
        let d = Definitions::of(f);
        let mut changed = false;
        for exit in f.layout.clone() {
            let block = f.block(exit);
            let Term::Exit { value: Some(Operand::Value(v)), origin } = block.term else { continue };
            let Some(at) = block.params.iter().position(|p| *p == v).filter(|_| block.insts.is_empty()) else {
                continue;
            };
            let mut made: Vec<(i64, Block)> = vec![];
            for b in f.layout.clone() {
                let mut term = f.block(b).term.clone();
                for e in term.edges_mut().filter(|e| e.to == exit) {
                    let Some(c) = d.constant(e.args[at]) else { continue };
                    let to = match made.iter().find(|(k, _)| *k == c) {
                        Some((_, to)) => *to,
                        None => {
                            let to = Block(f.blocks.len() as u32);
                            let term = Term::Exit { value: Some(Operand::Const(c)), origin };
                            f.blocks.push(BlockData { params: vec![], insts: vec![], term });
                            f.layout.push(to);
                            made.push((c, to));
                            to
                        }
                    };
                    *e = Edge { to, args: vec![] };
                }
                f.block_mut(b).term = term;
            }
            changed |= !made.is_empty();
        }
        changed
    }
}
