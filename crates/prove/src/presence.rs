//! What an access changes by being there.
//!
//! The verifier looks at a program as a whole: that some access stands in it, even where it is never reached, changes how
//! others are translated, what is prepared before the program runs, and whether a run is allowed at all. No proof of
//! values sees that. So two functions are only taken for the same if they agree in it:
//!
//! - a read of a context field by which others are translated ([`access_matters`]) is in both or in neither;
//! - a store to the packet of an skb is in both or in neither: it makes the kernel unclone the packet first
//!   (`bpf_unclone_prologue` in net/core/filter.c, called by `tc_cls_act_prologue` and others);
//! - code that no execution reaches, but the verifier may, holds no operation that the old one does not have;
//! - the new one accesses no fields of the context that the old one does not access: the verifier could refuse them, and a
//!   test run of a syscall program needs a context as long as the farthest (`max_ctx_offset` in kernel/bpf/verifier.c).

use std::collections::BTreeSet;

use bpf_facts::{Env, Facts, Region};
use bpf_isa::Insn;
use bpf_program::{FieldKind, Function, Op, ProgKind, access_matters, ctx_field};

#[derive(Default)]
struct Presence {
    /// Offset and width of the reads of the context.
    reads: BTreeSet<(i64, u32)>,
    /// The same of the writes.
    writes: BTreeSet<(i64, u32)>,
    read_that_matters: bool,
    packet_store: bool,
    /// A store of which nobody can tell where it goes, in code that may or may not be reached.
    unknown_store: bool,
    /// All operations, and those that no execution reaches, which no proof has compared.
    operations: BTreeSet<String>,
    excluded: BTreeSet<String>,
}

impl Presence {
    fn of(f: &Function, env: &Env) -> Presence {
        // The verifier may walk where no execution gets.
        let facts = Facts::of_every_way(f, env);
        let mut all = Presence::default();
        let executed = Facts::of(f, env);
        for &b in &f.layout {
            let text = |op: &Op| format!("{} {:?}", op.insn, op.link.as_ref().map(|l| &l.symbol));
            let ops: Vec<String> = f.block(b).ops.iter().map(text).collect();
            if executed.entry(b).is_none() {
                all.excluded.extend(ops.iter().cloned());
            }
            all.operations.extend(ops);
        }
        for &b in &f.layout {
            for (op, state) in f.block(b).ops.iter().zip(facts.states(f, b)) {
                let Some((base, off, size, store)) = access(&op.insn) else { continue };
                let v = state.reg(base);
                match (v.region(), v.num.as_signed_const()) {
                    (Some(Region::Ctx), Some(at)) if store => {
                        all.writes.insert((at.wrapping_add(off.into()), size));
                    }
                    (Some(Region::Ctx), Some(at)) => {
                        let at = at.wrapping_add(off.into());
                        all.reads.insert((at, size));
                        all.read_that_matters |= access_matters(f.kind, at, size);
                    }
                    // A context that came as an argument.
                    (None, _) if !store => all.read_that_matters |= access_matters(ProgKind::Other, off.into(), size),
                    (Some(region), _) if store && region.is_packet() => all.packet_store = true,
                    (None, _) if store => all.unknown_store = true,
                    _ => {}
                }
            }
        }
        all
    }
}

/// Base, offset, bytes, and whether it writes.
fn access(insn: &Insn) -> Option<(bpf_isa::Reg, i16, u32, bool)> {
    match *insn {
        Insn::Load { base, off, size, .. } | Insn::LoadAcquire { base, off, size, .. } => {
            Some((base, off, size.bytes(), false))
        }
        Insn::Store { base, off, size, .. }
        | Insn::StoreRelease { base, off, size, .. }
        | Insn::Atomic { base, off, size, .. } => Some((base, off, size.bytes(), true)),
        _ => None,
    }
}

/// What `new` lacks, or has too much, of what counts by being there; `None` if it is as `old`.
pub fn presence_differs(old: &Function, new: &Function, env: &Env) -> Option<&'static str> {
    let (a, b) = (Presence::of(old, env), Presence::of(new, env));
    if a.read_that_matters != b.read_that_matters {
        return Some("a read of the context by which the kernel translates others is not in both");
    }
    let skb = matches!(old.kind, ProgKind::Skb | ProgKind::Subprogram | ProgKind::Other);
    if skb && (a.packet_store, a.unknown_store) != (b.packet_store, b.unknown_store) {
        return Some("a store to the packet, before which the kernel unclones it, is not in both");
    }
    if !b.excluded.is_subset(&a.operations) {
        return Some("code that no execution reaches, but the verifier may, is not the original's");
    }
    let taken = |old_ones: &BTreeSet<_>, new_ones: &BTreeSet<_>| {
        new_ones.iter().all(|access| is_taken(old.kind, old_ones, *access))
    };
    if !taken(&a.reads, &b.reads) || !taken(&a.writes, &b.writes) {
        return Some("an access to the context that the original does not make");
    }
    None
}

/// Whether the verifier takes an access to the context, given that it takes these.
fn is_taken(kind: ProgKind, taken: &BTreeSet<(i64, u32)>, (at, size): (i64, u32)) -> bool {
    if taken.contains(&(at, size)) {
        return true;
    }
    let field = |at: i64| ctx_field(kind, at);
    let Some(f) = field(at) else { return false };
    let end = at + i64::from(size);
    if f.kind == FieldKind::Memory {
        // Aligned, no narrower than before, and not a byte more.
        let before = |i: i64| taken.iter().any(|(o, n)| (*o..*o + i64::from(*n)).contains(&i) && *n <= size);
        return at % i64::from(size) == 0 && (at..end).all(before);
    }
    // Of a field of which parts may be read, any part tells that every aligned one may be read.
    f.kind == (FieldKind::Scalar { narrow: true })
        && at % i64::from(size) == 0
        && end <= i64::from(f.offset + f.size)
        && taken.iter().any(|(o, _)| field(*o) == Some(f))
}
