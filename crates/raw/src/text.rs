//! The forms in which arrays are kept and pasted: bytes, C initializers, hexadecimal digits.

use std::fmt::Write;

use bpf_isa::slot::{Slot, starts};

use crate::error::RawError;
use crate::expression::{Text, Token, shown, tokens, value};
use crate::foreign;
use crate::macros::expand;
use crate::maps::RawMap;

/// How an array is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Eight bytes for each instruction, as in memory.
    Binary,
    /// Initializers of `struct bpf_insn`.
    C,
    /// Hexadecimal digits, a line for each instruction.
    Hex,
}

/// An array that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Array {
    /// The instructions.
    pub slots: Vec<[u8; 8]>,
    /// How it was written.
    pub form: Form,
}

/// Reads an array in any of the forms. `maps`: in C, the name of a map stands for its number.
///
/// C is initializers of five values or with designators (`{ .code = BPF_JMP | BPF_EXIT }`) and the macros of the kernel's
/// `filter.h` (`BPF_MOV64_IMM(BPF_REG_0, 0)`). Hexadecimal digits are bytes in the order of memory, or a number of 64 bits
/// with `0x` for each instruction; offsets with a colon before them and what stands behind eight bytes of a line, as in
/// listings of llvm-objdump, do not count.
///
/// # Errors
/// [`RawError`]: what is not understood, and what is another instruction set or form.
pub fn read(bytes: &[u8], maps: &[RawMap]) -> Result<Array, RawError> {
    let (slots, form) = match std::str::from_utf8(bytes) {
        Ok(text) if is_text(text) => {
            foreign::of_text(text)?;
            if text.contains('{') || text.contains("BPF_") {
                (c(text, maps)?, Form::C)
            } else {
                (hex(text)?, Form::Hex)
            }
        }
        _ if !bytes.len().is_multiple_of(8) => return Err(RawError::Torn { bytes: bytes.len() }),
        _ => (bytes.as_chunks().0.to_vec(), Form::Binary),
    };
    if slots.is_empty() {
        return Err(RawError::Empty);
    }
    foreign::of_slots(&slots)?;
    Ok(Array { slots, form })
}

fn is_text(text: &str) -> bool {
    text.chars().all(|c| !c.is_control() || c.is_ascii_whitespace())
}

/// Writes an array.
pub fn write(slots: &[[u8; 8]], form: Form) -> Vec<u8> {
    match form {
        Form::Binary => slots.concat(),
        Form::Hex => {
            let line = |s: &[u8; 8]| s.map(|b| format!("{b:02x}")).join(" ") + "\n";
            slots.iter().map(line).collect::<String>().into_bytes()
        }
        Form::C => initializers(slots).into_bytes(),
    }
}

fn initializers(slots: &[[u8; 8]]) -> String {
    let firsts: Vec<usize> = starts(slots).map(|(at, _)| at).collect();
    let mut text = String::new();
    for (at, bytes) in slots.iter().enumerate() {
        let Slot { code, dst, src, off, imm } = Slot::from(*bytes);
        let _ =
            write!(text, "{{ .code = {code:#04x}, .dst_reg = {dst}, .src_reg = {src}, .off = {off}, .imm = {imm} }},");
        let end = slots.len().min(at + Slot::from(*bytes).slots());
        if firsts.contains(&at)
            && let Ok(insns) = bpf_isa::decode_all(&slots[at..end].concat())
            && let Some((_, insn)) = insns.first()
        {
            let _ = write!(text, " /* {insn} */");
        }
        text.push('\n');
    }
    text
}

