//! `bpf-opt ci`: what is measured against a baseline, what fails, what is written.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bpf_kernel::testing::permitted;
use bpf_testgen::assembly::{Surroundings, functions, object};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::*;

/// A folder with objects in `build` and a place for a baseline.
struct Project {
    folder: TempDir,
}

impl Project {
    fn with(objects: &[&str]) -> Project {
        let project = Project { folder: tempfile::tempdir().expect("a folder") };
        fs::create_dir(project.at("build")).expect("made");
        objects.iter().for_each(|name| project.put(name, &fs::read(example(name)).expect("a committed object")));
        project
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(self.at("build").join(name), bytes).expect("written");
    }

    /// Puts an object in its place that has less code and does the same.
    fn optimize(&self, name: &str) {
        let path = self.at("build").join(name);
        let mut command = command();
        command.arg("opt").arg(&path).arg("-o").arg(&path).args(["-O1", "--no-kernel", "--no-cache"]);
        Ran::of(command.output().expect("the binary runs")).expect(0);
    }

    /// Runs it there.
    fn ci(&self, more: &[&str]) -> Ran {
        let mut command = command();
        command.current_dir(self.folder.path()).args(["ci", "--baseline", "bpf.json", "build"]).args(more);
        Ran::of(command.output().expect("the binary runs"))
    }

    fn baseline(&self) -> String {
        fs::read_to_string(self.at("bpf.json")).expect("the baseline")
    }

    /// Verdicts by object and program.
    fn verdicts(&self, more: &[&str]) -> Vec<(String, String, String)> {
        let ran = self.ci(&[more, &["--csv", "-"]].concat());
        let mut reader = csv::Reader::from_reader(ran.out.as_bytes());
        let rows = reader.records().map(|row| row.expect("a row"));
        rows.map(|row| (row[0].to_owned(), row[1].to_owned(), row[2].to_owned())).collect()
    }
}

fn row(object: &str, program: &str, verdict: &str) -> (String, String, String) {
    (object.to_owned(), program.to_owned(), verdict.to_owned())
}

const SLOTS: &str = "--no-kernel";

#[test]
fn what_grows_beyond_what_is_allowed_fails() {
    let project = Project::with(&["xdp_count.o", "globals.o"]);
    project.optimize("xdp_count.o");
    let ran = project.ci(&[SLOTS]).expect(2);
    assert!(ran.err.contains("bpf.json: cannot read") && ran.err.contains("--update"), "{}", ran.err);
    project.ci(&[SLOTS, "--update"]).expect(0);
    let first = project.baseline();
    assert_eq!(first.lines().filter(|l| l.contains("{\"slots\": ")).count(), 4, "{first}");
    project.ci(&[SLOTS, "--update"]).expect(0);
    assert_eq!(project.baseline(), first, "nothing has changed");
    project.ci(&[SLOTS]).expect(0);

    project.put("xdp_count.o", &fs::read(example("xdp_count.o")).expect("a committed object"));
    let ran = project.ci(&[SLOTS]).expect(1);
    assert!(
        ran.err.contains("xdp_count.o: xdp_count: slots ") && ran.err.contains("0% more is allowed"),
        "{}",
        ran.err
    );
    assert_eq!(project.baseline(), first, "nothing is written without --update");
    for allowed in ["100", "100%", "slots=100%"] {
        project.ci(&[SLOTS, "--allow", allowed]).expect(0);
    }
    project.ci(&[SLOTS, "--allow", "insns=100%"]).expect(1);
    let ran = project.ci(&[SLOTS, "--allow", "size=1%"]).expect(2);
    assert!(ran.err.contains("no figure `size`; there is: slots, insns, stack, ns"), "{}", ran.err);

    // The update says what it takes over.
    let ran = project.ci(&[SLOTS, "--update"]).expect(0);
    assert!(ran.out.contains("worse") && ran.err.contains("bpf.json: has the figures of 4 programs now"), "{ran:?}");
    project.ci(&[SLOTS]).expect(0);
    project.optimize("xdp_count.o");
    assert_eq!(project.verdicts(&[SLOTS, "--only", "better"]), [row("xdp_count.o", "xdp_count", "better")]);
}

#[test]
fn new_and_vanished_programs_are_told() {
    let project = Project::with(&["xdp_count.o", "globals.o"]);
    project.ci(&[SLOTS, "--update"]).expect(0);
    fs::rename(project.at("build/xdp_count.o"), project.at("build/count.o")).expect("renamed");
    let text = project.baseline().replace("\"on_exit\"", "\"on_entry\"");
    fs::write(project.at("bpf.json"), text).expect("written");
    project.ci(&[SLOTS]).expect(0);
    let verdicts = project.verdicts(&[SLOTS, "--only", "verdict!=same"]);
    let expected = [
        row("count.o", "xdp_count", "new"),
        row("globals.o", "on_exit", "new"),
        row("globals.o", "on_entry", "vanished"),
        row("xdp_count.o", "xdp_count", "vanished"),
    ];
    assert_eq!(verdicts, expected);
    project.ci(&[SLOTS, "--update"]).expect(0);
    assert!(!project.baseline().contains("on_entry") && !project.baseline().contains("\"xdp_count.o\""));
}

