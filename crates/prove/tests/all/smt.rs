//! The SMT-LIB text of queries: Z3 reads it as the graph means it.

use std::io::Write;
use std::process::{Command, Stdio};

use bpf_prove::blast::{Model, children};
use bpf_prove::smt::{Query, Status};
use bpf_prove::term::{Node, TermId, Terms, VarId, mask};

/// Z3's answers to several formulas; `None` where there is no Z3.
fn z3(formulas: &[String]) -> Option<Vec<String>> {
    let required = std::env::var_os("BPF_OPT_REQUIRE_Z3").is_some();
    let child = Command::new("z3").arg("-in").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = match child {
        Ok(c) => c,
        Err(e) => {
            assert!(!required, "z3 is required and does not start: {e}");
            eprintln!("skipped: no z3 here ({e})");
            return None;
        }
    };
    let mut input = child.stdin.take().expect("a pipe");
    let text: String = formulas.iter().map(|f| format!("(reset)\n{f}(check-sat)\n")).collect();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()).expect("z3 reads"));
    let output = child.wait_with_output().expect("z3 ends");
    writer.join().expect("written");
    let lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), formulas.len(), "{lines:?}");
    Some(lines)
}

fn formula(terms: &Terms, demands: &[TermId]) -> String {
    Query { terms, demands, status: Status::Unknown, model: None, by: "test", origins: None }.formula()
}

/// Numbers at the edges of `w` bits.
fn edges(w: u32) -> Vec<u64> {
    let mut v: Vec<u64> = [
        0,
        1,
        2,
        3,
        u64::from(w) - 1,
        u64::from(w),
        u64::from(w) + 1,
        1 << (w - 1),
        mask(w),
        mask(w) >> 1,
        0xdead_beef_cafe_f00d,
    ]
    .iter()
    .map(|x| x & mask(w))
    .collect();
    v.sort_unstable();
    v.dedup();
    v
}

fn var(g: &mut Terms, w: u32) -> (VarId, TermId) {
    g.fresh(w)
}

