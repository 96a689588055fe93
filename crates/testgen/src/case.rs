//! Cases as files: what `tests/equivalence/**/*.bpf` says.
//!
//! One idea: a case is a piece of text that anyone can write, and this module only reads it; what a case demands is
//! checked by the test that runs it. The format is described in `tests/equivalence/README.md`. A header line that is
//! not understood is an error, so that no demand is overlooked.

use bpf_isa::Insn;
use thiserror::Error;

use crate::assembly::{self, AssemblyError, Function, Map, Signature, Surroundings, Variable, hex};

/// What the prover must say of `after` in place of `before`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// Proven equal.
    Equal,
    /// Different, shown by an input on which both were run.
    Refuted,
    /// Anything but proven equal.
    NotProven,
    /// Anything but refuted: they are equal, though it may be beyond the prover.
    NotRefuted,
}

impl Expect {
    const WORDS: [(Expect, &'static str); 4] = [
        (Expect::Equal, "equal"),
        (Expect::Refuted, "refuted"),
        (Expect::NotProven, "not-proven"),
        (Expect::NotRefuted, "not-refuted"),
    ];

    /// The word in the file.
    pub fn word(self) -> &'static str {
        Expect::WORDS.iter().find(|(e, _)| *e == self).map_or("", |(_, word)| word)
    }
}

/// What the kernel must show when it runs both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Run {
    /// The same on every input.
    Same,
    /// Something else on some input.
    Differs,
    /// Something else on some input in some builds of the kernel; in others what the case is about was repaired.
    MayDiffer,
    /// Nothing: its verifier takes the old version and refuses the new one.
    Refused,
}

/// Why a file is no case.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("line {line}: {problem}")]
pub struct CaseError {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: String,
}

/// A file of `tests/equivalence/`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Case {
    /// What the case is about: the comment at its beginning.
    pub about: String,
    /// Maps, variables, kernel functions, the section of the program.
    pub around: Surroundings,
    /// What the prover must say.
    pub expect: Option<Expect>,
    /// What the kernel must show.
    pub run: Option<Run>,
    /// The packet for the run; without it there are random ones.
    pub packet: Option<Vec<u8>>,
    /// The program type to load with, where the section does not say.
    pub program_type: Option<String>,
    /// `--strict-shared-memory`.
    pub strict: bool,
    /// `--ssa`: global passes run, too.
    pub global: bool,
    /// What is expected is what `verify` says with the kernel's verdicts, not what the prover says alone.
    pub asks_kernel: bool,
    /// The passes that run, by name; without it, all, and once more with a search.
    pub passes: Vec<String>,
    /// The cpu level of new instructions.
    pub cpu: Option<u8>,
    /// `--goal latency`.
    pub latency: bool,
    /// Why the case is known to fail for now.
    pub fails: Option<String>,
    /// Instructions that `opt` must leave in the program.
    pub keeps: Vec<Insn>,
    /// Instructions that `opt` must not leave in the program.
    pub drops: Vec<Insn>,
    /// Text that must stand in the result's listing, whatever registers are used.
    pub shows: Vec<String>,
    /// Text that must not.
    pub hides: Vec<String>,
    /// The old version.
    pub before: Vec<Function>,
    /// The new version; without it the case is about what `opt` makes of `before`.
    pub after: Option<Vec<Function>>,
    /// The listing that `opt` must come to.
    pub result: Option<String>,
}

/// The parts of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Header,
    Before,
    After,
    Result,
}

impl Case {
    /// Reads a file.
    ///
    /// # Errors
    /// The line that is wrong.
    pub fn parse(text: &str) -> Result<Case, CaseError> {
        let mut case =
            Case { around: Surroundings { section: "xdp".into(), ..Surroundings::default() }, ..Case::default() };
        let mut part = Part::Header;
        let mut bodies: [Option<(usize, String)>; 3] = [None, None, None];
        for (index, line) in text.lines().enumerate() {
            let wrong = |problem: String| CaseError { line: index + 1, problem };
            part = match line.trim_end() {
                "before:" => Part::Before,
                "after:" => Part::After,
                "result:" => Part::Result,
                "" if part == Part::Header => continue,
                other if part == Part::Header => {
                    let line = other.strip_prefix(';');
                    let line = line.ok_or_else(|| wrong("before `before:` only lines with `;` may stand".into()))?;
                    case.header(line.trim()).map_err(wrong)?;
                    continue;
                }
                other => {
                    if let Some((_, body)) = &mut bodies[part as usize - 1] {
                        *body += other;
                        body.push('\n');
                    }
                    continue;
                }
            };
            if bodies[part as usize - 1].replace((index + 1, String::new())).is_some() {
                return Err(wrong("this part is there already".into()));
            }
        }
        let [before, after, result] = bodies;
        let last = CaseError { line: text.lines().count(), problem: "there is no `before:`".into() };
        let section = case.around.section.clone();
        let cut = |(line, text): (usize, String)| {
            assembly::functions(&text, &section).map_err(|e| CaseError { line, problem: e.to_string() })
        };
        case.before = cut(before.ok_or(last)?)?;
        case.after = after.map(cut).transpose()?;
        case.result = result.map(|(_, text)| text);
        case.complete().map_err(|problem| CaseError { line: 1, problem: problem.into() })?;
        Ok(case)
    }