#[test]
fn bad_input_is_named_and_changes_nothing() {
    let project = Project::with(&["xdp_count.o"]);
    project.ci(&[SLOTS, "--update"]).expect(0);
    let before = project.baseline();
    project.put("half.o", &fs::read(example("globals.o")).expect("a committed object")[..700]);
    let ran = project.ci(&[SLOTS, "--update", "--junit", "report.xml", "--sarif", "report.sarif"]).expect(2);
    assert!(ran.err.contains("build/half.o: ") && ran.err.contains("bpf.json: not updated"), "{}", ran.err);
    assert_eq!(project.baseline(), before);
    let junit = fs::read_to_string(project.at("report.xml")).expect("the report");
    assert!(junit.contains("errors=\"1\"") && junit.contains("half.o"), "{junit}");
    let sarif: Value = serde_json::from_slice(&fs::read(project.at("report.sarif")).expect("there")).expect("JSON");
    assert_eq!(sarif["runs"][0]["results"][0]["ruleId"], "unreadable");
    fs::remove_file(project.at("build/half.o")).expect("removed");

    fs::create_dir(project.at("build/more")).expect("made");
    fs::copy(example("globals.o"), project.at("build/more/globals.o")).expect("copied");
    let ran = project.ci(&["build/more/../more/globals.o", "build/more/globals.o", SLOTS]).expect(2);
    assert!(ran.err.contains("are both globals.o to the baseline"), "{}", ran.err);
    let ran = project.ci(&[SLOTS, "--junit", "build/xdp_count.o"]).expect(2);
    assert!(ran.err.contains("the report would overwrite build/xdp_count.o"), "{}", ran.err);
    for report in ["--json", "--csv", "--sarif"] {
        let ran = project.ci(&[SLOTS, report, "bpf.json"]).expect(2);
        assert!(ran.err.contains(" would overwrite bpf.json"), "{}", ran.err);
    }
    project.ci(&[SLOTS, "--junit", "report", "--sarif", "report"]).expect(2);
    fs::write(project.at("bpf.json"), "{\"format\": 1}").expect("written");
    for more in [&[SLOTS][..], &[SLOTS, "--update"]] {
        let ran = project.ci(more).expect(2);
        assert!(ran.err.contains("bpf.json: not a baseline: missing field `objects`"), "{}", ran.err);
    }
    assert!(Object(&project.at("build/xdp_count.o")).is_whole());
}

/// An object that must be as it was.
struct Object<'a>(&'a Path);

impl Object<'_> {
    fn is_whole(&self) -> bool {
        fs::read(self.0).ok() == fs::read(example("xdp_count.o")).ok()
    }
}

#[test]
fn reports_say_what_is_worse() {
    let project = Project::with(&["xdp_count.o", "globals.o"]);
    project.optimize("xdp_count.o");
    project.ci(&[SLOTS, "--update"]).expect(0);
    project.put("xdp_count.o", &fs::read(example("xdp_count.o")).expect("a committed object"));
    let reports = ["--junit", "report.xml", "--sarif", "report.sarif", "--json", "report.json"];
    project.ci(&[&[SLOTS][..], &reports].concat()).expect(1);

    let junit = fs::read_to_string(project.at("report.xml")).expect("the report");
    for part in [
        "tests=\"4\" skipped=\"0\" failures=\"1\" errors=\"0\"",
        "classname=\"xdp_count.o\"",
        "<failure message=\"slots ",
        "type=\"worse\"",
    ] {
        assert!(junit.contains(part), "{part} in {junit}");
    }
    let xml = "import sys, xml.dom.minidom as x; x.parse(sys.argv[1])";
    if let Ok(status) = Command::new("python3").args(["-c", xml]).arg(project.at("report.xml")).status() {
        assert!(status.success(), "{junit}");
    }
    let read = |name: &str| -> Value {
        serde_json::from_slice(&fs::read(project.at(name)).expect("the report")).expect("JSON")
    };
    let sarif = read("report.sarif");
    let run = &sarif["runs"][0];
    assert_eq!((&sarif["version"], &run["tool"]["driver"]["name"]), (&"2.1.0".into(), &"bpf-opt".into()));
    let finding = &run["results"][0];
    assert_eq!((&finding["ruleId"], &finding["level"]), (&"slots".into(), &"error".into()));
    assert!(finding["message"]["text"].as_str().is_some_and(|t| t.starts_with("xdp_count: slots ")), "{finding}");
    let place = &finding["locations"][0]["physicalLocation"];
    // The source is not in this folder.
    assert_eq!(place["artifactLocation"]["uri"], "build/xdp_count.o");
    assert!(run["tool"]["driver"]["rules"].as_array().is_some_and(|rules| rules.iter().any(|r| r["id"] == "slots")));
    let json = read("report.json");
    assert_eq!(
        (&json["command"], &json["exit_status"], &json["verdicts"]["worse"]),
        (&"ci".into(), &1.into(), &1.into())
    );
    let reports = json["reports"].as_array().expect("reports");
    let program = &reports.iter().find(|r| r["object"] == "xdp_count.o").expect("there")["programs"][0];
    assert_eq!((&program["verdict"], &program["reasons"][0]["figure"]), (&"worse".into(), &"slots".into()));
    assert!(program["now"]["slots"].as_u64() > program["before"]["slots"].as_u64(), "{program}");
}

