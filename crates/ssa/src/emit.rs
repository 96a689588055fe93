//! From allocated registers to the graph of a function: moves in order, edges with moves, r10.
//!
//! Moves that happen at once are put in an order in which none destroys what another reads; a cycle goes through a
//! register that is free there. The moves of an edge stand at the end of the block it leaves, if that is its only edge,
//! or if on the other one nobody reads the registers they set; else in a block of their own.

use bpf_isa::{AluOp, Insn, Reg, RegSet, Src, Width};
use bpf_program::{Block as Basic, BlockId, Function, Op, Terminator};

use crate::allocate::{Allocation, From, Node, Step, Units, back};
use crate::select::{self, FIRST, Machine, MachineEdge, MachineInst, MachineTerm, RESULT, SECOND, constant};

/// Makes the graph; `None` if moves form a cycle and no register is free.
pub(crate) fn emit(original: &Function, m: &Machine, units: &Units, a: &Allocation) -> Option<Function> {
    let empty = Basic { ops: vec![], term: Terminator::Exit { origin: None } };
    let mut blocks = vec![empty; m.blocks.len()];
    let mut layout: Vec<BlockId> = vec![];
    let ops_of = |u: usize, insts: &[MachineInst]| -> Option<Vec<Op>> {
        let mut live = units.live_end(u);
        let mut after: Vec<RegSet> = vec![];
        for s in units.units[u].steps.iter().rev() {
            after.push(a.regs(&live));
            back(s, &mut live);
        }
        after.reverse();
        let mut ops = vec![];
        let mut origin = insts.iter().find_map(|i| i.origin);
        for (s, after) in units.units[u].steps.iter().zip(after) {
            match s {
                Step::Moves(moves) => ops.extend(in_order(moves, a, after, origin)?),
                Step::Inst { i, reads, sets, .. } => {
                    let inst = &insts[*i];
                    origin = inst.origin;
                    let reads: Vec<Reg> = reads.iter().map(|n| a.reg(*n)).collect();
                    emit_inst(inst, &reads, sets.map_or(Reg::R0, |n| a.reg(n)), &mut ops);
                }
            }
        }
        Some(without_known_copies(ops))
    };
    let mut extra: Vec<(Basic, BlockId)> = vec![];
    for &b in &m.layout {
        let block = &m.blocks[b.index()];
        let mut ops = ops_of(b.index(), &block.insts)?;
        let edge_ops: Vec<Vec<Op>> = (0..block.term.edges().count())
            .map(|n| units.edges.get(&(b, n)).map_or(Some(vec![]), |u| ops_of(*u, &[])))
            .collect::<Option<_>>()?;
        let mut term = terminator(&block.term, a);
        // What the end reads and what each edge needs at its start.
        let reads = term.uses();
        let needs = |n: usize, e: &MachineEdge| match units.edges.get(&(b, n)) {
            Some(u) => a.regs(&units.live_in[*u]),
            None => a.regs(&units.live_in[e.to.index()]),
        };
        let edges: Vec<&MachineEdge> = block.term.edges().collect();
        let mut placed = vec![false; edges.len()];
        for n in 0..edges.len() {
            let sets = edge_ops[n].iter().fold(RegSet::EMPTY, |s, o| s.union(o.insn.defs()));
            if edge_ops[n].is_empty() {
                placed[n] = true;
                continue;
            }
            let others = (0..edges.len()).filter(|k| *k != n);
            let free = others.fold(reads, |s, k| s.union(needs(k, edges[k])));
            let alone = edges.len() == 1;
            // Only one of two may: the other's moves then come after them.
            if alone || sets.intersect(free).is_empty() && !placed.iter().take(n).any(|p| *p && !edge_ops[0].is_empty())
            {
                ops.extend(edge_ops[n].clone());
                placed[n] = true;
            }
        }
        let mut targets: Vec<BlockId> = edges.iter().map(|e| BlockId(e.to.0)).collect();
        let mut between = vec![];
        for n in 0..edges.len() {
            if !placed[n] {
                let id = BlockId((blocks.len() + extra.len()) as u32);
                extra.push((Basic { ops: edge_ops[n].clone(), term: Terminator::Goto(targets[n]) }, targets[n]));
                targets[n] = id;
                between.push(id);
            }
        }
        let mut n = 0;
        term.map_successors(|_| {
            n += 1;
            targets[n - 1]
        });
        blocks[b.index()] = Basic { ops, term };
        layout.push(BlockId(b.0));
        layout.extend(between.into_iter().rev());
    }
    blocks.extend(extra.into_iter().map(|(b, _)| b));
    Some(Function {
        name: original.name.clone(),
        kind: original.kind,
        arguments: original.arguments.clone(),
        byte_order: original.byte_order,
        blocks,
        layout,
    })
}

