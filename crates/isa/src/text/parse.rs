//! Parsing one instruction.
//!
//! One idea: the parser only reads operands and puts the instruction together; whether such an
//! instruction exists is for the encoder to say, as it is in decoding. So the two cannot disagree.

use super::{ALU_TEXT, COND_TEXT, ENDIAN_TEXT, FETCH_TEXT, IMM64_TEXT, LOCK_TEXT, XCHG_TEXT};
use crate::encode::to_bits;
use crate::slot::{IMM64_KINDS, operand_of};
use crate::{AtomicOp, Call, Endian, Imm64Kind, Insn, Reg, Size, Src, Width};

/// Why a text is not an instruction or a listing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

/// Parses one instruction in LLVM's syntax.
///
/// Numbers may be decimal or hexadecimal. Beyond what LLVM prints it accepts
/// - `wN` for the value of a memory access of up to 4 bytes,
/// - `call pc+N` (subprogram) and `call kfunc N`; plain `call N` is a helper,
/// - `rN = map_fd[K] ll`, and `map_value`, `btf_id`, `func`, `map_idx`, `map_idx_value` likewise,
///   where `K` is the whole 64-bit immediate,
/// - `r0 = *(u8 *)skb[rN + K]`.
pub fn parse(text: &str) -> Result<Insn, ParseError> {
    let fail = |message| ParseError { line: 1, message };
    match parse_line(text).map_err(fail)? {
        (insn, None) => Ok(insn),
        (_, Some(label)) => Err(fail(format!("label `{label}` has a meaning only in a listing"))),
    }
}

/// Parses one instruction whose jump target may be a label; it is then returned, the offset being 0.
pub(super) fn parse_line(text: &str) -> Result<(Insn, Option<&str>), String> {
    let mut p = Parser { tokens: lex(without_symbol(text))?, next: 0, label: None };
    let insn = p.insn()?;
    if let Some(extra) = p.peek() {
        return Err(format!("unexpected {extra} after the instruction"));
    }
    to_bits(&insn).map_err(str::to_string)?;
    Ok((insn, p.label))
}

/// The text without the ` <symbol+offset>` that `llvm-objdump` appends to jumps.
fn without_symbol(text: &str) -> &str {
    let text = text.trim();
    match text.rfind(" <") {
        Some(at) if text.ends_with('>') => &text[..at],
        _ => text,
    }
}

/// The smallest pieces of the syntax.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Number(u64),
    Symbol(&'static str),
}

impl std::fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Token::Word(s) | Token::Symbol(s) => write!(f, "`{s}`"),
            Token::Number(n) => write!(f, "number {n}"),
        }
    }
}

/// Punctuation and operators; no entry may come after one of its own prefixes.
const SYMBOLS: [&str; 27] = [
    "<<=", ">>=", "+=", "-=", "*=", "/=", "%=", "|=", "&=", "^=", "==", "!=", ">=", "<=", "=", ">", "<", "&", "+", "-",
    "*", "(", ")", "[", "]", ",", ":",
];

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$')
}

fn lex(text: &str) -> Result<Vec<Token<'_>>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(c) = rest.chars().next() {
        let length = if is_word(c) {
            let word = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
            tokens.push(if c.is_ascii_digit() { Token::Number(number(word)?) } else { Token::Word(word) });
            word.len()
        } else if let Some(symbol) = SYMBOLS.into_iter().find(|s| rest.starts_with(s)) {
            tokens.push(Token::Symbol(symbol));
            symbol.len()
        } else {
            return Err(format!("unexpected character {c:?}"));
        };
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|e| format!("`{text}` is not a number of at most 64 bits ({e})"))
}

/// The register a word names, with the width the name implies.
fn register(word: &str) -> Option<(Width, Reg)> {
    let width = match word.as_bytes().first()? {
        b'r' => Width::W64,
        b'w' => Width::W32,
        _ => return None,
    };
    let digits = &word[1..];
    let number = digits.parse().ok().filter(|n| digits.len() == 1 || *n >= 10)?;
    Some((width, Reg::new(number)?))
}

/// `value` as an integer of type `T`, or an error saying what it should have been.
fn narrow<T: TryFrom<i128>>(value: i128, what: &str) -> Result<T, String> {
    T::try_from(value).map_err(|_| format!("{value} does not fit {what}"))
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    next: usize,
    /// The jump target, if it is a label.
    label: Option<&'a str>,
}

