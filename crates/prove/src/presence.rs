//! What an access changes by being there.
//!
//! The verifier looks at a program as a whole: that some access stands in it changes how others are translated, what is
//! prepared before the program runs, and whether a run is allowed at all. No proof of values sees that. What counts is
//! whether the verifier *visits* the access. It may visit code that no execution reaches, and it may know better than
//! we that code is never reached (it reads frozen `.rodata`, and follows what is passed to functions). So:
//!
//! - a read of a context field by which others are translated ([`access_matters`]) is an event of the proof where it is
//!   executed; a program with one, and with an access that is translated otherwise ([`depends_on_access`]), stays as it is
//!   ([`Sensitive`], which the driver asks of all functions that call each other);
//! - a store to the packet of an skb makes the kernel unclone the packet first (`bpf_unclone_prologue` in
//!   net/core/filter.c, called by `tc_cls_act_prologue` and others): whether one has been made is a part of the state in
//!   the proof (`packet_stored`), both sides or neither may hold one, and the driver asks the kernel about the rest;
//! - a function with such accesses, or with calls, where only the verifier may come, stays as it is;
//! - code that no execution reaches, but the verifier may, holds no operation that the old one does not have;
//! - the new one accesses no fields of the context that the old one does not access: the verifier could refuse them, and a
//!   test run of a syscall program needs a context as long as the farthest (`max_ctx_offset` in kernel/bpf/verifier.c).
//!   What it does where executions come, the old one does where executions come;
//! - the new one names no map or section of data that the old one does not name: not every program may use every map
//!   (`check_map_prog_compatibility` in kernel/bpf/verifier.c);
//! - both name the same maps of those of which that counts ([`bpf_platform::maps::naming_counts`]), wherever it stands: the
//!   kernel takes the names from the code as it is loaded (`resolve_pseudo_ldimm64`);
//! - nor does it hold an operation that is refused wherever it stands, which the old one does not hold
//!   (`check_alu_op`: shifts by constants as wide as the register, division by the constant zero).

use std::collections::BTreeSet;
use std::sync::Arc;

use bpf_facts::{Env, Facts, MapInfo, Region, State, Value};
use bpf_isa::{AluOp, Call, Imm64Kind, Insn, MemoryOperand, Reg, Size, Src};
use bpf_platform::{Effects, NO_QUEUE_MAPPING, is_cleared, store_is_compared};
use bpf_program::{
    BlockId, FieldKind, Function, Link, Op, ProgKind, Symbol, Terminator, access_matters, ctx_field, depends_on_access,
    reverse_postorder, stores_matter,
};

use crate::beliefs::{Beliefs, MayBe};
use crate::function::same::{same_graph, same_text};
use crate::sources::{Sources, provenance_by};

/// What a function may hold that counts for a whole program by being there, as far as the verifier can come to it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sensitive {
    /// An access by which others are translated, and one that is.
    translates: bool,
    translated: bool,
    /// A store that has the packet prepared.
    prepares: bool,
    /// Of what the verifier believes something wrong.
    beliefs: Beliefs,
}

impl Sensitive {
    /// An access by name to the field of a context: `translates` others, or is `translated` otherwise.
    pub fn named(translates: bool, translated: bool) -> Sensitive {
        Sensitive { translates, translated, ..Sensitive::default() }
    }

    /// What a function may hold that is not understood.
    pub fn anything() -> Sensitive {
        Sensitive { translates: true, translated: true, prepares: true, beliefs: Beliefs::anything() }
    }

    /// What one function may hold, but for accesses of which the loader decides what they are to.
    pub fn of(f: &Function, env: &Env) -> Sensitive {
        if !stores_matter(f.kind) && !Beliefs::may_be_held(f, env) {
            return Sensitive::default();
        }
        Sensitive::by(f, env, &Facts::of_every_way(f, env))
    }

    /// The same from the facts of every way ([`Facts::of_every_way`]).
    fn by(f: &Function, env: &Env, visited: &Facts) -> Sensitive {
        let held = |b: &BlockId| {
            let states = visited.states(f, *b);
            f.block(*b)
                .ops
                .iter()
                .zip(&states)
                .map(|(op, s)| Sensitive::at(f.kind, op, s))
                .fold(Sensitive::default(), Sensitive::or)
        };
        let beliefs = Beliefs::of(f, env, visited);
        f.layout.iter().map(held).fold(Sensitive { beliefs, ..Sensitive::default() }, Sensitive::or)
    }

