//! Access refinement: what the new side may do to memory that others see, too.
//!
//! The idea: while a program runs, others write to map values, globals and kernel objects. So nothing is known
//! of the value that a read of them finds, not even that it is what the program itself wrote there. Each read of the
//! *old* side gets a variable of its own. (If that does not do, reads of what the very last access has left are taken to
//! find just that, which may happen to the old side; then the new side must not make them itself.) A read of the
//! *new* side must be one of the old side's reads (or several neighbouring ones in one) and gets their variables.
//! What this promises, for the accesses between two events (calls, atomics, fences):
//!
//! - every access of the new side *consumes* one or more of the old side's, each of those at most once, of the
//!   same bytes, under a condition that implies theirs, and, for a write, with the same values;
//! - the order is kept: what the new side does later was not done earlier by the old side;
//! - every write of the old side is consumed, unless its very next shared access overwrites it.
//!
//! So the new side never reads or writes a location more often, never moves an access over another one or over a call,
//! never splits one, and merges only what nothing stands between. A read of a map's value may take in bytes that the old
//! side does not read there, if it consumes others, is aligned, and stays inside of the value: each of those bytes is a
//! variable that nobody else has, so that what counts must be the same whatever they hold ([`Access::beside`]). Memory nobody else sees (packet, fresh memory) is
//! compared by its contents; here only the bytes count: the new side touches none the old one does not touch. (Of the packet
//! it may read again what the old side has accessed on its way to this stretch. And the context's field that gives the packet's
//! data it may read wherever a pointer to these is at hand: [`Context::data_read_before`].)
//! Accesses through pointers of unknown origin may be to the context or to a kernel object, whose fields
//! the verifier translates: they are consumed whole, with the same width. So are those of fields of map values that the
//! kernel manages, because the verifier takes them in no other form.
//! Sources: design, equivalence contract, 4 and 6.

use rustc_hash::FxHashMap;

use crate::symbolic::access::{Access, OldAccesses, Place, Reason, places};
use crate::symbolic::context::{Context, SatResult};
use crate::symbolic::variables::MemoryRegion;
use crate::term::{MemId, Node, TermId};

impl OldAccesses {
    /// Those of this log, none of them consumed.
    pub fn new(log: &[Access]) -> OldAccesses {
        OldAccesses { log: log.to_vec(), by_place: places(log), ..OldAccesses::default() }
    }

    /// The entry with this number.
    pub fn entry(&self, i: usize) -> &Access {
        &self.log[i]
    }

    /// Consumes the old side's accesses that these bytes (all of one access of the new side) are. Gives the entry of each
    /// byte, or `None` where a byte has none that must have one: all, or, `with_others`, at least one.
    pub fn consume(&mut self, cx: &mut Context, bytes: &[Access], with_others: bool) -> Option<Vec<Option<usize>>> {
        let mut found = Vec::with_capacity(bytes.len());
        let mut entries = Vec::with_capacity(bytes.len());
        for b in bytes {
            let places = self.by_place.get(&(b.region, b.base, b.off)).cloned().unwrap_or_default();
            let entry = places.into_iter().find(|i| self.fits(cx, *i, b, &found));
            if entry.is_none() && !with_others {
                return None;
            }
            found.extend(entry);
            entries.push(entry);
        }
        let (mut first, mut last) = (u32::MAX, 0);
        for i in &found {
            let n = self.log[*i].access;
            (first, last) = (first.min(n), last.max(n));
            self.taken.insert(*i);
            self.owner.insert(n, bytes[0].access);
        }
        if found.is_empty() {
            return None;
        }
        // Not over what has been done before, save where only one of the two happens.
        let guard = bytes[0].guard;
        if self.done.iter().any(|(g, l)| *l > first && !exclusive(cx, *g, guard)) {
            return None;
        }
        self.done.push((guard, last));
        Some(entries)
    }