/// For every operation and width, `op(x, y)` at edge values: that it has the value which `Model::eval`
/// gives is satisfiable, that it has another one is not.
#[test]
fn every_node_means_in_z3_what_it_means_here() {
    type Make = fn(&mut Terms, TermId, TermId) -> TermId;
    let operations: &[(&str, Make)] = &[
        ("sum", |g, a, b| {
            let w = g.width(a);
            g.sum(w, vec![(a, 3), (b, u64::MAX)], 0x1234_5678_9abc_def7)
        }),
        ("sub", |g, a, b| g.sub(a, b)),
        ("mul", |g, a, b| g.mul(a, b)),
        ("udiv", |g, a, b| g.udiv(a, b)),
        ("urem", |g, a, b| g.urem(a, b)),
        ("sdiv", |g, a, b| g.sdiv(a, b)),
        ("srem", |g, a, b| g.srem(a, b)),
        ("and", |g, a, b| g.and(a, b)),
        ("or", |g, a, b| g.or(a, b)),
        ("xor", |g, a, b| g.xor(a, b)),
        ("shl", |g, a, b| g.shl(a, b)),
        ("lshr", |g, a, b| g.lshr(a, b)),
        ("ashr", |g, a, b| g.ashr(a, b)),
        ("eq", |g, a, b| g.eq(a, b)),
        ("ult", |g, a, b| g.ult(a, b)),
        ("slt", |g, a, b| g.slt(a, b)),
        ("ite", |g, a, b| {
            let c = g.ult(a, b);
            let x = g.xor(a, b);
            g.ite(c, x, b)
        }),
        ("all", |g, a, b| {
            let (x, y) = (g.ult(a, b), g.slt(a, b));
            g.all(&[x, y])
        }),
        ("not", |g, a, b| {
            let x = g.slt(a, b);
            g.not(x)
        }),
        ("concat", |g, a, b| {
            let w = g.width(a);
            let half = w.div_ceil(2);
            let (x, y) = (g.extract(a, w - half, half), g.extract(b, 0, w - half + u32::from(w == 1)));
            g.concat(&[y, x])
        }),
        ("sext", |g, a, b| {
            let w = g.width(a);
            let x = g.extract(a, 0, w.div_ceil(3));
            let x = g.sext(x, w);
            g.xor(x, b)
        }),
    ];
    let mut formulas = vec![];
    let mut expected = vec![];
    let mut kinds = std::collections::BTreeSet::new();
    for (name, make) in operations {
        for w in [1u32, 3, 8, 32, 64] {
            let mut g = Terms::new();
            let (x, tx) = var(&mut g, w);
            let (y, ty) = var(&mut g, w);
            let r = make(&mut g, tx, ty);
            let rw = g.width(r);
            let values = edges(w);
            let pairs = values.iter().flat_map(|a| values.iter().map(move |b| (*a, *b)));
            // Division of 64 bits is hard for everyone: fewer pairs. Shifts by the width or more are never made.
            for (i, (a, b)) in pairs.enumerate() {
                if (["shl", "lshr", "ashr"].contains(name) && b >= u64::from(w)) || (w > 3 && i % 11 != 0) {
                    continue;
                }
                let mut m = Model::default();
                m.vars.insert(x, a);
                m.vars.insert(y, b);
                let v = m.eval(&g, r);
                let (ka, kb, kv) = (g.constant(w, a), g.constant(w, b), g.constant(rw, v));
                let (ea, eb) = (g.eq(tx, ka), g.eq(ty, kb));
                let same = g.eq(r, kv);
                let other = g.not(same);
                formulas.push(formula(&g, &[ea, eb, same]));
                expected.push(format!("{name} {w} {a:#x} {b:#x} = {v:#x}: sat"));
                formulas.push(formula(&g, &[ea, eb, other]));
                expected.push(format!("{name} {w} {a:#x} {b:#x} = {v:#x}: unsat"));
            }
            collect_kinds(&g, r, &mut kinds);
        }
    }
    assert_eq!(kinds.len(), 21, "node kinds reached: {kinds:?}");
    let Some(answers) = z3(&formulas) else { return };
    for (answer, what) in answers.iter().zip(&expected) {
        assert!(what.ends_with(&format!(": {answer}")), "{what}, z3 says {answer}");
    }
}

/// The names of all kinds of nodes below `root`; `Select` has its own test.
fn collect_kinds(g: &Terms, root: TermId, kinds: &mut std::collections::BTreeSet<String>) {
    let name = format!("{:?}", g.node(root));
    kinds.insert(name.split(['(', ' ']).next().unwrap_or_default().to_owned());
    children(g.node(root), &mut |c| collect_kinds(g, c, kinds));
}

#[test]
fn shifts_by_the_width_or_more_are_zeros_or_signs() {
    let mut formulas = vec![];
    for w in [1u32, 8, 32, 64] {
        let mut g = Terms::new();
        let (_, x) = var(&mut g, w);
        let (_, y) = var(&mut g, w);
        let (l, r, a) = (g.shl(x, y), g.lshr(x, y), g.ashr(x, y));
        let (zero, top) = (g.constant(w, 0), g.constant(w, u64::from(w) - 1));
        let beyond = g.ult(top, y);
        let sign = g.slt(x, zero);
        let (ones, kz) = (g.constant(w, u64::MAX), g.constant(w, 0));
        let fill = g.ite(sign, ones, kz);
        let wrong: Vec<TermId> = [(l, zero), (r, zero), (a, fill)]
            .into_iter()
            .map(|(s, t)| {
                let e = g.eq(s, t);
                g.not(e)
            })
            .collect();
        let wrong = g.any(&wrong);
        formulas.push(formula(&g, &[beyond, wrong]));
    }
    let Some(answers) = z3(&formulas) else { return };
    assert!(answers.iter().all(|a| a == "unsat"), "{answers:?}");
}