fn hex(text: &str) -> Result<Vec<[u8; 8]>, RawError> {
    let mut bytes: Vec<u8> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let fail = |what: String| RawError::Line { line: at + 1, what };
        let end = [";", "#", "//"].iter().filter_map(|c| line.find(c)).min();
        let line = line[..end.unwrap_or(line.len())].replace("\\x", " ").replace(['"', ','], " ");
        // Of a listing, the offset before the bytes and the text behind them.
        let is_offset = |word: &str| word.strip_suffix(':').is_some_and(|w| w.bytes().all(|c| c.is_ascii_hexdigit()));
        let (mut of_line, mut is_listing) = (0, false);
        for word in line.split_whitespace() {
            if is_offset(word) {
                is_listing = true;
                continue;
            }
            if is_listing && of_line == 8 {
                break;
            }
            let found =
                digits(word).ok_or_else(|| fail(format!("`{word}` is neither bytes in hexadecimal digits nor C")))?;
            of_line += found.len();
            bytes.extend(found);
        }
    }
    let (slots, rest) = bytes.as_chunks();
    if rest.is_empty() { Ok(slots.to_vec()) } else { Err(RawError::Torn { bytes: bytes.len() }) }
}

/// The bytes of a word: in the order of memory, or of a number.
fn digits(word: &str) -> Option<Vec<u8>> {
    if let Some(number) = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        let value = u64::from_str_radix(number, 16).ok()?;
        return match number.len() {
            1 | 2 => Some(vec![value as u8]),
            _ => Some(value.to_le_bytes().to_vec()),
        };
    }
    if !word.is_ascii() || !word.len().is_multiple_of(2) {
        return None;
    }
    (0..word.len()).step_by(2).map(|at| u8::from_str_radix(&word[at..at + 2], 16).ok()).collect()
}

fn c(text: &str, maps: &[RawMap]) -> Result<Vec<[u8; 8]>, RawError> {
    let tokens = tokens(text).map_err(|(line, what)| RawError::Line { line, what })?;
    let mut items = Items { tokens: &tokens, at: 0, maps, is_inside: false, slots: vec![] };
    while items.at < tokens.len() {
        items.next()?;
    }
    Ok(items.slots.into_iter().map(<[u8; 8]>::from).collect())
}

/// The items of an initializer, one after the other.
struct Items<'a> {
    tokens: &'a [Token],
    at: usize,
    maps: &'a [RawMap],
    /// The array's brace, or an item, was there: what follows has to be understood.
    is_inside: bool,
    slots: Vec<Slot>,
}

