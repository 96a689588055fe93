//! Many objects with one command: folders and lists, tables, reports, exit codes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bpf_kernel::testing::permitted;
use bpf_object::Object;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::*;

/// What makes results the same to the byte, and quick.
const REPEATABLE: [&str; 9] =
    ["--rounds", "1", "--no-cache", "--no-kernel", "--seed", "3", "--time-limit", "300", "--no-run-check"];

/// Objects as they come: in folders, twins, damaged, of other machines, no objects at all.
fn set() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let put = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, bytes).expect("written");
    };
    let read = |name: &str| fs::read(example(name)).expect("a committed object");
    for name in ["globals.o", "kinds.o", "legacy_maps.o", "subprogs.o"] {
        put(&format!("good/{name}"), &read(name));
        put(&format!("good/again/{name}"), &read(name));
    }
    let globals = read("globals.o");
    put("bad/half.o", &globals[..globals.len() / 2]);
    put("bad/text.o", b"int main(void) { return 0; }\n");
    put("bad/empty.o", b"");
    let mut foreign = globals.clone();
    foreign[18] = 62;
    put("bad/x86.o", &foreign);
    // The same code in another file.
    put("padded.o", &[&globals[..], &[0; 9]].concat());
    put("notes.txt", b"no object");
    folder
}

const GOOD: [&str; 9] = [
    "good/again/globals.o",
    "good/again/kinds.o",
    "good/again/legacy_maps.o",
    "good/again/subprogs.o",
    "good/globals.o",
    "good/kinds.o",
    "good/legacy_maps.o",
    "good/subprogs.o",
    "padded.o",
];
const BAD: [&str; 4] = ["bad/empty.o", "bad/half.o", "bad/text.o", "bad/x86.o"];

/// The rows of a table by object and program, each cell by its column.
fn rows(csv: &[u8]) -> Vec<BTreeMap<String, String>> {
    let mut reader = csv::Reader::from_reader(csv);
    reader.deserialize().map(|row| row.expect("a row of the table")).collect()
}

fn slots(path: &Path) -> usize {
    let object = Object::parse(fs::read(path).expect("it is there")).expect("an object");
    object.functions().iter().map(|f| f.slots).sum()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("the report")).expect("JSON")
}

/// Files below a folder, relative to it.
fn files(folder: &Path) -> Vec<String> {
    let found = walkdir::WalkDir::new(folder).sort_by_file_name().into_iter().map(|e| e.expect("an entry"));
    let files = found.filter(|e| e.file_type().is_file());
    files.map(|e| e.path().strip_prefix(folder).expect("below").display().to_string()).collect()
}

