//! Random programs that read and write shared memory and say in a few bits what they have seen.
//!
//! One idea: a program keeps what it reads in *values* (registers and slots of its frame), does with them what people
//! do (halves are put together, sums stored, sequence numbers checked again), and at its end asks the values questions
//! whose answers another thread's stores decide: are the halves equal, is one less than the other? The answers are its
//! result, and it counts results in an array map by an atomic addition.

use std::fmt::Write;

use bpf_platform::maps::{self, MMAPABLE};
use bpf_testgen::assembly::{self, AssemblyError, Map, Surroundings, Variable};
use bpf_testgen::random::Rng;

use super::script::{OWN, WORDS};

/// The shared memory by name: a variable, or a map.
pub const SHARED: &str = "shared";
/// The map of maps around it, where there is one.
pub const OUTER: &str = "outer";
/// The map in which results are counted.
pub const RESULTS: &str = "results";
/// How many results there are.
pub const RESULT_COUNT: u32 = 128;
/// The section of a program. Not `xdp`: there each test run of several repetitions waits some 20 ms for the kernel to patch
/// its dispatcher (`bpf_prog_change_xdp`, net/core/filter.c).
const SECTION: &str = "tc";
/// Values a program has.
const VALUES: u64 = 5;
/// Questions it asks at its end at most; their answers are the low bits of its result.
const QUESTIONS: u64 = 6;

/// How a program comes to the shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// A variable in `.bss`.
    Bss,
    /// A variable in `.data`.
    Data,
    /// An element of an array map.
    Element,
    /// A variable, handed to a static subprogram.
    Argument,
    /// An element of an inner map.
    Inner,
}

/// A program as text, with what there is around it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// How it comes to the shared memory.
    pub home: Home,
    /// The code, line by line.
    pub lines: Vec<String>,
}

impl Source {
    /// A random program.
    pub fn random(r: &mut Rng) -> Source {
        let home = r.one_of(&[Home::Bss, Home::Bss, Home::Data, Home::Element, Home::Argument, Home::Inner]);
        let mut w = Writer { r, lines: vec![], labels: 0 };
        w.beginning(home);
        let statements = 2 + w.r.below(5);
        (0..statements).for_each(|_| w.statement(2));
        w.end();
        Source { home, lines: w.lines }
    }

    /// The same with other code.
    pub fn with(&self, lines: Vec<String>) -> Source {
        Source { home: self.home, lines }
    }

    /// The code as text.
    pub fn listing(&self) -> String {
        self.lines.join("\n") + "\n"
    }

    /// The header lines that a case of `tests/equivalence` needs for it.
    pub fn header(&self) -> String {
        let bytes = 8 * WORDS;
        let shared = match self.home {
            Home::Bss | Home::Argument => format!("; data: {SHARED} .bss {bytes}\n"),
            Home::Data => format!("; data: {SHARED} .data {bytes}\n"),
            Home::Element => format!("; map: {SHARED} array 4 {bytes} 1 flags {MMAPABLE}\n"),
            Home::Inner => format!(
                "; map: {SHARED} array 4 {bytes} 1 flags {MMAPABLE}\n; map: {OUTER} array_of_maps 4 4 1 of {SHARED}\n"
            ),
        };
        format!("; section: {SECTION}\n{shared}; map: {RESULTS} array 4 8 {RESULT_COUNT}\n")
    }

    /// Its object.
    ///
    /// # Errors
    /// [`AssemblyError`]: only of programs that were changed by hand.
    pub fn object(&self) -> Result<Vec<u8>, AssemblyError> {
        let array = |name: &str, value_size, max_entries, flags| Map {
            name: name.into(),
            map_type: maps::ARRAY,
            key_size: 4,
            value_size,
            max_entries,
            flags,
            ..Map::default()
        };
        let bytes = 8 * WORDS as u32;
        let mut around = Surroundings { section: SECTION.into(), ..Surroundings::default() };
        let variable = |section: &str, value| Variable {
            name: SHARED.into(),
            section: section.into(),
            size: bytes,
            value,
            pointer: None,
        };
        match self.home {
            Home::Bss | Home::Argument => around.variables.push(variable(".bss", vec![])),
            Home::Data => around.variables.push(variable(".data", vec![1])),
            Home::Element | Home::Inner => around.maps.push(array(SHARED, bytes, 1, MMAPABLE)),
        }
        if self.home == Home::Inner {
            let outer = array(OUTER, 4, 1, 0);
            around.maps.push(Map { map_type: maps::ARRAY_OF_MAPS, inner: Some(SHARED.into()), ..outer });
        }
        around.maps.push(array(RESULTS, 8, RESULT_COUNT, 0));
        let functions = assembly::functions(&self.listing(), &around.section)?;
        assembly::object(&around, &functions)
    }
}

