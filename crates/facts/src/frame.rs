//! The stack frame: a bit set over its 512 bytes, and what is known of its contents.
//!
//! One idea: contents are non-overlapping *pieces*, each as wide as the store that made it, so that a
//! load of the same bytes gives back the very value stored, pointers included, and any other load is
//! put together from parts. Bytes without a piece are unknown. Each piece knows the byte order in which it was stored,
//! which is the same for all of a function.

use std::fmt;
use std::sync::Arc;

use bpf_program::ByteOrder;

use crate::{Num, Value};

/// Size of a stack frame, `MAX_BPF_STACK`.
pub const FRAME: i64 = 512;

/// A set of stack bytes, by their offset from r10, −512 … −1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct StackSet([u64; 8]);

impl StackSet {
    /// No byte.
    pub const EMPTY: StackSet = StackSet([0; 8]);
    /// The whole frame.
    pub const ALL: StackSet = StackSet([u64::MAX; 8]);

    /// The bytes `off .. off + len` that are in the frame.
    pub fn range(off: i64, len: u32) -> StackSet {
        let mut s = StackSet::EMPTY;
        s.insert_range(off, len);
        s
    }

    /// The bytes `lo .. hi` that are in the frame; wide arithmetic so that nothing wraps.
    pub(crate) fn between(lo: i128, hi: i128) -> StackSet {
        let lo = lo.clamp(-i128::from(FRAME), 0) as i64;
        let hi = hi.clamp(-i128::from(FRAME), 0) as i64;
        StackSet::range(lo, (hi - lo).max(0) as u32)
    }

    /// Adds the bytes `off .. off + len` that are in the frame.
    pub fn insert_range(&mut self, off: i64, len: u32) {
        let lo = off.max(-FRAME);
        let hi = off.saturating_add(i64::from(len)).min(0);
        for i in lo..hi {
            let bit = (i + FRAME) as usize;
            self.0[bit / 64] |= 1 << (bit % 64);
        }
    }

    /// Whether byte `off` is in it; a byte outside the frame never is.
    pub fn contains(&self, off: i64) -> bool {
        (-FRAME..0).contains(&off) && {
            let bit = (off + FRAME) as usize;
            self.0[bit / 64] >> (bit % 64) & 1 == 1
        }
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        *self == StackSet::EMPTY
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.0.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// The bytes of either.
    #[must_use]
    pub fn union(&self, o: &StackSet) -> StackSet {
        StackSet(std::array::from_fn(|i| self.0[i] | o.0[i]))
    }

    /// The bytes of both.
    #[must_use]
    pub fn intersect(&self, o: &StackSet) -> StackSet {
        StackSet(std::array::from_fn(|i| self.0[i] & o.0[i]))
    }

    /// The bytes of this one only.
    #[must_use]
    pub fn minus(&self, o: &StackSet) -> StackSet {
        StackSet(std::array::from_fn(|i| self.0[i] & !o.0[i]))
    }

    /// The offsets in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = i64> {
        let set = *self;
        (-FRAME..0).filter(move |off| set.contains(*off))
    }

    /// The offsets as maximal runs `(first, length)`.
    pub fn runs(&self) -> Vec<(i64, u32)> {
        let mut runs: Vec<(i64, u32)> = Vec::new();
        for off in self.iter() {
            match runs.last_mut() {
                Some((first, len)) if *first + i64::from(*len) == off => *len += 1,
                _ => runs.push((off, 1)),
            }
        }
        runs
    }
}

impl fmt::Debug for StackSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.runs()).finish()
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Piece {
    off: i64,
    value: Value,
    order: ByteOrder,
}

impl Piece {
    fn len(&self) -> i64 {
        i64::from(self.value.num.bits / 8)
    }
    fn end(&self) -> i64 {
        self.off + self.len()
    }
    /// The bytes `lo .. hi` of it, which it covers.
    fn part(&self, lo: i64, hi: i64) -> Value {
        let (at, len) = ((lo - self.off) as u32, (hi - lo) as u32);
        self.value.part(self.order.bit(at, len, self.value.num.bits / 8), len * 8)
    }
}

/// What is known of the frame's contents. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Frame {
    /// Ascending, not overlapping.
    pieces: Arc<Vec<Piece>>,
}

impl Frame {
    fn overlapping(&self, lo: i64, hi: i64) -> &[Piece] {
        let from = self.pieces.partition_point(|p| p.end() <= lo);
        let to = self.pieces.partition_point(|p| p.off < hi);
        &self.pieces[from..to.max(from)]
    }

    /// The byte order of the known parts.
    pub(crate) fn order(&self) -> ByteOrder {
        self.pieces.first().map_or(ByteOrder::Little, |p| p.order)
    }

