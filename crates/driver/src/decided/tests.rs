use bpf_kernel::{LoadVerdict, ProgramType};
use bpf_object::Object;
use bpf_testgen::case::Case;

use super::*;
use crate::module::Module;

/// The branches of these without a known reason.
fn open(code: &str, jumps: &[(usize, bool)]) -> Vec<usize> {
    let case = Case::parse(&format!("; A.\n; section: socket\n; run: same\nbefore:\n{code}")).expect("a case");
    let module = Module::new(Object::parse(case.old_object().expect("it assembles")).expect("an object"));
    let f = module.graphs[0].as_ref().expect("a graph");
    let (options, facts) = (ProofOptions::default(), KnownFacts::default());
    let of = |env: &Env| without_reason(f, &jumps.to_vec(), Some(&module.object), With::new(env, &options, &facts));
    let open = module.with_env(of);
    open.into_iter().collect()
}

/// Slots 1 and 2 test the same.
const TWICE: &str = "    r2 = *(u32 *)(r1 + 0)\n    if r2 == 7 goto out\n    if r2 == 7 goto out\n    r0 = 0\n    exit\n\
                     out:\n    r0 = 1\n    exit\n";

/// Nothing to compare with.
#[derive(Default)]
struct Nobody(ProofOptions, KnownFacts);

impl Pairs for Nobody {
    fn partner(&self, _: FuncId) -> Option<FuncId> {
        None
    }

    fn are_the_same(&self, _: FuncId, _: FuncId) -> bool {
        false
    }

    fn with_graphs<T>(&self, _: FuncId, _: FuncId, _: impl FnOnce(&Function, &Function, &Env) -> T) -> Option<T> {
        None
    }

    fn options(&self) -> &ProofOptions {
        &self.0
    }

    fn facts(&self) -> &KnownFacts {
        &self.1
    }
}

fn accepted(decided: Option<Decided>) -> ProgramVerdict {
    let (name, section) = ("main".into(), "socket".into());
    let plain = ProgramVerdict::new(name, section, ProgramType::SOCKET_FILTER, 2, LoadVerdict::Accepted);
    ProgramVerdict { decided, ..plain }
}

/// Kernels show nothing of programs with blinded constants to those who may not see addresses.
#[test]
fn what_the_kernel_does_not_tell_is_not_taken_for_nothing() {
    let case = Case::parse(&format!("; A.\n; section: socket\n; run: same\nbefore:\n{TWICE}")).expect("a case");
    let object = Object::parse(case.old_object().expect("it assembles")).expect("an object");
    let pairs = Nobody::default();
    let run_as_one = |p: &ProgramVerdict, q: &ProgramVerdict| run_as_one_program((&object, p), (&object, q), &pairs);
    let [hidden, other] = [1, 2].map(|n| accepted(Some(Decided::hidden(&[[n; 8]]))));
    let (told, by_libbpf) = (accepted(Some(Decided::default())), accepted(None));
    // The same instructions are made the same.
    assert!(run_as_one(&hidden, &hidden.clone()));
    for (old, new) in
        [(&hidden, &other), (&told, &hidden), (&hidden, &told), (&by_libbpf, &hidden), (&told, &by_libbpf)]
    {
        assert!(!run_as_one(old, new));
    }
    assert_eq!(not_told(&told, &hidden), Some(HIDDEN));
    assert_eq!(not_told(&hidden, &told), Some(HIDDEN));
    assert_eq!(not_told(&told, &told), None);
    // Of what libbpf has loaded nothing is known: with another one it is compared by proofs alone, as docs/trust.md says, and by itself
    // it is not shown to be right.
    assert!(run_as_one(&by_libbpf, &by_libbpf.clone()));
    assert!(!runs_as_loaded(&object, &by_libbpf, &pairs));
    assert!(!runs_as_loaded(&object, &hidden, &pairs));
    assert_eq!(not_told(&told, &by_libbpf), Some(ONLY_LIBBPF));
}

#[test]
fn a_reason_is_none_that_follows_from_a_belief() {
    assert_eq!(open(TWICE, &[(2, false)]), []);
    assert_eq!(open(TWICE, &[(1, false)]), [1]);
    // Where the verifier is wrong about the first, the second is as wrong.
    assert_eq!(open(TWICE, &[(1, false), (2, false)]), [1, 2]);
}

#[test]
fn a_branch_that_nobody_comes_to_is_decided_in_any_way() {
    let code = "    r2 = 1\n    if r2 == 1 goto out\n    r2 = *(u32 *)(r1 + 0)\n    if r2 == 7 goto out\n    r0 = 0\n    \
                exit\nout:\n    r0 = 1\n    exit\n";
    assert_eq!(open(code, &[(1, true), (3, false)]), []);
}
