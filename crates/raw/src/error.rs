//! What is wrong with an array, in words for those who made it.

/// Why an array of instructions, or a description of maps, cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RawError {
    /// There is no instruction.
    #[error("no instruction found")]
    Empty,
    /// The bytes do not divide into instructions.
    #[error("{bytes} bytes are no whole number of instructions (8 bytes each)")]
    Torn {
        /// How many there are.
        bytes: usize,
    },
    /// A line of text that is not understood.
    #[error("line {line}: {what}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// An instruction that cannot be wrapped.
    #[error("instruction {slot}: {what}")]
    Slot {
        /// Its slot, from 0.
        slot: usize,
        /// What is wrong with it.
        what: String,
    },
    /// A classic BPF program (`struct sock_filter`).
    #[error("this is classic BPF (`struct sock_filter`: code, jt, jf, k), another instruction set")]
    Classic,
    /// Instructions as the kernel shows them of a loaded program.
    #[error(
        "this is a program as the kernel has rewritten it (`bpftool prog dump xlated`): accesses of the context, helper \
         calls and maps are replaced, and no kernel loads it again"
    )]
    Translated,
    /// Maps that the code names and nobody describes.
    #[error("the code refers to maps that are not described: {}", numbers.iter().map(i32::to_string).collect::<Vec<_>>().join(", "))]
    UnknownMaps {
        /// Their numbers, as in the instructions.
        numbers: Vec<i32>,
    },
    /// A program type of which no section's name is known here.
    #[error("`{name}` is no program type of which a bare array can be")]
    NoSection {
        /// As it was given.
        name: String,
    },
    /// A program of an object that no bare array can be.
    #[error("{program}: {what}")]
    NotBare {
        /// The program's name.
        program: String,
        /// What it needs.
        what: String,
    },
    /// What was wrapped is no good object: a mistake of this crate.
    #[error("internal: {0}")]
    Object(String),
}

impl RawError {
    /// What to do about it, where that is known.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            RawError::Classic => {
                "the kernel makes BPF of such filters itself; compile from the source of the filter, for instance with \
                 `clang --target=bpf`"
            }
            RawError::Translated => {
                "take the instructions that were loaded: the object file, or what the loader passed to bpf(2) \
                 (`strace -v -e bpf`)"
            }
            RawError::UnknownMaps { numbers } => {
                let lines: Vec<String> = numbers.iter().map(|n| format!("{n} array 4 8 256")).collect();
                return Some(format!(
                    "say with --maps FILE what they are like, a line for each (number, type, bytes of a key, bytes of a \
                     value, entries), such as `{}`",
                    lines.join("`, `")
                ));
            }
            RawError::NoSection { .. } => {
                "give a section's name as libbpf knows it (`xdp`, `tc`, `tracepoint/syscalls/sys_enter_open`, \
                 `cgroup/recvmsg4`), or the kernel's (`sched_cls`)"
            }
            _ => return None,
        };
        Some(text.to_owned())
    }
}
