//! From a call to instructions: fill, look, call, look again.
//!
//! The program copies the frame's contents and r7 … r9 from the map `IN`, runs the recipe's set-up, copies registers, frame
//! and context to the map `OUT`, calls, and copies them once more. Nothing else happens between the two looks.

use std::fmt::Write;

use bpf_isa::{Imm64Kind, Insn, Reg, Size, Src, Width, encode_all, parse_listing};

use crate::fields::Field;
use crate::kinds::Packet;
use crate::recipe::{Argument, Call, Failure};

/// Bytes of the map the program reads: a frame, then r7, r8, r9.
pub const IN_BYTES: u32 = 512 + 24;
/// Bytes of the map the program writes.
pub const OUT_BYTES: u32 = 2688;
/// 1 once the call is about to be made, 2 once all is written down.
pub const REACHED: usize = 0;
/// r0 after the call.
pub const RESULT: usize = 8;
/// r6 … r10 before the call.
pub const REGISTERS_BEFORE: usize = 16;
/// r6 … r10 after it.
pub const REGISTERS_AFTER: usize = 56;
/// The frame before, its lowest byte first.
pub const FRAME_BEFORE: usize = 128;
/// The frame after.
pub const FRAME_AFTER: usize = 640;
/// Context fields before, eight bytes each.
pub const CONTEXT_BEFORE: usize = 1152;
/// Context fields after.
pub const CONTEXT_AFTER: usize = 1920;
/// The most context fields that fit.
pub const FIELDS: usize = 96;

/// How the things that a recipe names are written in a listing: what stands behind `rN = ` of a 64-bit load.
pub trait Names {
    /// The map.
    ///
    /// # Errors
    /// There is none of this name, or it cannot be made.
    fn map(&mut self, name: &str) -> Result<String, String>;
    /// An address in the first element of the array map of this name.
    ///
    /// # Errors
    /// As [`Names::map`].
    fn value(&mut self, name: &str, at: u32) -> Result<String, String>;
    /// A callback, the number `index` of its call.
    fn callback(&mut self, index: usize, name: &str) -> String;
    /// A number of the laboratory.
    fn number(&self, name: &str) -> Option<i64>;
}

/// Maps by descriptor, callbacks by index: what a program that is loaded as bytes holds.
pub trait Descriptors {
    /// Descriptor of the map.
    ///
    /// # Errors
    /// There is none of this name, or it cannot be made.
    fn descriptor(&mut self, name: &str) -> Result<i32, String>;
    /// A number of the laboratory.
    fn number(&self, name: &str) -> Option<i64>;
}

impl<D: Descriptors> Names for D {
    fn map(&mut self, name: &str) -> Result<String, String> {
        Ok(format!("map_fd[{}]", self.descriptor(name)? as u32))
    }
    fn value(&mut self, name: &str, at: u32) -> Result<String, String> {
        Ok(format!("map_value[{}]", u64::from(self.descriptor(name)? as u32) | u64::from(at) << 32))
    }
    fn callback(&mut self, index: usize, _: &str) -> String {
        format!("func[{index}]")
    }
    fn number(&self, name: &str) -> Option<i64> {
        Descriptors::number(self, name)
    }
}

/// What becomes of the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    /// It is made.
    Call,
    /// It is left out, r0 is 0: what the rest of the program changes by itself.
    Without,
    /// It is made, and a packet pointer from before it is used afterwards.
    OldPacketPointer(Packet),
    /// The same without that use: the control.
    NewPacketPointer(Packet),
}

/// A program with what its type information needs.
#[derive(Debug)]
pub struct Assembled {
    /// The code.
    pub code: Vec<u8>,
    /// First slots of the functions, the main program first.
    pub functions: Vec<u32>,
}

/// Assembles a call.
///
/// # Errors
/// A name nobody knows, or assembly that cannot be read.
pub fn assemble(
    call: &Call,
    variant: Variant,
    fields: &[Field],
    maps: (i32, i32),
    names: &mut dyn Names,
) -> Result<Assembled, String> {
    let mut insns = main_program(call, variant, fields, maps, names)?;
    let mut functions = vec![0];
    for body in call.callbacks.values() {
        functions.push(slots(&insns));
        insns.extend(parse(&expand(body, call, names)?)?);
    }
    point_to_callbacks(&mut insns, &functions);
    let code = encode_all(&insns).map_err(|e| e.to_string())?;
    Ok(Assembled { code, functions })
}

fn parse(text: &str) -> Result<Vec<Insn>, String> {
    parse_listing(text).map_err(|e| format!("{e}: {}", text.lines().nth(e.line - 1).unwrap_or("")))
}

