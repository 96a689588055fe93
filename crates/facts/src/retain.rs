//! Keeping only what is live: the part of a state that survives rewriting elsewhere.

use bpf_isa::Reg;
use bpf_program::BlockId;

use crate::frame::FRAME;
use crate::{Kind, Live, Liveness, StackSet, State, Value};

impl State {
    /// Forgets every register and stack byte that is not in `live`. A proven rewrite of other code
    /// keeps live values and may change dead ones, so this is what stays true across it.
    pub fn retain(&mut self, live: &Live) {
        for r in Reg::all().filter(|r| !live.regs.contains(*r)) {
            self.set_reg(r, Value::unknown());
        }
        let dead = StackSet::range(-FRAME, FRAME as u32).minus(&live.stack);
        // A dead spilled pointer to the frame is never loaded again: forgetting it leaks nothing, unless
        // some of its bytes are live and go on as mere numbers.
        let torn = |(off, v): (i64, &Value)| {
            let bytes = StackSet::range(off, 8);
            let kept = bytes.minus(&dead);
            v.is_stack() && kept != bytes && !kept.is_empty()
        };
        if self.frame.pieces().any(torn) {
            self.leak();
        }
        let _ = self.frame.forget(&dead);
    }

    /// Takes over what `other` knows of numbers in the places `live`, which hold the same in both states.
    pub fn learn_numbers(&mut self, other: &State, live: &Live) {
        let met = |mine: &Value, theirs: &Value| -> Option<Value> {
            let number = theirs.kind == Kind::Scalar && matches!(mine.kind, Kind::Scalar | Kind::Unknown);
            Some(Value::scalar(mine.num.meet(&theirs.num)?)).filter(|_| number)
        };
        for r in live.regs.iter() {
            if let Some(v) = met(self.reg(r), other.reg(r)) {
                self.set_reg(r, v);
            }
        }
        for (off, theirs) in other.stack_values() {
            let len = theirs.num.bits / 8;
            let bytes = StackSet::range(off, len);
            let pointer = |(o, v): (i64, &Value)| {
                v.kind != Kind::Scalar && !StackSet::range(o, v.num.bits / 8).intersect(&bytes).is_empty()
            };
            if !bytes.minus(&live.stack).is_empty() || self.stack_values().any(pointer) {
                continue;
            }
            if let Some(v) = met(&self.stack_bytes(off, len), theirs) {
                // Nothing but numbers goes, so nothing leaks.
                let _ = self.frame.store(off, v, other.frame.order());
            }
        }
    }

    /// What is known of the frame, as (offset, value) pairs that do not overlap, ascending.
    pub fn stack_values(&self) -> impl Iterator<Item = (i64, &Value)> {
        self.frame.pieces()
    }
}

impl Liveness {
    /// What is live at the block's end, after its terminator.
    pub fn end(&self, b: BlockId) -> &Live {
        self.last(b)
    }
}
