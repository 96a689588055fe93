//! A copy of an object that counts how often its blocks run, and reading what it has counted.
//!
//! Each function gets, at the beginning of each block and on the taken side of each branch,
//!
//! ```text
//! r2 = counter ll                      ; in the section .data.counts, of which the loader makes a map
//! r3 = 1
//! lock *(u64 *)(r2 + 0) += r3
//! ```
//!
//! with registers that are dead there; where there are none, two are kept below what the function uses of its frame meanwhile. So the
//! copy does what the object does, and nothing is lost when several processors count at once. The section begins with a mark of the object
//! (`mark`), by which counts are told from those of another one. Of block `n` of the object the counters are words `2 n` and `2 n + 1`
//! behind it, over all functions in their order; a function that cannot be made to count keeps zeros.

use std::collections::BTreeSet;

use bpf_facts::{FRAME, Facts, Liveness, deepest_frame_use};
use bpf_isa::{AtomicOp, Imm64Kind, Insn, Reg, RegSet, Size, Src, Width};
use bpf_object::{Addition, FuncId, NewReference, NewSection, Object, ObjectError, SectionUse, WriteOptions};
use bpf_program::{Block, BlockId, ByteOrder, Function, Op, Terminator, lower};
use thiserror::Error;

use crate::counting::{Numbers, functions};
use crate::counts::{Counts, hash};
use crate::module::Module;

/// The section of the counters; the loader's map has that name, too.
pub const SECTION: &str = ".data.counts";
/// Its symbol.
const SYMBOL: &str = "bpf_opt_counts";
/// Bytes of a counter.
const WORD: usize = 8;

/// An object that counts.
#[derive(Clone, Debug)]
pub struct Instrumented {
    /// The object.
    pub bytes: Vec<u8>,
    /// Functions that count.
    pub functions: usize,
    /// Counters in use.
    pub counters: usize,
    /// Functions that do not, and why.
    pub left_out: Vec<(String, String)>,
}

/// Why there is no such object, or nothing to read.
#[derive(Debug, Error)]
pub enum InstrumentError {
    /// The object cannot be read, or a copy cannot be written.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// It is for machines with the other order of bytes.
    #[error("it is big-endian: copies that count are made of little-endian objects")]
    BigEndian,
    /// It counts already.
    #[error("it has a section {SECTION} already: it counts by itself")]
    Already,
    /// No function can be made to count.
    #[error("none of its functions can be made to count{}", .0.first().map(|(name, why)| format!("; {name}: {why}")).unwrap_or_default())]
    Nothing(Vec<(String, String)>),
    /// The counters have another length.
    #[error("{found} bytes of counters, and a copy of this object has {wanted}")]
    Length {
        /// How many there are.
        found: usize,
        /// How many there should be.
        wanted: usize,
    },
    /// They begin with another mark.
    #[error("the counters are those of another object")]
    OtherObject,
}

/// The copy of an object that counts; functions with these names do not.
///
/// # Errors
/// [`InstrumentError`].
pub fn instrument(bytes: &[u8], without: &BTreeSet<String>) -> Result<Instrumented, InstrumentError> {
    let module = Module::new(Object::parse(bytes.to_vec())?);
    if module.object.byte_order() != ByteOrder::Little {
        return Err(InstrumentError::BigEndian);
    }
    if module.object.section(SECTION).is_some() {
        return Err(InstrumentError::Already);
    }
    let mut object = module.object.clone();
    let mut done = Instrumented { bytes: Vec::new(), functions: 0, counters: 0, left_out: Vec::new() };
    let mut references = Vec::new();
    let marker = marker(&module);
    let mut first = 0;
    for (number, graph) in module.graphs.iter().enumerate() {
        let name = module.object.functions()[number].name.clone();
        let f = match graph {
            Ok(f) => f,
            Err(why) => {
                done.left_out.push((name, why.clone()));
                continue;
            }
        };
        let counting = Counting { module: &module, f, first, marker };
        first += f.blocks.len();
        let made =
            if without.contains(&name) { Err("left out".to_owned()) } else { counting.lowered(&mut object, number) };
        match made {
            Ok(of_function) => {
                done.functions += 1;
                done.counters += of_function.len();
                references.extend(of_function);
            }
            Err(why) => done.left_out.push((name, why)),
        }
    }
    if done.functions == 0 {
        return Err(InstrumentError::Nothing(done.left_out));
    }
    let mut counters = vec![0; WORD * (1 + 2 * first)];
    counters[..WORD].copy_from_slice(&mark(bytes));
    let (name, symbol) = (SECTION.to_owned(), SYMBOL.to_owned());
    let sections = vec![NewSection { name, symbol, bytes: counters, is: SectionUse::Data }];
    let written = Object::parse(object.write(&WriteOptions::default())?.bytes)?;
    done.bytes = written.with_addition(&Addition { sections, references, ..Addition::default() })?;
    Ok(done)
}

