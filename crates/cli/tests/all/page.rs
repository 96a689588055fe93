//! The report for a browser, opened in one.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bpf_assembly::{Surroundings, functions, object};
use bpf_kernel::testing::permitted;

use crate::common::{bpf_opt, example};

/// What a report may be large.
const LARGEST: u64 = 20 << 20;

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page").join(name);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Programs of so many steps, each with something to save, some jumps, and source lines.
fn programs(count: usize, steps: usize) -> Vec<u8> {
    let mut text = String::new();
    for p in 0..count {
        if p > 0 {
            let _ = writeln!(text, "program p{p} xdp:");
        }
        text += "r6 = r1\nr0 = 0\nr7 = *(u32 *)(r6 + 16)\n";
        for s in 0..steps {
            let _ = writeln!(text, "if r7 != {s} goto a{s}\nr1 = {p}\nr1 += {s}\nr2 = r1\nr0 += r2\na{s}: r0 ^= {s}");
        }
        text += "exit\n";
    }
    let around = Surroundings { section: "xdp".into(), lines: true, ..Surroundings::default() };
    object(&around, &functions(&text, "xdp").expect("functions")).expect("an object")
}

/// The report of an object.
fn report(object: &Path, page: &Path, more: &[&str]) -> String {
    let output = page.with_extension("o");
    let paths = [object, &output, page].map(|p| p.to_str().expect("plain"));
    let args = ["opt", paths[0], "-o", paths[1], "--report", paths[2], "-q", "--no-cache"];
    bpf_opt(args.iter().chain(more)).expect(0);
    fs::read_to_string(page).expect("it was written")
}

/// The data in it.
fn data(page: &str) -> serde_json::Value {
    let start = page.split_once("id=\"data\">").expect("it holds data").1;
    serde_json::from_str(start.split_once("</script>").expect("they end").0).expect("JSON")
}

#[test]
fn a_report_tells_what_the_json_tells() {
    let folder = folder("same");
    let json = folder.join("r.json");
    let page = report(
        &example("subprogs.o"),
        &folder.join("r.html"),
        &["--time-limit", "5", "--json", json.to_str().expect("plain")],
    );
    let (shown, told) = (data(&page), serde_json::from_slice(&fs::read(&json).expect("a report")).expect("JSON"));
    let told: serde_json::Value = told;
    let functions = |v: &serde_json::Value| v["functions"].as_array().expect("functions").clone();
    assert_eq!(functions(&shown).len(), functions(&told).len());
    let mut changed = 0;
    for (s, t) in functions(&shown).iter().zip(functions(&told)) {
        assert_eq!((&s["name"], &s["slots"][0], &s["slots"][1]), (&t["name"], &t["slots_before"], &t["slots_after"]));
        let code = &s["code"];
        if code.is_null() {
            continue;
        }
        changed += 1;
        assert_eq!(s["changes"], t["changes"]);
        assert!(s["changes"].as_array().is_some_and(|c| !c.is_empty()), "{s}");
        // Every line of either side stands in one row.
        for side in 0..2 {
            let lines = code["listings"][side].as_array().expect("lines").len();
            let rows = code["rows"].as_array().expect("rows").iter();
            let shown: Vec<i64> = rows.filter_map(|r| r[side + 1].as_i64()).filter(|n| *n >= 0).collect();
            assert_eq!(shown, (0..i64::try_from(lines).expect("few")).collect::<Vec<_>>());
        }
    }
    assert!(changed > 0);
    // It loads nothing.
    for way in [" src=", "href=\"http", "@import", "url(h", "fetch("] {
        assert!(!page.contains(way), "something is loaded: {way}");
    }
}

#[test]
fn a_report_overwrites_nothing_it_was_made_of() {
    let folder = folder("over");
    let input = folder.join("in.o");
    fs::write(&input, programs(1, 2)).expect("a file");
    let (input, output) = (input.display().to_string(), folder.join("out.o").display().to_string());
    for taken in [&input, &output] {
        let ran = bpf_opt(["opt", &input, "-o", &output, "--report", taken]).expect(2);
        assert!(ran.err.contains("--report"), "{}", ran.err);
    }
}

/// A page that opens a report at a width, goes through it, and tells what it saw.
const VISITOR: &str = include_str!("page/visitor.html");

