//! From an object's function to its graph.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bpf_isa::{Call, Imm64Kind, Insn};
use bpf_object::{FuncId, FuncKind, Object, RefKind};
use thiserror::Error;

use crate::{Block, BlockId, ByteOrder, Function, Link, Op, ProgKind, Symbol, Terminator};

/// Why a function cannot be represented as a graph. Slots count from the start of the function.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BuildError {
    /// The bytes do not divide into slots.
    #[error("the code is not a whole number of 8-byte slots")]
    Ragged,
    /// There is no instruction at all.
    #[error("the function is empty")]
    Empty,
    /// An encoding the instruction set does not have.
    #[error("slot {slot}: unknown instruction {word:#018x}")]
    Opaque {
        /// Where.
        slot: usize,
        /// The slot's eight bytes, little-endian.
        word: u64,
    },
    /// A jump that leaves the function.
    #[error("slot {slot}: jump to slot {target}, outside the function's {slots} slots")]
    JumpOut {
        /// Where.
        slot: usize,
        /// Its target.
        target: i64,
        /// Slots in the function.
        slots: usize,
    },
    /// A jump into the second half of an `ld_imm64`.
    #[error("slot {slot}: jump into the middle of the two-slot instruction at {target}")]
    JumpIntoMiddle {
        /// Where.
        slot: usize,
        /// The first slot of the instruction.
        target: usize,
    },
    /// The last instruction lets control run off the end.
    #[error("slot {slot}: control falls off the end of the function")]
    FallsOff {
        /// The last instruction.
        slot: usize,
    },
    /// A relocation on something that does not take one.
    #[error("slot {slot}: relocation of a kind this optimizer does not understand ({what})")]
    Reference {
        /// Where.
        slot: usize,
        /// What it was.
        what: String,
    },
}

/// Builds the graph of function `f` of `object`. Its name and those in its links are the object's identities
/// ([`Object::function_identity`], [`Object::map_identity`]): equal names mean the same thing, also where the symbol
/// table gives one name twice.
///
/// # Errors
/// [`BuildError`] names the slot that stops it; the caller leaves that function untouched.
pub fn build(object: &Object, f: FuncId) -> Result<Function, BuildError> {
    let func = &object.functions()[f.0];
    let kind = match func.kind {
        FuncKind::Program => ProgKind::from_section(&func.section),
        _ => ProgKind::Subprogram,
    };
    let decoded = bpf_isa::decode_all(object.code(f)).map_err(|_| BuildError::Ragged)?;
    let links = links(object, f, &decoded)?;
    let function = build_from_insns(object.function_identity(f), kind, &decoded, links)?;
    Ok(Function { byte_order: object.byte_order(), ..function })
}

fn links(object: &Object, f: FuncId, decoded: &[(usize, Insn)]) -> Result<HashMap<usize, Link>, BuildError> {
    let at: HashMap<usize, Insn> = decoded.iter().copied().collect();
    let mut links = HashMap::new();
    for r in object.refs(f) {
        let insn = at.get(&r.slot);
        // Before relocation the addend of a data reference sits in the instruction's second half.
        let symbol = match (&r.kind, insn) {
            (RefKind::Map { map, offset: 0 }, _) => {
                Symbol::Map { name: Arc::from(object.map_identity(*map)), index: *map }
            }
            (RefKind::Data { section, offset, .. }, _) => {
                Symbol::Data { section: Arc::from(section.as_str()), offset: *offset as i64 }
            }
            (RefKind::Call { target }, _) | (RefKind::FuncAddr { target }, _) => {
                Symbol::Func { name: Arc::from(object.function_identity(*target)) }
            }
            (RefKind::Extern { name, .. }, _) => Symbol::Extern { name: Arc::from(name.as_str()) },
            (other, _) => return Err(BuildError::Reference { slot: r.slot, what: format!("{other:?}") }),
        };
        if !matches!(insn, Some(Insn::LoadImm64 { .. } | Insn::Call(_))) {
            return Err(BuildError::Reference { slot: r.slot, what: format!("{:?} on {insn:?}", r.kind) });
        }
        links.insert(r.slot, Link { slot: r.slot, symbol });
    }
    for c in object.core_relocs(f) {
        let symbol = Symbol::Core { kind: c.kind, type_id: c.type_id, access: Arc::from(c.access.as_str()) };
        if links.insert(c.slot, Link { slot: c.slot, symbol }).is_some() {
            return Err(BuildError::Reference { slot: c.slot, what: "two records on one instruction".into() });
        }
    }
    Ok(links)
}

