//! What the kernel has made of the calls and accesses of two functions that are equal.
//!
//! It makes code of a call for what the verifier believes of its arguments (which map, which index, which flags), and
//! translates an access by the type that it believes a pointer to have ([`bpf_kernel::Made`]). Where facts know the same, or
//! the code is right for all arguments, that is what the call or access does as it was loaded. Which of the one function
//! is which of the other is not known here; so where facts do not explain one, all of its kind are compared.
//!
//! Promise: calls and accesses are said to be made the same only if facts explain all of a kind, or all of that kind are made
//! one way in both functions; but accesses may come in two ways that the verifier does not take for one another.

use std::collections::BTreeSet;
use std::sync::Arc;

use bpf_facts::{Env, Region, State};
use bpf_isa::Reg;
use bpf_kernel::{Form, Made};
use bpf_platform::Effects;
use bpf_program::{Function, Op};
use rustc_hash::FxHashMap;

use super::known_facts::With;

/// A call or access of a function, and what has become of it.
struct Site<'a> {
    made: &'a Made,
    reason: Reason,
}

/// What is known of what was made of a call or access.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Reason {
    /// It is right.
    Right,
    /// It follows from the instruction and what facts know: that it is the context …
    OfContext,
    /// … or this map …
    OfMap(usize),
    /// … or an inner map …
    OfInnerMap,
    /// … or this function, and no flags.
    OfFunction(Arc<str>),
    /// Nothing, but that it does the same as another one that is made so.
    Unknown,
    /// Not even that.
    OfItsOwn,
}

/// Whether the calls and accesses of two functions do the same although the kernel made these of them. The functions are
/// what the verifier has left of them.
pub(super) fn are_the_same(old: (&Function, &[Made]), new: (&Function, &[Made]), with: With<'_>) -> bool {
    let [here, there] = [old, new].map(|(f, made)| sites(f, made, with));
    agree(&here, &there)
}

