//! Which functions make up a program: where it begins, and what else is loaded or may run with it.
//!
//! The one idea: this is asked in one place for all who follow programs through an object, as libbpf does it
//! (`tools/lib/bpf/libbpf.c`): a program is a function symbol in a section of code (`bpf_object__add_programs`); to its
//! instructions libbpf appends those of all functions that they name (`bpf_object__relocate_calls`), and of the exception
//! callback that a tag on its type names (`bpf_prog_assign_exc_cb`). Promise: where libbpf takes one function, it is among
//! those given here, though there may be more.

use crate::functions::{FuncId, RefKind};
use crate::object::Object;
use crate::symbols::{STB_LOCAL, STT_FUNC};

/// The name by which libbpf knows a section of programs: without the `?` that switches them off (`bpf_object__init_prog`).
pub(crate) fn loaded_section(name: &str) -> &str {
    name.strip_prefix('?').unwrap_or(name)
}

impl Object {
    /// The functions that libbpf may mean by the program of this name in this section, which has no `?` before its name
    /// there: any symbol at their beginning may have given the name.
    #[must_use]
    pub fn entries(&self, name: &str, section: &str) -> Vec<FuncId> {
        let named = |f: &FuncId| {
            let function = self.functions().get(f.0);
            function.is_some_and(|f| f.name == name && loaded_section(&f.section) == section)
        };
        let mut found: Vec<FuncId> = (0..self.functions().len()).map(FuncId).filter(named).collect();
        for s in self.symbols.all.iter().filter(|s| s.kind == STT_FUNC && s.name == name) {
            let Some(index) = s.section() else { continue };
            let here = self.elf.sections.get(index).is_some_and(|s| loaded_section(&s.name) == section);
            let slot = usize::try_from(s.value / 8).ok();
            let function = slot.filter(|_| here).and_then(|slot| self.layout.function_at(index, slot));
            found.extend(function.filter(|f| !found.contains(f)));
        }
        found
    }

    /// Whether there are no symbols at all, as `llvm-strip` without `-g` leaves an object: nothing can load it.
    #[must_use]
    pub fn is_stripped(&self) -> bool {
        self.symbols.table == 0
    }

    /// Names of the programs whose symbols are local, in the order of the symbols: the kernel takes them, and libbpf loads no
    /// object that has one (`bpf_object__add_programs`).
    pub fn static_programs(&self) -> impl Iterator<Item = &str> {
        let program = |section: usize| self.elf.sections.get(section).is_some_and(|s| s.is_code() && s.name != ".text");
        let local = self.symbols.all.iter().filter(|s| s.kind == STT_FUNC && s.bind == STB_LOCAL);
        local.filter(move |s| s.section().is_some_and(program)).map(|s| s.name.as_str())
    }

    /// Whether relocations apply to map definitions: libbpf then puts programs or maps into the maps
    /// (`bpf_object__collect_map_relos`).
    #[must_use]
    pub fn fills_maps(&self) -> bool {
        self.symbols.relocs.iter().any(|r| self.elf.name(r.target) == ".maps" && !r.relocs.is_empty())
    }

    /// The functions that are loaded because `f` is: those that its instructions call or take the address of, and its
    /// exception callbacks.
    #[must_use]
    pub fn callees(&self, f: FuncId) -> Vec<FuncId> {
        let named = self.refs(f).iter().filter_map(|r| match r.kind {
            RefKind::Call { target } | RefKind::FuncAddr { target } => Some(target),
            _ => None,
        });
        named.chain(self.exception_callbacks.iter().filter(|(of, _)| *of == f).map(|(_, callback)| *callback)).collect()
    }

    /// Whether the kernel runs this function when a program throws an exception, and takes its result for the program's.
    #[must_use]
    pub fn is_exception_callback(&self, f: FuncId) -> bool {
        self.exception_callbacks.iter().any(|(_, callback)| *callback == f)
    }

    /// What the kernel verifies and translates together with these functions: they and all that is loaded because of them.
    #[must_use]
    pub fn loaded_with(&self, roots: impl IntoIterator<Item = FuncId>) -> Vec<FuncId> {
        closure(roots, |f| self.callees(f))
    }

    /// What may run when these functions do: all that is loaded because of them, and where they refer to data or maps, the
    /// functions whose addresses stand there, as programs do in program arrays.
    #[must_use]
    pub fn run_with(&self, roots: impl IntoIterator<Item = FuncId>) -> Vec<FuncId> {
        let holds_functions = |kind: &RefKind| matches!(kind, RefKind::Data { .. } | RefKind::Map { .. });
        closure(roots, |f| {
            let mut next = self.callees(f);
            if self.refs(f).iter().any(|r| holds_functions(&r.kind)) {
                next.extend(self.functions_in_data());
            }
            next
        })
    }
}

fn closure(roots: impl IntoIterator<Item = FuncId>, next: impl Fn(FuncId) -> Vec<FuncId>) -> Vec<FuncId> {
    let mut found: Vec<FuncId> = Vec::new();
    let add = |found: &mut Vec<FuncId>, list: Vec<FuncId>| {
        for f in list {
            if !found.contains(&f) {
                found.push(f);
            }
        }
    };
    add(&mut found, roots.into_iter().collect());
    let mut at = 0;
    while let Some(&f) = found.get(at) {
        add(&mut found, next(f));
        at += 1;
    }
    found
}
