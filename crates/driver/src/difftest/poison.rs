//! Objects whose stack frames start with known bytes.
//!
//! A program may read stack bytes that it has not written (padding of structures it puts into a map, for one). What
//! they hold depends on how the kernel's compiler laid out the code, so two equal programs may give different results,
//! each of them steadily. Here every function first fills the bytes that liveness says may be read before they are
//! written. Results that depend on such bytes then depend on the filling.

use bpf_facts::{Facts, Liveness, StackSet};
use bpf_isa::{Insn, Reg, Size, Src};
use bpf_object::{FuncId, Object, WriteOptions};
use bpf_program::{Block, BlockId, Function, Op, Terminator, lower};

use crate::module::Module;

/// Bytes of this function's frame that may be read before they are written.
pub(super) fn unwritten(module: &Module, f: &Function) -> StackSet {
    module.with_env(|env| Liveness::of(f, env, &Facts::of(f, env)).entry(f.entry()).stack)
}

/// How far frames are filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    /// All bytes that may be read before they are written: the whole frame, where a callee is lent an address in it.
    All,
    /// Of these, what the function uses or lends, so that no frame becomes deeper than it is.
    Used,
}

/// The object with frames that start filled with `byte`; `None` where some function cannot be changed.
pub(super) fn poisoned(bytes: &[u8], byte: u8, fill: Fill) -> Option<Vec<u8>> {
    let module = Module::new(Object::parse(bytes.to_vec()).ok()?);
    let mut object = module.object.clone();
    for (i, graph) in module.graphs.iter().enumerate() {
        let f = graph.as_ref().ok()?;
        let mut unwritten = unwritten(&module, f);
        if fill == Fill::Used {
            let deepest = module.with_env(|env| bpf_facts::deepest_frame_use(f, env));
            unwritten = unwritten.intersect(&StackSet::range(deepest, -deepest as u32));
        }
        if !unwritten.is_empty() {
            object.set_body(FuncId(i), lower(&filled(f, &unwritten, byte)).ok()?.insns).ok()?;
        }
    }
    Some(object.write(&WriteOptions::default()).ok()?.bytes)
}

/// The function with a block in front of it that fills these bytes of the frame.
fn filled(f: &Function, bytes: &StackSet, byte: u8) -> Function {
    let entry = f.entry();
    let origin = f.block(entry).ops.first().and_then(|op| op.origin).or_else(|| f.block(entry).term.origin());
    let store = |size, off: i64| {
        let imm = i32::from_le_bytes([byte; 4]);
        let insn = Insn::Store { size, base: Reg::R10, off: off as i16, src: Src::Imm(imm) };
        Op::with_origin(insn, origin)
    };
    let mut ops = Vec::new();
    for word in (-bpf_facts::FRAME..0).step_by(8) {
        let inside: Vec<i64> = (word..word + 8).filter(|off| bytes.contains(*off)).collect();
        match inside.len() {
            8 => ops.push(store(Size::DW, word)),
            _ => ops.extend(inside.into_iter().map(|off| store(Size::B, off))),
        }
    }
    let mut f = f.clone();
    let first = BlockId(f.blocks.len() as u32);
    f.blocks.push(Block { ops, term: Terminator::Goto(entry) });
    f.layout.insert(0, first);
    f
}
