//! Objects to try things on, and the binary to try.
#![allow(dead_code)]

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The committed objects.
pub fn examples() -> Vec<PathBuf> {
    let found = objects(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples"));
    assert!(!found.is_empty(), "the examples are committed");
    found
}

/// The benchmark objects, where they are.
pub fn benchmarks() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/bench");
    ["k2", "public"].iter().flat_map(|folder| objects(&root.join(folder))).collect()
}

fn objects(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        entries.map(|e| e.path()).filter(|p| p.extension() == Some(OsStr::new("o"))).collect();
    found.sort();
    found
}

/// One committed object.
pub fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

/// A capture (pcap, Ethernet) of these frames, as bytes of a file.
pub fn capture_of(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Magic, version 2.4, zone, accuracy, longest packet, Ethernet.
    for word in [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 65535, 1] {
        bytes.extend(word.to_le_bytes());
    }
    for (second, frame) in frames.iter().enumerate() {
        for word in [second as u32, 0, frame.len() as u32, frame.len() as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(frame);
    }
    bytes
}

/// Runs the binary.
pub fn bpf_opt<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ran {
    Ran::of(command().args(args).output().expect("the binary runs"))
}

/// The binary, about to be run.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bpf-opt"));
    command.stdin(Stdio::null()).env_remove("RUST_BACKTRACE");
    // What a search learns in a test stays with the tests.
    command.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
    command
}

/// What came of it.
#[derive(Debug)]
pub struct Ran {
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Ran {
    /// Reads it.
    pub fn of(output: Output) -> Ran {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (code, signal) = (output.status.code(), output.status.signal());
        Ran { code, signal, out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Fails the test unless the exit code is this.
    #[track_caller]
    pub fn expect(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }
}
