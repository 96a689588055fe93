//! Names of functions.

use super::hook::EbpfError;
use super::symbols::is_symbol;

/// What a function may be called in C.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FunctionName(String);

/// Words that C has taken (C23, 6.4.1), but those that begin with an underscore: these are reserved altogether (6.4.2.1).
const KEYWORDS: [&str; 46] = [
    "alignas",
    "alignof",
    "auto",
    "bool",
    "break",
    "case",
    "char",
    "const",
    "constexpr",
    "continue",
    "default",
    "do",
    "double",
    "else",
    "enum",
    "extern",
    "false",
    "float",
    "for",
    "goto",
    "if",
    "inline",
    "int",
    "long",
    "nullptr",
    "register",
    "restrict",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "static_assert",
    "struct",
    "switch",
    "thread_local",
    "true",
    "typedef",
    "typeof",
    "typeof_unqual",
    "union",
    "unsigned",
    "void",
    "volatile",
    "while",
    "asm",
];

/// Functions of which compilers know the arguments, or that they do not return: what stands behind a call would go.
const OTHERS: [&str; 6] = ["main", "exit", "abort", "quick_exit", "longjmp", "thrd_exit"];

/// The kernel takes shorter names only (`KSYM_NAME_LEN`).
const LONGEST_NAME: usize = 255;

impl FunctionName {
    /// A name for a function.
    ///
    /// # Errors
    /// If no function of C may be called so.
    pub fn new(name: &str) -> Result<FunctionName, EbpfError> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let wrong = if !name.chars().all(is_word) || !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            "no name of a function in C"
        } else if name.starts_with('_') {
            "names that begin with an underscore are those of compilers and libraries"
        } else if KEYWORDS.contains(&name) {
            "a word of C"
        } else if OTHERS.contains(&name) {
            "C has another function that is called so"
        } else if is_symbol(name) {
            "something else in an object is called so"
        } else if name.starts_with("bpf_") {
            "names that begin with bpf_ are the kernel's"
        } else if name.len() > LONGEST_NAME {
            "longer than the kernel takes names"
        } else {
            return Ok(FunctionName(name.to_owned()));
        };
        Err(EbpfError::Unsupported(format!("{name:.40}: {wrong}")))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_functions_of_c_may_have() {
        for good in ["filter", "x_", "is_dns2", "x0", "slots", "word_0", "bitmaps_0"] {
            assert!(FunctionName::new(good).is_ok(), "{good}");
        }
        let long = "x".repeat(256);
        let of_c = ["while", "thread_local", "_Bool", "_x", "__x", "_", "main", "exit", "abort"];
        let taken = ["bitmap_0", "slots_17", "displacements_1", "word0_0", "license"];
        let wrong = ["", "2x", "a-b", "a b", "bpf_skb_load_bytes", "\u{e4}", "a\n", &long];
        for bad in of_c.into_iter().chain(taken).chain(wrong) {
            assert!(FunctionName::new(bad).is_err(), "{bad}");
        }
    }
}
