//! Versions of the kernel, and what came with them.

use std::fmt;
use std::str::FromStr;

/// A version of the kernel by its first two numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct KernelVersion {
    /// The first number.
    pub major: u16,
    /// The second.
    pub minor: u16,
}

impl KernelVersion {
    /// The oldest that results are made for unless something else is said.
    pub const OLDEST: KernelVersion = KernelVersion { major: 5, minor: 15 };
    /// From here on the verifier takes an element of an array for there whose key it knows to be in range
    /// (`can_elide_value_nullness` in kernel/bpf/verifier.c).
    pub const KNOWS_ELEMENTS: KernelVersion = KernelVersion { major: 6, minor: 14 };
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for KernelVersion {
    type Err = String;

    /// Reads `6.12`, and the beginning of `6.12.95-1`.
    fn from_str(text: &str) -> Result<KernelVersion, String> {
        let number = |text: Option<&str>| {
            let text = text?;
            let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            text[..end].parse().ok()
        };
        let mut parts = text.splitn(3, '.');
        match (number(parts.next()), number(parts.next())) {
            (Some(major), Some(minor)) => Ok(KernelVersion { major, minor }),
            _ => Err("a version of the kernel is two numbers: 5.15, 6.12".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered_by_number() {
        let v = |text: &str| text.parse::<KernelVersion>();
        assert_eq!(v("6.12.95-1"), Ok(KernelVersion { major: 6, minor: 12 }));
        assert!(v("5.15") < v("6.6") && v("6.6") < v("6.14"));
        for wrong in ["", "6", "six.one", "6.", ".6", "-5.1"] {
            assert!(v(wrong).is_err(), "{wrong}");
        }
        assert_eq!(KernelVersion::KNOWS_ELEMENTS.to_string(), "6.14");
    }
}
