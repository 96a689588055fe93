//! `bpf-opt guest`: the first process of a machine that [`crate::elsewhere`] has booted. It listens on a serial line, and says of
//! each object that comes what its kernel says.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use bpf_kernel::{LoadOptions, Loader, Question};
use flate2::Compression;
use flate2::read::{DeflateDecoder, DeflateEncoder};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, exit};
use crate::files;
use crate::load;

/// What the console shows once the line is open, where firmware and kernel may print, too.
pub const MARK: &str = "bpf-opt guest: listens";
/// What an object may take the kernel.
const LIMIT: Duration = Duration::from_secs(60);
/// Who asks nothing for that long is gone.
const PATIENCE: Timespec = Timespec { tv_sec: 300, tv_nsec: 0 };
/// The fastest that every kernel knows; to qemu it makes no difference but for how long the kernel waits for a next byte.
const BAUD: u32 = 115_200;
/// What has to be there for libbpf: (name, where, kind).
const MOUNTS: [(&str, &str, &str); 5] = [
    ("proc", "/proc", "proc"),
    ("sys", "/sys", "sysfs"),
    ("dev", "/dev", "devtmpfs"),
    ("bpf", "/sys/fs/bpf", "bpf"),
    ("tracefs", "/sys/kernel/tracing", "tracefs"),
];

/// What a kernel says of one object.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct Answer {
    /// The kernel's release.
    pub release: String,
    /// Why it could not be asked.
    pub error: Option<String>,
    /// Why the object as a whole does not load.
    pub not_loadable: Option<String>,
    /// Each program.
    pub programs: Vec<Judged>,
}

/// What a kernel says of one program; docs/json.md describes the fields.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Judged {
    pub name: String,
    pub section: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub slots: usize,
    pub verdict: String,
    pub reason: Option<String>,
    pub processed: Option<u64>,
    pub states: Option<u64>,
    pub peak_states: Option<u64>,
    #[serde(default)]
    pub stack_depths: Vec<u32>,
    pub xlated_bytes: Option<u32>,
    pub jited_bytes: Option<u32>,
}

impl Answer {
    /// Whether the kernel takes all of it.
    pub fn is_accepted(&self) -> bool {
        self.error.is_none() && self.not_loadable.is_none() && self.programs.iter().all(Judged::is_accepted)
    }

    /// Whether the kernel has come to a verdict on every program, so that it need not be asked again.
    pub fn is_final(&self) -> bool {
        self.error.is_none() && !self.programs.iter().any(|p| load::is_open(&p.verdict))
    }
}

impl Judged {
    /// Whether the kernel takes it.
    pub fn is_accepted(&self) -> bool {
        self.verdict == load::verdict(&bpf_kernel::LoadVerdict::Accepted)
    }
}

/// Runs the command; in the guest, it does not return.
pub fn run() -> Result<u8, Failure> {
    if std::process::id() != 1 {
        let failure = Failure::bad_input("`guest` runs as the first process of a machine, and switches it off");
        return Err(failure.with_hint("`bpf-opt kernels load` boots one"));
    }
    if let Err(why) = listen() {
        // The last words of this machine.
        let _ = files::print(&format!("bpf-opt guest: {why}\n"));
    }
    // Else the kernel panics as its first process ends, which stops the machine, too.
    let _ = reboot(RebootCommand::Restart);
    Ok(exit::UNKNOWN)
}

fn listen() -> io::Result<()> {
    for (name, place, kind) in MOUNTS {
        // What is missing then shows where it is needed: not every kernel has all of them.
        let _ = fs::create_dir_all(place)
            .and_then(|()| mount(name, place, kind, MountFlags::empty(), None).map_err(io::Error::from));
    }
    let mut line = open_line()?;
    let _ = files::print(&format!("{MARK}\n"));
    loop {
        let heard = poll(&mut [PollFd::new(&line, PollFlags::IN)], Some(&PATIENCE))?;
        if heard == 0 {
            return Ok(());
        }
        let mut length = [0; 4];
        line.read_exact(&mut length)?;
        let mut packed = vec![0; u32::from_le_bytes(length) as usize];
        line.read_exact(&mut packed)?;
        let release = bpf_kernel::release();
        let answer = match judge(&packed) {
            Ok(answer) => Answer { release, ..answer },
            Err(why) => Answer { release, error: Some(why), ..Answer::default() },
        };
        let text = serde_json::to_string(&answer)? + "\n";
        line.write_all(text.as_bytes())?;
    }
}

/// The line, through which bytes go as they are.
fn open_line() -> io::Result<File> {
    let no_terminal = i32::try_from(OFlags::NOCTTY.bits()).map_err(io::Error::other)?;
    let line = OpenOptions::new().read(true).write(true).custom_flags(no_terminal).open(bpf_vm::LINE)?;
    let mut termios = tcgetattr(&line)?;
    termios.make_raw();
    termios.set_speed(BAUD)?;
    tcsetattr(&line, OptionalActions::Now, &termios)?;
    Ok(line)
}

/// An object and the type of its programs, as they go over the line.
pub fn question(object: &[u8], program_type: Option<&str>) -> io::Result<Vec<u8>> {
    let head = serde_json::to_string(&program_type)? + "\n";
    let mut packed = Vec::new();
    DeflateEncoder::new(head.as_bytes().chain(object), Compression::best()).read_to_end(&mut packed)?;
    Ok(packed)
}

fn judge(packed: &[u8]) -> Result<Answer, String> {
    let mut bytes = Vec::new();
    DeflateDecoder::new(packed).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    let end = bytes.iter().position(|b| *b == b'\n').ok_or("a question without a head")?;
    let program_type: Option<String> = serde_json::from_slice(&bytes[..end]).map_err(|e| e.to_string())?;
    // One for each, so that what one object leaves open is not what another one finds.
    let mut loader = Loader::new(LoadOptions { program_type, only: None }).map_err(|e| e.to_string())?;
    let verdict = loader
        .judge(&bytes[end + 1..], |_, _| Question::AsDefined, Instant::now().checked_add(LIMIT))
        .map_err(|e| e.to_string())?;
    let programs = verdict.programs.iter().map(|p| Judged {
        name: p.name.clone(),
        section: p.section.clone(),
        kind: p.kind.to_string(),
        slots: p.slots,
        verdict: load::verdict(&p.verdict).to_owned(),
        reason: Some(p.verdict.reason().to_owned()).filter(|r| !r.is_empty()),
        processed: p.stats.as_ref().map(|s| s.processed),
        states: p.stats.as_ref().map(|s| s.total_states),
        peak_states: p.stats.as_ref().map(|s| s.peak_states),
        stack_depths: p.stats.as_ref().map_or_else(Vec::new, |s| s.stack_depths.clone()),
        xlated_bytes: p.info.map(|i| i.xlated_bytes),
        jited_bytes: p.info.map(|i| i.jited_bytes),
    });
    Ok(Answer { not_loadable: verdict.not_loadable, programs: programs.collect(), ..Answer::default() })
}
