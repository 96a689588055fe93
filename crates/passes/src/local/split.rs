//! A 64-bit constant that only goes to private memory is stored in two halves.
//!
//! ```text
//! r1 = 0x203a492d7325 ll
//! *(u64 *)(r10 - 8) = r1   →    *(u32 *)(r10 - 8) = 0x492d7325
//!                               *(u32 *)(r10 - 4) = 0x203a
//! ```
//! Texts on the stack (formats for `trace_printk`) are such constants: two slots instead of three for eight bytes.

use bpf_facts::Region;
use bpf_isa::{Imm64Kind, Insn, Size, Src};
use bpf_prove::Rewrite;

use super::Pass;
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
    let high = off.checked_add(4)?;
    let only_stored = s == dst && base != dst && !v.live_after(j).regs.contains(dst);
    // A store to memory that others see is never split.
    let region = v.value(j, base).region();
    let private =
        matches!(region, Some(Region::Stack | Region::CallerFrame | Region::Packet | Region::PacketMeta | Region::Mem));
    if !only_stored || !private {
        return None;
    }
    let half = |off, value: u64| Insn::Store { size: Size::W, base, off, src: Src::Imm(value as u32 as i32) };
    let mut with = v.edit(i, j, &[i], &[]);
    with.extend([half(off, imm), half(high, imm >> 32)].map(|insn| v.op_like(j, insn)));
    Some(v.replace(i, j + 1, with, "halves"))
}
