//! `rules html`: rules as a page to browse, one file that loads nothing.
//!
//! It is text in HTML, so that it can be read without a script; the script only looks for words.

use std::fmt::Write;

use bpf_program::Op;
use bpf_search::rules::Entry;

use crate::page::{STYLE, filled};

const FRAME: &str = include_str!("page/rules.html");
const SCRIPT: &str = include_str!("page/rules.js");

/// A rule that makes code shorter, or quicker.
struct Shown {
    /// What it is about: instruction set, goal, context.
    about: String,
    /// What is assumed, the code, what is live; what parameters may be.
    code: String,
    /// What it becomes.
    becomes: String,
    /// Slots before and after.
    slots: (usize, usize),
    /// Numbers that may be any which the conditions allow.
    parameters: usize,
    by: String,
}

impl Shown {
    fn of(entry: &Entry) -> Option<Shown> {
        let slots = |ops: &mut dyn Iterator<Item = &Op>| ops.map(|o| o.insn.slots()).sum::<usize>();
        let (before, after, parameters, by) = match entry {
            Entry::Specific(r) => {
                let with = r.answer.with.as_ref()?;
                (slots(&mut r.window.old.iter()), slots(&mut with.iter()), 0, &r.answer.by)
            }
            Entry::General(g) => {
                let after = slots(&mut g.with.iter().map(|(o, _)| o));
                (slots(&mut g.window.old.iter()), after, g.conditions.len(), &g.by)
            }
        };
        // The text is made to be read: what stands before and after its lines `becomes` and `by`.
        let text = entry.text();
        let (about, rest) = text.split_once('\n')?;
        let (code, rest) = rest.split_once("\n  becomes\n")?;
        let (becomes, _) = rest.split_once("\n  by ")?;
        let each = |t: &str, f: fn(&str) -> &str| t.lines().map(f).collect::<Vec<_>>().join("\n");
        Some(Shown {
            about: about.trim_start_matches("rule ").to_owned(),
            code: each(code, |l| l.strip_prefix("  ").unwrap_or(l)),
            becomes: each(becomes, str::trim_start),
            slots: (before, after),
            parameters,
            by: by.clone(),
        })
    }

    fn html(&self, number: usize) -> String {
        let Shown { about, code, becomes, slots: (before, after), parameters, by } = self;
        let numbers = match parameters {
            0 => String::new(),
            1 => " · 1 parameter".to_owned(),
            n => format!(" · {n} parameters"),
        };
        let [about, code, becomes, by] = [about, code, becomes, by].map(|t| escaped(t));
        format!(
            "<article class=\"rule\" id=\"r{number}\"><h2><a href=\"#r{number}\">{number}</a> {before} → {after} slots\
             <span class=\"dim\">{numbers} · {about} · by {by}</span></h2>\
             <div class=\"sides\"><pre>{code}</pre><pre class=\"good\">{becomes}</pre></div></article>\n"
        )
    }
}

/// Text that stands for itself in HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The file: rules that save most first.
pub fn html(name: &str, entries: &[Entry]) -> String {
    let mut shown: Vec<Shown> = entries.iter().filter_map(Shown::of).collect();
    shown.sort_by_key(|s| (std::cmp::Reverse(s.slots.0.saturating_sub(s.slots.1)), s.slots.0));
    let mut rules = String::new();
    for (i, s) in shown.iter().enumerate() {
        let _ = rules.write_str(&s.html(i + 1));
    }
    let general = shown.iter().filter(|s| s.parameters > 0).count();
    let head = format!(
        "<h1>{}</h1><p>{} rules that make code shorter, {general} of them with parameters. bpf-opt {}</p>",
        escaped(name),
        shown.len(),
        env!("CARGO_PKG_VERSION")
    );
    filled(FRAME, &[("{{style}}", STYLE), ("{{head}}", &head), ("{{rules}}", &rules), ("{{script}}", SCRIPT)])
}

#[cfg(test)]
mod tests {
    use bpf_search::rules::parse_all;

    use super::*;

    #[test]
    fn a_page_shows_each_rule_that_has_a_replacement_and_nothing_runs_but_its_script() {
        let text = "\
rule cpu v3 goal size
  assume r0: number
  code
    r0 <<= 0x20
    r0 >>= 0x20
  live r0
  becomes
    w0 = w0
  by <b>hand</b>, effort 3
end
rule cpu v3 goal size
  code
    r0 += r1
    r0 += r1
  live r0
  unsolved
  by nobody, effort 3
end
";
        let page = html("<mine>", &parse_all(text).expect("rules"));
        assert_eq!(page.matches("<article").count(), 1);
        assert!(
            page.contains("r0 &lt;&lt;= 0x20\n    r0 &gt;&gt;= 0x20")
                || page.contains("r0 &lt;&lt;= 0x20\n  r0 &gt;&gt;= 0x20"),
            "{page}"
        );
        assert!(page.contains("<pre class=\"good\">w0 = w0</pre>"));
        assert!(page.contains("&lt;mine&gt;") && page.contains("by &lt;b&gt;hand"));
        assert_eq!(page.matches("<script").count(), 1);
        assert!(!page.contains("{{"), "every place is filled");
    }
}