#[test]
fn the_kernel_is_asked_where_it_may_be() {
    if !permitted() {
        return;
    }
    let project = Project::with(&["xdp_count.o", "globals.o", "legacy_maps.o"]);
    project.ci(&["--update"]).expect(0);
    let text = project.baseline();
    assert!(
        text.contains("\"kernel\": \"") && text.contains("\"legacy\": {\"slots\": 25, \"verdict\": \"not loadable\"}"),
        "{text}"
    );
    assert_eq!(text.lines().filter(|l| l.contains("\"insns\": ") && l.contains("\"stack\": ")).count(), 4, "{text}");
    project.ci(&[]).expect(0);

    // Slots are the same without it, and what it said is not compared.
    project.ci(&[SLOTS]).expect(0);
    // The verifier has more to do than it had.
    let fewer = small(&text, "insns");
    fs::write(project.at("bpf.json"), &fewer).expect("written");
    let ran = project.ci(&[]).expect(1);
    assert!(ran.err.contains("xdp_count.o: xdp_count: insns 1 -> "), "{}", ran.err);
    assert!(!ran.err.contains("the baseline is of Linux"), "it is of this one: {}", ran.err);
    fs::write(project.at("bpf.json"), fewer.replace("\"kernel\": \"", "\"kernel\": \"0.")).expect("written");
    let ran = project.ci(&[]).expect(1);
    assert!(ran.err.contains("note: the baseline is of Linux 0."), "{}", ran.err);
}

/// A baseline that has 1, or a little more, for each figure of this name.
fn small(baseline: &str, figure: &str) -> String {
    let figure = format!("\"{figure}\": ");
    let mut parts = baseline.split(&figure);
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    rest.fold(first, |text, rest| text + &figure + "1" + rest)
}

/// An object with a program of this code.
fn assembled(section: &str, code: &str) -> Vec<u8> {
    let around = Surroundings { section: section.into(), untyped: true, ..Surroundings::default() };
    object(&around, &functions(code, section).expect("functions")).expect("it assembles")
}

#[test]
fn what_the_kernel_refuses_now_fails() {
    if !permitted() {
        return;
    }
    let project = Project::with(&[]);
    project.put("p.o", &assembled("xdp", "r0 = 2\n exit\n"));
    project.ci(&["--update"]).expect(0);
    // Smaller in nothing, and it reads what nobody has written.
    project.put("p.o", &assembled("xdp", "r0 = r3\n exit\n"));
    let ran = project.ci(&["--allow", "1000"]).expect(1);
    assert!(ran.err.contains("the kernel rejects it: ") && ran.out.contains("now-refused"), "{ran:?}");
    project.ci(&["--update"]).expect(0);
    assert!(project.baseline().contains("\"verdict\": \"rejected\""), "{}", project.baseline());
    project.ci(&[]).expect(0);
    project.put("p.o", &assembled("xdp", "r0 = 2\n exit\n"));
    project.ci(&[]).expect(0);
    assert!(project.verdicts(&[]).iter().any(|(_, _, verdict)| verdict == "now-accepted"));
    // A new one that is refused.
    project.put("q.o", &assembled("xdp", "r0 = r3\n exit\n"));
    let ran = project.ci(&[]).expect(1);
    assert!(ran.err.contains("q.o: ") && ran.err.contains("new, and the kernel rejects it"), "{}", ran.err);
}

#[test]
fn programs_are_timed_if_that_is_asked_for() {
    if !permitted() {
        return;
    }
    let project = Project::with(&[]);
    project.put("p.o", &assembled("tc", "r0 = 2\n r0 *= 3\n exit\n"));
    project.ci(&["--run-time", "--update"]).expect(0);
    let text = project.baseline();
    if !text.contains("\"processor\": ") {
        eprintln!("skipped: this machine does not name its processor");
        return;
    }
    assert!(text.contains("\"ns\": "), "{text}");
    // Times of another processor tell nothing.
    let other = text.replace("\"processor\": \"", "\"processor\": \"not ");
    let other = small(&other, "ns");
    fs::write(project.at("bpf.json"), other).expect("written");
    let ran = project.ci(&["--run-time"]).expect(0);
    assert!(ran.err.contains("times were not compared"), "{}", ran.err);
    project.ci(&["--run-time", SLOTS]).expect(2);
}
