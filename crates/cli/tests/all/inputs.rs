//! `bpf-opt inputs` from outside: the table, the report, exit codes.

use crate::common::*;

/// `bpf-opt inputs` on an example, without the kernel.
fn inputs(example_name: &str, more: &[&str]) -> Ran {
    let mut command = command();
    command.arg("inputs").arg(example(example_name)).args(["--no-kernel", "--time-limit", "10"]).args(more);
    Ran::of(command.output().expect("the binary runs"))
}

#[test]
fn the_report_names_blocks_and_the_inputs_that_reach_them() {
    let output = command().arg("inputs").arg(example("xdp_count.o")).args(["--no-kernel", "--json", "-"]).output();
    let output = output.expect("the binary runs");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a document");
    assert_eq!(report["command"], "inputs");
    let blocks = report["functions"][0]["blocks"].as_array().expect("blocks");
    let inputs = report["programs"][0]["inputs"].as_array().expect("inputs");
    let reached: Vec<_> = blocks.iter().filter(|b| b["reached"] == "interpreter").collect();
    assert!(!reached.is_empty() && !inputs.is_empty(), "{report:#}");
    for block in &reached {
        let by = usize::try_from(block["by"][1].as_u64().expect("a number")).expect("a small one");
        assert!(by < inputs.len() && block["reason"].is_null(), "{block:#}");
    }
    let open = blocks.len() - reached.len();
    assert_eq!(report["functions"][0]["unreached"], open);
    assert_eq!(output.status.code(), Some(if open == 0 { 0 } else { 3 }));
}

#[test]
fn a_program_that_is_not_there_is_exit_code_2() {
    let ran = inputs("xdp_count.o", &["--function", "nobody"]).expect(2);
    assert!(ran.err.contains("nobody"), "{}", ran.err);
}
