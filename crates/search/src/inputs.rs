//! Test inputs: entry states that the facts at a window admit.
//!
//! Numbers are drawn from what is claimed of them, edges first. Pointers with one base get one base
//! address; bases that may be the same object sometimes are. Everything else (memory, context
//! fields, what the loader puts in) is a function of the input's seed and the place that asks, so an
//! input is small and nothing needs to be known in advance about what will be read.

use std::hash::{Hash, Hasher};

use bpf_facts::{BaseId, Kind, Num, Region, Value};
use bpf_isa::{Insn, Reg, Size, Src};
use bpf_program::{ByteOrder, FieldKind, ProgKind, Symbol, ctx_field};
use rustc_hash::{FxHashMap, FxHasher};

use crate::lanes::ones;
use crate::rng::{Rng, mix};
use crate::window::Window;

/// How many bytes after the context's address are its fields.
pub const CTX_BYTES: u64 = 4096;

/// How the bytes look that nobody has fixed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// Any.
    Random,
    /// Zero, one, all ones, or the sign bit.
    Edges,
    /// All the same, by seed: zero or all ones.
    Flat,
}

/// One entry state.
#[derive(Clone, Debug)]
pub struct Input {
    /// Registers r0 … r10.
    pub regs: [u64; 11],
    /// The frame pointer.
    pub frame: u64,
    /// Address of the context.
    pub ctx: u64,
    order: ByteOrder,
    seed: u64,
    style: Style,
    bytes: FxHashMap<u64, u8>,
    /// Values of context fields, by offset and width.
    cells: FxHashMap<(u32, u32), u64>,
    /// Base addresses by region and name.
    bases: FxHashMap<(Region, BaseId), u64>,
    packet: BaseId,
    /// Lengths of the packet at which something changes; empty: nobody compares with its end.
    lengths: Vec<u64>,
    maps: Vec<usize>,
}

impl Input {
    /// The input number `n` for this window.
    pub fn new(w: &Window, seed: u64, n: u64) -> Input {
        let mut rng = Rng::new(mix(seed, n));
        let style = match n % 4 {
            1 => Style::Edges,
            3 if n % 8 == 7 => Style::Flat,
            _ => Style::Random,
        };
        let mut input = Input {
            order: w.env.byte_order,
            regs: [0; 11],
            frame: 0xffff_c900_0000_1000 + (rng.bits() & 0xfff_ffff8),
            ctx: 0xffff_8881_0000_0000 + (rng.bits() & 0xfff_ff000),
            seed: rng.bits(),
            style,
            bytes: FxHashMap::default(),
            cells: FxHashMap::default(),
            bases: FxHashMap::default(),
            packet: w.before.packet_base(),
            lengths: w.superblock.map_or(vec![], |_| lengths(w)),
            maps: Vec::new(),
        };
        // In every fourth input whatever may be one object is.
        let together = n % 4 == 2;
        input.regs[10] = input.frame;
        // What jumps compare with, so that both ways are gone.
        let turning: Vec<u64> = w.superblock.map_or(vec![], |_| turning(w));
        for r in Reg::all().filter(|r| *r != Reg::R10) {
            let v = w.before.reg(r);
            input.regs[r.index()] = input.value(v, together, n < 8, &mut rng);
            if !turning.is_empty()
                && rng.one_in(2)
                && let Some(k) = rng.pick(&turning)
                && (admits(v, k) || (v.kind == Kind::Unknown && v.num.contains(k)))
            {
                input.regs[r.index()] = k;
            }
        }
        if w.superblock.is_some() {
            // The context leads to the packet, too.
            input.base(&Region::Packet, input.packet, together);
            input.base(&Region::PacketEnd, input.packet, together);
        }
        for (off, v) in w.before.stack_values() {
            let x = input.value(v, together, n < 8, &mut rng);
            let at = input.frame.wrapping_add(off as u64);
            input.set_bytes(at, x, v.num.bits / 8);
        }
        input
    }

    /// The order of the bytes of values in memory.
    pub fn order(&self) -> ByteOrder {
        self.order
    }

    /// Fixes bytes of the initial memory.
    pub fn set_bytes(&mut self, at: u64, v: u64, len: u32) {
        let bytes = self.order.bytes(v, len as usize);
        for (i, byte) in (0..u64::from(len)).zip(bytes) {
            self.bytes.insert(at.wrapping_add(i), byte);
        }
    }

    /// Fixes a context field.
    pub fn set_cell(&mut self, off: u32, size: u32, v: u64) {
        self.cells.insert((off, size), v);
    }

