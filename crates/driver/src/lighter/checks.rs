//! Two checks of how far the packet reaches, of which either leads to the same place, become the farther one.
//!
//! ```text
//!     r3 = r2                               r3 = r2
//!     r3 += 14                              r3 += 34
//!     if r3 > r1 goto out                   if r3 > r1 goto out
//!     r4 = *(u16 *)(r2 + 12)                r4 = *(u16 *)(r2 + 12)
//!     if r4 != 8 goto out             →     if r4 != 8 goto out
//!     r3 = r2                               …
//!     r3 += 34
//!     if r3 > r1 goto out
//!     …
//! ```

use bpf_facts::{Analysis, BaseId, Region, State};
use bpf_isa::{AluOp, Cond, Insn, Reg, Src, Width};
use bpf_program::{BlockId, Function, Op, Terminator, predecessors};

use super::edit::Form;

/// What it is called in reports.
pub(super) const NAME: &str = "checks-together";
/// Blocks between the two checks at most.
const FURTHEST: usize = 16;

/// The end of a block that asks whether the packet reaches as far as a pointer.
#[derive(Clone, Copy)]
struct Check {
    pointer: Reg,
    base: BaseId,
    offset: i64,
    /// Where it leads if not.
    short: BlockId,
    /// Where it leads if so.
    on: BlockId,
}

/// All such forms: the farthest check that can be made of each one first.
pub(super) fn forms(f: &Function, analysis: &Analysis) -> Vec<Form> {
    let preds = predecessors(f);
    let check = |b: BlockId| Check::at(f, b, analysis.facts().states(f, b).last()?);
    let mut forms = Vec::new();
    for &last in &f.layout {
        let Some(far) = check(last) else { continue };
        let mut at = last;
        for _ in 0..FURTHEST {
            let [up] = preds[at.index()][..] else { break };
            at = up;
            if let Some(near) = check(at)
                && near.base == far.base
                && near.short == far.short
                && near.offset < far.offset
            {
                forms.extend(together(f, analysis, at, near, last, far));
            }
            // Every way out in between leads there, too.
            if f.block(at).term.successors().count() == 2 && f.block(at).term.successors().all(|s| s != far.short) {
                break;
            }
        }
    }
    forms
}

impl Check {
    fn at(f: &Function, b: BlockId, state: &State) -> Option<Check> {
        let Terminator::Branch { cond, width: Width::W64, dst, src: Src::Reg(src), taken, fall, .. } = f.block(b).term
        else {
            return None;
        };
        let is_end = |r: Reg| matches!(state.reg(r).pointer_at(), Some((Region::PacketEnd, ..)));
        let (pointer, cond) = match (is_end(dst), is_end(src)) {
            (false, true) => (dst, cond),
            (true, false) => (src, cond.swap()),
            _ => return None,
        };
        let Some((Region::Packet, base, offset)) = state.reg(pointer).pointer_at() else { return None };
        let (short, on) = match cond {
            Cond::Gt => (taken, fall),
            Cond::Le => (fall, taken),
            _ => return None,
        };
        Some(Check { pointer, base, offset, short, on })
    }
}

/// The form in which the first check asks what the last one did.
fn together(f: &Function, analysis: &Analysis, first: BlockId, near: Check, last: BlockId, far: Check) -> Option<Form> {
    let by = i32::try_from(far.offset - near.offset).ok()?;
    let end = f.block(first).ops.len();
    let live = analysis.live();
    let mut new = f.clone();
    let mut used = near.pointer;
    if live.after(first, end).regs.contains(near.pointer) {
        let busy = live.before(first, end).regs;
        used = Reg::all().find(|r| *r != Reg::R10 && !busy.contains(*r))?;
        let copy = Insn::Mov { width: Width::W64, dst: used, src: Src::Reg(near.pointer) };
        new.block_mut(first).ops.push(Op::new(copy));
    }
    let add = Insn::Alu { op: AluOp::Add, width: Width::W64, dst: used, src: Src::Imm(by) };
    new.block_mut(first).ops.push(Op::new(add));
    if let Terminator::Branch { dst, src, .. } = &mut new.block_mut(first).term {
        if *dst == near.pointer {
            *dst = used;
        } else {
            *src = Src::Reg(used);
        }
    }
    new.block_mut(last).term = Terminator::Goto(far.on);
    Some(Form { untidy: true, ..Form::new(NAME, new) })
}
