//! Where the blocks of a function stand in a drawing.
//!
//! Layers by a library for graphs of which a drawing can be read; others, where layers would take seconds and cover square
//! metres, are one column of blocks in the order of the code, with the jumps beside it.

use std::collections::{BTreeSet, HashMap};

use bpf_object::{FuncId, Object};
use bpf_program::{BlockId, Function, reverse_postorder};
use rust_sugiyama::configure::Config;
use rust_sugiyama::from_vertices_and_edges;
use serde::Serialize;

use crate::cfg::{Way, slots, ways};
use crate::listing::Line;

/// Blocks of a graph that is drawn in layers, at most.
const BLOCKS: usize = 300;
/// Layers that its edges cross, at most, all together: the library makes a place of each.
const CROSSED: usize = 4000;
/// Lines of a block that are shown.
const LINES: usize = 12;
/// Columns of a line that are shown.
const COLUMNS: usize = 44;
/// Pixels of a character, of a line, and around the text of a block.
const CHARACTER: f64 = 6.1;
const LINE: f64 = 13.0;
const PADDING: f64 = 8.0;
/// Pixels between blocks.
const GAP: f64 = 24.0;

/// A graph with a place for each block; pixels from the upper left corner.
#[derive(Serialize, Default)]
pub struct Graph {
    /// Why there is none.
    why_not: Option<String>,
    width: f64,
    height: f64,
    /// Whether it is one column.
    column: bool,
    nodes: Vec<Node>,
    /// From, to, and by what: `g` goto, `y` taken, `n` not taken.
    edges: Vec<(usize, usize, char)>,
}

/// A block.
#[derive(Serialize)]
struct Node {
    /// Its corner, and its size.
    x: f64,
    y: f64,
    w: f64,
    h: f64,
    /// The numbers of the lines shown, and how many there are.
    lines: Vec<usize>,
    count: usize,
    changed: bool,
}

impl Graph {
    /// The graph of a function. `changed`: by line, whether it belongs to a block that changed.
    pub fn of(object: &Object, f: FuncId, lines: &[Line], changed: &[bool]) -> Graph {
        match bpf_program::build(object, f) {
            Ok(function) => Graph::laid_out(&function, lines, changed),
            Err(why) => Graph { why_not: Some(why.to_string()), ..Graph::default() },
        }
    }

    fn laid_out(function: &Function, lines: &[Line], changed: &[bool]) -> Graph {
        let by_slot: HashMap<usize, usize> = lines.iter().enumerate().map(|(i, line)| (line.slot, i)).collect();
        let number: HashMap<BlockId, usize> = function.layout.iter().enumerate().map(|(i, b)| (*b, i)).collect();
        let mut nodes: Vec<Node> = Vec::new();
        let mut edges = Vec::new();
        for (i, &id) in function.layout.iter().enumerate() {
            let block = function.block(id);
            let all: Vec<usize> = slots(block).filter_map(|slot| by_slot.get(&slot).copied()).collect();
            nodes.push(Node::of(&all, lines, changed));
            for (to, way) in ways(&block.term) {
                let how = match way {
                    Way::Only => 'g',
                    Way::Taken => 'y',
                    Way::NotTaken => 'n',
                };
                edges.extend(number.get(&to).map(|to| (i, *to, how)));
            }
        }
        let mut graph = Graph { nodes, edges, ..Graph::default() };
        if graph.nodes.len() > BLOCKS || crossed(function) > CROSSED {
            graph.stack();
        } else {
            graph.layer();
        }
        graph
    }

    fn stack(&mut self) {
        self.column = true;
        let mut y = GAP;
        for node in &mut self.nodes {
            (node.x, node.y) = (GAP, y);
            y += node.h + GAP / 2.0;
            self.width = self.width.max(node.w);
        }
        // Jumps stand beside it, the longer the farther.
        (self.width, self.height) = (self.width + 12.0 * GAP, y);
    }

