//! The search's tests against the prover, over what the passes propose for real programs: a test that
//! refuses what is proven would hide improvements, and a refutation should become a test.

use std::path::PathBuf;

use bpf_bench::{deep, harvest, objects};
use bpf_isa::Goal;
use bpf_prove::{Verdict, ask};
use bpf_search::Window;
use bpf_search::batch::{Batch, NOP};
use bpf_search::counterexample;
use bpf_search::inputs::Input;
use bpf_search::settings::Distance;

#[derive(Default, Debug)]
struct Count {
    proven: usize,
    killed_wrongly: Vec<String>,
    untestable: usize,
    refuted: usize,
    refuted_by_tests: usize,
    refuted_by_its_input: usize,
    not_shown: Vec<String>,
}

fn count(path: &std::path::Path, c: &mut Count) {
    let h = harvest(path).expect("an object");
    h.module.with_env(|env| {
        for (_, _, queries) in &h.functions {
            for q in queries.iter().filter(|q| q.rewrite.term.is_none() && q.rewrite.path.is_empty()) {
                let (start, end) = (q.rewrite.start, q.rewrite.end);
                let old = &q.function.block(q.rewrite.block).ops[start..end];
                let w = Window {
                    kind: q.function.kind,
                    env,
                    before: &q.states[start],
                    old,
                    live: &q.live[end],
                    cpu: 4,
                    goal: Goal::Size,
                    deadline: None,
                    superblock: None,
                };
                if old.is_empty() || q.rewrite.with.len() > old.len() || old.iter().any(|o| o.insn.defs().len() > 1) {
                    continue;
                }
                let verdict = ask(&q.function, env, &q.known(), &q.rewrite, &q.options);
                let mut new = q.rewrite.with.clone();
                new.resize(old.len(), bpf_program::Op::new(NOP));
                let what = || {
                    let list = |ops: &[bpf_program::Op], c: char| -> String {
                        ops.iter().map(|o| format!("  {c} {}\n", o.insn)).collect()
                    };
                    format!(
                        "{} by {} ({:?}):\n{}{}",
                        h.name,
                        q.rewrite.by,
                        w.before.reg(bpf_isa::Reg::R1),
                        list(old, '-'),
                        list(&q.rewrite.with, '+')
                    )
                };
                let passes = (0..4).all(|n| {
                    let inputs: [Input; 8] = std::array::from_fn(|l| Input::new(&w, 9, n * 8 + l as u64));
                    match Batch::<8>::new(&w, &inputs) {
                        Some(mut b) => {
                            b.run(&new, 0);
                            b.score(Distance::Pop).perfect()
                        }
                        None => {
                            c.untestable += 1;
                            true
                        }
                    }
                });
                match verdict {
                    Ok(_) => {
                        c.proven += 1;
                        if !passes {
                            c.killed_wrongly.push(what());
                        }
                    }
                    Err((Verdict::Different(d), _)) => {
                        c.refuted += 1;
                        let shown = counterexample::inputs(&w, &d, 1).into_iter().any(|i| {
                            Batch::<8>::new(&w, &std::array::from_fn(|_| i.clone())).is_some_and(|mut b| {
                                b.run(&new, 0);
                                !b.score(Distance::Pop).perfect()
                            })
                        });
                        c.refuted_by_tests += usize::from(!passes);
                        c.refuted_by_its_input += usize::from(shown);
                        if passes && !shown {
                            c.not_shown.push(what());
                        }
                    }
                    Err(_) => {}
                }
            }
        }
    });
}

#[test]
fn tests_accept_what_is_proven_and_learn_what_is_refuted() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/bench");
    let paths: Vec<PathBuf> = ["k2", "public"].iter().flat_map(|d| objects(&root.join(d))).collect();
    if paths.is_empty() {
        eprintln!("skipped: no benchmark objects in {}", root.display());
        return;
    }
    let c = deep(|| {
        let mut c = Count::default();
        paths.iter().filter(|p| p.metadata().is_ok_and(|m| m.len() < 200_000)).for_each(|p| count(p, &mut c));
        c
    })
    .expect("no panic");
    println!(
        "{} proven, {} killed; {} batches untestable; {} refuted: {} by tests, {} by the model's input, {} by neither",
        c.proven,
        c.killed_wrongly.len(),
        c.untestable,
        c.refuted,
        c.refuted_by_tests,
        c.refuted_by_its_input,
        c.not_shown.len()
    );
    println!("not shown:\n{}", c.not_shown.iter().take(8).cloned().collect::<String>());
    assert!(c.proven > 100);
    // Reading more often than the original, or what it does not read, is a fault here; where the prover
    // knows better, a proposal is lost.
    let share = c.killed_wrongly.len() as f64 / c.proven as f64;
    assert!(share < 0.01, "{}", c.killed_wrongly.iter().take(20).cloned().collect::<String>());
}
