//! Which functions are left alone because of what the verifier makes of the whole program they are part of.
//!
//! [`bpf_prove::Sensitive`] says what one function holds. The verifier walks programs, so what counts is what all the
//! functions hold that call each other, however indirectly; and only programs whose context is an skb are translated
//! that way. In two more cases it counts what the verifier knows of a number: of the result of a program for the egress of
//! a cgroup, which decides where it may be attached; and of a length that a syscall program hands over with its context,
//! which decides how long a context must be.

use std::collections::{BTreeSet, HashMap};

use bpf_facts::{Facts, Kind, Region, State, Value};
use bpf_isa::{Insn, Reg};
use bpf_kernel::ProgramType;
use bpf_object::{CoreReloc, FuncId};
use bpf_platform::{Effects, is_kfunc_translated_by_type};
use bpf_program::{BlockId, Function, Op, ProgKind, Symbol, Terminator};
use bpf_prove::{MayBe, Provenance, Sensitive, Sources, provenance, spills_around_a_fast_call};

use crate::arguments::callable_from_outside;
use crate::module::{Module, is_program};

/// Functions that call each other.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Together {
    held: Sensitive,
    /// One of them is a program, and one is a program whose context may be an skb.
    program: bool,
    skb: bool,
    /// One of them may throw an exception.
    throws: bool,
    /// One is a program to which it matters whether the verifier knows that it returns 2 or 3: one that throws, or one
    /// that may.
    egress: bool,
    congestion: bool,
    /// One is a program of which the kernel keeps how far it may reach, and one hands over what that is about, with a
    /// length.
    measured: bool,
    lengths: bool,
    /// An instruction of one may be translated by the types of pointers that several ways lead there with.
    by_type: bool,
    /// One accesses `cb` by name.
    control_block: bool,
    /// One is a program whose context is a `bpf_sock_ops`, or may be.
    sock_ops: bool,
    /// The object speaks of such contexts.
    in_sock_ops: bool,
    /// One is a program that is given what a function of the kernel is, or may be.
    arguments: bool,
    /// The object has tags by which functions that are verified alone are given what counts as there.
    in_tags: bool,
}

impl Together {
    fn or(self, o: Together) -> Together {
        Together {
            held: self.held.or(o.held),
            program: self.program || o.program,
            skb: self.skb || o.skb,
            throws: self.throws || o.throws,
            egress: self.egress || o.egress,
            congestion: self.congestion || o.congestion,
            measured: self.measured || o.measured,
            lengths: self.lengths || o.lengths,
            by_type: self.by_type || o.by_type,
            control_block: self.control_block || o.control_block,
            sock_ops: self.sock_ops || o.sock_ops,
            in_sock_ops: self.in_sock_ops || o.in_sock_ops,
            arguments: self.arguments || o.arguments,
            in_tags: self.in_tags || o.in_tags,
        }
    }

    fn is_sensitive(self) -> bool {
        let held = match self.program {
            true => self.skb && self.held.matters(),
            // They are to be linked to a program, which may hold the rest, or replace those of another.
            false => !self.held.is_nothing(),
        };
        let context = MayBe {
            sock_ops: self.sock_ops || !self.program && self.in_sock_ops,
            arguments: self.arguments || !self.program && self.in_tags,
        };
        let cleared = self.control_block && (self.skb || !self.program);
        held || cleared
            || self.held.beliefs().are_wrong(context)
            || self.by_type
            || self.congestion
            || self.egress && self.throws
            || self.measured && self.lengths
    }
}

/// Whether what a function's program does may hang on which of its accesses the verifier visits, because of what the
/// functions hold that call it, or that it calls, however indirectly; or on how its instructions stand in memory
/// ([`spills_around_a_fast_call`]).
pub(crate) fn is_sensitive(module: &Module, f: FuncId) -> bool {
    module.sensitive.get_or_init(|| functions(module))[f.0]
}

