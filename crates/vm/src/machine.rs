//! The machine: qemu's command line, and what goes over its two serial lines.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::archive::{LIBRARIES, Program, archive};
use crate::image::Image;

/// The program that runs a machine like this one.
const QEMU: &str = "qemu-system-x86_64";
/// How often it is seen whether the machine has stopped.
const TICK: Duration = Duration::from_millis(20);
/// A machine with KVM whose program has not said [`Guest::first_words`] by then never will: some hosts offer a KVM that does not
/// run a kernel.
const KVM_BOOTS_IN: Duration = Duration::from_secs(15);
/// That was so: it is not tried again.
static KVM_DOES_NOT_RUN: AtomicBool = AtomicBool::new(false);
/// Files of a machine, in a folder of its own: what the kernel unpacks, and the other end of [`LINE`].
const INITRD: &str = "initrd";
const SOCKET: &str = "line";

/// What runs the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// The processor.
    Kvm,
    /// qemu itself, which is slower and needs nothing.
    Tcg,
}

/// A machine with another kernel, and who answers in it.
#[derive(Debug)]
pub struct Guest<'a> {
    /// The kernel.
    pub image: &'a Image,
    /// What runs in it, as its first process.
    pub program: &'a Program,
    /// What it is given behind its name; no white space in them.
    pub arguments: &'a [&'a str],
    /// What the program prints on the console once it listens on [`LINE`].
    pub first_words: &'a str,
    /// What runs it; without one, KVM if it does and emulation else.
    pub accelerator: Option<Accelerator>,
    /// Memory of the machine, in MiB.
    pub memory: u32,
    /// How long it may take until its program listens.
    pub limit: Duration,
}

/// Where the program in the guest finds what it is asked: a serial line of its own, beside the console.
pub const LINE: &str = "/dev/ttyS1";

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// qemu is not installed, or cannot start.
    #[error("cannot start {QEMU}: {0}")]
    Start(io::Error),
    /// The archive could not be made or handed over.
    #[error("cannot prepare the guest: {0}")]
    Prepare(io::Error),
    /// The machine did not answer.
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
    /// Boots, and waits until the program listens.
    ///
    /// # Errors
    /// If there is no qemu, or the program does not listen in time.
    pub fn start(&self) -> Result<Session, VmError> {
        let folder = tempfile::tempdir().map_err(VmError::Prepare)?;
        let bytes = archive(self.program).map_err(VmError::Prepare)?;
        std::fs::write(folder.path().join(INITRD), bytes).map_err(VmError::Prepare)?;
        let folder = Arc::new(folder);
        match self.accelerator {
            Some(accelerator) => self.boot(&folder, accelerator),
            None if KVM_DOES_NOT_RUN.load(Ordering::Relaxed) => self.boot(&folder, Accelerator::Tcg),
            None => match self.boot(&folder, Accelerator::Kvm) {
                Err(VmError::Failed { .. } | VmError::Silent { .. }) => {
                    KVM_DOES_NOT_RUN.store(true, Ordering::Relaxed);
                    self.boot(&folder, Accelerator::Tcg)
                }
                answer => answer,
            },
        }
    }

    fn boot(&self, folder: &Arc<TempDir>, accelerator: Accelerator) -> Result<Session, VmError> {
        let mut child = self.command(folder.path(), accelerator).spawn().map_err(VmError::Start)?;
        let console = Stream::of(child.stdout.take());
        let complaints = Stream::of(child.stderr.take());
        let release = self.image.release.clone();
        let socket = folder.path().join(SOCKET);
        let mut machine = Machine { child, console, complaints, release, _folder: folder.clone() };
        let began = Instant::now();
        loop {
            if machine.has_stopped() {
                return Err(machine.failed());
            }
            if machine.console.has(self.first_words) {
                break;
            }
            let took = began.elapsed();
            if accelerator == Accelerator::Kvm && took >= KVM_BOOTS_IN.min(self.limit) {
                return Err(VmError::Silent { release: machine.release.clone() });
            }
            if took >= self.limit {
                return Err(machine.timed_out(self.limit));
            }
            std::thread::sleep(TICK);
        }
        let line = UnixStream::connect(socket).map_err(VmError::Prepare)?;
        Ok(Session { line: BufReader::new(line), machine })
    }

    fn command(&self, folder: &Path, accelerator: Accelerator) -> Command {
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
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-serial", "stdio", "-serial", "chardev:line", "-chardev"])
        .arg(format!("socket,id=line,server=on,wait=off,path={}", folder.join(SOCKET).display()))
        .args(["-append", &append])
        .arg("-kernel")
        .arg(&self.image.path)
        .arg("-initrd")
        .arg(folder.join(INITRD))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
        qemu
    }
}

/// A machine that runs; dropped, it is switched off.
#[derive(Debug)]
struct Machine {
    child: Child,
    console: Stream,
    complaints: Stream,
    release: String,
    /// What qemu has open.
    _folder: Arc<TempDir>,
}

impl Machine {
    fn has_stopped(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn failed(&self) -> VmError {
        let message = match self.complaints.text().trim() {
            "" => format!("the machine stopped; its last words: {:?}", last_words(&self.console.text())),
            words => words.to_owned(),
        };
        VmError::Failed { release: self.release.clone(), message }
    }

    fn timed_out(&self, limit: Duration) -> VmError {
        VmError::TimedOut { release: self.release.clone(), limit, console: last_words(&self.console.text()) }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have stopped by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that listens in a machine.
#[derive(Debug)]
pub struct Session {
    line: BufReader<UnixStream>,
    machine: Machine,
}

impl Session {
    /// Sends a question, its length before it in four bytes (little end first), and waits for a line of answer. After an error,
    /// the session answers nothing any more.
    ///
    /// # Errors
    /// If the machine stops, or does not answer in time.
    pub fn ask(&mut self, question: &[u8], limit: Duration) -> Result<String, VmError> {
        let length = u32::try_from(question.len()).map_err(|_| VmError::Prepare(io::ErrorKind::FileTooLarge.into()))?;
        let mut answer = String::new();
        match self.exchange(length, question, limit, &mut answer) {
            Ok(_) if answer.ends_with('\n') => Ok(answer),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Err(self.machine.timed_out(limit))
            }
            _ => Err(self.machine.failed()),
        }
    }

    fn exchange(&mut self, length: u32, question: &[u8], limit: Duration, answer: &mut String) -> io::Result<usize> {
        let line = self.line.get_mut();
        line.set_write_timeout(Some(limit))?;
        line.set_read_timeout(Some(limit))?;
        line.write_all(&length.to_le_bytes())?;
        line.write_all(question)?;
        self.line.read_line(answer)
    }
}

/// What comes from the machine while it runs.
#[derive(Debug)]
struct Stream {
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Stream {
    fn of(from: Option<impl Read + Send + 'static>) -> Stream {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&bytes);
        if let Some(mut from) = from {
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                // What came before an error is what there is.
                while let Ok(n @ 1..) = from.read(&mut buffer) {
                    heard.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..n]);
                }
            });
        }
        Stream { bytes }
    }

    fn has(&self, words: &str) -> bool {
        self.text().contains(words)
    }

    /// All of it so far.
    fn text(&self) -> String {
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
