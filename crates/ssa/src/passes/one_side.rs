//! Questions whose answer does not matter: both sides do the same, with other registers or in another order.
//!
//! ```text
//! before                          after
//!     if w0 & 1 goto M                r0 &= 60
//!     r0 &= 60                        r1 = *(u32 *)(r6 + 0)
//!     r1 = *(u32 *)(r6 + 0)           r1 += r0
//!     r1 += r0
//!     goto T
//! M:
//!     r0 &= 60
//!     r1 = *(u32 *)(r6 + 0)
//!     r0 += r1
//!     r1 = r0
//! T:                              T:
//! ```
//!
//! Where the answer is chance, as here, a processor predicts it wrong every other time. What looks alike is proposed; whether it is the
//! same is for the prover to say.

use bpf_isa::{Cond, Insn, Reg, Src};
use bpf_program::{BlockId, Function, Terminator, drop_unreachable, successors};

/// Operations of a side, at most.
const LONGEST: usize = 48;

/// Forms of a function in which one side of a branch is gone whose sides look alike.
pub fn one_side(f: &Function) -> impl Iterator<Item = Function> {
    let branches = f.layout.iter().filter_map(|b| match f.block(*b).term {
        Terminator::Branch { taken, fall, .. } if taken != fall => Some((*b, taken, fall)),
        _ => None,
    });
    branches.filter(|(b, taken, fall)| look_alike(f, *b, *taken, *fall)).flat_map(|(b, taken, fall)| {
        [fall, taken].map(|to| {
            let mut new = f.clone();
            new.block_mut(b).term = Terminator::Goto(to);
            drop_unreachable(&mut new);
            new
        })
    })
}

/// Whether what only the one side leads to has the same operations as what only the other one does, whatever their registers.
fn look_alike(f: &Function, branch: BlockId, taken: BlockId, fall: BlockId) -> bool {
    let [of_taken, of_fall] = [taken, fall].map(|start| reached(f, start));
    if of_taken[branch.index()] || of_fall[branch.index()] {
        return false;
    }
    let only = |of: &[bool], other: &[bool]| operations(f, |b| of[b.index()] && !other[b.index()]);
    let (one, other) = (only(&of_taken, &of_fall), only(&of_fall, &of_taken));
    one.is_some() && one == other
}

fn reached(f: &Function, start: BlockId) -> Vec<bool> {
    let mut seen = vec![false; f.blocks.len()];
    let mut open = vec![start];
    while let Some(b) = open.pop() {
        if !std::mem::replace(&mut seen[b.index()], true) {
            open.extend(successors(f, b));
        }
    }
    seen
}

/// The operations of some blocks without their registers, sorted; `None` if there are none, or too many.
fn operations(f: &Function, is_in: impl Fn(BlockId) -> bool) -> Option<Vec<String>> {
    let mut all = Vec::new();
    for &b in f.layout.iter().filter(|b| is_in(**b)) {
        let block = f.block(b);
        let ops = block.ops.iter().filter(|o| !is_copy(&o.insn));
        all.extend(ops.map(|o| format!("{:?} {:?}", without_registers(&o.insn), o.link)));
        match block.term {
            Terminator::Branch { cond, width, src, .. } => {
                all.push(format!("{:?} {width:?} {:?}", of_both_kinds(cond), src.imm()));
            }
            Terminator::Exit { .. } => all.push("exit".to_owned()),
            _ => {}
        }
    }
    all.sort_unstable();
    (!all.is_empty() && all.len() <= LONGEST).then_some(all)
}

/// An instruction whose registers do not count, but for the frame's address.
pub(super) fn without_registers(insn: &Insn) -> Insn {
    insn.map_regs(|r| if r == Reg::R10 { r } else { Reg::R0 })
}

/// Whether an instruction only brings a value from one register to another.
pub(super) fn is_copy(insn: &Insn) -> bool {
    matches!(insn, Insn::Mov { src: Src::Reg(_), .. })
}

/// The condition that stands for this one and its opposite.
pub(super) fn of_both_kinds(cond: Cond) -> Cond {
    cond.negate().map_or(cond, |n| if (n as u8) < cond as u8 { n } else { cond })
}

#[cfg(test)]
mod tests {
    use bpf_program::ProgKind;
    use bpf_testgen::listing;

    use super::*;

    const ALIKE: &str =
        "if r1 == 7 goto M\nr2 &= 60\nr3 = r2\nr3 += r4\ngoto T\nM: r2 &= 60\nr4 += r2\nr3 = r4\nT: r0 = r3\nexit";

    #[test]
    fn sides_that_look_alike_are_proposed_with_either_of_them() {
        let f = listing::function(ProgKind::Xdp, ALIKE);
        let forms: Vec<Function> = one_side(&f).collect();
        assert_eq!(forms.len(), 2);
        assert!(forms.iter().all(|g| g.layout.len() + 1 == f.layout.len()));
    }

    #[test]
    fn other_operations_are_not_alike() {
        let f = listing::function(ProgKind::Xdp, &ALIKE.replacen("60", "61", 1));
        assert_eq!(one_side(&f).count(), 0);
    }
}
