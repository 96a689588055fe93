//! Abstract values: what a register or a spill slot may hold.
//!
//! One idea: a pointer is a *region*, the *identity* of a base address in it, and an offset that is an
//! ordinary [`Num`]. Two values with the same base ([`Value::same_base`]) differ by the difference of
//! their offsets, whatever the base address is.

use std::sync::Arc;

use bpf_program::BlockId;

use crate::Num;

/// What memory a pointer points into.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Region {
    /// This function's own stack frame; offsets count from r10.
    Stack,
    /// The program's context.
    Ctx,
    /// Packet bytes; the base is the start of the packet data.
    Packet,
    /// Packet metadata; the base is its start.
    PacketMeta,
    /// The end of the packet: comparable, never dereferenced.
    PacketEnd,
    /// A value of the map with this index.
    MapValue {
        /// Index into the object's map table.
        map: usize,
    },
    /// A value of one of several maps, where paths with values of different ones meet.
    AnyMapValue,
    /// The map itself.
    MapPtr {
        /// Index into the object's map table.
        map: usize,
    },
    /// A global data section; offsets count from its start.
    Data {
        /// Section name.
        section: Arc<str>,
    },
    /// The frame of a caller: private, like the own one, but apart from it.
    CallerFrame,
    /// A function of the program.
    Func {
        /// Its name.
        name: Arc<str>,
    },
    /// Memory a helper made for this program (a ring buffer reservation).
    Mem,
    /// Anything else of the kernel: sockets, tasks, and also values of maps that are not known by name
    /// (inner maps, local storage). It never is a program's stack.
    Kernel,
}

impl Region {
    /// Whether memory of the two regions may overlap. Within one region, compare base and offset.
    pub fn may_overlap(&self, o: &Region) -> bool {
        use Region::{AnyMapValue, Kernel, Packet, PacketEnd, PacketMeta, Stack};
        match (self, o) {
            (a, b) if a == b => true,
            (AnyMapValue, o) | (o, AnyMapValue) if o.is_map_value() => true,
            (Stack, _) | (_, Stack) => false,
            (Kernel, _) | (_, Kernel) => true,
            (Packet | PacketMeta | PacketEnd, Packet | PacketMeta | PacketEnd) => true,
            _ => false,
        }
    }

    /// Whether this is a value of a map, known or not.
    pub fn is_map_value(&self) -> bool {
        matches!(self, Region::MapValue { .. } | Region::AnyMapValue)
    }

    /// Whether this is packet data, metadata or the packet's end.
    pub fn is_packet(&self) -> bool {
        matches!(self, Region::Packet | Region::PacketMeta | Region::PacketEnd)
    }
}

/// Identity of a base address, meaningful together with the region and within one program state.
///
/// The derived equality compares names, and `Unknown == Unknown` holds there; ask
/// [`BaseId::same`] or [`Value::same_base`] whether two addresses are equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum BaseId {
    /// The only base of its region (the frame, the context, a section's start), and the packet as the
    /// program first sees it.
    Fixed,
    /// Made by the latest execution of this operation. Pointers left from earlier executions have been
    /// renamed `Unknown`. For the packet: its place since this call moved it.
    Site(BlockId, u32),
    /// The packet, where paths meet that have moved it differently.
    Join(BlockId),
    /// Some base, no two of which are known equal. Offsets of map values count from the start of the value.
    Unknown,
}

/// The block that stands for the callers, in [`BaseId::argument`].
const CALLERS: BlockId = BlockId(u32::MAX - 1);

impl BaseId {
    /// What the caller has passed in argument register `n`.
    pub fn argument(n: u32) -> BaseId {
        BaseId::Site(CALLERS, n)
    }

    /// Whether it is what a caller has passed, which may lie anywhere in its object.
    pub fn is_argument(self) -> bool {
        matches!(self, BaseId::Site(CALLERS, _))
    }

    /// Whether the two are surely the same address, in the same region and state.
    pub fn same(self, o: BaseId) -> bool {
        self == o && self != BaseId::Unknown
    }
}

/// What a value is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Anything: a number, a pointer, or uninitialized. `num` constrains its bits. It is a pointer into
    /// this function's frame only if [`crate::State::frame_leaked`].
    Unknown,
    /// A number; `num` constrains its bits.
    Scalar,
    /// The address `base + num`, modulo 2^64; or 0, if `nullable`.
    Pointer {
        /// What it points into.
        region: Region,
        /// Where its offset counts from.
        base: BaseId,
        /// It may be 0 instead.
        nullable: bool,
    },
}

/// An abstract value. 64 bits wide in registers; narrower ones are always `Scalar`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Value {
    /// What it is.
    pub kind: Kind,
    /// Its bits; for a pointer the 64-bit offset from the base.
    pub num: Num,
}

impl Value {
    /// Nothing known of 64 bits.
    pub const fn unknown() -> Value {
        Value { kind: Kind::Unknown, num: Num::top(64) }
    }

    /// A number.
    pub const fn scalar(num: Num) -> Value {
        Value { kind: Kind::Scalar, num }
    }

    /// A 64-bit constant.
    pub const fn constant(v: u64) -> Value {
        Value::scalar(Num::constant(64, v))
    }

