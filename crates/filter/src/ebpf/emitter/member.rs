//! Questions to maps that user space changes.

use super::Emitter;
use crate::ebpf::form::Ends;
use crate::ebpf::held::POOL;
use crate::ebpf::hook::EbpfError;
use crate::program::{BlockId, End, Register};
use crate::steps::Label;

impl Emitter<'_> {
    /// Asks a map. The call takes r0 to r5; the packet's ends and the context wait on the stack, if they are wanted behind it.
    pub(super) fn member(
        &mut self,
        i: usize,
        key: &[Register],
        (yes, no): (BlockId, BlockId),
        ends: Ends,
    ) -> Result<(), EbpfError> {
        const KEPT: [(u8, u32); 3] = [(1, 48), (2, 40), (3, 32)];
        let program = self.program;
        let map = &program.maps[i];
        let mut left: u32 = map.field.words().iter().map(|bytes| u32::from(*bytes)).sum();
        self.text.prefix_length(map);
        for (register, bytes) in key.iter().zip(map.field.words()) {
            let at = self.raw(*register)?;
            self.line(format!("*(u{} *)(r10 - {left}) = r{at}", u32::from(*bytes) * 8));
            left -= u32::from(*bytes);
            self.pinned.clear();
        }
        let is_end = |to: BlockId| {
            program.blocks[to.0].operations.is_empty() && matches!(program.blocks[to.0].end, End::Accept | End::Reject)
        };
        let kept = if is_end(yes) && is_end(no) && !ends.are_counted() { &[][..] } else { &KEPT };
        let kept = kept.iter().filter(|(r, _)| *r != 1 || self.hook.is_some());
        let kept: Vec<(u8, u32)> = kept.copied().collect();
        kept.iter().for_each(|(r, at)| self.line(format!("*(u64 *)(r10 - {at}) = r{r}")));
        self.text.lookup_elem(&map.name, map.key_size());
        kept.iter().for_each(|(r, at)| self.line(format!("r{r} = *(u64 *)(r10 - {at})")));
        self.held.edge = None;
        (0..POOL.len()).filter(|i| POOL[*i] < 6).for_each(|i| self.put(i, None));
        self.text.branch("r0 == 0", Label::Block(no), Label::Block(yes));
        Ok(())
    }
}
