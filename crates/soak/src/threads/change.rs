//! Changes of a program that a wrong optimizer might make: most of them are wrong, and some are right.
//!
//! One idea: each change is a small edit of the listing. The lane asks `verify` about the changed program; the tests of
//! the lane take the changes for an optimizer's work, and the lane has to find out.

use bpf_isa::{AtomicOp, Insn, Reg, Size, Src};
use bpf_testgen::random::Rng;

use super::program::Source;

/// What is done to a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// What was read once and kept is read again where it is used.
    ReadAgain,
    /// A conditional jump behind a read goes: the recheck of a seqlock.
    DropCheck,
    /// A store is made of two, the upper half first or last.
    SplitStore,
    /// Only half of a store is left.
    HalfStore,
    /// Two accesses change places.
    Swap,
    /// A read at the beginning of a loop is made before it.
    Hoist,
    /// What was read before is taken for what a second read of the same place finds.
    Reuse,
    /// An atomic becomes a load and a store.
    Unlock,
    /// A store goes.
    DropStore,
    /// A store is made twice.
    StoreTwice,
    /// A load and a store become an atomic, whatever is between them.
    Lock,
}

impl Change {
    /// All of them.
    pub const ALL: [Change; 11] = [
        Change::ReadAgain,
        Change::DropCheck,
        Change::SplitStore,
        Change::HalfStore,
        Change::Swap,
        Change::Hoist,
        Change::Reuse,
        Change::Unlock,
        Change::DropStore,
        Change::StoreTwice,
        Change::Lock,
    ];

    /// The program with this change at a random place; `None` where there is no such place.
    pub fn apply(self, source: &Source, r: &mut Rng) -> Option<Source> {
        let edits = self.edits(&source.lines);
        let edit = &edits[usize::try_from(r.below(edits.len() as u64)).ok().filter(|_| !edits.is_empty())?];
        let mut lines = source.lines.clone();
        lines.splice(edit.from..edit.to, edit.lines.iter().cloned());
        Some(source.with(lines)).filter(|s| s != source)
    }

    /// All places, with what is to stand there.
    fn edits(self, lines: &[String]) -> Vec<Edit> {
        let code: Vec<Option<Insn>> = lines.iter().map(|l| bpf_isa::parse(l).ok()).collect();
        let at = |i: usize| code.get(i).copied().flatten();
        let all = 0..lines.len();
        match self {
            Change::ReadAgain => all.flat_map(|i| read_again(&code, i)).collect(),
            Change::DropCheck => all
                .filter(|i| lines[*i].starts_with("if ") && (i.saturating_sub(3)..*i).any(|j| at(j).is_some_and(reads)))
                .map(|i| Edit::new(i, i + 1, &[]))
                .collect(),
            Change::SplitStore => all.flat_map(|i| at(i).map_or(vec![], |insn| split(insn, i))).collect(),
            Change::HalfStore => all.flat_map(|i| at(i).map_or(vec![], |insn| half(insn, i))).collect(),
            Change::Swap => all.flat_map(|i| swaps(lines, &code, i)).collect(),
            Change::Hoist => all
                .filter(|i| lines[*i].ends_with(':') && at(i + 1).is_some_and(reads))
                .map(|i| Edit { from: i, to: i + 2, lines: vec![lines[i + 1].clone(), lines[i].clone()] })
                .collect(),
            Change::Reuse => all.flat_map(|i| reuse(&code, i)).collect(),
            Change::Unlock => all.flat_map(|i| at(i).and_then(|insn| unlock(insn, i))).collect(),
            Change::DropStore => all.filter(|i| at(*i).is_some_and(writes)).map(|i| Edit::new(i, i + 1, &[])).collect(),
            Change::StoreTwice => all
                .filter(|i| at(*i).is_some_and(writes))
                .map(|i| Edit { from: i, to: i, lines: vec![lines[i].clone()] })
                .collect(),
            Change::Lock => all.flat_map(|i| lock(&code, i)).collect(),
        }
    }
}

