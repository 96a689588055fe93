//! What an access changes by being there.
//!
//! The verifier looks at a program as a whole: that some access stands in it changes how others are translated, what is
//! prepared before the program runs, and whether a run is allowed at all. No proof of values sees that. What counts is
//! whether the verifier *visits* the access, and it may visit code that no execution reaches, as it may know better than
//! we that code is never reached (it reads frozen `.rodata`). So the conditions under which such accesses are executed
//! must be the same on both sides, whatever the loaded values are, and what only the verifier may come to must be the
//! same as a list:
//!
//! - a read of a context field by which others are translated ([`access_matters`]): an event of the proof where it is
//!   executed; listed where only the verifier may come;
//! - a store to the packet of an skb makes the kernel unclone the packet first (`bpf_unclone_prologue` in
//!   net/core/filter.c, called by `tc_cls_act_prologue` and others): a part of the state in the proof
//!   (`packet_stored`); listed where only the verifier may take a store for one to the packet;
//! - code that no execution reaches, but the verifier may, holds no operation that the old one does not have;
//! - the new one accesses no fields of the context that the old one does not access: the verifier could refuse them, and a
//!   test run of a syscall program needs a context as long as the farthest (`max_ctx_offset` in kernel/bpf/verifier.c).
//!   What it does where executions come, the old one does where executions come;
//! - the new one names no map or section of data that the old one does not name: not every program may use every map
//!   (`check_map_prog_compatibility` in kernel/bpf/verifier.c);
//! - nor does it hold an operation that is refused wherever it stands, which the old one does not hold
//!   (`check_alu_op`: shifts by constants as wide as the register, division by the constant zero).

use std::collections::BTreeSet;
use std::sync::Arc;

use bpf_facts::{Env, Facts, Region, State};
use bpf_isa::{AluOp, Insn, MemoryOperand, Src};
use bpf_program::{
    FieldKind, Function, Op, ProgKind, Symbol, access_matters, ctx_field, depends_on_access, fields_matter,
    reverse_postorder, stores_matter,
};

use crate::equiv::same_graph;

/// What a function may hold that counts for a whole program by being there, as far as the verifier can come to it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sensitive {
    /// An access by which others are translated, and one that is.
    translates: bool,
    translated: bool,
    /// A store that has the packet prepared.
    prepares: bool,
}

impl Sensitive {
    /// What a function may hold that is not understood.
    pub fn anything() -> Sensitive {
        Sensitive { translates: true, translated: true, prepares: true }
    }

    /// What one function may hold.
    pub fn of(f: &Function, env: &Env) -> Sensitive {
        if !stores_matter(f.kind) {
            return Sensitive::default();
        }
        let visited = Facts::of_every_way(f, env);
        let mut all = Sensitive::default();
        for &b in &f.layout {
            for (op, state) in f.block(b).ops.iter().zip(visited.states(f, b)) {
                all.prepares |= is_kfunc(op);
                if let Some(m) = op.insn.memory_operand() {
                    all.add(f.kind, &m, op.is_core(), &state);
                }
            }
        }
        all
    }

    /// `any_field`: the loader decides which field it is to; but `tstamp` has never been elsewhere.
    fn add(&mut self, kind: ProgKind, m: &MemoryOperand, any_field: bool, state: &State) {
        let v = state.reg(m.base);
        let is_ctx = v.region() == Some(&Region::Ctx);
        let place = |field: fn(ProgKind, i64, u32) -> bool| match (v.region(), v.num.as_signed_const()) {
            (Some(Region::Ctx), Some(at)) => field(kind, at.wrapping_add(m.off.into()), m.size.bytes()),
            (Some(Region::Ctx), None) => true,
            // A context that came as an argument.
            (None, _) => field(kind, m.off.into(), m.size.bytes()),
            _ => false,
        };
        self.translates |= m.reads && (any_field && is_ctx || place(access_matters));
        self.translated |= place(depends_on_access);
        self.prepares |= m.writes && v.region().is_none_or(Region::is_packet);
    }

    /// What a program of functions with these may hold.
    #[must_use]
    pub fn or(self, o: Sensitive) -> Sensitive {
        Sensitive {
            translates: self.translates || o.translates,
            translated: self.translated || o.translated,
            prepares: self.prepares || o.prepares,
        }
    }

    /// Whether what the program does hangs on which of its accesses the verifier visits.
    pub fn matters(self) -> bool {
        self.translates && self.translated
    }
}

/// `bpf_dynptr_slice_rdwr` and others prepare the packet for stores, too (`fixup_kfunc_call` in kernel/bpf/verifier.c).
fn is_kfunc(op: &Op) -> bool {
    matches!((op.insn, op.link.as_ref().map(|l| &l.symbol)), (Insn::Call(_), Some(Symbol::Extern { .. })))
}

/// Why nothing is said of a function that is not the same, operation by operation.
pub const VISITS: &str = "what it does hangs on which of its accesses the verifier visits";

/// What is wrong where the condition of packet stores differs.
pub(crate) const PACKET_STORE: &str = "a store to the packet, before which the kernel unclones it, is not in both";

/// Fields of the context that are accessed, by offset and width.
#[derive(Default)]
struct Fields {
    reads: BTreeSet<(i64, u32)>,
    writes: BTreeSet<(i64, u32)>,
}

impl Fields {
    fn add(&mut self, m: &MemoryOperand, state: &State) {
        let v = state.reg(m.base);
        if let (Some(Region::Ctx), Some(at)) = (v.region(), v.num.as_signed_const()) {
            let place = (at.wrapping_add(m.off.into()), m.size.bytes());
            if m.writes {
                self.writes.insert(place)
            } else {
                self.reads.insert(place)
            };
        }
    }

