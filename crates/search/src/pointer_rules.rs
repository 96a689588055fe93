//! What the kernel's verifier would not take, as far as it shows without asking it.
//!
//! Neither tests nor the prover mind a pointer that is halved and put together again; the kernel
//! does. Operations that stand in the original are not questioned.

use std::collections::BTreeSet;

use bpf_facts::{Kind, Region, State, Value};
use bpf_isa::{AluOp, Cond, Insn, MemoryOperand, Reg, RegSet, Size, Src, Width};
use bpf_program::{BlockId, Op, ProgKind};
use bpf_prove::{Beliefs, MayBe, is_taken};

use crate::propose::readable;
use crate::window::{NOP, Window};

/// Whether a candidate reads only what is set, and treats pointers as pointers.
pub fn well_typed(w: &Window, ops: &[Op]) -> bool {
    let mut set = readable(w);
    let mut state = w.before.clone();
    for (i, op) in ops.iter().enumerate() {
        if op.insn == NOP {
            continue;
        }
        if !op.insn.uses().minus(set).is_empty() || op.insn.defs().contains(Reg::R10) {
            return false;
        }
        let is_old = w.old.iter().any(|o| o.insn == op.insn && o.link == op.link);
        let may_stand = is_old || allowed(&state, op) && is_placed(w, &state, op) && is_believed(w.kind, &state, op);
        if !may_stand {
            return false;
        }
        state.step(op, (BlockId(0), i), w.kind, w.env);
        set = set.union(op.insn.defs());
    }
    let _: RegSet = set;
    true
}

/// Whether the verifier will not believe something wrong of an operation ([`Beliefs`]); nor of a packet pointer that is moved
/// back, which may have been found beyond the packet.
fn is_believed(kind: ProgKind, state: &State, op: &Op) -> bool {
    let moves_back = match op.insn {
        Insn::Alu { op: AluOp::Add, width: Width::W64, dst, src: Src::Imm(..0) }
        | Insn::Alu { op: AluOp::Sub, width: Width::W64, dst, src: Src::Imm(0..) } => {
            state.reg(dst).region().is_some_and(Region::is_packet)
        }
        _ => false,
    };
    // Whether others call it does not show here: whole functions are asked once more.
    let is_called = kind == ProgKind::Subprogram;
    !moves_back && !Beliefs::at(kind, is_called, op, state).are_wrong(MayBe { sock_ops: true, arguments: true })
}

/// Whether the verifier takes an access where it is: on the stack at a multiple of its width (`check_stack_access` and
/// `check_generic_ptr_alignment` in kernel/bpf/verifier.c), in the context as the original makes it.
fn is_placed(w: &Window, state: &State, op: &Op) -> bool {
    match access(state, op) {
        Some((Region::Stack, m, at)) => at % i64::from(m.size.bytes()) == 0,
        Some((Region::Ctx, m, at)) => is_taken(w.kind, &accesses_of_context(w, m.writes), (at, m.size.bytes())),
        _ => true,
    }
}

/// Where an operation reads or writes the memory of a region, if that is known.
fn access<'s>(state: &'s State, op: &Op) -> Option<(&'s Region, MemoryOperand, i64)> {
    let m = op.insn.memory_operand()?;
    let (region, _, at) = state.reg(m.base).pointer_at()?;
    Some((region, m, at + i64::from(m.off)))
}

/// Where the window reads or writes the context, and how many bytes at once.
fn accesses_of_context(w: &Window, writes: bool) -> BTreeSet<(i64, u32)> {
    let mut state = w.before.clone();
    let mut found = BTreeSet::new();
    for (i, op) in w.old.iter().enumerate() {
        if let Some((Region::Ctx, m, at)) = access(&state, op)
            && m.writes == writes
        {
            found.insert((at, m.size.bytes()));
        }
        state.step(op, (BlockId(0), i), w.kind, w.env);
    }
    found
}

fn is_pointer(v: &Value) -> bool {
    matches!(v.kind, Kind::Pointer { .. })
}

/// Whether numbers may be added to it.
fn movable(v: &Value) -> bool {
    match &v.kind {
        Kind::Pointer { nullable: true, .. } => false,
        Kind::Pointer { region, .. } => {
            !matches!(region, Region::PacketEnd | Region::MapPtr { .. } | Region::Func { .. } | Region::Ctx)
        }
        _ => true,
    }
}

fn allowed(state: &State, op: &Op) -> bool {
    let v = |r: Reg| state.reg(r);
    if let Some(MemoryOperand { base, .. }) = op.insn.memory_operand() {
        let stored = match op.insn {
            Insn::Store { size, src: Src::Reg(r), .. } => is_pointer(v(r)).then_some(size),
            Insn::Atomic { src, .. } if is_pointer(v(src)) => return false,
            Insn::Atomic { .. } if v(base).region().is_some_and(|r| r.is_packet() || *r == Region::Ctx) => {
                return false;
            }
            _ => None,
        };
        let base_ok = match &v(base).kind {
            Kind::Pointer { nullable, region, .. } => {
                !nullable && !matches!(region, Region::PacketEnd | Region::MapPtr { .. } | Region::Func { .. })
            }
            Kind::Scalar => false,
            Kind::Unknown => true,
        };
        // Before Linux 6.4 the verifier refuses to store an immediate to the context (`check_mem_access`: "BPF_ST stores
        // into"); what came as an argument may be one.
        let may_be_ctx = v(base).region().is_none_or(|r| *r == Region::Ctx);
        let immediate_to_ctx = matches!(op.insn, Insn::Store { src: Src::Imm(_), .. }) && may_be_ctx;
        return base_ok && !immediate_to_ctx && stored.is_none_or(|s| s == Size::DW && v(base).is_stack());
    }
    match op.insn {
        Insn::Alu { op, width, dst, src } => {
            let a = v(dst);
            let b = src.reg().map(v);
            let (p, q) = (is_pointer(a), b.is_some_and(is_pointer));
            match (p, q) {
                (false, false) => true,
                _ if width == Width::W32 => false,
                (true, false) => matches!(op, AluOp::Add | AluOp::Sub) && movable(a),
                (false, true) => op == AluOp::Add && b.is_some_and(movable) && a.kind == Kind::Scalar,
                (true, true) => op == AluOp::Sub && b.is_some_and(|b| a.same_base(b)) && movable(a),
            }
        }
        Insn::Mov { width: Width::W32, src: Src::Reg(r), .. } => !is_pointer(v(r)),
        Insn::MovSx { src, .. } => !is_pointer(v(src)),
        Insn::Neg { dst, .. } | Insn::Endian { dst, .. } => !is_pointer(v(dst)),
        // Packets are compared with their end, and not as signed numbers.
        Insn::Jcc { cond, width: Width::W64, dst, src: Src::Reg(r), .. } if is_pointer(v(dst)) && is_pointer(v(r)) => {
            let end = |r: Reg| v(r).region() == Some(&Region::PacketEnd);
            end(dst) != end(r) && matches!(cond, Cond::Gt | Cond::Ge | Cond::Lt | Cond::Le)
        }
        Insn::Jcc { dst, src, .. } => !is_pointer(v(dst)) && !src.reg().is_some_and(|r| is_pointer(v(r))),
        _ => true,
    }
}
