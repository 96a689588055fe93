//! What the contract demands of memory accesses beyond the final contents.
//!
//! Every byte the new side touches outside its stack must be a byte the old side touches whenever
//! the new one does (so no new fault), and in shared memory each access must *consume* one of the old
//! side's accesses in the same stretch between events: never more reads, never another value written,
//! never one old access split in two. Merging several old accesses into one, or a load and a store into an atomic,
//! is allowed unless `strict`. Sources: design, equivalence contract, 4 and 6.

use rustc_hash::FxHashMap;

use crate::context::{Context, Possible, Region};
use crate::symex::ByteAccess;
use crate::term::TermId;

type Place = (u32, TermId, i64);

/// Checks the new side's accesses against the old side's; the error says what is wrong.
///
/// # Errors
/// A sentence that names the access.
pub fn check(cx: &mut Context, old: &[ByteAccess], new: &[ByteAccess], strict: bool) -> Result<(), String> {
    let mut by_place: FxHashMap<Place, Vec<usize>> = FxHashMap::default();
    let mut size_of: FxHashMap<u32, usize> = FxHashMap::default();
    for (i, a) in old.iter().enumerate() {
        by_place.entry((a.region, a.base, a.off)).or_default().push(i);
        *size_of.entry(a.access).or_default() += 1;
    }
    let mut used = vec![false; old.len()];
    // Old access → the one new access that consumes it, and how many of its bytes.
    let mut owner: FxHashMap<u32, (u32, usize)> = FxHashMap::default();
    let mut at = 0;
    while at < new.len() {
        let end = at + new[at..].iter().take_while(|a| a.access == new[at].access).count();
        let bytes = &new[at..end];
        at = end;
        let region = cx.region(bytes[0].region).clone();
        if region == Region::Ctx {
            continue;
        }
        if region == Region::Stack {
            framed(cx, old, bytes, &by_place, &size_of)?;
        } else if region.shared() {
            consume(cx, old, bytes, &by_place, &mut used, &mut owner, strict)?;
        } else {
            for b in bytes {
                covered(cx, old, b, &by_place)?;
            }
        }
    }
    for (a, (_, n)) in &owner {
        let write = old.iter().any(|b| b.access == *a && b.written.is_some());
        if write && *n != size_of[a] {
            return Err("part of a write to shared memory is missing".into());
        }
    }
    Ok(())
}

/// An access to the frame at a varying offset (others are not logged): some old one is the same, which
/// answers for its alignment and bounds.
fn framed(
    cx: &mut Context,
    old: &[ByteAccess],
    bytes: &[ByteAccess],
    by_place: &FxHashMap<Place, Vec<usize>>,
    size_of: &FxHashMap<u32, usize>,
) -> Result<(), String> {
    let b = &bytes[0];
    let places = by_place.get(&(b.region, b.base, b.off)).cloned().unwrap_or_default();
    for i in places {
        let o = &old[i];
        let first = i == 0 || old[i - 1].access != o.access;
        if first
            && size_of[&o.access] == bytes.len()
            && (implied(cx, b.guard, o.guard) || implies_by_sat(cx, b.guard, o.guard))
        {
            return Ok(());
        }
    }
    Err("an access to the stack at a varying offset that the original does not make".into())
}

/// A private byte: some old access touches it whenever the new one does.
fn covered(
    cx: &mut Context,
    old: &[ByteAccess],
    b: &ByteAccess,
    by_place: &FxHashMap<Place, Vec<usize>>,
) -> Result<(), String> {
    let places = by_place.get(&(b.region, b.base, b.off)).cloned().unwrap_or_default();
    let mut guards: Vec<TermId> = Vec::new();
    for i in places {
        if implied(cx, b.guard, old[i].guard) {
            return Ok(());
        }
        guards.push(old[i].guard);
    }
    if !guards.is_empty() {
        let any = cx.terms.any(&guards);
        if implies_by_sat(cx, b.guard, any) {
            return Ok(());
        }
    }
    Err(format!("an access to a byte ({:?}) that the original does not touch there", cx.region(b.region)))
}

fn consume(
    cx: &mut Context,
    old: &[ByteAccess],
    bytes: &[ByteAccess],
    by_place: &FxHashMap<Place, Vec<usize>>,
    used: &mut [bool],
    owner: &mut FxHashMap<u32, (u32, usize)>,
    strict: bool,
) -> Result<(), String> {
    if strict && bytes.iter().any(|b| b.atomic) {
        return Err("a load and a store of shared memory become an atomic".into());
    }
    let mut accesses = Vec::new();
    for b in bytes {
        let places = by_place.get(&(b.region, b.base, b.off)).cloned().unwrap_or_default();
        let mut found = None;
        for i in places {
            let o = &old[i];
            let free = !used[i] && owner.get(&o.access).is_none_or(|(n, _)| *n == b.access);
            if !free || o.written.is_some() != b.written.is_some() || !same_stretch(cx, o, b) {
                continue;
            }
            if !implied(cx, b.guard, o.guard) && !implies_by_sat(cx, b.guard, o.guard) {
                continue;
            }
            if let (Some(x), Some(y)) = (o.written, b.written)
                && x != y
            {
                let e = cx.terms.eq(x, y);
                let ne = cx.terms.not(e);
                if !matches!(cx.possible(b.guard, &[ne]), Possible::Never) {
                    continue;
                }
            }
            found = Some(i);
            break;
        }
        let Some(i) = found else {
            let what = if b.written.is_some() { "write to" } else { "read of" };
            return Err(format!("a {what} shared memory ({:?}) that the original does not do", cx.region(b.region)));
        };
        used[i] = true;
        accesses.push(old[i].access);
        let n = owner.entry(old[i].access).or_insert((b.access, 0));
        n.1 += 1;
    }
    accesses.sort_unstable();
    accesses.dedup();
    if strict && accesses.len() > 1 {
        return Err("accesses to shared memory are merged".into());
    }
    Ok(())
}

/// Whether two accesses stand between the same events, whenever the new one happens.
fn same_stretch(cx: &mut Context, o: &ByteAccess, b: &ByteAccess) -> bool {
    if o.world == b.world {
        return true;
    }
    let e = cx.terms.eq(o.world, b.world);
    cx.terms.as_const(e) != Some(0) && implies_by_sat(cx, b.guard, e)
}

/// `a ⇒ b` by shape alone.
fn implied(cx: &mut Context, a: TermId, b: TermId) -> bool {
    if a == b || cx.terms.as_const(b) == Some(1) || cx.terms.as_const(a) == Some(0) {
        return true;
    }
    let nb = cx.terms.not(b);
    let both = cx.terms.all(&[a, nb]);
    cx.terms.as_const(both) == Some(0)
}

fn implies_by_sat(cx: &mut Context, a: TermId, b: TermId) -> bool {
    let nb = cx.terms.not(b);
    matches!(cx.possible(a, &[nb]), Possible::Never)
}
