//! `opt --explain`: what became of each function, change by change.

use std::fmt::Write;

use bpf_driver::{Change, FunctionReport, Report};

use crate::diff::is_changed;

/// All changed functions, for standard output.
pub fn report(report: &Report) -> String {
    let mut text = String::new();
    for f in report.functions.iter().filter(|f| is_changed(f)) {
        let FunctionReport { name, section, slots_before, slots_after, .. } = f;
        let _ = writeln!(text, "{name} ({section}): {slots_before} -> {slots_after} slots");
        f.changes.iter().for_each(|change| tell(&mut text, change));
        text.push('\n');
    }
    if text.is_empty() {
        text.push_str("no function changed\n");
    }
    text
}

fn tell(text: &mut String, change: &Change) {
    let Change { by, slot, line, before, after, saved, proof: _ } = change;
    let slot = slot.map_or(String::new(), |slot| format!(", slot {slot}"));
    let line = line.as_ref().map_or(String::new(), |line| format!(" ({line})"));
    let _ = match saved {
        0 => writeln!(text, "  {by}{slot}{line}"),
        _ => writeln!(text, "  {by}{slot}{line}: {:+} slots", -saved),
    };
    for (mark, lines) in [('-', before), ('+', after)] {
        for line in lines {
            let _ = writeln!(text, "    {mark} {line}");
        }
    }
}
