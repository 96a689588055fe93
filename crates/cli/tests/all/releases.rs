//! What the tables of releases say a kernel has, against that kernel: `check --kernel V`, and the verdicts of the running kernel and
//! of the images that `bpf-opt kernels` keeps. A program for each helper, each field of a context, each kind of instruction; an
//! object for each type of maps and programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bpf_platform::{KernelVersion, helpers, maps, permissions};
use bpf_testgen::assembly::{Map, Signature, Surroundings, functions, object};
use serde_json::Value;

use crate::common::{bpf_opt, examples};

/// Sections with program and attach type, of which the first that has something is asked about it.
const SECTIONS: [(&str, u32, u32); 33] = [
    ("tc", 3, 0),
    ("xdp", 6, 37),
    ("xdp/devmap", 6, 33),
    ("socket", 1, 0),
    ("kprobe/x", 2, 0),
    ("tracepoint/syscalls/sys_enter_getpid", 5, 0),
    ("perf_event", 7, 0),
    ("raw_tp/x", 17, 0),
    ("cgroup_skb/ingress", 8, 0),
    ("cgroup_skb/egress", 8, 1),
    ("cgroup/sock_create", 9, 2),
    ("cgroup/sock_release", 9, 34),
    ("cgroup/post_bind4", 9, 12),
    ("cgroup/post_bind6", 9, 13),
    ("lwt_in", 10, 0),
    ("lwt_out", 11, 0),
    ("lwt_xmit", 12, 0),
    ("lwt_seg6local", 19, 0),
    ("sockops", 13, 3),
    ("sk_skb/stream_parser", 14, 4),
    ("cgroup/dev", 15, 6),
    ("sk_msg", 16, 7),
    ("cgroup/connect4", 18, 10),
    ("cgroup/connect6", 18, 11),
    ("cgroup/sendmsg4", 18, 14),
    ("cgroup/sendmsg6", 18, 15),
    ("cgroup/getsockname4", 18, 31),
    ("lirc_mode2", 20, 0),
    ("sk_reuseport/migrate", 21, 40),
    ("flow_dissector", 22, 17),
    ("cgroup/sysctl", 23, 18),
    ("cgroup/getsockopt", 25, 21),
    ("sk_lookup", 30, 36),
];

/// Instructions that not every kernel has, each in a program that a kernel takes that has it.
const FORMS: [(&str, &str); 17] = [
    ("plain", "r0 = 0\nif r0 == 0 goto +0\nexit\n"),
    ("jlt", "r0 = 0\nif r0 < 2 goto +0\nexit\n"),
    ("jmp32", "r0 = 0\nif w0 == 0 goto +0\nexit\n"),
    ("xadd", "r0 = 0\n*(u64 *)(r10 - 8) = r0\nlock *(u64 *)(r10 - 8) += r0\nexit\n"),
    ("fetch_add", "r0 = 0\n*(u64 *)(r10 - 8) = r0\nr0 = atomic_fetch_add((u64 *)(r10 - 8), r0)\nr0 = 0\nexit\n"),
    ("xchg", "r0 = 0\n*(u64 *)(r10 - 8) = r0\nr0 = xchg_64(r10 - 8, r0)\nr0 = 0\nexit\n"),
    ("cmpxchg", "r0 = 0\n*(u64 *)(r10 - 8) = r0\nr1 = 1\nr0 = cmpxchg_64(r10 - 8, r0, r1)\nr0 = 0\nexit\n"),
    ("movsx", "r0 = 0\nr0 = (s8)r0\nr0 = 0\nexit\n"),
    ("ldsx", "r0 = 0\n*(u64 *)(r10 - 8) = r0\nr0 = *(s16 *)(r10 - 8)\nr0 = 0\nexit\n"),
    ("bswap", "r0 = 0\nr0 = bswap32 r0\nr0 = 0\nexit\n"),
    ("be32", "r0 = 0\nr0 = be32 r0\nr0 = 0\nexit\n"),
    ("sdiv", "r0 = 8\nr0 s/= 2\nr0 = 0\nexit\n"),
    ("smod", "r0 = 8\nr0 s%= 3\nr0 = 0\nexit\n"),
    ("gotol", "r0 = 0\ngotol +0\nexit\n"),
    ("may_goto", "r0 = 0\nmay_goto +1\nr0 = 1\nexit\n"),
    ("load_acquire", "r0 = 0\n*(u64 *)(r10 - 8) = r0\nr0 = load_acquire((u64 *)(r10 - 8))\nr0 = 0\nexit\n"),
    ("store_release", "r0 = 0\nstore_release((u64 *)(r10 - 8), r0)\nexit\n"),
];