#[test]
fn each_object_is_what_it_is_alone_and_the_table_is_true() {
    let (set, work) = (set(), tempfile::tempdir().expect("a folder"));
    let at = |name: &str| work.path().join(name);
    let ran = Ran::of(
        command()
            .arg("opt")
            .arg(set.path())
            .arg("-d")
            .arg(at("out"))
            .args(REPEATABLE)
            .args(["--jobs", "3"])
            .args(["--csv".as_ref(), at("t.csv").as_os_str(), "--json".as_ref(), at("r.json").as_os_str()])
            .output()
            .expect("the binary runs"),
    )
    .expect(2);
    assert_eq!(files(&at("out")), GOOD);
    for bad in BAD {
        assert!(ran.err.contains(&format!("{}: ", set.path().join(bad).display())), "{bad}: {}", ran.err);
    }
    assert!(ran.out.contains("13 objects") && ran.out.contains("4 failed"), "{}", ran.out);
    assert!(ran.err.contains("MiB of memory") && ran.err.contains("3 threads"), "{}", ran.err);

    let table = rows(&fs::read(at("t.csv")).expect("the table"));
    let report = json(&at("r.json"));
    assert_eq!((table.len(), &report["objects"], &report["exit_status"]), (13, &13.into(), &2.into()));
    let reports = report["reports"].as_array().expect("a list");
    let mut sums = [0; 2];
    for (row, single) in table.iter().zip(reports) {
        let input = PathBuf::from(&row["object"]);
        let below = input.strip_prefix(set.path()).expect("below").display().to_string();
        assert_eq!(single["input"], row["object"].as_str(), "both are in the order of the command line");
        if BAD.contains(&below.as_str()) {
            assert_eq!((row["verdict"].as_str(), row["after"].as_str()), ("failed", ""), "{row:?}");
            assert_eq!((&single["exit_status"], &single["totals"]), (&2.into(), &Value::Null));
            assert_eq!(single["error"], row["message"].as_str());
            continue;
        }
        let output = at("out").join(&below);
        let found = [slots(&input), slots(&output)];
        assert_eq!([&row["before"], &row["after"]].map(|n| n.parse().ok()), found.map(Some), "{row:?}");
        assert_eq!(single["totals"]["slots_after"], found[1]);
        assert_eq!(row["verdict"] == "changed", fs::read(&input).expect("read") != fs::read(&output).expect("read"));
        sums = [sums[0] + found[0], sums[1] + found[1]];

        let alone = at("alone.o");
        let (input, output_alone) = (input.as_os_str(), alone.as_os_str());
        let report_alone = at("alone.json");
        Ran::of(
            command()
                .args(["opt".as_ref(), input, "-o".as_ref(), output_alone])
                .args(REPEATABLE)
                .args(["--json".as_ref(), report_alone.as_os_str()])
                .output()
                .expect("the binary runs"),
        )
        .expect(0);
        assert!(fs::read(&output).expect("read") == fs::read(&alone).expect("read"), "{below}");
        let report_alone = json(&report_alone);
        let keys = |v: &Value| v.as_object().map(|o| o.keys().cloned().collect::<Vec<_>>());
        assert_eq!(keys(single), keys(&report_alone), "a report is the same as that of a run alone");
        for key in ["goal", "seed", "rounds", "totals", "notes", "check"] {
            // What a twin was told by another has the same sums; how often the solver was asked, and passes tried in vain, may differ.
            let plain = |v: &Value| {
                let mut v = v[key].clone();
                v.as_object_mut()
                    .into_iter()
                    .for_each(|o| o.retain(|k, _| !["sat_calls", "refused"].contains(&k.as_str())));
                v
            };
            assert_eq!(plain(single), plain(&report_alone), "{below}: {key}");
        }
    }
    assert_eq!([&report["totals"]["before"], &report["totals"]["after"]], sums.map(Value::from).each_ref());
    assert!(sums[1] < sums[0], "{sums:?}");
    let twin = table.iter().find(|row| row["object"].ends_with("good/kinds.o")).expect("it is there");
    assert!(twin["twin_of"].ends_with("good/again/kinds.o"), "{twin:?}");
}

#[test]
fn rows_are_sorted_and_chosen() {
    let (set, work) = (set(), tempfile::tempdir().expect("a folder"));
    let out = work.path().join("out");
    let table = |more: &[&str]| {
        let mut command = command();
        command.arg("opt").arg(set.path()).arg("-d").arg(&out).args(["-O1", "--no-kernel", "--csv", "-"]).args(more);
        rows(Ran::of(command.output().expect("the binary runs")).expect(2).out.as_bytes())
    };
    let failed = table(&["--only", "failed"]);
    assert_eq!(failed.len(), BAD.len());
    let large = table(&["--only", "before>=100", "--only", "object~good/", "--sort", "before"]);
    let sizes: Vec<usize> = large.iter().map(|r| r["before"].parse().expect("a number")).collect();
    assert!(sizes.len() >= 2 && sizes.is_sorted_by(|a, b| a >= b) && sizes.iter().all(|s| *s >= 100), "{sizes:?}");
    for wrong in [["--sort", "beauty"], ["--only", "chagned"], ["--only", "beauty>3"], ["--sort", "after:up"]] {
        let fresh = work.path().join("fresh");
        let ran = Ran::of(
            command().arg("opt").arg(set.path()).arg("-d").arg(&fresh).args(wrong).output().expect("the binary runs"),
        )
        .expect(2);
        assert!(!fresh.join("padded.o").exists() && !ran.err.contains("bad/"), "before any work: {}", ran.err);
    }
}