/// What a copy of this object has counted, of the bytes of its section.
///
/// # Errors
/// If these are not the counters of such a copy.
pub fn read(bytes: &[u8], counters: &[u8]) -> Result<Counts, InstrumentError> {
    let module = Module::new(Object::parse(bytes.to_vec())?);
    let blocks = |g: &Result<Function, String>| g.as_ref().map_or(0, |g| g.blocks.len());
    let wanted = WORD * (1 + 2 * module.graphs.iter().map(blocks).sum::<usize>());
    if counters.len() != wanted {
        return Err(InstrumentError::Length { found: counters.len(), wanted });
    }
    if counters[..WORD] != mark(bytes) {
        return Err(InstrumentError::OtherObject);
    }
    let mut words = counters[WORD..].chunks_exact(WORD).map(|word| {
        let mut number = [0; WORD];
        number.copy_from_slice(word);
        u64::from_le_bytes(number)
    });
    let mut next = || words.next().unwrap_or_default();
    let numbers: Numbers = module.graphs.iter().map(|g| (0..blocks(g)).map(|_| (next(), next())).collect()).collect();
    Ok(Counts { object: hash(bytes), source: "kernel".to_owned(), functions: functions(&module, &numbers) })
}

/// What the counters of an object begin with.
fn mark(bytes: &[u8]) -> [u8; WORD] {
    let mut mark = [0; WORD];
    let hash = hash(bytes);
    for (byte, digits) in mark.iter_mut().zip(hash.as_bytes().chunks_exact(2)) {
        *byte = digits.iter().fold(0, |n, d| n << 4 | char::from(*d).to_digit(16).unwrap_or(0) as u8);
    }
    mark
}

/// A number that is the upper half of no constant of the object, by which addresses in a new section are found again ([`lowered`]).
pub(crate) fn marker(module: &Module) -> u32 {
    let ops = module.graphs.iter().flatten().flat_map(|f| f.blocks.iter().flat_map(|b| &b.ops));
    let constant = |op: &Op| match op.insn {
        Insn::LoadImm64 { kind: Imm64Kind::Const, imm, .. } => Some((imm >> 32) as u32),
        _ => None,
    };
    let taken: BTreeSet<u32> = ops.filter_map(constant).collect();
    (0x636f_756e..=u32::MAX).find(|n| !taken.contains(n)).unwrap_or(u32::MAX)
}

/// Gives the object a function in which constants with this upper half ([`marker`]) stand for addresses in its first new section, and
/// returns these; `offset` tells how many bytes from the section's beginning, of the lower half.
pub(crate) fn lowered(
    object: &mut Object,
    number: usize,
    f: &Function,
    marker: u32,
    offset: impl Fn(u64) -> u64,
) -> Result<Vec<NewReference>, String> {
    let lowered = lower(f).map_err(|e| e.to_string())?;
    let address = |(slot, insn): &(usize, Insn)| match insn {
        Insn::LoadImm64 { kind: Imm64Kind::Const, imm, .. } if (imm >> 32) as u32 == marker => {
            let offset = offset(imm & 0xffff_ffff) as u32;
            Some(NewReference { function: FuncId(number), slot: *slot, section: 0, offset })
        }
        _ => None,
    };
    let references = lowered.listing.iter().filter_map(address).collect();
    object.set_body(FuncId(number), lowered.insns).map_err(|e| e.to_string())?;
    Ok(references)
}

/// A function that is made to count.
struct Counting<'a> {
    module: &'a Module,
    f: &'a Function,
    /// The number of its first block in the object.
    first: usize,
    marker: u32,
}

