//! Memory for tests: the sparse one in which the original is watched, the sandbox for candidates.
//!
//! The original runs once per input in a memory without bounds ([`Sparse`]). The bytes it touches
//! become the [`TestMemory`]: a few segments per lane at made-up addresses, each byte marked as readable
//! or writable. A candidate that leaves it has done what the contract forbids, and gets a fault.
//! Context fields are not memory but cells, as in the prover.

use bpf_isa::Size;
use bpf_program::{ByteOrder, FieldKind, Link, ProgKind, ctx_field};
use rustc_hash::FxHashMap;

use crate::inputs::{CTX_BYTES, Input};
use crate::lanes::{Lanes, Memory, Stored, lanes, ones};
use crate::rng::mix;

/// A byte may be read.
pub const READ: u8 = 1;
/// A byte may be written.
pub const WRITE: u8 = 2;

/// One access the original made.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Where.
    pub addr: u64,
    /// How wide.
    pub size: Size,
    /// Whether it wrote.
    pub write: bool,
    /// The context field, if it was one.
    pub field: Option<u32>,
}

/// Memory without bounds, for one lane, with a record of all accesses.
pub struct Sparse<'i> {
    input: &'i Input,
    kind: ProgKind,
    overlay: FxHashMap<u64, u8>,
    /// All accesses in order.
    pub log: Vec<Access>,
}

impl<'i> Sparse<'i> {
    /// The memory of this input.
    pub fn new(input: &'i Input, kind: ProgKind) -> Sparse<'i> {
        Sparse { input, kind, overlay: FxHashMap::default(), log: Vec::new() }
    }

    fn byte(&self, addr: u64) -> u8 {
        self.overlay.get(&addr).copied().unwrap_or_else(|| self.input.byte(addr))
    }
}

/// The context field at this address, if it is one: fields that behave as memory are not.
fn field(input: &Input, kind: ProgKind, addr: u64, size: Size) -> Option<u32> {
    let off = addr.wrapping_sub(input.ctx);
    let memory = |o: u64| ctx_field(kind, o as i64).is_some_and(|f| f.kind == FieldKind::Memory);
    (off < CTX_BYTES && !(0..u64::from(size.bytes())).all(|i| memory(off + i))).then_some(off as u32)
}

impl Memory<1> for Sparse<'_> {
    fn byte_order(&self) -> ByteOrder {
        self.input.order()
    }

    fn load(&mut self, addr: &[u64; 1], size: Size, world: &[u64; 1]) -> Lanes<1> {
        let addr = addr[0];
        let field = field(self.input, self.kind, addr, size);
        self.log.push(Access { addr, size, write: false, field });
        match field {
            Some(off) => {
                let (bits, v) = self.input.cell(self.kind, off, size);
                Lanes { bits, v: [versioned(bits, size, v, world[0])] }
            }
            None => {
                let n = size.bytes();
                let shift = |i: u32| self.input.order().bit(i, 1, n);
                let bytes = (0..n).map(|i| u64::from(self.byte(addr.wrapping_add(i.into()))) << shift(i));
                Lanes { bits: size.bits(), v: [bytes.fold(0, |a, b| a | b)] }
            }
        }
    }

    fn store(&mut self, addr: &[u64; 1], size: Size, v: &Lanes<1>) -> Stored {
        let addr = addr[0];
        let field = field(self.input, self.kind, addr, size);
        self.log.push(Access { addr, size, write: true, field });
        if let Some(off) = field {
            return Stored::Field(off);
        }
        for i in 0..size.bytes() {
            let byte = v.v[0] >> self.input.order().bit(i, 1, size.bytes());
            self.overlay.insert(addr.wrapping_add(u64::from(i)), byte as u8);
        }
        Stored::Memory
    }

    fn symbol(&mut self, link: &Link) -> [u64; 1] {
        [self.input.symbol(&link.symbol)]
    }
}

/// A field's value after the history: a store to the context may change any field but packet pointers.
#[inline]
fn versioned(bits: u32, size: Size, v: u64, world: u64) -> u64 {
    if world == 0 || bits != size.bits() { v } else { mix(v, world) & ones(bits) }
}

