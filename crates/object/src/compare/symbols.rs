//! Whether the two objects define and ask for the same symbols.
//!
//! The one idea: what is not local is an interface: loaders find programs, variables and maps by it, linkers bind to
//! it, and the kernel verifies global functions alone. So binding, visibility, kind and place must agree; order and
//! numbers need not. Local symbols and labels name nothing for a loader: they may go, which is noted.

use std::collections::BTreeMap;

use super::findings::Findings;
use super::matching::Matching;
use super::reference::{Place, describe_place, place, same_place};
use crate::object::Object;
use crate::symbols::{STB_LOCAL, STT_FILE, STT_SECTION, Symbol};

/// Compares the two symbol tables.
pub(super) fn compare(a: &Object, b: &Object, m: &Matching, out: &mut Findings) {
    let (mine, theirs) = (by_name(a, is_public), by_name(b, is_public));
    for (name, list) in &mine {
        let partners = theirs.get(name).map_or(&[][..], Vec::as_slice);
        if partners.is_empty() {
            out.different(what(list), "it is missing in the second object".into());
        } else if list.len() > 1 || partners.len() > 1 {
            // A linker would refuse it, and loaders differ in which one they take.
            if !same_lists(a, list, b, partners, m) {
                out.unknown(format!("symbol {name}"), "it is defined or asked for more than once".into());
            }
        } else if let (Some(s), Some(t)) = (list.first(), partners.first()) {
            one(a, s, b, t, m, out);
        }
    }
    for (_, list) in theirs.iter().filter(|(name, _)| !mine.contains_key(*name)) {
        out.different(what(list), "only the second object has it".into());
    }
    if by_name(a, is_local_variable).into_keys().ne(by_name(b, is_local_variable).into_keys()) {
        out.note("symbol table".into(), "local symbols differ, which no loader looks at".into());
    }
}

fn is_public(s: &Symbol) -> bool {
    s.bind != STB_LOCAL && !matches!(s.kind, STT_SECTION | STT_FILE) && !s.name.is_empty()
}

fn is_local_variable(s: &Symbol) -> bool {
    s.bind == STB_LOCAL && !matches!(s.kind, STT_SECTION | STT_FILE) && !s.name.is_empty()
}

fn by_name(o: &Object, wanted: fn(&Symbol) -> bool) -> BTreeMap<&str, Vec<&Symbol>> {
    let mut found: BTreeMap<&str, Vec<&Symbol>> = BTreeMap::new();
    for s in o.symbols.all.iter().filter(|s| wanted(s) && !in_debug_section(o, s)) {
        found.entry(s.name.as_str()).or_default().push(s);
    }
    found
}

fn in_debug_section(o: &Object, s: &Symbol) -> bool {
    s.section().and_then(|i| o.elf.sections.get(i)).is_some_and(|s| s.is_debug())
}

fn what(list: &[&Symbol]) -> String {
    match list.first() {
        Some(s) if s.is_undefined() => format!("external symbol {}", s.name),
        Some(s) => format!("symbol {}", s.name),
        None => String::new(),
    }
}

fn same_lists(a: &Object, list: &[&Symbol], b: &Object, partners: &[&Symbol], m: &Matching) -> bool {
    list.len() == partners.len()
        && list.iter().zip(partners).all(|(s, t)| {
            let mut found = Findings::default();
            one(a, s, b, t, m, &mut found);
            found.differences.is_empty() && found.unknowns.is_empty()
        })
}

fn binding(s: &Symbol) -> String {
    match s.bind {
        0 => "local".into(),
        1 => "global (strong)".into(),
        2 => "weak".into(),
        other => format!("of binding {other}"),
    }
}

fn visibility(s: &Symbol) -> &'static str {
    match s.visibility {
        0 => "default",
        1 => "internal",
        2 => "hidden",
        _ => "protected",
    }
}

fn one(a: &Object, s: &Symbol, b: &Object, t: &Symbol, m: &Matching, out: &mut Findings) {
    let name = what(&[s]);
    if s.is_undefined() != t.is_undefined() {
        let which = if s.is_undefined() { "second" } else { "first" };
        out.different(name, format!("only the {which} object defines it"));
        return;
    }
    if s.bind != t.bind {
        out.different(name, format!("it was {}, is {}", binding(s), binding(t)));
        return;
    }
    if s.visibility != t.visibility {
        out.different(name, format!("its visibility was {}, is {}", visibility(s), visibility(t)));
        return;
    }
    if s.kind != t.kind {
        out.different(name, format!("its symbol type was {}, is {}", s.kind, t.kind));
        return;
    }
    let (Some(x), Some(y)) = (place(a, s, 0), place(b, t, 0)) else {
        out.unknown(name, "its place cannot be followed".into());
        return;
    };
    if !same_place(m, &x, &y) {
        let what = format!("it names {}, in the second object {}", describe_place(a, &x), describe_place(b, &y));
        // Labels inside functions move with their bodies.
        match (&x, &y) {
            (Place::Function(f, 1..), Place::Function(g, 1..)) if m.function(*f) == Some(*g) => out.unknown(name, what),
            _ => out.different(name, what),
        }
        return;
    }
    let data = matches!(x, Place::Section(..) | Place::Map(..) | Place::Absolute(..));
    if data && s.size != t.size {
        out.different(name, format!("its size was {} bytes, is {}", s.size, t.size));
    }
}
