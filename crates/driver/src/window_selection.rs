//! Where windows are: stretches of blocks, and superblocks around the side exits of paths.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};

use bpf_facts::Live;
use bpf_isa::Insn;
use bpf_passes::{Settings, View};
use bpf_program::Op;
use bpf_prove::superblock::{is_side_exit, side_exits};
use bpf_search::Window;
use bpf_search::batch::NOP;
use bpf_search::superblock::Exits;
use bpf_search::window::plain;
use rustc_hash::FxHasher;

/// Operations of a window at most. Longer stretches are covered by overlapping windows.
const LONGEST: usize = 12;
/// Side exits of a superblock at most.
const EXITS: usize = 3;
/// Distance of overlapping windows.
const STRIDE: usize = 5;
/// The operations of a window, which a superblock has room between, and what else it is.
pub(crate) struct Text<'v> {
    ops: Cow<'v, [Op]>,
    live: Live,
    superblock: Option<Exits>,
}

impl<'v> Text<'v> {
    /// The window at these operations of a view.
    pub(crate) fn new(view: &'v View, start: usize, end: usize) -> Text<'v> {
        let ops = &view.ops[start..end];
        let (first, n) = (side_exits(&view.ops[..start]), side_exits(ops));
        if n == 0 {
            return Text { ops: Cow::Borrowed(ops), live: view.live[end], superblock: None };
        }
        // Room on both sides of each side exit, for what comes across.
        let room = Op::with_origin(NOP, ops[0].origin);
        let mut roomy = Vec::with_capacity(ops.len() + 2 * n);
        for op in ops {
            let exit = is_side_exit(&op.insn);
            roomy.extend(exit.then(|| room.clone()));
            roomy.push(op.clone());
            roomy.extend(exit.then(|| room.clone()));
        }
        let superblock = Exits::new(&roomy, view.sides[first..first + n].to_vec(), view.live[end]);
        let live = superblock.as_ref().map_or(view.live[end], Exits::live);
        Text { ops: Cow::Owned(roomy), live, superblock }
    }

    /// As the search sees it.
    pub(crate) fn window<'a>(&'a self, view: &'a View<'a>, start: usize, settings: &Settings) -> Window<'a> {
        Window {
            kind: view.kind(),
            env: view.env,
            before: &view.states[start],
            old: &self.ops,
            live: &self.live,
            superblock: self.superblock.as_ref(),
            cpu: settings.cpu,
            goal: settings.goal,
            deadline: settings.deadline,
        }
    }
}

/// Around each side exit of a path, as much as a window holds.
pub(crate) fn superblocks(ops: &[Op]) -> Vec<(usize, usize)> {
    let inside = |o: &Op| plain(&o.insn) || is_side_exit(&o.insn);
    let mut out = Vec::new();
    for j in (0..ops.len()).filter(|j| is_side_exit(&ops[*j].insn)) {
        let before = ops[..j].iter().rev().take_while(|o| inside(o)).count();
        let after = ops[j + 1..].iter().take_while(|o| inside(o)).count();
        let half = LONGEST / 2;
        let left = before.min(LONGEST - after.min(half));
        let right = after.min(LONGEST - left);
        let (mut start, mut end) = (j - left, j + 1 + right);
        // A side exit at the edge has nothing beyond it.
        while start < j && is_side_exit(&ops[start].insn) {
            start += 1;
        }
        while end > j + 1 && is_side_exit(&ops[end - 1].insn) {
            end -= 1;
        }
        if end - start > 2 && end > j + 1 && side_exits(&ops[start..end]) <= EXITS {
            out.push((start, end));
        }
    }
    out.dedup();
    out
}

/// Overlapping windows between calls.
pub(crate) fn stretches(ops: &[Op]) -> Vec<(usize, usize)> {
    let mut out = Vec::new();
    let mut at = 0;
    for run in ops.split(|o| !plain(&o.insn)) {
        let (start, end) = (at, at + run.len());
        at = end + 1;
        if run.len() < 2 {
            continue;
        }
        let mut s = start;
        loop {
            let e = (s + LONGEST).min(end);
            out.push((s, e));
            if e == end {
                break;
            }
            s = (s + STRIDE).min(end - LONGEST.min(end - start));
        }
    }
    out
}

/// Identity of a window with what matters around it.
pub(crate) fn key(w: &Window, candidate: usize) -> u64 {
    let (ops, before, live) = (w.old, w.before, w.live);
    let mut h = FxHasher::default();
    candidate.hash(&mut h);
    for o in ops {
        o.insn.hash(&mut h);
        o.link.hash(&mut h);
    }
    live.regs.hash(&mut h);
    live.stack.hash(&mut h);
    w.superblock.map(|r| r.exits.iter().map(|e| (e.live.regs, e.live.stack)).collect::<Vec<_>>()).hash(&mut h);
    let read = ops.iter().rev().fold(live.regs, |l, o| l.minus(o.insn.defs()).union(o.insn.uses()));
    read.iter().for_each(|r| before.reg(r).hash(&mut h));
    h.finish()
}

/// Windows that are alike in what they are made of.
pub(crate) fn class(ops: &[Op]) -> u64 {
    let count = |f: fn(&Insn) -> bool| ops.iter().filter(|o| f(&o.insn)).count().min(3) as u64;
    let loads = count(|i| matches!(i, Insn::Load { .. }));
    let stores = count(|i| matches!(i, Insn::Store { .. }));
    let shifts = count(
        |i| matches!(i, Insn::Alu { op, .. } if matches!(op, bpf_isa::AluOp::Lsh | bpf_isa::AluOp::Rsh | bpf_isa::AluOp::Arsh)),
    );
    let moves = count(|i| matches!(i, Insn::Mov { .. }));
    let exits = count(is_side_exit);
    exits << 16 | loads | stores << 2 | shifts << 4 | moves << 6 | (ops.len() as u64 / 4) << 8
}