/// A stretch of addresses in each lane, and where its bytes are in the arena.
#[derive(Clone, Debug)]
pub struct Segment<const N: usize> {
    /// First address.
    pub start: [u64; N],
    /// Bytes.
    pub len: [u64; N],
    /// Place of the first byte.
    pub at: [u32; N],
    /// Accesses must be aligned, counted from the end (the frame pointer).
    pub aligned: bool,
}

/// A context field that may be read.
#[derive(Clone, Debug)]
pub struct Cell<const N: usize> {
    /// Offset in the context.
    pub off: u32,
    /// Width of the access.
    pub size: Size,
    /// What it gives.
    pub value: Lanes<N>,
}

/// A store that was made, to be taken back or made again: the eight bytes at each place.
#[derive(Clone, Copy, Debug)]
pub struct Write<const N: usize> {
    at: [u32; N],
    old: [u64; N],
    new: [u64; N],
}

/// The memory of a batch of tests.
pub struct TestMemory<const N: usize> {
    /// Contents of all lanes. The first bytes of each lane catch what goes astray.
    pub bytes: Vec<u8>,
    /// What may be done with each byte.
    pub may: Vec<u8>,
    /// Distance between lanes.
    pub stride: usize,
    /// Where addresses lead.
    pub segments: Vec<Segment<N>>,
    /// Address of the context.
    pub ctx: [u64; N],
    /// The order of the bytes of values.
    pub order: ByteOrder,
    /// Fields that may be read.
    pub cells: Vec<Cell<N>>,
    /// Fields that may be written.
    pub settable: Vec<(u32, Size)>,
    /// Values of relocated instructions.
    pub symbols: Vec<(bpf_program::Symbol, [u64; N])>,
    /// Stores since it was last emptied.
    pub journal: Vec<Write<N>>,
    /// Accesses that left the sandbox, lanes counted.
    pub faults: u32,
}

#[inline(always)]
fn read8(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u64::from_le_bytes(*b))
}

#[inline(always)]
fn write8(bytes: &mut [u8], at: usize, v: u64) {
    // An array, not a slice: a slice is copied by a call.
    if let Some(b) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *b = v.to_le_bytes();
    }
}

/// Values with their bytes in the other order.
#[inline(never)]
fn turned<const N: usize>(v: &Lanes<N>) -> Lanes<N> {
    Lanes { bits: v.bits, v: lanes(|l| v.v[l].swap_bytes() >> (64 - v.bits)) }
}

/// `pattern` in each of the low `size` bytes.
#[inline(always)]
fn spread(pattern: u8, size: Size) -> u64 {
    (u64::from(pattern) * 0x0101_0101_0101_0101) & ones(size.bits())
}

impl<const N: usize> TestMemory<N> {
    /// The places of an access in the lanes where it is allowed; else the lane's first bytes, and how
    /// many lanes that happened in.
    #[inline(always)]
    fn locate(&self, addr: &[u64; N], size: Size, need: u8) -> ([u32; N], u32) {
        let n = u64::from(size.bytes());
        let mut at = [0u32; N];
        let mut found = false;
        for s in &self.segments {
            let askew = if s.aligned { n - 1 } else { 0 };
            let mut inside = true;
            for l in 0..N {
                let d = addr[l].wrapping_sub(s.start[l]);
                // What is beyond the end has a negative rest, which as a number is too large.
                let rest = s.len[l].wrapping_sub(d);
                inside &= rest <= s.len[l] && rest >= n && rest & askew == 0;
                at[l] = s.at[l].wrapping_add(d as u32);
            }
            if inside {
                found = true;
                break;
            }
        }
        if found {
            let want = spread(need, size);
            let mut missing = 0;
            for a in &at {
                missing |= want & !read8(&self.may, *a as usize);
            }
            if missing == 0 {
                return (at, 0);
            }
        }
        self.locate_each(addr, size, need)
    }

