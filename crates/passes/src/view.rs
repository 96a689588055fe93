//! One block, or a path through several, as a pass sees it.

use std::cell::Cell;

use bpf_facts::{Env, Live, State, Value};
use bpf_isa::{AtomicOp, Class, Costs, Insn, Reg};
use bpf_program::{BlockId, ByteOrder, Function, Op, ProgKind, Terminator};
use bpf_prove::superblock::is_side_exit;
use bpf_prove::{Known, Points, Rewrite};

use crate::settings::Settings;

/// A block, or a path, with the facts before each operation and the liveness around each.
pub struct View<'a> {
    function: &'a Function,
    /// What was made of it follows from more than this view shows.
    is_part: Cell<bool>,
    /// The block, or the first one of a path.
    pub block: BlockId,
    /// The others of a path.
    pub path: &'a [BlockId],
    /// Its operations; on a path the code of the superblock ([`bpf_prove::superblock`]).
    pub ops: &'a [Op],
    /// Its terminator.
    pub term: &'a Terminator,
    /// Facts before each operation, and before the terminator.
    pub states: &'a [State],
    /// Liveness before each operation, before the terminator, and at the end.
    pub live: &'a [Live],
    /// What is live where each side exit leaves the path.
    pub sides: &'a [Live],
    /// Maps and callees.
    pub env: &'a Env<'a>,
    /// What is allowed.
    pub settings: &'a Settings,
    /// Whether the facts are those of the function as it stands, so that dead values count, too.
    pub fresh: bool,
    /// Where all this comes from.
    pub points: &'a Points,
}

impl<'a> View<'a> {
    /// The view of the block or path that `points` are about, in the function they are about.
    pub fn new(f: &'a Function, points: &'a Points, env: &'a Env<'a>, settings: &'a Settings) -> View<'a> {
        let path = points.path();
        let last = path.last().copied().unwrap_or(points.block());
        View {
            function: f,
            is_part: Cell::new(false),
            block: points.block(),
            path,
            ops: points.ops(f),
            term: &f.block(last).term,
            states: points.states(),
            live: points.live(),
            sides: points.sides(),
            env,
            settings,
            fresh: points.with_dead(),
            points,
        }
    }

    /// The function. What is made of it does not follow from this view alone, so that it is asked again when the view is the same.
    pub fn function(&self) -> &'a Function {
        self.look_beyond();
        self.function
    }

    /// Something else than this view has an influence on what is made of it.
    pub(crate) fn look_beyond(&self) {
        self.is_part.set(true);
    }

    /// Whether what was made of this view so far follows from it alone.
    pub(crate) fn is_all(&self) -> bool {
        !self.is_part.get()
    }

    /// What the judge may assume.
    pub fn known(&self) -> Known<'_> {
        self.points.known()
    }

    /// What is live after operation `i`.
    pub fn live_after(&self, i: usize) -> &Live {
        &self.live[i + 1]
    }

    /// Value of a register before operation `i`.
    pub fn value(&self, i: usize, r: Reg) -> &Value {
        self.states[i].reg(r)
    }

    /// The constant a register holds before operation `i`.
    pub fn constant(&self, i: usize, r: Reg) -> Option<u64> {
        self.value(i, r)
            .as_const()
            .filter(|_| self.fresh || self.live[i].regs.contains(r) || self.defined_in_block(i, r))
    }

    /// Whether `r` got its value inside this block before operation `i`.
    pub fn defined_in_block(&self, i: usize, r: Reg) -> bool {
        self.ops[..i].iter().any(|o| o.insn.defs().contains(r))
    }

    /// Whether it is safe to read `r` before operation `i`: it is live into the block or set in it.
    pub fn readable(&self, i: usize, r: Reg) -> bool {
        match self.ops[..i].iter().rposition(|o| o.insn.defs().contains(r)) {
            Some(d) => !matches!(self.ops[d].insn, Insn::Call(_) | Insn::CallX { .. }) || r == Reg::R0,
            // A dead register may be read again if the facts say that it holds something.
            None => {
                self.live[0].regs.contains(r) || r == Reg::R10 || (self.fresh && !self.states[0].reg(r).is_unknown())
            }
        }
    }

    /// A proposal to replace operations `start..end`.
    pub fn replace(&self, start: usize, end: usize, with: Vec<Op>, by: &'static str) -> Rewrite {
        Rewrite { block: self.block, path: self.path.to_vec(), start, end, with, term: None, by }
    }

    /// A proposal to replace everything from `start` on, terminator included.
    pub fn replace_tail(&self, start: usize, with: Vec<Op>, term: Terminator, by: &'static str) -> Rewrite {
        let path = self.path.to_vec();
        Rewrite { block: self.block, path, start, end: self.ops.len(), with, term: Some(term), by }
    }

    /// An operation that inherits the line of operation `i`.
    pub fn op_like(&self, i: usize, insn: Insn) -> Op {
        Op::with_origin(insn, self.ops[i].origin)
    }

    /// Copies of operations `range` with those in `drop` left out and those in `swap` replaced.
    pub fn edit(&self, start: usize, end: usize, drop: &[usize], swap: &[(usize, Op)]) -> Vec<Op> {
        (start..end)
            .filter(|i| !drop.contains(i))
            .map(|i| swap.iter().find(|(j, _)| *j == i).map_or_else(|| self.ops[i].clone(), |(_, op)| op.clone()))
            .collect()
    }

    /// Index of the operation before `i` that gave `r` its value.
    pub fn def_before(&self, i: usize, r: Reg) -> Option<usize> {
        self.ops[..i].iter().rposition(|o| o.insn.defs().contains(r))
    }

    /// The order of bytes of the machine that the function is for.
    pub fn byte_order(&self) -> ByteOrder {
        self.function.byte_order
    }

    /// Of a path, how often each of its blocks runs in a thousand runs of the first one.
    pub(crate) fn runs(&self) -> Vec<u32> {
        const THOUSAND: f64 = 1000.0;
        let frequencies = self.settings.frequencies(self.function());
        let first = frequencies.block(self.block);
        // Of what never runs all is as often.
        let share = |b: &BlockId| if first > 0.0 { (frequencies.block(*b) / first).min(1.0) } else { 1.0 };
        std::iter::once(&self.block).chain(self.path).map(|b| (share(b) * THOUSAND).round() as u32).collect()
    }

    /// Program kind.
    pub fn kind(&self) -> ProgKind {
        self.function.kind
    }
}