    fn fits(&self, cx: &mut Context, i: usize, b: &Access, chosen: &[usize]) -> bool {
        let o = &self.log[i];
        let free = !o.forwarded
            && !self.taken.contains(&i)
            && !chosen.contains(&i)
            && self.owner.get(&o.access).is_none_or(|n| *n == b.access);
        let alike = o.write == b.write
            && match (&o.exact, &b.exact) {
                (None, None) => true,
                (Some(x), Some(y)) => x.size == y.size && x.reason == y.reason,
                _ => false,
            };
        if !free || !alike {
            return false;
        }
        if self.done.iter().any(|(g, l)| *l > o.access && !exclusive(cx, *g, b.guard)) {
            return false;
        }
        if !same_stretch(cx, o, b) || !implies(cx, b.guard, o.guard) {
            return false;
        }
        if let (Some(x), Some(y)) = (&o.exact, &b.exact)
            && !sees_the_same(cx, b.guard, &x.sees, &y.sees)
        {
            return false;
        }
        // What goes into a managed field the verifier judges by its type, which is not the same for all equal values.
        let judged_by_type = b.exact.as_ref().is_some_and(|e| e.reason != Reason::Translated);
        !b.write || o.value == b.value || !judged_by_type && same_value(cx, b.guard, o.value, b.value)
    }
}

/// An access of the new side that is none of the old one's, in words.
pub fn missing(bytes: &[Access], region: &MemoryRegion) -> String {
    let what = if bytes[0].write { "write to" } else { "read of" };
    format!("a {what} shared memory ({region:?}) that the original does not do there")
}

/// Whether memories are surely equal.
fn sees_the_same(cx: &mut Context, guard: TermId, a: &[(u32, MemId)], b: &[(u32, MemId)]) -> bool {
    let mut differ = Vec::new();
    for ((r, x), (s, y)) in a.iter().zip(b) {
        if r != s {
            return false;
        }
        cx.memory_differences(*x, *y, &|_, _, _| true, &mut differ);
    }
    a.len() == b.len() && matches!(cx.check_sat(guard, &differ), SatResult::Unsat)
}

fn same_value(cx: &mut Context, guard: TermId, x: TermId, y: TermId) -> bool {
    if x == y {
        return true;
    }
    if cx.terms.width(x) != cx.terms.width(y) {
        return false;
    }
    let e = cx.terms.eq(x, y);
    let ne = cx.terms.not(e);
    matches!(cx.check_sat(guard, &[ne]), SatResult::Unsat)
}

/// Checks the new side's accesses against the old side's; the error says what is wrong.
///
/// # Errors
/// A sentence that names the access.
pub fn check(cx: &mut Context, old: &[Access], new: &[Access], strict: bool) -> Result<(), String> {
    let by_place = places(old);
    let mut consumed: FxHashMap<usize, Consumer> = FxHashMap::default();
    for bytes in new.chunk_by(|a, b| a.access == b.access) {
        let region = cx.region(bytes[0].region).clone();
        if region == MemoryRegion::Ctx {
            continue;
        }
        if region == MemoryRegion::Stack && bytes[0].exact.is_none() {
            framed(cx, old, bytes, &by_place)?;
        } else if !cx.is_shared(bytes[0].region) {
            for b in bytes {
                if !read_before(cx, b) {
                    covered(cx, old, b, &by_place)?;
                }
            }
        } else {
            if strict && bytes.iter().any(|b| b.atomic) {
                return Err("a load and a store of shared memory become an atomic".into());
            }
            // Found while the new side ran.
            let with_others = bytes.iter().any(|b| b.beside);
            let found: Option<Vec<usize>> = bytes.iter().filter(|b| !b.beside).map(|b| b.consumes).collect();
            // One that comes later, perhaps only behind a jump, is none that has happened here.
            let found = found.filter(|f| !f.is_empty() && f.iter().all(|i| *i < old.len()));
            let Some(found) = found else { return Err(missing(bytes, &region)) };
            let mut accesses: Vec<u32> = found.iter().map(|i| old[*i].access).collect();
            accesses.dedup();
            if with_others && bytes.iter().any(|b| b.atomic) {
                return Err("an atomic takes in bytes that the original does not read".into());
            }
            if strict && (accesses.len() > 1 || with_others) {
                return Err("accesses to shared memory are merged, or wider".into());
            }
            // One that is not aligned is not done at one moment: its parts may be seen in any order.
            let (base, off, size) = (bytes[0].base, bytes[0].off, bytes.len() as u32);
            if (accesses.len() > 1 || with_others) && !is_aligned(cx, base, off, size) {
                return Err("accesses to shared memory become one that is not aligned".into());
            }
            let consumer = |i: &usize| (*i, Consumer { guard: bytes[0].guard, access: bytes[0].access });
            consumed.extend(found.iter().map(consumer));
        }
    }
    nothing_missing(cx, old, &consumed)
}