    /// Whether the case demands anything, and nothing twice.
    fn complete(&self) -> Result<(), &'static str> {
        let of_opt = !self.keeps.is_empty() || !self.drops.is_empty() || self.result.is_some();
        let only_of_opt = !self.passes.is_empty() || self.cpu.is_some() || self.latency;
        match (&self.after, self.expect) {
            (Some(_), None) => Err("a case with `after:` needs `; expect:`"),
            (Some(_), Some(_)) if of_opt || only_of_opt => {
                Err("`keeps`, `drops`, `result:`, `passes`, `cpu` and `goal` are for cases without `after:`")
            }
            (None, Some(_)) => Err("`; expect:` needs `after:`"),
            (None, None) if !of_opt && self.run.is_none() && !self.asks_kernel => {
                Err("a case without `after:` needs `; keeps:`, `; drops:`, `; run:`, `; options: kernel` or `result:`")
            }
            _ if self.about.is_empty() => Err("the case does not say what it is about"),
            _ => Ok(()),
        }
    }

    fn header(&mut self, line: &str) -> Result<(), String> {
        let key = line
            .split_once(':')
            .filter(|(key, _)| !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '-'));
        let Some((key, value)) = key else {
            if !self.about.is_empty() {
                self.about.push(' ');
            }
            self.about += line;
            return Ok(());
        };
        let value = value.trim();
        let text = |e: AssemblyError| e.to_string();
        let insn = |value| bpf_isa::parse(value).map_err(|e| e.message);
        match key {
            "section" => self.around.section = value.into(),
            "map" => self.around.maps.push(Map::parse(value).map_err(text)?),
            "data" => self.around.variables.push(Variable::parse(value).map_err(text)?),
            "kfunc" => self.around.kfuncs.push(Signature::parse(value).map_err(text)?),
            "expect" => {
                let found = Expect::WORDS.iter().find(|(_, word)| *word == value);
                self.expect = Some(found.ok_or("expected `equal`, `refuted`, `not-proven` or `not-refuted`")?.0);
            }
            "run" => {
                self.run = Some(match value {
                    "same" => Run::Same,
                    "differs" => Run::Differs,
                    "may-differ" => Run::MayDiffer,
                    "refused" => Run::Refused,
                    _ => return Err("expected `same`, `differs`, `may-differ` or `refused`".into()),
                });
            }
            "packet" => self.packet = Some(hex(value).map_err(text)?),
            "program-type" => self.program_type = Some(value.into()),
            "options" if value == "strict-shared-memory" => self.strict = true,
            "options" if value == "ssa" => self.global = true,
            "shows" => self.shows.push(value.into()),
            "hides" => self.hides.push(value.into()),
            "options" if value == "kernel" => self.asks_kernel = true,
            "passes" => self.passes = value.split(',').map(|name| name.trim().to_owned()).collect(),
            "cpu" => {
                let level = value.strip_prefix('v').and_then(|n| n.parse().ok()).filter(|n| (1..=4).contains(n));
                self.cpu = Some(level.ok_or("expected `v1` to `v4`")?);
            }
            "goal" if value == "latency" => self.latency = true,
            "fails" => self.fails = Some(value.into()),
            "keeps" => self.keeps.push(insn(value)?),
            "drops" => self.drops.push(insn(value)?),
            _ => return Err(format!("`{key}: {value}` is nothing a case can say")),
        }
        Ok(())
    }

    /// The object of the old version.
    ///
    /// # Errors
    /// [`AssemblyError`].
    pub fn old_object(&self) -> Result<Vec<u8>, AssemblyError> {
        assembly::object(&self.around, &self.before)
    }

    /// The object of the new version, if the case has one.
    ///
    /// # Errors
    /// [`AssemblyError`].
    pub fn new_object(&self) -> Result<Option<Vec<u8>>, AssemblyError> {
        self.after.as_ref().map(|after| assembly::object(&self.around, after)).transpose()
    }
}

/// The file with another `; expect:`.
pub fn with_expect(text: &str, expect: Expect) -> String {
    edit(text, |line| match line.starts_with("; expect:") {
        true => Some(format!("; expect: {}", expect.word())),
        false => Some(line.into()),
    })
}

/// The file without `; fails:`.
pub fn without_fails(text: &str) -> String {
    edit(text, |line| (!line.starts_with("; fails:")).then(|| line.into()))
}

/// The file with another `result:`, which is its last part.
pub fn with_result(text: &str, result: &str) -> String {
    let head = edit(text, |line| Some(line.into()));
    let end = head.find("\nresult:\n").map_or(head.len(), |at| at + 1);
    format!("{}result:\n{result}", &head[..end])
}

fn edit(text: &str, f: impl Fn(&str) -> Option<String>) -> String {
    text.lines().filter_map(f).map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "; A store.\n; expect: equal\n; fails: finding 3\nbefore:\n    r0 = 0\n    exit\nafter:\n    w0 = 0\n    exit\n";

    #[test]
    fn a_case_is_read_and_rewritten() {
        let case = Case::parse(TEXT).unwrap();
        assert_eq!((case.about.as_str(), case.expect), ("A store.", Some(Expect::Equal)));
        assert_eq!(case.fails.as_deref(), Some("finding 3"));
        let other = with_expect(&without_fails(TEXT), Expect::NotProven);
        assert_eq!(other, TEXT.replace("; fails: finding 3\n", "").replace("equal", "not-proven"));
        assert!(with_result("a\nresult:\nold\n", "new\n").ends_with("a\nresult:\nnew\n"));
    }

    #[test]
    fn a_demand_that_is_not_understood_is_an_error() {
        let e = Case::parse(&TEXT.replace("expect:", "expects:")).unwrap_err();
        assert_eq!((e.line, e.problem.as_str()), (2, "`expects: equal` is nothing a case can say"));
        assert!(Case::parse(&TEXT.replace("; expect: equal\n", "")).is_err());
        assert!(Case::parse("; Nothing.\nbefore:\n  exit\n").is_err());
    }
}
