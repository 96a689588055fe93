//! Objects whose functions are equal may still not be worth the same: the kernel's verifier may refuse the second.
//!
//! Proofs are about what programs do. The verifier asks for more: registers that were written before they are read, no
//! arithmetic on some pointers, no loop that it cannot see the end of, even where nobody comes. It is asked itself.
//!
//! Promise: only a program of the second object that the verifier has looked at and refused is named as refused. What this
//! kernel cannot load of the first for another reason (no such map type, no memory, another program type) says nothing; of
//! the second, where it has taken the first, nothing is known then, nor of either where there was no time to ask, or this
//! process had no descriptors or memory left.

use std::collections::BTreeSet;
use std::time::Instant;

use bpf_facts::Env;
use bpf_kernel::{KernelError, LoadOptions, LoadVerdict, Loader, ProgramVerdict, Question};
use bpf_object::{FuncId, Object};
use bpf_program::Function;
use bpf_prove::{Limits, Options as ProofOptions};

use crate::decided::{self, KnownFacts, Pairs};
use crate::gate::{MADE_OTHERWISE, Unfit, UnfitBecause, Yardstick};
use crate::lengths;
use crate::module::Module;
use crate::options::Options;
use crate::rename::Names;
use crate::report::Refused;

/// What is said of a program of which the verifier leaves something else.
const RUNS_OTHERWISE: &str =
    "the kernel decides other branches or makes other code of calls, and what then runs is not proven equal";

/// What is said of programs that share their section and their name: the kernel tells them apart by their place alone.
const NAMESAKES: &str = "several programs of its section have its name";

/// What is said where the kernel has not answered.
const NOT_ASKED: &str = "the kernel could not be asked";

/// The programs of `b` that this kernel refuses, of those of `a` that it takes; and in words those of which it is not proven
/// that it leaves the same of both, or that it cannot be asked about. None where it may not be asked.
pub(crate) fn refused(a: &[u8], b: &[u8], names: &Names, options: &Options) -> (Vec<Refused>, Vec<String>) {
    let may_ask = options.kernel && options.run_check;
    let (mut refused, mut unknown, yardstick) = match options.original.as_deref() {
        Some(original) => of_the_original(original, b, names, &Options { kernel: may_ask, ..options.clone() }),
        None => Default::default(),
    };
    if !may_ask {
        return (refused, unknown);
    }
    match ask(a, b, names, yardstick.as_ref(), options) {
        Ok((more, unknowns)) => {
            let is_new = |r: &Refused| !refused.iter().any(|known| known.name == r.name);
            let more: Vec<Refused> = more.into_iter().filter(is_new).collect();
            refused.extend(more);
            // Of what is refused nobody wants to know how it runs.
            let refused: Vec<String> = refused.iter().map(|r| refused_as_specialized(&r.name)).collect();
            unknown.extend(unknowns.into_iter().filter(|text| !refused.contains(text)));
        }
        Err(KernelError::NotPermitted { .. }) => {}
        Err(e) => unknown.push(format!("{NOT_ASKED}: {e}")),
    }
    (refused, unknown)
}

/// What is said where the kernel's decisions about the second cannot be held against any of the first.
fn refused_as_specialized(program: &str) -> String {
    let why =
        "the kernel takes the original, but not as it is specialized, so that what runs of the second is not compared";
    format!("{program}: {why}")
}

