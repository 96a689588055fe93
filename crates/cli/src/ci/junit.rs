//! What was found, as JUnit reports say it: an object is a suite, a program a test.

use std::path::Path;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::judge::{Judged, Status};
use crate::failure::Failure;

/// The report on objects: what the baseline calls each, and what was found.
pub fn report<'a>(objects: impl Iterator<Item = (&'a Path, Result<&'a [Judged], &'a str>)>) -> Result<String, Failure> {
    let mut report = Report::new("bpf-opt ci");
    for (object, outcome) in objects {
        let name = object.display().to_string();
        let mut suite = TestSuite::new(name.as_str());
        match outcome {
            Ok(programs) => suite.add_test_cases(programs.iter().map(|p| case(&name, &p.name, status(p)))),
            Err(message) => {
                let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
                status.set_message(message);
                suite.add_test_case(case(&name, &name, status))
            }
        };
        report.add_test_suite(suite);
    }
    report.to_string().map_err(|e| Failure::internal(format!("the JUnit report: {e}")))
}

fn case(object: &str, program: &str, status: TestCaseStatus) -> TestCase {
    let mut case = TestCase::new(program, status);
    case.set_classname(object);
    case
}

fn status(program: &Judged) -> TestCaseStatus {
    let texts: Vec<&str> = program.reasons.iter().map(|r| r.text.as_str()).collect();
    let mut status = match program.verdict {
        verdict if verdict.fails() => TestCaseStatus::non_success(NonSuccessKind::Failure),
        Status::NotMeasured => TestCaseStatus::skipped(),
        Status::Vanished => {
            let mut status = TestCaseStatus::skipped();
            status.set_message("it is in the baseline only");
            return status;
        }
        _ => return TestCaseStatus::success(),
    };
    status.set_message(texts.join("; ")).set_type(program.verdict.word());
    status
}
