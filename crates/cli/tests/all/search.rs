//! The search from outside: repeatable, interruptible, not to be misled.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use crate::common::{bpf_opt, command, example};

/// Optimizes an example and gives the output's bytes.
fn optimized(name: &str, extra: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out.o").display().to_string();
    let input = example(name).display().to_string();
    let args = ["opt", &input, "-o", &out, "--no-kernel", "--time-limit", "120", "-q"];
    bpf_opt(args.iter().chain(extra)).expect(0);
    bpf_opt(["verify", &input, &out]).expect(0);
    fs::read(out).expect("the output")
}

#[test]
fn the_same_seed_gives_the_same_bytes_whatever_the_number_of_jobs() {
    let once = optimized("legacy_maps.o", &["--no-cache", "--seed", "5", "--jobs", "1"]);
    assert!(once == optimized("legacy_maps.o", &["--no-cache", "--seed", "5", "--jobs", "1"]));
    assert!(once == optimized("legacy_maps.o", &["--no-cache", "--seed", "5", "--jobs", "2"]));
}

#[test]
fn so_many_rounds_give_the_same_bytes_whatever_the_number_of_jobs_and_what_was_learned_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let input = example("hooks.o").display().to_string();
    let run = |out: &str, extra: &[&str]| {
        let (out, json) = (at(out), at(&format!("{out}.json")));
        let args = ["opt", &input, "-o", &out, "--json", &json, "--no-kernel", "--time-limit", "300", "-q"];
        // The user's cache is this folder.
        let mut command = command();
        command.env("XDG_CACHE_HOME", folder.path()).args(args.iter().chain(extra));
        assert!(command.status().expect("it runs").success());
        let report = fs::read_to_string(&json).expect("the report");
        let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        (fs::read(&out).expect("the output"), report)
    };
    let (once, report) = run("once.o", &["--rounds", "1", "--jobs", "1"]);
    assert_eq!(report["rounds"], 1);
    assert_eq!((&report["search"]["rounds"], &report["search"]["ended"]), (&1.into(), &"rounds".into()));
    // Another run leaves there what it has learned.
    run("other.o", &[]);
    assert!(folder.path().join("bpf-opt/rules.redb").exists());
    for jobs in ["1", "2", "5"] {
        let (again, report) = run("again.o", &["--rounds", "1", "--jobs", jobs]);
        assert!(once == again, "with {jobs} jobs");
        assert_eq!(report["search"]["ended"], "rounds");
    }
    let (none, report) = run("none.o", &["--rounds", "0"]);
    assert!(none == run("passes.o", &["--no-search", "--no-shipped-rules"]).0);
    assert_eq!(report["search"]["windows"], 0);
}

#[test]
fn forms_of_one_search_are_proven_distinct_and_the_same_each_time() {
    let input = example("hooks.o").display().to_string();
    let run = |jobs: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name).display().to_string();
        let (out, json) = (at("out.o"), at("report.json"));
        let args = ["opt", &input, "-o", &out, "--json", &json, "--goal", "latency", "--keep", "4", "--rounds", "2"];
        bpf_opt(args.iter().chain(&["--jobs", jobs, "--no-kernel", "--time-limit", "300", "-q"])).expect(0);
        let report = fs::read_to_string(&json).expect("the report");
        let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        let forms = report["variants"].as_array().expect("forms").clone();
        assert!(forms.iter().all(|form| form["time_ratio"].is_null()), "nothing was run: {forms:?}");
        let files: Vec<&str> = forms.iter().map(|form| form["output"].as_str().expect("a path")).collect();
        assert_eq!(files, ["out.o", "out.2.o", "out.3.o", "out.4.o"].map(at));
        files.iter().for_each(|file| drop(bpf_opt(["verify", "--no-run-check", &input, file]).expect(0)));
        files.iter().map(|file| fs::read(file).expect("a form")).collect::<Vec<_>>()
    };
    let forms = run("1");
    for (i, form) in forms.iter().enumerate() {
        assert!(!forms[..i].contains(form), "form {} is there twice", i + 1);
    }
    assert!(forms == run("2"), "with two jobs");
}

#[test]
fn forms_that_nobody_asked_for_are_measured_and_not_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (input, out, json) = (example("xdp_count.o").display().to_string(), at("out.o"), at("report.json"));
    let forms = |extra: &[&str]| {
        let args = ["opt", &input, "-o", &out, "--json", &json, "--goal", "latency", "--no-cache", "-q"];
        bpf_opt(args.iter().chain(extra)).expect(0);
        let report = fs::read_to_string(&json).expect("the report");
        let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        report["variants"].as_array().expect("forms").clone()
    };
    let all = forms(&["--time-limit", "8"]);
    assert!(!all.is_empty() && all[0]["output"] == out.as_str(), "{all:?}");
    assert!(all[1..].iter().all(|form| form["output"].is_null()), "{all:?}");
    for one in [&["--no-kernel"][..], &["-O1"], &["--rounds", "1"], &["--keep", "1"]] {
        assert!(forms(one).is_empty(), "{one:?}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);
}

#[test]
fn what_was_learned_gives_the_same_bytes_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("rules.redb").display().to_string();
    for name in ["xdp_count.o", "legacy_maps.o", "globals.o", "hooks.o"] {
        let cold = optimized(name, &["--cache", &cache, "--jobs", "2"]);
        assert!(fs::metadata(&cache).is_ok_and(|m| m.len() > 0), "nothing was kept");
        assert!(cold == optimized(name, &["--cache", &cache, "--jobs", "2"]), "{name}");
    }
}