/// Whether an operation has no effect but its register result (loads included).
pub fn is_pure(insn: &Insn) -> bool {
    matches!(
        insn,
        Insn::Alu { .. }
            | Insn::Mov { .. }
            | Insn::MovSx { .. }
            | Insn::Neg { .. }
            | Insn::Endian { .. }
            | Insn::LoadImm64 { .. }
            | Insn::Load { .. }
            | Insn::AddrSpaceCast { .. }
    )
}

/// Whether an instruction touches a register that it does not name, or whose role is fixed: calls, legacy loads,
/// compare-and-exchange.
fn is_fixed(insn: &Insn) -> bool {
    let calls = matches!(insn, Insn::Call(_) | Insn::CallX { .. } | Insn::Exit | Insn::Opaque(_));
    calls || matches!(insn, Insn::LdAbs { .. } | Insn::LdInd { .. } | Insn::Atomic { op: AtomicOp::CmpXchg, .. })
}

/// Replaces register `from` by `to` where the instruction only reads it. `None` if it writes what it has read there, or
/// reads it implicitly.
pub fn rename_use(insn: &Insn, from: Reg, to: Reg) -> Option<Insn> {
    if !insn.uses().contains(from) {
        return Some(*insn);
    }
    // Only its offset has a role that is free.
    if let Insn::LdInd { size, src, imm } = *insn {
        return (from == src && from != Reg::R6).then_some(Insn::LdInd { size, src: to, imm });
    }
    let renamed = rename_all(insn, from, to)?;
    if insn.def() == Some(from) { renamed.with_def(from) } else { Some(renamed) }
}

/// Renames `from` to `to` everywhere in the instruction, reads and writes. `None` where the role is
/// fixed (calls, legacy loads, compare-and-exchange).
pub fn rename_all(insn: &Insn, from: Reg, to: Reg) -> Option<Insn> {
    match insn.uses().union(insn.defs()).contains(from) {
        false => Some(*insn),
        true if is_fixed(insn) => None,
        true => Some(insn.map_regs(|r| if r == from { to } else { r })),
    }
}

/// What a rewrite must lower: slots first, then what makes later rewrites possible.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Cost {
    /// Slots.
    pub slots: usize,
    /// Estimated run time in picoseconds ([`Costs::time`]).
    pub time: u32,
    /// Register operands read.
    pub reads: usize,
}

/// Cost of a sequence with its terminator, by a table.
pub fn cost(ops: &[Op], term: Option<&Terminator>, costs: &Costs) -> Cost {
    let mut c = Cost { slots: 0, time: 0, reads: 0 };
    for op in ops {
        c.slots += op.insn.slots();
        c.time += costs.time(&op.insn);
        // A copy or a two-step address costs later passes their view.
        c.reads += op.insn.uses().len();
    }
    if let Some(t) = term {
        c.slots += usize::from(!matches!(t, Terminator::Goto(_)));
        c.reads += t.uses().len();
        c.time += costs.class_time(Class::BranchNotTaken);
        if let Terminator::Branch { width: bpf_isa::Width::W64, .. } = t {
            c.reads += 1;
        }
    }
    c
}

/// The same in time alone, of code with side exits: behind each of them an operation counts as often as its block runs (`runs`).
pub(crate) fn time_along(ops: &[Op], term: Option<&Terminator>, costs: &Costs, runs: &[u32]) -> u32 {
    let mut at = 0;
    let mut time: u64 = 0;
    let count = |at: usize| u64::from(runs.get(at).or(runs.last()).copied().unwrap_or(1));
    for op in ops {
        time += u64::from(costs.time(&op.insn)) * count(at);
        at += usize::from(is_side_exit(&op.insn));
    }
    if term.is_some() {
        time += u64::from(costs.class_time(Class::BranchNotTaken)) * count(at);
    }
    u32::try_from(time).unwrap_or(u32::MAX)
}
