//! clang, where there is one.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::random::Rng;

/// The newest version that is looked for as `clang-N`.
const NEWEST: u32 = 24;
/// The oldest that knows the BPF target well enough.
const OLDEST: u32 = 12;

/// A compiler.
#[derive(Clone, Debug)]
pub struct Clang(PathBuf);

/// How to compile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// `-O1`, `-O2`, `-O3`, `-Os`.
    pub level: &'static str,
    /// `-mcpu=`: v1, v2, v3.
    pub cpu: &'static str,
}

impl Settings {
    /// Random ones.
    pub fn random(r: &mut Rng) -> Settings {
        Settings { level: r.one_of(&["-O1", "-O2", "-O2", "-O3", "-Os"]), cpu: r.one_of(&["v1", "v2", "v3", "v3"]) }
    }
}

impl Clang {
    /// The compiler that `BPF_OPT_CLANG` names, or the newest that can be started.
    pub fn find() -> Option<Clang> {
        let named = std::env::var_os("BPF_OPT_CLANG").map(PathBuf::from);
        let usual = (OLDEST..=NEWEST).rev().map(|n| PathBuf::from(format!("clang-{n}")));
        let all = named.into_iter().chain([PathBuf::from("clang")]).chain(usual);
        all.into_iter()
            .find(|path| {
                let version = Command::new(path).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
                version.is_ok_and(|s| s.success())
            })
            .map(Clang)
    }

    /// The object of this source.
    ///
    /// # Errors
    /// What clang says.
    pub fn compile(&self, source: &str, settings: Settings) -> Result<Vec<u8>, String> {
        let mut command = Command::new(&self.0);
        command
            .args(["-target", "bpf", "-g", "-w", settings.level, &format!("-mcpu={}", settings.cpu)])
            .args(["-c", "-x", "c", "-o", "-", "-"]);
        fed(command, source)
    }

    /// The object of a file, as examples are compiled, for machines of one byte order: `bpfel` or `bpfeb`.
    ///
    /// # Errors
    /// What clang says.
    pub fn compile_file(&self, source: &Path, target: &str) -> Result<Vec<u8>, String> {
        let mut command = Command::new(&self.0);
        command.args(["-target", target, "-g", "-w", "-O2", "-mcpu=v3", "-c", "-o", "-"]).arg(source);
        fed(command, "")
    }

    /// Compiles this source for this machine, with `-O2`, to a shared object at `to`. It gets no library.
    ///
    /// # Errors
    /// What clang or the linker says.
    pub fn shared_object(&self, source: &str, to: &Path) -> Result<(), String> {
        let mut command = Command::new(&self.0);
        command.args(["-O2", "-w", "-shared", "-fPIC", "-nostdlib", "-x", "c", "-o"]).arg(to).arg("-");
        fed(command, source).map(drop)
    }

    /// The first line of what it says of its version.
    pub fn version(&self) -> String {
        let out = Command::new(&self.0).arg("--version").output().map(|o| o.stdout).unwrap_or_default();
        String::from_utf8_lossy(&out).lines().next().unwrap_or_default().to_owned()
    }
}

/// What a command writes that is given a text.
fn fed(mut command: Command, text: &str) -> Result<Vec<u8>, String> {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| e.to_string())?;
    let mut stdin = child.stdin.take().ok_or("it takes no input")?;
    let text = text.to_owned();
    // On a thread of its own, since both ends have buffers that can be full.
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let out = child.wait_with_output().map_err(|e| e.to_string())?;
    let _ = writer.join();
    if out.status.success() { Ok(out.stdout) } else { Err(String::from_utf8_lossy(&out.stderr).into_owned()) }
}
