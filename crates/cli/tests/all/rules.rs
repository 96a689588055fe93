//! `bpf-opt rules` from outside.

use std::fs;

use crate::common::{self, Ran, bpf_opt, command, example};

const GOOD: &str = "\
rule cpu v3 goal size
  assume r0: number
  code
    r0 <<= 0x20
    r0 >>= 0x20
  live r0
  becomes
    w0 = w0
  by hand, effort 3, excluded up to 0
end
";

/// Right only for small numbers; and nothing says that they are.
const WRONG: &str = "\
rule cpu v3 goal size
  assume r0: number
  code
    r0 &= 0xff
  live r0
  becomes
    nothing
  by malice, effort 1
end
";

#[test]
fn import_list_export_and_stats_agree() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (cache, text, out) = (at("rules.redb"), at("rules.txt"), at("out.txt"));
    fs::write(&text, format!("# two rules\n{GOOD}\n{WRONG}")).expect("a file");
    bpf_opt(["rules", "list", "--cache", &cache]).expect(2);
    assert!(bpf_opt(["rules", "import", &text, "--cache", &cache]).expect(0).out.starts_with("2 of 2"));
    assert!(bpf_opt(["rules", "import", &text, "--cache", &cache]).expect(0).out.starts_with("0 of 2"));
    let list = bpf_opt(["rules", "--cache", &cache, "list"]).expect(0).out;
    assert_eq!(list, format!("{WRONG}\n{GOOD}"));
    bpf_opt(["rules", "export", &out, "--cache", &cache]).expect(0);
    assert_eq!(fs::read_to_string(&out).expect("the export"), list);
    let stats = bpf_opt(["rules", "stats", "--cache", &cache]).expect(0).out;
    assert!(stats.contains("2 problems, 2 with a replacement, 1 of them known to be shortest"), "{stats}");
    assert!(stats.contains("found by hand: 1"), "{stats}");
}

/// Runs the binary where files may grow to 32 KiB (64 in some shells), less than a new cache needs: as on a full disk.
fn on_a_full_disk(args: &[&str]) -> Ran {
    let binary = command();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\""]).arg(binary.get_program()).args(args);
    Ran::of(shell.stdin(std::process::Stdio::null()).output().expect("a shell"))
}

#[test]
fn a_full_disk_leaves_no_cache_or_the_one_that_was_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (cache, good, both, out) = (at("rules.redb"), at("good.txt"), at("both.txt"), at("out.o"));
    fs::write(&good, GOOD).expect("a file");
    fs::write(&both, format!("{GOOD}\n{WRONG}")).expect("a file");
    let ran = on_a_full_disk(&["rules", "import", &good, "--cache", &cache]).expect(2);
    assert!(ran.err.contains("rules.redb") && ran.err.contains("is not written"), "{}", ran.err);
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 2, "nothing is left behind");
    bpf_opt(["rules", "import", &good, "--cache", &cache]).expect(0);
    let list = || bpf_opt(["rules", "list", "--cache", &cache]).expect(0).out;
    assert_eq!(list(), GOOD);
    on_a_full_disk(&["rules", "import", &both, "--cache", &cache]).expect(2);
    // Looking needs no room.
    assert_eq!(on_a_full_disk(&["rules", "list", "--cache", &cache]).expect(0).out, GOOD);
    let input = example("xdp_count.o").display().to_string();
    let args = ["opt", &input, "-o", &out, "--cache", &cache, "--no-kernel", "--time-limit", "2"];
    let ran = on_a_full_disk(&args).expect(0);
    assert!(ran.err.matches("rules.redb").count() <= 1 && !ran.err.contains("in use"), "{}", ran.err);
    assert!(list().contains(GOOD));
    bpf_opt(["rules", "import", &both, "--cache", &cache]).expect(0);
    assert!(list().contains(WRONG));
}

#[test]
fn looking_changes_no_byte_of_the_cache() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (cache, empty, good) = (at("rules.redb"), at("empty"), at("good.txt"));
    fs::write(&good, GOOD).expect("a file");
    fs::write(&empty, "").expect("a file");
    bpf_opt(["rules", "import", &good, "--cache", &cache]).expect(0);
    for cache in [&cache, &empty] {
        let before = fs::read(cache).expect("the cache");
        for what in ["list", "stats", "verify"] {
            bpf_opt(["rules", what, "--cache", cache]).expect(0);
        }
        bpf_opt(["rules", "export", &at("out.txt"), "--cache", cache]).expect(0);
        assert!(fs::read(cache).expect("the cache") == before, "{cache}");
    }
}