/// Sections of types that came late, one object each: an unknown type keeps the whole object from being loaded.
const TYPES: [&str; 4] = ["netfilter", "cgroup/connect_unix", "cgroup/getsockname_unix", "sk_lookup"];

/// Maps that are made without more than numbers: type, key, value, elements, flags.
const MAPS: [(u32, u32, u32, u32, u32); 21] = [
    (maps::HASH, 4, 8, 4, 0),
    (maps::ARRAY, 4, 8, 4, 0),
    (maps::PROG_ARRAY, 4, 4, 4, 0),
    (maps::PERF_EVENT_ARRAY, 4, 4, 2, 0),
    (maps::PERCPU_HASH, 4, 8, 4, 0),
    (maps::PERCPU_ARRAY, 4, 8, 4, 0),
    (maps::STACK_TRACE, 4, 128, 16, 0),
    (maps::CGROUP_ARRAY, 4, 4, 2, 0),
    (maps::LRU_HASH, 4, 8, 16, 0),
    (maps::LPM_TRIE, 8, 8, 4, 1),
    (maps::DEVMAP, 4, 4, 4, 0),
    (maps::SOCKMAP, 4, 8, 4, 0),
    (maps::SOCKHASH, 4, 8, 4, 0),
    (maps::QUEUE, 0, 8, 2, 0),
    (maps::STACK, 0, 8, 2, 0),
    (maps::DEVMAP_HASH, 4, 4, 4, 0),
    (maps::RINGBUF, 0, 0, 4096, 0),
    (maps::BLOOM_FILTER, 0, 8, 16, 0),
    (maps::USER_RINGBUF, 0, 0, 4096, 0),
    (maps::ARENA, 0, 0, 4, 1 << 10),
    // A flag that came later than the type.
    (maps::ARRAY, 4, 8, 4, 1 << 12),
];

/// What kernels have that are older than its release: the number that the kernel's begins with, and the program. Linux 6.1.192 takes
/// `gotol`, as the stable series has taken 4cd58e9af8b9 back.
const TAKEN_BACK: [(&str, &str); 1] = [("6.1.", "gotol")];

/// How a verdict tells whether a kernel has what a program is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sign {
    /// It takes the program.
    Taken,
    /// It does not say this.
    Unless(&'static str),
    /// It says none of these.
    UnlessAny(&'static [&'static str]),
}

/// A helper of that number is there.
const THERE: Sign = Sign::Unless("invalid func unknown");

/// What kernels say of a helper that a type may not call: of one that is not there, before 6.14, and since.
const REFUSALS: [&str; 3] = ["invalid func unknown", "unknown func ", "cannot use helper"];

/// An object, and what its verdicts mean.
struct Question {
    file: PathBuf,
    sign: Sign,
}

/// An object of programs: name, section, listing.
fn write(file: &Path, maps: Vec<Map>, programs: &[(String, &str, String)]) {
    let text: String =
        programs.iter().map(|(name, section, listing)| format!("program {name} {section}:\n{listing}")).collect();
    let code = functions(&text, "tc").expect("functions");
    let around = Surroundings { section: "tc".into(), untyped: maps.is_empty(), maps, ..Surroundings::default() };
    fs::write(file, object(&around, &code).expect("it assembles")).expect("written");
}

