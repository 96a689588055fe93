//! The command line from outside: exit codes, messages, files.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::*;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// `bpf-opt opt` without a kernel and in little time.
fn quick_opt(input: &Path, output: &Path, more: &[&str]) -> Ran {
    let mut command = command();
    command.arg("opt").arg(input).arg("-o").arg(output).args(["--no-kernel", "--time-limit", "5"]).args(more);
    Ran::of(command.output().expect("the binary runs"))
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).expect("the report")).expect("JSON")
}

#[test]
fn help_shows_examples_and_exit_codes() {
    let top = bpf_opt(["--help"]).expect(0);
    assert!(top.out.contains("Examples:") && top.out.contains("Exit codes:"), "{}", top.out);
    for command in ["opt", "verify", "dis", "load", "run", "reduce"] {
        let help = bpf_opt([command, "--help"]).expect(0);
        assert!(help.out.contains(&format!("bpf-opt {command} ")) && help.out.contains("Exit codes:"), "{}", help.out);
    }
    assert!(bpf_opt(["--version"]).expect(0).out.starts_with("bpf-opt "));
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for args in [
        &[][..],
        &["opt"],
        &["opt", "x.o"],
        &["frobnicate"],
        &["opt", "x.o", "-o", "y.o", "--goal", "beauty"],
        &["opt", "x.o", "-o", "y.o", "--time-limit", "-3"],
        &["opt", "x.o", "-o", "y.o", "--cpu", "v9"],
        &["opt", "x.o", "-o", "y.o", "--type", "foo"],
        &["load", "x.o", "--type", "foo"],
        &["check", "x.o", "--type", "foo"],
        &["verify", "x.o", "y.o", "--type", "foo"],
        &["difftest", "x.o", "y.o", "--type", "foo"],
        &["run", "x.o", "--packet", "00", "--pcap", "f"],
    ] {
        bpf_opt(args).expect(2);
    }
}

/// Bad files of all kinds: (name, bytes, words of the message).
fn bad_files() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let good = fs::read(example("xdp_count.o")).unwrap();
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = good.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    let mut big = with(5, &[2]);
    big[16..20].copy_from_slice(&[0, 1, 0, 247]);
    vec![
        ("empty.o", Vec::new(), "not an ELF"),
        ("text.o", b"int main(void) { return 0; }\n".to_vec(), "not an ELF"),
        ("header.o", good[..64].to_vec(), "truncated"),
        ("half.o", good[..good.len() / 2].to_vec(), "truncated"),
        // Little-endian numbers behind a big-endian start.
        ("big.o", big, "section headers of 16384 bytes"),
        ("x86.o", with(18, &62u16.to_le_bytes()), "machine 62"),
        ("small.o", with(4, &[1]), "32-bit"),
    ]
}

#[test]
fn a_bad_file_is_named_and_leaves_no_output() {
    let folder = folder();
    let output = folder.path().join("out.o");
    for (name, bytes, words) in bad_files() {
        let input = folder.path().join(name);
        fs::write(&input, bytes).unwrap();
        let input = input.to_str().unwrap();
        for args in [
            &["opt", input, "-o", output.to_str().unwrap()][..],
            &["verify", input, example("xdp_count.o").to_str().unwrap()],
            &["verify", example("xdp_count.o").to_str().unwrap(), input],
            &["dis", input],
            &["load", input],
            &["run", input],
        ] {
            let ran = bpf_opt(args).expect(2);
            assert!(ran.err.contains(name) && ran.err.contains(words), "{args:?}: {}", ran.err);
            assert!(ran.err.starts_with("bpf-opt: ") && ran.out.is_empty(), "{args:?}: {}{}", ran.err, ran.out);
        }
        assert!(!output.exists(), "{name}");
    }
}