#[test]
fn a_list_names_objects_and_a_second_run_does_not_read_results() {
    let work = tempfile::tempdir().expect("a folder");
    let at = |name: &str| work.path().join(name);
    fs::copy(example("globals.o"), at("globals.o")).expect("copied");
    let list = format!("# all of them\n{}\n\n{}\n", at("globals.o").display(), example("kinds.o").display());
    fs::write(at("list"), list).expect("written");
    let opt = |args: &[&str]| {
        let mut command = command();
        command.current_dir(work.path()).arg("opt").args(args).args(["-O1", "--no-kernel", "--csv", "-"]);
        rows(Ran::of(command.output().expect("the binary runs")).expect(0).out.as_bytes()).len()
    };
    assert_eq!(opt(&["--list", "list", "-d", "out"]), 2);
    assert_eq!(files(&at("out")), ["globals.o", "kinds.o"]);
    // The results stand in the folder that is read.
    assert_eq!(opt(&[".", "-d", "out"]), 1);
    // In place.
    assert_eq!(opt(&["out", "-d", "out"]), 2);
}

#[test]
fn two_objects_for_one_place_are_refused_before_any_work() {
    let (set, work) = (set(), tempfile::tempdir().expect("a folder"));
    let out = work.path().join("out");
    let refused = |inputs: &[&str], folder: &Path| {
        let inputs = inputs.iter().map(|i| set.path().join(i));
        let ran = Ran::of(
            command().arg("opt").args(inputs).arg("-d").arg(folder).arg("-O1").output().expect("the binary runs"),
        );
        ran.expect(2).err
    };
    let text = refused(&["good/globals.o", "good/again/globals.o"], &out);
    assert!(text.contains("both be written to") && text.contains("hint:") && !out.exists(), "{text}");
    let before = fs::read(set.path().join("good/globals.o")).expect("read");
    let text = refused(&["good/again/globals.o", "good"], &set.path().join("good"));
    assert!(text.contains("would"), "{text}");
    assert!(before == fs::read(set.path().join("good/globals.o")).expect("read"));
    let text = refused(&["good"], &set.path().join("padded.o"));
    assert!(text.contains("no folder"), "{text}");
}

#[test]
fn a_dash_is_standard_input_and_output() {
    let work = tempfile::tempdir().expect("a folder");
    let alone = work.path().join("alone.o");
    let input = example("globals.o");
    let piped = |args: &[&str]| {
        let stdin = Stdio::from(fs::File::open(&input).expect("it is there"));
        command().args(args).stdin(stdin).output().expect("the binary runs")
    };
    let mut opt: Vec<&str> = vec!["opt", "-", "-o", "-"];
    opt.extend(REPEATABLE);
    let out = piped(&opt);
    assert_eq!(out.status.code(), Some(0));
    Ran::of(
        command()
            .args(["opt".as_ref(), input.as_os_str(), "-o".as_ref(), alone.as_os_str()])
            .args(REPEATABLE)
            .output()
            .expect("the binary runs"),
    )
    .expect(0);
    assert!(out.stdout == fs::read(&alone).expect("read"));
    Ran::of(piped(&["verify", "-", alone.to_str().expect("text"), "--no-kernel"])).expect(0);
    Ran::of(piped(&["check", "-"])).expect(0);
    assert!(Ran::of(piped(&["dis", "-"])).expect(0).out.contains("exit"));
    for args in [
        &["opt", "-", "-o", "-", "--json", "-"][..],
        &["opt", "-", "-o", "-", "--diff"],
        &["opt", "-", "-d", "out"],
        &["opt", "-", "-", "-o", "-"],
        &["verify", "-", "-"],
        &["check", "-", "-"],
    ] {
        Ran::of(piped(args)).expect(2);
    }
    // Nobody takes the object.
    let mut child = command()
        .args(&opt)
        .stdin(Stdio::from(fs::File::open(&input).expect("it is there")))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(2));
}

