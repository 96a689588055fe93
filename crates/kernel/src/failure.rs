//! A load that failed: whose fault is it, the program's or the place's?
//!
//! libbpf says why in words only, so its words are what there is to go by.

use std::io;

use crate::{LoadVerdict, VerifierStats, stats};

/// How much of a rejection's log is kept.
const LOG_TAIL: usize = 64 << 10;

/// Why a load failed.
pub(crate) struct Failure {
    pub(crate) error: io::Error,
    /// libbpf's warnings.
    pub(crate) messages: String,
}

impl Failure {
    pub(crate) fn reason(&self) -> String {
        if self.messages.is_empty() { self.error.to_string() } else { telling(&self.messages) }
    }

    /// Whether it is this process or machine that lacks something.
    pub(crate) fn is_for_want_of_means(&self) -> bool {
        self.error.raw_os_error().is_some_and(is_of_means) || speaks_of_means(&self.messages)
    }

    /// Did libbpf get as far as giving the program to the kernel?
    pub(crate) fn is_of_the_kernel(&self, program: &str) -> bool {
        self.messages.contains(&format!("prog '{program}': BPF program load failed"))
    }

    /// libbpf gave up before the kernel saw the program: is it this kernel that lacks something, or the object?
    pub(crate) fn blames_the_place(&self) -> LoadVerdict {
        /// What libbpf says when BTF, an attach target or a kernel type is missing.
        const KERNEL_LACKS: [&str; 5] =
            ["kernel BTF", "vmlinux BTF", "BTF is required", "failed to prepare load attributes", "isn't supported"];
        const ESRCH: i32 = 3;
        const EOPNOTSUPP: i32 = 95;
        let reason = self.reason();
        if self.is_for_want_of_means() {
            return LoadVerdict::OutOfMeans { reason };
        }
        let lacking = KERNEL_LACKS.iter().any(|words| self.messages.contains(words))
            || matches!(self.error.raw_os_error(), Some(ESRCH | EOPNOTSUPP));
        if lacking { LoadVerdict::Unsupported { reason } } else { LoadVerdict::NotLoadable { reason } }
    }

    /// Whether programs of this type may not be loaded here, by whoever decides that: the log has statistics of nothing.
    fn is_before_the_verifier(&self, log: &str) -> bool {
        let looked_at = VerifierStats::parse(log).is_none_or(|stats| stats.processed > 0);
        self.error.raw_os_error() == Some(libc::EPERM) && !stats::complains(log) && !looked_at
    }

    /// The kernel refused: did it look at the program's instructions, or was there nothing to attach such a program to?
    pub(crate) fn verdict_of_the_kernel(&self, log: &str) -> LoadVerdict {
        /// check_attach_btf_id() in the kernel's verifier runs before it looks at the instructions.
        const NO_TARGET: [&str; 2] = ["must provide btf_id", "attach_btf_id"];
        let complaint = stats::last_complaint(log);
        if !stats::complains(log) && self.is_for_want_of_means() {
            LoadVerdict::OutOfMeans { reason: self.reason() }
        } else if log.trim().is_empty() || self.is_before_the_verifier(log) {
            LoadVerdict::Unsupported { reason: self.reason() }
        } else if NO_TARGET.iter().any(|words| complaint.contains(words)) {
            LoadVerdict::Unsupported { reason: complaint.to_owned() }
        } else {
            LoadVerdict::Rejected { errno: self.error.raw_os_error().unwrap_or(0), log: stats::tail(log, LOG_TAIL) }
        }
    }
}

/// What the system says when there are no more descriptors, and when there is no memory. That a right is missing it says,
/// too, of types that nobody may load here: this process has those that matter ([`permitted`](crate::permitted)).
const MEANS: [(i32, [&str; 2]); 3] = [
    (libc::EMFILE, ["-EMFILE", "Too many open files"]),
    (libc::ENFILE, ["-ENFILE", "Too many open files"]),
    (libc::ENOMEM, ["-ENOMEM", "Cannot allocate memory"]),
];

/// Whether an error number stands for a lack of descriptors or of memory, which passes.
pub(crate) fn is_of_means(errno: i32) -> bool {
    MEANS.iter().any(|(number, _)| *number == errno)
}