/// Without moves to registers that hold the same already.
fn without_known_copies(ops: Vec<Op>) -> Vec<Op> {
    let mut holds: [usize; 11] = std::array::from_fn(|i| i);
    let mut next = 11;
    let known = |op: &Op| {
        let copy = match op.insn {
            Insn::Mov { width: Width::W64, dst, src: Src::Reg(src) } if op.link.is_none() => Some((dst, src)),
            _ => None,
        };
        if let Some((dst, src)) = copy {
            let same = holds[dst.index()] == holds[src.index()];
            holds[dst.index()] = holds[src.index()];
            return !same;
        }
        for r in op.insn.defs().iter() {
            holds[r.index()] = next;
            next += 1;
        }
        true
    };
    let mut ops = ops;
    ops.retain(known);
    ops
}

/// The instruction in registers: those of its operands, and that of its result.
pub(crate) fn emit_inst(inst: &MachineInst, reads: &[Reg], result: Reg, ops: &mut Vec<Op>) {
    let read = |n: usize| reads.get(n).copied().unwrap_or(Reg::R0);
    if select::is_frame_address(inst) {
        let mov = Insn::Mov { width: Width::W64, dst: result, src: Src::Reg(Reg::R10) };
        ops.push(Op::with_origin(mov, inst.origin));
        if let Insn::Alu { src, .. } = inst.insn {
            let add = Insn::Alu { op: AluOp::Add, width: Width::W64, dst: result, src };
            ops.push(Op::with_origin(add, inst.origin));
        }
        return;
    }
    let insn = inst.insn.map_regs(|r| match r {
        RESULT => result,
        FIRST => read(0),
        SECOND => read(1),
        other => other,
    });
    if let Insn::Mov { width: Width::W64, dst, src } = insn
        && src == Src::Reg(dst)
        && inst.link.is_none()
    {
        return;
    }
    ops.push(Op { insn, origin: inst.origin, link: inst.link.clone() });
}

fn terminator(t: &MachineTerm, a: &Allocation) -> Terminator {
    let none = BlockId(0);
    match t {
        MachineTerm::Goto(_) => Terminator::Goto(none),
        MachineTerm::Branch { cond, width, a: left, b, frame, origin, .. } => {
            let dst = if frame[0] { Reg::R10 } else { a.reg(Node::of(*left)) };
            let src = match b {
                Err(n) => Src::Imm(*n),
                Ok(_) if frame[1] => Src::Reg(Reg::R10),
                Ok(v) => Src::Reg(a.reg(Node::of(*v))),
            };
            Terminator::Branch { cond: *cond, width: *width, dst, src, taken: none, fall: none, origin: *origin }
        }
        MachineTerm::MayGoto { origin, .. } => Terminator::MayGoto { taken: none, fall: none, origin: *origin },
        MachineTerm::Exit { origin, .. } => Terminator::Exit { origin: *origin },
    }
}

/// Moves that happen at once, one after the other. `after`: registers needed behind them.
fn in_order(moves: &[(Node, From)], a: &Allocation, after: RegSet, origin: Option<usize>) -> Option<Vec<Op>> {
    let mov = |dst: Reg, src: Reg| Op::with_origin(Insn::Mov { width: Width::W64, dst, src: Src::Reg(src) }, origin);
    let mut ops = vec![];
    let mut regs: Vec<(Reg, Reg)> = vec![];
    let mut others = vec![];
    for (d, f) in moves {
        let dst = a.reg(*d);
        match f {
            From::Node(n) if a.reg(*n) == dst => {}
            From::Node(n) => regs.push((dst, a.reg(*n))),
            other => others.push((dst, *other)),
        }
    }
    regs.dedup();
    let all = moves.iter().fold(after, |s, (d, f)| {
        let s = s.with(a.reg(*d));
        match f {
            From::Node(n) => s.with(a.reg(*n)),
            _ => s,
        }
    });
    while !regs.is_empty() {
        let ready = regs.iter().position(|(d, _)| !regs.iter().any(|(_, s)| s == d));
        match ready {
            Some(i) => {
                let (d, s) = regs.swap_remove(i);
                ops.push(mov(d, s));
            }
            None => {
                let free = (0..10).filter_map(Reg::new).find(|r| !all.contains(*r))?;
                let (_, s) = regs[0];
                ops.push(mov(free, s));
                regs.iter_mut().filter(|(_, x)| *x == s).for_each(|(_, x)| *x = free);
            }
        }
    }
    for (dst, f) in others {
        match f {
            From::Const(c) => ops.push(Op::with_origin(constant(c, dst), origin)),
            From::Frame(n) => {
                ops.push(mov(dst, Reg::R10));
                if n != 0 {
                    let add = Insn::Alu { op: AluOp::Add, width: Width::W64, dst, src: Src::Imm(n) };
                    ops.push(Op::with_origin(add, origin));
                }
            }
            From::Node(_) => {}
        }
    }
    Some(ops)
}
