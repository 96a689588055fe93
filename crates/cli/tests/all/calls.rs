//! Calls without effect, in the example that has them.

use std::path::Path;

use crate::common::*;

/// How often the listing of a program has a call of this helper.
fn calls(listing: &str, program: &str, helper: &str) -> usize {
    let from = listing.split(&format!("; {program}: ")).nth(1).expect("the program is listed");
    let until = from.find("\n; ").unwrap_or(from.len());
    from[..until].lines().filter(|l| l.contains("call 0x") && l.ends_with(helper)).count()
}

#[test]
fn calls_are_merged_dropped_and_made_later() {
    let object = example("calls.o");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("calls.o");
    let (from, to) = (object.to_str().expect("plain"), out.to_str().expect("plain"));
    let before = bpf_opt(["dis", from]).expect(0).out;
    assert_eq!(calls(&before, "merged", "get_smp_processor_id"), 3, "{before}");
    assert_eq!(calls(&before, "dropped", "ktime_get_ns"), 1, "{before}");
    bpf_opt(["opt", from, "-o", to, "--no-cache", "--no-kernel", "--time-limit", "10", "-q"]).expect(0);
    let after = bpf_opt(["dis", to]).expect(0).out;
    assert_eq!(calls(&after, "merged", "get_smp_processor_id"), 1, "{after}");
    assert_eq!(calls(&after, "dropped", "ktime_get_ns"), 0, "{after}");
    assert_eq!(calls(&after, "dropped", "map_lookup_elem"), 1, "{after}");
    // Behind the branch, so that short packets do not pay for it.
    let sunk = after.split("; sunk: ").nth(1).expect("the program is listed");
    let branch = sunk.find("if ").expect("a branch");
    assert!(sunk[..branch].find("call 0x").is_none() && calls(&after, "sunk", "map_lookup_elem") == 1, "{after}");
    bpf_opt(["verify", from, to]).expect(0);
}