/// What is said of `b` beside the object that `a` was made of: there the first must be taken, too, and where the kernel is not
/// asked, by `bpf_check`.
fn of_the_original(
    original: &[u8],
    b: &[u8],
    names: &Names,
    options: &Options,
) -> (Vec<Refused>, Vec<String>, Option<Yardstick>) {
    let in_half_of_the_time = Options { time_limit: options.time_limit / 2, ..options.clone() };
    let yardstick = Yardstick::of(original, &in_half_of_the_time);
    let told = yardstick.and_then(|yardstick| Ok((yardstick.unfit(b)?, yardstick)));
    let (unfit, yardstick) = match told {
        Ok(told) => told,
        Err(e) => return (Vec::new(), vec![format!("{NOT_ASKED}: {e}")], None),
    };
    let chosen = Chosen::of(names, &options.programs);
    let is_chosen = |name: &str| {
        let functions = names.a.object.functions().iter();
        functions.filter(|f| f.name == name).any(|f| chosen.holds(name, &f.section))
    };
    let (mut refused, mut unknown) = (Vec::new(), Vec::new());
    for (name, why) in yardstick.not_judged().into_iter().filter(|(name, _)| is_chosen(name)) {
        unknown.push(format!("{name}: {why}"));
    }
    for Unfit { program: name, because, by_kernel, .. } in unfit.into_iter().filter(|u| is_chosen(&u.program)) {
        match because {
            UnfitBecause::Refused(reason) if by_kernel => refused.push(Refused { name, reason }),
            UnfitBecause::Refused(why) | UnfitBecause::NotJudged(why) => {
                let who = if by_kernel { "the kernel" } else { "check" };
                unknown.push(format!("{name}: {who} takes the original, and not the second: {why}"));
            }
            UnfitBecause::Heavier(..) => {}
        }
    }
    (refused, unknown, Some(yardstick))
}

/// [`refused`], of a kernel that may be asked.
fn ask(
    a: &[u8],
    b: &[u8],
    names: &Names,
    yardstick: Option<&Yardstick>,
    options: &Options,
) -> Result<(Vec<Refused>, Vec<String>), KernelError> {
    let mut loader = Loader::new(LoadOptions { program_type: options.program_type.clone(), only: None })?;
    // The second has as much time as the first, and the proofs that are needed.
    let in_half_of_the_time = || Instant::now().checked_add(options.time_limit / 2);
    let chosen = Chosen::of(names, &options.programs);
    let mut verdicts = |bytes: &[u8], module: &Module, wanted: &dyn Fn(&str, &str) -> bool| {
        let question = |name: &str, section: &str| match wanted(name, section) {
            true => lengths::question(module, name, section),
            false => Question::Nothing,
        };
        loader.judge(bytes, question, in_half_of_the_time()).map(|verdict| verdict.programs)
    };
    let mut first = verdicts(a, names.a, &|name, section| chosen.holds(name, section))?;
    let open = first.iter().filter(|p| p.verdict.is_open());
    let mut unknown: Vec<String> = open.map(|p| format!("{}: {NOT_ASKED}: {}", p.name, p.verdict.reason())).collect();
    let is_refused = |p: &&ProgramVerdict| matches!(p.verdict, LoadVerdict::Rejected { .. });
    let taken_before = |p: &&ProgramVerdict| yardstick.is_some_and(|y| y.is_taken(&p.name, &p.section));
    unknown.extend(first.iter().filter(is_refused).filter(taken_before).map(|p| refused_as_specialized(&p.name)));
    let mut namesakes = shared_names(&first);
    first.retain(|p| p.verdict.is_accepted());
    if first.is_empty() {
        return Ok((Vec::new(), unknown));
    }
    let mut second = verdicts(b, names.b, &|name, _| first.iter().any(|p| p.name == name))?;
    namesakes.extend(shared_names(&second));
    let is_namesake = |p: &ProgramVerdict| namesakes.contains(&(p.name.clone(), p.section.clone()));
    unknown.extend(first.iter().filter(|p| is_namesake(p)).map(|p| format!("{}: {NOT_ASKED}: {NAMESAKES}", p.name)));
    for programs in [&mut first, &mut second] {
        programs.retain(|p| !is_namesake(p));
    }
    let partner = |p: &ProgramVerdict| second.iter().find(|q| q.name == p.name && q.section == p.section);
    let pairs = first.iter().filter_map(|p| Some((p, partner(p)?)));
    let reason = |p: &ProgramVerdict, q: &ProgramVerdict| match q.verdict {
        LoadVerdict::Rejected { .. } => Some(q.verdict.reason().to_owned()),
        LoadVerdict::Accepted => {
            let other = p.made_otherwise(q);
            let other = other.map(|what| format!("{MADE_OTHERWISE}: {what}"));
            other.or_else(|| p.not_for_any_loader(q))
        }
        _ => None,
    };
    let (same, other): (Vec<_>, Vec<_>) = pairs.partition(|(p, q)| p.replaced_by(q));
    // The kernel has just taken what it replaces: that this one cannot be asked about is no matter of the kernel.
    let not_judged = first.iter().filter_map(|p| {
        let why = match partner(p) {
            None if second.is_empty() => "it cannot be opened",
            None => "it is not among the programs that it has",
            Some(q) if !matches!(q.verdict, LoadVerdict::Accepted | LoadVerdict::Rejected { .. }) => q.verdict.reason(),
            _ => return None,
        };
        Some(format!("{}: the kernel takes the first, and was not asked about the second: {why}", p.name))
    });
    let refused =
        other.into_iter().filter_map(|(p, q)| Some(Refused { reason: reason(p, q)?, name: q.name.clone() })).collect();
    let limits = Limits { deadline: in_half_of_the_time(), ..Limits::default() };
    let (strict_shared_memory, recorder) = (options.strict_shared_memory, options.queries.clone());
    let proof = ProofOptions { limits, strict_shared_memory, recorder, ..ProofOptions::default() };
    let other_code = same.into_iter().filter(|(p, q)| !runs_as_before(names, p, q, &proof));
    let why = |(p, q): (&ProgramVerdict, _)| decided::not_told(p, q).unwrap_or(RUNS_OTHERWISE);
    unknown.extend(other_code.map(|both| format!("{}: {}", both.0.name, why(both))).chain(not_judged));
    Ok((refused, unknown))
}

