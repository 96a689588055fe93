//! The machine: qemu's command line, and what comes over the serial console.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::archive::{LIBRARIES, Program, archive};
use crate::image::Image;

/// The program that runs a machine like this one.
const QEMU: &str = "qemu-system-x86_64";
/// How often it is seen whether the machine has stopped.
const TICK: Duration = Duration::from_millis(20);
/// A machine with KVM whose program has not said [`Guest::first_words`] by then never will: some hosts offer a KVM that does not
/// run a kernel.
const KVM_BOOTS_IN: Duration = Duration::from_secs(15);

/// What runs the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// The processor.
    Kvm,
    /// qemu itself, which is slower and needs nothing.
    Tcg,
}

/// What is to be done in another kernel.
#[derive(Debug)]
pub struct Guest<'a> {
    /// The kernel.
    pub image: &'a Image,
    /// What runs in it, as its first process.
    pub program: &'a Program,
    /// What it is given behind its name; no white space in them.
    pub arguments: &'a [String],
    /// Paths in the guest, and contents.
    pub files: &'a [(String, Vec<u8>)],
    /// What the program prints first of all.
    pub first_words: &'a str,
    /// What runs it; without one, KVM if it does and emulation else.
    pub accelerator: Option<Accelerator>,
    /// Memory of the machine, in MiB.
    pub memory: u32,
    /// It is switched off after that long.
    pub limit: Duration,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// qemu is not installed, or cannot start.
    #[error("cannot start {QEMU}: {0}")]
    Start(io::Error),
    /// The archive could not be made or handed over.
    #[error("cannot prepare the guest: {0}")]
    Prepare(io::Error),
    /// The machine did not switch itself off.
    #[error("{release}: the machine did not answer within {} s; its last words: {console:?}", limit.as_secs())]
    TimedOut {
        /// The kernel.
        release: String,
        /// The time it was given.
        limit: Duration,
        /// The end of what it printed.
        console: String,
    },
    /// The machine runs, and its program does not.
    #[error("{release}: the machine never came to its program")]
    Silent {
        /// The kernel.
        release: String,
    },
    /// qemu gave up.
    #[error("{release}: {QEMU} failed: {message}")]
    Failed {
        /// The kernel.
        release: String,
        /// What it said.
        message: String,
    },
}

/// Whether there is a qemu to boot kernels with.
pub fn is_available() -> bool {
    let mut qemu = Command::new(QEMU);
    qemu.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    qemu.status().is_ok_and(|status| status.success())
}