fn questions(folder: &Path) -> Vec<Question> {
    let mut all = Vec::new();
    let mut ask = |name: String, sign: Sign, maps: Vec<Map>, programs: &[(String, &str, String)]| {
        let file = folder.join(name + ".o");
        write(&file, maps, programs);
        all.push(Question { file, sign });
    };
    let helpers: Vec<(String, &str, String)> = (1..=helpers::LAST)
        .map(|id| {
            let may_call =
                |(_, kind, attach): &&(&str, u32, u32)| permissions::may_call(*kind, *attach, id, true).is_ok();
            // Some may be called by programs for functions of the kernel alone; the number is looked at first.
            let section = SECTIONS.iter().find(may_call).map_or("tc", |s| s.0);
            (format!("h{id}"), section, format!("call {id}\nr0 = 1\nexit\n"))
        })
        .collect();
    ask("helpers".into(), THERE, vec![], &helpers);
    // Which types may call which helpers: one in so many of 3,500 pairs, all with BPF_OPT_PAIRS=1.
    let every: usize = std::env::var("BPF_OPT_PAIRS").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    for (section, kind, attach) in SECTIONS {
        let pairs = (1..=helpers::LAST).filter(|id| permissions::may_call(kind, attach, *id, true).is_ok());
        let chosen =
            pairs.filter(|id| (*id as usize + kind as usize).is_multiple_of(every) && permissions::knows(kind));
        let code = |id| (format!("p{kind}_{attach}_{id}"), section, format!("call {id}\nr0 = 1\nexit\n"));
        let programs: Vec<(String, &str, String)> = chosen.map(code).collect();
        ask(format!("pairs{kind}_{attach}"), Sign::UnlessAny(&REFUSALS), vec![], &programs);
    }
    let mut fields = Vec::new();
    for (section, kind, attach) in SECTIONS {
        for off in (0..232).filter(|_| bpf_platform::since::field(kind, 0).is_some()) {
            let widths = [(8, "u64"), (4, "u32"), (2, "u16"), (1, "u8")];
            let whole = |(bytes, _): &&(u32, &str)| permissions::context(kind, attach, false, off, *bytes).is_some();
            // The first byte of each field is enough, and what has no wider access.
            if let Some((_, width)) = widths.iter().find(whole).filter(|(bytes, _)| off % 4 == 0 || *bytes > 1) {
                let name = format!("f{kind}_{attach}_{off}");
                fields.push((name, section, format!("r0 = *({width} *)(r1 + {off})\nr0 = 1\nexit\n")));
            }
        }
    }
    ask("fields".into(), Sign::Unless("invalid bpf_context access"), vec![], &fields);
    let forms: Vec<(String, &str, String)> =
        FORMS.iter().map(|(name, listing)| ((*name).to_owned(), "tc", (*listing).to_owned())).collect();
    ask("forms".into(), Sign::Taken, vec![], &forms);
    for (at, section) in TYPES.iter().enumerate() {
        ask(format!("type{at}"), Sign::Taken, vec![], &[("main".into(), section, "r0 = 1\nexit\n".into())]);
    }
    for (at, (map_type, key_size, value_size, max_entries, flags)) in MAPS.into_iter().enumerate() {
        let map = Map { name: "m".into(), map_type, key_size, value_size, max_entries, flags, ..Map::default() };
        let code = ("main".into(), "tc", "r1 = m ll\nr0 = 0\nexit\n".into());
        ask(format!("map{at}"), Sign::Taken, vec![map], &[code]);
    }
    all
}

/// Of each program of an object, whether the kernel has what it is about; `None` where it did not get to that.
fn said(sign: Sign, object: &Value) -> BTreeMap<String, (Option<bool>, String)> {
    let mut found = BTreeMap::new();
    if object["not_loadable"].is_string() {
        found.insert("main".to_owned(), (Some(false), object["not_loadable"].to_string()));
    }
    for p in object["programs"].as_array().into_iter().flatten() {
        let (verdict, reason) = (p["verdict"].as_str().unwrap_or(""), p["reason"].as_str().unwrap_or(""));
        let knows = match (sign, verdict) {
            (_, "accepted") => Some(true),
            (Sign::Taken, _) => Some(false),
            (Sign::Unless(words), "rejected") if !reason.is_empty() => Some(!reason.contains(words)),
            (Sign::UnlessAny(words), "rejected") if !reason.is_empty() => {
                Some(!words.iter().any(|words| reason.contains(words)))
            }
            (Sign::Unless(_) | Sign::UnlessAny(_), _) => None,
        };
        found.insert(p["name"].as_str().unwrap_or("").to_owned(), (knows, format!("{verdict}: {reason}")));
    }
    found
}