fn slots(insns: &[Insn]) -> u32 {
    insns.iter().map(|i| i.slots() as u32).sum()
}

/// Addresses of functions are slot distances (`BPF_PSEUDO_FUNC`); the text has their index.
fn point_to_callbacks(insns: &mut [Insn], functions: &[u32]) {
    let mut slot = 0;
    for insn in insns {
        let next = slot + insn.slots() as u32;
        if let Insn::LoadImm64 { kind: Imm64Kind::Func, imm, .. } = insn {
            let target = functions.get(*imm as usize + 1).copied().unwrap_or(0);
            *imm = u64::from(target.wrapping_sub(slot + 1));
        }
        slot = next;
    }
}

fn main_program(
    call: &Call,
    variant: Variant,
    fields: &[Field],
    (input, output): (i32, i32),
    names: &mut dyn Names,
) -> Result<Vec<Insn>, String> {
    let mut code = vec![Insn::Mov { width: Width::W64, dst: Reg::R6, src: Src::Reg(Reg::R1) }];
    fill(&mut code, call, input);
    let mut before = expand(&call.setup, call, names)?;
    let packet_pointer = match variant {
        Variant::OldPacketPointer(Packet::Direct { data, end })
        | Variant::NewPacketPointer(Packet::Direct { data, end }) => Some((data, end)),
        _ => None,
    };
    if let Some((data, end)) = packet_pointer {
        let _ = writeln!(
            before,
            "r7 = *(u32 *)(r6 + {data})\nr1 = *(u32 *)(r6 + {end})\nr2 = r7\nr2 += 8\nif r2 > r1 goto out"
        );
    }
    if before.contains("goto out") {
        before += "goto inside\nout:\nr0 = 0\nexit\ninside:\n";
    }
    code.extend(parse(&before)?);
    if packet_pointer.is_none() {
        look(&mut code, call, fields, output, Look::Before);
    }
    let mut text = String::new();
    for (i, argument) in call.arguments.iter().enumerate() {
        let _ = writeln!(text, "{}", put(i + 1, argument, call, names)?);
    }
    match variant {
        Variant::Without => text += "r0 = 0\n",
        _ => {
            let _ = writeln!(text, "call {}", call.helper);
        }
    }
    if matches!(variant, Variant::OldPacketPointer(_)) {
        text += "r2 = *(u64 *)(r7 + 0)\n";
    }
    code.extend(parse(&text)?);
    if packet_pointer.is_none() {
        look(&mut code, call, fields, output, Look::After);
    }
    let result = if has_result(call) { "r7 = r0\n" } else { "" };
    let after = expand(&call.after, call, names)?;
    code.extend(parse(&format!("{result}{after}out:\nr0 = 0\nexit\n"))?);
    Ok(code)
}

/// May r0 be read after the call?
pub fn has_result(call: &Call) -> bool {
    !matches!(call.failure, Failure::Void | Failure::Returning)
}

fn load(dst: Reg, base: Reg, off: i32, width: u32) -> Insn {
    let size = Size::from_bytes(width).unwrap_or(Size::DW);
    Insn::Load { size, sext: false, dst, base, off: off as i16 }
}

fn store(base: Reg, off: i32, src: Src) -> Insn {
    Insn::Store { size: Size::DW, base, off: off as i16, src }
}

/// Frame, r7, r8, r9 from the input map; leaves r1 and r2 changed.
fn fill(code: &mut Vec<Insn>, call: &Call, input: i32) {
    let frame = call.frame as i32;
    code.push(Insn::LoadImm64 { dst: Reg::R1, kind: Imm64Kind::MapValue, imm: u64::from(input as u32) });
    for at in (0..frame).step_by(8) {
        code.push(load(Reg::R2, Reg::R1, at, 8));
        code.push(store(Reg::R10, at - frame, Src::Reg(Reg::R2)));
    }
    code.extend([(Reg::R7, 512), (Reg::R8, 520), (Reg::R9, 528)].map(|(r, at)| load(r, Reg::R1, at, 8)));
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Before,
    After,
}

