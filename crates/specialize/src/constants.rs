//! Loads that give constants: of declared variables, of kconfig variables, and of what all elements of a declared map
//! have in common.

use std::collections::{BTreeMap, HashMap};

use bpf_facts::{Facts, Region};
use bpf_isa::{Imm64Kind, Insn, Reg, Size, Src, Width};
use bpf_program::{Function, Op, Symbol};

use bpf_driver::Module;

/// Bytes that are known.
#[derive(Default)]
pub(crate) struct Known {
    /// By section, and by place there.
    pub(crate) sections: BTreeMap<String, BTreeMap<u64, u8>>,
    /// By the name of a kconfig variable, all its bytes.
    pub(crate) kconfig: BTreeMap<String, Vec<u8>>,
    /// By the number of a map, the bytes that all its values have in common, by place.
    pub(crate) values: HashMap<usize, BTreeMap<u64, u8>>,
}

impl Known {
    /// Puts constants in place of the loads of a function that give them; how many.
    pub(crate) fn put_in(&self, f: &mut Function, module: &Module) -> usize {
        let mut count = 0;
        // A constant may decide where another pointer leads.
        loop {
            let changed = self.put_in_once(f, module);
            count += changed;
            if changed == 0 {
                return count;
            }
        }
    }

    fn put_in_once(&self, f: &mut Function, module: &Module) -> usize {
        let mut found = Vec::new();
        module.with_env(|env| {
            let facts = Facts::of(f, env);
            for &b in &f.layout {
                let states = facts.states(f, b);
                // Registers that hold the address of a kconfig variable.
                let mut kconfig: HashMap<Reg, &Vec<u8>> = HashMap::new();
                for (i, op) in f.block(b).ops.iter().enumerate() {
                    let load = match op.insn {
                        Insn::Load { size, sext, dst, base, off } if op.link.is_none() => {
                            Some((size, sext, dst, base, off))
                        }
                        _ => None,
                    };
                    if let Some((size, sext, dst, base, off)) = load {
                        let place = states.get(i).map(|s| s.reg(base)).and_then(|v| v.pointer_at());
                        let number = match place {
                            Some((Region::Data { section }, _, at)) => {
                                self.sections.get(&**section).and_then(|known| bytes(known, at, off, size))
                            }
                            Some((Region::MapValue { map }, _, at)) => {
                                self.values.get(map).and_then(|known| bytes(known, at, off, size))
                            }
                            _ => kconfig.get(&base).and_then(|all| {
                                let all = (0..).zip(all.iter().copied()).collect();
                                bytes(&all, 0, off, size)
                            }),
                        };
                        if let Some(number) = number {
                            found.push((b, i, constant(dst, extended(number, size, sext))));
                        }
                    }
                    for r in op.insn.defs().iter() {
                        kconfig.remove(&r);
                    }
                    if let (Insn::LoadImm64 { dst, .. }, Some(link)) = (op.insn, &op.link)
                        && let Symbol::Extern { name } = &link.symbol
                        && let Some(all) = self.kconfig.get(&**name)
                    {
                        kconfig.insert(dst, all);
                    }
                }
            }
        });
        for (b, i, insn) in &found {
            if let Some(op) = f.block_mut(*b).ops.get_mut(*i) {
                *op = Op::with_origin(*insn, op.origin);
            }
        }
        found.len()
    }
}

/// The number that a load finds in known bytes, if it finds no others.
fn bytes(known: &BTreeMap<u64, u8>, at: i64, off: i16, size: Size) -> Option<u64> {
    let from = u64::try_from(at.checked_add(off.into())?).ok()?;
    (0..u64::from(size.bytes())).rev().try_fold(0, |n, i| Some(n << 8 | u64::from(*known.get(&(from + i))?)))
}

fn extended(n: u64, size: Size, sext: bool) -> u64 {
    let shift = 64 - size.bits();
    if sext { ((n << shift).cast_signed() >> shift).cast_unsigned() } else { n }
}

/// The shortest instruction that makes a register this number.
fn constant(dst: Reg, n: u64) -> Insn {
    if let Ok(imm) = i32::try_from(n.cast_signed()) {
        return Insn::Mov { width: Width::W64, dst, src: Src::Imm(imm) };
    }
    match u32::try_from(n) {
        Ok(low) => Insn::Mov { width: Width::W32, dst, src: Src::Imm(low.cast_signed()) },
        Err(_) => Insn::LoadImm64 { dst, kind: Imm64Kind::Const, imm: n },
    }
}
