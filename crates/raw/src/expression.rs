//! Tokens of C, and its constant expressions as far as they stand in arrays of instructions: numbers, the kernel's names,
//! `|`, `+`, `-`, `<<`, parentheses, casts left out.

use bpf_platform::helpers::Helper;

/// A token, and its line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Token {
    pub text: Text,
    pub line: usize,
}

/// What a token is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Text {
    Name(String),
    Number(i64),
    Sign(char),
}

/// Cuts C into tokens; comments and lines of the preprocessor go.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token>, (usize, String)> {
    let mut found = Vec::new();
    let (mut line, mut at) = (1, 0);
    let mut at_start = true;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let skipped = match c {
            '\n' => {
                (line, at_start) = (line + 1, true);
                1
            }
            _ if c.is_whitespace() => c.len_utf8(),
            '#' if at_start => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => {
                let end = rest.find("*/").ok_or((line, "a comment without an end".to_owned()))? + 2;
                line += rest[..end].matches('\n').count();
                end
            }
            _ => {
                at_start = false;
                let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                let text = match c {
                    _ if c.is_ascii_digit() => Text::Number(
                        number(&rest[..length]).ok_or((line, format!("`{}` is no number", &rest[..length])))?,
                    ),
                    _ if is_word(c) => Text::Name(rest[..length].to_owned()),
                    _ => Text::Sign(c),
                };
                found.push(Token { text, line });
                length.max(c.len_utf8())
            }
        };
        at += skipped;
    }
    Ok(found)
}

/// A number of C: decimal, hexadecimal or octal, with or without suffixes. 64-bit patterns become their signed form.
fn number(word: &str) -> Option<i64> {
    let bare = word.trim_end_matches(['u', 'U', 'l', 'L']);
    let parsed = match bare.strip_prefix("0x").or_else(|| bare.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None if bare.len() > 1 && bare.starts_with('0') => u64::from_str_radix(bare, 8),
        None => bare.parse(),
    };
    parsed.ok().map(u64::cast_signed)
}

/// The value of the tokens; `names` are those that the kernel does not have.
pub(crate) fn value(tokens: &[Token], names: &dyn Fn(&str) -> Option<i64>) -> Result<i64, String> {
    let mut reader = Reader { tokens, at: 0, names };
    let value = reader.either()?;
    match tokens.get(reader.at) {
        None => Ok(value),
        Some(token) => Err(format!("{} is not understood here", shown(&token.text))),
    }
}

/// A token as in the source.
pub(crate) fn shown(text: &Text) -> String {
    match text {
        Text::Name(name) => format!("`{name}`"),
        Text::Number(number) => format!("`{number}`"),
        Text::Sign(sign) => format!("`{sign}`"),
    }
}

struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
    names: &'a dyn Fn(&str) -> Option<i64>,
}

impl Reader<'_> {
    fn peek(&self) -> Option<&Text> {
        self.tokens.get(self.at).map(|t| &t.text)
    }

    fn takes(&mut self, sign: char) -> bool {
        let is_there = self.peek() == Some(&Text::Sign(sign));
        self.at += usize::from(is_there);
        is_there
    }

    /// `a | b`, the weakest.
    fn either(&mut self) -> Result<i64, String> {
        let mut value = self.shifted()?;
        while self.takes('|') {
            value |= self.shifted()?;
        }
        Ok(value)
    }

    /// `a << n`.
    fn shifted(&mut self) -> Result<i64, String> {
        let mut value = self.sum()?;
        while self.takes('<') {
            if !self.takes('<') {
                return Err("`<` is not understood here".to_owned());
            }
            let amount = u32::try_from(self.sum()?).ok();
            value = amount.and_then(|n| value.checked_shl(n)).ok_or("a shift by too much")?;
        }
        Ok(value)
    }

    fn sum(&mut self) -> Result<i64, String> {
        let mut value = self.single()?;
        loop {
            if self.takes('+') {
                value = value.wrapping_add(self.single()?);
            } else if self.takes('-') {
                value = value.wrapping_sub(self.single()?);
            } else {
                return Ok(value);
            }
        }
    }

    fn single(&mut self) -> Result<i64, String> {
        if self.takes('-') {
            return Ok(self.single()?.wrapping_neg());
        }
        if self.takes('~') {
            return Ok(!self.single()?);
        }
        if self.takes('(') {
            let value = self.either()?;
            return if self.takes(')') { Ok(value) } else { Err("a parenthesis is not closed".to_owned()) };
        }
        let value = match self.peek() {
            Some(Text::Number(number)) => *number,
            Some(Text::Name(name)) => constant(name)
                .or_else(|| (self.names)(name))
                .ok_or_else(|| format!("`{name}` is no constant that is known here"))?,
            Some(sign) => return Err(format!("{} is not understood here", shown(sign))),
            None => return Err("a value is missing".to_owned()),
        };
        self.at += 1;
        Ok(value)
    }
}