/// Copies what can be seen to the output map. Changes r1 and r2 only.
fn look(code: &mut Vec<Insn>, call: &Call, fields: &[Field], output: i32, when: Look) {
    let (registers, frame_at, context, state) = match when {
        Look::Before => (REGISTERS_BEFORE, FRAME_BEFORE, CONTEXT_BEFORE, 1),
        Look::After => (REGISTERS_AFTER, FRAME_AFTER, CONTEXT_AFTER, 2),
    };
    code.push(Insn::LoadImm64 { dst: Reg::R1, kind: Imm64Kind::MapValue, imm: u64::from(output as u32) });
    if when == Look::After && has_result(call) {
        code.push(store(Reg::R1, RESULT as i32, Src::Reg(Reg::R0)));
    }
    for r in (6..=10u8).filter(|r| !call.taken.contains(r)).filter_map(Reg::new) {
        code.push(store(Reg::R1, (registers + 8 * (r.index() - 6)) as i32, Src::Reg(r)));
    }
    let frame = call.frame as i32;
    for at in (0..frame).step_by(8).filter(|at| !in_hole(call, at - frame)) {
        code.push(load(Reg::R2, Reg::R10, at - frame, 8));
        code.push(store(Reg::R1, frame_at as i32 + at, Src::Reg(Reg::R2)));
    }
    for (i, f) in fields.iter().take(FIELDS).enumerate() {
        code.push(load(Reg::R2, Reg::R6, f.offset as i32, f.width));
        code.push(store(Reg::R1, (context + 8 * i) as i32, Src::Reg(Reg::R2)));
    }
    code.push(store(Reg::R1, REACHED as i32, Src::Imm(state)));
}

/// Is any of the eight frame bytes at `offset` one that cannot be read?
pub fn in_hole(call: &Call, offset: i32) -> bool {
    call.holes.iter().any(|(at, length)| offset + 8 > *at && offset < at + *length as i32)
}

/// Assembly that puts an argument into a register.
///
/// # Errors
/// A name nobody knows.
pub fn put(register: usize, argument: &Argument, call: &Call, names: &mut dyn Names) -> Result<String, String> {
    let r = register;
    Ok(match argument {
        Argument::Context => format!("r{r} = r6"),
        Argument::Number(n) => number(r, *n),
        Argument::Named(name) => number(r, names.number(name).ok_or_else(|| format!("nothing is called ${name}"))?),
        Argument::Buffer { offset, .. } | Argument::Frame(offset) => format!("r{r} = r10\nr{r} += {offset}"),
        Argument::Map(name) => format!("r{r} = {} ll", names.map(name)?),
        Argument::MapValue(name, at) => format!("r{r} = {} ll", names.value(name, *at)?),
        Argument::Callback(name) => format!("r{r} = {} ll", names.callback(callback(call, name)?, name)),
        Argument::Register(from) => format!("r{r} = r{from}"),
    })
}

fn number(r: usize, n: i64) -> String {
    if i32::try_from(n).is_ok() { format!("r{r} = {n}") } else { format!("r{r} = {} ll", n as u64) }
}

fn callback(call: &Call, name: &str) -> Result<usize, String> {
    call.callbacks.keys().position(|k| k == name).ok_or_else(|| format!("no callback is called {name}"))
}

/// Replaces `map[…]`, `value[…]`, `fn[…]` and `$NAME` in assembly.
///
/// # Errors
/// A name nobody knows.
pub fn expand(text: &str, call: &Call, names: &mut dyn Names) -> Result<String, String> {
    let mut out = String::new();
    for line in text.lines() {
        let mut line = line.to_owned();
        while let Some((before, name, after)) = bracketed(&line, " map[") {
            line = format!("{before} {} ll{after}", names.map(&name)?);
        }
        while let Some((before, name, after)) = bracketed(&line, " value[") {
            let (map, at) = name.split_once('+').unwrap_or((&name, "0"));
            let at = at.parse().map_err(|_| format!("{at} is no offset"))?;
            line = format!("{before} {} ll{after}", names.value(map, at)?);
        }
        while let Some((before, name, after)) = bracketed(&line, " fn[") {
            line = format!("{before} {} ll{after}", names.callback(callback(call, &name)?, &name));
        }
        if let Some(at) = line.find('$') {
            let end = line[at + 1..].find(|c: char| !c.is_ascii_alphanumeric()).map_or(line.len(), |e| at + 1 + e);
            let name = &line[at + 1..end];
            let n = names.number(name).ok_or_else(|| format!("nothing is called ${name}"))?;
            line = format!("{}{}{}", &line[..at], n as u64, &line[end..]);
        }
        out.push_str(&line);
        out.push('\n');
    }
    Ok(out)
}

fn bracketed(line: &str, opening: &str) -> Option<(String, String, String)> {
    let at = line.find(opening)?;
    let rest = &line[at + opening.len()..];
    let end = rest.find(']')?;
    Some((line[..at].to_owned(), rest[..end].to_owned(), rest[end + 1..].to_owned()))
}
