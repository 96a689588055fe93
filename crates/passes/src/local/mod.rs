//! The local passes, one concept per file.

mod address;
mod atomic;
mod branch;
mod coalesce;
mod constant;
mod copy;
mod delete;
mod load;
mod mask;
mod reuse;
mod shift;
mod split;
mod store;

use bpf_prove::Rewrite;

use crate::View;

/// Something that proposes rewrites of one block.
pub trait Pass {
    /// Name for `--passes` and reports.
    fn name(&self) -> &'static str;
    /// Proposals, most promising first. They need not be right, only worth a proof.
    fn propose(&self, view: &View) -> Vec<Rewrite>;
}

/// All local passes in the order in which they run on a block.
pub fn all() -> Vec<Box<dyn Pass>> {
    vec![
        Box::new(constant::Constant),
        Box::new(delete::Delete),
        Box::new(copy::Copy),
        Box::new(coalesce::Coalesce),
        Box::new(address::Address),
        Box::new(shift::Shift),
        Box::new(branch::Branch),
        Box::new(mask::Mask),
        Box::new(load::Load),
        Box::new(reuse::Reuse),
        Box::new(store::Store),
        Box::new(split::Split),
        Box::new(atomic::Atomic),
    ]
}
