//! The local passes, one concept per file.

mod address;
mod atomic;
mod branch;
mod coalesce;
mod constant;
mod copy;
mod delete;
mod fill;
mod load;
mod mask;
mod memcpy;
mod narrow;
mod pass;
mod reuse;
mod scatter;
mod shift;
mod split;
mod store;

pub use pass::Pass;

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
        Box::new(narrow::Narrow),
        Box::new(reuse::Reuse),
        Box::new(scatter::Scatter),
        Box::new(store::Store),
        Box::new(memcpy::Memcpy),
        Box::new(fill::Fill),
        Box::new(split::Split),
        Box::new(atomic::Atomic),
    ]
}
