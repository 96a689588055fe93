//! The programs in `tests/verifier/rejected` and `tests/verifier/accepted`: the kernel's verdict on each is what its header says,
//! and ours is the same.

use bpf_check::{Report, SafetyVerdict};
use bpf_kernel::testing::permitted;

use crate::common::{Fixture, fixtures};

#[test]
fn the_kernel_says_of_each_what_its_header_says() {
    if !permitted() {
        return;
    }
    let mut wrong = Vec::new();
    for f in fixtures("rejected") {
        match f.load() {
            Ok(()) => wrong.push(format!("{}: the kernel takes it", f.name)),
            Err(log) if !log.contains(&f.reason) => {
                wrong.push(format!("{}: not for `{}` but\n{log}", f.name, f.reason))
            }
            Err(_) => {}
        }
    }
    for f in fixtures("accepted") {
        if let Err(log) = f.load() {
            wrong.push(format!("{}: the kernel refuses it\n{log}", f.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Those on which we say something else than the header.
fn disagreements(folder: &str, wanted: SafetyVerdict) -> (usize, Vec<String>) {
    let all = fixtures(folder);
    let told = |f: &Fixture| {
        let report = Report::of(&f.program());
        let why = report.problem.map_or(String::new(), |p| format!(" at {}: {}", p.slot, p.what));
        (report.verdict != wanted).then(|| format!("{}: {:?}{why}", f.name, report.verdict))
    };
    (all.len(), all.iter().filter_map(told).collect())
}

#[test]
fn rejected_programs_are_violations() {
    let (count, wrong) = disagreements("rejected", SafetyVerdict::Violation);
    println!("{} of {count} rejected programs agree\n{}", count - wrong.len(), wrong.join("\n"));
    assert!(count >= 60, "only {count} programs");
    assert!(wrong.len() * 20 <= count, "{}", wrong.join("\n"));
}

#[test]
fn accepted_twins_are_accepted() {
    let (count, wrong) = disagreements("accepted", SafetyVerdict::Accepted);
    println!("{} of {count} accepted programs agree\n{}", count - wrong.len(), wrong.join("\n"));
    assert!(count >= 30, "only {count} programs");
    assert!(wrong.len() * 20 <= count, "{}", wrong.join("\n"));
}