    #[inline(never)]
    fn locate_each(&self, addr: &[u64; N], size: Size, need: u8) -> ([u32; N], u32) {
        let n = u64::from(size.bytes());
        let want = spread(need, size);
        let mut faults = 0;
        let at = std::array::from_fn(|l| {
            let place = self.segments.iter().find_map(|s| {
                let d = addr[l].wrapping_sub(s.start[l]);
                let rest = s.len[l].wrapping_sub(d);
                let askew = if s.aligned { n - 1 } else { 0 };
                let inside = rest <= s.len[l] && rest >= n && rest & askew == 0;
                inside.then(|| s.at[l].wrapping_add(d as u32))
            });
            match place.filter(|a| want & !read8(&self.may, *a as usize) == 0) {
                Some(a) => a,
                None => {
                    faults += 1;
                    (l * self.stride) as u32
                }
            }
        });
        (at, faults)
    }

    /// Whether the context is meant, and at which offset.
    #[inline(always)]
    fn in_context(&self, addr: &[u64; N]) -> Option<u32> {
        let d = addr[0].wrapping_sub(self.ctx[0]);
        let same = (1..N).all(|l| addr[l].wrapping_sub(self.ctx[l]) == d);
        (d < CTX_BYTES && same).then_some(d as u32)
    }

    /// Takes the stores of the journal back, the latest first.
    pub fn undo(&mut self, writes: &[Write<N>]) {
        for w in writes.iter().rev() {
            for (at, v) in w.at.iter().zip(&w.old) {
                write8(&mut self.bytes, *at as usize, *v);
            }
        }
    }

    /// Takes back what is in the journal, and empties it.
    pub fn take_back(&mut self) {
        while let Some(w) = self.journal.pop() {
            for (at, v) in w.at.iter().zip(&w.old) {
                write8(&mut self.bytes, *at as usize, *v);
            }
        }
    }

    /// Makes stores again.
    pub fn redo(&mut self, writes: &[Write<N>]) {
        for w in writes {
            for (at, v) in w.at.iter().zip(&w.new) {
                write8(&mut self.bytes, *at as usize, *v);
            }
        }
    }

    /// The eight bytes at these places.
    #[inline(always)]
    pub fn words(&self, at: &[u32; N]) -> [u64; N] {
        lanes(|l| read8(&self.bytes, at[l] as usize))
    }
}

impl<const N: usize> Memory<N> for TestMemory<N> {
    #[inline(always)]
    fn byte_order(&self) -> ByteOrder {
        self.order
    }

    #[inline]
    fn load(&mut self, addr: &[u64; N], size: Size, world: &[u64; N]) -> Lanes<N> {
        if !self.cells.is_empty()
            && let Some(off) = self.in_context(addr)
            && let Some(c) = self.cells.iter().find(|c| c.off == off && c.size == size)
        {
            let mut value = c.value;
            for (v, w) in value.v.iter_mut().zip(world) {
                *v = versioned(value.bits, size, *v, *w);
            }
            return value;
        }
        let (at, faults) = self.locate(addr, size, READ);
        self.faults += faults;
        let mask = ones(size.bits());
        let words = self.words(&at);
        let value = Lanes { bits: size.bits(), v: lanes(|l| words[l] & mask) };
        if self.order == ByteOrder::Little { value } else { turned(&value) }
    }

    #[inline]
    fn store(&mut self, addr: &[u64; N], size: Size, v: &Lanes<N>) -> Stored {
        if !self.settable.is_empty()
            && let Some(off) = self.in_context(addr)
            && self.settable.contains(&(off, size))
        {
            return Stored::Field(off);
        }
        let (at, faults) = self.locate(addr, size, WRITE);
        self.faults += faults;
        let mask = ones(size.bits());
        let old = self.words(&at);
        let mut new = old;
        let big = (self.order == ByteOrder::Big).then(|| turned(v));
        let v = big.as_ref().unwrap_or(v);
        for l in 0..N {
            new[l] = (old[l] & !mask) | v.v[l];
            write8(&mut self.bytes, at[l] as usize, new[l]);
        }
        self.journal.push(Write { at, old, new });
        Stored::Memory
    }

    fn symbol(&mut self, link: &Link) -> [u64; N] {
        let known = self.symbols.iter().find(|(s, _)| *s == link.symbol);
        known.map_or([0; N], |(_, v)| *v)
    }
}