/// A place in shared memory: how many bytes, where.
#[derive(Clone, Copy)]
struct Place {
    bytes: u64,
    at: u64,
}

impl Place {
    fn text(self) -> String {
        format!("*(u{} *)(r6 + {})", 8 * self.bytes, self.at)
    }

    fn part(self, bytes: u64, n: u64) -> Place {
        Place { bytes, at: self.at + n * bytes }
    }
}

struct Writer<'a> {
    r: &'a mut Rng,
    lines: Vec<String>,
    labels: usize,
}

/// Where a program keeps value `v`.
fn held_in(v: u64) -> String {
    match v {
        0 => "r7".into(),
        1 => "r8".into(),
        _ => format!("*(u64 *)(r10 - {})", 8 * v),
    }
}

impl Writer<'_> {
    fn line(&mut self, text: impl Into<String>) {
        self.lines.push(text.into());
    }

    fn all(&mut self, lines: &[&str]) {
        lines.iter().for_each(|l| self.line(*l));
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!("l{}", self.labels)
    }

    /// Looks up element 0 of the map in r1; its address is in r6.
    fn look_up(&mut self) {
        self.all(&["r2 = r10", "r2 += -4", "call bpf_map_lookup_elem", "if r0 == 0 goto nothing", "r6 = r0"]);
    }

    /// r6 is the shared memory, all values and the result are 0.
    fn beginning(&mut self, home: Home) {
        match home {
            Home::Bss | Home::Data => self.line(format!("r6 = {SHARED} ll")),
            Home::Element => {
                self.line("*(u32 *)(r10 - 4) = 0");
                self.line(format!("r1 = {SHARED} ll"));
                self.look_up();
            }
            Home::Inner => {
                self.line("*(u32 *)(r10 - 4) = 0");
                self.line(format!("r1 = {OUTER} ll"));
                self.look_up();
                self.line("r1 = r6");
                self.look_up();
            }
            Home::Argument => {
                self.line(format!("r1 = {SHARED} ll"));
                self.all(&["call work", "exit", "static work(ptr) u64:", "r6 = r1"]);
            }
        }
        self.line("r9 = 0");
        (0..VALUES).for_each(|v| self.put(v, "0"));
    }

    fn get(&mut self, v: u64, register: &str) {
        self.line(format!("{register} = {}", held_in(v)));
    }

    fn put(&mut self, v: u64, register: &str) {
        self.line(format!("{} = {register}", held_in(v)));
    }

    fn value(&mut self) -> u64 {
        self.r.below(VALUES)
    }

    /// A place that the other thread writes; often a whole word, and often one of the first.
    fn theirs(&mut self) -> Place {
        let word = self.r.below(OWN as u64).min(self.r.below(OWN as u64));
        self.within(word)
    }

    fn own(&mut self) -> Place {
        let word = OWN as u64 + self.r.below((WORDS - OWN) as u64).min(self.r.below((WORDS - OWN) as u64));
        self.within(word)
    }

    fn within(&mut self, word: u64) -> Place {
        let bytes = self.r.one_of(&[8, 8, 8, 4, 4, 2, 1]);
        Place { bytes, at: 8 * word + bytes * self.r.below(8 / bytes) }
    }

    fn place(&mut self) -> Place {
        if self.r.chance(4) { self.own() } else { self.theirs() }
    }

    fn statement(&mut self, depth: u64) {
        match self.r.below(if depth > 0 { 16 } else { 12 }) {
            0..=2 => self.read(),
            3 => self.read_twice(),
            4 => self.read_in_parts(),
            5 | 6 => self.write(),
            7 => self.write_two(),
            8 => self.write_over_a_part(),
            9 => self.bump(),
            10 => self.compute(),
            11 => self.call(),
            12 => self.only_if(depth),
            13 | 14 => self.seqlock(depth),
            _ => self.wait_for_a_bit(),
        }
    }

    fn read(&mut self) {
        let (place, v) = (self.place(), self.value());
        self.read_to(place, v);
    }

    fn read_to(&mut self, place: Place, v: u64) {
        match v {
            0 => self.line(format!("r7 = {}", place.text())),
            1 => self.line(format!("r8 = {}", place.text())),
            _ => {
                self.line(format!("r1 = {}", place.text()));
                self.put(v, "r1");
            }
        }
    }

    /// The same place, or a part of it, once more.
    fn read_twice(&mut self) {
        let (place, v, w) = (self.place(), self.value(), self.value());
        self.read_to(place, v);
        if self.r.chance(2) {
            self.compute_of(v);
        }
        let again = if self.r.chance(4) && place.bytes > 1 { place.part(place.bytes / 2, 0) } else { place };
        self.read_to(again, w);
    }

    /// Parts of a word, put together.
    fn read_in_parts(&mut self) {
        let word = self.r.below(OWN as u64);
        let bytes = self.r.one_of(&[4, 4, 2, 1]);
        let whole = Place { bytes: 8, at: 8 * word };
        let count = if bytes == 4 { 2 } else { 2 * self.r.one_of(&[1, 1, 2]) };
        let falling = self.r.chance(2);
        self.line("r3 = 0");
        for n in 0..count {
            let n = if falling { count - 1 - n } else { n };
            self.line(format!("r1 = {}", whole.part(bytes, n).text()));
            if n > 0 {
                self.line(format!("r1 <<= {}", 8 * bytes * n));
            }
            self.line("r3 |= r1");
        }
        let v = self.value();
        self.put(v, "r3");
    }

    /// Something to store, in r1.
    fn something(&mut self) {
        let (v, w) = (self.value(), self.value());
        match self.r.below(8) {
            0 => {
                let n = self.r.one_of(&[0, 1, 0x0101_0101, 0x7fff_ffff]);
                self.line(format!("r1 = {n}"));
            }
            1 => {
                self.get(v, "r1");
                self.line("r1 += 1");
            }
            2 | 3 => {
                self.get(v, "r1");
                self.all(&["r2 = r1", "r2 <<= 32", "r1 <<= 32", "r1 >>= 32", "r1 |= r2"]);
            }
            4 => {
                self.get(v, "r1");
                self.get(w, "r2");
                self.line("r1 += r2");
            }
            _ => self.get(v, "r1"),
        }
    }

    fn write(&mut self) {
        let place = self.own();
        if self.r.chance(4) {
            let n = self.r.below(4);
            self.line(format!("{} = {n}", place.text()));
        } else {
            self.something();
            self.line(format!("{} = r1", place.text()));
        }
    }

    /// Two stores of one thing, whose order others see; neighbours, or the halves of a word.
    fn write_two(&mut self) {
        let place = self.own();
        self.something();
        let second = match self.r.below(3) {
            0 if place.bytes > 1 => {
                let half = place.part(place.bytes / 2, 0);
                self.line(format!("{} = r1", half.text()));
                Place { at: half.at + half.bytes, ..half }
            }
            n => {
                self.line(format!("{} = r1", place.text()));
                let at = if n == 1 { place.at ^ place.bytes } else { self.own().at / place.bytes * place.bytes };
                Place { at: at.clamp(8 * OWN as u64, 8 * WORDS as u64 - place.bytes), ..place }
            }
        };
        if self.r.chance(3) {
            self.line("r1 += 1");
        }
        self.line(format!("{} = r1", second.text()));
    }

    fn write_over_a_part(&mut self) {
        let word = self.own().at / 8 * 8;
        let bytes = self.r.one_of(&[8, 4, 4]);
        let place = Place { bytes, at: word };
        self.something();
        self.line(format!("{} = r1", place.text()));
        let v = self.value();
        self.get(v, "r2");
        let n = self.r.below(2);
        let part = if self.r.chance(4) { place } else { place.part(bytes / 2, n) };
        self.line(format!("{} = r2", part.text()));
    }

    /// Counts in shared memory.
    fn bump(&mut self) {
        let word = self.own().at / 8 * 8;
        let bytes = self.r.one_of(&[8, 4]);
        let place = Place { bytes, at: word };
        let v = self.value();
        let inner = format!("u{} *)(r6 + {word})", 8 * bytes);
        let register = if bytes == 8 { "r1" } else { "w1" };
        match self.r.below(5) {
            0 | 1 => {
                self.line(format!("r2 = {}", place.text()));
                let by = 1 + self.r.below(2);
                self.line(format!("r2 += {by}"));
                self.line(format!("{} = r2", place.text()));
            }
            2 => {
                self.line("r1 = 1");
                self.line(format!("lock *({inner} += {register}"));
            }
            3 => {
                self.line("r1 = 1");
                self.line(format!("r1 = atomic_fetch_add(({inner}, r1)").replace("(u32 *)", "(u64 *)"));
                self.put(v, "r1");
            }
            _ => {
                self.get(v, "r1");
                self.line(format!("r1 = xchg_64(r6 + {word}, r1)"));
                self.put(v, "r1");
            }
        }
    }

    fn compute(&mut self) {
        let v = self.value();
        self.compute_of(v);
    }

    fn compute_of(&mut self, v: u64) {
        self.get(v, "r1");
        match self.r.below(6) {
            0 => self.all(&["r1 <<= 32", "r1 >>= 32"]),
            1 => self.line("r1 >>= 32"),
            2 => self.line("r1 += 1"),
            3 => self.line("r1 &= 255"),
            4 => self.all(&["r1 += 5", "r1 += -5"]),
            _ => self.all(&["r2 = r1", "r1 += r2", "r1 -= r2"]),
        }
        let w = if self.r.chance(2) { v } else { self.value() };
        self.put(w, "r1");
    }

    /// A call that touches nothing, of whose result nobody but a person knows what it adds.
    fn call(&mut self) {
        let (call, bits) = self.r.one_of(&[("ktime_get_ns", 63), ("get_smp_processor_id", 31)]);
        self.line(format!("call bpf_{call}"));
        self.line(format!("r0 >>= {bits}"));
        self.line("r9 += r0");
    }

    fn only_if(&mut self, depth: u64) {
        let (v, label) = (self.value(), self.label());
        self.get(v, "r1");
        if self.r.chance(2) {
            self.line("r1 &= 1");
        }
        let condition = self.r.one_of(&["== 0", "!= 0", "s> 4"]);
        self.line(format!("if r1 {condition} goto {label}"));
        for _ in 0..1 + self.r.below(2) {
            self.statement(depth - 1);
        }
        self.line(format!("{label}:"));
    }

    /// A reader of a seqlock: gives up when the writer is at work, or was meanwhile.
    fn seqlock(&mut self, depth: u64) {
        let bytes = self.r.one_of(&[8, 4]);
        let number = Place { bytes, at: 0 };
        let v = self.value();
        self.read_to(number, v);
        self.get(v, "r1");
        self.all(&["r1 &= 1", "if r1 != 0 goto out"]);
        for _ in 0..1 + self.r.below(2) {
            let word = 1 + self.r.below(OWN as u64 - 1);
            let place = self.within(word);
            let w = (v + 1 + self.r.below(VALUES - 1)) % VALUES;
            self.read_to(place, w);
        }
        if depth > 0 && self.r.chance(3) {
            self.call();
        }
        self.line(format!("r1 = {}", number.text()));
        self.get(v, "r2");
        self.line("if r1 != r2 goto out");
        self.line("r9 |= 32");
    }

    /// A loop that waits, for a while, until the other thread sets a bit.
    fn wait_for_a_bit(&mut self) {
        let (place, again, over) = (self.theirs(), self.label(), self.label());
        self.line("r5 = 0");
        self.line(format!("{again}:"));
        self.line(format!("r1 = {}", place.text()));
        let v = self.value();
        if self.r.chance(2) {
            self.put(v, "r1");
        }
        self.line("r1 &= 1");
        self.line(format!("if r1 != 0 goto {over}"));
        self.line("r5 += 1");
        self.line(format!("if r5 < 3 goto {again}"));
        self.line(format!("{over}:"));
    }

    /// Asks the values, counts the answer.
    fn end(&mut self) {
        for bit in 0..2 + self.r.below(QUESTIONS - 2) {
            self.question(1 << bit);
        }
        self.all(&["r9 |= 64", "out:", "r9 &= 127", "*(u32 *)(r10 - 4) = r9", "r2 = r10", "r2 += -4"]);
        self.line(format!("r1 = {RESULTS} ll"));
        self.all(&["call bpf_map_lookup_elem", "if r0 == 0 goto nothing", "r1 = 1", "lock *(u64 *)(r0 + 0) += r1"]);
        self.all(&["r0 = r9", "exit", "nothing:", "r0 = 0", "exit"]);
    }

    fn question(&mut self, bit: u64) {
        let (v, label) = (self.value(), self.label());
        self.get(v, "r1");
        match self.r.below(8) {
            0 | 1 => self.all(&["r2 = r1", "r2 >>= 32", "r1 <<= 32", "r1 >>= 32"]),
            2 => self.all(&["r2 = r1", "r2 >>= 16", "r2 &= 65535", "r1 &= 65535"]),
            3 => self.all(&["r2 = r1", "r2 |= 1"]),
            4 => {
                let w = self.value();
                self.get(w, "r2");
                self.line("r2 += 1");
            }
            _ => {
                let w = self.value();
                self.get(w, "r2");
            }
        }
        let condition = self.r.one_of(&["==", "<", "<=", "=="]);
        self.line(format!("if r1 {condition} r2 goto {label}"));
        self.line(format!("r9 |= {bit}"));
        self.line(format!("{label}:"));
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = self.header();
        for line in &self.lines {
            let indent = if line.ends_with(':') { "" } else { "    " };
            let _ = writeln!(text, "{indent}{line}");
        }
        f.write_str(&text)
    }
}
