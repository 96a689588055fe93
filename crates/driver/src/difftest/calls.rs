//! Who a program may call, itself or through its subprograms, callbacks and tail calls, and what it compares with.
//!
//! Everything is taken from the object file: relocations name subprograms, callbacks and kernel functions, instructions
//! name helpers. What cannot be read counts as calling something harmful.

use std::collections::BTreeSet;

use bpf_isa::{Call, Insn, Src};
use bpf_object::{FuncId, FuncKind, Object, RefKind};
use bpf_platform::helpers::Helper;

use super::harmless::{Callee, harmless_in_test_run};
use super::poison;
use crate::module::Module;

/// Numbers to remember, at most.
const WORDS: usize = 256;

/// What the functions of one object call.
pub(crate) struct Calls {
    module: Module,
    functions: Vec<Calling>,
}

/// What one function calls.
#[derive(Default)]
struct Calling {
    helpers: BTreeSet<i32>,
    kfuncs: BTreeSet<String>,
    /// Functions it calls or takes the address of, and its exception callbacks.
    functions: BTreeSet<usize>,
    /// Why that may not be all.
    unclear: Option<String>,
    /// Numbers it compares with.
    compared: BTreeSet<i32>,
}

impl Calls {
    /// Reads an object.
    pub(crate) fn of(bytes: &[u8]) -> Option<Calls> {
        let module = Module::new(Object::parse(bytes.to_vec()).ok()?);
        let functions = (0..module.object.functions().len()).map(|i| calling(&module.object, FuncId(i))).collect();
        Some(Calls { module, functions })
    }

    /// Whether the object puts functions into its maps, where a tail call finds them.
    pub(crate) fn fills_program_arrays(&self) -> bool {
        self.module.object.fills_maps()
    }

    /// The entry program of this name.
    pub(crate) fn program(&self, name: &str) -> Option<usize> {
        self.module.object.functions().iter().position(|f| f.name == name && f.kind == FuncKind::Program)
    }

    /// The functions that run when `program` does, as far as the object decides that.
    pub(crate) fn reach(&self, program: usize) -> BTreeSet<usize> {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![program]);
        while let Some(i) = todo.pop() {
            if !seen.insert(i) {
                continue;
            }
            todo.extend(&self.functions[i].functions);
            if self.fills_program_arrays()
                && self.functions[i].helpers.iter().any(|h| Helper::get(*h).is_some_and(|h| h.effects.is_tail_call()))
            {
                todo.extend(0..self.functions.len());
            }
        }
        seen
    }

    /// Why `program` may not be run just to try it: the first thing that is not known to be harmless.
    pub(crate) fn harmful(&self, program: &str) -> Option<String> {
        let Some(id) = self.program(program) else { return Some("its code cannot be found in the object".to_owned()) };
        self.reach(id).into_iter().map(|i| &self.functions[i]).find_map(|f| {
            let helper = f.helpers.iter().find(|h| !harmless_in_test_run(Callee::Helper(**h)));
            let helper = helper.map(|h| Helper::get(*h).map_or(format!("helper {h}"), |h| format!("bpf_{}", h.name)));
            let kfunc = || f.kfuncs.iter().find(|k| !harmless_in_test_run(Callee::Kfunc(k))).cloned();
            let called = helper.or_else(kfunc).map(|name| format!("it may call {name}, which may act on this machine"));
            called.or_else(|| f.unclear.clone())
        })
    }

    /// Whether instructions of it change when they are loaded.
    pub(crate) fn has_core_relocations(&self, program: &str) -> bool {
        let any = |i: usize| !self.module.object.core_relocs(FuncId(i)).is_empty();
        self.program(program).is_none_or(|id| self.reach(id).into_iter().any(any))
    }

    /// Whether it asks for the clock, a random number or the like.
    pub(crate) fn volatile(&self, program: &str) -> bool {
        let helpers =
            |i: usize| self.functions[i].helpers.iter().any(|h| Helper::get(*h).is_none_or(|h| h.effects.volatile));
        self.program(program).is_none_or(|id| self.reach(id).into_iter().any(helpers))
    }

    /// Whether any function of the object does so.
    pub(crate) fn any_volatile(&self) -> bool {
        let is = |id: &i32| Helper::get(*id).is_none_or(|h| h.effects.volatile);
        self.functions.iter().any(|f| f.helpers.iter().any(is))
    }

    /// Whether it may read bytes of its stack that it has not written: what they hold depends on how the kernel's
    /// compiler laid out the program, and is no difference in what the program does.
    pub(crate) fn may_read_unwritten_stack(&self, program: &str) -> bool {
        self.program(program).is_none_or(|id| self.reach(id).into_iter().any(|i| self.reads_unwritten_stack(i)))
    }

    fn reads_unwritten_stack(&self, function: usize) -> bool {
        let graph = &self.module.graphs[function];
        graph.as_ref().map_or(true, |f| !poison::unwritten(&self.module, f).is_empty())
    }

    /// Numbers that any function compares with, as bytes in both orders.
    pub(crate) fn words(&self) -> Vec<Vec<u8>> {
        let both = |v: &i32| match u16::try_from(*v) {
            Ok(v) => [v.to_le_bytes().to_vec(), v.to_be_bytes().to_vec()],
            Err(_) => [v.to_le_bytes().to_vec(), v.to_be_bytes().to_vec()],
        };
        let words: BTreeSet<Vec<u8>> = self.functions.iter().flat_map(|f| f.compared.iter().flat_map(both)).collect();
        words.into_iter().take(WORDS).collect()
    }
}