impl Guest<'_> {
    /// Boots, and returns what the program printed until the machine stopped.
    ///
    /// # Errors
    /// If there is no qemu, or the machine does not stop in time.
    pub fn run(&self) -> Result<String, VmError> {
        let folder = tempfile::tempdir().map_err(VmError::Prepare)?;
        let initrd = folder.path().join("initrd");
        let bytes = archive(self.program, self.files).map_err(VmError::Prepare)?;
        std::fs::write(&initrd, bytes).map_err(VmError::Prepare)?;
        match self.accelerator {
            Some(accelerator) => self.boot(&initrd, accelerator),
            None => match self.boot(&initrd, Accelerator::Kvm) {
                Err(VmError::Failed { .. } | VmError::Silent { .. }) => self.boot(&initrd, Accelerator::Tcg),
                answer => answer,
            },
        }
    }

    fn boot(&self, initrd: &Path, accelerator: Accelerator) -> Result<String, VmError> {
        let mut child = self.command(initrd, accelerator).spawn().map_err(VmError::Start)?;
        let console = Stream::of(child.stdout.take());
        let complaints = Stream::of(child.stderr.take());
        let stopped = self.wait(&mut child, &console, accelerator);
        let (console, complaints) = (console.whole(), complaints.whole());
        let release = self.image.release.clone();
        match stopped {
            Ok(Stopped::Itself(true)) => Ok(console),
            Ok(Stopped::Itself(false)) => Err(VmError::Failed { release, message: complaints.trim().to_owned() }),
            Ok(Stopped::Silent) => Err(VmError::Silent { release }),
            Ok(Stopped::Late) => Err(VmError::TimedOut { release, limit: self.limit, console: last_words(&console) }),
            Err(e) => Err(VmError::Failed { release, message: e.to_string() }),
        }
    }

    /// Waits until the machine has stopped itself, or has to be stopped.
    fn wait(&self, child: &mut Child, console: &Stream, accelerator: Accelerator) -> io::Result<Stopped> {
        let began = Instant::now();
        let mut has_spoken = accelerator == Accelerator::Tcg;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Stopped::Itself(status.success()));
            }
            let took = began.elapsed();
            has_spoken = has_spoken || console.has(self.first_words);
            let is_silent = !has_spoken && took >= KVM_BOOTS_IN;
            if is_silent || took >= self.limit {
                child.kill()?;
                child.wait()?;
                return Ok(if is_silent { Stopped::Silent } else { Stopped::Late });
            }
            std::thread::sleep(TICK);
        }
    }

    fn command(&self, initrd: &Path, accelerator: Accelerator) -> Command {
        // What the kernel does not know goes to its init: names with a value as its environment, what stands behind `--` as
        // arguments. A panic restarts the machine at once, which `-no-reboot` makes its end.
        let append =
            format!("console=ttyS0 quiet panic=-1 LD_LIBRARY_PATH={LIBRARIES} -- {}", self.arguments.join(" "));
        let accelerator = match accelerator {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg",
        };
        let mut qemu = Command::new(QEMU);
        qemu.args([
            "-accel",
            accelerator,
            "-cpu",
            "max,-arch-capabilities",
            "-smp",
            "1",
            "-m",
            &self.memory.to_string(),
        ])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"])
        .args(["-append", &append])
        .arg("-kernel")
        .arg(&self.image.path)
        .arg("-initrd")
        .arg(initrd)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
        qemu
    }
}

/// How a machine came to its end.
enum Stopped {
    /// By itself; whether qemu calls that good.
    Itself(bool),
    /// Its program was never heard of.
    Silent,
    /// It took too long.
    Late,
}

/// What comes from the machine while it runs.
struct Stream {
    bytes: Arc<Mutex<Vec<u8>>>,
    listener: Option<JoinHandle<()>>,
}

impl Stream {
    fn of(from: Option<impl Read + Send + 'static>) -> Stream {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&bytes);
        let listen = |mut from: Box<dyn Read + Send>| {
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                // What came before an error is the answer.
                while let Ok(n @ 1..) = from.read(&mut buffer) {
                    heard.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..n]);
                }
            })
        };
        Stream { bytes, listener: from.map(|from| listen(Box::new(from))) }
    }

    fn has(&self, words: &str) -> bool {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).contains(words)
    }

    /// All of it, once the machine has stopped.
    fn whole(self) -> String {
        if let Some(listener) = self.listener {
            // A listener that panicked has heard what there is.
            let _ = listener.join();
        }
        String::from_utf8_lossy(&self.bytes.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

/// What a machine said before it stopped: a panic of its kernel, or the end of what it printed; short enough for a message.
pub fn last_words(console: &str) -> String {
    const CHARACTERS: usize = 300;
    if let Some(panic) = console.lines().find(|line| line.contains("Kernel panic")) {
        return panic.trim().to_owned();
    }
    let skipped = console.chars().count().saturating_sub(CHARACTERS);
    console.chars().skip(skipped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_what_counts_of_a_console() {
        let console = "booting\r\n[ 2.0] Kernel panic - not syncing: no init\r\n[ 2.1] CPU: 0 PID: 1\r\n";
        assert_eq!(last_words(console), "[ 2.0] Kernel panic - not syncing: no init");
        assert_eq!(last_words("hello"), "hello");
    }
}
