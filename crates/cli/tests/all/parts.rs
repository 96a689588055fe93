//! Results of single functions from outside: kept, named by what they depend on, and never trusted.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{bpf_opt, example};

const BUDGET: [&str; 6] = ["--rounds", "1", "--by-function", "--no-kernel", "--time-limit", "300"];

/// Optimizes an example with results from this folder, if there is one; the output's bytes, and what the report says of them.
fn optimized(name: &str, folder: &Path, parts: Option<&Path>) -> (Vec<u8>, Value) {
    let at = |name: &str| folder.join(name).display().to_string();
    let (input, out, json) = (example(name).display().to_string(), at("out.o"), at("report.json"));
    let parts = parts.map(|p| p.display().to_string());
    let mut args = vec!["opt", &input, "-o", &out, "--json", &json, "-q"];
    args.extend(BUDGET);
    args.extend(parts.iter().flat_map(|p| ["--parts", p]));
    bpf_opt(args).expect(0);
    let report: Value = serde_json::from_slice(&fs::read(&json).expect("the report")).expect("JSON");
    (fs::read(out).expect("the output"), report["parts"].clone())
}

/// The names of the results of an example's functions.
fn names(name: &str) -> Vec<String> {
    let input = example(name).display().to_string();
    let ran = bpf_opt(["opt", &input, "--list-parts"].into_iter().chain(BUDGET)).expect(0);
    let line: Value = serde_json::from_str(&ran.out).expect("a line of JSON");
    let functions = line["functions"].as_array().expect("functions").iter();
    functions.filter_map(|f| f["part"].as_str().map(str::to_owned)).collect()
}

#[test]
fn objects_made_of_kept_results_are_those_of_one_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let (folder, parts) = (folder.path(), folder.path().join("parts"));
    for name in ["subprogs.o", "hooks.o", "globals.o"] {
        let (once, report) = optimized(name, folder, None);
        assert_eq!(report, Value::Null);
        let input = example(name).display().to_string();
        let kept = parts.display().to_string();
        for function in names_of_functions(name) {
            let make = ["opt", &input, "--program", &function, "--make-parts", "--parts", &kept, "-q"];
            bpf_opt(make.into_iter().chain(BUDGET)).expect(0);
        }
        let (again, report) = optimized(name, folder, Some(&parts));
        assert!(once == again, "{name}");
        assert_eq!(report["taken"], names(name).len(), "{name}");
        assert_eq!((&report["made"], &report["again"]), (&0.into(), &false.into()), "{name}");
    }
}

fn names_of_functions(name: &str) -> Vec<String> {
    let input = example(name).display().to_string();
    let ran = bpf_opt(["opt", &input, "--list-parts"].into_iter().chain(BUDGET)).expect(0);
    let line: Value = serde_json::from_str(&ran.out).expect("a line of JSON");
    let functions = line["functions"].as_array().expect("functions").iter();
    functions.filter_map(|f| Some(f["part"].as_str().and(f["function"].as_str())?.to_owned())).collect()
}

#[test]
fn a_wrong_or_damaged_result_costs_time_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let (folder, parts) = (folder.path(), folder.path().join("parts"));
    let (once, _) = optimized("globals.o", folder, None);
    optimized("globals.o", folder, Some(&parts));
    let damage: [&dyn Fn(&str) -> String; 4] = [
        &|_| "not JSON".to_owned(),
        // Another number: 1 is added to the lowest digit of each immediate.
        &|text| text.replace("00000000\"", "01000000\""),
        &|text| text.replace("\"body\":[[", "\"body\":[[\"9500000000000000\",0,null],["),
        &|text| text.replace("null]", "9999]"),
    ];
    for (i, damage) in damage.iter().enumerate() {
        for name in names("globals.o") {
            let file = parts.join(format!("{name}.json"));
            let text = fs::read_to_string(&file).expect("a result");
            fs::write(&file, damage(&text)).expect("written");
        }
        let (again, report) = optimized("globals.o", folder, Some(&parts));
        assert!(once == again, "damage {i}");
        assert!(report["made"].as_u64().expect("a number") > 0, "damage {i}: {report}");
    }
    // The good ones were kept again.
    assert_eq!(optimized("globals.o", folder, Some(&parts)).1["made"], 0);
}

#[test]
fn a_result_is_named_by_what_it_depends_on() {
    let of = |extra: &[&str]| {
        let input = example("globals.o").display().to_string();
        bpf_opt(["opt", &input, "--list-parts"].iter().chain(&BUDGET).chain(extra)).expect(0).out
    };
    let plain = of(&[]);
    assert!(plain == of(&["--jobs", "2", "--keep-debug"]), "what does not matter is not in the name");
    for extra in [["--seed", "2"], ["--goal", "latency"], ["--cpu", "v4"]] {
        assert!(plain != of(&extra), "{extra:?}");
    }
}

#[test]
fn options_that_do_not_go_with_single_functions_are_refused() {
    let input = example("globals.o").display().to_string();
    bpf_opt(["opt", &input, "-o", "/dev/null", "--by-function"]).expect(2);
    bpf_opt(["opt", &input, "-o", "/dev/null", "--parts", "x"]).expect(2);
    bpf_opt(["opt", &input, "--make-parts", "--rounds", "1", "--by-function"]).expect(2);
    let verifier = ["opt", &input, "--list-parts", "--goal", "verifier"];
    bpf_opt(verifier.into_iter().chain(BUDGET)).expect(2);
}
