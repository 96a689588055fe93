//! Where the kernel's functions are, as far as calls in translated code name them.

use std::{collections::HashMap, sync::OnceLock};

use crate::ways::Form;

/// The base of the distances in calls of helpers (`BPF_CALL_IMM` in linux/filter.h).
const BASE: &str = "__bpf_call_base";
/// How the names of functions begin that implement helpers.
const HELPER: &str = "bpf_";

impl Form {
    /// Whether it calls the function itself that implements the helper of this name, whatever the verifier believes of its
    /// arguments. Not where the kernel does not tell addresses.
    pub fn is_helper(&self, name: &str) -> bool {
        let Form::Code(code) = self else { return false };
        let [call] = code[..] else { return false };
        let [.., a, b, c, d] = call;
        let symbols = symbols();
        let function = symbols.get(format!("{HELPER}{name}").as_str());
        let distance = function.zip(symbols.get(BASE)).map(|(to, base)| to.wrapping_sub(*base) as i32);
        self.is_one_call() && distance == Some(i32::from_le_bytes([a, b, c, d]))
    }
}

/// The addresses of functions by name; empty where the kernel hides them. Of namesakes, none.
fn symbols() -> &'static HashMap<String, u64> {
    static ALL: OnceLock<HashMap<String, u64>> = OnceLock::new();
    ALL.get_or_init(|| parse(&std::fs::read_to_string("/proc/kallsyms").unwrap_or_default()))
}

/// Lines of an address, a letter, and a name; of modules with their name behind.
fn parse(text: &str) -> HashMap<String, u64> {
    let mut all: HashMap<String, Option<u64>> = HashMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(address), Some(_), Some(name), None) = (words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        if name == BASE || name.starts_with(HELPER) {
            let address = u64::from_str_radix(address, 16).ok().filter(|address| *address != 0);
            all.entry(name.to_owned()).and_modify(|known| *known = None).or_insert(address);
        }
    }
    all.into_iter().filter_map(|(name, address)| Some((name, address?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_functions_of_one_name_and_a_known_address_count() {
        let text = "ffffffff81000000 T __bpf_call_base\nffffffff81000100 T bpf_one\n0000000000000000 T bpf_hidden\n\
                    ffffffff81000200 t bpf_two\nffffffff81000300 t bpf_two\nffffffff81000400 t bpf_of\t[module]\n";
        let mut names: Vec<String> = parse(text).into_keys().collect();
        names.sort_unstable();
        assert_eq!(names, ["__bpf_call_base", "bpf_one"]);
    }
}
