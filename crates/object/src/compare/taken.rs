//! Whether libbpf takes the references of code: it looks at the symbol that a relocation names, not just at the place.
//!
//! The one idea: where a reference leads is compared with the code it is in ([`RefKind`]); here is asked by which form
//! it says so, because libbpf knows few forms and refuses the whole object for another (`bpf_program__record_reloc`,
//! `sym_is_extern`, `sym_is_subprog` and `bpf_object__reloc_code` in `tools/lib/bpf/libbpf.c`). Promise: a form that
//! libbpf refuses, or reads in its own way, is in the second object only if it is in the same function of the first.

use std::collections::BTreeSet;
use std::fmt;

use super::findings::Findings;
use super::matching::Matching;
use crate::functions::{CodeRef, Form, FuncId};
use crate::object::Object;
use crate::symbols::{STB_GLOBAL, STB_LOCAL, STB_WEAK, STT_FUNC, STT_NOTYPE, STT_SECTION, Symbol};

/// A form that not every libbpf takes for what it is meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Odd {
    /// A function's address is taken through a symbol that stands neither for the section nor for a strong function.
    Address { bind: u8, kind: u8 },
    /// The address of a function without a relocation.
    AddressWithoutRelocation,
    /// A relocation leads to a function that is not in `.text`.
    OutsideText(Option<FuncId>),
    /// A call without a relocation, from a section that is not `.text`: libbpf takes the function that is at this place
    /// of `.text`.
    CallOutsideText { meant: Option<FuncId>, taken: Option<FuncId> },
    /// An undefined symbol that is not taken for an external one.
    External { name: String, bind: u8, kind: u8 },
}

impl fmt::Display for Odd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { bind, kind } => {
                write!(f, "the address of a function through a symbol of binding {bind} and type {kind}")
            }
            Self::AddressWithoutRelocation => f.write_str("the address of a function without a relocation"),
            Self::OutsideText(_) => f.write_str("a reference to a function outside of .text"),
            Self::CallOutsideText { .. } => f.write_str("a call without a relocation outside of .text"),
            Self::External { name, bind, kind } => {
                write!(f, "the undefined symbol {name} of binding {bind} and type {kind}")
            }
        }
    }
}

/// The odd forms of an object, with the functions they are in; functions in the numbers of the first object.
type Forms = BTreeSet<(Option<FuncId>, Odd)>;

/// Compares the forms of all references.
pub(super) fn compare(a: &Object, b: &Object, m: &Matching, out: &mut Findings) {
    let (x, y) = (forms(a, &Some), forms(b, &|f| m.function_back(f)));
    // Less of them only if some are left: without any, libbpf takes an object that it refused.
    let odd = match y.difference(&x).next() {
        Some(odd) => Some((odd, "second")),
        None if y.is_empty() => x.first().map(|odd| (odd, "first")),
        None => None,
    };
    if let Some(((function, odd), which)) = odd {
        let place = function.map_or_else(|| "code".into(), |f| format!("function {}", a.function_identity(f)));
        out.different(place, format!("only the {which} object has {odd}, which libbpf refuses or reads otherwise"));
    }
}

fn forms(o: &Object, back: &dyn Fn(FuncId) -> Option<FuncId>) -> Forms {
    // The last one counts (`bpf_object__elf_collect`).
    let text = o.elf.sections.iter().rposition(|s| s.is_code() && s.name == ".text");
    let mut found = Forms::new();
    for (&section, code) in &o.layout.code {
        let function = |slot: usize| function_of(o, section, slot).and_then(back);
        for r in code.refs.values() {
            if let Some(odd) = code_reference(o, section, r, text, back) {
                found.insert((function(r.slot), odd));
            }
        }
        let relocs = code.relocs.iter().flat_map(|(slot, list)| list.iter().map(move |(_, r)| (*slot, r)));
        for (slot, r) in relocs {
            if let Some(s) = o.symbols.get(r.symbol).filter(|s| s.is_undefined() && !is_external(s)) {
                found.insert((function(slot), Odd::External { name: s.name.clone(), bind: s.bind, kind: s.kind }));
            }
        }
    }
    found
}

/// `sym_is_extern`.
fn is_external(s: &Symbol) -> bool {
    matches!(s.bind, STB_GLOBAL | STB_WEAK) && s.kind == STT_NOTYPE
}

fn code_reference(
    o: &Object,
    section: usize,
    r: &CodeRef,
    text: Option<usize>,
    back: &dyn Fn(FuncId) -> Option<FuncId>,
) -> Option<Odd> {
    let meant = || o.layout.function_at(r.target_section, r.target).and_then(back);
    match r.form {
        Form::Call { .. } | Form::Addr { .. } if Some(r.target_section) != text => Some(Odd::OutsideText(meant())),
        Form::Call { .. } => None,
        Form::Addr { symbol } => {
            let s = o.symbols.get(symbol)?;
            // Weak functions only newer versions take (`sym_is_subprog`).
            let usual = matches!((s.bind, s.kind), (STB_LOCAL, STT_SECTION) | (STB_GLOBAL, STT_FUNC));
            (!usual).then_some(Odd::Address { bind: s.bind, kind: s.kind })
        }
        Form::DirectCall if Some(section) != text => {
            let taken = text.and_then(|text| function_of(o, text, r.target)).and_then(back);
            Some(Odd::CallOutsideText { meant: meant(), taken })
        }
        Form::DirectCall => None,
        Form::DirectAddr => Some(Odd::AddressWithoutRelocation),
    }
}

/// The function that covers a slot of a section (`find_prog_by_sec_insn`).
fn function_of(o: &Object, section: usize, slot: usize) -> Option<FuncId> {
    let covers = |f: &&usize| o.functions().get(**f).is_some_and(|f| (f.start..f.start + f.slots).contains(&slot));
    o.layout.functions_of(section).iter().find(covers).map(|f| FuncId(*f))
}