/// Lines in the place of others.
struct Edit {
    from: usize,
    to: usize,
    lines: Vec<String>,
}

impl Edit {
    fn new(from: usize, to: usize, insns: &[Insn]) -> Edit {
        Edit { from, to, lines: insns.iter().map(ToString::to_string).collect() }
    }
}

/// Generated programs have the address of the shared memory in r6, and nothing else uses that.
fn reads(insn: Insn) -> bool {
    matches!(insn, Insn::Load { base: Reg::R6, .. })
}

fn writes(insn: Insn) -> bool {
    matches!(insn, Insn::Store { base: Reg::R6, .. })
}

fn shared(insn: Insn) -> bool {
    reads(insn) || writes(insn) || matches!(insn, Insn::Atomic { base: Reg::R6, .. })
}

/// Places at which the register that line `i` fills from shared memory, or the slot that it goes to next, is used.
fn read_again(code: &[Option<Insn>], i: usize) -> Vec<Edit> {
    let Some(load @ Insn::Load { size, sext, dst, base: Reg::R6, off }) = code[i] else { return vec![] };
    let slot = match code.get(i + 1) {
        Some(Some(Insn::Store { size: Size::DW, base: Reg::R10, off, src: Src::Reg(src) })) if *src == dst => {
            Some(*off)
        }
        _ => None,
    };
    let mut edits = vec![];
    for (j, insn) in code.iter().enumerate().skip(i + 1) {
        let Some(insn) = *insn else { continue };
        match (insn, slot) {
            (Insn::Load { size: Size::DW, dst, base: Reg::R10, off: from, .. }, Some(slot)) if from == slot => {
                edits.push(Edit::new(j, j + 1, &[Insn::Load { size, sext, dst, base: Reg::R6, off }]));
            }
            (Insn::Store { base: Reg::R10, off, .. }, Some(slot)) if off == slot && j > i + 1 => break,
            (_, None) if insn.uses().contains(dst) && matches!(insn, Insn::Mov { .. } | Insn::Alu { .. }) => {
                edits.push(Edit { from: j, to: j, lines: vec![load.to_string()] });
            }
            _ => {}
        }
        if slot.is_none() && insn.defs().contains(dst) {
            break;
        }
    }
    edits
}

/// The two halves of a store, r4 for the upper one.
fn halves(insn: Insn) -> Option<[Vec<Insn>; 2]> {
    let Insn::Store { size, base: Reg::R6, off, src } = insn else { return None };
    let (size, bits) = match size {
        Size::DW => (Size::W, 32),
        Size::W => (Size::H, 16),
        Size::H => (Size::B, 8),
        Size::B => return None,
    };
    let second = off + (bits / 8) as i16;
    let store = |off, src| Insn::Store { size, base: Reg::R6, off, src };
    let upper = match src {
        Src::Reg(from) => {
            let amount = Src::Imm(bits);
            let width = bpf_isa::Width::W64;
            let shifted = Insn::Alu { op: bpf_isa::AluOp::Rsh, width, dst: Reg::R4, src: amount };
            vec![Insn::Mov { width, dst: Reg::R4, src: Src::Reg(from) }, shifted, store(second, Src::Reg(Reg::R4))]
        }
        Src::Imm(n) => vec![store(second, Src::Imm((i64::from(n) >> bits) as i32))],
    };
    Some([vec![store(off, src)], upper])
}

fn split(insn: Insn, i: usize) -> Vec<Edit> {
    let Some([low, high]) = halves(insn) else { return vec![] };
    let [rising, falling] = [[low.clone(), high.clone()].concat(), [high, low].concat()];
    vec![Edit::new(i, i + 1, &rising), Edit::new(i, i + 1, &falling)]
}

fn half(insn: Insn, i: usize) -> Vec<Edit> {
    halves(insn).into_iter().flatten().map(|h| Edit::new(i, i + 1, &h)).collect()
}

