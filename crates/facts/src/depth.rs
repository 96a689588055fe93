//! How deep a function goes into its stack frame.

use bpf_isa::Reg;
use bpf_program::Function;

use crate::{Env, FRAME, Facts};

/// The lowest frame offset that the function may access itself, hand to a callee, or make the address of.
pub fn deepest_frame_use(f: &Function, env: &Env) -> i64 {
    // The kernel counts code that no execution reaches.
    let facts = Facts::of_every_way(f, env);
    let mut low = 0;
    for &b in &f.layout {
        // The last state is the one behind the block's last operation.
        let operands = f.block(b).ops.iter().map(|op| op.insn.memory_operand().map(|m| (m.base, m.off)));
        for (operand, s) in operands.chain([None]).zip(facts.states(f, b)) {
            // Addresses that are made count, too: where paths meet, it may not show where an access goes.
            let places = Reg::all().filter(|r| *r != Reg::R10).map(|r| (r, 0)).chain(operand);
            for (r, off) in places {
                let v = s.reg(r);
                if v.is_stack() {
                    low = low.min(v.num.smin.saturating_add(i64::from(off)));
                }
            }
        }
    }
    low.max(-FRAME)
}
