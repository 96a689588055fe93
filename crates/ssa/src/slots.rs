//! Spill slots that nobody else sees, which lifting makes values.
//!
//! ```text
//! before: *(u64 *)(r10 - 24) = r6          after: (r6 is kept in whatever register is free)
//!         ...
//!         r1 = *(u64 *)(r10 - 24)
//! ```
//!
//! A slot counts as private if all that touches its eight bytes are loads and stores of just these eight, at a constant
//! distance from r10; if no address of the frame has got out, or is spilled, anywhere; and if no call is given an address
//! of the frame that is not above the slot's end. What lies under an address that is passed is not reached from there.

use bpf_facts::{Analysis, State, Value as Fact};
use bpf_isa::{Insn, Reg, RegSet, Size};
use bpf_program::{BlockId, Function};
use rustc_hash::FxHashMap;

/// The widest access there is.
const WORD: Size = Size::DW;

/// The slots, and which accesses are to them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    offsets: Vec<i64>,
    accesses: FxHashMap<(BlockId, usize), (usize, bool)>,
}

impl Slots {
    pub(crate) fn len(&self) -> usize {
        self.offsets.len()
    }

    /// The slot that operation `i` of `b` accesses, and whether it stores there.
    pub(crate) fn access(&self, b: BlockId, i: usize) -> Option<(usize, bool)> {
        self.accesses.get(&(b, i)).copied()
    }

    /// What the slot holds.
    pub(crate) fn known(&self, slot: usize, state: &State) -> Fact {
        state.stack_bytes(self.offsets[slot], WORD.bytes())
    }
}

/// One access of the frame, or what may be one.
struct Seen {
    lo: i64,
    hi: i64,
    /// Place, and whether it stores, of an access of a whole slot.
    whole: Option<(BlockId, usize, bool)>,
}

/// The private slots of a function.
pub(crate) fn private(f: &Function, analysis: &Analysis) -> Slots {
    let none = Slots::default();
    let mut seen = Vec::new();
    for &b in &f.layout {
        let states = analysis.facts().states(f, b);
        for (i, op) in f.block(b).ops.iter().enumerate() {
            let Some(state) = states.get(i) else { return none };
            if state.frame_leaked() || state.frame_pointer_spilled() {
                return none;
            }
            if let Some(m) = op.insn.memory_operand() {
                let base = state.reg(m.base);
                let touched = state.touched(base, m.off, m.size.bytes());
                let at = base.pointer_at().filter(|_| base.is_stack()).map(|(_, _, n)| n + i64::from(m.off));
                let plain = matches!(op.insn, Insn::Load { sext: false, .. } | Insn::Store { .. })
                    && m.size == WORD
                    && m.base == Reg::R10
                    && op.link.is_none();
                let whole = at.filter(|_| plain).map(|_| (b, i, m.writes));
                match at {
                    Some(n) => seen.push(Seen { lo: n, hi: n + i64::from(m.size.bytes()), whole }),
                    None => seen.extend(touched.runs().iter().map(|(lo, n)| Seen {
                        lo: *lo,
                        hi: lo + i64::from(*n),
                        whole: None,
                    })),
                }
            } else if matches!(op.insn, Insn::Call(_) | Insn::CallX { .. }) {
                for r in RegSet::ARGS.iter() {
                    let v = state.reg(r);
                    if v.is_stack() {
                        let lo = v.num.smin.clamp(-bpf_facts::FRAME, 0);
                        seen.push(Seen { lo, hi: 0, whole: None });
                    }
                }
            }
        }
    }
    let mut slots = none;
    let mut offsets: Vec<i64> = seen.iter().filter(|s| s.whole.is_some()).map(|s| s.lo).collect();
    offsets.sort_unstable();
    offsets.dedup();
    for off in offsets {
        let mut mine = seen.iter().filter(|s| s.lo < off + 8 && s.hi > off);
        if !mine.all(|s| s.whole.is_some() && s.lo == off) {
            continue;
        }
        let n = slots.offsets.len();
        slots.offsets.push(off);
        for (b, i, stores) in seen.iter().filter(|s| s.lo == off).filter_map(|s| s.whole) {
            slots.accesses.insert((b, i), (n, stores));
        }
    }
    slots
}
