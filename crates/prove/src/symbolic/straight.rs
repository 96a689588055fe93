//! Execution of a straight sequence, with what facts and samples tell along it.

use bpf_facts::Env;
use bpf_isa::Insn;
use bpf_program::{BlockId, Op, ProgKind, Terminator};
use bpf_semantics::{branch, exec};

use crate::compare::exits::SideExits;
use crate::solver::sweep::Sweep;
use crate::superblock::SideExit;
use crate::symbolic::acyclic::Outcome;
use crate::symbolic::context::Context;
use crate::symbolic::state::SymbolicState;
use crate::symbolic::symex::{Side, Stop, Sym, has_meaning};
use crate::symbolic::variables::MemoryRegion;
use crate::term::TermId;

/// What helps to see that values are equal, beyond their terms.
pub(crate) struct Help<'a> {
    /// Facts where both sides start.
    pub(crate) before: &'a bpf_facts::State,
    /// Whether the old side's terms are to show what its facts know.
    pub(crate) learn: bool,
    /// Equal values found by running samples.
    pub(crate) sweep: Option<Sweep>,
    /// The side exits of the sequences, if those are of superblocks.
    pub(crate) exits: Option<SideExits>,
}

fn is_call(op: &Op) -> bool {
    matches!(op.insn, Insn::Call(_) | Insn::CallX { .. })
}

#[allow(clippy::too_many_arguments)]
pub(crate) fn straight(
    cx: &mut Context,
    env: &Env,
    kind: ProgKind,
    side: Side,
    entry: SymbolicState,
    ops: &[Op],
    tail: Option<&Terminator>,
    help: &mut Help,
) -> Result<(Outcome, Option<TermId>), Stop> {
    let learn = help.learn && side == Side::Old;
    // Calls and pointers of unknown origin need to know whether the frame's address is still a secret.
    let mut facts = Tracked { state: help.before.clone(), at: 0, ops, kind, env };
    let mut sym = Sym::new(cx, env, kind, side, entry);
    for (i, op) in ops.iter().enumerate() {
        if let (Some(exits), Some(exit)) = (&mut help.exits, SideExit::of(&op.insn)) {
            exits.take(&mut sym, exit)?;
            continue;
        }
        if !has_meaning(op) {
            return Err(Stop::Unmodelled(format!("`{}` inside a block", op.insn)));
        }
        let may_see_frame = match op.insn.memory_operand() {
            Some(m) => {
                let base = sym.state.regs[m.base.index()];
                matches!(sym.cx.region_of(base), None | Some(MemoryRegion::Kernel))
            }
            None => is_call(op),
        };
        if may_see_frame {
            let before = facts.before(i);
            sym.cx.frame_not_escaped = !before.frame_leaked();
            sym.cx.frame_spilled = before.frame_pointer_spilled();
        }
        exec(&mut sym, op)?;
        let facts = learn.then(|| facts.before(i + 1));
        for r in op.insn.defs().iter() {
            let t = &mut sym.state.regs[r.index()];
            *t = match facts {
                Some(facts) => sym.cx.learn(*t, &facts.reg(r).bits()),
                _ => sym.cx.better(*t),
            };
            match (&mut help.sweep, side) {
                (Some(sweep), Side::Old) => sweep.note(*t),
                (Some(sweep), Side::New) => *t = sweep.canonical(sym.cx, *t),
                _ => {}
            }
        }
    }
    let cond = match tail {
        Some(Terminator::Branch { cond, width, dst, src, .. }) => Some(branch(&mut sym, *cond, *width, *dst, *src)?),
        _ => None,
    };
    let outcome = Outcome {
        exit: sym.state,
        log: sym.log,
        stack_low: sym.stack_low,
        misaligned: sym.misaligned,
        out_of_frame: sym.out_of_frame,
    };
    Ok((outcome, cond))
}

/// The facts along a sequence, stepped as far as somebody asks.
struct Tracked<'a, 'e> {
    state: bpf_facts::State,
    at: usize,
    ops: &'a [Op],
    kind: ProgKind,
    env: &'a Env<'e>,
}

impl Tracked<'_, '_> {
    /// Those before operation `i`, which is none that has been passed.
    fn before(&mut self, i: usize) -> &bpf_facts::State {
        while self.at < i {
            self.state.step(&self.ops[self.at], (BlockId(0), self.at), self.kind, self.env);
            self.at += 1;
        }
        &self.state
    }
}

/// The state behind `ops`, from `entry`, where the facts are `before`.
pub(crate) fn run(
    cx: &mut Context,
    env: &Env,
    kind: ProgKind,
    entry: SymbolicState,
    ops: &[Op],
    before: &bpf_facts::State,
) -> Result<SymbolicState, Stop> {
    let mut help = Help { before, learn: true, sweep: None, exits: None };
    straight(cx, env, kind, Side::Old, entry, ops, None, &mut help).map(|(outcome, _)| outcome.exit)
}
