//! An offset that is a join of constants becomes a moving pointer.
//!
//! ```text
//! before: b1: goto b3(14)                after: b1: v4 = add v1, 14;  goto b3(v4)
//!         b2: goto b3(18)                       b2: v5 = add v1, 18;  goto b3(v5)
//!         b3(v2): v3 = add v1, v2               b3(v3): load u8 [v3 + 9]
//!                 load u8 [v3 + 9]
//! ```
//! A family of offsets (parameters of blocks, and sums of them and constants) is taken as a whole: all that comes into it
//! are constants and members, and all that is done with it are sums with one and the same pointer, which is there
//! wherever a constant comes in. Every member then is that pointer plus what it was; the sums go. Often the pointers to
//! begin with are there already, because a bounds check needed them.

use bpf_facts::{Env, Kind};
use bpf_isa::{AluOp, Insn, Reg, Src, Width};
use rustc_hash::FxHashMap;

use super::fold::{Definitions, num};
use super::pass::Pass;
use crate::graph::Graph;
use crate::{Block, Inst, Op, Operand, Ssa, Value};

/// The pass.
pub struct Moving;

/// Members of a family, at most.
const MEMBERS: usize = 32;
/// Offsets stay below this, so that sums in 32 bits are sums.
const SMALL: u64 = 1 << 20;

impl Pass for Moving {
    fn name(&self) -> &'static str {
        "ssa-moving-pointers"
    }

    fn run(&self, f: &mut Ssa, _: &Env<'_>) -> bool {
        move_families(f, false)
    }
}

/// Makes moving pointers of all families of offsets, and keeps the offsets beside them or not; whether there was one.
fn move_families(f: &mut Ssa, beside: bool) -> bool {
    let mut changed = false;
    loop {
        let graph = Graph::of(f);
        let d = Definitions::of(f);
        let params: Vec<Value> = f.layout[1..].iter().flat_map(|b| f.block(*b).params.clone()).collect();
        let Some(family) = params.into_iter().find_map(|p| Family::of(f, &graph, &d, p)) else { return changed };
        family.apply(f, beside);
        if !beside {
            super::dead::remove(f);
        }
        changed = true;
    }
}

/// The same with the offsets kept beside the pointers: the two programs then have the offsets in common, and a proof can
/// say what the pointers are.
pub struct Beside;

impl Pass for Beside {
    fn name(&self) -> &'static str {
        "ssa-moving-pointers-beside"
    }

    fn run(&self, f: &mut Ssa, _: &Env<'_>) -> bool {
        move_families(f, true)
    }
}

/// The sum of two registers.
const SUM: Insn = Insn::Alu { op: AluOp::Add, width: Width::W64, dst: Reg::R1, src: Src::Reg(Reg::R2) };

/// What an edge gives a member's pointer: a pointer, or the constant that the member is, which is this operand.
type Given = Result<Operand, (i64, Operand)>;

struct Family {
    base: Operand,
    members: Vec<Value>,
}

/// Where a value is read.
enum Read {
    /// Operand of the instruction that gives this.
    Inst(Block, usize),
    /// Argument of this parameter.
    Param(Value),
    Else,
}

fn reads(f: &Ssa, v: Value) -> Vec<Read> {
    let me = Operand::Value(v);
    let mut out = vec![];
    for &b in &f.layout {
        let block = f.block(b);
        out.extend(block.insts.iter().enumerate().filter(|(_, i)| i.args.contains(&me)).map(|(n, _)| Read::Inst(b, n)));
        out.extend(block.term.reads().filter(|o| *o == me).map(|_| Read::Else));
        for e in block.term.edges() {
            let params = f.block(e.to).params.iter().zip(&e.args);
            out.extend(params.filter(|(_, a)| **a == me).map(|(p, _)| Read::Param(*p)));
        }
    }
    out
}

/// What comes into a parameter, and from which block.
fn incoming(f: &Ssa, p: Value) -> Vec<(Block, Operand)> {
    let mut out = vec![];
    for &b in &f.layout {
        for e in f.block(b).term.edges() {
            let params = f.block(e.to).params.iter().zip(&e.args);
            out.extend(params.filter(|(q, _)| **q == p).map(|(_, a)| (b, *a)));
        }
    }
    out
}

/// The constant that is added to a value.
fn added(d: &Definitions, i: &Inst, v: Value) -> Option<i64> {
    match i.op {
        Op::Alu(AluOp::Add, _) if i.args[0] == Operand::Value(v) => d.constant(i.args[1]),
        Op::Low32 => Some(0),
        _ => None,
    }
}