    /// Whether the verifier takes all these accesses, given that it takes those of `old`.
    fn are_taken(&self, kind: ProgKind, old: &Fields) -> bool {
        let taken = |old: &BTreeSet<_>, new: &BTreeSet<_>| new.iter().all(|access| is_taken(kind, old, *access));
        taken(&old.reads, &self.reads) && taken(&old.writes, &self.writes)
    }
}

#[derive(Default)]
struct Presence {
    /// Where executions come, as far as is known.
    executed: Fields,
    /// Where the verifier may come.
    visited: Fields,
    /// What counts by being there, where only the verifier may come or only to it looks as if it did.
    hidden: Vec<String>,
    /// All operations, and those that no execution reaches, which no proof has compared.
    operations: BTreeSet<String>,
    excluded: BTreeSet<String>,
    /// Operations that are refused wherever they stand.
    refused: BTreeSet<String>,
    /// Maps and sections of data, each of which is a map to the kernel.
    maps: BTreeSet<Arc<str>>,
}

impl Presence {
    fn of(f: &Function, env: &Env) -> Presence {
        let (executed, visited) = (Facts::of(f, env), Facts::of_every_way(f, env));
        let mut all = Presence::default();
        for &b in &f.layout {
            let reached = executed.entry(b).is_some();
            let mut states = executed.states(f, b).into_iter();
            let mut seen = visited.states(f, b).into_iter();
            for op in &f.block(b).ops {
                let text = text(op);
                match op.link.as_ref().map(|l| &l.symbol) {
                    Some(Symbol::Map { name, .. }) => drop(all.maps.insert(name.clone())),
                    Some(Symbol::Data { section, .. }) => drop(all.maps.insert(section.clone())),
                    _ => {}
                }
                if is_refused(&op.insn) {
                    all.refused.insert(text.clone());
                }
                if !reached {
                    all.excluded.insert(text.clone());
                }
                all.operations.insert(text.clone());
                let (state, seen) = (states.next(), seen.next());
                let is_call = matches!(op.insn, Insn::Call(_) | Insn::CallX { .. });
                if is_call && state.is_none() && seen.is_some() && fields_matter(f.kind) {
                    all.hidden.push(text.clone());
                }
                let Some(m) = op.insn.memory_operand() else { continue };
                if let Some(state) = &state {
                    all.executed.add(&m, state);
                }
                if let Some(seen) = &seen {
                    all.visited.add(&m, seen);
                    let counts = |s: &State| counts(f.kind, &m, op.is_core(), s);
                    if counts(seen) && !state.is_some_and(|s| counts(&s)) {
                        all.hidden.push(text);
                    }
                }
            }
        }
        all.hidden.sort();
        all
    }
}

/// Whether the verifier refuses an operation for what it is.
fn is_refused(insn: &Insn) -> bool {
    match *insn {
        Insn::Alu { op: AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, width, src: Src::Imm(k), .. } => {
            !(0..width.bits() as i32).contains(&k)
        }
        Insn::Alu { op: AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod, src: Src::Imm(k), .. } => k == 0,
        _ => false,
    }
}

fn text(op: &Op) -> String {
    format!("{} {:?}", op.insn, op.link.as_ref().map(|l| &l.symbol))
}

/// Whether the verifier may take an access in this state for one that counts by being there.
/// `any_field`: the loader decides which field it is to.
fn counts(kind: ProgKind, m: &MemoryOperand, any_field: bool, state: &State) -> bool {
    let v = state.reg(m.base);
    let read = match (v.region(), v.num.as_signed_const()) {
        (Some(Region::Ctx) | None, _) if any_field => fields_matter(kind),
        (Some(Region::Ctx), Some(at)) => access_matters(kind, at.wrapping_add(m.off.into()), m.size.bytes()),
        (Some(Region::Ctx), None) => true,
        // A context that came as an argument.
        (None, _) => access_matters(ProgKind::Other, m.off.into(), m.size.bytes()),
        _ => false,
    };
    let stored = stores_matter(kind) && v.region().is_none_or(Region::is_packet);
    m.reads && read || m.writes && stored
}

/// What `new` lacks, or has too much, of what counts by being there; `None` if it is as `old`.
pub fn presence_differs(old: &Function, new: &Function, env: &Env) -> Option<&'static str> {
    let (x, y) = (Sensitive::of(old, env), Sensitive::of(new, env));
    let (a, b) = (Presence::of(old, env), Presence::of(new, env));
    let hidden = !(a.hidden.is_empty() && b.hidden.is_empty());
    if (hidden || x.or(y).matters()) && !same_graph(old, new) {
        return Some(VISITS);
    }
    if x.prepares != y.prepares {
        return Some(PACKET_STORE);
    }
    if !b.maps.is_subset(&a.maps) {
        return Some("a map that the original does not name");
    }
    if !b.refused.is_subset(&a.refused) {
        return Some("an operation that the kernel refuses");
    }
    if !b.excluded.is_subset(&a.operations) {
        return Some("code that no execution reaches, but the verifier may, is not the original's");
    }
    if !b.visited.are_taken(old.kind, &a.visited) || !b.executed.are_taken(old.kind, &a.executed) {
        return Some("an access to the context that the original does not make");
    }
    None
}

/// Operations in blocks that nothing leads to: the kernel refuses a program that has one ("unreachable insn").
pub fn unreachable_operations(f: &Function) -> usize {
    let (reached, _) = reverse_postorder(f);
    let reached: BTreeSet<_> = reached.into_iter().collect();
    f.layout.iter().filter(|b| !reached.contains(b)).map(|b| f.block(*b).ops.len() + 1).sum()
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