/// The same of functions of which nothing is known.
pub(super) fn look_the_same(old: &[Made], new: &[Made]) -> bool {
    let [here, there] = [old, new]
        .map(|all| -> Vec<Site<'_>> { all.iter().map(|made| Site { made, reason: without_facts(made) }).collect() });
    agree(&here, &there)
}

fn without_facts(made: &Made) -> Reason {
    match made.form {
        Form::Wired { .. } => Reason::OfItsOwn,
        _ => Reason::Unknown,
    }
}

fn agree(old: &[Site<'_>], new: &[Site<'_>]) -> bool {
    // Facts say nothing of what the verifier takes for a pointer to an arena.
    if old.iter().chain(new).any(|site| site.made.is_narrowed()) {
        return false;
    }
    let mut kinds: FxHashMap<[u8; 8], [Vec<&Site<'_>>; 2]> = FxHashMap::default();
    for (side, sites) in [old, new].into_iter().enumerate() {
        for site in sites {
            kinds.entry(site.made.of).or_default()[side].push(site);
        }
    }
    kinds.values().all(|[old, new]| agree_on_one_kind(old, new))
}

/// The same of all calls or accesses of one kind.
fn agree_on_one_kind(old: &[&Site<'_>], new: &[&Site<'_>]) -> bool {
    let all = [old, new].concat();
    let with = |sites: &[&Site<'_>], reason: &Reason| sites.iter().any(|site| site.reason == *reason);
    let of = |reason: &Reason| all.iter().filter(|site| site.reason == *reason).collect::<Vec<_>>();
    let known = all.iter().all(|site| match site.reason {
        Reason::Right | Reason::Unknown => true,
        Reason::OfItsOwn => false,
        // What is called is not compared with what facts know.
        Reason::OfFunction(_) if !new.is_empty() => {
            with(old, &site.reason) && with(new, &site.reason) && is_one(of(&site.reason))
        }
        _ => is_one(of(&site.reason)),
    });
    // All of them are taken out; or any other one may be in the other function what this one is here.
    let unknown = new.is_empty() || !with(&all, &Reason::Unknown) || is_one(&all) || are_accesses_the_same(old, new);
    known && unknown
}

/// Whether the same was made of accesses of one kind. Pointers that the verifier does not take for one another come in
/// two forms, in which an access may stand; a load that must not fault is one also of pointers with which it need not.
fn are_accesses_the_same(old: &[&Site<'_>], new: &[&Site<'_>]) -> bool {
    let translated = |sites: &[&Site<'_>]| -> BTreeSet<Form> {
        let by_itself = |site: &&&Site<'_>| !site.made.is_first || site.reason == Reason::Unknown;
        let forms = sites.iter().filter(by_itself).map(|site| site.made.form.clone());
        forms.filter(|form| *form != Form::AsItStands).collect()
    };
    let may_fault = |site: &&Site<'_>| site.made.form.is_load_that_must_not_fault();
    let is_access = !old.iter().chain(new).any(|site| is_call(&site.made.of));
    is_access && !old.iter().chain(new).any(may_fault) && translated(old) == translated(new)
}

/// Whether the same was made of these. Before the first instruction of a function may stand what belongs to the function.
fn is_one<'a>(sites: impl IntoIterator<Item = &'a &'a Site<'a>>) -> bool {
    let all: Vec<&Made> = sites.into_iter().map(|site| site.made).collect();
    let length = |made: &&&Made| if let Form::Code(code) = &made.form { code.len() } else { 0 };
    let Some(least) = all.iter().min_by_key(length) else { return true };
    let form = |made: &Made| match (&made.form, &least.form) {
        (Form::Code(all), Form::Code(least)) if made.is_first => all.ends_with(least),
        (form, least) => form == least,
    };
    all.iter().all(|made| form(made) && made.calls == least.calls)
}

fn is_call(of: &[u8; 8]) -> bool {
    /// `BPF_JMP | BPF_CALL`.
    const CALL: u8 = 0x85;
    of[0] == CALL
}

fn sites<'a>(f: &Function, all: &'a [Made], with: With<'_>) -> Vec<Site<'a>> {
    let facts = with.facts(f);
    let mut at: FxHashMap<usize, &'a Made> = all.iter().map(|made| (made.slot, made)).collect();
    let mut sites = Vec::with_capacity(all.len());
    for b in &f.layout {
        let states = facts.states(f, *b);
        for (i, op) in f.block(*b).ops.iter().enumerate() {
            let Some(made) = op.origin.and_then(|slot| at.remove(&slot)) else { continue };
            // By facts, nobody comes to where there are none.
            let reason = states.get(i).map_or(Reason::Right, |state| reason(op, made, state, with.env));
            sites.push(Site { made, reason });
        }
    }
    // Nor to these.
    sites.extend(at.into_values().map(|made| Site { made, reason: Reason::Right }));
    sites
}

/// What is known of what was made of an operation where these facts hold.
fn reason(op: &Op, made: &Made, state: &State, env: &Env) -> Reason {
    let of = |r: Reg| state.reg(r);
    if let Some(operand) = op.insn.memory_operand() {
        return match of(operand.base).region() {
            Some(Region::Ctx) => Reason::OfContext,
            // Kernel objects are of several kinds, of which facts know nothing.
            Some(region) if *region != Region::Kernel && made.form == Form::AsItStands => Reason::Right,
            _ => Reason::Unknown,
        };
    }
    let number = |r: Reg| of(r).num.as_const().filter(|_| of(r).region().is_none());
    let row = Effects::of(&op.insn, op.link.is_some());
    let map = row.map_register().and_then(|r| of(r).region());
    match &made.form {
        form if form.is_helper(row.name) => Reason::Right,
        Form::Wired { index, map: name } => match map {
            Some(Region::MapPtr { map }) if !is_the_only(name, *map, env) => Reason::OfItsOwn,
            Some(Region::MapPtr { .. }) if number(Reg::R3) == Some((*index).into()) => Reason::Right,
            Some(Region::MapPtr { .. }) => Reason::Unknown,
            _ => Reason::OfItsOwn,
        },
        // The helper itself.
        _ if row.is_tail_call() => Reason::Right,
        form if row.made_code_up_to().is_some() => match of(Reg::R2).region() {
            _ if form.is_one_call() => Reason::Right,
            Some(Region::Func { name }) if number(Reg::R4) == Some(0) => Reason::OfFunction(name.clone()),
            _ => Reason::Unknown,
        },
        _ if row.allocates_by_where_it_stands() => Reason::Unknown,
        _ => match map {
            Some(Region::MapPtr { map }) => Reason::OfMap(*map),
            // Given by a lookup, and what the verifier knows of its template is true of it.
            Some(Region::Kernel) if !env.maps.iter().any(|m| m.inner_may_be_shorter) => Reason::OfInnerMap,
            _ => Reason::Unknown,
        },
    }
}

/// Whether the kernel calls a map by this name, of which it keeps the beginning, and no other one.
fn is_the_only(name: &str, map: usize, env: &Env) -> bool {
    let so_called = env.maps.iter().enumerate().filter(|(_, m)| m.name.starts_with(name)).map(|(i, _)| i);
    so_called.eq([map])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOKUP: [u8; 8] = [0x85, 0, 0, 0, 1, 0, 0, 0];
    const LOAD: [u8; 8] = [0x61, 0, 8, 0, 0, 0, 0, 0];
    const FIELD: [u8; 8] = [0x61, 0, 112, 0, 0, 0, 0, 0];
    const MUST_NOT_FAULT: [u8; 8] = [0x21, 0, 8, 0, 0, 0, 0, 0];

    fn code(insns: &[[u8; 8]]) -> Form {
        Form::Code(insns.to_vec())
    }

    /// Whether functions with these are the same, of which it is known why.
    fn same(old: &[([u8; 8], Form, Reason)], new: &[([u8; 8], Form, Reason)]) -> bool {
        let of = |all: &[([u8; 8], Form, Reason)]| -> Vec<(Made, Reason)> {
            let first = |slot| slot == 0;
            let made = |(slot, (of, form, reason)): (usize, &([u8; 8], Form, Reason))| {
                (Made { slot, of: *of, is_first: first(slot), form: form.clone(), calls: None }, reason.clone())
            };
            all.iter().enumerate().map(made).collect()
        };
        let (old, new) = (of(old), of(new));
        let sites = |all| -> Vec<Site<'_>> {
            let all: &Vec<(Made, Reason)> = all;
            all.iter().map(|(made, reason)| Site { made, reason: reason.clone() }).collect()
        };
        agree(&sites(&old), &sites(&new))
    }

    #[test]
    fn a_call_of_which_nothing_is_known_is_what_the_others_are() {
        use Reason::{OfItsOwn, OfMap, Right, Unknown};
        let [array, hash] = [code(&[LOAD]), code(&[FIELD])];
        let call = |form: &Form, reason| (LOOKUP, form.clone(), reason);
        assert!(same(&[call(&array, Unknown)], &[call(&array, Unknown), call(&array, Unknown)]));
        assert!(!same(&[call(&array, Unknown)], &[call(&hash, Unknown)]));
        assert!(!same(&[call(&array, Unknown), call(&hash, Unknown)], &[call(&array, Unknown), call(&hash, Unknown)]));
        // What is known of one side says nothing of the other.
        assert!(!same(&[call(&array, Unknown)], &[call(&hash, Right)]));
        assert!(!same(&[call(&hash, OfMap(1))], &[call(&array, Unknown)]));
        // Two may have changed places.
        let both = [call(&array, Unknown), call(&hash, Right)];
        assert!(!same(&both, &both));
        assert!(same(&[call(&array, Unknown)], &[]));
        // A lookup in one map is made in one way.
        assert!(same(&[call(&array, OfMap(1)), call(&hash, OfMap(2))], &[call(&hash, OfMap(2))]));
        assert!(!same(&[call(&array, OfMap(1))], &[call(&hash, OfMap(1))]));
        assert!(!same(&[call(&array, OfItsOwn)], &[call(&array, OfItsOwn)]));
    }

    #[test]
    fn an_access_of_which_nothing_is_known_comes_in_two_forms_that_are_not_one() {
        use Reason::{OfContext, Unknown};
        let [stands, field, probe] = [Form::AsItStands, code(&[FIELD]), code(&[MUST_NOT_FAULT])];
        let load = |form: &Form| (LOAD, form.clone(), Unknown);
        assert!(same(&[load(&stands), load(&field)], &[load(&field), load(&stands)]));
        assert!(!same(&[load(&stands)], &[load(&field)]));
        assert!(!same(&[load(&field), load(&stands)], &[load(&stands)]));
        assert!(same(&[load(&field), load(&stands)], &[]));
        assert!(!same(&[load(&probe), load(&stands)], &[load(&probe), load(&stands)]));
        assert!(same(&[load(&probe)], &[load(&probe), load(&probe)]));
        // What belongs to a function stands before its first instruction.
        let prologue = code(&[LOOKUP, FIELD]);
        assert!(same(
            &[(LOAD, prologue.clone(), OfContext)],
            &[(LOOKUP, stands.clone(), Reason::Right), (LOAD, field, OfContext)]
        ));
        assert!(!same(
            &[(LOAD, prologue, OfContext)],
            &[(LOOKUP, stands.clone(), Reason::Right), (LOAD, stands, OfContext)]
        ));
    }
}
