//! Proofs over paths through several blocks ([`bpf_prove::superblock`]), tried to be broken.

mod changes;
pub mod functions;
mod hostile;
mod random;
mod rewrites;