    /// The address `offset` bytes after the base.
    pub const fn pointer(region: Region, base: BaseId, offset: i64) -> Value {
        Value { kind: Kind::Pointer { region, base, nullable: false }, num: Num::constant(64, offset as u64) }
    }

    /// The base address, or 0.
    pub const fn nullable(region: Region, base: BaseId) -> Value {
        Value { kind: Kind::Pointer { region, base, nullable: true }, num: Num::constant(64, 0) }
    }

    /// Whether nothing at all is known.
    pub fn is_unknown(&self) -> bool {
        self.kind == Kind::Unknown && self.num.is_top()
    }

    /// The region it points into, if it is a pointer (or null).
    pub fn region(&self) -> Option<&Region> {
        match &self.kind {
            Kind::Pointer { region, .. } => Some(region),
            _ => None,
        }
    }

    /// Whether it is a pointer to the function's own frame (or null).
    pub fn is_stack(&self) -> bool {
        self.region() == Some(&Region::Stack)
    }

    /// The number, if it is a constant scalar (or an unknown of which all bits are known).
    pub fn as_const(&self) -> Option<u64> {
        match self.kind {
            Kind::Pointer { .. } => None,
            _ => self.num.as_const(),
        }
    }

    /// What is known of the bits: of a pointer, nothing.
    pub fn bits(&self) -> Num {
        match self.kind {
            Kind::Pointer { .. } => Num::top(64),
            _ => self.num,
        }
    }

    /// The constant offset, if it is a pointer that cannot be null.
    pub fn pointer_at(&self) -> Option<(&Region, BaseId, i64)> {
        match &self.kind {
            Kind::Pointer { region, base, nullable: false } => Some((region, *base, self.num.as_signed_const()?)),
            _ => None,
        }
    }

    /// Whether both are non-null pointers to the same region with surely the same base address. Both
    /// values must be taken from one state.
    pub fn same_base(&self, o: &Value) -> bool {
        match (&self.kind, &o.kind) {
            (
                Kind::Pointer { region: r, base: b, nullable: false },
                Kind::Pointer { region: q, base: c, nullable: false },
            ) => r == q && b.same(*c),
            _ => false,
        }
    }

    /// What holds of a value that is one of the two.
    #[must_use]
    pub fn join(&self, o: &Value) -> Value {
        if self == o {
            return self.clone();
        }
        let null = |v: &Value| v.kind == Kind::Scalar && v.num.as_const() == Some(0);
        match (&self.kind, &o.kind) {
            (Kind::Pointer { region: r, base: b, nullable: m }, Kind::Pointer { region: q, base: c, nullable: n })
                if r == q =>
            {
                let base = if b == c { *b } else { BaseId::Unknown };
                let kind = Kind::Pointer { region: r.clone(), base, nullable: *m || *n };
                let num = if b == c { self.num.join(&o.num) } else { from_start(*b, *c, self.num.join(&o.num)) };
                Value { kind, num }
            }
            (Kind::Pointer { region: r, nullable: m, base: b }, Kind::Pointer { region: q, nullable: n, base: c })
                if r.is_map_value() && q.is_map_value() =>
            {
                let (region, base) = (Region::AnyMapValue, BaseId::Unknown);
                let num = from_start(*b, *c, self.num.join(&o.num));
                Value { kind: Kind::Pointer { region, base, nullable: *m || *n }, num }
            }
            // Not the base's own nullness any more: the base must lose its name.
            (Kind::Pointer { region, base, .. }, _) if null(o) => self.or_null(region, *base),
            (_, Kind::Pointer { region, base, .. }) if null(self) => o.or_null(region, *base),
            (Kind::Pointer { .. }, _) | (_, Kind::Pointer { .. }) => Value::unknown(),
            (a, b) => Value { kind: if a == b { a.clone() } else { Kind::Unknown }, num: self.num.join(&o.num) },
        }
    }

    fn or_null(&self, region: &Region, base: BaseId) -> Value {
        let kind = Kind::Pointer { region: region.clone(), base: BaseId::Unknown, nullable: true };
        Value { kind, num: from_start(base, base, self.num) }
    }

    /// Like [`Num::widen`]; `hard` gives up the number altogether where it still grows.
    #[must_use]
    pub fn widen(&self, next: &Value, hard: bool) -> Value {
        if self.num == next.num || self.num.bits != next.num.bits || self.region() != next.region() {
            return next.clone();
        }
        let num = if hard { Num::top(next.num.bits) } else { self.num.widen(&next.num) };
        Value { kind: next.kind.clone(), num }
    }

    /// The `bits` bits starting at bit `lo`, as a number (the whole 64 bits stay what they are).
    #[must_use]
    pub fn part(&self, lo: u32, bits: u32) -> Value {
        if lo == 0 && bits == self.num.bits { self.clone() } else { Value::scalar(self.bits().extract(lo, bits)) }
    }
}

/// The offset of a pointer that loses its base, which was one of these two: what a caller has passed lies anywhere.
fn from_start(a: BaseId, b: BaseId, offset: Num) -> Num {
    if a.is_argument() || b.is_argument() { Num::top(64) } else { offset }
}
