//! The proof that two programs accept the same packets.
//!
//! Each program is unfolded to a graph of questions about terms (`graph`, `term`), and both graphs are walked side by side with
//! what is known on the way (`product`): the set of numbers that each term is in. Where both come to an end, it must be the same one.
//! Only what is known is used, so that ways of no packet may be walked, too, but no packet's way is left out. A table counts as the
//! set of the numbers that a lookup in it finds.
//!
//! Nothing here knows the optimizer: of it are shared the form of programs, sets of numbers, and what arithmetic means, which the
//! interpreter says.

mod error;
mod graph;
mod product;
mod term;
#[cfg(test)]
mod tests;

pub use error::Unproven;

pub(crate) use product::Effort;

use crate::program::Program;
use crate::safety;

/// Proves that two programs accept the same packets.
///
/// What maps answer is for user space to change while the second runs. Its verdict is then one that the first may give: where the
/// first asks for a key that the second asks for on the same way, it may get the same answer. For that the second asks for a key at
/// most once on each way; the first may ask more often.
///
/// # Errors
/// If no proof is found.
pub(crate) fn prove_equal(first: &Program, second: &Program, effort: Effort) -> Result<(), Unproven> {
    // What is taken for granted of programs: branches go forward, registers and tables are there.
    safety::verify(first)?;
    safety::verify(second)?;
    let (mut terms, mut nodes) = (term::Terms::default(), graph::Nodes::default());
    let a = graph::graph(&mut terms, &mut nodes, first)?;
    let b = graph::graph(&mut terms, &mut nodes, second)?;
    if first.maps != second.maps {
        return Err(Unproven::Unknown("other maps"));
    }
    if !graph::asks_maps_once(&terms, &nodes, b) {
        return Err(Unproven::Unknown("a way on which it asks a map for the same key twice"));
    }
    product::equal(&terms, &nodes, a, b, effort)
}
