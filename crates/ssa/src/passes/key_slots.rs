//! A key of which the end is a copy of a word of the frame begins right before that word: it needs no copy.
//!
//! ```text
//! before: store u32 [fp - 8] = 32                after: store u32 [fp - 12] = 32
//!         v3 = load u32 [fp - 16]                       v5 = call map_lookup_elem(v1, fp - 12)
//!         store u32 [fp - 4] = v3                       ; what was at fp - 16 is now at fp - 8
//!         v5 = call map_lookup_elem(v1, fp - 8)
//! ```
//! Only where all that touches the frame is loads and stores at known places, and keys and values of maps; and where the
//! frame is not deeper afterwards: if need be, all of it moves up by a multiple of eight bytes.

use bpf_facts::{Env, Region};
use bpf_isa::Call;
use bpf_platform::maps;

use super::fold::Definitions;
use super::pass::Pass;
use crate::{Block, Op, Operand, Ssa};

/// The pass.
pub struct KeySlots;

impl Pass for KeySlots {
    fn name(&self) -> &'static str {
        "ssa-key-slots"
    }

    fn is_hard(&self) -> bool {
        true
    }

    fn stands_alone(&self) -> bool {
        true
    }

    fn run(&self, f: &mut Ssa, env: &Env<'_>) -> bool {
        let d = Definitions::of(f);
        let Some(uses) = uses(f, env, &d) else { return false };
        let counts = f.use_counts();
        let keys = uses.iter().filter(|u| matches!(u.kind, Kind::Key | Kind::Index));
        let Some(moved) = keys.filter_map(|key| Moved::of(f, &uses, &counts, key)).next() else { return false };
        moved.take(f);
        super::dead::remove(f);
        true
    }
}

/// How a part of the frame is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Load,
    Store,
    Key,
    /// The number of an element. A verifier that knows it needs no test whether the element is there, and it knows it only in
    /// a slot of its own (`get_constant_map_key`, kernel/bpf/verifier.c).
    Index,
    Value,
}

/// An access of the frame: where it stands, and of which bytes.
#[derive(Clone, Copy)]
struct Use {
    block: Block,
    at: usize,
    kind: Kind,
    low: i64,
    end: i64,
}

impl Use {
    fn touches(&self, low: i64, end: i64) -> bool {
        self.low < end && low < self.end
    }
}

/// All accesses of the frame, if all are known.
fn uses(f: &Ssa, env: &Env<'_>, d: &Definitions) -> Option<Vec<Use>> {
    let mut uses = vec![];
    for &block in &f.layout {
        for (at, inst) in f.block(block).insts.iter().enumerate() {
            let frames: Vec<(usize, i64)> =
                inst.args.iter().enumerate().filter_map(|(i, o)| Some((i, d.frame(*o)?))).collect();
            if frames.is_empty() {
                continue;
            }
            let mut add = |kind, low: i64, bytes: i64| uses.push(Use { block, at, kind, low, end: low + bytes });
            match inst.op {
                Op::Load { size, off, .. } if inst.link.is_none() => {
                    add(Kind::Load, frames[0].1 + i64::from(off), i64::from(size.bytes()));
                }
                Op::Store { size, off } if inst.link.is_none() && frames.iter().all(|(i, _)| *i == 0) => {
                    add(Kind::Store, frames[0].1 + i64::from(off), i64::from(size.bytes()));
                }
                // `map_lookup_elem`, `map_update_elem`, `map_delete_elem`: the map, the key, and the value.
                Op::Call(Call::Helper(helper @ 1..=3)) => {
                    let map = match f.fact(inst.args[0]).region() {
                        Some(Region::MapPtr { map }) => env.maps.get(*map)?,
                        _ => return None,
                    };
                    for (i, low) in frames {
                        match (i, helper) {
                            (1, _) => {
                                let is_array = map.map_type.is_none_or(maps::is_array);
                                add(if is_array { Kind::Index } else { Kind::Key }, low, i64::from(map.key_size?));
                            }
                            (2, 2) => add(Kind::Value, low, i64::from(map.value_bytes_read()?)),
                            _ => return None,
                        }
                    }
                }
                _ => return None,
            }
        }
        if f.block(block).term.operands().into_iter().any(|o| d.frame(o).is_some()) {
            return None;
        }
    }
    Some(uses)
}

