//! What the variables of a proof mean.
//!
//! Everything a program cannot compute itself is a function of *where it comes from*, so it gets a [`VarKey`], and both
//! sides get the same variable for the same key.

use std::sync::Arc;

use bpf_isa::Insn;
use bpf_program::Symbol;

use crate::term::{MemId, TermId};

/// A region of memory. Different regions never overlap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MemoryRegion {
    /// The frame of the function itself.
    Stack,
    /// The frames of callers.
    CallerFrame,
    /// The program's context, as fields.
    Ctx,
    /// Bytes of the context that behave as memory.
    CtxBytes,
    /// Packet data and metadata.
    Packet,
    /// One past the packet: never accessed.
    PacketEnd,
    /// Values of the map with this name.
    MapValue(Arc<str>),
    /// Values of all maps, where they are not told apart.
    AnyMapValue,
    /// A map itself: only handed to helpers.
    Map(Arc<str>),
    /// A global data section.
    Data(Arc<str>),
    /// Memory that a helper handed out afresh.
    Fresh,
    /// A kernel object.
    Kernel,
    /// Everything at once: used when the provenance of some access is unknown.
    Anything,
    /// Where a pointer of unknown origin leads, while others write, too: perhaps the context, perhaps a kernel object.
    Unknown,
}

impl MemoryRegion {
    /// Whether others may access it at the same time, so that the order, number and granularity of
    /// accesses matter. What the loader freezes is read-only.
    pub fn shared(&self) -> bool {
        match self {
            MemoryRegion::Data(section) => !read_only(section),
            MemoryRegion::MapValue(_)
            | MemoryRegion::AnyMapValue
            | MemoryRegion::Kernel
            | MemoryRegion::Anything
            | MemoryRegion::Unknown => true,
            _ => false,
        }
    }
}

/// Whether nobody writes a data section while a program runs: libbpf freezes the maps of these before it loads programs
/// (`bpf_object__populate_internal_map` in libbpf.c), and the verifier itself relies on that (`bpf_map_is_rdonly` in
/// kernel/bpf/verifier.c).
pub(crate) fn read_only(section: &str) -> bool {
    section.starts_with(".rodata") || section == ".kconfig"
}

/// Where the value of a variable comes from.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum VarKey {
    /// Register at entry of the region being proven.
    EntryReg(u8),
    /// Base address of an object known at entry, numbered by the caller.
    EntryBase(u32),
    /// An eight-byte stack slot at entry, by offset.
    EntrySlot(i64),
    /// Frame pointer.
    Frame,
    /// The context pointer.
    CtxPointer,
    /// Start, end or metadata start of the packet (by context offset), as of a version.
    PacketPointer(i64, TermId),
    /// A context field: offset, bytes, version.
    CtxField(i64, u32, TermId),
    /// What a call gives that has no effect and gives the same all through a run.
    Constant(Insn),
    /// r0 after an event.
    Ret(u32),
    /// Byte `i` that event wrote through argument `arg`.
    Written(u32, u8, u32),
    /// A byte of the packet, as legacy loads find it: so far from the offset of this `PacketBytes` (`symbolic/history.rs`).
    PacketByte(u32, i64),
    /// A clobbered register after an event.
    Clobbered(u32, u8),
    /// What the loader puts into an instruction.
    Symbol(Symbol),
    /// An unlinked pseudo `ld_imm64`.
    Pseudo(u8, u64),
    /// Result of an instruction patched by CO-RE.
    Core(Symbol, Insn, Vec<TermId>, Vec<MemId>),
    /// Byte `i` (or all, of an access that stays whole) that a read of shared memory found: the old side's read of this
    /// number.
    Read(u32, u32),
    /// The upper half of a 32-bit load that may have been translated into a load of a pointer.
    ReadUpper(u32),
    /// A byte of shared memory that a read of the new side finds, and of the old side none does.
    Beside(u32),
    /// Anything: used where a value is dead.
    Dead,
}

/// What a variable is known to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// A number.
    Scalar,
    /// The base address of an object.
    Pointer(MemoryRegion),
    /// A pointer to memory that is not known, but is not in this frame.
    Foreign,
    /// Not known: perhaps a pointer, perhaps even into this frame.
    Unknown,
}
