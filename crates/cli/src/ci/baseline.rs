//! The file with the figures that a pipeline keeps.
//!
//! The one idea: it is made to be reviewed. Objects and programs are sorted by name, a program is one line, and nothing in it
//! changes unless something that was measured does.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::files;

/// The form of the file.
const FORMAT: u32 = 1;

/// The figures of a program; of each less is better.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// Instruction slots, those of the functions that are loaded with it included.
    pub slots: u64,
    /// Instructions that the kernel's verifier processed, if it accepted the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insns: Option<u64>,
    /// Stack bytes of all its functions, as the verifier counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<u64>,
    /// Nanoseconds an input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns: Option<f64>,
    /// The kernel's verdict, if it was asked and did not accept the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
}

impl Figures {
    /// Whether the kernel was asked, and took the program.
    pub fn is_accepted(&self) -> bool {
        self.insns.is_some()
    }

    /// Whether the kernel was asked, and refused the program.
    pub fn is_rejected(&self) -> bool {
        self.verdict.as_deref() == Some("rejected")
    }
}

/// Figures by object and program.
pub type Objects = BTreeMap<String, BTreeMap<String, Figures>>;

/// What a pipeline keeps.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    format: u32,
    /// The kernel that was asked.
    #[serde(default)]
    pub kernel: Option<String>,
    /// The processor on which programs were timed.
    #[serde(default)]
    pub processor: Option<String>,
    /// The figures.
    pub objects: Objects,
}

impl Baseline {
    /// Of these figures.
    pub fn of(objects: Objects, kernel: Option<String>, processor: Option<String>) -> Baseline {
        Baseline { format: FORMAT, kernel, processor, objects }
    }

    /// What a file holds.
    ///
    /// # Errors
    /// If it cannot be read, or is none.
    pub fn read(path: &Path) -> Result<Baseline, Failure> {
        let bytes = files::read(path)?;
        let baseline: Baseline = serde_json::from_slice(&bytes)
            .map_err(|e| Failure::bad_input(format!("{}: not a baseline: {e}", path.display())))?;
        if baseline.format != FORMAT {
            let other = baseline.format;
            return Err(Failure::bad_input(format!("{}: a baseline of format {other}, not {FORMAT}", path.display()))
                .with_hint("another version of bpf-opt has made it"));
        }
        Ok(baseline)
    }

    /// The figures of a program.
    pub fn figures(&self, object: &str, program: &str) -> Option<&Figures> {
        self.objects.get(object)?.get(program)
    }

    /// The file.
    pub fn text(&self) -> String {
        let mut text = format!("{{\n  \"format\": {},\n", self.format);
        for (name, value) in [("kernel", &self.kernel), ("processor", &self.processor)] {
            if let Some(value) = value {
                let _ = writeln!(text, "  {}: {},", quoted(name), quoted(value));
            }
        }
        let objects = self.objects.iter().map(|(name, programs)| {
            let programs =
                programs.iter().map(|(name, figures)| format!("\n      {}: {}", quoted(name), line(figures)));
            format!("\n    {}: {}", quoted(name), braced(programs, "    "))
        });
        let _ = write!(text, "  \"objects\": {}\n}}\n", braced(objects, "  "));
        text
    }
}

/// Members, each on a line of its own.
fn braced(members: impl Iterator<Item = String>, margin: &str) -> String {
    let members = members.collect::<Vec<_>>().join(",");
    if members.is_empty() { "{}".to_owned() } else { format!("{{{members}\n{margin}}}") }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn line(figures: &Figures) -> String {
    let Figures { slots, insns, stack, ns, verdict } = figures;
    let mut parts = vec![format!("\"slots\": {slots}")];
    parts.extend(insns.map(|n| format!("\"insns\": {n}")));
    parts.extend(stack.map(|n| format!("\"stack\": {n}")));
    parts.extend(ns.map(|x| format!("\"ns\": {x:.1}")));
    parts.extend(verdict.as_ref().map(|v| format!("\"verdict\": {}", quoted(v))));
    format!("{{{}}}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_a_line_and_comes_back() {
        let figures =
            Figures { slots: 7, insns: Some(9), stack: Some(0), ns: Some(12.3), verdict: Some("rejected".into()) };
        let programs = BTreeMap::from([("b".to_owned(), Figures::default()), ("a \"1\"".to_owned(), figures)]);
        let objects = BTreeMap::from([("x/y.o".to_owned(), programs), ("empty.o".to_owned(), BTreeMap::new())]);
        let baseline = Baseline::of(objects, Some("6.18".into()), None);
        let text = baseline.text();
        assert!(text.contains("\n      \"b\": {\"slots\": 0}\n"), "{text}");
        assert!(
            text.contains("\n      \"a \\\"1\\\"\": {\"slots\": 7, \"insns\": 9, \"stack\": 0, \"ns\": 12.3, "),
            "{text}"
        );
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), &text).expect("written");
        assert_eq!(Baseline::read(file.path()), Ok(baseline));
    }

    #[test]
    fn what_is_no_baseline_is_said() {
        let said = |text: &str| {
            let file = tempfile::NamedTempFile::new().expect("a file");
            std::fs::write(file.path(), text).expect("written");
            let message = Baseline::read(file.path()).expect_err("it is none").message;
            assert!(message.starts_with(&file.path().display().to_string()), "{message}");
            message
        };
        assert!(said("{").contains("not a baseline: EOF"));
        assert!(said("{\"format\": 1, \"objects\": {\"a\": {\"p\": {\"slots\": -1}}}}").contains("line 1"));
        assert!(said("{\"format\": 2, \"objects\": {}}").contains("format 2, not 1"));
    }
}
