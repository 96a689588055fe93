//! Which functions are left alone because of what the verifier makes of the whole program they are part of.
//!
//! [`bpf_prove::Sensitive`] says what one function holds. The verifier walks programs, so what counts is what all the
//! functions hold that call each other, however indirectly; and only programs whose context is an skb are translated
//! that way.

use bpf_kernel::ProgramType;
use bpf_object::{CoreReloc, FuncId};
use bpf_program::{Function, ProgKind};
use bpf_prove::Sensitive;

use crate::unit::{Unit, is_program};

/// Functions that call each other.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Together {
    held: Sensitive,
    /// One of them is a program, and one is a program whose context may be an skb.
    program: bool,
    skb: bool,
}

impl Together {
    fn or(self, o: Together) -> Together {
        Together { held: self.held.or(o.held), program: self.program || o.program, skb: self.skb || o.skb }
    }

    fn is_sensitive(self) -> bool {
        // Functions without a program are to be linked to one, or replace those of another.
        self.held.matters() && (self.skb || !self.program)
    }
}

/// Whether what a function's program does may hang on which of its accesses the verifier visits, because of what the
/// functions hold that call it, or that it calls, however indirectly.
pub(crate) fn is_sensitive(unit: &Unit, f: FuncId) -> bool {
    unit.sensitive.get_or_init(|| functions(unit))[f.0]
}

fn functions(unit: &Unit) -> Vec<bool> {
    let of = |(i, g): (usize, &Result<Function, String>)| Together {
        held: match g {
            // Whatever stands in its place once it is linked.
            Ok(_) if unit.object.functions()[i].weak && !is_program(&unit.object, i) => Sensitive::anything(),
            Ok(f) => unit.with_env(|env| Sensitive::of(f, env)).or(by_name(unit, FuncId(i))),
            Err(_) => Sensitive::anything(),
        },
        program: is_program(&unit.object, i),
        skb: is_program(&unit.object, i) && may_be_skb(&unit.object.functions()[i].section),
    };
    let mut functions: Vec<Together> = unit.graphs.iter().enumerate().map(of).collect();
    loop {
        let before = functions.clone();
        for f in 0..functions.len() {
            for target in unit.object.callees(FuncId(f)) {
                let both = functions[f].or(functions[target.0]);
                (functions[f], functions[target.0]) = (both, both);
            }
        }
        if functions == before {
            return functions.into_iter().map(Together::is_sensitive).collect();
        }
    }
}

/// What the CO-RE records of a function name: the loader finds fields of `__sk_buff` by name, whatever the local type.
fn by_name(unit: &Unit, f: FuncId) -> Sensitive {
    let of = |record: &CoreReloc| match unit.object.core_members(record) {
        Ok(members) => {
            let names = |field: &str| members.iter().any(|m| m == field);
            Sensitive::named(names("tstamp_type"), names("tstamp"))
        }
        Err(_) => Sensitive::anything(),
    };
    unit.object.core_relocs(f).iter().map(of).fold(Sensitive::default(), Sensitive::or)
}

/// Whether the context of a program in this section may be an skb: of one whose type nobody knows, too.
fn may_be_skb(section: &str) -> bool {
    match ProgKind::from_section(section) {
        ProgKind::Skb | ProgKind::Subprogram => true,
        ProgKind::Xdp | ProgKind::SockAddr | ProgKind::Tracing => false,
        ProgKind::Other => ProgramType::named(section.strip_prefix('?').unwrap_or(section)).is_err(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_of_unknown_types_may_be_any() {
        for section in ["tc", "cgroup_skb/ingress", "freplace/f", "tail-3", "?socket"] {
            assert!(may_be_skb(section), "{section}");
        }
        for section in ["xdp", "kprobe/f", "fentry/f", "struct_ops/init", "sk_lookup", "iter/task", "lsm/f"] {
            assert!(!may_be_skb(section), "{section}");
        }
    }
}