/// Every write of the old side to shared memory is consumed whenever it happens, or overwritten at once; and so is every
/// read that may not go. Where only a part of a write is consumed, whoever consumes that part brings the overwriting
/// bytes with it: nobody ever sees the part alone.
fn nothing_missing(cx: &mut Context, old: &[Access], consumed: &FxHashMap<usize, Consumer>) -> Result<(), String> {
    let shared: Vec<usize> = (0..old.len()).filter(|i| cx.is_shared(old[*i].region)).collect();
    let mut owner: FxHashMap<u32, u32> = FxHashMap::default();
    for (i, c) in consumed {
        owner.insert(old[*i].access, c.access);
    }
    for (at, &i) in shared.iter().enumerate() {
        let o = &old[i];
        if !o.write && o.exact.as_ref().is_none_or(|e| e.droppable) {
            continue;
        }
        if let Some(c) = consumed.get(&i)
            && implies(cx, o.guard, c.guard)
        {
            continue;
        }
        let mut rest = shared[at..].iter().copied().skip_while(|j| old[*j].access == o.access).peekable();
        let next = rest.peek().map(|j| old[*j].access);
        let over = rest.take_while(|j| Some(old[*j].access) == next).find(|j| {
            let a = &old[*j];
            a.write && a.exact.is_none() && (a.region, a.base, a.off, a.world) == (o.region, o.base, o.off, o.world)
        });
        let (Some(over), true, None) = (over, o.write, &o.exact) else {
            let what = if o.write { "write to" } else { "read of" };
            return Err(format!("a {what} shared memory ({:?}) is missing", cx.region(o.region)));
        };
        if !implies(cx, o.guard, old[over].guard) {
            return Err("a write to shared memory is missing where the next one does not happen".into());
        }
        let together = consumed.get(&over).map(|c| c.access);
        if owner.get(&o.access).is_some_and(|n| Some(*n) != together) {
            return Err("only a part of a write to shared memory is left".into());
        }
    }
    Ok(())
}

/// Whether an access of `bytes` bytes is known to be at a multiple of them: in an object of which that is known, with an
/// offset whose low bits are known.
pub fn is_aligned(cx: &mut Context, base: TermId, off: i64, bytes: u32) -> bool {
    let zero_bits = bytes.trailing_zeros();
    let parts = match cx.terms.node(base).clone() {
        Node::Sum(parts, k) if k.trailing_zeros() >= zero_bits => parts.to_vec(),
        Node::Sum(..) => return false,
        _ => vec![(base, 1)],
    };
    bytes.is_power_of_two()
        && off.trailing_zeros() >= zero_bits
        && parts.into_iter().all(|(t, n)| match cx.region_of(t) {
            Some(_) => n == 1 && cx.zero_bits(t) >= zero_bits,
            None => cx.terms.known(t).0.trailing_ones() + n.trailing_zeros() >= zero_bits,
        })
}

/// An access of the new side that consumes one of the old side's.
struct Consumer {
    /// Under which condition.
    guard: TermId,
    /// Its number.
    access: u32,
}

/// An access to the frame at a varying offset (others are not logged): some old one is the same, which
/// answers for its alignment and bounds.
fn framed(
    cx: &mut Context,
    old: &[Access],
    bytes: &[Access],
    by_place: &FxHashMap<Place, Vec<usize>>,
) -> Result<(), String> {
    let b = &bytes[0];
    let places = by_place.get(&(b.region, b.base, b.off)).cloned().unwrap_or_default();
    for i in places {
        let o = &old[i];
        let first = i == 0 || old[i - 1].access != o.access;
        let size = old[i..].iter().take_while(|a| a.access == o.access).count();
        if first && size == bytes.len() && implies(cx, b.guard, o.guard) {
            return Ok(());
        }
    }
    Err("an access to the stack at a varying offset that the original does not make".into())
}