    /// Sets a pointer in a register to another offset from its base.
    pub fn move_pointer(&mut self, r: Reg, v: &Value, offset: u64) {
        if let Kind::Pointer { region, base, .. } = &v.kind
            && let Some(a) = self.bases.get(&(region.clone(), *base))
        {
            self.regs[r.index()] = a.wrapping_add(offset);
        }
    }

    /// Moves the packet's end to so far behind its start, unless no packet is so long: formulas let
    /// addresses wrap around, which these do not.
    pub fn move_end(&mut self, w: &Window, length: u64) {
        if (length as i64).unsigned_abs() > 0xffff {
            return;
        }
        let start = self.base(&Region::Packet, self.packet, false);
        let end = start.wrapping_add(length);
        let Some(old) = self.bases.insert((Region::PacketEnd, self.packet), end) else { return };
        for r in Reg::all() {
            if w.before.reg(r).region() == Some(&Region::PacketEnd) {
                let x = &mut self.regs[r.index()];
                *x = x.wrapping_sub(old).wrapping_add(end);
            }
        }
    }

    /// Base addresses of known objects.
    pub fn bases(&self) -> impl Iterator<Item = (&Region, BaseId, u64)> {
        self.bases.iter().map(|((r, b), a)| (r, *b, *a))
    }

    /// A value that the facts admit.
    fn value(&mut self, v: &Value, together: bool, edges: bool, rng: &mut Rng) -> u64 {
        match &v.kind {
            Kind::Scalar => number(&v.num, edges, rng),
            Kind::Unknown => {
                let x = number(&v.num, edges, rng);
                // Perhaps a pointer: keep it from the addresses at which everything ends.
                if v.num.is_top() && !rng.one_in(4) { self.address(rng.bits()) } else { x }
            }
            Kind::Pointer { region, base, nullable } => {
                let offset = number(&v.num, edges, rng);
                let base = match region {
                    Region::Stack => self.frame,
                    Region::Ctx => self.ctx,
                    _ if base.same(*base) => self.base(region, *base, together),
                    _ => self.fresh(region, rng.bits(), together),
                };
                if *nullable && rng.one_in(4) { 0 } else { base.wrapping_add(offset) }
            }
        }
    }

    /// A kernel address; most are not aligned.
    fn address(&self, noise: u64) -> u64 {
        0xffff_8880_0000_0000 | (mix(self.seed, noise) & 0x7fff_ffff)
    }

    fn base(&mut self, region: &Region, base: BaseId, together: bool) -> u64 {
        if let Some(a) = self.bases.get(&(region.clone(), base)) {
            return *a;
        }
        let a = match region {
            Region::MapPtr { map } => self.map_address(*map),
            Region::Data { section } => self.symbol(&Symbol::Data { section: section.clone(), offset: 0 }),
            Region::PacketEnd if !self.lengths.is_empty() => {
                let noise = mix(self.seed, 0xe4d);
                let length = self.lengths[noise as usize % self.lengths.len()];
                self.base(&Region::Packet, base, together).wrapping_add(length)
            }
            _ => self.fresh(region, hash(&(region, base)), together),
        };
        self.bases.insert((region.clone(), base), a);
        a
    }

    /// The address of an object that is new, or, if asked for, of one it may be the same as.
    fn fresh(&mut self, region: &Region, noise: u64, together: bool) -> u64 {
        let same = |(r, _): &(Region, BaseId)| !r.is_packet() && r.may_overlap(region);
        let known = self.bases.iter().filter(|(k, _)| same(k)).map(|(_, a)| *a).min();
        match known.filter(|_| together) {
            Some(a) => a,
            None => self.address(noise),
        }
    }

    fn map_address(&mut self, map: usize) -> u64 {
        if !self.maps.contains(&map) {
            self.maps.push(map);
        }
        self.address(mix(77, map as u64))
    }

    /// What the loader puts in for a symbol.
    pub fn symbol(&self, s: &Symbol) -> u64 {
        match s {
            Symbol::Map { index, .. } => self.address(mix(77, *index as u64)),
            Symbol::Data { section, offset } => self.address(hash(section)).wrapping_add(*offset as u64),
            s => mix(self.seed, hash(s)),
        }
    }

    /// A byte of the initial memory.
    pub fn byte(&self, addr: u64) -> u8 {
        if let Some(b) = self.bytes.get(&addr) {
            return *b;
        }
        let noise = mix(self.seed, addr);
        match self.style {
            Style::Random => noise as u8,
            Style::Edges => [0, 0xff, 1, 0x80][noise as usize % 4],
            Style::Flat => 0u8.wrapping_sub(self.seed as u8 & 1),
        }
    }

