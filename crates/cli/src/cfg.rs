//! `bpf-opt dis --cfg`: control-flow graphs for Graphviz.

use std::collections::HashMap;
use std::fmt::Write;

use bpf_object::{FuncId, Object};
use bpf_program::{Block, BlockId, Function, Terminator};

use crate::listing::{self, Line};

/// One graph with a cluster per function.
pub fn graph(object: &Object, wanted: &[FuncId]) -> String {
    let mut dot = String::from(
        "digraph bpf {\n  node [shape=box, fontname=\"monospace\", fontsize=10, labeljust=l];\n  \
         edge [fontname=\"monospace\", fontsize=9];\n",
    );
    for &f in wanted {
        let _ = writeln!(dot, "  subgraph cluster_{} {{", f.0);
        let _ = writeln!(dot, "    label=\"{}\";", quoted(&listing::title(object, f)));
        match bpf_program::build(object, f) {
            Ok(function) => cluster(&mut dot, f, &function, &listing::lines(object, f)),
            Err(why) => {
                let _ = writeln!(dot, "    f{}b0 [label=\"no graph: {}\"];", f.0, quoted(&why.to_string()));
            }
        }
        dot.push_str("  }\n");
    }
    dot.push_str("}\n");
    dot
}

fn cluster(dot: &mut String, f: FuncId, function: &Function, lines: &[Line]) {
    let by_slot: HashMap<usize, &Line> = lines.iter().map(|line| (line.slot, line)).collect();
    for &id in &function.layout {
        let block = function.block(id);
        let text: String = slots(block)
            .filter_map(|slot| by_slot.get(&slot))
            .map(|line| match line.comment.as_str() {
                "" => format!("{}: {}\\l", line.slot, quoted(&line.text)),
                comment => format!("{}: {} ; {}\\l", line.slot, quoted(&line.text), quoted(comment)),
            })
            .collect();
        let text = if text.is_empty() { "goto".to_owned() } else { text };
        let _ = writeln!(dot, "    f{}{id} [label=\"{text}\"];", f.0);
        for (to, way) in ways(&block.term) {
            let label = match way {
                Way::Only => "",
                Way::Taken => " [label=\"yes\"]",
                Way::NotTaken => " [label=\"no\", style=dashed]",
            };
            let _ = writeln!(dot, "    f{0}{id} -> f{0}{to}{label};", f.0);
        }
    }
}

/// By what an edge leaves a block.
#[derive(Clone, Copy)]
pub enum Way {
    /// There is no other.
    Only,
    /// The condition holds.
    Taken,
    /// It does not.
    NotTaken,
}

/// The edges from a block.
pub fn ways(end: &Terminator) -> Vec<(BlockId, Way)> {
    match *end {
        Terminator::Goto(to) => vec![(to, Way::Only)],
        Terminator::Branch { taken, fall, .. } | Terminator::MayGoto { taken, fall, .. } => {
            vec![(taken, Way::Taken), (fall, Way::NotTaken)]
        }
        Terminator::Exit { .. } => vec![],
    }
}

/// The slots of a block's instructions; a `goto` is just its edge.
pub fn slots(block: &Block) -> impl Iterator<Item = usize> {
    block.ops.iter().filter_map(|op| op.origin).chain(block.term.origin())
}

fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ")
}
