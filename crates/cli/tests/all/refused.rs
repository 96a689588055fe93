//! Goal `verifier`: no program is more work than it was, and programs that the kernel refuses because they are too much for it are
//! made acceptable (`tests/refused` has twenty of them; here are some that take few seconds).

use std::fs;
use std::path::Path;

use bpf_assembly::{Surroundings, functions, object};
use bpf_kernel::testing::permitted;
use serde_json::Value;

use crate::common::{bpf_opt, example};

/// What became of an object, and where it is.
fn lighter(input: &Path, folder: &Path) -> (String, Value, String) {
    let (out, json) = (folder.join("out.o").display().to_string(), folder.join("out.json").display().to_string());
    let input = input.display().to_string();
    let args =
        ["opt", &input, "-o", &out, "--json", &json, "--goal", "verifier", "-O2", "--time-limit", "60", "--no-cache"];
    let ran = bpf_opt(args).expect(0);
    let report = fs::read_to_string(json).expect("the report");
    (out, serde_json::from_str(&report).expect("JSON"), ran.out + &ran.err)
}

#[test]
fn programs_refused_for_complexity_are_made_acceptable() {
    if !permitted() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (name, why) in [("checksum", "too complex"), ("longest_prefix", "too complex"), ("saturating", "too large")] {
        let input = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/refused/{name}.o"));
        bpf_opt(["load", &input.display().to_string()]).expect(1);
        let (out, report, text) = lighter(&input, folder.path());
        let made = &report["made_acceptable"][0];
        assert_eq!(made["program"], name, "{text}");
        assert!(made["refused"].as_str().is_some_and(|refused| refused.contains(why)), "{made}");
        assert!(made["by"].as_array().is_some_and(|by| by.iter().any(|b| b[0] == "branch-to-arithmetic")), "{made}");
        assert!(text.contains("the original was refused") && text.contains("Accepted after"), "{text}");
        bpf_opt(["load", &out]).expect(0);
    }
}

#[test]
fn no_program_is_more_work_for_the_verifier_and_its_states_are_told() {
    if !permitted() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (mut before, mut after) = (0, 0);
    for name in ["xdp_count.o", "subprogs.o"] {
        let (_, report, text) = lighter(&example(name), folder.path());
        for f in report["functions"].as_array().expect("functions") {
            let count = |which: &str, what: &str| f[which][what].as_u64();
            let (Some(old), Some(new)) = (count("kernel_before", "processed"), count("kernel_after", "processed"))
            else {
                continue;
            };
            assert!(new <= old, "{name}: {text}");
            for which in ["kernel_before", "kernel_after"] {
                assert!(count(which, "states").is_some() && count(which, "peak_states").is_some(), "{f}");
                assert!(f[which]["stack_depths"].as_array().is_some_and(|depths| !depths.is_empty()), "{f}");
            }
            (before, after) = (before + old, after + new);
        }
    }
    assert!(after < before, "{before} -> {after}");
}

/// A subprogram with a pointer into the packet at many places. With 1 it is compared with the packet's end once more, else not.
const SHARED: &str = "
static sub(ctx, u32) u32:
    r0 = 0
    r3 = *(u32 *)(r1 + 0)
    r4 = *(u32 *)(r1 + 4)
    r5 = r3
    r5 += 64
    if r5 > r4 goto out
    r5 = r3
    r5 += 14
    r0 = *(u8 *)(r3 + 3)
    if w0 & 1 goto two
    r5 += 4
two:
    r0 = *(u8 *)(r3 + 4)
    if w0 & 2 goto three
    r5 += 6
three:
    r0 = *(u8 *)(r3 + 5)
    if w0 & 4 goto four
    r5 += 8
four:
    r0 = *(u8 *)(r3 + 6)
    if w0 & 8 goto five
    r5 += 16
five:
    if w2 != 1 goto old
    r0 = 0
    r1 = r5
    r1 += 6
    if r1 > r4 goto out
    r0 = *(u8 *)(r5 + 2)
    r1 = *(u8 *)(r5 + 5)
    r0 += r1
    goto out
old:
    r0 = *(u8 *)(r5 + 0)
out:
    exit
";

/// A step may cost what a program relies on that the kernel does not judge, so functions that such a one has stay as they are.
#[test]
fn no_step_is_taken_for_one_program_where_another_is_not_judged() {
    if !permitted() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let sub_in = |others: &str| {
        let text = format!("    r2 = 1\n    call sub\n    exit\n{others}{SHARED}");
        let around = Surroundings { section: "xdp".into(), ..Surroundings::default() };
        let bytes = object(&around, &functions(&text, "xdp").expect("functions")).expect("an object");
        let input = folder.path().join("shared.o");
        fs::write(&input, bytes).expect("written");
        let (_, report, text) = lighter(&input, folder.path());
        let all = report["functions"].as_array().expect("functions");
        let sub = all.iter().find(|f| f["name"] == "sub").expect("it is there").clone();
        let by = |name: &str| sub["rewrites"].as_array().is_some_and(|all| all.iter().any(|by| by[0] == name));
        (by("packet-offset"), text)
    };
    let (alone, text) = sub_in("");
    assert!(alone, "{text}");
    // It calls a helper that there is not.
    let (shared, text) =
        sub_in("program other xdp:\n    r6 = r1\n    call 9999\n    r2 = 0\n    r1 = r6\n    call sub\n    exit\n");
    assert!(!shared, "{text}");
}