    /// The known parts.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (i64, &Value)> {
        self.pieces.iter().map(|p| (p.off, &p.value))
    }

    /// What a load of `len` bytes at `off` gives.
    pub(crate) fn load(&self, off: i64, len: u32) -> Value {
        let end = off + i64::from(len);
        let pieces = self.overlapping(off, end);
        if let [p] = pieces
            && p.off == off
            && p.end() == end
        {
            return p.value.clone();
        }
        let mut sum: Option<Num> = None;
        let order = pieces.first().map_or(ByteOrder::Little, |p| p.order);
        let mut append = |n: Num| {
            sum = Some(sum.map_or(n, |before| match order {
                ByteOrder::Little => n.concat(&before),
                ByteOrder::Big => before.concat(&n),
            }));
        };
        let (mut at, mut gap) = (off, false);
        for p in pieces {
            let (lo, hi) = (p.off.max(off), p.end().min(end));
            if at < lo {
                append(Num::top((lo - at) as u32 * 8));
                gap = true;
            }
            append(p.part(lo, hi).bits());
            at = hi;
        }
        if at < end {
            append(Num::top((end - at) as u32 * 8));
            gap = true;
        }
        let num = sum.unwrap_or(Num::top(len * 8));
        if gap && len == 8 { Value { kind: crate::Kind::Unknown, num } } else { Value::scalar(num) }
    }

    /// Whether a load of exactly these bytes gives a whole stored value.
    pub(crate) fn is_piece(&self, off: i64, len: u32) -> bool {
        matches!(self.overlapping(off, off + i64::from(len)), [p] if p.off == off && p.len() == i64::from(len))
    }

    /// Whether a spilled pointer to the frame may have bytes in `lo .. hi`.
    pub(crate) fn holds_frame_pointer(&self, lo: i64, hi: i64) -> bool {
        self.overlapping(lo, hi).iter().any(|p| p.value.is_stack())
    }

    /// Stores `value` at `off`, its bytes in this order. Returns whether a piece of a spilled frame pointer is left behind.
    #[must_use]
    pub(crate) fn store(&mut self, off: i64, value: Value, order: ByteOrder) -> bool {
        let end = off + i64::from(value.num.bits / 8);
        let from = self.pieces.partition_point(|p| p.end() <= off);
        let to = self.pieces.partition_point(|p| p.off < end).max(from);
        let mut new = Vec::with_capacity(3);
        let mut torn = false;
        for p in &self.pieces[from..to] {
            if p.off < off {
                new.push(Piece { off: p.off, value: p.part(p.off, off), order: p.order });
            }
            torn |= p.value.is_stack() && (p.off < off || p.end() > end);
        }
        if !value.is_unknown() {
            new.push(Piece { off, value, order });
        }
        for p in &self.pieces[from..to] {
            if p.end() > end {
                new.push(Piece { off: end, value: p.part(end, p.end()), order: p.order });
            }
        }
        if from != to || !new.is_empty() {
            Arc::make_mut(&mut self.pieces).splice(from..to, new);
        }
        torn
    }

    /// Forgets these bytes, which may have been overwritten. Returns whether they may hold a spilled
    /// frame pointer, which then is no longer seen.
    #[must_use]
    pub(crate) fn forget(&mut self, bytes: &StackSet) -> bool {
        if self.pieces.is_empty() {
            return false;
        }
        let mut lost = false;
        for (off, len) in bytes.runs() {
            let hi = off + i64::from(len);
            lost |= self.holds_frame_pointer(off, hi);
            let mut at = off;
            // In units of at most eight bytes, the widest value there is.
            while at < hi {
                let n = (hi - at).min(8) as u32;
                if !self.overlapping(at, at + i64::from(n)).is_empty() {
                    // It does not stay, whatever its order.
                    lost |= self.store(at, Value::scalar(Num::top(n * 8)), ByteOrder::Little);
                    Arc::make_mut(&mut self.pieces).retain(|p| p.off != at);
                }
                at += i64::from(n);
            }
        }
        lost
    }

    /// Changes every value in place.
    pub(crate) fn update(&mut self, wanted: impl Fn(&Value) -> bool, mut change: impl FnMut(&mut Value)) {
        if self.pieces.iter().any(|p| wanted(&p.value)) {
            let pieces = Arc::make_mut(&mut self.pieces);
            for p in pieces.iter_mut().filter(|p| wanted(&p.value)) {
                change(&mut p.value);
            }
            pieces.retain(|p| !p.value.is_unknown());
        }
    }

    /// What holds of both frames, each common piece through `merge`; and whether a spilled frame pointer
    /// was lost on the way.
    pub(crate) fn join(&self, o: &Frame, mut merge: impl FnMut(&Value, &Value) -> Value) -> (Frame, bool) {
        if self == o {
            return (self.clone(), false);
        }
        let mut pieces = Vec::with_capacity(self.pieces.len().min(o.pieces.len()));
        for p in self.pieces.iter() {
            for q in o.overlapping(p.off, p.end()) {
                let (lo, hi) = (p.off.max(q.off), p.end().min(q.end()));
                debug_assert_eq!(p.order, q.order, "one function has one byte order");
                let value = merge(&p.part(lo, hi), &q.part(lo, hi));
                if !value.is_unknown() {
                    pieces.push(Piece { off: lo, value, order: p.order });
                }
            }
        }
        let kept = |p: &Piece| {
            !p.value.is_stack()
                || pieces.binary_search_by_key(&p.off, |r: &Piece| r.off).is_ok_and(|i| pieces[i].value.is_stack())
        };
        let lost = !self.pieces.iter().all(kept) || !o.pieces.iter().all(kept);
        (Frame { pieces: Arc::new(pieces) }, lost)
    }
}
