//! Graphs of questions in the language of Graphviz, as `tcpdump -DD` shows classic BPF: `dot -Tsvg`.
//!
//! A node is a question about a value of the packet, written as [`crate::listing`] writes operations, and its edges are the answers:
//! `yes` and `no`, or the numbers that lead there.

use std::fmt::{Display, Write as _};

use crate::decision::{Decision, DecisionId, Decisions};
use crate::graph::{Graph, Lookup, Target, Test};
use crate::listing::place;
use crate::tree::symbol;
use crate::tuples::Members;
use crate::value::{Value, ValueId, Values, Variable};

/// The predicate graph: what is tested, as the filter stands.
pub(crate) fn of_graph(graph: &Graph) -> String {
    let mut dot = Dot::new(name(graph.entry));
    for (i, block) in graph.blocks.iter().enumerate() {
        let text = |value: ValueId| text(&graph.values, value);
        let sets = block.sets.iter().map(|(v, value)| format!("{} = {}\n", variable(*v), text(*value)));
        let test = match &block.test {
            Test::Compare(relation, a, b) => format!("{} {} {}", text(*a), symbol(*relation), text(*b)),
            Test::Member(value, set) => format!("{} in {set}", text(*value)),
            Test::Among(words, members) => among(&graph.values, words, members),
            Test::Lookup(lookup) => in_map(&graph.values, lookup),
            Test::Chain(chain) => chain.to_string(),
        };
        let node = name(Target::Block(i));
        dot.node(&node, &format!("{}{test}", sets.collect::<String>()));
        dot.edge(&node, &name(block.yes), "yes");
        dot.edge(&node, &name(block.no), "no");
    }
    dot.finish()
}

/// The graph of decisions that the optimizer made.
pub(crate) fn of_decisions(values: &Values, decisions: &Decisions, root: DecisionId) -> String {
    let name = |id: DecisionId| match id {
        DecisionId::ACCEPT => name(Target::Accept),
        DecisionId::REJECT => name(Target::Reject),
        DecisionId(i) => name(Target::Block(i as usize)),
    };
    let mut dot = Dot::new(name(root));
    for id in decisions.reached(root) {
        let node = name(id);
        match decisions.get(id) {
            Decision::Reject | Decision::Accept => {}
            Decision::Bound { base, end, next } => {
                let base = base.map(|b| within(values, b));
                dot.node(&node, &format!("captured >= {}", place(base, *end)));
                dot.edge(&node, &name(*next), "yes");
                dot.edge(&node, &name(DecisionId::REJECT), "no");
            }
            Decision::Note { predicate, next } => {
                dot.node(&node, &format!("predicate {predicate}"));
                dot.edge(&node, &name(*next), "");
            }
            Decision::NotZero { value, next } => {
                dot.node(&node, &format!("{} != 0", text(values, *value)));
                dot.edge(&node, &name(*next), "yes");
                dot.edge(&node, &name(DecisionId::REJECT), "no");
            }
            Decision::Switch { value, cases, default } => match &cases[..] {
                [(set, to)] => {
                    dot.node(&node, &format!("{} in {set}", text(values, *value)));
                    dot.edge(&node, &name(*to), "yes");
                    dot.edge(&node, &name(*default), "no");
                }
                _ => {
                    dot.node(&node, &text(values, *value));
                    cases.iter().for_each(|(set, to)| dot.edge(&node, &name(*to), &set.to_string()));
                    dot.edge(&node, &name(*default), "else");
                }
            },
            Decision::Among { words, members, yes, no } => {
                dot.node(&node, &among(values, words, members));
                dot.edge(&node, &name(*yes), "yes");
                dot.edge(&node, &name(*no), "no");
            }
            Decision::Lookup { lookup, yes, no } => {
                dot.node(&node, &in_map(values, lookup));
                dot.edge(&node, &name(*yes), "yes");
                dot.edge(&node, &name(*no), "no");
            }
            Decision::Chain { chain, yes, no } => {
                dot.node(&node, &chain.to_string());
                dot.edge(&node, &name(*yes), "yes");
                dot.edge(&node, &name(*no), "no");
            }
        }
    }
    dot.finish()
}

fn name(target: Target) -> String {
    match target {
        Target::Block(i) => format!("b{i}"),
        Target::Accept => "accept".to_owned(),
        Target::Reject => "reject".to_owned(),
    }
}

/// Whether words are those of one of some keys.
fn among(values: &Values, words: &[ValueId], members: &Members) -> String {
    let words: Vec<String> = words.iter().map(|word| text(values, *word)).collect();
    format!("{} among {} keys", words.join(", "), members.0.len())
}

/// Whether a map that user space changes holds words.
fn in_map(values: &Values, Lookup { map, key }: &Lookup) -> String {
    let words: Vec<String> = key.iter().map(|word| text(values, *word)).collect();
    format!("{} in map {map}", words.join(", "))
}

fn variable(Variable(i): Variable) -> String {
    format!("x{i}")
}

/// A value as an expression.
fn text(values: &Values, id: ValueId) -> String {
    match values.get(id) {
        Value::Constant(n) => format!("{n:#x}"),
        Value::Length => "length".to_owned(),
        Value::Ancillary(what) => format!("{what:?}"),
        Value::Variable(v) => variable(v),
        Value::Load { base, offset, size } => {
            format!("packet[{}:{size}]", place(base.map(|b| within(values, b)), u64::from(offset)))
        }
        Value::Binary(op, a, b) => format!("{} {} {}", within(values, a), op.symbol(), within(values, b)),
        Value::Negate(a) => format!("-{}", within(values, a)),
        Value::IsGreater(a, b) => format!("{} > {}", within(values, a), within(values, b)),
    }
}

/// A value as an operand; one of very many others has a name only: headers behind headers share what they are computed of.
fn within(values: &Values, id: ValueId) -> String {
    match values.get(id) {
        _ if !is_short(values, id) => format!("v{}", id.0),
        Value::Binary(..) | Value::IsGreater(..) => format!("({})", text(values, id)),
        _ => text(values, id),
    }
}

/// Whether a value's text, with all that it is computed of, is of a length to be read.
fn is_short(values: &Values, id: ValueId) -> bool {
    const MOST: usize = 100;
    let mut open = vec![id];
    let mut seen = 0;
    while let Some(id) = open.pop() {
        open.extend(values.operands(id));
        seen += 1;
        if seen > MOST {
            return false;
        }
    }
    true
}

/// A graph in the making. Its ends stand at the bottom.
struct Dot(String);

impl Dot {
    fn new(entry: impl Display) -> Dot {
        let mut out = String::from("digraph filter {\n    node [shape=box, fontname=monospace];\n");
        out.push_str("    entry [shape=point];\n");
        out.push_str("    { rank=sink; accept [shape=oval]; reject [shape=oval]; }\n");
        let _ = writeln!(out, "    entry -> {entry};");
        Dot(out)
    }

    fn node(&mut self, name: &str, label: &str) {
        let _ = writeln!(self.0, "    {name} [label={}];", quoted(label));
    }

    fn edge(&mut self, from: &str, to: &str, label: &str) {
        let _ = writeln!(self.0, "    {from} -> {to} [label={}];", quoted(label));
    }

    fn finish(mut self) -> String {
        self.0.push_str("}\n");
        self.0
    }
}

/// A string of the language: lines stand one below the other.
fn quoted(label: &str) -> String {
    format!("\"{}\"", label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