impl Family {
    fn of(f: &Ssa, graph: &Graph, d: &Definitions, start: Value) -> Option<Family> {
        let mut members = vec![start];
        let mut base: Option<Operand> = None;
        let mut at = 0;
        let mut sums = 0;
        while at < members.len() {
            let v = members[at];
            at += 1;
            if members.len() > MEMBERS || num(f, d, Operand::Value(v)).umax >= SMALL {
                return None;
            }
            for r in reads(f, v) {
                match r {
                    Read::Else => return None,
                    Read::Param(p) if members.contains(&p) => {}
                    Read::Param(p) => members.push(p),
                    Read::Inst(b, n) => {
                        let i = &f.block(b).insts[n];
                        let result = i.result?;
                        if added(d, i, v).is_some() {
                            if !members.contains(&result) {
                                members.push(result);
                            }
                            continue;
                        }
                        let Op::Alu(AluOp::Add, Width::W64) = i.op else { return None };
                        let other = if i.args[0] == Operand::Value(v) { i.args[1] } else { i.args[0] };
                        let is_pointer = matches!(f.fact(other).kind, Kind::Pointer { .. });
                        if !is_pointer || base.is_some_and(|b| b != other) {
                            return None;
                        }
                        base = Some(other);
                        sums += 1;
                    }
                }
            }
            // Where it comes from.
            for (_, o) in incoming(f, v) {
                match o {
                    o if d.constant(o).is_some() => {}
                    Operand::Value(w) if members.contains(&w) => {}
                    Operand::Value(w) => members.push(w),
                    _ => return None,
                }
            }
            if let Some((op, args)) = d.get(v) {
                // A sum of a member.
                match (op, args.first()) {
                    (Op::Alu(AluOp::Add, _) | Op::Low32, Some(Operand::Value(w))) => {
                        let fits = args.get(1).is_none_or(|c| d.constant(*c).is_some());
                        if !fits {
                            return None;
                        }
                        if !members.contains(w) {
                            members.push(*w);
                        }
                    }
                    _ => return None,
                }
            } else if incoming(f, v).is_empty() {
                return None;
            }
        }
        let base = base.filter(|_| sums > 0)?;
        // The pointer is there where constants come in.
        let home = base.value().and_then(|v| {
            f.layout.iter().copied().find(|b| {
                let block = f.block(*b);
                block.params.contains(&v) || block.insts.iter().any(|i| i.result == Some(v))
            })
        })?;
        for m in &members {
            for (from, o) in incoming(f, *m) {
                if d.constant(o).is_some() && !graph.dominates(home, from) {
                    return None;
                }
            }
        }
        Some(Family { base, members })
    }

    /// Gives every member a pointer beside it, and has the sums be those. The members themselves are then read by nobody
    /// else; with `keep` they stay all the same.
    fn apply(&self, f: &mut Ssa, keep: bool) {
        let d = Definitions::of(f);
        let fact = bpf_facts::Value { num: bpf_facts::Num::top(64), ..f.fact(self.base) };
        let moving: FxHashMap<Value, Value> =
            self.members.iter().map(|m| (*m, f.new_value(fact.clone(), None))).collect();
        let as_pointer = |o: Operand| o.value().and_then(|v| moving.get(&v)).map(|v| Operand::Value(*v));
        let mut with: FxHashMap<Value, Operand> = FxHashMap::default();
        // What each edge adds, before parameters are added.
        let mut given: Vec<(Block, Vec<Vec<Given>>)> = vec![];
        for &b in &f.layout {
            let mut edges = vec![];
            for e in f.block(b).term.edges() {
                let params = f.block(e.to).params.iter().zip(&e.args);
                let mine = params.filter(|(p, _)| moving.contains_key(p));
                edges.push(mine.map(|(_, a)| as_pointer(*a).ok_or((d.constant(*a).unwrap_or(0), *a))).collect());
            }
            given.push((b, edges));
        }
        for (b, edges) in given {
            let mut made: Vec<(i64, Operand)> = vec![];
            let mut args = vec![];
            for edge in edges {
                let mut mine = vec![];
                for a in edge {
                    mine.push(match a {
                        Ok(p) => p,
                        Err((c, off)) => match made.iter().find(|(k, _)| *k == c) {
                            Some((_, p)) => *p,
                            None => {
                                let v = f.new_value(fact.clone(), None);
                                let origin = f.block(b).insts.last().and_then(|i| i.origin);
                                let op = Op::Alu(AluOp::Add, Width::W64);
                                let sum = match off {
                                    // The offset is added, not the number that it is: this is what the proof looks for.
                                    Operand::Value(_) if keep => {
                                        Inst::new(Op::Opaque(SUM), vec![self.base, off], Some(v), origin)
                                    }
                                    _ => Inst::new(op, vec![self.base, Operand::Const(c)], Some(v), origin),
                                };
                                f.block_mut(b).insts.push(sum);
                                made.push((c, Operand::Value(v)));
                                Operand::Value(v)
                            }
                        },
                    });
                }
                args.push(mine);
            }
            for (e, mine) in f.block_mut(b).term.edges_mut().zip(args) {
                e.args.extend(mine);
            }
        }
        for b in f.layout.clone() {
            let mut block = f.block(b).clone();
            let joins: Vec<Value> = block.params.iter().copied().filter(|p| moving.contains_key(p)).collect();
            block.params.extend(joins.iter().map(|p| moving[p]));
            let mut insts = vec![];
            if keep {
                let kept = joins.iter().map(|p| Operand::Value(*p)).chain((!joins.is_empty()).then_some(self.base));
                insts.extend(kept.map(|o| Inst::new(Op::Keep, vec![o], None, None)));
            }
            for i in block.insts {
                let pointer = i.args.iter().find_map(|o| as_pointer(*o));
                match (i.result, pointer) {
                    (Some(v), Some(p)) if !moving.contains_key(&v) => {
                        with.insert(v, p);
                    }
                    (Some(v), Some(p)) => {
                        let c = i.args.get(1).map_or(0, |c| d.constant(*c).unwrap_or(0));
                        let sum = Inst::new(
                            Op::Alu(AluOp::Add, Width::W64),
                            vec![p, Operand::Const(c)],
                            Some(moving[&v]),
                            i.origin,
                        );
                        insts.extend([i, sum]);
                    }
                    _ => insts.push(i),
                }
            }
            block.insts = insts;
            *f.block_mut(b) = block;
        }
        f.replace(&with);
    }
}
