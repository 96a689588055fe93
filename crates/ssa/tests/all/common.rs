//! Functions from listings, and what passes make of them: proven.

use bpf_facts::{Env, MapInfo};
use bpf_isa::{Insn, parse_listing};
use bpf_program::{Function, ProgKind, Symbol, lower};
use bpf_prove::{Options, functions};
use bpf_ssa::passes::Pass;
use bpf_ssa::{all_passes, candidate, verify};
use bpf_testgen::listing::linked;

/// The graph of a listing. Any `rN = 0 ll` refers to a map with 4-byte keys and 8-byte values.
pub fn function(text: &str) -> Function {
    let counter = || Symbol::Map { name: "counter".into(), index: 0 };
    let symbol = |insn: &Insn| matches!(insn, Insn::LoadImm64 { imm: 0, .. }).then(counter);
    linked(ProgKind::Xdp, text, symbol).expect("a function")
}

pub fn with_env<T>(f: impl FnOnce(&Env<'_>) -> T) -> T {
    let maps = [MapInfo {
        name: "counter".into(),
        map_type: Some(2),
        key_size: Some(4),
        value_size: Some(8),
        max_entries: Some(16),
        values_known: true,
        ..MapInfo::default()
    }];
    f(&Env { maps: &maps, callee_args: &|_| None, ..Env::empty() })
}

pub fn listing(f: &Function) -> String {
    lower(f).expect("it lowers").listing.iter().map(|(_, i)| format!("{i}\n")).collect()
}

#[track_caller]
pub fn same(got: &str, want: &str) {
    let want: String = parse_listing(want).expect("a listing").iter().map(|i| format!("{i}\n")).collect();
    if got != want {
        panic!("\n{}", similar::TextDiff::from_lines(want.as_str(), got).unified_diff().header("wanted", "got"));
    }
}

/// What these passes make of a function; proven.
#[track_caller]
pub fn with(passes: &[&str], before: &str) -> String {
    let f = function(before);
    with_env(|env| {
        let mut chosen = all_passes();
        chosen.retain(|p| passes.contains(&p.name()));
        assert_eq!(chosen.len(), passes.len(), "no such pass");
        let chosen: Vec<&dyn Pass> = chosen.iter().map(AsRef::as_ref).collect();
        let c = candidate(&f, env, &chosen).expect("a candidate");
        assert_eq!(verify(&c.ssa), Ok(()));
        let verdict = functions(&f, &c.function, env, &Options::default()).0;
        assert!(verdict.is_equal(), "{verdict:?}\n{}", listing(&c.function));
        listing(&c.function)
    })
}

#[track_caller]
pub fn becomes(passes: &[&str], before: &str, after: &str) {
    same(&with(passes, before), after);
}

/// What a pass of graphs makes of one; proven.
#[track_caller]
pub fn graphs(pass: &str, before: &str) -> Vec<String> {
    let f = function(before);
    with_env(|env| {
        let passes = all_passes();
        let pass = passes.iter().find(|p| p.name() == pass).expect("the pass");
        let graphs = pass.graphs(&f, env);
        for g in &graphs {
            let verdict = functions(&f, g, env, &Options::default()).0;
            assert!(verdict.is_equal(), "{verdict:?}\n{}", listing(g));
        }
        graphs.iter().map(listing).collect()
    })
}