#[test]
fn a_poisoned_cache_wastes_time_at_most() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (cache, text, poisoned) = (at("rules.redb"), at("rules.txt"), at("poisoned.redb"));
    optimized("xdp_count.o", &["--cache", &cache]);
    bpf_opt(["rules", "export", &text, "--cache", &cache]).expect(0);
    // Whatever it was: nothing at all is shorter, or nothing but the jumps.
    let rules = fs::read_to_string(&text).expect("the export");
    let poison = |rule: &str| {
        let jumps: String = rule.lines().filter(|l| l.starts_with("    if ")).map(|l| format!("{l}\n")).collect();
        let bad = if jumps.is_empty() { "    nothing\n".into() } else { jumps };
        rule.replace("  unsolved\n", &format!("  becomes\n{bad}"))
    };
    let bad: String = rules.split_inclusive("end\n").map(poison).collect();
    fs::write(&text, bad).expect("written");
    assert_ne!(fs::read_to_string(&text).expect("there"), rules, "there was nothing to poison");
    bpf_opt(["rules", "import", &text, "--cache", &poisoned]).expect(0);
    bpf_opt(["rules", "verify", "--cache", &poisoned]).expect(1);
    // `optimized` proves the result.
    optimized("xdp_count.o", &["--cache", &poisoned]);
}

#[test]
fn a_signal_ends_the_search_with_the_best_so_far() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out.o").display().to_string();
    let input = example("hooks.o").display().to_string();
    let args = ["opt", &input, "-o", &out, "--no-kernel", "--no-cache", "--time-limit", "300", "-q"];
    let mut child = command().args(args).stderr(Stdio::null()).spawn().expect("it starts");
    std::thread::sleep(Duration::from_millis(600));
    // It may be through already on a fast machine; then there was nothing to interrupt.
    let through = child.try_wait().expect("it can be asked").is_some();
    let pid = child.id().to_string();
    if !through {
        assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    }
    let status = child.wait().expect("it ends");
    assert!(through || status.code() == Some(130), "{status}");
    bpf_opt(["verify", &input, &out]).expect(0);
}

/// What a level makes of an example: the output, and the report.
fn at_level(name: &str, extra: &[&str]) -> (Vec<u8>, serde_json::Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (input, out, json) = (example(name).display().to_string(), at("out.o"), at("report.json"));
    let args = ["opt", &input, "-o", &out, "--json", &json, "--no-kernel", "--no-cache", "-q"];
    bpf_opt(args.iter().chain(extra)).expect(0);
    bpf_opt(["verify", &input, &out]).expect(0);
    let report = fs::read_to_string(&json).expect("the report");
    (fs::read(out).expect("the output"), serde_json::from_str(&report).expect("JSON"))
}

#[test]
fn levels_say_how_much_is_done() {
    let slots = |report: &serde_json::Value| -> u64 {
        let functions = report["functions"].as_array().expect("a list");
        functions.iter().map(|f| f["slots_after"].as_u64().expect("a number")).sum()
    };
    let name = "legacy_maps.o";
    let (rules, report) = at_level(name, &["-O1"]);
    assert!(rules == at_level(name, &["--no-search"]).0 && report["search"]["proposals"] == 0, "{report}");
    let most = slots(&report);
    let mut windows = 0;
    for (level, ends) in [("-O2", "stalled"), ("-O3", "stalled"), ("-O4", "done")] {
        let (_, report) = at_level(name, &[level]);
        let search = &report["search"];
        assert!(slots(&report) <= most, "{level}: {report}");
        assert!([ends, "done"].contains(&search["ended"].as_str().expect("a word")), "{level}: {report}");
        let seen = search["windows"].as_u64().expect("a number");
        assert!(seen >= windows, "{level}: {report}");
        windows = seen;
    }
    let (plain, _) = at_level(name, &[]);
    assert!(plain == at_level(name, &["-O2"]).0, "-O2 is what is done unless it is said otherwise");
    let input = example(name).display().to_string();
    for extra in [&["-O5"][..], &["-O1", "--ssa"], &["-O2", "--no-search"]] {
        let args = ["opt", &input, "-o", "/nonexistent/out.o"];
        bpf_opt(args.iter().chain(extra)).expect(2);
    }
}
