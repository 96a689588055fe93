//! Writes random programs around the calls of `bpf-modeltest`'s recipes.
//!
//! One idea: every function keeps a few promises between its items, so that items can be put in any order and left out:
//! r6 is the context, r9 collects everything that was seen, all of the function's own frame slots are filled, and slot
//! `POINTER` holds an address: of its own frame, or of what its caller passed. r0 to r5, r7 and r8 belong to whichever
//! item runs. Recipes use the frame from `r10 - 64` up, buffers of a call lie below the slots.
//!
//! What is not the same in every run is not collected: results that a recipe or the table calls unsteady, and
//! addresses, of which only *null or not* counts.

use std::collections::BTreeSet;
use std::fmt::Write;

use bpf_modeltest::campaign::EDGES;
use bpf_modeltest::compare;
use bpf_modeltest::fields::Field;
use bpf_modeltest::kinds::{Kind, Packet};
use bpf_modeltest::lab::{KFUNCS, Lab};
use bpf_modeltest::program::{Names, expand, has_result, put};
use bpf_modeltest::recipe::{Argument, Call, Failure};
use bpf_testgen::random::Rng;

use super::program::{Callback, DATA_BYTES, Item, OUT_BYTES, Program, subprogram};

/// Where r9 is kept while a recipe uses it.
const SPILL: i32 = -72;
/// A function's own slots, eight bytes each. The last two are what [`POINTER`] may lead to.
const SLOTS: [i32; 6] = [-80, -88, -96, -104, -112, -120];
/// Where an address is kept.
const POINTER: i32 = -128;
/// Where an address of the frame waits on its way through memory that is not the frame, and where it comes back.
const ESCAPING: [i32; 2] = [-136, -144];
/// How often a call has been repeated.
const COUNTER: i32 = -152;
/// Buffers of calls end here.
const BUFFERS: i32 = -152;
/// The most frame of all functions on the way to a call.
const FRAME: i32 = 512;
/// Bytes of packet that are looked at.
const PACKET: u32 = 64;
/// Maps whose values are at least eight plain bytes: what a lookup finds in them may be read and written.
const VALUES: [&str; 7] = ["hash", "array", "percpu_hash", "percpu_array", "lru", "lru_percpu", "lpm"];

/// What programs are written from.
pub struct Material<'a> {
    /// The kind of program.
    pub kind: &'static Kind,
    /// Its section.
    pub section: &'static str,
    /// Context fields.
    pub fields: &'a [Field],
    /// Context fields of which stores are allowed.
    pub stores: &'a [Field],
    /// Whether it may call [`PROBE`].
    pub probes: bool,
    /// For `$NAME`.
    pub lab: &'a Lab,
}

/// `bpf_probe_read_kernel`, which reads from any address.
pub const PROBE: i32 = 113;

/// Writes one program.
pub struct Writer<'a> {
    r: &'a mut Rng,
    material: Material<'a>,
    items: Vec<Item>,
    callbacks: Vec<Callback>,
    function: usize,
    labels: usize,
    /// Lowest frame byte of each function.
    frames: Vec<i32>,
}

/// Names as an object's listing has them.
struct Symbols<'a> {
    lab: &'a Lab,
    /// Number of the call, for its callbacks.
    call: usize,
}

impl Names for Symbols<'_> {
    fn map(&mut self, name: &str) -> Result<String, String> {
        match bpf_modeltest::lab::shape(name) {
            Some(_) => Ok(name.to_owned()),
            None => Err(format!("no plain map is called {name}")),
        }
    }

    fn value(&mut self, name: &str, at: u32) -> Result<String, String> {
        match name {
            "data" | "strings" => Ok(format!("{name} + {at}")),
            _ => Err(format!("{name} is no variable")),
        }
    }

    fn callback(&mut self, _: usize, name: &str) -> String {
        callback_name(self.call, name)
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.lab.number(name)
    }
}

fn callback_name(call: usize, name: &str) -> String {
    format!("callback{call}_{name}")
}