#[test]
fn equal_addresses_hold_equal_bytes_in_one_memory_only() {
    let mut g = Terms::new();
    let (v0, v1) = (g.constant(32, 0), g.constant(32, 1));
    let (m, n) = (g.mem_base(0, v0), g.mem_base(0, v1));
    let (_, a) = var(&mut g, 64);
    let (_, b) = var(&mut g, 64);
    let (x, y, z) = (g.select(m, a, 4), g.select(m, b, 4), g.select(n, a, 4));
    let same_address = g.eq(a, b);
    let (xy, xz) = (g.eq(x, y), g.eq(x, z));
    let (differ, elsewhere) = (g.not(xy), g.not(xz));
    let formulas =
        [formula(&g, &[same_address, differ]), formula(&g, &[differ]), formula(&g, &[same_address, elsewhere])];
    assert!(formulas[0].contains("QF_ABV") && formulas[0].contains("(select m0 "));
    let Some(answers) = z3(&formulas) else { return };
    assert_eq!(answers, ["unsat", "sat", "sat"]);
}

/// Asks our own solver and Z3; `Err` is what a campaign would report.
fn judged(terms: &Terms, demands: &[TermId], claim: Status) -> Option<Result<(), String>> {
    let answer = z3(&[formula(terms, demands)])?.remove(0);
    Some(if answer == claim.name() { Ok(()) } else { Err(format!("we say {}, z3 says {answer}", claim.name())) })
}

#[test]
fn a_wrong_verdict_is_caught() {
    let mut g = Terms::new();
    let (_, x) = var(&mut g, 64);
    let (_, y) = var(&mut g, 64);
    let q = g.udiv(x, y);
    let zero = g.constant(64, 0);
    let by_zero = g.eq(y, zero);
    let ones = g.constant(64, u64::MAX);
    let is_ones = g.eq(q, ones);
    let not_ones = g.not(is_ones);
    let Some(right) = judged(&g, &[by_zero, not_ones], Status::Unsat) else { return };
    assert_eq!(right, Ok(()));
    let wrong = judged(&g, &[by_zero, not_ones], Status::Sat).expect("z3 is here");
    assert_eq!(wrong, Err("we say sat, z3 says unsat".into()));
    let wrong = judged(&g, &[by_zero, is_ones], Status::Unsat).expect("z3 is here");
    assert_eq!(wrong, Err("we say unsat, z3 says sat".into()));
}

#[test]
fn a_model_that_does_not_satisfy_the_query_is_seen() {
    let mut g = Terms::new();
    let (v, x) = var(&mut g, 8);
    let k = g.constant(8, 7);
    let is_seven = g.eq(x, k);
    let mut m = Model::default();
    let holds = |m: &Model, g: &Terms| {
        Query { terms: g, demands: &[is_seven], status: Status::Sat, model: Some(m), by: "test", origins: None }
            .model_holds()
    };
    assert!(!holds(&m, &g));
    m.vars.insert(v, 7);
    assert!(holds(&m, &g));
}

#[test]
fn a_file_says_where_it_comes_from_and_shared_graphs_stay_linear() {
    let mut g = Terms::new();
    let (_, mut x) = var(&mut g, 64);
    let (_, y) = var(&mut g, 64);
    for _ in 0..200 {
        let p = g.mul(x, x);
        x = g.xor(p, y);
    }
    let zero = g.constant(64, 0);
    let e = g.eq(x, zero);
    assert!(matches!(g.node(e), Node::Eq(..)));
    let q = Query { terms: &g, demands: &[e], status: Status::Unknown, model: None, by: "solver", origins: None };
    let file = q.file();
    assert!(file.starts_with("; bpf-opt: a query of the prover, unknown by its solver\n"), "{file}");
    assert!(file.contains("(set-info :status unknown)") && file.ends_with("(check-sat)\n"));
    assert!(file.len() < 100 * 410, "{} bytes", file.len());
}
