//! Proofs over paths through several blocks ([`bpf_prove::superblock`]), tried to be broken.

#[path = "paths/changes.rs"]
mod changes;
mod common;
#[path = "paths/functions.rs"]
mod functions;
#[path = "paths/hostile.rs"]
mod hostile;
#[path = "paths/random.rs"]
mod random;
#[path = "paths/rewrites.rs"]
mod rewrites;