/// Reading tokens and simple operands.
impl<'a> Parser<'a> {
    fn peek_at(&self, ahead: usize) -> Option<Token<'a>> {
        self.tokens.get(self.next + ahead).copied()
    }

    fn peek(&self) -> Option<Token<'a>> {
        self.peek_at(0)
    }

    fn advance(&mut self) -> Option<Token<'a>> {
        let token = self.peek();
        self.next += usize::from(token.is_some());
        token
    }

    /// Takes the symbol if it comes next.
    fn eat(&mut self, symbol: &str) -> bool {
        let found = self.peek().is_some_and(|t| matches!(t, Token::Symbol(s) if s == symbol));
        self.next += usize::from(found);
        found
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(Token::Word(word));
        self.next += usize::from(found);
        found
    }

    fn wanted<T>(&self, what: &str) -> Result<T, String> {
        match self.peek() {
            Some(token) => Err(format!("expected {what}, found {token}")),
            None => Err(format!("expected {what} at the end")),
        }
    }

    fn expect(&mut self, symbol: &str) -> Result<(), String> {
        if self.eat(symbol) { Ok(()) } else { self.wanted(&format!("`{symbol}`")) }
    }

    fn peek_register(&self) -> Option<(Width, Reg)> {
        match self.peek()? {
            Token::Word(word) => register(word),
            _ => None,
        }
    }

    /// A register of either name.
    fn reg(&mut self) -> Result<(Width, Reg), String> {
        let Some(reg) = self.peek_register() else { return self.wanted("a register r0 … r10 or w0 … w10") };
        self.next += 1;
        Ok(reg)
    }

    /// A register under its name of `width`.
    fn reg_of(&mut self, width: Width) -> Result<Reg, String> {
        match self.peek_register() {
            Some((w, reg)) if w == width => {
                self.next += 1;
                Ok(reg)
            }
            _ => self.wanted(if width == Width::W32 { "a register w0 … w10" } else { "a register r0 … r10" }),
        }
    }

    /// The register holding a value of `size` bytes in memory.
    fn value(&mut self, size: Size) -> Result<Reg, String> {
        let at = self.next;
        let (width, reg) = self.reg()?;
        if size.bits() > 32 && width == Width::W32 {
            self.next = at;
            return self.wanted("a register r0 … r10 for 8 bytes");
        }
        Ok(reg)
    }

    /// That same register once more, as `r1 = be16 r1` repeats its operand.
    fn same(&mut self, wanted: Reg) -> Result<(), String> {
        match self.peek_register() {
            Some((_, reg)) if reg == wanted => {
                self.next += 1;
                Ok(())
            }
            _ => self.wanted(&format!("the register before the `=`, {wanted}, again")),
        }
    }

    /// A number with optional sign.
    fn number(&mut self) -> Result<i128, String> {
        let negative = self.eat("-");
        if !negative {
            self.eat("+");
        }
        let Some(Token::Number(n)) = self.peek() else { return self.wanted("a number") };
        self.next += 1;
        Ok(if negative { -i128::from(n) } else { i128::from(n) })
    }

    /// An immediate operand; 32-bit operations may give it as an unsigned number.
    fn imm(&mut self, width: Width) -> Result<i32, String> {
        let n = self.number()?;
        match u32::try_from(n) {
            Ok(bits) if width == Width::W32 => Ok(bits as i32),
            _ => narrow(n, "a signed 32-bit immediate"),
        }
    }

    fn imm64(&mut self) -> Result<u64, String> {
        let n = self.number()?;
        if n < 0 { narrow::<i64>(n, "a 64-bit immediate").map(|n| n as u64) } else { narrow(n, "a 64-bit immediate") }
    }

    fn operand(&mut self, width: Width) -> Result<Src, String> {
        if self.peek_register().is_some() { self.reg_of(width).map(Src::Reg) } else { self.imm(width).map(Src::Imm) }
    }

    /// An operator looked up in one of the tables; signed ones begin with the word `s`.
    fn operator<K: Copy>(&mut self, table: &[(K, &'static str)], what: &str) -> Result<K, String> {
        let signed = self.peek() == Some(Token::Word("s"));
        let found = match self.peek_at(usize::from(signed)) {
            Some(Token::Symbol(s)) if signed => operand_of(table, format!("s{s}").as_str()),
            Some(Token::Symbol(s)) => operand_of(table, s),
            _ => None,
        };
        let Some(found) = found else { return self.wanted(what) };
        self.next += 1 + usize::from(signed);
        Ok(found)
    }

    /// `u8` … `u64` or `s8` … `s64`: whether it is signed, and the size.
    fn memory_type(&mut self) -> Result<(bool, Size), String> {
        let parsed = match self.peek() {
            Some(Token::Word(w)) => {
                Size::ALL.into_iter().find_map(|size| match w.strip_suffix(&size.bits().to_string()) {
                    Some("u") => Some((false, size)),
                    Some("s") => Some((true, size)),
                    _ => None,
                })
            }
            _ => None,
        };
        let Some(parsed) = parsed else { return self.wanted("a type u8, u16, u32, u64 or s8, s16, s32") };
        self.next += 1;
        Ok(parsed)
    }

    /// `(u32 *)`
    fn cast(&mut self) -> Result<(bool, Size), String> {
        self.expect("(")?;
        let parsed = self.memory_type()?;
        self.expect("*")?;
        self.expect(")")?;
        Ok(parsed)
    }

    /// `(u32 *)` where a sign is not possible.
    fn unsigned_cast(&mut self) -> Result<Size, String> {
        match self.cast()? {
            (false, size) => Ok(size),
            (true, _) => Err("a signed type stands only in loads".to_string()),
        }
    }

    /// `+ K` or `- K` if there is one, else 0.
    fn displacement(&mut self) -> Result<i128, String> {
        match self.peek() {
            Some(Token::Symbol("+" | "-")) => self.number(),
            _ => Ok(0),
        }
    }

    /// `r1 + 0x4`
    fn address(&mut self) -> Result<(Reg, i16), String> {
        let base = self.reg_of(Width::W64)?;
        let off = narrow(self.displacement()?, "a 16-bit offset")?;
        Ok((base, off))
    }

    /// `(r1 + 0x4)`
    fn parenthesized_address(&mut self) -> Result<(Reg, i16), String> {
        self.expect("(")?;
        let address = self.address()?;
        self.expect(")")?;
        Ok(address)
    }

    /// A jump target: an offset, or a label to be resolved later.
    fn target(&mut self) -> Result<i32, String> {
        match self.peek() {
            Some(Token::Word(label)) => {
                self.next += 1;
                self.label = Some(label);
                Ok(0)
            }
            Some(Token::Symbol("+" | "-") | Token::Number(_)) => narrow(self.number()?, "a 32-bit jump offset"),
            _ => self.wanted("a jump offset or a label"),
        }
    }

    fn short_target(&mut self) -> Result<i16, String> {
        narrow(self.target()?.into(), "a 16-bit jump offset")
    }
}

/// Instructions, by the way they begin.
impl Parser<'_> {
    fn insn(&mut self) -> Result<Insn, String> {
        if self.peek_register().is_some() {
            let (width, dst) = self.reg()?;
            return self.assignment(width, dst);
        }
        if self.eat("*") {
            return self.store();
        }
        let Some(Token::Word(word)) = self.peek() else { return self.wanted("an instruction") };
        self.next += 1;
        match word {
            "exit" => Ok(Insn::Exit),
            "goto" => Ok(Insn::Ja { off: self.target()?, long: false }),
            "gotol" => Ok(Insn::Ja { off: self.target()?, long: true }),
            "may_goto" => Ok(Insn::MayGoto { off: self.short_target()? }),
            "if" => self.conditional(),
            "call" => self.call().map(Insn::Call),
            "callx" => Ok(Insn::CallX { reg: self.reg_of(Width::W64)? }),
            "lock" => self.lock(),
            "store_release" => self.store_release(),
            "ld_pseudo" => self.ld_pseudo(),
            _ => Err(format!("`{word}` begins no instruction")),
        }
    }

    fn conditional(&mut self) -> Result<Insn, String> {
        let (width, dst) = self.reg()?;
        let cond = self.operator(&COND_TEXT, "a comparison")?;
        let src = self.operand(width)?;
        if !self.eat_word("goto") {
            return self.wanted("`goto`");
        }
        Ok(Insn::Jcc { cond, width, dst, src, off: self.short_target()? })
    }

    fn call(&mut self) -> Result<Call, String> {
        let what = "a 32-bit number";
        if self.eat_word("pc") {
            narrow(self.number()?, what).map(Call::Local)
        } else if self.eat_word("kfunc") {
            Ok(Call::Kfunc { btf_id: narrow(self.number()?, what)?, off: 0 })
        } else {
            narrow(self.number()?, what).map(Call::Helper)
        }
    }

    fn store(&mut self) -> Result<Insn, String> {
        let size = self.unsigned_cast()?;
        let (base, off) = self.parenthesized_address()?;
        self.expect("=")?;
        let src = match self.peek_register() {
            Some(_) => Src::Reg(self.value(size)?),
            None => Src::Imm(self.imm(if size == Size::DW { Width::W64 } else { Width::W32 })?),
        };
        Ok(Insn::Store { size, base, off, src })
    }

    fn lock(&mut self) -> Result<Insn, String> {
        self.expect("*")?;
        let size = self.unsigned_cast()?;
        let (base, off) = self.parenthesized_address()?;
        let op = self.operator(&LOCK_TEXT, "one of `+=`, `|=`, `&=`, `^=`")?;
        Ok(Insn::Atomic { op, size, base, off, src: self.value(size)? })
    }

    fn store_release(&mut self) -> Result<Insn, String> {
        self.expect("(")?;
        let size = self.unsigned_cast()?;
        let (base, off) = self.parenthesized_address()?;
        self.expect(",")?;
        let src = self.value(size)?;
        self.expect(")")?;
        Ok(Insn::StoreRelease { size, base, off, src })
    }

    fn ld_pseudo(&mut self) -> Result<Insn, String> {
        let dst = self.reg_of(Width::W64)?;
        self.expect(",")?;
        let kind = u8::try_from(self.number()?).ok().and_then(|n| operand_of(&IMM64_KINDS, n));
        let kind = kind.ok_or("the kinds of ld_pseudo are 0 … 6")?;
        self.expect(",")?;
        let imm: u32 = narrow(self.number()?, "32 bits, all that ld_pseudo can state")?;
        Ok(Insn::LoadImm64 { dst, kind, imm: imm.into() })
    }

    /// What begins with a register: an operation on it, or a value for it.
    fn assignment(&mut self, width: Width, dst: Reg) -> Result<Insn, String> {
        if !self.eat("=") {
            let op = self.operator(&ALU_TEXT, "`=` or an operation such as `+=`")?;
            return Ok(Insn::Alu { op, width, dst, src: self.operand(width)? });
        }
        let insn = match (self.peek(), self.peek_at(1)) {
            (Some(Token::Symbol("-")), Some(Token::Word(_))) => self.negation(width, dst),
            (Some(Token::Symbol("(")), _) => self.sign_extension(width, dst),
            (Some(Token::Symbol("*")), _) => self.load(dst),
            (Some(Token::Word(word)), _) if register(word).is_none() => self.named(word, dst),
            _ => self.move_or_wide(width, dst),
        }?;
        if width == Width::W32 && sets_64_bits(&insn) {
            return Err(format!("the result has 64 bits: write {dst}"));
        }
        Ok(insn)
    }

    fn negation(&mut self, width: Width, dst: Reg) -> Result<Insn, String> {
        self.expect("-")?;
        if self.reg_of(width)? != dst {
            return Err(format!("only the register itself can be negated: {dst} = -{dst}"));
        }
        Ok(Insn::Neg { width, dst })
    }

    fn sign_extension(&mut self, width: Width, dst: Reg) -> Result<Insn, String> {
        self.expect("(")?;
        let (true, from) = self.memory_type()? else {
            return Err("moves extend signed types only: s8, s16, s32".to_string());
        };
        self.expect(")")?;
        Ok(Insn::MovSx { width, from, dst, src: self.reg_of(width)? })
    }

    fn move_or_wide(&mut self, width: Width, dst: Reg) -> Result<Insn, String> {
        if self.tokens.last() != Some(&Token::Word("ll")) {
            return Ok(Insn::Mov { width, dst, src: self.operand(width)? });
        }
        let imm = self.imm64()?;
        self.wide(dst, Imm64Kind::Const, imm)
    }

    /// The end of an `ld_imm64`: the word `ll`.
    fn wide(&mut self, dst: Reg, kind: Imm64Kind, imm: u64) -> Result<Insn, String> {
        if self.eat_word("ll") { Ok(Insn::LoadImm64 { dst, kind, imm }) } else { self.wanted("`ll`") }
    }

    fn load(&mut self, dst: Reg) -> Result<Insn, String> {
        self.expect("*")?;
        let (sext, size) = self.cast()?;
        if self.eat_word("skb") {
            return self.packet_load(dst, sext, size);
        }
        let (base, off) = self.parenthesized_address()?;
        Ok(Insn::Load { size, sext, dst, base, off })
    }

    fn packet_load(&mut self, dst: Reg, sext: bool, size: Size) -> Result<Insn, String> {
        if dst != Reg::R0 || sext {
            return Err("a packet load sets r0 and does not sign-extend".to_string());
        }
        self.expect("[")?;
        let src = self.peek_register();
        let imm = if src.is_some() {
            self.reg_of(Width::W64)?;
            self.displacement()?
        } else {
            self.number()?
        };
        let imm = narrow(imm, "a signed 32-bit immediate")?;
        self.expect("]")?;
        Ok(match src {
            Some((_, src)) => Insn::LdInd { size, src, imm },
            None => Insn::LdAbs { size, imm },
        })
    }

    /// Values that begin with a name.
    fn named(&mut self, word: &str, dst: Reg) -> Result<Insn, String> {
        self.advance();
        if let Some((kind, bits)) = byte_order(word) {
            self.same(dst)?;
            return Ok(Insn::Endian { kind, bits, dst });
        }
        if let Some(kind) = operand_of(&IMM64_TEXT, word) {
            self.expect("[")?;
            let imm = self.imm64()?;
            self.expect("]")?;
            return self.wide(dst, kind, imm);
        }
        self.expect("(")?;
        let insn = if let Some(op) = operand_of(&FETCH_TEXT, word) {
            self.fetch(op, dst)?
        } else if let Some((op, size)) = operand_of(&XCHG_TEXT, word) {
            self.exchange(op, size, dst)?
        } else if word == "load_acquire" {
            let size = self.unsigned_cast()?;
            let (base, off) = self.parenthesized_address()?;
            Insn::LoadAcquire { size, dst, base, off }
        } else if word == "addr_space_cast" {
            self.addr_space_cast(dst)?
        } else {
            return Err(format!("`{word}` names no operation"));
        };
        self.expect(")")?;
        Ok(insn)
    }

    fn fetch(&mut self, op: AtomicOp, dst: Reg) -> Result<Insn, String> {
        let size = self.unsigned_cast()?;
        let (base, off) = self.parenthesized_address()?;
        self.expect(",")?;
        self.same(dst)?;
        Ok(Insn::Atomic { op, size, base, off, src: dst })
    }

    fn exchange(&mut self, op: AtomicOp, size: Size, dst: Reg) -> Result<Insn, String> {
        let (base, off) = self.address()?;
        self.expect(",")?;
        self.same(dst)?;
        if op != AtomicOp::CmpXchg {
            return Ok(Insn::Atomic { op, size, base, off, src: dst });
        }
        if dst != Reg::R0 {
            return Err("cmpxchg compares with r0 and returns in r0".to_string());
        }
        self.expect(",")?;
        Ok(Insn::Atomic { op, size, base, off, src: self.value(size)? })
    }

    fn addr_space_cast(&mut self, dst: Reg) -> Result<Insn, String> {
        let src = self.reg_of(Width::W64)?;
        self.expect(",")?;
        let to: u16 = narrow(self.number()?, "a 16-bit address space")?;
        self.expect(",")?;
        let from: u16 = narrow(self.number()?, "a 16-bit address space")?;
        Ok(Insn::AddrSpaceCast { dst, src, imm: u32::from(to) << 16 | u32::from(from) })
    }
}

/// Whether the result of an assignment goes by the name `rN` only.
fn sets_64_bits(insn: &Insn) -> bool {
    match *insn {
        Insn::Mov { width, .. } | Insn::MovSx { width, .. } | Insn::Neg { width, .. } => width == Width::W64,
        Insn::Load { size, sext: false, .. } | Insn::Atomic { size, .. } | Insn::LoadAcquire { size, .. } => {
            size == Size::DW
        }
        Insn::LdAbs { .. } | Insn::LdInd { .. } => false,
        _ => true,
    }
}

/// The operation and width in a name such as `be16`.
fn byte_order(word: &str) -> Option<(Endian, u8)> {
    let digits = word.find(|c: char| c.is_ascii_digit())?;
    let kind = operand_of(&ENDIAN_TEXT, &word[..digits])?;
    Some((kind, word[digits..].parse().ok()?))
}
