//! Words and numbers of a listing, and what may be wrong with them.

use bpf_isa::ParseError;
use thiserror::Error;

/// Why there is no object.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AssemblyError {
    /// The listing of a function.
    #[error("function {function}: {source}")]
    Listing {
        /// Which.
        function: String,
        /// What the parser says; lines count within the function.
        source: ParseError,
    },
    /// A name that nothing has.
    #[error("function {function}: nothing is called `{name}`")]
    Unknown {
        /// Where it is used.
        function: String,
        /// The name.
        name: String,
    },
    /// A word that should have been something else.
    #[error("`{text}` is no {expected}")]
    Syntax {
        /// What stands there.
        text: String,
        /// What should.
        expected: &'static str,
    },
}

pub(super) fn syntax(text: impl Into<String>, expected: &'static str) -> AssemblyError {
    AssemblyError::Syntax { text: text.into(), expected }
}

pub(super) fn number(text: &str) -> Result<u32, AssemblyError> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| syntax(text, "number"))
}

/// Bytes from hexadecimal digits.
///
/// # Errors
/// What is no such text.
pub fn hex(text: &str) -> Result<Vec<u8>, AssemblyError> {
    let digits: Vec<u32> =
        text.chars().map(|c| c.to_digit(16)).collect::<Option<_>>().ok_or_else(|| syntax(text, "hex"))?;
    if digits.len() % 2 == 1 {
        return Err(syntax(text, "whole number of bytes"));
    }
    Ok(digits.chunks(2).map(|d| (d[0] << 4 | d[1]) as u8).collect())
}
