//! What a pass is.

use bpf_prove::Rewrite;

use crate::View;

/// Something that proposes rewrites of one block.
pub trait Pass {
    /// Name for `--passes` and reports.
    fn name(&self) -> &'static str;
    /// Proposals, most promising first. They need not be right, only worth a proof.
    fn propose(&self, view: &View) -> Vec<Rewrite>;
}