impl Counting<'_> {
    /// Gives the object the function that counts; where it refers to counters.
    fn lowered(&self, object: &mut Object, number: usize) -> Result<Vec<NewReference>, String> {
        lowered(object, number, &self.function()?, self.marker, |counter| WORD as u64 * (1 + counter))
    }

    fn function(&self) -> Result<Function, String> {
        let (liveness, deepest) = self
            .module
            .with_env(|env| (Liveness::of(self.f, env, &Facts::of(self.f, env)), deepest_frame_use(self.f, env)));
        let mut new = self.f.clone();
        for &b in &self.f.layout {
            let block = self.f.block(b);
            let origin = block.ops.first().and_then(|op| op.origin).or_else(|| block.term.origin());
            let count = self.count(2 * b.index(), liveness.entry(b).regs, deepest, origin)?;
            new.block_mut(b).ops.splice(0..0, count);
            let (Terminator::Branch { taken, fall, origin, .. } | Terminator::MayGoto { taken, fall, origin }) =
                block.term
            else {
                continue;
            };
            if taken == fall {
                continue;
            }
            let ops = self.count(2 * b.index() + 1, liveness.entry(taken).regs, deepest, origin)?;
            let between = BlockId(new.blocks.len() as u32);
            new.blocks.push(Block { ops, term: Terminator::Goto(taken) });
            new.layout.push(between);
            match &mut new.block_mut(b).term {
                Terminator::Branch { taken, .. } | Terminator::MayGoto { taken, .. } => *taken = between,
                _ => {}
            }
        }
        Ok(new)
    }

    /// Adds one to a counter of the function, where these registers are live.
    fn count(&self, counter: usize, live: RegSet, deepest: i64, origin: Option<usize>) -> Result<Vec<Op>, String> {
        // Such registers are read by name alone, so whatever is live there holds something; arguments of a call may not.
        const KEPT: [Reg; 4] = [Reg::R6, Reg::R7, Reg::R8, Reg::R9];
        let number = 2 * self.first + counter;
        let dead = (0..10).filter_map(Reg::new).filter(|r| !live.contains(*r));
        // The last ones first: there are more dead ones.
        let mut used: Vec<(Reg, Option<i16>)> = dead.map(|r| (r, None)).take(2).collect();
        let mut below = deepest.div_euclid(WORD as i64) * WORD as i64;
        for r in KEPT.into_iter().filter(|r| live.contains(*r)) {
            if used.len() == 2 {
                break;
            }
            below -= WORD as i64;
            used.push((r, Some(below as i16)));
        }
        let [(address, _), (one, _)] = used[..] else { return Err("it has no registers free".to_owned()) };
        if below < -FRAME {
            return Err("its frame is full".to_owned());
        }
        let kept = || used.iter().filter_map(|(r, at)| Some((*r, (*at)?)));
        let store = |(r, off): (Reg, i16)| Insn::Store { size: Size::DW, base: Reg::R10, off, src: Src::Reg(r) };
        let load = |(dst, off): (Reg, i16)| Insn::Load { size: Size::DW, sext: false, dst, base: Reg::R10, off };
        let imm = u64::from(self.marker) << 32 | number as u64;
        let mut insns: Vec<Insn> = kept().map(store).collect();
        insns.push(Insn::LoadImm64 { dst: address, kind: Imm64Kind::Const, imm });
        insns.push(Insn::Mov { width: Width::W64, dst: one, src: Src::Imm(1) });
        let op = AtomicOp::Add { fetch: false };
        insns.push(Insn::Atomic { op, size: Size::DW, base: address, off: 0, src: one });
        insns.extend(kept().map(load));
        Ok(insns.into_iter().map(|insn| Op::with_origin(insn, origin)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: &[u8] = include_bytes!("../../../examples/xdp_count.o");

    fn counting() -> Instrumented {
        instrument(OBJECT, &BTreeSet::new()).expect("a committed object")
    }

    #[test]
    fn a_copy_has_counters_and_the_object_has_none() {
        let made = counting();
        assert!(made.functions > 0 && made.counters > made.functions, "{made:?}");
        let copy = Object::parse(made.bytes.clone()).expect("it was read before");
        let (size, counters) = copy.section(SECTION).expect("it is there");
        assert_eq!((size as usize, counters[..WORD].to_vec()), (counters.len(), mark(OBJECT).to_vec()));
        assert!(matches!(instrument(&made.bytes, &BTreeSet::new()), Err(InstrumentError::Already)));
        assert_eq!(counting().bytes, made.bytes);
    }

    #[test]
    fn counters_are_read_by_block_and_only_of_the_same_object() {
        let copy = Object::parse(counting().bytes).expect("it was read before");
        let mut counters = copy.section(SECTION).expect("it is there").1.to_vec();
        counters[WORD] = 7;
        counters[2 * WORD] = 3;
        let counts = read(OBJECT, &counters).expect("they fit");
        assert_eq!((counts.functions[0].blocks[0].runs, counts.check(OBJECT)), (7, Ok(())));
        assert!(matches!(read(OBJECT, &counters[WORD..]), Err(InstrumentError::Length { .. })));
        counters[0] ^= 1;
        assert!(matches!(read(OBJECT, &counters), Err(InstrumentError::OtherObject)));
    }

    #[test]
    fn functions_that_are_named_do_not_count() {
        let all = Module::new(Object::parse(OBJECT.to_vec()).expect("a committed object"));
        let names: BTreeSet<String> = all.object.functions().iter().map(|f| f.name.clone()).collect();
        assert!(matches!(instrument(OBJECT, &names), Err(InstrumentError::Nothing(_))));
    }
}
