//! Liveness of registers and of stack bytes: what may still be read.
//!
//! Backward over the graph, as usual; the facts say which stack bytes an access through a pointer
//! touches. A byte is live if the function or a callee may read it before it is overwritten. Impossible
//! edges count as possible here: the kernel's verifier may not see that they are.

use bpf_isa::{Insn, MemoryOperand, RegSet};
use bpf_program::{BlockId, Function, Op, reverse_postorder};

use crate::fixpoint::{registers_read, replay};
use crate::{Env, Facts, Region, StackSet, State, calls};

/// What is live at one point.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Live {
    /// Registers.
    pub regs: RegSet,
    /// Bytes of this function's frame.
    pub stack: StackSet,
}

/// Nothing live.
const NOTHING: Live = Live { regs: RegSet::EMPTY, stack: StackSet::EMPTY };

impl Live {
    fn union(&self, o: &Live) -> Live {
        Live { regs: self.regs.union(o.regs), stack: self.stack.union(&o.stack) }
    }
}

/// What one operation reads and what it surely overwrites.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Effect {
    /// What may be read before it is written.
    pub uses: Live,
    /// What is overwritten whatever happens.
    pub kills: Live,
}

impl Effect {
    /// The effect of `op` executed in `state`.
    pub fn of(state: &State, op: &Op, env: &Env<'_>) -> Effect {
        let mut e = Effect {
            uses: Live { regs: registers_read(op, env), stack: StackSet::EMPTY },
            kills: Live { regs: op.insn.defs(), stack: StackSet::EMPTY },
        };
        match op.insn {
            Insn::Call(_) | Insn::CallX { .. } => {
                let call = calls::effects(state, op, env);
                e.uses.stack = call.reads;
                e.kills.stack = call.overwrites;
            }
            Insn::Opaque(_) => e.uses = Live { regs: RegSet::ALL, stack: StackSet::ALL },
            _ => e.access(state, op),
        }
        e
    }

    fn access(&mut self, state: &State, op: &Op) {
        let Some(MemoryOperand { base, off, size, reads, .. }) = op.insn.memory_operand() else { return };
        let base = state.reg(base);
        let touched = state.touched(base, off, size.bytes());
        if op.is_core() {
            // Offset and width are the loader's choice.
            if reads && (base.is_stack() || state.may_be_frame_address(base)) {
                self.uses.stack = StackSet::ALL;
            }
        } else if reads {
            self.uses.stack = touched;
        } else if let Some((Region::Stack, _, _)) = base.pointer_at() {
            self.kills.stack = touched;
        }
    }

    /// What is live before it, given what is after it.
    pub fn before(&self, after: &Live) -> Live {
        Live {
            regs: after.regs.minus(self.kills.regs).union(self.uses.regs),
            stack: after.stack.minus(&self.kills.stack).union(&self.uses.stack),
        }
    }
}

/// Liveness at every point of a function.
#[derive(Clone, Debug)]
pub struct Liveness {
    /// For each block the sets before its operations, before its terminator, and at its end.
    points: Vec<Vec<Live>>,
}

impl Liveness {
    /// Computes it.
    pub fn of(f: &Function, env: &Env<'_>, facts: &Facts) -> Liveness {
        let top = State::top();
        let effects: Vec<Vec<Effect>> = (0..f.blocks.len())
            .map(|i| {
                let b = BlockId(i as u32);
                let states = replay(f, b, facts.entry(b).unwrap_or(&top), env);
                f.block(b).ops.iter().zip(&states).map(|(op, s)| Effect::of(s, op, env)).collect()
            })
            .collect();
        let mut order = reverse_postorder(f).0;
        order.reverse();
        // Blocks that nothing leads to get their sets too, after all others.
        order.extend((0..f.blocks.len() as u32).map(BlockId).filter(|b| !order.contains(b)).collect::<Vec<_>>());
        let mut entry = vec![Live::default(); f.blocks.len()];
        let at_end = |entry: &[Live], b: BlockId| {
            f.block(b).term.successors().fold(Live::default(), |l, s| l.union(&entry[s.index()]))
        };
        let before_terminator = |b: BlockId, end: &Live| Live { regs: end.regs.union(f.block(b).term.uses()), ..*end };
        let mut changed = true;
        while changed {
            changed = false;
            for &b in &order {
                let mut live = before_terminator(b, &at_end(&entry, b));
                for e in effects[b.index()].iter().rev() {
                    live = e.before(&live);
                }
                if live != entry[b.index()] {
                    entry[b.index()] = live;
                    changed = true;
                }
            }
        }
        let points = (0..f.blocks.len())
            .map(|i| {
                let b = BlockId(i as u32);
                let end = at_end(&entry, b);
                let mut live = before_terminator(b, &end);
                let mut points = vec![end, live];
                for e in effects[i].iter().rev() {
                    live = e.before(&live);
                    points.push(live);
                }
                points.reverse();
                points
            })
            .collect();
        Liveness { points }
    }

    /// What is live before operation `i` of `b`; with `i` the number of operations, before its terminator.
    pub fn before(&self, b: BlockId, i: usize) -> &Live {
        &self.points[b.index()][i]
    }

    /// What is live after operation `i` of `b`; with `i` the number of operations, after its terminator.
    pub fn after(&self, b: BlockId, i: usize) -> &Live {
        &self.points[b.index()][i + 1]
    }

    pub(crate) fn last(&self, b: BlockId) -> &Live {
        self.points[b.index()].last().unwrap_or(&NOTHING)
    }

    /// What is live at the block's entry.
    pub fn entry(&self, b: BlockId) -> &Live {
        &self.points[b.index()][0]
    }
}