    /// What one operation may be to the verifier that comes to it in this state.
    fn at(kind: ProgKind, op: &Op, state: &State) -> Sensitive {
        if !stores_matter(kind) {
            return Sensitive::default();
        }
        let Some(m) = op.insn.memory_operand() else {
            return Sensitive { prepares: is_kfunc(op), ..Sensitive::default() };
        };
        let v = state.reg(m.base);
        let place = |field: fn(ProgKind, i64, u32) -> bool| match (v.region(), v.num.as_signed_const()) {
            (Some(Region::Ctx), Some(at)) => field(kind, at.wrapping_add(m.off.into()), m.size.bytes()),
            (Some(Region::Ctx), None) => true,
            // A context that came as an argument.
            (None, _) => field(kind, m.off.into(), m.size.bytes()),
            _ => false,
        };
        Sensitive {
            translates: m.reads && place(access_matters),
            translated: place(depends_on_access),
            prepares: m.writes && v.region().is_none_or(Region::is_packet),
            ..Sensitive::default()
        }
    }

    /// What a program of functions with these may hold.
    #[must_use]
    pub fn or(self, o: Sensitive) -> Sensitive {
        Sensitive {
            translates: self.translates || o.translates,
            translated: self.translated || o.translated,
            prepares: self.prepares || o.prepares,
            beliefs: self.beliefs.or(o.beliefs),
        }
    }

    /// Whether what a program with an skb does hangs on which of its accesses the verifier visits.
    pub fn matters(self) -> bool {
        self.translates && self.translated
    }

    /// Of what the verifier believes something wrong.
    pub fn beliefs(self) -> Beliefs {
        self.beliefs
    }

    /// Whether nothing of this is there.
    pub fn is_nothing(self) -> bool {
        Sensitive { beliefs: Beliefs::default(), ..self } == Sensitive::default()
    }

    /// Whether something counts by being there.
    fn counts(self) -> bool {
        self.translates || self.prepares
    }
}

/// `bpf_dynptr_slice_rdwr` and others prepare the packet for stores, too (`fixup_kfunc_call` in kernel/bpf/verifier.c).
fn is_kfunc(op: &Op) -> bool {
    matches!((op.insn, op.link.as_ref().map(|l| &l.symbol)), (Insn::Call(_), Some(Symbol::Extern { .. })))
}

/// Why nothing is said of a function that is not the same, operation by operation.
pub const VISITS: &str = "its behaviour depends on which of its accesses the verifier visits";

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

    /// Whether some byte of these is such a one.
    fn touch(&self, is_one: impl Fn(i64) -> bool) -> bool {
        self.reads.iter().chain(&self.writes).any(|(at, n)| (*at..*at + i64::from(*n)).any(&is_one))
    }

    /// Whether the verifier takes all these accesses, given that it takes those of `old`.
    fn are_taken(&self, kind: ProgKind, old: &Fields) -> bool {
        let taken = |old: &BTreeSet<_>, new: &BTreeSet<_>| new.iter().all(|access| is_taken(kind, old, *access));
        taken(&old.reads, &self.reads) && taken(&old.writes, &self.writes)
    }
}

/// Something by which the kernel marks a program.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
    /// It calls a helper of this name.
    Helper(&'static str),
    /// It calls a function of its object or names it.
    Function(Arc<str>),
    /// It refers to this symbol of the kernel, or of another object.
    Extern(Arc<str>),
    /// It names a map for which that counts; or one by a number.
    Map(Arc<str>),
    MapNumber(u64),
    /// It accesses `cb`.
    ControlBlock,
    /// It writes the registers of what it traces.
    Registers,
}

#[derive(Default)]
struct Presence {
    /// Where executions come, as far as is known.
    executed: Fields,
    /// Where the verifier may come.
    visited: Fields,
    /// What the verifier may come to.
    sensitive: Sensitive,
    /// Something counts by being there where only the verifier may come, or only to it looks as if it did.
    hides: bool,
    /// All operations, and those that no execution reaches, which no proof has compared.
    operations: BTreeSet<String>,
    excluded: BTreeSet<String>,
    /// Operations that are refused wherever they stand.
    refused: BTreeSet<String>,
    /// Where the verifier may come: helpers by which it marks the program, and whether it accesses `cb`, which is cleared
    /// for some then (`cb_access`). Anywhere: helpers that may do something else than change a map, because those that move the
    /// packet or may sleep decide what may replace the program or a function of it (`check_cfg`, `bpf_check_attach_target`); functions
    /// that are called, which may call such helpers; kernel symbols and maps that count by being named.
    marks: BTreeSet<Mark>,
    /// Maps and sections of data, each of which is a map to the kernel.
    maps: BTreeSet<Arc<str>>,
}