/// Whether libbpf's words are of a lack of descriptors or of memory.
pub(crate) fn speaks_of_means(words: &str) -> bool {
    MEANS.iter().flat_map(|(_, words)| words).any(|of_means| words.contains(of_means))
}

/// libbpf's words without those that say no more than that something failed.
pub(crate) fn telling(words: &str) -> String {
    const EMPTY: [&str; 3] = [": failed to load: ", ": failed to prepare load attributes", ": failed to load object"];
    let empty = |line: &&str| {
        line.trim().is_empty()
            || line.starts_with("failed to load object")
            || EMPTY.iter().any(|words| line.contains(words))
    };
    let lines: Vec<&str> = words.lines().filter(|line| !empty(line)).collect();
    if lines.is_empty() { words.trim().to_owned() } else { lines.join("\n") }
}

/// The kernel's error for a map that it did not make, as libbpf tells it.
pub(crate) fn why_not_created(words: &str) -> String {
    let error = words.lines().find_map(|line| Some(line.split_once("': failed to create: ")?.1));
    error.map_or_else(|| telling(words), |error| format!("the kernel refuses it: {}", error.trim()))
}

/// What stands between two of libbpf's words.
pub(crate) fn quoted<'w>(words: &'w str, before: &str, after: &str) -> Option<&'w str> {
    words.lines().find_map(|line| {
        let (_, rest) = line.split_once(before)?;
        rest.split_once(after).map(|(name, _)| name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_out_of_libbpfs_words() {
        let words =
            "Error in bpf_create_map_xattr\nmap 'events': failed to create: -EINVAL\nfailed to load object 'o'\n";
        assert_eq!(quoted(words, "map '", "': failed to create"), Some("events"));
        assert_eq!(quoted(words, "extern (func ksym) '", "': not found"), None);
        assert_eq!(why_not_created(words), "the kernel refuses it: -EINVAL");
    }

    #[test]
    fn words_that_say_nothing_are_left_out() {
        let words = "prog 'p': failed to find kernel BTF type ID of 'f': -ESRCH\n\
                     prog 'p': failed to prepare load attributes: -ESRCH\nprog 'p': failed to load: -ESRCH\n\
                     failed to load object 'object'\n";
        assert_eq!(telling(words), "prog 'p': failed to find kernel BTF type ID of 'f': -ESRCH");
        assert_eq!(telling("failed to load object 'object'\n"), "failed to load object 'object'");
        let failure = Failure { error: io::Error::from_raw_os_error(22), messages: words.to_owned() };
        assert!(matches!(failure.blames_the_place(), LoadVerdict::Unsupported { .. }));
        // What this process lacks says nothing of the kernel.
        for (number, messages) in [(libc::EMFILE, words), (22, "map 'm': failed to create: -ENOMEM\n")] {
            let failure = Failure { error: io::Error::from_raw_os_error(number), messages: messages.to_owned() };
            assert!(failure.blames_the_place().is_open());
            assert!(failure.verdict_of_the_kernel("").is_open());
            assert!(!failure.verdict_of_the_kernel("R1 !read_ok").is_open());
        }
    }

    #[test]
    fn what_may_not_be_loaded_here_was_not_looked_at() {
        let failure = |number| Failure { error: io::Error::from_raw_os_error(number), messages: String::new() };
        let nothing = "verification time 45 usec\nstack depth 0\nprocessed 0 insns (limit 1000000) max_states_per_insn 0 \
                       total_states 0 peak_states 0 mark_read 0\n";
        assert!(matches!(failure(libc::EPERM).verdict_of_the_kernel(nothing), LoadVerdict::Unsupported { .. }));
        for (number, log) in [(22, nothing.to_owned()), (libc::EPERM, nothing.replace("processed 0", "processed 7"))] {
            assert!(matches!(failure(number).verdict_of_the_kernel(&log), LoadVerdict::Rejected { .. }));
        }
        let complaint = format!("R1 leaks addr\n{nothing}");
        assert!(matches!(failure(libc::EPERM).verdict_of_the_kernel(&complaint), LoadVerdict::Rejected { .. }));
    }
}
