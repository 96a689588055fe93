//! The enumerator and canonical forms over windows of real programs, where the benchmark objects are.

use std::path::{Path, PathBuf};

use bpf_bench::windows::Optimized;
use bpf_bench::{deep, harvest, objects};
use bpf_isa::{Goal, Insn};
use bpf_program::Op;
use bpf_prove::{Cache, Options, Verdict};
use bpf_search::canonical::canonical;
use bpf_search::enumerate::{Effort, enumerate, subset};
use bpf_search::pointer_rules::well_typed;
use bpf_search::rules::{Rule, RuleBody, parse};
use bpf_search::store::Store;
use bpf_search::{Answer, Window};

/// Objects of the benchmark, and those of the project, which are always there.
fn programs() -> Vec<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = objects(&here.join("../../../shared/bench/k2"));
    all.truncate(8);
    all.extend(objects(&here.join("../../examples")).into_iter().take(4));
    all
}

fn slots(ops: &[Op]) -> usize {
    ops.iter().map(|o| o.insn.slots()).sum()
}

fn listing(ops: &[Op]) -> String {
    ops.iter().map(|o| format!("  {}\n", o.insn)).collect()
}

#[test]
fn forms_of_real_windows_come_back_and_their_rules_hold_by_themselves() {
    deep(|| {
        let (mut windows, mut solved, mut kept, mut settled) = (0, 0, 0, 0);
        for path in programs() {
            let o = Optimized::untouched(&path).expect("an object");
            o.module.with_env(|env| {
                let mut cache = Cache::new();
                for p in o.windows(env, 1, 5).iter().take(25) {
                    let w = o.window(env, p);
                    let Some((key, renaming)) = canonical(&w) else { continue };
                    windows += 1;
                    assert_eq!(renaming.to_canonical(w.old), Some(key.old.clone()), "{}", listing(w.old));
                    let mut judge = |new: &[Op]| o.judge(env, p, &mut cache, new);
                    let effort = Effort { slots: 3, steps: 200_000 };
                    let outcome = enumerate(&w, &mut judge, effort);
                    settled += usize::from(outcome.exhausted_to.is_some_and(|n| n + 1 >= slots(w.old)));
                    let with = outcome.found.as_ref().and_then(|f| renaming.to_canonical(&f.with));
                    solved += usize::from(outcome.found.is_some());
                    let answer = RuleBody { with, by: "enumerate".into(), effort: outcome.steps, excluded: None };
                    let rule = Rule { window: key, answer };
                    let back = parse(&rule.text()).unwrap_or_else(|e| panic!("{e}\n{}", rule.text()));
                    assert_eq!(back, vec![rule.clone()], "{}", rule.text());
                    if let Some(with) = &rule.answer.with {
                        kept += 1;
                        let verdict = rule.window.prove(with, &Options::default());
                        assert!(verdict.is_equal(), "{verdict:?}\n{}", rule.text());
                    }
                }
            });
        }
        println!("{windows} windows: {solved} improved ({kept} kept as rules), {settled} shown to be shortest");
        assert!(solved > 0 && kept * 2 > solved && settled > 0);
    })
    .expect("a thread");
}

#[test]
fn what_is_excluded_is_what_no_pass_finds_either() {
    deep(|| {
        let (mut compared, mut claims) = (0, 0);
        for path in programs() {
            let h = harvest(&path).expect("an object");
            h.module.with_env(|env| {
                let mut left = 40;
                for q in h.functions.iter().flat_map(|(_, _, q)| q) {
                    let r = &q.rewrite;
                    if !r.path.is_empty() {
                        continue;
                    }
                    let old = &q.function.block(r.block).ops[r.start..r.end];
                    let short = old.len() <= 5 && slots(&r.with) <= 2 && slots(&r.with) < slots(old);
                    let calls = old.iter().any(|o| matches!(o.insn, Insn::Call(_) | Insn::CallX { .. }));
                    if left == 0 || r.term.is_some() || calls || !short {
                        continue;
                    }
                    let proven = bpf_prove::ask(&q.function, env, &q.known(), r, &q.options);
                    if proven.is_err() {
                        continue;
                    }
                    left -= 1;
                    let live = &q.live[r.end];
                    let kind = q.function.kind;
                    let cpu = h.module.cpu.max(3);
                    let w = Window {
                        kind,
                        env,
                        before: &q.states[r.start],
                        old,
                        live,
                        cpu,
                        goal: Goal::Size,
                        deadline: None,
                        superblock: None,
                    };
                    let Some(subset) = subset(&w) else { continue };
                    let inside = |o: &Op| subset.ops.iter().any(|s| s.insn == o.insn && s.link == o.link);
                    if !r.with.iter().all(inside) || !well_typed(&w, &r.with) {
                        continue;
                    }
                    let mut judge = |new: &[Op]| {
                        let asked = bpf_prove::window(kind, env, w.before, old, new, live, None, &q.options);
                        match asked.0 {
                            Verdict::Equal => Answer::Equal,
                            Verdict::Different(d) => Answer::Different(Some(d)),
                            Verdict::Unknown(_) => Answer::Unknown,
                        }
                    };
                    let outcome = enumerate(&w, &mut judge, Effort::default());
                    compared += 1;
                    let n = slots(&r.with);
                    assert!(
                        outcome.exhausted_to.is_none_or(|e| e < n),
                        "{} found what is said not to exist in\n{}\n{}{outcome:?}",
                        r.by,
                        listing(old),
                        listing(&r.with)
                    );
                    claims += usize::from(outcome.found.is_some_and(|f| slots(&f.with) <= n));
                }
            });
        }
        println!("{compared} rewrites of passes: the enumerator did as well on {claims}");
        assert!(compared >= 10 && claims * 10 >= compared * 9, "{claims} of {compared}");
    })
    .expect("a thread");
}

#[test]
fn a_poisoned_store_only_wastes_time() {
    deep(|| {
        let mut poisoned = 0;
        for path in programs() {
            let o = Optimized::untouched(&path).expect("an object");
            o.module.with_env(|env| {
                let mut store = Store::in_memory();
                let mut cache = Cache::new();
                for p in o.windows(env, 2, 5).iter().take(20) {
                    let w = o.window(env, p);
                    let Some((key, renaming)) = canonical(&w) else { continue };
                    if w.live
                        .regs
                        .intersect(w.old.iter().fold(Default::default(), |s, o| o.insn.defs().union(s)))
                        .is_empty()
                    {
                        continue;
                    }
                    // All but the last operation that sets something live: never right unless the judge says so.
                    let mut lie = key.old.clone();
                    lie.pop();
                    // As if it had been in the file: a find that its form does not prove is not recorded.
                    store.record_only(
                        &key,
                        RuleBody { with: Some(lie), by: "malice".into(), effort: 1, excluded: Some(0) },
                    );
                    let Some(instance) = store.instance(&key, &renaming) else { continue };
                    poisoned += 1;
                    if matches!(o.judge(env, p, &mut cache, &instance), Answer::Equal) {
                        // Then it is no lie: the last operation was useless, and the prover can say so again.
                        let known = bpf_prove::window(
                            w.kind,
                            env,
                            w.before,
                            w.old,
                            &instance,
                            w.live,
                            None,
                            &Options::default(),
                        );
                        assert!(known.0.is_equal());
                    }
                }
            });
        }
        assert!(poisoned >= 20, "{poisoned}");
    })
    .expect("a thread");
}
