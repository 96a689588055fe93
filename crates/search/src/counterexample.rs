//! From the prover's refutation to a test input.
//!
//! The model assigns numbers to the prover's variables. Numbers are taken over where the facts at the
//! window admit them (the prover may have been asked a smaller question, in which facts nobody needed
//! are missing); addresses keep the test's own values, and bytes of memory move along with the object
//! they are in. Whether the input shows the difference is seen by running it.

use bpf_facts::{Kind, Region};
use bpf_isa::Reg;
use bpf_prove::Difference;
use bpf_prove::term::MemNode;
use bpf_prove::variables::{Meaning, MemoryRegion, VarKey};
use rustc_hash::FxHashMap;

use crate::inputs::{Input, admits};
use crate::window::Window;

/// Bytes further than this from every object's base belong to none.
const NEAR: u64 = 1 << 17;

/// Inputs made from a refutation: with all objects apart, and with those together that may be.
pub fn inputs(w: &Window, d: &Difference, number: u64) -> Vec<Input> {
    // Input numbers that are 2 modulo 4 let objects coincide.
    [8, 10, 11].into_iter().map(|k| one(w, d, 1_000 + 4 * number * 4 + k)).collect()
}

fn one(w: &Window, d: &Difference, n: u64) -> Input {
    let mut input = Input::new(w, 0x5eed, n);
    let mut memo = FxHashMap::default();
    let terms = &d.context.terms;
    // Objects of the model with the addresses they have here.
    let mut objects: Vec<(MemoryRegion, u64, u64)> = Vec::new();
    let mut variables = d.context.variables();
    variables.sort_by_key(|(_, t, _)| *t);
    let mut taken: Vec<(Region, bpf_facts::BaseId)> = Vec::new();
    for (key, term, meaning) in variables {
        let v = d.model.eval_memo(terms, term, &mut memo);
        match key {
            VarKey::EntryReg(r) => {
                let Some(r) = Reg::new(r) else { continue };
                let fact = w.before.reg(r);
                let known = |x: u64| (x & fact.num.tnum.mask) | fact.num.tnum.value;
                match fact.kind {
                    Kind::Scalar if admits(fact, known(v)) => input.regs[r.index()] = known(v),
                    // Only the offset varies.
                    Kind::Pointer { .. } if fact.num.as_const().is_none() && fact.num.contains(known(v)) => {
                        input.move_pointer(r, fact, known(v));
                    }
                    Kind::Unknown if fact.num.contains(known(v)) => input.regs[r.index()] = known(v),
                    _ => {}
                }
            }
            VarKey::EntrySlot(off) => {
                let Some((_, fact)) = w.before.stack_values().find(|(o, _)| *o == off) else { continue };
                let known = (v & fact.num.tnum.mask) | fact.num.tnum.value;
                if admits(fact, known) {
                    let at = input.frame.wrapping_add(off as u64);
                    input.set_bytes(at, known, fact.num.bits / 8);
                }
            }
            VarKey::CtxField(off, size, version) => {
                if d.model.eval_memo(terms, version, &mut memo) == 0
                    && let Ok(off) = u32::try_from(off)
                {
                    input.set_cell(off, size, v);
                }
            }
            VarKey::Frame => objects.push((MemoryRegion::Stack, v, input.frame)),
            VarKey::CtxPointer => objects.push((MemoryRegion::CtxBytes, v, input.ctx)),
            VarKey::Symbol(ref s) => {
                if let Meaning::Pointer(region) = meaning {
                    objects.push((region, v, input.symbol(s)));
                }
            }
            VarKey::EntryBase(_) | VarKey::PacketPointer(..) => {
                let Meaning::Pointer(region) = meaning else { continue };
                // Bases are numbered in the order of the registers, as here.
                let mut own: Vec<_> = input.bases().filter(|(r, _, _)| alike(r, &region, w)).collect();
                own.sort_by_key(|(_, b, _)| *b);
                let next = own.iter().find(|(r, b, _)| !taken.contains(&((*r).clone(), *b)));
                if let Some((r, b, a)) = next.or(own.first()) {
                    let place = ((*r).clone(), *b);
                    objects.push((region, v, *a));
                    taken.push(place);
                }
            }
            _ => {}
        }
    }
    // Jumps compare with the packet's end: it is as far away as in the model.
    let packet = objects.iter().find(|(r, _, _)| *r == MemoryRegion::Packet).map(|(_, v, _)| *v);
    let end = objects.iter().find(|(r, _, _)| *r == MemoryRegion::PacketEnd).map(|(_, v, _)| *v);
    if let (Some(packet), Some(end), true) = (packet, end, w.superblock.is_some()) {
        input.move_end(w, end.wrapping_sub(packet));
    }
    let mut bytes: Vec<(u64, u8)> = Vec::new();
    for ((m, addr), byte) in &d.model.bytes {
        let MemNode::Base { region, version } = terms.mem(*m) else { continue };
        if d.model.eval_memo(terms, *version, &mut memo) != 0 {
            continue;
        }
        let region = d.context.region(*region);
        let near = objects
            .iter()
            .filter(|(r, _, _)| r == region || *region == MemoryRegion::Anything)
            .min_by_key(|(_, v, _)| addr.wrapping_sub(*v).min(v.wrapping_sub(*addr)));
        match near {
            Some((_, v, own)) if addr.wrapping_sub(*v).wrapping_add(NEAR) < 2 * NEAR => {
                bytes.push((own.wrapping_add(addr.wrapping_sub(*v)), *byte));
            }
            _ => bytes.push((*addr, *byte)),
        }
    }
    bytes.sort_unstable();
    for (at, b) in bytes {
        let off = at.wrapping_sub(input.frame) as i64;
        // Bytes of the frame that are known stay as they are.
        let known = w.before.stack_values().any(|(o, v)| o <= off && off < o + i64::from(v.num.bits / 8));
        if !known {
            input.set_bytes(at, b.into(), 1);
        }
    }
    input
}

/// Whether the prover's region is that of the facts.
fn alike(fact: &Region, region: &MemoryRegion, w: &Window) -> bool {
    match (fact, region) {
        (Region::Packet | Region::PacketMeta, MemoryRegion::Packet) => true,
        (Region::PacketEnd, MemoryRegion::PacketEnd) => true,
        (Region::MapValue { map }, MemoryRegion::MapValue(name)) => {
            w.env.map(*map).is_some_and(|m| m.name.as_str() == &**name)
        }
        (Region::MapValue { .. }, MemoryRegion::AnyMapValue) => true,
        (Region::Mem, MemoryRegion::Fresh) => true,
        (_, MemoryRegion::Anything) => true,
        _ => false,
    }
}
