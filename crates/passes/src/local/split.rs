//! A 64-bit constant that only goes to private memory is stored as a short one, and then its upper half.
//!
//! ```text
//! r1 = 0x203a492d7325 ll
//! *(u64 *)(r10 - 8) = r1   →    *(u64 *)(r10 - 8) = 0x492d7325
//!                               *(u32 *)(r10 - 4) = 0x203a
//! ```
//! Texts on the stack (formats for `trace_printk`) are such constants: two slots instead of three for eight bytes. The
//! first store is of all eight bytes because the verifier's liveness takes only those for a write of the slot
//! (`check_stack_write_fixed_off` in kernel/bpf/verifier.c): with two halves it would walk up to half as many
//! instructions again.

use bpf_facts::Region;
use bpf_isa::{Imm64Kind, Insn, Size, Src};
use bpf_program::ByteOrder;
use bpf_prove::Rewrite;

use super::pass::Pass;
use crate::View;

pub struct Split;

/// How far before the store the constant may stand.
const REACH: usize = 8;

impl Pass for Split {
    fn name(&self) -> &'static str {
        "halves"
    }

    fn propose(&self, v: &View) -> Vec<Rewrite> {
        (0..v.ops.len()).filter_map(|i| constant_to_memory(v, i)).collect()
    }
}

fn constant_to_memory(v: &View, i: usize) -> Option<Rewrite> {
    let Insn::LoadImm64 { dst, kind: Imm64Kind::Const, imm } = v.ops[i].insn else { return None };
    if v.ops[i].link.is_some() {
        return None;
    }
    let j = (i + 1..v.ops.len().min(i + REACH)).find(|j| v.ops[*j].insn.uses().contains(dst))?;
    let Insn::Store { size: Size::DW, base, off, src: Src::Reg(s) } = v.ops[j].insn else { return None };
    let high = match v.byte_order() {
        ByteOrder::Little => off.checked_add(4)?,
        ByteOrder::Big => off,
    };
    let only_stored = s == dst && base != dst && !v.live_after(j).regs.contains(dst);
    // A store to memory that others see is never split.
    let region = v.value(j, base).region();
    let private =
        matches!(region, Some(Region::Stack | Region::CallerFrame | Region::Packet | Region::PacketMeta | Region::Mem));
    if !only_stored || !private {
        return None;
    }
    let store = |size, off, value: u64| Insn::Store { size, base, off, src: Src::Imm(value as u32 as i32) };
    let mut with = v.edit(i, j, &[i], &[]);
    with.extend([store(Size::DW, off, imm), store(Size::W, high, imm >> 32)].map(|insn| v.op_like(j, insn)));
    Some(v.replace(i, j + 1, with, "halves"))
}