fn functions(module: &Module) -> Vec<bool> {
    let called = called(module);
    // A function that is linked to a program of another object, or takes the place of one, is given a context only where BTF
    // says so (`btf_prepare_func_args` in kernel/bpf/btf.c). Of programs whose section tells no type it is asked alike.
    let in_sock_ops = ["bpf_sock_ops", "arg:ctx"].into_iter().any(|name| module.object.may_mention(name));
    let in_tags = ["arg:trusted", "arg:nonnull"].into_iter().any(|name| module.object.may_mention(name));
    let by_type = translated_by_type(module, &called);
    let of = |(i, g): (usize, &Result<Function, String>)| Together {
        held: match g {
            // Whatever stands in its place once it is linked.
            Ok(_) if module.object.functions()[i].weak && !is_program(&module.object, i) => Sensitive::anything(),
            Ok(f) if names_another_object(module, f) => Sensitive::anything(),
            // It is more than the kind of its function tells.
            Ok(_) if is_program(&module.object, i) && called.contains(&FuncId(i)) => Sensitive::anything(),
            Ok(f) => module.with_env(|env| Sensitive::of(f, env)).or(by_name(module, FuncId(i))),
            Err(_) => Sensitive::anything(),
        },
        program: is_program(&module.object, i),
        skb: is_program(&module.object, i) && may_be_skb(&module.object.functions()[i].section),
        throws: g.as_ref().is_ok_and(throws),
        egress: is_program_in(module, i, is_egress),
        congestion: is_program_in(module, i, is_egress) && g.as_ref().is_ok_and(|f| may_return(module, f, &CONGESTION)),
        measured: is_program_in(module, i, is_measured),
        lengths: g.as_ref().is_ok_and(|f| hands_over_a_length(module, f)),
        by_type: by_type[i],
        control_block: names(module, FuncId(i), "cb"),
        sock_ops: is_program_in(module, i, |section| section == "sockops")
            || in_sock_ops && is_program_in(module, i, |section| ProgramType::named(section).is_err()),
        in_sock_ops,
        arguments: is_program_in(module, i, may_be_given_arguments),
        in_tags,
    };
    let mut functions: Vec<Together> = module.graphs.iter().enumerate().map(of).collect();
    loop {
        let before = functions.clone();
        for f in 0..functions.len() {
            for target in module.object.callees(FuncId(f)) {
                let both = functions[f].or(functions[target.0]);
                (functions[f], functions[target.0]) = (both, both);
            }
        }
        if functions == before {
            let spills = |g: &Result<Function, String>| g.as_ref().is_ok_and(spills_around_a_fast_call);
            let both = functions.into_iter().zip(&module.graphs);
            return both.map(|(together, g)| together.is_sensitive() || spills(g)).collect();
        }
    }
}

/// What programs for the egress of a cgroup return to tell of congestion. If the verifier knows at an exit that it is one
/// of these, the program can be attached nowhere else, whatever its loader asks for (`enforce_expected_attach_type` in
/// `check_return_code`, kernel/bpf/verifier.c).
const CONGESTION: [u64; 2] = [2, 3];

/// Whether programs in this section are for the egress of a cgroup. Of sections whose type nobody knows, gap G3 in
/// docs/trust.md speaks.
fn is_egress(section: &str) -> bool {
    section == "cgroup_skb/egress"
}

/// Whether the kernel keeps how far a program in this section may reach: into its context, or into the buffers that it
/// finds there (`max_ctx_offset`, `max_rdonly_access`, `max_rdwr_access`, `max_tp_access` in kernel/bpf/verifier.c), and
/// holds it against what the program is run on or attached to.
fn is_measured(section: &str) -> bool {
    let kind = section.split('/').next().unwrap_or(section);
    matches!(kind, "syscall" | "iter" | "iter.s" | "raw_tp.w" | "raw_tracepoint.w")
}

/// Whether the context of a program in this section may hold what a function of the kernel is given, and the verifier takes
/// pointers there for what their types say (`prog_args_trusted` in kernel/bpf/btf.c; those of `freplace` by their tags).
/// What an iterator is given is said of each.
fn may_be_given_arguments(section: &str) -> bool {
    let kind = section.split('/').next().unwrap_or(section);
    let is_one = matches!(kind, "tp_btf" | "lsm" | "lsm.s" | "lsm_cgroup" | "struct_ops" | "struct_ops.s" | "freplace");
    is_one || ProgramType::named(section).is_err()
}

fn is_program_in(module: &Module, i: usize, is_such: fn(&str) -> bool) -> bool {
    let section = &module.object.functions()[i].section;
    is_program(&module.object, i) && is_such(section.strip_prefix('?').unwrap_or(section))
}

/// Whether a function hands memory that may be the context, or be found there, to the kernel, together with a number that
/// is not known: the verifier takes the greatest it cannot exclude for how far the program may reach
/// (`check_helper_mem_access` in kernel/bpf/verifier.c).
fn hands_over_a_length(module: &Module, f: &Function) -> bool {
    let may_be_context = |v: &Value| v.kind == Kind::Unknown || v.region() == Some(&Region::Ctx);
    let unknown = |v: &Value| v.region().is_none() && v.num.as_const().is_none();
    let hands_over = |op: &Op, state: &State| {
        let of_the_kernel = match op.link.as_ref().map(|l| &l.symbol) {
            Some(Symbol::Func { .. }) => false,
            _ => matches!(op.insn, Insn::Call(_) | Insn::CallX { .. }),
        };
        let row = Effects::of(&op.insn, op.link.is_some());
        let values = || row.arguments.iter().map(|a| (a, state.reg(a.register)));
        of_the_kernel
            && values().any(|(a, v)| a.access.is_memory() && may_be_context(v))
            && values().any(|(_, v)| unknown(v))
    };
    module.with_env(|env| {
        let facts = Facts::of_every_way(f, env);
        let mut blocks = f.layout.iter().map(|b| (&f.block(*b).ops, facts.states(f, *b)));
        blocks.any(|(ops, states)| ops.iter().zip(&states).any(|(op, state)| hands_over(op, state)))
    })
}

