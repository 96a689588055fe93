//! The kernel's word on a program before and after, as one phrase.

use std::fmt::Write;

use bpf_driver::KernelVerdict;

/// The verdict on the result, beside that on the original where they differ.
pub fn phrase(before: Option<&KernelVerdict>, after: Option<&KernelVerdict>) -> Option<String> {
    let after = after.or(before)?;
    // What was not judged was not refused.
    if let Some(reason) = after.reason.as_ref().filter(|_| !after.judged) {
        return Some(reason.clone());
    }
    let mut text = if after.accepted { "accepted".to_owned() } else { "rejected".to_owned() };
    match (before.and_then(|b| b.processed), after.processed) {
        (Some(b), Some(a)) => {
            let _ = write!(text, " (verified insns {b} -> {a})");
        }
        (None, Some(a)) => {
            let _ = write!(text, " (verified insns {a})");
        }
        _ => {}
    }
    if after.accepted {
        if let Some(reason) = before.and_then(|b| b.reason.as_ref()) {
            let _ = write!(text, ", while the original was refused: {reason}");
        }
    } else {
        if before.is_some_and(|b| !b.accepted) {
            text.push_str(", as was the original");
        }
        if let Some(reason) = &after.reason {
            let _ = write!(text, ": {reason}");
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(accepted: bool, processed: u64, reason: Option<&str>) -> KernelVerdict {
        KernelVerdict {
            judged: true,
            accepted,
            processed: Some(processed),
            reason: reason.map(str::to_owned),
            ..KernelVerdict::default()
        }
    }

    #[test]
    fn the_kernels_verdict_is_one_phrase() {
        let (good, bad) = (verdict(true, 40, None), verdict(false, 7, Some("R0 !read_ok")));
        assert_eq!(phrase(None, None), None);
        assert_eq!(
            phrase(Some(&verdict(true, 45, None)), Some(&good)).as_deref(),
            Some("accepted (verified insns 45 -> 40)")
        );
        assert_eq!(
            phrase(Some(&bad), Some(&bad)).as_deref(),
            Some("rejected (verified insns 7 -> 7), as was the original: R0 !read_ok")
        );
        assert_eq!(
            phrase(Some(&bad), Some(&good)).as_deref(),
            Some("accepted (verified insns 7 -> 40), while the original was refused: R0 !read_ok")
        );
        let late = KernelVerdict { judged: false, processed: None, ..verdict(false, 0, Some("not judged: time")) };
        assert_eq!(phrase(Some(&late), Some(&late)).as_deref(), Some("not judged: time"));
    }
}