/// Whether a byte is one of the packet's that the old side has accessed on its way, and only read again.
fn read_before(cx: &mut Context, b: &Access) -> bool {
    if b.write || *cx.region(b.region) != MemoryRegion::Packet {
        return false;
    }
    let same_place = |t: &Access| (t.region, t.base, t.off) == (b.region, b.base, b.off);
    cx.touched_before.iter().any(|t| same_place(t) && t.packet == b.packet)
}

/// A byte nobody else sees: some old access touches it whenever the new one does. Fresh memory ends at some call, so
/// there it must be in the same stretch; the packet must not have moved in between.
fn covered(
    cx: &mut Context,
    old: &[Access],
    b: &Access,
    by_place: &FxHashMap<Place, Vec<usize>>,
) -> Result<(), String> {
    let places = by_place.get(&(b.region, b.base, b.off)).cloned().unwrap_or_default();
    let fresh = matches!(cx.region(b.region), MemoryRegion::Fresh | MemoryRegion::Anything);
    let packet = matches!(cx.region(b.region), MemoryRegion::Packet | MemoryRegion::Anything);
    let mut guards: Vec<TermId> = Vec::new();
    for i in places {
        if fresh && !same_stretch(cx, &old[i], b) || packet && !same_packet(cx, &old[i], b) {
            continue;
        }
        if implied(cx, b.guard, old[i].guard) {
            return Ok(());
        }
        guards.push(old[i].guard);
    }
    if !guards.is_empty() {
        let any = cx.terms.any(&guards);
        if implies(cx, b.guard, any) {
            return Ok(());
        }
    }
    if packet && !fresh && is_elsewhere(cx, old, b) {
        return Ok(());
    }
    Err(format!("an access to a byte ({:?}) that the original does not touch there", cx.region(b.region)))
}

/// Bytes of the old side at addresses of another form with which one is compared, at most.
const FORMS: usize = 8;

/// Whether a byte of the packet is one that the old side touches at an address of another form: of offsets that are sums, known
/// bits hide the parts.
fn is_elsewhere(cx: &mut Context, old: &[Access], b: &Access) -> bool {
    let here = cx.terms.address(b.base, b.off);
    let mut tried = 0;
    for o in old {
        if o.region != b.region || o.base == b.base || !same_packet(cx, o, b) {
            continue;
        }
        let there = cx.terms.address(o.base, o.off);
        let same = cx.terms.eq(here, there);
        if cx.terms.as_const(same) == Some(0) || !implied(cx, b.guard, o.guard) {
            continue;
        }
        if implies_by_sat(cx, b.guard, same) {
            return true;
        }
        tried += 1;
        if tried == FORMS {
            return false;
        }
    }
    false
}

/// Whether two accesses stand between the same events, whenever the new one happens.
fn same_stretch(cx: &mut Context, o: &Access, b: &Access) -> bool {
    if o.world == b.world {
        return true;
    }
    let e = cx.terms.eq(o.world, b.world);
    cx.terms.as_const(e) != Some(0) && implies_by_sat(cx, b.guard, e)
}

/// Whether the packet is where it was, whenever the new access happens.
fn same_packet(cx: &mut Context, o: &Access, b: &Access) -> bool {
    if o.packet == b.packet {
        return true;
    }
    let e = cx.terms.eq(o.packet, b.packet);
    cx.terms.as_const(e) != Some(0) && implies_by_sat(cx, b.guard, e)
}

/// Whether two conditions never hold together, by shape.
fn exclusive(cx: &mut Context, a: TermId, b: TermId) -> bool {
    let both = cx.terms.all(&[a, b]);
    cx.terms.as_const(both) == Some(0)
}

/// `a ⇒ b`.
fn implies(cx: &mut Context, a: TermId, b: TermId) -> bool {
    implied(cx, a, b) || implies_by_sat(cx, a, b)
}

/// `a ⇒ b` by shape alone.
fn implied(cx: &mut Context, a: TermId, b: TermId) -> bool {
    if a == b || cx.terms.as_const(b) == Some(1) || cx.terms.as_const(a) == Some(0) {
        return true;
    }
    let nb = cx.terms.not(b);
    exclusive(cx, a, nb)
}

fn implies_by_sat(cx: &mut Context, a: TermId, b: TermId) -> bool {
    let nb = cx.terms.not(b);
    matches!(cx.check_sat(a, &[nb]), SatResult::Unsat)
}