/// Whether it may return one of these, at an exit that the verifier may come to.
fn may_return(module: &Module, f: &Function, numbers: &[u64]) -> bool {
    module.with_env(|env| {
        let facts = Facts::of_every_way(f, env);
        let exits = f.layout.iter().filter(|b| matches!(f.block(**b).term, Terminator::Exit { .. }));
        let low = |b: &BlockId| facts.states(f, *b).last().map(|s| s.reg(Reg::R0).num.truncate(32));
        exits.filter_map(low).any(|r0| numbers.iter().any(|n| r0.contains(*n)))
    })
}

/// Whether a function throws exceptions: the number thrown is a program's result.
fn throws(f: &Function) -> bool {
    externs(f).any(bpf_platform::throws)
}

/// Whether a function refers to what another object defines, with which it is to be linked.
fn names_another_object(module: &Module, f: &Function) -> bool {
    externs(f).any(|name| !module.object.is_asked_of_the_kernel(name))
}

fn externs(f: &Function) -> impl Iterator<Item = &str> {
    let links = f.layout.iter().flat_map(|b| &f.block(*b).ops).filter_map(|op| op.link.as_ref());
    links.filter_map(|l| match &l.symbol {
        Symbol::Extern { name } => Some(&**name),
        _ => None,
    })
}

/// Functions that others call, or name.
fn called(module: &Module) -> BTreeSet<FuncId> {
    (0..module.graphs.len()).flat_map(|f| module.object.callees(FuncId(f))).collect()
}

/// Most rounds in which callers tell the functions that they call where pointers come from.
const ROUNDS: usize = 8;

/// Which functions hold an instruction that the kernel translates by the types of pointers that the verifier comes there
/// with ([`bpf_prove::provenance`]): a call that is, or an access through pointers of several sources.
fn translated_by_type(module: &Module, called: &BTreeSet<FuncId>) -> Vec<bool> {
    let functions = module.object.functions();
    let open = callable_from_outside(&module.object, &module.graphs);
    let is_callback = |i: usize| open[i] && functions[i].local && !is_program(&module.object, i);
    // One that is verified alone is given one kind of pointer for each parameter, whichever its callers have; one that is
    // hidden from other objects is verified with them.
    let is_alone = |i: usize| open[i] && !is_callback(i);
    let outside = |i: usize| match open[i] {
        // Pointers to frames of its callers.
        true if is_callback(i) => [Sources::CALLBACK; 5],
        false if called.contains(&FuncId(i)) => [Sources::NONE; 5],
        // A global one, or a program, for some loader.
        _ => Sources::PASSED,
    };
    let mut arguments: Vec<[Sources; 5]> = (0..functions.len()).map(outside).collect();
    let names: HashMap<&str, usize> =
        module.graphs.iter().enumerate().filter_map(|(i, g)| Some((&*g.as_ref().ok()?.name, i))).collect();
    for round in 0..ROUNDS {
        let found: Vec<Provenance> = module
            .graphs
            .iter()
            .zip(&arguments)
            .map(|(g, passed)| {
                g.as_ref().map(|f| module.with_env(|env| provenance(f, env, *passed))).unwrap_or_default()
            })
            .collect();
        let mut passed = vec![[Sources::NONE; 5]; functions.len()];
        for (name, here) in found.iter().flat_map(|p| &p.passes) {
            let Some(callee) = names.get(&**name) else { continue };
            for (all, one) in passed[*callee].iter_mut().zip(here) {
                *all = all.or(*one);
            }
        }
        let mut next = arguments.clone();
        for (i, (all, passed)) in next.iter_mut().zip(passed).enumerate() {
            for (all, passed) in all.iter_mut().zip(passed).filter(|(_, passed)| !is_alone(i) || passed.is_several()) {
                *all = all.or(passed);
            }
        }
        if next == arguments {
            return found.into_iter().map(|p| p.mixes || p.calls).collect();
        }
        // Deeper chains of calls than the kernel takes: nothing is known.
        arguments = if round + 2 < ROUNDS { next } else { vec![[Sources::ANY; 5]; functions.len()] };
    }
    vec![true; functions.len()]
}

/// Whether a function calls a function of the kernel that is given types by number.
pub(crate) fn is_given_types(f: &Function) -> bool {
    externs(f).any(is_kfunc_translated_by_type)
}

/// Whether a CO-RE record of a function names such a member.
fn names(module: &Module, f: FuncId, member: &str) -> bool {
    let named =
        |record: &CoreReloc| module.object.core_members(record).is_ok_and(|names| names.iter().any(|m| m == member));
    module.object.core_relocs(f).iter().any(named)
}

/// What the CO-RE records of a function name: the loader finds fields of `__sk_buff` by name, whatever the local type.
fn by_name(module: &Module, f: FuncId) -> Sensitive {
    let of = |record: &CoreReloc| match module.object.core_members(record) {
        Ok(members) => {
            let names = |field: &str| members.iter().any(|m| m == field);
            Sensitive::named(names("tstamp_type"), names("tstamp"))
        }
        Err(_) => Sensitive::anything(),
    };
    module.object.core_relocs(f).iter().map(of).fold(Sensitive::default(), Sensitive::or)
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