/// What the tables say of each program: is there nothing that this release does not have? Those on which they say nothing are left
/// out.
fn told(question: &Question, release: KernelVersion) -> BTreeMap<String, bool> {
    let file = &question.file;
    let ran = bpf_opt(["check", &file.display().to_string(), "--kernel", &release.to_string(), "--json", "-"]);
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {}{}", ran.out, ran.err));
    let programs = report["programs"].as_array().expect("programs");
    let name = |p: &Value| p["name"].as_str().expect("a name").to_owned();
    // That a helper is there says the number, whatever types may call it.
    let counts = |lack: &Value| question.sign != THERE || !lack["what"].to_string().contains("for this type");
    let is_empty = |p: &Value, what: &str| p[what].as_array().is_some_and(|lacks| !lacks.iter().any(counts));
    let judged = programs.iter().filter(|p| is_empty(p, "not_judged"));
    judged.map(|p| (name(p), is_empty(p, "too_new"))).collect()
}

/// Holds the tables against the answers of one kernel, in the order of the questions: those that the tables do not give.
fn compare(questions: &[Question], release: &str, answers: &[Value]) -> Vec<String> {
    let version: KernelVersion = release.parse().expect("a release");
    let (mut wrong, mut judged) = (Vec::new(), 0);
    for (question, answer) in questions.iter().zip(answers) {
        let ours = told(question, version);
        for (name, (knows, why)) in said(question.sign, answer) {
            let (Some(knows), Some(ours)) = (knows, ours.get(&name).copied()) else { continue };
            judged += 1;
            let is_taken_back = TAKEN_BACK.iter().any(|(of, what)| release.starts_with(of) && *what == name);
            if !is_taken_back && ours != knows {
                let file = question.file.file_name().unwrap_or_default().display();
                wrong.push(format!("Linux {release}: {file}: {name}: tables {ours}, kernel {knows}: {why}"));
            }
        }
    }
    eprintln!("Linux {release}: {judged} answers");
    assert!(judged > 500, "Linux {release} gave {judged} answers");
    wrong
}