/// What a visitor saw, line by line; `None` without a browser.
fn visit(page: &Path, width: usize) -> Option<Vec<String>> {
    let browser = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        Command::new(name)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
    })?;
    let visitor = page.with_extension(format!("{width}.html"));
    let name = page.file_name().and_then(|n| n.to_str()).expect("plain");
    fs::write(&visitor, VISITOR.replace("WIDTH", &width.to_string()).replace("PAGE", name)).expect("a file");
    let profile = tempfile::tempdir().expect("a folder");
    let ran = Command::new(browser)
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"])
        .args(["--enable-logging=stderr", "--virtual-time-budget=60000", "--window-size=1600,1000"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", visitor.display()))
        .output()
        .expect("the browser starts");
    let errors = String::from_utf8_lossy(&ran.stderr);
    let errors: Vec<&str> = errors.lines().filter(|l| l.contains(":CONSOLE")).collect();
    assert!(errors.is_empty(), "{}: {errors:?}", page.display());
    let dom = String::from_utf8_lossy(&ran.stdout);
    let seen = dom.split_once("<pre id=\"seen\">").expect("the visitor's page").1;
    Some(seen.split_once("</pre>").expect("it ends").0.lines().map(str::to_owned).collect())
}

/// Milliseconds that the first paint of a page may take.
const SLOWEST_PAINT: usize = 2000;

/// Whether a test without a browser is to fail.
fn is_required() -> bool {
    std::env::var_os("BPF_OPT_REQUIRE_BROWSER").is_some()
}

/// Opens a report at two widths; how many functions, and at least how many blocks, it shows.
fn opened(page: &Path, functions: usize, blocks: usize) {
    for width in [1280, 400] {
        let Some(seen) = visit(page, width) else {
            assert!(!is_required(), "no browser is here");
            eprintln!("skipped: no Chromium here");
            return;
        };
        eprintln!("{} at {width}: {seen:?}", page.display());
        let number = |what: &str| -> usize {
            let line = seen.iter().find_map(|l| l.strip_prefix(what)).unwrap_or_else(|| panic!("no {what}: {seen:?}"));
            line.trim().trim_end_matches(" ms").parse().expect("a number")
        };
        assert_eq!(seen.last().map(String::as_str), Some("done"), "{seen:?}");
        assert!(
            !seen.iter().any(|l| l.starts_with("error") || l.contains("wider") || l.contains("nothing")),
            "{seen:?}"
        );
        assert_eq!(number("functions:"), functions);
        // How fast a page is drawn is asserted nowhere else, and only where a browser has to be: such machines do little besides.
        let paint = number("paint:");
        assert!(paint < SLOWEST_PAINT || !is_required(), "first paint after {paint} ms");
        assert!(number("blocks:") >= blocks && number("rows:") > 0 && number("changes:") > 0, "{seen:?}");
    }
}

#[test]
fn twenty_programs_open_in_a_browser() {
    let folder = folder("twenty");
    let input = folder.join("in.o");
    fs::write(&input, programs(20, 12)).expect("a file");
    let page = folder.join("r.html");
    report(&input, &page, &["--no-kernel", "-O1"]);
    opened(&page, 20, 8 * 20);
}

#[test]
fn a_program_of_20000_slots_opens_in_a_browser() {
    let folder = folder("large");
    let input = folder.join("in.o");
    fs::write(&input, programs(1, 3334)).expect("a file");
    let page = folder.join("r.html");
    report(&input, &page, &["--no-kernel", "-O1", "--time-limit", "60"]);
    assert!(data(&fs::read_to_string(&page).expect("it is there"))["functions"][0]["slots"][0].as_u64() > Some(20_000));
    assert!(fs::metadata(&page).expect("it is there").len() < LARGEST);
    opened(&page, 1, 2000);
}

#[test]
fn what_the_kernel_says_opens_in_a_browser() {
    if !permitted() {
        return;
    }
    let folder = folder("kernel");
    let input = folder.join("in.o");
    fs::write(&input, programs(2, 6)).expect("a file");
    let page = folder.join("r.html");
    let data = data(&report(&input, &page, &["-O1"]));
    assert!(data["kernel"].is_string(), "{data:#}");
    for function in data["functions"].as_array().expect("functions") {
        let [before, after] = [0, 1].map(|side| function["verified"][side].as_u64());
        assert!(before > Some(0) && after > Some(0) && function["kernel"].is_string(), "{function:#}");
    }
    opened(&page, 2, 2 * 4);
}

#[test]
fn forms_that_were_timed_stand_in_a_table() {
    if !permitted() {
        return;
    }
    let folder = folder("forms");
    let page = folder.join("r.html");
    let json = folder.join("r.json").display().to_string();
    let more = ["--goal", "latency", "--keep", "2", "--time-limit", "8", "--json", &json];
    let data = data(&report(&example("xdp_count.o"), &page, &more));
    let told: serde_json::Value = serde_json::from_slice(&fs::read(&json).expect("a report")).expect("JSON");
    let (shown, told) = (data["forms"].as_array().expect("forms"), told["variants"].as_array().expect("forms"));
    assert!(!shown.is_empty() && shown.len() == told.len(), "{shown:?}");
    for (s, t) in shown.iter().zip(told) {
        for figure in ["slots", "time_ratio", "time_call"] {
            assert_eq!(s[figure], t[figure], "{shown:?}");
        }
    }
    assert_eq!(shown[0]["output"], "r.o", "{shown:?}");
    // If all forms are slower, the original stays, and there is no code to look at.
    if !data["functions"][0]["code"].is_null() {
        opened(&page, 1, 4);
    }
}