/// The names and sections that several of these programs have.
fn shared_names(programs: &[ProgramVerdict]) -> BTreeSet<(String, String)> {
    let mut seen = BTreeSet::new();
    let names = programs.iter().map(|p| (p.name.clone(), p.section.clone()));
    names.filter(|name| !seen.insert(name.clone())).collect()
}

/// The programs that functions are part of, or that run when these do; all of them if no function is named.
struct Chosen<'n> {
    objects: [&'n Object; 2],
    functions: &'n [String],
    /// What runs when these functions do, of each object.
    run: [Vec<FuncId>; 2],
}

impl<'n> Chosen<'n> {
    fn of(names: &Names<'n, '_>, functions: &'n [String]) -> Self {
        let objects = [&names.a.object, &names.b.object];
        let run = objects.map(|object| {
            let all = object.functions().iter().enumerate();
            object.run_with(all.filter(|(_, f)| functions.contains(&f.name)).map(|(i, _)| FuncId(i)))
        });
        Self { objects, functions, run }
    }

    fn holds(&self, program: &str, section: &str) -> bool {
        let is_named = |object: &Object, f: &FuncId| self.functions.contains(&object.functions()[f.0].name);
        let of_object = |(object, run): (&&Object, &Vec<FuncId>)| {
            let entries = object.entries(program, section);
            entries.iter().any(|f| run.contains(f)) || object.loaded_with(entries).iter().any(|f| is_named(object, f))
        };
        self.functions.is_empty() || self.objects.iter().zip(&self.run).any(of_object)
    }
}

/// Whether the verifier leaves of a program of the second object what it leaves of that of the first.
fn runs_as_before(names: &Names, p: &ProgramVerdict, q: &ProgramVerdict, options: &ProofOptions) -> bool {
    decided::run_as_one_program(
        (&names.a.object, p),
        (&names.b.object, q),
        &Named { names, options, facts: KnownFacts::default() },
    )
}

