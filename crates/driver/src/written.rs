//! The last look: the bytes that are about to be written hold the functions that were proven, and otherwise the original.
//!
//! Between a proven graph and the file stand lowering, the moving of records, and the writing of the ELF file, none of
//! which is proven. So the written bytes are read again. The graph of each changed function is built from them, and it
//! must be the proven one in another shape ([`bpf_prove::shape`]); all else must be the original's, moved at most
//! ([`bpf_object::compare::beside_bodies`]).

use std::collections::BTreeSet;

use bpf_object::compare::beside_bodies;
use bpf_object::{FuncId, NewInsn, Object};
use bpf_program::{Function, Op, ProgKind, Symbol, Terminator, build, drop_unreachable};
use bpf_prove::shape::same_behaviour;

use crate::candidate::Candidate;

/// What is wrong with written bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// The changed functions that are not there as they were proven, with the reason.
    pub functions: Vec<(usize, String)>,
    /// What is not the original's beside the changed functions.
    pub beside: Vec<String>,
    /// The same of the original beside itself: parts that nobody can compare.
    pub of_the_original: bool,
}

/// What is wrong with `bytes`, written from `object` with the bodies of `candidates`.
pub(crate) fn wrong(object: &Object, bytes: &[u8], candidates: &[Candidate]) -> Wrong {
    let changed = || candidates.iter().filter_map(|c| Some((c, c.function()?, c.body.as_ref()?)));
    // With no new bodies the input comes back.
    if candidates.iter().all(|c| c.body.is_none()) {
        return Wrong::default();
    }
    let written = match Object::parse(bytes.to_vec()) {
        Ok(written) => written,
        Err(e) => return Wrong { beside: vec![e.to_string()], ..Wrong::default() },
    };
    let misplaced = |(c, proven, body): (&Candidate, &Function, &Vec<NewInsn>)| {
        let why = compare(&written, c, proven, body).err()?;
        Some((c.id, why))
    };
    let functions = changed().filter_map(misplaced).collect();
    let proven: BTreeSet<FuncId> = changed().map(|(c, ..)| FuncId(c.id)).collect();
    let beside = beside_bodies(object, &written, &proven);
    let of_the_original = !beside.is_empty() && {
        let own = beside_bodies(object, object, &BTreeSet::new());
        beside.iter().all(|finding| own.contains(finding))
    };
    Wrong { functions, beside: beside.iter().map(ToString::to_string).collect(), of_the_original }
}

/// Compares a function of the written object with the proven one.
fn compare(object: &Object, c: &Candidate, proven: &Function, body: &[NewInsn]) -> Result<(), String> {
    let there = object.functions().get(c.id).ok_or("it is not there")?;
    if (&there.name, &there.section) != (&c.report.name, &c.report.section) {
        return Err("another function stands in its place".into());
    }
    let mut written = build(object, FuncId(c.id)).map_err(|e| e.to_string())?;
    in_old_slots(&mut written, body)?;
    if written.kind == ProgKind::Subprogram {
        // What its callers pass was found from them.
        (written.kind, written.arguments) = (proven.kind, proven.arguments.clone());
    }
    let mut proven = proven.clone();
    for f in [&mut written, &mut proven] {
        // What cannot be reached is not run, and was not proven.
        drop_unreachable(f);
        f.blocks.iter_mut().flat_map(|b| &mut b.ops).for_each(forget_distance);
    }
    same_behaviour(&proven, &written).map_err(|e| e.to_string())
}

/// Names records and `may_goto` by the slots that they had in the original, as the proven function does.
pub(crate) fn in_old_slots(f: &mut Function, body: &[NewInsn]) -> Result<(), String> {
    let mut at = 0;
    let mut old = rustc_hash::FxHashMap::default();
    for insn in body {
        old.insert(at, insn);
        at += insn.bytes.len() / 8;
    }
    let moved = |slot: usize| old.get(&slot).ok_or_else(|| format!("nothing belongs at slot {slot}"));
    for b in &mut f.blocks {
        for op in &mut b.ops {
            if let Some(link) = &mut op.link {
                link.slot = moved(link.slot)?.refs_from.ok_or("a reference that nothing has brought along")?;
            }
        }
        if let Terminator::MayGoto { origin: Some(origin), .. } = &mut b.term {
            let from = moved(*origin)?.origin;
            b.term = match b.term.clone() {
                Terminator::MayGoto { taken, fall, .. } => Terminator::MayGoto { taken, fall, origin: from },
                other => other,
            };
        }
    }
    Ok(())
}

/// How far away a named function is follows the layout; the name is compared.
fn forget_distance(op: &mut Op) {
    if let (Some(link), bpf_isa::Insn::LoadImm64 { imm, .. }) = (&op.link, &mut op.insn)
        && matches!(link.symbol, Symbol::Func { .. })
    {
        *imm = 0;
    }
}

