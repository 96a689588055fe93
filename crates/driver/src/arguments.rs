//! What callers pass to the subprograms of an object.
//!
//! A global one is verified alone, against its signature: where that says number, callers must pass one
//! (`btf_check_func_arg_match` in kernel/bpf/verifier.c).
//!
//! A static subprogram is verified as part of its callers, so what all of them pass is a fact about its arguments:
//! which of them is the context, and of what kind of program; which point into a map's values, a caller's frame, the
//! packet. Each round joins what the facts of all call sites say, given the arguments of the round before; the first takes
//! them to be anything, so every round is sound. Nothing is said of functions whose address is taken, that other objects
//! may call, or one of whose callers is not understood; nor of registers that the function does not read.

use bpf_facts::{Env, Facts, Kind, Region, State, Value};
use bpf_isa::{Call, Insn, Reg};
use bpf_object::{FuncId, FuncKind, Object, RefKind, ValueType};
use bpf_program::{Argument, Function, Op, Pointee, ProgKind};

/// Rounds; each goes one call deeper.
const ROUNDS: usize = 4;

/// Fills in the arguments and context kinds of the subprograms among `graphs`.
pub(crate) fn find(object: &Object, graphs: &mut [Result<Function, String>], env: &Env) {
    for (id, f) in graphs.iter_mut().enumerate() {
        let (Ok(f), Some(signature)) = (f, object.global_signature(FuncId(id))) else { continue };
        f.arguments = Some(std::array::from_fn(|i| match signature.params.get(i).map(|p| &p.value) {
            Some(ValueType::Int { .. }) => Argument::Number,
            Some(_) => Argument::Unknown,
            // Not there, so nobody reads it.
            None => Argument::Number,
        }));
    }
    let open = callable_from_outside(object, graphs);
    for _ in 0..ROUNDS {
        let found = one_round(object, graphs, env, &open);
        let mut changed = false;
        for (id, passed) in found.into_iter().enumerate() {
            let (Some(mut passed), Ok(f)) = (passed, &mut graphs[id]) else { continue };
            let read = (env.callee_args)(&f.name).unwrap_or(0);
            passed.values.iter_mut().skip(read).for_each(|a| *a = Argument::Unknown);
            if passed.values[0] != Argument::Context || passed.context.is_none() {
                passed.values.iter_mut().filter(|a| **a == Argument::Context).for_each(|a| *a = Argument::Unknown);
                passed.context = None;
            }
            // The context is in r1, or nowhere that one could tell.
            passed.values.iter_mut().skip(1).filter(|a| **a == Argument::Context).for_each(|a| *a = Argument::Unknown);
            let kind = passed.context.unwrap_or(ProgKind::Subprogram);
            if f.arguments.as_ref() != Some(&passed.values) || f.kind != kind {
                (f.arguments, f.kind) = (Some(passed.values), kind);
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
}

/// What the call sites seen so far pass.
#[derive(Clone)]
struct Passed {
    values: [Argument; 5],
    /// The kind of program that the context belongs to, if all agree.
    context: Option<ProgKind>,
}

/// Functions of which not all callers are known here.
pub(crate) fn callable_from_outside(object: &Object, graphs: &[Result<Function, String>]) -> Vec<bool> {
    let functions = object.functions();
    let mut open: Vec<bool> = functions.iter().map(|f| f.kind != FuncKind::Static || !f.local).collect();
    for (i, graph) in graphs.iter().enumerate() {
        for r in object.refs(FuncId(i)) {
            match r.kind {
                RefKind::FuncAddr { target } => open[target.0] = true,
                RefKind::Call { target } if graph.is_err() => open[target.0] = true,
                _ => {}
            }
        }
    }
    open
}

fn one_round(object: &Object, graphs: &[Result<Function, String>], env: &Env, open: &[bool]) -> Vec<Option<Passed>> {
    let mut found: Vec<Option<Passed>> = vec![None; graphs.len()];
    for (id, f) in graphs.iter().enumerate() {
        let Ok(f) = f else { continue };
        let calls = |op: &Op| callee(object, FuncId(id), op).filter(|t| !open[t.0]);
        if !f.layout.iter().flat_map(|b| &f.block(*b).ops).any(|op| calls(op).is_some()) {
            continue;
        }
        let facts = Facts::of(f, env);
        for &b in &f.layout {
            let states = facts.states(f, b);
            for (i, op) in f.block(b).ops.iter().enumerate() {
                let Some(target) = calls(op) else { continue };
                // Where no execution gets the verifier may walk all the same, with anything.
                let state = states.get(i);
                let passed = |r: Reg| state.map_or(Argument::Unknown, |s| pass(s, r));
                let values: [Argument; 5] =
                    std::array::from_fn(|i| Reg::new(i as u8 + 1).map_or(Argument::Unknown, passed));
                let here = Passed { values, context: Some(f.kind) };
                found[target.0] = Some(match found[target.0].take() {
                    None => here,
                    Some(before) => Passed {
                        values: std::array::from_fn(|i| before.values[i].join(&here.values[i])),
                        context: before.context.filter(|k| Some(*k) == here.context),
                    },
                });
            }
        }
    }
    found
}

/// The function of this object that an operation of the original code calls.
fn callee(object: &Object, caller: FuncId, op: &Op) -> Option<FuncId> {
    let (Insn::Call(Call::Local(_)), Some(link)) = (&op.insn, &op.link) else { return None };
    object.refs(caller).iter().find_map(|r| match r.kind {
        RefKind::Call { target } if r.slot == link.slot => Some(target),
        _ => None,
    })
}

/// What a caller in `state` passes in `r`.
fn pass(state: &State, r: Reg) -> Argument {
    let value: &Value = state.reg(r);
    let (region, nullable) = match &value.kind {
        Kind::Unknown => return Argument::Unknown,
        Kind::Scalar => return Argument::Number,
        Kind::Pointer { region, nullable, .. } => (region, *nullable),
    };
    let pointee = match region {
        Region::Ctx if value.num.as_const() == Some(0) && !nullable => return Argument::Context,
        Region::Stack | Region::CallerFrame => Pointee::CallerFrame,
        Region::MapValue { map } => Pointee::MapValue(*map),
        Region::AnyMapValue => Pointee::AnyMapValue,
        Region::MapPtr { map } if value.num.as_const() == Some(0) && !nullable => Pointee::Map(*map),
        Region::Data { section } => Pointee::Data(section.clone()),
        // Those of a packet that has moved since are dead.
        Region::Packet | Region::PacketMeta => Pointee::Packet,
        Region::PacketEnd => Pointee::PacketEnd,
        Region::Ctx | Region::MapPtr { .. } | Region::Mem | Region::Kernel | Region::Func { .. } => {
            return Argument::Unknown;
        }
    };
    Argument::Pointer(pointee, nullable)
}