/// The functions of two objects under common names.
struct Named<'a, 'n, 'o> {
    names: &'a Names<'n, 'o>,
    options: &'a ProofOptions,
    facts: KnownFacts,
}

impl Pairs for Named<'_, '_, '_> {
    fn partner(&self, f: FuncId) -> Option<FuncId> {
        self.names.matching.function(f)
    }

    fn are_the_same(&self, f: FuncId, g: FuncId) -> bool {
        self.names.comparison.same_code(self.names.matching, f, g)
    }

    fn with_graphs<T>(&self, f: FuncId, g: FuncId, ask: impl FnOnce(&Function, &Function, &Env) -> T) -> Option<T> {
        let names = self.names;
        let (a, b) = (names.a.graphs[f.0].as_ref().ok()?, names.b.graphs[g.0].as_ref().ok()?);
        let (a, b) = (names.first(a), names.second(b));
        Some(names.with_env(|env| ask(&a, &b, env)))
    }

    fn options(&self) -> &ProofOptions {
        self.options
    }

    fn facts(&self) -> &KnownFacts {
        &self.facts
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use bpf_kernel::testing::permitted;
    use bpf_object::Object;
    use bpf_object::compare::Comparison;
    use bpf_testgen::case::Case;

    use super::*;
    use crate::module::Module;

    /// Whether the kernel decides branches of the first of two versions, whether others of the second, and whether what
    /// it leaves of them is the same.
    fn judged(old: &[u8], new: &[u8], program_type: Option<String>) -> [bool; 3] {
        let mut loader = Loader::new(LoadOptions { program_type, only: None }).expect("the kernel may be asked");
        let [p, q] = [old, new].map(|bytes| {
            let mut verdict = loader.judge(bytes, |_, _| true, None).expect("it is judged");
            let program = verdict.programs.remove(0);
            assert!(program.verdict.is_accepted(), "{program:?}");
            program
        });
        let [a, b] = [old, new].map(|bytes| Module::new(Object::parse(bytes.to_vec()).expect("an object")));
        let comparison = Comparison::of(&a.object, &b.object);
        let matchings = comparison.matchings();
        let names = Names { a: &a, b: &b, matching: &matchings.list[0], comparison: &comparison };
        let same = runs_as_before(&names, &p, &q, &ProofOptions::default());
        let [p, q] = [p, q].map(|p| p.decided.expect("the kernel tells"));
        [!p.jumps.is_empty(), p.jumps != q.jumps, same]
    }

    fn case(name: &str) -> [bool; 3] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/equivalence");
        let text = std::fs::read_to_string(folder.join(name).with_extension("bpf")).expect("a committed case");
        let case = Case::parse(&text).expect("a case");
        let new = case.new_object().expect("it assembles").expect("a second version");
        judged(&case.old_object().expect("it assembles"), &new, case.program_type)
    }

    #[test]
    fn of_what_the_kernel_could_not_be_asked_about_in_time_nothing_is_known() {
        if !permitted() {
            return;
        }
        let text =
            "; A.\n; section: xdp\n; expect: equal\nbefore:\n    r0 = 2\n    exit\nafter:\n    r0 = 2\n    exit\n";
        let bytes = Case::parse(text).expect("a case").old_object().expect("it assembles");
        let module = Module::new(Object::parse(bytes.clone()).expect("an object"));
        let comparison = Comparison::of(&module.object, &module.object);
        let matchings = comparison.matchings();
        let names = Names { a: &module, b: &module, matching: &matchings.list[0], comparison: &comparison };
        let ask = |time_limit: Duration| refused(&bytes, &bytes, &names, &Options { time_limit, ..Options::default() });
        let (refused, unknown) = ask(Duration::ZERO);
        assert!(refused.is_empty() && unknown.len() == 1, "{unknown:?}");
        assert_eq!(ask(Duration::from_secs(60)), Default::default());
    }

    /// Bugs of the verifier's of seven kinds, none of which this knows.
    #[test]
    fn what_the_verifier_believes_wrongly_is_seen_by_what_it_leaves() {
        if !permitted() || !bpf_kernel::release().starts_with("6.18") {
            return;
        }
        for name in [
            "frames-of-callees/scalar-plus-frame-address",
            "redteam-z/pointer-beyond-the-packet-moved-back-is-the-start",
            "redteam-z/queue-of-a-socket-compared-and-through-the-frame",
            "redteam-z/attributes-of-a-system-call-read-in-half-and-whole",
            "redteam-z/buffer-of-a-slice-stored-through-the-slice-read-in-halves-and-whole",
            "redteam-aa/fill-with-its-sign-of-a-spilled-byte-is-linked",
            "redteam-aa/end-acquired-from-the-frame-of-a-pointer-moved-back",
            // What is left of the first is what the second is.
            "redteam-aa/fill-with-its-sign-in-a-static-function-is-linked",
            // The decision stands at the start of a function, or in front of a jump that is gone.
            "redteam-bb/decided-jump-at-the-start-of-a-function-with-may-goto-of-a-rare-packet",
            "redteam-bb/decided-jump-before-a-jump-over-what-is-gone-of-a-rare-packet",
            "redteam-bb/fill-with-its-sign-in-a-callback",
        ] {
            let [_, others, same] = case(name);
            assert!(others && !same, "{name}");
        }
    }

    /// What the verifier believes decides no branch here, but what is made of a call.
    #[test]
    fn what_is_made_of_a_call_by_a_wrong_belief_is_seen() {
        if !permitted() || !bpf_kernel::release().starts_with("6.18") {
            return;
        }
        for name in [
            "redteam-cc/tail-call-by-a-number-that-is-believed",
            "redteam-cc/tail-call-by-a-number-that-a-null-of-a-task-makes",
            "redteam-cc/number-of-a-tail-call-in-a-static-function-of-a-rare-packet",
            "redteam-cc/null-that-is-equal-in-the-other-order-of-a-rare-packet",
            "redteam-cc/lookup-made-for-the-map-that-is-believed-of-a-rare-packet",
            "redteam-cc/loop-made-for-flags-that-are-believed-of-a-rare-packet",
            // Two have changed places.
            "redteam-dd/lookups-change-places-one-made-for-an-inner-array-of-each-cpu",
            "redteam-dd/loops-change-places-one-by-what-is-equal-to-no-context",
            "redteam-dd/element-of-another-cpu-that-is-believed-there",
            // What counts as passed is not.
            "redteam-dd/function-whose-branch-follows-from-what-is-passed-is-the-same",
            "redteam-dd/function-whose-branch-follows-from-what-is-passed-in-the-second-only",
            "redteam-dd/pointer-shown-to-a-function-that-is-the-same",
            // What is there as it was loaded is not in what runs.
            "redteam-dd/element-that-is-there-behind-a-wrong-branch",
            "redteam-dd/read-only-byte-behind-a-wrong-branch",
            "redteam-dd/element-of-another-cpu-that-is-equal-to-no-context",
            // An array is long.
            "redteam-dd/element-of-a-long-inner-array-that-may-be-missing",
            "redteam-dd/null-that-is-equal-to-no-context-beside-a-long-array",
            // Arithmetic has fewer bits.
            "arena/a-callback-of-a-loop-leaves-a-pointer",
            "arena/a-callback-for-each-element-leaves-a-pointer",
            "arena/a-callback-hands-its-context-to-what-leaves-a-pointer",
        ] {
            let [_, _, same] = case(name);
            assert!(!same, "{name}");
        }
    }

    /// Nobody may run the second of these: by a wrong belief its frame is too small. Nor do they tell anything of each other if
    /// they have exchanged their places.
    #[test]
    fn a_frame_that_is_believed_to_be_smaller_than_it_is_used_is_seen() {
        if !permitted() || !bpf_kernel::release().starts_with("6.18") {
            return;
        }
        let code = |number: &str| {
            format!(
                "    *(u32 *)(r10 - 4) = 1\n    r2 = r10\n    r2 += -4\n    r1 = table ll\n    call bpf_map_lookup_elem\n    \
                 r6 = r0\n    r1 = 0\n    r2 = 0\n    call bpf_rdonly_cast\n    r1 = r0\n    r0 = 0\n{number}    \
                 if r6 != r1 goto out\n    r2 = r10\n    r2 += -200\n    if r6 == 0 goto store\n    r2 = r10\n    r2 += -8\n\
                 store:\n    *(u64 *)(r2 + 0) = 1\nout:\n    exit\n"
            )
        };
        let (known, open) = (code(""), code("    r6 = -r6\n    r6 = -r6\n"));
        let text = format!(
            "; A.\n; section: xdp\n; map: table hash 4 8 4\n; kfunc: bpf_rdonly_cast(ptr, u32) ptr\n; expect: not-proven\n\
             before:\n{open}after:\n{known}"
        );
        let case = Case::parse(&text).expect("a case");
        let [a, b] = [case.old_object(), case.new_object().map(|new| new.expect("a second version"))];
        let (a, b) = (a.expect("it assembles"), b.expect("it assembles"));
        assert!(!judged(&a, &b, None)[2]);
        assert!(judged(&b, &b, None)[2]);
    }

    /// The verifier decides a branch of the first version, and another one or none of the second.
    #[test]
    fn what_follows_from_facts_is_no_belief() {
        if !permitted() {
            return;
        }
        let versions = |text: &str| {
            let case = Case::parse(text).expect("a case");
            let new = case.new_object().expect("it assembles").expect("a second version");
            judged(&case.old_object().expect("it assembles"), &new, None)
        };
        for (decided_by, around, before, after) in [
            ("a number", "", "r0 = 1\nif r0 == 1 goto out\nr0 = 2\nout:\nexit", "r0 = 1\nexit"),
            (
                "another register",
                "",
                "r2 = *(u32 *)(r1 + 0)\nr2 &= 7\nr3 = r2\nr3 += 4\nr0 = 0\nif r3 > 4 goto out\nif r2 == 0 goto out\n\
                 r0 = 1\nout:\nexit",
                "r0 = 0\nexit",
            ),
            (
                "read-only data",
                "; data: limit .rodata 4 05000000\n",
                "r1 = limit ll\nr1 = *(u32 *)(r1 + 0)\nif r1 == 5 goto out\nr0 = 0\nexit\nout:\nr0 = 1\nexit",
                "r1 = limit ll\nr1 = *(u32 *)(r1 + 0)\nr1 -= 5\nr0 = 1\nif r1 == 0 goto out\nr0 = 0\n\
                 out:\nexit",
            ),
            (
                "an array",
                "; map: m array 4 8 2\n",
                "*(u32 *)(r10 - 8) = 1\nr2 = r10\nr2 += -8\nr1 = m ll\ncall bpf_map_lookup_elem\nr6 = r0\nr0 = 0\n\
                 if r6 != 0 goto out\nr0 = 7\nr0 -= 7\nexit\nout:\nr0 = 1\nexit",
                "*(u32 *)(r10 - 8) = 1\nr2 = r10\nr2 += -8\nr1 = m ll\ncall bpf_map_lookup_elem\n\
                 if r0 == 0 goto out\nr0 = 1\nexit\nout:\nr0 = 0\nexit",
            ),
        ] {
            let indented = |l: &str| if l.ends_with(':') { format!("{l}\n") } else { format!("    {l}\n") };
            let text = |code: &str| code.lines().map(indented).collect::<String>();
            let (before, after) = (text(before), text(after));
            let case =
                format!("; {decided_by}\n; section: socket\n{around}; expect: equal\nbefore:\n{before}after:\n{after}");
            let [decided, _, same] = versions(&case);
            assert!(decided && same, "{decided_by}: {decided} {same}");
        }
    }
}