/// Whether a call can be written in an object: not if it needs maps with types of their own.
pub fn writable(call: &Call, lab: &Lab) -> bool {
    let mut names = Symbols { lab, call: 0 };
    let mut blocks = [&call.setup, &call.after].into_iter().chain(call.callbacks.values());
    blocks.all(|block| expand(&kernel_functions(block), call, &mut names).is_ok())
        && call.arguments.iter().enumerate().all(|(i, a)| put(i + 1, a, call, &mut names).is_ok())
}

/// `call kfunc $NAME` by the function's name.
fn kernel_functions(text: &str) -> String {
    KFUNCS.iter().fold(text.to_owned(), |text, (name, function)| text.replace(&format!("kfunc ${name}"), function))
}

/// Changes numbers, lengths and buffer bytes of a call.
pub fn vary(call: &Call, r: &mut Rng) -> Call {
    let mut varied = call.clone();
    if varied.fixed {
        return varied;
    }
    let mut length = None;
    for argument in &mut varied.arguments {
        let buffer = match argument {
            Argument::Buffer { length, content, .. } => {
                if let Some(bytes) = content.as_mut().filter(|b| !b.is_empty() && r.chance(4)) {
                    let at = r.below(bytes.len() as u64) as usize;
                    bytes[at] = r.next() as u8;
                }
                Some(i64::from(*length))
            }
            Argument::Number(n) if length == Some(*n) && *n > 0 => {
                if r.chance(3) {
                    *n = 1 + r.below(*n as u64) as i64;
                }
                None
            }
            Argument::Number(n) => {
                if r.chance(4) {
                    *n = if r.chance(4) { r.number(32) as i32 as i64 } else { r.one_of(&EDGES) };
                }
                None
            }
            _ => None,
        };
        length = buffer;
    }
    varied
}

/// Puts the buffers of a call right below the function's own slots; says where they begin.
fn place_buffers(call: &mut Call) -> i32 {
    let span = |length: u32| (length as i32 + 7) / 8 * 8 + 8;
    let all: i32 =
        call.arguments.iter().map(|a| if let Argument::Buffer { length, .. } = a { span(*length) } else { 0 }).sum();
    let lowest = BUFFERS - all;
    let mut next = lowest;
    for argument in &mut call.arguments {
        if let Argument::Buffer { offset, length, .. } = argument {
            *offset = next;
            next += span(*length);
        }
    }
    lowest
}

/// Gives the labels of a block names of their own.
fn own_labels(text: &str, call: usize) -> String {
    let labels: BTreeSet<&str> = text.lines().filter_map(|l| l.trim().strip_suffix(':')).chain(["out"]).collect();
    let mut renamed = String::new();
    for line in text.lines() {
        let label = line.trim().strip_suffix(':').or_else(|| line.rsplit_once("goto ").map(|(_, to)| to.trim()));
        match label.filter(|l| labels.contains(l)) {
            Some(label) => {
                let at = line.rfind(label).unwrap_or(0);
                let _ = writeln!(renamed, "{}{label}{call}{}", &line[..at], &line[at + label.len()..]);
            }
            None => {
                let _ = writeln!(renamed, "{line}");
            }
        }
    }
    renamed
}

/// Whether a recipe's own code, arguments included, names a register.
fn uses(call: &Call, register: u8) -> bool {
    let digit = char::from(b'0' + register);
    let named = |text: &str| text.contains(&format!("r{digit}")) || text.contains(&format!("w{digit}"));
    call.taken.contains(&register) || named(&call.setup) || named(&call.after)
}

/// Whether what a call gives may be collected: the same in every run.
fn steady(call: &Call) -> bool {
    !call.unsteady && !compare::volatile(call)
}

fn width_name(bytes: u32) -> &'static str {
    match bytes {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        _ => "u64",
    }
}

/// A program of these calls. The first subprogram, if there is one, makes the calls from `split` on.
pub fn program(r: &mut Rng, material: Material<'_>, calls: &[Call], split: usize) -> Result<Program, String> {
    let (kind, section) = (material.kind, material.section);
    let writer =
        Writer { r, material, items: vec![], callbacks: vec![], function: 0, labels: 0, frames: vec![BUFFERS; 2] };
    let (items, callbacks) = writer.write(calls, split)?;
    Ok(Program { kind: kind.name, section, items, callbacks })
}