/// A key that begins elsewhere.
struct Moved {
    key: Use,
    /// Stores of its beginning.
    begin: Vec<usize>,
    /// The store of the copy.
    copy: usize,
    /// How far the key moves, and then all of the frame.
    by: i64,
    up: i64,
}

impl Moved {
    fn of(f: &Ssa, uses: &[Use], counts: &[usize], key: &Use) -> Option<Moved> {
        let insts = &f.block(key.block).insts;
        let is_key = |u: &Use| u.block == key.block && u.at == key.at;
        let of_key: Vec<&Use> = uses.iter().filter(|u| u.touches(key.low, key.end) && !is_key(u)).collect();
        let own = |u: &Use| u.block == key.block && u.at < key.at && u.kind == Kind::Store;
        let direct = |u: &Use| matches!(insts[u.at].args[0], Operand::Frame(_));
        if !of_key.iter().all(|u| own(u) && direct(u)) {
            return None;
        }
        let copy = of_key.iter().find(|u| u.end == key.end && u.low > key.low)?;
        let copied = insts[copy.at].args[1].value().filter(|v| counts[v.index()] == 1)?;
        let load = insts[..copy.at].iter().position(|i| i.result == Some(copied))?;
        let from = uses.iter().find(|u| u.block == key.block && u.at == load && u.kind == Kind::Load)?;
        let (size, begin) = (copy.end - copy.low, from.low - (copy.low - key.low));
        if from.end - from.low != size || from.touches(key.low, key.end) {
            return None;
        }
        let by = begin - key.low;
        let is_own = |u: &Use| is_key(u) || of_key.iter().any(|k| (k.block, k.at) == (u.block, u.at));
        let others = || uses.iter().filter(|u| !is_own(u));
        // Free, and as it was when it was copied.
        let between = |u: &Use| u.block == key.block && (load..key.at).contains(&u.at) && u.kind == Kind::Store;
        let free = !others().any(|u| u.touches(begin, from.low));
        let stays = !others().any(|u| between(u) && u.touches(from.low, from.end));
        let begins: Vec<&&Use> = of_key.iter().filter(|u| u.at != copy.at).collect();
        let aligned = begins.iter().all(|u| u.end <= copy.low && (u.low + by) % (u.end - u.low) == 0);
        let crosses = begin.rem_euclid(WORD) + key.end - key.low > WORD;
        if !free || !stays || !aligned || (key.kind == Kind::Index && crosses) {
            return None;
        }
        let lowest = uses.iter().map(|u| u.low).min()?;
        let deepest = lowest.div_euclid(WORD) * WORD;
        let low = others().map(|u| u.low).chain([begin]).min()?;
        let end = others().map(|u| u.end).max()?;
        let up = (deepest - low + WORD - 1).max(0) / WORD * WORD;
        (end + up <= 0).then(|| Moved {
            key: *key,
            begin: begins.iter().map(|u| u.at).collect(),
            copy: copy.at,
            by,
            up,
        })
    }

    fn take(&self, f: &mut Ssa) {
        let insts = &mut f.block_mut(self.key.block).insts;
        let begins = (self.key.low + self.by) as i32;
        insts[self.key.at].args[1] = Operand::Frame(begins);
        for at in &self.begin {
            if let Op::Store { off, .. } = &mut insts[*at].op {
                *off += self.by as i16;
            }
        }
        insts.remove(self.copy);
        for b in f.layout.clone() {
            for inst in &mut f.block_mut(b).insts {
                let at_first = matches!(inst.args.first(), Some(Operand::Frame(_)));
                match &mut inst.op {
                    Op::Frame(n) => *n += self.up as i32,
                    Op::Load { off, .. } | Op::Store { off, .. } if at_first => *off += self.up as i16,
                    Op::Call(_) => inst.args.iter_mut().for_each(|o| {
                        if let Operand::Frame(n) = o {
                            *n += self.up as i32;
                        }
                    }),
                    _ => {}
                }
            }
        }
    }
}

/// The frame's depth counts in words (`update_stack_depth` in kernel/bpf/verifier.c; the JIT rounds to these).
const WORD: i64 = 8;
