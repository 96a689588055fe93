//! Parsing a listing: many lines, with labels.
//!
//! One idea: read every line first, noting the slot each label stands for, and fill in the jumps
//! afterwards; so a label may be used before it is defined. Offsets count slots, of which `ld_imm64`
//! takes two.

use std::collections::HashMap;

use super::parse::{ParseError, parse_line};
use crate::Insn;

/// Parses a listing, one instruction per line.
///
/// `;`, `//` and `#` begin comments. A line may begin with a slot number and a colon, as in
/// `llvm-objdump`'s output (the number is not looked at), and with labels, `name:`. Jumps take a
/// label for a target: `goto name`, `if r1 == 0 goto name`.
pub fn parse_listing(text: &str) -> Result<Vec<Insn>, ParseError> {
    let mut listing = Listing::default();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        listing.line(line, line_number).map_err(|message| ParseError { line: line_number, message })?;
    }
    listing.resolve()
}

#[derive(Default)]
struct Listing<'a> {
    insns: Vec<Insn>,
    /// The slot after the last instruction.
    end: usize,
    /// The slot and the line of each label.
    labels: HashMap<&'a str, (usize, usize)>,
    jumps: Vec<Jump<'a>>,
}

/// An instruction waiting for the place of a label.
struct Jump<'a> {
    /// Index into `insns`.
    index: usize,
    /// The slot offsets count from.
    from: usize,
    label: &'a str,
    line: usize,
}

impl<'a> Listing<'a> {
    fn line(&mut self, line: &'a str, number: usize) -> Result<(), String> {
        let mut rest = without_comment(line).trim();
        while let Some((prefix, after)) = prefix(rest) {
            if !prefix.starts_with(|c: char| c.is_ascii_digit()) {
                self.define(prefix, number)?;
            }
            rest = after;
        }
        if rest.is_empty() {
            return Ok(());
        }
        let (insn, label) = parse_line(rest)?;
        self.end += insn.slots();
        if let Some(label) = label {
            self.jumps.push(Jump { index: self.insns.len(), from: self.end, label, line: number });
        }
        self.insns.push(insn);
        Ok(())
    }

    fn define(&mut self, label: &'a str, line: usize) -> Result<(), String> {
        match self.labels.insert(label, (self.end, line)) {
            Some((_, before)) => Err(format!("label `{label}` is already defined in line {before}")),
            None => Ok(()),
        }
    }

    fn resolve(mut self) -> Result<Vec<Insn>, ParseError> {
        for Jump { index, from, label, line } in self.jumps {
            let fail = |message| ParseError { line, message };
            let (slot, _) = self.labels.get(label).ok_or_else(|| fail(format!("undefined label `{label}`")))?;
            let far = || fail(format!("label `{label}` is too far away for this jump"));
            let offset = i32::try_from(*slot as i64 - from as i64).map_err(|_| far())?;
            let insn = self.insns[index].with_jump_offset(offset).ok_or_else(far)?;
            self.insns[index] = insn;
        }
        Ok(self.insns)
    }
}

fn without_comment(line: &str) -> &str {
    let end = [";", "//", "#"].into_iter().filter_map(|c| line.find(c)).min();
    &line[..end.unwrap_or(line.len())]
}

/// A slot number or label with its colon, and what follows.
fn prefix(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.split_once(':')?;
    let name = name.trim_end();
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$'));
    is_name.then_some((name, rest.trim_start()))
}
