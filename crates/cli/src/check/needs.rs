//! What a program needs of the kernel, told: the first release that has all of it, and what a given one does not have.

use std::fmt::Write;

use bpf_check::{Need, Place, Program, Report, first_release, needs};
use bpf_object::Object;
use bpf_platform::KernelVersion;
use serde::Serialize;

/// What a program needs; docs/json.md describes the fields.
#[derive(Serialize, Default)]
pub struct Needs {
    /// The first release of Linux that has all of it, as far as tables tell.
    pub needs: Option<String>,
    /// The first thing that no older release has.
    pub needs_for: Option<String>,
    /// What the release that was asked for does not have.
    pub too_new: Vec<Lack>,
    /// What no table tells of that release.
    pub not_judged: Vec<Lack>,
    /// The release that was asked for.
    #[serde(skip)]
    asked: Option<KernelVersion>,
}

/// Something that a kernel does not have, and where it stands.
#[derive(Serialize)]
pub struct Lack {
    /// What it is.
    pub what: String,
    /// The first release that has it.
    pub since: Option<String>,
    /// The map that is defined with it.
    map: Option<String>,
    /// The function and section where the instruction stands.
    function: Option<String>,
    section: Option<String>,
    /// The instruction: its slot in the linked program, and its text.
    slot: Option<usize>,
    instruction: Option<String>,
    source: Option<String>,
}

impl Needs {
    /// Of a program; `asked` is the release that is to load it.
    pub fn of(object: &Object, program: &Program, report: &Report, asked: Option<KernelVersion>) -> Needs {
        let all = needs(program, &report.contexts);
        let first = first_release(&all);
        let latest = all.iter().find(|n| n.since.is_some() && n.since == first);
        let lacks = |is_one: &dyn Fn(&Need) -> bool| -> Vec<Lack> {
            all.iter().filter(|n| is_one(n)).map(|n| Lack::of(object, program, n)).collect()
        };
        Needs {
            needs: first.map(|v| v.to_string()),
            needs_for: latest.map(|n| n.what.clone()),
            too_new: lacks(&|n| asked.is_some_and(|kernel| n.is_unknown_to(kernel))),
            not_judged: lacks(&|n| asked.is_some_and(|kernel| n.is_undecided_for(kernel))),
            asked,
        }
    }

    /// As lines of text.
    pub fn told(&self) -> String {
        let mut out = String::new();
        if let (Some(release), Some(what)) = (&self.needs, &self.needs_for) {
            let _ = writeln!(out, "  needs Linux {release} or later: {what}");
        }
        let Some(asked) = self.asked else { return out };
        let mut named = None;
        for lack in &self.too_new {
            if named.replace(&lack.what) != Some(&lack.what) {
                let since = lack.since.as_deref().unwrap_or("no release");
                let _ = writeln!(out, "  Linux {asked} does not have: {} (since {since})", lack.what);
            }
            out += &lack.place();
        }
        for lack in &self.not_judged {
            let _ = writeln!(out, "  not judged: {}", lack.what);
            out += &lack.place();
        }
        out
    }
}

impl Lack {
    fn of(object: &Object, program: &Program, need: &Need) -> Lack {
        let mut lack = Lack {
            what: need.what.clone(),
            since: need.since.map(|v| v.to_string()),
            map: None,
            function: None,
            section: None,
            slot: None,
            instruction: None,
            source: None,
        };
        match &need.place {
            Place::Program => lack.section = Some(program.section.clone()),
            Place::Map(name) => lack.map = Some(name.clone()),
            Place::Slot(at) => {
                let slot = program.slots.get(*at);
                let origin = slot.map(|s| s.origin);
                let function = origin.and_then(|(f, _)| object.functions().get(f.0));
                lack.function = function.map(|f| f.name.clone());
                lack.section = function.map(|f| f.section.clone());
                lack.slot = Some(*at);
                lack.instruction = slot.and_then(|s| s.insn).map(|insn| insn.to_string());
                lack.source = origin.and_then(|(f, slot)| object.line_of(f, slot)).map(|line| line.to_string());
            }
        }
        lack
    }

    /// Where it stands, as a line of text; of a program as a whole none is needed.
    fn place(&self) -> String {
        let mut out = String::new();
        if let Some(map) = &self.map {
            let _ = writeln!(out, "    map {map}");
        }
        if let (Some(slot), Some(insn)) = (self.slot, &self.instruction) {
            let _ = write!(out, "    at {slot}: {insn}");
            if let (Some(function), Some(section)) = (&self.function, &self.section) {
                let _ = write!(out, "   in {function}, section {section}");
            }
            if let Some(source) = &self.source {
                let _ = write!(out, "   {source}");
            }
            out.push('\n');
        }
        out
    }
}