#[test]
fn verify_proves_from_the_text_and_says_which_rule_is_wrong() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (good, both, cache) = (at("good.txt"), at("both.txt"), at("rules.redb"));
    fs::write(&good, GOOD).expect("a file");
    fs::write(&both, format!("{GOOD}{WRONG}")).expect("a file");
    assert!(bpf_opt(["rules", "verify", &good]).expect(0).out.starts_with("1 rule proven,"));
    let ran = bpf_opt(["rules", "verify", &both]).expect(1);
    assert!(
        ran.out.contains("is WRONG") && ran.out.contains("by malice") && !ran.out.contains("by hand"),
        "{}",
        ran.out
    );
    bpf_opt(["rules", "import", &both, "--cache", &cache]).expect(0);
    bpf_opt(["rules", "verify", "--cache", &cache]).expect(1);
    // With what the facts say it is right.
    fs::write(&good, WRONG.replace("number", "number unsigned 0x0..0xff")).expect("a file");
    bpf_opt(["rules", "verify", &good]).expect(0);
}

/// A general rule, and one that forgets what the first mask leaves.
const GENERAL: &str = "\
rule general cpu v3 goal size
  assume r1: {(-1 << k0) & 0xffffffff}
  code
    r0 &= r1
    r0 >>= {k0}
  live r0 r1
  where k0 in 0..=31
  becomes
    w0 >>= {k0}
  by hand
end
";

/// See [`GENERAL`].
const POISONED: &str = "\
rule general cpu v3 goal size frame leaked
  code
    r0 = {k0}
    r1 = {k1}
  live r0 r1
  where k0 in -2147483648..=2147483647
  where k1 in -2147483648..=2147483647
  becomes
    r0 = {k0 & k1}
  by malice
end
";

#[test]
fn general_rules_are_listed_exported_and_proven_like_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (text, out, cache) = (at("rules.txt"), at("out.txt"), at("rules.redb"));
    fs::write(&text, format!("{GOOD}\n{GENERAL}")).expect("a file");
    assert!(bpf_opt(["rules", "import", &text, "--cache", &cache]).expect(0).out.starts_with("2 of 2"));
    bpf_opt(["rules", "export", &out, "--cache", &cache]).expect(0);
    assert_eq!(fs::read_to_string(&out).expect("the export"), format!("{GOOD}\n{GENERAL}"));
    let proven = bpf_opt(["rules", "verify", "--cache", &cache]).expect(0).out;
    assert!(proven.starts_with("2 rules proven, 1 of them general"), "{proven}");
    let stats = bpf_opt(["rules", "stats", "--cache", &cache]).expect(0).out;
    assert!(stats.contains("1 general rules with 1 parameters"), "{stats}");
    // For 64 bits it is wrong: w0 loses its amount.
    fs::write(&text, GENERAL.replace("where k0 in 0..=31", "where k0 in 0..=40")).expect("a file");
    bpf_opt(["rules", "verify", &text]).expect(1);
    fs::write(&text, format!("{GENERAL}{POISONED}")).expect("a file");
    let ran = bpf_opt(["rules", "verify", &text]).expect(1);
    assert!(
        ran.out.contains("is WRONG") && ran.out.contains("by malice") && !ran.out.contains("by hand"),
        "{}",
        ran.out
    );
}

#[test]
fn a_poisoned_general_rule_wastes_time_at_most() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (text, cache, out) = (at("rules.txt"), at("rules.redb"), at("out.o"));
    // Of almost every operation: that it can go.
    let ops = ["r0 = {k0}", "r0 += {k0}", "r0 &= {k0}", "r0 <<= {k0}", "r0 >>= {k0}", "*(u32 *)(r10 - 4) = {k0}"];
    let rule = |op: &&str| {
        format!(
            "rule general cpu v3 goal size frame leaked\ncode\n{op}\nlive r0 fp-512+512\n\
             where k0 in -2147483648..=2147483647\nbecomes\nnothing\nby malice\nend\n"
        )
    };
    let all: String = ops.iter().map(rule).collect();
    fs::write(&text, format!("{POISONED}{all}")).expect("a file");
    bpf_opt(["rules", "import", &text, "--cache", &cache]).expect(0);
    // How many windows were answered from the cache in a run that starts with this one.
    let hits = |input: &str, cache: &str| {
        let args = ["opt", input, "-o", &out, "--no-kernel", "--json", "-", "--cache", cache, "-q"];
        let report: serde_json::Value = serde_json::from_str(&bpf_opt(args).expect(0).out).expect("JSON");
        bpf_opt(["verify", input, &out]).expect(0);
        report["search"]["rule_hits"].as_u64().expect("a number")
    };
    for name in ["xdp_count.o", "legacy_maps.o", "globals.o"] {
        let input = common::example(name).display().to_string();
        let without = hits(&input, &at(&format!("{name}.redb")));
        assert_eq!(hits(&input, &cache), without, "a poisoned rule has answered for {name}");
    }
}