/// Builds a graph from decoded instructions `(slot, instruction)` and the links of the patched ones, for a little-endian
/// machine.
///
/// # Errors
/// As [`build`].
pub fn build_from_insns(
    name: &str,
    kind: ProgKind,
    decoded: &[(usize, Insn)],
    mut links: HashMap<usize, Link>,
) -> Result<Function, BuildError> {
    let Some(&(last_slot, last)) = decoded.last() else { return Err(BuildError::Empty) };
    let slots = last_slot + last.slots();
    let starts: BTreeSet<usize> = decoded.iter().map(|(s, _)| *s).collect();
    let target = |slot: usize, insn: &Insn, off: i32| -> Result<usize, BuildError> {
        let t = slot as i64 + insn.slots() as i64 + i64::from(off);
        match usize::try_from(t) {
            Ok(t) if t < slots => {
                if starts.contains(&t) {
                    Ok(t)
                } else {
                    Err(BuildError::JumpIntoMiddle { slot, target: t - 1 })
                }
            }
            _ => Err(BuildError::JumpOut { slot, target: t, slots }),
        }
    };

    let mut leaders = BTreeSet::from([0usize]);
    for (slot, insn) in decoded {
        if let Insn::Opaque(word) = insn {
            return Err(BuildError::Opaque { slot: *slot, word: *word });
        }
        if let Some(off) = insn.jump_offset() {
            leaders.insert(target(*slot, insn, off)?);
            leaders.insert(slot + insn.slots());
        } else if matches!(insn, Insn::Exit) {
            leaders.insert(slot + 1);
        }
        if let Some(link) = links.get(slot)
            && !link_fits(insn, &link.symbol)
        {
            return Err(BuildError::Reference { slot: *slot, what: format!("{:?} on `{insn}`", link.symbol) });
        }
    }
    leaders.remove(&slots);
    let ids: BTreeMap<usize, BlockId> = leaders.iter().enumerate().map(|(i, s)| (*s, BlockId(i as u32))).collect();
    let block_at = |slot: usize| ids.get(&slot).copied();

    let mut blocks: Vec<Block> = Vec::with_capacity(ids.len());
    let mut ops: Vec<Op> = Vec::new();
    for (i, (slot, insn)) in decoded.iter().enumerate() {
        let next = slot + insn.slots();
        let origin = Some(*slot);
        let falls = block_at(next);
        let go = |off: i32| -> Result<BlockId, BuildError> {
            let t = target(*slot, insn, off)?;
            block_at(t).ok_or(BuildError::FallsOff { slot: *slot })
        };
        let term = match *insn {
            Insn::Ja { off, .. } => Some(Terminator::Goto(go(off)?)),
            Insn::Jcc { cond, width, dst, src, off } => Some(Terminator::Branch {
                cond,
                width,
                dst,
                src,
                taken: go(i32::from(off))?,
                fall: falls.ok_or(BuildError::FallsOff { slot: *slot })?,
                origin,
            }),
            Insn::MayGoto { off } => Some(Terminator::MayGoto {
                taken: go(i32::from(off))?,
                fall: falls.ok_or(BuildError::FallsOff { slot: *slot })?,
                origin,
            }),
            Insn::Exit => Some(Terminator::Exit { origin }),
            _ => {
                ops.push(Op { insn: *insn, origin, link: links.remove(slot) });
                match falls {
                    Some(b) => Some(Terminator::Goto(b)),
                    None if i + 1 == decoded.len() => return Err(BuildError::FallsOff { slot: *slot }),
                    None => None,
                }
            }
        };
        if let Some(term) = term {
            blocks.push(Block { ops: std::mem::take(&mut ops), term });
        }
    }
    let layout = (0..blocks.len() as u32).map(BlockId).collect();
    Ok(Function { name: name.to_string(), kind, arguments: None, byte_order: ByteOrder::Little, blocks, layout })
}

/// Whether the loader patches this instruction for this kind of reference. CO-RE records sit on
/// ALU immediates, loads, stores and `ld_imm64` (libbpf `bpf_core_patch_insn`).
fn link_fits(insn: &Insn, symbol: &Symbol) -> bool {
    match symbol {
        Symbol::Map { .. } | Symbol::Data { .. } => {
            matches!(insn, Insn::LoadImm64 { kind: Imm64Kind::Const, .. })
                || matches!(insn, Insn::LoadImm64 { kind: Imm64Kind::MapFd | Imm64Kind::MapValue, .. })
        }
        Symbol::Func { .. } => {
            matches!(insn, Insn::LoadImm64 { .. } | Insn::Call(Call::Local(_) | Call::Kfunc { .. } | Call::Helper(_)))
        }
        Symbol::Extern { .. } => matches!(insn, Insn::LoadImm64 { .. } | Insn::Call(_)),
        Symbol::Core { .. } => matches!(
            insn,
            Insn::Alu { .. }
                | Insn::Mov { .. }
                | Insn::Load { .. }
                | Insn::Store { .. }
                | Insn::Atomic { .. }
                | Insn::LoadImm64 { .. }
                | Insn::MovSx { .. }
        ),
    }
}