impl Presence {
    fn of(f: &Function, env: &Env) -> Presence {
        let (executed, visited) = (Facts::of(f, env), Facts::of_every_way(f, env));
        let translated = provenance_by(f, &visited, Sources::PASSED);
        let hides = translated.mixes || translated.calls;
        let sensitive = Sensitive { beliefs: Beliefs::of(f, env, &visited), ..Sensitive::default() };
        let mut all = Presence { hides, sensitive, ..Presence::default() };
        for &b in &f.layout {
            let reached = executed.entry(b).is_some();
            let mut states = executed.states(f, b).into_iter();
            let mut seen = visited.states(f, b).into_iter();
            for op in &f.block(b).ops {
                let text = text(op);
                let symbol = op.link.as_ref().map(|l| &l.symbol);
                all.marks.extend(named_map_that_counts(op, env));
                match symbol {
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
                let at = |s: &Option<State>| s.as_ref().map(|s| Sensitive::at(f.kind, op, s)).unwrap_or_default();
                all.sensitive = all.sensitive.or(at(&seen));
                let row = Effects::of(&op.insn, op.link.is_some());
                // A call may lead to anything; and functions that the verifier comes to by no call are dropped, or know other
                // things of what they are called with (`btf_check_subprog_call`).
                let is_call =
                    matches!(op.insn, Insn::Call(_) | Insn::CallX { .. }) && (!row.no_effect || row.marks_program);
                // What the loader puts in may be an instruction that must not be come to: of a map that is not there.
                let to_context = |r: Reg, s: &State| s.reg(r).region().is_none_or(|r| *r == Region::Ctx);
                let accesses = |s: &State| op.insn.memory_operand().is_some_and(|m| to_context(m.base, s));
                let counts = is_call || op.link.is_some() || seen.as_ref().is_some_and(accesses);
                let is_seen = counts && state.is_none() && seen.is_some();
                all.hides |= is_seen || at(&seen).counts() && !at(&state).counts();
                let looks_up = row.is_lookup_by_key();
                let may_count = !row.no_effect && !row.only_changes_a_map() && !looks_up && !row.name.is_empty();
                let marks = seen.is_some() && row.marks_program || may_count;
                all.marks.extend(marks.then_some(Mark::Helper(row.name)));
                all.marks.extend(match symbol {
                    Some(Symbol::Func { name }) => Some(Mark::Function(name.clone())),
                    // Of a variable of a module, too: the module stays while the program does (`check_pseudo_btf_id`).
                    Some(Symbol::Extern { name }) => Some(Mark::Extern(name.clone())),
                    _ => None,
                });
                let Some(m) = op.insn.memory_operand() else { continue };
                // What came as an argument may be the context.
                let argument = seen.as_ref().is_some_and(|s| s.reg(m.base).region().is_none());
                let bytes = |from: i64| {
                    let from = from.wrapping_add(m.off.into());
                    from..from.saturating_add(m.size.bytes().into())
                };
                all.marks.extend((argument && bytes(0).any(|at| is_cleared(f.kind, at))).then_some(Mark::ControlBlock));
                let at = seen.as_ref().map(|s| s.reg(m.base)).filter(|v| v.region().is_none_or(|r| *r == Region::Ctx));
                let compared = |v: &Value| {
                    let from = if v.region().is_some() { v.num.as_signed_const() } else { Some(0) };
                    from.is_none_or(|from| bytes(from).any(|at| store_is_compared(f.kind, at)))
                };
                all.hides |=
                    m.writes && at.is_some_and(compared) && !seen.as_ref().is_some_and(|s| stores_little(&op.insn, s));
                // Uprobes may write registers, kprobes may not (`kprobe_write_ctx`, `kprobe_prog_is_valid_access`).
                let registers = f.kind == ProgKind::Tracing && m.writes && seen.as_ref().is_some_and(accesses);
                all.marks.extend(registers.then_some(Mark::Registers));
                state.iter().for_each(|s| all.executed.add(&m, s));
                seen.iter().for_each(|s| all.visited.add(&m, s));
            }
        }
        all.marks.extend(all.visited.touch(|at| is_cleared(f.kind, at)).then_some(Mark::ControlBlock));
        all
    }
}

/// Whether a function spills a register around a call that may leave it alone. Such stores of r1 to r5 in front of a call, and
/// loads of the same behind it, are for kernels that do not know such calls; newer ones remove both, by how the instructions
/// stand in memory. They do not see all that reads the slot: a way that leads between them, a helper or function that is
/// given the frame's address, a load that does not count as one because calls differ in how much is spilled around them
/// (`mark_fastcall_pattern_for_call`, `check_fastcall_stack_contract`, `remove_fastcall_spills_fills` in
/// kernel/bpf/verifier.c, since 6.12). So what is removed hangs on more than what the program says.
pub fn spills_around_a_fast_call(f: &Function) -> bool {
    // A `goto` may take no place in memory, which the graph does not tell; other jumps do.
    let in_memory = f.layout.iter().flat_map(|b| {
        let block = f.block(*b);
        let jump = (!matches!(block.term, Terminator::Goto(_))).then_some(None);
        block.ops.iter().map(Some).chain(jump)
    });
    let in_memory: Vec<Option<&Op>> = in_memory.collect();
    let is_fast = |op: &Op| match (op.insn, op.link.as_ref().map(|l| &l.symbol)) {
        // Kernel functions may be marked as such (`KF_FASTCALL`).
        (Insn::Call(Call::Kfunc { .. }), _) | (Insn::Call(_), Some(Symbol::Extern { .. })) => true,
        (Insn::Call(Call::Helper(_)), _) => Effects::of(&op.insn, op.link.is_some()).may_be_fast_call(),
        _ => false,
    };
    in_memory.windows(3).any(|w| match *w {
        [Some(before), Some(call), Some(behind)] if is_fast(call) => match (before.insn, behind.insn) {
            (
                Insn::Store { size: Size::DW, base: Reg::R10, off, src: Src::Reg(r) },
                Insn::Load { size: Size::DW, base: Reg::R10, off: o, dst, .. },
            ) => r == dst && off == o && (Reg::R1..=Reg::R5).contains(&r),
            _ => false,
        },
        _ => false,
    })
}

/// The mark of an operation that names a map of which that counts.
fn named_map_that_counts(op: &Op, env: &Env) -> Option<Mark> {
    match (&op.link, op.insn) {
        (Some(Link { symbol: Symbol::Map { name, .. }, .. }), _) => {
            let counts = env.maps.iter().find(|m| m.name == **name).is_none_or(MapInfo::naming_counts);
            counts.then(|| Mark::Map(name.clone()))
        }
        // By a number of which nobody knows whose it is.
        (None, Insn::LoadImm64 { kind: Imm64Kind::MapFd | Imm64Kind::MapIdx, imm, .. }) => Some(Mark::MapNumber(imm)),
        _ => None,
    }
}

/// Whether an instruction stores a number of which it does not matter how the kernel compares it ([`store_is_compared`]).
fn stores_little(insn: &Insn, state: &State) -> bool {
    match *insn {
        Insn::Store { src: Src::Reg(r), .. } => {
            let v = state.reg(r);
            v.region().is_none() && v.num.umax < NO_QUEUE_MAPPING
        }
        Insn::Store { src: Src::Imm(k), .. } => u64::try_from(k).is_ok_and(|k| k < NO_QUEUE_MAPPING),
        _ => false,
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

/// What `new` lacks, or has too much, of what counts by being there; `None` if it is as `old`.
pub fn presence_differs(old: &Function, new: &Function, env: &Env) -> Option<&'static str> {
    if (spills_around_a_fast_call(old) || spills_around_a_fast_call(new)) && !same_text(old, new) {
        return Some(VISITS);
    }
    let (a, b) = (Presence::of(old, env), Presence::of(new, env));
    let sensitive = a.sensitive.or(b.sensitive);
    let believed = !b.sensitive.beliefs.are_among(a.sensitive.beliefs) || sensitive.beliefs.are_wrong(MayBe::default());
    if (a.hides || b.hides || sensitive.matters() || believed) && !same_graph(old, new) {
        return Some(VISITS);
    }
    if a.sensitive.prepares != b.sensitive.prepares {
        return Some(PACKET_STORE);
    }
    if a.marks != b.marks {
        return Some("something by which the kernel marks the program is not in both");
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

/// Whether the verifier takes an access to the context (offset and width in bytes), given that it takes these.
pub fn is_taken(kind: ProgKind, taken: &BTreeSet<(i64, u32)>, (at, size): (i64, u32)) -> bool {
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