fn calling(object: &Object, f: FuncId) -> Calling {
    let mut calling = Calling { unclear: object.locked(f).map(str::to_owned), ..Calling::default() };
    calling.functions = object.callees(f).into_iter().map(|f| f.0).collect();
    let refs = object.refs(f);
    for r in refs {
        match &r.kind {
            RefKind::Call { .. } | RefKind::FuncAddr { .. } => {}
            RefKind::Map { .. } | RefKind::Data { .. } | RefKind::Extern { .. } => {}
            other => calling.unclear = Some(format!("it refers to something unknown: {other:?}")),
        }
    }
    let Ok(code) = bpf_isa::decode_all(object.code(f)) else {
        calling.unclear = Some("its code cannot be read".to_owned());
        return calling;
    };
    for (slot, insn) in code {
        let named = || refs.iter().find(|r| r.slot == slot).map(|r| &r.kind);
        match insn {
            // A call of an undefined symbol is a kernel function, whatever the instruction says before loading.
            Insn::Call(call) => match (named(), call) {
                (Some(RefKind::Extern { name }), _) => {
                    calling.kfuncs.insert(name.clone());
                }
                (Some(RefKind::Call { .. }), _) => {}
                (None, Call::Helper(id)) => {
                    calling.helpers.insert(id);
                }
                _ => calling.unclear = Some(format!("it is not clear what `{insn}` calls")),
            },
            Insn::Jcc { src: Src::Imm(v), .. } if v != 0 => {
                calling.compared.insert(v);
            }
            Insn::Opaque(_) | Insn::CallX { .. } => {
                calling.unclear = Some("an instruction of it is not known".to_owned())
            }
            _ => {}
        }
    }
    calling
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: &[u8] = include_bytes!("../../../../examples/subprogs.o");
    const CLONE_REDIRECT: [u8; 8] = [0x85, 0, 0, 0, 13, 0, 0, 0];

    /// The object with one instruction of a function replaced.
    fn with(function: &str, slot: usize, insn: [u8; 8]) -> Calls {
        let object = Object::parse(OBJECT.to_vec()).expect("a committed object");
        let code = object.code(object.function_named(function).expect("it is there")).to_vec();
        let mut bytes = OBJECT.to_vec();
        let at = bytes.windows(code.len()).position(|w| w == code).expect("the code is in the file") + slot * 8;
        bytes[at..at + 8].copy_from_slice(&insn);
        Calls::of(&bytes).expect("it can be read")
    }

    #[test]
    fn subprograms_and_callbacks_are_looked_into() {
        let calls = Calls::of(OBJECT).expect("a committed object");
        assert_eq!((calls.harmful("entry"), calls.harmful("pass")), (None, None));
        // Both call `account`; `add_one` is a callback that `entry` gives to bpf_loop.
        let calls = with("account", 6, CLONE_REDIRECT);
        assert!(calls.harmful("entry").is_some_and(|why| why.contains("bpf_clone_redirect")));
        assert!(calls.harmful("pass").is_some());
        let calls = with("add_one", 0, CLONE_REDIRECT);
        assert!(calls.harmful("entry").is_some_and(|why| why.contains("bpf_clone_redirect")));
        assert_eq!(calls.harmful("pass"), None);
    }

    #[test]
    fn what_cannot_be_read_is_harmful() {
        let calls = with("account", 6, [0xff; 8]);
        assert!(calls.harmful("entry").is_some() && calls.harmful("pass").is_some());
        assert!(calls.harmful("nobody").is_some());
    }
}
