//! Why a command could not do its work, in the words the user reads.
//!
//! The one idea: a [`Failure`] is complete when it is made: exit code, the sentence, what to do next. Nothing is
//! added on the way to `main`, which prints it.

use std::fmt::Display;
use std::io;
use std::path::Path;

use bpf_driver::DriverError;
use bpf_kernel::KernelError;
use bpf_object::{ByteOrder, Object, ObjectError};

/// Exit codes, the same for all commands; `bpf-opt --help` explains them to users.
pub mod exit {
    /// Done, and the answer is yes.
    pub const YES: u8 = 0;
    /// Done, and the answer is no.
    pub const NO: u8 = 1;
    /// Wrong usage or a bad file.
    pub const BAD_INPUT: u8 = 2;
    /// Not decided, or not permitted to find out.
    pub const UNKNOWN: u8 = 3;
    /// A bug of this program.
    pub const INTERNAL: u8 = 70;
    /// Stopped by a signal.
    pub const INTERRUPTED: u8 = 130;
}

/// A command's failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The process's exit code.
    pub code: u8,
    /// What is wrong, beginning with the file's name where there is one.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Failure {
    /// A bad file or wrong usage.
    pub fn bad_input(message: impl Into<String>) -> Failure {
        Failure { code: exit::BAD_INPUT, message: message.into(), hint: None }
    }

    /// The same with advice.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Failure {
        Failure { hint: Some(hint.into()), ..self }
    }

    /// An error of this program.
    pub fn internal(message: impl Into<String>) -> Failure {
        Failure { code: exit::INTERNAL, message: message.into(), hint: None }
    }

    /// A file operation that the system refused.
    pub fn io(doing: &str, path: &Path, error: &io::Error) -> Failure {
        Failure::bad_input(format!("{}: cannot {doing}: {error}", path.display()))
    }

    /// A file that is no good object.
    pub fn object(path: &Path, error: &ObjectError) -> Failure {
        let code = if matches!(error, ObjectError::Internal { .. }) { exit::INTERNAL } else { exit::BAD_INPUT };
        let hint = object_hint(error).map(str::to_owned);
        Failure { code, message: format!("{}: {error}", path.display()), hint }
    }

    /// The pipeline's refusal.
    pub fn driver(path: &Path, error: &DriverError) -> Failure {
        match error {
            DriverError::Object(error) => Failure::object(path, error),
            DriverError::OtherKernel { .. } => {
                Failure { code: exit::UNKNOWN, ..Failure::bad_input(format!("{}: {error}", path.display())) }
            }
            DriverError::NotAsSpecialized { .. } => Failure {
                code: exit::NO,
                ..Failure::bad_input(format!("{}: {error}", path.display()))
                    .with_hint("declare less, or leave that kernel out")
            },
            DriverError::OtherOrder { .. } | DriverError::NoSuchPass { .. } => Failure::bad_input(error.to_string()),
            DriverError::NoSuchProgram { .. } => Failure::bad_input(format!("{}: {error}", path.display())),
        }
    }

    /// Whether the kernel here may be asked about an object at all: it is in this machine's byte order.
    pub fn unless_for_this_kernel(path: &Path, object: &Object) -> Result<(), Failure> {
        match object.byte_order() {
            ByteOrder::HOST => Ok(()),
            order => Err(Failure::kernel(path, &KernelError::ByteOrder { order })),
        }
    }

    /// A question that the kernel could not be asked.
    pub fn kernel(path: &Path, error: &KernelError) -> Failure {
        match error {
            KernelError::NotPermitted { .. } => {
                Failure { code: exit::UNKNOWN, message: error.to_string(), hint: Some("run it with sudo".to_owned()) }
            }
            KernelError::UnknownProgramType { .. } => Failure::bad_input(error.to_string()),
            KernelError::ByteOrder { .. } => Failure::bad_input(format!("{}: {error}", path.display())).with_hint(
                "`bpf-opt check` says what a kernel of such a machine would; `verify` and `run` need no kernel",
            ),
            // The message says what was tried, and the source why not.
            KernelError::Refused { source, .. } => Failure::bad_input(format!("{}: {error}: {source}", path.display())),
            _ => Failure::bad_input(format!("{}: {error}", path.display())),
        }
    }

    /// No function is called so.
    pub fn no_such_program<'a>(path: &Path, name: &str, known: impl Iterator<Item = &'a str>) -> Failure {
        let known: Vec<&str> = known.collect();
        Failure::bad_input(format!(
            "{}: no program named `{name}`; the object has: {}",
            path.display(),
            known.join(", ")
        ))
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bpf-opt: {}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

fn object_hint(error: &ObjectError) -> Option<&'static str> {
    Some(match error {
        ObjectError::NotElf => {
            "BPF objects are made with `clang --target=bpf -O2 -g -c prog.c -o prog.o`; an array of struct bpf_insn is read with \
             --raw (`bpf-opt help raw`)"
        }
        ObjectError::Not64Bit | ObjectError::WrongMachine { .. } => {
            "this is compiled for another machine; give clang `--target=bpf`"
        }
        ObjectError::WrongType { .. } => "give the .o file that `clang -c` or `bpftool gen object` makes",
        ObjectError::Truncated { .. } => "is the file complete? Copy or build it again",
        ObjectError::Corrupt { .. } => "the file is damaged or was changed after compiling; build it again",
        ObjectError::Internal { .. } => "nothing was written; please report this with the object",
        _ => return None,
    })
}