/// The next access of shared memory is made before that of line `i`, where the registers allow it.
fn swaps(lines: &[String], code: &[Option<Insn>], i: usize) -> Vec<Edit> {
    let Some(first) = code[i].filter(|insn| shared(*insn)) else { return vec![] };
    let mut between = vec![first];
    for j in i + 1..lines.len() {
        let known = code[j].filter(|insn| !matches!(insn, Insn::Jcc { .. } | Insn::Ja { .. } | Insn::Exit));
        let insn = match known {
            Some(insn) => insn,
            // A call of a helper by name.
            None if lines[j].starts_with("call ") => Insn::Call(bpf_isa::Call::Helper(0)),
            None => return vec![],
        };
        if !shared(insn) {
            between.push(insn);
            continue;
        }
        let clash = between.iter().any(|b| {
            let touched = |r: &Reg| b.defs().contains(*r) || b.uses().contains(*r);
            insn.defs().iter().any(|r| touched(&r)) || insn.uses().iter().any(|r| b.defs().contains(r))
        });
        if clash {
            return vec![];
        }
        let mut moved = vec![lines[j].clone()];
        moved.extend_from_slice(&lines[i..j]);
        return vec![Edit { from: i, to: j + 1, lines: moved }];
    }
    vec![]
}

/// A later read of the same place, of which the register still holds what line `i` has read or stored.
fn reuse(code: &[Option<Insn>], i: usize) -> Vec<Edit> {
    let (size, from, place) = match code[i] {
        Some(Insn::Load { size, sext: false, dst, base: Reg::R6, off }) => (size, dst, off),
        Some(Insn::Store { size: Size::DW, base: Reg::R6, off, src: Src::Reg(src) }) => (Size::DW, src, off),
        _ => return vec![],
    };
    let mut edits = vec![];
    for (j, insn) in code.iter().enumerate().skip(i + 1) {
        let Some(insn) = insn else { continue };
        if let Insn::Load { size: again, sext: false, dst, base: Reg::R6, off } = *insn
            && (again, off) == (size, place)
        {
            let width = bpf_isa::Width::W64;
            edits.push(Edit::new(j, j + 1, &[Insn::Mov { width, dst, src: Src::Reg(from) }]));
        }
        if insn.defs().contains(from) {
            break;
        }
    }
    edits
}

fn unlock(insn: Insn, i: usize) -> Option<Edit> {
    let Insn::Atomic { op: AtomicOp::Add { fetch: false }, size, base: Reg::R6, off, src } = insn else { return None };
    let width = bpf_isa::Width::W64;
    let load = Insn::Load { size, sext: false, dst: Reg::R4, base: Reg::R6, off };
    let add = Insn::Alu { op: bpf_isa::AluOp::Add, width, dst: Reg::R4, src: Src::Reg(src) };
    let store = Insn::Store { size, base: Reg::R6, off, src: Src::Reg(Reg::R4) };
    Some(Edit::new(i, i + 1, &[load, add, store]))
}

/// `load`, `+= n`, `store` of one register and one place.
fn lock(code: &[Option<Insn>], i: usize) -> Option<Edit> {
    let Some(Insn::Load { size: size @ (Size::W | Size::DW), dst, base: Reg::R6, off, .. }) = code[i] else {
        return None;
    };
    let Some(Some(Insn::Alu { op: bpf_isa::AluOp::Add, dst: sum, src: Src::Imm(n), .. })) = code.get(i + 1) else {
        return None;
    };
    let store = code.get(i + 2).copied().flatten()?;
    if *sum != dst || store != (Insn::Store { size, base: Reg::R6, off, src: Src::Reg(dst) }) {
        return None;
    }
    let mov = Insn::Mov { width: bpf_isa::Width::W64, dst, src: Src::Imm(*n) };
    let op = AtomicOp::Add { fetch: false };
    Some(Edit::new(i, i + 3, &[mov, Insn::Atomic { op, size, base: Reg::R6, off, src: dst }]))
}