#[test]
fn this_kernel_has_what_tables_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let questions = questions(folder.path());
    let mut answers = Vec::new();
    for question in &questions {
        let ran = bpf_opt(["load", &question.file.display().to_string(), "--json", "-"]);
        if ran.code == Some(3) {
            assert!(std::env::var_os("BPF_OPT_REQUIRE_KERNEL").is_none(), "{}", ran.err);
            eprintln!("skipped: no right to load programs");
            return;
        }
        answers.push(serde_json::from_str(&ran.out).expect("JSON"));
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let wrong = compare(&questions, release.trim(), &answers);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn other_kernels_have_what_tables_say() {
    let images = bpf_opt(["kernels", "list"]).out;
    let names: Vec<&str> = images.lines().filter_map(|line| line.split("  ").next()).collect();
    if names.is_empty() || !bpf_vm::is_available() {
        eprintln!("skipped: no qemu, or no image that `bpf-opt kernels add` has kept");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let questions = questions(folder.path());
    let report = folder.path().join("report.json").display().to_string();
    let mut args: Vec<String> = vec!["kernels".into(), "load".into()];
    args.extend(questions.iter().map(|q| q.file.display().to_string()));
    args.extend(["--kernels".into(), names.join(","), "--json".into(), report.clone()]);
    let ran = bpf_opt(&args);
    assert_ne!(ran.code, Some(3), "{}{}", ran.out, ran.err);
    let report: Value = serde_json::from_slice(&fs::read(report).expect("a report")).expect("JSON");
    let of = |kernel: &Value| {
        let release = kernel["release"].as_str().expect("a release");
        compare(&questions, release, kernel["objects"].as_array().expect("objects"))
    };
    let wrong: Vec<String> = report["kernels"].as_array().expect("kernels").iter().flat_map(of).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// An object whose program uses a ring buffer, a jump of 32 bits and a field of XDP's context.
fn ring(folder: &Path) -> String {
    let file = folder.join("ring.o");
    let map = Map { name: "events".into(), map_type: maps::RINGBUF, max_entries: 4096, ..Map::default() };
    let code = "r2 = *(u32 *)(r1 + 16)\nif w2 == 0 goto +1\nr0 = 1\nr1 = events ll\nr2 = 0\ncall bpf_ringbuf_query\nr0 = 2\nexit\n";
    let code = functions(code, "xdp").expect("functions");
    let around = Surroundings { section: "xdp".into(), maps: vec![map], lines: true, ..Surroundings::default() };
    fs::write(&file, object(&around, &code).expect("it assembles")).expect("written");
    file.display().to_string()
}

#[test]
fn what_a_release_does_not_have_is_said_with_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = ring(folder.path());
    let check = |kernel: &str, code| bpf_opt(["check", &file, "--kernel", kernel]).expect(code).out;
    let old = check("5.0", 1);
    for line in [
        "main (xdp, xdp): too new,",
        "  needs Linux 5.8 or later: map type ringbuf\n",
        "  Linux 5.0 does not have: map type ringbuf (since 5.8)\n    map events\n",
        "  Linux 5.0 does not have: 32-bit jump (since 5.1)\n    at 1: if w2 == 0x0 goto +0x1   in main, section xdp",
        "  Linux 5.0 does not have: helper bpf_ringbuf_query (134) (since 5.8)\n    at 6: call",
    ] {
        assert!(old.contains(line), "{line}{old}");
    }
    assert!(!old.contains("xdp_md"), "a field of 4.16: {old}");
    assert!(check("4.15", 1).contains("xdp_md: rx_queue_index (since 4.16)"));
    assert!(check("5.8", 0).contains("safe"));
    assert!(bpf_opt(["check", &file]).expect(0).out.contains("needs Linux 5.8 or later"));
    assert!(bpf_opt(["check", &file, "--kernel", "new"]).expect(2).err.contains("two numbers"));
    bpf_opt(["check", &file, "--kernel", "5.8", "--against-kernel"]).expect(2);

    let report = bpf_opt(["check", &file, "--kernel", "5.7", "--json", "-"]).expect(1).out;
    let report: Value = serde_json::from_str(&report).expect("JSON");
    let program = &report["programs"][0];
    assert_eq!((&program["verdict"], &program["needs"]), (&"too new".into(), &"5.8".into()));
    let too_new = program["too_new"].as_array().expect("an array");
    assert_eq!(too_new.len(), 2, "{program}");
    assert_eq!((&too_new[0]["map"], &too_new[0]["slot"]), (&"events".into(), &Value::Null));
    assert_eq!((&too_new[1]["section"], &too_new[1]["slot"]), (&"xdp".into(), &6.into()));

    let csv = folder.path().join("rows.csv").display().to_string();
    bpf_opt(["check", &file, &file, "--kernel", "5.7", "--csv", &csv]).expect(1);
    let rows = fs::read_to_string(csv).expect("rows");
    assert!(rows.contains("too-new") && rows.contains(",5.8,"), "{rows}");
}

#[test]
fn kernel_functions_are_not_judged() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("kfunc.o").display().to_string();
    let around = Surroundings {
        section: "xdp".into(),
        kfuncs: vec![Signature::parse("bpf_made_up() s32").expect("a signature")],
        ..Surroundings::default()
    };
    let code = functions("call bpf_made_up\nr0 = 2\nexit\n", "xdp").expect("functions");
    fs::write(&file, object(&around, &code).expect("it assembles")).expect("written");
    let check = |kernel: &str, code| bpf_opt(["check", &file, "--kernel", kernel]).expect(code).out;
    assert!(check("6.12", 3).contains("not judged: call of a kernel function (the kernel symbol bpf_made_up)"));
    assert!(check("5.12", 1).contains("call of a kernel function (the kernel symbol bpf_made_up) (since 5.13)"));
}

/// What is written needs no newer kernel than what was read, or than the one it is made for.
#[test]
fn results_need_no_newer_release() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out.o").display().to_string();
    let least: KernelVersion = "5.10".parse().expect("a version");
    let needs = |file: &str| -> BTreeMap<String, KernelVersion> {
        let report: Value = serde_json::from_str(&bpf_opt(["check", file, "--json", "-"]).out).expect("JSON");
        let programs = report["programs"].as_array().expect("programs").iter();
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        programs.map(|p| (text(&p["name"]), text(&p["needs"]).parse().expect("a version"))).collect()
    };
    for example in examples() {
        let example = example.display().to_string();
        bpf_opt(["opt", &example, "-o", &out, "-O1", "--no-kernel", "--min-kernel", &least.to_string()]).expect(0);
        let before = needs(&example);
        for (name, after) in needs(&out) {
            assert!(after <= before[&name].max(least), "{example}: {name}: {} -> {after}", before[&name]);
        }
    }
}