#[test]
fn missing_files_and_folders_are_refused_before_any_work() {
    let folder = folder();
    let (missing, output) = (folder.path().join("missing.o"), folder.path().join("out.o"));
    let ran = quick_opt(&missing, &output, &[]).expect(2);
    assert!(ran.err.contains("missing.o") && !output.exists(), "{}", ran.err);
    let ran = quick_opt(folder.path(), &output, &[]).expect(2);
    assert!(ran.err.contains("is a directory"), "{}", ran.err);
    let ran = quick_opt(&example("xdp_count.o"), folder.path(), &[]).expect(2);
    assert!(ran.err.contains("is a directory"), "{}", ran.err);
    quick_opt(&example("xdp_count.o"), &folder.path().join("no/such/folder.o"), &[]).expect(2);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn an_unknown_program_or_pass_is_answered_with_the_known_ones() {
    let folder = folder();
    let output = folder.path().join("out.o");
    let ran = quick_opt(&example("xdp_count.o"), &output, &["--program", "nobody"]).expect(2);
    assert!(ran.err.contains("nobody") && ran.err.contains("xdp_count"), "{}", ran.err);
    let ran = quick_opt(&example("xdp_count.o"), &output, &["--passes", "nonsense"]).expect(2);
    assert!(ran.err.contains("nonsense"), "{}", ran.err);
    assert!(!output.exists());
    let ran = bpf_opt(["dis", example("xdp_count.o").to_str().unwrap(), "--program", "nobody"]).expect(2);
    assert!(ran.err.contains("xdp_count"), "{}", ran.err);
}

#[test]
fn without_passes_every_object_comes_back_byte_for_byte() {
    let folder = folder();
    let output = folder.path().join("out.o");
    for input in examples().into_iter().chain(benchmarks()) {
        quick_opt(&input, &output, &["--passes", "none"]).expect(0);
        assert!(fs::read(&input).unwrap() == fs::read(&output).unwrap(), "{}", input.display());
    }
}

#[test]
fn an_optimized_object_verifies_against_its_original() {
    let folder = folder();
    let output = folder.path().join("out.o");
    for input in examples() {
        let opt = quick_opt(&input, &output, &[]).expect(0);
        assert!(opt.err.contains("total: "), "{}", opt.err);
        assert!(fs::metadata(&output).unwrap().len() > 0);
        let verify = bpf_opt(["verify".as_ref(), input.as_os_str(), output.as_os_str()]);
        let proven = verify.code == Some(0) || (verify.code == Some(3) && !input.ends_with("xdp_count.o"));
        assert!(proven, "{}: {verify:?}", input.display());
    }
}

#[test]
fn a_changed_instruction_is_found() {
    let folder = folder();
    let changed = folder.path().join("changed.o");
    let good = fs::read(example("xdp_count.o")).unwrap();
    // `w0 = 0` at the program's start becomes `w0 = 1` where it is followed by `r6 = *(u32 *)(r1 + 4)`.
    let start = [0xb4, 0, 0, 0, 0, 0, 0, 0, 0x61, 0x16, 4, 0, 0, 0, 0, 0];
    let at = good.windows(16).position(|w| w == start).expect("the program's first instructions");
    let mut bytes = good;
    bytes[at + 4] = 1;
    fs::write(&changed, bytes).unwrap();
    let input = example("xdp_count.o");
    let ran = bpf_opt(["verify", input.to_str().unwrap(), changed.to_str().unwrap()]);
    assert!(matches!(ran.code, Some(1 | 3)), "it must not be called equal: {ran:?}");
}

#[test]
fn reports_are_json() {
    let folder = folder();
    let (input, output, file) = (example("xdp_count.o"), folder.path().join("out.o"), folder.path().join("r.json"));
    let name = file.to_str().unwrap();
    quick_opt(&input, &output, &["--json", name]).expect(0);
    let report = json(&file);
    assert_eq!(report["command"], "opt");
    assert_eq!(report["exit_status"], 0);
    assert_eq!(report["totals"]["slots_before"], 69);
    assert_eq!(report["functions"][0]["name"], "xdp_count");
    assert!(report["error"].is_null());

    bpf_opt(["verify", input.to_str().unwrap(), output.to_str().unwrap(), "--json", name]).expect(0);
    let report = json(&file);
    assert_eq!(report["functions"][0]["verdict"], "equal");

    let text = folder.path().join("text.o");
    fs::write(&text, "no object").unwrap();
    quick_opt(&text, &output, &["--json", name]).expect(2);
    let report = json(&file);
    assert_eq!(report["exit_status"], 2);
    assert!(report["error"].as_str().unwrap().contains("text.o"));

    let ran = bpf_opt(["load", input.to_str().unwrap(), "--json", "-"]);
    let report: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON on standard output");
    assert_eq!(report["exit_status"], ran.code.unwrap());
    match ran.code {
        Some(0) => assert_eq!(report["programs"][0]["verdict"], "accepted"),
        code => assert_eq!(code, Some(3), "no right to load: {}", ran.err),
    }
}

#[test]
fn the_diff_fits_in_160_columns() {
    let folder = folder();
    let ran = quick_opt(&example("subprogs.o"), &folder.path().join("out.o"), &["--diff"]).expect(0);
    assert!(!ran.out.is_empty() && !ran.out.contains('\x1b'), "{}", ran.out);
    assert!(ran.out.lines().all(|l| l.chars().count() <= 160), "{}", ran.out);
}

#[test]
fn explain_tells_where_every_slot_went() {
    let folder = folder();
    let number = |text: &str| text.trim().parse::<i64>().expect("a number");
    for name in ["subprogs.o", "xdp_count.o"] {
        let report = folder.path().join("report.json");
        let options = ["--explain", "--ssa", "--json", report.to_str().expect("a path")];
        let ran = quick_opt(&example(name), &folder.path().join("out.o"), &options).expect(0);
        let mut functions = 0;
        for told in ran.out.split_terminator("\n\n") {
            let (head, changes) = told.split_once('\n').expect("a line for each function");
            let slots = head.rsplit_once(": ").expect("slots behind the name").1;
            let (before, after) = slots.trim_end_matches(" slots").split_once(" -> ").expect("before and after");
            let heads = changes.lines().filter(|l| !l.starts_with("    "));
            let saved = heads.filter_map(|l| l.strip_suffix(" slots")?.rsplit_once(": ")).map(|(_, n)| number(n));
            assert_eq!(number(before) + saved.sum::<i64>(), number(after), "{told}");
            assert!(changes.lines().any(|l| l.starts_with("    - ")), "{told}");
            functions += 1;
        }
        assert!(functions > 0, "{}", ran.out);
        let report: serde_json::Value = serde_json::from_slice(&fs::read(&report).expect("a report")).expect("JSON");
        let changes = report["functions"].as_array().expect("functions").iter().filter_map(|f| f["changes"].as_array());
        assert_eq!(changes.count(), functions);
    }
}

#[test]
fn quiet_is_quiet() {
    let folder = folder();
    let ran = quick_opt(&example("xdp_count.o"), &folder.path().join("out.o"), &["--quiet"]).expect(0);
    assert!(ran.out.is_empty() && !ran.err.contains("total"), "{}", ran.err);
}

#[test]
fn in_place_keeps_permissions_and_symbolic_links() {
    let folder = folder();
    let (file, link) = (folder.path().join("prog.o"), folder.path().join("link.o"));
    fs::copy(example("xdp_count.o"), &file).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    quick_opt(&link, &link, &[]).expect(0);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary file is left");
    bpf_opt(["dis".as_ref(), file.as_os_str()]).expect(0);
}

#[test]
fn a_report_overwrites_neither_input_nor_output() {
    let folder = folder();
    let [prog, out, link] = ["prog.o", "out.o", "link.o"].map(|name| folder.path().join(name));
    fs::copy(example("xdp_count.o"), &prog).unwrap();
    std::os::unix::fs::symlink(&prog, &link).unwrap();
    let original = fs::read(&prog).unwrap();
    let path = |p: &Path| p.to_str().expect("text").to_owned();
    let beside = folder.path().join(".").join("out.o");
    for report in [&prog, &link, &out, &beside] {
        let ran = quick_opt(&prog, &out, &["--json", &path(report)]).expect(2);
        assert!(ran.err.contains("overwrite") && ran.err.contains("--json"), "{}", ran.err);
    }
    for args in [
        vec!["verify", "PROG", "LINK", "--json", "PROG"],
        vec!["load", "PROG", "--json", "LINK"],
        vec!["check", "PROG", "--json", "PROG"],
        vec!["difftest", "PROG", "PROG", "--json", "PROG"],
    ] {
        let args = args.iter().map(|a| a.replace("PROG", &path(&prog)).replace("LINK", &path(&link)));
        bpf_opt(args.collect::<Vec<_>>()).expect(2);
    }
    assert!(fs::read(&prog).unwrap() == original && !out.exists());
    quick_opt(&prog, &out, &["--json", &path(&folder.path().join("report.json"))]).expect(0);
}

#[test]
fn neither_cache_nor_capture_is_overwritten() {
    let folder = folder();
    let [prog, out, cache, capture] = ["prog.o", "out.o", "rules.redb", "p.pcap"].map(|n| folder.path().join(n));
    fs::copy(example("xdp_count.o"), &prog).unwrap();
    let path = |p: &Path| p.to_str().expect("text").to_owned();
    let (prog, out, cache) = (path(&prog), path(&out), path(&cache));
    bpf_opt(["opt", &prog, "-o", &out, "--cache", &cache, "--time-limit", "2", "--no-kernel"]).expect(0);
    let kept = fs::read(&cache).expect("a cache");
    fs::remove_file(&out).unwrap();
    for args in [
        vec!["opt", &prog, "-o", &out, "--cache", &cache, "--json", &cache],
        vec!["opt", &prog, "-o", &cache, "--cache", &cache],
        vec!["rules", "export", &cache, "--cache", &cache],
    ] {
        let ran = bpf_opt(args).expect(2);
        assert!(ran.err.contains("would overwrite"), "{}", ran.err);
    }
    assert!(fs::read(&cache).unwrap() == kept && !Path::new(&out).exists());
    fs::write(&capture, b"packets").unwrap();
    let capture = path(&capture);
    bpf_opt(["difftest", &prog, &prog, "--pcap", &capture, "--json", &capture]).expect(2);
    assert_eq!(fs::read(&capture).unwrap(), b"packets");
}

#[test]
fn a_cache_that_is_no_cache_is_left_alone() {
    let folder = folder();
    let (prog, out) = (folder.path().join("prog.o"), folder.path().join("out.o"));
    fs::copy(example("xdp_count.o"), &prog).unwrap();
    let original = fs::read(&prog).unwrap();
    let path = prog.to_str().expect("text");
    quick_opt(&prog, &out, &["--cache", path]).expect(0);
    for command in ["list", "stats", "verify"] {
        let ran = bpf_opt(["rules", command, "--cache", path]);
        assert_ne!(ran.code, Some(0), "{}", ran.out);
    }
    assert!(fs::read(&prog).unwrap() == original);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn forms_that_are_not_there_are_told() {
    let folder = folder();
    let ran = quick_opt(
        &example("xdp_count.o"),
        &folder.path().join("out.o"),
        &["--goal", "latency", "--keep", "9", "--passes", "none"],
    )
    .expect(0);
    assert!(ran.err.contains("only 1 of the 9 forms"), "{}", ran.err);
}

#[test]
fn pipes_are_written_to_and_not_replaced() {
    let folder = folder();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = Command::new("cat").arg(&pipe).stdout(Stdio::piped()).spawn().unwrap();
    quick_opt(&example("xdp_count.o"), &pipe, &["--passes", "none"]).expect(0);
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    assert!(reader.wait_with_output().unwrap().stdout == fs::read(example("xdp_count.o")).unwrap());
}

/// Waits for a process that is about to end.
fn within(patience: Duration, mut child: Child) -> Ran {
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > patience {
            child.kill().unwrap();
            panic!("it did not end within {patience:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ran::of(child.wait_with_output().unwrap())
}

#[test]
fn a_signal_leaves_a_complete_output_or_none() {
    let folder = folder();
    for (n, wait) in [0, 20, 100, 300].into_iter().enumerate() {
        let output = folder.path().join(format!("{n}.o"));
        let input = benchmarks().into_iter().find(|p| p.ends_with("19-xdp-balancer.o"));
        let input = input.unwrap_or_else(|| example("subprogs.o"));
        let mut child = command();
        child.arg("opt").arg(&input).arg("-o").arg(&output).args(["--no-kernel", "--quiet", "--time-limit", "4"]);
        let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(wait));
        let signal = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
        assert!(signal.is_ok());
        let ran = within(Duration::from_secs(30), child);
        // Before the handler is there, the signal ends the process.
        assert!(matches!((ran.code, ran.signal), (None, Some(15)) | (Some(0 | 130), None)), "{ran:?}");
        assert_eq!(output.exists(), ran.code.is_some(), "{ran:?}");
        if output.exists() {
            bpf_opt(["dis".as_ref(), output.as_os_str()]).expect(0);
        }
    }
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().map(|e| e.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
}

#[test]
fn dis_explains_what_numbers_stand_for() {
    let object = example("subprogs.o");
    let listing = bpf_opt(["dis".as_ref(), object.as_os_str()]).expect(0).out;
    for words in ["; classify: global function", "; map totals", "; map_lookup_elem", "; address of add_one", "L6:"] {
        assert!(listing.contains(words), "{words} is missing in\n{listing}");
    }
    let lines = bpf_opt(["dis", example("xdp_count.o").to_str().unwrap(), "--lines"]).expect(0).out;
    assert!(lines.contains("xdp_count.c:"), "{lines}");
    let one = bpf_opt(["dis", object.to_str().unwrap(), "--program", "mix"]).expect(0).out;
    assert!(one.contains("; mix:") && !one.contains("; classify:"), "{one}");
}

#[test]
fn every_object_has_listings_and_graphs() {
    for object in examples().into_iter().chain(benchmarks()) {
        let listing = bpf_opt(["dis".as_ref(), object.as_os_str()]).expect(0).out;
        // The listing is a program again.
        let code: String = listing.lines().filter(|l| !l.starts_with(';')).map(|l| format!("{l}\n")).collect();
        assert!(code.contains("exit"), "{}", object.display());
        let graph = bpf_opt(["dis".as_ref(), object.as_os_str(), "--cfg".as_ref()]).expect(0).out;
        assert!(graph.starts_with("digraph") && graph.ends_with("}\n"), "{}", object.display());
        assert_eq!(graph.matches('{').count(), graph.matches('}').count(), "{}", object.display());
    }
}

#[test]
fn run_shows_return_value_packet_and_maps() {
    let object = example("xdp_count.o");
    let object = object.to_str().unwrap();
    let tcp = "020000000001 020000000002 0800 4500002800000000 4006 0000 0a000001 0a000002 \
               0001 0002 00000000 00000000 5002 2000 0000 0000";
    let ran = bpf_opt(["run", object, "--packet", tcp]).expect(0);
    assert!(ran.out.contains("r0 = 0x2 (XDP_PASS)"), "{}", ran.out);
    assert!(ran.out.contains("54 bytes, unchanged"), "{}", ran.out);
    assert!(ran.out.contains("map counters, 1 elements:"), "{}", ran.out);
    assert!(ran.out.contains("map_lookup_elem("), "{}", ran.out);
    let odd = bpf_opt(["run", object, "--packet", "123"]).expect(2);
    assert!(odd.err.contains("--packet"), "{}", odd.err);
}

#[test]
fn run_takes_every_packet_of_a_capture() {
    let folder = folder();
    let file = folder.path().join("two.pcap");
    let capture = capture_of(&[vec![0; 60], vec![0; 60]]);
    fs::write(&file, &capture).unwrap();
    let object = example("xdp_count.o");
    let ran = bpf_opt(["run".as_ref(), object.as_os_str(), "--pcap".as_ref(), file.as_os_str()]).expect(0);
    assert!(ran.out.contains("packet 1 of 2") && ran.out.contains("packet 2 of 2"), "{}", ran.out);
    fs::write(&file, &capture[..capture.len() - 7]).unwrap();
    bpf_opt(["run".as_ref(), object.as_os_str(), "--pcap".as_ref(), file.as_os_str()]).expect(2);
}

#[test]
fn load_has_a_row_per_program_or_says_why_not() {
    let object = example("subprogs.o");
    let ran = bpf_opt(["load".as_ref(), object.as_os_str()]);
    match ran.code {
        Some(0) => assert!(ran.out.contains("insns") && ran.out.contains("accepted"), "{}", ran.out),
        Some(3) => {
            assert!(std::env::var_os("BPF_OPT_REQUIRE_KERNEL").is_none(), "bpf() is required: {}", ran.err);
            assert!(ran.err.contains("not permitted"), "{}", ran.err);
        }
        _ => panic!("{ran:?}"),
    }
}

#[test]
fn an_object_without_a_command_is_told_which_one_it_may_want() {
    let prog = example("xdp_count.o");
    let ran = bpf_opt([prog.as_os_str()]).expect(2);
    assert!(ran.err.contains("bpf-opt opt") && ran.err.contains("xdp_count.o"), "{}", ran.err);
    assert!(!bpf_opt(["no-such-command"]).expect(2).err.contains("to optimize"));
}

#[test]
fn of_an_object_of_the_other_byte_order_the_kernel_is_not_asked() {
    let Some(clang) = bpf_testgen::c::Clang::find() else { return println!("skipped: there is no clang") };
    let folder = folder();
    let object = |name: &str| folder.path().join(name).to_str().expect("a name").to_owned();
    let other = if cfg!(target_endian = "big") { "bpfel" } else { "bpfeb" };
    let bytes = clang.compile_file(&example("xdp_count.c"), other).expect("clang takes it");
    let (input, output) = (object("in.o"), object("out.o"));
    fs::write(&input, bytes).unwrap();
    for args in [&["load", &input][..], &["bench", &input, &input], &["difftest", &input, &input]] {
        let ran = bpf_opt(args).expect(2);
        assert!(
            ran.err.contains("in.o: the object is big-endian, and the kernel of this machine is not"),
            "{}",
            ran.err
        );
        assert!(ran.err.contains("hint: "), "{}", ran.err);
    }
    let ran = bpf_opt(["specialize", &input, "-o", &output, "--rodata", "x=1"]).expect(2);
    assert!(ran.err.contains("only little-endian ones are specialized"), "{}", ran.err);
    let ran = bpf_opt(["raw", &input, "-o", &object("out.bin")]).expect(2);
    assert!(ran.err.contains("arrays are taken for little-endian"), "{}", ran.err);
    assert!(!Path::new(&output).exists());
    let ran = bpf_opt(["opt", &input, "-o", &output, "-O1"]).expect(0);
    assert!(ran.err.contains("note: the object is big-endian, so this kernel cannot judge it"), "{}", ran.err);
    bpf_opt(["verify", &input, &output]).expect(0);
    bpf_opt(["check", &output]).expect(0);
    let little = bpf_opt(["verify", &input, example("xdp_count.o").to_str().unwrap()]).expect(1);
    assert!(little.out.contains("byte order: the first object is big-endian"), "{}", little.out);
}