impl Writer<'_> {
    fn write(mut self, calls: &[Call], split: usize) -> Result<(Vec<Item>, Vec<Callback>), String> {
        let (outer, inner) = calls.split_at(split.min(calls.len()));
        let at = self.r.below(outer.len() as u64 + 1) as usize;
        self.prologue(0);
        for (i, call) in outer.iter().enumerate() {
            if i == at && !inner.is_empty() {
                self.call_subprogram();
            }
            self.around_call(i, call)?;
        }
        if at == outer.len() && !inner.is_empty() {
            self.call_subprogram();
        }
        self.some_items(3);
        self.epilogue();
        if !inner.is_empty() {
            self.function = 1;
            self.prologue(1);
            for (i, call) in inner.iter().enumerate() {
                self.around_call(outer.len() + i, call)?;
            }
            self.some_items(2);
            self.fixed("r0 = r9\nexit\n".into());
        }
        if self.frames.iter().map(|f| (-f + 31) / 32 * 32).sum::<i32>() > FRAME {
            return Err("more frame than there is".into());
        }
        Ok((self.items, self.callbacks))
    }

    fn item(&mut self, text: String) {
        self.push(text, false, BTreeSet::new());
    }

    fn fixed(&mut self, text: String) {
        self.push(text, true, BTreeSet::new());
    }

    fn push(&mut self, text: String, fixed: bool, mut helpers: BTreeSet<i32>) {
        let called = text.lines().filter_map(|l| l.trim().strip_prefix("call ")?.parse::<i32>().ok());
        helpers.extend(called);
        self.items.push(Item { function: self.function, text, fixed, helpers });
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!("l{}_{}", self.function, self.labels)
    }

    fn slot(&mut self) -> i32 {
        self.r.one_of(&SLOTS)
    }

    fn imm(&mut self) -> i32 {
        self.r.number(32) as u32 as i32
    }

    /// What every function begins with.
    fn prologue(&mut self, function: usize) {
        let mut text = String::from("r6 = r1\n");
        if function == 0 {
            text += &format!("r1 = r10\nr1 += {}\n*(u64 *)(r10 - {}) = r1\n", SLOTS[5], -POINTER);
            text += &format!("r9 = {}\n", self.imm());
        } else {
            text += &format!("*(u64 *)(r10 - {}) = r2\nr9 = r3\n", -POINTER);
        }
        text += &format!("*(u64 *)(r10 - {}) = r9\n", -SPILL);
        for slot in SLOTS {
            match self.r.below(3) {
                0 => {
                    let at = 8 * self.r.below(u64::from(DATA_BYTES) / 8);
                    text += &format!("r1 = input + {at} ll\nr1 = *(u64 *)(r1 + 0)\n*(u64 *)(r10 - {}) = r1\n", -slot);
                }
                _ => text += &format!("*(u64 *)(r10 - {}) = {}\n", -slot, self.imm()),
            }
        }
        self.fixed(text);
    }

    /// All 64 bits go to `out`; some kinds of program may return few numbers only (`check_return_code` in
    /// `kernel/bpf/verifier.c`).
    fn epilogue(&mut self) {
        let few = matches!(self.material.kind.name, "cgroup_skb" | "cgroup_skb_out" | "netfilter");
        let mask = if few { "r0 &= 1\n" } else { "" };
        self.fixed(format!("r1 = out ll\n*(u64 *)(r1 + 0) = r9\nr0 = r9\n{mask}exit\n"));
    }

    /// Code that collects a register; changes r4.
    fn collect(&mut self, register: &str) -> String {
        let odd = self.imm() | 1;
        match self.r.below(5) {
            0 => {
                let at = 8 + 8 * self.r.below(u64::from(OUT_BYTES) / 8 - 1);
                format!("r4 = out + {at} ll\n*(u64 *)(r4 + 0) = {register}\n")
            }
            1 => format!("r9 *= {odd}\nr9 += {register}\n"),
            2 => format!("r4 = r9\nr4 >>= 29\nr9 *= {odd}\nr9 ^= r4\nr9 ^= {register}\n"),
            _ => format!("r9 ^= {register}\nr9 *= {odd}\n"),
        }
    }

    /// A load of some bytes of the frame, in any width.
    fn reload(&mut self, from: i32, length: u32) -> String {
        let width = self.width(length);
        let at = from + (self.r.below(u64::from(length / width)) as u32 * width) as i32;
        format!("r1 = *({} *)(r10 - {})\n", width_name(width), -at) + &self.collect("r1")
    }

    fn width(&mut self, length: u32) -> u32 {
        let widths: Vec<u32> = [1, 2, 4, 8].into_iter().filter(|w| *w <= length).collect();
        self.r.one_of(&widths)
    }

    /// A few items that have nothing to do with a call.
    fn some_items(&mut self, most: u64) {
        for _ in 0..self.r.below(most + 1) {
            let text = self.any_item();
            self.item(text);
        }
    }

    fn any_item(&mut self) -> String {
        match self.r.below(14) {
            0 | 1 => self.read_context(),
            2 => self.write_context(),
            3 | 4 => self.packet(),
            5 => self.data(),
            6 => self.look_up(),
            7 => self.through_pointer(),
            8 | 9 => self.store_slot(),
            10 => self.copy_slot(),
            11 => self.arithmetic(),
            12 if self.material.probes => self.escape(),
            _ => {
                let slot = self.slot();
                self.reload(slot, 8)
            }
        }
    }

    fn field(&mut self) -> Option<Field> {
        let numbers: Vec<Field> = self.material.fields.iter().copied().filter(|f| !f.pointer).collect();
        (!numbers.is_empty()).then(|| self.r.one_of(&numbers))
    }

    /// A load of a context field into a register.
    fn load_field(&mut self, register: &str, f: Field) -> String {
        format!("{register} = *({} *)(r6 + {})\n", width_name(f.width), f.offset)
    }

    fn read_context(&mut self) -> String {
        let Some(field) = self.field() else { return self.arithmetic() };
        self.load_field("r1", field) + &self.collect("r1")
    }

    fn write_context(&mut self) -> String {
        if self.material.stores.is_empty() {
            return self.read_context();
        }
        let field = self.r.one_of(self.material.stores);
        let place = format!("*({} *)(r6 + {})", width_name(field.width), field.offset);
        match self.r.below(3) {
            // `BPF_ST` into the context is refused by older kernels.
            0 => format!("r1 = {}\n{place} = r1\n", self.imm()),
            1 => format!("{place} = r9\n"),
            _ => format!("r1 = {place}\nr1 += 1\n{place} = r1\n"),
        }
    }

    /// Packet bytes, read or written; `body` uses r3, which points to them, and may be left by `LABEL`.
    fn in_packet(&mut self, body: &str) -> Option<String> {
        let Packet::Direct { data, end } = self.material.kind.packet else { return None };
        let label = self.label();
        Some(format!(
            "r3 = *(u32 *)(r6 + {data})\nr2 = *(u32 *)(r6 + {end})\nr1 = r3\nr1 += {PACKET}\nif r1 > r2 goto {label}\n{body}\
             {label}:\n"
        ))
    }

    fn packet(&mut self) -> String {
        let width = self.width(8);
        let at = self.r.below(u64::from(PACKET - 8));
        let place = format!("*({} *)(r3 + {at})", width_name(width));
        let writes = matches!(self.material.kind.name, "tc" | "act" | "lwt_xmit" | "xdp");
        let body = if writes && self.r.chance(3) {
            format!("{place} = r9\n")
        } else {
            format!("r1 = {place}\n") + &self.collect("r1")
        };
        self.in_packet(&body).unwrap_or_else(|| self.data())
    }

    /// The variable `data`, which some helpers are given.
    fn data(&mut self) -> String {
        let width = self.width(8);
        let at = self.r.below(u64::from(DATA_BYTES / width)) * u64::from(width);
        let place = format!("*({} *)(r2 + {at})", width_name(width));
        match self.r.below(3) {
            0 => format!("r2 = data ll\n{place} = {}\n", self.imm()),
            1 => format!("r2 = data ll\n{place} = r9\n"),
            _ => format!("r2 = data ll\nr1 = {place}\n") + &self.collect("r1"),
        }
    }

    /// A lookup with what follows where it finds something; r0 is the value then.
    fn found(&mut self, found: &str, label: &str) -> String {
        let (map, key) = (self.r.one_of(&["hash", "array", "lru"]), self.r.below(3));
        format!(
            "*(u32 *)(r10 - {at}) = {key}\nr1 = {map} ll\nr2 = r10\nr2 += -{at}\ncall 1\nif r0 == 0 goto {label}\n{found}",
            at = -SLOTS[3],
        )
    }

    fn look_up(&mut self) -> String {
        let label = self.label();
        let body = match self.r.below(3) {
            0 => "*(u64 *)(r0 + 0) = r9\n".to_owned(),
            1 => "r1 = 3\nlock *(u64 *)(r0 + 0) += r1\n".to_owned(),
            _ => String::from("r1 = *(u64 *)(r0 + 0)\n") + &self.collect("r1"),
        };
        self.found(&body, &label) + &format!("{label}:\n")
    }

    /// What the kept address leads to.
    fn through_pointer(&mut self) -> String {
        let width = self.width(8);
        let place = format!("*({} *)(r2 + 0)", width_name(width));
        let body = match self.r.below(3) {
            0 => format!("{place} = {}\n", self.imm()),
            1 => format!("{place} = r9\n"),
            _ => format!("r1 = {place}\n") + &self.collect("r1"),
        };
        format!("r2 = *(u64 *)(r10 - {})\n{body}", -POINTER)
    }

    fn store_slot(&mut self) -> String {
        let width = self.width(8);
        let at = self.slot() + (self.r.below(u64::from(8 / width)) as u32 * width) as i32;
        let value = if self.r.chance(2) { "r9".into() } else { self.imm().to_string() };
        format!("*({} *)(r10 - {}) = {value}\n", width_name(width), -at)
    }

    fn copy_slot(&mut self) -> String {
        let (from, to) = (self.slot(), self.slot());
        format!("r1 = *(u64 *)(r10 - {})\n*(u64 *)(r10 - {}) = r1\n", -from, -to)
    }

    fn arithmetic(&mut self) -> String {
        let (a, b) = (self.imm(), self.imm());
        let label = self.label();
        match self.r.below(4) {
            0 => format!("r9 += {a}\nr9 ^= {b}\n"),
            1 => format!("if r9 s> {a} goto {label}\nr9 += {b}\n{label}:\n"),
            2 => format!("if w9 & {a} goto {label}\nr9 ^= {b}\n{label}:\n"),
            _ => format!("r1 = r9\nw1 &= 0xff\nr1 <<= 32\nr9 += r1\nr9 += {b}\n"),
        }
    }

    /// The address of a slot goes out of the frame and comes back; a store after that is read through it.
    fn escape(&mut self) -> String {
        let label = self.label();
        let [out, back] = ESCAPING.map(|at| -at);
        let (slot, to) = (-self.slot(), -self.slot());
        let address = format!("r1 = r10\nr1 += -{slot}\n");
        let pass = |n: u32, at: i32| format!("r{n} = r10\nr{n} += -{at}\n");
        let store = match self.r.below(2) {
            0 => format!("*(u64 *)(r10 - {slot}) = r9\n"),
            _ => format!("*(u64 *)(r10 - {slot}) = {}\n", self.imm()),
        };
        let probe = format!("{}r2 = 8\ncall {PROBE}\n", pass(1, to)) + &self.reload(-to, 8);
        let tstamp = matches!(self.material.kind.name, "tc" | "act");
        match self.r.below(if tstamp { 4 } else { 3 }) {
            // As bytes that a queue copies: `map_push_elem`, `map_pop_elem`.
            0 => format!(
                "{address}*(u64 *)(r10 - {out}) = r1\n*(u64 *)(r10 - {back}) = 0\nr1 = addresses ll\n{}r3 = 2\ncall 87\n\
                 {store}r1 = addresses ll\n{}call 88\nr3 = *(u64 *)(r10 - {back})\n{probe}",
                pass(2, out),
                pass(2, back)
            ),
            // As a map value: `map_update_elem`, `map_lookup_elem`. It does not stay there, because maps are compared.
            1 => format!(
                "{address}*(u64 *)(r10 - {out}) = r1\n*(u32 *)(r10 - {back}) = 2\nr1 = hash ll\n{}{}r4 = 0\ncall 2\n\
                 {store}r1 = hash ll\n{}call 1\nif r0 == 0 goto {label}\nr3 = *(u64 *)(r0 + 0)\nr1 = 0\n\
                 *(u64 *)(r0 + 0) = r1\n{probe}{label}:\n",
                pass(2, back),
                pass(3, out),
                pass(2, back)
            ),
            // As a number in the frame.
            2 => format!(
                "{address}*(u64 *)(r10 - {out}) = r1\n{store}{}r2 = 8\n{}call {PROBE}\nr3 = *(u64 *)(r10 - {back})\n{probe}",
                pass(1, back),
                pass(3, out)
            ),
            // As a number that a context field gives back: `skb_set_tstamp`, `__sk_buff.tstamp`.
            _ => format!(
                "r1 = r6\nr2 = r10\nr2 += -{slot}\nr3 = 1\ncall 192\n{store}r3 = *(u64 *)(r6 + 152)\n{probe}\
                 r1 = r6\nr2 = 0\nr3 = 0\ncall 192\n"
            ),
        }
    }

    fn call_subprogram(&mut self) {
        let pointer = match self.r.below(3) {
            0 => format!("r2 = data + {} ll\n", 8 * self.r.below(u64::from(DATA_BYTES) / 8)),
            1 => format!("r2 = *(u64 *)(r10 - {})\n", -POINTER),
            _ => format!("r2 = r10\nr2 += {}\n", self.r.one_of(&SLOTS[4..])),
        };
        let number = if self.r.chance(2) { "r9".into() } else { self.imm().to_string() };
        let text = format!("r1 = r6\n{pointer}r3 = {number}\ncall {}\n", subprogram(1)) + &self.collect("r0");
        self.item(text);
        for slot in [SLOTS[4], SLOTS[5]] {
            let text = self.reload(slot, 8);
            self.item(text);
        }
    }

    /// A call with what goes before it and comes after it.
    fn around_call(&mut self, index: usize, call: &Call) -> Result<(), String> {
        let mut call = call.clone();
        let lowest = place_buffers(&mut call);
        self.frames[self.function] = self.frames[self.function].min(lowest);
        self.some_items(3);
        self.fill_buffers(&call);
        let again = self.r.chance(8).then(|| self.label());
        if let Some(label) = &again {
            self.fixed(format!("*(u64 *)(r10 - {}) = 0\n{label}:\n", -COUNTER));
        }
        let skip = self.r.chance(5).then(|| self.label());
        if let Some(label) = &skip {
            let bit = 1u32 << self.r.below(31);
            self.item(format!("if r9 & {bit} goto {label}\n"));
        }
        let held = self.hold(&call);
        self.item(held.before);
        let core = self.core(index, &call)?;
        self.push(core, false, BTreeSet::from([call.helper]));
        self.item(held.after);
        self.fixed(held.label.map_or(String::new(), |l| format!("{l}:\n")));
        if let Some(label) = skip {
            self.fixed(format!("{label}:\n"));
        }
        self.look_at_buffers(&call);
        if let Some(label) = again {
            let (place, times) = (format!("*(u64 *)(r10 - {})", -COUNTER), 2 + self.r.below(2));
            self.item(format!("r1 = {place}\nr1 += 1\n{place} = r1\nif r1 < {times} goto {label}\n"));
        }
        self.some_items(3);
        Ok(())
    }

    /// Stores of what buffers hold before the call: in random widths, now and then with a store before that is dead.
    fn fill_buffers(&mut self, call: &Call) {
        for argument in &call.arguments {
            let Argument::Buffer { offset, length, content } = argument else { continue };
            let bytes = content.clone().unwrap_or_else(|| (0..*length).map(|_| self.r.next() as u8).collect());
            if self.r.chance(4) && *length > 0 {
                let width = self.width(*length);
                self.item(format!("*({} *)(r10 - {}) = r9\n", width_name(width), -offset));
            }
            let mut at = 0;
            while at < bytes.len() {
                let left = bytes.len() - at;
                let width = match self.r.below(4) {
                    0 => self.width(left as u32) as usize,
                    _ => [8, 4, 2, 1].into_iter().find(|w| *w <= left).unwrap_or(1),
                };
                // Only what is aligned: the verifier wants that of frame accesses.
                let width = [8, 4, 2, 1].into_iter().find(|w| *w <= width && at % w == 0).unwrap_or(1);
                let mut word = [0; 8];
                word[..width].copy_from_slice(&bytes[at..at + width]);
                let number = u64::from_le_bytes(word);
                let place = format!("*({} *)(r10 - {})", width_name(width as u32), -(offset + at as i32));
                let text = match i32::try_from(number as i64) {
                    Ok(small) if self.r.below(3) > 0 => format!("{place} = {small}\n"),
                    _ => format!("r1 = {number} ll\n{place} = r1\n"),
                };
                self.item(text);
                at += width;
            }
        }
    }

    /// What the call left in its buffers.
    fn look_at_buffers(&mut self, call: &Call) {
        if !steady(call) {
            return;
        }
        for argument in &call.arguments {
            let Argument::Buffer { offset, length, .. } = argument else { continue };
            if *length == 0 {
                continue;
            }
            for _ in 0..1 + self.r.below(3) {
                let text = self.reload(*offset, *length);
                self.item(text);
            }
        }
    }

    /// Set-up, arguments, the call, its result, and what the recipe wants afterwards.
    fn core(&mut self, index: usize, call: &Call) -> Result<String, String> {
        let mut names = Symbols { lab: self.material.lab, call: index };
        let code = |text: &str, names: &mut Symbols<'_>| -> Result<String, String> {
            Ok(own_labels(&expand(&kernel_functions(text), call, names)?, index))
        };
        let mut text = String::new();
        let spill = uses(call, 9);
        if spill {
            let _ = writeln!(text, "*(u64 *)(r10 - {}) = r9", -SPILL);
        }
        text += &code(&call.setup, &mut names)?;
        // Numbers now and then go through the frame, which an optimizer should see through.
        let through = |a: &Argument, r: &mut Rng| match a {
            Argument::Number(n) if r.chance(5) => i32::try_from(*n).ok(),
            _ => None,
        };
        for (i, argument) in call.arguments.iter().enumerate() {
            match through(argument, self.r) {
                Some(n) => {
                    let at = -SLOTS[2];
                    let _ = writeln!(text, "*(u64 *)(r10 - {at}) = {n}\nr{} = *(u64 *)(r10 - {at})", i + 1);
                }
                None => {
                    let _ = writeln!(text, "{}", put(i + 1, argument, call, &mut names)?);
                }
            }
        }
        let _ = writeln!(text, "call {}", call.helper);
        if has_result(call) {
            text += "r7 = r0\n";
            if spill {
                let _ = writeln!(text, "r9 = *(u64 *)(r10 - {})", -SPILL);
            }
            text += &self.result(call);
        }
        text += &code(&call.after, &mut names)?;
        let _ = writeln!(text, "out{index}:");
        if spill {
            let _ = writeln!(text, "r9 = *(u64 *)(r10 - {})", -SPILL);
        }
        for (name, body) in &call.callbacks {
            let text = code(body, &mut names)?;
            self.callbacks.push(Callback { name: callback_name(index, name), text });
        }
        Ok(text)
    }

    /// Collects the result, which is in r7.
    fn result(&mut self, call: &Call) -> String {
        if !steady(call) {
            return String::new();
        }
        let label = self.label();
        let number = self.imm();
        if call.failure == Failure::Null {
            let value = match (call.helper, call.arguments.first()) {
                (1 | 195, Some(Argument::Map(map))) if VALUES.contains(&map.as_str()) => {
                    let width = self.width(8);
                    let place = format!("*({} *)(r7 + 0)", width_name(width));
                    format!("r1 = {place}\n") + &self.collect("r1") + &format!("{place} = {number}\n")
                }
                _ => String::new(),
            };
            return format!("if r7 == 0 goto {label}\nr9 += {number}\n{value}{label}:\n");
        }
        match self.r.below(4) {
            0 => format!("if w7 s< 0 goto {label}\nr9 += {number}\n{label}:\n"),
            1 => format!("if r7 == {} goto {label}\nr9 ^= {number}\n{label}:\n", self.r.below(4)),
            _ => self.collect("r7"),
        }
    }

    /// Something that is known, or was read, before the call and is used after it.
    fn hold(&mut self, call: &Call) -> Held {
        let in_register = !uses(call, 8);
        if !in_register {
            return self.hold_slot();
        }
        // What was read before a call that may change it is what a prover could get wrong.
        if compare::declared(call).is_none_or(|d| d.context) && self.r.chance(3) {
            return self.hold_field();
        }
        match self.r.below(7) {
            0 => self.hold_field(),
            1 if !compare::moves_packet(call) => self.hold_packet(),
            2 => self.hold_value(),
            3 => self.hold_frame_address(),
            4 => {
                let number = self.imm();
                let after = self.collect("r8");
                Held { before: format!("r8 = {number}\n"), after, label: None }
            }
            5 => self.hold_data(),
            _ => self.hold_slot(),
        }
    }

    /// A frame slot that is written before and read after; the callee has nothing to do with it, or has.
    fn hold_slot(&mut self) -> Held {
        let (slot, number) = (self.slot(), self.imm());
        let before = match self.r.below(3) {
            0 => format!("*(u64 *)(r10 - {}) = r9\n", -slot),
            1 => format!("*(u32 *)(r10 - {}) = {number}\n*(u32 *)(r10 - {}) = {number}\n", -slot, -slot - 4),
            _ => format!("*(u64 *)(r10 - {}) = {number}\n", -slot),
        };
        Held { before, after: self.reload(slot, 8), label: None }
    }

    fn hold_field(&mut self) -> Held {
        let Some(field) = self.field() else { return self.hold_slot() };
        let before = self.load_field("r8", field);
        let after = self.load_field("r1", field) + &self.collect("r1") + &self.collect("r8");
        Held { before, after, label: None }
    }

    fn hold_packet(&mut self) -> Held {
        let Packet::Direct { data, end } = self.material.kind.packet else { return self.hold_slot() };
        let label = self.label();
        let (width, at) = (self.width(8), self.r.below(u64::from(PACKET - 8)));
        let load = format!("r1 = *({} *)(r8 + {at})\n", width_name(width));
        let before = format!(
            "r8 = *(u32 *)(r6 + {data})\nr2 = *(u32 *)(r6 + {end})\nr1 = r8\nr1 += {PACKET}\nif r1 > r2 goto {label}\n{load}"
        ) + &self.collect("r1");
        Held { before, after: load + &self.collect("r1"), label: Some(label) }
    }

    fn hold_value(&mut self) -> Held {
        let label = self.label();
        let load = "r1 = *(u64 *)(r8 + 0)\n";
        let body = format!("r8 = r0\n{load}") + &self.collect("r1");
        let before = self.found(&body, &label);
        let store = if self.r.chance(2) { "*(u64 *)(r8 + 0) = r9\n" } else { "" };
        Held { before, after: load.to_owned() + &self.collect("r1") + store, label: Some(label) }
    }

    fn hold_data(&mut self) -> Held {
        let at = 8 * self.r.below(u64::from(DATA_BYTES) / 8);
        let load = "r1 = *(u64 *)(r8 + 0)\n";
        let before = format!("r8 = data + {at} ll\n{load}") + &self.collect("r1");
        Held { before, after: load.to_owned() + &self.collect("r1"), label: None }
    }

    fn hold_frame_address(&mut self) -> Held {
        let slot = self.slot();
        let number = self.imm();
        let before = format!("r8 = r10\nr8 += {slot}\n*(u64 *)(r8 + 0) = {number}\n");
        let after = match self.r.below(2) {
            0 => self.reload(slot, 8) + "*(u32 *)(r8 + 4) = 7\n",
            _ => String::from("r1 = *(u32 *)(r8 + 4)\n") + &self.collect("r1"),
        };
        Held { before, after, label: None }
    }
}

/// Code around a call that belongs together.
struct Held {
    before: String,
    after: String,
    /// Where `before` goes if it cannot hold anything: behind `after`.
    label: Option<String>,
}