/// Names of `include/uapi/linux/bpf.h`, `bpf_common.h` and `include/linux/filter.h`, without `BPF_`.
const CONSTANTS: [(&str, i64); 85] = [
    ("LD", 0x00),
    ("LDX", 0x01),
    ("ST", 0x02),
    ("STX", 0x03),
    ("ALU", 0x04),
    ("JMP", 0x05),
    ("JMP32", 0x06),
    ("ALU64", 0x07),
    ("W", 0x00),
    ("H", 0x08),
    ("B", 0x10),
    ("DW", 0x18),
    ("IMM", 0x00),
    ("ABS", 0x20),
    ("IND", 0x40),
    ("MEM", 0x60),
    ("MEMSX", 0x80),
    ("ATOMIC", 0xc0),
    ("XADD", 0xc0),
    ("K", 0x00),
    ("X", 0x08),
    ("ADD", 0x00),
    ("SUB", 0x10),
    ("MUL", 0x20),
    ("DIV", 0x30),
    ("OR", 0x40),
    ("AND", 0x50),
    ("LSH", 0x60),
    ("RSH", 0x70),
    ("NEG", 0x80),
    ("MOD", 0x90),
    ("XOR", 0xa0),
    ("MOV", 0xb0),
    ("ARSH", 0xc0),
    ("END", 0xd0),
    ("TO_LE", 0x00),
    ("TO_BE", 0x08),
    ("JA", 0x00),
    ("JEQ", 0x10),
    ("JGT", 0x20),
    ("JGE", 0x30),
    ("JSET", 0x40),
    ("JNE", 0x50),
    ("JSGT", 0x60),
    ("JSGE", 0x70),
    ("CALL", 0x80),
    ("EXIT", 0x90),
    ("JLT", 0xa0),
    ("JLE", 0xb0),
    ("JSLT", 0xc0),
    ("JSLE", 0xd0),
    ("JCOND", 0xe0),
    ("FETCH", 0x01),
    ("XCHG", 0xe1),
    ("CMPXCHG", 0xf1),
    ("LOAD_ACQ", 0x100),
    ("STORE_REL", 0x110),
    ("PSEUDO_MAP_FD", 1),
    ("PSEUDO_MAP_VALUE", 2),
    ("PSEUDO_BTF_ID", 3),
    ("PSEUDO_FUNC", 4),
    ("PSEUDO_MAP_IDX", 5),
    ("PSEUDO_MAP_IDX_VALUE", 6),
    ("PSEUDO_CALL", 1),
    ("PSEUDO_KFUNC_CALL", 2),
    ("REG_0", 0),
    ("REG_1", 1),
    ("REG_2", 2),
    ("REG_3", 3),
    ("REG_4", 4),
    ("REG_5", 5),
    ("REG_6", 6),
    ("REG_7", 7),
    ("REG_8", 8),
    ("REG_9", 9),
    ("REG_10", 10),
    ("REG_FP", 10),
    ("REG_CTX", 6),
    ("REG_ARG1", 1),
    ("REG_ARG2", 2),
    ("REG_ARG3", 3),
    ("REG_ARG4", 4),
    ("REG_ARG5", 5),
    ("ANY", 0),
    ("NOEXIST", 1),
];

/// A name of the kernel's; helpers are `BPF_FUNC_map_lookup_elem`.
fn constant(name: &str) -> Option<i64> {
    /// More than there are (`enum bpf_func_id` ends at 211 and takes no new ones).
    const HELPERS: i32 = 256;
    let bare = name.strip_prefix("BPF_")?;
    if let Some(helper) = bare.strip_prefix("FUNC_") {
        return (1..HELPERS).find(|id| Helper::get(*id).is_some_and(|h| h.name == helper)).map(i64::from);
    }
    CONSTANTS.iter().find(|(known, _)| *known == bare).map(|(_, value)| *value)
}