    /// What a load of a context field gives: its width in bits and its value.
    pub fn cell(&self, kind: ProgKind, off: u32, size: Size) -> (u32, u64) {
        let n = size.bytes();
        let Some(f) = ctx_field(kind, i64::from(off)) else { return (size.bits(), self.raw(off, n)) };
        let whole = off == f.offset && n == f.size;
        let packet = |region: Region| {
            let known = self.bases.get(&(region.clone(), self.packet)).copied();
            (64, known.unwrap_or_else(|| self.address(hash(&(region, self.packet)))))
        };
        match f.kind {
            FieldKind::PacketData if whole => packet(Region::Packet),
            FieldKind::PacketEnd if whole => packet(Region::PacketEnd),
            FieldKind::PacketMeta if whole => packet(Region::PacketMeta),
            FieldKind::Pointer if whole => (64, self.address(mix(5, u64::from(off)))),
            FieldKind::Scalar { narrow: true } if off + n <= f.offset + f.size => {
                let full = self.raw(f.offset, f.size);
                (size.bits(), (full >> self.order.bit(off - f.offset, n, f.size)) & ones(size.bits()))
            }
            _ => (size.bits(), self.raw(off, n)),
        }
    }

    fn raw(&self, off: u32, size: u32) -> u64 {
        let known = self.cells.get(&(off, size)).copied();
        let noise = mix(mix(self.seed, u64::from(off)), u64::from(size));
        known.unwrap_or(if self.style == Style::Edges { noise % 3 } else { noise }) & ones(size * 8)
    }
}

fn hash(x: &impl Hash) -> u64 {
    let mut h = FxHasher::default();
    x.hash(&mut h);
    h.finish()
}

/// Numbers at which jumps turn.
fn turning(w: &Window) -> Vec<u64> {
    let immediate = |o: &bpf_program::Op| match o.insn {
        Insn::Jcc { src: Src::Imm(k), .. } => Some(i64::from(k) as u64),
        _ => None,
    };
    w.old.iter().filter_map(immediate).flat_map(|k| [k, k.wrapping_add(1), k.wrapping_sub(1)]).collect()
}

/// Lengths of a packet near which the window's jumps may turn: sums of its constants.
fn lengths(w: &Window) -> Vec<u64> {
    let mut sums = vec![0u64];
    for o in w.old {
        let k = match o.insn {
            Insn::Alu { src: Src::Imm(k), .. } | Insn::Mov { src: Src::Imm(k), .. } => i64::from(k),
            _ => continue,
        };
        if (1..4096).contains(&k) && sums.len() < 64 {
            let more: Vec<u64> = sums.iter().map(|s| s + k as u64).collect();
            sums.extend(more);
        }
    }
    for r in Reg::all() {
        sums.extend(w.before.reg(r).as_const().filter(|k| *k < 4096));
    }
    let mut all: Vec<u64> = sums.into_iter().flat_map(|k| [k, k + 1, k.saturating_sub(1), k + 64]).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// A number that is claimed possible; with `edges`, one near a limit more often than not.
pub fn number(n: &Num, edges: bool, rng: &mut Rng) -> u64 {
    if let Some(k) = n.as_const() {
        return k;
    }
    let mask = ones(n.bits);
    for _ in 0..8 {
        let x = match rng.below(if edges { 12 } else { 20 }) {
            0 => n.umin,
            1 => n.umax,
            2 => n.smin as u64,
            3 => n.smax as u64,
            4 => 0,
            5 => 1,
            6 => u64::MAX,
            7 => 1 << rng.below(64),
            8 => (1u64 << rng.below(64)).wrapping_sub(1),
            9 => 0x8000_0000,
            _ => {
                let x = rng.bits() >> if rng.one_in(2) { rng.below(64) } else { 0 };
                let span = n.umax.wrapping_sub(n.umin).wrapping_add(1);
                if span == 0 || span > mask { x } else { n.umin + x % span }
            }
        };
        // The bits that are known.
        let x = ((x & n.tnum.mask) | n.tnum.value) & mask;
        if n.contains(x) {
            return x;
        }
    }
    n.umin
}

/// Whether a value of the facts admits this number.
pub fn admits(v: &Value, x: u64) -> bool {
    v.kind == Kind::Scalar && v.num.contains(x & ones(v.num.bits))
}
