//! `cargo bench -p bpf-bench`: the prover over the queries of real optimizer runs.
//!
//! One group asks every window query of an object, without remembering; the other proves the object's
//! functions, original against optimized, as wholes.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bpf_bench::{deep, harvest, objects};
use bpf_prove::{Options, ask, functions};
use criterion::{Criterion, Throughput};

fn paths() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    ["examples", "../shared/bench/k2"].iter().flat_map(|d| objects(&root.join(d))).collect()
}

fn bench(c: &mut Criterion) {
    for path in paths() {
        let Ok(h) = harvest(&path) else { continue };
        let count: usize = h.functions.iter().map(|(_, _, q)| q.len()).sum();
        if count == 0 {
            continue;
        }
        let mut group = c.benchmark_group("prove");
        group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1));
        group.throughput(Throughput::Elements(count as u64));
        h.module.with_env(|env| {
            group.bench_function(format!("windows/{}", h.name), |b| {
                b.iter(|| {
                    for q in h.functions.iter().flat_map(|(_, _, q)| q) {
                        let _ = black_box(ask(&q.function, env, &q.known(), &q.rewrite, &q.options));
                    }
                });
            });
            group.throughput(Throughput::Elements(h.functions.len() as u64));
            group.bench_function(format!("functions/{}", h.name), |b| {
                b.iter(|| {
                    for (old, new, _) in &h.functions {
                        black_box(functions(old, new, env, &Options::default()));
                    }
                });
            });
        });
        group.finish();
    }
}

fn main() {
    let run = || {
        let mut criterion = Criterion::default().configure_from_args();
        bench(&mut criterion);
        criterion.final_summary();
    };
    if deep(run).is_none() {
        std::process::exit(70);
    }
}
