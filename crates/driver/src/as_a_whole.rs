//! The object as users load it: all of its programs at once, by libbpf.
//!
//! The gate asks about each program by itself, so that one that this kernel refuses keeps no other from being judged. But
//! programs share maps, and some maps take programs of one type only; so what is accepted one by one may be refused
//! together. Of the original that is the user's affair, and is said. A result that is refused where the original is taken
//! is not written.

use std::time::{Duration, Instant};

use bpf_kernel::{KernelError, LoadOptions, LoadedObject, permitted};

use crate::options::Options;

/// What libbpf says of the two objects.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AsAWhole {
    /// It takes the result, or was not asked.
    Taken,
    /// It takes neither: why.
    NeitherTaken(String),
    /// It takes the original only: why not the result.
    Refused(String),
}

/// Asks libbpf about the result, and where it refuses that, about the original. A load takes about `takes`; without time for
/// two until `end`, nothing is asked.
pub(crate) fn ask(
    original: &[u8],
    result: &[u8],
    options: &Options,
    takes: Duration,
    end: Option<Instant>,
) -> AsAWhole {
    let is_time = end.is_none_or(|end| end.saturating_duration_since(Instant::now()) > 2 * takes);
    if !options.kernel || !is_time || permitted().require().is_err() {
        return AsAWhole::Taken;
    }
    compared(original, result, &|bytes| {
        let how = LoadOptions { program_type: options.program_type.clone(), only: None };
        match LoadedObject::load(bytes, &how) {
            Ok(_) => None,
            Err(KernelError::Load { reason } | KernelError::Open { reason }) => Some(reason.trim().to_owned()),
            Err(other) => Some(other.to_string()),
        }
    })
}

/// `refusal`: why an object is refused, if it is.
fn compared(original: &[u8], result: &[u8], refusal: &dyn Fn(&[u8]) -> Option<String>) -> AsAWhole {
    match refusal(result) {
        None => AsAWhole::Taken,
        Some(_) if original == result => AsAWhole::Taken,
        Some(why) => match refusal(original) {
            Some(why) => AsAWhole::NeitherTaken(why),
            // What was refused once for want of memory, say, is taken when asked again.
            None if refusal(result).is_none() => AsAWhole::Taken,
            None => AsAWhole::Refused(why),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_became_worse_is_refused() {
        let said = |refused: &'static [&'static [u8]]| {
            compared(b"old", b"new", &|bytes| refused.contains(&bytes).then(|| "no".to_owned()))
        };
        assert_eq!(said(&[]), AsAWhole::Taken);
        assert_eq!(said(&[b"old"]), AsAWhole::Taken);
        assert_eq!(said(&[b"old", b"new"]), AsAWhole::NeitherTaken("no".into()));
        assert_eq!(said(&[b"new"]), AsAWhole::Refused("no".into()));
    }
}