    fn layer(&mut self) {
        let vertices: Vec<(u32, (f64, f64))> = (0u32..).zip(self.nodes.iter().map(|n| (n.w, n.h))).collect();
        let distinct: BTreeSet<(u32, u32)> =
            self.edges.iter().filter(|(a, b, _)| a != b).map(|(a, b, _)| (*a as u32, *b as u32)).collect();
        let edges: Vec<(u32, u32)> = distinct.into_iter().collect();
        let config = Config { vertex_spacing: GAP, dummy_size: 0.5, ..Config::default() };
        // Each part that is connected is laid out by itself, its first layer on top; they stand side by side.
        for (places, _, _) in from_vertices_and_edges(&vertices, &edges, &config) {
            // The library's places are those of centres.
            let corners: Vec<(usize, f64, f64)> = places
                .into_iter()
                .filter_map(|(i, (x, y))| self.nodes.get(i).map(|n| (i, x - n.w / 2.0, y - n.h / 2.0)))
                .collect();
            let left = corners.iter().map(|at| at.1).fold(f64::INFINITY, f64::min);
            let top = corners.iter().map(|at| at.2).fold(f64::INFINITY, f64::min);
            let start = self.width + GAP;
            for (i, x, y) in corners {
                let node = &mut self.nodes[i];
                (node.x, node.y) = (x - left + start, y - top + GAP);
                self.width = self.width.max(node.x + node.w);
                self.height = self.height.max(node.y + node.h);
            }
        }
        self.width += 2.0 * GAP;
        self.height += GAP;
    }
}

impl Node {
    fn of(all: &[usize], lines: &[Line], changed: &[bool]) -> Node {
        let shown: Vec<usize> = all.iter().copied().take(LINES).collect();
        let columns = shown.iter().map(|i| (lines[*i].text.chars().count() + 6).min(COLUMNS)).max().unwrap_or(4);
        let rows = shown.len().max(1) + usize::from(all.len() > LINES);
        Node {
            x: 0.0,
            y: 0.0,
            w: columns as f64 * CHARACTER + 2.0 * PADDING,
            h: rows as f64 * LINE + 2.0 * PADDING,
            lines: shown,
            count: all.len(),
            changed: all.iter().any(|i| changed.get(*i).copied().unwrap_or_default()),
        }
    }
}

/// How many layers the edges of a function cross, if each block stands below all that lead to it.
fn crossed(f: &Function) -> usize {
    let (order, _) = reverse_postorder(f);
    let mut layer = vec![0usize; f.blocks.len()];
    let mut seen = vec![false; f.blocks.len()];
    for b in &order {
        seen[b.index()] = true;
        for s in f.block(*b).term.successors().filter(|s| !seen[s.index()]) {
            layer[s.index()] = layer[s.index()].max(layer[b.index()] + 1);
        }
    }
    let across = |b: &BlockId| {
        let from = layer[b.index()];
        f.block(*b).term.successors().map(move |s| (s, from)).collect::<Vec<_>>()
    };
    order.iter().flat_map(across).map(|(s, from)| layer[s.index()].abs_diff(from)).sum()
}

#[cfg(test)]
mod tests {
    use bpf_program::ProgKind;
    use bpf_testgen::listing;

    use super::*;

    fn graph(text: &str) -> Graph {
        Graph::laid_out(&listing::function(ProgKind::Xdp, text), &[], &[])
    }

    /// A function of so many tests, each of which may leave to the end.
    fn ladder(tests: usize) -> String {
        let tests = (0..tests).map(|i| format!("if r1 == {i} goto a\nr0 = {i}\n"));
        tests.collect::<String>() + "a: exit"
    }

    fn no_two_overlap(g: &Graph) {
        for (i, a) in g.nodes.iter().enumerate() {
            for b in &g.nodes[i + 1..] {
                let apart = a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y;
                assert!(apart, "{:?} {:?}", (a.x, a.y, a.w, a.h), (b.x, b.y, b.w, b.h));
            }
            assert!(a.x >= 0.0 && a.y >= 0.0 && a.x + a.w <= g.width && a.y + a.h <= g.height);
        }
    }

    #[test]
    fn blocks_stand_apart() {
        let graphs =
            ["r0 = 0\nexit", "r0 = 0\na: r0 += 1\nif r0 < 10 goto a\nexit", "a: if r1 == 0 goto a\nexit", &ladder(40)];
        for text in graphs {
            let g = graph(text);
            assert!(!g.column);
            no_two_overlap(&g);
        }
    }

    #[test]
    fn large_graphs_are_one_column() {
        let g = graph(&ladder(BLOCKS));
        assert!(g.column && g.nodes.len() > BLOCKS);
        no_two_overlap(&g);
        // Few blocks, but each edge to the end crosses all layers below it.
        assert!(graph(&ladder(120)).column);
    }
}