#[cfg(test)]
mod tests {
    use bpf_object::WriteOptions;
    use bpf_passes::Settings;

    use super::*;
    use crate::module::Module;

    const GLOBALS: &[u8] = include_bytes!("../../../examples/globals.o");

    fn optimized() -> (Module, Vec<Candidate>) {
        let module = Module::new(Object::parse(GLOBALS.to_vec()).expect("a committed object"));
        let (all, _) = crate::candidate::after_passes(&module, &Settings::default());
        (module, all)
    }

    type Damage<'d> = dyn Fn(&mut Vec<NewInsn>) + 'd;

    /// What is wrong after these bodies were written.
    fn written(module: &Module, candidates: &[Candidate], bodies: &[Option<Vec<NewInsn>>]) -> Option<usize> {
        let mut object = module.object.clone();
        for (i, body) in bodies.iter().enumerate() {
            let Some(body) = body else { continue };
            object.set_body(FuncId(i), body.clone()).ok()?;
        }
        let bytes = object.write(&WriteOptions { keep_debug: false }).ok()?.bytes;
        Some(wrong(&object, &bytes, candidates).functions.len())
    }

    #[test]
    fn what_was_proven_is_found_in_the_file() {
        let (module, all) = optimized();
        let bodies: Vec<_> = all.iter().map(|c| c.body.clone()).collect();
        assert!(bodies.iter().any(Option::is_some), "the example no longer gains");
        assert_eq!(written(&module, &all, &bodies), Some(0));
    }

    #[test]
    fn a_file_damaged_beside_the_proven_functions_is_seen() {
        let (module, all) = optimized();
        let mut object = module.object.clone();
        all.iter().for_each(|c| c.place(&mut object).expect("a body that fits"));
        let bytes = object.write(&WriteOptions::default()).expect("it can be written").bytes;
        assert_eq!(wrong(&object, &bytes, &all), Wrong::default());
        let texts = ["globals", "license", ".rodata", ".BTF.ext", "GPL", ".maps", ".text"];
        let mut seen = 0;
        for text in texts {
            let text = text.as_bytes();
            let Some(at) = bytes.windows(text.len()).position(|w| w == text) else { continue };
            let mut other = bytes.clone();
            other[at] ^= 1;
            let found = wrong(&object, &other, &all);
            assert!(!found.beside.is_empty() && !found.of_the_original, "{found:?}");
            seen += 1;
        }
        assert!(seen >= 4, "{seen}");
        // A function that somebody changed without a proof.
        let unproven = all.iter().position(|c| c.body.is_some()).expect("the example gains");
        let mut fewer = all.clone();
        fewer[unproven] = Candidate::new(&module, unproven);
        if fewer.iter().any(|c| c.body.is_some()) {
            assert!(!wrong(&object, &bytes, &fewer).beside.is_empty());
        }
    }

    #[test]
    fn bodies_damaged_on_the_way_into_the_file_are_seen() {
        let (module, all) = optimized();
        let bodies: Vec<_> = all.iter().map(|c| c.body.clone()).collect();
        let (mut tried, mut seen) = ([0; 5], [0; 5]);
        for (i, body) in bodies.iter().enumerate() {
            let Some(body) = body else { continue };
            for k in 0..body.len() {
                let damage: [&Damage<'_>; 5] = [
                    &|b| b[k].bytes[4] ^= 1,
                    &|b| b[k].bytes[1] ^= 1,
                    &|b| b[k].bytes[2] ^= 1,
                    &|b| b[k].refs_from = None,
                    &|b| {
                        if k + 1 < b.len() {
                            b.swap(k, k + 1);
                        }
                    },
                ];
                for (n, d) in damage.iter().enumerate() {
                    let mut other = bodies.clone();
                    let mut broken = body.clone();
                    d(&mut broken);
                    if broken == *body {
                        continue;
                    }
                    other[i] = Some(broken);
                    // What cannot be written at all has been seen, too.
                    tried[n] += 1;
                    seen[n] += usize::from(written(&module, &all, &other) != Some(0));
                }
            }
        }
        // Numbers, registers, offsets; what an instruction does not use may be anything.
        println!("{seen:?} of {tried:?}");
        assert!(seen.iter().zip(&tried).all(|(s, t)| *t >= 3 && s * 2 > *t), "{seen:?} of {tried:?}");
        // The body of the original, or none, in place of the proven one.
        for (i, body) in bodies.iter().enumerate().filter(|(_, b)| b.is_some()) {
            let mut other = bodies.clone();
            other[i] = None;
            assert_ne!(written(&module, &all, &other), Some(0), "{body:?}");
        }
    }
}
