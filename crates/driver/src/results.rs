//! Results that nobody reads.
//!
//! What a function of type `void` leaves in r0 is for nobody: two compilations of one source may leave different things
//! there. The function's BTF says that it is of that type, and the code of its callers that they believe it.

use bpf_facts::{Facts, Liveness};
use bpf_isa::{Call, Insn, Reg, Src, Width};
use bpf_object::{FuncId, FuncKind, RefKind, ValueType};
use bpf_program::{Function, Op, Terminator};

use crate::module::Module;

/// Whether nobody reads what a function leaves in r0.
pub(crate) fn is_ignored(module: &Module, f: FuncId) -> bool {
    module.ignored.get_or_init(|| ignored(module))[f.0]
}

fn ignored(module: &Module) -> Vec<bool> {
    let object = &module.object;
    let mut ignored: Vec<bool> = object
        .functions()
        .iter()
        .enumerate()
        .map(|(i, f)| {
            let proto = object.func_proto(FuncId(i));
            let read = f.kind == FuncKind::Program || object.is_exception_callback(FuncId(i));
            !read && proto.is_some_and(|p| p.returns == ValueType::Void)
        })
        .collect();
    if !ignored.contains(&true) {
        return ignored;
    }
    // A caller of that type that ends with the call hands on what it has got.
    let graphs: Vec<Option<Function>> = module
        .graphs
        .iter()
        .zip(&ignored)
        .map(|(g, void)| g.as_ref().ok().map(|f| if *void { without_result(f) } else { f.clone() }))
        .collect();
    for (i, graph) in graphs.iter().enumerate() {
        for r in object.refs(FuncId(i)) {
            match r.kind {
                RefKind::Call { target } if ignored[target.0] => {
                    ignored[target.0] = graph.as_ref().is_some_and(|f| !reads_result(module, f, r.slot));
                }
                RefKind::FuncAddr { target } => ignored[target.0] = false,
                _ => {}
            }
        }
    }
    // One whose result counts after all may hand on another's.
    if ignored.iter().zip(&graphs).zip(&module.graphs).any(|((now, g), old)| !now && g.as_ref() != old.as_ref().ok()) {
        ignored.fill(false);
    }
    ignored
}

/// The function with r0 cleared before each `exit`.
pub(crate) fn without_result(f: &Function) -> Function {
    let mut f = f.clone();
    for block in f.blocks.iter_mut().filter(|b| matches!(b.term, Terminator::Exit { .. })) {
        block.ops.push(Op::new(Insn::Mov { width: Width::W64, dst: Reg::R0, src: Src::Imm(0) }));
    }
    f
}

/// Whether `f` may read r0 after the call that was in `slot` of the original code.
fn reads_result(module: &Module, f: &Function, slot: usize) -> bool {
    module.with_env(|env| {
        let live = Liveness::of(f, env, &Facts::of(f, env));
        f.layout.iter().any(|b| {
            f.block(*b).ops.iter().enumerate().any(|(i, op)| {
                let here =
                    matches!(op.insn, Insn::Call(Call::Local(_))) && op.link.as_ref().is_some_and(|l| l.slot == slot);
                here && live.after(*b, i).regs.contains(Reg::R0)
            })
        })
    })
}