#[test]
fn bad_files_are_bad_input() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (bad, cache) = (at("bad.txt"), at("rules.redb"));
    fs::write(&bad, "rule cpu v3 goal size\n  code\n    r0 frobs r1\n").expect("a file");
    assert!(bpf_opt(["rules", "import", &bad, "--cache", &cache]).expect(2).err.contains("line 3"));
    assert!(!folder.path().join("rules.redb").exists());
    fs::write(&bad, [0xff, 0xfe, 0]).expect("a file");
    bpf_opt(["rules", "verify", &bad]).expect(2);
    bpf_opt(["rules", "list", "--cache", &bad]).expect(2);
    bpf_opt(["rules"]).expect(2);
    let help = bpf_opt(["rules", "--help"]).expect(0).out;
    assert!(help.contains("bpf-opt rules ") && help.contains("Exit codes:"), "{help}");
}

#[test]
fn shipped_rules_are_listed_counted_and_browsed() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let list = bpf_opt(["rules", "list", "--shipped"]).expect(0).out;
    let count = list.lines().filter(|l| l.starts_with("rule general ")).count();
    assert!(count > 100, "{count} rules");
    bpf_opt(["rules", "export", &at("a.rules"), "--shipped"]).expect(0);
    bpf_opt(["rules", "export", &at("b.rules"), "--shipped", "--general"]).expect(0);
    assert_eq!(fs::read_to_string(at("a.rules")).expect("a file"), list);
    assert_eq!(fs::read_to_string(at("b.rules")).expect("a file"), list);
    let stats = bpf_opt(["rules", "stats", "--shipped"]).expect(0).out;
    assert!(stats.contains(&format!("{count} general rules")), "{stats}");
    bpf_opt(["rules", "html", &at("rules.html"), "--shipped"]).expect(0);
    let page = fs::read_to_string(at("rules.html")).expect("a page");
    assert_eq!(page.matches("<article").count(), count);
    // They are part of the program.
    bpf_opt(["rules", "import", &at("a.rules"), "--shipped"]).expect(2);
    bpf_opt(["rules", "list", "--shipped", "--cache", &at("x.redb")]).expect(2);
    // A page of other rules, and never over them.
    fs::write(at("text"), GOOD).expect("a file");
    bpf_opt(["rules", "import", &at("text"), "--cache", &at("x.redb")]).expect(0);
    let page = bpf_opt(["rules", "html", "-", "--cache", &at("x.redb")]).expect(0).out;
    assert!(page.contains("r0 &lt;&lt;= 0x20") && page.contains("w0 = w0"), "{page}");
    bpf_opt(["rules", "html", &at("x.redb"), "--cache", &at("x.redb")]).expect(2);
}

#[test]
fn a_first_run_without_search_uses_shipped_rules_and_proves_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let public = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let (mut with, mut without) = (0, 0);
    for object in fs::read_dir(public).expect("examples").filter_map(|e| Some(e.ok()?.path())) {
        if object.extension().is_none_or(|e| e != "o") {
            continue;
        }
        let run = |more: &[&str]| {
            let args =
                ["opt", object.to_str().expect("text"), "-o", &at("out.o"), "-O1", "--no-kernel", "-q", "--json", "-"];
            let report: serde_json::Value =
                serde_json::from_str(&bpf_opt(args.iter().chain(more)).expect(0).out).expect("JSON");
            bpf_opt(["verify", object.to_str().expect("text"), &at("out.o")]).expect(0);
            (
                report["totals"]["slots_after"].as_u64().expect("slots"),
                report["search"]["by_rule"].as_u64().unwrap_or(0),
            )
        };
        let ((shorter, rules), (longer, none)) = (run(&[]), run(&["--no-shipped-rules"]));
        assert_eq!(none, 0, "{}", object.display());
        assert!(shorter <= longer, "{}", object.display());
        assert!(rules > 0 || shorter == longer, "{}", object.display());
        (with, without) = (with + shorter, without + longer);
    }
    assert!(with < without, "no rule was of use: {with} slots");
}