#[test]
fn an_interruption_writes_what_is_begun_and_begins_no_more() {
    let (set, work) = (set(), tempfile::tempdir().expect("a folder"));
    let out = work.path().join("out");
    let child = command()
        .arg("opt")
        .arg(set.path().join("good"))
        .arg("-d")
        .arg(&out)
        .args(["--rounds", "100000", "--time-limit", "600", "--no-kernel", "--no-cache", "--jobs", "1", "--csv", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    // Objects of the same bytes are twins only where the first came to its end; so there are more than enough.
    std::thread::sleep(Duration::from_millis(700));
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).expect("a signal");
    let ran = Ran::of(child.wait_with_output().expect("it ends")).expect(130);
    let verdicts: Vec<String> = rows(ran.out.as_bytes()).iter().map(|r| r["verdict"].clone()).collect();
    assert_eq!(verdicts.len(), 8);
    assert!(verdicts.iter().any(|v| v == "not-begun") && verdicts.iter().all(|v| v != "failed"), "{verdicts:?}");
    let begun = verdicts.iter().filter(|v| *v != "not-begun").count();
    assert_eq!(files(&out).len(), begun, "whole objects alone: {:?}", files(&out));
    files(&out).iter().for_each(|f| assert!(slots(&out.join(f)) > 0));
}

#[test]
fn many_are_verified_against_what_was_made_of_them() {
    let (set, work) = (set(), tempfile::tempdir().expect("a folder"));
    let (good, out) = (set.path().join("good"), work.path().join("out"));
    let run = |command: &str, code: i32| {
        let mut run = crate::common::command();
        run.arg(command).arg(&good).arg("-d").arg(&out).arg("--no-kernel");
        run.args(["--csv", "-", "--no-run-check"]);
        if command == "opt" {
            run.arg("-O1");
        }
        rows(Ran::of(run.output().expect("the binary runs")).expect(code).out.as_bytes())
    };
    run("opt", 0);
    let table = run("verify", 0);
    assert!(table.len() == 8 && table.iter().all(|r| r["verdict"] == "equal"), "{table:?}");
    fs::copy(good.join("kinds.o"), out.join("globals.o")).expect("copied");
    let table = run("verify", 1);
    assert_eq!(table.iter().filter(|r| r["verdict"] == "different").count(), 1, "{table:?}");
    fs::remove_file(out.join("subprogs.o")).expect("removed");
    let table = run("verify", 2);
    assert_eq!(table.iter().filter(|r| r["verdict"] == "failed").count(), 1, "{table:?}");
    assert!(bpf_opt(["verify", "a.o", "b.o", "c.o"]).expect(2).err.contains("-d DIR"));
}

#[test]
fn many_are_checked_with_a_row_for_each_program() {
    let set = set();
    let report = set.path().join("r.json");
    let ran = Ran::of(
        command()
            .arg("check")
            .arg(set.path())
            .args(["--json".as_ref(), report.as_os_str()])
            .output()
            .expect("the binary runs"),
    )
    .expect(2);
    assert!(
        ran.out.contains("on_getpid") && ran.out.contains("13 objects") && ran.out.contains("4 failed"),
        "{}",
        ran.out
    );
    let report = json(&report);
    assert_eq!(report["reports"].as_array().map(Vec::len), Some(13));
    assert_eq!(report["verdicts"]["failed"], 4);
    let good = command().arg("check").arg(set.path().join("good")).output().expect("the binary runs");
    Ran::of(good).expect(0);
}

#[test]
fn options_of_a_table_are_refused_where_there_is_none() {
    let work = tempfile::tempdir().expect("a folder");
    let at = |name: &str| work.path().join(name).display().to_string();
    let (input, out, file) = (example("globals.o").display().to_string(), at("out.o"), at("file"));
    let by = ["--rounds", "1", "--by-function"];
    let commands: [&[&str]; 5] = [
        &["opt", &input, "-o", &out],
        &[&["opt", &input, "--list-parts"][..], &by].concat(),
        &[&["opt", &input, "--make-parts", "--parts", &out][..], &by].concat(),
        &["verify", &input, &input],
        &["bench", &input, &input],
    ];
    for [option, value] in [["--csv", &file], ["--list", &file], ["--sort", "object"], ["--only", "failed"]] {
        // Of objects beside each other there is a table, too.
        for command in commands.iter().filter(|c| (c[0], option) != ("bench", "--csv")) {
            let said = bpf_opt([*command, &[option, value]].concat()).expect(2).err;
            assert!(said.contains(&format!("{option} ")) && said.contains("hint:"), "{command:?}: {said}");
        }
    }
    assert_eq!(files(work.path()), [""; 0], "nothing is written");
}

#[test]
fn a_list_does_not_go_with_two_that_are_compared() {
    let (work, input) = (tempfile::tempdir().expect("a folder"), example("globals.o").display().to_string());
    let list = work.path().join("list").display().to_string();
    fs::write(&list, format!("{input}\n")).expect("written");
    let said = bpf_opt(["load", "--compare", &input, &input, "--list", &list]).expect(2).err;
    assert!(said.contains("--list does not go with --compare"), "{said}");
}

#[test]
fn what_the_kernel_makes_of_two_is_compared() {
    if !permitted() {
        return;
    }
    let work = tempfile::tempdir().expect("a folder");
    let at = |name: &str| work.path().join(name);
    for folder in ["a", "b"] {
        fs::create_dir(at(folder)).expect("made");
        fs::copy(example("globals.o"), at(folder).join("same.o")).expect("copied");
        fs::copy(example("globals.o"), at(folder).join("less.o")).expect("copied");
    }
    bpf_opt(["opt", at("a/less.o").to_str().expect("text"), "-o", at("b/less.o").to_str().expect("text"), "-O1"])
        .expect(0);
    let compare = |a: &str, b: &str, more: &[&str]| {
        let mut command = command();
        command.args(["load", "--compare"]).arg(at(a)).arg(at(b)).args(["--csv", "-"]).args(more);
        Ran::of(command.output().expect("the binary runs"))
    };
    let table = rows(compare("a", "b", &[]).expect(0).out.as_bytes());
    assert_eq!(table.len(), 6);
    for row in &table {
        let number = |column: &str| row[column].parse::<i64>().expect("a number");
        assert_eq!(number("insns_diff"), number("insns_b") - number("insns_a"), "{row:?}");
        let percent = 100.0 * number("insns_diff") as f64 / number("insns_a") as f64;
        assert!((row["insns_pct"].parse::<f64>().expect("a number") - percent).abs() < 1e-3, "{row:?}");
        let verdict = if number("insns_diff") < 0 { "less" } else { "same" };
        assert_eq!(row["verdict"], verdict, "{row:?}");
    }
    let less = rows(compare("a", "b", &["--only", "less", "--sort", "insns_diff:asc"]).expect(0).out.as_bytes());
    assert!(!less.is_empty() && less.iter().all(|r| r["object"] == "less.o"), "{less:?}");
    // The other way round it is more.
    assert!(rows(compare("b", "a", &[]).expect(0).out.as_bytes()).iter().any(|r| r["verdict"] == "more"));
    compare("b", "a", &["--fail-if-more", "0"]).expect(1);
    compare("b", "a", &["--fail-if-more", "50"]).expect(0);
    compare("a/less.o", "b/less.o", &[]).expect(0);
    compare("a", "b/less.o", &[]).expect(2);
    // What is gone is no success.
    fs::remove_file(at("b/same.o")).expect("removed");
    let table = rows(compare("a", "b", &[]).expect(1).out.as_bytes());
    assert_eq!(table.iter().filter(|r| r["verdict"] == "only-a").count(), 3, "{table:?}");
}

#[test]
fn many_are_loaded_with_a_row_for_each_program() {
    if !permitted() {
        return;
    }
    let set = set();
    let load = |path: &str| {
        Ran::of(command().arg("load").arg(set.path().join(path)).args(["--csv", "-"]).output().expect("runs"))
    };
    let table = rows(load("good/again").expect(1).out.as_bytes());
    let of = |name: &str| table.iter().filter(|r| r["object"].ends_with(name)).collect::<Vec<_>>();
    assert!(of("globals.o").len() == 3 && of("globals.o").iter().all(|r| r["verdict"] == "accepted"), "{table:?}");
    assert!(of("legacy_maps.o").iter().any(|r| r["verdict"] == "not-loadable"), "{table:?}");
    let table = rows(load("").expect(2).out.as_bytes());
    assert_eq!(table.iter().filter(|r| r["verdict"] == "failed").count(), 4, "{table:?}");
}

#[test]
fn many_are_timed_beside_what_was_made_of_them() {
    if !permitted() {
        return;
    }
    let work = tempfile::tempdir().expect("a folder");
    let at = |name: &str| work.path().join(name);
    for folder in ["in", "in/more", "out", "out/more"] {
        fs::create_dir(at(folder)).expect("made");
    }
    for name in ["in/a.o", "in/more/b.o", "out/a.o", "out/more/b.o"] {
        fs::copy(example("xdp_count.o"), at(name)).expect("copied");
    }
    let bench = |more: &[&str]| {
        let mut command = command();
        command.arg("bench").arg(at("in")).arg("-d").arg(at("out")).args(["--loads", "2", "--rounds", "2"]).args(more);
        Ran::of(command.output().expect("the binary runs"))
    };
    let report = at("r.json");
    let ran = bench(&["--csv", "-", "--json", report.to_str().expect("plain")]).expect(0);
    let table = rows(ran.out.as_bytes());
    let objects: Vec<PathBuf> = table.iter().map(|row| PathBuf::from(&row["object"])).collect();
    assert_eq!(objects, [at("in/a.o"), at("in/more/b.o")]);
    let mut inputs = 0;
    for (row, other) in table.iter().zip(["out/a.o", "out/more/b.o"]) {
        assert_eq!(
            (row["program"].as_str(), Path::new(&row["against"])),
            ("xdp_count", at(other).as_path()),
            "{row:?}"
        );
        assert!(["faster", "slower", "noise"].contains(&row["verdict"].as_str()), "{row:?}");
        let number = |column: &str| row[column].parse::<f64>().ok();
        assert!(number("before_ns").is_some() && number("after_ns").is_some(), "{row:?}");
        // There is none where the runs take no longer than those of an empty program.
        if let Some(ratio) = number("ratio") {
            assert!(number("low").is_none_or(|low| low <= ratio), "{row:?}");
            assert!(number("high").is_none_or(|high| ratio <= high), "{row:?}");
        }
        inputs += row["inputs"].parse::<u64>().expect("a number");
    }
    let report = json(&report);
    assert!(inputs > 0 && report["totals"]["inputs"] == inputs, "{report:#}");
    assert_eq!(
        (&report["command"], &report["objects"], &report["exit_status"]),
        (&"bench".into(), &2.into(), &0.into())
    );
    let pairs = report["reports"].as_array().expect("a list").iter().map(|pair| &pair["objects"]);
    let named = |path: PathBuf| path.display().to_string();
    let expected =
        [["in/a.o", "out/a.o"], ["in/more/b.o", "out/more/b.o"]].map(|pair| pair.map(|name| named(at(name))));
    assert!(pairs.eq(expected.map(Value::from).iter()), "{report:#}");
    assert!(bench(&[]).expect(0).out.contains("2 objects"));

    // An object without a partner fails, and the others are timed.
    fs::remove_file(at("out/a.o")).expect("removed");
    let ran = bench(&["--csv", "-"]).expect(2);
    let verdicts: Vec<String> = rows(ran.out.as_bytes()).iter().map(|row| row["verdict"].clone()).collect();
    assert!(verdicts[0] == "failed" && ["faster", "slower", "noise"].contains(&verdicts[1].as_str()), "{verdicts:?}");
    assert!(ran.err.contains("out/a.o"), "{}", ran.err);
}
