//! What was found, as SARIF says it, for hosts that show findings beside the code.
//!
//! A finding stands where the source of its program begins, if the object has lines of it and that file is below this folder;
//! otherwise at the object.

use std::path::{Path, PathBuf};

use bpf_object::SourceLine;
use serde_sarif::sarif::{
    ArtifactLocation, Location, Message, MultiformatMessageString, PhysicalLocation, Region, ReportingDescriptor,
    Result as Finding, ResultLevel, Run, Sarif, Tool, ToolComponent,
};

use super::judge::{Figure, Judged};
use crate::failure::Failure;

/// What a finding is about, and what that is called.
const RULES: [(&str, &str); 6] = [
    ("slots", "A program has more instruction slots than the baseline allows"),
    ("insns", "The kernel's verifier processes more instructions than the baseline allows"),
    ("stack", "A program uses more stack than the baseline allows"),
    ("ns", "A program takes more time than the baseline allows"),
    ("refused", "The kernel refuses a program"),
    ("unreadable", "An object could not be measured"),
];

/// The report on objects: where each is, and what was found.
pub fn report<'a>(objects: impl Iterator<Item = (&'a Path, Result<&'a [Judged], &'a str>)>) -> Result<String, Failure> {
    let here = std::env::current_dir().ok();
    let mut findings = Vec::new();
    for (object, outcome) in objects {
        let programs = match outcome {
            Ok(programs) => programs,
            Err(message) => {
                findings.push(finding("unreadable", message.to_owned(), location(object, None, here.as_deref())));
                continue;
            }
        };
        for program in programs.iter().filter(|p| p.verdict.fails()) {
            for reason in &program.reasons {
                let rule = reason.figure.map_or("refused", Figure::name);
                let text = format!("{}: {}", program.name, reason.text);
                findings.push(finding(rule, text, location(object, program.source.as_ref(), here.as_deref())));
            }
        }
    }
    let rules: Vec<ReportingDescriptor> = RULES
        .iter()
        .map(|(id, text)| {
            let text = MultiformatMessageString::builder().text(*text).build();
            ReportingDescriptor::builder().id(*id).short_description(text).build()
        })
        .collect();
    let driver = ToolComponent::builder().name("bpf-opt").version(env!("CARGO_PKG_VERSION")).rules(rules).build();
    let run = Run::builder().tool(Tool::builder().driver(driver).build()).results(findings).build();
    let sarif = Sarif::builder()
        .schema("https://json.schemastore.org/sarif-2.1.0.json")
        .version(serde_json::json!("2.1.0"))
        .runs(vec![run])
        .build();
    let text = serde_json::to_string_pretty(&sarif).map_err(|e| Failure::internal(format!("the SARIF report: {e}")))?;
    Ok(text + "\n")
}

fn finding(rule: &str, text: String, at: Location) -> Finding {
    let message = Message::builder().text(text).build();
    Finding::builder().rule_id(rule).level(ResultLevel::Error).message(message).locations(vec![at]).build()
}

fn location(object: &Path, source: Option<&SourceLine>, here: Option<&Path>) -> Location {
    // As a host knows it: from the working folder, without `..`.
    let below = |path: &Path| -> Option<PathBuf> {
        let here = here?.canonicalize().ok()?;
        here.join(path).canonicalize().ok()?.strip_prefix(&here).ok().map(Path::to_owned)
    };
    let at_source = source.and_then(|line| Some((below(Path::new(&line.file))?, line.line)));
    let (path, line) = at_source.unwrap_or_else(|| (below(object).unwrap_or_else(|| object.to_owned()), 1));
    let artifact = ArtifactLocation::builder().uri(path.display().to_string()).build();
    let region = Region::builder().start_line(i64::from(line)).build();
    Location::builder()
        .physical_location(PhysicalLocation::builder().artifact_location(artifact).region(region).build())
        .build()
}