impl Items<'_> {
    fn sign(&self, at: usize, sign: char) -> bool {
        self.tokens.get(at).is_some_and(|t| t.text == Text::Sign(sign))
    }

    fn next(&mut self) -> Result<(), RawError> {
        let Token { text, line } = &self.tokens[self.at];
        let fail = |what| RawError::Line { line: *line, what };
        match text {
            Text::Name(name) if self.sign(self.at + 1, '(') => {
                let inside = self.list(self.at + 1, ')').map_err(fail)?;
                let arguments = self.values(&inside).map_err(fail)?;
                let made =
                    expand(name, &arguments).unwrap_or_else(|| Err(format!("`{name}` is no macro that is known here")));
                self.slots.extend(made.map_err(fail)?);
                self.is_inside = true;
            }
            // The brace of the array.
            Text::Sign('{') if !self.is_inside && self.slots.is_empty() && !self.is_item(self.at) => {
                (self.is_inside, self.at) = (true, self.at + 1);
            }
            Text::Sign('{') => {
                let inside = self.list(self.at, '}').map_err(fail)?;
                let slot = self.slot(&inside)?.map_err(fail)?;
                self.slots.push(slot);
                self.is_inside = true;
            }
            Text::Sign(',' | ';' | '}') => self.at += 1,
            Text::Name(_)
                if self.is_inside
                    && !self.slots.is_empty()
                    && self.tokens[self.at..].iter().any(|t| t.text == Text::Sign('=')) =>
            {
                return Err(fail("another array begins here; give one at a time".to_owned()));
            }
            _ if !self.is_inside => self.at += 1,
            other => return Err(fail(format!("{} is not understood here", shown(other)))),
        }
        Ok(())
    }

    /// Whether the brace there is an instruction's: nothing in it has braces or is a macro.
    fn is_item(&self, at: usize) -> bool {
        let inside = self.tokens[at + 1..].iter().take_while(|t| t.text != Text::Sign('}'));
        let inside: Vec<&Text> = inside.map(|t| &t.text).collect();
        let is_macro = |w: &[&Text]| matches!(w, [Text::Name(_), Text::Sign('(')]);
        !inside.is_empty() && !inside.contains(&&Text::Sign('{')) && !inside.windows(2).any(is_macro)
    }

    /// The parts between commas from the bracket at `open` to its end; goes on behind that.
    fn list(&mut self, open: usize, close: char) -> Result<Vec<Vec<Token>>, String> {
        let (mut depth, mut parts) = (0, vec![vec![]]);
        for (i, token) in self.tokens.iter().enumerate().skip(open + 1) {
            match &token.text {
                Text::Sign(c) if *c == close && depth == 0 => {
                    self.at = i + 1;
                    // A comma may stand behind the last; an empty list has no parts.
                    if parts.last().is_some_and(Vec::is_empty) {
                        parts.pop();
                    }
                    return Ok(parts);
                }
                Text::Sign(',') if depth == 0 => parts.push(vec![]),
                text => {
                    depth += i32::from(*text == Text::Sign('(')) - i32::from(*text == Text::Sign(')'));
                    parts.last_mut().expect("there is a part from the beginning").push(token.clone());
                }
            }
        }
        Err(format!("`{close}` is missing"))
    }

    fn values(&self, parts: &[Vec<Token>]) -> Result<Vec<i64>, String> {
        let number = |name: &str| self.maps.iter().find(|m| m.name == name).map(|m| m.number.into());
        parts.iter().map(|part| value(part, &number)).collect()
    }

    /// `{ code, dst, src, off, imm }`, or with designators.
    #[allow(clippy::type_complexity)]
    fn slot(&self, parts: &[Vec<Token>]) -> Result<Result<Slot, String>, RawError> {
        let is_designated = |part: &Vec<Token>| part.first().is_some_and(|t| t.text == Text::Sign('.'));
        if parts.iter().any(is_designated) {
            return Ok(self.designated(parts));
        }
        if parts.len() == 4 {
            return Err(RawError::Classic);
        }
        Ok(self.values(parts).and_then(|values| match values[..] {
            [code, dst, src, off, imm] => fields([code, dst, src, off, imm]),
            _ => Err(format!("{} values instead of five: code, dst_reg, src_reg, off, imm", values.len())),
        }))
    }

    fn designated(&self, parts: &[Vec<Token>]) -> Result<Slot, String> {
        let mut values = [0; 5];
        for part in parts {
            let [dot, name, equals, rest @ ..] = &part[..] else {
                return Err("`.NAME = VALUE` is expected".to_owned());
            };
            let (Text::Sign('.'), Text::Name(name), Text::Sign('=')) = (&dot.text, &name.text, &equals.text) else {
                return Err("`.NAME = VALUE` is expected".to_owned());
            };
            let names = ["code", "dst_reg", "src_reg", "off", "imm"];
            let at = names
                .iter()
                .position(|n| n == name)
                .ok_or_else(|| format!("`{name}` is no field of an instruction"))?;
            values[at] = self.values(&[rest.to_vec()])?[0];
        }
        fields(values)
    }
}

/// A slot of these fields, if each fits.
fn fields([code, dst, src, off, imm]: [i64; 5]) -> Result<Slot, String> {
    let fits = |name: &str, value: i64, low: i64, high: i64| {
        if (low..=high).contains(&value) { Ok(value) } else { Err(format!("{name} {value} does not fit")) }
    };
    Ok(Slot {
        code: fits("code", code, 0, 0xff)? as u8,
        dst: fits("dst_reg", dst, 0, 15)? as u8,
        src: fits("src_reg", src, 0, 15)? as u8,
        off: fits("off", off, i16::MIN.into(), u16::MAX.into())? as i16,
        imm: fits("imm", imm, i32::MIN.into(), u32::MAX.into())? as i32,
    })
}
