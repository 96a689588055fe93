//! After a block was copied, what it defined has two definitions: whoever reads it gets the right one again.

use rustc_hash::FxHashMap;

use crate::graph::Graph;
use crate::{Block, Operand, Ssa, Value};

/// Makes every read of `v` outside the blocks in `defs` read the definition that reaches it. `defs`: the blocks that
/// define it, and what each calls it. Blocks get parameters where definitions meet.
pub(crate) fn repair(f: &mut Ssa, graph: &Graph, v: Value, defs: &[(Block, Operand)]) {
    let mut r = Repair { f, graph, v, defs, start: FxHashMap::default(), pending: vec![] };
    r.all();
}

struct Repair<'a> {
    f: &'a mut Ssa,
    graph: &'a Graph,
    v: Value,
    defs: &'a [(Block, Operand)],
    start: FxHashMap<Block, Operand>,
    /// Parameters whose arguments are still to be given.
    pending: Vec<Block>,
}

impl Repair<'_> {
    fn all(&mut self) {
        for b in self.f.layout.clone() {
            if !self.graph.is_reachable(b) || self.defs.iter().any(|d| d.0 == b) {
                continue;
            }
            let me = Operand::Value(self.v);
            let block = self.f.block(b);
            let reads = block.insts.iter().any(|i| i.args.contains(&me)) || block.term.operands().contains(&me);
            if !reads {
                continue;
            }
            let now = self.at_start(b);
            if now != me {
                let block = self.f.block_mut(b);
                let args = block.insts.iter_mut().flat_map(|i| &mut i.args).chain(block.term.operands_mut());
                args.filter(|o| **o == me).for_each(|o| *o = now);
            }
        }
        while let Some(b) = self.pending.pop() {
            for (p, side) in self.graph.preds[b.index()].clone() {
                let arg = self.at_end(p);
                if let Some(e) = self.f.block_mut(p).term.edges_mut().nth(side) {
                    e.args.push(arg);
                }
            }
        }
    }

    fn at_end(&mut self, b: Block) -> Operand {
        match self.defs.iter().find(|d| d.0 == b) {
            Some((_, o)) => *o,
            None => self.at_start(b),
        }
    }

    fn at_start(&mut self, b: Block) -> Operand {
        // Up to a block with several ways in.
        let mut at = b;
        loop {
            if let Some(o) = self.start.get(&at) {
                return *o;
            }
            match self.graph.only_way_in(at) {
                Some((p, _)) => match self.defs.iter().find(|d| d.0 == p) {
                    Some((_, o)) => return *o,
                    None => at = p,
                },
                None => break,
            }
        }
        if at == self.f.entry() {
            return Operand::Value(self.v);
        }
        let p = self.f.new_value_like(self.v);
        self.f.block_mut(at).params.push(p);
        self.start.insert(at, Operand::Value(p));
        self.pending.push(at);
        Operand::Value(p)
    }
}
