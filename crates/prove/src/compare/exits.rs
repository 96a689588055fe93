//! The side exits of a superblock, as both sides come to them.

use bpf_facts::Live;
use bpf_semantics::branch;

use crate::compare::judge::{Judged, LiveOut, judge};
use crate::options::Options;
use crate::superblock::SideExit;
use crate::symbolic::acyclic::Outcome;
use crate::symbolic::context::{Context, SatResult};
use crate::symbolic::symex::{Side, Stop, Sym};
use crate::term::TermId;

/// What one side had done when it came to one of its side exits.
#[derive(Clone, Debug)]
struct Arrival {
    /// Under which condition it comes there.
    guard: TermId,
    /// The exit's condition.
    cond: TermId,
    /// The condition to go on along the superblock.
    on: TermId,
    /// Under which condition it leaves there.
    leaves: TermId,
    /// Under which condition it goes on.
    stays: TermId,
    /// What it had done.
    outcome: Outcome,
}

/// The side exits of both sides, as they are come to. The new side is taken to go the way the
/// old one goes; that it does is for [`compare`] to show.
#[derive(Default)]
pub(crate) struct SideExits {
    old: Vec<Arrival>,
    new: Vec<Arrival>,
}

impl SideExits {
    /// Comes to a side exit.
    pub fn take(&mut self, sym: &mut Sym, exit: SideExit) -> Result<(), Stop> {
        let SideExit { cond, width, dst, src, leaves_if } = exit;
        let cond = branch(sym, cond, width, dst, src)?;
        let not = sym.cx.terms.not(cond);
        let (out, on) = if leaves_if { (cond, not) } else { (not, cond) };
        let outcome = Outcome {
            exit: sym.state.clone(),
            log: sym.log.clone(),
            stack_low: sym.stack_low,
            misaligned: sym.misaligned,
            out_of_frame: sym.out_of_frame,
        };
        let guard = sym.guard;
        if sym.side == Side::New {
            let lost = || Stop::Unmodelled("a jump the original has not".into());
            let old = self.old.get(self.new.len()).ok_or_else(lost)?;
            sym.guard = old.stays;
            self.new.push(Arrival { guard, cond, on, leaves: old.leaves, stays: old.stays, outcome });
            return Ok(());
        }
        let leaves = sym.cx.terms.all(&[guard, out]);
        let stays = sym.cx.terms.all(&[guard, on]);
        sym.guard = stays;
        self.old.push(Arrival { guard, cond, on, leaves, stays, outcome });
        Ok(())
    }

    /// Under which condition the old side comes to the end.
    pub fn end(&self) -> Option<TermId> {
        self.old.last().map(|t| t.stays)
    }

    /// Whether the new side goes along the path whenever the old side does, and leaves it where that leaves it.
    pub fn agree(&self, cx: &mut Context) -> bool {
        self.old.iter().zip(&self.new).all(|(a, b)| {
            let same = cx.terms.eq(a.on, b.on);
            let differ = cx.terms.not(same);
            matches!(cx.check_sat(a.guard, &[differ]), SatResult::Unsat)
        })
    }

    /// Whether both sides leave at the same jumps under the same conditions, having done the same as far
    /// as `sides` say that it matters. `None` if so; else what was found, with both sides' outcome.
    pub fn compare(&self, cx: &mut Context, sides: &[Live], options: &Options) -> Option<(Judged, Outcome, Outcome)> {
        for ((a, b), live) in self.old.iter().zip(&self.new).zip(sides) {
            let same = cx.terms.eq(a.cond, b.cond);
            let differ = cx.terms.not(same);
            let judged = match cx.check_sat(a.guard, &[differ]) {
                SatResult::Unsat => {
                    judge(cx, a.leaves, &a.outcome, &b.outcome, &LiveOut::Window(live), &vec![], vec![], options)
                }
                SatResult::Sat(m) => {
                    cx.difference = Some(cx.terms.all(&[a.guard, differ]));
                    Judged::Different(m)
                }
                SatResult::Unknown => Judged::Unknown("the solver's limit was reached".into()),
            };
            if !matches!(judged, Judged::Equal) {
                return Some((judged, a.outcome.clone(), b.outcome.clone()));
            }
        }
        None
    }
}
