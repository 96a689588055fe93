//! Random C programs for BPF: what people write, in strange combinations.
//!
//! One idea: a program is a tree of statements, each of which is right wherever the others are left out: all variables
//! are there from the beginning, and no statement leaves a state that another one needs. So a program that shows a
//! difference is shrunk by leaving statements out ([`shrink`](crate::shrink()) over their numbers).
//!
//! At the end everything a program computed is mixed into its result and into an array map. Nothing depends on clocks,
//! random numbers or addresses; where an address has to stand in memory that others see, it is overwritten again.

mod clang;
mod statements;
mod tree;

use crate::random::Rng;

use tree::{Function, text};

pub use clang::{Clang, Settings};
pub use tree::Hook;

/// What every program begins with.
const HEADER: &str = include_str!("c/header.h");

/// A program in C.
#[derive(Clone, Debug)]
pub struct Program {
    /// Where it runs.
    pub hook: Hook,
    functions: Vec<Function>,
    statements: usize,
}

/// Maps by the name under which statements use them. `m_hash` has `BPF_F_ZERO_SEED`: the order in which a callback sees
/// elements would else be another in each object.
const MAPS: [(&str, &str); 13] = [
    ("m_out", "__uint(type, 2); __type(key, u32); __type(value, u64); __uint(max_entries, 4);"),
    ("m_array", "__uint(type, 2); __type(key, u32); __type(value, struct V); __uint(max_entries, 4);"),
    (
        "m_hash",
        "__uint(type, 1); __type(key, u32); __type(value, struct V); __uint(max_entries, 8); __uint(map_flags, 64);",
    ),
    ("m_lru", "__uint(type, 9); __type(key, u32); __type(value, u64); __uint(max_entries, 64);"),
    ("m_percpu", "__uint(type, 6); __type(key, u32); __type(value, struct V); __uint(max_entries, 4);"),
    ("m_queue", "__uint(type, 22); __type(value, u64); __uint(max_entries, 16);"),
    ("m_stack", "__uint(type, 23); __type(value, u64); __uint(max_entries, 16);"),
    ("m_ring", "__uint(type, 27); __uint(max_entries, 4096);"),
    ("m_locked", "__uint(type, 2); __type(key, u32); __type(value, struct L); __uint(max_entries, 2);"),
    ("m_timer", "__uint(type, 2); __type(key, u32); __type(value, struct T); __uint(max_entries, 2);"),
    ("m_scratch", "__uint(type, 2); __type(key, u32); __type(value, u64); __uint(max_entries, 2);"),
    ("m_calls", "__uint(type, 3); __uint(key_size, 4); __uint(value_size, 4); __uint(max_entries, 2);"),
    ("m_lpm", "__uint(type, 11); __type(key, u64); __type(value, u64); __uint(max_entries, 8); __uint(map_flags, 1);"),
];

/// Global variables likewise.
const GLOBALS: [(&str, &str); 6] = [
    ("g_data", "u64 g_data = 0x1234;"),
    ("g_bss", "u32 g_bss[8];"),
    ("g_flag", "volatile u32 g_flag;"),
    ("g_struct", "struct V g_struct = { .x = 1, .seq = 2 };"),
    ("g_config", "const volatile u32 g_config = 3;"),
    ("g_table", "static const u16 g_table[8] = { 3, 1, 4, 1, 5, 9, 2, 6 };"),
];

impl Program {
    /// A random program.
    pub fn random(r: &mut Rng) -> Program {
        let hook = r.one_of(&Hook::ALL);
        let mut writer = statements::Writer::new(r, hook);
        let functions = writer.functions();
        let statements = writer.count;
        Program { hook, functions, statements }
    }

    /// How many statements there are.
    pub fn statements(&self) -> usize {
        self.statements
    }

    /// The source with the statements of these numbers only; one inside another goes with it.
    pub fn source(&self, kept: &[usize]) -> String {
        let mut keep = vec![false; self.statements];
        kept.iter().for_each(|n| keep[*n] = true);
        let mut code = String::new();
        // Functions that nobody calls are left out, so that they need not be right for this kernel.
        let main = self.functions.iter().rev().map(|f| (f.name, text(f, &keep)));
        let mut wanted: Vec<String> = vec![];
        for (name, body) in main {
            if name == "generated" || wanted.iter().any(|w| w.contains(name)) {
                wanted.push(body);
            }
        }
        for body in wanted.iter().rev() {
            code += body;
        }
        let used = |name: &str| code.contains(name);
        let mut source = String::from(HEADER);
        for (name, members) in MAPS.iter().filter(|(name, _)| used(name)) {
            source += &format!("struct {{ {members} }} {name} SEC(\".maps\");\n");
        }
        for (_, declaration) in GLOBALS.iter().filter(|(name, _)| used(name)) {
            source += &format!("{declaration}\n");
        }
        source + "char _license[] SEC(\"license\") = \"GPL\";\n" + &code
    }

    /// The whole source.
    pub fn whole(&self) -> String {
        self.source(&(0..self.statements).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_programs_and_statements_can_be_left_out() {
        for n in 0..50 {
            let [a, b] = [0, 1].map(|_| Program::random(&mut Rng::of(1, n)));
            assert_eq!(a.whole(), b.whole());
            assert!(a.statements() > 0);
            assert!(a.source(&[]).len() < a.whole().len());
        }
    }
}
